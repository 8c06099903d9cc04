"""Starts the measuring process and shows what it is doing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import allocator


class MeasurementError(RuntimeError):
    """No figures: the operator's result was wrong (`red` is true), or the measuring process failed."""

    def __init__(self, text: str, red: bool = False) -> None:
        super().__init__(text)
        self.red = red


def run_worker(
    request: dict[str, Any],
    root: Path,
    python: str = sys.executable,
    on_cell: Callable[[str], None] = lambda label: None,
) -> dict[str, Any]:
    """Measure in a process of its own, which is started with the allocator setting.

    Args:
        request: what to measure; see the worker.
        root: directory with `benchmarks/cases.py` and `shared_build/`; the working directory of the process.
        python: the interpreter that has the operator installed.
        on_cell: called with a label before each cell.

    Raises:
        MeasurementError: no result came back.
    """
    environment = allocator.environment()
    # A pool of compiler processes would still be busy starting while the first cells are measured.
    environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # The profiler that counts memory would announce itself on standard error.
    environment.setdefault("KINETO_LOG_LEVEL", "99")
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory(prefix="opwright-bench-") as folder:
        result = Path(folder) / "result.json"
        command = [
            python,
            "-m",
            "shared_build.benchmarking.worker",
            "--events",
            str(writer),
            "--result",
            str(result),
        ]
        # Standard output goes where errors go (2): what a library prints must not mix with a caller's report.
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=2, pass_fds=[writer]
        )
        os.close(writer)
        failure: dict[str, Any] = {}
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
            with os.fdopen(reader, encoding="utf-8") as events:
                for line in events:
                    event = json.loads(line)
                    if event["event"] == "cell":
                        on_cell(event["label"])
                    else:
                        failure = event
            status = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if failure or status != 0:
            text = failure.get("text") or f"the measuring process ended with status {status}"
            if failure.get("event") == "error":
                text += "\n" + failure.get("traceback", "")
            raise MeasurementError(text, red=failure.get("event") == "red")
        return json.loads(result.read_text(encoding="utf-8"))


def terminal(stderr: bool = False) -> Console:
    """A console for tables: as wide as the terminal, or 120 columns where the output goes to a file."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 120
    return Console(stderr=stderr, width=width)


def progress_bar(shown: bool) -> Progress:
    """A progress display on standard error; silent when not shown."""
    return Progress(
        TextColumn("[bold]{task.fields[stage]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        disable=not shown,
    )
