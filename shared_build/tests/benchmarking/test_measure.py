"""Measuring everything, without judging."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from shared_build.benchmarking import machine, measure


def test_figures_of_every_case_go_to_a_file_and_a_table(
    package: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    arguments = ["standin", "--case", "forward", "--dtype", "fp32", "--quick", "--json", "figures.json"]
    assert measure.main(arguments) == 0
    report = json.loads((package / "figures.json").read_text(encoding="utf-8"))
    found = {(cell["case"], cell["shape"], cell["dtype"], cell["threads"]) for cell in report["cells"]}
    assert found == {
        ("forward", shape, "fp32", threads) for shape in ("4x32", "16x64") for threads in (1, "all")
    }
    for cell in report["cells"]:
        assert set(cell["ratios"]) == {"eager", "slow"}
        assert cell["ratios"]["slow"]["ratio"] > 2, "two milliseconds of sleep against a few microseconds"
        assert set(cell["unavailable"]) == {"wrong", "absent", "copy"}
    assert report["date"].startswith("20")
    assert report["verdicts"] == []
    assert "16x64" in capsys.readouterr().out


def test_rivals_alone_can_be_asked_for(package: Path) -> None:
    report = measure.measure(
        "standin", package, dtypes=["fp32"], contenders=["rival"], quick=True, progress=False
    )
    assert {cell["case"] for cell in report["cells"]} == {"forward", "forward_backward"}
    assert all("eager" not in cell["contenders"] for cell in report["cells"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--case", "sideways"],
            "expected a case in forward, forward_backward, in_place, but got",
        ),
        (["--contender", "nobody"], "expected a case with one of nobody, but got none"),
        (["--save", "--quick"], "expected --save with a whole, careful run, but got a partial one"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    package: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure.main(["standin", *arguments]) == 3
    assert message in " ".join(capsys.readouterr().err.split())


def test_saved_figures_are_named_after_the_kind_of_machine(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "asv.conf.json").write_text("{}", encoding="utf-8")
    report = {"operator": "standin", "cells": []}
    monkeypatch.setattr(measure, "measure", lambda *arguments, **options: report)
    assert measure.main(["standin", "--save"]) == 0
    path = package / "docs/benchmarks/results/standin" / f"{machine.machine_name()}.json"
    assert json.loads(path.read_text(encoding="utf-8")) == report


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("AMD EPYC 9654 96-Core Processor", "amd-epyc-9654-96-core-4-cores"),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "intel-xeon-e5-2680-v4-4-cores"),
    ],
)
def test_a_machine_is_named_by_its_processor(model: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_model", lambda: model)
    monkeypatch.setattr(machine, "cores", lambda: 4)
    assert machine.machine_name() == name


def test_a_losing_case_is_red(capsys: pytest.CaptureFixture[str]) -> None:
    cell = {
        "case": "forward",
        "shape": "4x32",
        "dtype": "fp32",
        "threads": 1,
        "contenders": {"ours": {"median_us": 12.0}},
        "ratios": {"eager": {"ratio": 0.5}},
        "gb_per_s": 1.0,
    }
    table = measure.table({"operator": "op", "cells": [cell]})
    Console(width=100, force_terminal=True, color_system="standard").print(table)
    assert "\x1b[31m0.50\x1b[0m" in capsys.readouterr().out
