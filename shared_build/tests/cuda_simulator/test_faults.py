"""Each fault that the simulator is there to find is found by its name, and the same kernel without it passes.

The names are the simulator's own wherever it can see the fault, in every order of the threads. What lies
outside of it is the sanitizers': the bounds of the device's memory the address sanitizer's, and once more
every race the thread sanitizer's, with real threads.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shared_build.tests.cuda_simulator.build import run

ORDERS = [("forward", 0), ("reverse", 0), ("random", 1), ("random", 2), ("random", 3)]
FAULTS = {
    "missing-barrier": "missing barrier: shared memory is ",
    "missing-warp-sync": "missing warp sync: shared memory is ",
    "early-write": "missing barrier: shared memory is ",
    "divergent-barrier": "divergent barrier: 64 threads wait in line",
    "barriers-apart": "divergent barrier: threads wait in different lines",
    "inactive-lane": "shuffle from an inactive lane: the mask does not name the source, lane 16",
    "ended-lane": "shuffle from an inactive lane: lane",
    "different-masks": "mismatched warp masks: lanes",
    "uninitialised": "uninitialised shared memory: read before it was written",
    "shared-overrun": "shared memory overrun: bytes 512 to 516 of 512",
    "misaligned": "misaligned vector access: expected an address that is a multiple of 16",
    "block-race": "race between blocks: another block",
    "global-race": "race in global memory: another thread of the block ",
    "grid-limit": "launch limit exceeded: number_blocks, grid.y: expected 1 to 65535, but got 65536",
    "block-limit": "launch limit exceeded: number_blocks, threads of a block: expected 1 to 1024, but got",
    "block-z-limit": "launch limit exceeded: number_blocks, block.z: expected 1 to 64, but got 65",
    "shared-limit": "launch limit exceeded: number_blocks, dynamic shared memory: expected 0 to 166912",
    "empty-grid": "launch limit exceeded: number_blocks, grid.x: expected 1 to 2147483647, but got 0",
}
#: Faults that real threads show to the thread sanitizer.
RACES = ("missing-barrier", "missing-warp-sync", "early-write", "block-race", "global-race")
#: What the rules of barriers and warps say with real threads, too.
MEETINGS = ("divergent-barrier", "inactive-lane", "ended-lane", "different-masks")


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize("name", FAULTS)
class TestFibers:
    def test_the_fault_is_found_by_name(
        self, programs: dict[str, Path], name: str, order: str, seed: int
    ) -> None:
        done = run(programs["faults-plain"], [name, "wrong", order, str(seed)])
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stdout.startswith("failure: " + FAULTS[name]), done.stdout

    def test_without_it_the_kernel_passes(
        self, programs: dict[str, Path], name: str, order: str, seed: int
    ) -> None:
        done = run(programs["faults-plain"], [name, "right", order, str(seed)])
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


class TestAddressSanitizer:
    def test_an_overrun_is_found(self, programs: dict[str, Path]) -> None:
        done = run(programs["faults-address"], ["overrun", "wrong", "forward", "0"])
        assert done.returncode == 99
        assert "heap-buffer-overflow" in done.stderr
        assert "copy_past_end" in done.stderr

    @pytest.mark.parametrize("name", ["overrun", *FAULTS])
    def test_without_a_fault_it_says_nothing(self, programs: dict[str, Path], name: str) -> None:
        done = run(programs["faults-address"], [name, "right", "random", "1"])
        assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")

    @pytest.mark.parametrize("name", ["divergent-barrier", "uninitialised"])
    def test_fibers_that_a_failure_left_are_no_error(self, programs: dict[str, Path], name: str) -> None:
        done = run(programs["faults-address"], [name, "wrong", "random", "1"])
        assert done.returncode == 1
        assert done.stderr == ""


class TestThreads:
    @pytest.mark.parametrize("name", RACES)
    def test_a_race_is_found(self, programs: dict[str, Path], name: str) -> None:
        done = run(programs["faults-thread"], [name, "wrong", "forward", "0", "threads"])
        assert "WARNING: ThreadSanitizer: data race" in done.stderr, done.stdout + done.stderr

    @pytest.mark.parametrize("name", [*RACES, *MEETINGS, "uninitialised"])
    def test_without_a_fault_it_says_nothing(self, programs: dict[str, Path], name: str) -> None:
        done = run(programs["faults-thread"], [name, "right", "forward", "0", "threads"])
        assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")

    @pytest.mark.parametrize("name", MEETINGS)
    def test_broken_rules_have_the_same_names(self, programs: dict[str, Path], name: str) -> None:
        done = run(programs["faults-plain"], [name, "wrong", "forward", "0", "threads"])
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stdout.startswith("failure: " + FAULTS[name].split(":")[0]), done.stdout
