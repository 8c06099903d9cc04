"""Gated activations for PyTorch, ``act(gate) * up``: kernels in C++, forward and backward.

The golden reference, :mod:`opwright.gated_activation.reference`, can be imported even where the compiled
library cannot load; then the operators raise an ImportError that says what to do.
"""

from __future__ import annotations

from . import reference

try:
    from . import drop_in
    from .modules import GatedMLP, PackedGatedMLP
    from .ops import (
        gated_activation,
        gated_activation_,
        gated_activation_packed,
        gated_activation_packed_,
        kernel_level,
    )
except ImportError as error:
    _load_error = error

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise ImportError(str(_load_error)) from _load_error
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "GatedMLP",
    "PackedGatedMLP",
    "drop_in",
    "gated_activation",
    "gated_activation_",
    "gated_activation_packed",
    "gated_activation_packed_",
    "kernel_level",
    "reference",
]
