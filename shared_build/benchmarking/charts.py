"""Draws charts from a report's figures: SVG files that read well in light and dark and on a phone.

`python -m shared_build.benchmarking.charts <operator>` draws build/charts/<operator>/ from the committed
figures; the site and a milestone draw theirs in the same way. The same figures give the same bytes.

matplotlib draws, because a static SVG needs no script where it is shown and can be embedded in a report that
must be readable alone. Colours are CSS variables with a value for each colour scheme, and text stays text.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cases import DTYPES, load_cases, operator_root, parse_shape, repository_root
from .measure import results_path

# name: (stand-in that matplotlib is given, in light, in dark)
COLOURS = {
    "text": ("#010101", "#1f2328", "#e6e6e6"),
    "faint": ("#020202", "#6b7280", "#9aa3ad"),
    "grid": ("#030303", "#d8dce1", "#3a4048"),
    "parity": ("#040404", "#6b7280", "#9aa3ad"),
    "panel": ("#050505", "#ffffff", "#1b1f24"),
    "eager": ("#060606", "#c2410c", "#fb923c"),
    "compile": ("#070707", "#1d4ed8", "#7aa2ff"),
    "rival": ("#080808", "#7e22ce", "#c99bff"),
    "ours": ("#090909", "#0f766e", "#3fd0bd"),
    "copy": ("#0a0a0a", "#9ca3af", "#6b7280"),
}
LABELS = {"eager": "eager", "compile": "torch.compile"}
WIDTH = 4.6
"""Inches. Narrow, so that text is still readable when a phone scales the chart to its width."""
ROW = 0.3
LEGEND = {
    "bbox_to_anchor": (0.02, 0),
    "borderaxespad": 0.3,
    "frameon": False,
    "handlelength": 1.2,
    "columnspacing": 1.2,
}


@dataclass(frozen=True)
class Chart:
    """One SVG file with what a page needs to show it."""

    path: Path
    title: str
    alt: str
    caption: str


def _ink(name: str) -> str:
    return COLOURS[name][0]


def _colour_of(contender: str) -> str:
    return _ink(contender if contender in LABELS else "rival")


def caption(report: dict[str, Any]) -> str:
    """Machine, versions, load and command: what the figures depend on, in one line."""
    machine, versions = report["machine"], report["versions"]
    others = [c["other_cores_busy"] for c in report["conditions"] if c.get("other_cores_busy") is not None]
    load = f"; others used {max(others):.1f} cores" if others else ""
    package = next(
        (f"{name} {value}" for name, value in versions.items() if name.startswith("opwright-")), ""
    )
    return (
        f"{machine['cpu']}, {machine['threads']} threads, {versions['kernel_level']} kernels; torch "
        f"{versions['torch']}, {package}{load}. {report['date']}, {report['command']}"
    )


def _rows(report: dict[str, Any], case: str, threads: int | str) -> list[dict[str, Any]]:
    cells = [cell for cell in report["cells"] if cell["case"] == case and cell["threads"] == threads]
    return sorted(
        cells, key=lambda cell: (DTYPES.index(cell["dtype"]), math.prod(parse_shape(cell["shape"])))
    )


def _svg(draw: Callable[[Any], None], rows: int, title: str, alt: str) -> str:
    """Draw a figure and make it theme-aware, accessible and the same every time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = {
        "svg.hashsalt": "opwright",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.color": _ink("text"),
        "axes.labelcolor": _ink("faint"),
        "xtick.color": _ink("faint"),
        "ytick.color": _ink("text"),
        "figure.facecolor": _ink("panel"),
        "axes.facecolor": _ink("panel"),
        "savefig.facecolor": _ink("panel"),
        "axes.edgecolor": _ink("grid"),
        "grid.color": _ink("grid"),
    }
    with matplotlib.rc_context(settings):
        heading = textwrap.wrap(title, 50)
        top, bottom = 0.14 + 0.17 * len(heading), 0.66
        tall = top + bottom + ROW * rows
        figure, axes = pyplot.subplots(figsize=(WIDTH, tall))
        figure.subplots_adjust(left=0.28, right=0.97, top=1 - top / tall, bottom=bottom / tall)
        figure.suptitle(
            "\n".join(heading), x=0.02, y=1 - 0.06 / tall, ha="left", va="top", fontsize=10, fontweight="bold"
        )
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0)
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return themed(buffer.getvalue(), title, alt)


def themed(svg: str, title: str, alt: str) -> str:
    """Replace stand-in colours by variables, name the drawing, drop what would collide in a page."""
    for name, (stand_in, _, _) in COLOURS.items():
        svg = svg.replace(stand_in, f"var(--ow-{name})")
    light = "".join(f"--ow-{name}:{value[1]};" for name, value in COLOURS.items())
    dark = "".join(f"--ow-{name}:{value[2]};" for name, value in COLOURS.items())
    style = (
        f"<style>.ow-chart{{{light}}}@media(prefers-color-scheme:dark){{.ow-chart{{{dark}}}}}"
        f".ow-chart text{{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}}</style>"
    )
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # Identifiers that nothing refers to would repeat when several charts stand in one page.
    svg = re.sub(
        r' id="(?:figure|axes|patch|text|line2d|[xy]tick|legend|matplotlib\.axis|[A-Za-z]+Collection)_\d+"',
        "",
        svg,
    )
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", _size_first(svg), count=1)
    label = f'class="ow-chart" role="img" aria-label="{_escape(alt)}" style="max-width:100%;height:auto" '
    svg = svg.replace("<svg ", f"<svg {label}", 1)
    head_end = svg.index(">") + 1
    return svg[:head_end] + f"\n<title>{_escape(title)}</title>{style}" + svg[head_end:] + "\n"


def _size_first(svg: str) -> str:
    """The drawing's own size stays in its viewBox; the page decides how wide it is shown."""
    head, rest = svg.split(">", 1)
    head = re.sub(r"\s+", " ", head)
    return f"{head}>{rest}"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _positions(cells: Sequence[dict[str, Any]]) -> tuple[list[float], list[str]]:
    """Vertical place and label of each row; a gap where the dtype changes."""
    places: list[float] = []
    labels = []
    place = 0.0
    for index, cell in enumerate(cells):
        if index and cell["dtype"] != cells[index - 1]["dtype"]:
            place += 0.6
        places.append(place)
        labels.append(f"{cell['shape'].replace('x', ' x ')}  {cell['dtype']}")
        place += 1
    return places, labels


def draw_speedups(axes: Any, cells: Sequence[dict[str, Any]]) -> None:
    """For each cell, how many times faster ours is than each contender, with the interval.

    The ratios stand in columns of their own on the right, one a contender, where no mark can cover them.
    """
    from matplotlib.transforms import blended_transform_factory

    places, labels = _positions(cells)
    names = list(dict.fromkeys(name for cell in cells for name in cell["ratios"]))
    values: list[float] = [1.0]
    axes.figure.subplots_adjust(right=0.975 - 0.125 * len(names))
    column = blended_transform_factory(axes.figure.transFigure, axes.transData)
    for number, name in enumerate(names):
        colour = _colour_of(name)
        shift = 0.26 * (number - (len(names) - 1) / 2)
        for place, cell in zip(places, cells, strict=True):
            item = cell["ratios"].get(name)
            if item is None:
                continue
            axes.hlines(place + shift, item["low"], item["high"], color=colour, lw=1.6)
            axes.plot([item["ratio"]], [place + shift], "o", ms=5, color=colour)
            axes.text(
                0.985 - 0.125 * (len(names) - 1 - number),
                place,
                _times(item["ratio"]),
                transform=column,
                ha="right",
                va="center",
                fontsize=8,
                color=colour,
            )
            values.append(item["ratio"])
        axes.plot([], [], "o-", ms=5, lw=1.6, color=colour, label=LABELS.get(name, name))
    axes.axvline(1, color=_ink("parity"), lw=1, ls=(0, (3, 2)))
    _ratio_axis(axes, values)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlabel("times faster than (left of the line: slower)")
    axes.figure.legend(loc="lower left", ncols=3, **LEGEND)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x" if ratio < 1000 else ">999x"


TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def _ratio_axis(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic axis with few round numbers: half the speed is as far from parity as twice."""
    axes.set_xscale("log")
    lowest, highest = max(min(values) / 1.25, 0.02), min(max(values) * 1.4, 200)
    axes.set_xlim(lowest, highest)
    dense = highest / lowest < 30
    ticks = [tick for tick in (TICKS if dense else TICKS[1::3]) if lowest <= tick <= highest]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="x", lw=0.6)
    axes.set_axisbelow(True)


def draw_bandwidth(axes: Any, cells: Sequence[dict[str, Any]]) -> None:
    """For each cell, bytes per second of ours on top of the best copy's."""
    places, labels = _positions(cells)
    copies = [cell["copy_gb_per_s"] for cell in cells]
    ours = [cell["gb_per_s"] for cell in cells]
    axes.barh(places, copies, height=0.72, color=_ink("copy"), label="best copy")
    axes.barh(places, ours, height=0.36, color=_ink("ours"), label="ours")
    for place, rate, copy, cell in zip(places, ours, copies, cells, strict=True):
        share = f"{rate:.3g} GB/s, {cell['of_ceiling']['ratio']:.0%}"
        axes.annotate(
            share,
            (max(rate, copy), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_xlim(0, 1.45 * max([*ours, *copies]))
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.grid(axis="x", lw=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("GB/s, bytes that must be moved")
    axes.figure.legend(loc="lower left", ncols=2, **LEGEND)


def _describe(cells: Sequence[dict[str, Any]]) -> str:
    parts = []
    for cell in cells:
        faster = ", ".join(
            f"{item['ratio']:.2g} times {LABELS.get(name, name)}" for name, item in cell["ratios"].items()
        )
        parts.append(f"{cell['shape']} {cell['dtype']}: {faster}")
    return "; ".join(parts)


def draw(report: dict[str, Any], folder: Path, titles: dict[str, str] | None = None) -> list[Chart]:
    """Draw every chart that the figures of a report allow.

    Args:
        report: a report as plain data (of a contract or of a measurement).
        folder: where the SVG files go; made if it is not there.
        titles: cases by name with their titles, in order; the names themselves if None.

    Returns:
        The charts: for each case its speed-ups on one thread and on all, and its bytes per second.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cases = list(dict.fromkeys(cell["case"] for cell in report["cells"]))
    titles = {name: (titles or {}).get(name, name) for name in cases}
    note = caption(report)
    charts = []

    def add(name: str, title: str, alt: str, drawer: Callable[[Any], None], rows: int) -> None:
        path = folder / f"{name}.svg"
        path.write_text(_svg(drawer, rows, title, alt), encoding="utf-8")
        charts.append(Chart(path, title, alt, note))

    for case, title in titles.items():
        for threads in dict.fromkeys(cell["threads"] for cell in report["cells"] if cell["case"] == case):
            cells = [cell for cell in _rows(report, case, threads) if cell["ratios"]]
            number = report["machine"]["threads"] if threads == "all" else threads
            where = f"{number} thread" + ("" if number == 1 else "s")
            if cells:
                alt = f"Times faster on {where}. {_describe(cells)}"
                add(
                    f"{case}-{threads}",
                    f"{title}, {where}",
                    alt,
                    functools.partial(draw_speedups, cells=cells),
                    len(cells),
                )
            rated = [
                cell
                for cell in _rows(report, case, threads)
                if "copy_gb_per_s" in cell and "gb_per_s" in cell
            ]
            if rated:
                alt = f"GB/s on {where}. " + "; ".join(
                    f"{cell['shape']} {cell['dtype']}: {cell['gb_per_s']:.3g} of {cell['copy_gb_per_s']:.3g}"
                    for cell in rated
                )
                drawer = functools.partial(draw_bandwidth, cells=rated)
                add(f"{case}-bandwidth-{threads}", f"{title}: bandwidth, {where}", alt, drawer, len(rated))
    return charts


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="shared_build.benchmarking.charts", description=__doc__)
    parser.add_argument("operator")
    parser.add_argument(
        "--results", type=Path, help="a report as JSON; default: this machine's committed figures"
    )
    parser.add_argument("--out", type=Path, help="folder; default: build/charts/<operator>")
    options = parser.parse_args(arguments)
    try:
        source = options.results or newest_results(options.operator, repository_root())
        target = options.out or repository_root() / "build" / "charts" / options.operator
        report = json.loads(source.read_text(encoding="utf-8"))
        titles = {case.name: case.title for case in load_cases(operator_root(options.operator)).values()}
        for chart in draw(report, target, titles):
            print(chart.path)
    except (OSError, ValueError, KeyError) as error:
        print(f"no charts: {error}", file=sys.stderr)
        return 3
    return 0


def newest_results(operator: str, root: Path) -> Path:
    """The figures to draw: of this kind of machine if there are any, else the first by name.

    Raises:
        FileNotFoundError: nothing was measured and saved yet.
    """
    own = results_path(operator, root)
    if own.is_file():
        return own
    others = sorted(own.parent.glob("*.json"))
    if not others:
        raise FileNotFoundError(
            f"charts: expected figures in docs/benchmarks/results/{operator}, but got none"
        )
    return others[0]


if __name__ == "__main__":
    sys.exit(main())
