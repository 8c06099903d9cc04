"""The golden reference of the gated activations: plain PyTorch, any device, differentiable to any order.

``y = act(gate) * up`` as in gated linear units (Shazeer 2020, arXiv 2002.05202, section 2), with what models
add to it:

- ``silu``: ``g * sigmoid(alpha * g)`` (Ramachandran et al. 2017, arXiv 1710.05941); alpha 1.702 in gpt-oss;
- ``gelu``: ``g * Phi(g)`` with the normal distribution function (Hendrycks and Gimpel 2016, arXiv
  1606.08415), and ``gelu_tanh``, their approximation by tanh;
- ``relu``, ``relu2`` (its square, So et al. 2021, arXiv 2109.08668), ``sigmoid``, ``identity``;
- a ``limit``: with ``clamp="input"`` the gate is clamped from above before the activation, with
  ``clamp="output"`` the activation is; the up branch is clamped on both sides either way. Gradients are zero
  where a clamp is saturated or its value NaN, and pass where the value equals the limit;
- an ``up_offset``, added to the up branch after its clamp.

**Rounding.** Everything is computed in float32 for bfloat16, float16 and float32, in float64 for float64, and
rounded once, to the dtype that gate and up promote to.

**Special values.** NaN in either branch gives NaN. An infinite gate gives what the formula gives: minus
infinity is NaN for silu and both gelus (``-inf * 0``), as in torch. Empty inputs give empty results.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _reference_common as common

__all__ = ["gated_activation", "gated_activation_packed"]


def _activate(g: Tensor, activation: str, alpha: float) -> Tensor:
    if activation == "silu":
        return g * torch.sigmoid(g * alpha)
    if activation == "gelu":
        # Not F.gelu, which for float32 is not a number from about 1e20 on.
        return g * (0.5 * torch.special.erfc(g * -math.sqrt(0.5)))
    if activation == "gelu_tanh":
        return F.gelu(g, approximate="tanh")
    if activation == "relu":
        return F.relu(g)
    if activation == "relu2":
        return F.relu(g).square()
    return torch.sigmoid(g) if activation == "sigmoid" else g


def _at_most(x: Tensor, limit: float) -> Tensor:
    """Bound from above with a gradient at the bound, where torch's clamp has one up to version 2.13 only."""
    return torch.where(x <= limit, x, x.detach().clamp(max=limit))


def gated_activation(
    gate: Tensor,
    up: Tensor,
    activation: str = "silu",
    *,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    clamp: str = "input",
) -> Tensor:
    """Compute ``act(gate) * (up + up_offset)``; arguments as for the operator.

    Args:
        gate: any shape; bfloat16, float16, float32 or float64.
        up: a shape that broadcasts with it; any of these dtypes.
        activation: one of silu, gelu, gelu_tanh, relu, relu2, sigmoid, identity.
        alpha: factor inside the sigmoid of silu; 1 for the others.
        limit: positive bound of both branches, or None.
        up_offset: added to the up branch.
        clamp: ``"input"`` or ``"output"``: where the gate's bound applies.

    Returns:
        A tensor of the broadcast shape and the promoted dtype.

    Raises:
        ValueError: for a dtype, shape or option outside of the above.
    """
    op = "gated_activation"
    number = common.option(op, "activation", activation, common.ACTIVATIONS)
    clamp_output = common.option(op, "clamp", clamp, common.CLAMPS) == 1
    common.check_options(op, number, alpha, limit, up_offset)
    common.check_operands(op, gate, up)
    dtype = torch.result_type(gate, up)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    g, u = gate.to(wide), up.to(wide)
    if limit is not None:
        u = torch.where(u.abs() <= limit, u, u.detach().clamp(-limit, limit))
        if not clamp_output:
            g = _at_most(g, limit)
    a = _activate(g, activation, alpha)
    if limit is not None and clamp_output:
        a = _at_most(a, limit)
    if up_offset:
        u = u + up_offset
    return (a * u).to(dtype)


def gated_activation_packed(
    input: Tensor,
    activation: str = "silu",
    *,
    layout: str = "halves",
    gate_first: bool = True,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    clamp: str = "input",
) -> Tensor:
    """Compute the same of a tensor that holds both branches in its last dimension.

    Args:
        input: ``(..., 2 * D)``.
        activation: as for :func:`gated_activation`.
        layout: ``"halves"``: one branch, then the other; ``"interleaved"``: even elements, odd elements.
        gate_first: whether the first half, or the even elements, are the gate.
        alpha: as for :func:`gated_activation`.
        limit: as for :func:`gated_activation`.
        up_offset: as for :func:`gated_activation`.
        clamp: as for :func:`gated_activation`.

    Returns:
        A tensor ``(..., D)`` of ``input``'s dtype.

    Raises:
        ValueError: for a dtype, shape or option outside of the above.
    """
    op = "gated_activation_packed"
    interleaved = common.option(op, "layout", layout, common.LAYOUTS) == 1
    common.check_packed(op, input)
    gate, up = common.halves(input, interleaved, gate_first)
    return gated_activation(gate, up, activation, alpha=alpha, limit=limit, up_offset=up_offset, clamp=clamp)


# ---- the same with the arguments of the dispatcher's operators ---------------------------------------------


def gated_activation_forward(
    gate: Tensor,
    up: Tensor,
    activation: int,
    alpha: float,
    limit: float | None,
    up_offset: float,
    clamp_output: bool,
) -> Tensor:
    """Compute ``opwright::gated_activation_forward``; options as numbers."""
    common.check_options("gated_activation", activation, alpha, limit, up_offset)
    return gated_activation(
        gate,
        up,
        common.ACTIVATIONS[activation],
        alpha=alpha,
        limit=limit,
        up_offset=up_offset,
        clamp=common.CLAMPS[clamp_output],
    )


def gated_activation_packed_forward(
    input: Tensor,
    interleaved: bool,
    gate_first: bool,
    activation: int,
    alpha: float,
    limit: float | None,
    up_offset: float,
    clamp_output: bool,
) -> Tensor:
    """Compute ``opwright::gated_activation_packed_forward``; options as numbers."""
    common.check_options("gated_activation_packed", activation, alpha, limit, up_offset)
    return gated_activation_packed(
        input,
        common.ACTIVATIONS[activation],
        layout=common.LAYOUTS[interleaved],
        gate_first=gate_first,
        alpha=alpha,
        limit=limit,
        up_offset=up_offset,
        clamp=common.CLAMPS[clamp_output],
    )
