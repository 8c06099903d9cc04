"""Installs what was carried to the machine: a wheel as it is, a source distribution after building it."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from .budget import Budget, environment, run
from .record import Outcome


def operator_of(artifact: Path) -> str:
    """The operator in the name of a wheel or a source distribution.

    Raises:
        ValueError: the name is not one of a package of this project.
    """
    match = re.fullmatch(r"opwright_(\w+?)-\d[^-]*(?:-.+\.whl|\.tar\.gz)", artifact.name)
    if match is None:
        raise ValueError(
            f"gpu_acceptance: expected opwright_<op>-<version>-....whl or .tar.gz, but got {artifact.name}"
        )
    return match[1]


def install(artifact: Path, site: Path, root: Path, links: Path | None, budget: Budget) -> Outcome:
    """Install an artifact into a folder, without a network.

    Args:
        artifact: a wheel, or a source distribution (the ATen flavour, tied to one minor version of torch).
        site: the folder, which workers import from.
        root: the checkout.
        links: folder with wheels of build tools that the machine lacks.
        budget: time that is left.
    """
    started = time.monotonic()
    pip = [sys.executable, "-m", "pip"]
    offline = ["--no-index", *(["--find-links", str(links)] if links else [])]
    what, wheel = f"{artifact.name}", artifact
    if artifact.name.endswith(".tar.gz"):
        # With wheels of the tools pip isolates the build; else it uses those of the machine.
        isolation = [] if links else ["--no-build-isolation"]
        built = site.parent / "built" / artifact.name
        command = [*pip, "wheel", *offline, *isolation, "--no-deps", "--wheel-dir", str(built), str(artifact)]
        done = run(command, budget.part(0.5), environment(None, root, OPWRIGHT_CUDA="ON"), root)
        if done.status != 0:
            why = "building took too long" if done.timed_out else _last_line(done.output)
            return Outcome(
                "install", what, "failed", why, time.monotonic() - started, {"output": done.output[-4000:]}
            )
        (wheel,) = built.glob("*.whl")
    command = [
        *pip,
        "install",
        "--quiet",
        *offline,
        "--no-deps",
        "--upgrade",
        "--target",
        str(site),
        str(wheel),
    ]
    done = run(command, budget.left, environment(None, root), root)
    verdict = "passed" if done.status == 0 else "failed"
    detail = wheel.name if done.status == 0 else _last_line(done.output)
    return Outcome("install", what, verdict, detail, time.monotonic() - started)


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "opwright:" in line or "rror" in line]
    return (errors or lines or ["no output"])[-1].strip()
