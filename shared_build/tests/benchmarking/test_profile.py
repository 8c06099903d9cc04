"""Profiles of a miniature package: tables, traces, and no figures where the results differ."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from shared_build.benchmarking import check, profile

BLOCK = """
import torch

class Block(torch.nn.Module):
    def __init__(self, offset):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((8,), 2.0))
        self.offset = offset

    def forward(self, x):
        return (x @ x.T @ x) * self.scale + self.offset

def make(with_operator):
    return Block(OFFSET if with_operator else 0.0)

def inputs():
    return (torch.eye(8),)
"""


@pytest.fixture
def small(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(profile, "SHAPES", ((4, 32),))
    monkeypatch.setattr(profile, "DTYPE", "fp32")
    monkeypatch.syspath_prepend(str(package))
    return package


def test_tables_and_traces_are_written(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small / "benchmarks" / "block.py").write_text(BLOCK.replace("OFFSET", "0.0"), encoding="utf-8")
    files = profile.run("standin", small, small / "out", Console(width=140))
    shown = capsys.readouterr().out
    for word in ("forward 4x32 fp32", "in_place 4x32 fp32", "eager inference with", "compiled training with"):
        assert word in shown
    assert (small / "out" / "profile.txt").read_text(encoding="utf-8").count("level:") == 2

    data = json.loads((small / "out" / "profile.json").read_text(encoding="utf-8"))
    by_name = {item["name"]: item for item in data["operator"] + data["graph"]}
    assert len(by_name) == 2 * 3 + 8
    eager = by_name["forward 4x32 fp32 eager"]
    assert eager["dispatched"] == 2, "one multiplication and one addition a call"
    assert {"aten::mul", "aten::add", profile.OUTSIDE} <= set(eager["ops"])
    assert eager["step_us"] > 0
    assert "compiled code" in by_name["compiled inference with"]["ops"]

    traces = [path for path in files if path.name.endswith(".json.gz")]
    assert {path.name for path in traces} == {item["trace"] for item in by_name.values()}
    for path in traces:
        text = gzip.decompress(path.read_bytes()).decode()
        assert json.loads(text)["traceEvents"]
        assert os.uname().nodename not in json.loads(text).values()
        assert "/tmp/" not in text


def test_a_wrong_operator_is_not_profiled(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN", "wrong")
    with pytest.raises(check.RedCheckError, match="standin: ours in forward"):
        profile.run("standin", small, small / "out", Console(width=140))


def test_a_block_that_differs_with_the_operator_is_not_profiled(small: Path) -> None:
    (small / "benchmarks" / "block.py").write_text(BLOCK.replace("OFFSET", "0.01"), encoding="utf-8")
    with pytest.raises(RuntimeError, match="expected the same block within 1e-5 with the operator, but got"):
        profile.profile_graph(small, small, lambda label: None)


def test_shares_are_parts_of_the_whole_step() -> None:
    item = profile.Profiled("x", 10.0, 2, {"opwright::a": 3.0, "aten::b": 1.0, profile.OUTSIDE: 4.0})
    assert item.share(profile.is_ours) == 0.375
    assert profile.Profiled("x", 10.0, 0).share(profile.is_ours) == 0.0


def test_the_ratio_of_a_block_is_to_the_one_without() -> None:
    times = {"without": 30.0, "with": 20.0}
    pairs = [profile.Profiled(f"eager {name}", us, 1, {"aten::a": 1.0}) for name, us in times.items()]
    table = profile.graph_table(pairs)
    assert list(table.columns[2].cells) == ["-", "1.50x"]
