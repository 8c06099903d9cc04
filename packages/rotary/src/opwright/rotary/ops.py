"""The public function: names of options become numbers of the schema, and a call goes the cheapest way.

The formula, with every rounding, is in :mod:`opwright.rotary.reference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from . import registration as _registration
from ._checks import option_numbers

__all__ = ["apply_rotary", "kernel_level"]

_LEVELS = ("default", "avx2", "avx512", "neon")


@overload
def apply_rotary(
    q: Tensor,
    k: None = None,
    *,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    seq_dim: int = 1,
    interleaved: bool = False,
    deinterleave: bool = False,
    rotary_dim: int | None = None,
    trailing: bool = False,
    sections: Sequence[int] | None = None,
    section_layout: str = "blocked",
    cu_seqlens: Tensor | None = None,
    offsets: Tensor | int | None = None,
    inplace: bool = False,
) -> Tensor: ...


@overload
def apply_rotary(
    q: Tensor,
    k: Tensor,
    *,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    seq_dim: int = 1,
    interleaved: bool = False,
    deinterleave: bool = False,
    rotary_dim: int | None = None,
    trailing: bool = False,
    sections: Sequence[int] | None = None,
    section_layout: str = "blocked",
    cu_seqlens: Tensor | None = None,
    offsets: Tensor | int | None = None,
    inplace: bool = False,
) -> tuple[Tensor, Tensor]: ...


def apply_rotary(
    q: Tensor,
    k: Tensor | None = None,
    *,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    seq_dim: int = 1,
    interleaved: bool = False,
    deinterleave: bool = False,
    rotary_dim: int | None = None,
    trailing: bool = False,
    sections: Sequence[int] | None = None,
    section_layout: str = "blocked",
    cu_seqlens: Tensor | None = None,
    offsets: Tensor | int | None = None,
    inplace: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Rotate the pairs of columns of ``q``, and of ``k``, by the angles of their positions.

    ``a' = a * cos - b * sin; b' = b * cos + a * sin`` for each pair ``(a, b)``, in fp32 (fp64 for float64
    tensors), rounded once; Su et al. 2021, arXiv 2104.09864, equation 34. The ``j``-th token of a sequence
    has position ``j`` unless ``positions``, ``cu_seqlens`` or ``offsets`` say otherwise. Differentiable in
    ``q`` and ``k`` by the kernel (the inverse rotation), and in ``cos`` and ``sin`` by the reference.

    Args:
        q: ``(B, S, H, D)``, or ``(B, H, S, D)`` with ``seq_dim=2``; without ``B`` for one sequence, or for
            packed ones; bfloat16, float16, float32 or float64, any strides, such as a view of a packed
            projection.
        k: the same with any number of heads, of ``q``'s dtype; or None.
        cos: the table of cosines. ``(L, W)`` with a row for each position, or ``(B, L, W)`` with tables of
            each batch element (or one, for ``B = 1``), where ``W`` is ``rotary_dim / 2`` for a value a pair
            or ``rotary_dim`` for a value a column of the result. With ``sections`` it is ``(3, B, L, W)``.
            bfloat16, float16 or float32, or float64 where ``q`` is; any strides.
        sin: the table of sines, of ``cos``'s shape and dtype.
        positions: rows of the table, ``(S,)`` or ``(B, S)``, int32 or int64; with ``sections`` and tables
            ``(L, W)`` also ``(3, B, S)``, a row for each section. Not with ``cu_seqlens`` or ``offsets``.
        seq_dim: the dimension of tokens of a tensor with a batch dimension, 1 or 2; the heads are in the
            other.
        interleaved: pairs are columns ``(2i, 2i + 1)`` (GPT-J); else ``(i, i + rotary_dim / 2)`` (NeoX).
        deinterleave: pairs are read as interleaved ones and written as halves (DeepSeek-V3).
        rotary_dim: number of columns that are rotated, even; None for all. The others are copied.
        trailing: the last ``rotary_dim`` columns are rotated instead of the first.
        sections: numbers of pairs whose angles come from the tables of the first, second and third section
            (time, height, width), adding up to ``rotary_dim / 2``.
        section_layout: ``"blocked"`` (Qwen2-VL) or ``"interleaved"`` (Qwen3-VL, Qwen3.5) sections.
        cu_seqlens: ``(N + 1,)`` ascending from 0, int32 or int64: the tokens of ``N`` sequences are packed
            into one batch element; tokens behind the last one are copied.
        offsets: position of the first token, for decoding: a number, or ``(B,)`` int32 or int64 (``(N,)``
            with ``cu_seqlens``).
        inplace: write the results into ``q`` and ``k``, whose elements must lie apart. Where a gradient is
            needed they are computed apart and copied: right, but no memory is saved.

    Returns:
        As many tensors as were given: contiguous ones of their shapes and dtype, or with ``inplace`` the
        tensors themselves.

    Raises:
        ValueError: for a dtype, shape or option outside of the above, and for tensors that overlap in place;
            nothing is computed.
        IndexError: for a position without a row in the table, where positions are on the CPU; nothing is
            written.
        RuntimeError: in place, for a leaf that requires grad.
    """
    offset, starts = 0, None
    if offsets is not None:
        if isinstance(offsets, Tensor):
            starts = offsets
        else:
            offset = offsets
    columns, numbers, layout = option_numbers("apply_rotary", q, rotary_dim, sections, section_layout)
    call = _registration.apply_rotary_in_place if inplace else _registration.apply_rotary_forward
    q_out, k_out = call(
        q,
        k,
        cos,
        sin,
        positions,
        cu_seqlens,
        starts,
        offset,
        seq_dim,
        interleaved,
        deinterleave,
        columns,
        trailing,
        numbers,
        layout,
    )
    return q_out if k_out is None else (q_out, k_out)


def kernel_level() -> str:
    """Tell which instruction-set level the CPU kernels of this process run at.

    Returns:
        The widest of ``"default"``, ``"avx2"`` and ``"avx512"`` that the processor has (``"neon"`` on ARM),
        or the one that the environment variable ``OPWRIGHT_CPU_CAPABILITY`` names, if that is not wider.
        Fixed at the first call.
    """
    return _LEVELS[torch.ops.opwright.rotary_kernel_level()]
