"""DTensor sharding of the operators.

Rows may be sharded in any way, columns may not; the gradient of a weight that all rows share is a partial
sum.
"""

from __future__ import annotations

from typing import Any

import torch


def register(library: torch.library.Library) -> None:
    """Register every operator's sharding strategies; imports ``torch.distributed.tensor.experimental``."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    del library  # DTensor keeps its own registry
    replicate = Replicate()

    def rows(input: Any, weight: Any, per_head: bool) -> list[tuple[Any, Any, Any]]:
        """Placements of (row-wise tensors, weight, weight gradient), one for each way to place the rows."""
        ndim = len(input.shape)
        choices: list[tuple[Any, Any, Any]] = [(replicate, replicate, replicate)]
        for dim in range(ndim - 1):
            heads = per_head and weight is not None and len(weight.shape) == 2 and dim == ndim - 2
            choices.append(
                (Shard(dim), Shard(0), Shard(0)) if heads else (Shard(dim), replicate, Partial("sum"))
            )
        return choices

    def present(tensor: Any, placement: Any) -> Any:
        return None if tensor is None else placement

    def norm_forward(input: Any, weight: Any, *options: Any) -> list[tuple[list[Any], list[Any]]]:
        return [
            ([row, row], [row, present(weight, own), *(None for _ in options)])
            for row, own, _ in rows(input, weight, per_head=True)
        ]

    def norm_backward(
        grad: Any, input: Any, weight: Any, rstd: Any, *options: Any
    ) -> list[tuple[list[Any], list[Any]]]:
        need_input, need_weight = options[-2:]
        return [
            (
                [row if need_input else replicate, summed if need_weight and weight is not None else None],
                [row, row, present(weight, own), row, *(None for _ in options)],
            )
            for row, own, summed in rows(input, weight, per_head=True)
        ]

    def add_forward(
        input: Any, residual: Any, weight: Any, *options: Any
    ) -> list[tuple[list[Any], list[Any]]]:
        return [
            ([row, row, row], [row, row, present(weight, own), *(None for _ in options)])
            for row, own, _ in rows(input, weight, per_head=True)
        ]

    def add_backward(
        grad: Any, grad_residual: Any, value: Any, weight: Any, rstd: Any, *options: Any
    ) -> list[tuple[list[Any], list[Any]]]:
        need_sum, need_weight = options[-2:]
        return [
            (
                [row if need_sum else replicate, summed if need_weight and weight is not None else None],
                [
                    present(grad, row),
                    present(grad_residual, row),
                    row,
                    present(weight, own),
                    row,
                    *(None for _ in options),
                ],
            )
            for row, own, summed in rows(value, weight, per_head=True)
        ]

    def gated_forward(input: Any, gate: Any, weight: Any, *options: Any) -> list[tuple[list[Any], list[Any]]]:
        return [
            ([row, row], [row, present(gate, row), present(weight, own), *(None for _ in options)])
            for row, own, _ in rows(input, weight, per_head=False)
        ]

    def gated_backward(
        grad: Any, input: Any, gate: Any, weight: Any, rstd: Any, *options: Any
    ) -> list[tuple[list[Any], list[Any]]]:
        need_input, need_gate, need_weight = options[-3:]
        return [
            (
                [
                    row if need_input else replicate,
                    row if need_gate and gate is not None else None,
                    summed if need_weight and weight is not None else None,
                ],
                [row, row, present(gate, row), present(weight, own), row, *(None for _ in options)],
            )
            for row, own, summed in rows(input, weight, per_head=False)
        ]

    strategies = {
        "rms_norm_forward": norm_forward,
        "rms_norm_backward": norm_backward,
        "add_rms_norm_forward": add_forward,
        "add_rms_norm_backward": add_backward,
        "rms_norm_gated_forward": gated_forward,
        "rms_norm_gated_backward": gated_backward,
    }
    for name, strategy in strategies.items():
        for suffix in ("", "_raw"):
            register_sharding(getattr(torch.ops.opwright, name + suffix).default)(strategy)
