"""The logic of the checks that need a GPU, tried on the CPU where they use nothing of torch.cuda.

It shows that they run, that they pass the healthy operator and that they catch what they are for. It says
nothing about a GPU.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from shared_build.conformance import ConformanceError, conform, invocations, reasons
from shared_build.tests.conformance.zoo.specs import PACKAGES

DEVICE_FREE = (
    "cuda_golden",
    "cuda_gradients",
    "cuda_layouts",
    "cuda_gradient_layouts",
    "cuda_poison",
    "cuda_repeat",
    "cuda_offsets",
    "cuda_grid",
)


def on_cpu(package, check):
    return [
        dataclasses.replace(each, variant=dataclasses.replace(each.variant, device="cpu"))
        for each in invocations(PACKAGES[package], [check], slow=False)
    ]


@pytest.mark.parametrize("check", DEVICE_FREE)
def test_healthy_passes(check):
    runs = on_cpu("healthy", check)
    assert runs
    for each in runs[:40]:
        each()


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("EpsOutside-golden", "cuda_golden"),
        ("HalfWeightGradient-gradient_error", "cuda_gradients"),
        ("IgnoresStrides-layouts", "cuda_layouts"),
        ("IgnoresGradientStrides-gradient_layouts", "cuda_gradient_layouts"),
        ("TailUnwritten-poison", "cuda_poison"),
        ("Unordered-repeat", "cuda_repeat"),
        ("AlignedLoads-offsets", "cuda_offsets"),
        ("TailElementWrong-golden", "cuda_grid"),
    ],
)
def test_fault_is_caught(fault, check):
    def fails(each):
        try:
            each()
        except ConformanceError as error:
            return error.check == check
        return False

    assert any(fails(each) for each in on_cpu(fault, check))


def test_without_a_device_every_check_is_there_and_says_why_it_does_not_run():
    params = [p for p in conform(PACKAGES["healthy"]) if any(m.name == "cuda" for m in p.marks)]
    names = {p.id.split("/")[1] for p in params}
    assert len(names) >= 16
    for p in params:
        skips = [m for m in p.marks if m.name == "skip"]
        if torch.cuda.is_available():
            assert all(m.kwargs["reason"] == reasons.ONE_CUDA for m in skips)
        else:
            assert [m.kwargs["reason"] for m in skips] == [reasons.NO_CUDA]
