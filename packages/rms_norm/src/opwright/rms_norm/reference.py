"""The golden eager implementation of the RMS norm operators: plain PyTorch, the specification of the kernels.

It runs for every floating dtype and on every device (``meta`` included), can be differentiated any number of
times, and works under ``torch.func`` and ``torch.compile``. It imports nothing of the compiled library.

Formula (Zhang and Sennrich 2019, arXiv 1910.07467, equation 4, with ``eps`` inside the root)::

    r = rsqrt(mean(x ** 2) + eps)          over the last dimension, or over each group of it
    y = (x * r) * (weight + weight_offset)

Notation: ``T`` is the dtype of ``input``, ``W`` of ``weight``, ``P = torch.promote_types(T, W)``; ``C`` is
the dtype of the arithmetic: float64 where ``T`` is float64, else float32. Operands enter ``C`` exactly. Every
product is one ``C`` operation in the order written, ``w = weight + weight_offset`` is formed in ``C``, and
``round_T`` is one rounding to nearest even. Only these points round to a lower dtype:

==============================  ======================================================  =====  =========
operator and options            formula                                                 dtype  roundings
==============================  ======================================================  =====  =========
``rounding="once"``             ``round_T((x * r) * w)``                                ``T``  1
``rounding="llama"``            ``round_P(round_T(x * r) * w)``                         ``P``  2
gated, norm first, ``"once"``   ``round_T(((x * r) * w) * act(gate))``                  ``T``  1
gated, norm first, ``"llama"``  ``round_T(round_P(round_T(x * r) * w) * act(gate))``    ``T``  3
gated, gate first, ``"once"``   ``round_T((v * r) * w)`` with ``v = x * act(gate)``     ``T``  1
gated, gate first, ``"llama"``  ``round_P(round_T(v * r) * w)``, ``v`` as above         ``P``  2
==============================  ======================================================  =====  =========

Without a weight the product with ``w`` and its rounding fall away, and ``P`` is ``T``; without a gate, the
product with ``act(gate)`` does.

``"once"`` is the rounding of ``torch.nn.functional.rms_norm``, of Gemma (``weight_offset=1``), gpt-oss,
OLMo 2 and Nemotron-H, and, gated, of Kimi Linear and of mamba_ssm; ``"llama"`` is that of Llama, Mistral,
Qwen and most other models, and, gated, of Qwen3-Next and OLMo-Hybrid (norm first) and of Mamba-2 and its
relatives (gate first).

With a residual, ``S = torch.promote_types(T, residual.dtype)`` and ``sum = input + residual`` is one ``C``
addition. ``residual_out = round_S(sum)``; ``statistics="rounded"`` normalises that rounded sum,
``statistics="exact"`` normalises ``sum`` itself. ``T`` in the table stays the dtype of ``input``.

Gradients treat every rounding as the identity: they are computed in ``C`` and rounded once, to the dtype of
the tensor they belong to. ``rstd`` is a function of the input, never a constant; returned, it is not
differentiable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._reference_backward import add_rms_norm_backward, rms_norm_backward, rms_norm_gated_backward
from ._reference_common import (
    ACTIVATIONS,
    ROUNDINGS,
    STATISTICS,
    activate,
    check,
    check_like,
    check_weight_dtype,
    compute_dtype,
    dtype_name,
    group_length,
    option,
    rounded,
    row_rstd,
    split_groups,
)

__all__ = [
    "add_rms_norm",
    "add_rms_norm_",
    "add_rms_norm_backward",
    "add_rms_norm_forward",
    "compute_dtype",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_forward",
    "rms_norm_gated",
    "rms_norm_gated_backward",
    "rms_norm_gated_forward",
]


def rms_norm(
    input: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
) -> Tensor:
    """Normalise the last dimension of ``input`` by its root mean square.

    Args:
        input: ``(..., D)``, or ``(..., H, D)`` with a per-head weight; bfloat16, float16, float32 or float64.
        weight: ``(D,)`` or ``(H, D)``, or None for a scale of one. float64 only where ``input`` is float64.
        eps: added to the mean square; finite and not negative.
        weight_offset: added to the weight in the dtype of the arithmetic (1.0 for Gemma).
        rounding: ``"once"`` or ``"llama"``, see the table of the module.

    Returns:
        ``input``'s shape; ``input``'s dtype, or the promoted dtype with ``"llama"`` and a weight.

    Raises:
        ValueError: for a dtype, shape or option outside of the above.
    """
    return rms_norm_forward(input, weight, eps, weight_offset, rounding)[0]


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    statistics: str = "rounded",
) -> tuple[Tensor, Tensor]:
    """Add ``residual`` to ``input`` and normalise the sum.

    Args:
        input: as for :func:`rms_norm`.
        residual: ``input``'s shape; may have another dtype (a float32 residual stream), but float64 only
            where ``input`` is float64.
        weight: as for :func:`rms_norm`.
        eps: as for :func:`rms_norm`.
        weight_offset: as for :func:`rms_norm`.
        rounding: as for :func:`rms_norm`.
        statistics: ``"rounded"`` normalises the sum as it is stored, ``"exact"`` before it is rounded.

    Returns:
        ``(output, residual_out)``: ``output`` has the dtype that :func:`rms_norm` gives for ``input`` and
        ``weight``; ``residual_out`` is the sum in the promoted dtype of ``input`` and ``residual``.

    Raises:
        ValueError: for a dtype, shape or option outside of the above.
    """
    output, residual_out, _ = add_rms_norm_forward(
        input, residual, weight, eps, weight_offset, rounding, statistics
    )
    return output, residual_out


def add_rms_norm_(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    statistics: str = "rounded",
) -> tuple[Tensor, Tensor]:
    """In-place :func:`add_rms_norm`: ``input`` receives the output and ``residual`` the sum.

    Args:
        input: as for :func:`add_rms_norm`; overwritten.
        residual: as for :func:`add_rms_norm`; overwritten, so its dtype must be the promoted one.
        weight: as for :func:`rms_norm`; with ``"llama"`` its dtype must not promote the output.
        eps: as for :func:`rms_norm`.
        weight_offset: as for :func:`rms_norm`.
        rounding: as for :func:`rms_norm`.
        statistics: as for :func:`add_rms_norm`.

    Returns:
        ``(input, residual)``, the same tensors.

    Raises:
        ValueError: as :func:`add_rms_norm`, and where a result would not keep the dtype of its tensor.
    """
    output, residual_out = add_rms_norm(
        input, residual, weight, eps, weight_offset=weight_offset, rounding=rounding, statistics=statistics
    )
    for name, target, result in (("input", input, output), ("residual", residual, residual_out)):
        if target.dtype != result.dtype:
            raise ValueError(
                f"add_rms_norm_: expected {name} of dtype {dtype_name(result.dtype)} to hold its result, "
                f"but got {dtype_name(target.dtype)}"
            )
    return input.copy_(output), residual.copy_(residual_out)


def rms_norm_gated(
    input: Tensor,
    gate: Tensor | None = None,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    activation: str = "silu",
    norm_before_gate: bool = True,
    group_size: int | None = None,
    rounding: str = "once",
) -> Tensor:
    """RMS norm with a multiplicative gate, after or before the norm, with statistics per group.

    Args:
        input: ``(..., D)``; dtypes as for :func:`rms_norm`.
        gate: ``input``'s shape and dtype, or None for no gate.
        weight: ``(D,)`` or None.
        eps: as for :func:`rms_norm`.
        activation: ``"silu"`` or ``"sigmoid"``, applied to the gate.
        norm_before_gate: True for ``norm(input) * act(gate)``, False for ``norm(input * act(gate))``.
        group_size: length of the groups of the last dimension that are normalised separately; None for ``D``.
        rounding: ``"once"`` or ``"llama"``, see the table of the module.

    Returns:
        ``input``'s shape; ``input``'s dtype, or with ``"llama"``, a weight and ``norm_before_gate=False`` the
        promoted dtype.

    Raises:
        ValueError: for a dtype, shape or option outside of the above.
    """
    size = group_length("rms_norm_gated", input.shape[-1], group_size)
    return rms_norm_gated_forward(input, gate, weight, eps, activation, norm_before_gate, size, rounding)[0]


def rms_norm_forward(
    input: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    rounding: str | int,
    *,
    rstd: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`rms_norm` with the arguments and results of the operator ``opwright::rms_norm_forward``.

    Args:
        input: as for :func:`rms_norm`.
        weight: as for :func:`rms_norm`.
        eps: as for :func:`rms_norm`.
        weight_offset: as for :func:`rms_norm`.
        rounding: name, or the operator's number (0 once, 1 llama).
        rstd: ``input.shape[:-1]``; evaluates the formula with these statistics instead of the input's own.

    Returns:
        ``(output, rstd)``; ``rstd`` has shape ``input.shape[:-1]`` and the dtype of the arithmetic.
    """
    op = "rms_norm"
    rounding = option(op, "rounding", rounding, ROUNDINGS)
    check(op, input, weight, eps, heads=True)
    x = input.to(compute_dtype(input.dtype))
    r = row_rstd(x, eps) if rstd is None else rstd
    output = _apply_weight(x * r.unsqueeze(-1), weight, weight_offset, rounding, input.dtype)
    return output.to(_output_dtype(input, weight, rounding)), r.detach()


def add_rms_norm_forward(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    rounding: str | int,
    statistics: str | int,
    *,
    rstd: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`add_rms_norm` with the arguments and results of ``opwright::add_rms_norm_forward``.

    Args:
        input: as for :func:`add_rms_norm`.
        residual: as for :func:`add_rms_norm`.
        weight: as for :func:`rms_norm`.
        eps: as for :func:`rms_norm`.
        weight_offset: as for :func:`rms_norm`.
        rounding: name, or the operator's number (0 once, 1 llama).
        statistics: name, or the operator's number (0 rounded, 1 exact).
        rstd: as for :func:`rms_norm_forward`.

    Returns:
        ``(output, residual_out, rstd)``.
    """
    op = "add_rms_norm"
    rounding = option(op, "rounding", rounding, ROUNDINGS)
    statistics = option(op, "statistics", statistics, STATISTICS)
    check(op, input, weight, eps, heads=True)
    check_like(op, "residual", residual, input)
    check_weight_dtype(op, "residual", residual, input)
    dtype = compute_dtype(input.dtype)
    total = input.to(dtype) + residual.to(dtype)
    stored = torch.promote_types(input.dtype, residual.dtype)
    v = rounded(total, stored) if statistics == "rounded" else total
    r = row_rstd(v, eps) if rstd is None else rstd
    output = _apply_weight(v * r.unsqueeze(-1), weight, weight_offset, rounding, input.dtype)
    return output.to(_output_dtype(input, weight, rounding)), total.to(stored), r.detach()


def rms_norm_gated_forward(
    input: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    eps: float,
    activation: str | int,
    norm_before_gate: bool,
    group_size: int | None,
    rounding: str | int,
    *,
    rstd: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`rms_norm_gated` with the arguments and results of ``opwright::rms_norm_gated_forward``.

    Args:
        input: as for :func:`rms_norm_gated`.
        gate: as for :func:`rms_norm_gated`.
        weight: as for :func:`rms_norm_gated`.
        eps: as for :func:`rms_norm`.
        activation: name, or the operator's number (0 silu, 1 sigmoid).
        norm_before_gate: as for :func:`rms_norm_gated`.
        group_size: as for :func:`rms_norm_gated`, or the operator's 0 for None.
        rounding: name, or the operator's number (0 once, 1 llama).
        rstd: ``input.shape[:-1] + (D // group_size,)``, as for :func:`rms_norm_forward`.

    Returns:
        ``(output, rstd)``; ``rstd`` has shape ``input.shape[:-1] + (D // group_size,)``.
    """
    op = "rms_norm_gated"
    rounding = option(op, "rounding", rounding, ROUNDINGS)
    activation = option(op, "activation", activation, ACTIVATIONS)
    check(op, input, weight, eps, heads=False)
    if gate is not None:
        check_like(op, "gate", gate, input, same_dtype=True)
    size = group_length(op, input.shape[-1], group_size or None)
    dtype = compute_dtype(input.dtype)
    v = input.to(dtype)
    act = None if gate is None else activate(gate.to(dtype), activation)
    if act is not None and not norm_before_gate:
        v = v * act
    groups = split_groups(v, size)
    r = row_rstd(groups, eps) if rstd is None else rstd
    output = _apply_weight((groups * r.unsqueeze(-1)).flatten(-2), weight, 0.0, rounding, input.dtype)
    if not norm_before_gate:
        return output.to(_output_dtype(input, weight, rounding)), r.detach()
    if act is not None:
        output = rounded(output, _output_dtype(input, weight, rounding)) if rounding == "llama" else output
        output = output * act
    return output.to(input.dtype), r.detach()


def _output_dtype(input: Tensor, weight: Tensor | None, rounding: str) -> torch.dtype:
    if weight is None or rounding == "once":
        return input.dtype
    return torch.promote_types(input.dtype, weight.dtype)


def _apply_weight(
    normed: Tensor, weight: Tensor | None, weight_offset: float, rounding: str, dtype: torch.dtype
) -> Tensor:
    """Multiply by the weight in the dtype of the arithmetic, after llama's first rounding to ``dtype``."""
    if rounding == "llama":
        normed = rounded(normed, dtype)
    if weight is None:
        return normed
    scale = weight.to(normed.dtype)
    # Adding zero would turn a weight of -0 into +0.
    return normed * (scale if weight_offset == 0 else scale + weight_offset)
