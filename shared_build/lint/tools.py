"""The checks that other programs make: ruff, mypy, clang-format and the schema of the workflow files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from shared_build.lint.tree import CXX_SUFFIXES, Finding, Tree

CONFIG = Path(__file__).with_name("mypy.ini")
#: Test code: annotated, but its every line assumes what a type cannot say.
UNTYPED = frozenset({"conformance"})
OVERLAY = "opwright-overlay"


def _run(tree: Tree, command: Sequence[str], env: dict[str, str] | None = None) -> list[Finding]:
    """Run one program at the root; every line it prints is a finding when its exit status is not zero."""
    done = subprocess.run(
        command, cwd=tree.root, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False
    )
    if done.returncode == 0:
        return []
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return [Finding("", 0, line) for line in lines] or [
        Finding("", 0, f"{command[0]} ended with {done.returncode}")
    ]


def _program(name: str) -> str:
    """Find a program of the running environment first, so that its pinned version is the one used."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise SystemExit(
            f"lint: expected the program {name} (shared_build/requirements/lint.txt), but got none"
        )
    return found


def ruff_format(tree: Tree) -> list[Finding]:
    """Python formatting."""
    files = tree.with_suffix(".py", ".pyi")
    check = [] if tree.fix else ["--check", "--output-format=concise"]
    command = [_program("ruff"), "format", "--quiet", "--force-exclude", *check, *files]
    return _run(tree, command) if files else []


def ruff_check(tree: Tree) -> list[Finding]:
    """Python lint rules, among them the form of docstrings."""
    files = tree.with_suffix(".py", ".pyi")
    fix = ["--fix"] if tree.fix else []
    command = [
        _program("ruff"),
        "check",
        "--quiet",
        "--force-exclude",
        "--output-format=concise",
        *fix,
        *files,
    ]
    return _run(tree, command) if files else []


def types(tree: Tree) -> list[Finding]:
    """Types: strict for the public packages and for the shared Python that is not itself a test."""
    # Always the same folder: mypy's cache remembers the paths of what it complained about.
    folder = tree.root / ".mypy_cache" / OVERLAY
    shutil.rmtree(folder, ignore_errors=True)
    real = _overlay(tree, folder)
    # Folders, not module names: a name would be found in an installed copy first.
    shared = [] if tree.only else sorted((tree.root / "shared_build").glob("*/__init__.py"))
    folders = [str(path.parent) for path in shared if path.parent.name not in UNTYPED]
    folders += [str(folder / "opwright" / name) for name in tree.packages]
    if not folders:
        return []
    command = [sys.executable, "-m", "mypy", "--config-file", str(CONFIG), "--no-error-summary", *folders]
    findings = _run(tree, command, env={"MYPYPATH": os.pathsep.join([str(folder), str(tree.root)])})
    return [Finding("", 0, _real_path(found.message, real)) for found in findings]


def _overlay(tree: Tree, folder: Path) -> dict[str, str]:
    """Lay out the packages as installed, each with its copy of the runtime; return where files are from."""
    real: dict[str, str] = {}
    runtime = tree.root / "shared_build" / "runtime" / "_runtime.py"
    for name in tree.packages:
        source = tree.root / "packages" / name / "src" / "opwright" / name
        files = {path.relative_to(source): path for path in source.rglob("*") if path.is_file()}
        if runtime.is_file():
            files[Path("_runtime.py")] = runtime
        for relative, path in files.items():
            target = folder / "opwright" / name / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
            real[target.relative_to(folder).as_posix()] = path.relative_to(tree.root).as_posix()
    return real


def _real_path(message: str, real: dict[str, str]) -> str:
    """Replace a path of the overlay by the file's own."""
    match = re.match(rf"\S*{OVERLAY}/(?P<place>[^:]+):", message)
    if match is None:
        return message
    return real.get(match["place"], match["place"]) + message[match.end("place") :]


def clang_format(tree: Tree) -> list[Finding]:
    """C++ and CUDA formatting."""
    files = tree.with_suffix(*CXX_SUFFIXES)
    if not files:
        return []
    mode = ["-i"] if tree.fix else ["--dry-run", "-Werror", "--ferror-limit=3"]
    findings = _run(tree, [_program("clang-format"), "--style=file", *mode, *files])
    return [found for found in findings if re.search(r"(error|warning):", found.message)] or findings


def workflows(tree: Tree) -> list[Finding]:
    """The workflow files against the published schema (kept inside check-jsonschema, so no network)."""
    files = [name for name in tree.files if re.fullmatch(r"\.github/workflows/[^/]+\.ya?ml", name)]
    if not files:
        return []
    program = [_program("check-jsonschema"), "--color", "never"]
    findings = _run(tree, [*program, "--builtin-schema", "vendor.github-workflows", *files])
    dependabot = ".github/dependabot.yml"
    if dependabot in tree.files:
        findings += _run(tree, [*program, "--builtin-schema", "vendor.dependabot", dependabot])
    return findings
