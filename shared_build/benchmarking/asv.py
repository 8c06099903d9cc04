"""Runs one operator's asv benchmarks and compares them with the last committed result.

`python -m shared_build.benchmarking.asv <operator>` derives the operator's configuration from the root
asv.conf.json, measures the operator that is installed in the running interpreter, files the result under the
current commit in docs/benchmarks/results/<operator>/asv, and prints a table against the newest committed
result of the same machine. `--publish DIR` writes asv's pages from all results; `--quick` shows that
everything runs, its figures are not filed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import allocator, machine
from .asv_results import Figures, load_results, neutral_names, newest_committed
from .cases import repository_root
from .runner import terminal

NOTABLE = 0.05
"""Changes below this share are noise on most machines; the table leaves their colour alone."""


def derive(operator: str, root: Path) -> dict[str, Any]:
    """The operator's asv configuration: the root's, pointed at the operator; paths are relative to `.asv`.

    Raises:
        FileNotFoundError: no asv.conf.json, or no such package.
    """
    package = root / "packages" / operator
    if not (package / "benchmarks").is_dir():
        raise FileNotFoundError(f"asv: expected packages/{operator}/benchmarks, but got none in {root.name}")
    config = json.loads((root / "asv.conf.json").read_text(encoding="utf-8"))
    config.update(
        project=f"opwright-{operator.replace('_', '-')}",
        repo="..",
        repo_subdir=f"packages/{operator}",
        benchmark_dir=f"../packages/{operator}/benchmarks",
        env_dir="env",
        results_dir=f"../docs/benchmarks/results/{operator}/asv",
        html_dir=f"html/{operator}",
        uninstall_command=[
            f"return-code=any python -m pip uninstall -y opwright-{operator.replace('_', '-')}"
        ],
    )
    return config


@contextlib.contextmanager
def _home() -> Iterator[dict[str, str]]:
    """An environment whose home holds asv's machine file: asv neither asks nor writes to the user's."""
    facts = machine.describe_machine()
    name = machine.machine_name()
    entry = {
        "machine": name,
        "arch": facts["architecture"],
        "cpu": facts["cpu"],
        "num_cpu": str(facts["cores"]),
        "os": facts["system"],
        "ram": f"{facts['memory_gib']} GiB",
    }
    with tempfile.TemporaryDirectory(prefix="opwright-asv-") as home:
        (Path(home) / ".asv-machine.json").write_text(
            json.dumps({name: entry, "version": 1}), encoding="utf-8"
        )
        environment = allocator.environment()
        user_config = Path.home() / ".gitconfig"
        if user_config.is_file():
            environment.setdefault("GIT_CONFIG_GLOBAL", str(user_config))
        yield {**environment, "HOME": home, "PYTHONDONTWRITEBYTECODE": "1"}


def _asv(arguments: Sequence[str], config: Path, environment: dict[str, str]) -> int:
    command = [sys.executable, "-m", "asv", *arguments, "--config", str(config)]
    return subprocess.run(command, env=environment, check=False).returncode


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"asv: expected a git repository with a commit, but got: {done.stderr.strip()}")
    return done.stdout.strip()


def _cell(value: float, unit: str) -> str:
    if math.isnan(value):
        return "n/a"
    if unit == "seconds":
        return f"{value * 1e6:.4g} us" if value < 1e-3 else f"{value * 1e3:.4g} ms"
    if unit == "bytes":
        return f"{value / 2**20:.4g} MiB"
    return f"{value:.3g} {unit}"


def comparison(before: Figures | None, after: Figures, title: str) -> Table:
    """A table of every figure with its change; green is better, red is worse, by the figure's own sense."""
    table = Table(title=title, title_justify="left")
    table.add_column("benchmark", overflow="fold")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, figure in sorted(after.items()):
        old = before.get(name) if before else None
        change = "new"
        if old is not None and old.value and not math.isnan(old.value) and not math.isnan(figure.value):
            ratio = figure.value / old.value
            better = ratio < 1 if figure.unit in ("seconds", "bytes") else ratio > 1
            style = "default" if abs(ratio - 1) < NOTABLE else "green" if better else "red"
            change = f"[{style}]{100 * (ratio - 1):+.1f}%[/]"
        table.add_row(
            name, "-" if old is None else _cell(old.value, old.unit), _cell(figure.value, figure.unit), change
        )
    return table


def run(operator: str, root: Path, quick: bool, pattern: str, console: Console) -> int:
    """Measure, file the result, print the comparison. Returns asv's exit status."""
    state = root / ".asv"
    state.mkdir(exist_ok=True)
    config = derive(operator, root)
    if quick:
        # Nothing that a quick run finds belongs among the committed results.
        config["results_dir"] = f"quick/{operator}"
        shutil.rmtree(state / "quick" / operator, ignore_errors=True)
    path = state / f"{operator}.conf.json"
    path.write_text(json.dumps(config, indent=4) + "\n", encoding="utf-8")
    commit = _git(root, "rev-parse", "HEAD")
    committed = newest_committed(root, f"docs/benchmarks/results/{operator}/asv/{machine.machine_name()}")
    arguments = ["run", "--environment", f"existing:{sys.executable}", "--set-commit-hash", commit]
    arguments += ["--machine", machine.machine_name(), "--show-stderr", "--launch-method", "spawn"]
    if quick:
        arguments.append("--quick")
    if pattern:
        arguments += ["--bench", pattern]
    with _home() as environment:
        if quick:
            environment["OPWRIGHT_BENCH_QUICK"] = "1"
        status = _asv(arguments, path, environment)
    results = (state / config["results_dir"]).resolve()
    neutral_names(results / machine.machine_name())
    filed = load_results(results / machine.machine_name(), commit)
    if filed is None:
        console.print("asv filed no result", style="red")
        return status or 1
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    console.print(comparison(committed, filed, f"{operator}, {machine.machine_name()}, {when}"))
    if committed is None:
        console.print("No result of this machine is committed yet: there is nothing to compare with.")
    return status


def publish(operator: str, root: Path, target: Path) -> int:
    """Write asv's pages for the operator from its filed results. Returns asv's exit status."""
    if not list((root / "docs" / "benchmarks" / "results" / operator / "asv").glob("*/*-existing-*.json")):
        terminal().print(f"{operator}: no asv result is filed yet, nothing to publish")
        return 0
    state = root / ".asv"
    state.mkdir(exist_ok=True)
    path = state / f"{operator}.publish.json"
    path.write_text(json.dumps(derive(operator, root), indent=4) + "\n", encoding="utf-8")
    with _home() as environment:
        return _asv(["publish", "--html-dir", str(target.resolve())], path, environment)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="shared_build.benchmarking.asv", description=__doc__)
    parser.add_argument("operator")
    parser.add_argument("--quick", action="store_true", help="fewest rounds, results not filed")
    parser.add_argument("--bench", default="", help="only benchmarks whose name matches this expression")
    parser.add_argument(
        "--publish", type=Path, metavar="DIR", help="write asv's pages there and measure nothing"
    )
    options = parser.parse_args(arguments)
    console = terminal()
    try:
        root = repository_root()
        if options.publish:
            return publish(options.operator, root, options.publish)
        return run(options.operator, root, options.quick, options.bench, console)
    except (OSError, RuntimeError, ValueError) as error:
        terminal(stderr=True).print(str(error), style="bold red", markup=False)
        return 3


if __name__ == "__main__":
    sys.exit(main())
