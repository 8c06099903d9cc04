"""The register gate: what ptxas prints, what counts as worse, and the baseline file."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from shared_build.benchmarking import registers

NVCC = Path(__file__).resolve().parents[2] / "cmake" / "nvcc.py"
OUTPUT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5firstPf' for 'sm_80'
ptxas info    : Function properties for _Z5firstPf
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 256 bytes smem, 368 bytes cmem[0]
ptxas info    : Compile time = 1.000 ms
ptxas info    : Compiling entry function '_Z6secondPf' for 'sm_90'
ptxas info    : Function properties for _Z6secondPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 360 bytes cmem[0]
"""


@pytest.fixture(scope="module")
def nvcc():
    spec = importlib.util.spec_from_file_location("opwright_nvcc", NVCC)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_ptxas_prints_is_read(nvcc):
    assert nvcc.parse(OUTPUT) == [
        {
            "kernel": "_Z5firstPf",
            "arch": "sm_80",
            "stack": 8,
            "stores": 4,
            "loads": 12,
            "registers": 40,
            "shared": 256,
        },
        {
            "kernel": "_Z6secondPf",
            "arch": "sm_90",
            "stack": 0,
            "stores": 0,
            "loads": 0,
            "registers": 8,
            "shared": 0,
        },
    ]


def fake_toolkit(folder, status=0):
    """The folder of a toolkit whose nvcc prints what a real one did."""
    path = folder / "bin" / "nvcc"
    path.parent.mkdir(exist_ok=True)
    (folder / "told").write_text(OUTPUT + "a.cu(3): warning: something\n")
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "release 13.0"; exit 0; fi\n'
        f'cat "{folder}/told" >&2\nexit {status}\n'
    )
    path.chmod(0o755)
    return str(folder)


def test_the_report_of_a_compilation(nvcc, tmp_path, capfd):
    report = tmp_path / "a.resources.json"
    assert nvcc.main([str(report), str(tmp_path), fake_toolkit(tmp_path), "-c", "@/a.cu"]) == 0
    version, kernels = registers.read_reports(tmp_path)
    assert version == "13.0"
    assert kernels == {
        "first(float*)": {"sm_80": [40, 8, 4, 12, 256]},
        "second(float*)": {"sm_90": [8, 0, 0, 0, 0]},
    }
    # The compiler's own words are passed on, ptxas's are not.
    assert capfd.readouterr().err == "a.cu(3): warning: something\n"


def test_a_compilation_that_fails_leaves_no_report(nvcc, tmp_path):
    report = tmp_path / "a.resources.json"
    assert nvcc.main([str(report), str(tmp_path), fake_toolkit(tmp_path, 2), "-c", "a.cu"]) == 2
    assert not report.exists()


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([40, 0, 0, 0, 0], [40, 0, 0, 0, 0], "same"),
        ([33, 0, 0, 0, 0], [40, 0, 0, 0, 0], "same"),  # both are given 40
        ([40, 0, 0, 0, 0], [41, 0, 0, 0, 0], "worse"),
        ([48, 0, 0, 0, 0], [40, 0, 0, 0, 0], "better"),
        ([40, 0, 0, 0, 0], [40, 8, 4, 0, 0], "worse"),
        ([40, 8, 4, 4, 0], [32, 8, 4, 8, 0], "worse"),
        ([40, 8, 4, 4, 0], [40, 0, 0, 0, 0], "better"),
        (None, [40, 0, 0, 0, 0], "new"),
        ([40, 0, 0, 0, 0], None, "gone"),
    ],
)
def test_what_counts_as_worse(before, after, verdict):
    found = registers.changes(
        {"k": {"sm_90": before}} if before else {}, {"k": {"sm_90": after}} if after else {}
    )
    assert [change.verdict() for change in found] == [verdict]
    assert registers.gate(found) == (verdict in ("worse", "new", "gone"))


@pytest.fixture
def package(tmp_path, nvcc, monkeypatch):
    root = tmp_path / "packages" / "demo"
    (root / "benchmarks").mkdir(parents=True)
    (root / "benchmarks" / "cases.py").write_text("CASES = []\n")
    (root / "build").mkdir()
    nvcc.main([str(root / "build" / "a.resources.json"), str(root), fake_toolkit(tmp_path), "-c", "a.cu"])
    monkeypatch.chdir(tmp_path)
    return root


def gate(package, *more):
    return registers.main(["demo", "--build", str(package / "build"), *more])


def test_from_baseline_to_regression(package, capsys):
    assert gate(package) == 2
    assert "make it with --update" in capsys.readouterr().err
    assert gate(package, "--update") == 0
    assert gate(package) == 0
    report = package / "build" / "a.resources.json"
    entries = json.loads(report.read_text())
    entries["kernels"][1]["registers"] = 32
    report.write_text(json.dumps(entries))
    assert gate(package) == 1
    out = capsys.readouterr()
    assert "worse" in out.out + out.err
    entries["nvcc"] = "12.9"
    report.write_text(json.dumps(entries))
    assert gate(package) == 2
    report.unlink()
    assert gate(package) == 2
