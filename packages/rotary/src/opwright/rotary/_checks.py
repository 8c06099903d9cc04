"""Argument checks that the reference and the fakes share, with the messages of the compiled operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SECTION_LAYOUTS = ("blocked", "interleaved")

_NO_SECTIONS = (0,)
_LOW = (torch.bfloat16, torch.float16, torch.float32)
_INDEX = (torch.int32, torch.int64)


class Sizes(NamedTuple):
    """Sizes of q as ``(batch, tokens, heads, columns)``, and of the rotated part of the columns."""

    batch: int
    tokens: int
    columns: int
    rotary: int


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of the arithmetic: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` as ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def require(condition: bool, op: str, message: Callable[[], str]) -> None:
    """Raise ValueError unless ``condition``; sizes unknown while tracing are compared at run time."""
    torch._check_value(condition, lambda: f"{op}: expected {message()}")


def given_sections(sections: Sequence[int]) -> Sequence[int]:
    """The sections of an operator's argument, in which a single 0 stands for none."""
    return () if len(sections) == 1 and sections[0] == 0 else sections


def option_numbers(
    op: str, q: Tensor, rotary_dim: int | None, sections: Sequence[int] | None, section_layout: str
) -> tuple[int, Sequence[int], int]:
    """Options of the public function as the numbers of the schema.

    Args:
        op: the operator's name, which starts a message.
        q: the tensor that is rotated.
        rotary_dim: number of columns, or None for all.
        sections: three numbers of pairs, or None.
        section_layout: one of ``SECTION_LAYOUTS``.

    Returns:
        ``rotary_dim`` with -1 for all, ``sections`` with a single 0 for none (an exported program has no way
        to store an empty list), and the index of ``section_layout``.

    Raises:
        ValueError: for what the schema's numbers cannot tell from another option.
    """
    if section_layout not in SECTION_LAYOUTS:
        names = ", ".join(SECTION_LAYOUTS)
        raise ValueError(f"{op}: expected section_layout to be one of {names}, but got {section_layout}")
    columns = q.shape[-1] if q.dim() else 0
    if rotary_dim is not None and rotary_dim < 0:
        raise ValueError(
            f"{op}: expected rotary_dim to be even and from 0 to {columns}, but got {rotary_dim}"
        )
    if sections is not None and len(sections) != 3:
        pairs = (columns if rotary_dim is None else rotary_dim) // 2
        raise ValueError(
            f"{op}: expected sections to be 3 numbers of pairs that add up to {pairs}, "
            f"but got {tuple(sections)}"
        )
    return (
        -1 if rotary_dim is None else rotary_dim,
        _NO_SECTIONS if sections is None else sections,
        SECTION_LAYOUTS.index(section_layout),
    )


def token_dim(q: Tensor, seq_dim: int) -> int:
    """The dimension of tokens, which an input without a batch dimension has one earlier."""
    return q.dim() - 4 + seq_dim


def head_dim(q: Tensor, seq_dim: int) -> int:
    """The dimension of heads."""
    return q.dim() - 1 - seq_dim


def check(
    op: str,
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    cu_seqlens: Tensor | None,
    offsets: Tensor | None,
    offset: int,
    seq_dim: int,
    rotary_dim: int,
    sections: Sequence[int],
    section_layout: int,
) -> Sizes:
    """Check everything but values of tensors.

    Args:
        op: the operator's name, which starts the message.
        q: ``(batch, tokens, heads, columns)`` in the order of ``seq_dim``, or without the batch.
        k: the same but for the heads, or None.
        cos: ``(rows, width)`` and the other shapes of the table.
        sin: like ``cos``.
        positions: ``(tokens,)``, ``(batch, tokens)``, or ``(3, batch, tokens)``; or None.
        cu_seqlens: ``(sequences + 1,)`` or None.
        offsets: ``(batch,)`` or ``(sequences,)`` or None.
        offset: a number added to each position.
        seq_dim: 1 or 2.
        rotary_dim: columns to rotate, -1 for all.
        sections: three numbers of pairs, or none.
        section_layout: 0 or 1.

    Returns:
        The sizes.

    Raises:
        ValueError: for the first argument that is not as described.
        IndexError: where rows that follow one another reach beyond the table.
    """
    sections = given_sections(sections)
    _check_q(op, q, seq_dim)
    tokens, columns = q.shape[token_dim(q, seq_dim)], q.shape[-1]
    batch = q.shape[0] if q.dim() == 4 else 1
    if k is not None:
        _check_k(op, k, q, seq_dim)
    rotary = columns if rotary_dim == -1 else rotary_dim
    require(
        (rotary >= 0) & (rotary <= columns) & (rotary % 2 == 0),
        op,
        lambda: f"rotary_dim to be even and from 0 to {columns}, but got {rotary}",
    )
    size = Sizes(batch, tokens, columns, rotary)
    _check_sections(op, size, sections, section_layout)
    _check_tables(op, cos, sin, q)
    of_sections = _check_positions(op, size, positions, bool(sections))
    if positions is not None and (cu_seqlens is not None or offsets is not None or offset != 0):
        raise ValueError(f"{op}: expected positions without cu_seqlens and offsets, but got both")
    _check_sequences(op, size, cu_seqlens, offsets)
    _check_table_shape(op, size, cos, bool(sections), of_sections)
    if positions is None and cu_seqlens is None and offsets is None:
        _check_reach(op, tokens, offset, cos.shape[-2])
    others = {"k": k, "cos": cos, "sin": sin, "positions": positions}
    for name, tensor in (*others.items(), ("cu_seqlens", cu_seqlens), ("offsets", offsets)):
        if tensor is not None and tensor.device != q.device:
            raise ValueError(f"{op}: expected {name} on {q.device} like q, but got {tensor.device}")
    return size


def _check_q(op: str, q: Tensor, seq_dim: int) -> None:
    if q.dtype not in (*_LOW, torch.float64):
        raise ValueError(
            f"{op}: expected q of dtype bfloat16, float16, float32 or float64, but got {dtype_name(q.dtype)}"
        )
    if q.dim() not in (3, 4):
        raise ValueError(f"{op}: expected q with 3 or 4 dimensions, but got {q.dim()}")
    if seq_dim not in (1, 2):
        raise ValueError(f"{op}: expected seq_dim to be 1 or 2, but got {seq_dim}")


def _check_k(op: str, k: Tensor, q: Tensor, seq_dim: int) -> None:
    if k.dtype != q.dtype:
        raise ValueError(
            f"{op}: expected k of dtype {dtype_name(q.dtype)} like q, but got {dtype_name(k.dtype)}"
        )
    fits: bool = k.dim() == q.dim()
    if fits:
        for dim in range(q.dim()):
            if dim != head_dim(q, seq_dim):
                fits = fits & (k.shape[dim] == q.shape[dim])
    require(fits, op, lambda: f"k of q's shape {tuple(q.shape)} but for the heads, but got {tuple(k.shape)}")


def _check_sections(op: str, size: Sizes, sections: Sequence[int], section_layout: int) -> None:
    if section_layout not in (0, 1):
        raise ValueError(
            f"{op}: expected section_layout to be one of {', '.join(SECTION_LAYOUTS)}, "
            f"but got {section_layout}"
        )
    if sections:
        good = len(sections) == 3 and min(sections) >= 0
        require(
            good & (sum(sections) == size.rotary // 2),
            op,
            lambda: (
                f"sections to be 3 numbers of pairs that add up to {size.rotary // 2}, "
                f"but got {tuple(sections)}"
            ),
        )


def _check_tables(op: str, cos: Tensor, sin: Tensor, q: Tensor) -> None:
    double = q.dtype == torch.float64
    if cos.dtype not in ((*_LOW, torch.float64) if double else _LOW):
        allowed = "bfloat16, float16, float32 or float64" if double else "bfloat16, float16 or float32"
        raise ValueError(
            f"{op}: expected cos of dtype {allowed} with {dtype_name(q.dtype)} q, "
            f"but got {dtype_name(cos.dtype)}"
        )
    if sin.dtype != cos.dtype:
        raise ValueError(
            f"{op}: expected sin of dtype {dtype_name(cos.dtype)} like cos, but got {dtype_name(sin.dtype)}"
        )
    fits: bool = sin.dim() == cos.dim()
    if fits:
        for own, other in zip(sin.shape, cos.shape, strict=True):
            fits = fits & (own == other)
    require(fits, op, lambda: f"sin of cos's shape {tuple(cos.shape)}, but got {tuple(sin.shape)}")


def _check_index(op: str, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _INDEX:
        raise ValueError(f"{op}: expected {name} of dtype int32 or int64, but got {dtype_name(tensor.dtype)}")


def _check_positions(op: str, size: Sizes, positions: Tensor | None, sections: bool) -> bool:
    """Whether each section has positions of its own."""
    if positions is None:
        return False
    _check_index(op, "positions", positions)
    of_sections = sections and positions.dim() == 3
    good: bool = positions.dim() in (1, 2) or of_sections
    if good:
        good = positions.shape[-1] == size.tokens
        if positions.dim() > 1:
            good = good & ((positions.shape[-2] == size.batch) | (positions.shape[-2] == 1))
        if of_sections:
            good = good & (positions.shape[0] == 3)

    def message() -> str:
        with_batch = f"{size.batch} or 1, {size.tokens})"
        more = f" or (3, {with_batch}" if sections else ""
        shapes = f"positions of shape ({size.tokens},) or ({with_batch}{more}"
        return f"{shapes}, but got {tuple(positions.shape)}"

    require(good, op, message)
    return of_sections


def _check_sequences(op: str, size: Sizes, cu_seqlens: Tensor | None, offsets: Tensor | None) -> None:
    count = size.batch
    if cu_seqlens is not None:
        _check_index(op, "cu_seqlens", cu_seqlens)
        good: bool = cu_seqlens.dim() == 1
        require(
            good and cu_seqlens.shape[0] > 0,
            op,
            lambda: f"cu_seqlens of shape (sequences + 1,), but got {tuple(cu_seqlens.shape)}",
        )
        require(size.batch == 1, op, lambda: f"a batch of 1 with cu_seqlens, but got {size.batch}")
        count = cu_seqlens.shape[0] - 1
    if offsets is not None:
        _check_index(op, "offsets", offsets)
        fits: bool = offsets.dim() == 1
        require(
            fits and offsets.shape[0] == count,
            op,
            lambda: f"offsets of shape ({count},), but got {tuple(offsets.shape)}",
        )


def _check_table_shape(op: str, size: Sizes, cos: Tensor, sections: bool, of_sections: bool) -> None:
    plain = cos.dim() == 2 and (of_sections or not sections)
    batched = cos.dim() == 3 and not sections
    split = cos.dim() == 4 and sections and not of_sections
    good: bool = plain or batched or split
    if good:
        width = cos.shape[-1]
        good = (width == size.rotary) | (2 * width == size.rotary)
        if not plain:
            good = good & ((cos.shape[-3] == size.batch) | (cos.shape[-3] == 1))
        if split:
            good = good & (cos.shape[0] == 3)

    def message() -> str:
        widths = f"{size.rotary // 2} or {size.rotary})"
        with_batch = f"{size.batch} or 1, rows, {widths}"
        if of_sections:
            shapes = f"(rows, {widths}"
        else:
            shapes = f"(3, {with_batch}" if sections else f"(rows, {widths}, or ({with_batch}"
        return f"cos of shape {shapes}, but got {tuple(cos.shape)}"

    require(good, op, message)


def _check_reach(op: str, tokens: int, offset: int, rows: int) -> None:
    torch._check_index(
        (tokens == 0) | ((offset >= 0) & (offset + tokens <= rows)),
        lambda: (
            f"{op}: expected positions from 0 to {rows - 1}, the rows of cos, "
            f"but got {offset if offset < 0 or offset >= rows else offset + tokens - 1}"
        ),
    )
