"""Packages whose import does too much, modules that lose state, levels that are not reached."""

from __future__ import annotations

import torch

from shared_build.conformance import ModuleCase
from shared_build.tests.conformance.zoo import specs
from shared_build.tests.conformance.zoo.faults import broken_package

broken_package("FlushToZero", "import_effects", "floating-point state", module="flush_to_zero")
broken_package("StartsThread", "import_effects", "number of threads", module="starts_thread")
broken_package("AsksDriver", "import_effects", "GPU driver was touched", module="asks_driver")
broken_package("LoadsDriver", "import_effects", "GPU driver was touched", module="loads_driver")
broken_package("DrawsNumbers", "import_effects", "random state", module="draws_numbers")
broken_package("Warns", "import_effects", "warnings at import", module="warns")
broken_package("HeavyImport", "import_effects", "heavy modules", module="heavy")
broken_package("SlowImport", "import_cost", "the budget is", module="slow")
broken_package("ImportOnce", "loaded_twice", "child process exited", module="import_once")
broken_package(
    "NeverWide", "kernel_level", "expected kernel level wide, but default", kernel_level=lambda: "default"
)


class PlainWeight(specs.Scale):
    """The weight is no parameter: state and moves lose it."""

    def __init__(self, features: int, device: object = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(features, device, dtype)
        weight = self.weight.data
        del self.weight
        self.weight = weight


class IgnoresDtype(specs.Scale):
    """The argument dtype is not obeyed."""

    def __init__(self, features: int, device: object = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(features, device, None)


class Unpicklable(specs.Scale):
    """A lambda as attribute."""

    def __init__(self, features: int, device: object = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(features, device, dtype)
        self.helper = lambda value: value


class BreaksGraph(specs.Scale):
    """A value is looked at on the way."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 1e30:
            return x
        return super().forward(x, y)


def module(factory: type[torch.nn.Module]) -> tuple[ModuleCase, ...]:
    """The module case of a broken module."""
    return (specs.module_case(factory),)


broken_package("PlainWeight", "modules", "plain tensors as attributes", modules=module(PlainWeight))
broken_package("IgnoresDtype", "modules", "dtype is not obeyed", modules=module(IgnoresDtype))
broken_package("Unpicklable", "modules", "pickle", modules=module(Unpicklable))
broken_package(
    "BreaksGraph", "modules_compiled", "item|Unsupported|data-dependent", modules=module(BreaksGraph)
)
