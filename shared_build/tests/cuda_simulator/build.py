"""Compiles the programs of this folder, once for each sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"
FLAGS = (
    "-std=c++20",
    "-g",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-pthread",
)
SANITIZERS = {
    "plain": ("-O1",),
    "address": (
        "-O1",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
    ),
    "thread": ("-O1", "-fno-omit-frame-pointer", "-fsanitize=thread"),
}


def compiler() -> str:
    """Return the C++ compiler: ``CXX`` if set, else ``g++``, else ``c++``."""
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not found:
        raise RuntimeError("the tests of the CUDA simulator need a C++ compiler: set CXX")
    return found


def build(source: str, sanitizer: str, folder: Path) -> Path:
    """Return the program made from ``source`` with a sanitizer (``plain`` for none), in ``folder``."""
    program = folder / f"{Path(source).stem}-{sanitizer}"
    command = [*compiler().split(), *FLAGS, *SANITIZERS[sanitizer], f"-I{INCLUDE}", str(HERE / source)]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return program


def run(program: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program; under the thread sanitizer with the layout of memory that it expects."""
    command = [str(program), *arguments]
    if program.name.endswith("-thread") and shutil.which("setarch"):
        command = ["setarch", "-R", *command]
    environment: Mapping[str, str] = {
        **os.environ,
        "TSAN_OPTIONS": "halt_on_error=1",
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
    }
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
