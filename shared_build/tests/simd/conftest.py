"""Fixtures: the probe of each level, the reference library. Slow tests run with ``-m slow``."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

# shared_build is imported by path, without installation.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from shared_build.tests.simd.levels import (
    Probe,
    Reference,
    build_probe,
    build_reference,
    runnable_levels,
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: dense sampling, minutes; runs only where -m asks for it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("-m"):
        return
    slow = [item for item in items if "slow" in item.keywords and Path(__file__).parent in item.path.parents]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session")
def build_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of a test run."""
    base = tmp_path_factory.getbasetemp()
    if base.name.startswith("popen-"):  # a worker's own folder lies in the run's
        base = base.parent
    folder = base / "simd-probes"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def libraries(build_folder: Path) -> Path:
    """The folder with every library in it; workers that start together build it once."""
    with (build_folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = build_folder / "done"
        if not done.exists():
            with ThreadPoolExecutor(max_workers=2) as pool:
                probes = [pool.submit(build_probe, level, build_folder) for level in runnable_levels()]
                for future in [pool.submit(build_reference, build_folder), *probes]:
                    future.result()
            done.touch()
    return build_folder


@pytest.fixture(scope="session")
def reference(libraries: Path) -> Reference:
    return Reference(libraries / "reference.so")


@pytest.fixture(scope="session")
def probes(libraries: Path) -> list[Probe]:
    return [Probe(level, libraries / f"probe-{level.name}.so") for level in runnable_levels()]


@pytest.fixture(params=[level.name for level in runnable_levels()])
def probe(request: pytest.FixtureRequest, probes: list[Probe]) -> Iterator[Probe]:
    return next(probe for probe in probes if probe.level.name == request.param)
