"""Measures the greatest error of every vector function and writes the table of docs/design/numerics.md.

``python -m shared_build.tests.simd.measure results.json`` measures what is not in the file yet and adds it:
float32 for all 2**32 arguments, which takes minutes a function; float64 for ``--samples`` arguments. With
``--write docs/design/numerics.md`` the table goes into the document.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from shared_build.tests.simd import bounds
from shared_build.tests.simd.levels import Probe, Reference, build_probe, build_reference, runnable_levels

CHUNK = 1 << 22
BEGIN, END = "<!-- errors: begin -->", "<!-- errors: end -->"
Results = dict[str, dict[str, dict[str, float]]]


def _chunks(kind: str, name: str, samples: int) -> list[tuple[str, int]]:
    if kind == "float":
        return [("bits", start) for start in range(0, 1 << 32, CHUNK)]
    return [("random", seed) for seed in range(max(1, samples // CHUNK))]


def measure(
    kind: str, name: str, probes: dict[str, Probe], reference: Reference, samples: int
) -> dict[str, float]:
    """Return the greatest error in ulp of one function by each of ``probes``."""
    worst = dict.fromkeys(probes, 0.0)
    for form, value in track(_chunks(kind, name, samples), description=f"{kind} {name}"):
        if form == "bits":
            x: Any = np.arange(value, value + CHUNK, dtype=np.uint64).astype(np.uint32).view(np.float32)
        else:
            x = bounds.points(kind, name, CHUNK, seed=value)
        exact = reference.values(kind, name, x)
        for label, probe in probes.items():
            error, _ = reference.worst(kind, probe.unary(kind, name, x), exact)
            worst[label] = max(worst[label], error)
    return worst


def table(results: Results) -> str:
    """Return the Markdown table of bounds and measured errors."""
    lines = [
        "| function | float32: bound | measured, no fma | measured, fma "
        "| float64: bound | measured, no fma | measured, fma |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in bounds.FUNCTIONS:
        cells = [f"`{name}`"]
        for kind in ("float", "double"):
            measured = results[kind][name]
            cells += [
                f"{bounds.BOUNDS[kind][name]:g}",
                f"{measured['plain']:.3f}",
                f"{measured['fused']:.3f}",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(document: Path, results: Results) -> None:
    """Replace the table between the marks in ``document``."""
    before, rest = document.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    document.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Measure, keep the results, and write the document if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="JSON file of the results so far; made if missing")
    parser.add_argument("--functions", nargs="*", default=list(bounds.FUNCTIONS))
    parser.add_argument("--samples", type=int, default=10 * CHUNK, help="float64 arguments a function")
    parser.add_argument("--write", type=Path, help="document to put the table into")
    options = parser.parse_args()
    results: Results = {"float": {}, "double": {}}
    if options.results.exists():
        results = json.loads(options.results.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        reference = Reference(build_reference(Path(folder)))
        # Levels with a fused multiply-add agree bit for bit, which the tests assert: one stands for all.
        every = [Probe(level, build_probe(level, Path(folder))) for level in runnable_levels()]
        probes = {"fused" if probe.fused else "plain": probe for probe in every}
        for kind in results:
            for name in options.functions:
                if name in results[kind]:
                    continue
                results[kind][name] = measure(kind, name, probes, reference, options.samples)
                options.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.write:
        write(options.write, results)


if __name__ == "__main__":
    main()
