"""What this machine can do: kernel levels, devices, and address space without memory behind it."""

from __future__ import annotations

import mmap
import os
import pathlib
import platform

import torch

from . import reasons
from .spec import Package

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux; in the module from Python 3.13 on
_X86_FLAGS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"},
}


def cpu_flags() -> frozenset[str]:
    """The instruction-set flags the operating system reports."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def levels(package: Package) -> tuple[str, ...]:
    """All kernel levels the package has for this architecture, lowest first."""
    return package.levels.get(platform.machine(), ("default",))


def available(package: Package) -> tuple[str, ...]:
    """The levels this machine can run, lowest first."""
    flags = cpu_flags()
    return tuple(level for level in levels(package) if _X86_FLAGS.get(level, set()) <= flags)


def expected_level(package: Package) -> str:
    """The level that must be running: the widest one, or the lower one the environment asks for."""
    usable = available(package)
    asked = os.environ.get(package.capability_variable)
    return asked if asked in usable else usable[-1]


def missing(level: str) -> str:
    """The skip reason for a level this machine does not have."""
    return reasons.NO_LEVEL[level]


def no_cuda() -> str | None:
    """The skip reason where there is no CUDA device, else None."""
    return None if torch.cuda.is_available() else reasons.NO_CUDA


def reserve(numel: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor of `numel` zeros whose pages take no memory until they are touched."""
    size = numel * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=dtype, count=numel)
