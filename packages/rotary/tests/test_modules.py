"""The module: its formula, its tables, and what it passes on."""

from __future__ import annotations

import pytest
import torch

from opwright.rotary import RotaryEmbedding, apply_rotary

Tensor = torch.Tensor


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_tables_against_the_formula():
    cos, sin = RotaryEmbedding(6, base=100.0).tables(4, dtype=torch.float64)
    angle = torch.tensor(
        [[p * 100.0 ** (-2 * i / 6) for i in range(3)] for p in range(4)], dtype=torch.float64
    )
    torch.testing.assert_close(cos, angle.cos(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(sin, angle.sin(), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"interleaved": True},
        {"deinterleave": True},
        {"trailing": True},
        {"seq_dim": 2},
        {"inplace": True},
    ],
)
def test_options_are_passed_on(options):
    rotary = RotaryEmbedding(4, **options)
    q, k = draw(2, 5, 5, 8), draw(2, 5, 5, 8, seed=1)
    cos, sin = rotary.tables(5)
    expected = apply_rotary(q.clone(), k.clone(), cos=cos, sin=sin, rotary_dim=4, **options)
    got = rotary(q, k)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
    assert (got[0] is q) == options.get("inplace", False)
    assert all(f"{name}={value}" in repr(rotary) for name, value in options.items())


def test_places():
    rotary = RotaryEmbedding(8)
    x = draw(2, 5, 3, 8)
    cos, sin = rotary.tables(20)
    options = {"cos": cos, "sin": sin}
    places = torch.tensor([[3, 0, 19, 2, 2], [1, 2, 3, 4, 5]])
    torch.testing.assert_close(rotary(x, positions=places), apply_rotary(x, positions=places, **options))
    torch.testing.assert_close(
        rotary(x, positions=places[0]), apply_rotary(x, positions=places[0], **options)
    )
    starts = torch.tensor([3, 11])
    torch.testing.assert_close(rotary(x, offsets=starts), apply_rotary(x, offsets=starts, **options))
    torch.testing.assert_close(rotary(x, offsets=7), apply_rotary(x, offsets=7, **options))
    packed, bounds = x.reshape(10, 3, 8), torch.tensor([0, 4, 10])
    torch.testing.assert_close(
        rotary(packed, cu_seqlens=bounds), apply_rotary(packed, cu_seqlens=bounds, **options)
    )


def test_tables_are_kept_while_they_fit():
    rotary = RotaryEmbedding(8)
    rotary(draw(1, 6, 2, 8))
    kept = rotary._tables
    rotary(draw(1, 4, 2, 8))
    assert rotary._tables is kept
    rotary(draw(1, 257, 2, 8))
    assert rotary._tables is not kept
    assert rotary._tables[0].shape == (512, 4)


def test_decoding_makes_tables_seldom(monkeypatch):
    """One token after the other, up to position 599: tables for 256, 512 and 1024."""
    rotary = RotaryEmbedding(8)
    lengths = []
    tables = rotary.tables
    monkeypatch.setattr(
        rotary, "tables", lambda length, **options: lengths.append(length) or tables(length, **options)
    )
    x = draw(1, 1, 2, 8)
    for place in range(600):
        got = rotary(x, offsets=place)
    assert lengths == [256, 512, 1024]
    cos, sin = RotaryEmbedding(8).tables(600)
    assert torch.equal(got, apply_rotary(x, cos=cos[-1:], sin=sin[-1:]))


def test_positions_beyond_any_table():
    """Fractional and negative positions have angles, too."""
    rotary = RotaryEmbedding(8)
    x = draw(1, 3, 2, 8)
    there = rotary(x, positions=torch.tensor([-2.5, 1e4, 0.0]))
    assert torch.equal(there[:, 2], x[:, 2])
    back = rotary(there, positions=torch.tensor([2.5, -1e4, 0.0]))
    torch.testing.assert_close(back, x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("places", [{"offsets": 2}, {"cu_seqlens": torch.tensor([0, 3])}])
def test_positions_and_another_place(places):
    with pytest.raises(ValueError, match="positions without cu_seqlens and offsets, but got both"):
        RotaryEmbedding(8)(draw(1, 3, 2, 8), positions=torch.arange(3), **places)


@pytest.mark.parametrize("shape", [(4,), (1,), (2, 2), (3, 2, 3), ()])
@pytest.mark.parametrize("seq_dim", [1, 2])
def test_shape_of_positions(shape, seq_dim):
    x = draw(2, 3, 3, 8)
    with pytest.raises(ValueError, match=r"positions of shape \(3,\) or \(batch, 3\), but got \("):
        RotaryEmbedding(8, seq_dim=seq_dim)(x, positions=torch.zeros(shape))


def test_offsets_of_no_sequence():
    rotary = RotaryEmbedding(8)
    assert rotary(draw(0, 3, 2, 8), offsets=torch.tensor([], dtype=torch.int64)).shape == (0, 3, 2, 8)


@pytest.mark.parametrize("offsets", [-1, torch.tensor([-1, 4]), torch.tensor([-5, -1])])
def test_negative_offsets(offsets):
    with pytest.raises(IndexError, match="positions from 0 to "):
        RotaryEmbedding(8)(draw(2, 3, 2, 8), offsets=offsets)


def test_compiled_module():
    rotary = RotaryEmbedding(8)
    q, k = draw(2, 5, 3, 8).requires_grad_(), draw(2, 5, 1, 8, seed=1)
    got = torch.compile(rotary, fullgraph=True, backend="aot_eager")(q, k)
    for a, b in zip(got, rotary(q, k), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("rotary_dim", [0, 3, -2])
def test_rotary_dim(rotary_dim):
    with pytest.raises(ValueError, match=f"rotary_dim to be even and positive, but got {rotary_dim}"):
        RotaryEmbedding(rotary_dim)


def test_base():
    with pytest.raises(ValueError, match="base to be positive, but got 0"):
        RotaryEmbedding(8, base=0)
