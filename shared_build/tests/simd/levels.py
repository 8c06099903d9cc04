"""Builds the probe for each level that this machine can run, and calls it.

A level is a set of compiler flags and a vector width, as the build of a package uses them. The 512-bit width
is tested under AVX2 flags too, so that its source runs on machines without AVX-512.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"

# The flags of kernel files; the levels' own are below.
KERNEL_FLAGS = (
    "-std=c++20",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fvisibility=hidden",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
)
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512")


@dataclass(frozen=True)
class Level:
    """One way of compiling kernels.

    Attributes:
        name: Identifies it in test names and tables.
        isa: Namespace suffix, the level's name in ``OPWRIGHT_CPU_CAPABILITY``.
        vector_bytes: Width of ``Vec<A>``.
        flags: What it adds to ``KERNEL_FLAGS``.
        needs: Processor features, as the kernel of the operating system names them.
    """

    name: str
    isa: str
    vector_bytes: int
    flags: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()


_AVX2_NEEDS = frozenset({"avx2", "fma", "f16c"})
_X86 = (
    Level("default", "default", 16),
    Level("avx2", "avx2", 32, AVX2, _AVX2_NEEDS),
    # Vectors of two registers never cross a call; gcc remarks on their calling convention all the same.
    Level("avx2-512-bit", "avx2", 64, (*AVX2, "-Wno-psabi"), _AVX2_NEEDS),
    Level("avx512", "avx512", 64, AVX512, _AVX2_NEEDS | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}),
)
_ARM = (Level("neon", "neon", 16),)


def machine_levels() -> tuple[Level, ...]:
    """Return every level of this machine's architecture, whether the processor has it or not."""
    return _ARM if platform.machine() in ("aarch64", "arm64") else _X86


@functools.cache
def processor_features() -> frozenset[str]:
    """Return the processor's features, as listed by the operating system's kernel."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    for line in lines:
        if line.startswith(("flags", "Features")):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def runnable_levels() -> tuple[Level, ...]:
    """Return the levels that this processor can run."""
    return tuple(level for level in machine_levels() if level.needs <= processor_features())


def compiler() -> str:
    """Return the C++ compiler: ``CXX`` if set, else ``g++``, else ``c++``."""
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not found:
        raise RuntimeError("the tests of the SIMD headers need a C++ compiler: set CXX")
    return found


def compile_file(source: Path, output: Path, flags: Sequence[str]) -> Path:
    """Compile ``source`` to ``output``; what the compiler says goes into the error if it fails."""
    command = [*compiler().split(), *flags, f"-I{INCLUDE}", str(source), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return output


def level_flags(level: Level) -> tuple[str, ...]:
    """Return every flag of kernel files at ``level``."""
    defines = (f"-DOPWRIGHT_ISA=isa_{level.isa}", f"-DOPWRIGHT_VECTOR_BYTES={level.vector_bytes}")
    return (*KERNEL_FLAGS, *level.flags, *defines)


def build_object(level: Level, optimisation: str, folder: Path) -> Path:
    """Return the object file of the probe at ``level`` in ``folder``."""
    output = folder / f"probe-{level.name}{optimisation}.o"
    return compile_file(HERE / "probe.cpp", output, (*level_flags(level), optimisation, "-c"))


def build_probe(level: Level, folder: Path) -> Path:
    """Return the probe of ``level`` as a shared library in ``folder``, its object file beside it."""
    objects = build_object(level, "-O3", folder)
    return compile_file(objects, folder / f"probe-{level.name}.so", ("-shared",))


def build_reference(folder: Path) -> Path:
    """Return the shared library of reference values, built in ``folder``."""
    flags = ("-std=c++20", "-O2", "-fPIC", "-shared", "-ffp-contract=off")
    return compile_file(HERE / "reference.cpp", folder / "reference.so", flags)


def pointer(array: NDArray[Any], byte_offset: int = 0) -> ctypes.c_void_p:
    """Return the address of an array's data."""
    return ctypes.c_void_p(array.ctypes.data + byte_offset)


class Probe:
    """The probe of one level."""

    def __init__(self, level: Level, library: Path) -> None:
        self.level = level
        self.library = ctypes.CDLL(str(library))

    def lanes(self, kind: str) -> int:
        """Return the number of lanes of ``Vec<float>`` or ``Vec<double>``."""
        return self.level.vector_bytes // (4 if kind == "float" else 8)

    @property
    def fused(self) -> bool:
        """Whether fma rounds once."""
        return bool(self.library.fused())

    def unary(self, kind: str, name: str, x: NDArray[Any]) -> NDArray[Any]:
        """Return ``name`` of every element of ``x``, which is float32 or float64 as ``kind`` says."""
        x = np.ascontiguousarray(x)
        out = np.empty_like(x)
        self.library[f"{kind}_{name}"](pointer(x), pointer(out), ctypes.c_int64(x.size))
        return out


class Reference:
    """Reference values, and the greatest error of results."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.worst_float.restype = ctypes.c_double
        self.library.worst_double.restype = ctypes.c_double

    def values(self, kind: str, name: str, x: NDArray[Any]) -> NDArray[Any]:
        """Return float64 values for float32 arguments, longdouble values for float64 arguments."""
        out = np.empty(x.shape, np.float64 if kind == "float" else np.longdouble)
        self.library[f"{kind}_{name}"](pointer(x), pointer(out), ctypes.c_int64(x.size))
        return out

    def worst(self, kind: str, got: NDArray[Any], exact: NDArray[Any]) -> tuple[float, int]:
        """Return the greatest error in ulp and the index where it is."""
        where = ctypes.c_int64(-1)
        size = ctypes.c_int64(got.size)
        worst = getattr(self.library, f"worst_{kind}")(
            pointer(got), pointer(exact), size, ctypes.byref(where)
        )
        return worst, where.value
