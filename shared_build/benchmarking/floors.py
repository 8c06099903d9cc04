"""The performance and memory part of a contract: its schema, and what has to be measured for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .cases import DTYPES, Case, parse_shape, shape_name
from .stats import FEWEST_ROUNDS

METRICS = ("vs_eager", "vs_compile", "vs_rival", "of_ceiling")

_SHAPES = {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": r"^\d+(x\d+)*$"}}
_DTYPES = {"type": "array", "minItems": 1, "items": {"enum": list(DTYPES)}}
_POSITIVE = {"type": "number", "exclusiveMinimum": 0}

SCHEMA: dict[str, Any] = {
    "performance": {
        "type": "object",
        "additionalProperties": False,
        "required": ["floors"],
        "properties": {
            "min_rounds": {"type": "integer", "minimum": FEWEST_ROUNDS},
            "seconds": _POSITIVE,
            "floors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["case", "shapes", "dtypes", "threads", "metric", "ratio"],
                    "properties": {
                        "case": {"type": "string"},
                        "shapes": _SHAPES,
                        "dtypes": _DTYPES,
                        "threads": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "all"}]},
                        },
                        "metric": {"enum": list(METRICS)},
                        "ratio": _POSITIVE,
                        "rival": {"type": "string"},
                        "aggregate": {"enum": ["each", "geomean"]},
                        "goal": _POSITIVE,
                        "note": {"type": "string"},
                    },
                    "if": {"properties": {"metric": {"const": "vs_rival"}}},
                    "then": {"required": ["rival"]},
                    "else": {"not": {"required": ["rival"]}},
                },
            },
        },
    },
    "memory": {
        "type": "object",
        "additionalProperties": False,
        "required": ["ceilings"],
        "properties": {
            "ceilings": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["case", "shapes", "dtypes", "ratio"],
                    "properties": {
                        "case": {"type": "string"},
                        "shapes": _SHAPES,
                        "dtypes": _DTYPES,
                        "ratio": _POSITIVE,
                        "note": {"type": "string"},
                    },
                },
            },
        },
    },
}
"""JSON schema of the two tables, for embedding under `properties` of a whole contract's schema."""

Key = tuple[str, str, str, int | str]
"""Case, shape, dtype, threads: what identifies one measured cell."""


@dataclass(frozen=True)
class Floor:
    """One entry of `performance.floors`, checked against the cases."""

    case: str
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]
    threads: tuple[int | str, ...]
    metric: str
    ratio: float
    rival: str = ""
    aggregate: str = "each"
    goal: float | None = None
    note: str = ""

    @property
    def contender(self) -> str:
        """Name of the contender that ours is compared with; `copy` stands for the best of the copies."""
        names = {"vs_eager": "eager", "vs_compile": "compile", "vs_rival": self.rival, "of_ceiling": "copy"}
        return names[self.metric]

    def cells(self) -> Iterator[Key]:
        """The cells that it needs."""
        for shape in self.shapes:
            for dtype in self.dtypes:
                for threads in self.threads:
                    yield self.case, shape, dtype, threads

    def groups(self) -> Iterator[tuple[str, list[Key]]]:
        """Identifier and cells of each verdict that it asks for."""
        metric = f"{self.metric}:{self.rival}" if self.rival else self.metric
        if self.aggregate == "geomean":
            cells = "+".join(self.shapes), "+".join(self.dtypes), "+".join(map(str, self.threads))
            yield f"{self.case}/{cells[0]}/{cells[1]}/threads={cells[2]}/{metric}/geomean", list(self.cells())
            return
        for key in self.cells():
            yield f"{key[0]}/{key[1]}/{key[2]}/threads={key[3]}/{metric}", [key]


@dataclass(frozen=True)
class MemoryCeiling:
    """One entry of `memory.ceilings`."""

    case: str
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]
    ratio: float
    note: str = ""


def parse(contract: Mapping[str, Any], cases: Mapping[str, Case]) -> tuple[list[Floor], list[MemoryCeiling]]:
    """The floors and memory ceilings of a contract.

    Args:
        contract: the parsed contract.toml; only `performance` and `memory` are read.
        cases: the operator's cases by name.

    Raises:
        ValueError: an entry does not fit the schema, or names something that no case has.
    """
    floors = [
        Floor(**_entry(Floor, entry, "performance.floors", cases))
        for entry in contract.get("performance", {}).get("floors", [])
    ]
    ceilings = [
        MemoryCeiling(**_entry(MemoryCeiling, entry, "memory.ceilings", cases))
        for entry in contract.get("memory", {}).get("ceilings", [])
    ]
    for floor in floors:
        _member("performance.floors", "metric", floor.metric, METRICS)
        _member("performance.floors", "aggregate", floor.aggregate, ("each", "geomean"))
        if (floor.metric == "vs_rival") != bool(floor.rival):
            raise ValueError(
                f"performance.floors: expected a rival exactly with metric vs_rival, but got rival "
                f"{floor.rival!r} with {floor.metric}"
            )
        if floor.metric != "of_ceiling":
            _member(
                f"performance.floors of {floor.case}",
                "contender",
                floor.contender,
                cases[floor.case].contenders(),
            )
    identifiers = [name for floor in floors for name, _ in floor.groups()]
    if len(set(identifiers)) != len(identifiers):
        double = sorted({name for name in identifiers if identifiers.count(name) > 1})
        raise ValueError(f"performance.floors: expected every criterion once, but got {double} twice")
    return floors, ceilings


def _member(where: str, what: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        raise ValueError(f"{where}: expected {what} in {', '.join(map(str, allowed))}, but got {value!r}")


def _entry(kind: type, entry: Mapping[str, Any], where: str, cases: Mapping[str, Case]) -> dict[str, Any]:
    known = set(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    required = {"case", "shapes", "dtypes", "ratio"} | ({"threads", "metric"} & known)
    for name in entry:
        _member(where, "a key", name, sorted(known))
    for name in sorted(required):
        if name not in entry:
            raise ValueError(f"{where}: expected {name}, but got {sorted(entry)}")
    if (
        isinstance(entry["ratio"], bool)
        or not isinstance(entry["ratio"], (int, float))
        or not entry["ratio"] > 0
    ):
        raise ValueError(f"{where}: expected a ratio above 0, but got {entry['ratio']!r}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    _member(where, "case", values["case"], list(cases))
    case = cases[str(values["case"])]
    for shape in values["shapes"]:
        _member(
            f"{where} of {case.name}",
            "shape",
            shape,
            [shape_name(known_shape) for known_shape in case.shapes],
        )
        parse_shape(shape)
    for dtype in values["dtypes"]:
        _member(f"{where} of {case.name}", "dtype", dtype, case.dtypes)
    for threads in values.get("threads", ()):
        if threads != "all" and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise ValueError(f"{where}: expected threads of at least 1 or 'all', but got {threads!r}")
    return values
