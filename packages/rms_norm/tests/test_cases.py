"""Faults reported against other implementations, each as the values that would show it here.

The conformance suite covers the general form of most of them (layouts, strides beyond 32 bits, gradients that
flow, aliasing, autocast); here are the concrete numbers.
"""

from __future__ import annotations

import itertools
import threading

import pytest
import torch

import opwright.rms_norm as package
from opwright.rms_norm import reference

FUNCTIONS = {
    "rms_norm": lambda x, w, **o: package.rms_norm(x, w, **o),
    "add_rms_norm": lambda x, w, **o: package.add_rms_norm(x, torch.zeros_like(x), w, **o)[0],
    "rms_norm_gated": lambda x, w, **o: package.rms_norm_gated(x, None, w, **o),
}
LOW = (torch.bfloat16, torch.float16)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def golden(x, w=None, eps=1e-6, offset=0.0):
    x = x.double()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if w is None else y * (w.double() + offset)


class TestStridedInputs:
    """A backward that reuses the strided view while forward made a dense copy (ByteDance-Seed/VeOmni#958)."""

    def arguments(self):
        x = normal(3, 8, dtype=torch.float64)[..., ::2].requires_grad_()
        w = normal(8, dtype=torch.float64, seed=1)[::2].requires_grad_()
        r = normal(4, 3, dtype=torch.float64, seed=2).transpose(0, 1).requires_grad_()
        return x, r, w

    def test_gradcheck(self):
        torch.autograd.gradcheck(lambda x, r, w: package.add_rms_norm(x, r, w), self.arguments())

    def test_gradients_equal_those_of_dense_copies_and_land_in_the_base(self):
        base = normal(3, 8, dtype=torch.float64).requires_grad_()
        dense = base.detach()[..., ::2].clone().requires_grad_()
        upstream = normal(3, 4, dtype=torch.float64, seed=3)
        package.rms_norm(base[..., ::2]).backward(upstream)
        package.rms_norm(dense).backward(upstream)
        assert torch.equal(base.grad[..., ::2], dense.grad)
        assert not base.grad[..., 1::2].any()


@pytest.mark.parametrize("rows", [65535, 65536, 131073])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_many_rows(name, rows):
    """A row index that wraps at 65535 leaves later rows wrong or unwritten (NVIDIA/apex#411)."""
    x, w = normal(rows, 8).requires_grad_(), normal(8, seed=1).requires_grad_()
    upstream = normal(rows, 8, seed=2)
    y = FUNCTIONS[name](x, w)
    y.backward(upstream)
    expected_x, expected_w = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    expected = golden(expected_x, expected_w)
    expected.backward(upstream.double())
    assert float((y.detach() - expected.detach()).abs().max()) < 4e-6
    assert float((x.grad - expected_x.grad).abs().max()) < 2e-5 * float(expected_x.grad.abs().max())
    # the sum over the rows in float32, relative to the sum of the magnitudes
    size = (upstream.double() * expected.detach() / w.detach().double()).abs().sum(0)
    assert float(((w.grad - expected_w.grad).abs() / size).max()) < 2e-6


class TestHalfRange:
    """Squares formed in float16 overflow above 255 and vanish below 2e-4 (pytorch#133085)."""

    @pytest.mark.parametrize("name", FUNCTIONS)
    @pytest.mark.parametrize(("value", "width"), [(300.0, 4), (60000.0, 4096)])
    def test_large(self, name, value, width):
        x = torch.full((2, width), value, dtype=torch.float16)
        y = FUNCTIONS[name](x, torch.ones(width, dtype=torch.float16), eps=1e-6)
        assert torch.equal(y, torch.ones_like(y))

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_small(self, name):
        x = torch.full((2, 8), 1e-4, dtype=torch.float16)
        y = FUNCTIONS[name](x, torch.ones(8, dtype=torch.float16), eps=1e-6)
        value = float(x[0, 0])
        assert torch.equal(y, torch.full_like(y, value / (value**2 + 1e-6) ** 0.5))
        assert 0.0985 < float(y[0, 0]) < 0.1

    @pytest.mark.parametrize("statistics", ["rounded", "exact"])
    def test_sum_beyond_the_range(self, statistics):
        """40000 + 40000 is infinite in float16: residual_out is, and the output follows the statistics."""
        x = torch.full((1, 8), 40000.0, dtype=torch.float16)
        y, total = package.add_rms_norm(x, x, statistics=statistics)
        expected = reference.add_rms_norm(x, x, statistics=statistics)
        assert total.isinf().all()
        assert torch.equal(y.isnan(), expected[0].isnan())
        if statistics == "exact":
            assert torch.equal(y, torch.ones_like(y))


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm"])
def test_small_weights_with_an_offset_are_not_rounded_away(name):
    """1 + w formed in bfloat16 loses w = 2^-8, a bias of -0.39 percent (linkedin/Liger-Kernel#1462)."""
    x = normal(64, 4096, dtype=torch.bfloat16).requires_grad_()
    w = torch.full((4096,), 2.0**-8, dtype=torch.bfloat16)
    y = FUNCTIONS[name](x, w, weight_offset=1.0)
    upstream = normal(64, 4096, dtype=torch.bfloat16, seed=1)
    y.backward(upstream)
    exact_x = x.detach().double().requires_grad_()
    exact = golden(exact_x, w, offset=1.0)
    exact.backward(upstream.double())
    for got, want in ((y.detach(), exact.detach()), (x.grad, exact_x.grad)):
        large = want.abs() > 0.05

        def bias(values, want=want, large=large):
            return float(((values.double() - want) / want)[large].mean())

        # Rounding the right result has a small bias of its own: x and the row's factor are on a coarse grid.
        assert abs(bias(want.float().bfloat16())) < 3e-4
        assert abs(bias(got) - bias(want.float().bfloat16())) < 2e-5


class TestRoundingModes:
    """Cast-then-multiply and multiply-then-cast give other bits and dtypes (transformers#30236)."""

    @pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("dtype", LOW)
    @pytest.mark.parametrize("rounding", ["once", "llama"])
    def test_bits_and_dtypes(self, rounding, dtype, weight_dtype):
        x = (1.0039 * normal(32, 257)).to(dtype)
        w = (1.0039 + 0.1 * normal(257, seed=1)).to(weight_dtype)
        number = {"once": 0, "llama": 1}[rounding]
        y, rstd = torch.ops.opwright.rms_norm_forward_raw(x, w, 1e-6, 0.0, number)
        scaled = x.float() * rstd.unsqueeze(-1)
        if rounding == "once":
            expected = (scaled * w.float()).to(dtype)
        else:
            wider = torch.promote_types(dtype, weight_dtype)
            expected = (scaled.to(dtype).float() * w.float()).to(wider)
        assert y.dtype == expected.dtype
        assert torch.equal(y, expected)
        assert torch.equal(package.rms_norm(x, w, rounding=rounding), y)

    @pytest.mark.parametrize("rounding", ["once", "llama"])
    def test_gradients_have_the_dtype_of_their_leaf(self, rounding):
        x = normal(4, 33, dtype=torch.bfloat16).requires_grad_()
        r = normal(4, 33, seed=1).requires_grad_()
        w = normal(33, seed=2).requires_grad_()
        y, total = package.add_rms_norm(x, r, w, rounding=rounding)
        assert total.dtype == torch.float32
        assert y.dtype == (torch.bfloat16 if rounding == "once" else torch.float32)
        (y.float().sum() + total.sum()).backward()
        assert [t.grad.dtype for t in (x, r, w)] == [torch.bfloat16, torch.float32, torch.float32]


class TestAutocast:
    """Autocast changed the output dtype by version (pytorch#174824); backward lost it (#87979)."""

    @pytest.mark.parametrize("name", FUNCTIONS)
    @pytest.mark.parametrize(
        ("dtype", "weight_dtype"), list(itertools.product([torch.float32, torch.bfloat16], repeat=2))
    )
    def test_output_and_gradient_dtypes(self, name, dtype, weight_dtype):
        x = normal(4, 33).to(dtype).requires_grad_()
        w = normal(33, seed=1).to(weight_dtype).requires_grad_()
        plain = FUNCTIONS[name](x, w)
        with torch.autocast("cpu", torch.bfloat16):
            inside = FUNCTIONS[name](x, w)
            with torch.autocast("cpu", enabled=False):
                nested = FUNCTIONS[name](x, w)
        assert inside.dtype == nested.dtype == dtype
        assert torch.equal(inside, plain)
        assert torch.equal(nested, plain)
        inside.float().sum().backward()
        assert (x.grad.dtype, w.grad.dtype) == (dtype, weight_dtype)

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_values_beyond_float16_stay_finite(self, name):
        x = (1e5 * normal(4, 64)).requires_grad_()
        w = torch.ones(64, requires_grad=True)
        with torch.autocast("cpu", torch.float16):
            y = FUNCTIONS[name](x, w)
        y.backward(normal(4, 64, seed=1))
        assert y.isfinite().all()
        assert x.grad.isfinite().all()
        assert w.grad.isfinite().all()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("view", ["contiguous", "transposed", "sliced"])
def test_gradient_flows_on_every_path(name, view):
    """The fast contiguous path had no gradient, without an error (huggingface/candle#2168)."""
    x = {
        "contiguous": normal(4, 6),
        "transposed": normal(6, 4).t(),
        "sliced": normal(4, 13)[:, 3:9],
    }[view].requires_grad_()
    y = FUNCTIONS[name](x, torch.ones(6))
    assert y.grad_fn is not None
    y.square().sum().backward()
    assert x.grad is not None
    through_func = torch.func.grad(lambda t: FUNCTIONS[name](t, torch.ones(6)).square().sum())(x.detach())
    torch.testing.assert_close(through_func, x.grad)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_have_no_common_bias(name):
    """A reciprocal root rounded to bfloat16 shifts a whole row by up to 0.4 percent (amd/IRON#139)."""
    x = normal(256, 4096, dtype=torch.bfloat16)
    w = 1 + 0.3 * torch.rand(4096, generator=generator(1))  # off the grid of x, so that roundings average out
    y = FUNCTIONS[name](x, w).double()
    exact = golden(x, w)
    large = exact.abs() > 0.1
    relative = torch.where(large, (y - exact) / exact, 0.0)
    bias = relative.sum(-1) / large.sum(-1)
    assert float(bias.abs().max()) < 2e-4


def test_backward_may_come_first_on_a_new_thread():
    """Work on a thread that never called before (pytorch#195256)."""
    x = normal(4, 33).requires_grad_()
    y = package.rms_norm(x)
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.autograd.grad(y.sum(), x)[0]))
    thread.start()
    thread.join()
    again = x.detach().clone().requires_grad_()
    assert torch.equal(found[0], torch.autograd.grad(package.rms_norm(again).sum(), again)[0])


class TestSharedOutputs:
    """Outputs that are views of one buffer keep it alive or corrupt each other (pytorch#94990)."""

    def outputs(self):
        x, r = normal(4, 33).requires_grad_(), normal(4, 33, seed=1).requires_grad_()
        return x, r, *package.add_rms_norm(x, r)

    def test_an_output_changed_in_place_does_not_change_the_other(self):
        _, _, y, total = self.outputs()
        kept = total.detach().clone()
        y.detach().fill_(7)
        assert torch.equal(total.detach(), kept)

    def test_gradients_survive_the_first_output_changed_in_place(self):
        x, r, y, total = self.outputs()
        expected = torch.autograd.grad(y.sum() + total.sum(), (x, r), retain_graph=True)
        with torch.no_grad():
            y.add_(1)
        got = torch.autograd.grad(y.sum() + total.sum(), (x, r))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))

    def test_the_saved_output_changed_in_place_makes_backward_raise(self):
        _, _, y, total = self.outputs()
        with torch.no_grad():
            total.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (y.sum() + total.sum()).backward()


class TestInPlaceViews:
    """Writes through views were lost (pytorch#153389, #131192)."""

    def test_a_row_of_a_batch(self):
        x, r = normal(3, 5, 16), normal(3, 5, 16, seed=1)
        expected = reference.add_rms_norm(x[0], r[0])
        rest = x[1:].clone(), r[1:].clone()
        package.add_rms_norm_(x[0], r[0])
        torch.testing.assert_close((x[0], r[0]), expected)
        assert torch.equal(x[1:], rest[0])
        assert torch.equal(r[1:], rest[1])

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_compiled_view_of_an_input(self, backend):
        def step(x, r):
            package.add_rms_norm_(x[1], r[1])
            return x * 2 + r

        eager = normal(3, 16), normal(3, 16, seed=1)
        compiled = eager[0].clone(), eager[1].clone()
        expected = step(*eager)
        torch._dynamo.reset()
        got = torch.compile(step, fullgraph=True, backend=backend)(*compiled)
        torch._dynamo.reset()
        assert torch.equal(got, expected)
        assert torch.equal(compiled[0], eager[0])
        assert torch.equal(compiled[1], eager[1])

    @pytest.mark.parametrize("shift", [0, 1, 16])
    def test_two_written_arguments_in_one_buffer(self, shift):
        buffer = normal(64)
        x, r = buffer[:32].view(2, 16), buffer[shift : shift + 32].view(2, 16)
        kept = buffer.clone()
        with pytest.raises(ValueError, match="input and residual in memory of their own"):
            package.add_rms_norm_(x, r)
        assert torch.equal(buffer, kept)

    def test_neighbours_in_one_buffer_are_allowed(self):
        buffer = normal(64)
        expected = reference.add_rms_norm(buffer[:32].view(2, 16).clone(), buffer[32:].view(2, 16).clone())
        package.add_rms_norm_(buffer[:32].view(2, 16), buffer[32:].view(2, 16))
        torch.testing.assert_close(buffer[:32].view(2, 16), expected[0])
        torch.testing.assert_close(buffer[32:].view(2, 16), expected[1])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *LOW])
def test_quarter_of_the_largest_number(name, dtype):
    """The squares of such float32 and bfloat16 numbers overflow: 0, as the formula gives, never NaN."""
    x = torch.full((2, 16), torch.finfo(dtype).max / 4, dtype=dtype)
    x[:, ::2] *= -1
    y = FUNCTIONS[name](x, torch.ones(16, dtype=dtype))
    expected = reference.rms_norm(x, torch.ones(16, dtype=dtype))
    assert not y.isnan().any()
    torch.testing.assert_close(y, expected)
