"""The activations and their first derivatives in float64, written without differences of near numbers.

Unlike in the reference, gelu_tanh is a logistic here and slopes are written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def logistic(v: Tensor) -> Tensor:
    """``1 / (1 + exp(-v))`` with relative accuracy on both sides."""
    e = torch.exp(-v.abs())
    return torch.where(v < 0, e, torch.ones_like(e)) / (1 + e)


def normal_distribution(g: Tensor) -> Tensor:
    """Phi."""
    return 0.5 * torch.special.erfc(-g / math.sqrt(2))


def _tanh_argument(g: Tensor) -> Tensor:
    return _LINEAR * (g + _CUBIC * g**3)


def _silu_slope(g: Tensor) -> Tensor:
    return logistic(g) * (1 + g * logistic(-g))


def _gelu_slope(g: Tensor) -> Tensor:
    return normal_distribution(g) + g * torch.exp(-g * g / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(g: Tensor) -> Tensor:
    v = _tanh_argument(g)
    rate = _LINEAR * (1 + 3 * _CUBIC * g * g)
    s, t = logistic(v), logistic(-v)
    product = torch.where(s * t == 0, torch.zeros_like(g), g * s * t * rate)
    return s + product


VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda g: g * logistic(g),
    "gelu": lambda g: g * normal_distribution(g),
    "gelu_tanh": lambda g: g * logistic(_tanh_argument(g)),
    "relu": lambda g: g.clamp(min=0),
    "relu2": lambda g: g.clamp(min=0) ** 2,
    "sigmoid": logistic,
    "identity": lambda g: g,
}
SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": _silu_slope,
    "gelu": _gelu_slope,
    "gelu_tanh": _gelu_tanh_slope,
    "relu": lambda g: (g > 0).double(),
    "relu2": lambda g: 2 * g.clamp(min=0),
    "sigmoid": lambda g: logistic(g) * logistic(-g),
    "identity": torch.ones_like,
}
