"""The schema of ``contract.toml``: what a contract may say, and in which words.

Every section but ``limits`` holds criteria. A criterion has an ``id``, a ``claim`` in one sentence, and
what proves it: ``tests`` (test ids), ``audit`` (checks of the wheel audit) or a benchmark case; a criterion
without a proof is an error. ``performance`` and ``memory`` belong to the benchmarks and are described
beside them.
"""

from __future__ import annotations

from typing import Any

from shared_build.benchmarking.floors import SCHEMA as MEASURED

from .audit import CHECKS

DTYPES = ["fp32", "fp64", "bf16", "fp16"]
#: The wordings for a device that a reader may rely on; nothing stronger than what has been run.
STATUSES = [
    "run on hardware",
    "compiled, host-simulated, not run on hardware",
    "compiled, not run",
    "not built yet",
]
_ID = {
    "type": "string",
    "pattern": r"^[a-z0-9][a-z0-9.-]*$",
    "x-expected": "lower-case words joined by hyphens",
}
_TEXT = {"type": "string", "minLength": 1}
_TESTS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "string",
        "pattern": r"^tests/[\w/.-]+\.py(::[^\s].*)?$",
        "x-expected": "a test id such as tests/test_forward.py::test_golden",
    },
}
_AUDIT = {"type": "array", "minItems": 1, "items": {"enum": list(CHECKS)}}
_DTYPES = {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"enum": DTYPES}}
_VERSION = {
    "type": "string",
    "pattern": r"^\d+\.\d+\.\d+([ab]|rc)?\d*$",
    "x-expected": "a version such as 0.1.0",
}
#: A number that tests publish with ``record_property``; the worst value over the criterion's tests is judged.
_FIGURE: dict[str, Any] = {
    "figure": {
        "type": "string",
        "pattern": r"^[a-z][a-z0-9_]*$",
        "x-expected": "the name of a recorded property",
    },
    "at_most": {"type": "number"},
    "at_least": {"type": "number"},
    "unit": _TEXT,
}
_COMMON: dict[str, Any] = {"id": _ID, "claim": _TEXT, "tests": _TESTS, "note": _TEXT}


def _criteria(
    properties: dict[str, Any], required: list[str], *, proof: str = "tests", **rules: Any
) -> dict[str, Any]:
    item = {
        "type": "object",
        "additionalProperties": False,
        "properties": {**_COMMON, **properties},
        "required": ["id", "claim", *required, *([proof] if proof else [])],
        **rules,
    }
    return {"type": "array", "items": item}


_WITH_FIGURE: dict[str, Any] = {
    "dependentRequired": {"at_most": ["figure"], "at_least": ["figure"], "unit": ["figure"]},
    "if": {"required": ["figure"]},
    "then": {
        "oneOf": [{"required": ["at_most"]}, {"required": ["at_least"]}],
        "x-expected": "a bound for the figure: either at_most or at_least",
    },
}
_PLAIN = _criteria(_FIGURE, [], **_WITH_FIGURE)

SECTIONS: dict[str, dict[str, Any]] = {
    "devices": _criteria(
        {
            "device": _TEXT,
            "status": {"enum": STATUSES},
            "levels": {"type": "array", "items": {"enum": ["default", "avx2", "avx512", "neon"]}},
        },
        ["device", "status"],
        proof="",
        **{
            "if": {"properties": {"status": {"const": STATUSES[0]}}},
            "then": {"required": ["tests"]},
        },
    ),
    "accuracy": _criteria(
        {
            **_FIGURE,
            "direction": {"enum": ["forward", "backward"]},
            "dtypes": _DTYPES,
            "k": {"type": "number", "exclusiveMinimum": 0},
            "max_ulp": {"type": "number", "exclusiveMinimum": 0},
            "exact": {"const": True},
        },
        ["direction", "dtypes"],
        oneOf=[
            {"required": ["k"]},
            {"required": ["max_ulp"]},
            {"required": ["exact"]},
            {"required": ["at_most"]},
        ],
        **{"x-expected": "one bound: k, max_ulp, exact = true, or figure with at_most"},
        dependentRequired={"at_most": ["figure"], "unit": ["figure"]},
    ),
    "gradients": _criteria(
        {**_FIGURE, "order": {"enum": [1, 2]}, "by": {"enum": ["kernel", "reference", "refused"]}},
        ["order", "by"],
        **_WITH_FIGURE,
    ),
    "determinism": _criteria(
        {"kind": {"enum": ["run-to-run", "thread-count", "batch", "fork"]}},
        ["kind"],
    ),
    "behaviour": _PLAIN,
    "framework": _PLAIN,
    "models": _PLAIN,
    "package": _criteria(
        {**_FIGURE, "audit": _AUDIT},
        [],
        proof="",
        anyOf=[{"required": ["tests"]}, {"required": ["audit"]}],
        **{"x-expected": "a proof: tests or audit"},
    ),
    "limits": _criteria({}, [], proof=""),
}

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": False,
    "required": [
        "schema",
        "operator",
        "distribution",
        "version",
        "summary",
        "flavour",
        "dtypes",
        "torch",
        "tests",
        "devices",
        "accuracy",
        "gradients",
        "determinism",
        "package",
        "limits",
    ],
    "properties": {
        "schema": {"const": 1},
        "operator": {
            "type": "string",
            "pattern": r"^[a-z][a-z0-9_]*$",
            "x-expected": "a module name such as rms_norm",
        },
        "distribution": {
            "type": "string",
            "pattern": r"^opwright-[a-z0-9-]+$",
            "x-expected": "a distribution name such as opwright-rms-norm",
        },
        "version": _VERSION,
        "summary": _TEXT,
        "flavour": {"enum": ["stable", "aten"]},
        "dtypes": _DTYPES,
        "torch": {
            "type": "object",
            "additionalProperties": False,
            "required": ["floor"],
            "properties": {
                "floor": {"type": "string", "pattern": r"^\d+\.\d+$", "x-expected": "a version such as 2.11"},
                "note": _TEXT,
            },
        },
        "tests": {
            "type": "object",
            "additionalProperties": False,
            "required": ["skips"],
            "properties": {
                "arguments": {"type": "array", "items": {"type": "string"}},
                "skips": {"type": "array", "items": _TEXT},
            },
        },
        **SECTIONS,
        **MEASURED,
    },
}
