"""Charts on pages, drawn from committed results while the site is built, so that no picture is committed.

``<!-- charts -->`` on a page of a package stands for a section with all of its charts, and
``<!-- charts: OPERATOR NAME ... -->`` anywhere for the named ones. Without results, nothing is shown.
"""

from __future__ import annotations

import ast
import html
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from shared_build.benchmarking import charts

MARKER = re.compile(r"<!-- charts(?:: (?P<operator>\w+) (?P<names>[\w -]+?))? -->")


def results(root: Path, operator: str) -> list[Path]:
    """Return the committed figures of an operator, one file for each kind of machine."""
    return sorted((root / "docs" / "benchmarks" / "results" / operator).glob("*.json"))


def titles(cases: Path) -> dict[str, str]:
    """Read names and titles of the cases from their source; importing it would need torch."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(cases.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Case":
            given = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
            if isinstance(given.get("name"), str) and isinstance(given.get("title"), str):
                found[str(given["name"])] = str(given["title"])
    return found


@cache
def _drawn(path: Path, cases: Path) -> tuple[tuple[charts.Chart, str], ...]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    named = titles(cases) if cases.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        made = charts.draw(report, Path(folder), named)
        return tuple((chart, chart.path.read_text(encoding="utf-8")) for chart in made)


def _figure(chart: charts.Chart, svg: str) -> str:
    return f'<figure class="ow-figure">{svg.strip()}</figure>'


def figures(root: Path, operator: str, names: Sequence[str] = ()) -> str:
    """Return the charts of an operator as HTML, with what the figures depend on.

    Args:
        root: The repository.
        operator: Name of the package.
        names: File names of charts without suffix, such as ``forward-1``; all of them when empty.

    Returns:
        HTML for a page; nothing where there are no results.
    """
    parts: list[str] = []
    for path in results(root, operator):
        chosen = [
            (chart, svg)
            for chart, svg in _drawn(path, root / "packages" / operator / "benchmarks" / "cases.py")
            if not names or chart.path.stem in names
        ]
        if chosen:
            shown = "\n".join(_figure(chart, svg) for chart, svg in chosen)
            note = html.escape(chosen[0][0].caption)
            parts.append(f'<div class="ow-figures">\n{shown}\n</div>\n<p class="ow-caption">{note}</p>')
    return "\n\n".join(parts)


def filed(root: Path, operator: str) -> bool:
    """Tell whether asv's results of an operator are committed."""
    folder = root / "docs" / "benchmarks" / "results" / operator / "asv"
    return (folder / "benchmarks.json").is_file()


def history(root: Path, operator: str) -> str:
    """Return a link from a package's page to asv's pages, where there are results for them."""
    if not filed(root, operator):
        return ""
    href = f"../../benchmarks/asv/{operator}/index.html"
    return (
        f'<p><a href="{href}">Every benchmark over time</a>, as asv shows it. '
        "(Those pages take their scripts from the network.)</p>"
    )


def publish(root: Path, operator: str, target: Path) -> None:
    """Let asv write its pages from the committed results.

    Args:
        root: The repository, a git checkout with its history.
        operator: Name of the package.
        target: Folder for the pages.

    Raises:
        RuntimeError: Where asv fails, with what it said.
    """
    command = [sys.executable, "-m", "shared_build.benchmarking.asv", operator, "--publish", str(target)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"{operator}: asv publish ended with {done.returncode}: {done.stdout}{done.stderr}"
        )


def fill(markdown: str, root: Path, operator: str | None) -> str:
    """Replace the markers of a page.

    Args:
        markdown: Text of the page.
        root: The repository.
        operator: The package that the page belongs to, if any.

    Returns:
        The text with charts.
    """

    def replace(match: re.Match[str]) -> str:
        if match["operator"]:
            return figures(root, match["operator"], match["names"].split())
        shown = (
            [part for part in (figures(root, operator), history(root, operator)) if part] if operator else []
        )
        return "\n\n".join(["## Measured", *shown]) if shown else ""

    return MARKER.sub(replace, markdown)


def colours() -> str:
    """Return the style that makes charts follow the site's colour scheme, not only the system's."""
    schemes = {"default": 1, "slate": 2}
    rules = [
        f'[data-md-color-scheme="{scheme}"] .ow-chart{{'
        + "".join(f"--ow-{name}:{value[index]};" for name, value in charts.COLOURS.items())
        + "}"
        for scheme, index in schemes.items()
    ]
    return "<style>" + "".join(rules) + "</style>"
