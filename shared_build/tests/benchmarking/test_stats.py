"""Verdicts on synthetic timings, where the truth is known."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import pytest

from shared_build.benchmarking.stats import (
    FEWEST_ROUNDS,
    Estimate,
    estimate,
    geometric_mean,
    independent_rounds,
    judge,
    quantile,
    significant,
)


def noisy(ratio: float, spread: float, rounds: int, seed: int = 1) -> list[float]:
    """Log-normal ratios around a true median."""
    source = random.Random(seed)
    return [ratio * math.exp(source.gauss(0, spread)) for _ in range(rounds)]


def test_a_clear_margin_holds_and_a_clear_shortfall_fails() -> None:
    measured = estimate(noisy(3.0, 0.02, 15))
    assert judge(2.5, measured) == "holds"
    assert judge(3.5, measured) == "fails"


def test_a_floor_inside_the_spread_is_undecided_until_more_rounds_narrow_it() -> None:
    few, many = (estimate(noisy(2.6, 0.10, rounds, seed=3)) for rounds in (11, 400))
    assert judge(2.5, few) == "undecided"
    assert judge(2.5, many) == "holds"
    assert many.high / many.low < few.high / few.low


def test_a_floor_at_the_median_stays_undecided_however_many_rounds() -> None:
    assert judge(2.0, estimate(noisy(2.0, 0.05, 999))) == "undecided"


@pytest.mark.parametrize("rounds", range(1, FEWEST_ROUNDS))
def test_too_few_rounds_decide_nothing_even_when_all_agree(rounds: int) -> None:
    assert judge(1.0, estimate([9.0] * rounds)) == "undecided"


def test_the_fewest_rounds_decide_when_all_agree() -> None:
    assert judge(1.0, estimate([9.0] * FEWEST_ROUNDS)) == "holds"
    assert judge(9.5, estimate([9.0] * FEWEST_ROUNDS)) == "fails"


def test_the_boundary_itself_holds() -> None:
    assert judge(2.0, estimate([2.0] * 20)) == "holds"


def test_one_wild_round_does_not_move_the_verdict() -> None:
    values = noisy(3.0, 0.02, 31)
    values[7] = 0.01
    assert judge(2.5, estimate(values)) == "holds"


@pytest.mark.parametrize("rounds", [11, 25, 60])
def test_the_interval_covers_the_true_median_as_often_as_it_says(rounds: int) -> None:
    inside = 0
    trials = 1500
    for seed in range(trials):
        measured = estimate(noisy(1.0, 0.3, rounds, seed=seed))
        inside += measured.low <= 1.0 <= measured.high
    # 99% is promised; three standard errors of the count are granted to chance.
    assert inside / trials >= 0.99 - 3 * math.sqrt(0.99 * 0.01 / trials)


def test_a_drift_of_the_machine_widens_the_interval() -> None:
    source = random.Random(5)
    level, drifting = 0.0, []
    for _ in range(120):
        level = 0.95 * level + source.gauss(0, 0.02)
        drifting.append(math.exp(level))
    shuffled = drifting[:]
    source.shuffle(shuffled)
    assert independent_rounds(drifting) < 40
    assert independent_rounds(shuffled) > 60
    slow, quick = estimate(drifting), estimate(shuffled)
    assert slow.ratio == quick.ratio
    assert slow.high / slow.low > quick.high / quick.low


def test_an_even_number_of_rounds_takes_the_middle_of_the_two() -> None:
    assert estimate([1.0, 2.0, 4.0, 8.0]).ratio == 3.0


def test_quartiles_interpolate() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.25) == 1.75


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [1.0, -2.0], [math.inf], [math.nan]])
def test_what_is_no_ratio_is_refused(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="estimate: expected positive ratios, but got"):
        estimate(ratios)


def test_the_geometric_mean_is_that_of_the_medians_and_narrower_than_its_parts() -> None:
    parts = [Estimate(ratio, ratio / 1.1, ratio * 1.1, ratio / 1.05, ratio * 1.05, 20) for ratio in (1, 2, 4)]
    mean = geometric_mean(parts)
    assert mean.ratio == pytest.approx(2.0)
    assert mean.high / mean.ratio == pytest.approx(1.1 ** (1 / math.sqrt(3)))
    assert mean.ratio / mean.low == pytest.approx(1.1 ** (1 / math.sqrt(3)))
    assert mean.rounds == 20


def test_the_geometric_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one estimate"):
        geometric_mean([])


def test_the_interval_is_near_the_normal_theory_for_many_rounds() -> None:
    measured = estimate(noisy(1.0, 0.1, 2000, seed=9))
    half = NormalDist().inv_cdf(0.995) * 0.1 * math.sqrt(math.pi / 2 / 2000)
    assert math.log(measured.high / measured.low) == pytest.approx(2 * half, rel=0.35)


def test_rounding_to_significant_digits() -> None:
    assert significant(1234567.0) == 1234600.0
    assert significant(0.000123456) == 0.00012346
    assert significant(0.0) == 0.0
    assert significant(7) == 7
