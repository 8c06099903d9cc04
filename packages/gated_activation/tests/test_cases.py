"""Faults that were reported of other implementations, each as a test of this one."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from opwright.gated_activation import gated_activation, gated_activation_packed, reference

GPT_OSS = {"alpha": 1.702, "limit": 7.0, "up_offset": 1.0}


def inputs(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(shape, generator=generator).requires_grad_(),
        torch.randn(shape, generator=generator).requires_grad_(),
    )


class TestBackwardLeavesItsInputsAlone:
    """Buffers saved for the backward were reused as scratch memory."""

    def test_twice_over_a_retained_graph(self) -> None:
        gate, up = inputs(5, 37)
        loss = gated_activation(gate, up).sum()
        first = torch.autograd.grad(loss, (gate, up), retain_graph=True)
        second = torch.autograd.grad(loss, (gate, up))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    def test_under_checkpoint_and_offloaded(self) -> None:
        gate, up = inputs(5, 37)
        expected = torch.autograd.grad(gated_activation(gate, up).sum(), (gate, up))
        again = checkpoint(gated_activation, gate, up, use_reentrant=False)
        found = torch.autograd.grad(again.sum(), (gate, up))
        with torch.autograd.graph.save_on_cpu():
            offloaded = gated_activation(gate, up)
        moved = torch.autograd.grad(offloaded.sum(), (gate, up))
        for a, b, c in zip(expected, found, moved, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a, c)


def test_gradients_are_not_exchanged() -> None:
    """Derivatives of gate and up were written to each other's buffer."""
    gate, up = torch.tensor(2.0).requires_grad_(), torch.tensor(3.0).requires_grad_()
    y = gated_activation(gate, up)
    of_gate, of_up = torch.autograd.grad(y, (gate, up))
    torch.testing.assert_close(y.item(), 5.284782, rtol=1e-6, atol=0)
    torch.testing.assert_close(of_gate.item(), 3.272353, rtol=1e-6, atol=0)
    torch.testing.assert_close(of_up.item(), 1.761594, rtol=1e-6, atol=0)


@pytest.mark.parametrize("gate", [-13.24, -20.0, 13.24, 20.0, 1e4, -1e4, 6e4, -6e4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "silu"])
def test_far_arguments_do_not_overflow(gate: float, dtype: torch.dtype, activation: str) -> None:
    """A tanh made of exponentials gave inf / inf."""
    x = torch.tensor([gate], dtype=dtype).requires_grad_()
    y = gated_activation(x, torch.ones_like(x), activation)
    (slope,) = torch.autograd.grad(y, x)
    assert y.isfinite().all()
    assert slope.isfinite().all()
    if activation != "silu" or abs(gate) > 100:
        expected, limit = (x.detach(), 1.0) if gate > 0 else (torch.zeros_like(x), 0.0)
        torch.testing.assert_close(y.detach(), expected, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(slope, torch.full_like(slope, limit), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_two_gelus_are_told_apart(dtype: torch.dtype) -> None:
    """Callers could not tell which GELU they got."""
    gate = torch.tensor([-4.0], dtype=dtype)
    one = torch.ones_like(gate)
    exact = gated_activation(gate, one, "gelu").item()
    by_tanh = gated_activation(gate, one, "gelu_tanh").item()
    assert exact == pytest.approx(-1.266850e-04, rel=2e-6)
    assert by_tanh == pytest.approx(-7.0246e-05, rel=1e-4)
    with pytest.raises(ValueError, match="activation to be one of silu, gelu, gelu_tanh"):
        gated_activation(gate, one, "gelu_new")


class TestSaturatedClamps:
    """A saturated clamp passed its gradient, or the clamp was dropped."""

    def test_gradients_vanish_beyond_the_limit_and_pass_at_it(self) -> None:
        gate = torch.tensor([6.9, 7.0, 7.1, -9.0]).requires_grad_()
        up = torch.tensor([7.0, -7.0, 7.5, -7.5]).requires_grad_()
        y = gated_activation(gate, up, **GPT_OSS)
        of_gate, of_up = torch.autograd.grad(y.sum(), (gate, up))
        assert (of_gate != 0).tolist() == [True, True, False, True]
        assert (of_up != 0).tolist() == [True, True, False, False]
        expected = torch.autograd.grad(reference.gated_activation(gate, up, **GPT_OSS).sum(), (gate, up))
        torch.testing.assert_close((of_gate, of_up), expected)

    def test_the_lower_side_of_the_gate_is_open(self) -> None:
        gate, up = torch.tensor([-50.0]), torch.tensor([1.0])
        y = gated_activation(gate, up, limit=7.0)
        torch.testing.assert_close(y, torch.nn.functional.silu(gate))

    def test_after_the_activation(self) -> None:
        gate, up = torch.tensor([9.0, 2.0]), torch.tensor([1.0, 9.0])
        y = gated_activation(gate, up, limit=7.0, clamp="output")
        silu = torch.nn.functional.silu(torch.tensor(2.0)).item()
        torch.testing.assert_close(y, torch.tensor([7.0, 7.0 * silu]))

    def test_nan_does_not_become_a_bound(self) -> None:
        nan, one = torch.tensor([float("nan")]), torch.tensor([1.0])
        assert gated_activation(nan, one, limit=7.0).isnan().all()
        assert gated_activation(one, nan, limit=7.0).isnan().all()


def test_interleaved_is_not_halves() -> None:
    """Layouts were mixed up between a model and its kernel."""
    packed = torch.randn(4, 10)
    apart = gated_activation(packed[..., ::2], packed[..., 1::2], **GPT_OSS)
    assert torch.equal(gated_activation_packed(packed, layout="interleaved", **GPT_OSS), apart)
    swapped = gated_activation(packed[..., 5:], packed[..., :5], **GPT_OSS)
    assert torch.equal(gated_activation_packed(packed, gate_first=False, **GPT_OSS), swapped)
    assert not torch.equal(apart, gated_activation_packed(packed, **GPT_OSS))


def test_offsets_beyond_32_bits() -> None:
    """Row times pitch was formed in 32 bits; here the strides alone reach that far."""
    buffer = torch.empty(2**31 + 64, dtype=torch.bfloat16)
    rows = buffer.as_strided((2, 8), (2**31, 1))
    values = torch.randn(2, 8).bfloat16()
    rows.copy_(values)
    assert torch.equal(gated_activation_packed(rows), gated_activation_packed(values))
