"""Errors in units in the last place, over every bfloat16 and every float16 gate there is.

``up`` is 1, so the product adds no rounding of its own: what is measured is the activation and the one
rounding of the result. The best possible is 0.5. The bounds are those of the contract and the documents.
"""

from __future__ import annotations

import pytest
import torch
from tests.closed_forms import SLOPES, VALUES
from torch import Tensor

from opwright.gated_activation import gated_activation
from shared_build.conformance import ulp

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MAX_ULP = {
    "bf16": {"silu": 0.52, "gelu": 0.53, "gelu_tanh": 0.52, "sigmoid": 0.52},
    "fp16": {"silu": 0.51, "gelu": 0.52, "gelu_tanh": 0.51, "sigmoid": 0.51},
}
EXACT = ("relu", "relu2", "identity")
# Of derivatives the absolute error beyond the rounding of the result: near a zero of the derivative units in
# the last place of the result say nothing.
SLOPE_ERROR = {"bf16": 2.0**-11, "fp16": 2.0**-15}
# float32, sampled: every 1021st bit pattern, about 4.2 million.
MAX_ULP_FP32 = {"silu": 3.0, "gelu": 6.0, "gelu_tanh": 200.0, "sigmoid": 2.0}


def every(dtype: torch.dtype) -> Tensor:
    """All 65,536 values of a 16-bit dtype, NaN and infinities included."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 to a 16-bit dtype with one rounding: torch's own conversion rounds twice, through float32."""
    near = values.float()
    bits = near.view(torch.int32)
    inexact = (near.double() != values) & values.isfinite() & near.isfinite()
    away = near.double().abs() > values.abs()
    # Round to odd: towards zero, and then the last bit set where something was lost.
    odd = torch.where(inexact, torch.where(away, bits - 1, bits) | 1, bits)
    return odd.view(torch.float32).to(dtype)


@pytest.mark.parametrize("short", HALVES)
@pytest.mark.parametrize("activation", MAX_ULP["bf16"])
def test_every_gate(activation: str, short: str, record_property) -> None:
    gate = every(HALVES[short])
    got = gated_activation(gate, torch.ones_like(gate), activation)
    golden = VALUES[activation](gate.double())
    finite = gate.isfinite()
    error = ulp.ulp_error(got, golden)[finite]
    record_property(f"max_ulp_{activation}_{short}", float(error.max()))
    worst = gate[finite][error.argmax()].item()
    assert error.max() <= MAX_ULP[short][activation], f"{float(error.max())} ulp at {worst}"


@pytest.mark.parametrize("short", HALVES)
@pytest.mark.parametrize("activation", EXACT)
def test_activations_without_a_transcendental_are_correctly_rounded(activation: str, short: str) -> None:
    gate = every(HALVES[short])
    gate = gate[~gate.isnan()]
    got = gated_activation(gate, torch.ones_like(gate), activation)
    expected = rounded(VALUES[activation](gate.double()), HALVES[short])
    assert torch.equal(got, expected)


@pytest.mark.parametrize("short", HALVES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "sigmoid"])
def test_every_slope(activation: str, short: str, record_property) -> None:
    dtype = HALVES[short]
    gate = every(dtype)
    gate = gate[gate.isfinite()].requires_grad_()
    (got,) = torch.autograd.grad(gated_activation(gate, torch.ones_like(gate), activation).sum(), gate)
    golden = SLOPES[activation](gate.detach().double())
    rounding = 0.5 * ulp.spacing(golden, dtype)
    excess = ((got.double() - golden).abs() - rounding).clamp(min=0)
    record_property(f"slope_error_{activation}_{short}", float(excess.max()))
    assert excess.max() <= SLOPE_ERROR[short], f"{float(excess.max())} at {gate[excess.argmax()].item()}"


@pytest.mark.parametrize("activation", MAX_ULP_FP32)
def test_float32_over_all_its_range(activation: str, record_property) -> None:
    bits = torch.arange(-(2**31), 2**31, 1021, dtype=torch.int64).to(torch.int32)
    gate = bits.view(torch.float32)
    gate = gate[gate.isfinite()]
    got = gated_activation(gate, torch.ones_like(gate), activation)
    error = ulp.ulp_error(got, VALUES[activation](gate.double()))
    record_property(f"max_ulp_{activation}_fp32", float(error.max()))
    worst = gate[error.argmax()].item()
    assert error.max() <= MAX_ULP_FP32[activation], f"{float(error.max())} ulp at {worst}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", VALUES)
def test_infinities_and_nan_are_torchs(activation: str, dtype: torch.dtype) -> None:
    from opwright.gated_activation import reference

    gate = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0], dtype=dtype)
    one = torch.ones_like(gate)
    got = gated_activation(gate, one, activation)
    assert ulp.same_values(got, reference.gated_activation(gate, one, activation)), got
