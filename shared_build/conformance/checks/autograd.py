"""First- and second-order gradients: existence, values, subsets, precision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError
from torch.utils._python_dispatch import TorchDispatchMode

from .. import data, ulp
from ..registry import Variant, check
from ..run import Outputs, Run
from ..spec import Spec, Tensors
from .rules import gradient_rule
from .values import all_cases, first_core


def differentiable_cases(spec: Spec) -> Iterator[Variant]:
    """Every case in every dtype, for specs that have gradients."""
    if spec.differentiable:
        yield from (v for v in all_cases(spec) if data.differentiable(v.case))


def grad_cases(spec: Spec) -> Iterator[Variant]:
    """The cases small enough for gradcheck, on each route."""
    if spec.differentiable:
        for index, case in enumerate(spec.select("grad")):
            for route in spec.grad_routes():
                slow = index > 1 and route == "direct"
                yield Variant(f"{case.id}-{route}", case, torch.float64, {"route": route}, slow=slow)


@check("grad_flows", differentiable_cases)
def grad_flows(run: Run) -> None:
    """Each output has a grad_fn when any one float input requires a gradient, on every route."""
    for route in run.spec.grad_routes():
        for name in data.differentiable(run.case):
            tensors = run.inputs(grad=[name])
            outputs = run.call(tensors, route=route)
            reference = run.call(tensors, fn=run.spec.reference)
            for label, out, like in zip(run.spec.outputs, outputs, reference, strict=True):
                if like.requires_grad:
                    run.require(
                        out.requires_grad and out.grad_fn is not None,
                        f"{route}: {label} requires no gradient though {name} does",
                    )


@check("gradient_error", differentiable_cases)
def gradient_error(run: Run) -> None:
    """Gradients obey the error rule with k = 3, for a random upstream gradient, in the dtype of the leaf."""
    tensors = run.inputs()
    wanted = data.differentiable(run.case)
    for route in run.spec.grad_routes():

        def compute(upstream: Outputs, route: str = route) -> dict[str, torch.Tensor | None]:
            grads = run.gradients(tensors, wanted, upstream, route=route)
            for name, grad in grads.items():
                right = grad is None or grad.dtype == tensors[name].dtype
                run.require(right, f"{route}: gradient of {name} is {grad.dtype if grad is not None else ''}")
            return grads

        gradient_rule(run, tensors, wanted, compute, label=f"{route}: gradient")


@check("gradcheck", grad_cases)
def gradcheck(run: Run) -> None:
    """torch.autograd.gradcheck in float64, slow mode, plain and below a transpose, sum(0) and cat+narrow."""
    wanted = data.differentiable(run.case)
    tensors = run.inputs(grad=wanted)
    f = run.function(wanted, tensors, route=run.extra["route"])
    leaves = [tensors[name] for name in wanted]
    public = run.extra["route"] == "public"
    forward_ad = public and run.spec.forward_ad == "works"
    wraps = {
        "plain": lambda *a: f(*a),
        "transpose": lambda *a: tuple(o.transpose(0, -1) for o in f(*a)),
        "sum(0)": lambda *a: tuple(o.sum(0) for o in f(*a)),
        "cat+narrow": lambda *a: tuple(torch.cat([o, 2 * o], -1).narrow(-1, 1, o.shape[-1]) for o in f(*a)),
    }
    for label, wrapped in wraps.items():
        plain = label == "plain"
        _passes(
            run,
            label,
            torch.autograd.gradcheck,
            wrapped,
            leaves,
            check_undefined_grad=plain,
            check_batched_grad=False,  # see the check `batched_grad`
            check_forward_ad=forward_ad and plain,
        )


@check("batched_grad", grad_cases)
def batched_grad(run: Run) -> None:
    """Gradients for a batch of upstream gradients at once equal those one by one, or raise as claimed."""
    wanted = data.differentiable(run.case)
    tensors = run.inputs(grad=wanted)
    outputs = run.call(tensors, route=run.extra["route"])
    pairs = [(o, i) for i, o in enumerate(outputs) if o.requires_grad]
    batches = [torch.stack([data.cotangents(outputs, seed)[i] for seed in range(3)]) for _, i in pairs]
    results, leaves = [o for o, _ in pairs], [tensors[n] for n in wanted]
    try:
        got = torch.autograd.grad(results, leaves, batches, is_grads_batched=True, retain_graph=True)
    except RuntimeError as error:
        run.require(run.spec.batched_grad == "raises", f"is_grads_batched=True raises: {error}")
        return
    run.require(run.spec.batched_grad == "works", "is_grads_batched=True must raise, but it works")
    for index in range(3):
        single = torch.autograd.grad(results, leaves, [b[index] for b in batches], retain_graph=True)
        for n, a, b in zip(wanted, got, single, strict=True):
            run.close(f"gradient of {n} for upstream gradient {index} of a batch", a[index], b)


@check("gradgradcheck", grad_cases)
def gradgradcheck(run: Run) -> None:
    """Second order agrees with finite differences, or raises where the spec says so; never None or zero."""
    wanted = data.differentiable(run.case)
    tensors = run.inputs(grad=wanted)
    f = run.function(wanted, tensors, route=run.extra["route"])
    leaves = [tensors[name] for name in wanted]
    if run.spec.double_backward == "raises":
        outputs = [o for o in f(*leaves) if o.requires_grad]
        try:
            first = torch.autograd.grad(sum(o.square().sum() for o in outputs), leaves, create_graph=True)
            torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        except RuntimeError:
            return
        run.fail("the second derivative must raise, but it was computed")
    grad_fns = torch.autograd.grad(sum(o.square().sum() for o in f(*leaves)), leaves, create_graph=True)
    run.require(all(g.requires_grad for g in grad_fns), "the first gradient is cut off from the graph")
    _passes(run, "second order", torch.autograd.gradgradcheck, f, leaves, gen_non_contig_grad_outputs=True)


def _passes(
    run: Run, label: str, test: object, f: object, leaves: Sequence[torch.Tensor], **kw: bool
) -> None:
    try:
        test(f, tuple(leaves), **kw)
    except (GradcheckError, RuntimeError) as error:
        run.notes = [label]
        run.fail(f"{label}: {type(error).__name__}: {error}")


class _Produced(TorchDispatchMode):
    """Counts the elements that operators of the package return while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.namespace.startswith(("aten", "prim", "profiler")):
            self.calls.append(func.name())
            flat = result if isinstance(result, (tuple, list)) else [result]
            self.elements += sum(t.numel() for t in flat if isinstance(t, torch.Tensor))
        return result


def subset_variants(spec: Spec) -> Iterator[Variant]:
    if spec.differentiable:
        for base in first_core(spec):
            for route in spec.grad_routes():
                yield Variant(f"{base.id}-{route}", base.case, base.dtype, {"route": route}, base.slow)
        for case in spec.select("subsets"):
            for route in spec.grad_routes():
                yield Variant(f"{case.id}-{route}", case, torch.float32, {"route": route})


@check("subsets", subset_variants)
def subsets(run: Run) -> None:
    """For every subset of the inputs and of the outputs: the right gradients, None elsewhere, nothing extra.

    A frozen input costs nothing: the backward operators return no more elements than the wanted gradients.
    """
    route = run.extra["route"]
    wanted = data.differentiable(run.case)
    tensors = run.inputs()
    upstream = data.cotangents(run.call(tensors), run.seed)
    for used in _nonempty(range(len(upstream))):
        part = [u if i in used else None for i, u in enumerate(upstream)]
        if run.spec.outputs and used != tuple(range(len(upstream))):
            _outputs_alone(run, tensors, wanted, part, route)
            continue
        full = run.gradients(tensors, wanted, part, route=route)
        for subset in _nonempty(wanted):
            run.notes = [f"gradients wanted of {', '.join(subset)}"]
            leaves = {
                n: t if t is None else t.detach().requires_grad_(n in subset) for n, t in tensors.items()
            }
            outputs = run.call(leaves, route=route)
            pairs = [(o, u) for o, u in zip(outputs, part, strict=True) if o.requires_grad]
            with _Produced() as produced:
                torch.autograd.backward([o for o, _ in pairs], [u for _, u in pairs])
            for n, leaf in leaves.items():
                if leaf is None:
                    continue
                if n not in subset:
                    run.require(leaf.grad is None, f"{n} got a gradient it did not ask for")
                elif full[n] is not None:
                    run.require(leaf.grad is not None, f"the gradient of {n} is missing")
                    run.same(f"gradient of {n} in this subset", (leaf.grad,), (full[n],))
            allowed = sum(leaves[n].numel() for n in subset)
            run.require(
                produced.elements <= allowed,
                f"backward computed {produced.elements} elements for {allowed} wanted: {produced.calls}",
            )


def _outputs_alone(
    run: Run, tensors: Tensors, wanted: list[str], part: list[torch.Tensor | None], route: str
) -> None:
    """Gradients when only some outputs are used, against the reference."""
    used = tuple(u is not None for u in part)
    names = ", ".join(n for n, on in zip(run.spec.outputs, used, strict=True) if on)
    run.notes = [f"only {names} used"]

    def compute(upstream: Outputs) -> dict[str, torch.Tensor | None]:
        found = run.gradients(tensors, wanted, upstream, route=route)
        return {n: torch.zeros_like(tensors[n]) if g is None else g for n, g in found.items()}

    gradient_rule(run, tensors, wanted, compute, used, f"gradient with only {names} used")


def _nonempty(items: Sequence) -> Iterator[tuple]:
    items = list(items)
    for size in range(1, len(items) + 1):
        yield from itertools.combinations(items, size)


@check("adjoint", grad_cases)
def adjoint(run: Run) -> None:
    """<J v, u> = <v, J' u> with J from the reference's forward mode and J' from the operator's backward."""
    wanted = data.differentiable(run.case)
    tensors = run.inputs()
    reference = run.function(wanted, tensors, route="reference")
    primals = tuple(tensors[n].detach() for n in wanted)
    directions = tuple(data.fill(data.Arg(tuple(p.shape)), 17 + i) for i, p in enumerate(primals))
    outputs, pushed = torch.func.jvp(reference, primals, directions)
    upstream = data.cotangents(outputs, run.seed)
    grads = run.gradients(tensors, wanted, upstream, route=run.extra["route"])
    left = sum(float((p * u).sum()) for p, u in zip(pushed, upstream, strict=True))
    right = sum(
        float((v * grads[n]).sum()) for v, n in zip(directions, wanted, strict=True) if grads[n] is not None
    )
    scale = sum(float((p * u).abs().sum()) for p, u in zip(pushed, upstream, strict=True))
    run.require(
        abs(left - right) <= 1e-11 * max(scale, 1.0),
        f"<Jv, u> = {left:.15g} but <v, J'u> = {right:.15g}",
    )


@check("retain_graph", first_core)
def retain_graph(run: Run) -> None:
    """A second backward over a retained graph gives the same gradients; without retaining it raises."""
    if not run.spec.differentiable:
        return
    wanted = data.differentiable(run.case)
    for route in run.spec.grad_routes():
        tensors = run.inputs(grad=wanted)
        outputs = [o for o in run.call(tensors, route=route) if o.requires_grad]
        upstream = data.cotangents(tuple(outputs), run.seed)
        leaves = [tensors[n] for n in wanted]
        first = torch.autograd.grad(outputs, leaves, upstream, retain_graph=True)
        second = torch.autograd.grad(outputs, leaves, upstream)
        for n, a, b in zip(wanted, first, second, strict=True):
            run.require(ulp.same_values(a, b), f"{route}: the second backward gives another gradient of {n}")
        try:
            torch.autograd.grad(outputs, leaves, upstream)
        except RuntimeError:
            continue
        run.fail(f"{route}: a backward over a freed graph must raise")
