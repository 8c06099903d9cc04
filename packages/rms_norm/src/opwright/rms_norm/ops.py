"""The public functions: names of options become numbers of the schemas, and a call goes the cheapest way.

The formulas, with every rounding, are in :mod:`opwright.rms_norm.reference`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import registration as _registration

__all__ = ["add_rms_norm", "add_rms_norm_", "kernel_level", "rms_norm", "rms_norm_gated"]

_ROUNDING = {"once": 0, "llama": 1}
_STATISTICS = {"rounded": 0, "exact": 1}
_ACTIVATION = {"silu": 0, "sigmoid": 1}
# Plain functions, bound once: a short call is mostly the way to the kernel.
_rms_norm_forward = _registration.rms_norm_forward.call
_add_rms_norm_forward = _registration.add_rms_norm_forward.call
_rms_norm_gated_forward = _registration.rms_norm_gated_forward.call
_LEVELS = ("default", "avx2", "avx512", "neon")


def rms_norm(
    input: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
) -> Tensor:
    """Normalise the last dimension of ``input`` by its root mean square.

    ``y = input * rsqrt(mean(input ** 2) + eps) * (weight + weight_offset)``, in fp32 (fp64 for float64
    inputs); Zhang and Sennrich 2019, arXiv 1910.07467, equation 4. Differentiable in ``input`` and
    ``weight``.

    Args:
        input: ``(..., D)``, or ``(..., H, D)`` with a per-head weight; bfloat16, float16, float32 or
            float64, any strides.
        weight: ``(D,)`` or ``(H, D)``, of any of these dtypes (float64 only where ``input`` is), or None for
            a scale of 1.
        eps: added to the mean square; finite and not negative.
        weight_offset: added to the weight in fp32 (1.0 for Gemma).
        rounding: ``"once"`` multiplies in fp32 and rounds once, as ``torch.nn.functional.rms_norm`` does;
            ``"llama"`` rounds the normalised input to its dtype and multiplies by the weight with torch's
            promotion, as transformers' ``LlamaRMSNorm`` does.

    Returns:
        A contiguous tensor of ``input``'s shape; of its dtype, or with ``"llama"`` of the dtype that
        ``input`` and ``weight`` promote to.

    Raises:
        ValueError: for a dtype, shape or option outside of the above; nothing is computed.
    """
    number = _ROUNDING.get(rounding)
    if number is None:
        number = _option("rms_norm", "rounding", rounding, _ROUNDING)
    result: Tensor = _rms_norm_forward(input, weight, eps, weight_offset, number)
    return result


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
    """Add ``residual`` to ``input`` and normalise the sum, in one pass over memory.

    Args:
        input: as for :func:`rms_norm`.
        residual: ``input``'s shape, any strides; may have another dtype (a float32 residual stream), but
            float64 only where ``input`` is float64.
        weight: as for :func:`rms_norm`.
        eps: as for :func:`rms_norm`.
        weight_offset: as for :func:`rms_norm`.
        rounding: as for :func:`rms_norm`.
        statistics: ``"rounded"`` normalises the sum as it is stored, ``"exact"`` before it is rounded.

    Returns:
        ``(output, residual_out)``: ``output`` has the dtype that :func:`rms_norm` gives for ``input`` and
        ``weight``; ``residual_out = input + residual`` has the dtype that these two promote to. Both are
        differentiable.

    Raises:
        ValueError: for a dtype, shape or option outside of the above; nothing is computed.
    """
    output, residual_out = _add_rms_norm_forward(
        input,
        residual,
        weight,
        eps,
        weight_offset,
        _option("add_rms_norm", "rounding", rounding, _ROUNDING),
        _option("add_rms_norm", "statistics", statistics, _STATISTICS),
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

    Where a gradient is needed the results are computed apart and copied into place: right, but no memory is
    saved.

    Args:
        input: as for :func:`add_rms_norm`, any strides whose elements lie apart; overwritten.
        residual: likewise, in memory of its own, of the dtype that holds the sum; overwritten.
        weight: as for :func:`rms_norm`; with ``"llama"`` its dtype must not promote the output.
        eps: as for :func:`rms_norm`.
        weight_offset: as for :func:`rms_norm`.
        rounding: as for :func:`rms_norm`.
        statistics: as for :func:`add_rms_norm`.

    Returns:
        ``(input, residual)``, the same tensors.

    Raises:
        ValueError: as :func:`add_rms_norm`, and for tensors that overlap or cannot hold their result;
            nothing is written.
        RuntimeError: for a leaf that requires grad.
    """
    _registration.add_rms_norm_in_place(
        input,
        residual,
        weight,
        eps,
        weight_offset,
        _option("add_rms_norm_", "rounding", rounding, _ROUNDING),
        _option("add_rms_norm_", "statistics", statistics, _STATISTICS),
    )
    return input, residual


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
    """RMS norm with a multiplicative gate, before or after the norm, and statistics per group of columns.

    Args:
        input: ``(..., D)``; dtypes and strides as for :func:`rms_norm`.
        gate: ``input``'s shape and dtype, any strides, or None for no gate.
        weight: ``(D,)`` or None; dtypes as for :func:`rms_norm`.
        eps: as for :func:`rms_norm`.
        activation: ``"silu"`` or ``"sigmoid"``, applied to the gate in fp32.
        norm_before_gate: True for ``norm(input) * act(gate)`` (Qwen3-Next, Kimi Linear), False for
            ``norm(input * act(gate))`` (Mamba-2 and its relatives).
        group_size: length of the groups of the last dimension that are normalised separately; None for all
            of it.
        rounding: ``"once"`` rounds the result only; ``"llama"`` rounds the normalised input, its product
            with the weight, and the result.

    Returns:
        A contiguous tensor of ``input``'s shape and dtype; with ``"llama"`` and ``norm_before_gate=False``
        of the dtype that ``input`` and ``weight`` promote to.

    Raises:
        ValueError: for a dtype, shape or option outside of the above; nothing is computed.
    """
    if group_size is not None and group_size <= 0 and input.dim() > 0:
        raise ValueError(
            f"rms_norm_gated: expected group_size to be positive and to divide {input.shape[-1]}, "
            f"but got {group_size}"
        )
    result: Tensor = _rms_norm_gated_forward(
        input,
        gate,
        weight,
        eps,
        _option("rms_norm_gated", "activation", activation, _ACTIVATION),
        norm_before_gate,
        group_size or 0,
        _option("rms_norm_gated", "rounding", rounding, _ROUNDING),
    )
    return result


def kernel_level() -> str:
    """Tell which instruction-set level the CPU kernels of this process run at.

    Returns:
        The widest of ``"default"``, ``"avx2"`` and ``"avx512"`` that the processor has (``"neon"`` on ARM),
        or the one that the environment variable ``OPWRIGHT_CPU_CAPABILITY`` names, if that is not wider.
        Fixed at the first call.
    """
    return _LEVELS[torch.ops.opwright.rms_norm_kernel_level()]


def _option(op: str, name: str, value: str, numbers: dict[str, int]) -> int:
    if value in numbers:
        return numbers[value]
    raise ValueError(f"{op}: expected {name} to be one of {', '.join(numbers)}, but got {value}")
