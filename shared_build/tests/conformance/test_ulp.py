"""The ulp metric against values known by hand, and the error rule in both directions."""

from __future__ import annotations

import math

import pytest
import torch

from shared_build.conformance import ulp


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (torch.float32, 1.0, 2.0**-23),
        (torch.float32, 1.999, 2.0**-23),
        (torch.float32, 2.0, 2.0**-22),
        (torch.float32, 0.0, 2.0**-149),
        (torch.float32, 1e-40, 2.0**-149),
        (torch.bfloat16, 1.0, 2.0**-7),
        (torch.bfloat16, -3.0, 2.0**-6),
        (torch.float16, 1.0, 2.0**-10),
        (torch.float16, 1e-6, 2.0**-24),
        (torch.float64, 1.0, 2.0**-52),
    ],
)
def test_spacing(dtype, value, expected):
    assert float(ulp.spacing(torch.tensor(value, dtype=torch.float64), dtype)) == expected


def test_spacing_is_the_distance_to_the_next_number():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    step = torch.nextafter(values.abs(), torch.tensor(math.inf)) - values.abs()
    assert torch.equal(ulp.spacing(values.double(), torch.float32).float(), step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_to_nearest_is_within_half_an_ulp(dtype):
    golden = (
        torch.randn(10000, generator=torch.Generator().manual_seed(1), dtype=torch.float64).float().double()
    )
    error = ulp.ulp_error(golden.to(dtype), golden)
    assert 0.4 < float(error.max()) <= (0.5 if dtype != torch.float32 else 0.0) or float(error.max()) == 0.0


def test_non_finite_values_agree_or_are_infinitely_far():
    got = torch.tensor([math.nan, math.inf, -math.inf, math.inf, 1.0])
    golden = torch.tensor([math.nan, math.inf, math.inf, 1.0, math.nan], dtype=torch.float64)
    assert ulp.ulp_error(got, golden).tolist() == [0.0, 0.0, math.inf, math.inf, math.inf]


def test_same_values_tells_zeros_apart_and_takes_nan_for_equal():
    a = torch.tensor([0.0, math.nan, 1.0])
    assert ulp.same_values(a, a.clone())
    assert not ulp.same_values(a, torch.tensor([-0.0, math.nan, 1.0]))
    assert not ulp.same_values(a, a.double())
    assert not ulp.same_values(a, a[:2])


class TestJudge:
    golden = torch.linspace(-3, 3, 301, dtype=torch.float64)
    eager = golden.to(torch.bfloat16)

    def verdict(self, got, direction="forward", max_ulp=None):
        return ulp.judge(got, self.golden, self.eager, direction, max_ulp).problem

    def test_accepts_eager_itself(self):
        assert self.verdict(self.eager) is None

    def test_rejects_one_element_off_by_three_steps(self):
        got = self.eager.clone()
        got[300] += 3 * 2.0**-6
        assert "max error" in self.verdict(got)

    def test_rejects_a_bias_that_the_largest_error_hides(self):
        got = torch.where(
            self.eager != 0, self.eager * (1 - 2.0**-8) - 2.0**-9 * self.eager.sign(), self.eager
        )
        problem = self.verdict(got)
        assert problem is not None
        assert "error" in problem

    def test_backward_allows_more_than_forward(self):
        got = self.eager + 2.2 * (self.eager.double() - self.golden).abs().max().to(torch.bfloat16)
        assert ulp.RATIO["backward"] > ulp.RATIO["forward"]
        assert ulp.RMS_RATIO["backward"] > ulp.RMS_RATIO["forward"]
        assert self.verdict(got) is not None

    def test_rejects_nan_where_eager_is_finite(self):
        got = self.eager.clone()
        got[7] = math.nan
        verdict = ulp.judge(got, self.golden, self.eager, "forward")
        assert "non-finite" in verdict.problem
        assert verdict.worst == (7,)

    def test_rejects_another_dtype_or_shape(self):
        assert "expected" in self.verdict(self.eager.float())
        assert "expected" in self.verdict(self.eager[1:])

    def test_published_ulp_is_enforced(self):
        assert self.verdict(self.eager, max_ulp=0.5) is None
        assert "published" in self.verdict(self.eager, max_ulp=0.1)

    def test_names_the_worst_element(self):
        got = self.eager.clone()
        got[42] += 1
        assert ulp.judge(got, self.golden, self.eager, "forward").worst == (42,)
