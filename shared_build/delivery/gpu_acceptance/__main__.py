r"""``python -m shared_build.delivery.gpu_acceptance ARTIFACT... --out DIR``, on a machine with a GPU.

    python -m shared_build.delivery.gpu_acceptance opwright_rms_norm-0.1.0-1cu130-py3-none-linux_x86_64.whl \
        --out gpu

Run from the root of a checkout, with the Python that has torch. Nothing is fetched, and nothing is installed
outside of a temporary folder. An artifact is a wheel, or a source distribution, which is built first (the
ATen flavour fits one minor version of torch only). Needs torch, hypothesis, psutil and rich.

Writes ``gpu_acceptance.json`` into DIR and ends with the same as a table. Exit status: 0 everything passed,
1 something failed, 2 nothing failed but something was skipped or not reached in the time given.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .budget import Budget, environment, module, run
from .checks import run_checks
from .installing import install, operator_of
from .record import EXIT, Outcome, table, write
from .sanitizer import run_sanitizer
from .timing import run_timing

ROOT = Path(__file__).resolve().parents[3]
#: Shares of the time that is left when a step begins; what one does not use, the next ones have.
CHECKS, SANITIZER, TIMING = 0.5, 0.5, 0.9


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; an artifact that is not one ends the program before anything is done."""
    parser = argparse.ArgumentParser(
        prog="python -m shared_build.delivery.gpu_acceptance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "artifacts", nargs="+", type=Path, metavar="ARTIFACT", help="wheels or source distributions"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu_acceptance.json")
    parser.add_argument("--seconds", type=float, default=330.0, help="for everything (default: 330)")
    parser.add_argument("--jobs", type=int, default=4, help="processes that run checks at once (default: 4)")
    parser.add_argument("--find-links", type=Path, help="folder with wheels of build tools")
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the checkout (default: the one this file is in)"
    )
    options = parser.parse_args(argv)
    for artifact in options.artifacts:
        try:
            operator = operator_of(artifact)
        except ValueError as error:
            parser.error(str(error))
        if not artifact.is_file():
            parser.error(f"expected a file, but got {artifact}")
        if not (options.root / "packages" / operator / "tests" / "spec.py").is_file():
            parser.error(f"expected packages/{operator}/tests/spec.py in the checkout, but got none")
    if options.seconds <= 0 or options.jobs < 1:
        parser.error("expected --seconds and --jobs above 0")
    return options


def machine(root: Path, budget: Budget) -> dict[str, Any]:
    """The machine's facts; ``problem`` says why nothing can be run on it."""
    done = run(module("facts"), budget.part(0.3), environment(None, root), root)
    lines = done.output.strip().splitlines()
    if done.status != 0 or not lines:
        return {"devices": [], "problem": lines[-1] if lines else "torch does not answer"}
    found: dict[str, Any] = json.loads(lines[-1])
    if not found["devices"]:
        found["problem"] = "no CUDA device"
    return found


def accept(options: argparse.Namespace) -> tuple[dict[str, Any], list[Outcome], float]:
    """Do everything; return the machine's facts, the outcomes and the seconds spent."""
    budget = Budget(options.seconds)
    facts = machine(options.root, budget)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="opwright-gpu-") as folder:
        for number, artifact in enumerate(options.artifacts):
            operator = operator_of(artifact)
            site = Path(folder) / str(number) / "site"
            share = Budget(budget.part(1 / (len(options.artifacts) - number)))
            if "problem" in facts:
                outcomes.append(Outcome("install", artifact.name, "skipped", facts["problem"]))
                continue
            installed = install(artifact.resolve(), site, options.root, options.find_links, share)
            outcomes.append(installed)
            print(table([installed]).splitlines()[-1], flush=True)
            if installed.verdict != "passed":
                continue
            package = options.root / "packages" / operator
            print(f"{operator}: checks", flush=True)
            outcomes += run_checks(package, site, options.root, share.part(CHECKS), options.jobs)
            print(f"{operator}: compute-sanitizer", flush=True)
            outcomes += run_sanitizer(package, site, options.root, share.part(SANITIZER))
            print(f"{operator}: timing", flush=True)
            outcomes += run_timing(package, site, options.root, share.part(TIMING) - 10)
    return facts, outcomes, budget.spent


def main(argv: Sequence[str] | None = None) -> int:
    """Accept, write the record, print the table; return the exit status."""
    options = parse(argv)
    facts, outcomes, seconds = accept(options)
    path = options.out / "gpu_acceptance.json"
    verdict = write(path, facts, outcomes, seconds)
    devices = ", ".join(d["name"] for d in facts["devices"]) or facts.get("problem", "")
    print(f"\n{table(outcomes)}\n")
    print(f"{verdict} in {seconds:.0f} s on {devices}, torch {facts.get('torch', 'unknown')}; {path}")
    return EXIT[verdict]


if __name__ == "__main__":
    sys.exit(main())
