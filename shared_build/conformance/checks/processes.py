"""Forked and spawned processes, first calls on fresh threads, and every kernel level of the machine."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import data, machine
from ..isolated import run_child, run_command
from ..registry import Variant, check, load_package
from ..run import Outputs, Run, as_tuple
from ..spec import Options, Package, Spec, Tensors
from .threads import parallel_cases

PATIENCE = 40.0
LEVEL_CHECKS = (
    "golden",
    "float64",
    "special",
    "degenerate",
    "layouts",
    "offsets",
    "slices",
    "thread_counts",
    "gradient_error",
)


def once(package: Package) -> Iterator[Variant]:
    yield Variant("all")


@dataclasses.dataclass
class Prepared:
    """Everything that a call forward and backward needs, made before: the call itself runs no aten loop."""

    spec: Spec
    options: Options
    tensors: Tensors
    wanted: list[str]
    upstream: Outputs


def prepare(package: Package) -> list[Prepared]:
    """For every spec a call large enough to be parallel."""
    calls = []
    for spec in package.specs:
        variant = next(iter(parallel_cases(spec)))
        run = Run(package, "processes", variant.id, spec, variant.case, variant.dtype)
        wanted = data.differentiable(variant.case) if spec.differentiable and not spec.mutates else []
        tensors = run.inputs(grad=wanted)
        upstream = data.cotangents(run.eager(tensors), 0)
        calls.append(Prepared(spec, variant.case.options, tensors, wanted, upstream))
    return calls


def digest(prepared: Sequence[Prepared]) -> dict[str, str]:
    """A checksum of outputs and gradients per spec. Mutating functions use up their arguments."""
    sums = {}
    for call in prepared:
        results = as_tuple(call.spec.op(**call.tensors, **call.options))
        if call.wanted:
            found = torch.autograd.grad(results, [call.tensors[n] for n in call.wanted], call.upstream)
            results = (*results, *found)
        raw = b"".join(ctypes.string_at(t.data_ptr(), t.numel() * t.element_size()) for t in results)
        sums[call.spec.name] = hashlib.sha256(raw).hexdigest()
    return sums


def _send_forked(pipe: Any, prepared: Sequence[Prepared]) -> None:
    try:
        pipe.send(digest(prepared))
    except Exception:
        pipe.send(traceback.format_exc())


def _send_spawned(pipe: Any, origin: str) -> None:
    try:
        pipe.send(digest(prepare(load_package(origin))))
    except Exception:
        pipe.send(traceback.format_exc())


def _through_process(payload: Mapping[str, str]) -> dict[str, Any]:
    """The digest here and in a process started from here with the given method.

    Before a fork every function has run in parallel here, and torch's own pool exists, as in a data loader.
    """
    package = load_package(payload["origin"])
    here = digest(prepare(package))
    context = multiprocessing.get_context(payload["method"])
    receiver, sender = context.Pipe(duplex=False)
    if payload["method"] == "fork":
        torch.ones(1 << 20).add_(1)
        process = context.Process(target=_send_forked, args=(sender, prepare(package)))
    else:
        process = context.Process(target=_send_spawned, args=(sender, payload["origin"]))
    process.start()
    answer = receiver.recv() if receiver.poll(payload["patience"]) else None
    if answer is None:
        process.kill()
    process.join()
    return {"here": here, "there": answer}


@check("fork", once, whole_package=True, marks=("isolated",))
def fork(run: Run) -> None:
    """A child forked after a parallel region computes the same and does not hang."""
    _compare_processes(run, "fork")


@check("spawn", once, whole_package=True, marks=("isolated",))
def spawn(run: Run) -> None:
    """A spawned child imports the package and computes the same."""
    _compare_processes(run, "spawn")


def _compare_processes(run: Run, method: str) -> None:
    payload = {"origin": str(run.package.origin), "method": method, "patience": PATIENCE}
    found = run_child(f"{__name__}:_through_process", payload, timeout=4 * PATIENCE)
    there = found["there"]
    run.require(there is not None, f"the {method}ed child hung: no answer after {PATIENCE:g} s")
    run.require(isinstance(there, dict), f"the {method}ed child failed:\n{there}")
    run.require(there == found["here"], f"the {method}ed child computes {there}, its parent {found['here']}")


def _fresh_thread(payload: Mapping[str, str]) -> dict[str, Any]:
    """Import and call for the first time on a new thread, forward and backward; then on the main thread."""
    found: dict[str, Any] = {}

    def work() -> None:
        try:
            found["thread"] = digest(prepare(load_package(payload["origin"])))
        except Exception:
            found["thread"] = traceback.format_exc()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    found["main"] = digest(prepare(load_package(payload["origin"])))
    return found


@check("fresh_thread", once, whole_package=True, marks=("isolated",))
def fresh_thread(run: Run) -> None:
    """The very first call of a process may come from a new thread."""
    found = run_child(f"{__name__}:_fresh_thread", {"origin": str(run.package.origin)})
    run.require(
        isinstance(found["thread"], dict), f"the first call on a new thread failed:\n{found['thread']}"
    )
    run.require(
        found["thread"] == found["main"], f"a new thread computes {found['thread']}, not {found['main']}"
    )


# -- kernel levels ------------------------------------------------------------------------------------------


@check("kernel_level", once, whole_package=True)
def kernel_level(run: Run) -> None:
    """The widest kernel level of this machine (or the one the environment asks for) is the one that runs."""
    found, expected = run.package.kernel_level(), machine.expected_level(run.package)
    run.require(found == expected, f"expected kernel level {expected}, but {found} runs")


def lower_levels(package: Package) -> Iterator[Variant]:
    usable = machine.available(package)
    for level in machine.levels(package):
        skip = None if level in usable else machine.missing(level)
        yield Variant(level, extra={"level": level}, skip=skip)


@check("levels", lower_levels, whole_package=True, marks=("isolated",))
def levels(run: Run) -> None:
    """Every kernel level passes the value checks, each in a process of its own that reports that level."""
    level = run.extra["level"]
    env = {run.package.capability_variable: level}
    origin = str(run.package.origin)
    found = run_child(f"{__name__}:_child_level", {"origin": origin}, env=env)
    run.require(found == level, f"{run.package.capability_variable}={level} runs {found}")
    if os.environ.get(run.package.capability_variable, machine.available(run.package)[-1]) == level:
        return  # this process runs all checks at that level already
    patterns = [word for name in LEVEL_CHECKS for word in ("--only", f"*/{name}/*")]
    command = [sys.executable, "-m", "shared_build.conformance", origin, *patterns]
    env["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    done = run_command(command, env=env, timeout=600)
    run.require(done.returncode == 0, f"at kernel level {level}:\n{done.stderr[:4000]}\n{done.stdout[-200:]}")


def _child_level(payload: Mapping[str, str]) -> str:
    return load_package(payload["origin"]).kernel_level()
