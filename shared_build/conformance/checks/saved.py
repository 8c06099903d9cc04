"""What is saved for backward, and how it behaves under hooks, edits, checkpointing and the grad modes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.checkpoint import checkpoint

from .. import data, ulp
from ..registry import Variant, check
from ..run import Run
from ..spec import Spec, Tensors
from .values import first_core


def routed(spec: Spec) -> Iterator[Variant]:
    """A core case on each route, for specs with gradients."""
    if spec.differentiable:
        for base in first_core(spec):
            for route in spec.grad_routes():
                yield Variant(f"{base.id}-{route}", base.case, base.dtype, {"route": route}, base.slow)


def _backward(run: Run, tensors: Tensors, outputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    wanted = data.differentiable(run.case)
    pairs = [
        (o, u) for o, u in zip(outputs, data.cotangents(outputs, run.seed), strict=True) if o.requires_grad
    ]
    found = torch.autograd.grad([o for o, _ in pairs], [tensors[n] for n in wanted], [u for _, u in pairs])
    return dict(zip(wanted, found, strict=True))


def _equal(run: Run, label: str, got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, grad in expected.items():
        run.same(f"{label}: gradient of {name}", (got[name],), (grad,))


@check("saved_edit", routed)
def saved_edit(run: Run) -> None:
    """An input edited in place between forward and backward makes backward raise (or was not needed)."""
    wanted = data.differentiable(run.case)
    route = run.extra["route"]
    expected = run.gradients(run.inputs(), wanted, route=route)
    for name in wanted:
        tensors = run.inputs(grad=wanted)
        outputs = run.call(tensors, route=route)
        with torch.no_grad():
            tensors[name].add_(1.0)
        try:
            got = _backward(run, tensors, outputs)
        except RuntimeError as error:
            run.require(
                "modified by an inplace operation" in str(error),
                f"{name} edited in place before backward: an unexpected error: {error}",
            )
            continue
        for other, grad in expected.items():
            run.require(
                ulp.same_values(got[other], grad),
                f"{name} edited in place before backward: no error, and the gradient of {other} is wrong",
            )


def _poison(tensor: torch.Tensor) -> torch.Tensor:
    """NaN in place of a saved tensor; integers, which would only point elsewhere, stay."""
    return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor.clone()


@check("saved_hooks", routed)
def saved_hooks(run: Run) -> None:
    """saved_tensors_hooks see every saved tensor: clones and save_on_cpu work, the bytes are as claimed."""
    wanted = data.differentiable(run.case)
    route = run.extra["route"]
    expected = run.gradients(run.inputs(), wanted, route=route)
    tensors = run.inputs(grad=wanted)
    packed: list[int] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(t.numel() * t.element_size())
        return t.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        outputs = run.call(tensors, route=route)
    _equal(run, "with hooks that clone", _backward(run, tensors, outputs), expected)
    run.require(packed, "backward uses tensors that no saved_tensors_hooks saw")
    if run.spec.bytes_saved is not None:
        claimed = run.spec.bytes_saved(tensors, run.options())
        run.require(sum(packed) == claimed, f"{sum(packed)} bytes saved for backward, {claimed} claimed")
    tensors = run.inputs(grad=wanted)
    with torch.autograd.graph.save_on_cpu():
        outputs = run.call(tensors, route=route)
    _equal(run, "under save_on_cpu", _backward(run, tensors, outputs), expected)
    poisoned = run.inputs(grad=wanted)
    with torch.autograd.graph.saved_tensors_hooks(_poison, lambda t: t):
        outputs = run.call(poisoned, route=route)
    found = _backward(run, poisoned, outputs)
    run.require(
        any(g.isnan().any() for g in found.values()),
        "poisoned saved tensors changed no gradient: backward reads something that was not saved properly",
    )


@check("checkpoint", routed)
def checkpointing(run: Run) -> None:
    """torch.utils.checkpoint gives the same gradients."""
    wanted = data.differentiable(run.case)
    route = run.extra["route"]
    expected = run.gradients(run.inputs(), wanted, route=route)
    tensors = run.inputs(grad=wanted)
    f = run.function(wanted, tensors, route=route)
    outputs = checkpoint(f, *[tensors[n] for n in wanted], use_reentrant=False, determinism_check="default")
    _equal(run, "under checkpoint", _backward(run, tensors, outputs), expected)


@check("grad_modes", first_core)
def grad_modes(run: Run) -> None:
    """no_grad, inference_mode and detached inputs: the same values without a grad_fn.

    An inference tensor in a call that records gradients raises, or gives the right gradients.
    """
    wanted = data.differentiable(run.case)
    expected = run.call(run.inputs())
    for route in run.spec.routes():
        for label, mode in (("no_grad", torch.no_grad), ("inference_mode", torch.inference_mode)):
            with mode():
                got = run.call(run.inputs(grad=wanted), route=route)
            run.same(f"{route} under {label}", got, expected)
            run.require(
                all(o.grad_fn is None for o in got), f"{route} under {label}: an output has a grad_fn"
            )
            run.require(
                all(o.is_inference() == (label == "inference_mode") for o in got),
                f"{route} under {label}: outputs are of the wrong kind",
            )
        got = run.call(run.inputs(), route=route)
        run.require(not any(o.requires_grad for o in got), f"{route}: a gradient without being asked")
        if route not in run.spec.grad_routes():
            continue
        full = run.gradients(run.inputs(), wanted, route=route)
        for name in wanted:
            others = [n for n in wanted if n != name]
            tensors = run.inputs(grad=others)
            with torch.inference_mode():
                tensors[name] = tensors[name].clone()
            if not others:
                continue
            try:
                outputs = run.call(tensors, route=route)
                upstream = data.cotangents(outputs, run.seed)
                pairs = [(o, u) for o, u in zip(outputs, upstream, strict=True) if o.requires_grad]
                found = torch.autograd.grad(
                    [o for o, _ in pairs], [tensors[n] for n in others], [u for _, u in pairs]
                )
            except RuntimeError as error:
                run.require("nference tensor" in str(error), f"{name} as inference tensor: {error}")
                continue
            for n, grad in zip(others, found, strict=True):
                run.same(f"{route}: {name} as inference tensor: gradient of {n}", (grad,), (full[n],))
