"""Derivation of the polynomials in ``simd_math_tables.h``: ``python minimax.py`` prints every table.

Each is the polynomial with the least greatest error, relative to the function, on an interval (Remez exchange
in 60 digits), its coefficients rounded to the format that they are used in. The error that is printed is that
of the rounded polynomial in exact arithmetic, as a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mpmath
from mpmath import mp, mpf

mp.dps = 60
Real = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Fit:
    """Approximates ``target(x)`` by a polynomial on ``[low, high]``, the error weighted by ``weight(x)``."""

    name: str
    target: Real
    weight: Real
    low: float
    high: float
    degree: int
    digits: int  # bits of the format that the coefficients are rounded to: 24 or 53


def rounded(value: mpf, bits: int) -> mpf:
    """Return ``value`` rounded to nearest with ``bits`` significant bits."""
    mantissa, exponent = mpmath.frexp(value)
    return mpmath.ldexp(mpmath.nint(mantissa * 2**bits), int(exponent) - bits)


def remez(target: Real, weight: Real, low: mpf, high: mpf, powers: Sequence[int]) -> tuple[list[mpf], mpf]:
    """Return the coefficients of ``x**powers`` with the least greatest weighted error, and that error."""
    count = len(powers) + 1
    middle, half = (low + high) / 2, (high - low) / 2
    # Off centre, since a weight may vanish in the middle or at an end.
    points = [middle - half * mpmath.cos(mpmath.pi * (i + mpf("0.4")) / count) for i in range(count)]
    grid_size = 24 * count
    grid = [middle - half * mpmath.cos(mpmath.pi * (i + mpf(1) / 2) / grid_size) for i in range(grid_size)]
    grid = [low, *grid, high]
    samples = [(x, target(x), weight(x)) for x in grid]
    coefficients: list[mpf] = []
    worst = mpf(0)
    for _ in range(12):
        matrix = mpmath.matrix(count, count)
        right = mpmath.matrix(count, 1)
        for row, x in enumerate(points):
            scale = weight(x)
            for column, power in enumerate(powers):
                matrix[row, column] = scale * x**power
            matrix[row, count - 1] = (-1) ** row
            right[row] = scale * target(x)
        solution = mpmath.lu_solve(matrix, right)
        coefficients = [solution[i] for i in range(count - 1)]
        errors = [
            (sum(c * x**p for c, p in zip(coefficients, powers, strict=True)) - value) * w
            for x, value, w in samples
        ]
        # One extremum in each run of equal sign; the runs with the greatest errors stay.
        runs: list[int] = []
        for i, error in enumerate(errors):
            if runs and (errors[runs[-1]] > 0) == (error > 0):
                if abs(error) > abs(errors[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > count:
            runs.pop(0 if abs(errors[runs[0]]) < abs(errors[runs[-1]]) else -1)
        worst = max(abs(error) for error in errors)
        if len(runs) < count or worst < abs(solution[count - 1]) * mpf("1.001"):
            break
        points = [grid[i] for i in runs]
    return coefficients, worst


def fitted(fit: Fit) -> tuple[list[mpf], mpf]:
    """Return the rounded coefficients of ``fit``, constant term first, and the error that they leave."""
    low, high = mpf(fit.low), mpf(fit.high)
    exact, _ = remez(fit.target, fit.weight, low, high, range(fit.degree + 1))
    coefficients = [rounded(c, fit.digits) for c in exact]
    grid = [low + (high - low) * i / 500 for i in range(501)]
    errors = [(mpmath.polyval(coefficients[::-1], x) - fit.target(x)) * fit.weight(x) for x in grid]
    return coefficients, max(abs(error) for error in errors)


def _exp_tail(x: mpf) -> mpf:  # (exp(x) - 1 - x) / x^2
    return sum(x**k / mpmath.factorial(k + 2) for k in range(32))


def _log_tail(z: mpf) -> mpf:  # (atanh(s) / s - 1) * 2 / s^2 for z = s^2
    return 2 * sum(z**k / (2 * k + 3) for k in range(36))


def _tanh_tail(z: mpf) -> mpf:  # (tanh(x) / x - 1) / x^2 for z = x^2
    if z < 1e-12:
        return mpf(-1) / 3 + 2 * z / 15
    x = mpmath.sqrt(z)
    return (mpmath.tanh(x) / x - 1) / z


def _sin_tail(z: mpf) -> mpf:  # (sin(x) / x - 1) / x^2
    return sum((-1) ** (k + 1) * z**k / mpmath.factorial(2 * k + 3) for k in range(20))


def _cos_tail(z: mpf) -> mpf:  # (cos(x) - 1 + x^2 / 2) / x^4
    return sum((-1) ** k * z**k / mpmath.factorial(2 * k + 4) for k in range(20))


def _erf_ratio(z: mpf) -> mpf:  # erf(x) / x for z = x^2
    if z < 1e-14:
        return 2 / mpmath.sqrt(mp.pi) * (1 - z / 3)
    x = mpmath.sqrt(z)
    return mpmath.erf(x) / x


def _log_erfc(x: mpf) -> mpf:
    return mpmath.log(mpmath.erfc(x))


def _times_x_over_tanh(z: mpf) -> mpf:
    x = mpmath.sqrt(z)
    return z if z < 1e-14 else z * x / mpmath.tanh(x)


def _times_x_over_sin(z: mpf) -> mpf:
    x = mpmath.sqrt(z)
    return z if z < 1e-14 else z * x / mpmath.sin(x)


HALF_LN2 = 0.3475
LOG_END = 0.0298  # ((sqrt(2) - 1) / (sqrt(2) + 1))^2, and a little more
TANH_END = 0.625**2
QUARTER_PI = 0.82**2


def _fits(kind: str, bits: int, degrees: dict[str, int], erf_end: float) -> list[Fit]:
    return [
        Fit(
            f"{kind}::exp",
            _exp_tail,
            lambda r: r**2 / mpmath.exp(r),
            -HALF_LN2,
            HALF_LN2,
            degrees["exp"],
            bits,
        ),
        Fit(f"{kind}::log", _log_tail, lambda z: z / 2, 0, LOG_END, degrees["log"], bits),
        Fit(f"{kind}::tanh", _tanh_tail, _times_x_over_tanh, 0, TANH_END, degrees["tanh"], bits),
        Fit(f"{kind}::sin", _sin_tail, _times_x_over_sin, 0, QUARTER_PI, degrees["sin"], bits),
        Fit(
            f"{kind}::cos",
            _cos_tail,
            lambda z: z**2 / mpmath.cos(mpmath.sqrt(z)),
            0,
            QUARTER_PI,
            degrees["cos"],
            bits,
        ),
        Fit(
            f"{kind}::erf",
            lambda z: _erf_ratio(z) - 1,
            lambda z: 1 / _erf_ratio(z),
            0,
            1,
            degrees["erf"],
            bits,
        ),
        Fit(
            f"{kind}::log_erfc",
            _log_erfc,
            lambda x: mpmath.erfc(x) / mpmath.erf(x),
            1,
            erf_end,
            degrees["log_erfc"],
            bits,
        ),
    ]


FITS = [
    *_fits("float", 24, {"exp": 4, "log": 2, "tanh": 4, "sin": 2, "cos": 2, "erf": 6, "log_erfc": 6}, 4),
    *_fits("double", 53, {"exp": 9, "log": 6, "tanh": 11, "sin": 6, "cos": 5, "erf": 12, "log_erfc": 17}, 6),
]


def literal(value: mpf, bits: int) -> str:
    """Return ``value`` as a C++ literal of float (24 bits) or double (53 bits)."""
    return float(value).hex() if bits == 53 else f"{_short_hex(float(value))}f"


def _short_hex(value: float) -> str:
    mantissa, exponent = value.hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}"


def main() -> None:
    """Print every table."""
    for fit in FITS:
        coefficients, error = fitted(fit)
        exponent = float(mpmath.log(error, 2))
        print(f"// {fit.name}: [{fit.low}, {fit.high}], error 2^{exponent:.1f}")
        print("{" + ", ".join(literal(c, fit.digits) for c in coefficients) + "};")


if __name__ == "__main__":
    main()
