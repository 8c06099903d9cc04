"""The smallest cases under compute-sanitizer: accesses out of bounds, races, barriers, uninitialised memory.

As a program (``python -m shared_build.delivery.gpu_acceptance.sanitizer SPEC``) it is what runs under the
tool: a few of the smallest cases of each function, forward and backward.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .budget import Budget, environment, module, run
from .record import Outcome

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FOUND = 86
#: The tool cannot work on this device or with this driver; what it then says.
REFUSED = re.compile(
    r"device not supported|is not supported|unable to (?:find|load)|failed to initialize|"
    r"insufficient permissions|error 999|Target application terminated before first instrumented API call",
    re.IGNORECASE,
)
#: torch's own kernels leave padding unset and are not what is looked at.
OWN_KERNELS = ["--kernel-regex", "kns=opwright"]


def find() -> str | None:
    """The path of compute-sanitizer, or None."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    places = ["compute-sanitizer", *(f"{home}/bin/compute-sanitizer" for home in homes if home)]
    places.append("/usr/local/cuda/bin/compute-sanitizer")
    return next(filter(None, map(shutil.which, places)), None)


def judge(tool: str, status: int, output: str, timed_out: bool, seconds: float) -> Outcome:
    """The outcome of one run of the tool.

    Args:
        tool: one of ``TOOLS``.
        status: its exit status; ``FOUND`` where it found something.
        output: all that it and the program printed.
        timed_out: whether it was ended because its time was over.
        seconds: how long it ran.
    """
    lines = [line.strip("= ").strip() for line in output.splitlines() if line.strip("= ").strip()]
    data = {"output": output[-6000:]}
    refused = next((line for line in lines if REFUSED.search(line)), None)
    if status == FOUND and refused is None:
        first = next((line for line in lines if re.search(r"Invalid|Race|Barrier|Uninit", line)), lines[-1])
        return Outcome("sanitizer", tool, "failed", first, seconds, data)
    if refused is not None and status != 0:
        return Outcome("sanitizer", tool, "skipped", f"the tool refuses: {refused}", seconds, data)
    if timed_out:
        return Outcome("sanitizer", tool, "not reached", "its time was over", seconds, data)
    if status != 0:
        return Outcome("sanitizer", tool, "failed", lines[-1] if lines else "no output", seconds, data)
    count = next((line for line in lines if line.startswith("ran ")), "")
    if not count:
        return Outcome("sanitizer", tool, "failed", "the program ran no case", seconds, data)
    return Outcome("sanitizer", tool, "passed", count, seconds)


def run_sanitizer(package: Path, site: Path, root: Path, seconds: float) -> list[Outcome]:
    """Run every tool on a package that is installed in ``site``; one outcome a tool.

    Args:
        package: its folder in the checkout.
        site: where it is installed.
        root: the checkout.
        seconds: for all of them.
    """
    program = find()
    if program is None:
        why = "compute-sanitizer is not installed"
        return [Outcome("sanitizer", tool, "skipped", why) for tool in TOOLS]
    budget = Budget(seconds)
    # Without torch's own pool every tensor is an allocation by itself, so that an overrun is seen.
    env = environment(site, root, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    outcomes = []
    for left, tool in zip(range(len(TOOLS), 0, -1), TOOLS, strict=True):
        started = time.monotonic()
        command = [program, "--tool", tool, "--error-exitcode", str(FOUND)]
        command += OWN_KERNELS if tool != "memcheck" else []
        command += module("sanitizer", package / "tests" / "spec.py")
        done = run(command, budget.part(1 / left), env, package)
        outcomes.append(judge(tool, done.status, done.output, done.timed_out, time.monotonic() - started))
    return outcomes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the smallest core cases of each function on the device, forward and backward."""
    parser = argparse.ArgumentParser(prog="gpu_acceptance.sanitizer", description=__doc__)
    parser.add_argument("spec")
    parser.add_argument("--cases", type=int, default=2, help="cases of each function and dtype")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(argv)

    import torch

    from shared_build.conformance import data
    from shared_build.conformance.registry import load_package
    from shared_build.conformance.run import Run

    package = load_package(options.spec)
    count = 0
    for spec in package.specs:
        size = {c.id: sum(torch.Size(a.shape).numel() for a in c.args.values() if a) for c in spec.cases}
        smallest = sorted(spec.select("core"), key=lambda case: size[case.id])[: options.cases]
        for case in smallest:
            for dtype in (torch.float32, torch.bfloat16):
                run_ = Run(package, "sanitizer", case.id, spec, case, dtype, options.device)
                tensors = run_.inputs()
                run_.call(tensors)
                wanted = data.differentiable(case) if spec.differentiable else []
                if wanted:
                    run_.gradients(tensors, wanted)
                count += 1
    if options.device == "cuda":
        torch.cuda.synchronize()
    print(f"ran {count} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
