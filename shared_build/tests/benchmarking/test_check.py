"""No speed-up on a red check."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared_build.benchmarking.cases import load_cases
from shared_build.benchmarking.check import Checker, RedCheckError, compare
from shared_build.benchmarking.contenders import Cell, Unavailable


def results(dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    golden = torch.linspace(-4, 4, 1001, dtype=torch.float64)
    return (golden.to(dtype),), (golden,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_correctly_rounded_result_passes(dtype: torch.dtype) -> None:
    rounded, golden = results(dtype)
    compare("op", rounded, golden, rounded, outputs=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_element_three_ulp_off_is_red(dtype: torch.dtype) -> None:
    rounded, golden = results(dtype)
    wrong = rounded[0].clone()
    wrong[-1] *= 1 + 4 * torch.finfo(dtype).eps
    with pytest.raises(
        RedCheckError, match=r"op: expected a largest error of output 0 of at most .*, but got"
    ):
        compare("op", (wrong,), golden, rounded, outputs=1)


def test_a_small_bias_everywhere_is_red_though_no_single_element_is() -> None:
    golden = (torch.linspace(1, 4, 1001, dtype=torch.float64),)
    rounded = tuple(g.float() for g in golden)
    # Three quarters of an ulp of the largest value, in every element.
    biased = rounded[0] + 3 * torch.finfo(torch.float32).eps
    with pytest.raises(RedCheckError, match="root-mean-square"):
        compare("op", (biased,), golden, rounded, outputs=1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_red(value: float) -> None:
    rounded, golden = results(torch.float32)
    wrong = rounded[0].clone()
    wrong[5] = value
    with pytest.raises(RedCheckError, match="but got inf"):
        compare("op", (wrong,), golden, rounded, outputs=1)


def test_another_dtype_or_shape_or_number_of_results_is_red() -> None:
    rounded, golden = results(torch.bfloat16)
    with pytest.raises(RedCheckError, match=r"expected output 0 of shape .* and torch.bfloat16, but got"):
        compare("op", (rounded[0].float(),), golden, rounded, outputs=1)
    with pytest.raises(RedCheckError, match=r"but got \(1000,\)"):
        compare("op", (rounded[0][1:],), golden, rounded, outputs=1)
    with pytest.raises(RedCheckError, match="expected 1 results, but got 2"):
        compare("op", rounded * 2, golden, rounded, outputs=1)


def test_gradients_may_err_more_than_outputs() -> None:
    rounded, golden = results(torch.float32)
    base = (rounded[0] + 1e-6,)
    result = (rounded[0] + 2.6e-6,)
    with pytest.raises(RedCheckError, match="output 0"):
        compare("op", result, golden, base, outputs=1)
    compare("op", result, golden, base, outputs=0)


@pytest.mark.parametrize("case", ["forward", "forward_backward", "in_place"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_right_operator_is_green(package: Path, case: str, dtype: str) -> None:
    checker = Checker("standin", Cell(load_cases(package)[case], (4, 32), dtype))
    checker.check("ours")


@pytest.mark.parametrize("case", ["forward", "forward_backward"])
def test_a_wrong_operator_is_red_and_named(package: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN", "wrong")
    checker = Checker("standin", Cell(load_cases(package)[case], (4, 32), "fp32"))
    with pytest.raises(
        RedCheckError, match=f"standin: ours in {case} 4x32 fp32: expected a largest error of output 0"
    ):
        checker.check("ours")


def test_a_wrong_rival_is_left_out_and_not_compared_with(package: Path) -> None:
    checker = Checker("standin", Cell(load_cases(package)["forward"], (4, 32), "fp32"))
    with pytest.raises(Unavailable, match="wrong result, not compared with: standin: wrong in forward"):
        checker.check("wrong")


def test_a_rival_that_is_not_installed_is_unavailable(package: Path) -> None:
    cell = Cell(load_cases(package)["forward"], (4, 32), "fp32")
    with pytest.raises(Unavailable, match="absent is not installed"):
        cell.call("absent")


def test_an_eager_formula_that_is_not_the_reference_is_red(package: Path) -> None:
    case = load_cases(package)["forward"]
    object.__setattr__(case, "golden", lambda: lambda x, y: x - y)
    with pytest.raises(RedCheckError, match="eager in forward 4x32 fp32: expected a relative error of res"):
        Checker("standin", Cell(case, (4, 32), "fp32"))


def test_a_case_that_mutates_leaves_the_shared_arguments_alone(package: Path) -> None:
    cell = Cell(load_cases(package)["in_place"], (4, 32), "fp32")
    before = cell.arguments[0].clone()
    cell.results("ours")
    call = cell.call("ours")
    call()
    assert torch.equal(before, cell.arguments[0])


def test_gradients_are_checked_with_cotangents_that_are_not_uniform(package: Path) -> None:
    cell = Cell(load_cases(package)["forward_backward"], (4, 32), "fp32")
    outputs = cell.results("ours")
    assert len(outputs) == 3
    assert cell.cotangents is not None
    assert cell.cotangents[0].unique().numel() > 100
