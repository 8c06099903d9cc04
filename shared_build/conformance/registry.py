"""Checks, their variants, and their execution under pytest or alone."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib
import importlib.util
import pathlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from . import checks
from .run import ConformanceError, Failure, Run
from .spec import Case, Package, Spec


@dataclasses.dataclass(frozen=True)
class Variant:
    """One run of a check. slow: runs in the tier `slow` only. skip: a listed reason (reasons.py)."""

    id: str
    case: Case | None = None
    dtype: torch.dtype | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    slow: bool = False
    skip: str | None = None
    device: str = "cpu"


SpecVariants = Callable[[Spec], Iterable[Variant]]
PackageVariants = Callable[[Package], Iterable[Variant]]


@dataclasses.dataclass(frozen=True)
class Check:
    """A named check; `marks` are pytest markers (compile, isolated, cuda)."""

    name: str
    body: Callable[[Run], None]
    over: Callable[[Any], Iterable[Variant]]
    whole_package: bool
    marks: tuple[str, ...]


CHECKS: dict[str, Check] = {}


def check(
    name: str,
    over: SpecVariants | PackageVariants,
    *,
    whole_package: bool = False,
    marks: tuple[str, ...] = (),
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Register a check under its name; `over` lists its variants for a spec (or for the package)."""

    def register(body: Callable[[Run], None]) -> Callable[[Run], None]:
        if name in CHECKS:
            raise ValueError(f"two checks are named {name}")
        CHECKS[name] = Check(name, body, over, whole_package, marks)
        return body

    return register


@dataclasses.dataclass(frozen=True)
class Invocation:
    """A check bound to one variant of one spec or package. Calling it runs it."""

    package: Package
    spec: Spec | None
    check: Check
    variant: Variant

    @property
    def id(self) -> str:
        """Stable: spec/check/variant."""
        return f"{self.spec.name if self.spec else 'package'}/{self.check.name}/{self.variant.id}"

    def __call__(self) -> dict[str, float]:
        """Run the check; returns the figures it measured (ulp errors), worst first seen, by name.

        Raises:
            ConformanceError: the check failed, or the operator raised where it must not.
        """
        v = self.variant
        run = Run(self.package, self.check.name, self.id, self.spec, v.case, v.dtype, v.device, v.extra)
        try:
            self.check.body(run)
        except Failure as failure:
            raise ConformanceError(self.check.name, run.report(str(failure))) from failure.__cause__
        except Exception as error:
            text = f"unexpected {type(error).__name__}: {error}"
            raise ConformanceError(self.check.name, run.report(text)) from error
        return run.figures


def load_checks() -> None:
    """Import every module of checks once."""
    for module in pkgutil.iter_modules(checks.__path__, checks.__name__ + "."):
        importlib.import_module(module.name)


def invocations(
    package: Package, names: Iterable[str] | None = None, *, slow: bool = True
) -> Iterator[Invocation]:
    """Every check of the package in a stable order; names: only these checks."""
    load_checks()
    chosen = list(CHECKS) if names is None else list(names)
    for name in chosen:
        found = CHECKS[name]
        for target in [None] if found.whole_package else package.specs:
            for variant in found.over(package if target is None else target):
                if slow or not variant.slow:
                    yield Invocation(package, target, found, variant)


def conform(package: Package) -> list[Any]:
    """Pytest parameters for every check of the package: ids are stable, tiers and kinds are markers."""
    import pytest  # not needed to run checks alone

    params = []
    for each in invocations(package):
        marks = [getattr(pytest.mark, name) for name in each.check.marks]
        if each.variant.slow:
            marks.append(pytest.mark.slow)
        if each.variant.skip:
            marks.append(pytest.mark.skip(reason=each.variant.skip))
        params.append(pytest.param(each, id=each.id, marks=marks))
    return params


def only(package: Package, patterns: Iterable[str], *, slow: bool = True) -> list[Invocation]:
    """The invocations whose id equals or matches (shell style) one of the patterns, without skipped ones."""
    patterns = list(patterns)
    return [
        each
        for each in invocations(package, slow=slow)
        if each.variant.skip is None
        and any(each.id == p or fnmatch.fnmatchcase(each.id, p) for p in patterns)
    ]


def load_package(origin: str | pathlib.Path) -> Package:
    """PACKAGE of a spec file, or PACKAGES[name] for "file::name"; loaded by path under a name of its own.

    The file can import modules beside it; their names must be unique among packages (`<op>_cases`).
    """
    file, _, chosen = str(origin).partition("::")
    path = pathlib.Path(file).resolve()
    name = "conformance_spec_" + "_".join(path.with_suffix("").parts[-3:]).replace("-", "_")
    if name not in sys.modules:
        located = importlib.util.spec_from_file_location(name, path)
        if located is None or located.loader is None:
            raise ImportError(f"conformance: expected a Python file, but got {path}")
        module = importlib.util.module_from_spec(located)
        sys.modules[name] = module
        sys.path.insert(0, str(path.parent))
        try:
            located.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            sys.path.remove(str(path.parent))
    module = sys.modules[name]
    return module.PACKAGES[chosen] if chosen else module.PACKAGE
