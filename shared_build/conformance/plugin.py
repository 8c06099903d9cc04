"""pytest plugin of the conformance suite.

- Tiers: without `-m`, tests marked `slow` are left out; `-m slow` runs them.
- Any skip whose reason is not listed in reasons.py is a failure, at collection too; an expected failure must
  be strict.
- Under pytest-xdist the workers share the cores: each starts with its part of the threads.
- The warning "autograd kernel was not registered" is an error.
- The header tells the tier, the thread count and the kernel level asked for.

Loaded by a conftest (`pytest_plugins = ["shared_build.conformance.plugin"]`) or with `-p`.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
import torch

from . import reasons

MARKERS = {
    "slow": "full products and long compilations; left out unless -m asks for them",
    "compile": "runs a compiler or traces graphs; leave out under sanitizers",
    "isolated": "starts processes of its own; leave out under sanitizers",
    "cuda": "needs a CUDA device",
}


def pytest_configure(config: pytest.Config) -> None:
    """Register markers and filters; leave out the slow tier unless a marker expression is given."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.addinivalue_line("filterwarnings", "error:.*autograd kernel was not registered.*")
    if not config.option.markexpr:
        config.option.markexpr = "not slow"
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:  # checks that are about threads ask for their own number
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    os.environ.setdefault("TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING", "1")


def pytest_report_header(config: pytest.Config) -> str:
    """State on which results depend."""
    level = os.environ.get("OPWRIGHT_CPU_CAPABILITY", "widest")
    return f"conformance: tier '{config.option.markexpr}', {torch.get_num_threads()} threads, level {level}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and _reason(report) not in reasons.ALLOWED:
        reason = _reason(report)
        report.outcome = "failed"
        report.longrepr = (
            f"expected one of the listed skip reasons {sorted(reasons.ALLOWED)}, but got {reason!r}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip for an unlisted reason, and an expected failure that passes, into a failure."""
    report = yield
    _refuse(report)
    if report.passed and hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"expected a failure ({report.wasxfail}), but the test passed"
        del report.wasxfail  # pytest counts no failure where it stands
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a module skipped as a whole (importorskip and the like) into a failure."""
    report = yield
    _refuse(report)
    return report
