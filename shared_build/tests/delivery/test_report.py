"""The page that a person reads: complete, readable alone, and honest about what it does not know."""

from __future__ import annotations

import json
import re
import tomllib
from html.parser import HTMLParser

import demo
import pytest

from shared_build.delivery.bundle_accept import compare
from shared_build.delivery.report import bullet, charts, duration, main, number, render, size
from shared_build.delivery.verdicts import Judged, judge_measured, overall

VOID = {"meta", "br", "link", "img", "input", "hr", "rect", "line"}


class Outline(HTMLParser):
    """Collects what a browser would fetch, and tags that are closed by another one."""

    def __init__(self, page):
        super().__init__()
        self.open, self.fetched, self.anchors, self.ids, self.crossed = [], [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "src" in values or tag == "link":
            self.fetched.append((tag, values))
        if "href" in values:
            self.anchors.append(values["href"])
        if "id" in values:
            self.ids.append(values["id"])

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if self.open.pop() != tag:
            self.crossed.append(tag)


def speed(verdict="holds", ratio=3.0, **changes):
    return {
        "id": "forward/4x4/fp32/threads=1/vs_eager",
        "case": "forward",
        "title": "Twice, forward",
        "shape": "4x4",
        "dtype": "fp32",
        "threads": 1,
        "metric": "vs_eager",
        "contender": "eager",
        "floor": 2.0,
        "ceiling": None,
        "goal": 4.0,
        "verdict": verdict,
        "ratio": ratio,
        "low": ratio and ratio - 0.1,
        "high": ratio and ratio + 0.1,
        "reason": "",
        "note": "",
        **changes,
    }


def memory():
    return speed(
        id="forward/4x4/fp32/peak_memory", metric="peak_memory", floor=None, ceiling=1.1, ratio=1.0, goal=None
    )


def make_report(*judged, **changes):
    suite = Judged("suite/all-tests-pass", "suite", "Every test passes.", "holds", counts={"passed": 3})
    criteria = [one.to_dict() for one in (suite, *judged)]
    return {
        "schema": 1,
        "verdict": overall(c["verdict"] for c in criteria),
        "partial": "",
        "contract": tomllib.loads(demo.CONTRACT),
        "criteria": criteria,
        "skips": [],
        "slowest": [],
        "audit": [{"check": "paths", "status": "ok", "detail": "none"}],
        "performance": {},
        "machine": {"cpu": "A CPU", "cores": 2, "caches": {"L1d": "48K"}},
        "versions": {"python": "3.11", "torch": "2.13.0"},
        "kernel_level": "avx2",
        "load": [0.1, 0.2, 0.3],
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 90,
        **changes,
    }


def accuracy(verdict="holds", **changes):
    values = {
        "bound": "at most 2 times eager's error",
        "figure": 1.5,
        "unit": "times eager's error",
        **changes,
    }
    return Judged("accuracy/forward", "accuracy", "The error is small.", verdict, **values)


def test_the_page_stands_alone_and_is_well_formed():
    page = render(make_report(accuracy(), *judge_measured([speed(), memory()])))
    outline = Outline(page)
    assert outline.fetched == []
    assert outline.crossed == []
    assert outline.open == []
    assert all(anchor.startswith("#") for anchor in outline.anchors)
    assert {anchor[1:] for anchor in outline.anchors} <= set(outline.ids)
    assert "prefers-color-scheme:dark" in page
    assert 'name="viewport"' in page
    for text in (
        "All 4 criteria of the contract hold.",
        "Twice, forward: against eager PyTorch",
        "The error is small.",
        "A CPU",
        "avx2",
        "python accept.py",
        "Numbers only.",
        "90 seconds",
    ):
        assert text in page


@pytest.mark.parametrize(
    ("judged", "changes", "sentence"),
    [
        ([accuracy("fails", reason="too large")], {}, "1 of 2 criteria fails."),
        ([accuracy("undecided", reason="no figure")], {}, "1 of 2 criteria undecided, none fails."),
        ([accuracy("undecided")], {"partial": "--tests-only"}, "Partial: 1 of 2 criteria undecided."),
    ],
)
def test_the_banner_says_which_case_it_is(judged, changes, sentence):
    page = render(make_report(*judged, **changes))
    assert sentence in page
    assert ("What needs attention" in page) is not bool(changes)


def test_reasons_stand_where_the_reader_looks():
    page = render(make_report(*judge_measured([speed("fails", 1.5, reason="ours 9 us, eager 6 us")])))
    assert page.count("1.5 was measured, at least 2 was promised (ours 9 us, eager 6 us)") == 2


def test_text_from_tests_cannot_become_markup():
    page = render(make_report(accuracy("fails", reason="<script>alert(1)</script>")))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_measurement_that_is_missing_shows_as_missing():
    page = render(
        make_report(*judge_measured([speed("undecided", None, reason="torch.compile did not run")]))
    )
    assert "torch.compile did not run" in page
    assert "–" in page
    assert "None" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)


def test_an_acceptance_compares_with_the_delivered_report():
    before = make_report(accuracy(figure=1.0), *judge_measured([speed()]), bundle={"command": "nox"})
    after = make_report(accuracy(figure=1.5), *judge_measured([speed("fails", 1.5)]))
    rows = {row["id"]: row for row in compare(before, after)}
    assert rows["accuracy/forward"]["change"] == 0.5
    page = render(after, delivered=before)
    assert "Compared with the delivered report" in page
    assert "+50%" in page
    assert "(delivered: holds)" in page
    assert "The delivered report says: holds." in page


def test_criteria_of_one_report_only_are_shown_too():
    rows = {row["id"]: row for row in compare(make_report(accuracy()), make_report())}
    assert rows["accuracy/forward"]["here"]["verdict"] == "not judged here"
    rows = {row["id"]: row for row in compare(make_report(), make_report(accuracy()))}
    assert rows["accuracy/forward"]["delivered"]["verdict"] == "not in the delivered report"


def test_bars_of_a_group_share_one_scale():
    entries = [speed(), speed(id="b", shape="8x8", ratio=6.0)]
    (group,) = charts([judged.to_dict() for judged in judge_measured(entries)])
    first, second = (row["bar"] for row in group["rows"])
    assert first["bound"] == second["bound"]
    assert second["value"] == pytest.approx(2 * first["value"], abs=0.02)
    assert first["low"] < first["value"] < first["high"] < first["goal"] < 100


def test_a_ceiling_is_a_bound_too():
    (group,) = charts([judged.to_dict() for judged in judge_measured([memory()])])
    (row,) = group["rows"]
    assert (row["limit"], row["bound"], group["memory"]) == (1.1, "at most 1.1", True)
    assert row["bar"]["value"] < row["bar"]["bound"]
    assert "≤ 1.1" in render(make_report(*judge_measured([memory()])))


def test_a_mean_is_named_as_one():
    entry = speed(id="forward/4x4+8x8/fp32/threads=1/vs_eager/geomean", shape="4x4, 8x8")
    (group,) = charts([judged.to_dict() for judged in judge_measured([entry])])
    assert group["rows"][0]["label"] == "geometric mean of all"


def test_a_bar_never_leaves_its_track():
    assert bullet(9.0, 2.0, top=4.0)["value"] == 100
    assert bullet(-1.0, 2.0)["value"] == 0
    assert bullet(float("nan"), 2.0)["value"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (2.87, "2.87"),
        (0.7321, "0.732"),
        (1234.5, "1234"),
        (0.0, "0"),
        (1e-7, "1.00e-07"),
        (None, "–"),
        (100.0, "100"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_sizes_and_times():
    assert [size(n) for n in (12, 2048, 5 * 2**20)] == ["12 B", "2.0 KiB", "5.0 MiB"]
    assert [duration(s) for s in (1, 90, 600)] == ["1 second", "90 seconds", "10 minutes"]


def test_a_report_can_be_rendered_again(tmp_path, capsys):
    source = tmp_path / "report.json"
    source.write_text(json.dumps(make_report(accuracy())))
    assert main([str(source)]) == 0
    assert "All 2 criteria" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert str(tmp_path / "report.html") in capsys.readouterr().out


def test_json_has_no_figure_that_is_no_number():
    data = accuracy("fails", figure=float("nan")).to_dict()
    assert json.loads(json.dumps(data, allow_nan=False))["figure"] is None
