"""Each broken operator is caught by the check meant for it; the healthy one passes all; no check is idle."""

from __future__ import annotations

import re

import pytest

from shared_build.conformance import ConformanceError, conform, invocations
from shared_build.conformance.checks import processes
from shared_build.conformance.registry import CHECKS
from shared_build.tests.conformance.zoo import faults
from shared_build.tests.conformance.zoo.specs import PACKAGES


@pytest.mark.parametrize("check", conform(PACKAGES["healthy"]))
def test_healthy_passes(check):
    check()


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, id=f.name, marks=[pytest.mark.slow] if f.slow else []) for f in faults.load()],
)
def test_fault_is_caught(fault, monkeypatch):
    if fault.check == "fork":
        monkeypatch.setattr(processes, "PATIENCE", 8.0)
    runs = [each for each in invocations(PACKAGES[fault.name], [fault.check]) if each.variant.skip is None]
    assert runs, f"the check {fault.check} has nothing to run on {fault.name}"
    # Some variants may pass, and the slow ones come last; one has to fail, for the right reason.
    reports = (report_of(each) for each in sorted(runs, key=lambda each: each.variant.slow))
    seen = []
    for report in filter(None, reports):
        if re.search(fault.match, report):
            return
        seen.append(report)
    pytest.fail(f"{fault.check} does not report {fault.match!r}, but: {seen[:3] or 'nothing'}")


def report_of(invocation):
    try:
        invocation()
    except ConformanceError as error:
        return str(error)
    return None


def test_every_check_catches_something():
    needs_device = {name for name, check in CHECKS.items() if "cuda" in check.marks}  # test_cuda_logic.py
    caught = {fault.check for fault in faults.load()}
    assert set(CHECKS) - needs_device - caught == set()


def test_the_zoo_is_full():
    assert len(faults.load()) >= 90
