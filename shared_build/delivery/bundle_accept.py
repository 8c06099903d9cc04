"""Accept this delivery: prove its contract again on this machine, from this directory alone.

    python accept.py                     install into a fresh environment, run everything, compare
    python accept.py --torch 2.14.1      the same with another torch
    python accept.py --no-index --find-links WHEELS    without a package index
    python accept.py --skip-performance  tests and wheel audit only: a partial acceptance, exit status 2

Nothing is installed before SHA256SUMS has been verified, and this directory is never written to: the
acceptance report goes to the directory that --out names. Exit status: 0 every criterion holds, 1 one fails
(or the delivery is damaged, or could not be installed or run), 2 undecided or partial. Needs Python 3.11 or
later and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
MARK = "opwright-progress "
EXIT = {"holds": 0, "fails": 1, "undecided": 2}
Progress = Callable[[dict[str, Any]], None]


class AcceptError(RuntimeError):
    """What keeps the acceptance from being run at all; the text is for the person at the terminal."""


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_of(root: Path) -> list[str]:
    """List every file (and link) below a directory, relative, sorted, without the sums themselves."""
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and path.relative_to(root).as_posix() != SUMS
    )


def damages(root: Path) -> list[str]:
    """Compare a bundle with its SHA256SUMS; one sentence for each file changed, missing, extra or a link."""
    sums = root / SUMS
    if not sums.is_file():
        return [f"missing: {SUMS}"]
    expected: dict[str, str] = {}
    found = []
    for number, line in enumerate(sums.read_text(encoding="utf-8").splitlines(), 1):
        value, _, name = line.partition("  ")
        if len(value) != 64 or set(value) - set("0123456789abcdef") or not name:
            found.append(f"unreadable: line {number} of {SUMS}")
        else:
            expected[name] = value
    there = files_of(root)
    found += [f"missing: {name}" for name in sorted(expected.keys() - set(there))]
    found += [f"not part of the delivery: {name}" for name in there if name not in expected]
    for name in sorted(expected.keys() & set(there)):
        path = root / name
        if path.is_symlink():
            found.append(f"not part of the delivery: {name} is a link")
        elif digest(path) != expected[name]:
            found.append(f"changed: {name} differs from its checksum in {SUMS}")
    return found


def clean_environment(**extra: str) -> dict[str, str]:
    """Return the process environment without what would let other code in beside the environment's own."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")
    }
    return {
        **kept,
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **extra,
    }


def run(command: Sequence[str | Path], what: str, hint: str = "", **options: Any) -> str:
    """Run a command and return its output; AcceptError with the end of the output when it fails."""
    options.setdefault("env", clean_environment())
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        **options,
    )
    if done.returncode != 0:
        tail = "\n".join(f"    {line}" for line in done.stdout.strip().splitlines()[-12:])
        raise AcceptError(
            f"{what} failed (exit status {done.returncode})\n{tail}" + (f"\n  {hint}" if hint else "")
        )
    return done.stdout


def create_environment(where: Path, python: str) -> Path:
    """Make a virtual environment and return its interpreter."""
    run(
        [python, "-m", "venv", where],
        f"creating an environment with {python}",
        "Is the venv module installed? On Debian and Ubuntu: apt install python3-venv",
    )
    return where / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pip_install(python: Path, arguments: Sequence[str | Path], what: str, index: Sequence[str]) -> None:
    """Install into an environment; a failure says what could not be installed and what to try."""
    offline = "--no-index" in index
    hint = (
        "Without a package index every requirement must lie in a --find-links directory."
        if offline
        else "Is the package index reachable? Without one: --no-index --find-links DIRECTORY with wheels "
        "of requirements.txt and torch in it"
    )
    run([python, "-m", "pip", "install", "--quiet", *index, *arguments], f"installing {what}", hint)


def run_check(python: Path, suite: Path, arguments: Sequence[str | Path], progress: Progress) -> None:
    """Run the checks in the environment, from the copied suite; AcceptError when they cannot run."""
    command = [str(part) for part in (python, "-m", "shared_build.delivery.check", *arguments)]
    tail: deque[str] = deque(maxlen=12)
    with subprocess.Popen(
        command,
        cwd=suite,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                progress(json.loads(line[len(MARK) :]))
            else:
                tail.append(f"    {line.rstrip()}")
    if process.returncode != 0:
        raise AcceptError(f"running the checks failed (exit status {process.returncode})\n" + "\n".join(tail))


def compare(delivered: dict[str, Any], here: dict[str, Any]) -> list[dict[str, Any]]:
    """Pair the criteria of two reports by id: figures, their difference, both verdicts."""
    before = {c["id"]: c for c in delivered["criteria"]}
    after = {c["id"]: c for c in here["criteria"]}
    rows = []
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name, {}), after.get(name, {})
        a, b = old.get("figure"), new.get("figure")
        change = (b - a) / a if a and b is not None and math.isfinite(a) and math.isfinite(b) else None
        rows.append(
            {
                "id": name,
                "delivered": {"figure": a, "verdict": old.get("verdict", "not in the delivered report")},
                "here": {"figure": b, "verdict": new.get("verdict", "not judged here")},
                "change": change,
                "reason": new.get("reason", ""),
            }
        )
    return rows


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the comparison, one criterion a line."""
    width = min(max(len(row["id"]) for row in rows), 64)
    print(f"\n{'criterion':{width}}  {'delivered':>9}  {'here':>9}  {'change':>7}  verdict")
    for row in rows:
        change = "" if row["change"] is None else f"{row['change']:+.0%}"
        here, delivered = row["here"]["verdict"], row["delivered"]["verdict"]
        verdict = here if here == delivered else f"{here} (delivered: {delivered})"
        print(
            f"{row['id'][:width]:{width}}  {_number(row['delivered']['figure']):>9}  "
            f"{_number(row['here']['figure']):>9}  {change:>7}  {verdict}"
        )


class Terminal:
    """Progress on one line where there is a terminal, else one line a step."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._last = ""

    def step(self, text: str) -> None:
        """Name the step that begins."""
        self._end()
        print(text, flush=True)

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event of the checks."""
        total = event.get("total") or 0
        count = f" {event.get('done', 0)}/{total}" if total else ""
        line = f"  {event['phase']}{count}  {event.get('what', '')}"
        if self._live:
            columns = shutil.get_terminal_size().columns - 1
            print(f"\r{line[:columns]:{columns}}", end="", flush=True)
            self._last = line
        elif event["phase"] != self._last:
            self._last = event["phase"]
            print(f"  {event['phase']}{f' ({total})' if total else ''}", flush=True)

    def _end(self) -> None:
        if self._live and self._last:
            print()
        self._last = ""

    def close(self) -> None:
        """Leave the progress line."""
        self._end()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="accept.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, help="directory for the acceptance report (default: beside the bundle)"
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter for the fresh environment")
    parser.add_argument("--torch", help="torch version (default: the one that the delivery was proven with)")
    parser.add_argument("--index-url", help="package index for torch and the requirements")
    parser.add_argument("--extra-index-url", action="append", default=[], help="another index, repeatable")
    parser.add_argument("--find-links", action="append", default=[], help="directory with wheels, repeatable")
    parser.add_argument("--no-index", action="store_true", help="use no package index, only --find-links")
    parser.add_argument(
        "--skip-performance", action="store_true", help="leave speed and memory out: partial, exit status 2"
    )
    parser.add_argument(
        "--tests-only", action="store_true", help="leave the wheel audit out as well: partial, exit status 2"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environment and say where it is")
    return parser.parse_args(argv)


def _index(options: argparse.Namespace) -> list[str]:
    arguments = ["--no-index"] if options.no_index else []
    arguments += ["--index-url", options.index_url] if options.index_url else []
    for url in options.extra_index_url:
        arguments += ["--extra-index-url", url]
    for folder in options.find_links:
        arguments += ["--find-links", folder]
    return arguments


def _out(bundle: Path, wanted: Path | None) -> Path:
    """Return where the acceptance report goes; AcceptError, before any work, when it cannot go there."""
    out = (wanted or bundle.parent / f"{bundle.name}-acceptance").resolve()
    if out == bundle or bundle in out.parents:
        raise AcceptError(f"expected --out outside the delivery, which stays as it is, but got {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(out.parent, os.W_OK):
        raise AcceptError(
            f"expected a directory that can be written to, but got {out.parent}; choose one with --out"
        )
    return out


def _torch(version: str, floor: str) -> str:
    """Return the torch version asked for; AcceptError when it is older than the contract's floor."""
    try:
        number, least = ([int(part) for part in text.split(".")[:2]] for text in (version, floor))
    except ValueError:
        raise AcceptError(f"expected --torch to be a version such as 2.13.0, but got {version!r}") from None
    if number < least:
        raise AcceptError(f"expected --torch {floor} or later, as the contract says, but got {version}")
    return version


def accept(bundle: Path, options: argparse.Namespace, terminal: Terminal) -> int:
    """Verify, install, run, compare, report; return the exit status."""
    terminal.step(f"Verifying {SUMS}")
    damaged = damages(bundle)
    if damaged:
        raise AcceptError(
            "the delivery is damaged, nothing was installed:\n" + "\n".join(f"    {line}" for line in damaged)
        )
    delivered = json.loads((bundle / "report.json").read_text(encoding="utf-8"))
    facts = delivered["bundle"]
    name = f"{facts['operator']}-{facts['version']}"
    out = _out(bundle, options.out)
    floor = delivered["contract"]["torch"]["floor"]
    torch = f"torch=={_torch(options.torch or facts['torch'], floor)}"
    index = _index(options)
    work = Path(tempfile.mkdtemp(prefix=f"{name}-accept-"))
    try:
        terminal.step(f"Creating an environment with {options.python}")
        python = create_environment(work / "environment", options.python)
        terminal.step(f"Installing {torch} and the pinned requirements")
        pip_install(
            python, [torch, "-r", bundle / "requirements.txt"], f"{torch} and requirements.txt", index
        )
        terminal.step(f"Installing {facts['wheel']}")
        pip_install(python, ["--no-index", "--no-deps", bundle / facts["wheel"]], facts["wheel"], [])
        terminal.step("Running the contract's proofs against the installed wheel")
        suite = work / "suite"
        shutil.copytree(bundle / "tests", suite)
        results = work / "results"
        results.mkdir()
        arguments: list[str | Path] = ["--contract", bundle / "contract.toml", "--out", results]
        if options.tests_only:
            arguments += ["--tests-only"]
        else:
            arguments += [
                "--wheel",
                bundle / facts["wheel"],
                "--delivered-audit",
                bundle / "results" / "audit.json",
            ]
            arguments += ["--skip-performance"] if options.skip_performance else []
        arguments += ["--delivered", bundle / "report.json"]
        run_check(python, suite, arguments, terminal)
        terminal.close()
        here = json.loads((results / "results.json").read_text(encoding="utf-8"))
        rows = compare(delivered, here)
        record = {**here, "delivered_verdict": delivered["verdict"], "comparison": rows}
        (results / "acceptance.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
        (results / "results.json").unlink()
        publish(results, out)
        print_table(rows)
        return conclude(name, here, out)
    finally:
        if options.keep:
            print(f"Environment and suite kept in {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


def publish(results: Path, out: Path) -> None:
    """Put the results where they belong, all of them or none: written beside the place first, then moved."""
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".partial", dir=out.parent) as partial:
        whole = Path(partial) / out.name
        shutil.copytree(results, whole)
        if out.exists():
            shutil.copytree(whole, out, dirs_exist_ok=True)
        else:
            whole.rename(out)


def conclude(name: str, here: dict[str, Any], out: Path) -> int:
    """Tell the outcome, what is undecided and what fails last; return the exit status."""
    verdict = here["verdict"]
    print(f"\nReport: {out / 'acceptance.html'}")
    counts = {v: sum(c["verdict"] == v for c in here["criteria"]) for v in EXIT}
    print(f"{name}: {verdict}. " + ", ".join(f"{count} {v}" for v, count in counts.items()))
    if here["partial"]:
        print(f"PARTIAL acceptance: {here['partial']}; what was left out is undecided.")
    for wanted in ("fails",) if here["partial"] else ("undecided", "fails"):
        for criterion in here["criteria"]:
            if criterion["verdict"] == wanted:
                print(f"{wanted}: {criterion['id']}: {criterion['reason']}")
    return EXIT[verdict]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the acceptance from the command line."""
    if sys.version_info < (3, 11):
        print(f"accept.py: expected Python 3.11 or later, but got {sys.version.split()[0]}", file=sys.stderr)
        return 1
    options = _options(argv)
    terminal = Terminal()
    try:
        return accept(Path(__file__).resolve().parent, options, terminal)
    except AcceptError as error:
        terminal.close()
        print(f"accept.py: {error}", file=sys.stderr)
    except OSError as error:
        terminal.close()
        print(f"accept.py: {error.strerror or error}: {error.filename or ''}", file=sys.stderr)
    except KeyboardInterrupt:
        terminal.close()
        print("accept.py: interrupted", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
