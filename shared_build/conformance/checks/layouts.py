"""Layout, offset and neighbour independence of every argument and of every upstream gradient."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .. import data, layouts
from ..registry import Variant, check
from ..run import Run
from ..spec import Spec, Tensors
from .values import core_cases

OFFSETS = 41


def argument_layouts(spec: Spec) -> Iterator[Variant]:
    """Each argument alone and all together in each layout that its rank allows."""
    for base in core_cases(spec):
        given = {name: arg for name, arg in base.case.args.items() if arg is not None}
        for name in [*given, "all"]:
            for layout in layouts.LAYOUTS:
                names = list(given) if name == "all" else [name]
                if not any(_applies(given[n].shape, layout) for n in names):
                    continue
                slow = base.slow or (name != "all" and base.dtype != torch.float32)
                extra = {"layout": dict.fromkeys(names, layout)}
                yield Variant(f"{base.id}-{name}-{layout}", base.case, base.dtype, extra, slow)


def _applies(shape: tuple[int, ...], layout: str) -> bool:
    return layouts.LAYOUTS[layout](torch.zeros(shape)) is not None


def contiguous(tensors: Tensors) -> Tensors:
    """Contiguous copies of all arguments."""
    return {name: t if t is None else layouts.contiguous_copy(t) for name, t in tensors.items()}


@check("layouts", argument_layouts)
def argument_layout(run: Run) -> None:
    """Values and gradients do not depend on the memory layout of the arguments."""
    strided = run.inputs(layout=run.extra["layout"])
    if run.spec.mutates and any(0 in strided[n].stride() for n in run.spec.mutates if strided[n].numel()):
        return  # writing through a stride of zero is the subject of the check `overlap`
    dense = contiguous(strided)
    exact = run.spec.layouts == "exact"
    run.same("against contiguous arguments", run.call(strided), run.call(dense), exact=exact)
    wanted = data.differentiable(run.case)
    if run.spec.differentiable and wanted:
        for route in run.spec.grad_routes():
            got = run.gradients(strided, wanted, route=route)
            expected = run.gradients(dense, wanted, route=route)
            for name in wanted:
                label = f"{route}: gradient of {name} against contiguous arguments"
                run.same(label, (got[name],), (expected[name],), exact=exact)


@check("views", core_cases)
def views(run: Run) -> None:
    """Gradients of strided views scatter back to the right places of their base."""
    if not run.spec.differentiable:
        return
    dense = run.inputs()
    wanted = data.differentiable(run.case)
    expected = run.gradients(dense, wanted)
    for layout in ("transposed", "pitched", "step2"):
        strided = run.inputs(layout=dict.fromkeys(wanted, layout))
        bases = {n: layouts.whole_buffer(strided[n]).clone().requires_grad_() for n in wanted}
        given = dict(strided)
        for n in wanted:
            t = strided[n]
            given[n] = bases[n].as_strided(tuple(t.shape), t.stride(), t.storage_offset())
        outputs = run.call(given)
        upstream = data.cotangents(outputs, run.seed)
        pairs = [(o, u) for o, u in zip(outputs, upstream, strict=True) if o.requires_grad]
        run.require(pairs, "no output requires a gradient")
        found = torch.autograd.grad([o for o, _ in pairs], list(bases.values()), [u for _, u in pairs])
        for n, grad in zip(wanted, found, strict=True):
            t = strided[n]
            part = grad.as_strided(tuple(t.shape), t.stride(), t.storage_offset())
            label = f"gradient of a {layout} view of {n}"
            run.same(label, (part.contiguous(),), (expected[n],), exact=run.spec.layouts == "exact")
            rest = grad.clone()
            rest.as_strided(tuple(t.shape), t.stride(), t.storage_offset()).zero_()
            run.require(not rest.any(), f"{label} reached elements outside the view")


def gradient_layouts(spec: Spec) -> Iterator[Variant]:
    if not spec.differentiable:
        return
    for base in core_cases(spec):
        for layout in layouts.LAYOUTS:
            slow = base.slow or base.dtype != torch.float32
            yield Variant(f"{base.id}-{layout}", base.case, base.dtype, {"layout": layout}, slow)


@check("gradient_layouts", gradient_layouts)
def gradient_layout(run: Run) -> None:
    """Gradients do not depend on the layout of the upstream gradient, on either route."""
    tensors = run.inputs()
    wanted = data.differentiable(run.case)
    exact = run.spec.layouts == "exact"
    outputs = run.call(tensors)
    upstream = [layouts.lay_out(u, run.extra["layout"]) for u in data.cotangents(outputs, run.seed)]
    upstream = [u if u is not None else c for u, c in zip(upstream, data.cotangents(outputs, 0), strict=True)]
    dense = [layouts.contiguous_copy(u) for u in upstream]
    for route in run.spec.grad_routes():
        got = run.gradients(tensors, wanted, upstream, route=route)
        expected = run.gradients(tensors, wanted, dense, route=route)
        for name in wanted:
            label = f"{route}: gradient of {name} for an upstream gradient that is {run.extra['layout']}"
            run.same(label, (got[name],), (expected[name],), exact=exact)


@check("gradient_consumers", core_cases)
def gradient_consumers(run: Run) -> None:
    """The upstream gradients that sum(), a transpose, cat+narrow and indexing hand over."""
    if not run.spec.differentiable:
        return
    consumers = {
        "sum": lambda t: t.sum(),
        "sum(0)": lambda t: (t.sum(0) * torch.arange(1, t[0].numel() + 1).reshape(t.shape[1:])).sum(),
        "transpose": lambda t: (t.transpose(0, -1) * t.transpose(0, -1).detach().contiguous()).sum(),
        "cat+narrow": lambda t: (torch.cat([t, 2 * t], -1).narrow(-1, 1, t.shape[-1]) ** 2).sum(),
        "select": lambda t: t.select(-1, t.shape[-1] // 2).sum(),
    }
    tensors = run.inputs()
    wanted = data.differentiable(run.case)
    for label, consume in consumers.items():
        run.notes = [f"consumer {label}"]
        values = run.call({n: t if t is None else t.detach() for n, t in tensors.items()})
        probes = [v.detach().requires_grad_() for v in values]
        upstream = torch.autograd.grad(sum(consume(p).double() for p in probes), probes)
        expected = run.gradients(tensors, wanted, [layouts.contiguous_copy(u) for u in upstream])
        leaves = {n: t if t is None else t.detach().requires_grad_(n in wanted) for n, t in tensors.items()}
        loss = sum(consume(out).double() for out in run.call(leaves))
        found = torch.autograd.grad(loss, [leaves[n] for n in wanted])
        got = tuple(found)
        run.same(f"gradients below {label}", got, tuple(expected.values()), exact=run.spec.layouts == "exact")


def offset_cases(spec: Spec) -> Iterator[Variant]:
    for base in core_cases(spec):
        for name, arg in base.case.args.items():
            if arg is not None:
                extra = {"name": name}
                yield Variant(f"{base.id}-{name}", base.case, base.dtype, extra, base.slow)


@check("offsets", offset_cases)
def offsets(run: Run) -> None:
    """At 41 offsets into a buffer of NaN: the same bits, nothing outside read or written.

    Covers alignment, vector tails and overruns inside one storage, which no sanitizer sees.
    """
    name = run.extra["name"]
    tensors = run.inputs()
    expected = run.call(tensors)
    for offset in range(OFFSETS):
        placed = layouts.sliding(tensors[name], offset)
        buffer = layouts.whole_buffer(placed)
        around = torch.ones(buffer.numel(), dtype=torch.bool)
        around[offset : offset + placed.numel()] = name not in run.spec.mutates
        before = _bits(buffer).clone()
        given = run.inputs() | {name: placed}
        if run.spec.mutates:
            result = run.spec.op(**given, **run.options())
            got = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        else:
            got = run.call(given)
        run.same(f"{name} at offset {offset} of a poisoned buffer", got, expected)
        changed = (_bits(buffer) != before) & around
        if changed.any():
            where = int(changed.nonzero()[0]) - offset
            run.fail(f"{name} at offset {offset}: element {where} relative to its start was overwritten")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    views = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(views[tensor.element_size()])
