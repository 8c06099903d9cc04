"""Fakes of the operators: shapes, dtypes, strides and argument errors of the kernels, without data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._checks import check

_NAMESPACE = "opwright"


def _results(q: Tensor, k: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Contiguous tensors like ``q`` and ``k``, whatever their strides."""
    return (
        torch.empty(q.shape, dtype=q.dtype, device=q.device),
        None if k is None else torch.empty(k.shape, dtype=k.dtype, device=k.device),
    )


def apply_rotary_(
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
) -> None:
    """Fake of ``opwright::apply_rotary_``: its checks, but for what only values and memory tell."""
    check(
        "apply_rotary", q, k, cos, sin, positions, cu_seqlens, offsets, offset, seq_dim, rotary_dim,
        sections, section_layout,
    )  # fmt: skip


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
    """Fake of ``opwright::apply_rotary_forward``."""
    check(
        "apply_rotary", q, k, cos, sin, positions, cu_seqlens, offsets, offset, seq_dim, rotary_dim,
        sections, section_layout,
    )  # fmt: skip
    return _results(q, k)


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
    """Fake of ``opwright::apply_rotary_backward``."""
    check(
        "apply_rotary_backward", q, k, cos, sin, positions, cu_seqlens, offsets, offset, seq_dim, rotary_dim,
        sections, section_layout,
    )  # fmt: skip
    return _results(q, k)


def register(library: torch.library.Library) -> None:
    """Register every fake, for the differentiable operators and for their raw twins."""
    fakes = {
        "apply_rotary_forward": apply_rotary_forward,
        "apply_rotary_backward": apply_rotary_backward,
        "apply_rotary_": apply_rotary_,
    }
    for name, fake in fakes.items():
        for suffix in ("", "_raw"):
            torch.library.register_fake(f"{_NAMESPACE}::{name}{suffix}", fake, lib=library)
    torch.library.register_fake(f"{_NAMESPACE}::apply_rotary_check", lambda q, k, cos, sin: None, lib=library)
