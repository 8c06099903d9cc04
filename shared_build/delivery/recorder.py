"""A pytest plugin that writes what happened to each test, one JSON object a line, as it happens.

Loaded with ``-p shared_build.delivery.recorder`` and pointed to its file by the environment variable
``OPWRIGHT_RECORD``. JUnit XML is the delivered form; this one keeps the exact test ids, is there after a
crash of the interpreter too (the last ``start`` without a ``result`` names the test that took it down), and
lets another process show progress.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "OPWRIGHT_RECORD"


@dataclass
class TestResult:
    """What became of one test: ``outcome`` is passed, failed, skipped, or crashed (it never came back)."""

    __test__ = False

    node: str
    outcome: str
    seconds: float = 0.0
    reason: str = ""
    properties: dict[str, list[float]] = field(default_factory=dict)


class Recorder:
    """Writes the events of one test session."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("w", encoding="utf-8")
        self._open: dict[str, TestResult] = {}
        self._workers: set[str] = set()

    def _write(self, event: str, **values: Any) -> None:
        self._stream.write(json.dumps({"event": event, **values}) + "\n")
        self._stream.flush()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tell how many tests there are."""
        if session.items:
            self._write("collected", count=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Tell the same where workers collect."""
        self._write("collected", count=len(ids))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Name the test before it runs."""
        self._write("start", node=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather setup, call and teardown into one result."""
        result = self._open.setdefault(report.nodeid, TestResult(report.nodeid, "passed"))
        result.seconds += report.duration
        if report.failed:
            result.outcome = "failed"
            result.reason = result.reason or f"{report.when}: {_summary(report)}"
        elif report.skipped and result.outcome == "passed":
            result.outcome = "skipped"
            result.reason = _skip_reason(report)
        if report.when == "teardown":
            for name, value in report.user_properties:
                if isinstance(value, int | float) and not isinstance(value, bool):
                    result.properties.setdefault(str(name), []).append(float(value))
            self._write("result", **vars(self._open.pop(report.nodeid)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that could not be collected as a failed test of its own."""
        if report.failed:
            self._write("result", **vars(TestResult(report.nodeid, "failed", reason=_summary(report))))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Close the record."""
        self._write("finish", status=int(exitstatus))
        self._stream.close()


def _summary(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The exception and the line after it, which is where a check says what it found; else the last line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if crash is None:
        return lines[-1][:300] if lines else ""
    # The exception's module says nothing to a reader.
    lines[:1] = [re.sub(r"^(\w+\.)+(?=\w+: )", "", line) for line in lines[:1]]
    return "; ".join(lines[:2])[:300]


def _skip_reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected failure: {report.wasxfail}"
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)


def pytest_configure(config: pytest.Config) -> None:
    """Start recording in the process that reports (not in the workers of pytest-xdist)."""
    path = os.environ.get(VARIABLE)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)), "opwright-recorder")


def events(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(offset after it, event)`` for every whole line of a record from an offset on."""
    if not path.is_file():
        return
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield offset, json.loads(line)


def read_record(path: Path) -> list[TestResult]:
    """Read a finished record; a test that started and never ended becomes ``crashed``."""
    results: dict[str, TestResult] = {}
    for _, event in events(path):
        if event["event"] == "start":
            results[event["node"]] = TestResult(
                event["node"], "crashed", reason="the process died in this test"
            )
        elif event["event"] == "result":
            del event["event"]
            results[event["node"]] = TestResult(**event)
    return list(results.values())
