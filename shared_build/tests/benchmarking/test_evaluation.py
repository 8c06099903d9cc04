"""From a contract to verdicts, through the measuring process, and from given timings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from shared_build.benchmarking import evaluation
from shared_build.benchmarking.contract import main, print_report
from shared_build.benchmarking.evaluation import Report, evaluate, judge_all
from shared_build.benchmarking.floors import Floor, MemoryCeiling
from shared_build.benchmarking.measurement import Measurements, request_cells
from shared_build.benchmarking.runner import MeasurementError, run_worker

QUICK = {"min_rounds": 3, "max_rounds": 3, "seconds": 0.05}
CONTRACT = """
[performance]
[[performance.floors]]
case = "forward"
shapes = ["4x32"]
dtypes = ["fp32"]
threads = [1]
metric = "vs_rival"
rival = "slow"
ratio = {ratio}
"""


def result(times: dict[str, list[float]], **changes: object) -> dict[str, object]:
    """What a measuring process gives back for one cell of 1000 bytes."""
    cell = {
        "case": "forward",
        "shape": "4x32",
        "dtype": "fp32",
        "threads": 1,
        "thread_count": 1,
        "bytes": 1000,
        "copied_bytes": 2000,
        "unavailable": {},
        "times": times,
        **changes,
    }
    return {
        "cells": [cell],
        "memory": [],
        "date": "2026-01-31",
        "conditions": {"other_cores_busy": 0.0},
        "machine": {"cpu": "a processor", "threads": 2},
        "versions": {},
        "allocator": {},
        "ceilings": "measured",
        "arithmetic": {},
    }


def floor(metric: str, ratio: float, **options: object) -> Floor:
    return Floor("forward", ("4x32",), ("fp32",), (1,), metric, ratio, **options)


def judged(metric: str, ratio: float, *results: dict[str, object], **options: object):
    measurements = Measurements()
    for item in results:
        measurements.add(item)
    [verdict] = judge_all([floor(metric, ratio, **options)], [], measurements)
    return verdict


def test_the_ratio_is_formed_within_rounds() -> None:
    ours, other = [1.0, 2.0, 4.0] * 4, [3.0, 6.0, 12.0] * 4
    verdict = judged("vs_eager", 2.9, result({"ours": ours, "eager": other}))
    assert (verdict.ratio, verdict.low, verdict.high) == (3.0, 3.0, 3.0)
    assert verdict.verdict == "holds"


def test_a_failing_floor_says_both_times() -> None:
    verdict = judged("vs_eager", 3.5, result({"ours": [1e-6] * 12, "eager": [3e-6] * 12}))
    assert verdict.verdict == "fails"
    assert verdict.reason == "ours 1 us, eager 3 us"


def test_the_ceiling_is_the_best_copy_by_bytes_per_second() -> None:
    times = {"ours": [2.0] * 12, "copy:torch": [6.0] * 12, "copy:stream": [3.0] * 12}
    verdict = judged("of_ceiling", 0.70, result(times))
    # ours moves 500 bytes a second, the best copy 2000 / 3
    assert verdict.ratio == 0.75
    assert verdict.contender == "copy:stream"
    assert verdict.verdict == "holds"


def test_passes_are_pooled() -> None:
    first = result({"ours": [1.0] * 5, "eager": [2.0] * 5})
    second = result({"ours": [10.0] * 6, "eager": [20.0] * 6})
    verdict = judged("vs_eager", 1.5, first, second)
    assert (verdict.rounds, verdict.ratio, verdict.verdict) == (11, 2.0, "holds")


def test_an_undecided_verdict_names_a_busy_machine() -> None:
    noisy = result({"ours": [1.0] * 12, "eager": [1.5, 2.5] * 6})
    noisy["conditions"] = {"other_cores_busy": 1.3}
    verdict = judged("vs_eager", 2.0, noisy)
    assert verdict.verdict == "undecided"
    assert "contains the floor; the machine was busy: other processes used 1.3 of" in verdict.reason


def test_a_contender_that_does_not_run_leaves_the_verdict_open_and_says_why() -> None:
    cell = result({"ours": [1.0] * 12}, unavailable={"compile": "compile does not run here: no compiler"})
    verdict = judged("vs_compile", 2.0, cell)
    assert (verdict.verdict, verdict.ratio) == ("undecided", None)
    assert verdict.reason == "compile does not run here: no compiler"


def test_memory_is_held_to_its_ceiling() -> None:
    measurements = Measurements()
    item = result({"ours": [1.0]})
    item["memory"] = [{"case": "forward", "shape": "4x32", "dtype": "fp32", "ratio": 1.5}]
    measurements.add(item)
    entries = [MemoryCeiling("forward", ("4x32",), ("fp32",), limit) for limit in (1.5, 1.4)]
    verdicts = judge_all([], entries, measurements)
    assert [verdict.verdict for verdict in verdicts] == ["holds", "fails"]
    assert verdicts[0].ceiling == 1.5
    assert verdicts[0].floor is None


@pytest.mark.parametrize(
    ("ratios", "status"), [((1.5,), 0), ((1.5, 9.0), 1), ((1.5, 2.0), 2), ((1.5, 2.0, 9.0), 1)]
)
def test_the_exit_status_tells_the_worst(ratios: tuple[float, ...], status: int) -> None:
    measurements = Measurements()
    measurements.add(result({"ours": [1.0] * 12, "eager": [1.9, 2.1] * 6}))
    verdicts = judge_all([floor("vs_eager", ratio) for ratio in ratios], [], measurements)
    assert Report("standin", verdicts, measurements, "", 0.0).exit_status() == status


def test_only_undecided_cells_are_measured_again_and_only_against_their_contender(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def worker(request: dict[str, object], *_: object) -> dict[str, object]:
        requests.append(request)
        spread = [1.8, 2.2] * 6 if len(requests) == 1 else [2.2] * 60
        return result({"ours": [1.0] * len(spread), "eager": spread, "slow": [9.0] * len(spread)})

    monkeypatch.setattr(evaluation, "run_worker", worker)
    entry = {"case": "forward", "shapes": ["4x32"], "dtypes": ["fp32"], "threads": [1], "ratio": 2.0}
    floors = [{**entry, "metric": "vs_eager"}, {**entry, "metric": "vs_rival", "rival": "slow"}]
    report = evaluate({"performance": {"floors": floors}}, "standin", package, progress=False)
    assert [cell["contenders"] for request in requests for cell in request["cells"]] == [
        ["ours", "eager", "slow"],
        ["ours", "eager"],
    ]
    assert [verdict.verdict for verdict in report.verdicts] == ["holds", "holds"]


def test_no_further_pass_begins_when_the_time_is_used_up(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def worker(request: dict[str, object], *_: object) -> dict[str, object]:
        requests.append(request)
        return result({"ours": [1.0] * 12, "eager": [1.8, 2.2] * 6})

    monkeypatch.setattr(evaluation, "run_worker", worker)
    entry = {"case": "forward", "shapes": ["4x32"], "dtypes": ["fp32"], "threads": [1], "ratio": 2.0}
    contract = {"performance": {"floors": [{**entry, "metric": "vs_eager"}]}}
    for seconds, passes in ((1e-9, 1), (1e9, evaluation.MOST_PASSES)):
        requests.clear()
        contract["performance"]["seconds"] = seconds
        report = evaluate(contract, "standin", package, progress=False)
        assert len(requests) == passes
        assert report.verdicts[0].verdict == "undecided"


def test_cells_of_one_shape_and_dtype_are_measured_together() -> None:
    key = ("forward", "4x32", "fp32")
    cells = request_cells([((*key, 1), ["eager"]), ((*key, "all"), ["eager", "slow"])])
    assert cells == [
        {
            "case": key[0],
            "shape": key[1],
            "dtype": key[2],
            "threads": [1, "all"],
            "contenders": ["ours", "eager", "slow"],
        }
    ]


def test_the_whole_way_holds_fails_and_writes_a_report(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for ratio, status, word in ((2.0, 0, "holds"), (1e9, 1, "fails")):
        (package / "contract.toml").write_text(CONTRACT.format(ratio=ratio), encoding="utf-8")
        assert main(["standin", "--json", "report.json"]) == status
        report = json.loads((package / "report.json").read_text(encoding="utf-8"))
        assert [verdict["verdict"] for verdict in report["verdicts"]] == [word]
        assert report["schema"] == 1
        assert report["machine"]["cores"] >= 1
        assert report["allocator"]["in_force"]
        assert report["versions"]["torch"]
        assert report["command"] == "python -m shared_build.benchmarking.contract standin"
        assert str(package) not in json.dumps(report)
        assert word in capsys.readouterr().out


def test_a_quick_run_is_undecided(package: Path) -> None:
    (package / "contract.toml").write_text(CONTRACT.format(ratio=2.0), encoding="utf-8")
    assert main(["standin", "--quick"]) == 2


def test_a_caller_can_follow_what_is_measured(package: Path) -> None:
    (package / "contract.toml").write_text(CONTRACT.format(ratio=2.0), encoding="utf-8")
    told: list[tuple[str, int, int]] = []
    evaluate(
        package / "contract.toml",
        "standin",
        package,
        quick=True,
        progress=False,
        on_progress=lambda *what: told.append(what),
    )
    assert told == [("forward 4x32 fp32, threads: 1", 0, 1)]


def test_no_figure_is_given_for_a_wrong_operator(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STANDIN", "wrong")
    (package / "contract.toml").write_text(CONTRACT.format(ratio=2.0), encoding="utf-8")
    assert main(["standin"]) == 3
    shown = capsys.readouterr()
    assert "standin: ours in forward 4x32 fp32: expected a largest error" in " ".join(shown.err.split())
    assert "holds" not in shown.out


def test_a_red_check_and_a_broken_process_are_told_apart(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ("forward", "4x32", "fp32", 1)
    request = {"operator": "standin", "cells": request_cells([(key, ["eager"])]), "plan": QUICK}
    monkeypatch.setenv("STANDIN", "wrong")
    with pytest.raises(MeasurementError) as red:
        run_worker(request, package)
    assert red.value.red
    monkeypatch.setenv("STANDIN", "unknown")
    with pytest.raises(MeasurementError, match="KeyError") as broken:
        run_worker(request, package)
    assert not broken.value.red


def test_what_cannot_be_measured_here_is_said(package: Path) -> None:
    key = ("forward", "4x32", "fp32")
    needs = [((*key, threads), ["absent", "wrong", "copy"]) for threads in (1, 4096)]
    answer = run_worker({"operator": "standin", "cells": request_cells(needs), "plan": QUICK}, package)
    here, beyond = answer["cells"]
    assert "not installed" in here["unavailable"]["absent"]
    assert "wrong result" in here["unavailable"]["wrong"]
    assert "exports no ceilings" in here["unavailable"]["copy"]
    assert list(here["times"]) == ["ours"]
    assert "this machine has" in beyond["unavailable"]["ours"]


def test_all_threads_are_not_measured_twice_where_there_is_one(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    key = ("forward", "4x32", "fp32")
    needs = [((*key, threads), ["eager"]) for threads in (1, "all")]
    answer = run_worker({"operator": "standin", "cells": request_cells(needs), "plan": QUICK}, package)
    assert answer["cells"][0]["times"] == answer["cells"][1]["times"]
    assert answer["machine"]["threads"] == 1


def test_peak_memory_counts_what_a_call_allocates(package: Path) -> None:
    memory = [{"case": "forward", "shape": "16x64", "dtype": "fp32"}]
    answer = run_worker({"operator": "standin", "cells": [], "memory": memory, "plan": QUICK}, package)
    # x * y is alive while x * y + x is formed: twice the bytes of the result.
    assert answer["memory"][0]["ratio"] == pytest.approx(2.0)


def test_the_table_lists_failures_last(capsys: pytest.CaptureFixture[str]) -> None:
    measurements = Measurements()
    measurements.add(result({"ours": [1.0] * 12, "eager": [2.0] * 12}))
    verdicts = judge_all([floor("vs_eager", 9.0), floor("vs_eager", 1.0)], [], measurements)
    print_report(Report("standin", verdicts, measurements, "", 1.0), Console(width=100))
    shown = capsys.readouterr().out
    assert shown.index("holds") < shown.index("fails")
    assert "1 holds, 0 undecided, 1 fails" in shown
