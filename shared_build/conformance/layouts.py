"""The layout zoo: the same values under other strides, offsets and neighbours.

Each layout takes a contiguous tensor and returns a view of a fresh buffer, or None where the rank does not
allow it. Gaps hold NaN (or the largest integer), so a read outside the view shows. `expanded` repeats the
first item of a dimension, so its values differ from the input's: compare with a contiguous clone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Layout = Callable[[torch.Tensor], "torch.Tensor | None"]


def _buffer(like: torch.Tensor, numel: int) -> torch.Tensor:
    poison = float("nan") if like.is_floating_point() else torch.iinfo(like.dtype).max
    return torch.full((max(numel, 1),), poison, dtype=like.dtype, device=like.device)


def _place(source: torch.Tensor, strides: tuple[int, ...], offset: int, slack: int = 7) -> torch.Tensor:
    extent = 1 + sum((n - 1) * s for n, s in zip(source.shape, strides, strict=True)) if source.numel() else 0
    view = _buffer(source, offset + extent + slack).as_strided(tuple(source.shape), strides, offset)
    view.copy_(source)
    return view


def _dense(shape: tuple[int, ...], order: tuple[int, ...], first: int = 1) -> tuple[int, ...]:
    """Strides of a dense buffer whose dimensions run from the fastest (order[0]) to the slowest."""
    strides, step = [0] * len(shape), first
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def transposed(t: torch.Tensor) -> torch.Tensor | None:
    """The last two dimensions swapped in memory."""
    if t.dim() < 2:
        return None
    order = (t.dim() - 2, t.dim() - 1, *reversed(range(t.dim() - 2)))
    return _place(t, _dense(tuple(t.shape), order), 0)


def reversed_dims(t: torch.Tensor) -> torch.Tensor | None:
    """All dimensions in reversed memory order."""
    return _place(t, _dense(tuple(t.shape), tuple(range(t.dim()))), 0) if t.dim() >= 2 else None


def pitched(t: torch.Tensor) -> torch.Tensor | None:
    """Rows with a gap between them, inside a wider buffer (a slice of a fused projection)."""
    if t.dim() < 2:
        return None
    wide = (*t.shape[:-1], t.shape[-1] + 5)
    return _place(t, _dense(wide, tuple(reversed(range(t.dim())))), 2)


def step2(t: torch.Tensor) -> torch.Tensor | None:
    """Every second element of the last dimension."""
    return _place(t, _dense(tuple(t.shape), tuple(reversed(range(t.dim()))), 2), 0) if t.dim() else None


def misaligned(t: torch.Tensor) -> torch.Tensor | None:
    """Contiguous, one element past the start of the buffer."""
    return _place(t, _dense(tuple(t.shape), tuple(reversed(range(t.dim())))), 1)


def expanded(t: torch.Tensor) -> torch.Tensor | None:
    """Stride 0 in the first dimension."""
    if t.dim() == 0 or t.shape[0] == 0:
        return None
    return t[:1].clone().expand(t.shape)


def expanded_all(t: torch.Tensor) -> torch.Tensor | None:
    """Stride 0 in every dimension, as the gradient of sum() has."""
    if t.dim() == 0 or t.numel() == 0:
        return None
    return t.reshape(-1)[:1].clone().reshape((1,) * t.dim()).expand(t.shape)


def expanded_last(t: torch.Tensor) -> torch.Tensor | None:
    """Stride 0 in the last dimension."""
    if t.dim() == 0 or t.numel() == 0:
        return None
    return t[..., :1].clone().expand(t.shape)


def channels_last(t: torch.Tensor) -> torch.Tensor | None:
    """torch.channels_last."""
    return t.clone().contiguous(memory_format=torch.channels_last) if t.dim() == 4 else None


def odd_strides(t: torch.Tensor) -> torch.Tensor | None:
    """Absurd strides on dimensions of size 1."""
    if 1 not in t.shape:
        return None
    strides = [999 if n == 1 else s for n, s in zip(t.shape, t.stride(), strict=True)]
    return t.clone().contiguous().as_strided(tuple(t.shape), tuple(strides))


LAYOUTS: dict[str, Layout] = {
    "transposed": transposed,
    "reversed": reversed_dims,
    "pitched": pitched,
    "step2": step2,
    "misaligned": misaligned,
    "expanded": expanded,
    "expanded_all": expanded_all,
    "expanded_last": expanded_last,
    "channels_last": channels_last,
    "odd_strides": odd_strides,
}


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor | None:
    """The tensor in the named layout, detached but with the same requires_grad; None if not applicable."""
    view = LAYOUTS[layout](tensor.detach())
    return None if view is None else view.requires_grad_(tensor.requires_grad)


def contiguous_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A fresh contiguous tensor with the same values and requires_grad."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor.detach()).requires_grad_(tensor.requires_grad)


def whole_buffer(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of the tensor's storage, gaps included, as a flat tensor without gradient."""
    storage = tensor.detach().untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


def copy_with_layout(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with its own storage, same strides, offset and gaps; detached."""
    buffer = whole_buffer(tensor).clone()
    return buffer.as_strided(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def sliding(t: torch.Tensor, offset: int) -> torch.Tensor:
    """Contiguous at `offset` elements into a buffer of poison."""
    return _place(t, _dense(tuple(t.shape), tuple(reversed(range(t.dim())))), offset, slack=64)
