"""Classes with the constructors, parameters and forward arguments of transformers' norms.

They are what ``transformers.monkey_patching.register_patch_mapping`` takes, with any class name that follows
one of these conventions; docs/models.md lists which do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import ops


class _Norm(nn.Module):
    def __init__(self, hidden_size: int, eps: float, fill: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((hidden_size,), fill))
        self.variance_epsilon = eps

    def extra_repr(self) -> str:
        """The shape and eps, as transformers shows them."""
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


class transformers:
    """``transformers.models``: norms named after the first model with their rounding."""

    class LlamaRMSNorm(_Norm):
        """``LlamaRMSNorm``: normalise, round, multiply by the weight with promotion."""

        def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
            super().__init__(hidden_size, eps)

        def forward(self, hidden_states: Tensor) -> Tensor:
            """Normalise the last dimension."""
            return ops.rms_norm(hidden_states, self.weight, self.variance_epsilon, rounding="llama")

    class GptOssRMSNorm(_Norm):
        """``GptOssRMSNorm``: all in float32, one rounding."""

        def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
            super().__init__(hidden_size, eps)

        def forward(self, hidden_states: Tensor) -> Tensor:
            """Normalise the last dimension."""
            return ops.rms_norm(hidden_states, self.weight, self.variance_epsilon)

    class Gemma3RMSNorm(_Norm):
        """``Gemma3RMSNorm``: as gpt-oss with a scale of ``1 + weight``; the weight starts at zero."""

        def __init__(self, dim: int, eps: float = 1e-6) -> None:
            super().__init__(dim, eps, fill=0.0)

        @property
        def eps(self) -> float:
            """Gemma's name for ``variance_epsilon``."""
            return self.variance_epsilon

        def forward(self, x: Tensor) -> Tensor:
            """Normalise the last dimension."""
            return ops.rms_norm(x, self.weight, self.variance_epsilon, weight_offset=1.0)

    class Qwen3NextRMSNormGated(_Norm):
        """``Qwen3NextRMSNormGated``: Llama's norm, then ``silu(gate)`` in float32, then one cast back."""

        def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
            super().__init__(hidden_size, eps)

        def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
            """Normalise the last dimension and gate."""
            return ops.rms_norm_gated(
                hidden_states, gate, self.weight, self.variance_epsilon, rounding="llama"
            )

    class KimiLinearRMSNormGated(_Norm):
        """``KimiLinearRMSNormGated``: all in float32, gated by ``sigmoid(gate)``, one rounding."""

        def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
            super().__init__(hidden_size, eps)

        def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
            """Normalise the last dimension and gate."""
            return ops.rms_norm_gated(
                hidden_states, gate, self.weight, self.variance_epsilon, activation="sigmoid"
            )

    class MambaRMSNormGated(_Norm):
        """``MambaRMSNormGated`` of Mamba-2: gated by ``silu(gate)`` first, then Llama's norm per group."""

        def __init__(self, hidden_size: int, group_size: int, eps: float = 1e-6) -> None:
            super().__init__(hidden_size, eps)
            self.group_size = group_size

        def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
            """Gate, and normalise each group of the last dimension."""
            return ops.rms_norm_gated(
                hidden_states,
                gate,
                self.weight,
                self.variance_epsilon,
                norm_before_gate=False,
                group_size=self.group_size,
                rounding="llama",
            )
