"""Base classes of a package's asv benchmarks: one class is derived for each case to be tracked over time.

`Timed` is asv's own wall time and peak memory of the operator. `Compared` tracks ratios and GB/s: they are
measured once per class by the same code that measures contracts, in a process of its own, and asv stores them
one by one.

The benchmarks are importable with any version of the operator, and without it: the parameters never depend on
it, and `setup` skips where it is missing. `setup` also compares the operator with the golden reference before
anything is timed.
"""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import Any

import torch

from .cases import load_cases, parse_shape
from .check import Checker
from .contenders import Call, Cell
from .measurement import Measurements, request_cells
from .runner import run_worker

QUICK_VARIABLE = "OPWRIGHT_BENCH_QUICK"
THREADS = ("1", "all")
ALL_THREADS = torch.get_num_threads()


def quick() -> bool:
    """Whether the fewest rounds are wanted; set by the command that starts asv."""
    return os.environ.get(QUICK_VARIABLE, "") == "1"


@functools.lru_cache(maxsize=1)
def _checked(root: Path, operator: str, case: str, shape: str, dtype: str) -> Cell:
    """A cell whose operator agrees with the golden reference; compared once, however often setup runs."""
    cell = Cell(load_cases(root)[case], parse_shape(shape), dtype)
    Checker(operator, cell).check("ours")
    return cell


class _Benchmark:
    """What both kinds share: the parameters, and skipping where the operator is not installed."""

    operator = ""
    case = ""
    root = Path()
    timeout = 900.0
    param_names = ("shape", "dtype", "threads")
    params: tuple[Any, ...] = (("1x4096", "64x4096", "2048x2048", "4096x4096"), ("fp32", "bf16"), THREADS)

    def _need_operator(self) -> None:
        try:
            importlib.import_module(f"opwright.{self.operator}")
        except ImportError as error:
            # asv's way to skip: the figure is "not available", not an error.
            raise NotImplementedError(f"opwright.{self.operator} is not installed ({error})") from error


class Timed(_Benchmark):
    """Wall time and peak memory of the operator alone."""

    rounds = 1
    repeat = (3, 10, 3.0)
    sample_time = 0.005
    warmup_time = 0.05

    def setup(self, shape: str, dtype: str, threads: str) -> None:
        """Check, choose the number of threads, make the call."""
        self._need_operator()
        torch.set_num_threads(ALL_THREADS)
        cell = _checked(self.root, self.operator, self.case, shape, dtype)
        torch.set_num_threads(ALL_THREADS if threads == "all" else int(threads))
        self.call: Call = cell.call("ours")

    def time_ours(self, shape: str, dtype: str, threads: str) -> None:
        """Seconds of one call."""
        self.call()

    def peakmem_ours(self, shape: str, dtype: str, threads: str) -> None:
        """Peak memory of the process."""
        self.call()


class Compared(_Benchmark):
    """Ratios and rates, measured together in interleaved rounds when asv fills the class's cache."""

    def setup_cache(self) -> dict[str, dict[str, Any]]:
        """Measure every cell of the case."""
        try:
            self._need_operator()
        except NotImplementedError:
            return {}
        case = load_cases(self.root)[self.case]
        contenders = [name for name in case.contenders() if name != "ours"]
        labels = ["all" if label == "all" else int(label) for label in self.params[2]]
        needs = [
            ((self.case, shape, dtype, label), [*contenders, "copy"])
            for shape in self.params[0]
            for dtype in self.params[1]
            for label in labels
        ]
        rounds, seconds = (3, 0.1) if quick() else (11, 1.0)
        request = {
            "operator": self.operator,
            "cells": request_cells(needs),
            "plan": {"min_rounds": rounds, "max_rounds": 5 * rounds, "seconds": seconds},
        }
        measurements = Measurements()
        measurements.add(run_worker(request, self.root))
        cells = measurements.to_dict()["cells"]
        return {f"{cell['shape']}/{cell['dtype']}/{cell['threads']}": cell for cell in cells}

    def setup(self, cells: dict[str, dict[str, Any]], shape: str, dtype: str, threads: str) -> None:
        """Pick the cell."""
        key = f"{shape}/{dtype}/{threads}"
        if key not in cells:
            raise NotImplementedError(f"opwright.{self.operator} is not installed")
        self.cell = cells[key]

    def _ratio(self, contender: str) -> float:
        return self.cell["ratios"].get(contender, {}).get("ratio", float("nan"))

    def track_vs_eager(self, cells: Any, shape: str, dtype: str, threads: str) -> float:
        """How many times faster than eager."""
        return self._ratio("eager")

    def track_vs_compile(self, cells: Any, shape: str, dtype: str, threads: str) -> float:
        """How many times faster than torch.compile of the eager formula."""
        return self._ratio("compile")

    def track_of_best_copy(self, cells: Any, shape: str, dtype: str, threads: str) -> float:
        """Bytes per second as a share of the best copy's."""
        return self.cell.get("of_ceiling", {}).get("ratio", float("nan"))

    def track_bandwidth(self, cells: Any, shape: str, dtype: str, threads: str) -> float:
        """Bytes that have to be moved, per second."""
        return self.cell["gb_per_s"]

    track_vs_eager.unit = "x faster"  # type: ignore[attr-defined]
    track_vs_compile.unit = "x faster"  # type: ignore[attr-defined]
    track_of_best_copy.unit = "of the best copy"  # type: ignore[attr-defined]
    track_bandwidth.unit = "GB/s"  # type: ignore[attr-defined]
