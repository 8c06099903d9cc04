"""``report.html``: one page that is readable alone, made from ``report.json``.

The bars are SVG drawn by the template in percent of the page's width, with text beside them instead of
inside: so they keep their size on a phone, follow the reader's light or dark setting, and add no charting
library to the client's environment, which is why none is used here.

``python -m shared_build.delivery.report report.json [--out report.html]`` renders it again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .bundle_accept import compare
from .contract import SECTIONS
from .verdicts import FAILS, HOLDS, UNDECIDED

TITLES = {
    "suite": ("Tests", "The whole suite, run against the installed wheel."),
    "accuracy": ("Accuracy", "Error against the float64 reference, on the same rounded inputs."),
    "gradients": ("Gradients", "What is differentiable, how often, and by which code."),
    "determinism": ("Determinism", "When two runs give the same bits."),
    "behaviour": ("Behaviour", "Layouts, sizes, errors and special values."),
    "framework": ("Framework", "Compilation, export, transforms, autocast and sharding."),
    "models": ("Models", "Whole models with and without the operator."),
    "memory": ("Memory", "Peak bytes newly allocated, as a multiple of what the call returns."),
    "package": ("Package", "The wheel: what is in it, and where it loads."),
    "devices": ("Devices", "Where it has run, and where it has not."),
    "limits": ("Limits", "What is refused, and what is not promised."),
}
METRICS = {
    "vs_eager": ("against eager PyTorch", "times as fast"),
    "vs_compile": ("against torch.compile", "times as fast"),
    "vs_rival": ("against", "times as fast"),
    "of_ceiling": ("of the best copy measured in the same run", "of the copy's bytes per second"),
    "peak_memory": ("peak memory", "times the bytes returned"),
}


def number(value: float | None) -> str:
    """Format a figure with three significant digits, large and small ones readably."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 0.001 <= abs(value) < 10000:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.2e}"


def size(count: int) -> str:
    """Format a number of bytes."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Format a time for people: seconds below two minutes, minutes above."""
    count, unit = (round(seconds), "second") if seconds < 120 else (round(seconds / 60), "minute")
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _percent(value: float | None, top: float) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(100 * min(max(value / top, 0.0), 1.0), 2)


def bullet(
    value: float | None, bound: float | None, *, low: float | None = None, high: float | None = None,
    goal: float | None = None, top: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Give the positions of one bar in percent of its width: value, spread, bound and goal."""
    finite = [v for v in (value, bound, low, high, goal) if v is not None and math.isfinite(v)]
    top = top or (max(finite) * 1.08 if finite and max(finite) > 0 else 1.0)
    parts = {"value": value, "bound": bound, "low": low, "high": high, "goal": goal}
    return {name: _percent(part, top) for name, part in parts.items()}


def _row(criterion: dict[str, Any]) -> dict[str, Any]:
    entry = criterion["measured"]
    parts = [entry.get("shape") or "", entry.get("dtype") or ""]
    threads = entry.get("threads")
    if threads is not None:
        parts.append("all threads" if threads == "all" else f"{threads} thread{'' if threads == 1 else 's'}")
    if str(entry["id"]).endswith("/geomean"):
        parts = ["geometric mean of all"]
    limit = entry["ceiling"] if entry.get("floor") is None else entry["floor"]
    return {**criterion, "label": " · ".join(part for part in parts if part), "limit": limit}


def charts(criteria: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Group the measured criteria by case and metric; the bars of a group share one scale."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for criterion in criteria:
        entry = criterion["measured"]
        if entry:
            rival = entry.get("contender", "") if entry["metric"] == "vs_rival" else ""
            groups.setdefault((entry["case"], entry["metric"], rival), []).append(_row(criterion))
    made = []
    for (case, metric, rival), rows in groups.items():
        numbers = [
            v
            for row in rows
            for v in (row["figure"], row["limit"], row["measured"].get("high"), row["measured"].get("goal"))
            if v is not None and math.isfinite(v)
        ]
        top = max(numbers, default=1.0) * 1.04
        for row in rows:
            entry = row["measured"]
            row["bar"] = bullet(
                row["figure"],
                row["limit"],
                low=None if metric == "peak_memory" else entry.get("low"),
                high=None if metric == "peak_memory" else entry.get("high"),
                goal=entry.get("goal"),
                top=top,
            )
        versus, unit = METRICS[metric]
        title = rows[0]["measured"].get("title") or case.replace("_", " ")
        made.append(
            {
                "case": case,
                "metric": metric,
                "title": f"{title}: {versus} {rival}".strip(),
                "unit": unit,
                "rows": rows,
                "memory": metric == "peak_memory",
                "goal": any(row["bar"]["goal"] is not None for row in rows),
                "counts": Counter(row["verdict"] for row in rows),
            }
        )
    return made


def highlights(criteria: list[dict[str, Any]], skips: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Choose the few figures that a reader wants first."""
    tiles = []
    for metric, label in (
        ("vs_eager", "of eager PyTorch's speed"),
        ("vs_compile", "of torch.compile's speed"),
        ("of_ceiling", "of the best copy"),
    ):
        # float32 and one layout of figures only would flatter: the range covers every measured cell of the
        # metric.
        values = [
            c["figure"] for c in criteria if c["measured"].get("metric") == metric and c["figure"] is not None
        ]
        if values:
            low, high = number(min(values)), number(max(values))
            tiles.append({"figure": f"{low}–{high}×" if low != high else f"{low}×", "label": label})
    used = [
        c["figure"]
        for c in criteria
        if c["unit"].startswith("of the allowed error") and c["figure"] is not None
    ]
    if used:
        label = "of the allowed error at worst, against float64"
        tiles.append({"figure": f"{max(used):.0%}", "label": label})
    suite = next((c for c in criteria if c["id"] == "suite/all-tests-pass"), None)
    if suite is not None:
        skipped = sum(skip["count"] for skip in skips)
        label = "tests passed" + (f", {skipped} skipped with a listed reason" if skipped else "")
        tiles.append({"figure": f"{suite['counts'].get('passed', 0):,}", "label": label})
    return tiles


def _sections(criteria: list[dict[str, Any]], contract: dict[str, Any]) -> list[dict[str, Any]]:
    made = []
    for name in ("suite", *SECTIONS):
        title, lead = TITLES.get(name, ("", ""))
        rows = [c for c in criteria if c["section"] == name and not c["measured"]]
        proven = {c["id"] for c in rows}
        items = {f"{name}/{item['id']}": item for item in contract.get(name, []) if isinstance(item, dict)}
        for row in rows:
            row["status"] = items.get(row["id"], {}).get("status", "")
            limit = _limit(row["bound"])
            row["bar"] = (
                bullet(row["figure"], limit) if row["figure"] is not None and limit is not None else None
            )
        plain = (
            [i for i in contract.get(name, []) if isinstance(i, dict) and f"{name}/{i['id']}" not in proven]
            if title
            else []
        )
        if name not in ("performance", "memory") and (rows or plain):
            made.append({"name": name, "title": title, "lead": lead, "rows": rows, "plain": plain})
    return made


def _limit(bound: str) -> float | None:
    words = bound.split()
    return float(words[2]) if len(words) > 2 and words[0] == "at" else None


def view(report: dict[str, Any], delivered: dict[str, Any] | None = None) -> dict[str, Any]:
    """Arrange a report for the template."""
    criteria = [dict(c) for c in report["criteria"]]
    counts = Counter(c["verdict"] for c in criteria)
    measured = charts(criteria)
    return {
        "report": report,
        "contract": report["contract"],
        "bundle": report.get("bundle") or (delivered or {}).get("bundle", {}),
        "acceptance": delivered is not None,
        "delivered": delivered,
        "comparison": compare(delivered, report) if delivered is not None else [],
        "total": len(criteria),
        "counts": {verdict: counts.get(verdict, 0) for verdict in (HOLDS, FAILS, UNDECIDED)},
        "attention": [c for v in (FAILS, UNDECIDED) for c in criteria if c["verdict"] == v],
        "tiles": highlights(criteria, report["skips"]),
        "charts": [group for group in measured if not group["memory"]],
        "memory": [group for group in measured if group["memory"]],
        "sections": _sections(criteria, report["contract"]),
        "folders": sorted(
            Counter(n.split("/")[0] for n in report.get("bundle", {}).get("files", {}) if "/" in n).items()
        ),
    }


def render(report: dict[str, Any], delivered: dict[str, Any] | None = None) -> str:
    """Return the page; with ``delivered`` it is the report of an acceptance, compared with that report."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, size=size, duration=duration)
    return environment.get_template("report.html.j2").render(view(report, delivered))


def main(argv: Iterable[str] | None = None) -> int:
    """Render a report again from its JSON."""
    parser = argparse.ArgumentParser(prog="python -m shared_build.delivery.report")
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, help="default: beside the JSON, with the ending .html")
    options = parser.parse_args(None if argv is None else list(argv))
    out = options.out or options.report.with_suffix(".html")
    out.write_text(render(json.loads(options.report.read_text(encoding="utf-8"))), encoding="utf-8")
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
