"""The allocator setting and the record of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared_build.benchmarking import allocator, machine

ROOT = Path(__file__).resolve().parents[3]
glibc = pytest.mark.skipif(not allocator.applies(), reason="the C library is not glibc")


@glibc
def test_the_setting_is_added_to_what_is_there_and_replaces_its_own() -> None:
    given = {allocator.VARIABLE: "glibc.cpu.hwcaps=-x:glibc.malloc.mmap_threshold=1", "OTHER": "kept"}
    result = allocator.environment(given)
    assert result[allocator.VARIABLE] == f"glibc.cpu.hwcaps=-x:{allocator.TUNABLES}"
    assert result["OTHER"] == "kept"
    assert given[allocator.VARIABLE].endswith("=1")


@glibc
def test_the_setting_does_what_it_is_for() -> None:
    """With it a block is reused; without it every new block of 16 MiB costs page faults."""
    script = (
        "from shared_build.benchmarking.allocator import describe; d = describe();"
        "print(d['in_force'], d['faults_per_mebibyte'])"
    )
    plain = {name: value for name, value in os.environ.items() if name != allocator.VARIABLE}

    def run(environment: dict[str, str]) -> tuple[str, float]:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        words = done.stdout.split()
        return words[0], float(words[1])

    kept, faults = run(allocator.environment(plain))
    assert (kept, faults < 1) == ("True", True)
    kept, faults = run(plain)
    # Huge pages may leave one fault for 2 MiB.
    assert (kept, faults > 0.4) == ("False", True)


def test_the_machine_is_described_without_a_name_or_a_path() -> None:
    facts = machine.describe_machine()
    assert facts["cores"] >= 1
    assert facts["cpu"]
    assert os.uname().nodename not in str(facts).split()
    assert "/" not in facts["cpu"]


def test_load_by_others_is_what_is_left_of_all_load(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own, wall = iter([100.0, 130.0]), iter([10.0, 20.0]), iter([0.0, 10.0])
    monkeypatch.setattr(machine, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(machine, "_own_seconds", lambda: next(own))
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(wall))
    conditions = machine.Load.start().finish()
    assert conditions["other_cores_busy"] == 2.0
    assert "the machine was busy: other processes used 2.0 of" in machine.busy_reason(conditions)


@pytest.mark.parametrize("others", [None, 0.0, machine.BUSY_CORES])
def test_a_quiet_machine_is_not_blamed(others: float | None) -> None:
    assert machine.busy_reason({"other_cores_busy": others}) == ""
