"""The allocator setting that every measurement runs under.

glibc gives large blocks back to the kernel as soon as they are freed, so each new output of an operator is
paid for in page faults, often dearer than the operator. Models that run for a while, and every contender
here, keep their memory. glibc reads the setting only when a process starts: measurements therefore run in a
process started with it.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Mapping
from typing import Any

_LARGE = 4 << 30
TUNABLES = f"glibc.malloc.mmap_threshold={_LARGE}:glibc.malloc.trim_threshold={_LARGE}"
VARIABLE = "GLIBC_TUNABLES"


def applies() -> bool:
    """Whether the C library of this process is glibc, the only one that knows the setting."""
    return platform.libc_ver()[0] == "glibc"


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """A copy of the environment with the setting, for a process that is about to start."""
    result = dict(os.environ if base is None else base)
    if applies():
        kept = [item for item in result.get(VARIABLE, "").split(":") if item and "glibc.malloc." not in item]
        result[VARIABLE] = ":".join([*kept, TUNABLES])
    return result


def in_force() -> bool:
    """Whether this process was started with the setting."""
    return not applies() or TUNABLES in os.environ.get(VARIABLE, "")


def page_faults() -> int:
    """Page faults of this process so far that needed no disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


_touched = 0


def prefault(size: int) -> None:
    """Bring memory in before a measurement: allocate, write and free a block, once for each larger size.

    The setting alone is not enough at first: an aligned block that was freed is often a few bytes too small
    for the next one of its size, and glibc then grows the heap by fresh pages, some ten times over, until its
    caches of small remainders are full. In memory that was touched before this costs nothing.

    Args:
        size: bytes; at most a quarter of the machine's free memory is taken, and less than the setting's
            threshold.
    """
    global _touched
    import torch

    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    size = min(size, free // 4, _LARGE - (1 << 20))
    if applies() and size > _touched:
        torch.empty(size, dtype=torch.uint8).fill_(1)
        _touched = size


def faults_per_mebibyte() -> float:
    """Page faults per MiB when a 16 MiB tensor is allocated, filled and freed repeatedly (about 0 when kept).

    The setting is verified by its effect: a value in the environment does not prove that the library obeyed
    it.
    """
    import torch

    def touch() -> None:
        torch.empty(4 << 20, dtype=torch.float32).fill_(1.0)

    prefault(16 * 16 << 20)
    for _ in range(4):
        touch()
    before = page_faults()
    for _ in range(8):
        touch()
    return (page_faults() - before) / (8 * 16)


def describe() -> dict[str, Any]:
    """What was asked for and what it did, for the record."""
    return {
        "setting": os.environ.get(VARIABLE, "") if applies() else "not available (no glibc)",
        "in_force": in_force(),
        "faults_per_mebibyte": round(faults_per_mebibyte(), 2),
    }
