"""Medians, their intervals, and verdicts: everything that is decided from timings, free of torch and clocks.

A comparison is a sequence of per-round ratios `other / ours` (above 1: ours is faster). Its estimate is the
median. The interval is the order-statistic interval of a median (David and Nagaraja, *Order Statistics*,
section 7.1): it assumes no distribution. Rounds close in time share the state of the machine, so the number
of rounds is first reduced to the number of independent rounds that carry as much information, from the lag-1
correlation of the signs around the
median: a slow drift widens the interval instead of hiding in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

Outcome = Literal["holds", "fails", "undecided"]

CONFIDENCE = 0.99
FEWEST_ROUNDS = 8
"""With fewer rounds even the range of all ratios is no 99% interval of the median, so nothing is decided."""


@dataclass(frozen=True)
class Estimate:
    """A median ratio with its interval and the quartiles of the single rounds."""

    ratio: float
    low: float
    high: float
    lower_quartile: float
    upper_quartile: float
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, rounded to five significant digits."""
        return {key: significant(value) for key, value in asdict(self).items()}


def significant(value: float, digits: int = 5) -> float:
    """Round to significant digits; integers and non-finite numbers stay as they are."""
    if isinstance(value, int) or not math.isfinite(value) or value == 0:
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def quantile(values: Sequence[float], fraction: float) -> float:
    """Linear interpolation between the order statistics, as numpy's default does."""
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def independent_rounds(values: Sequence[float]) -> int:
    """How many independent rounds say as much about the median as these correlated ones do."""
    count = len(values)
    centre = median(values)
    signs = [(value > centre) - (value < centre) for value in values]
    if count < 3 or not any(signs):
        return count
    products = sum(a * b for a, b in itertools.pairwise(signs))
    correlation = products / sum(sign * sign for sign in signs)
    # One standard error is granted to chance: short independent sequences correlate by luck.
    correlation = min(max(0.0, correlation - 1 / math.sqrt(count)), 0.95)
    return max(1, math.floor(count * (1 - correlation) / (1 + correlation)))


def _trimmed_per_side(count: int, confidence: float) -> int:
    """Largest k with P(Binomial(count, 1/2) < k) <= (1 - confidence) / 2, where the interval starts."""
    tail, k = 0.0, 0
    while k < count:
        tail += math.comb(count, k) / 2**count
        if tail > (1 - confidence) / 2:
            break
        k += 1
    return max(1, k)


def estimate(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The median of per-round ratios with a distribution-free interval.

    Raises:
        ValueError: no ratios, or one that is not a positive number.
    """
    if not ratios or not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios):
        raise ValueError(f"estimate: expected positive ratios, but got {list(ratios)}")
    ordered = sorted(ratios)
    count = len(ordered)
    effective = independent_rounds(ratios)
    kth = _trimmed_per_side(effective, confidence)
    # The same quantile in the longer, correlated sequence; the first value where there is nothing to trim.
    trimmed = 0 if kth == 1 else math.floor((kth - 1) / effective * count)
    return Estimate(
        ratio=median(ordered),
        low=ordered[trimmed],
        high=ordered[count - 1 - trimmed],
        lower_quartile=quantile(ordered, 0.25),
        upper_quartile=quantile(ordered, 0.75),
        rounds=count,
    )


def geometric_mean(estimates: Sequence[Estimate]) -> Estimate:
    """Geometric mean of independent estimates; the intervals add in quadrature on the log scale.

    Raises:
        ValueError: no estimates.
    """
    if not estimates:
        raise ValueError("geometric_mean: expected at least one estimate, but got none")
    count = len(estimates)
    centre = sum(math.log(item.ratio) for item in estimates) / count

    def spread(side: str) -> float:
        return math.sqrt(sum(math.log(getattr(item, side) / item.ratio) ** 2 for item in estimates)) / count

    return Estimate(
        ratio=math.exp(centre),
        low=math.exp(centre - spread("low")),
        high=math.exp(centre + spread("high")),
        lower_quartile=math.exp(centre - spread("lower_quartile")),
        upper_quartile=math.exp(centre + spread("upper_quartile")),
        rounds=min(item.rounds for item in estimates),
    )


def judge(floor: float, measured: Estimate) -> Outcome:
    """`holds` or `fails` when the whole interval lies on one side of the floor, else `undecided`."""
    if measured.rounds < FEWEST_ROUNDS:
        return "undecided"
    if measured.low >= floor:
        return "holds"
    if measured.high < floor:
        return "fails"
    return "undecided"
