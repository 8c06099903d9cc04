"""Charts: the same figures give the same bytes, for both colour schemes, naming what they show."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from shared_build.benchmarking import charts


def ratio(value: float) -> dict[str, float]:
    return {"ratio": value, "low": value * 0.9, "high": value * 1.1}


def cell(case: str, shape: str, dtype: str, threads: int | str, **ratios: float) -> dict[str, object]:
    return {
        "case": case,
        "shape": shape,
        "dtype": dtype,
        "threads": threads,
        "contenders": {"ours": {"median_us": 10.0}},
        "ratios": {name: ratio(value) for name, value in ratios.items()},
        "gb_per_s": 20.0,
        "copy_gb_per_s": 25.0,
        "of_ceiling": ratio(0.8),
    }


@pytest.fixture
def report() -> dict[str, object]:
    shapes = ("4096x4096", "1x4096")
    cells = [
        cell("forward", shape, dtype, threads, eager=3.25, compile=0.75)
        for threads in (1, "all")
        for dtype in ("bf16", "fp32")
        for shape in shapes
    ]
    return {
        "operator": "op",
        "date": "2026-01-31",
        "machine": {"cpu": "A <fast> CPU", "threads": 2},
        "versions": {"torch": "2.13.0", "kernel_level": "avx2", "opwright-op": "0.1.0"},
        "conditions": [{"other_cores_busy": 0.0}],
        "command": "python -m shared_build.benchmarking.measure op",
        "cells": cells,
    }


def test_every_case_gets_a_chart_for_each_thread_count(report: dict[str, object], tmp_path: Path) -> None:
    drawn = charts.draw(report, tmp_path, {"forward": "Forward"})
    names = ["forward-1", "forward-bandwidth-1", "forward-all", "forward-bandwidth-all"]
    assert [chart.path.stem for chart in drawn] == names
    assert drawn[0].title == "Forward, 1 thread"
    assert drawn[2].title == "Forward, 2 threads"


def test_the_same_figures_give_the_same_bytes(report: dict[str, object], tmp_path: Path) -> None:
    first, second = charts.draw(report, tmp_path / "a"), charts.draw(report, tmp_path / "b")
    for one, other in zip(first, second, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()


def test_a_chart_is_valid_names_itself_and_knows_both_schemes(
    report: dict[str, object], tmp_path: Path
) -> None:
    for chart in charts.draw(report, tmp_path):
        text = chart.path.read_text(encoding="utf-8")
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img"
        assert root.get("aria-label") == chart.alt
        assert "width" not in root.attrib, "the page decides the width"
        assert root.get("viewBox")
        assert "prefers-color-scheme:dark" in text
        for stand_in, light, dark in charts.COLOURS.values():
            assert stand_in not in text, "a stand-in colour would be black on black"
            assert light in text
            assert dark in text
        colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", text))
        assert all(colour == "none" or colour.startswith("var(--ow-") for colour in colours), colours
        assert "date" not in text.lower()


def test_identifiers_do_not_collide_when_charts_share_a_page(
    report: dict[str, object], tmp_path: Path
) -> None:
    drawn = charts.draw(report, tmp_path)
    identifiers = [re.findall(r' id="([^"]+)"', chart.path.read_text(encoding="utf-8")) for chart in drawn]
    for found in identifiers:
        assert len(found) == len(set(found))
        # What is left is named after its content: equal names mean equal content.
        assert all(re.fullmatch(r"[A-Za-z]{1,3}[0-9a-f]{6,}", name) for name in found), found


def test_a_losing_case_is_shown(report: dict[str, object], tmp_path: Path) -> None:
    [chart] = [chart for chart in charts.draw(report, tmp_path) if chart.path.stem == "forward-1"]
    text = chart.path.read_text(encoding="utf-8")
    assert text.count(">0.75x<") == 4
    assert text.count(">3.25x<") == 4
    assert "0.75 times torch.compile" in chart.alt


def test_rows_are_sorted_by_dtype_and_size(report: dict[str, object], tmp_path: Path) -> None:
    [chart] = [chart for chart in charts.draw(report, tmp_path) if chart.path.stem == "forward-1"]
    labels = re.findall(r">(\d+ x \d+  ?\w+)<", chart.path.read_text(encoding="utf-8"))
    assert [" ".join(label.split()) for label in labels] == [
        "1 x 4096 fp32",
        "4096 x 4096 fp32",
        "1 x 4096 bf16",
        "4096 x 4096 bf16",
    ]


def test_the_caption_says_machine_versions_load_and_command(report: dict[str, object]) -> None:
    report["conditions"] = [{"other_cores_busy": 0.0}, {"other_cores_busy": 0.7}, {"other_cores_busy": None}]
    assert charts.caption(report) == (
        "A <fast> CPU, 2 threads, avx2 kernels; torch 2.13.0, opwright-op 0.1.0; others used 0.7 cores. "
        "2026-01-31, python -m shared_build.benchmarking.measure op"
    )


def test_a_cell_without_one_contender_leaves_its_place_empty(
    report: dict[str, object], tmp_path: Path
) -> None:
    del report["cells"][0]["ratios"]["compile"]
    [chart] = [chart for chart in charts.draw(report, tmp_path) if chart.path.stem == "forward-1"]
    assert chart.path.read_text(encoding="utf-8").count(">0.75x<") == 3


def test_extreme_ratios_stay_inside(report: dict[str, object], tmp_path: Path) -> None:
    report["cells"][0]["ratios"]["compile"] = ratio(24000.0)
    [chart] = [chart for chart in charts.draw(report, tmp_path) if chart.path.stem == "forward-1"]
    assert ">&gt;999x<" in chart.path.read_text(encoding="utf-8")


def test_the_command_draws_a_given_report(
    report: dict[str, object], package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (package / "asv.conf.json").write_text("{}", encoding="utf-8")
    assert charts.main(["standin"]) == 3
    assert "expected figures in docs/benchmarks/results/standin, but got none" in capsys.readouterr().err
    (package / "report.json").write_text(json.dumps(report), encoding="utf-8")
    assert charts.main(["standin", "--results", "report.json", "--out", "drawn"]) == 0
    assert len(list((package / "drawn").glob("*.svg"))) == 4
