"""PACKAGES: every animal of the zoo by name, built when asked for. Loaded by path in child processes."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping

import torch

from shared_build.conformance import Arg, ModuleCase, Package
from shared_build.tests.conformance.zoo.cases import inplace_spec_of, spec_of
from shared_build.tests.conformance.zoo.operator import EPS, AddScale, instance

HERE = pathlib.Path(__file__).absolute()
LEVELS = ("default", "wide")


def level() -> str:
    """The pretended kernel level: the widest unless the environment asks for the other."""
    asked = os.environ.get("OPWRIGHT_CPU_CAPABILITY")
    return asked if asked in LEVELS else LEVELS[-1]


class Scale(torch.nn.Module):
    """A module over the healthy operator."""

    operator: AddScale

    def __init__(self, features: int, device: object = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(features, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The normalised sum."""
        return self.operator.call(x, y, self.weight, eps=EPS)[0]


def module_case(factory: type[torch.nn.Module]) -> ModuleCase:
    """A module with its inputs."""
    return ModuleCase(factory.__name__, factory, {"features": 6}, (Arg((4, 6)), Arg((4, 6))))


def package_of(name: str, op: AddScale, **changes: object) -> Package:
    """A package around one operator."""
    values = {
        "module": "healthy",
        "path": (str(HERE.parent / "packages"),),
        "origin": f"{HERE}::{name}",
        "specs": (spec_of(op), inplace_spec_of(op)),
        "kernel_level": level,
        "levels": {"x86_64": LEVELS, "aarch64": LEVELS},
    }
    return Package(**(values | changes))


def healthy_operator() -> AddScale:
    """The operator that passes every check."""
    Scale.operator = instance(AddScale)
    return Scale.operator


def healthy() -> Package:
    """The package that passes every check."""
    return package_of("healthy", healthy_operator(), modules=(module_case(Scale),))


class _Packages(Mapping[str, Package]):
    def __init__(self) -> None:
        self.built: dict[str, Package] = {}

    def _makers(self) -> Mapping[str, object]:
        from shared_build.tests.conformance.zoo import faults

        return {"healthy": healthy} | {fault.name: fault.package for fault in faults.load()}

    def __getitem__(self, name: str) -> Package:
        if name not in self.built:
            self.built[name] = healthy() if name == "healthy" else self._makers()[name]()
        return self.built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers())

    def __len__(self) -> int:
        return len(self._makers())


PACKAGES = _Packages()
