"""Everything about the operators that is no kernel: autograd here, fakes, batching and sharding beside it.

Schemas are in csrc/bind.cpp.

Autocast has no rule of its own: the operators are not in any list of torch's, so they compute in the dtypes
they are given.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from . import _fakes, _sharding, _vmap, reference
from ._runtime import DifferentiableOp, load_library, once, refuse_gradients, transforms_active, vjp_of

load_library(__package__, "rms_norm_forward")


def _register_sharding() -> None:
    """Register sharding once DTensor is there: its registration API costs a second to import."""
    if "torch.distributed.tensor" in sys.modules:
        once(f"{__package__}.sharding", _sharding.register)


# ---- second order: a backward operator is differentiable, through the reference's gradient -------


def _save_arguments(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.is_tensor = [isinstance(value, Tensor) for value in inputs]
    ctx.options = [value for value in inputs if not isinstance(value, Tensor)]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))


def _saved_arguments(ctx: Any) -> tuple[Any, ...]:
    tensors, options = iter(ctx.saved_tensors), iter(ctx.options)
    return tuple(next(tensors) if tensor else next(options) for tensor in ctx.is_tensor)


def _second_order(backward: Any) -> Any:
    """Return the backward of a backward operator whose reference is ``backward``."""

    def backward_of_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return vjp_of(backward, _saved_arguments(ctx), ctx.needs_input_grad, grads)

    return backward_of_backward


# ---- rms_norm ------------------------------------------------------------------------------------


def _rms_norm_backward_reference(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float,
    weight_offset: float,
    need_input: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor | None]:
    grads = reference.rms_norm_backward(grad_output, input, weight, rstd, eps, weight_offset)
    return grads[0] if need_input else input.new_empty(0), grads[1] if need_weight else None


rms_norm_backward = DifferentiableOp(
    "rms_norm_backward",
    reference=_rms_norm_backward_reference,
    save=_save_arguments,
    in_backward=True,
    backward=_second_order(_rms_norm_backward_reference),
)


def _save_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, weight, ctx.eps, ctx.weight_offset, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, weight, output[1])


def _rms_norm_gradient(ctx: Any, grad_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_output is None:
        return (None,) * 5
    input, weight, rstd = ctx.saved_tensors
    grad_input, grad_weight = rms_norm_backward(
        grad_output, input, weight, rstd, ctx.eps, ctx.weight_offset, *ctx.needs_input_grad[:2]
    )
    return grad_input if ctx.needs_input_grad[0] else None, grad_weight, None, None, None


rms_norm_forward = DifferentiableOp(
    "rms_norm_forward",
    reference=reference.rms_norm_forward,
    save=_save_rms_norm,
    backward=_rms_norm_gradient,
    inference="rms_norm_inference",
    public=lambda results: results[0],
    for_subclass=_register_sharding,
)

# ---- add_rms_norm --------------------------------------------------------------------------------


def _add_rms_norm_backward_reference(
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
    grads = reference.add_rms_norm_backward(
        grad_output, grad_residual_out, residual_out, weight, rstd, eps, weight_offset
    )
    return grads[0] if need_sum else residual_out.new_empty(0), grads[1] if need_weight else None


add_rms_norm_backward = DifferentiableOp(
    "add_rms_norm_backward",
    reference=_add_rms_norm_backward_reference,
    save=_save_arguments,
    in_backward=True,
    backward=_second_order(_add_rms_norm_backward_reference),
)


def _save_add_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    input, residual, weight, ctx.eps, ctx.weight_offset, _, statistics = inputs
    ctx.dtypes = input.dtype, residual.dtype
    # The sum depends on the summands only.
    sum_needs_grad = any(ctx.needs_input_grad[:2])
    ctx.mark_non_differentiable(*(output[2:] if sum_needs_grad else output[1:]))
    ctx.set_materialize_grads(False)
    # The value that was normalised is residual_out, unless it was the sum before rounding: then the sum is
    # formed again.
    ctx.exact = statistics == 1 and output[1].dtype not in (torch.float32, torch.float64)
    ctx.save_for_backward(*((input, residual) if ctx.exact else (output[1],)), weight, output[2])


def _add_rms_norm_gradient(
    ctx: Any, grad_output: Tensor | None, grad_residual_out: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    if grad_output is None and grad_residual_out is None:
        return (None,) * 7
    *values, weight, rstd = ctx.saved_tensors
    value = values[0]
    if ctx.exact:
        value = values[0].float() + values[1].float()
        grad_residual_out = None if grad_residual_out is None else grad_residual_out.float()
    need_input, need_residual, need_weight = ctx.needs_input_grad[:3]
    grad_sum, grad_weight = add_rms_norm_backward(
        grad_output,
        grad_residual_out,
        value,
        weight,
        rstd,
        ctx.eps,
        ctx.weight_offset,
        need_input or need_residual,
        need_weight and grad_output is not None,
    )
    return (
        grad_sum.to(ctx.dtypes[0]) if need_input else None,
        grad_sum.to(ctx.dtypes[1]) if need_residual else None,
        grad_weight,
        None,
        None,
        None,
        None,
    )


add_rms_norm_forward = DifferentiableOp(
    "add_rms_norm_forward",
    reference=reference.add_rms_norm_forward,
    save=_save_add_rms_norm,
    backward=_add_rms_norm_gradient,
    inference="add_rms_norm_inference",
    public=lambda results: results[:2],
    for_subclass=_register_sharding,
)


def add_rms_norm_in_place(input: Tensor, residual: Tensor, weight: Tensor | None, *options: Any) -> None:
    """Call ``opwright::add_rms_norm_``; with a gradient, or under a transform, compute apart and copy."""
    tensors = (input, residual) if weight is None else (input, residual, weight)
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if not needs_grad and not transforms_active():
        traced = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
        op = torch.ops.opwright.add_rms_norm_ if traced else torch.ops.opwright.add_rms_norm__raw
        op.default(input, residual, weight, *options)
        return
    for name, tensor in (("input", input), ("residual", residual)):
        if needs_grad and tensor.requires_grad and tensor.is_leaf:
            raise RuntimeError(
                f"add_rms_norm_: expected {name} to be no leaf that requires grad, but got one, to overwrite"
            )
    _fakes.check_in_place(input, residual, weight, *options)
    if not torch.compiler.is_compiling() and not transforms_active():
        with torch.no_grad():
            torch.ops.opwright.add_rms_norm_check(input, residual, weight)
    exact = options[-1] == 1
    # Exact statistics keep the summands for the backward, which are overwritten here.
    summands = (input.clone(), residual.clone()) if exact else (input, residual)
    output, residual_out = add_rms_norm_forward(*summands, weight, *options)
    input.copy_(output)
    residual.copy_(residual_out)


# ---- rms_norm_gated ------------------------------------------------------------------------------


def _rms_norm_gated_reference(
    input: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    eps: float,
    activation: int,
    norm_before_gate: bool,
    group_size: int,
    rounding: int,
) -> tuple[Tensor, Tensor]:
    return reference.rms_norm_gated_forward(
        input, gate, weight, eps, activation, norm_before_gate, group_size or None, rounding
    )


def _rms_norm_gated_backward_reference(
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
    grads = reference.rms_norm_gated_backward(
        grad_output, input, gate, weight, rstd, eps, activation, norm_before_gate, group_size or None
    )
    grad_input, grad_gate, grad_weight = grads
    return (
        grad_input if need_input else input.new_empty(0),
        grad_gate if need_gate else None,
        grad_weight if need_weight else None,
    )


rms_norm_gated_backward = DifferentiableOp(
    "rms_norm_gated_backward",
    reference=_rms_norm_gated_backward_reference,
    save=_save_arguments,
    in_backward=True,
    backward=_second_order(_rms_norm_gated_backward_reference),
)


def _save_rms_norm_gated(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, gate, weight, ctx.eps, ctx.activation, ctx.norm_before_gate, ctx.group_size, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, gate, weight, output[1])


def _rms_norm_gated_gradient(
    ctx: Any, grad_output: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    if grad_output is None:
        return (None,) * 8
    input, gate, weight, rstd = ctx.saved_tensors
    options = (ctx.eps, ctx.activation, ctx.norm_before_gate, ctx.group_size)
    needed = ctx.needs_input_grad[:3]
    grads = rms_norm_gated_backward(grad_output, input, gate, weight, rstd, *options, *needed)
    wanted = (grad if need else None for grad, need in zip(grads, needed, strict=True))
    return (*wanted, None, None, None, None, None)


rms_norm_gated_forward = DifferentiableOp(
    "rms_norm_gated_forward",
    reference=_rms_norm_gated_reference,
    save=_save_rms_norm_gated,
    backward=_rms_norm_gated_gradient,
    inference="rms_norm_gated_inference",
    public=lambda results: results[0],
    for_subclass=_register_sharding,
)

# ---- registration --------------------------------------------------------------------------------

_OPERATORS = (
    rms_norm_forward,
    rms_norm_backward,
    add_rms_norm_forward,
    add_rms_norm_backward,
    rms_norm_gated_forward,
    rms_norm_gated_backward,
)


def _register(library: torch.library.Library) -> None:
    for operator in _OPERATORS:
        operator.register(library)
    refuse_gradients(library, "add_rms_norm_", "opwright.rms_norm.add_rms_norm_")
    _fakes.register(library)
    _vmap.register(library)


once(__package__, _register)
_register_sharding()
