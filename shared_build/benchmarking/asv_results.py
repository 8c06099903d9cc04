"""Reads asv's result files and makes them fit to be committed."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

NOT_RESULTS = ("machine.json", "benchmarks.json")


@dataclass(frozen=True)
class Figure:
    """One value of one benchmark with one set of parameters."""

    value: float
    unit: str


Figures = dict[str, Figure]


def neutral_names(folder: Path) -> None:
    """Name the environment by its versions: asv names an existing one by the path of its interpreter.

    Rewrites the result files in `folder` in place and renames them; a file that is neutral already stays.
    """
    for path in sorted(folder.glob("*-existing-*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        label = f"existing-py{_version_of(data)}"
        if data.get("env_name") == label:
            continue
        data["env_name"] = label
        data["python"] = _version_of(data)
        data.get("params", {})["python"] = data["python"]
        target = path.with_name(f"{data['commit_hash'][:8]}-{label}.json")
        path.unlink()
        target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _version_of(data: dict[str, Any]) -> str:
    text = str(data.get("python", ""))
    if text and "/" not in text:
        return text
    import platform

    return ".".join(platform.python_version_tuple()[:2])


def figures(data: dict[str, Any], units: dict[str, str]) -> Figures:
    """Every value of a result file, under `benchmark(parameters)`.

    Args:
        data: the parsed file; asv stores rows with named columns and values in the order of the parameters'
            product.
        units: unit of each benchmark, from benchmarks.json.
    """
    columns = data["result_columns"]
    found: Figures = {}
    for name, row in data["results"].items():
        fields = dict(zip(columns, row, strict=False))
        values = fields.get("result") or []
        params = fields.get("params") or []
        labels = [", ".join(str(item).strip("'") for item in chosen) for chosen in product(*params)] or [""]
        for label, value in zip(labels, values, strict=False):
            number = math.nan if value is None else float(value)
            found[f"{name}({label})" if label else name] = Figure(number, units.get(name, ""))
    return found


def _units(folder: Path) -> dict[str, str]:
    path = folder.parent / "benchmarks.json"
    if not path.is_file():
        return {}
    data = json.loads(path.read_text(encoding="utf-8"))
    return {name: entry.get("unit", "") for name, entry in data.items() if isinstance(entry, dict)}


def load_results(folder: Path, commit: str = "") -> Figures | None:
    """The newest result in a machine's folder, of one commit if it is given; None where there is none."""
    newest: dict[str, Any] | None = None
    for path in sorted(folder.glob("*.json")):
        if path.name in NOT_RESULTS:
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        if commit and data["commit_hash"] != commit:
            continue
        if newest is None or data["date"] >= newest["date"]:
            newest = data
    return None if newest is None else figures(newest, _units(folder))


def newest_committed(root: Path, folder: str) -> Figures | None:
    """The newest result of a folder as the last commit holds it, whatever lies in the working tree.

    Args:
        root: the repository.
        folder: a machine's folder, relative to `root`.
    """
    parent = str(Path(folder).parent)
    archive = subprocess.run(
        ["git", "archive", "--format=tar", "HEAD", "--", parent], cwd=root, capture_output=True, check=False
    )
    if archive.returncode != 0:
        return None
    with tempfile.TemporaryDirectory(prefix="opwright-asv-") as scratch:
        subprocess.run(["tar", "-xf", "-"], input=archive.stdout, cwd=scratch, check=True)
        return load_results(Path(scratch) / folder)
