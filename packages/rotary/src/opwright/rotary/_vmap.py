"""Batching rules of the operators, for ``torch.vmap`` over calls through the dispatcher.

A batch of q and k is a larger batch of the operator's own. Where the batch reaches the tables or what says
which row a token gets, or where the operator's own batch elements have tables of their own, the operator is
called once per element of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_NAMESPACE = "opwright"

Rule = Callable[..., tuple[Any, Any]]


def _item(arg: Any, dim: Any, index: int, batch_size: int) -> Any:
    """An element of the batch of an argument that has one, or the argument."""
    if not isinstance(arg, Tensor) or dim is None:
        return arg
    return arg.select(dim, index) if batch_size else arg.sum(dim).to(arg.dtype)


def _each(
    op: Callable[..., Any], batch_size: int, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Call ``op`` for each element of the batch and stack the results."""
    # An empty batch is given one element, whose results are dropped again.
    results = [
        op(*(_item(arg, dim, index, batch_size) for arg, dim in zip(args, in_dims, strict=True)))
        for index in range(max(batch_size, 1))
    ]
    columns = list(zip(*results, strict=True))
    outputs = tuple(None if column[0] is None else torch.stack(column)[:batch_size] for column in columns)
    return outputs, tuple(None if output is None else 0 for output in outputs)


def _front(tensor: Tensor, dim: int | None, batch_size: int) -> Tensor:
    """Move the batch dimension to the front; a tensor without one is expanded."""
    return tensor.expand(batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _repeated(tensor: Tensor | None, batch_dim: int, times: int) -> Tensor | None:
    """``tensor``, repeated along the operator's batch dimension unless that is shared."""
    if tensor is None or tensor.dim() < -batch_dim or tensor.shape[batch_dim] == 1:
        return tensor
    repeats = [1] * tensor.dim()
    repeats[batch_dim] = times
    return tensor.repeat(repeats)


def _rule(op: Callable[..., Any]) -> Rule:
    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        q, k, cos, sin, positions, cu_seqlens, offsets, *options = args
        times = info.batch_size
        own_tables = cos.dim() > 2 and cos.shape[-3] > 1
        shared = all(dim is None for dim in in_dims[2:7])
        if not shared or own_tables or cu_seqlens is not None:
            return _each(op, times, in_dims, args)
        moved = [
            None if x is None else _front(x, dim, times) for x, dim in zip((q, k), in_dims[:2], strict=True)
        ]
        with_batch = q.dim() - (in_dims[0] is not None) == 4
        flat = [
            x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]) if x is not None and with_batch else x
            for x in moved
        ]
        if offsets is not None:
            offsets = offsets.repeat(times)
        outputs = op(*flat, cos, sin, _repeated(positions, -2, times), None, offsets, *options)
        results = tuple(
            None if x is None else out.view(x.shape) for out, x in zip(outputs, moved, strict=True)
        )
        return results, tuple(None if result is None else 0 for result in results)

    return rule


def register(library: torch.library.Library) -> None:
    """Register every rule, for the differentiable operators and for their raw twins."""
    for name in ("apply_rotary_forward", "apply_rotary_backward"):
        for suffix in ("", "_raw"):
            op = getattr(torch.ops.opwright, name + suffix).default
            torch.library.register_vmap(f"{_NAMESPACE}::{name}{suffix}", _rule(op), lib=library)
