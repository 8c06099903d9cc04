"""A miniature package whose operator is plain Python, so that no library has to be built."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2]

CASES = """
import os
import time
import torch
from shared_build.benchmarking.cases import Case

def make(shape, dtype, generator):
    return tuple(torch.randn(shape, generator=generator).to(dtype) for _ in range(2))

def eager(x, y):
    return x * y + x

def slow(x, y):
    time.sleep(0.002)
    return x * y + x

def wrong(x, y):
    return x * y + x * 1.01

def absent():
    raise ImportError("no module named rival")

def in_place(x, y):
    return x.mul_(y), y

def in_place_eager(x, y):
    x.copy_(x * y)
    return x, y

def ours():
    return {"right": eager, "wrong": wrong, "slow": slow}[os.environ.get("STANDIN", "right")]

def case(name, **options):
    arguments = dict(shapes=((4, 32), (16, 64)), dtypes=("fp32", "bf16"), make=make, ours=ours, eager=eager,
                     golden=lambda: eager, bytes_moved=lambda shape, size: 3 * shape[0] * shape[1] * size,
                     compiled=False, rivals={"slow": lambda: slow, "wrong": lambda: wrong, "absent": absent})
    return Case(name=name, title=name, **{**arguments, **options})

CASES = [
    case("forward"),
    case("forward_backward", differentiate=(0, 1)),
    case("in_place", ours=lambda: in_place, eager=in_place_eager, golden=lambda: lambda x, y: (x * y, y),
         mutates=True, rivals={}),
]
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `benchmarks/cases.py` and `shared_build`, as a package or an unpacked bundle has them."""
    benchmarks = tmp_path / "benchmarks"
    benchmarks.mkdir()
    (benchmarks / "__init__.py").write_text("", encoding="utf-8")
    (benchmarks / "cases.py").write_text(CASES, encoding="utf-8")
    (tmp_path / "shared_build").symlink_to(SHARED)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path
