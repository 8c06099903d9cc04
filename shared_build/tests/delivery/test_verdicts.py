"""From results to verdicts, and what pytest's own events become."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import demo
import pytest

from shared_build.delivery import verdicts
from shared_build.delivery.contract import Contract, Criterion
from shared_build.delivery.recorder import TestResult, read_record

NODE = "tests/a.py::test_b"


def judge(results, findings=(), **criterion):
    one = Criterion(id="accuracy/x", section="accuracy", claim="x", **({"tests": (NODE,)} | criterion))
    contract = Contract(Path("contract.toml"), tomllib.loads(demo.CONTRACT), (one,))
    return verdicts.judge(contract, list(results), list(findings))[0]


def result(outcome="passed", node=NODE, reason="", **properties):
    return TestResult(node, outcome, 1.0, reason, properties)


@pytest.mark.parametrize(
    ("results", "verdict", "reason"),
    [
        ([result()], "holds", ""),
        ([result(), result("skipped", NODE + "[1]", "no AVX-512")], "holds", ""),
        ([result("skipped", reason="no AVX-512")], "undecided", "skipped: no AVX-512"),
        ([result(), result("failed", NODE + "[1]", "call: wrong")], "fails", NODE + "[1]: call: wrong"),
        (
            [result("crashed", reason="the process died in this test")],
            "fails",
            NODE + ": the process died in this test",
        ),
        ([result(node="tests/a.py::test_c")], "fails", "no test that ran matches " + NODE),
        ([], "fails", "no test that ran matches " + NODE),
    ],
)
def test_proof_by_passing(results, verdict, reason):
    judged = judge(results)
    assert (judged.verdict, judged.reason) == (verdict, reason)


def test_every_named_test_must_have_run():
    judged = judge([result()], tests=(NODE, "tests/a.py::test_other"))
    assert judged.verdict == "fails"
    assert judged.reason.endswith("test_other")


@pytest.mark.parametrize(
    ("values", "bound", "verdict", "figure"),
    [
        ([1.0, 1.9, 1.5], {"at_most": 2.0}, "holds", 1.9),
        ([1.0, 2.1], {"at_most": 2.0}, "fails", 2.1),
        ([1.0, math.nan], {"at_most": 2.0}, "fails", math.nan),
        ([math.nan, 3.0], {"at_least": 2.0}, "fails", math.nan),
        ([3.0, 2.5], {"at_least": 2.0}, "holds", 2.5),
        ([3.0, 1.5], {"at_least": 2.0}, "fails", 1.5),
        ([0.0], {"at_most": 0.0}, "holds", 0.0),
        ([1.0], {"at_most": 0.0}, "fails", 1.0),
        ([], {"at_most": 2.0}, "undecided", None),
    ],
)
def test_proof_by_a_figure(values, bound, verdict, figure):
    judged = judge([result(ratio=values) if values else result()], figure="ratio", **bound)
    assert judged.verdict == verdict
    assert (
        judged.figure == pytest.approx(figure, nan_ok=True) if figure is not None else judged.figure is None
    )


def test_a_failed_test_fails_whatever_the_figure():
    judged = judge([result("failed", reason="wrong", ratio=[0.1])], figure="ratio", at_most=2.0)
    assert (judged.verdict, judged.figure) == ("fails", 0.1)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("ok", "holds"), ("fails", "fails"), ("report", "undecided"), ("not run", "undecided")],
)
def test_proof_by_the_wheel_audit(status, verdict):
    finding = {"check": "paths", "status": status, "detail": "d"}
    assert judge([], [finding], tests=(), audit=("paths",)).verdict == verdict


def test_an_audit_that_did_not_run_proves_nothing():
    assert judge([], tests=(), audit=("paths",)).verdict == "undecided"


@pytest.mark.parametrize(
    ("all_of", "verdict"),
    [
        ([], "holds"),
        (["holds"], "holds"),
        (["holds", "undecided"], "undecided"),
        (["undecided", "fails"], "fails"),
    ],
)
def test_one_verdict_for_many(all_of, verdict):
    assert verdicts.overall(all_of) == verdict


SESSION = """
import os, pytest

def test_good(record_property):
    record_property("ratio", 1.5)
    record_property("ratio", 2)
    record_property("words", "not a figure")

@pytest.mark.xfail(reason="known", strict=True)
def test_expected(): assert False

@pytest.fixture
def late():
    yield
    raise RuntimeError("torn")

def test_teardown(late): pass

def test_skip(): pytest.skip("no such device")

def test_bad(): assert 1 == 2

%s
"""


def record(tmp_path, last, *arguments):
    (tmp_path / "test_s.py").write_text(SESSION % last)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "shared_build.delivery.recorder",
            "-p",
            "no:cacheprovider",
            *arguments,
            tmp_path / "test_s.py",
            f"--rootdir={tmp_path}",
        ],
        cwd=demo.ROOT,
        env={**os.environ, "OPWRIGHT_RECORD": str(tmp_path / "r")},
        capture_output=True,
        check=False,
    )
    return {r.node.split("::")[-1]: r for r in read_record(tmp_path / "r")}


@pytest.mark.parametrize("arguments", [["-p", "no:xdist"], ["-n", "2"]], ids=["one process", "two workers"])
def test_what_a_session_records(tmp_path, arguments):
    found = record(tmp_path, "", *arguments)
    assert {name: r.outcome for name, r in found.items()} == {
        "test_good": "passed",
        "test_expected": "skipped",
        "test_teardown": "failed",
        "test_skip": "skipped",
        "test_bad": "failed",
    }
    assert found["test_good"].properties == {"ratio": [1.5, 2.0]}
    assert found["test_skip"].reason == "no such device"
    assert found["test_expected"].reason == "expected failure: known"
    assert found["test_bad"].reason.startswith("call: ")
    assert "1 == 2" in found["test_bad"].reason
    assert "torn" in found["test_teardown"].reason
    first = json.loads((tmp_path / "r").read_text().splitlines()[0])
    assert first == {"event": "collected", "count": 5}


def test_a_test_that_takes_the_process_down_is_named(tmp_path):
    found = record(tmp_path, "def test_last(): os.abort()", "-p", "no:xdist")
    assert found["test_last"].outcome == "crashed"
    assert found["test_good"].outcome == "passed"


def test_a_file_that_cannot_be_collected_is_a_failure(tmp_path):
    found = record(tmp_path, "import a_module_that_is_not_there", "-p", "no:xdist")
    assert [r.outcome for r in found.values()] == ["failed"]
    assert "a_module_that_is_not_there" in next(iter(found.values())).reason
