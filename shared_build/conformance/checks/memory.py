"""What happens to memory: inputs untouched, outputs fresh, every element written, nothing kept alive."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator

import psutil
import torch

from .. import data, layouts, ulp
from ..registry import Variant, check
from ..run import Outputs, Run, difference, poisoned
from ..spec import Spec
from .values import all_cases, first_core, sized

ITERATIONS = 200
LEAK_BYTES = 128 * 1024  # per iteration, so a leak of one tensor shows as 25 MiB


@check("inputs_untouched", all_cases)
def inputs_untouched(run: Run) -> None:
    """No input that is not declared as mutated changes by a single bit, forward or backward.

    Copies are compared whole, gaps included; where this torch has copy-on-write tensors, asking for a
    writable pointer is a failure even if nothing was written.
    """
    tensors = run.inputs(layout={n: "pitched" for n, a in run.case.args.items() if a and len(a.shape) > 1})
    kept = {n: t for n, t in tensors.items() if t is not None and n not in run.spec.mutates}
    before = {n: layouts.whole_buffer(t).clone() for n, t in kept.items()}
    versions = {n: t._version for n, t in kept.items()}
    outputs = run.call(tensors)
    upstream = data.cotangents(outputs, run.seed)
    before_upstream = [u.clone() for u in upstream]
    wanted = data.differentiable(run.case)
    if run.spec.differentiable and wanted:
        run.gradients(tensors, wanted, upstream)
    for name, tensor in kept.items():
        now = layouts.whole_buffer(tensor)
        if not ulp.same_values(now, before[name]):
            run.fail(f"{name} was modified{difference(now, before[name])}")
        run.require(tensor._version == versions[name], f"the version of {name} changed")
    for u, saved in zip(upstream, before_upstream, strict=True):
        run.require(ulp.same_values(u, saved), "an upstream gradient was modified")
    if hasattr(torch, "_lazy_clone") and hasattr(torch._C, "_is_cow_tensor"):
        clones = {n: torch._lazy_clone(t.contiguous()) for n, t in kept.items()}
        given = dict(run.inputs()) | clones
        if not run.spec.mutates:
            run.call(given)
            for name, clone in clones.items():
                cow = torch._C._is_cow_tensor(clone)
                run.require(cow, f"{name} was asked for a writable pointer (its copy-on-write clone copied)")


@check("outputs_fresh", all_cases)
def outputs_fresh(run: Run) -> None:
    """Outputs share no memory with inputs or each other, are contiguous, exactly sized and of version 0.

    The .grad tensors a backward leaves behind share no memory either. Outputs that require a gradient can
    be modified in place independently of each other.
    """
    if run.spec.mutates:
        return
    tensors = run.inputs()
    outputs = run.call(tensors)
    expected = run.eager(tensors)
    for name, out, like in zip(run.spec.outputs, outputs, expected, strict=True):
        run.require(out.is_contiguous(), f"{name} is not contiguous: strides {out.stride()}")
        run.require(out.device == like.device, f"{name} is on {out.device}")
        run.require(out._version == 0, f"{name} has version {out._version}")
        size = out.untyped_storage().nbytes()
        exact = out.numel() * out.element_size()
        run.require(size == exact, f"{name} keeps {size} bytes for {exact} bytes of elements")
    named = dict(zip(run.spec.outputs, outputs, strict=True))
    separate(run, named, {n: t for n, t in tensors.items() if t is not None})
    wanted = data.differentiable(run.case)
    if run.spec.differentiable and wanted:
        leaves = run.inputs(grad=wanted)
        results = run.call(leaves)
        pairs = [(o, u) for o, u in zip(results, data.cotangents(results, 0), strict=True) if o.requires_grad]
        torch.autograd.backward([o for o, _ in pairs], [u for _, u in pairs])
        grads = {f"gradient of {n}": leaves[n].grad for n in wanted if leaves[n].grad is not None}
        others = {n: t for n, t in leaves.items() if t is not None}
        others |= {f"upstream gradient {i}": u for i, (_, u) in enumerate(pairs)}
        separate(run, grads, others)


def separate(run: Run, own: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    """Fail if two tensors of `own`, or one of `own` and one of `others`, share a storage."""
    seen: dict[int, str] = {}
    for name, tensor in [*others.items(), *own.items()]:
        pointer = tensor.detach().untyped_storage().data_ptr()
        if pointer == 0:
            continue
        if name in own and pointer in seen:
            run.fail(f"{name} shares memory with {seen[pointer]}")
        seen[pointer] = name


@check("poison", all_cases)
def poison(run: Run) -> None:
    """With every new allocation filled with NaN, values and gradients keep their bits."""
    tensors = run.inputs()
    expected = run.call(tensors)
    wanted = data.differentiable(run.case) if run.spec.differentiable else []
    grads = run.gradients(tensors, wanted) if wanted else {}
    with poisoned():
        got = run.call(tensors)
        poisoned_grads = run.gradients(tensors, wanted) if wanted else {}
    # Against the reference too: an element that is never written may hold the same rubbish twice.
    for name, a, e in zip(run.spec.outputs, got, run.eager(tensors), strict=True):
        stray = a.isnan() & ~e.isnan()
        run.require(not stray.any(), f"{name}: {int(stray.sum())} elements were never written")
    run.same("in poisoned memory", got, expected)
    for name in wanted:
        if grads[name] is not None:
            run.same(f"gradient of {name} in poisoned memory", (poisoned_grads[name],), (grads[name],))


@check("no_cycle", first_core)
def no_cycle(run: Run) -> None:
    """Outputs die with their last reference, without the garbage collector, before and after backward."""
    if not run.spec.differentiable:
        return
    wanted = data.differentiable(run.case)
    for route in run.spec.grad_routes():
        for with_backward in (False, True):
            enabled = gc.isenabled()
            gc.collect()
            gc.disable()
            try:
                outputs: Outputs | None = run.call(run.inputs(grad=wanted), route=route)
                watchers = [weakref.ref(o) for o in outputs if o.requires_grad]
                if with_backward:
                    sum(o.double().sum() for o in outputs if o.requires_grad).backward()
                del outputs
                run.tensors = {}
                alive = sum(w() is not None for w in watchers)
            finally:
                if enabled:
                    gc.enable()
            when = "after backward" if with_backward else "without backward"
            run.require(watchers, f"{route}: no output requires a gradient")
            run.require(not alive, f"{route}: {alive} outputs stay alive {when}: a reference cycle")


def resident() -> int:
    """Return the resident bytes of the process, without the free memory that the allocator holds on to.

    With it a leak could hide: what leaks would fill the room that earlier work left behind.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return psutil.Process().memory_info().rss


def leak_cases(spec: Spec) -> Iterator[Variant]:
    if spec.family is not None:
        yield Variant("memory", spec.select("core")[0], torch.float32)


@check("leaks", leak_cases)
def leaks(run: Run) -> None:
    """200 forward and backward passes leave the resident memory of the process flat."""
    family = run.spec.family
    first = next(iter(family.sizes))
    sizes = {name: bounds[1] for name, bounds in family.sizes.items()}
    options = {name: values[0] for name, values in family.options.items()}
    small = sum(torch.Size(a.shape).numel() for a in family.build(sizes, options).values() if a) * 4
    sizes[first] *= max(1, LEAK_BYTES // small)
    run.case = sized(family, sizes, options)
    wanted = data.differentiable(run.case)
    tensors = run.inputs()

    def once() -> None:
        if run.spec.differentiable and wanted:
            run.gradients(tensors, wanted)
        else:
            run.call(tensors)

    for _ in range(20):
        once()
    before = resident()
    for _ in range(ITERATIONS):
        once()
    grown = resident() - before
    run.require(
        grown < ITERATIONS * LEAK_BYTES // 4,
        f"resident memory grew by {grown / 2**20:.1f} MiB in {ITERATIONS} passes",
    )
