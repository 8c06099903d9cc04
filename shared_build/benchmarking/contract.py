"""Holds the performance and memory part of a contract against this machine.

`python -m shared_build.benchmarking.contract <operator>` measures every floor and ceiling of contract.toml
and prints a verdict for each. Exit status: 0 all hold, 1 one fails, 2 one is undecided, 3 no figures (a wrong
result, or an error).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .cases import operator_root
from .evaluation import Report, evaluate
from .floors import SCHEMA
from .runner import MeasurementError, terminal

__all__ = ["SCHEMA", "main", "print_report"]

STYLES = {"holds": "green", "fails": "bold red", "undecided": "yellow"}


def print_report(report: Report, console: Console) -> None:
    """A table of verdicts, failures last where they are seen, then a line for each that does not hold."""
    table = Table(title=f"{report.operator}: performance contract", title_justify="left")
    table.add_column("criterion", overflow="fold")
    for column in ("required", "measured", "interval"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    order = ("holds", "undecided", "fails")
    items = sorted(report.verdicts, key=lambda verdict: order.index(verdict.verdict))
    for item in items:
        required = f">= {item.floor:g}" if item.floor is not None else f"<= {item.ceiling:g}"
        figures = ("-", "-")
        if item.ratio is not None:
            figures = f"{item.ratio:.3g}", f"{item.low:.3g}..{item.high:.3g}"
        table.add_row(item.id, required, *figures, f"[{STYLES[item.verdict]}]{item.verdict}[/]")
    console.print(table)
    for item in items:
        if item.reason:
            console.print(
                f"[{STYLES[item.verdict]}]{item.verdict}[/] {item.id}: {item.reason}", highlight=False
            )
    counts = {outcome: sum(item.verdict == outcome for item in items) for outcome in order}
    facts = report.measurements.record["machine"]
    console.print(
        f"{facts['cpu']}, {facts['threads']} threads; "
        + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        + f"; {report.seconds:.0f} s",
        highlight=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="shared_build.benchmarking.contract", description=__doc__)
    parser.add_argument("operator")
    parser.add_argument("--contract", type=Path, help="default: contract.toml beside benchmarks/")
    parser.add_argument("--json", type=Path, help="write the whole report there")
    parser.add_argument("--quick", action="store_true", help="fewest rounds; shows that the machinery works")
    options = parser.parse_args(arguments)
    errors = terminal(stderr=True)
    try:
        root = operator_root(options.operator)
        contract = options.contract or root / "contract.toml"
        report = evaluate(contract, options.operator, root, quick=options.quick)
    except (MeasurementError, ValueError, OSError) as error:
        errors.print(f"no figures: {error}", style="bold red", markup=False, highlight=False)
        return 3
    if options.json:
        options.json.write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
    print_report(report, terminal())
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
