"""Milestone and acceptance of a demo operator, from the command line as a person runs them."""

from __future__ import annotations

import json
import subprocess
import sys

import demo
import pytest

from shared_build.delivery.bundle_accept import damages


def run_script(bundle, *arguments):
    """Run the delivery's own script, as a client does."""
    command = [sys.executable, bundle / "accept.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_milestone_writes_the_whole_delivery(delivery):
    done, bundle = delivery
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(bundle / "report.html") in done.stdout
    names = {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file()}
    expected = {
        "opwright_demo_op-0.1.0-py3-none-any.whl",
        "opwright_demo_op-0.1.0.tar.gz",
        "contract.toml",
        "accept.py",
        "requirements.txt",
        "report.html",
        "report.json",
        "SHA256SUMS",
        "docs/index.md",
        "docs/README.md",
        "profile/table.txt",
        "results/junit.xml",
        "results/audit.json",
        "results/performance.json",
        "tests/tests/test_demo.py",
        "tests/benchmarks/cases.py",
        "tests/shared_build/delivery/check.py",
        "tests/shared_build/benchmarking/floors.py",
    }
    assert expected <= names
    assert not [name for name in names if "milestone" in name or "__pycache__" in name]
    assert damages(bundle) == []
    assert list(bundle.parent.iterdir()) == [bundle]


def test_the_report_says_what_was_proven(delivery):
    _, bundle = delivery
    report = load(bundle / "report.json")
    by_id = {c["id"]: c for c in report["criteria"]}
    assert report["verdict"] == "holds"
    assert {c["verdict"] for c in by_id.values()} == {"holds"}
    assert by_id["accuracy/forward"]["figure"] == 1.25
    assert by_id["gradients/none"]["counts"] == {"passed": 1}
    assert by_id["devices/cpu"]["counts"] == {"passed": 2}
    assert by_id["performance/forward/4x4/fp32/threads=1/vs_eager"]["figure"] == 3.0
    assert "limits/numbers" not in by_id
    assert report["skips"] == [{"reason": "no such device", "count": 1}]
    page = (bundle / "report.html").read_text(encoding="utf-8")
    assert "All 8 criteria of the contract hold." in page
    assert "Numbers only." in page
    assert "http" not in page.replace("http-equiv", "")  # readable alone


def test_requirements_are_pinned_and_leave_torch_to_the_acceptance(delivery):
    _, bundle = delivery
    lines = (bundle / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert all("==" in line for line in lines)
    names = {line.split("==")[0] for line in lines}
    assert {"pytest", "pluggy", "rich", "jinja2", "markupsafe"} <= names
    assert "torch" not in names


def test_acceptance_proves_it_again_and_leaves_the_delivery_alone(delivery, offline, tmp_path):
    _, bundle = delivery
    before = {p: p.stat().st_mtime_ns for p in bundle.rglob("*")}
    done = demo.run_module("accept", bundle, "--out", tmp_path / "acceptance", *offline, cwd=demo.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "demo_op-0.1.0: holds. 8 holds, 0 fails, 0 undecided" in done.stdout
    record = load(tmp_path / "acceptance" / "acceptance.json")
    row = next(row for row in record["comparison"] if row["id"] == "accuracy/forward")
    assert row["delivered"] == row["here"] == {"figure": 1.25, "verdict": "holds"}
    assert row["change"] == 0
    assert "Compared with the delivered report" in (tmp_path / "acceptance" / "acceptance.html").read_text()
    assert {p: p.stat().st_mtime_ns for p in bundle.rglob("*")} == before


def test_partial_acceptance_says_so_and_is_undecided(delivery, offline, tmp_path):
    _, bundle = delivery
    done = run_script(bundle, "--out", tmp_path / "a", "--tests-only", *offline)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "PARTIAL acceptance: --tests-only" in done.stdout
    by_id = {c["id"]: c for c in load(tmp_path / "a" / "acceptance.json")["criteria"]}
    assert by_id["package/symbols"]["verdict"] == "undecided"
    assert by_id["accuracy/forward"]["verdict"] == "holds"


FALSE = {
    "accuracy": ("k = 2.0", "k = 1.0", "accuracy/forward"),
    "speed": ("ratio = 2.0", "ratio = 50.0", "performance/forward/4x4/fp32/threads=1/vs_eager"),
}


@pytest.fixture(scope="module")
def red(tmp_path_factory, offline):
    """A delivery whose contract promises too much, twice."""
    root = tmp_path_factory.mktemp("red")
    contract = demo.CONTRACT
    for old, new, _ in FALSE.values():
        contract = contract.replace(old, new)
    package = demo.make_package(root, contract=contract)
    done = demo.run_module(
        "milestone", "demo_op", "--out", root / "dist", "--space", 0, *offline, cwd=package
    )
    return done, root / "dist" / "demo_op-0.1.0"


def test_a_false_criterion_makes_the_milestone_fail_and_is_named_last(red):
    done, bundle = red
    assert done.returncode == 1, done.stdout + done.stderr
    last = [line for line in done.stdout.splitlines() if line.strip()][-len(FALSE) :]
    for line, name in zip(last, [name for _, _, name in FALSE.values()]):
        assert line.startswith(f"fails {name}")
    page = (bundle / "report.html").read_text(encoding="utf-8")
    assert "2 of 8 criteria fail." in page
    assert damages(bundle) == []


def test_a_false_criterion_makes_the_acceptance_fail_and_is_named(red, offline, tmp_path):
    _, bundle = red
    done = demo.run_module("accept", bundle, "--out", tmp_path / "a", *offline, cwd=demo.ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    for _, _, name in FALSE.values():
        assert f"fails: {name}" in done.stdout
