"""The ceilings of an op library, built here without torch at every level, and their Python side."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shared_build.benchmarking import ceilings

SHARED = Path(__file__).resolve().parents[2]
LEVELS: dict[str, tuple[int, list[str]]] = {
    "default": (16, []),
    "avx2": (32, ["-mavx2", "-mfma", "-mf16c"]),
    "avx512": (64, ["-mavx2", "-mfma", "-mf16c", *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq"))]),
}
FLAGS = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]

pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the levels are those of x86-64"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ceilings")
    include = f"-I{SHARED / 'include'}"
    objects = []
    for level, (width, flags) in LEVELS.items():
        objects.append(folder / f"{level}.o")
        defines = [f"-DOPWRIGHT_ISA=isa_{level}", f"-DOPWRIGHT_VECTOR_BYTES={width}"]
        source = SHARED / "src" / "ceilings_kernel.cpp"
        command = ["c++", *FLAGS, "-fno-math-errno", "-fno-trapping-math", include, *defines, *flags]
        subprocess.run([*command, "-c", str(source), "-o", str(objects[-1])], check=True)
    path = folder / "library.so"
    sources = [str(SHARED / "src" / name) for name in ("ceilings.cpp", "isa.cpp", "parallel_serial.cpp")]
    have = [f"-DOPWRIGHT_HAVE_{level.upper()}=1" for level in LEVELS]
    command = ["c++", *FLAGS, include, *have, "-shared", *sources, *map(str, objects), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def level_runs(level: str) -> bool:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    needed = {"default": "", "avx2": " avx2 ", "avx512": " avx512dq "}[level]
    return needed in flags.replace("\n", " ")


@pytest.mark.parametrize("level", LEVELS)
def test_every_copy_copies_and_nothing_else(library: Path, level: str) -> None:
    if not level_runs(level):
        pytest.skip(f"this processor has no {level}")
    script = """
import ctypes, sys, torch
library = ctypes.CDLL(sys.argv[1])
for mode in range(3):
    for lines in (0, 1, 2, 3, 5, 64, 1027):
        size = 64 * lines
        source = torch.randint(0, 256, (size + 64,), dtype=torch.uint8)
        target = torch.full((size + 128,), 7, dtype=torch.uint8)
        to, start = ctypes.c_void_p(target.data_ptr() + 64), ctypes.c_void_p(source.data_ptr())
        assert library.opwright_ceiling_copy(to, start, ctypes.c_int64(size), mode) == 0
        assert torch.equal(target[64 : 64 + size], source[:size]), (mode, lines)
        assert bool((target[:64] == 7).all()) and bool((target[64 + size :] == 7).all()), (mode, lines)
print("copied")
"""
    environment = {**os.environ, "OPWRIGHT_CPU_CAPABILITY": level}
    done = subprocess.run(
        [sys.executable, "-c", script, str(library)], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "copied", done.stderr


def test_what_is_not_a_whole_number_of_aligned_lines_is_refused(library: Path) -> None:
    copy = ctypes.CDLL(str(library)).opwright_ceiling_copy
    block = torch.zeros(512, dtype=torch.uint8)
    start = block.data_ptr()
    at = ctypes.c_void_p
    assert copy(at(start), at(start + 128), ctypes.c_int64(64), 0) == 0
    assert copy(at(start), at(start + 128), ctypes.c_int64(63), 0) == 1
    assert copy(at(start), at(start + 128), ctypes.c_int64(-64), 0) == 1
    assert copy(at(start + 4), at(start + 128), ctypes.c_int64(64), 0) == 1
    assert copy(at(start), at(start + 132), ctypes.c_int64(64), 0) == 1
    assert copy(at(start), at(start + 128), ctypes.c_int64(64), 3) == 1


@pytest.fixture
def measured(library: Path, monkeypatch: pytest.MonkeyPatch) -> ceilings.Ceilings:
    monkeypatch.setattr(ceilings, "library_path", lambda operator: library)
    monkeypatch.setattr(ceilings.importlib, "import_module", lambda name: None)
    return ceilings.Ceilings("standin")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_copies_of_a_case_move_its_bytes_in_whole_lines(
    measured: ceilings.Ceilings, dtype: torch.dtype
) -> None:
    calls = measured.copies(1000, dtype)
    assert set(calls) == {"copy:torch", "copy:memcpy", "copy:stream", "copy:plain"}
    assert ceilings.copied_bytes(1000) == 896
    for call in calls.values():
        call()


def test_the_additions_of_a_case_move_its_bytes_over_three_streams(measured: ceilings.Ceilings) -> None:
    calls = measured.additions(1000)
    assert set(calls) == {"copy:add-torch", "copy:add-stream", "copy:add-plain"}
    assert ceilings.added_bytes(1000) == 960
    for call in calls.values():
        assert bool((call() == 1.5).all())


def test_an_addition_that_does_not_add_is_refused(
    measured: ceilings.Ceilings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "_add", lambda *arguments: 0)
    monkeypatch.setattr(torch, "empty", torch.zeros)
    with pytest.raises(RuntimeError, match=r"copy:add-stream: expected the sum of 320 bytes"):
        measured.additions(1000)


def test_what_is_not_a_whole_number_of_aligned_lines_is_not_added(library: Path) -> None:
    add = ctypes.CDLL(str(library)).opwright_ceiling_add
    block = torch.zeros(512, dtype=torch.uint8)
    start, at = block.data_ptr(), ctypes.c_void_p
    assert add(at(start), at(start + 128), at(start + 192), ctypes.c_int64(64), 1) == 0
    assert add(at(start), at(start + 128), at(start + 192), ctypes.c_int64(60), 1) == 1
    assert add(at(start), at(start + 132), at(start + 192), ctypes.c_int64(64), 1) == 1
    assert add(at(start), at(start + 128), at(start + 196), ctypes.c_int64(64), 2) == 1
    assert add(at(start), at(start + 128), at(start + 192), ctypes.c_int64(64), 0) == 1


def test_rates_are_measured_and_exp_is_checked_first(measured: ceilings.Ceilings) -> None:
    rates = measured.arithmetic(threads=1, seconds=0.05)
    # Anything slower than this is no vector code, anything faster is no work.
    assert 1 < rates["multiply_add_gflops"] < 10_000
    assert 0.05 < rates["exp_gelements"] < 100


def test_a_copy_that_does_not_copy_is_refused(
    measured: ceilings.Ceilings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "_copy", lambda *arguments: 0)
    with pytest.raises(RuntimeError, match=r"copy:memcpy: expected a whole copy of 448 bytes"):
        measured.copies(1000, torch.float32)


def test_a_missing_library_or_one_without_ceilings_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"expected the compiled library opwright\.nothing\._C"):
        ceilings.Ceilings("nothing")
    monkeypatch.setattr(ceilings, "library_path", lambda operator: Path(torch._C.__file__))
    monkeypatch.setattr(ceilings.importlib, "import_module", lambda name: None)
    with pytest.raises(RuntimeError, match="expected a library with ceilings, but got _C"):
        ceilings.Ceilings("standin")


def test_memory_counted_is_at_least_a_line_each_way() -> None:
    assert ceilings.copied_bytes(0) == 128
    assert ceilings.added_bytes(0) == 192
    assert ceilings.copied_bytes(1 << 20) == 1 << 20
