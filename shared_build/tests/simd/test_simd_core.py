"""Arithmetic beyond the operators, masks and reductions."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from shared_build.tests.simd.bounds import edges, float_type
from shared_build.tests.simd.levels import (
    AVX512,
    INCLUDE,
    Level,
    Probe,
    machine_levels,
    pointer,
    processor_features,
    runnable_levels,
)

FMA, MAX, MIN, ABS, SELECT, SQRT = range(6)
ADD_ALL, MAX_ALL, MIN_ALL = range(3)
ANY, ALL = range(2)

with_kind = pytest.mark.parametrize("kind", ["float", "double"])


def combine(probe, kind, operation, a, b=None, c=None):
    real = float_type(kind)
    lanes = probe.lanes(kind)
    size = -(-len(a) // lanes) * lanes
    arrays = [np.resize(np.asarray(x if x is not None else a, real), size) for x in (a, b, c)]
    out = np.empty(size, real)
    probe.library[f"{kind}_combine"](*map(pointer, arrays), pointer(out), ctypes.c_int64(size), operation)
    return out[: len(a)]


def reduce(probe, kind, operation, x):
    function = getattr(probe.library, f"{kind}_reduce")
    function.restype = ctypes.c_float if kind == "float" else ctypes.c_double
    return float_type(kind)(function(pointer(x), operation))


def sample(kind, count=4000, seed=0):
    x = np.random.default_rng(seed).permutation(np.concatenate([edges(kind), edges(kind)[::-1]]))
    return np.resize(x, count)


def test_the_widest_level_of_the_processor_is_tested() -> None:
    have = processor_features()
    widest = max(
        (level for level in machine_levels() if level.needs <= have), key=lambda level: level.vector_bytes
    )
    assert widest in runnable_levels()
    assert {"default", "neon"} & {level.name for level in runnable_levels()}


def test_flags_are_those_of_the_build() -> None:
    text = (INCLUDE.parent / "cmake" / "OpPackage.cmake").read_text(encoding="utf-8")
    flags = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", *AVX512]
    assert [flag for flag in flags if not re.search(rf"[ (]{re.escape(flag)}[\s)]", text)] == []
    built = set(re.findall(r"_opwright_isa_objects\(\S+ (\w+) (\d+) ", text))
    assert built == {("default", "16"), ("avx2", "32"), ("avx512", "64"), ("neon", "16")}


def test_vector_width_is_the_levels(probe: Probe) -> None:
    assert probe.library.vector_bytes() == probe.level.vector_bytes


def test_fma_is_fused_except_at_the_x86_baseline(probe: Probe) -> None:
    level: Level = probe.level
    assert probe.fused == (level.name != "default")
    for kind, bits in (("float", 12), ("double", 27)):
        one = 1 + 2.0**-bits
        error = combine(probe, kind, FMA, [one], [one], [-(1 + 2 * 2.0**-bits)])[0]
        assert error == (2.0 ** (-2 * bits) if probe.fused else 0)


@with_kind
@pytest.mark.parametrize(("operation", "numpy_form"), [(MAX, np.maximum), (MIN, np.minimum)])
def test_max_and_min_propagate_nan(probe: Probe, kind: str, operation: int, numpy_form: np.ufunc) -> None:
    a, b = sample(kind, seed=1), sample(kind, seed=2)
    a[::7], b[::5] = np.nan, np.nan
    np.testing.assert_array_equal(combine(probe, kind, operation, a, b), numpy_form(a, b))


@with_kind
@pytest.mark.parametrize("operation", [MAX, MIN])
def test_of_two_zeros_the_second_is_taken(probe: Probe, kind: str, operation: int) -> None:
    got = combine(probe, kind, operation, [0.0, -0.0, 0.0, -0.0], [-0.0, 0.0, 0.0, -0.0])
    assert np.signbit(got).tolist() == [True, False, False, True]


@with_kind
def test_abs_clears_the_sign_of_everything(probe: Probe, kind: str) -> None:
    x = np.concatenate([sample(kind), [np.nan, -np.nan, np.inf, -np.inf]]).astype(float_type(kind))
    got = combine(probe, kind, ABS, x)
    np.testing.assert_array_equal(got, np.abs(x))
    assert not np.signbit(got).any()


@with_kind
def test_sqrt_is_correctly_rounded(probe: Probe, kind: str) -> None:
    x = np.abs(sample(kind))
    np.testing.assert_array_equal(combine(probe, kind, SQRT, x), np.sqrt(x))
    assert np.isnan(combine(probe, kind, SQRT, [-1.0, np.nan, -np.inf])).all()


@with_kind
def test_select_takes_by_lane(probe: Probe, kind: str) -> None:
    a, b, c = sample(kind, seed=1), sample(kind, seed=2), sample(kind, seed=3)
    a[::7], b[::5] = np.nan, np.nan
    np.testing.assert_array_equal(combine(probe, kind, SELECT, a, b, c), np.where(a < b, b, c))


@with_kind
def test_any_and_all_see_every_lane(probe: Probe, kind: str) -> None:
    lanes = probe.lanes(kind)
    mask = probe.library[f"{kind}_mask"]
    zeros, ones = np.zeros(lanes, float_type(kind)), np.ones(lanes, float_type(kind))
    assert not mask(pointer(zeros), pointer(zeros), ANY)
    assert mask(pointer(zeros), pointer(ones), ANY)
    assert mask(pointer(zeros), pointer(ones), ALL)
    for lane in range(lanes):
        one = zeros.copy()
        one[lane] = 1
        assert mask(pointer(zeros), pointer(one), ANY), lane
        assert not mask(pointer(zeros), pointer(ones - one), ALL), lane


@with_kind
def test_sum_is_a_tree_of_halves(probe: Probe, kind: str) -> None:
    random = np.random.default_rng(4)
    for _ in range(200):
        x = (
            random.standard_normal(probe.lanes(kind)) * np.exp2(random.integers(-12, 12, probe.lanes(kind)))
        ).astype(float_type(kind))
        tree = x
        while tree.size > 1:
            half = tree.size // 2
            tree = tree[:half] + tree[half:]
        assert reduce(probe, kind, ADD_ALL, x) == tree[0]


@with_kind
def test_greatest_and_smallest_lane(probe: Probe, kind: str) -> None:
    lanes = probe.lanes(kind)
    x = np.random.default_rng(5).standard_normal(lanes).astype(float_type(kind))
    for lane in range(lanes):
        y = x.copy()
        y[lane] = 100
        assert reduce(probe, kind, MAX_ALL, y) == 100
        y[lane] = -np.inf
        assert reduce(probe, kind, MIN_ALL, y) == -np.inf
        assert reduce(probe, kind, MAX_ALL, y) == np.delete(x, lane).max()
        y[lane] = np.nan
        assert np.isnan(reduce(probe, kind, MAX_ALL, y))
        assert np.isnan(reduce(probe, kind, MIN_ALL, y))
        assert np.isnan(reduce(probe, kind, ADD_ALL, y))


@with_kind
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, np.inf, np.nan, 5e-324])
def test_splat_keeps_the_bits(probe: Probe, kind: str, value: float) -> None:
    x = float_type(kind)(value)
    out = np.empty(probe.lanes(kind), float_type(kind))
    real = ctypes.c_float if kind == "float" else ctypes.c_double
    probe.library[f"{kind}_splat"](real(x), pointer(out))
    assert out.tobytes() == np.full_like(out, x).tobytes()
