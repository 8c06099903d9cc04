"""Which packages a change concerns, which tags may be released, and what the workflows rely on."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared_build.ci import changed, tag

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PACKAGES = ["rms_norm", "rotary"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], []),
        (["packages/rotary/csrc/bind.cpp"], ["rotary"]),
        (["packages/rotary/docs/index.md", "docs/index.md"], ["rotary"]),
        (["docs/index.md", "mkdocs.yml", "README.md"], []),
        (["shared_build/include/opwright/simd.h"], PACKAGES),
        (["noxfile.py"], PACKAGES),
        ([".github/workflows/test.yml"], PACKAGES),
        (["packages/rotary/README.md", "shared_build/backend.py"], PACKAGES),
        (["packages/removed/README.md"], []),
    ],
)
def test_packages_concerned_by_a_change(files: list[str], expected: list[str]) -> None:
    assert changed.concerned(files, PACKAGES) == expected


def test_changed_files_are_those_since_the_common_ancestor(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        names = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", "-C", str(tmp_path), *names, *arguments], check=True, capture_output=True)

    git("init", "--quiet")
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "--quiet", "-m", name)
        if name == "one":
            git("branch", "base")
    assert changed.changed_files("base", tmp_path) == ["three", "two"]
    git("checkout", "--quiet", "base")
    assert changed.changed_files("main", tmp_path) == []


def test_an_unknown_base_means_all_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert changed.main(["0" * 40]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out) == changed.all_packages()
    assert "taking all packages" in printed.err


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "packages" / "rms_norm"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nname = "opwright-rms-norm"\nversion = "1.2.0"\n')
    (folder / "CHANGELOG.md").write_text("# Changes\n\n## 1.2.0\n")
    return tmp_path


def test_a_tag_that_fits_names_its_operator(repository: Path) -> None:
    assert tag.check("rms_norm-v1.2.0", repository) == "rms_norm"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rms_norm-1.2.0", "expected a tag <op>-vX.Y.Z"),
        ("rms-norm-v1.2.0", "expected a tag <op>-vX.Y.Z"),
        ("../x-v1.2.0", "expected a tag <op>-vX.Y.Z"),
        ("rms_norm-v1.2.1", "expected version 1.2.0"),
        ("rotary-v1.2.0", "expected the name of a package"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused(repository: Path, name: str, reason: str) -> None:
    with pytest.raises(tag.TagError, match=re.escape(reason)):
        tag.check(name, repository)


def test_a_release_without_a_changelog_entry_is_refused(repository: Path) -> None:
    (repository / "packages/rms_norm/CHANGELOG.md").write_text("# Changes\n")
    with pytest.raises(tag.TagError, match=r"expected an entry '## 1\.2\.0'"):
        tag.check("rms_norm-v1.2.0", repository)


def test_command_line_prints_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert tag.main(["nothing"]) == 1
    assert "but got 'nothing'" in capsys.readouterr().err


def _jobs(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_have_least_permissions_and_a_time_limit(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert "uses" in job or "timeout-minutes" in job, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_take_outside_text_only_through_the_environment(path: Path) -> None:
    for name, job in _jobs(path).items():
        for step in job.get("steps", []):
            assert "${{" not in step.get("run", ""), (name, step.get("name"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_sessions_and_modules_that_are_called_exist(path: Path) -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    for job in _jobs(path).values():
        for step in job.get("steps", []):
            for session in re.findall(r"nox -s ([\w-]+)", step.get("run", "")):
                assert re.search(rf"^def {session}\(|name=[\"']{session}[\"']", noxfile, re.MULTILINE), (
                    session
                )
            for module in re.findall(r"python -m (shared_build[\w.]*)", step.get("run", "")):
                base = ROOT.joinpath(*module.split("."))
                assert base.with_suffix(".py").is_file() or (base / "__main__.py").is_file(), module


def test_wheels_are_made_for_the_promised_platform() -> None:
    config = tomllib.loads((ROOT / ".github" / "cibuildwheel.toml").read_text(encoding="utf-8"))["tool"][
        "cibuildwheel"
    ]
    assert config["manylinux-x86_64-image"] == config["manylinux-aarch64-image"] == "manylinux_2_28"
    repair = " && ".join(config["linux"]["repair-wheel-command"])
    assert "--plat manylinux_2_28_" in repair
    assert "shared_build.delivery.audit" in repair
    assert "--enforce-manylinux" in repair
