"""Batching rules of the operators, for ``torch.vmap`` over calls through the dispatcher.

Rows are independent, so a batch of inputs is more rows: batch dimensions move to the front and the operator
is called once. Where the batch reaches a weight or its gradient, which rows share, the operator is called
once per element of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_NAMESPACE = "opwright"

Rule = Callable[..., tuple[Any, Any]]


def _each(
    op: Callable[..., Any], batch_size: int, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Call ``op`` for each element of the batch and stack the results."""
    results = []
    # An empty batch is given one element, whose results are dropped again.
    for index in range(max(batch_size, 1)):
        chosen = [
            arg if dim is None else arg.select(dim, index) if batch_size else arg.sum(dim)
            for arg, dim in zip(args, in_dims, strict=True)
        ]
        results.append(op(*chosen))
    columns = list(zip(*results, strict=True))
    outputs = tuple(None if column[0] is None else torch.stack(column)[:batch_size] for column in columns)
    return outputs, tuple(None if output is None else 0 for output in outputs)


def _front(tensor: Tensor, dim: int | None, batch_size: int) -> Tensor:
    """Move the batch dimension to the front; a tensor without one is expanded."""
    return tensor.expand(batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _rule(op: Callable[..., Any], rowwise: tuple[int, ...], weight: int, weight_grad: int | None) -> Rule:
    """Return the batching rule of an operator.

    Args:
        op: the operator.
        rowwise: positions of the arguments that have the input's rows.
        weight: position of the weight.
        weight_grad: position of the flag that asks for the weight's gradient, in a backward operator.
    """

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        shared = in_dims[weight] is None and (weight_grad is None or not args[weight_grad])
        if not shared:
            return _each(op, info.batch_size, in_dims, args)
        moved = list(args)
        for position in rowwise:
            if args[position] is not None:
                moved[position] = _front(args[position], in_dims[position], info.batch_size)
        outputs = op(*moved)
        # A gradient that was not asked for is missing, or empty and the same for the whole batch.
        return outputs, tuple(None if output is None or output.shape == (0,) else 0 for output in outputs)

    return rule


# name: (positions of row-wise arguments, position of the weight, position of the flag for its gradient)
_RULES: dict[str, tuple[tuple[int, ...], int, int | None]] = {
    "rms_norm_forward": ((0,), 1, None),
    "rms_norm_backward": ((0, 1, 3), 2, 7),
    "add_rms_norm_forward": ((0, 1), 2, None),
    "add_rms_norm_backward": ((0, 1, 2, 4), 3, 8),
    "rms_norm_gated_forward": ((0, 1), 2, None),
    "rms_norm_gated_backward": ((0, 1, 2, 4), 3, 11),
}


def register(library: torch.library.Library) -> None:
    """Register every rule, for the differentiable operators and for their raw twins."""
    for name, (rowwise, weight, weight_grad) in _RULES.items():
        for suffix in ("", "_raw"):
            op = getattr(torch.ops.opwright, name + suffix).default
            rule = _rule(op, rowwise, weight, weight_grad)
            torch.library.register_vmap(f"{_NAMESPACE}::{name}{suffix}", rule, lib=library)
