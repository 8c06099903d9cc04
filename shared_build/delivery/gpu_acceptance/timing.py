"""Times each benchmark case by CUDA events: ours, eager and compiled PyTorch, and the device's own copy.

As a program (``python -m shared_build.delivery.gpu_acceptance.timing OPERATOR``) it is the measuring process
and prints one line a figure. Contenders take turns, each median is over several rounds, and a case whose
result is wrong is not timed. Cases come in the order of their worth: the largest size first, compiled PyTorch
last, since compiling takes longest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .budget import environment, module, run
from .record import Outcome

MARK = "@figure "
ROUNDS = 7
ROUND_MS = 4.0
MOST_CALLS = 200
COPY_BYTES = 2**30
DTYPES = ("bf16", "fp32")
#: How much further from float64 than eager's result ours may be before it is timed.
FACTOR = {False: 2.0, True: 3.0}

Timed = Callable[[Callable[[], Any], int], float]


def median_ms(calls: dict[str, Callable[[], Any]], timed: Timed) -> dict[str, float]:
    """Median milliseconds a call of each, in interleaved rounds.

    Args:
        calls: by name.
        timed: ``timed(call, count)`` gives the milliseconds that ``count`` calls take on the device.
    """
    counts = {}
    for name, call in calls.items():
        timed(call, 2)
        once = max(timed(call, 3) / 3, 1e-4)
        counts[name] = min(MOST_CALLS, max(1, round(ROUND_MS / once)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            found[name].append(timed(call, counts[name]) / counts[name])
    return {name: statistics.median(values) for name, values in found.items()}


def by_events(call: Callable[[], Any], count: int) -> float:
    """Milliseconds on the device between an event before the first call and one after the last."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def red(ours: Sequence[Any], eager: Sequence[Any], golden: Sequence[Any], factor: float) -> str | None:
    """Why results are wrong, or None: their error is above ``factor`` times eager's plus one ulp."""
    import torch

    for index, (a, b, g) in enumerate(zip(ours, eager, golden, strict=True)):
        largest = float(g.abs().max()) if g.numel() else 0.0
        allowed = factor * float((b.double() - g).abs().max()) + torch.finfo(a.dtype).eps * largest
        error = float((a.double() - g).abs().max())
        if not error <= allowed:
            return f"result {index} is {error:.3g} from float64, {allowed:.3g} allowed"
    return None


def figures(
    case: Any, shape: Any, dtype: str, device: str, copy: float, with_compiled: bool, timed: Timed
) -> dict[str, Any]:
    """The figures of one case at one size: microseconds by contender, GB/s, share of the copy bandwidth.

    Args:
        case: a benchmark case.
        shape: of its main input.
        dtype: as benchmarks name it.
        device: ``cuda``; the tests use the CPU.
        copy: bytes a second that the device copies, read and written bytes together.
        with_compiled: whether compiled PyTorch takes part.
        timed: see ``median_ms``.
    """
    import torch

    from shared_build.benchmarking.cases import shape_name, torch_dtype
    from shared_build.benchmarking.contenders import Cell, Unavailable

    cell = Cell(case, shape, dtype, device)
    found: dict[str, Any] = {"case": case.name, "shape": shape_name(shape), "dtype": dtype}
    factor = FACTOR[bool(case.differentiate)]
    with torch.set_grad_enabled(bool(case.differentiate)):
        problem = red(cell.results("ours"), cell.results("eager"), cell.golden(), factor)
        if problem is not None:
            return {**found, "red": problem}
        calls = {name: cell.call(name) for name in ("ours", "eager")}
        if with_compiled and case.compiled:
            try:
                calls["compile"] = cell.call("compile")
            except Unavailable as error:
                found["compile"] = str(error)
        ms = median_ms(calls, timed)
    rate = case.bytes_moved(shape, torch_dtype(dtype).itemsize) / (ms["ours"] / 1e3)
    found["us"] = {name: round(value * 1e3, 2) for name, value in ms.items()}
    found["gb_per_s"] = round(rate / 1e9, 1)
    found["of_copy"] = round(rate / copy, 3)
    found["vs"] = {name: round(ms[name] / ms["ours"], 2) for name in ms if name != "ours"}
    return found


def copy_rate(device: str, timed: Timed, size: int = COPY_BYTES) -> float:
    """Bytes a second of the device's own copy of a large tensor, read and written bytes together."""
    import torch

    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    ms = median_ms({"copy": lambda: target.copy_(source)}, timed)["copy"]
    return 2 * size / (ms / 1e3)


def plan(cases: Sequence[Any]) -> list[tuple[Any, Any, str, bool]]:
    """(case, shape, dtype, with compiled) in the order in which they are measured."""
    shapes = {case.name: list(case.cuda_shapes or case.shapes) for case in cases}
    most = max((len(s) for s in shapes.values()), default=0)
    cells = [
        (case, shapes[case.name][-1 - back], dtype)
        for back in range(most)
        for dtype in DTYPES
        for case in cases
        if back < len(shapes[case.name]) and dtype in case.dtypes
    ]
    # A case inside a compiled graph has to be compiled anyway.
    quick = [(*cell, False) for cell in cells if not cell[0].in_graph]
    largest = [(*cell, True) for cell in cells if cell[1] == shapes[cell[0].name][-1]]
    return quick + largest


def main(argv: Sequence[str] | None = None) -> int:
    """The measuring process."""
    parser = argparse.ArgumentParser(prog="gpu_acceptance.timing", description=__doc__)
    parser.add_argument("operator")
    parser.add_argument("--seconds", type=float, default=90.0)
    options = parser.parse_args(argv)

    from shared_build.benchmarking.cases import load_cases, operator_root

    end = time.monotonic() + options.seconds
    copy = copy_rate("cuda", by_events)
    _tell({"copy_gb_per_s": round(copy / 1e9, 1)})
    cells = plan(list(load_cases(operator_root(options.operator)).values()))
    for index, (case, shape, dtype, with_compiled) in enumerate(cells):
        if time.monotonic() >= end:
            _tell({"not_reached": len(cells) - index})
            break
        _tell(figures(case, shape, dtype, "cuda", copy, with_compiled, by_events))
    return 0


def _tell(figure: dict[str, Any]) -> None:
    print(MARK + json.dumps(figure), flush=True)


def outcomes(output: str, status: int, timed_out: bool) -> list[Outcome]:
    """The record's lines from what the measuring process printed."""
    found, missing, copy = [], 0, 0.0
    for line in output.splitlines():
        if not line.startswith(MARK):
            continue
        figure = json.loads(line[len(MARK) :])
        missing += figure.get("not_reached", 0)
        copy = figure.get("copy_gb_per_s", copy)
        if "case" not in figure:
            continue
        name = f"{figure['case']} {figure['shape']} {figure['dtype']}"
        if "red" in figure:
            found.append(Outcome("timing", name, "failed", figure["red"], data=figure))
            continue
        ratios = ", ".join(f"{ratio:.2f} x {other}" for other, ratio in figure["vs"].items())
        rate = f"{figure['gb_per_s']:.0f} GB/s, {figure['of_copy']:.2f} of copy"
        detail = f"{figure['us']['ours']:.1f} us, {rate}, {ratios}"
        found.append(Outcome("timing", name, "passed", detail, data=figure))
    if copy:
        text = f"{copy:.0f} GB/s, read and written"
        found.insert(0, Outcome("timing", "device-to-device copy", "passed", text, data={"gb_per_s": copy}))
    if missing or timed_out:
        text = f"{missing} sizes and dtypes" if missing else "the measuring process was ended"
        found.append(Outcome("timing", "the rest", "not reached", text))
    elif status != 0:
        tail = [line for line in output.splitlines() if line.strip() and not line.startswith(MARK)]
        found.append(
            Outcome(
                "timing",
                "measuring",
                "failed",
                tail[-1] if tail else "no output",
                data={"output": output[-4000:]},
            )
        )
    return found


def run_timing(package: Path, site: Path, root: Path, seconds: float) -> list[Outcome]:
    """Measure a package that is installed in ``site``; one outcome a case, size and dtype.

    Args:
        package: its folder in the checkout.
        site: where it is installed.
        root: the checkout.
        seconds: after which no other is begun.
    """
    command = module("timing", package.name, "--seconds", f"{seconds:.1f}")
    done = run(command, seconds + 20, environment(site, root), package)
    return outcomes(done.output, done.status, done.timed_out)


if __name__ == "__main__":
    sys.exit(main())
