"""The public functions: names of options become numbers of the schemas.

The formulas, with every rounding, are in :mod:`opwright.gated_activation.reference`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _fakes, _reference_common as common, registration as _registration
from ._runtime import transforms_active

__all__ = [
    "gated_activation",
    "gated_activation_",
    "gated_activation_packed",
    "gated_activation_packed_",
    "kernel_level",
]

_ACTIVATION = {name: number for number, name in enumerate(common.ACTIVATIONS)}
_CLAMP = {"input": False, "output": True}
_LAYOUT = {"halves": False, "interleaved": True}
_LEVELS = ("default", "avx2", "avx512", "neon")


def gated_activation(
    gate: Tensor,
    up: Tensor,
    activation: str = "silu",
    *,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    clamp: str = "input",
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``act(gate) * (up + up_offset)``, element by element, in one pass over memory.

    Gated linear units of Shazeer 2020, arXiv 2002.05202, section 2: ``silu`` is SwiGLU, ``gelu`` and
    ``gelu_tanh`` are GeGLU, ``relu`` is ReGLU, ``sigmoid`` is GLU, ``identity`` the bilinear form. Computed
    in fp32 (fp64 for float64) and rounded once. Differentiable in both arguments to any order; the backward
    recomputes from them and nothing else is kept.

    Args:
        gate: any shape, any strides; bfloat16, float16, float32 or float64.
        up: a shape that broadcasts with it, any of these dtypes (mixed dtypes promote as in torch).
        activation: one of silu, gelu (exact), gelu_tanh, relu, relu2, sigmoid, identity.
        alpha: ``silu(g) = g * sigmoid(alpha * g)``, finite; 1 with the other activations.
        limit: positive; bounds the gate from above and the up branch on both sides. None for no bounds.
            Gradients are zero where a bound is exceeded.
        up_offset: added to the up branch after its bounds; finite.
        clamp: ``"input"`` bounds the gate before the activation (gpt-oss), ``"output"`` the activation's
            result (Step-3.7).
        out: receives the result, in memory of its own; of the result's shape and dtype, any strides. Not
            differentiable.

    Returns:
        A tensor of the broadcast shape and the promoted dtype, laid out as torch's own element-wise operators
        do; or ``out``.

    Raises:
        ValueError: for a dtype, shape or option outside of the above; nothing is computed.
        RuntimeError: if ``out`` is given and a gradient is needed.
    """
    op = "gated_activation"
    number = _ACTIVATION.get(activation)
    if number is None:
        number = common.option(op, "activation", activation, common.ACTIVATIONS)
    last = _CLAMP.get(clamp)
    if last is None:
        last = common.option(op, "clamp", clamp, common.CLAMPS) == 1
    if out is not None:
        torch.ops.opwright.gated_activation_out.default(gate, up, out, number, alpha, limit, up_offset, last)
        return out
    result: Tensor = _registration.gated_activation_forward(gate, up, number, alpha, limit, up_offset, last)
    return result


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
    out: Tensor | None = None,
) -> Tensor:
    """Compute :func:`gated_activation` of a tensor that holds both branches in its last dimension.

    Args:
        input: ``(..., 2 * D)``; dtypes and strides as for :func:`gated_activation`.
        activation: as for :func:`gated_activation`.
        layout: ``"halves"``: one branch, then the other; ``"interleaved"``: even elements, odd elements
            (gpt-oss).
        gate_first: whether the first half, or the even elements, are the gate.
        alpha: as for :func:`gated_activation`.
        limit: as for :func:`gated_activation`.
        up_offset: as for :func:`gated_activation`.
        clamp: as for :func:`gated_activation`.
        out: as for :func:`gated_activation`, ``(..., D)``.

    Returns:
        A tensor ``(..., D)`` of ``input``'s dtype, or ``out``.

    Raises:
        ValueError: for a dtype, shape or option outside of the above; nothing is computed.
        RuntimeError: if ``out`` is given and a gradient is needed.
    """
    op = "gated_activation_packed"
    number = _ACTIVATION.get(activation)
    if number is None:
        number = common.option(op, "activation", activation, common.ACTIVATIONS)
    last = _CLAMP.get(clamp)
    if last is None:
        last = common.option(op, "clamp", clamp, common.CLAMPS) == 1
    interleaved = _LAYOUT.get(layout)
    if interleaved is None:
        interleaved = common.option(op, "layout", layout, common.LAYOUTS) == 1
    if out is not None:
        common.check_packed(op, input)
        gate, up = common.halves(input, interleaved, gate_first)
        torch.ops.opwright.gated_activation_out.default(gate, up, out, number, alpha, limit, up_offset, last)
        return out
    result: Tensor = _registration.gated_activation_packed_forward(
        input, interleaved, gate_first, number, alpha, limit, up_offset, last
    )
    return result


def gated_activation_(
    gate: Tensor,
    up: Tensor,
    activation: str = "silu",
    *,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    clamp: str = "input",
) -> Tensor:
    """In-place :func:`gated_activation`: ``gate`` receives the result.

    Where a gradient is needed the result is computed apart, from a copy of ``gate`` that the backward keeps,
    and copied into place: right, but no memory is saved.

    Args:
        gate: as for :func:`gated_activation`, of the result's shape and dtype, any strides whose elements lie
            apart; overwritten.
        up: as for :func:`gated_activation`, in memory of its own.
        activation: as for :func:`gated_activation`.
        alpha: as for :func:`gated_activation`.
        limit: as for :func:`gated_activation`.
        up_offset: as for :func:`gated_activation`.
        clamp: as for :func:`gated_activation`.

    Returns:
        ``gate``, the same tensor.

    Raises:
        ValueError: as :func:`gated_activation`, and for tensors that overlap or cannot hold the result;
            nothing is written.
        RuntimeError: if ``gate`` is a leaf that requires grad.
    """
    op = "gated_activation_"
    options = (
        common.option(op, "activation", activation, common.ACTIVATIONS),
        alpha,
        limit,
        up_offset,
        common.option(op, "clamp", clamp, common.CLAMPS) == 1,
    )
    if _recorded(gate, up):
        # A backward keeps both; one that shares memory with what is written must be a copy, too.
        _fakes.gated_activation_(gate, up, *options)
        apart = up.clone() if _share_memory(gate, up) else up
        gate.copy_(_registration.gated_activation_forward(gate.clone(), apart, *options))
    else:
        torch.ops.opwright.gated_activation_.default(gate, up, *options)
    return gate


def gated_activation_packed_(
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
    """In-place :func:`gated_activation_packed`: the gate's half of ``input`` receives the result.

    Args:
        input: as for :func:`gated_activation_packed`; one half is overwritten, the other is kept.
        activation: as for :func:`gated_activation`.
        layout: as for :func:`gated_activation_packed`.
        gate_first: as for :func:`gated_activation_packed`.
        alpha: as for :func:`gated_activation`.
        limit: as for :func:`gated_activation`.
        up_offset: as for :func:`gated_activation`.
        clamp: as for :func:`gated_activation`.

    Returns:
        A view ``(..., D)`` of ``input``: the half that was written.

    Raises:
        ValueError: as :func:`gated_activation_packed`; nothing is written.
        RuntimeError: if ``input`` is a leaf that requires grad.
    """
    op = "gated_activation_packed_"
    interleaved = common.option(op, "layout", layout, common.LAYOUTS) == 1
    common.check_packed(op, input)
    gate, up = common.halves(input, interleaved, gate_first)
    return gated_activation_(gate, up, activation, alpha=alpha, limit=limit, up_offset=up_offset, clamp=clamp)


def _recorded(gate: Tensor, up: Tensor) -> bool:
    """Whether the in-place form must be computed apart: for a gradient or under a transform."""
    if torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad):
        if gate.requires_grad and gate.is_leaf:
            raise RuntimeError(
                "gated_activation_: expected gate to be no leaf that requires grad, but got one, to overwrite"
            )
        return True
    return not torch.compiler.is_compiling() and transforms_active()


def _share_memory(gate: Tensor, up: Tensor) -> bool:
    """Whether two tensors are, or may be, views of one storage."""
    if torch.compiler.is_compiling() or transforms_active():
        return True
    return gate.untyped_storage()._cdata == up.untyped_storage()._cdata


def kernel_level() -> str:
    """Tell which instruction-set level the CPU kernels of this process run at.

    Returns:
        The widest of ``"default"``, ``"avx2"`` and ``"avx512"`` that the processor has (``"neon"`` on ARM),
        or the one that the environment variable ``OPWRIGHT_CPU_CAPABILITY`` names, if that is not wider.
        Fixed at the first call.
    """
    return _LEVELS[torch.ops.opwright.gated_activation_kernel_level()]
