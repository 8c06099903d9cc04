"""Functions that write their arguments: what is written, what is told to autograd, and what overlaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from .. import data, layouts, ulp
from ..registry import Variant, check
from ..run import Run, as_tuple
from ..spec import Spec, Tensors
from .values import core_cases, first_core


def mutating(spec: Spec) -> Iterator[Variant]:
    if spec.mutates:
        yield from core_cases(spec)


def mutating_once(spec: Spec) -> Iterator[Variant]:
    if spec.mutates:
        yield from first_core(spec)


def routed(spec: Spec) -> Iterator[Variant]:
    for base in mutating_once(spec):
        for route in spec.routes():
            yield Variant(f"{base.id}-{route}", base.case, base.dtype, {"route": route}, base.slow)


def _call(run: Run, tensors: Tensors, route: str = "public") -> None:
    run.spec.routes()[route](**tensors, **run.options())


@check("mutation", mutating)
def mutation(run: Run) -> None:
    """The declared arguments change to the reference's values, are what is returned, and count a version."""
    tensors = run.inputs()
    expected = run.eager(tensors)
    golden = run.golden(tensors)
    versions = {n: t._version for n, t in tensors.items() if t is not None}
    before = {n: t.clone() for n, t in tensors.items() if t is not None}
    result = as_tuple(run.spec.op(**tensors, **run.options()))
    for name, out, e, g in zip(run.spec.mutates, result, expected, golden, strict=True):
        run.require(out is tensors[name], f"the returned {name} is not the argument itself")
        run.require(
            not ulp.same_values(tensors[name], before[name]), f"{name} was declared but never written"
        )
        run.judge(name, tensors[name], g, e.to(tensors[name].dtype), "forward")
    for name, tensor in tensors.items():
        if tensor is not None:
            bumped = tensor._version > versions[name]
            declared = name in run.spec.mutates
            run.require(bumped == declared, f"{name}: version {versions[name]} -> {tensor._version}")


@check("mutation_autograd", routed)
def mutation_autograd(run: Run) -> None:
    """Leaves that require gradients are refused; a tensor saved by an earlier operator cannot be lost.

    Where the function has no gradient, any argument that needs one in grad mode is refused; under no_grad
    all of them are accepted.
    """
    route = run.extra["route"]
    records = route in run.spec.grad_routes()
    refused = list(run.spec.mutates) if records else data.differentiable(run.case)
    for name in refused:
        tensors = run.inputs(grad=[name])
        before = {n: t.detach().clone() for n, t in tensors.items() if t is not None}
        try:
            _call(run, tensors, route)
        except (RuntimeError, ValueError):
            for n, saved in before.items():
                same = ulp.same_values(tensors[n].detach(), saved)
                run.require(same, f"{n} was written before {name} was refused")
        else:
            run.fail(f"{name} requires a gradient and the call was accepted")
        with torch.no_grad():
            _call(run, run.inputs(grad=[name]), route)
    for name in run.spec.mutates:
        tensors = run.inputs()
        source = tensors[name].float().requires_grad_()
        saving = source.exp()  # exp saves its result
        given = dict(tensors) | {name: saving.detach()}
        if given[name].dtype == tensors[name].dtype:
            _call(run, given, route)
            try:
                saving.sum().backward()
            except RuntimeError as error:
                run.require("modified by an inplace operation" in str(error), str(error))
            else:
                run.fail(
                    f"{name} was saved by an earlier operator, was overwritten, and backward said nothing"
                )


@check("mutation_views", mutating_once)
def mutation_views(run: Run) -> None:
    """Written through a view, the base changes there and nowhere else."""
    for name in run.spec.mutates:
        for layout in ("pitched", "step2", "transposed", "misaligned"):
            tensors = run.inputs(layout={name: layout})
            expected = run.call(tensors)
            base = layouts.whole_buffer(tensors[name])
            before = base.clone()
            _call(run, tensors)
            index = list(run.spec.mutates).index(name)
            run.same(
                f"{name} as a {layout} view", (tensors[name].contiguous(),), (expected[index].contiguous(),)
            )
            outside = torch.ones(base.numel(), dtype=torch.bool)
            t = tensors[name]
            outside.as_strided(tuple(t.shape), t.stride(), t.storage_offset()).fill_(False)
            now, old = base[outside], before[outside]
            run.require(
                ulp.same_values(now, old), f"{name} as a {layout} view: elements outside were written"
            )


@check("overlap", routed)
def overlap(run: Run) -> None:
    """Mutated arguments that share memory with another argument or with themselves are refused."""
    route = run.extra["route"]
    for name in run.spec.mutates:
        for label, make in _overlaps(run, name).items():
            tensors = make()
            if tensors is None:
                continue
            buffers = [layouts.whole_buffer(t) for t in tensors.values() if t is not None]
            before = [b.clone() for b in buffers]
            try:
                _call(run, tensors, route)
            except (ValueError, RuntimeError):
                for b, old in zip(buffers, before, strict=True):
                    run.require(ulp.same_values(b, old), f"{name}, {label}: written before it was refused")
                run.require(
                    run.spec.overlap == "raises", f"{name}, {label}: claimed as allowed, but it raises"
                )
            else:
                run.require(
                    run.spec.overlap == "allowed", f"{name}, {label}: accepted, though memory overlaps"
                )


def _overlaps(run: Run, name: str) -> dict[str, Callable[[], Tensors | None]]:
    """Ways in which the mutated argument can overlap, as functions that make the arguments."""

    def twins() -> list[str]:
        tensors = run.inputs()
        like = tensors[name]
        return [
            n
            for n, t in tensors.items()
            if n != name and t is not None and t.shape == like.shape and t.dtype == like.dtype
        ]

    def same(other: str) -> Tensors:
        tensors = run.inputs()
        tensors[other] = tensors[name]
        return tensors

    def shifted(other: str) -> Tensors:
        tensors = run.inputs()
        t = tensors[name]
        buffer = torch.randn(t.numel() + 1).to(t.dtype)
        tensors[name], tensors[other] = buffer[:-1].view(t.shape), buffer[1:].view(t.shape)
        return tensors

    def itself() -> Tensors | None:
        tensors = run.inputs()
        placed = layouts.lay_out(tensors[name], "expanded")
        if placed is None or placed.shape[0] < 2:
            return None
        return tensors | {name: placed}

    ways: dict[str, Callable[[], Tensors | None]] = {"expanded": itself}
    for other in twins():
        ways[f"the same tensor as {other}"] = lambda other=other: same(other)
        ways[f"one element past {other}"] = lambda other=other: shifted(other)
    return ways


def compiled_variants(spec: Spec) -> Iterator[Variant]:
    for base in mutating_once(spec):
        for backend in ("aot_eager", "inductor"):
            slow = base.slow
            yield Variant(f"{base.id}-{backend}", base.case, base.dtype, {"backend": backend}, slow)


@check("mutation_compiled", compiled_variants, marks=("compile",))
def mutation_compiled(run: Run) -> None:
    """Compiled equals eager, inputs included: arguments, views of graph inputs, reads before and after."""
    mutates = run.spec.mutates

    def program(bases: dict[str, torch.Tensor], rest: Tensors) -> list[torch.Tensor]:
        views = {n: bases[n][1:-1] if n in mutates else bases[n] for n in bases}
        read_before = [views[n] * 2 for n in mutates]
        run.spec.op(**views, **rest, **run.options())
        return [*read_before, *(views[n] + 1 for n in mutates), *(bases[n] * 3 for n in mutates)]

    def inputs() -> tuple[dict[str, torch.Tensor], Tensors]:
        tensors = run.inputs()
        given = {n: t for n, t in tensors.items() if t is not None}
        for n in mutates:
            t = given[n]
            given[n] = torch.cat([t[:1], t, t[:1]])
        return given, {n: t for n, t in tensors.items() if t is None}

    torch._dynamo.reset()
    compiled_bases, rest = inputs()
    try:
        got = torch.compile(program, fullgraph=True, backend=run.extra["backend"])(compiled_bases, rest)
    except Exception as error:
        run.fail(f"{type(error).__name__}: {error}")
    finally:
        torch._dynamo.reset()
    eager_bases, rest = inputs()
    expected = program(eager_bases, rest)
    run.same("compiled against eager", tuple(got), tuple(expected))
    for name in eager_bases:
        run.same(f"{name} after the compiled call", (compiled_bases[name],), (eager_bases[name],))
