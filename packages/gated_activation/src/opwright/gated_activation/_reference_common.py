"""What the reference and the fakes share: names of options and the checks of arguments."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "identity")
CLAMPS = ("input", "output")
LAYOUTS = ("halves", "interleaved")

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def option(op: str, name: str, value: str, names: tuple[str, ...]) -> int:
    """Return the number of an option's value; ValueError for a value that is none of ``names``."""
    if value in names:
        return names.index(value)
    raise ValueError(f"{op}: expected {name} to be one of {', '.join(names)}, but got {value}")


def dtype_text(dtype: torch.dtype) -> str:
    """``float32`` and the like."""
    return str(dtype).removeprefix("torch.")


def check_options(op: str, activation: int, alpha: float, limit: float | None, up_offset: float) -> None:
    """Check what is no tensor."""
    if not 0 <= activation < len(ACTIVATIONS):
        raise ValueError(
            f"{op}: expected activation to be one of {', '.join(ACTIVATIONS)}, but got {activation}"
        )
    if not math.isfinite(alpha):
        raise ValueError(f"{op}: expected alpha to be finite, but got {alpha}")
    if alpha != 1 and activation != 0:
        raise ValueError(f"{op}: expected alpha to be 1 with another activation than silu, but got {alpha}")
    if limit is not None and not limit > 0:
        raise ValueError(f"{op}: expected limit to be positive, but got {limit}")
    if not math.isfinite(up_offset):
        raise ValueError(f"{op}: expected up_offset to be finite, but got {up_offset}")


def check_float(op: str, name: str, tensor: Tensor) -> None:
    """Check the dtype of a tensor."""
    if tensor.dtype not in FLOATS:
        raise ValueError(
            f"{op}: expected {name} of dtype bfloat16, float16, float32 or float64, "
            f"but got {dtype_text(tensor.dtype)}"
        )


def check_operands(op: str, gate: Tensor, up: Tensor) -> None:
    """Check dtypes, and shapes as far as they are numbers: symbols are the compiler's business."""
    check_float(op, "gate", gate)
    check_float(op, "up", up)
    for x, y in zip(reversed(gate.shape), reversed(up.shape), strict=False):
        if type(x) is int and type(y) is int and x != y and 1 not in (x, y):
            raise ValueError(
                f"{op}: expected up that broadcasts with gate of shape {tuple(gate.shape)}, "
                f"but got {tuple(up.shape)}"
            )


def check_packed(op: str, input: Tensor) -> None:
    """Check a packed input."""
    check_float(op, "input", input)
    if input.dim() < 1:
        raise ValueError(f"{op}: expected input with at least 1 dimension, but got 0")
    if type(input.shape[-1]) is int and input.shape[-1] % 2:
        raise ValueError(f"{op}: expected input with an even last dimension, but got {input.shape[-1]}")


def halves(input: Tensor, interleaved: bool, gate_first: bool) -> tuple[Tensor, Tensor]:
    """Return views ``(gate, up)`` of a packed input."""
    width = input.shape[-1] // 2
    if interleaved:
        # Not unbind: views that come several from one operator may not be written in place under autograd.
        pairs = input.unflatten(-1, (width, 2))
        first, second = pairs.select(-1, 0), pairs.select(-1, 1)
    else:
        first, second = input.narrow(-1, 0, width), input.narrow(-1, width, width)
    return (first, second) if gate_first else (second, first)
