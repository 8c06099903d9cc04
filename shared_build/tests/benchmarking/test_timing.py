"""The timing loop on a clock that is told what to say."""

from __future__ import annotations

import gc

import pytest

from shared_build.benchmarking.timing import COLD_SECONDS, SAMPLE_SECONDS, Plan, interleave, repeats_for


class Clock:
    """Time that passes only when a call takes it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def call(self, name: str, seconds: float):
        def run() -> None:
            self.log.append(name)
            self.now += seconds

        return run


def test_times_are_per_call_and_rounds_are_aligned() -> None:
    clock = Clock()
    times = interleave(
        {"ours": clock.call("ours", 1e-4), "eager": clock.call("eager", 4e-4)}, Plan(5, 5, 0.0), clock
    )
    assert times["ours"] == pytest.approx([1e-4] * 5)
    assert times["eager"] == pytest.approx([4e-4] * 5)


def test_a_short_call_is_repeated_until_a_sample_is_long_enough() -> None:
    clock = Clock()
    repeats, refill = repeats_for(clock.call("x", 1e-5), clock)
    assert refill
    assert repeats * 1e-5 >= SAMPLE_SECONDS * 0.999


def test_a_long_call_runs_once_and_without_an_untimed_one() -> None:
    clock = Clock()
    assert repeats_for(clock.call("x", 2 * COLD_SECONDS), clock) == (1, False)
    assert clock.log == ["x"]


def test_every_contender_goes_first_in_turn() -> None:
    clock = Clock()
    names = ("a", "b", "c")
    calls = {name: clock.call(name, 0.1) for name in names}
    interleave(calls, Plan(3, 3, 0.0), clock)
    measured = clock.log[3:]  # one call each to find the number of repeats
    assert measured == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]


def test_rounds_go_on_until_the_time_is_used_within_the_limits() -> None:
    clock = Clock()
    times = interleave({"a": clock.call("a", 0.1)}, Plan(2, 50, 1.05), clock)
    assert len(times["a"]) == 11
    assert len(interleave({"a": clock.call("a", 0.1)}, Plan(2, 7, 1.05), clock)["a"]) == 7
    assert len(interleave({"a": clock.call("a", 9.0)}, Plan(2, 7, 1.05), clock)["a"]) == 2


def test_the_collector_is_off_while_timing_and_as_before_afterwards() -> None:
    seen = []
    interleave({"a": lambda: seen.append(gc.isenabled())}, Plan(2, 2, 0.0))
    assert gc.isenabled()
    assert not seen[-1]


def test_page_faults_are_counted_per_timed_call() -> None:
    import mmap

    def touch() -> None:
        block = mmap.mmap(-1, 64 * mmap.PAGESIZE)
        for page in range(64):
            block[page * mmap.PAGESIZE] = 1
        block.close()

    faults: dict[str, float] = {}
    interleave({"touch": touch, "rest": lambda: None}, Plan(4, 4, 0.0), faults=faults)
    # Huge pages may serve several at once, never more than one fault a page.
    assert 1 <= faults["touch"] <= 66
    assert faults["rest"] < 1
