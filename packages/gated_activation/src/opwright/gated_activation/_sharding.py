"""DTensor sharding of the operators: every dimension may be sharded, the packed one apart."""

from __future__ import annotations

from typing import Any

import torch


def register(library: torch.library.Library) -> None:
    """Register every operator's sharding strategies; imports ``torch.distributed.tensor.experimental``."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    del library  # DTensor keeps its own registry
    replicate = Replicate()

    def choices(*operands: Any) -> list[tuple[Any, ...]]:
        """Placements of (result, each operand): all whole, or sharded along one dimension of the result."""
        shapes = [tuple(operand.shape) for operand in operands]
        result = tuple(torch.broadcast_shapes(*shapes))
        found: list[tuple[Any, ...]] = [(replicate,) * (1 + len(shapes))]
        for dim, size in enumerate(result):
            placed = []
            for shape in shapes:
                own = dim - (len(result) - len(shape))
                placed.append(Shard(own) if own >= 0 and shape[own] == size else replicate)
            found.append((Shard(dim), *placed))
        return found

    def forward(gate: Any, up: Any, *options: Any) -> list[tuple[list[Any], list[Any]]]:
        return [([out], [*own, *(None for _ in options)]) for out, *own in choices(gate, up)]

    def backward(grad: Any, gate: Any, up: Any, *options: Any) -> list[tuple[list[Any], list[Any]]]:
        needed = options[-2:]
        return [
            ([out if need else replicate for need in needed], [*own, *(None for _ in options)])
            for out, *own in choices(grad, gate, up)
        ]

    def packed(input: Any, *options: Any) -> list[tuple[list[Any], list[Any]]]:
        rows = [Shard(dim) for dim in range(len(input.shape) - 1)]
        return [([own], [own, *(None for _ in options)]) for own in (replicate, *rows)]

    def packed_backward(grad: Any, input: Any, *options: Any) -> list[tuple[list[Any], list[Any]]]:
        rows = [Shard(dim) for dim in range(len(input.shape) - 1)]
        return [([own], [own, own, *(None for _ in options)]) for own in (replicate, *rows)]

    strategies = {
        "gated_activation_forward": forward,
        "gated_activation_backward": backward,
        "gated_activation_packed_forward": packed,
        "gated_activation_packed_backward": packed_backward,
    }
    for name, strategy in strategies.items():
        register_sharding(getattr(torch.ops.opwright, name).default)(strategy)
