"""The gradients of the reference as explicit formulas, themselves differentiable.

With ``g = grad_output * w`` (``w = weight + weight_offset``, or one), ``h = v * r`` and ``mean`` over the row
or group that was normalised::

    grad_v      = r * (g - h * mean(g * h))
    grad_weight = sum over rows of grad_output * h

Arithmetic is in float64 for a float64 tensor, else in float32; each result is rounded once, to the dtype of
the tensor it is the gradient of. ``rstd`` is accepted because the operators take it; it is recomputed here
from the value it belongs to, so that differentiating these formulas gives the whole second order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._reference_common import (
    ACTIVATIONS,
    activate,
    compute_dtype,
    group_length,
    join_groups,
    option,
    row_rstd,
    split_groups,
)


def rms_norm_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor | None,
    rstd: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``rms_norm``.

    Args:
        grad_output: ``input``'s shape, the output's dtype.
        input: ``(..., D)`` or ``(..., H, D)``.
        weight: ``(D,)``, ``(H, D)`` or None.
        rstd: not used, see the module; may be None.
        eps: as in the forward.
        weight_offset: as in the forward.

    Returns:
        ``(grad_input, grad_weight)`` in the dtypes of ``input`` and ``weight``; None without a weight.
    """
    grad_value, grad_weight = _norm_backward(grad_output, input, weight, eps, weight_offset)
    return grad_value.to(input.dtype), grad_weight


def add_rms_norm_backward(
    grad_output: Tensor | None,
    grad_residual_out: Tensor | None,
    residual_out: Tensor,
    weight: Tensor | None,
    rstd: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``add_rms_norm`` with respect to the sum and the weight.

    The gradients of ``input`` and of ``residual`` are both the sum's, cast to their dtypes; that is still one
    rounding, because the sum has the wider of the two dtypes or float32.

    Args:
        grad_output: gradient of the normalised output, or None for zero.
        grad_residual_out: gradient of the sum, or None for zero.
        residual_out: the sum that the forward returned.
        weight: ``(D,)``, ``(H, D)`` or None.
        rstd: not used, see the module; may be None.
        eps: as in the forward.
        weight_offset: as in the forward.

    Returns:
        ``(grad_sum, grad_weight)`` in the dtypes of ``residual_out`` and ``weight``; None without a weight.
    """
    if grad_output is None:
        grad_output = torch.zeros_like(residual_out)
    grad_value, grad_weight = _norm_backward(grad_output, residual_out, weight, eps, weight_offset)
    if grad_residual_out is not None:
        grad_value = grad_value + grad_residual_out.to(grad_value.dtype)
    return grad_value.to(residual_out.dtype), grad_weight


def rms_norm_gated_backward(
    grad_output: Tensor,
    input: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    rstd: Tensor | None,
    eps: float,
    activation: str | int = "silu",
    norm_before_gate: bool = True,
    group_size: int | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of ``rms_norm_gated``.

    Args:
        grad_output: ``input``'s shape, the output's dtype.
        input: ``(..., D)``.
        gate: ``input``'s shape, or None.
        weight: ``(D,)`` or None.
        rstd: not used, see the module; may be None.
        eps: as in the forward.
        activation: name, or the operator's number (0 silu, 1 sigmoid).
        norm_before_gate: as in the forward.
        group_size: as in the forward.

    Returns:
        ``(grad_input, grad_gate, grad_weight)`` in the dtypes of ``input``, ``gate`` and ``weight``; None for
        those that were not given.
    """
    activation = option("rms_norm_gated", "activation", activation, ACTIVATIONS)
    size = group_length("rms_norm_gated", input.shape[-1], group_size)
    dtype = compute_dtype(input.dtype)
    grad, x = grad_output.to(dtype), input.to(dtype)
    w = None if weight is None else weight.to(dtype)
    if gate is None:
        grad_value, grad_weight = _grouped_backward(grad, x, w, eps, size)
        grad_gate = None
    else:
        act, slope = _act_and_slope(gate.to(dtype), activation)
        if norm_before_gate:
            grad_value, grad_weight = _grouped_backward(grad * act, x, w, eps, size)
            grad_act = grad * _grouped_norm(x, eps, size)[0]
            grad_gate = (grad_act if w is None else grad_act * w) * slope
        else:
            grad_gated, grad_weight = _grouped_backward(grad, x * act, w, eps, size)
            grad_gate, grad_value = grad_gated * x * slope, grad_gated * act
        grad_gate = grad_gate.to(gate.dtype)
    if weight is not None and grad_weight is not None:
        grad_weight = grad_weight.to(weight.dtype)
    return grad_value.to(input.dtype), grad_gate, grad_weight


def _grouped_norm(value: Tensor, eps: float, size: int) -> tuple[Tensor, Tensor]:
    groups = split_groups(value, size)
    r = row_rstd(groups, eps).unsqueeze(-1)
    return join_groups(groups * r), r


def _grouped_backward(
    grad: Tensor, value: Tensor, weight: Tensor | None, eps: float, size: int
) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``norm(value) * weight`` per group, all in the dtype of the arithmetic."""
    normed, r = _grouped_norm(value, eps, size)
    weighed = split_groups(grad if weight is None else grad * weight, size)
    grad_value = join_groups(_through_statistics(weighed, split_groups(normed, size), r))
    return grad_value, None if weight is None else _sum_rows(grad * normed, 1)


def _norm_backward(
    grad_output: Tensor, value: Tensor, weight: Tensor | None, eps: float, weight_offset: float
) -> tuple[Tensor, Tensor | None]:
    dtype = compute_dtype(value.dtype)
    v, grad = value.to(dtype), grad_output.to(dtype)
    r = row_rstd(v, eps).unsqueeze(-1)
    normed = v * r
    if weight is None:
        return _through_statistics(grad, normed, r), None
    grad_value = _through_statistics(grad * (weight.to(dtype) + weight_offset), normed, r)
    return grad_value, _sum_rows(grad * normed, weight.dim()).to(weight.dtype)


def _through_statistics(grad: Tensor, normed: Tensor, r: Tensor) -> Tensor:
    return r * (grad - normed * (grad * normed).mean(-1, keepdim=True))


def _sum_rows(value: Tensor, kept: int) -> Tensor:
    """Sum over all but the last ``kept`` dimensions."""
    return value.sum(tuple(range(value.dim() - kept))) if value.dim() > kept else value


def _act_and_slope(gate: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    sigmoid = torch.sigmoid(gate)
    if activation == "sigmoid":
        return sigmoid, sigmoid * (1 - sigmoid)
    return activate(gate, activation), sigmoid * (1 + gate * (1 - sigmoid))
