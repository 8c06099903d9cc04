"""The names of other libraries, each against that library's definition written out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from opwright.gated_activation import drop_in

ACTS = {
    "silu_and_mul": F.silu,
    "gelu_and_mul": F.gelu,
    "gelu_tanh_and_mul": lambda g: F.gelu(g, approximate="tanh"),
}


def packed() -> torch.Tensor:
    return 4 * torch.randn(5, 38, generator=torch.Generator().manual_seed(3))


def written_out(input: torch.Tensor, name: str) -> torch.Tensor:
    half = input.shape[-1] // 2
    return ACTS[name](input[..., :half]) * input[..., half:]


def gpt_oss(input: torch.Tensor, alpha: float = 1.702, limit: float = 7.0) -> torch.Tensor:
    gate, up = input[..., ::2].clamp(max=limit), input[..., 1::2].clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)


@pytest.mark.parametrize("name", ACTS)
def test_flashinfer(name: str) -> None:
    input = packed()
    function = getattr(drop_in, name)
    torch.testing.assert_close(function(input), written_out(input, name))
    out = torch.empty(5, 19)
    assert function(input, out) is out
    torch.testing.assert_close(out, written_out(input, name))
    with pytest.raises(ValueError, match="expected no enable_pdl"):
        function(input, None, True)


@pytest.mark.parametrize("name", ACTS)
def test_vllm(name: str) -> None:
    input, out = packed(), torch.empty(5, 19)
    assert getattr(drop_in.vllm, name)(out, input) is None
    torch.testing.assert_close(out, written_out(input, name))


def test_vllm_with_the_gate_second() -> None:
    input, out = packed(), torch.empty(5, 19)
    drop_in.vllm.mul_and_silu(out, input)
    torch.testing.assert_close(out, input[..., :19] * F.silu(input[..., 19:]))


def test_swigluoai() -> None:
    input, out = packed(), torch.empty(5, 19)
    torch.testing.assert_close(drop_in.swigluoai_and_mul(input), gpt_oss(input))
    torch.testing.assert_close(drop_in.swigluoai_and_mul(input, 1.5, 2.0), gpt_oss(input, 1.5, 2.0))
    drop_in.vllm.swigluoai_and_mul(out, input)
    torch.testing.assert_close(out, gpt_oss(input))


def test_liger_uses_tanh_for_its_gelu() -> None:
    a, b = torch.randn(4, 9).requires_grad_(), torch.randn(4, 9).requires_grad_()
    torch.testing.assert_close(drop_in.liger_swiglu(a, b), F.silu(a) * b)
    y = drop_in.liger_geglu(a, b)
    expected = F.gelu(a, approximate="tanh") * b
    torch.testing.assert_close(y, expected)
    upstream = torch.randn_like(y)
    found = torch.autograd.grad(y, (a, b), upstream)
    torch.testing.assert_close(found, torch.autograd.grad(expected, (a, b), upstream))


def test_an_activation_that_is_not_offered_is_named() -> None:
    config = SimpleNamespace(hidden_size=2, intermediate_size=3, hidden_act="mish")
    with pytest.raises(ValueError, match=r"expected hidden_act to be one of .*, but got mish"):
        drop_in.transformers.LlamaMLP(config)
