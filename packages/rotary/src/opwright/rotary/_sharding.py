"""DTensor sharding of the operators: batch elements and heads are independent."""

from __future__ import annotations

from typing import Any

import torch


def register(library: torch.library.Library) -> None:
    """Register every operator's sharding strategies; imports ``torch.distributed.tensor.experimental``."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    del library  # DTensor keeps its own registry
    replicate = Replicate()

    def by_batch(tensor: Any, dim: int) -> Any:
        """The placement of a tensor beside a q that is sharded along its batch."""
        if tensor is None:
            return None
        own = len(tensor.shape) >= -dim and tensor.shape[dim] > 1
        return Shard(len(tensor.shape) + dim) if own else replicate

    def strategy(
        q: Any,
        k: Any,
        cos: Any,
        sin: Any,
        positions: Any,
        cu_seqlens: Any,
        offsets: Any,
        offset: Any,
        seq_dim: int,
        *options: Any,
    ) -> list[tuple[list[Any], list[Any]]]:
        others = (cos, sin, positions, cu_seqlens, offsets)
        numbers = [None, None, *(None for _ in options)]

        def placed(own: Any, beside: list[Any]) -> tuple[list[Any], list[Any]]:
            both = [own, None if k is None else own]
            return both, [*both, *beside, *numbers]

        alike = [None if tensor is None else replicate for tensor in others]
        ndim = len(q.shape)
        heads = ndim - 1 - seq_dim
        choices = [placed(replicate, alike), placed(Shard(heads), alike)]
        if ndim == 4 and cu_seqlens is None:
            beside = [
                by_batch(cos, -3),
                by_batch(sin, -3),
                by_batch(positions, -2),
                None,
                by_batch(offsets, -1),
            ]
            choices.append(placed(Shard(0), beside))
        return choices

    for name in ("apply_rotary_forward", "apply_rotary_backward"):
        for suffix in ("", "_raw"):
            register_sharding(getattr(torch.ops.opwright, name + suffix).default)(strategy)
