"""What goes wrong on a person's machine: a clear message, a non-zero exit, and nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import demo
import pytest

from shared_build.delivery import building, bundle as bundles, milestone as milestones
from shared_build.delivery.bundle_accept import SUMS, damages

CMAKE = "cmake_minimum_required(VERSION 3.26)\n"


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"CXX": "/nonexistent/compiler"},
            "expected a C++20 compiler (CXX=/nonexistent/compiler), but found none",
        ),
        (
            {"CXX": "", "PATH": "/nonexistent"},
            "expected a C++20 compiler (c++ or g++ or clang++), but found none",
        ),
        ({"CXX": "false"}, "--version ended with status 1"),
    ],
)
def test_missing_compiler(tmp_path, environment, message):
    package = demo.make_package(tmp_path, cmake=CMAKE)
    done = demo.run_module(
        "milestone", "demo_op", "--out", tmp_path / "dist", "--space", 0, cwd=package, **environment
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Nothing was written." in done.stderr
    assert not (tmp_path / "dist").exists()


def test_no_space_is_told_before_anything_is_built(tmp_path):
    package = demo.make_package(tmp_path)
    done = demo.run_module("milestone", "demo_op", "--out", tmp_path / "dist", "--space", 2**60, cwd=package)
    assert done.returncode == 1
    assert "GiB free in" in done.stderr
    assert not (tmp_path / "dist").exists()


def test_no_package_index(tmp_path):
    package = demo.make_package(tmp_path)
    done = demo.run_module(
        "milestone", "demo_op", "--out", tmp_path / "dist", "--space", 0, "--no-index", cwd=package
    )
    assert done.returncode == 1
    assert "installing torch 2.13.0 and the requirements failed" in done.stderr
    assert "--find-links" in done.stderr
    assert not (tmp_path / "dist").exists()


def test_a_build_that_fails_shows_its_last_lines(tmp_path, offline):
    package = demo.make_package(tmp_path)
    (package / "backend.py").write_text("raise SystemExit('the compiler said no')\n", encoding="utf-8")
    done = demo.run_module(
        "milestone", "demo_op", "--out", tmp_path / "dist", "--space", 0, *offline, cwd=package
    )
    assert done.returncode == 1
    assert "building demo_op failed" in done.stderr
    assert "the compiler said no" in done.stderr
    assert not (tmp_path / "dist").exists()


def test_an_unproved_criterion_stops_before_the_build(tmp_path):
    contract = demo.CONTRACT.replace("test_demo.py::test_error", "test_demo.py::test_that_is_not_there")
    package = demo.make_package(tmp_path, contract=contract)
    done = demo.run_module("milestone", "demo_op", "--out", tmp_path / "dist", cwd=package)
    assert done.returncode == 1
    assert "accuracy/forward: expected a proof that exists" in done.stderr
    assert not (tmp_path / "dist").exists()


TESTS_THAT_BREAK = """
import os
import opwright.demo_op
import pytest

@pytest.mark.parametrize("value", [1, 2])
def test_values(value):
    assert opwright.demo_op.twice(value) == 2

def test_error(record_property):
    record_property("error_ratio_forward", float("nan"))

def test_elsewhere():
    pytest.skip("a reason that nobody listed")

def test_last():
    os.abort()
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory, offline):
    root = tmp_path_factory.mktemp("broken")
    package = demo.make_package(root, tests=TESTS_THAT_BREAK)
    (package / "benchmarks" / "red").touch()
    done = demo.run_module(
        "milestone", "demo_op", "--out", root / "dist", "--space", 0, *offline, cwd=package
    )
    return done, root / "dist" / "demo_op-0.1.0"


@pytest.mark.parametrize(
    ("criterion", "reason"),
    [
        ("suite/all-tests-pass", "2 of 5, first tests/test_demo.py::test_values[2]"),
        ("suite/skips-are-listed", "not listed: 'a reason that nobody listed'"),
        ("accuracy/forward", "error_ratio_forward is nan"),
        ("gradients/none", "tests/test_demo.py::test_values[2]: call: AssertionError: assert 4 == 2"),
        (
            "performance/forward/4x4/fp32/threads=1/vs_eager",
            "nothing was measured: forward: the result is wrong",
        ),
    ],
)
def test_failing_tests_make_a_complete_red_delivery(broken, criterion, reason):
    done, bundle = broken
    assert done.returncode == 1, done.stderr
    report = json.loads((bundle / "report.json").read_text(encoding="utf-8"))
    judged = {c["id"]: c for c in report["criteria"]}[criterion]
    assert judged["verdict"] == "fails"
    assert judged["reason"].startswith(reason)
    assert f"fails {criterion}" in done.stdout
    assert damages(bundle) == []
    assert left_over(bundle.parent) == [bundle.name]


# ---- a full disk
# ------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, capsys):
    """The writes themselves fail: the first ones succeed, then there is no space left."""
    package = demo.make_package(tmp_path)
    wheel, sdist = tmp_path / "demo.whl", tmp_path / "demo.tar.gz"
    wheel.write_bytes(b"wheel")
    sdist.write_bytes(b"sdist")
    built = building.Built(wheel, sdist, tmp_path / "objects")
    monkeypatch.setattr(building, "build", lambda *_: built)
    copies = []
    real = shutil.copy2

    def copy(source, target, **options):
        copies.append(target)
        if len(copies) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return real(source, target, **options)

    monkeypatch.setattr(shutil, "copy2", copy)
    monkeypatch.chdir(package)
    assert milestones.main(["demo_op", "--out", str(tmp_path / "dist"), "--space", "0"]) == 1
    told = capsys.readouterr().err
    assert "the disk is full (while writing " in told
    assert "Nothing was written." in told
    assert len(copies) == 3
    assert not (tmp_path / "dist").exists()


LIMITED = """
import resource, sys
from pathlib import Path
from shared_build.delivery.bundle import published
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    with published(Path(sys.argv[1])) as partial:
        (partial / "small").write_bytes(b"x" * 100)
        (partial / "large").write_bytes(b"x" * 100_000)
except OSError as error:
    print(error.errno)
"""


def test_a_file_that_the_system_refuses_leaves_the_older_delivery(tmp_path):
    target = tmp_path / "dist" / "demo_op-0.1.0"
    target.mkdir(parents=True)
    (target / "report.json").write_text("older")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, target], cwd=demo.ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(errno.EFBIG)
    assert left_over(target.parent) == [target.name]
    assert (target / "report.json").read_text() == "older"


def test_a_new_delivery_replaces_the_older_one_whole(tmp_path):
    target = tmp_path / "demo_op-0.1.0"
    target.mkdir()
    (target / "older").touch()
    with bundles.published(target) as partial:
        (partial / "newer").touch()
        assert left_over(target) == ["older"]
    assert left_over(target) == ["newer"]
    assert left_over(tmp_path) == [target.name]


# ---- a damaged delivery
# -----------------------------------------------------------------------------------------------


def _change(bundle):
    with (bundle / "contract.toml").open("a") as stream:
        stream.write("\n")


def _wrong_sum(bundle):
    text = (bundle / SUMS).read_text()
    line = next(line for line in text.splitlines() if line.endswith("  requirements.txt"))
    (bundle / SUMS).write_text(text.replace(line, "0" * 64 + "  requirements.txt"))


def _link(bundle):
    (bundle / "report.html").unlink()
    (bundle / "report.html").symlink_to("/etc/hostname")


DAMAGE = {
    "changed": (_change, "changed: contract.toml differs from its checksum"),
    "wrong checksum": (_wrong_sum, "changed: requirements.txt differs from its checksum"),
    "missing": (lambda b: (b / "docs" / "index.md").unlink(), "missing: docs/index.md"),
    "extra": (lambda b: (b / "tests" / "conftest.py").touch(), "not part of the delivery: tests/conftest.py"),
    "link": (_link, "not part of the delivery: report.html is a link"),
    "no sums": (lambda b: (b / SUMS).unlink(), "missing: SHA256SUMS"),
    "garbled sums": (lambda b: (b / SUMS).write_text("hello\n"), "unreadable: line 1 of SHA256SUMS"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_delivery_is_named_and_nothing_is_installed(delivery, tmp_path, kind):
    _, bundle = delivery
    copy = tmp_path / bundle.name
    shutil.copytree(bundle, copy)
    damage, message = DAMAGE[kind]
    damage(copy)
    # An interpreter that does not exist: getting as far as an environment would be a different message.
    done = subprocess.run(
        [sys.executable, copy / "accept.py", "--python", "/nonexistent"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the delivery is damaged, nothing was installed" in done.stderr
    assert message in done.stderr
    assert left_over(tmp_path) == [bundle.name]


def test_acceptance_without_a_package_index_says_what_to_do(delivery, tmp_path):
    _, bundle = delivery
    done = subprocess.run(
        [sys.executable, bundle / "accept.py", "--no-index", "--out", tmp_path / "a"],
        env={**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "installing torch==2.13.0 and requirements.txt failed" in done.stderr
    assert "--find-links" in done.stderr
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("torch", "message"),
    [("2.10.0", "expected --torch 2.11 or later, as the contract says, but got 2.10.0"),
     ("newest", "expected --torch to be a version such as 2.13.0, but got 'newest'")],
)  # fmt: skip
def test_a_torch_below_the_floor_is_refused_before_anything_is_installed(delivery, torch, message):
    _, bundle = delivery
    command = [sys.executable, bundle / "accept.py", "--torch", torch, "--python", "/nonexistent"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr


def test_acceptance_does_not_write_into_the_delivery(delivery):
    _, bundle = delivery
    command = [sys.executable, bundle / "accept.py", "--out", bundle / "results" / "again"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "expected --out outside the delivery" in done.stderr
    assert damages(bundle) == []
