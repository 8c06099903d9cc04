"""The instruction gate: it sees a kernel that grew, and says what is missing where it cannot count."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

import pytest

from shared_build.benchmarking import callgrind
from shared_build.benchmarking.callgrind import Change, Counts, changes, code_flags, gate, read_profiles

SHARED = Path(__file__).resolve().parents[2]

KERNEL = """
#include <cstdint>
namespace opwright { inline namespace OPWRIGHT_ISA {
void scale(float* values, int64_t count) {
  for (int64_t round = 0; round < ROUNDS; ++round)
    for (int64_t i = 0; i < count; ++i) values[i] = values[i] * 1.5f + 1.0f;
}
} }
"""
CALLS = """
#include "counted.h"
namespace opwright {
namespace isa_avx2 { void scale(float* values, int64_t count); }
namespace counted {
static Buffers buffers;
std::vector<Call> calls() {
  float* values = buffers.floats(4096);
  return {{"scale", [=] { isa_avx2::scale(values, 4096); }},
          {"scale, tail", [=] { isa_avx2::scale(values, 4001); }}};
}
} }
"""


@pytest.mark.parametrize(
    ("before", "after", "verdict", "status"),
    [
        (1000, 1000, "same", 0),
        (1000, 1020, "same", 0),
        (1000, 1021, "grew", 1),
        (1000, 980, "same", 0),
        (1000, 979, "shrank", 0),
        (None, 5, "new", 1),
        (5, None, "gone", 1),
    ],
)
def test_a_call_may_grow_by_the_margin_and_no_more(
    before: int | None, after: int | None, verdict: str, status: int
) -> None:
    change = Change("call", before, after)
    assert change.verdict() == verdict
    assert gate([Change("other", 7, 7), change]) == status


def test_calls_of_both_sides_are_compared() -> None:
    found = changes({"a": 1, "b": 2}, {"b": 2, "c": 3})
    assert [(c.name, c.before, c.after) for c in found] == [("a", 1, None), ("b", 2, 2), ("c", None, 3)]


def test_what_decides_about_the_code_is_kept_of_a_command() -> None:
    command = (
        "/usr/bin/c++ -DOPWRIGHT_ISA=isa_avx2 -DNDEBUG -I/some/where -isystem /else -O3 -Wall -fPIC -mavx2 "
        "-ffile-prefix-map=/a/= -std=c++20 -o x.o -c /src/x.cpp"
    )
    assert code_flags(command.split()) == ["-DNDEBUG", "-O3", "-fPIC", "-mavx2", "-std=c++20"]


def write_parts(folder: Path, *totals: int) -> None:
    for part, total in enumerate(totals, start=1):
        (folder / f"p.{part}").write_text(f"version: 1\ntotals: {total}\n", encoding="utf-8")


def test_profiles_are_read_in_the_order_of_the_calls(tmp_path: Path) -> None:
    write_parts(tmp_path, 11, 22)
    assert read_profiles(["b", "a"], tmp_path, "p") == {"b": 11, "a": 22}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "c"], "expected a profile of 'c', but got none in part 3"),
        (["a"], "expected 1 counted calls, but got more"),
        (["a", "a"], "expected distinct names of calls"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    write_parts(tmp_path, 11, 22)
    with pytest.raises(RuntimeError, match=message):
        read_profiles(names, tmp_path, "p")


def test_a_baseline_keeps_the_builds_of_other_compilers(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    for compiler, flags, number in (("Clang 19", "-O3", 1), ("GNU 12", "-O3", 2), ("GNU 12", "-O2", 3)):
        callgrind.write_baseline(path, Counts(compiler, "x86_64", flags, {"call": number}))
    entries = callgrind.read_baseline(path)
    assert [(e["compiler"], e["flags"], e["calls"]["call"]) for e in entries] == [
        ("Clang 19", "-O3", 1),
        ("GNU 12", "-O2", 3),
    ]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "asv.conf.json").write_text("{}", encoding="utf-8")
    folder = tmp_path / "packages" / "scale"
    (folder / "benchmarks" / "callgrind").mkdir(parents=True)
    (folder / "csrc" / "cpu").mkdir(parents=True)
    (folder / "benchmarks" / "callgrind" / "calls.cpp").write_text(CALLS, encoding="utf-8")
    (folder / "csrc" / "cpu" / "scale_kernel.cpp").write_text(
        KERNEL.replace("ROUNDS", "10"), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the AVX2 level is x86-64's")
def test_a_kernel_that_grew_fails_the_gate_and_an_update_settles_it(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callgrind.main(["scale"]) == 2
    assert "expected a baseline for" in capsys.readouterr().err
    assert callgrind.main(["scale", "--update"]) == 0
    text = (repository / "packages/scale/benchmarks/callgrind/baseline.json").read_text(encoding="utf-8")
    [build] = json.loads(text)["builds"]
    assert set(build["calls"]) == {"scale", "scale, tail"}
    assert str(repository) not in text
    # Ten rounds over 512 vectors of eight floats: a few instructions each.
    assert 10 * 512 < build["calls"]["scale"] < 10 * 512 * 8

    assert callgrind.main(["scale"]) == 0
    kernel = repository / "packages/scale/csrc/cpu/scale_kernel.cpp"
    kernel.write_text(KERNEL.replace("ROUNDS", "11"), encoding="utf-8")
    capsys.readouterr()
    assert callgrind.main(["scale"]) == 1
    assert capsys.readouterr().out.count("grew") >= 2
    assert callgrind.main(["scale", "--update"]) == 0
    assert callgrind.main(["scale"]) == 0


def test_a_kernel_that_does_not_compile_shows_the_compilers_words(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    kernel = repository / "packages/scale/csrc/cpu/scale_kernel.cpp"
    kernel.write_text("int broken = ;", encoding="utf-8")
    assert callgrind.main(["scale"]) == 3
    assert "expected primary-expression" in capsys.readouterr().err


def test_without_valgrind_it_says_so(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(callgrind.shutil, "which", lambda name: None)
    assert callgrind.main(["scale"]) == 2
    assert "expected valgrind to be installed, but got none" in capsys.readouterr().err


def test_a_package_without_calls_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert callgrind.main(["other"]) == 2
    assert "expected packages/other/benchmarks/callgrind" in capsys.readouterr().err
