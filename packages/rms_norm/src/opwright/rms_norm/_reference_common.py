"""What the reference's forward and backward share: dtype rules, argument checks, rounding, row statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

ROUNDINGS = ("once", "llama")
STATISTICS = ("rounded", "exact")
ACTIVATIONS = ("silu", "sigmoid")

_LOW = (torch.bfloat16, torch.float16, torch.float32)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of the arithmetic: float64 for float64, else float32.

    Args:
        dtype: of the input.

    Returns:
        ``torch.float64`` or ``torch.float32``, which is also the dtype of ``rstd``.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` as ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def option(op: str, name: str, value: str | int, names: tuple[str, ...]) -> str:
    """Return the name of an option that was given by its name or by its number."""
    if isinstance(value, str) and value in names:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    raise ValueError(f"{op}: expected {name} to be one of {', '.join(names)}, but got {value}")


def check(op: str, input: Tensor, weight: Tensor | None, eps: float, *, heads: bool) -> None:
    """Check the arguments that the three operators share.

    Args:
        op: the operator's name, which starts the message.
        input: at least one dimension, a floating dtype.
        weight: ``(D,)``, or ``(H, D)`` where ``heads`` allows it.
        eps: finite and not negative.
        heads: whether a per-head weight is allowed.

    Raises:
        ValueError: for the first argument that is not as described.
    """
    if input.dtype not in (*_LOW, torch.float64):
        raise ValueError(
            f"{op}: expected input of dtype bfloat16, float16, float32 or float64, "
            f"but got {dtype_name(input.dtype)}"
        )
    if input.dim() < 1:
        raise ValueError(f"{op}: expected input with at least 1 dimension, but got 0")
    if not 0 <= eps < math.inf:  # a NaN fails both
        raise ValueError(f"{op}: expected eps to be finite and not negative, but got {eps}")
    if weight is None:
        return
    check_weight_dtype(op, "weight", weight, input)
    check_device(op, "weight", weight, input)
    _check_shape(op, "weight", weight, input.shape[-1:], input.shape[-2:] if heads else ())


def _check_shape(op: str, name: str, tensor: Tensor, *shapes: Sequence[int]) -> None:
    """Refuse a tensor of none of the shapes, which differ in length.

    Sizes that are not known while tracing are compared at run time. Dynamo, which takes no message that is
    put together later, guards on them instead.
    """

    def message() -> str:
        allowed = " or ".join(dict.fromkeys(str(tuple(shape)) for shape in shapes if len(shape)))
        return f"{op}: expected {name} of shape {allowed}, but got {tuple(tensor.shape)}"

    fitting = [shape for shape in shapes if len(shape) == tensor.dim()]
    if not fitting:
        raise ValueError(message())
    for size, wanted in zip(tensor.shape, fitting[0], strict=True):
        if torch.compiler.is_dynamo_compiling():
            if size != wanted:
                raise ValueError(message())
        else:
            torch._check_value(size == wanted, message)


def check_weight_dtype(op: str, name: str, other: Tensor, input: Tensor) -> None:
    """Refuse a weight, or a residual, of a dtype that does not go with ``input``'s.

    Args:
        op: the operator's name, which starts the message.
        name: the operand's name.
        other: any floating dtype beside a float64 ``input``, else not float64.
        input: the first operand.

    Raises:
        ValueError: where the dtype is not allowed.
    """
    double = input.dtype == torch.float64
    if other.dtype not in ((*_LOW, torch.float64) if double else _LOW):
        allowed = "bfloat16, float16, float32 or float64" if double else "bfloat16, float16 or float32"
        raise ValueError(
            f"{op}: expected {name} of dtype {allowed} with {dtype_name(input.dtype)} input, "
            f"but got {dtype_name(other.dtype)}"
        )


def check_device(op: str, name: str, other: Tensor, input: Tensor) -> None:
    """Refuse an operand on another device than ``input``.

    Args:
        op: the operator's name, which starts the message.
        name: the operand's name.
        other: the operand.
        input: the first operand.

    Raises:
        ValueError: where they differ.
    """
    if other.device != input.device:
        raise ValueError(f"{op}: expected {name} on {input.device} like the input, but got {other.device}")


def check_like(op: str, name: str, other: Tensor, input: Tensor, *, same_dtype: bool = False) -> None:
    """Refuse a second operand whose shape, or where asked for whose dtype, is not ``input``'s.

    Args:
        op: the operator's name, which starts the message.
        name: the operand's name.
        other: the operand.
        input: the first operand.
        same_dtype: whether the dtypes must agree as well.

    Raises:
        ValueError: where they differ.
    """
    _check_shape(op, name, other, input.shape)
    check_device(op, name, other, input)
    if same_dtype and other.dtype != input.dtype:
        raise ValueError(
            f"{op}: expected {name} of dtype {dtype_name(input.dtype)}, but got {dtype_name(other.dtype)}"
        )


def group_length(op: str, length: int, group_size: int | None) -> int:
    """Return the length of a group, ``length`` itself for None; refuse one that does not divide it."""
    if group_size is None:
        return length
    if group_size <= 0 or length % group_size:
        raise ValueError(
            f"{op}: expected group_size to be positive and to divide {length}, but got {group_size}"
        )
    return group_size


def split_groups(value: Tensor, size: int) -> Tensor:
    """View ``(..., D)`` as ``(..., groups, size)``; an empty last dimension is one empty group."""
    # reshape, unlike unflatten, is known to the batching of torch.autograd.grad(is_grads_batched=True).
    return value.reshape(*value.shape[:-1], value.shape[-1] // size if size else 1, size)


def join_groups(groups: Tensor) -> Tensor:
    """View ``(..., groups, size)`` as ``(..., D)``."""
    return groups.reshape(*groups.shape[:-2], groups.shape[-2] * groups.shape[-1])


def row_rstd(value: Tensor, eps: float) -> Tensor:
    """``rsqrt(mean(value ** 2) + eps)`` over the last dimension, in ``value``'s dtype."""
    return torch.rsqrt(value.square().mean(-1) + eps)


def activate(gate: Tensor, activation: str) -> Tensor:
    """Apply the gate's activation in the gate's dtype."""
    return F.silu(gate) if activation == "silu" else torch.sigmoid(gate)


def rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Round ``value`` to ``dtype`` and keep its own dtype; the gradient passes unchanged.

    ``value.detach() - value`` is an exact zero that carries the gradient; subtracting it keeps the sign of a
    negative zero. Where ``value`` is not finite that difference is NaN, so the rounded value is taken alone.
    """
    if value.dtype == dtype:
        return value
    nearest = value.detach().to(dtype).to(value.dtype)
    return torch.where(torch.isfinite(value), nearest - (value.detach() - value), nearest)
