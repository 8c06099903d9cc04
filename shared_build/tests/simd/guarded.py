"""Loads and stores at the edges of mapped memory; run as a process of its own, since a fault ends it.

``python -m shared_build.tests.simd.guarded <library> <level>``. Every access is made with its elements at the
end and at the start of a page whose neighbours may not be touched, and at every offset inside it.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared_build.tests.simd.levels import Probe, machine_levels, pointer

PAGE = mmap.PAGESIZE
SIZES = {"float": 4, "double": 8, "BFloat16": 2, "Half": 2}
STORAGE = {"float": np.float32, "double": np.float64, "BFloat16": np.uint16, "Half": np.uint16}
PAIRS = [
    (kind, storage)
    for kind in ("float", "double")
    for storage in SIZES
    if (kind, storage) != ("float", "double")
]
SENTINEL = 0xA5


class GuardedPage:
    """One readable and writable page between two that may not be touched."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 3 * PAGE)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        base = ctypes.addressof(self._anchor)
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (base, base + 2 * PAGE):
            if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.start = base + PAGE
        self.bytes = np.frombuffer((ctypes.c_uint8 * PAGE).from_address(self.start), np.uint8)


def patterns(storage: str, count: int) -> NDArray[Any]:
    """Return ``count`` different numbers that every format holds exactly: 1, 2, 3 ..."""
    numbers = np.arange(1, count + 1, dtype=np.float32)
    if storage == "BFloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    if storage == "Half":
        return numbers.astype(np.float16).view(np.uint16)
    return numbers.astype(STORAGE[storage])


def places(size: int, count: int) -> Iterator[int]:
    """Yield byte offsets in the page: at its end, at its start, and 40 elements further one by one."""
    yield PAGE - count * size
    yield from range(0, 41 * size, size)


def forms(lanes: int) -> Iterator[tuple[int, int]]:
    """Yield (form, elements touched): whole, each partial length, and two vectors."""
    yield 0, lanes
    yield from ((1, n) for n in range(1, lanes))
    yield 2, 2 * lanes


def check_loads(probe: Probe, page: GuardedPage, kind: str, storage: str) -> int:
    """Compare every load with the numbers in memory; return how many were made."""
    lanes, size = probe.lanes(kind), SIZES[storage]
    load = getattr(probe.library, f"{kind}_load_{storage}")
    result = np.empty(2 * lanes, STORAGE[kind])
    made = 0
    for form, count in forms(lanes):
        expected = np.zeros(2 * lanes)
        expected[:count] = np.arange(1, count + 1)
        for place in places(size, count):
            page.bytes[:] = 0xFF  # NaN in every format: a lane read beyond the end shows
            page.bytes[place : place + count * size] = patterns(storage, count).view(np.uint8)
            result[:] = -1
            load(ctypes.c_void_p(page.start + place), pointer(result), count, form)
            np.testing.assert_array_equal(
                result, expected, f"{kind} load {storage} form {form} n {count} at {place}"
            )
            made += 1
    return made


def check_stores(probe: Probe, page: GuardedPage, kind: str, storage: str) -> int:
    """Compare memory after every store, the bytes around it included; return how many were made."""
    lanes, size = probe.lanes(kind), SIZES[storage]
    store = getattr(probe.library, f"{kind}_store_{storage}")
    source = np.arange(1, 2 * lanes + 1).astype(STORAGE[kind])
    made = 0
    for form, count in forms(lanes):
        for place in places(size, count):
            expected = np.full(PAGE, SENTINEL, np.uint8)
            expected[place : place + count * size] = patterns(storage, count).view(np.uint8)
            page.bytes[:] = SENTINEL
            store(pointer(source), ctypes.c_void_p(page.start + place), count, form)
            wrong = np.flatnonzero(page.bytes != expected)
            assert wrong.size == 0, (
                f"{kind} store {storage} form {form} n {count} at {place}: bytes {wrong[:8]}"
            )
            made += 1
    return made


def check_streams(probe: Probe, page: GuardedPage, kind: str, storage: str) -> int:
    """Check stream2 at every multiple of its alignment near the start of the page, and at its end."""
    lanes, size = probe.lanes(kind), SIZES[storage]
    alignment = probe.library.stream_alignment()
    store = getattr(probe.library, f"{kind}_store_{storage}")
    source = np.arange(1, 2 * lanes + 1).astype(STORAGE[kind])
    offsets = [*range(0, 4 * alignment, alignment), (PAGE - 2 * lanes * size) // alignment * alignment]
    for place in offsets:
        expected = np.full(PAGE, SENTINEL, np.uint8)
        expected[place : place + 2 * lanes * size] = patterns(storage, 2 * lanes).view(np.uint8)
        page.bytes[:] = SENTINEL
        store(pointer(source), ctypes.c_void_p(page.start + place), 0, 3)
        assert np.array_equal(page.bytes, expected), f"{kind} stream2 {storage} at {place}"
    return len(offsets)


def main(library: str, level_name: str) -> int:
    """Run every check; return 0 and print how many accesses were made."""
    level = next(level for level in machine_levels() if level.name == level_name)
    probe = Probe(level, Path(library))
    page = GuardedPage()
    made = 0
    for kind, storage in PAIRS:
        made += check_loads(probe, page, kind, storage)
        made += check_stores(probe, page, kind, storage)
        made += check_streams(probe, page, kind, storage)
    print(f"{made} accesses")
    return 0


def overrun(library: str, level_name: str) -> None:
    """Read one element beyond the page on purpose: the process must end by a fault."""
    level = next(level for level in machine_levels() if level.name == level_name)
    probe = Probe(level, Path(library))
    page, lanes = GuardedPage(), probe.lanes("float")
    result = np.empty(2 * lanes, np.float32)
    place = ctypes.c_void_p(page.start + PAGE - 4 * (lanes - 1))
    probe.library.float_load_float(place, pointer(result), lanes, 0)


if __name__ == "__main__":
    if sys.argv[3:] == ["overrun"]:
        overrun(sys.argv[1], sys.argv[2])
    sys.exit(main(sys.argv[1], sys.argv[2]))
