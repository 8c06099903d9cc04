"""The conformance checks for a device, in several processes at once.

The worker (``python -m shared_build.delivery.gpu_acceptance.checks SPEC``) runs its part of the checks in
order of importance until its time is over, and tells about each in a line of its own. An error that leaves
the device unusable for the process ends it; the parent starts another behind that check. So does a crash.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .budget import Budget, environment, module
from .record import Outcome, one_line

MARK = "@check "
#: What only a device can show comes first; then values, then the full products.
ORDER = (
    "cuda_guard",
    "cuda_stream",
    "cuda_no_sync",
    "cuda_graph",
    "cuda_grid",
    "cuda_huge",
    "cuda_leaks",
    "cuda_autocast",
    "cuda_offsets",
    "cuda_repeat",
    "cuda_golden",
    "cuda_gradients",
    "cuda_compiled",
    "cuda_poison",
    "cuda_layouts",
    "cuda_gradient_layouts",
)
#: Of the slow tier, what a device needs even in a short run.
ALWAYS = frozenset({"cuda_huge"})
BROKEN = 3
RESTARTS = 6


# ---- the worker --------------------------------------------------------------------------------------------


def ordered(found: Iterable[Any]) -> list[Any]:
    """Invocations in the order in which they are worth their time: by tier, then as ``ORDER`` says."""

    def rank(each: Any) -> tuple[bool, int]:
        name = each.check.name
        return each.variant.slow and name not in ALWAYS, ORDER.index(name) if name in ORDER else len(ORDER)

    return sorted(found, key=rank)


def run_all(
    found: Sequence[Any],
    start: int,
    seconds: float,
    tell: Callable[[dict[str, Any]], None],
    alive: Callable[[], bool],
) -> int:
    """Run invocations from ``start`` on; returns the exit status.

    Args:
        found: what ``shared_build.conformance`` calls invocations.
        start: index of the first to run.
        seconds: after which no other is started.
        tell: takes one event.
        alive: whether the device still answers, asked after a failure.
    """
    end = time.monotonic() + seconds
    for index in range(start, len(found)):
        each = found[index]
        event: dict[str, Any] = {"index": index, "name": f"{each.spec.name}/{each.check.name}", "id": each.id}
        if each.variant.skip:
            tell({**event, "state": "skipped", "text": each.variant.skip})
            continue
        if time.monotonic() >= end:
            tell({**event, "state": "not reached"})
            continue
        tell({**event, "state": "started"})
        began = time.monotonic()
        try:
            each()
        except Exception as error:
            tell({**event, "state": "failed", "text": str(error), "seconds": time.monotonic() - began})
            if not alive():
                return BROKEN
        else:
            tell({**event, "state": "passed", "seconds": time.monotonic() - began})
    return 0


def _alive() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """The worker's command line."""
    parser = argparse.ArgumentParser(prog="gpu_acceptance.checks", description=__doc__)
    parser.add_argument("spec", help="tests/spec.py of a package")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args(argv)

    from shared_build.conformance.registry import invocations, load_package

    found = ordered(invocations(load_package(options.spec), ORDER))
    return run_all(found[options.part :: options.parts], options.start, options.seconds, _tell, _alive)


def _tell(event: dict[str, Any]) -> None:
    print(MARK + json.dumps(event), flush=True)


# ---- the parent --------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What is known of one check of one function."""

    passed: int = 0
    seconds: float = 0.0
    failures: list[dict[str, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    not_reached: int = 0

    def outcome(self, name: str) -> Outcome:
        """One line of the record."""
        counts = [f"{self.passed} passed"]
        counts += [f"{len(self.failures)} failed"] if self.failures else []
        counts += [f"{len(self.skipped)} skipped: {self.skipped[0]}"] if self.skipped else []
        counts += [f"{self.not_reached} not reached"] if self.not_reached else []
        detail = ", ".join(counts)
        if self.failures:
            first = self.failures[0]
            detail = f"{detail}; {first['id']}: {one_line(first['text'], 300)}"
            verdict = "failed"
        elif self.not_reached:
            verdict = "not reached"
        else:
            verdict = "passed" if self.passed else "skipped"
        return Outcome("checks", name, verdict, detail, self.seconds, {"failures": self.failures})


def tally(events: Iterable[Mapping[str, Any]]) -> dict[str, Tally]:
    """Counts by function and check, in the order in which they were met."""
    found: dict[str, Tally] = {}
    for event in events:
        entry = found.setdefault(event["name"], Tally())
        state = event["state"]
        entry.seconds += event.get("seconds", 0.0)
        if state == "passed":
            entry.passed += 1
        elif state == "failed":
            entry.failures.append({"id": event["id"], "text": event["text"]})
        elif state == "skipped":
            entry.skipped.append(event["text"])
        elif state == "not reached":
            entry.not_reached += 1
    return found


def follow(
    command: Callable[[int, float], Sequence[str]], seconds: float, **options: Any
) -> list[dict[str, Any]]:
    """Run a worker, and another where one was ended by a check, until all is told; return the events.

    Args:
        command: gives the worker's command for a first index and a number of seconds.
        seconds: for all of them; a worker that goes on for 20 seconds more is ended.
        options: for the process.

    Raises:
        RuntimeError: a worker ended without having begun; the text is what it printed.
    """
    end = time.monotonic() + seconds
    events: list[dict[str, Any]] = []
    start = 0
    for _ in range(RESTARTS):
        pending, status, output = None, 0, []
        for line in _lines(command(start, max(0.0, end - time.monotonic())), end + 20, options):
            if isinstance(line, int):
                status = line
            elif line.startswith(MARK):
                event = json.loads(line[len(MARK) :])
                pending = event if event["state"] == "started" else None
                if pending is None:
                    events.append(event)
                start = event["index"] + 1
            else:
                output.append(line.rstrip())
        if status == 0:
            return events
        tail = "\n".join(output[-15:])
        if pending is not None:
            why = "took too long" if time.monotonic() > end else f"ended its process with status {status}"
            events.append({**pending, "state": "failed", "text": f"{why}\n{tail}"})
        elif status != BROKEN:
            raise RuntimeError(tail or f"no output, exit status {status}")
    return events


def _lines(command: Sequence[str], end: float, options: dict[str, Any]) -> Iterator[str | int]:
    """The lines a process prints, then its exit status; ended when its time is over."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options
    ) as process:
        timer = threading.Timer(max(0.0, end - time.monotonic()), process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            yield from process.stdout
        finally:
            timer.cancel()
    yield process.returncode


def run_checks(package: Path, site: Path, root: Path, seconds: float, jobs: int) -> list[Outcome]:
    """Run the checks of a package that is installed in ``site``; one outcome a function and check.

    Args:
        package: its folder in the checkout.
        site: where it is installed.
        root: the checkout.
        seconds: after which nothing is started any more.
        jobs: processes at once.
    """
    budget = Budget(seconds)
    events: list[list[dict[str, Any]]] = [[] for _ in range(jobs)]
    problems: list[str] = []

    def work(part: int) -> None:
        def command(start: int, left: float) -> list[str]:
            where = ["--part", part, "--parts", jobs, "--start", start, "--seconds", f"{left:.1f}"]
            return module("checks", package / "tests" / "spec.py", *map(str, where))

        try:
            events[part] = follow(command, budget.left, env=environment(site, root), cwd=package)
        except RuntimeError as error:
            problems.append(str(error))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = tally(event for part in events for event in part)
    outcomes = [entry.outcome(name) for name, entry in found.items()]
    if problems or not outcomes:
        text = problems[0] if problems else "the spec has no checks for a CUDA device: cuda=False"
        outcomes.append(Outcome("checks", package.name, "failed", text, budget.spent))
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
