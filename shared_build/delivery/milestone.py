"""Make the delivery of one operator, and prove its contract while doing so.

    python -m shared_build.delivery.milestone rms_norm [--out dist] [--torch 2.13.0]

It builds sdist and wheel, installs the wheel into a clean environment, runs tests, wheel audit and
benchmarks against it from a directory away from the repository, judges every line of ``contract.toml``, and
writes ``<out>/<op>-<version>/``.

Exit status: 0 every criterion holds; 1 one fails; 2 undecided (the spread of a measurement is wider than
its margin, or something was left out with --skip-performance). In all three cases the delivery is complete,
its report says which case it is, and the criteria that fail are named last on the terminal: a red report
can be read only if it is there. When the delivery cannot be made at all (no compiler, no space, no package
index) the exit status is 1 too and nothing is written.
"""

from __future__ import annotations

import argparse
import datetime
import errno
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from . import building, bundle, verdicts
from .bundle_accept import AcceptError, clean_environment, digest, files_of, run, run_check
from .contract import ContractError, load_contract, package_problems
from .report import render

DEFAULT_TORCH = "2.13.0"
_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file grew too big",
}


class _WhenCounted(ProgressColumn):
    """Another column, shown only for a step whose number of parts is known."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> RenderableType:
        """Render the column or nothing."""
        return self._column.render(task) if task.fields["counted"] else ""


class Steps:
    """The progress display: one line a step, with its time, and a bar where the number of parts is known."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            _WhenCounted(BarColumn(bar_width=20)),
            _WhenCounted(MofNCompleteColumn()),
            TextColumn("[dim]{task.fields[what]}"),
            console=console,
        )
        self._open: TaskID | None = None
        self._phase = ""

    def __enter__(self) -> Steps:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def step(self, text: str) -> None:
        """Finish the step before and begin the next one."""
        self.finish()
        self._phase = text
        self._open = self._progress.add_task(escape(text), total=None, what="", counted=False)
        if not self._console.is_terminal:
            self._console.print(escape(text), soft_wrap=True)

    def finish(self) -> None:
        """Mark the current step as done."""
        if self._open is not None:
            total = self._progress.tasks[self._open].total or 1
            self._progress.update(self._open, total=total, completed=total, what="")
            self._open = None

    def event(self, event: dict[str, Any]) -> None:
        """Show one event of the checks; each phase is a step of its own."""
        phase = f"  {event['phase']}"
        if phase != self._phase:
            self.step(phase)
        assert self._open is not None
        total = event["total"] or None
        what = escape(event["what"][-max(self._console.width - 70, 10) :])
        self._progress.update(
            self._open, total=total, completed=event["done"], what=what, counted=total is not None
        )


def _index_settings(options: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return pip's index settings as arguments, and as variables for the build's own environments."""
    arguments: list[str] = []
    variables: dict[str, str] = {}
    if options.no_index:
        arguments.append("--no-index")
        variables["PIP_NO_INDEX"] = "1"
    if options.index_url:
        arguments += ["--index-url", options.index_url]
        variables["PIP_INDEX_URL"] = options.index_url
    for url in options.extra_index_url:
        arguments += ["--extra-index-url", url]
    links = [str(Path(folder).resolve()) for folder in options.find_links]
    for folder in links:
        arguments += ["--find-links", folder]
    if options.extra_index_url:
        variables["PIP_EXTRA_INDEX_URL"] = " ".join(options.extra_index_url)
    if links:
        variables["PIP_FIND_LINKS"] = " ".join(links)
    return arguments, variables


def _revision(package: Path) -> str:
    if shutil.which("git") is None:
        return ""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip()


def _profile(python: Path, suite: Path, operator: str, target: Path) -> None:
    run(
        [python, "-m", "shared_build.benchmarking.profile", operator, "--out", target],
        "profiling",
        cwd=suite,
        env=clean_environment(),
    )


def milestone(options: argparse.Namespace, steps: Steps) -> tuple[Path, dict[str, Any]]:
    """Build, install, run, judge, write; return the delivery's path and its report.

    Raises:
        AcceptError, ContractError, OSError: the delivery cannot be made; nothing of it is left.
    """
    steps.step("Reading the contract")
    package = building.find_package(options.operator, Path.cwd())
    contract = load_contract(package)
    problems = package_problems(contract)
    if problems:
        raise ContractError(contract.path, problems)
    target = options.out.resolve() / f"{contract.operator}-{contract.version}"
    built_with = building.compiler() if (package / "CMakeLists.txt").is_file() else ""
    building.check_space((Path(tempfile.gettempdir()), target), options.space)
    arguments, variables = _index_settings(options)
    work = Path(tempfile.mkdtemp(prefix=f"{target.name}-milestone-"))
    try:
        with bundle.published(target) as partial:
            steps.step("Building sdist and wheel")
            built = building.build(package, work, options.torch, variables)
            for file in (built.wheel, built.sdist, contract.path):
                shutil.copy2(file, partial)
            bundle.stage_suite(package, partial / "tests")
            bundle.stage_documents(package, partial / "docs")
            shutil.copy2(Path(__file__).with_name("bundle_accept.py"), partial / "accept.py")

            steps.step(
                f"Installing torch {options.torch}, the requirements and the wheel into a clean environment"
            )
            files = building.requirement_files(package)
            python = building.install(
                work / "environment", options.python, options.torch, files, built.wheel, arguments
            )
            (partial / "requirements.txt").write_text(building.pins(python, files), encoding="utf-8")

            suite, results = work / "suite", partial / "results"
            shutil.copytree(partial / "tests", suite)
            results.mkdir()
            if contract.measured and not options.skip_performance:
                # First, because it is short: what it needs is missing now or never.
                steps.step("Profiling the operator and a model block")
                _profile(python, suite, contract.operator, partial / "profile")

            steps.step("Running the contract's proofs against the installed wheel")
            flags: list[str | Path] = [
                "--contract",
                partial / "contract.toml",
                "--out",
                results,
                "--wheel",
                built.wheel,
            ]
            flags += ["--objects", built.objects] if built.objects.is_dir() else []
            flags += ["--enforce-manylinux"] if options.enforce_manylinux else []
            flags += ["--skip-performance"] if options.skip_performance else []
            run_check(python, suite, flags, steps.event)
            steps.step("Writing the report")
            report = _finish(partial, options, built, built_with, _revision(package))
        steps.finish()
        return target, report
    finally:
        if options.keep:
            print(f"Environment and suite kept in {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


def _finish(
    partial: Path, options: argparse.Namespace, built: building.Built, built_with: str, revision: str
) -> dict[str, Any]:
    results = partial / "results" / "results.json"
    report: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    results.unlink()
    _anonymise(partial / "results" / "junit.xml")
    report["bundle"] = {
        "operator": report["contract"]["operator"],
        "distribution": report["contract"]["distribution"],
        "version": report["contract"]["version"],
        "torch": options.torch,
        "wheel": built.wheel.name,
        "sdist": built.sdist.name,
        "built_with": built_with,
        "revision": revision,
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": f"nox -s milestone -- {options.operator}"
        + (" --skip-performance" if options.skip_performance else "")
        + (f" --torch {options.torch}" if options.torch != DEFAULT_TORCH else ""),
        "files": {
            name: {"bytes": (partial / name).stat().st_size, "sha256": digest(partial / name)}
            for name in files_of(partial)
        },
    }
    (partial / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    (partial / "report.html").write_text(render(report), encoding="utf-8")
    bundle.write_sums(partial)
    return report


def _anonymise(junit: Path) -> None:
    """Take the name of the machine out of the JUnit file."""
    from junitparser import JUnitXml

    if junit.is_file():
        document = JUnitXml.fromfile(str(junit))
        for suite in document:
            suite.hostname = "-"
        document.write()


def _tell(console: Console, target: Path, report: dict[str, Any]) -> None:
    counts = {v: [c for c in report["criteria"] if c["verdict"] == v] for v in verdicts.EXIT}
    console.print(f"\nReport: {target / 'report.html'}", soft_wrap=True, highlight=False)
    name = target.name
    if report["partial"]:
        console.print(f"[yellow]partial[/]: {escape(report['partial'])}", soft_wrap=True)
    elif counts[verdicts.UNDECIDED]:
        for criterion in counts[verdicts.UNDECIDED]:
            console.print(
                f"[yellow]undecided[/] {escape(criterion['id'])}: {escape(criterion['reason'])}",
                soft_wrap=True,
            )
    told = ", ".join(f"{len(found)} {verdict}" for verdict, found in counts.items())
    style = {verdicts.HOLDS: "green", verdicts.FAILS: "red", verdicts.UNDECIDED: "yellow"}[report["verdict"]]
    console.print(f"{name}: [bold {style}]{report['verdict']}[/] ({told})", soft_wrap=True, highlight=False)
    for criterion in counts[verdicts.FAILS]:
        console.print(
            f"[red]fails[/] {escape(criterion['id'])}: {escape(criterion['reason'])}", soft_wrap=True
        )


def _parse(argv: Iterable[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m shared_build.delivery.milestone",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("operator")
    parser.add_argument(
        "--out", type=Path, default=Path("dist"), help="parent of the delivery (default: dist)"
    )
    parser.add_argument(
        "--torch", default=DEFAULT_TORCH, help=f"torch to build and prove with (default: {DEFAULT_TORCH})"
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter for the clean environment")
    parser.add_argument("--index-url", help="package index")
    parser.add_argument("--extra-index-url", action="append", default=[], help="another index, repeatable")
    parser.add_argument("--find-links", action="append", default=[], help="directory with wheels, repeatable")
    parser.add_argument("--no-index", action="store_true", help="use no package index, only --find-links")
    parser.add_argument("--enforce-manylinux", action="store_true", help="fail above manylinux_2_28")
    parser.add_argument(
        "--skip-performance", action="store_true", help="leave speed and memory out (exit status 2)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environment and say where it is")
    parser.add_argument(
        "--space", type=int, default=building.SPACE, help="free bytes to ask for before starting"
    )
    return parser.parse_args(None if argv is None else list(argv))


def main(argv: Iterable[str] | None = None) -> int:
    """Make a delivery from the command line; exit status 0 holds, 1 fails, 2 undecided."""
    options = _parse(argv)
    console = Console()
    problem = ""
    try:
        with Steps(console) as steps:
            target, report = milestone(options, steps)
    except (AcceptError, ContractError) as error:
        problem = str(error)
    except OSError as error:
        told = _FULL.get(error.errno or 0, error.strerror or str(error))
        problem = told + (f" (while writing {error.filename})" if error.filename else "")
    except KeyboardInterrupt:
        problem = "interrupted"
    if problem:
        Console(stderr=True).print(
            f"[red]milestone {escape(options.operator)}:[/] {escape(problem)}\nNothing was written.",
            soft_wrap=True,
        )
        return 1
    _tell(console, target, report)
    return verdicts.EXIT[report["verdict"]]


if __name__ == "__main__":
    sys.exit(main())
