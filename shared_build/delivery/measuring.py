"""The speed floors and memory ceilings of a contract, measured by ``shared_build.benchmarking``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .contract import Contract

Progress = Callable[[str, int, int, str], None]


def unmeasured(contract: Contract, verdict: str, reason: str) -> list[dict[str, Any]]:
    """Return an entry for each floor and ceiling, by the ids of a measurement, all with the same verdict."""
    return [{**entry, "verdict": verdict, "reason": reason} for entry in _planned(contract)]


def _planned(contract: Contract) -> Iterator[dict[str, Any]]:
    from shared_build.benchmarking.floors import Floor

    for entry in contract.data.get("performance", {}).get("floors", []):
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        floor = Floor(**values)
        for name, cells in floor.groups():
            single = cells[0] if len(cells) == 1 else (floor.case, "", "", None)
            yield {
                "id": name,
                "case": floor.case,
                "shape": single[1],
                "dtype": single[2],
                "threads": single[3],
                "metric": floor.metric,
                "contender": floor.contender,
                "floor": floor.ratio,
                "note": floor.note,
            }
    for entry in contract.data.get("memory", {}).get("ceilings", []):
        for shape in entry["shapes"]:
            for dtype in entry["dtypes"]:
                yield {
                    "id": f"{entry['case']}/{shape}/{dtype}/peak_memory",
                    "case": entry["case"],
                    "shape": shape,
                    "dtype": dtype,
                    "metric": "peak_memory",
                    "ceiling": entry["ratio"],
                    "note": entry.get("note", ""),
                }


def measure(contract: Contract, out: Path, progress: Progress) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure everything and write ``performance.json``.

    Returns:
        The verdict entries, and the benchmarks' report as a dict (empty when nothing could be measured:
        then every entry fails, with the reason; a wrong result of the operator is one).
    """
    from shared_build.benchmarking import MeasurementError, evaluate, load_cases

    progress("speed and memory", 0, 0, "")
    try:
        report = evaluate(
            contract.data,
            operator=contract.operator,
            root=Path.cwd(),
            python=sys.executable,
            progress=False,
            on_progress=lambda label, done, total: progress("speed and memory", done, total, label),
        )
    except (MeasurementError, ValueError) as error:
        return unmeasured(contract, "fails", f"nothing was measured: {str(error).splitlines()[0]}"), {}
    data: dict[str, Any] = report.to_dict()
    (out / "performance.json").write_text(json.dumps(data, indent=2), encoding="utf-8")
    titles = {name: case.title for name, case in load_cases(Path.cwd()).items()}
    return [{**entry, "title": titles[entry["case"]]} for entry in data["verdicts"]], data
