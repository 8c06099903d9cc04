"""Checks that need a GPU. They are the same on every machine; without a device they are skipped.

Where a package has no CUDA kernels (`Spec.cuda` false), the only claim is a clear error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from .. import data, layouts, machine, reasons
from ..registry import SpecVariants, Variant, check
from ..run import Outputs, Run, poisoned
from ..spec import Spec
from .autograd import differentiable_cases
from .layouts import argument_layouts, gradient_layouts
from .memory import poison
from .rules import forward_rule, gradient_rule
from .threads import parallel_cases
from .values import all_cases, core_cases, first_core, sized

RACE_REPEATS = 250
MARKS = ("cuda",)


def on_cuda(over: SpecVariants, *, devices: int = 1) -> SpecVariants:
    """The variants of a CPU check on the CUDA device; none for a spec that has no CUDA kernels."""

    def variants(spec: Spec) -> Iterator[Variant]:
        skip = machine.no_cuda()
        if skip is None and torch.cuda.device_count() < devices:
            skip = reasons.ONE_CUDA
        for v in over(spec) if spec.cuda else ():
            yield Variant(v.id, v.case, v.dtype, v.extra, v.slow, v.skip or skip, "cuda")

    return variants


def _gradients(run: Run) -> Outputs:
    wanted = data.differentiable(run.case) if run.spec.differentiable else []
    found = run.gradients(run.tensors, wanted).values() if wanted else ()
    return tuple(g for g in found if g is not None)


def _all(run: Run) -> Outputs:
    return (*run.call(run.tensors), *_gradients(run))


@check("cuda_golden", on_cuda(all_cases), marks=MARKS)
def cuda_golden(run: Run) -> None:
    """Values on the device obey the error rule."""
    for out in forward_rule(run, run.inputs()):
        run.require(out.device.type == run.device, f"a result is on {out.device}, not on {run.device}")


@check("cuda_gradients", on_cuda(differentiable_cases), marks=MARKS)
def cuda_gradients(run: Run) -> None:
    """Gradients on the device obey the error rule."""
    tensors = run.inputs()
    wanted = data.differentiable(run.case)
    gradient_rule(run, tensors, wanted, lambda upstream: run.gradients(tensors, wanted, upstream))


@check("cuda_layouts", on_cuda(argument_layouts), marks=MARKS)
def cuda_layouts(run: Run) -> None:
    """Values and gradients on the device do not depend on the layout of the arguments."""
    strided = run.inputs(layout=run.extra["layout"])
    if any(0 in strided[n].stride() for n in run.spec.mutates if strided[n].numel()):
        return
    got = _all(run)
    run.tensors = {n: t if t is None else layouts.contiguous_copy(t) for n, t in strided.items()}
    run.same("against contiguous arguments", got, _all(run), exact=run.spec.layouts == "exact")


@check("cuda_gradient_layouts", on_cuda(gradient_layouts), marks=MARKS)
def cuda_gradient_layouts(run: Run) -> None:
    """Gradients on the device do not depend on the layout of the upstream gradient."""
    tensors = run.inputs()
    wanted = data.differentiable(run.case)
    plain = data.cotangents(run.call(tensors), run.seed)
    placed = [layouts.lay_out(u, run.extra["layout"]) for u in plain]
    placed = [p if p is not None else u for p, u in zip(placed, plain, strict=True)]
    got = run.gradients(tensors, wanted, placed)
    expected = run.gradients(tensors, wanted, [layouts.contiguous_copy(u) for u in placed])
    for name in wanted:
        run.same(f"gradient of {name}", (got[name],), (expected[name],), exact=run.spec.layouts == "exact")


@check("cuda_poison", on_cuda(all_cases), marks=MARKS)
def cuda_poison(run: Run) -> None:
    """Freshly allocated device memory filled with NaN changes nothing."""
    poison(run)


@check("cuda_repeat", on_cuda(parallel_cases), marks=MARKS)
def cuda_repeat(run: Run) -> None:
    """250 runs of forward and backward give the same bits: no race, no unordered atomics."""
    run.inputs()
    first = _all(run)
    for index in range(RACE_REPEATS):
        run.same(f"repetition {index}", _all(run), first)


@check("cuda_guard", on_cuda(first_core, devices=2), marks=MARKS)
def cuda_guard(run: Run) -> None:
    """Tensors on the second device while the first is current: results there, the current one unchanged."""
    run.inputs()
    expected = _all(run)
    with torch.cuda.device(0):
        run.tensors = {n: t if t is None else t.to("cuda:1") for n, t in run.tensors.items()}
        got = _all(run)
        run.require(torch.cuda.current_device() == 0, "the current device changed")
    run.require(all(o.device.index == 1 for o in got), "a result is on the wrong device")
    run.same("on the second device", tuple(o.to("cuda:0") for o in got), expected)


@check("cuda_stream", on_cuda(core_cases), marks=MARKS)
def cuda_stream(run: Run) -> None:
    """On a side stream behind a long kernel the operator reads what that stream wrote, and only then."""
    run.inputs()
    expected = _all(run)
    sources = dict(run.tensors)
    stream = torch.cuda.Stream()
    run.tensors = {n: t if t is None else torch.full_like(t, 3) for n, t in sources.items()}
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for name, t in sources.items():
            if t is not None:
                run.tensors[name].copy_(t)
        got = _all(run)
    stream.synchronize()
    run.same("on a side stream", got, expected)


@check("cuda_no_sync", on_cuda(core_cases), marks=MARKS)
def cuda_no_sync(run: Run) -> None:
    """Neither forward nor backward synchronises with the host."""
    run.inputs()
    wanted = data.differentiable(run.case) if run.spec.differentiable else []
    upstream = data.cotangents(run.call(run.tensors), run.seed)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run.call(run.tensors)
        if wanted:
            run.gradients(run.tensors, wanted, upstream)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@check("cuda_graph", on_cuda(core_cases), marks=MARKS)
def cuda_graph(run: Run) -> None:
    """Captured in a CUDA graph (forward, and forward with backward) and replayed with other inputs."""
    wanted = data.differentiable(run.case) if run.spec.differentiable else []
    static = run.inputs()
    upstream = data.cotangents(run.call(static), run.seed)

    def step() -> Outputs:
        outputs = run.call(static)
        if not wanted:
            return outputs
        found = run.gradients(static, wanted, upstream).values()
        return (*outputs, *(g for g in found if g is not None))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for name, t in run.inputs(seed=1).items():
        if t is not None:
            static[name].copy_(t)
    graph.replay()
    torch.cuda.synchronize()
    got = tuple(o.clone() for o in captured)
    run.same("replayed with other inputs", got, step())


@check("cuda_offsets", on_cuda(core_cases), marks=MARKS)
def cuda_offsets(run: Run) -> None:
    """At 41 offsets into a buffer of NaN on the device: the same bits, nothing outside written."""
    for name in [n for n, t in run.inputs().items() if t is not None]:
        tensors = run.inputs()
        expected = run.call(tensors)
        for offset in range(41):
            placed = layouts.sliding(tensors[name], offset)
            buffer = layouts.whole_buffer(placed)
            before = buffer.clone()
            got = run.call(run.inputs() | {name: placed})
            run.same(f"{name} at offset {offset}", got, expected)
            run.require(
                torch.equal(buffer.nan_to_num(7.0), before.nan_to_num(7.0)),
                f"{name} at {offset}: overwritten",
            )


def large_variants(spec: Spec) -> Iterator[Variant]:
    if spec.family is not None:
        options = {n: v[0] for n, v in spec.family.options.items()}
        typical = {n: b[1] for n, b in spec.family.sizes.items()}
        for name in spec.family.sizes:
            case = sized(spec.family, typical | {name: 70_001}, options)
            yield Variant(f"grid-{name}", case, torch.float32)


@check("cuda_grid", on_cuda(large_variants), marks=MARKS)
def cuda_grid(run: Run) -> None:
    """More than 65,535 in any dimension: no grid limit is hit silently."""
    forward_rule(run, run.inputs())


def huge_variants(spec: Spec) -> Iterator[Variant]:
    if spec.family is not None and spec.batch:
        options = {n: v[0] for n, v in spec.family.options.items()}
        sizes = {n: b[1] for n, b in spec.family.sizes.items()}
        first = next(iter(sizes))
        per_item = max(
            torch.Size(a.shape).numel() for a in spec.family.build(sizes | {first: 1}, options).values() if a
        )
        case = sized(spec.family, sizes | {first: 2**31 // per_item + 64}, options)
        yield Variant(f"numel-{first}", case, torch.bfloat16, slow=True)


@check("cuda_huge", on_cuda(huge_variants), marks=MARKS)
def cuda_huge(run: Run) -> None:
    """More than 2^31 elements: the last items equal a call on them alone."""
    tensors = {
        n: t if t is None else torch.empty(t.shape, dtype=t.dtype, device=run.device).normal_()
        for n, t in data.materialise(run.case, run.dtype, device="meta").items()
    }
    whole = run.call(tensors)
    part = {
        n: t.narrow(run.spec.batch[n], t.shape[run.spec.batch[n]] - 4, 4) if n in run.spec.batch else t
        for n, t in tensors.items()
        if t is not None
    } | {n: None for n, t in tensors.items() if t is None}
    last = tuple(o.narrow(d, o.shape[d] - 4, 4) for o, d in zip(whole, run.spec.batch_outputs, strict=True))
    run.same("the last four items alone", run.call(part), last)


@check("cuda_autocast", on_cuda(core_cases), marks=MARKS)
def cuda_autocast(run: Run) -> None:
    """Under CUDA autocast the outputs have the dtype of the policy."""
    tensors = run.inputs()
    expected = run.call(tensors)
    with torch.autocast("cuda", torch.float16):
        got = run.call(tensors)
    for name, out, plain in zip(run.spec.outputs, got, expected, strict=True):
        want = plain.dtype if run.spec.autocast == "unchanged" else run.spec.autocast
        run.require(out.dtype == want, f"{name} is {out.dtype} under CUDA autocast, not {want}")


@check("cuda_compiled", on_cuda(first_core), marks=(*MARKS, "compile"))
def cuda_compiled(run: Run) -> None:
    """Compiled by Inductor on the device: eager's values."""
    given = {n: t for n, t in run.inputs().items() if t is not None}
    f = run.function(list(given), dict.fromkeys(run.case.args))
    torch._dynamo.reset()
    got = torch.compile(f, fullgraph=True)(*given.values())
    torch._dynamo.reset()
    run.same("compiled on CUDA", tuple(got), f(*given.values()), exact=False)


def leak_variants(spec: Spec) -> Iterator[Variant]:
    yield from first_core(spec)


@check("cuda_leaks", on_cuda(leak_variants), marks=MARKS)
def cuda_leaks(run: Run) -> None:
    """200 passes leave the allocated device memory exactly as it was."""
    run.inputs()
    for _ in range(5):
        _all(run)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with poisoned():
        for _ in range(200):
            _all(run)
    torch.cuda.synchronize()
    grown = torch.cuda.memory_allocated() - before
    run.require(grown == 0, f"device memory grew by {grown} bytes in 200 passes")


def no_kernels(spec: Spec) -> Iterator[Variant]:
    if not spec.cuda:
        for v in first_core(spec):
            yield Variant(v.id, v.case, v.dtype, v.extra, v.slow, machine.no_cuda(), "cuda")


@check("cuda_refused", no_kernels, marks=MARKS)
def cuda_refused(run: Run) -> None:
    """A package without CUDA kernels says so when it is given a CUDA tensor, and how to get them."""
    try:
        run.call(run.inputs())
    except Exception as error:
        told = re.search(r"CUDA", str(error)) and re.search(r"build|install", str(error))
        run.require(told, f"the error does not say how to get CUDA kernels: {error}")
        return
    run.fail("a CUDA tensor was accepted by a package without CUDA kernels")
