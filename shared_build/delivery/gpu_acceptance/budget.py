"""The time that an acceptance may take, and processes that respect it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class Budget:
    """Seconds from now on.

    Args:
        seconds: all there is.
    """

    def __init__(self, seconds: float) -> None:
        self.start = time.monotonic()
        self.end = self.start + seconds

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    @property
    def left(self) -> float:
        """Seconds that remain, 0 at the end."""
        return max(0.0, self.end - time.monotonic())

    def part(self, share: float) -> float:
        """That share of what remains, in seconds."""
        return share * self.left


@dataclass(frozen=True)
class Finished:
    """A process that ended, or was ended when its time was over (``timed_out``)."""

    status: int
    output: str
    timed_out: bool = False


def environment(site: Path | None, root: Path, **more: str) -> dict[str, str]:
    """The environment of a worker: the installed wheels come first, then the checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    path = os.pathsep.join(str(folder) for folder in (site, root) if folder is not None)
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **more}


def run(command: Sequence[str | Path], seconds: float, env: Mapping[str, str], cwd: Path) -> Finished:
    """Run a command for at most that long; its standard error is part of the output."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=max(seconds, 1.0),
            env=dict(env),
            cwd=cwd,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        return Finished(-1, text, timed_out=True)
    return Finished(done.returncode, done.stdout)


def module(name: str, *arguments: str | Path) -> list[str]:
    """The command of one of this package's modules."""
    return [sys.executable, "-m", f"shared_build.delivery.gpu_acceptance.{name}", *map(str, arguments)]
