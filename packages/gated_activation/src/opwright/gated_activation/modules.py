"""Feed-forward blocks around the operator; parameters are named as transformers' models name them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import ops

__all__ = ["GatedMLP", "PackedGatedMLP"]


class _Gated(nn.Module):
    """The options of the activation, and how they are shown."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        alpha: float,
        limit: float | None,
        up_offset: float,
        clamp: str,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.activation = activation
        self.options: dict[str, Any] = {
            "alpha": alpha,
            "limit": limit,
            "up_offset": up_offset,
            "clamp": clamp,
        }

    def extra_repr(self) -> str:
        """Show the activation and the options that are not the defaults."""
        defaults = {"alpha": 1.0, "limit": None, "up_offset": 0.0, "clamp": "input"}
        shown = [f"{name}={value}" for name, value in self.options.items() if value != defaults[name]]
        return ", ".join([f"activation={self.activation}", *shown])


class GatedMLP(_Gated):
    """``down_proj(act(gate_proj(x)) * up_proj(x))``, the block of Llama, Gemma, Qwen and many others.

    Args:
        hidden_size: size of the input's and the output's last dimension.
        intermediate_size: size between.
        activation: as for :func:`opwright.gated_activation.gated_activation`.
        bias: whether the three projections have one.
        alpha: as for the function.
        limit: as for the function.
        up_offset: as for the function.
        clamp: as for the function.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str = "silu",
        *,
        bias: bool = False,
        alpha: float = 1.0,
        limit: float | None = None,
        up_offset: float = 0.0,
        clamp: str = "input",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, intermediate_size, activation, alpha, limit, up_offset, clamp)
        place: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, **place)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, **place)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, **place)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., hidden_size)`` to the same shape."""
        hidden = ops.gated_activation(self.gate_proj(x), self.up_proj(x), self.activation, **self.options)
        result: Tensor = self.down_proj(hidden)
        return result


class PackedGatedMLP(_Gated):
    """The same with one projection for both branches, as in Phi-3 (halves) and gpt-oss (interleaved).

    Args:
        hidden_size: as for :class:`GatedMLP`.
        intermediate_size: as for :class:`GatedMLP`.
        activation: as for :class:`GatedMLP`.
        layout: ``"halves"`` or ``"interleaved"``: how the branches lie in the projection's result.
        gate_first: whether the gate comes first.
        bias: as for :class:`GatedMLP`.
        alpha: as for :class:`GatedMLP`.
        limit: as for :class:`GatedMLP`.
        up_offset: as for :class:`GatedMLP`.
        clamp: as for :class:`GatedMLP`.
        device: as for :class:`GatedMLP`.
        dtype: as for :class:`GatedMLP`.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str = "silu",
        *,
        layout: str = "halves",
        gate_first: bool = True,
        bias: bool = False,
        alpha: float = 1.0,
        limit: float | None = None,
        up_offset: float = 0.0,
        clamp: str = "input",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, intermediate_size, activation, alpha, limit, up_offset, clamp)
        self.layout = layout
        self.gate_first = gate_first
        place: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size, **place)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, **place)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., hidden_size)`` to the same shape."""
        hidden = ops.gated_activation_packed(
            self.gate_up_proj(x),
            self.activation,
            layout=self.layout,
            gate_first=self.gate_first,
            **self.options,
        )
        result: Tensor = self.down_proj(hidden)
        return result
