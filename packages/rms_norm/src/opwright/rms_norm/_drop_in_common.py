"""What the drop-in names share: refusals, ``out=`` arguments, results in a dtype of the caller's choice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import ops


def refuse(name: str, **options: Any) -> None:
    """Raise for the first option that is given: these operators do not have it."""
    for option, value in options.items():
        if value is not None:
            shown = "a tensor" if isinstance(value, Tensor) else value
            raise ValueError(f"{name}: expected no {option}, which is not offered here, but got {shown}")


def same_dtype(name: str, input: Tensor, **others: Tensor) -> None:
    """Raise for the first tensor whose dtype is not ``input``'s."""
    for other, value in others.items():
        if value.dtype != input.dtype:
            raise ValueError(f"{name}: expected {other} of dtype {input.dtype}, but got {value.dtype}")


def into(name: str, out: Tensor | None, result: Tensor) -> Tensor:
    """Copy ``result`` to ``out``, which must be just like it."""
    if out is None:
        return result
    if out.shape != result.shape or out.dtype != result.dtype:
        raise ValueError(
            f"{name}: expected out of shape {tuple(result.shape)} and dtype {result.dtype}, "
            f"but got {tuple(out.shape)} and {out.dtype}"
        )
    return out.copy_(result)


def norm_of_sum(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Norm of the unrounded ``x + residual``, rounded once to ``out_dtype``, and the sum in the wider dtype.

    A wider ``x`` gives the same float32 arithmetic and keeps its result unrounded until the last cast.
    """
    wide = x.to(torch.promote_types(x.dtype, out_dtype))
    if residual is None:
        return ops.rms_norm(wide, weight, eps, weight_offset=weight_offset).to(out_dtype), x
    out, total = ops.add_rms_norm(
        wide, residual, weight, eps, weight_offset=weight_offset, statistics="exact"
    )
    return out.to(out_dtype), total
