"""Layouts keep the values, have the strides they name, and surround them with poison."""

from __future__ import annotations

import pytest
import torch

from shared_build.conformance import layouts

SHAPES = [(6,), (3, 5), (2, 3, 4), (2, 3, 4, 5), (1, 5), (3, 1), (0, 4)]
KEEPS_VALUES = sorted(set(layouts.LAYOUTS) - {"expanded", "expanded_all", "expanded_last"})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", KEEPS_VALUES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_values_are_kept(layout, shape, dtype):
    source = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    view = layouts.LAYOUTS[layout](source)
    if view is not None:
        assert torch.equal(view, source)
        assert view.untyped_storage().data_ptr() != source.untyped_storage().data_ptr() or source.numel() == 0


@pytest.mark.parametrize(
    ("layout", "shape", "strides", "offset"),
    [
        ("transposed", (3, 5), (1, 3), 0),
        ("transposed", (2, 3, 4), (12, 1, 3), 0),
        ("reversed", (2, 3, 4), (1, 2, 6), 0),
        ("pitched", (3, 5), (10, 1), 2),
        ("step2", (3, 5), (10, 2), 0),
        ("misaligned", (3, 5), (5, 1), 1),
        ("expanded", (3, 5), (0, 1), 0),
        ("expanded_last", (3, 5), (1, 0), 0),
        ("expanded_all", (3, 5), (0, 0), 0),
        ("channels_last", (2, 3, 4, 5), (60, 1, 15, 3), 0),
        ("odd_strides", (3, 1), (1, 999), 0),
    ],
)
def test_strides(layout, shape, strides, offset):
    view = layouts.LAYOUTS[layout](torch.randn(shape))
    assert (view.shape, view.storage_offset()) == (shape, offset)
    assert all(
        s == t
        for s, t, n in zip(view.stride(), strides, shape, strict=True)
        if n > 1 or layout == "odd_strides"
    )


@pytest.mark.parametrize("layout", ["pitched", "step2", "misaligned"])
def test_gaps_are_poison(layout):
    view = layouts.LAYOUTS[layout](torch.ones(3, 5))
    buffer = layouts.whole_buffer(view)
    assert int(buffer.isnan().sum()) == buffer.numel() - 15


def test_a_copy_keeps_layout_gaps_and_offset():
    view = layouts.pitched(torch.randn(3, 5))
    copy = layouts.copy_with_layout(view)
    assert copy.stride() == view.stride()
    assert copy.storage_offset() == view.storage_offset()
    assert torch.equal(copy, view)
    copy.zero_()
    assert view.any()
    assert layouts.whole_buffer(copy).isnan().any()


def test_sliding_places_at_the_offset():
    placed = layouts.sliding(torch.arange(6.0).reshape(2, 3), 17)
    assert placed.storage_offset() == 17
    assert layouts.whole_buffer(placed)[:17].isnan().all()
    assert layouts.whole_buffer(placed)[17:23].tolist() == [0, 1, 2, 3, 4, 5]
