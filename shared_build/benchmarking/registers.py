"""Registers, spills and memory of an operator's CUDA kernels against a committed baseline.

`python -m shared_build.benchmarking.registers <operator> --build DIR` reads what ptxas reported while the
kernels in that build folder were compiled, and compares with the package's benchmarks/cuda/registers.json. A
kernel that spills more than before, or needs another step of registers, fails; so does a kernel that is new
or gone. `--update` writes the reports as the new baseline, to be committed
with the change that explains them.

Exit status: 0 within the margin, 1 a kernel got worse, is new or is gone, 2 nothing can be said here (no
reports, or no baseline of this nvcc).

A count of registers is not a time: it bounds how many threads a multiprocessor holds. What a kernel does on
hardware is what the acceptance on a GPU measures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from .cases import operator_root
from .runner import terminal

GRANULE = 8
"""Registers of a thread are handed out in steps of eight."""

FIGURES = ("registers", "stack", "stores", "loads", "shared")
"""Registers of a thread; bytes of its stack, spill stores and spill loads; bytes of static shared memory."""

Kernels = dict[str, dict[str, list[int]]]


class Unavailable(RuntimeError):
    """Nothing to compare; the message says what is missing."""


@dataclass(frozen=True)
class Change:
    """One kernel on one architecture against its baseline; None where one of the two has none."""

    kernel: str
    arch: str
    before: tuple[int, ...] | None
    after: tuple[int, ...] | None

    def verdict(self) -> str:
        """`same`, `worse`, `better`, `new` or `gone`."""
        if self.before is None:
            return "new"
        if self.after is None:
            return "gone"
        before, after = (dict(zip(FIGURES, values, strict=True)) for values in (self.before, self.after))
        spills = [after[key] - before[key] for key in ("stores", "loads")]
        steps = -(-after["registers"] // GRANULE) - -(-before["registers"] // GRANULE)
        if max(spills) > 0 or steps > 0:
            return "worse"
        return "better" if min(spills) < 0 or steps < 0 else "same"


def read_reports(build: Path) -> tuple[str, Kernels]:
    """Nvcc's version and the figures of every kernel below a build folder.

    Raises:
        Unavailable: there is no report, or the reports are of several compilers.
    """
    reports = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(build.rglob("*.resources.json"))
    ]
    compilers = {report["nvcc"] for report in reports}
    if len(compilers) != 1:
        got = "none" if not reports else f"those of nvcc {', '.join(sorted(compilers))}"
        raise Unavailable(f"registers: expected the reports of one build with CUDA in {build}, but got {got}")
    kernels: Kernels = {}
    for report in reports:
        for entry in report["kernels"]:
            kernels.setdefault(entry["kernel"], {})[entry["arch"]] = [entry[key] for key in FIGURES]
    return compilers.pop(), {name: dict(sorted(kernels[name].items())) for name in sorted(kernels)}


def changes(before: Mapping[str, Mapping[str, Sequence[int]]], after: Mapping[str, Any]) -> list[Change]:
    """Every kernel of either side, on every architecture."""
    found = []
    for kernel in sorted({*before, *after}):
        old, new = before.get(kernel, {}), after.get(kernel, {})
        for arch in sorted({*old, *new}):
            pair = (tuple(side[arch]) if arch in side else None for side in (old, new))
            found.append(Change(kernel, arch, *pair))
    return found


def gate(found: Sequence[Change]) -> int:
    """Exit status for a comparison."""
    return int(any(change.verdict() in ("worse", "new", "gone") for change in found))


def table(operator: str, found: Sequence[Change]) -> Table:
    """The kernels that changed, one a row."""
    result = Table(title=f"{operator}: {', '.join(FIGURES)}", title_justify="left")
    for column in ("kernel", "arch", "baseline", "now", "verdict"):
        result.add_column(column)
    for change in found:
        if change.verdict() != "same":
            cells = (
                "-" if side is None else " ".join(map(str, side)) for side in (change.before, change.after)
            )
            result.add_row(change.kernel, change.arch, *cells, change.verdict())
    return result


def write(path: Path, nvcc: str, kernels: Kernels) -> None:
    """Write a baseline, one kernel a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(archs)}" for name, archs in kernels.items())
    path.write_text(
        f'{{\n "nvcc": {json.dumps(nvcc)},\n "figures": {json.dumps(list(FIGURES))},\n'
        f' "kernels": {{\n{lines}\n }}\n}}\n',
        encoding="utf-8",
    )


def compare(operator: str, root: Path, build: Path, update: bool) -> int:
    """Compare, or write the baseline; return the exit status.

    Raises:
        Unavailable: no reports, or no baseline of this nvcc.
    """
    nvcc, kernels = read_reports(build)
    path = root / "benchmarks" / "cuda" / "registers.json"
    if update:
        write(path, nvcc, kernels)
        terminal().print(f"{operator}: {len(kernels)} kernels by nvcc {nvcc}")
        return 0
    if not path.is_file():
        raise Unavailable(
            f"registers: expected a baseline of {operator}, but got none; make it with --update"
        )
    baseline = json.loads(path.read_text(encoding="utf-8"))
    if baseline["nvcc"] != nvcc:
        raise Unavailable(f"registers: expected a baseline of nvcc {nvcc}, but got one of {baseline['nvcc']}")
    found = changes(baseline["kernels"], kernels)
    spilling = [c for c in found if c.after and c.after[FIGURES.index("stores")]]
    most = max((c.after[0] for c in found if c.after), default=0)
    if any(change.verdict() != "same" for change in found):
        terminal().print(table(operator, found))
    terminal().print(
        f"{operator}: {len(found)} kernels and architectures, at most {most} registers, {len(spilling)} spill"
    )
    return gate(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="shared_build.benchmarking.registers", description=__doc__)
    parser.add_argument("operator")
    parser.add_argument("--build", type=Path, required=True, help="folder of a build with CUDA kernels")
    parser.add_argument("--update", action="store_true", help="write the baseline instead of comparing")
    options = parser.parse_args(arguments)
    try:
        return compare(options.operator, operator_root(options.operator), options.build, options.update)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
