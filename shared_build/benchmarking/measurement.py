"""What the measuring processes found: rounds pooled over passes, ratios and rates formed from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .floors import Key
from .stats import Estimate, estimate, quantile, significant

COPY = "copy:"


@dataclass
class Measured:
    """One cell: seconds per call of each contender, one list a pass."""

    key: Key
    thread_count: int
    bytes: int
    copied_bytes: int = 0
    passes: list[dict[str, list[float]]] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    page_faults: dict[str, float] = field(default_factory=dict)

    def times(self, contender: str) -> list[float]:
        """All rounds of a contender."""
        return [value for rounds in self.passes for value in rounds.get(contender, ())]

    def contenders(self) -> list[str]:
        """Names with timings, in the order they were first measured."""
        return list(dict.fromkeys(name for rounds in self.passes for name in rounds))

    def best_copy(self) -> str:
        """The fastest copy by its median, or nothing where none was measured."""
        copies = [name for name in self.contenders() if name.startswith(COPY)]
        return min(copies, key=lambda name: median(self.times(name)), default="")

    def ratio(self, contender: str) -> Estimate | None:
        """How many times faster ours is than a contender; None where the two were not measured together.

        For `copy` it is the share of the best copy's bytes per second that ours reaches.
        """
        scale = 1.0
        if contender == "copy":
            contender = self.best_copy()
            scale = self.bytes / self.copied_bytes if self.copied_bytes else 1.0
        ratios = [
            scale * other / ours
            for rounds in self.passes
            for ours, other in zip(rounds.get("ours", ()), rounds.get(contender, ()), strict=False)
        ]
        return estimate(ratios) if ratios else None

    def to_dict(self) -> dict[str, Any]:
        """Medians in microseconds, ratios, GB/s; no single rounds."""
        case, shape, dtype, threads = self.key
        contenders = {}
        for name in self.contenders():
            micro = [1e6 * value for value in self.times(name)]
            contenders[name] = {
                "median_us": significant(median(micro)),
                "lower_us": significant(quantile(micro, 0.25)),
                "upper_us": significant(quantile(micro, 0.75)),
                "rounds": len(micro),
                "page_faults": self.page_faults.get(name, 0.0),
            }
        record: dict[str, Any] = {
            "case": case,
            "shape": shape,
            "dtype": dtype,
            "threads": threads,
            "thread_count": self.thread_count,
            "bytes": self.bytes,
            "contenders": contenders,
            "ratios": {},
            "unavailable": self.unavailable,
        }
        for name in contenders:
            if name != "ours" and not name.startswith(COPY) and (value := self.ratio(name)) is not None:
                record["ratios"][name] = value.to_dict()
        if "ours" in contenders:
            record["gb_per_s"] = significant(self.bytes / median(self.times("ours")) / 1e9)
        best = self.best_copy()
        if best and (share := self.ratio("copy")) is not None:
            record["best_copy"] = best
            record["copy_gb_per_s"] = significant(self.copied_bytes / median(self.times(best)) / 1e9)
            record["of_ceiling"] = share.to_dict()
        return record


class Measurements:
    """All cells of a run by key, pooled over passes, and what was recorded around them."""

    def __init__(self) -> None:
        self.cells: dict[Key, Measured] = {}
        self.memory: list[dict[str, Any]] = []
        self.record: dict[str, Any] = {}
        self.conditions: list[dict[str, Any]] = []

    def add(self, result: Mapping[str, Any]) -> None:
        """Take in the result of one measuring process."""
        for item in result["cells"]:
            key = (item["case"], item["shape"], item["dtype"], item["threads"])
            cell = self.cells.setdefault(key, Measured(key, item["thread_count"], item["bytes"]))
            cell.copied_bytes = item.get("copied_bytes", cell.copied_bytes)
            if item["times"]:
                cell.passes.append(item["times"])
            cell.unavailable.update(item["unavailable"])
            # Of the latest pass; more than a few a call mean that memory was not kept and the time is not the
            # operator's.
            cell.page_faults.update(item.get("page_faults", {}))
        self.memory += result["memory"]
        self.conditions.append(result["conditions"])
        for name in ("date", "machine", "versions", "allocator", "ceilings"):
            self.record[name] = result[name]
        self.record.setdefault("arithmetic", result["arithmetic"])

    def to_dict(self) -> dict[str, Any]:
        """Everything but verdicts, as plain data."""
        return {
            **self.record,
            "conditions": self.conditions,
            "cells": [cell.to_dict() for cell in self.cells.values()],
            "memory": self.memory,
        }


def request_cells(needs: Iterable[tuple[Key, Iterable[str]]]) -> list[dict[str, Any]]:
    """Cells for a measuring process: thread counts and contenders of a shape and dtype together, ours first.

    Args:
        needs: cells with the contenders that are to be compared with ours in them.
    """
    grouped: dict[tuple[str, str, str], tuple[dict[Any, None], dict[str, None]]] = {}
    for (case, shape, dtype, threads), contenders in needs:
        labels, names = grouped.setdefault((case, shape, dtype), ({}, {"ours": None}))
        labels[threads] = None
        names.update(dict.fromkeys(contenders))
    return [
        {"case": case, "shape": shape, "dtype": dtype, "threads": list(labels), "contenders": list(names)}
        for (case, shape, dtype), (labels, names) in grouped.items()
    ]
