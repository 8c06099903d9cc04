"""The register of broken operators: a class, the check meant to catch it, and what its report must say.

The animals are in modules by subject; `load` lists them all.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable

from shared_build.conformance import Package
from shared_build.tests.conformance.zoo.operator import AddScale, instance


@dataclasses.dataclass(frozen=True)
class Fault:
    """One broken package and the check that must catch it with a report that matches."""

    name: str
    check: str
    match: str
    make: Callable[[str], Package]
    slow: bool = False

    def package(self) -> Package:
        """The broken package."""
        return self.make(self.name)


ALL: list[Fault] = []


def fault(check: str, match: str, *, slow: bool = False) -> Callable[[type[AddScale]], type[AddScale]]:
    """Enter a broken operator class; may be used several times on one class."""

    def enter(kind: type[AddScale]) -> type[AddScale]:
        from shared_build.tests.conformance.zoo.specs import package_of

        def make(name: str) -> Package:
            return package_of(name, instance(kind))

        ALL.append(Fault(f"{kind.__name__}-{check}", check, match, make, slow))
        return kind

    return enter


def broken_package(name: str, check: str, match: str, **changes: object) -> None:
    """Enter a package that is broken as a package, around the healthy operator."""
    from shared_build.tests.conformance.zoo.specs import healthy_operator, package_of

    def make(label: str) -> Package:
        return package_of(label, healthy_operator(), **changes)

    ALL.append(Fault(f"{name}-{check}", check, match, make))


SUBJECTS = ("values", "autograd", "memory", "mutation", "registration", "state", "package")


def load() -> list[Fault]:
    """All broken operators: the animals register themselves when their module is imported."""
    for subject in SUBJECTS:
        importlib.import_module(f"{__package__}.faults_{subject}")
    return ALL
