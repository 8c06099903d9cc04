"""Interleaved timing: every round times every contender once, so that what disturbs one disturbs all.

A sample is the mean time of enough calls in a row to dwarf the clock, after one call that is not timed (it
brings back caches that the contender before it has emptied). The order rotates from round to round, so no
contender always follows the same neighbour. Ratios are formed within a round; absolute times serve only for
the record.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .allocator import page_faults

Call = Callable[[], object]

SAMPLE_SECONDS = 0.003
"""A sample lasts at least this long: a thousand times the resolution and cost of reading the clock."""
COLD_SECONDS = 0.05
"""A call longer than this is not preceded by an untimed one: refilling a cache is lost in it."""
MOST_REPEATS = 2000


@dataclass(frozen=True)
class Plan:
    """How long to measure: at least `min_rounds`, then until `seconds` are used or `max_rounds` are done."""

    min_rounds: int = 11
    max_rounds: int = 61
    seconds: float = 2.0


def _time(call: Call, repeats: int, clock: Callable[[], float]) -> float:
    loop = itertools.repeat(None, repeats)
    start = clock()
    for _ in loop:
        call()
    return (clock() - start) / repeats


def repeats_for(call: Call, clock: Callable[[], float] = time.perf_counter) -> tuple[int, bool]:
    """Calls a sample needs, and whether an untimed call goes before them; the call is warm afterwards."""
    once = _time(call, 1, clock)
    if once < COLD_SECONDS:
        _time(call, 2, clock)
        once = _time(call, max(1, min(50, math.ceil(SAMPLE_SECONDS / 3 / max(once, 1e-7)))), clock)
    return max(1, min(MOST_REPEATS, math.ceil(SAMPLE_SECONDS / max(once, 1e-9)))), once < COLD_SECONDS


def interleave(
    calls: Mapping[str, Call],
    plan: Plan,
    clock: Callable[[], float] = time.perf_counter,
    faults: dict[str, float] | None = None,
) -> dict[str, list[float]]:
    """Seconds per call of each contender, one value a round.

    Args:
        calls: contenders by name, already warm enough to run (compiled, checked).
        plan: number of rounds and time limit.
        clock: seconds; replaced in tests.
        faults: filled with page faults per timed call of each contender, if given.

    Returns:
        Lists of equal length; the values at one index were measured in the same round.
    """
    prepared = {name: (call, *repeats_for(call, clock)) for name, call in calls.items()}
    names = list(prepared)
    times: dict[str, list[float]] = {name: [] for name in names}
    counted = dict.fromkeys(names, 0.0)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        deadline = clock() + plan.seconds
        for done in range(plan.max_rounds):
            if done >= plan.min_rounds and clock() >= deadline:
                break
            start = done % len(names)
            for name in names[start:] + names[:start]:
                call, repeats, refill = prepared[name]
                if refill:
                    call()
                before = page_faults()
                times[name].append(_time(call, repeats, clock))
                counted[name] += (page_faults() - before) / repeats
    finally:
        if collecting:
            gc.enable()
    if faults is not None:
        faults.update({name: count / max(1, len(times[name])) for name, count in counted.items()})
    return times
