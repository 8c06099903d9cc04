"""What torch must know about the operators beside their kernels.

Schemas, autograd and autocast are in C++ (csrc/bind.cpp, csrc/autograd.cpp); fakes, batching and sharding are
registered from here, each in a file of its own.
"""

from __future__ import annotations

import sys

import torch

from . import _fakes, _sharding, _vmap, reference
from ._runtime import NativeOp, load_library, once

load_library(__package__, "gated_activation_forward")


def _register_sharding() -> None:
    """Register sharding once DTensor is there: its registration API costs a second to import."""
    if "torch.distributed.tensor" in sys.modules:
        once(f"{__package__}.sharding", _sharding.register)


gated_activation_forward = NativeOp(
    "gated_activation_forward",
    reference=reference.gated_activation_forward,
    for_subclass=_register_sharding,
)
gated_activation_packed_forward = NativeOp(
    "gated_activation_packed_forward",
    reference=reference.gated_activation_packed_forward,
    for_subclass=_register_sharding,
)


def _register(library: torch.library.Library) -> None:
    _fakes.register(library)
    _vmap.register(library)


once(__package__, _register)
_register_sharding()
