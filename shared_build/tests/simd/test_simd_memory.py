"""Loads and stores touch their own elements only, at any offset and length."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared_build.tests.simd.levels import Probe

ROOT = Path(__file__).resolve().parents[3]


def run_guarded(probe: Probe, folder: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    library = str(folder / f"probe-{probe.level.name}.so")
    command = [sys.executable, "-m", "shared_build.tests.simd.guarded", library, probe.level.name, *extra]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_accesses_at_the_edge_of_mapped_memory(probe: Probe, libraries: Path) -> None:
    done = run_guarded(probe, libraries)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-3000:]}"
    made = int(re.fullmatch(r"(\d+) accesses\n", done.stdout).group(1))
    assert made > 500


def test_the_guard_catches_a_read_beyond_the_end(probe: Probe, libraries: Path) -> None:
    assert run_guarded(probe, libraries, "overrun").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("kind", ["float", "double"])
def test_alignment_asked_of_streams_is_one_register(probe: Probe, kind: str) -> None:
    # Two vectors of float make one of a 16-bit type: what is written is at least one whole vector.
    written = 2 * probe.lanes(kind) * (2 if kind == "float" else 8)
    assert probe.library.stream_alignment() <= min(written, probe.level.vector_bytes)
