"""The reference itself, against closed forms and torch's own operators."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.closed_forms import SLOPES, VALUES

from opwright.gated_activation import reference

TORCH = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda g: F.gelu(g, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda g: F.relu(g) ** 2,
    "sigmoid": torch.sigmoid,
    "identity": lambda g: g,
}


def grid() -> torch.Tensor:
    return torch.linspace(-12, 12, 1201, dtype=torch.float64)


class TestAgainstTheFormula:
    @pytest.mark.parametrize("activation", VALUES)
    def test_values_and_slopes(self, activation: str) -> None:
        gate = grid().requires_grad_()
        up = torch.full_like(gate, 1.5)
        y = reference.gated_activation(gate, up, activation)
        (slope,) = torch.autograd.grad(y.sum(), gate)
        torch.testing.assert_close(y, 1.5 * VALUES[activation](gate.detach()), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(slope, 1.5 * SLOPES[activation](gate.detach()), rtol=1e-11, atol=1e-13)

    def test_gpt_oss(self) -> None:
        gate, up = 3 * grid(), -2 * grid()
        g, u = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        expected = (u + 1) * g / (1 + torch.exp(-1.702 * g))
        got = reference.gated_activation(gate, up, alpha=1.702, limit=7.0, up_offset=1.0)
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


class TestAgainstTorch:
    @pytest.mark.parametrize("activation", TORCH)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_values(self, activation: str, dtype: torch.dtype) -> None:
        gate, up = torch.randn(7, 33, dtype=dtype), torch.randn(7, 33, dtype=dtype)
        got = reference.gated_activation(gate, up, activation)
        torch.testing.assert_close(got, TORCH[activation](gate) * up, rtol=1e-6, atol=1e-6)


class TestRounding:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_once_at_the_end(self, dtype: torch.dtype) -> None:
        gate, up = torch.randn(64, 64).to(dtype), torch.randn(64, 64).to(dtype)
        got = reference.gated_activation(gate, up)
        assert torch.equal(got, (gate.float() * torch.sigmoid(gate.float()) * up.float()).to(dtype))

    @pytest.mark.parametrize(
        ("first", "second", "result"),
        [
            (torch.bfloat16, torch.float32, torch.float32),
            (torch.bfloat16, torch.float16, torch.float32),
            (torch.float32, torch.float64, torch.float64),
        ],
    )
    def test_mixed_dtypes_promote(self, first: torch.dtype, second: torch.dtype, result: torch.dtype) -> None:
        got = reference.gated_activation(torch.ones(3, dtype=first), torch.ones(3, dtype=second))
        assert got.dtype == result


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("gate_first", [True, False])
def test_packed_is_the_same_of_its_halves(layout: str, gate_first: bool) -> None:
    input = torch.randn(3, 10)
    halves = (input[..., :5], input[..., 5:]) if layout == "halves" else (input[..., ::2], input[..., 1::2])
    gate, up = halves if gate_first else halves[::-1]
    got = reference.gated_activation_packed(input, "gelu", layout=layout, gate_first=gate_first)
    assert torch.equal(got, reference.gated_activation(gate, up, "gelu"))


def test_unknown_options_are_refused() -> None:
    x = torch.ones(2, 4)
    with pytest.raises(ValueError, match="expected clamp to be one of input, output, but got none"):
        reference.gated_activation(x, x, clamp="none")
    with pytest.raises(ValueError, match="expected layout to be one of halves, interleaved, but got rows"):
        reference.gated_activation_packed(x, layout="rows")
