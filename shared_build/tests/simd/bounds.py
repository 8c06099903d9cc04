"""What each vector function promises: the bound of its error, and its value at the special arguments.

The bounds are asserted by the tests and printed in docs/design/numerics.md beside what was measured.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Greatest error in ulp, for the levels with and without a fused multiply-add.
BOUNDS: dict[str, dict[str, float]] = {
    "float": {
        "exp": 1.1,
        "expm1": 1.3,
        "log": 0.9,
        "log1p": 1.5,
        "sigmoid": 1.8,
        "silu": 1.8,
        "tanh": 1.3,
        "softplus": 1.8,
        "erf": 1.5,
        "sin": 1.0,
        "cos": 1.0,
        "rsqrt": 1.5,
    },
    "double": {
        "exp": 1.1,
        "expm1": 1.8,
        "log": 0.9,
        "log1p": 1.5,
        "sigmoid": 1.8,
        "silu": 2.0,
        "tanh": 1.3,
        "softplus": 1.8,
        "erf": 1.5,
        "sin": 1.0,
        "cos": 1.0,
        "rsqrt": 1.5,
    },
}
FUNCTIONS = tuple(BOUNDS["float"])

# Where a function is steep, cancels, or changes its algorithm; sampled densely beside everything else.
INTERVALS: dict[str, tuple[tuple[float, float], ...]] = {
    "exp": ((-104.5, 89.5), (-1.0, 1.0)),
    "expm1": ((-20.0, 89.5), (-1.0, 1.0)),
    "log": ((0.5, 2.0), (0.0, 10.0)),
    "log1p": ((-1.0, 1.0), (-1.0, 10.0)),
    "sigmoid": ((-105.0, 20.0), (-8.0, 8.0)),
    "silu": ((-110.0, 20.0), (-8.0, 8.0)),
    "tanh": ((-10.0, 10.0), (-0.7, 0.7)),
    "softplus": ((-105.0, 30.0), (-4.0, 4.0)),
    "erf": ((-6.1, 6.1), (-1.1, 1.1)),
    "sin": ((-10.0, 10.0), (-1e6, 1e6)),
    "cos": ((-10.0, 10.0), (-1e6, 1e6)),
    "rsqrt": ((0.0, 4.0),),
}
# The same where double reaches further.
DOUBLE_INTERVALS: dict[str, tuple[tuple[float, float], ...]] = {
    "exp": ((-746.0, 710.0),),
    "expm1": ((-40.0, 710.0),),
    "sigmoid": ((-746.0, 40.0),),
    "silu": ((-760.0, 40.0),),
    "softplus": ((-746.0, 40.0),),
}

_INF = math.inf
_NAN = math.nan
SPECIAL_VALUES: dict[str, tuple[tuple[float, float], ...]] = {
    "exp": ((0.0, 1.0), (-0.0, 1.0), (_INF, _INF), (-_INF, 0.0), (1e30, _INF), (-1e30, 0.0)),
    "expm1": ((0.0, 0.0), (-0.0, -0.0), (_INF, _INF), (-_INF, -1.0), (1e30, _INF), (-1e30, -1.0)),
    "log": (
        (1.0, 0.0),
        (0.0, -_INF),
        (-0.0, -_INF),
        (_INF, _INF),
        (-1.0, _NAN),
        (-_INF, _NAN),
        (-1e-45, _NAN),
    ),
    "log1p": ((0.0, 0.0), (-0.0, -0.0), (-1.0, -_INF), (_INF, _INF), (-1.5, _NAN), (-_INF, _NAN)),
    "sigmoid": ((0.0, 0.5), (-0.0, 0.5), (_INF, 1.0), (-_INF, 0.0), (1e30, 1.0), (-1e30, 0.0)),
    "silu": ((0.0, 0.0), (-0.0, -0.0), (_INF, _INF), (-_INF, _NAN), (1e30, 1e30), (-1e30, -0.0)),
    "tanh": ((0.0, 0.0), (-0.0, -0.0), (_INF, 1.0), (-_INF, -1.0), (1e30, 1.0), (-1e30, -1.0)),
    "softplus": ((_INF, _INF), (-_INF, 0.0), (1e30, 1e30), (-1e30, 0.0)),
    "erf": ((0.0, 0.0), (-0.0, -0.0), (_INF, 1.0), (-_INF, -1.0), (1e30, 1.0), (-1e30, -1.0)),
    "sin": ((0.0, 0.0), (-0.0, -0.0), (_INF, _NAN), (-_INF, _NAN)),
    "cos": ((0.0, 1.0), (-0.0, 1.0), (_INF, _NAN), (-_INF, _NAN)),
    "rsqrt": ((4.0, 0.5), (0.0, _INF), (-0.0, -_INF), (_INF, 0.0), (-1.0, _NAN), (-_INF, _NAN)),
}

# Of each format: the number closest to a multiple of pi/2, those nearest to pi/2 and 2^20 pi/2, the greatest.
HARD_ANGLES = {
    "float": (16367173 * 2.0**72, math.pi / 2, math.pi * 2**19, 3.4028234663852886e38),
    "double": (6381956970095103 * 2.0**797, math.pi / 2, math.pi * 2**19, 1.7976931348623157e308),
}

_TYPES: dict[str, tuple[type[np.floating[Any]], type[np.unsignedinteger[Any]]]] = {
    "float": (np.float32, np.uint32),
    "double": (np.float64, np.uint64),
}


def float_type(kind: str) -> type[np.floating[Any]]:
    """Return numpy's type of ``float`` or ``double``."""
    return _TYPES[kind][0]


def bits_type(kind: str) -> type[np.unsignedinteger[Any]]:
    """Return the unsigned integer of the same width."""
    return _TYPES[kind][1]


def edges(kind: str) -> NDArray[Any]:
    """Return powers of two and their neighbours, both signs, from the least subnormal to infinity."""
    float_t, bits_t = _TYPES[kind]
    mantissa = 23 if kind == "float" else 52
    top = (255 if kind == "float" else 2047) << mantissa  # infinity
    starts = [0, *(1 << bit for bit in range(mantissa)), *range(1 << mantissa, top + 1, 1 << mantissa)]
    around = np.array(starts, np.int64)[:, None] + np.arange(-3, 4)[None, :]
    bits = np.unique(np.clip(around, 0, top)).astype(bits_t)
    positive = bits.view(float_t)
    return np.concatenate([positive, -positive])


def points(kind: str, name: str, count: int, seed: int) -> NDArray[Any]:
    """Return about ``count`` arguments for ``name``: any bit pattern, the function's intervals, and edges."""
    float_t, bits_t = _TYPES[kind]
    random = np.random.default_rng(seed)
    intervals = INTERVALS[name] + (DOUBLE_INTERVALS.get(name, ()) if kind == "double" else ())
    share = count // (len(intervals) + 1)
    parts = [random.integers(0, 2 ** (8 * np.dtype(bits_t).itemsize), share, dtype=bits_t).view(float_t)]
    parts += [random.uniform(low, high, share).astype(float_t) for low, high in intervals]
    parts += [edges(kind), np.array(HARD_ANGLES[kind], float_t)]
    return np.concatenate(parts)
