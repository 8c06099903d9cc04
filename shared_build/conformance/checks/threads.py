"""Results do not depend on repetition, on the thread count, on the calling thread or on other calls."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from .. import data
from ..registry import Variant, check
from ..run import Outputs, Run, threads
from ..spec import Spec
from .values import short

REPEATS = 20
WORKERS = 8


def parallel_cases(spec: Spec) -> Iterator[Variant]:
    """Cases large enough to go parallel, and the first core case."""
    for case in [*spec.select("parallel"), *spec.select("core")[:1]]:
        for dtype in (torch.float32, torch.bfloat16):
            if dtype in spec.dtypes_of(case):
                yield Variant(f"{case.id}-{short(dtype)}", case, dtype)


def everything(run: Run) -> Outputs:
    """Outputs and gradients of one call, as one tuple."""
    wanted = data.differentiable(run.case) if run.spec.differentiable else []
    tensors = dict(run.tensors)
    outputs = run.call(tensors)
    if not wanted:
        return outputs
    if not run.upstream:
        run.upstream = data.cotangents(outputs, run.seed)
    return (*outputs, *run.gradients(tensors, wanted, run.upstream).values())


def compare(run: Run, label: str, got: Outputs, expected: Outputs, *, exact: bool = True) -> None:
    """Equal, with missing gradients missing on both sides."""
    pairs = [(a, b) for a, b in zip(got, expected, strict=True) if a is not None or b is not None]
    run.require(all(a is not None and b is not None for a, b in pairs), f"{label}: a gradient is missing")
    run.same(label, tuple(a for a, _ in pairs), tuple(b for _, b in pairs), exact=exact)


@check("repeat", parallel_cases)
def repeat(run: Run) -> None:
    """Twenty calls give the same bits."""
    run.inputs()
    with threads(max(2, os.cpu_count() or 1)):
        first = everything(run)
        for index in range(1, REPEATS):
            compare(run, f"repetition {index}", everything(run), first)


@check("thread_counts", parallel_cases)
def thread_counts(run: Run) -> None:
    """1, 2, 3 and all threads give the same bits (or agree within tolerance where the spec says so)."""
    run.inputs()
    with threads(1):
        first = everything(run)
    for count in sorted({2, 3, 5, os.cpu_count() or 1}):
        with threads(count):
            label = f"{count} threads against 1"
            compare(run, label, everything(run), first, exact=run.spec.threads == "invariant")


@check("concurrency", parallel_cases)
def concurrency(run: Run) -> None:
    """Eight Python threads on shared inputs get the serial result: no static scratch, no lazy start-up race.

    Half of the threads use other inputs of the same shape, so that shared scratch memory shows.
    """
    inputs = [run.inputs(seed=seed) for seed in (0, 1)]
    serial = []
    for tensors in inputs:
        run.tensors = tensors
        serial.append(everything(run))

    def work(index: int) -> list[Outputs]:
        torch.set_num_threads(2)  # counts for the thread that asks
        own = Run(run.package, run.check, run.id, run.spec, run.case, run.dtype, tensors=inputs[index % 2])
        return [everything(own) for _ in range(4)]

    with threads(2), ThreadPoolExecutor(WORKERS) as pool:
        for index, results in enumerate(pool.map(work, range(WORKERS))):
            for got in results:
                compare(run, f"thread {index} of {WORKERS}", got, serial[index % 2])
