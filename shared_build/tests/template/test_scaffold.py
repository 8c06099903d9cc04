"""A scaffolded package is complete, clean, and passes the whole suite as it is made."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shared_build.lint import Tree
from shared_build.lint.__main__ import CHECKS
from shared_build.template.__main__ import main
from shared_build.template.scaffold import ScaffoldError, class_name, scaffold

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("my_op", "ab", "a_rather_long_operator_name")
IGNORED = shutil.ignore_patterns("__pycache__", "build", "dist", ".*_cache")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what a package is made with, and make one package for each name."""
    root = tmp_path_factory.mktemp("checkout")
    for name in (".clang-format", ".ruff.toml", "LICENSE"):
        shutil.copy(ROOT / name, root)
    shutil.copytree(ROOT / "shared_build", root / "shared_build", ignore=IGNORED)
    (root / "packages").mkdir()
    for name in NAMES:
        scaffold(name, root=root)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    return root


@pytest.mark.parametrize("name", ["", "My_op", "my-op", "1op", "_op", "op_", "a__b", "class", "../x"])
def test_a_name_that_is_no_module_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ScaffoldError, match="expected a name such as my_op"):
        scaffold(name, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "packages" / "my_op").mkdir(parents=True)
    assert main(["my_op", "--root", str(tmp_path)]) == 1
    assert "packages/ has already" in capsys.readouterr().err
    assert list((tmp_path / "packages" / "my_op").iterdir()) == []


def test_class_names() -> None:
    assert [class_name(name) for name in NAMES] == ["MyOp", "Ab", "ARatherLongOperatorName"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", [name for name in CHECKS if name != "workflows"])
def test_scaffolded_package_passes_lint(checkout: Path, name: str, check: str) -> None:
    assert [str(found) for found in CHECKS[check](Tree(checkout, (name,)))] == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_template_is_left(checkout: Path, name: str) -> None:
    folder = checkout / "packages" / name
    files = [path for path in folder.rglob("*") if path.is_file() and "shared_build" not in path.parts[-3:]]
    assert files
    for path in files:
        assert "{" + "{" not in str(path)
        assert not re.search(r"\{\{ ?\w|\{%", path.read_text(encoding="utf-8")), path
    assert not list(folder.glob(".copier*"))


def test_contract_is_well_formed(checkout: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "shared_build.delivery.contract",
        *(f"packages/{name}" for name in NAMES),
    ]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_build_and_test_settings_are_those_of_the_other_packages(checkout: Path) -> None:
    def settings(path: Path, op: str) -> dict[str, Any]:
        text = path.read_text(encoding="utf-8").replace(op, "OP")
        data = tomllib.loads(text)
        # How a package of the ATen flavour pins torch, which the template's flavour does not.
        data["tool"].pop("dynamic-metadata", None)
        return {"build-system": data["build-system"], "tool": data["tool"]}

    made = settings(checkout / "packages" / "my_op" / "pyproject.toml", "my_op")
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        assert made == settings(path, path.parent.name), path.parent.name


def test_description_becomes_the_packages(tmp_path: Path) -> None:
    folder = scaffold("scale", "Scales things.", tmp_path)
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["name"], project["description"]) == ("opwright-scale", "Scales things")
    assert (folder / "shared_build").readlink() == Path("../../shared_build")


def test_scaffolded_package_builds_and_passes_its_suite(checkout: Path, tmp_path: Path) -> None:
    """Built with every warning an error, installed into a folder of its own, tested from the package."""
    folder, site = checkout / "packages" / "my_op", tmp_path / "site"
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    options = ["--config-settings=cmake.define.OPWRIGHT_WERROR=ON", f"--target={site}"]
    _run([*install, *options, str(folder)], folder, env)
    workers = f"-n{min(4, len(os.sched_getaffinity(0)))}" if hasattr(os, "sched_getaffinity") else "-n2"
    done = _run(
        [sys.executable, "-m", "pytest", "-q", "-rs", workers, "-p", "no:cacheprovider"],
        folder,
        {**env, "PYTHONPATH": str(site)},
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed.group(1)) > 500, done.stdout


def _run(command: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done
