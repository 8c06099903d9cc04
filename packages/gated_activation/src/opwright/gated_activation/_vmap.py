"""Batching rules of the operators, for ``torch.vmap`` over calls through the dispatcher.

Elements are independent, so a batch is one more leading dimension and the operator is called once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_NAMESPACE = "opwright"


def _lined_up(tensors: tuple[Tensor, ...], dims: tuple[int | None, ...]) -> list[Tensor]:
    """Move batch dimensions to the front, above as many dimensions as the longest tensor has without one."""
    rank = max(t.dim() - (d is not None) for t, d in zip(tensors, dims, strict=True))
    moved = []
    for tensor, dim in zip(tensors, dims, strict=True):
        if dim is None:
            moved.append(tensor)
            continue
        front = tensor.movedim(dim, 0)
        missing = rank - (front.dim() - 1)
        moved.append(front.reshape(front.shape[0], *(1,) * missing, *front.shape[1:]))
    return moved


def _batched(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Move the batch dimension to the front; a tensor without one is expanded."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _forward(info: Any, in_dims: tuple[Any, ...], gate: Tensor, up: Tensor, *options: Any) -> tuple[Any, Any]:
    gate, up = _lined_up((gate, up), in_dims[:2])
    return torch.ops.opwright.gated_activation_forward(gate, up, *options), 0


def _backward(
    info: Any, in_dims: tuple[Any, ...], grad: Tensor, gate: Tensor, up: Tensor, *options: Any
) -> tuple[Any, Any]:
    grad = _batched(grad, in_dims[0], info.batch_size)
    # Of gate and up one at least has the batch then, and as many dimensions as the gradient.
    gate = _batched(gate, in_dims[1], info.batch_size)
    dims = (0, 0, in_dims[2])
    grad, gate, up = _lined_up((grad, gate, up), dims)
    results = torch.ops.opwright.gated_activation_backward(grad, gate, up, *options)
    # A gradient that was not asked for is empty, and the same for the whole batch.
    return results, tuple(0 if need else None for need in options[-2:])


def _packed_forward(info: Any, in_dims: tuple[Any, ...], input: Tensor, *options: Any) -> tuple[Any, Any]:
    return torch.ops.opwright.gated_activation_packed_forward(input.movedim(in_dims[0], 0), *options), 0


def _packed_backward(
    info: Any, in_dims: tuple[Any, ...], grad: Tensor, input: Tensor, *options: Any
) -> tuple[Any, Any]:
    grad = _batched(grad, in_dims[0], info.batch_size)
    input = _batched(input, in_dims[1], info.batch_size)
    return torch.ops.opwright.gated_activation_packed_backward(grad, input, *options), 0


def register(library: torch.library.Library) -> None:
    """Register every rule."""
    rules: dict[str, Callable[..., tuple[Any, Any]]] = {
        "gated_activation_forward": _forward,
        "gated_activation_backward": _backward,
        "gated_activation_packed_forward": _packed_forward,
        "gated_activation_packed_backward": _packed_backward,
    }
    for name, rule in rules.items():
        torch.library.register_vmap(f"{_NAMESPACE}::{name}", rule, lib=library)
