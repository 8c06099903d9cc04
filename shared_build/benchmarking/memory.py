"""Peak memory of one call, from the allocator's own events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .contenders import Cell, tensors


def peak_bytes(call: Callable[[], Any]) -> int:
    """Most bytes of CPU tensors that were allocated by the call and alive at one time, its results included.

    The allocation events of torch's profiler are summed in their order, so blocks that the allocator keeps
    count only while a tensor owns them.
    """
    call()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        result = call()
    events = profile.profiler.kineto_results.events()
    alive = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    del result
    return peak


def peak_ratio(cell: Cell, contender: str) -> float:
    """Peak bytes of a call divided by the bytes of what it returns (1.0: only the results).

    For a case that mutates its arguments the bytes of the arguments it returns stand in the denominator.
    """
    call = cell.call(contender)
    returned = sum(result.numel() * result.element_size() for result in tensors(call()))
    return peak_bytes(call) / returned
