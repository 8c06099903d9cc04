"""The programs, each compiled once for all workers of a test run."""

from __future__ import annotations

import fcntl
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

# shared_build is imported by path, without installation.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from shared_build.tests.cuda_simulator.build import SANITIZERS, build

PROGRAMS = [("faults.cpp", sanitizer) for sanitizer in SANITIZERS] + [("probe.cpp", "plain")]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the programs by name, such as ``faults-address``; all workers share one build."""
    base = tmp_path_factory.getbasetemp()
    if base.name.startswith("popen-"):  # a worker's own folder lies in the run's
        base = base.parent
    folder = base / "cuda-simulator"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            with ThreadPoolExecutor(max_workers=2) as pool:
                list(pool.map(lambda each: build(*each, folder), PROGRAMS))
            done.touch()
    return {
        f"{Path(source).stem}-{sanitizer}": folder / f"{Path(source).stem}-{sanitizer}"
        for source, sanitizer in PROGRAMS
    }
