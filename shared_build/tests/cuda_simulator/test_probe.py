"""What kernels compute under the simulator, against numpy, torch and the CUDA programming guide's rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shared_build.tests.cuda_simulator.build import run

LANES = np.arange(32)
VALUES = 100 + LANES


def numbers(programs: dict[str, Path], *arguments: str) -> list[int]:
    done = run(programs["probe-plain"], arguments)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def test_indices_of_three_dimensions(programs: dict[str, Path]) -> None:
    assert numbers(programs, "indices") == [
        1000 * block + thread for block in range(12) for thread in range(24)
    ]


class TestOrders:
    def test_forward_and_reverse(self, programs: dict[str, Path]) -> None:
        assert numbers(programs, "arrivals", "forward", "0") == list(range(96))
        assert numbers(programs, "arrivals", "reverse", "0") == list(range(95, -1, -1))

    def test_random_orders_are_fixed_by_their_seed(self, programs: dict[str, Path]) -> None:
        orders = [numbers(programs, "arrivals", "random", str(seed)) for seed in (1, 2, 3, 1)]
        assert all(sorted(order) == list(range(96)) for order in orders)
        assert orders[0] == orders[3]
        assert len({tuple(order) for order in orders[:3]}) == 3


def expected_of_warps() -> list[np.ndarray]:
    """The rules of the CUDA C++ programming guide, sections on warp shuffles, votes and reductions."""
    low = LANES < 8
    groups = [VALUES[:8].tolist(), VALUES[8:].tolist()]

    def of_group(reduce):  # the result of each lane's own group
        return np.where(low, reduce(groups[0]), reduce(groups[1]))

    even = np.array(
        [sum(1 << lane for lane in LANES if lane % 2 == 0 and (lane < 8) == part) for part in (True, False)]
    )
    thirds = sum(1 << int(lane) for lane in LANES if lane % 3 == 0)
    return [
        np.full(32, 105),
        VALUES[LANES // 8 * 8 + 3],
        np.where(LANES < 2, VALUES, VALUES - 2),
        np.where(LANES % 4 < 1, VALUES, VALUES - 1),
        np.where(LANES > 28, VALUES, VALUES + 3),
        np.where(LANES % 16 == 15, VALUES, VALUES + 1),
        100 + (LANES ^ 1),
        100 + (LANES ^ 16),
        np.full(32, thirds),
        np.where(low, even[0], even[1]),
        np.where(low, 0, 1),
        np.where(low, 0, 1),
        of_group(sum),
        of_group(lambda group: -min(group)),
        of_group(lambda group: -max(group)),
        of_group(np.bitwise_and.reduce),
        of_group(np.bitwise_or.reduce),
        of_group(np.bitwise_xor.reduce),
        np.full(32, VALUES.sum()),
        np.where(low, 8 + 100, 24 + 900),
    ]


@pytest.mark.parametrize(
    "how", [("forward", "0"), ("reverse", "0"), ("random", "5"), ("forward", "0", "threads")]
)
def test_warp_operations(programs: dict[str, Path], how: tuple[str, ...]) -> None:
    got = np.array(numbers(programs, "warp", *how)).reshape(20, 32)
    for operation, (row, expected) in enumerate(zip(got, expected_of_warps(), strict=True)):
        assert row.tolist() == expected.astype(np.int32).tolist(), operation


@pytest.mark.parametrize(
    "how", [("forward", "0"), ("reverse", "0"), ("random", "5"), ("forward", "0", "threads")]
)
def test_row_sums(programs: dict[str, Path], how: tuple[str, ...]) -> None:
    done = run(programs["probe-plain"], ["rows", *how])
    expected = []
    for threads, rows in ((32, 3), (256, 1), (1024, 1)):
        for row in range(rows):
            once = threads * (threads + 1) / 2 + 1000 * row * threads + 0.5
            expected += [threads * once] * (threads // 32)
    assert [float(line) for line in done.stdout.split()] == expected


def test_atomics(programs: dict[str, Path]) -> None:
    assert numbers(programs, "atomics", "random", "3") == [sum(range(64)), 1000, 77, 6, 5]


def test_bytes_are_counted(programs: dict[str, Path]) -> None:
    read, written, cached, launches, last = numbers(programs, "counters")
    assert (read, written, cached, launches) == (20, 20, 20, 1)
    assert last == 5 + 1 + 4


class TestConversions:
    def test_widen(self, programs: dict[str, Path]) -> None:
        got = np.array(numbers(programs, "widen"), dtype=np.uint32).reshape(65536, 2)
        patterns = np.arange(65536, dtype=np.uint16)
        half, finite = patterns.view(np.float16).astype(np.float32), ~np.isnan(patterns.view(np.float16))
        assert np.array_equal(got[finite, 0], half.view(np.uint32)[finite])
        assert np.isnan(got[~finite, 0].view(np.float32)).all()
        assert np.array_equal(got[:, 1], patterns.astype(np.uint32) << 16)

    def test_narrow(self, programs: dict[str, Path]) -> None:
        rows = np.array(numbers(programs, "narrow"), dtype=np.uint32).reshape(-1, 3)
        x = torch.from_numpy(rows[:, 0].view(np.float32).copy())
        for column, dtype in ((1, torch.float16), (2, torch.bfloat16)):
            expected = x.to(dtype)
            got = torch.from_numpy(rows[:, column].astype(np.uint16).view(np.int16)).view(dtype)
            nan = x.isnan()
            assert got[nan].isnan().all()
            assert torch.equal(got[~nan].view(torch.int16), expected[~nan].view(torch.int16))

    def test_doubles_are_rounded_once(self, programs: dict[str, Path]) -> None:
        done = run(programs["probe-plain"], ["narrow-doubles"])
        rows = np.array([line.split() for line in done.stdout.splitlines()])
        x = rows[:, 0].astype(np.float64)
        half = rows[:, 1].astype(np.uint16).view(np.float16)
        assert np.array_equal(half, x.astype(np.float16))  # numpy rounds a double once
        brain = (rows[:, 2].astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        spacing = np.exp2(np.floor(np.log2(np.maximum(np.abs(x), 2.0**-126))) - 7)
        assert (np.abs(brain - x) <= spacing / 2).all()
        ties = np.abs(brain - x) == spacing / 2
        assert ((rows[ties, 2].astype(int) % 2) == 0).all()
