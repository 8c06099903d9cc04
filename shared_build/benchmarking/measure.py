"""Measures every case of an operator against every contender, without judging anything.

`python -m shared_build.benchmarking.measure <operator> --save` writes the figures that documents and charts
are drawn from to docs/benchmarks/results/<operator>/<machine>.json. Losing cases are in them like all others.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from . import machine
from .cases import Case, load_cases, operator_root, repository_root, shape_name
from .evaluation import Progressed
from .measurement import Measurements, request_cells
from .runner import MeasurementError, progress_bar, run_worker, terminal

THREADS: tuple[int | str, ...] = (1, "all")


def results_path(operator: str, root: Path) -> Path:
    """Where the figures of this kind of machine are kept in the repository."""
    return root / "docs" / "benchmarks" / "results" / operator / f"{machine.machine_name()}.json"


def measure(
    operator: str,
    root: Path,
    only: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    contenders: Sequence[str] = (),
    quick: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Figures of all cells as plain data, in the form of a contract's report without verdicts.

    Args:
        operator: such as `rms_norm`.
        root: directory that holds `benchmarks/cases.py` and `shared_build/`.
        only: names of cases; all if empty.
        dtypes: among the cases' own; all if empty.
        contenders: who is measured beside ours; `rival` stands for all rivals, `copy` for all copies, empty
            for everyone. Cases that have none of them are left out.
        quick: fewest rounds.
        progress: show a progress bar on standard error.

    Raises:
        ValueError: a name that no case has.
        MeasurementError: the operator's result was wrong, or the measuring process failed.
    """
    cases = load_cases(root)
    for name in only:
        if name not in cases:
            raise ValueError(f"measure: expected a case in {', '.join(cases)}, but got {name!r}")
    chosen = {
        case.name: _chosen(case, contenders) for case in cases.values() if not only or case.name in only
    }
    needs = [
        ((case.name, shape_name(shape), dtype, threads), chosen[case.name])
        for case in cases.values()
        if chosen.get(case.name)
        for shape in case.shapes
        for dtype in case.dtypes
        if not dtypes or dtype in dtypes
        for threads in THREADS
    ]
    if not needs:
        raise ValueError(
            f"measure: expected a case with one of {', '.join(contenders) or 'all'}, but got none"
        )
    plan = {"min_rounds": 11, "max_rounds": 61, "seconds": 2.0}
    if quick:
        plan = {"min_rounds": 3, "max_rounds": 3, "seconds": 0.1}
    start = time.monotonic()
    request = {"operator": operator, "cells": request_cells(needs), "plan": plan, "arithmetic": True}
    measurements = Measurements()
    with progress_bar(progress) as bar:
        task = bar.add_task("starting", total=len(needs), stage="measuring")
        measurements.add(run_worker(request, root, on_cell=Progressed(bar, task)))
        bar.update(task, completed=len(needs), description="done")
    return {
        "schema": 1,
        "operator": operator,
        "command": f"python -m shared_build.benchmarking.measure {operator}",
        "seconds": round(time.monotonic() - start, 1),
        **measurements.to_dict(),
        "verdicts": [],
    }


def _chosen(case: Case, contenders: Sequence[str]) -> list[str]:
    everyone = [*case.contenders()[1:], "copy"]
    wanted = {name for item in contenders for name in (case.rivals if item == "rival" else [item])}
    return [name for name in everyone if not contenders or name in wanted]


def table(report: dict[str, Any]) -> Table:
    """One row a cell: our time, how many times faster than each contender, GB/s, share of the best copy."""
    contenders = list(dict.fromkeys(name for cell in report["cells"] for name in cell["ratios"]))
    result = Table(title=f"{report['operator']}: times faster than", title_justify="left")
    for column in ("case", "shape", "dtype", "threads"):
        result.add_column(column, no_wrap=True)
    for column in ("ours us", *contenders, "GB/s", "of copy"):
        result.add_column(column, justify="right", no_wrap=True)
    for cell in report["cells"]:
        ratios = [cell["ratios"].get(name, {}).get("ratio") for name in contenders]
        share = cell.get("of_ceiling", {}).get("ratio")
        result.add_row(
            cell["case"],
            cell["shape"],
            cell["dtype"],
            str(cell["threads"]),
            f"{cell['contenders']['ours']['median_us']:.4g}" if "ours" in cell["contenders"] else "-",
            *(
                "-" if ratio is None else f"[{'red' if ratio < 1 else 'default'}]{ratio:.2f}[/]"
                for ratio in ratios
            ),
            f"{cell['gb_per_s']:.3g}" if "gb_per_s" in cell else "-",
            "-" if share is None else f"{share:.2f}",
        )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's text. Exit status 3 when there are no figures."""
    parser = argparse.ArgumentParser(prog="shared_build.benchmarking.measure", description=__doc__)
    parser.add_argument("operator")
    parser.add_argument("--case", action="append", default=[], help="only this case; repeatable")
    parser.add_argument("--dtype", action="append", default=[], help="only this dtype; repeatable")
    parser.add_argument(
        "--contender", action="append", default=[], help="only this one, or rival for all rivals; repeatable"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--save", action="store_true", help="write them among the repository's results")
    parser.add_argument("--quick", action="store_true", help="fewest rounds; shows that everything runs")
    options = parser.parse_args(arguments)
    try:
        root = operator_root(options.operator)
        targets = [options.json] if options.json else []
        if options.save:
            if options.quick or options.case or options.dtype or options.contender:
                raise ValueError("measure: expected --save with a whole, careful run, but got a partial one")
            targets.append(results_path(options.operator, repository_root()))
        parts = options.case, options.dtype, options.contender
        report = measure(options.operator, root, *parts, quick=options.quick)
    except (MeasurementError, ValueError, OSError) as error:
        terminal(stderr=True).print(f"no figures: {error}", style="bold red", markup=False, highlight=False)
        return 3
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    terminal().print(table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
