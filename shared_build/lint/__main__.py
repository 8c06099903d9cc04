"""``python -m shared_build.lint [OPERATOR ...] [--fix] [--check NAME ...]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shared_build.lint import docstrings, layout, text_rules, tools
from shared_build.lint.tree import Finding, Tree

ROOT = Path(__file__).resolve().parents[2]
CHECKS: dict[str, Callable[[Tree], list[Finding]]] = {
    "format": tools.ruff_format,
    "ruff": tools.ruff_check,
    "clang-format": tools.clang_format,
    "types": tools.types,
    "docstrings": docstrings.check,
    "layout": layout.check,
    "text": text_rules.check,
    "workflows": tools.workflows,
}
SHOWN = 60


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m shared_build.lint", description=__doc__)
    parser.add_argument("operators", nargs="*", help="packages to lint; none means the whole repository")
    parser.add_argument("--fix", action="store_true", help="let ruff and clang-format rewrite what they can")
    parser.add_argument(
        "--check", action="append", choices=list(CHECKS), help="run only this check; repeatable"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to look at")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and print one verdict each; return the exit status (1 when anything was found)."""
    options = parse(argv)
    console = Console()
    tree = Tree(options.root.resolve(), tuple(options.operators), options.fix)
    table = Table(
        "check", "verdict", "seconds", title="lint: " + (", ".join(options.operators) or "everything")
    )
    failed = False
    for name in options.check or CHECKS:
        started = time.perf_counter()
        with console.status(name):
            findings = CHECKS[name](tree)
        for found in findings[:SHOWN]:
            console.print(escape(f"[{name}] {found}"), soft_wrap=True, highlight=False)
        if len(findings) > SHOWN:
            console.print(escape(f"[{name}] and {len(findings) - SHOWN} more lines"))
        failed |= bool(findings)
        verdict = f"[red]{len(findings)} lines above[/red]" if findings else "[green]clean[/green]"
        table.add_row(name, verdict, f"{time.perf_counter() - started:.1f}")
    console.print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
