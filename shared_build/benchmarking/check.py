"""No speed-up on a red check: results are compared with the golden reference before a timing counts."""

from __future__ import annotations

import math

import torch

from .contenders import Cell, Results, Unavailable

FACTORS = {"forward": 2.0, "backward": 3.0}
"""Error allowed in multiples of the same-dtype eager error, as in the conformance suite."""


class RedCheckError(AssertionError):
    """A result of ours is wrong: its timing must not be reported."""


def _ulp(value: float, dtype: torch.dtype) -> float:
    """Distance between neighbouring numbers of a dtype at a magnitude."""
    info = torch.finfo(dtype)
    exponent = math.frexp(max(value, info.smallest_normal))[1] - 1
    return info.eps * 2.0**exponent


def _errors(result: torch.Tensor, golden: torch.Tensor) -> tuple[float, float]:
    """Largest and root-mean-square absolute error; infinity where one has a number and the other has not."""
    if result.numel() == 0:
        return 0.0, 0.0
    difference = (result.double() - golden).abs_()
    if not bool(torch.isfinite(difference).all()):
        return math.inf, math.inf
    return float(difference.max()), float(difference.square_().mean().sqrt())


def compare(name: str, results: Results, golden: Results, eager: Results, outputs: int) -> None:
    """Hold results against the golden reference.

    Both the largest and the root-mean-square error may be at most a small multiple of the eager formula's
    error in the same dtype, plus one ulp of the largest value, or half an ulp of the root-mean-square value.

    Args:
        name: says which contender, case, shape and dtype in the message.
        results: what is checked, outputs before gradients.
        golden: the same in float64.
        eager: the same from the eager formula in the tested dtype.
        outputs: how many of them are outputs; the rest are gradients.

    Raises:
        RedCheckError: a shape, dtype or value differs by more.
    """
    if len(results) != len(golden):
        raise RedCheckError(f"{name}: expected {len(golden)} results, but got {len(results)}")
    for index, (result, truth, base) in enumerate(zip(results, golden, eager, strict=True)):
        stage = "forward" if index < outputs else "backward"
        what = f"output {index}" if index < outputs else f"gradient {index - outputs}"
        if result.shape != truth.shape or result.dtype != base.dtype:
            raise RedCheckError(
                f"{name}: expected {what} of shape {tuple(truth.shape)} and {base.dtype}, "
                f"but got {tuple(result.shape)} and {result.dtype}"
            )
        allowed = FACTORS[stage]
        largest = float(truth.abs().max()) if truth.numel() else 0.0
        typical = float(truth.square().mean().sqrt()) if truth.numel() else 0.0
        worst, spread = _errors(result, truth)
        base_worst, base_spread = _errors(base, truth)
        bounds = (
            ("largest", worst, allowed * base_worst + _ulp(largest, result.dtype)),
            ("root-mean-square", spread, allowed * base_spread + 0.5 * _ulp(typical, result.dtype)),
        )
        for kind, error, bound in bounds:
            if not error <= bound:
                raise RedCheckError(
                    f"{name}: expected a {kind} error of {what} of at most {bound:.3e}, but got {error:.3e}"
                )


def relative_allowed(dtype: torch.dtype) -> float:
    """Relative L2 error allowed to what is not ours: a few roundings to the dtype, a long sum in fp32."""
    accumulator = torch.float64 if dtype == torch.float64 else torch.float32
    return 2 * torch.finfo(dtype).eps + 100 * torch.finfo(accumulator).eps


def roughly(name: str, results: Results, golden: Results) -> None:
    """Hold others' results against the golden reference: enough to see a wrong formula, not to certify it.

    Args:
        name: says which contender, case, shape and dtype in the message.
        results: what is checked.
        golden: the same in float64.

    Raises:
        RedCheckError: the relative error of one is beyond `relative_allowed`.
    """
    for index, (result, truth) in enumerate(zip(results, golden, strict=True)):
        allowed = relative_allowed(result.dtype)
        scale, error = float(truth.norm()), float((result.double() - truth).norm())
        if not error <= allowed * scale:
            raise RedCheckError(
                f"{name}: expected a relative error of result {index} of at most {allowed:.3e}, "
                f"but got {error / scale if scale else error:.3e}"
            )


class Checker:
    """Checks the contenders of one cell; the golden and the eager results are computed once."""

    def __init__(self, operator: str, cell: Cell) -> None:
        self.operator = operator
        self.cell = cell
        self.golden = cell.golden()
        self.eager = cell.results("eager")
        self.outputs = len(self.golden) - len(cell.case.differentiate)
        roughly(self._name("eager"), self.eager, self.golden)

    def _name(self, contender: str) -> str:
        cell = self.cell
        return (
            f"{self.operator}: {contender} in {cell.case.name} {'x'.join(map(str, cell.shape))} {cell.dtype}"
        )

    def check(self, contender: str) -> None:
        """Compare one contender with the golden reference.

        Raises:
            RedCheckError: ours is wrong.
            Unavailable: another contender is wrong here, so a comparison with it would mean nothing.
        """
        if contender == "eager":
            return
        results = self.cell.results(contender)
        if contender == "ours":
            compare(self._name(contender), results, self.golden, self.eager, self.outputs)
            return
        try:
            roughly(self._name(contender), results, self.golden)
        except RedCheckError as error:
            raise Unavailable(f"wrong result, not compared with: {error}") from error
