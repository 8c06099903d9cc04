"""Rotary position embedding for PyTorch: kernels in C++, forward and backward.

The golden reference, :mod:`opwright.rotary.reference`, can be imported even where the compiled library cannot
load; then the operators raise an ImportError that says what to do.
"""

from __future__ import annotations

from . import reference

try:
    from . import drop_in
    from .modules import RotaryEmbedding
    from .ops import apply_rotary, kernel_level
except ImportError as error:
    _load_error = error

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise ImportError(str(_load_error)) from _load_error
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["RotaryEmbedding", "apply_rotary", "drop_in", "kernel_level", "reference"]
