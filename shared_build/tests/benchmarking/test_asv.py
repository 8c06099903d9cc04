"""The asv command on a miniature repository: derive, measure, file, compare, publish."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from shared_build.benchmarking import asv, asv_results, machine
from shared_build.benchmarking.asv_results import Figure

REPOSITORY = Path(__file__).resolve().parents[3]
BENCH = """
from pathlib import Path
from shared_build.benchmarking import asv_classes as _bases

_ROOT = Path(__file__).resolve().parent.parent
_ONE = (("4x32",), ("fp32",), ("1",))


class ForwardTimed(_bases.Timed):
    operator, case, root, params = "standin", "forward", _ROOT, _ONE
    repeat = 2


class ForwardCompared(_bases.Compared):
    operator, case, root, params = "standin", "forward", _ROOT, _ONE
"""
INIT = "import sys\nfrom pathlib import Path\nsys.path.append(str(Path(__file__).resolve().parent.parent))\n"


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240
    )


@pytest.fixture
def repository(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The miniature package inside a git repository, with an importable operator of its name."""
    root = tmp_path_factory.mktemp("repository")
    (root / "packages").mkdir()
    target = root / "packages" / "standin"
    package.rename(target)
    (target / "benchmarks" / "__init__.py").write_text(INIT, encoding="utf-8")
    (target / "benchmarks" / "bench_standin.py").write_text(BENCH, encoding="utf-8")
    operator = root / "installed" / "opwright" / "standin"
    operator.mkdir(parents=True)
    (operator / "__init__.py").write_text("def kernel_level():\n    return 'default'\n", encoding="utf-8")
    (root / "shared_build").symlink_to(REPOSITORY / "shared_build")
    (root / "asv.conf.json").write_bytes((REPOSITORY / "asv.conf.json").read_bytes())
    (root / ".gitignore").write_text(".asv/\n__pycache__/\n", encoding="utf-8")
    commit(root, "first", "-b", "main")
    return root


def commit(root: Path, message: str, *init: str) -> None:
    if init:
        run("git", "init", "-q", *init, cwd=root)
    run("git", "add", "-A", cwd=root)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = run("git", *identity, "commit", "-q", "-m", message, cwd=root)
    assert done.returncode == 0, done.stderr


def command(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    module = "shared_build.benchmarking.asv"
    path = str(root / "installed")
    # asv clears PYTHONPATH for what it runs and takes this one in its place.
    environment = {"PYTHONPATH": path, "ASV_PYTHONPATH": path, "COLUMNS": "150"}
    return run(sys.executable, "-m", module, "standin", *arguments, cwd=root, **environment)


def test_the_root_configuration_is_valid_by_itself() -> None:
    config = json.loads((REPOSITORY / "asv.conf.json").read_text(encoding="utf-8"))
    for name in ("benchmark_dir", "repo_subdir"):
        assert (REPOSITORY / config[name]).is_dir()
    assert config["branches"] == ["main"]
    done = run(sys.executable, "-m", "asv", "check", "-E", f"existing:{sys.executable}", cwd=REPOSITORY)
    assert "No problems found" in done.stdout, done.stdout + done.stderr


def test_a_packages_configuration_points_at_the_package(repository: Path) -> None:
    config = asv.derive("standin", repository)
    assert config["repo_subdir"] == "packages/standin"
    assert config["project"] == "opwright-standin"
    for name, value in config.items():
        assert "rms" not in json.dumps(value), name
    with pytest.raises(FileNotFoundError, match="expected packages/other/benchmarks"):
        asv.derive("other", repository)


def test_figures_are_filed_compared_and_published(repository: Path) -> None:
    results = repository / "docs/benchmarks/results/standin/asv" / machine.machine_name()
    first = command(repository)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "there is nothing to compare with" in first.stdout
    [filed] = [path for path in results.glob("*.json") if path.name != "machine.json"]
    text = filed.read_text(encoding="utf-8")
    assert "/" not in filed.name
    for hidden in (str(repository), sys.executable, sys.executable.replace("/", "_"), os.uname().nodename):
        assert hidden not in text + filed.name, hidden
    figures = asv_results.load_results(results)
    assert figures is not None
    bandwidth = figures["bench_standin.ForwardCompared.track_bandwidth(4x32, fp32, 1)"]
    assert bandwidth.unit == "GB/s"
    assert bandwidth.value > 0
    assert figures["bench_standin.ForwardTimed.time_ours(4x32, fp32, 1)"].unit == "seconds"

    commit(repository, "results")
    second = command(repository, "--bench", "Compared")
    assert second.returncode == 0, second.stdout + second.stderr
    row = next(line for line in second.stdout.splitlines() if "track_bandwidth(" in line and "%" in line)
    assert "GB/s" in row

    page = repository / "site"
    assert command(repository, "--publish", str(page)).returncode == 0
    assert (page / "index.html").is_file()
    graphs = list((page / "graphs").rglob("*track_bandwidth*.json"))
    assert graphs, "a figure over time for each tracked benchmark"


def test_a_quick_run_files_nothing_among_the_results(repository: Path) -> None:
    done = command(repository, "--quick", "--bench", "ForwardCompared.track_bandwidth")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "track_bandwidth(4x32, fp32, 1)" in done.stdout
    assert not (repository / "docs").exists()


def test_a_wrong_operator_has_no_figures(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN", "wrong")
    done = command(repository, "--quick")
    assert "expected a largest error of output 0" in done.stdout + done.stderr
    assert "GB/s" not in done.stdout


def test_without_the_operator_everything_is_skipped(repository: Path) -> None:
    done = run(
        sys.executable,
        "-m",
        "shared_build.benchmarking.asv",
        "standin",
        "--quick",
        cwd=repository,
        COLUMNS="150",
    )
    assert "n/a" in done.stdout
    assert "GB/s" not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("unit", "before", "after", "change", "style"),
    [
        ("seconds", 1.0, 0.5, "-50.0%", "green"),
        ("seconds", 1.0, 1.5, "+50.0%", "red"),
        ("GB/s", 10.0, 15.0, "+50.0%", "green"),
        ("x faster", 2.0, 1.0, "-50.0%", "red"),
        ("bytes", 100.0, 101.0, "+1.0%", "default"),
    ],
)
def test_changes_are_coloured_by_the_sense_of_the_figure(
    unit: str, before: float, after: float, change: str, style: str
) -> None:
    table = asv.comparison({"b": Figure(before, unit)}, {"b": Figure(after, unit)}, "t")
    assert list(table.columns[3].cells) == [f"[{style}]{change}[/]"]


def test_a_new_figure_and_a_missing_one_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    after = {"a": Figure(1e-5, "seconds"), "b": Figure(math.nan, "GB/s")}
    Console(width=100).print(asv.comparison({"b": Figure(2.0, "GB/s")}, after, "t"))
    shown = capsys.readouterr().out
    assert "10 us" in shown
    assert "n/a" in shown
    assert shown.count("new") == 2
