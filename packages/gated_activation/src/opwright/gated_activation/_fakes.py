"""Fakes of the operators: shapes, dtypes, strides and argument errors of the kernels, without data.

The kernels' results are laid out by TensorIterator, as those of torch's own element-wise operators with the
same number of operands; so a fake is such an operator on the fake tensors: the addition for two, addcmul for
three.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _reference_common as common

_NAMESPACE = "opwright"


def _check_like(op: str, name: str, tensor: Tensor, like: Tensor) -> None:
    """Check a tensor against the result it belongs to: what it is the gradient of, or what it receives."""
    numbers = all(type(size) is int for size in (*tensor.shape, *like.shape))
    if tensor.dim() != like.dim() or (numbers and tensor.shape != like.shape):
        raise ValueError(f"{op}: expected {name} of shape {tuple(like.shape)}, but got {tuple(tensor.shape)}")
    if tensor.dtype != like.dtype:
        raise ValueError(
            f"{op}: expected {name} of dtype {common.dtype_text(like.dtype)} to hold its result, "
            f"but got {common.dtype_text(tensor.dtype)}"
        )


def gated_activation_forward(
    gate: Tensor,
    up: Tensor,
    activation: int,
    alpha: float,
    limit: float | None,
    up_offset: float,
    clamp_output: bool,
    *,
    op: str = "gated_activation",
) -> Tensor:
    """Fake of ``opwright::gated_activation_forward``."""
    common.check_options(op, activation, alpha, limit, up_offset)
    common.check_operands(op, gate, up)
    return torch.add(gate, up)


def gated_activation_backward(
    grad_output: Tensor,
    gate: Tensor,
    up: Tensor,
    activation: int,
    alpha: float,
    limit: float | None,
    up_offset: float,
    clamp_output: bool,
    need_gate: bool,
    need_up: bool,
) -> tuple[Tensor, Tensor]:
    """Fake of ``opwright::gated_activation_backward``."""
    op = "gated_activation_backward"
    options = (activation, alpha, limit, up_offset, clamp_output)
    _check_like(op, "grad_output", grad_output, gated_activation_forward(gate, up, *options, op=op))
    nothing = (0,)
    return (
        torch.addcmul(grad_output, gate, up) if need_gate else grad_output.new_empty(nothing),
        torch.addcmul(grad_output, gate, up) if need_up else grad_output.new_empty(nothing),
    )


def gated_activation_packed_forward(
    input: Tensor,
    interleaved: bool,
    gate_first: bool,
    activation: int,
    alpha: float,
    limit: float | None,
    up_offset: float,
    clamp_output: bool,
    *,
    op: str = "gated_activation_packed",
) -> Tensor:
    """Fake of ``opwright::gated_activation_packed_forward``."""
    common.check_options(op, activation, alpha, limit, up_offset)
    common.check_packed(op, input)
    # Both halves have the same layout, so one stands for both; its size is D also if 2 D is a symbol.
    half = common.halves(input, interleaved, gate_first=False)[0]
    return torch.add(half, half)


def gated_activation_packed_backward(
    grad_output: Tensor,
    input: Tensor,
    interleaved: bool,
    gate_first: bool,
    activation: int,
    alpha: float,
    limit: float | None,
    up_offset: float,
    clamp_output: bool,
) -> Tensor:
    """Fake of ``opwright::gated_activation_packed_backward``."""
    op = "gated_activation_packed_backward"
    options = (interleaved, gate_first, activation, alpha, limit, up_offset, clamp_output)
    _check_like(op, "grad_output", grad_output, gated_activation_packed_forward(input, *options, op=op))
    return torch.empty_like(input)


def gated_activation_(
    gate: Tensor,
    up: Tensor,
    activation: int,
    alpha: float,
    limit: float | None,
    up_offset: float,
    clamp_output: bool,
) -> None:
    """Fake of ``opwright::gated_activation_``."""
    op = "gated_activation_"
    options = (activation, alpha, limit, up_offset, clamp_output)
    _check_like(op, "gate", gate, gated_activation_forward(gate, up, *options, op=op))


def gated_activation_out(
    gate: Tensor,
    up: Tensor,
    out: Tensor,
    activation: int,
    alpha: float,
    limit: float | None,
    up_offset: float,
    clamp_output: bool,
) -> None:
    """Fake of ``opwright::gated_activation_out``."""
    op = "gated_activation_out"
    options = (activation, alpha, limit, up_offset, clamp_output)
    _check_like(op, "out", out, gated_activation_forward(gate, up, *options, op=op))


def register(library: torch.library.Library) -> None:
    """Register every fake."""
    for fake in (
        gated_activation_forward,
        gated_activation_backward,
        gated_activation_packed_forward,
        gated_activation_packed_backward,
        gated_activation_,
        gated_activation_out,
    ):
        torch.library.register_fake(f"{_NAMESPACE}::{fake.__name__}", fake, lib=library)
