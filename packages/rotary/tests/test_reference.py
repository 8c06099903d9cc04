"""The reference against closed forms in float64 and against other ways to write the rotation."""

from __future__ import annotations

import math

import pytest
import torch

from opwright.rotary import apply_rotary, reference

Tensor = torch.Tensor
BASE = 10000.0


def angles(positions: list[int], rotary_dim: int) -> Tensor:
    """``(len(positions), rotary_dim / 2)`` in float64, from the defining formula, number by number."""
    return torch.tensor(
        [[p * BASE ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)] for p in positions],
        dtype=torch.float64,
    )


def by_complex_numbers(x: Tensor, angle: Tensor, interleaved: bool) -> Tensor:
    """``(tokens, heads, columns)`` rotated as complex numbers, which knows nothing of cos and sin tables."""
    half = x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)[:, None, :]
    if interleaved:
        return torch.view_as_real(turned).flatten(-2)
    return torch.cat((turned.real, turned.imag), -1)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 3, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


class TestAgainstTheFormula:
    """Rotation of complex numbers, rotation matrices, and numbers worked out by hand."""

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_complex_numbers(self, x, interleaved):
        angle = angles(list(range(5)), 12)
        got = reference.apply_rotary(x, cos=angle.cos(), sin=angle.sin(), interleaved=interleaved)
        torch.testing.assert_close(got, by_complex_numbers(x, angle, interleaved), rtol=1e-14, atol=1e-14)

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_rotation_matrix(self, x, interleaved):
        """One 12 x 12 matrix of plane rotations for each position, applied as a product."""
        angle = angles([7], 12)[0]
        matrix = torch.zeros(12, 12, dtype=torch.float64)
        for i, theta in enumerate(angle.tolist()):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + 6)
            matrix[a, a] = matrix[b, b] = math.cos(theta)
            matrix[a, b], matrix[b, a] = -math.sin(theta), math.sin(theta)
        positions = torch.full((5,), 7)
        table = angles(list(range(8)), 12)
        got = reference.apply_rotary(
            x, cos=table.cos(), sin=table.sin(), positions=positions, interleaved=interleaved
        )
        torch.testing.assert_close(got, x @ matrix.T, rtol=1e-13, atol=1e-13)

    def test_a_right_angle(self):
        x = torch.tensor([1.0, 0.0], dtype=torch.float64).view(1, 1, 2)
        cos, sin = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
        assert reference.apply_rotary(x, cos=cos, sin=sin).flatten().tolist() == [0.0, 1.0]

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_scores_depend_on_the_distance_only(self, x, interleaved):
        """What rotary embedding is for: the product of q at m and k at n is a function of m - n."""
        table = angles(list(range(40)), 12)
        q, k = x[:1], x[1:2]

        def score(m: int, n: int) -> Tensor:
            def at(vector: Tensor, place: int) -> Tensor:
                return reference.apply_rotary(
                    vector, cos=table.cos(), sin=table.sin(), offsets=place, interleaved=interleaved
                )

            return (at(q, m) * at(k, n)).sum(-1)

        torch.testing.assert_close(score(3, 1), score(39, 37), rtol=1e-12, atol=1e-12)
        assert not torch.allclose(score(3, 1), score(3, 2))

    def test_a_value_for_each_column(self, x):
        """Each column takes its own value of the table, which the usual doubled tables cannot show."""
        generator = torch.Generator().manual_seed(5)
        cos, sin = (torch.randn(5, 12, generator=generator, dtype=torch.float64) for _ in range(2))
        halves = torch.cat((-x[..., 6:], x[..., :6]), -1)
        expected = x * cos[:, None] + halves * sin[:, None]
        torch.testing.assert_close(reference.apply_rotary(x, cos=cos, sin=sin), expected)
        neighbours = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
        expected = x * cos[:, None] + neighbours * sin[:, None]
        torch.testing.assert_close(reference.apply_rotary(x, cos=cos, sin=sin, interleaved=True), expected)

    def test_deinterleave_is_a_permutation_before_halves(self, x):
        table = angles(list(range(5)), 12)
        halves = torch.cat((x[..., 0::2], x[..., 1::2]), -1)
        torch.testing.assert_close(
            reference.apply_rotary(x, cos=table.cos(), sin=table.sin(), deinterleave=True),
            reference.apply_rotary(halves, cos=table.cos(), sin=table.sin()),
            rtol=0,
            atol=0,
        )

    @pytest.mark.parametrize("trailing", [False, True])
    def test_part_of_the_columns(self, x, trailing):
        table = angles(list(range(5)), 4)
        got = reference.apply_rotary(
            x, cos=table.cos(), sin=table.sin(), rotary_dim=4, trailing=trailing, interleaved=True
        )
        part = slice(8, 12) if trailing else slice(0, 4)
        rest = slice(0, 8) if trailing else slice(4, 12)
        assert torch.equal(got[..., rest], x[..., rest])
        torch.testing.assert_close(got[..., part], by_complex_numbers(x[..., part], table, True))


class TestPlaces:
    """Each way to say where tokens are, against a loop over tokens."""

    def expected(self, x: Tensor, places: list[list[int]]) -> Tensor:
        rows = [
            [by_complex_numbers(x[b, s : s + 1], angles([p], 12), False) for s, p in enumerate(row)]
            for b, row in enumerate(places)
        ]
        return torch.stack([torch.cat(row) for row in rows])

    @pytest.fixture
    def batch(self) -> Tensor:
        return torch.randn(2, 4, 3, 12, generator=torch.Generator().manual_seed(7), dtype=torch.float64)

    def call(self, batch: Tensor, **options: object) -> Tensor:
        table = angles(list(range(30)), 12)
        return reference.apply_rotary(batch, cos=table.cos(), sin=table.sin(), **options)

    def check(self, batch: Tensor, places: list[list[int]], **options: object) -> None:
        torch.testing.assert_close(self.call(batch, **options), self.expected(batch, places))

    def test_counting(self, batch):
        self.check(batch, [[0, 1, 2, 3]] * 2)

    def test_positions(self, batch):
        self.check(batch, [[9, 0, 29, 4]] * 2, positions=torch.tensor([9, 0, 29, 4]))
        places = [[9, 0, 29, 4], [1, 1, 7, 0]]
        self.check(batch, places, positions=torch.tensor(places, dtype=torch.int32))

    def test_offsets(self, batch):
        self.check(batch, [[5, 6, 7, 8]] * 2, offsets=5)
        self.check(batch, [[26, 27, 28, 29], [3, 4, 5, 6]], offsets=torch.tensor([26, 3]))

    def test_packed_sequences(self, batch):
        packed = batch.reshape(1, 8, 3, 12)
        bounds = torch.tensor([0, 3, 3, 8])
        self.check(packed, [[0, 1, 2, 0, 1, 2, 3, 4]], cu_seqlens=bounds)
        self.check(packed, [[2, 3, 4, 9, 10, 11, 12, 13]], cu_seqlens=bounds, offsets=torch.tensor([2, 5, 9]))
        got = self.call(packed, cu_seqlens=torch.tensor([0, 3, 6]))
        torch.testing.assert_close(got[:, :6], self.expected(packed[:, :6], [[0, 1, 2, 0, 1, 2]]))
        assert torch.equal(got[:, 6:], packed[:, 6:])

    def test_heads_first_is_a_transpose(self, batch):
        got = self.call(batch.transpose(1, 2), seq_dim=2)
        assert torch.equal(got, self.call(batch).transpose(1, 2))

    def test_no_batch(self, batch):
        assert torch.equal(self.call(batch[0]), self.call(batch)[0])
        assert torch.equal(
            self.call(batch[0].transpose(0, 1), seq_dim=2), self.call(batch)[0].transpose(0, 1)
        )

    def test_tables_of_a_batch(self, batch):
        table = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        got = reference.apply_rotary(batch, cos=table, sin=table + 1)
        for b in range(2):
            alone = reference.apply_rotary(batch[b : b + 1], cos=table[b], sin=table[b] + 1)
            assert torch.equal(got[b : b + 1], alone)


class TestSections:
    """Which section a pair belongs to, spelled out."""

    @pytest.mark.parametrize(
        ("layout", "owner"),
        [("blocked", [0, 0, 0, 1, 1, 2, 2]), ("interleaved", [0, 1, 2, 0, 1, 2, 0])],
    )
    def test_owner_of_each_pair(self, layout, owner):
        table = torch.arange(3.0)[:, None, None].expand(3, 1, 7)
        merged = reference.merge_sections(table, (3, 2, 2), layout)
        assert merged.flatten().tolist() == [float(section) for section in owner]

    def test_uneven_interleaved_sections(self):
        table = torch.arange(3.0)[:, None].expand(3, 8)
        merged = reference.merge_sections(table, (5, 1, 2), "interleaved")
        assert merged.tolist() == [0, 1, 2, 0, 0, 2, 0, 0]

    def test_doubled_tables(self):
        table = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(2))
        merged = reference.merge_sections(table, (3, 2, 2), "interleaved")
        doubled = reference.merge_sections(torch.cat((table, table), -1), (3, 2, 2), "interleaved")
        assert torch.equal(doubled, torch.cat((merged, merged), -1))


class TestGradients:
    """The transposed rotation, against finite differences and as an inverse."""

    @pytest.mark.parametrize("options", [{}, {"interleaved": True}, {"deinterleave": True}])
    def test_finite_differences_in_every_input(self, options):
        generator = torch.Generator().manual_seed(1)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

        q, k, cos, sin = draw(1, 3, 2, 6), draw(1, 3, 1, 6), draw(4, 6), draw(4, 6)
        positions = torch.tensor([3, 0, 3])

        def f(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
            return reference.apply_rotary(q, k, cos=cos, sin=sin, positions=positions, **options)

        assert torch.autograd.gradcheck(f, (q, k, cos, sin), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, (q, k, cos, sin))

    @pytest.mark.parametrize("pairing", [(False, False), (True, False), (False, True)])
    def test_backward_is_the_inverse_of_a_rotation(self, x, pairing):
        interleaved, deinterleave = pairing
        table = angles(list(range(5)), 8)
        options = (None, None, None, 0, 1, interleaved, deinterleave, 8, True, (), 0)
        forth, _ = reference.apply_rotary_forward(x, None, table.cos(), table.sin(), *options)
        back, _ = reference.apply_rotary_backward(forth, None, table.cos(), table.sin(), *options)
        torch.testing.assert_close(back, x, rtol=1e-13, atol=1e-13)
        assert not torch.allclose(forth, x)

    def test_backward_agrees_with_autograd(self, x):
        generator = torch.Generator().manual_seed(4)
        cos, sin = (torch.randn(5, 12, generator=generator, dtype=torch.float64) for _ in range(2))
        up = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        options = (None, None, None, 0, 1, True, False, -1, False, (), 0)
        leaf = x.clone().requires_grad_()
        out, _ = reference.apply_rotary_forward(leaf, None, cos, sin, *options)
        (expected,) = torch.autograd.grad(out, leaf, up)
        got, _ = reference.apply_rotary_backward(up, None, cos, sin, *options)
        torch.testing.assert_close(got, expected)

    @pytest.mark.parametrize("function", [apply_rotary, reference.apply_rotary])
    def test_padding_reaches_no_table(self, function):
        """What lies behind the last packed sequence may be anything."""
        generator = torch.Generator().manual_seed(6)
        cos, sin = (torch.randn(4, 3, generator=generator).requires_grad_() for _ in range(2))
        x = torch.randn(6, 2, 8, generator=generator)
        x[4:] = math.nan
        bounds = torch.tensor([0, 1, 4])
        out = function(x, cos=cos, sin=sin, rotary_dim=6, cu_seqlens=bounds)
        assert torch.equal(out[4:].isnan(), x[4:].isnan())
        got = torch.autograd.grad(out[:4].sum(), (cos, sin))
        alone = function(x[:4], cos=cos, sin=sin, rotary_dim=6, cu_seqlens=bounds)
        torch.testing.assert_close(got, torch.autograd.grad(alone.sum(), (cos, sin)))


class TestOptions:
    """What the public functions refuse themselves, alike."""

    @pytest.mark.parametrize("function", [apply_rotary, reference.apply_rotary])
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rotary_dim": -1}, "rotary_dim to be even and from 0 to 12, but got -1"),
            ({"rotary_dim": -2}, "rotary_dim to be even and from 0 to 12, but got -2"),
            ({"sections": ()}, r"sections to be 3 numbers of pairs that add up to 6, but got \(\)"),
            ({"sections": [0]}, r"sections to be 3 numbers of pairs that add up to 6, but got \(0,\)"),
            ({"sections": (3, 3)}, r"sections to be 3 numbers of pairs that add up to 6, but got \(3, 3\)"),
            (
                {"sections": (2**62, 2**62, 2**62, 2**62 + 6)},
                "sections to be 3 numbers of pairs that add up to 6",
            ),
            ({"section_layout": "mixed"}, "section_layout to be one of blocked, interleaved, but got mixed"),
        ],
    )
    def test_refused(self, x, function, options, message):
        table = angles(list(range(5)), 12)
        with pytest.raises(ValueError, match=f"^apply_rotary: expected {message}"):
            function(x, cos=table.cos(), sin=table.sin(), **options)

    @pytest.mark.parametrize("function", [apply_rotary, reference.apply_rotary])
    def test_sections_whose_sum_is_beyond_64_bits(self, function):
        """Modulo 2**64 these add up to the 0 pairs of no column."""
        x, tables = torch.zeros(1, 4, 2, 8), torch.zeros(3, 1, 4, 0)
        sections = (2**63 - 1, 2**63 - 1, 2)
        with pytest.raises(ValueError, match="sections to be 3 numbers of pairs that add up to 0"):
            function(x, cos=tables, sin=tables, rotary_dim=0, sections=sections)

    def test_layout_of_merged_sections(self):
        with pytest.raises(ValueError, match="expected section_layout to be one of blocked, interleaved"):
            reference.merge_sections(torch.zeros(3, 1, 3), (1, 1, 1), "mixed")


@pytest.mark.parametrize("name", ["positions", "cu_seqlens", "offsets"])
@pytest.mark.parametrize("function", [apply_rotary, reference.apply_rotary])
def test_devices(x, function, name):
    """Places without data beside a q that has some would leave nothing to compute the result from."""
    table = angles(list(range(5)), 12)
    places = torch.zeros(
        {"positions": 5, "cu_seqlens": 2, "offsets": 1}[name], dtype=torch.int64, device="meta"
    )
    with pytest.raises(ValueError, match=f"^apply_rotary: expected {name} on cpu like q, but got meta"):
        function(x, cos=table.cos(), sin=table.sin(), **{name: places})


class TestValuesUnderTransforms:
    """Places outside of the table raise under a transform, too, whether or not it wraps them."""

    WRONG = (
        ("positions", [0, 1, -1, 2, 3], IndexError, "positions from 0 to 4, the rows of cos, but got -1"),
        ("positions", [0, 1, 5, 2, 3], IndexError, "positions from 0 to 4, the rows of cos, but got 5"),
        ("offsets", [1], IndexError, "positions from 0 to 4, the rows of cos, but got 5"),
        ("cu_seqlens", [0, 4, 2], ValueError, "cu_seqlens to ascend to at most 5, but got 2 after 4"),
        ("cu_seqlens", [1, 5], ValueError, "cu_seqlens to start with 0, but got 1"),
    )

    @pytest.mark.parametrize("function", [apply_rotary, reference.apply_rotary])
    @pytest.mark.parametrize(("name", "values", "error", "message"), WRONG)
    @pytest.mark.parametrize("wrapped", [False, True])
    def test_grad(self, x, function, name, values, error, message, wrapped):
        table = angles(list(range(5)), 12)
        cos, sin = table.cos(), table.sin()
        places = torch.tensor(values)

        def loss(x: Tensor, given: Tensor) -> Tensor:
            return function(x, cos=cos, sin=sin, **{name: given if wrapped else places}).sum()

        with pytest.raises(error, match=message):
            torch.func.grad(loss)(x, places)

    @pytest.mark.parametrize("values", [[[0, 1, 2, 3, 4], [0, 1, 2, 3, -1]], [[0, 1, 2, 3, 5], [0] * 5]])
    def test_a_batch_of_positions(self, x, values):
        table = angles(list(range(5)), 12)

        def rotate(x: Tensor, positions: Tensor) -> Tensor:
            return reference.apply_rotary(x, cos=table.cos(), sin=table.sin(), positions=positions)

        with pytest.raises(IndexError, match="positions from 0 to 4"):
            torch.func.vmap(rotate)(torch.stack((x, x)), torch.tensor(values))

    def test_padding_needs_no_row(self, x):
        """Two rows are enough for sequences of two and one token, whatever follows."""
        table = angles(list(range(2)), 12)
        bounds = torch.tensor([0, 2, 3])

        def rotate(x: Tensor) -> Tensor:
            return reference.apply_rotary(x, cos=table.cos(), sin=table.sin(), cu_seqlens=bounds)

        grad = torch.func.grad(lambda x: rotate(x).sum())(x)
        assert torch.equal(grad[3:], torch.ones_like(x[3:]))
        assert not torch.equal(grad[1], torch.ones_like(x[1]))


def test_rounds_once_to_the_inputs_dtype():
    """bfloat16 inputs with float32 tables: the float32 formula, rounded."""
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(6, 2, 8, generator=generator).bfloat16()
    cos, sin = torch.randn(6, 4, generator=generator), torch.randn(6, 4, generator=generator)
    a, b = x.float()[..., :4], x.float()[..., 4:]
    c, s = cos[:, None], sin[:, None]
    expected = torch.cat((a * c - b * s, b * c + a * s), -1).bfloat16()
    assert torch.equal(reference.apply_rotary(x, cos=cos, sin=sin), expected)
