"""Measures what a contract asks for, in as many passes as it takes, and judges it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import machine
from .cases import load_cases, operator_root
from .floors import Floor, Key, MemoryCeiling, parse
from .measurement import Measurements, request_cells
from .runner import progress_bar, run_worker
from .stats import FEWEST_ROUNDS, Estimate, Outcome, geometric_mean, judge, significant

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_PASSES = 4
CELLS_OF_A_MEAN = 4
"""An undecided mean is measured again in this many of its cells, those with the widest intervals."""


@dataclass(frozen=True)
class Verdict:
    """One criterion with its figure. `floor` or `ceiling` is None where the other one applies."""

    id: str
    case: str
    shape: str
    dtype: str
    threads: int | str
    metric: str
    contender: str
    floor: float | None
    ceiling: float | None
    verdict: Outcome
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    goal: float | None = None
    reason: str = ""
    note: str = ""


@dataclass
class Report:
    """Verdicts, and the measurements and circumstances that they rest on."""

    operator: str
    verdicts: list[Verdict]
    measurements: Measurements
    command: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; schema 1."""
        return {
            "schema": 1,
            "operator": self.operator,
            "command": self.command,
            "seconds": round(self.seconds, 1),
            **self.measurements.to_dict(),
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
        }

    def exit_status(self) -> int:
        """0 all hold, 1 one fails, 2 one is undecided."""
        outcomes = {verdict.verdict for verdict in self.verdicts}
        return 1 if "fails" in outcomes else 2 if "undecided" in outcomes else 0


def evaluate(
    contract: Mapping[str, Any] | Path | str,
    operator: str,
    root: Path | None = None,
    python: str = sys.executable,
    *,
    quick: bool = False,
    progress: bool = True,
    on_progress: Callable[[str, int, int], None] | None = None,
    command: str = "",
) -> Report:
    """Measure and judge every performance floor and memory ceiling.

    Args:
        contract: parsed contract.toml or its path.
        operator: such as `rms_norm`.
        root: directory that holds `benchmarks/cases.py` and `shared_build/`; found from the working directory
            if None.
        python: interpreter that has the operator installed.
        quick: fewest rounds and one pass, to try the machinery; most verdicts are then undecided.
        progress: show a progress bar on standard error.
        on_progress: called as `(label, done, total)` before each cell; `total` counts the present pass.
        command: recorded as the command that leads to the figures again.

    Raises:
        ValueError: the contract names what no case has.
        MeasurementError: the operator's result was wrong, or the measuring process failed.
    """
    if isinstance(contract, (str, Path)):
        contract = tomllib.loads(Path(contract).read_text(encoding="utf-8"))
    root = operator_root(operator) if root is None else root
    floors, ceilings = parse(contract, load_cases(root))
    settings = contract.get("performance", {})
    limit = float(settings.get("seconds", 360))
    plan = {"min_rounds": int(settings.get("min_rounds", 11)), "max_rounds": 61, "seconds": 2.0}
    if quick:
        plan = {"min_rounds": 3, "max_rounds": 3, "seconds": 0.1}
    start = time.monotonic()
    measurements = Measurements()
    needs = [(key, [floor.contender]) for floor in floors for key in floor.cells()]
    memory = [
        {"case": entry.case, "shape": shape, "dtype": dtype}
        for entry in ceilings
        for shape in entry.shapes
        for dtype in entry.dtypes
    ]
    verdicts: list[Verdict] = []
    seen_cells = 0
    with progress_bar(progress) as bar:
        for number in range(1, MOST_PASSES + 1):
            first = number == 1
            cells = request_cells(needs)
            total = sum(len(cell["threads"]) for cell in cells) + (len(memory) if first else 0)
            stage = "measuring" if first else f"more rounds ({number})"
            task = bar.add_task("starting", total=total, stage=stage)
            request = {
                "operator": operator,
                "cells": cells,
                "memory": memory if first else [],
                "plan": plan,
                "arithmetic": first,
            }
            seen = Progressed(bar, task, total, on_progress)
            measurements.add(run_worker(request, root, python, seen))
            seen_cells += total
            bar.update(task, completed=total, description="done")
            verdicts = judge_all(floors, ceilings, measurements)
            spent = time.monotonic() - start
            # As many cells as the time left allows at the pace so far; the first pass is always whole.
            affordable = int((limit - spent) / (spent / max(1, seen_cells)))
            needs = _again(floors, measurements)[: max(0, affordable)]
            if quick or not needs:
                break
    command = command or f"python -m shared_build.benchmarking.contract {operator}" + (
        " --quick" if quick else ""
    )
    return Report(operator, verdicts, measurements, command, time.monotonic() - start)


class Progressed:
    """Moves the progress bar when the next cell begins."""

    def __init__(
        self, bar: Any, task: Any, total: int = 0, told: Callable[[str, int, int], None] | None = None
    ) -> None:
        self.bar, self.task, self.total, self.told, self.done = bar, task, total, told, 0

    def __call__(self, label: str) -> None:
        """Show that the cell with this label has begun, and the ones before it are done."""
        self.bar.update(self.task, completed=self.done, description=label)
        if self.told is not None:
            self.told(label, self.done, self.total)
        self.done += 1


def judge_all(
    floors: Sequence[Floor], ceilings: Sequence[MemoryCeiling], measurements: Measurements
) -> list[Verdict]:
    """A verdict for every criterion from what was measured."""
    verdicts = [_judge(floor, name, keys, measurements) for floor in floors for name, keys in floor.groups()]
    measured = {(m["case"], m["shape"], m["dtype"]): m["ratio"] for m in measurements.memory}
    for entry in ceilings:
        for shape in entry.shapes:
            for dtype in entry.dtypes:
                ratio = measured[entry.case, shape, dtype]
                name = f"{entry.case}/{shape}/{dtype}/peak_memory"
                outcome: Outcome = "holds" if ratio <= entry.ratio else "fails"
                verdicts.append(
                    Verdict(
                        **_names(name, entry.case, shape, dtype, "all", "peak_memory", ""),
                        floor=None,
                        ceiling=entry.ratio,
                        verdict=outcome,
                        ratio=significant(ratio),
                        low=significant(ratio),
                        high=significant(ratio),
                        rounds=1,
                        note=entry.note,
                    )
                )
    return verdicts


def _names(
    name: str, case: str, shape: str, dtype: str, threads: int | str, metric: str, contender: str
) -> dict[str, Any]:
    return {
        "id": name,
        "case": case,
        "shape": shape,
        "dtype": dtype,
        "threads": threads,
        "metric": metric,
        "contender": contender,
    }


def _estimates(floor: Floor, keys: Sequence[Key], measurements: Measurements) -> list[Estimate] | str:
    """Estimates for the cells of a verdict, or why one is missing."""
    estimates = []
    for key in keys:
        cell = measurements.cells[key]
        for name in ("ours", floor.contender):
            if name in cell.unavailable:
                return cell.unavailable[name]
        value = cell.ratio(floor.contender)
        if value is None:
            return f"{floor.contender} was not measured"
        estimates.append(value)
    return estimates


def _judge(floor: Floor, name: str, keys: Sequence[Key], measurements: Measurements) -> Verdict:
    shape, dtype, threads = (", ".join(dict.fromkeys(str(key[i]) for key in keys)) for i in (1, 2, 3))
    common: dict[str, Any] = {
        **_names(name, floor.case, shape, dtype, keys[0][3] if len(keys) == 1 else threads, floor.metric, ""),
        "contender": floor.contender,
        "floor": floor.ratio,
        "ceiling": None,
        "goal": floor.goal,
        "note": floor.note,
    }
    found = _estimates(floor, keys, measurements)
    if isinstance(found, str):
        return Verdict(**common, verdict="undecided", reason=found)
    value = geometric_mean(found) if floor.aggregate == "geomean" else found[0]
    outcome = judge(floor.ratio, value)
    cell = measurements.cells[keys[0]]
    if floor.metric == "of_ceiling":
        common["contender"] = cell.best_copy()
    reason = ""
    if outcome == "undecided" and value.rounds < FEWEST_ROUNDS:
        reason = f"{value.rounds} rounds are too few to decide"
    elif outcome == "undecided":
        reason = (
            f"after {value.rounds} rounds the interval {value.low:.3g} to {value.high:.3g} contains the floor"
        )
        busy = [text for text in map(machine.busy_reason, measurements.conditions) if text]
        if busy:
            reason += f"; {busy[-1]}"
    elif outcome == "fails" and len(keys) == 1:
        ours, other = cell.to_dict()["contenders"]["ours"], cell.to_dict()["contenders"][common["contender"]]
        reason = f"ours {ours['median_us']:.4g} us, {common['contender']} {other['median_us']:.4g} us"
    return Verdict(
        **common,
        verdict=outcome,
        ratio=significant(value.ratio),
        low=significant(value.low),
        high=significant(value.high),
        rounds=value.rounds,
        reason=reason,
    )


def _again(floors: Sequence[Floor], measurements: Measurements) -> list[tuple[Key, list[str]]]:
    """Cells in which more rounds may decide an undecided verdict."""
    needs: list[tuple[Key, list[str]]] = []
    for floor in floors:
        for name, keys in floor.groups():
            if _judge(floor, name, keys, measurements).verdict != "undecided":
                continue
            found = _estimates(floor, keys, measurements)
            if isinstance(found, str):
                continue
            widest = sorted(zip(keys, found, strict=True), key=lambda pair: pair[1].low / pair[1].high)
            needs += [(key, [floor.contender]) for key, _ in widest[:CELLS_OF_A_MEAN]]
    return needs
