"""Everything about the operators that is no kernel: autograd here, fakes, batching and sharding beside it.

Schemas are in csrc/bind.cpp.

The rotation is linear in q and k, so its derivative needs none of them: the backward operator is the
transposed rotation of the gradients, the forward operator is the derivative of the backward one, and so on to
any order. The tables' gradients, which few models ask for, are those of the golden reference; only for them q
and k are kept.

Autocast has no rule of its own: the operators are not in any list of torch's, so they compute in the dtypes
they are given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _fakes, _sharding, _vmap, reference
from ._runtime import DifferentiableOp, load_library, once, refuse_gradients, transforms_active, vjp_of

load_library(__package__, "apply_rotary_forward")

_TENSORS = 7  # q, k, cos, sin, positions, cu_seqlens, offsets
_ARGUMENTS = 15


def _register_sharding() -> None:
    """Register sharding once DTensor is there: its registration API costs a second to import."""
    if "torch.distributed.tensor" in sys.modules:
        once(f"{__package__}.sharding", _sharding.register)


def _savable(tensor: Tensor | None) -> Tensor | None:
    """A table that was made under inference mode cannot be saved; a copy can."""
    if type(tensor) is Tensor and tensor.is_inference():
        return tensor.clone()
    return tensor


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.options = inputs[_TENSORS:]
    of_tables = any(ctx.needs_input_grad[2:4])
    if not of_tables:
        # q's result does not depend on k, nor k's on q.
        apart = (out for out, need in zip(output, ctx.needs_input_grad, strict=False) if not need)
        ctx.mark_non_differentiable(*(out for out in apart if out is not None))
    rotated = inputs[:2] if of_tables else (None, None)
    ctx.save_for_backward(*rotated, *map(_savable, inputs[2:_TENSORS]))


def _gradient(
    transposed: Callable[[], DifferentiableOp], own_reference: Callable[..., Any]
) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the backward of one of the two operators.

    Args:
        transposed: gives the other one.
        own_reference: its own reference.
    """

    def backward(ctx: Any, grad_q: Tensor | None, grad_k: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, *others = ctx.saved_tensors
        needed = ctx.needs_input_grad
        results: list[Tensor | None] = [None] * _ARGUMENTS
        wanted = [i for i, grad in enumerate((grad_q, grad_k)) if grad is not None and needed[i]]
        grads = [(grad_q, grad_k)[i] for i in wanted]
        if grads:
            # Heads are alike, so the only gradient that is wanted may stand in q's place.
            found = transposed()(grads[0], grads[1] if len(grads) > 1 else None, *others, *ctx.options)
            for i, grad in zip(wanted, found, strict=False):
                results[i] = grad
        if needed[2] or needed[3]:
            of_tables = [i in (2, 3) and needed[i] for i in range(_ARGUMENTS)]
            arguments = (q, k, *others, *ctx.options)
            results[2:4] = vjp_of(own_reference, arguments, iter(of_tables), (grad_q, grad_k))[2:4]
        return tuple(results)

    return backward


apply_rotary_forward = DifferentiableOp(
    "apply_rotary_forward",
    reference=reference.apply_rotary_forward,
    save=_save,
    backward=_gradient(lambda: apply_rotary_backward, reference.apply_rotary_forward),
    for_subclass=_register_sharding,
)
apply_rotary_backward: DifferentiableOp = DifferentiableOp(
    "apply_rotary_backward",
    reference=reference.apply_rotary_backward,
    save=_save,
    backward=_gradient(lambda: _forward_of_gradients, reference.apply_rotary_backward),
    in_backward=True,
)
# The forward operator where it is a derivative, and may be given gradients in batches.
_forward_of_gradients: DifferentiableOp = DifferentiableOp(
    "apply_rotary_forward",
    reference=reference.apply_rotary_forward,
    save=_save,
    backward=_gradient(lambda: apply_rotary_backward, reference.apply_rotary_forward),
    in_backward=True,
)


def apply_rotary_in_place(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, *others: Any
) -> tuple[Tensor, Tensor | None]:
    """Call ``opwright::apply_rotary_``; with a gradient, or under a transform, compute apart and copy."""
    tensors = (q, cos, sin) if k is None else (q, k, cos, sin)
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if not needs_grad and not transforms_active():
        traced = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
        op = torch.ops.opwright.apply_rotary_ if traced else torch.ops.opwright.apply_rotary__raw
        op.default(q, k, cos, sin, *others)
        return q, k
    for name, tensor in (("q", q), ("k", k)):
        if tensor is not None and needs_grad and tensor.requires_grad and tensor.is_leaf:
            raise RuntimeError(
                f"apply_rotary: expected {name} to be no leaf that requires grad, but got one, to overwrite"
            )
    if not torch.compiler.is_compiling() and not transforms_active():
        with torch.no_grad():
            torch.ops.opwright.apply_rotary_check(q, k, cos, sin)
    if needs_grad and (cos.requires_grad or sin.requires_grad):
        # The tables' gradients need what is overwritten here.
        q_out, k_out = apply_rotary_forward(q.clone(), None if k is None else k.clone(), cos, sin, *others)
    else:
        q_out, k_out = apply_rotary_forward(q, k, cos, sin, *others)
    if k is not None and needs_grad and not torch.compiler.is_compiling() and not transforms_active():
        _raise_unless_writable(k)
    q.copy_(q_out)
    if k is not None:
        k.copy_(k_out)
    return q, k


def _raise_unless_writable(tensor: Tensor) -> None:
    """Raise autograd's error for a tensor that it cannot write in place, such as one of split's results."""
    if tensor._is_view() or tensor.is_inference():
        tensor.narrow(-1, 0, 0).zero_()


def _register(library: torch.library.Library) -> None:
    for operator in (apply_rotary_forward, apply_rotary_backward):
        operator.register(library)
    refuse_gradients(library, "apply_rotary_", "opwright.rotary.apply_rotary with inplace=True")
    _fakes.register(library)
    _vmap.register(library)


once(__package__, _register)
_register_sharding()
