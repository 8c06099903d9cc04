"""The process that measures: it is told what, checks results, takes times and decides nothing.

`python -m shared_build.benchmarking.worker --events FD --result FILE` reads a request (JSON) from standard
input, writes one JSON object a line to the events descriptor as it goes, and the result to a file. It decides
nothing.

Request: `{"operator", "cells": [{"case", "shape", "dtype", "threads": [1, "all"], "contenders": [..]}],
"memory": [{"case", "shape", "dtype"}], "plan": {"min_rounds", "max_rounds", "seconds"}, "arithmetic": bool}`.
A contender named `copy` stands for all copies, or for all additions where the case says so.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import allocator, machine
from .cases import load_cases, parse_shape
from .ceilings import Ceilings, added_bytes, copied_bytes, library_path
from .check import Checker, RedCheckError
from .contenders import Cell, Unavailable
from .memory import peak_ratio
from .timing import Plan, interleave

Emit = Callable[[dict[str, Any]], None]


def thread_count(label: int | str, every: int) -> int:
    """Threads for a label: a number, or `all` for what torch takes by itself."""
    return every if label == "all" else int(label)


def measure_cell(
    operator: str,
    cell: Cell,
    request: dict[str, Any],
    plan: Plan,
    every: int,
    ceilings: Ceilings | None,
    emit: Emit,
) -> list[dict[str, Any]]:
    """All thread counts of one cell: check every contender, then time them.

    Returns:
        One record a thread label, with seconds per call of each contender and round.

    Raises:
        RedCheckError: ours is wrong.
    """
    records: list[dict[str, Any]] = []
    checker: Checker | None = None
    for label in request["threads"]:
        count = thread_count(label, every)
        emit(
            {"event": "cell", "label": f"{cell.case.name} {request['shape']} {cell.dtype}, threads: {label}"}
        )
        record = {**request, "threads": label, "thread_count": count, "unavailable": {}, "times": {}}
        record["bytes"] = cell.case.bytes_moved(cell.shape, cell.arguments[0].element_size())
        del record["contenders"]
        same = next((other for other in records if other["thread_count"] == count), None)
        if same is not None:
            records.append({**record, "times": same["times"], "unavailable": same["unavailable"]})
            continue
        if count > every:
            reason = f"this machine has {every} threads, not {count}"
            records.append({**record, "unavailable": dict.fromkeys(request["contenders"], reason)})
            continue
        # Code compiled for another cell must not count towards dynamo's limit of recompilations.
        torch.compiler.reset()
        torch.set_num_threads(every)
        checker = checker or Checker(operator, cell)
        torch.set_num_threads(count)
        calls: dict[str, Callable[[], Any]] = {}
        faults: dict[str, float] = {}
        # For everything: what was compiled in one grad mode is compiled again in the other.
        with torch.set_grad_enabled(bool(cell.case.differentiate)):
            for contender in request["contenders"]:
                if contender == "copy":
                    if ceilings is None:
                        record["unavailable"]["copy"] = "the operator's library exports no ceilings"
                    elif cell.case.ceiling == "add":
                        calls.update(ceilings.additions(record["bytes"]))
                        record["copied_bytes"] = added_bytes(record["bytes"])
                    else:
                        calls.update(ceilings.copies(record["bytes"], cell.arguments[0].dtype))
                        record["copied_bytes"] = copied_bytes(record["bytes"])
                    continue
                try:
                    checker.check(contender)
                    calls[contender] = cell.call(contender)
                except Unavailable as error:
                    record["unavailable"][contender] = str(error)
            # Room for every contender's results and intermediates several times over.
            allocator.prefault(16 * record["bytes"])
            record["times"] = interleave(calls, plan, faults=faults)
        record["page_faults"] = {name: round(count, 1) for name, count in faults.items()}
        records.append(record)
    torch.set_num_threads(every)
    return records


def run(request: dict[str, Any], root: Path, emit: Emit) -> dict[str, Any]:
    """Measure everything that the request names; see the module's text.

    Raises:
        RedCheckError: ours is wrong.
    """
    operator = request["operator"]
    every = torch.get_num_threads()
    cases = load_cases(root)
    plan = Plan(**request["plan"])
    problem = ""
    try:
        ceilings: Ceilings | None = Ceilings(operator)
    except (RuntimeError, ImportError, OSError) as error:
        ceilings, problem = None, str(error)
    load = machine.Load.start()
    result: dict[str, Any] = {"cells": [], "memory": [], "arithmetic": {}, "ceilings": problem or "measured"}
    if request.get("arithmetic") and ceilings is not None:
        for label in sorted({1, every}):
            torch.set_num_threads(label)
            result["arithmetic"][str(label)] = ceilings.arithmetic(label)
        torch.set_num_threads(every)
    for item in request["cells"]:
        cell = Cell(cases[item["case"]], parse_shape(item["shape"]), item["dtype"])
        result["cells"] += measure_cell(operator, cell, item, plan, every, ceilings, emit)
        del cell
    for item in request.get("memory", []):
        emit({"event": "cell", "label": f"memory of {item['case']} {item['shape']} {item['dtype']}"})
        cell = Cell(cases[item["case"]], parse_shape(item["shape"]), item["dtype"])
        Checker(operator, cell).check("ours")
        result["memory"].append({**item, "ratio": peak_ratio(cell, "ours")})
    result["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    result["conditions"] = load.finish()
    result["allocator"] = allocator.describe()
    result["machine"] = {**machine.describe_machine(), "threads": every}
    result["versions"] = machine.describe_versions(
        f"opwright-{operator.replace('_', '-')}", root, library_path(operator)
    )
    result["versions"]["kernel_level"] = kernel_level(operator)
    return result


def kernel_level(operator: str) -> str:
    """Which instruction-set level the operator runs, by its own word."""
    try:
        return str(importlib.import_module(f"opwright.{operator}").kernel_level())
    except ImportError:
        return "not installed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the process. Exit status 0, or 3 with an error event that says why there are no figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, required=True, help="descriptor that receives progress")
    parser.add_argument("--result", type=Path, required=True, help="file that receives the result")
    options = parser.parse_args(arguments)
    events = os.fdopen(options.events, "w", buffering=1, encoding="utf-8")

    def emit(event: dict[str, Any]) -> None:
        print(json.dumps(event), file=events, flush=True)

    try:
        if not allocator.in_force():
            raise RuntimeError(f"worker: expected {allocator.VARIABLE} in force, but got a start without")
        result = run(json.load(sys.stdin), Path.cwd(), emit)
    except Exception as error:
        kind = "red" if isinstance(error, RedCheckError) else "error"
        emit({"event": kind, "text": str(error) or type(error).__name__, "traceback": traceback.format_exc()})
        return 3
    options.result.write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
