"""The ends of the range: far gates, values at a bound, and memory at addresses that numbers do not have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.closed_forms import SLOPES, VALUES

from opwright.gated_activation import gated_activation, gated_activation_, gated_activation_packed_, reference


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
class TestMemoryBetweenElements:
    """Results so large that they are streamed, at an address that is no multiple of an element's size."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_out(self, dtype: torch.dtype) -> None:
        n = 12_000_000 // dtype.itemsize
        out = torch.frombuffer(bytearray(n * dtype.itemsize + 64), dtype=dtype, count=n, offset=1)
        gate, up = torch.randn(n).to(dtype), torch.ones(n, dtype=dtype)
        gated_activation(gate, up, out=out)
        assert torch.equal(out.clone(), gated_activation(gate, up))

    def test_in_place(self) -> None:
        n = 6_000_000
        gate = torch.frombuffer(bytearray(2 * n + 64), dtype=torch.bfloat16, count=n, offset=1).fill_(1)
        gated_activation_(gate, torch.ones(n, dtype=torch.bfloat16))
        one = torch.ones(1, dtype=torch.bfloat16)
        assert torch.equal(gate.clone(), gated_activation(one, one).expand(n))


@pytest.mark.parametrize("gate_first", [True, False])
def test_gradients_through_an_interleaved_input_written_in_place(gate_first: bool) -> None:
    options = {"layout": "interleaved", "gate_first": gate_first}
    leaf = torch.randn(3, 8, dtype=torch.float64).requires_grad_()
    got = gated_activation_packed_(leaf * 2, **options)
    (found,) = torch.autograd.grad(got.square().sum(), leaf)
    expected = reference.gated_activation_packed(leaf * 2, **options)
    torch.testing.assert_close(found, *torch.autograd.grad(expected.square().sum(), leaf))


class TestFarGates:
    @pytest.mark.parametrize(
        ("dtype", "gates", "tolerance"),
        [
            (torch.float32, [-81.0, -83.5, -85.0, -86.5], 1e-6),
            (torch.bfloat16, [-81.0, -84.0, -85.0, -86.5], 2.0**-8),
            (torch.float64, [-701.0, -703.5, -705.0], 1e-12),
        ],
    )
    def test_the_slope_of_silu(self, dtype: torch.dtype, gates: list[float], tolerance: float) -> None:
        gate = torch.tensor(gates, dtype=dtype).requires_grad_()
        # The gradient comes up to where its relative error can be seen in 16 bits.
        scale = torch.full_like(gate, 2.0**100)
        (slope,) = torch.autograd.grad(gated_activation(gate, torch.ones_like(gate)), gate, scale)
        expected = SLOPES["silu"](gate.detach().double()) * 2.0**100
        torch.testing.assert_close(slope.double(), expected, rtol=tolerance, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    def test_the_slope_of_silu_at_the_largest_numbers(self, dtype: torch.dtype) -> None:
        end = torch.finfo(dtype).max
        gate = torch.tensor([-end, end], dtype=dtype).requires_grad_()
        (slope,) = torch.autograd.grad(gated_activation(gate, torch.ones_like(gate), alpha=1.702).sum(), gate)
        assert slope.tolist() == [0.0, 1.0]

    def test_gelu_in_float64(self) -> None:
        gate = torch.linspace(-36, 4, 4001, dtype=torch.float64).requires_grad_()
        y = gated_activation(gate, torch.ones_like(gate), "gelu")
        # Rounding the argument of erfc, here and there, counts g^2 times: 36^2 * 2^-52 is 3e-13.
        torch.testing.assert_close(y.detach(), VALUES["gelu"](gate.detach()), rtol=5e-13, atol=0)
        (slope,) = torch.autograd.grad(y.sum(), gate)
        far = gate.detach() < -1
        torch.testing.assert_close(slope[far], SLOPES["gelu"](gate.detach())[far], rtol=1e-12, atol=0)

    @pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    def test_second_derivatives_of_gelu(self, activation: str, dtype: torch.dtype) -> None:
        far = 1e200 if dtype == torch.float64 else 1e30
        gate = torch.tensor([far, -far, 50.0, -50.0], dtype=dtype).requires_grad_()
        up = torch.full_like(gate, 3).requires_grad_()
        of_gate, of_up = torch.autograd.grad(
            gated_activation(gate, up, activation).sum(), (gate, up), create_graph=True
        )
        bend, mixed = torch.autograd.grad(of_gate.sum(), (gate, up), create_graph=True)
        assert bend.tolist() == [0.0] * 4
        assert mixed.tolist() == [1.0, 0.0, 1.0, 0.0]
        (third,) = torch.autograd.grad(bend.sum(), gate)
        assert third.tolist() == [0.0] * 4
        assert of_up.isfinite().all()


@pytest.mark.parametrize("clamp", ["input", "output"])
@pytest.mark.parametrize("activation", ["silu", "identity"])
def test_third_derivatives_at_a_bound(clamp: str, activation: str) -> None:
    """Values that equal the limit pass in every order, whatever torch's own clamp does there."""
    options = {"activation": activation, "limit": 7.0, "clamp": clamp}
    results = []
    for function in (gated_activation, reference.gated_activation):
        gate, up = (torch.tensor([7.0, 3.0], dtype=torch.float64).requires_grad_() for _ in range(2))
        y = function(gate, up, **options).square().sum()
        for _ in range(3):
            y = sum(g.square().sum() for g in torch.autograd.grad(y, (gate, up), create_graph=True))
        results.append(y.detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("clamp", ["input", "output"])
def test_nan_stays_in_second_derivatives_with_a_limit(clamp: str) -> None:
    gate, up = torch.tensor([float("nan")]).requires_grad_(), torch.tensor([1.0]).requires_grad_()
    grad = torch.ones(1).requires_grad_()
    (of_up,) = torch.autograd.grad(
        gated_activation(gate, up, limit=7.0, clamp=clamp), up, grad, create_graph=True
    )
    (of_grad,) = torch.autograd.grad(of_up, grad)
    assert of_grad.isnan().all()
