"""Vector functions: error bounds, special arguments, NaN, agreement of the levels."""

from __future__ import annotations

import ctypes

import mpmath
import numpy as np
import pytest

from shared_build.tests.simd import bounds
from shared_build.tests.simd.levels import Probe, Reference, pointer

KINDS = ("float", "double")
EVERY = [(kind, name) for kind in KINDS for name in bounds.FUNCTIONS]

with_function = pytest.mark.parametrize(("kind", "name"), EVERY)


def same_bits(a, b):
    """Equal bit for bit, where all NaN are alike."""
    bits = f"u{a.dtype.itemsize}"
    return (a.view(bits) == b.view(bits)) | (np.isnan(a) & np.isnan(b))


def need_a_wider_reference(kind):
    if kind == "double" and np.finfo(np.longdouble).nmant <= np.finfo(np.float64).nmant:
        pytest.skip("long double is no wider than double on this platform")


def check_errors(probes, reference, kind, name, x):
    need_a_wider_reference(kind)
    exact = reference.values(kind, name, x)
    bound = bounds.BOUNDS[kind][name]
    for probe in probes:
        got = probe.unary(kind, name, x)
        error, index = reference.worst(kind, got, exact)
        assert error <= bound, (
            f"{kind} {name}({x[index].hex()} = {x[index]!r}) at {probe.level.name}: got {got[index]!r}, "
            f"exact {exact[index]!r}, {error:.3f} ulp"
        )


@with_function
def test_error_is_within_the_published_bound(
    probes: list[Probe], reference: Reference, kind: str, name: str
) -> None:
    count = 800_000 if kind == "float" else 250_000
    check_errors(probes, reference, kind, name, bounds.points(kind, name, count, seed=1))


@pytest.mark.slow
@with_function
@pytest.mark.parametrize("seed", range(2, 7))
def test_error_is_within_the_published_bound_densely(
    probes: list[Probe], reference: Reference, kind: str, name: str, seed: int
) -> None:
    check_errors(probes, reference, kind, name, bounds.points(kind, name, 2_500_000, seed))


@pytest.mark.parametrize("name", bounds.FUNCTIONS)
@pytest.mark.parametrize("storage", ["BFloat16", "Half"])
def test_error_is_within_the_bound_for_every_16_bit_argument(
    probes: list[Probe], reference: Reference, storage: str, name: str
) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint32)
    x = (patterns << 16).view(np.float32)
    if storage == "Half":
        x = patterns.astype(np.uint16).view(np.float16).astype(np.float32)
    check_errors(probes, reference, "float", name, x)


def test_float_bounds_required_by_the_operators_hold() -> None:
    assert all(bounds.BOUNDS["float"][name] <= 2 for name in ("exp", "sigmoid", "tanh", "log"))


@with_function
def test_special_arguments(probe: Probe, kind: str, name: str) -> None:
    arguments, expected = np.array(bounds.SPECIAL_VALUES[name], bounds.float_type(kind)).T.copy()
    got = probe.unary(kind, name, arguments)
    wrong = ~same_bits(got, np.ascontiguousarray(expected))
    assert not wrong.any(), f"{arguments[wrong]}: got {got[wrong]}, expected {expected[wrong]}"


@with_function
def test_nan_stays_nan(probe: Probe, kind: str, name: str) -> None:
    # The exponent is built from bits: a payload that leaks into it would make a number of NaN.
    mantissa = 23 if kind == "float" else 52
    exponent = (0xFF if kind == "float" else 0x7FF) << mantissa
    payloads = [1 << bit for bit in range(mantissa)]
    payloads += [payload | 1 << (mantissa - 1) for payload in payloads] + [(1 << mantissa) - 1, 0x155555]
    sign = 1 << (8 * np.dtype(bounds.float_type(kind)).itemsize - 1)
    bits = np.array([exponent | p | s for p in payloads for s in (0, sign)], bounds.bits_type(kind))
    got = probe.unary(kind, name, bits.view(bounds.float_type(kind)))
    assert np.isnan(got).all(), f"{bits[~np.isnan(got)]} gave {got[~np.isnan(got)]}"


@with_function
def test_levels_with_fused_multiply_add_agree_bit_for_bit(probes: list[Probe], kind: str, name: str) -> None:
    fused = [probe for probe in probes if probe.fused]
    if len(fused) < 2:
        pytest.skip("fewer than two levels with a fused multiply-add on this machine")
    x = bounds.points(kind, name, 200_000, seed=8)
    first = fused[0].unary(kind, name, x)
    for probe in fused[1:]:
        same = same_bits(first, probe.unary(kind, name, x))
        assert same.all(), f"{probe.level.name} differs at {x[~same][:5]}"


@with_function
def test_result_does_not_depend_on_the_place_in_the_row(probe: Probe, kind: str, name: str) -> None:
    x = bounds.points(kind, name, 400, seed=9)[:100]
    whole = probe.unary(kind, name, x)
    for start in range(20):
        for length in (1, 2, 3, 7, 15, 16, 17, 31, 33):
            part = probe.unary(kind, name, x[start : start + length].copy())
            assert same_bits(part, whole[start : start + length]).all(), (start, length)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (0.5, 4.0), (3.0, 20.0)])
def test_softplus_with_a_threshold_is_torchs_form(
    probe: Probe, reference: Reference, kind: str, beta: float, threshold: float
) -> None:
    real = ctypes.c_float if kind == "float" else ctypes.c_double
    x = np.linspace(-50, 50, 9973).astype(bounds.float_type(kind))
    got = np.empty_like(x)
    function = probe.library[f"{kind}_softplus_threshold"]
    function(pointer(x), pointer(got), ctypes.c_int64(x.size), real(beta), real(threshold))
    scaled = x * bounds.float_type(kind)(beta)
    above = scaled > threshold
    assert above.any()
    assert not above.all()
    np.testing.assert_array_equal(got[above], x[above])
    below = np.ascontiguousarray(scaled[~above])
    exact = reference.values(kind, "softplus", below) / beta
    error, index = reference.worst(kind, np.ascontiguousarray(got[~above]), exact)
    # One division more than the bound of softplus; its error may meet a smaller last place.
    assert error <= 2 * bounds.BOUNDS[kind]["softplus"] + 0.5, below[index]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sin_and_cos_of_large_arguments(probes: list[Probe], reference: Reference, kind: str) -> None:
    random = np.random.default_rng(10)
    top = 127 if kind == "float" else 1023
    x = np.exp2(random.uniform(10, top, 1_000_000)).astype(bounds.float_type(kind))
    for name in ("sin", "cos"):
        check_errors(probes, reference, kind, name, x)


_EXACT = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": lambda x: mpmath.log(1 + x),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "tanh": mpmath.tanh,
    "softplus": lambda x: mpmath.log(1 + mpmath.exp(x)),
    "erf": mpmath.erf,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
}


@with_function
def test_reference_values_agree_with_mpmath(reference: Reference, kind: str, name: str) -> None:
    # The bounds are worth what the reference is worth: 2^-20 of an ulp for float, 2^-9 for double.
    need_a_wider_reference(kind)
    x = np.random.default_rng(11).permutation(bounds.points(kind, name, 2000, seed=11))[:150]
    x = np.concatenate([x, np.array(bounds.HARD_ANGLES[kind], x.dtype)])
    values = reference.values(kind, name, x)
    digits, least = (24, -149) if kind == "float" else (53, -1074)
    limit = 2.0**-20 if kind == "float" else 2.0**-9
    checked = 0
    with mpmath.workprec(2200):  # 1 + exp(x), and the angles of 2^1023
        for argument, value in zip(x.tolist(), values, strict=True):
            if not np.isfinite(argument) or not np.isfinite(value) or value == 0:
                continue
            exact = _EXACT[name](mpmath.mpf(argument))
            mantissa, exponent = np.frexp(value)
            high = float(mantissa)
            got = mpmath.ldexp(mpmath.mpf(high) + float(mantissa - values.dtype.type(high)), int(exponent))
            if exact == 0:
                assert got == 0
                continue
            place = mpmath.ldexp(1, max(mpmath.frexp(exact)[1] - digits, least))
            assert abs(got - exact) / place <= limit, f"{name}({argument!r}) = {got}, exactly {exact}"
            checked += 1
    assert checked >= 40
