"""Conversions to and from bfloat16 and float16: every pattern, every rounding boundary, NaN, overflow."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from shared_build.tests.simd.levels import Probe, pointer

STORAGE = ("BFloat16", "Half")
PATTERNS = np.arange(1 << 16, dtype=np.uint32)
MANTISSA = {"BFloat16": 7, "Half": 10}
INFINITY = {"BFloat16": 0x7F80, "Half": 0x7C00}

with_storage = pytest.mark.parametrize("storage", STORAGE)


def values_of(storage: str, patterns: np.ndarray) -> np.ndarray:
    """The numbers of 16-bit patterns in float64, from the definition of the formats."""
    bits = MANTISSA[storage]
    bias = 127 if storage == "BFloat16" else 15
    patterns = patterns.astype(np.int64)
    exponent = (patterns & 0x7FFF) >> bits
    fraction = patterns & ((1 << bits) - 1)
    normal = (fraction + (1 << bits)) * np.exp2(exponent - bias - bits)
    subnormal = fraction * np.exp2(1.0 - bias - bits)
    magnitude = np.where(exponent == 0, subnormal, normal)
    top = exponent == INFINITY[storage] >> bits
    magnitude = np.where(top, np.where(fraction == 0, np.inf, np.nan), magnitude)
    return np.where(patterns & 0x8000, -magnitude, magnitude)


def nearest_patterns(storage: str, x: np.ndarray) -> np.ndarray:
    """The pattern nearest to each x, ties to even; NaN gives infinity's pattern plus one."""
    count = INFINITY[storage] + 1  # non-negative finite patterns, and infinity as the next number
    table = values_of(storage, np.arange(count))
    table[-1] = 2 * table[-2] - table[-3]
    magnitude = np.minimum(np.abs(x.astype(np.float64)), table[-1])
    above = np.clip(np.searchsorted(table, magnitude), 1, count - 1)
    to_above, to_below = table[above] - magnitude, magnitude - table[above - 1]
    even_above = above % 2 == 0
    pattern = np.where((to_above < to_below) | ((to_above == to_below) & even_above), above, above - 1)
    pattern = np.where(np.isnan(x), count, pattern)
    return (pattern | np.where(np.signbit(x), 0x8000, 0)).astype(np.uint16)


def boundaries(storage: str, kind: str) -> np.ndarray:
    """Every number of the format, every midpoint of neighbours, and the numbers of ``kind`` around them."""
    real = np.float32 if kind == "float" else np.float64
    table = values_of(storage, np.arange(INFINITY[storage] + 1))
    table[-1] = 2 * table[-2] - table[-3]
    centres = np.concatenate([table, (table[1:] + table[:-1]) / 2])
    centres = centres[centres <= np.finfo(real).max].astype(real)
    steps = [centres, np.nextafter(centres, real(np.inf)), np.nextafter(centres, real(0))]
    if kind == "double":  # between the midpoint and the nearest float: a rounding through float goes wrong
        steps += [centres * (1 + 2.0**-40), centres * (1 - 2.0**-40)]
    extremes = np.array([0, np.finfo(real).max, np.finfo(real).smallest_subnormal, np.inf], real)
    positive = np.concatenate([*steps, extremes])
    return np.concatenate([positive, -positive])


def is_nan(storage: str, patterns: np.ndarray) -> np.ndarray:
    return (patterns & 0x7FFF) > INFINITY[storage]


def narrowed(probe: Probe, kind: str, storage: str, x: np.ndarray, form: int) -> np.ndarray:
    """``x`` through store (0), store2 (2), stream2 (3) or, form 9, the scalar conversion."""
    out = np.zeros(x.size, np.uint16)
    if form == 9:
        probe.library[f"{kind}_narrow_{storage}"](pointer(x), pointer(out), ctypes.c_int64(x.size))
        return out
    lanes = probe.lanes(kind)
    step = lanes if form == 0 else 2 * lanes
    padded = np.zeros(-(-x.size // (2 * lanes)) * 2 * lanes + 2 * lanes, x.dtype)
    padded[: x.size] = x
    raw = np.zeros(2 * padded.size + 64, np.uint8)
    shift = -raw.ctypes.data % 64
    result = raw[shift : shift + 2 * padded.size].view(np.uint16)
    store = getattr(probe.library, f"{kind}_store_{storage}")
    for i in range(0, x.size, step):
        store(pointer(padded, i * x.itemsize), pointer(result, 2 * i), 0, form)
    return result[: x.size].copy()


@with_storage
@pytest.mark.parametrize("kind", ["float", "double"])
def test_every_pattern_widens_to_its_value(probe: Probe, kind: str, storage: str) -> None:
    patterns = PATTERNS.astype(np.uint16)
    expected = values_of(storage, PATTERNS)
    real = np.float32 if kind == "float" else np.float64
    scalar = np.empty(patterns.size, real)
    probe.library[f"{kind}_widen_{storage}"](
        pointer(patterns), pointer(scalar), ctypes.c_int64(patterns.size)
    )
    np.testing.assert_array_equal(scalar, expected)
    lanes = probe.lanes(kind)
    for form in (0, 2):
        step = lanes if form == 0 else 2 * lanes
        vector = np.empty(patterns.size + 2 * lanes, real)
        load = getattr(probe.library, f"{kind}_load_{storage}")
        for i in range(0, patterns.size, step):
            load(pointer(patterns, 2 * i), pointer(vector, i * vector.itemsize), 0, form)
        np.testing.assert_array_equal(vector[: patterns.size], expected)
        assert np.array_equal(np.signbit(vector[: patterns.size]), PATTERNS >= 0x8000)


@with_storage
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("form", [0, 2, 3, 9], ids=["store", "store2", "stream2", "scalar"])
def test_rounding_is_to_nearest_even_at_every_boundary(
    probe: Probe, kind: str, storage: str, form: int
) -> None:
    x = boundaries(storage, kind)
    if kind == "double" and form != 9:
        x = x[:: 1 if form == 0 else 7]  # lane by lane the scalar conversion, which form 9 tests in full
    got = narrowed(probe, kind, storage, x, form)
    wrong = got != nearest_patterns(storage, x)
    assert not wrong.any(), [(v.hex(), hex(g)) for v, g in zip(x[wrong][:5], got[wrong][:5], strict=True)]


@with_storage
def test_rounding_of_random_floats(probe: Probe, storage: str) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    np.testing.assert_array_equal(narrowed(probe, "float", storage, x, 2), nearest_patterns(storage, x))


@with_storage
@pytest.mark.parametrize("form", [0, 2, 3, 9], ids=["store", "store2", "stream2", "scalar"])
def test_nan_stays_a_quiet_nan_of_its_sign(probe: Probe, storage: str, form: int) -> None:
    payloads = [
        1,
        0x7FFFFF,
        0x400000,
        0x400001,
        0x3FFFFF,
        0x7FFF,
        0x8000,
        0x1FFF,
        0x2000,
        *(1 << b for b in range(23)),
    ]
    bits = np.array([s | 0x7F800000 | p for p in payloads for s in (0, 1 << 31)], np.uint32)
    got = narrowed(probe, "float", storage, bits.view(np.float32), form)
    quiet = 1 << (MANTISSA[storage] - 1)
    assert is_nan(storage, got).all()
    assert (got & quiet != 0).all()
    assert np.array_equal(got >> 15, bits >> 31)
    # The payload's upper bits are kept, so that every level gives the same.
    kept = bits >> (23 - MANTISSA[storage]) & ((1 << MANTISSA[storage]) - 1)
    assert np.array_equal(got & ((1 << MANTISSA[storage]) - 1), kept | quiet)


@with_storage
def test_double_nan_stays_nan(probe: Probe, storage: str) -> None:
    bits = np.array([0x7FF0000000000001, 0xFFF8000000000000, 0x7FFFFFFFFFFFFFFF], np.uint64)
    for form in (0, 9):
        assert is_nan(storage, narrowed(probe, "double", storage, bits.view(np.float64), form)).all()


@with_storage
@pytest.mark.parametrize("kind", ["float", "double"])
def test_round_to_is_a_store_and_a_load(probe: Probe, kind: str, storage: str) -> None:
    x = boundaries(storage, kind)
    out = np.empty_like(x)
    probe.library[f"{kind}_round_{storage}"](pointer(x), pointer(out), ctypes.c_int64(x.size))
    np.testing.assert_array_equal(out, values_of(storage, nearest_patterns(storage, x)))
    assert np.array_equal(np.signbit(out), np.signbit(x))
    nan = np.array([np.nan], x.dtype)
    probe.library[f"{kind}_round_{storage}"](pointer(nan), pointer(nan), ctypes.c_int64(1))
    assert np.isnan(nan[0])


def test_rounding_double_to_float(probe: Probe) -> None:
    x = np.random.default_rng(1).standard_normal(1000)
    out, back = np.empty(x.size, np.float32), np.empty_like(x)
    probe.library["double_narrow_float"](pointer(x), pointer(out), ctypes.c_int64(x.size))
    np.testing.assert_array_equal(out, x.astype(np.float32))
    probe.library["double_round_float"](pointer(x), pointer(back), ctypes.c_int64(x.size))
    np.testing.assert_array_equal(back, x.astype(np.float32).astype(np.float64))
