"""The acceptance on a GPU as far as it needs none: arguments, steps, skips, table, JSON, lost processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared_build.delivery.gpu_acceptance import (
    __main__ as program,
    checks,
    installing,
    record,
    sanitizer,
    timing,
)
from shared_build.delivery.gpu_acceptance.budget import Budget, environment, run
from shared_build.delivery.gpu_acceptance.record import Outcome

ROOT = Path(__file__).resolve().parents[3]
WHEEL = "opwright_rms_norm-0.1.0-1cu130-py3-none-linux_x86_64.whl"


# ---- arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        (WHEEL, "rms_norm"),
        ("opwright_rms_norm-0.1.0-py3-none-manylinux_2_28_x86_64.whl", "rms_norm"),
        ("opwright_gated_activation-1.2.0rc1.tar.gz", "gated_activation"),
    ],
)
def test_the_operator_is_in_the_name(name, operator):
    assert installing.operator_of(Path(name)) == operator


@pytest.mark.parametrize("name", ["torch-2.11.0-cp312-cp312-linux_x86_64.whl", "opwright_rms_norm-0.1.0.zip"])
def test_anything_else_is_refused(name):
    with pytest.raises(ValueError, match="expected opwright_<op>"):
        installing.operator_of(Path(name))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["numpy-2.0.0-cp312-none-any.whl"], "expected opwright_<op>"),
        (["nowhere/" + WHEEL], "expected a file"),
        (["opwright_unheard_of-0.1.0-py3-none-any.whl"], "expected packages/unheard_of/tests/spec.py"),
        ([WHEEL, "--seconds", "0"], "expected --seconds and --jobs above 0"),
    ],
)
def test_arguments_are_checked_before_anything_is_done(tmp_path, capsys, arguments, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (WHEEL, "opwright_unheard_of-0.1.0-py3-none-any.whl"):
        (tmp_path / name).touch()
    with pytest.raises(SystemExit) as ended:
        program.parse([*arguments, "--out", "out"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


# ---- the record --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "skipped"], "skipped"),
        (["skipped", "not reached", "passed"], "not reached"),
        (["not reached", "failed", "skipped"], "failed"),
        ([], "not reached"),
    ],
)
def test_the_worst_verdict_counts(verdicts, expected):
    assert record.overall(Outcome("checks", "x", verdict) for verdict in verdicts) == expected
    assert record.EXIT[expected] == {"passed": 0, "failed": 1}.get(expected, 2)


def test_the_table_and_the_json(tmp_path):
    outcomes = [
        Outcome("install", WHEEL, "passed", "fine", 1.26),
        Outcome(
            "checks", "rms_norm/cuda_golden", "failed", "3 passed, 1 failed; first\nline " + "x" * 200, 12.0
        ),
    ]
    lines = record.table(outcomes).splitlines()
    assert [line.split()[0] for line in lines] == ["step", "install", "checks"]
    assert (
        len({line.index(word) for line, word in zip(lines, ("verdict", "passed", "failed"), strict=True)})
        == 1
    )
    assert lines[2].endswith("...")
    path = tmp_path / "new" / "gpu_acceptance.json"
    assert record.write(path, {"torch": "2.11.0"}, outcomes, 99.96) == "failed"
    read = json.loads(path.read_text())
    assert read["verdict"] == "failed"
    assert read["seconds"] == 100.0
    assert read["facts"] == {"torch": "2.11.0"}
    assert read["outcomes"][1]["detail"].endswith("x" * 200)  # cut in the table only


# ---- time --------------------------------------------------------------------------------------------------


def test_a_command_that_takes_too_long_is_ended(tmp_path):
    code = "import time; print('begun', flush=True); time.sleep(60)"
    started = time.monotonic()
    done = run([sys.executable, "-c", code], 2, environment(None, ROOT), tmp_path)
    assert done.timed_out
    assert "begun" in done.output
    assert time.monotonic() - started < 20


def test_what_a_step_leaves_is_there_for_the_next():
    budget = Budget(100)
    assert 49 < budget.part(0.5) <= 50
    budget.end -= 60
    assert 19 < budget.part(0.5) <= 20
    budget.end -= 60
    assert budget.left == 0


# ---- checks ------------------------------------------------------------------------------------------------


def invocation(name, work=lambda: None, skip=None, slow=False, index=0):
    class Invocation:
        check = SimpleNamespace(name=name)
        spec = SimpleNamespace(name="op")
        variant = SimpleNamespace(skip=skip, slow=slow)
        id = f"op/{name}/{index}"

        def __call__(self):
            work()

    return Invocation()


def told(found, *, start=0, seconds=60.0, alive=lambda: True):
    events = []
    status = checks.run_all(found, start, seconds, events.append, alive)
    return status, [event for event in events if event["state"] != "started"]


def fail():
    raise AssertionError("op: cuda_golden failed")


def test_what_only_a_device_shows_comes_first_and_the_slow_tier_last():
    names = ["cuda_layouts", "cuda_golden", "cuda_guard", "cuda_huge"]
    found = [invocation(name, slow=name == "cuda_huge") for name in names]
    found.append(invocation("cuda_stream", slow=True))
    order = [each.check.name for each in checks.ordered(found)]
    assert order == ["cuda_guard", "cuda_huge", "cuda_golden", "cuda_layouts", "cuda_stream"]


def test_every_check_of_the_suite_for_a_device_has_its_place():
    from shared_build.conformance.registry import CHECKS, load_checks

    load_checks()
    assert {name for name in CHECKS if name.startswith("cuda_")} - {"cuda_refused"} == set(checks.ORDER)


def test_each_check_is_told_about():
    found = [
        invocation("cuda_golden"),
        invocation("cuda_golden", fail),
        invocation("cuda_guard", skip="one device"),
    ]
    status, events = told(found)
    assert status == 0
    assert [event["state"] for event in events] == ["passed", "failed", "skipped"]
    by_name = checks.tally(events)
    golden = by_name["op/cuda_golden"].outcome("op/cuda_golden")
    assert (golden.verdict, golden.data["failures"][0]["id"]) == ("failed", "op/cuda_golden/0")
    assert golden.detail.startswith("1 passed, 1 failed; op/cuda_golden/0: op: cuda_golden failed")
    guard = by_name["op/cuda_guard"].outcome("op/cuda_guard")
    assert (guard.verdict, guard.detail) == ("skipped", "0 passed, 1 skipped: one device")


def test_when_time_is_over_the_rest_is_not_reached():
    status, events = told([invocation("cuda_golden")] * 3, seconds=0)
    assert status == 0
    assert [event["state"] for event in events] == ["not reached"] * 3
    assert checks.tally(events)["op/cuda_golden"].outcome("x").verdict == "not reached"


def test_a_device_that_no_longer_answers_ends_the_process():
    found = [invocation("cuda_golden", fail), invocation("cuda_golden")]
    status, events = told(found, alive=lambda: False)
    assert status == checks.BROKEN
    assert [event["state"] for event in events] == ["failed"]


#: A worker of four checks, of which the second ends its process.
CRASHING = """
import json, os, sys
for index in range(int(sys.argv[1]), 4):
    event = {"index": index, "name": "op/check", "id": f"op/check/{index}"}
    print("@check " + json.dumps({**event, "state": "started"}), flush=True)
    if index == 1:
        print("the driver's last words", flush=True)
        os._exit(MODE)
    print("@check " + json.dumps({**event, "state": "passed", "seconds": 0.5}), flush=True)
"""


def follow(mode, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(CRASHING.replace("MODE", mode))
    return checks.follow(lambda start, seconds: [sys.executable, str(script), str(start)], 30.0)


def test_a_crash_is_a_failure_and_the_others_still_run(tmp_path):
    events = follow("139", tmp_path)
    assert [(event["index"], event["state"]) for event in events] == [
        (0, "passed"),
        (1, "failed"),
        (2, "passed"),
        (3, "passed"),
    ]
    assert "ended its process with status 139\nthe driver's last words" in events[1]["text"]
    entry = checks.tally(events)["op/check"].outcome("op/check")
    assert (entry.verdict, entry.seconds) == ("failed", 1.5)


def test_a_worker_that_does_not_begin_is_an_error(tmp_path):
    command = [sys.executable, "-c", "raise ImportError('no hypothesis here')"]
    with pytest.raises(RuntimeError, match="no hypothesis here"):
        checks.follow(lambda start, seconds: command, 30.0)


def test_a_spec_without_checks_for_a_device_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "follow", lambda *args, **options: [])
    (outcome,) = checks.run_checks(tmp_path, tmp_path, ROOT, 5.0, 2)
    assert outcome.verdict == "failed"
    assert "cuda=False" in outcome.detail


# ---- compute-sanitizer -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "output", "timed_out", "verdict", "detail"),
    [
        (
            0,
            "========= COMPUTE-SANITIZER\nran 16 cases\n========= ERROR SUMMARY: 0 errors",
            False,
            "passed",
            "ran 16 cases",
        ),
        (0, "========= ERROR SUMMARY: 0 errors", False, "failed", "the program ran no case"),
        (
            86,
            "========= Invalid __global__ write of size 4 bytes\n=========     at rms_norm_kernel.cuh:31",
            False,
            "failed",
            "Invalid __global__ write of size 4 bytes",
        ),
        (
            1,
            "========= Error: Device not supported.\n",
            False,
            "skipped",
            "the tool refuses: Error: Device not supported.",
        ),
        (
            86,
            "========= Error: Device not supported.\n",
            False,
            "skipped",
            "the tool refuses: Error: Device not supported.",
        ),
        (1, "Traceback\nValueError: rms_norm: expected", False, "failed", "ValueError: rms_norm: expected"),
        (-1, "========= COMPUTE-SANITIZER", True, "not reached", "its time was over"),
        (1, "", False, "failed", "no output"),
    ],
)
def test_what_the_tool_says(status, output, timed_out, verdict, detail):
    outcome = sanitizer.judge("memcheck", status, output, timed_out, 1.0)
    assert (outcome.verdict, outcome.detail) == (verdict, detail)


def test_without_the_tool_it_is_skipped_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name: None)
    outcomes = sanitizer.run_sanitizer(tmp_path, tmp_path, ROOT, 60.0)
    assert [o.name for o in outcomes] == list(sanitizer.TOOLS)
    assert {(o.verdict, o.detail) for o in outcomes} == {("skipped", "compute-sanitizer is not installed")}


def test_each_tool_runs_the_smallest_cases_without_torchs_memory_pool(tmp_path, monkeypatch):
    """A stand-in for the tool prints how it was called; it then runs the program as the tool would."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        "#!/bin/sh\n"
        f'echo "$2 $PYTORCH_NO_CUDA_MEMORY_CACHING $*" >> {tmp_path}/log\n'
        'while [ "$1" != -m ]; do last=$1; shift; done\n'
        'exec "$last" "$@" --device cpu --cases 1\n'
    )
    tool.chmod(0o755)
    monkeypatch.setattr(sanitizer, "find", lambda: str(tool))
    monkeypatch.setattr(sanitizer, "module", lambda name, spec: healthy(name))
    outcomes = sanitizer.run_sanitizer(tmp_path, tmp_path, ROOT, 120.0)
    assert {(o.verdict, o.detail) for o in outcomes} == {("passed", "ran 4 cases")}, outcomes
    log = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[:2] for line in log] == [[name, "1"] for name in sanitizer.TOOLS]
    assert ["kns=opwright" in line for line in log] == [False, True, True, True]


def healthy(name):
    spec = ROOT / "shared_build" / "tests" / "conformance" / "zoo" / "specs.py"
    return [sys.executable, "-m", f"shared_build.delivery.gpu_acceptance.{name}", f"{spec}::healthy"]


# ---- timing ------------------------------------------------------------------------------------------------


def steady(call, count):
    """A clock that takes a call for a millisecond, whatever it does; it is called all the same."""
    for _ in range(count):
        call()
    return 1.0 * count


def test_the_median_of_interleaved_rounds():
    calls = []
    found = timing.median_ms({name: lambda name=name: calls.append(name) for name in "ab"}, steady)
    assert found == {"a": 1.0, "b": 1.0}
    rounds = "".join(calls)[10:]
    assert rounds == ("a" * 4 + "b" * 4) * timing.ROUNDS


def case(ours=None, **more):
    import torch

    from shared_build.benchmarking.cases import Case

    def eager(input):
        return torch.relu(input)

    fields = {
        "name": "forward",
        "title": "relu",
        "shapes": [(4, 4), (8, 16)],
        "dtypes": ["fp32", "bf16"],
        "make": lambda shape, dtype, generator: (torch.randn(shape, generator=generator).to(dtype),),
        "ours": lambda: ours or eager,
        "eager": eager,
        "golden": lambda: eager,
        "bytes_moved": lambda shape, itemsize: 2 * shape[0] * shape[1] * itemsize,
    }
    return Case(**{**fields, **more})


def test_the_figures_of_a_case():
    pytest.importorskip("torch")
    found = timing.figures(case(), (8, 16), "bf16", "cpu", 1e6, False, steady)
    assert found == {
        "case": "forward",
        "shape": "8x16",
        "dtype": "bf16",
        "us": {"ours": 1000.0, "eager": 1000.0},
        "gb_per_s": 0.0,
        "of_copy": 0.512,  # 512 bytes in a millisecond, of a megabyte a second
        "vs": {"eager": 1.0},
    }


def test_gradients_are_timed_where_the_case_has_them():
    torch = pytest.importorskip("torch")
    calls = []

    def ours(input):
        calls.append(torch.is_grad_enabled() and input.requires_grad)
        return torch.relu(input)

    found = timing.figures(case(ours, differentiate=(0,)), (4, 4), "fp32", "cpu", 1e6, False, steady)
    assert found["us"]["ours"] == 1000.0
    assert all(calls)


def test_a_wrong_result_is_not_timed():
    found = timing.figures(case(lambda input: input), (4, 4), "fp32", "cpu", 1e6, False, steady)
    assert "us" not in found
    assert "from float64" in found["red"]


def test_the_largest_size_comes_first_and_compiling_last():
    cells = timing.plan([case(cuda_shapes=[(1, 4), (64, 64)]), case(name="graph", in_graph=True)])
    assert [(c.name, shape, dtype, compiled) for c, shape, dtype, compiled in cells] == [
        ("forward", (64, 64), "bf16", False),
        ("forward", (64, 64), "fp32", False),
        ("forward", (1, 4), "bf16", False),
        ("forward", (1, 4), "fp32", False),
        ("forward", (64, 64), "bf16", True),
        ("graph", (8, 16), "bf16", True),
        ("forward", (64, 64), "fp32", True),
        ("graph", (8, 16), "fp32", True),
    ]


def test_what_the_measuring_process_prints_becomes_the_record():
    figure = timing.figures(case(), (8, 16), "fp32", "cpu", 1e6, False, steady)
    lines = [
        {"copy_gb_per_s": 4300.0},
        figure,
        {"case": "x", "shape": "1", "dtype": "fp32", "red": "result 0 is off"},
    ]
    output = "a warning\n" + "\n".join(
        timing.MARK + json.dumps(line) for line in [*lines, {"not_reached": 7}]
    )
    found = timing.outcomes(output, 0, False)
    assert [(o.name, o.verdict) for o in found] == [
        ("device-to-device copy", "passed"),
        ("forward 8x16 fp32", "passed"),
        ("x 1 fp32", "failed"),
        ("the rest", "not reached"),
    ]
    assert found[1].detail == "1000.0 us, 0 GB/s, 1.02 of copy, 1.00 x eager"
    died = timing.outcomes(output.rsplit("\n", 1)[0] + "\nRuntimeError: out of memory", 1, False)
    assert (died[-1].verdict, died[-1].detail) == ("failed", "RuntimeError: out of memory")


# ---- the whole ---------------------------------------------------------------------------------------------


def test_without_a_gpu_everything_is_skipped_and_the_record_says_why(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    (tmp_path / WHEEL).touch()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "shared_build.delivery.gpu_acceptance",
            tmp_path / WHEEL,
            "--out",
            tmp_path / "out",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "skipped in" in done.stdout
    read = json.loads((tmp_path / "out" / "gpu_acceptance.json").read_text())
    assert read["verdict"] == "skipped"
    assert read["facts"]["torch"] == torch.__version__
    assert read["facts"]["problem"] == "no CUDA device"
    assert [(o["step"], o["verdict"], o["detail"]) for o in read["outcomes"]] == [
        ("install", "skipped", "no CUDA device")
    ]


def test_a_wheel_is_installed_without_a_network(tmp_path):
    import demo

    tag = "py3-none-any"
    files = {
        "opwright/demo_op/__init__.py": b"VALUE = 3\n",
        **demo.wheel_metadata("opwright-demo-op", "0.1.0", tag),
    }
    wheel = demo.pack(tmp_path, "opwright-demo-op", "0.1.0", tag, files)
    site = tmp_path / "site"
    outcome = installing.install(wheel, site, ROOT, None, Budget(120))
    assert (outcome.verdict, outcome.detail) == ("passed", wheel.name)
    assert (site / "opwright" / "demo_op" / "__init__.py").is_file()


def test_a_source_distribution_that_does_not_build_fails_with_its_last_error(tmp_path):
    sdist = tmp_path / "opwright_demo_op-0.1.0.tar.gz"
    sdist.write_bytes(b"not an archive")
    outcome = installing.install(sdist, tmp_path / "site", ROOT, None, Budget(120))
    assert outcome.verdict == "failed"
    assert "rror" in outcome.detail


def test_the_steps_share_the_time(tmp_path, monkeypatch):
    (tmp_path / WHEEL).touch()
    seconds = {}

    def step(name):
        def take(package, site, root, given, *more):
            seconds[name] = given
            return [Outcome(name, package.name, "passed")]

        return take

    monkeypatch.setattr(
        program, "machine", lambda root, budget: {"devices": [{"name": "demo"}], "torch": "2.11.0"}
    )
    monkeypatch.setattr(
        program, "install", lambda artifact, *more: Outcome("install", artifact.name, "passed")
    )
    for name in ("checks", "sanitizer", "timing"):
        monkeypatch.setattr(program, f"run_{name}", step(name))
    assert program.main([str(tmp_path / WHEEL), "--out", str(tmp_path), "--seconds", "300"]) == 0
    assert {name: round(value) for name, value in seconds.items()} == {
        "checks": 150,
        "sanitizer": 150,
        "timing": 260,
    }
    read = json.loads((tmp_path / "gpu_acceptance.json").read_text())
    assert [o["step"] for o in read["outcomes"]] == ["install", "checks", "sanitizer", "timing"]
