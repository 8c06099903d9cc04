"""Fakes of the operators: shapes, dtypes, strides and argument errors of the kernels, without data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _reference_common as common

_NAMESPACE = "opwright"


def _empty(like: Tensor, dtype: torch.dtype, shape: tuple[int, ...] | torch.Size | None = None) -> Tensor:
    """A contiguous tensor on ``like``'s device; results are contiguous whatever the inputs' strides."""
    return torch.empty(like.shape if shape is None else shape, dtype=dtype, device=like.device)


def _output_dtype(input: Tensor, weight: Tensor | None, rounding: int) -> torch.dtype:
    if weight is None or rounding == 0:
        return input.dtype
    return torch.promote_types(input.dtype, weight.dtype)


def rms_norm_forward(
    input: Tensor, weight: Tensor | None, eps: float, weight_offset: float, rounding: int
) -> tuple[Tensor, Tensor]:
    """Fake of ``opwright::rms_norm_forward``."""
    common.option("rms_norm", "rounding", rounding, common.ROUNDINGS)
    common.check("rms_norm", input, weight, eps, heads=True)
    rstd = _empty(input, common.compute_dtype(input.dtype), input.shape[:-1])
    return _empty(input, _output_dtype(input, weight, rounding)), rstd


def rms_norm_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float,
    weight_offset: float,
    need_input: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor | None]:
    """Fake of ``opwright::rms_norm_backward``."""
    common.check("rms_norm_backward", input, weight, eps, heads=True)
    common.check_like("rms_norm_backward", "grad_output", grad_output, input)
    return (
        _empty(input, input.dtype, None if need_input else (0,)),
        _empty(weight, weight.dtype) if need_weight and weight is not None else None,
    )


def check_add(
    op: str,
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    rounding: int,
    statistics: int,
) -> None:
    """Check the arguments of ``add_rms_norm`` and of its in-place form."""
    common.option(op, "rounding", rounding, common.ROUNDINGS)
    common.option(op, "statistics", statistics, common.STATISTICS)
    common.check(op, input, weight, eps, heads=True)
    common.check_like(op, "residual", residual, input)
    common.check_weight_dtype(op, "residual", residual, input)


def add_rms_norm_forward(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    rounding: int,
    statistics: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fake of ``opwright::add_rms_norm_forward``."""
    check_add("add_rms_norm", input, residual, weight, eps, weight_offset, rounding, statistics)
    rstd = _empty(input, common.compute_dtype(input.dtype), input.shape[:-1])
    stream = torch.promote_types(input.dtype, residual.dtype)
    return _empty(input, _output_dtype(input, weight, rounding)), _empty(input, stream), rstd


def add_rms_norm_backward(
    grad_output: Tensor | None,
    grad_residual_out: Tensor | None,
    residual_out: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float,
    weight_offset: float,
    need_sum: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor | None]:
    """Fake of ``opwright::add_rms_norm_backward``."""
    common.check("add_rms_norm_backward", residual_out, weight, eps, heads=True)
    for name, grad in (("grad_output", grad_output), ("grad_residual_out", grad_residual_out)):
        if grad is not None:
            common.check_like("add_rms_norm_backward", name, grad, residual_out)
    return (
        _empty(residual_out, residual_out.dtype, None if need_sum else (0,)),
        _empty(weight, weight.dtype) if need_weight and weight is not None else None,
    )


def check_in_place(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    rounding: int,
    statistics: int,
) -> None:
    """Check the arguments of ``add_rms_norm_``, but for overlapping memory, which only the operator sees."""
    op = "add_rms_norm_"
    check_add(op, input, residual, weight, eps, weight_offset, rounding, statistics)
    results = {
        "input": _output_dtype(input, weight, rounding),
        "residual": torch.promote_types(input.dtype, residual.dtype),
    }
    for name, tensor in (("input", input), ("residual", residual)):
        if tensor.dtype != results[name]:
            raise ValueError(
                f"{op}: expected {name} of dtype {common.dtype_name(results[name])} to hold its result, "
                f"but got {common.dtype_name(tensor.dtype)}"
            )


def add_rms_norm_(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    rounding: int,
    statistics: int,
) -> None:
    """Fake of ``opwright::add_rms_norm_``."""
    check_in_place(input, residual, weight, eps, weight_offset, rounding, statistics)


def _check_gated(
    op: str,
    input: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    eps: float,
    activation: int,
    group_size: int,
    rounding: int,
) -> int:
    """Check the arguments that forward and backward share, and return the number of groups."""
    common.option(op, "rounding", rounding, common.ROUNDINGS)
    common.option(op, "activation", activation, common.ACTIVATIONS)
    common.check(op, input, weight, eps, heads=False)
    if gate is not None:
        common.check_like(op, "gate", gate, input, same_dtype=True)
    if group_size == 0:
        return 1
    return input.shape[-1] // common.group_length(op, input.shape[-1], group_size)


def rms_norm_gated_forward(
    input: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    eps: float,
    activation: int,
    norm_before_gate: bool,
    group_size: int,
    rounding: int,
) -> tuple[Tensor, Tensor]:
    """Fake of ``opwright::rms_norm_gated_forward``."""
    groups = _check_gated("rms_norm_gated", input, gate, weight, eps, activation, group_size, rounding)
    dtype = input.dtype if norm_before_gate else _output_dtype(input, weight, rounding)
    rstd = _empty(input, common.compute_dtype(input.dtype), (*input.shape[:-1], groups))
    return _empty(input, dtype), rstd


def rms_norm_gated_backward(
    grad_output: Tensor,
    input: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float,
    activation: int,
    norm_before_gate: bool,
    group_size: int,
    need_input: bool,
    need_gate: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Fake of ``opwright::rms_norm_gated_backward``."""
    op = "rms_norm_gated_backward"
    _check_gated(op, input, gate, weight, eps, activation, group_size, 0)
    common.check_like(op, "grad_output", grad_output, input)
    return (
        _empty(input, input.dtype, None if need_input else (0,)),
        _empty(gate, gate.dtype) if need_gate and gate is not None else None,
        _empty(weight, weight.dtype) if need_weight and weight is not None else None,
    )


def rms_norm_inference(*args: Any) -> Tensor:
    """Fake of ``opwright::rms_norm_inference``."""
    return rms_norm_forward(*args)[0]


def add_rms_norm_inference(*args: Any) -> tuple[Tensor, Tensor]:
    """Fake of ``opwright::add_rms_norm_inference``."""
    return add_rms_norm_forward(*args)[:2]


def rms_norm_gated_inference(*args: Any) -> Tensor:
    """Fake of ``opwright::rms_norm_gated_inference``."""
    return rms_norm_gated_forward(*args)[0]


def register(library: torch.library.Library) -> None:
    """Register every fake, for the differentiable operators and for their raw twins."""
    fakes = (
        rms_norm_forward,
        rms_norm_backward,
        add_rms_norm_forward,
        add_rms_norm_backward,
        rms_norm_gated_forward,
        rms_norm_gated_backward,
    )
    for fake in fakes:
        for suffix in ("", "_raw"):
            torch.library.register_fake(f"{_NAMESPACE}::{fake.__name__}{suffix}", fake, lib=library)
    for inference in (rms_norm_inference, add_rms_norm_inference, rms_norm_gated_inference):
        torch.library.register_fake(f"{_NAMESPACE}::{inference.__name__}", inference, lib=library)
    torch.library.register_fake(
        f"{_NAMESPACE}::add_rms_norm_check", lambda input, residual, weight: None, lib=library
    )
    for name in ("add_rms_norm_", "add_rms_norm__raw"):
        torch.library.register_fake(f"{_NAMESPACE}::{name}", add_rms_norm_, lib=library)
