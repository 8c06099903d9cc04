"""A ``torch.nn`` module that makes the tables and applies them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import ops

__all__ = ["RotaryEmbedding"]


_FEWEST_ROWS = 256


def _largest(offsets: Tensor) -> int:
    return int(offsets.max()) if offsets.numel() else 0


class RotaryEmbedding(nn.Module):
    """Rotary position embedding with the angles ``position * base ** (-2 i / rotary_dim)`` of pair ``i``.

    The frequencies and angles are computed in float32 (float64 for float64 inputs), whatever the model's
    dtype. Tables for positions ``0, 1, 2, ...`` are made when a longer sequence, another device or another
    arithmetic needs them, and kept, with rows to spare so that decoding seldom needs others; they are in no
    state dict, and are made anew after copying and pickling.
    The module has no parameters.

    Args:
        rotary_dim: number of columns that are rotated, even and positive.
        base: of the frequencies (``rope_theta`` in transformers' configurations), positive.
        seq_dim: as for :func:`opwright.rotary.apply_rotary`, and so the others.
        interleaved: likewise.
        deinterleave: likewise.
        trailing: likewise.
        inplace: likewise.

    Raises:
        ValueError: for a ``rotary_dim`` or ``base`` outside of the above.
    """

    def __init__(
        self,
        rotary_dim: int,
        *,
        base: float = 10000.0,
        seq_dim: int = 1,
        interleaved: bool = False,
        deinterleave: bool = False,
        trailing: bool = False,
        inplace: bool = False,
    ) -> None:
        super().__init__()
        if rotary_dim <= 0 or rotary_dim % 2:
            raise ValueError(
                f"RotaryEmbedding: expected rotary_dim to be even and positive, but got {rotary_dim}"
            )
        if not base > 0:
            raise ValueError(f"RotaryEmbedding: expected base to be positive, but got {base}")
        self.rotary_dim = int(rotary_dim)
        self.base = float(base)
        self.seq_dim = int(seq_dim)
        self.interleaved = bool(interleaved)
        self.deinterleave = bool(deinterleave)
        self.trailing = bool(trailing)
        self.inplace = bool(inplace)
        self._tables: tuple[Tensor, Tensor] | None = None

    def forward(
        self,
        q: Tensor,
        k: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        offsets: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Rotate ``q`` and ``k``.

        Args:
            q: as for :func:`opwright.rotary.apply_rotary`.
            k: likewise.
            positions: ``(S,)`` or ``(B, S)``, any numbers; not with the other two.
            cu_seqlens: as for :func:`opwright.rotary.apply_rotary`.
            offsets: likewise.

        Returns:
            As many tensors as were given.

        Raises:
            ValueError: for positions of another shape, or together with the other two; and the errors of
                :func:`opwright.rotary.apply_rotary`.
        """
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        tokens = q.shape[q.dim() - 4 + self.seq_dim]
        if positions is not None:
            if cu_seqlens is not None or offsets is not None:
                raise ValueError(
                    "RotaryEmbedding: expected positions without cu_seqlens and offsets, but got both"
                )
            if positions.dim() not in (1, 2) or positions.shape[-1] != tokens:
                raise ValueError(
                    f"RotaryEmbedding: expected positions of shape ({tokens},) or (batch, {tokens}), "
                    f"but got {tuple(positions.shape)}"
                )
            # Angles of just these positions: tables that need no look-up, whatever the numbers are.
            cos, sin = self._angles(positions, dtype)
            positions = None
        else:
            reach = offsets or 0 if not isinstance(offsets, Tensor) else _largest(offsets)
            length = tokens + max(reach, 0)
            cos, sin = self._cached(length, q.device, dtype)
        return ops.apply_rotary(  # type: ignore[call-overload, no-any-return]
            q,
            k,
            cos=cos,
            sin=sin,
            seq_dim=self.seq_dim,
            interleaved=self.interleaved,
            deinterleave=self.deinterleave,
            rotary_dim=self.rotary_dim,
            trailing=self.trailing,
            cu_seqlens=cu_seqlens,
            offsets=offsets,
            inplace=self.inplace,
        )

    def tables(
        self, length: int, *, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """``(cos, sin)`` of positions ``0`` to ``length - 1``, each ``(length, rotary_dim / 2)``."""
        return self._angles(torch.arange(length, device=device), dtype)

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        pairs = torch.arange(0, self.rotary_dim, 2, device=positions.device, dtype=dtype)
        frequencies = self.base ** (-pairs / self.rotary_dim)
        angles = positions.to(dtype).unsqueeze(-1) * frequencies
        return angles.cos(), angles.sin()

    def _cached(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            return self.tables(length, device=device, dtype=dtype)
        kept = self._tables
        if kept is None or kept[0].device != device or kept[0].dtype != dtype or kept[0].shape[0] < length:
            # Also under inference mode, the tables are tensors that a later backward can save.
            with torch.inference_mode(False), torch.no_grad():
                rows = max(_FEWEST_ROWS, 1 << (length - 1).bit_length())
                kept = self.tables(rows, device=device, dtype=dtype)
            self._tables = kept
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the tables, which are made again."""
        return {**self.__dict__, "_tables": None}

    def extra_repr(self) -> str:
        """The options that differ from the defaults."""
        parts = [str(self.rotary_dim), f"base={self.base:g}"]
        if self.seq_dim != 1:
            parts.append(f"seq_dim={self.seq_dim}")
        flags = ("interleaved", "deinterleave", "trailing", "inplace")
        parts += [f"{name}=True" for name in flags if getattr(self, name)]
        return ", ".join(parts)
