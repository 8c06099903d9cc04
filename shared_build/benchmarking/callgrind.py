"""Instruction counts of an operator's kernels as a regression gate: the same to the instruction on every run.

`python -m shared_build.benchmarking.callgrind <operator>` builds a program without torch from the
operator's AVX2 kernel objects and its calls (packages/<operator>/benchmarks/callgrind), counts the
instructions of each call under valgrind, and compares with the committed baseline of this compiler. A
call that grew by more than 2% fails the gate; `--update` writes the counts as the new baseline, to be
committed with the change that explains them.

Exit status: 0 within the margin, 1 a call grew, is new or is gone, 2 nothing can be said here (no valgrind,
compiler or baseline for it, another processor), 3 the build or the run failed.

Instructions are not time: caches, threads and frequencies are not seen. The ratios of a contract see those.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from .cases import repository_root
from .runner import terminal

MARGIN = 0.02
DRIVER = Path(__file__).resolve().parent / "callgrind_driver"
LOCAL = re.compile(r"^-(?:I|W|D(?!NDEBUG)|isystem|o|c|ffile-prefix-map)|^[^-]")
"""What of a compiler's command does not change its code: paths, names, warnings, the level's definitions."""


BUILD = ("compiler", "target", "flags")


class Unavailable(RuntimeError):
    """Counting is not possible here; the message says what is missing."""


@dataclass(frozen=True)
class Counts:
    """Instructions of each call, and what they depend on."""

    compiler: str
    target: str
    flags: str
    calls: dict[str, int]

    def same_build(self, entry: Mapping[str, Any]) -> bool:
        """Whether a baseline was made by the same compiler with the same flags."""
        return all(entry[key] == getattr(self, key) for key in BUILD)


@dataclass(frozen=True)
class Change:
    """One call against its baseline; None where one of the two has no such call."""

    name: str
    before: int | None
    after: int | None

    @property
    def share(self) -> float | None:
        """Growth relative to the baseline."""
        return None if self.before is None or self.after is None else self.after / self.before - 1

    def verdict(self, margin: float = MARGIN) -> str:
        """Within the margin `same`, else `grew` or `shrank`; `new` and `gone` have no counterpart."""
        if self.before is None:
            return "new"
        if self.after is None:
            return "gone"
        growth, allowed = self.after - self.before, margin * self.before
        return "grew" if growth > allowed else "shrank" if growth < -allowed else "same"


def _tool(name: str) -> str:
    """Path of a tool of the running environment or of the system."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if not found:
        raise Unavailable(f"callgrind: expected {name} to be installed, but got none")
    return found


def _checked(command: Sequence[str], what: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"callgrind: expected {what} to succeed, but got:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(package: Path, folder: Path) -> Path:
    """Compile the counting program of a package into a folder; returns its path.

    Raises:
        Unavailable: no compiler, or no AVX2 target.
        RuntimeError: the build failed; the text is the compiler's.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise Unavailable(
            f"callgrind: expected an x86-64 processor for the AVX2 level, but got {platform.machine()}"
        )
    compiler = shlex.split(os.environ.get("CXX", "c++"))[0]
    if shutil.which(compiler) is None:
        raise Unavailable(f"callgrind: expected the C++ compiler {compiler}, but got none")
    command = [_tool("cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", "-S", str(DRIVER)]
    command += [
        "-B",
        str(folder),
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        f"-DOPWRIGHT_PACKAGE={package.resolve()}",
    ]
    _checked(command, "the configuration")
    _checked([_tool("cmake"), "--build", str(folder)], "the build")
    return folder / "counted"


def describe_build(folder: Path) -> tuple[str, str, str]:
    """Compiler, target and flags of the kernel objects in a build folder."""
    [info] = folder.glob("CMakeFiles/*/CMakeCXXCompiler.cmake")
    text = info.read_text(encoding="utf-8")
    name, version = (
        match.group(1)
        if (match := re.search(rf'set\(CMAKE_CXX_COMPILER_{key} "([^"]*)"\)', text))
        else "unknown"
        for key in ("ID", "VERSION")
    )
    commands = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    kernel = next(entry for entry in commands if entry["file"].endswith("_kernel.cpp"))
    return f"{name} {version}", platform.machine(), " ".join(code_flags(shlex.split(kernel["command"])))


def code_flags(command: Sequence[str]) -> list[str]:
    """The part of a compiler's command that decides about its code, in the order given."""
    flags: list[str] = []
    skip = False
    for word in command[1:]:
        if not skip and not LOCAL.match(word):
            flags.append(word)
        skip = word in ("-o", "-isystem", "-I", "-D")
    return flags


def count(program: Path) -> dict[str, int]:
    """Instructions of each call of the counting program.

    Raises:
        Unavailable: valgrind is not installed.
        RuntimeError: the program failed, or the profile does not fit what it printed.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise Unavailable("callgrind: expected valgrind to be installed, but got none")
    with tempfile.TemporaryDirectory(prefix="opwright-callgrind-") as folder:
        command = [valgrind, "--tool=callgrind", f"--callgrind-out-file={folder}/profile"]
        command += ["--toggle-collect=opwright_counted", "--dump-after=opwright_counted", str(program)]
        # Symbols are bound before anything is counted, and the level is the one that was compiled.
        environment = {**os.environ, "LD_BIND_NOW": "1", "OPWRIGHT_CPU_CAPABILITY": "avx2"}
        names = _checked(command, "the counting run", env=environment).splitlines()
        return read_profiles(names, Path(folder), "profile")


def read_profiles(names: Sequence[str], folder: Path, stem: str) -> dict[str, int]:
    """Totals of the numbered profile parts, in the order of the calls' names."""
    if len(set(names)) != len(names):
        raise RuntimeError(f"callgrind: expected distinct names of calls, but got {list(names)}")
    calls = {}
    for part, name in enumerate(names, start=1):
        path = folder / f"{stem}.{part}"
        match = (
            re.search(r"^totals: (\d+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            if path.is_file()
            else None
        )
        if match is None:
            raise RuntimeError(f"callgrind: expected a profile of {name!r}, but got none in part {part}")
        calls[name] = int(match.group(1))
    if (folder / f"{stem}.{len(names) + 1}").is_file():
        raise RuntimeError(f"callgrind: expected {len(names)} counted calls, but got more")
    return calls


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> list[Change]:
    """Every call of either side."""
    names = list(dict.fromkeys([*before, *after]))
    return [Change(name, before.get(name), after.get(name)) for name in names]


def gate(found: Sequence[Change], margin: float = MARGIN) -> int:
    """Exit status for a comparison: 1 when a call grew, is new or is gone."""
    return int(any(change.verdict(margin) in ("grew", "new", "gone") for change in found))


STYLES = {"grew": "bold red", "shrank": "green", "new": "yellow", "gone": "yellow", "same": "default"}


def table(operator: str, found: Sequence[Change]) -> Table:
    """One row a call."""
    result = Table(title=f"{operator}: instructions, AVX2 level", title_justify="left")
    result.add_column("call")
    for column in ("baseline", "now", "change"):
        result.add_column(column, justify="right")
    result.add_column("verdict")
    for change in found:
        verdict, share = change.verdict(), change.share
        result.add_row(
            change.name,
            "-" if change.before is None else f"{change.before:,}",
            "-" if change.after is None else f"{change.after:,}",
            "-" if share is None else f"{100 * share:+.2f}%",
            f"[{STYLES[verdict]}]{verdict}[/]",
        )
    return result


def read_baseline(path: Path) -> list[dict[str, Any]]:
    """Entries of a baseline file, one a compiler; none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8"))["builds"] if path.is_file() else []


def write_baseline(path: Path, counts: Counts) -> None:
    """Replace the entry of this compiler, keep those of others."""
    kept = [
        entry
        for entry in read_baseline(path)
        if entry["compiler"] != counts.compiler or entry["target"] != counts.target
    ]
    entry = {
        "compiler": counts.compiler,
        "target": counts.target,
        "flags": counts.flags,
        "calls": counts.calls,
    }
    builds = sorted([*kept, entry], key=lambda item: (item["compiler"], item["target"]))
    path.write_text(json.dumps({"builds": builds}, indent=1) + "\n", encoding="utf-8")


def run(operator: str, root: Path, update: bool = False) -> int:
    """Build, count, compare and print; see the module's text for the status.

    Raises:
        Unavailable: counting is not possible here.
        RuntimeError: the build or the run failed.
    """
    package = root / "packages" / operator
    baseline = package / "benchmarks" / "callgrind" / "baseline.json"
    if not baseline.parent.is_dir():
        raise Unavailable(
            f"callgrind: expected packages/{operator}/benchmarks/callgrind, but got no such folder"
        )
    if shutil.which("valgrind") is None:
        raise Unavailable("callgrind: expected valgrind to be installed, but got none")
    console = terminal()
    with (
        tempfile.TemporaryDirectory(prefix="opwright-callgrind-") as folder,
        console.status("building and counting"),
    ):
        program = build(package, Path(folder))
        counts = Counts(*describe_build(Path(folder)), count(program))
    if update:
        write_baseline(baseline, counts)
        console.print(f"{len(counts.calls)} calls counted with {counts.compiler}; baseline written")
        return 0
    entries = read_baseline(baseline)
    entry = next((entry for entry in entries if counts.same_build(entry)), None)
    if entry is None:
        known = "; ".join(" ".join(item[key] for key in BUILD) for item in entries) or "none"
        wanted = " ".join(getattr(counts, key) for key in BUILD)
        raise Unavailable(f"callgrind: expected a baseline for {wanted}, but got {known}")
    found = changes(entry["calls"], counts.calls)
    console.print(table(operator, found))
    status = gate(found)
    words = "a call grew by more than 2%, is new or is gone" if status else "every call within 2%"
    console.print(f"{counts.compiler}: {words}", style="red" if status else "green")
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="shared_build.benchmarking.callgrind", description=__doc__)
    parser.add_argument("operator")
    parser.add_argument("--update", action="store_true", help="write the counts as the new baseline")
    options = parser.parse_args(arguments)
    try:
        return run(options.operator, repository_root(), options.update)
    except Unavailable as error:
        terminal(stderr=True).print(str(error), style="yellow", markup=False, soft_wrap=True)
        return 2
    except (RuntimeError, OSError) as error:
        terminal(stderr=True).print(str(error), style="bold red", markup=False, soft_wrap=True)
        return 3


if __name__ == "__main__":
    sys.exit(main())
