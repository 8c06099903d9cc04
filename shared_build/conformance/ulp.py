"""Distances in units in the last place, and the error rule.

The rule: with g the float64 golden result on the rounded inputs and e the eager composition in the dtype
under test, `max|op-g| <= k max|e-g| + 1 ulp(max|g|)` and `rms(op-g) <= r rms(e-g) + 1 ulp(rms g)`, the last
ulp of the type the arithmetic is done in (float32 for the half types). k is 2 forward and 3 backward, r is
1.1 and 1.65.

Eager's error on a few elements is a matter of luck. Where a small result fails, eager's errors on further
draws of the same case are taken into `max|e-g|` and `rms(e-g)` before the verdict.
"""

from __future__ import annotations

import dataclasses
import math

import torch

RATIO = {"forward": 2.0, "backward": 3.0}
RMS_RATIO = {"forward": 1.1, "backward": 1.65}


def spacing(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The spacing of `dtype` at each float64 value: 2^(exponent - precision), subnormals included."""
    info = torch.finfo(dtype)
    precision = round(-math.log2(info.eps))
    smallest = round(math.log2(info.smallest_normal))
    values = values.double()
    _, exponent = torch.frexp(values)
    exponent = torch.where(values == 0, smallest, (exponent - 1).clamp(min=smallest))
    return torch.ldexp(torch.ones_like(values), exponent - precision)


def ulp_error(got: torch.Tensor, golden: torch.Tensor) -> torch.Tensor:
    """|got - golden| in ulps of got's dtype, elementwise; 0 for equal non-finite values, else infinity.

    got: any float dtype. golden: float64, same shape.
    """
    finite = torch.isfinite(got) & torch.isfinite(golden)
    same = (got == golden.to(got.dtype)) | (got.isnan() & golden.isnan())
    distance = (got.double() - golden).abs() / spacing(golden, got.dtype)
    return torch.where(finite, distance, torch.where(same, 0.0, math.inf))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which arithmetic on `dtype` is done."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and values; NaN equals NaN; +0 and -0 differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    nan = a.isnan()
    if not torch.equal(nan, b.isnan()):
        return False
    return bool(((a == b) & (a.signbit() == b.signbit()) | nan).all())


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of the error rule: `problem` is None when it holds, else says what was exceeded.

    max_ulp, p99_ulp and max_abs are the operator's errors, eager_max_ulp is eager's; of_limit is the largest
    error as a fraction of what the rule allows.
    """

    problem: str | None
    max_ulp: float = 0.0
    p99_ulp: float = 0.0
    eager_max_ulp: float = 0.0
    max_abs: float = 0.0
    of_limit: float = 0.0
    worst: tuple[int, ...] | None = None

    def figures(self) -> dict[str, float]:
        """The numbers worth publishing."""
        return {
            "max_ulp": self.max_ulp,
            "p99_ulp": self.p99_ulp,
            "eager_max_ulp": self.eager_max_ulp,
            "of_limit": self.of_limit,
        }


def judge(
    got: torch.Tensor,
    golden: torch.Tensor,
    eager: torch.Tensor,
    direction: str,
    max_ulp: float | None = None,
    base: tuple[float, float] = (0.0, 0.0),
) -> Verdict:
    """Apply the error rule to one result.

    got, eager: same shape and dtype. golden: float64, same shape. direction: "forward" or "backward".
    base: the largest and the rms error of eager on other draws, where they are known.
    Where eager is not finite, got must hold the same non-finite value; elsewhere it must be finite.
    """
    if got.shape != eager.shape or got.dtype != eager.dtype:
        return Verdict(f"expected {eager.dtype} {tuple(eager.shape)}, but got {got.dtype} {tuple(got.shape)}")
    if got.numel() == 0:
        return Verdict(None)
    got, golden, eager = got.detach().cpu(), golden.detach().cpu(), eager.detach().cpu()
    finite = torch.isfinite(eager)
    special = ~finite & ~((got == eager) | (got.isnan() & eager.isnan()))
    special |= finite & ~torch.isfinite(got)
    if special.any():
        where = _index(special.double())
        problem = "non-finite values differ from the reference"
        return Verdict(problem, max_ulp=math.inf, max_abs=math.inf, worst=where)
    mask = finite & torch.isfinite(golden)
    error = torch.where(mask, (got.double() - golden).abs(), 0.0)
    ulps = torch.where(mask, ulp_error(got, golden), 0.0)
    base_max, base_rms = map(max, base, eager_error(golden, eager))
    size = torch.where(mask, golden.abs(), 0.0)
    largest, limit = float(error.max()), RATIO[direction] * base_max
    floor = float(spacing(size.max(), got.dtype))
    found = Verdict(
        None,
        max_ulp=float(ulps.max()),
        p99_ulp=float(ulps.reshape(-1).kthvalue(max(1, round(0.99 * ulps.numel()))).values),
        eager_max_ulp=float(torch.where(mask, ulp_error(eager, golden), 0.0).max()),
        max_abs=largest,
        of_limit=largest / (limit + floor),
        worst=_index(error),
    )
    if largest > limit + floor:
        return dataclasses.replace(
            found,
            problem=f"max error {largest:.3e} > {RATIO[direction]:g} x eager {base_max:.3e}"
            f" + 1 ulp {floor:.3e}",
        )
    rms_limit = RMS_RATIO[direction] * base_rms
    rms_floor = float(spacing(torch.tensor(_rms(size), dtype=torch.float64), accumulation_dtype(got.dtype)))
    if _rms(error) > rms_limit + rms_floor:
        return dataclasses.replace(
            found,
            problem=f"rms error {_rms(error):.3e} > {RMS_RATIO[direction]:g} x eager {base_rms:.3e}"
            f" + 1 ulp {rms_floor:.3e}",
        )
    if max_ulp is not None and found.max_ulp > max_ulp:
        return dataclasses.replace(
            found,
            problem=f"{found.max_ulp:.3g} ulp > published {max_ulp:g} ulp",
            worst=_index(ulps),
        )
    return found


def eager_error(golden: torch.Tensor, eager: torch.Tensor) -> tuple[float, float]:
    """The largest and the rms error of eager where both are finite."""
    mask = torch.isfinite(eager) & torch.isfinite(golden)
    error = torch.where(mask, (eager.double() - golden).abs(), 0.0)
    return (float(error.max()), _rms(error)) if error.numel() else (0.0, 0.0)


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def _index(values: torch.Tensor) -> tuple[int, ...]:
    flat = int(values.reshape(-1).argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), values.shape))
