"""The conformance suite: what every operator must do, driven by one `Package` of data per operator.

A package's tests hold `spec.py` with `PACKAGE = Package(...)` and one test that runs `conform(PACKAGE)`.
Alone: `python -m shared_build.conformance tests/spec.py --only 'rms_norm/golden/*'`.
"""

from .registry import conform, invocations, load_package, only
from .run import ConformanceError
from .spec import Arg, Call, Case, ErrorCase, Family, ModuleCase, Package, Sharding, Spec

__all__ = [
    "Arg",
    "Call",
    "Case",
    "ConformanceError",
    "ErrorCase",
    "Family",
    "ModuleCase",
    "Package",
    "Sharding",
    "Spec",
    "conform",
    "invocations",
    "load_package",
    "only",
]
