"""The golden eager implementation of rotary position embedding: plain PyTorch, the kernels' specification.

It runs for every floating dtype and on every device (``meta`` included), can be differentiated any number of
times, in the tables too, and works under ``torch.func``. It imports nothing of the compiled library.

Formula (Su et al. 2021, arXiv 2104.09864, equation 34). The ``R = rotary_dim`` columns that are rotated are
``R / 2`` pairs ``(a, b)``; a token's pair is rotated by the angle whose cosine and sine the tables hold::

    a' = a * cos_a - b * sin_a
    b' = b * cos_b + a * sin_b

A table of ``R / 2`` columns has one angle a pair: ``cos_a = cos_b``. A table of ``R`` columns has a value for
each column of the result: column ``i`` and ``i + R / 2`` where the result is paired in halves, ``2i`` and
``2i + 1`` where it is interleaved.

Operands enter the arithmetic's dtype ``C`` (float64 for a float64 ``q``, else float32) exactly, and the
result is rounded once, to ``q``'s dtype. Columns that are not rotated, and tokens behind the last of packed
sequences, pass unchanged. Gradients treat the rounding as the identity: they are the transposed rotation of
the incoming gradient, computed in ``C`` and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ._checks import (
    SECTION_LAYOUTS,
    Sizes,
    check,
    compute_dtype,
    given_sections,
    head_dim,
    option_numbers,
    token_dim,
)

__all__ = ["apply_rotary", "apply_rotary_backward", "apply_rotary_forward", "merge_sections"]


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
    """Rotate ``q`` and ``k``, with the arguments of :func:`opwright.rotary.apply_rotary`.

    Args:
        q: as there, and so for the other arguments.
        k: likewise.
        cos: likewise.
        sin: likewise.
        positions: likewise.
        seq_dim: likewise.
        interleaved: likewise.
        deinterleave: likewise.
        rotary_dim: likewise.
        trailing: likewise.
        sections: likewise.
        section_layout: likewise.
        cu_seqlens: likewise.
        offsets: likewise.
        inplace: ignored; the reference never writes its arguments.

    Returns:
        As many tensors as were given.
    """
    of_sequences = offsets if isinstance(offsets, Tensor) else None
    offset = 0 if offsets is None or isinstance(offsets, Tensor) else offsets
    columns, numbers, layout = option_numbers("apply_rotary", q, rotary_dim, sections, section_layout)
    q_out, k_out = apply_rotary_forward(
        q,
        k,
        cos,
        sin,
        positions,
        cu_seqlens,
        of_sequences,
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


def apply_rotary_forward(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    cu_seqlens: Tensor | None,
    offsets: Tensor | None,
    offset: int,
    seq_dim: int,
    interleaved: bool,
    deinterleave: bool,
    rotary_dim: int,
    trailing: bool,
    sections: Sequence[int],
    section_layout: int,
) -> tuple[Tensor, Tensor | None]:
    """``opwright::apply_rotary_forward``: the same with the operator's arguments.

    Args:
        q: as for :func:`apply_rotary`, and so for the other arguments unless it is said.
        k: likewise.
        cos: likewise.
        sin: likewise.
        positions: likewise.
        cu_seqlens: likewise.
        offsets: likewise, or None.
        offset: a number that is added to each position.
        seq_dim: likewise.
        interleaved: likewise.
        deinterleave: likewise.
        rotary_dim: likewise; -1 for all columns.
        trailing: likewise.
        sections: likewise; empty, or a single 0, for none.
        section_layout: 0 for ``"blocked"``, 1 for ``"interleaved"``.

    Returns:
        The results for ``q`` and ``k``, the latter None where ``k`` is.
    """
    sections = given_sections(sections)
    size = check(
        "apply_rotary", q, k, cos, sin, positions, cu_seqlens, offsets, offset, seq_dim, rotary_dim,
        sections, section_layout,
    )  # fmt: skip
    places = (positions, cu_seqlens, offsets, offset)
    written = interleaved and not deinterleave
    angles = _angles("apply_rotary", q, cos, sin, places, size, written, sections, section_layout)
    pairing = (interleaved or deinterleave, written)

    def rotated(x: Tensor) -> Tensor:
        return _rotate(x, angles, size, seq_dim, pairing, trailing, inverse=False)

    return rotated(q), None if k is None else rotated(k)


def apply_rotary_backward(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    cu_seqlens: Tensor | None,
    offsets: Tensor | None,
    offset: int,
    seq_dim: int,
    interleaved: bool,
    deinterleave: bool,
    rotary_dim: int,
    trailing: bool,
    sections: Sequence[int],
    section_layout: int,
) -> tuple[Tensor, Tensor | None]:
    """``opwright::apply_rotary_backward``: the transposed map, for gradients of the forward's results.

    Args:
        q: a gradient, of the shape of the forward's ``q``; the other arguments are the forward's.
        k: a gradient of the shape of ``k``, or None.
        cos: likewise.
        sin: likewise.
        positions: likewise.
        cu_seqlens: likewise.
        offsets: likewise, or None.
        offset: a number that is added to each position.
        seq_dim: likewise.
        interleaved: likewise.
        deinterleave: likewise.
        rotary_dim: likewise; -1 for all columns.
        trailing: likewise.
        sections: likewise; empty, or a single 0, for none.
        section_layout: 0 for ``"blocked"``, 1 for ``"interleaved"``.

    Returns:
        The results for ``q`` and ``k``, the latter None where ``k`` is.
    """
    op = "apply_rotary_backward"
    sections = given_sections(sections)
    size = check(
        op, q, k, cos, sin, positions, cu_seqlens, offsets, offset, seq_dim, rotary_dim, sections,
        section_layout,
    )  # fmt: skip
    places = (positions, cu_seqlens, offsets, offset)
    written = interleaved and not deinterleave
    angles = _angles(op, q, cos, sin, places, size, written, sections, section_layout)
    pairing = (written, interleaved or deinterleave)

    def rotated(x: Tensor) -> Tensor:
        return _rotate(x, angles, size, seq_dim, pairing, trailing, inverse=True)

    return rotated(q), None if k is None else rotated(k)


def merge_sections(table: Tensor, sections: Sequence[int], section_layout: str = "blocked") -> Tensor:
    """One table out of three, each pair's column from the section it belongs to.

    Args:
        table: ``(3, ..., R / 2)`` or ``(3, ..., R)``, the latter in halves.
        sections: pairs of each section, adding up to ``R / 2``.
        section_layout: ``"blocked"`` for the first ``sections[0]`` pairs from section 0, then 1, then 2;
            ``"interleaved"`` for 0, 1, 2, 0, 1, 2, ... as long as a section has pairs left, then 0.

    Returns:
        The table without its first dimension.

    Raises:
        ValueError: for another layout.
    """
    if section_layout not in SECTION_LAYOUTS:
        raise ValueError(
            f"merge_sections: expected section_layout to be one of {', '.join(SECTION_LAYOUTS)}, "
            f"but got {section_layout}"
        )
    pairs = sum(sections)
    if pairs == 0:
        return table[0]
    doubled = table.shape[-1] != pairs
    parts = table.split(pairs, -1) if doubled else (table,)
    axis = _section_of_pair(sections, section_layout)
    merged = [torch.stack([part[s, ..., i] for i, s in enumerate(axis)], -1) for part in parts]
    return torch.cat(merged, -1)


def _section_of_pair(sections: Sequence[int], section_layout: str) -> list[int]:
    if section_layout == "blocked":
        return [section for section, pairs in enumerate(sections) for _ in range(pairs)]
    return [i % 3 if i < 3 * sections[i % 3] else 0 for i in range(sum(sections))]


# ---- angles --------------------------------------------------------------------------------------

Places = tuple[Tensor | None, Tensor | None, Tensor | None, int]
# cos and sin of each pair's columns a and b, (batch or 1, tokens, R / 2); and (tokens,) of tokens that are
# not rotated, or None.
Angles = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


def _angles(
    op: str,
    q: Tensor,
    cos: Tensor,
    sin: Tensor,
    places: Places,
    size: Sizes,
    interleaved_table: bool,
    sections: Sequence[int],
    section_layout: int,
) -> Angles:
    positions, padding = _positions(op, places, size, q.device, cos.shape[-2])
    halves = []
    for table in (cos.to(compute_dtype(q.dtype)), sin.to(compute_dtype(q.dtype))):
        rows = _rows(table, positions, size, bool(sections))
        if rows.shape[-1] == size.rotary // 2:
            pair = (rows, rows)
        elif interleaved_table:
            pair = (rows[..., 0::2], rows[..., 1::2])
        else:
            pair = (rows[..., : size.rotary // 2], rows[..., size.rotary // 2 :])
        if sections:
            layout = SECTION_LAYOUTS[section_layout]
            pair = (
                merge_sections(pair[0], sections, layout),
                merge_sections(pair[1], sections, layout),
            )
        halves.append(pair)
    return halves[0][0], halves[0][1], halves[1][0], halves[1][1], padding


def _positions(
    op: str, places: Places, size: Sizes, device: torch.device, rows: int
) -> tuple[Tensor | None, Tensor | None]:
    """``(positions, padding)``: rows of the table, of any of the shapes; None for 0, 1, 2, ..."""
    positions, cu_seqlens, offsets, offset = places
    if positions is not None:
        _check_values(op, positions, rows)
        return positions.long(), None
    if cu_seqlens is None and offsets is None and isinstance(offset, int) and offset == 0:
        return None, None
    counted = torch.arange(size.tokens, device=device)
    if cu_seqlens is None:
        found = counted + offset if offsets is None else counted + (offsets.long()[:, None] + offset)
        _check_values(op, found, rows)
        return found, None
    bounds = cu_seqlens.long()
    _check_sequences(op, bounds, size.tokens)
    # The sequence that a token is in; one past the last for padding.
    sequence = torch.searchsorted(bounds, counted, right=True) - 1
    padding = sequence >= bounds.numel() - 1
    sequence = sequence.clamp(max=max(bounds.numel() - 2, 0))
    found = counted - bounds[sequence] + offset
    if offsets is not None and offsets.numel() > 0:
        found = found + offsets.long()[sequence]
    _check_values(op, torch.where(padding, _NO_ROW, found), rows)
    return torch.where(padding, 0, found), padding


# Stands for the position of a token that needs no row of the table.
_NO_ROW = torch.iinfo(torch.int64).min


def _values(tensor: Tensor) -> Tensor | None:
    """A tensor, or the one inside of a transform's wrapper, if its values can be looked at here and now."""
    if torch.compiler.is_compiling():
        return None
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor if type(tensor) is Tensor and tensor.device.type == "cpu" else None


def _check_values(op: str, positions: Tensor, rows: int) -> None:
    values = _values(positions)
    if values is None:
        return
    with torch._C._DisableFuncTorch():
        wrong = values[((values < 0) | (values >= rows)) & (values != _NO_ROW)].tolist()
    if wrong:
        raise IndexError(
            f"{op}: expected positions from 0 to {rows - 1}, the rows of cos, but got {wrong[0]}"
        )


def _check_sequences(op: str, bounds: Tensor, tokens: int) -> None:
    inside = _values(bounds)
    if inside is None or inside.dim() != 1:  # a batch of vmap's, whose elements lie in any dimension
        return
    with torch._C._DisableFuncTorch():
        values = inside.tolist()
    if values[0] != 0:
        raise ValueError(f"{op}: expected cu_seqlens to start with 0, but got {values[0]}")
    for before, after in pairwise(values):
        if after < before or after > tokens:
            raise ValueError(
                f"{op}: expected cu_seqlens to ascend to at most {tokens}, but got {after} after {before}"
            )


def _rows(table: Tensor, positions: Tensor | None, size: Sizes, sections: bool) -> Tensor:
    """``(batch or 1, tokens, width)`` of the table, or ``(3, batch or 1, tokens, width)`` with sections."""
    if positions is None:
        rows = table[..., : size.tokens, :]
        return rows if sections or rows.dim() == 3 else rows.unsqueeze(0)
    if table.dim() == 2:
        rows = table[positions]
        return rows.unsqueeze(0) if positions.dim() == 1 else rows
    if positions.dim() == 1:
        return table[..., positions, :]
    if positions.shape[0] == 1:
        return table[..., positions[0], :]
    if table.shape[-3] == 1:
        return table[..., 0, :, :][..., positions, :]
    batch = torch.arange(size.batch, device=table.device)[:, None]
    return table[..., batch, positions, :]


# ---- rotation ------------------------------------------------------------------------------------


def _split(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    half = x.shape[-1] // 2
    return (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])


def _join(a: Tensor, b: Tensor, interleaved: bool) -> Tensor:
    if not interleaved:
        return torch.cat((a, b), -1)
    return torch.stack((a, b), -1).reshape(*a.shape[:-1], 2 * a.shape[-1])


def _rotate(
    x: Tensor,
    angles: Angles,
    size: Sizes,
    seq_dim: int,
    pairing: tuple[bool, bool],
    trailing: bool,
    inverse: bool,
) -> Tensor:
    """Rotate one tensor; ``pairing`` is (interleaved where it is read, interleaved where it is written)."""
    padding = angles[4]
    source = x
    if padding is not None:
        shape = [1] * x.dim()
        shape[token_dim(x, seq_dim)] = size.tokens
        padding = padding.view(shape)
        # Whatever padding holds, such as NaN, must not reach the gradients of the tables.
        source = torch.where(padding, torch.zeros_like(x), x)
    first = size.columns - size.rotary if trailing else 0
    before, middle, after = source.split((first, size.rotary, size.columns - size.rotary - first), -1)
    heads = head_dim(x, seq_dim) - x.dim()
    # From (batch or 1, tokens, R / 2) to the layout of x, with one head.
    cos_a, cos_b, sin_a, sin_b = (
        (angle if x.dim() == 4 else angle.squeeze(0)).unsqueeze(heads) for angle in angles[:4]
    )
    a, b = _split(middle.to(cos_a.dtype), pairing[0])
    if inverse:
        a, b = a * cos_a + b * sin_b, b * cos_b - a * sin_a
    else:
        a, b = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    rotated = torch.cat((before, _join(a, b, pairing[1]).to(x.dtype), after), -1)
    return rotated if padding is None else torch.where(padding, x, rotated)
