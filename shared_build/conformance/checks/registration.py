"""What the dispatcher knows: schema, fake kernels against real ones, opcheck, CUDA fakes on a CPU box."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from .. import data, layouts
from ..registry import Variant, check
from ..run import Run, as_tuple
from ..spec import Call, Spec
from .values import core_cases, short

# rtol = atol = 0 would silently mean default tolerances.
EXACT = 1e-300


def laid_out(spec: Spec) -> Iterator[Variant]:
    """Core cases in the layouts that decide about fake strides; all of them in the slow tier."""
    if spec.dispatch is None:
        return
    for index, base in enumerate(core_cases(spec)):
        for layout in ("contiguous", *layouts.LAYOUTS):
            if layout != "contiguous" and not _any_applies(base, layout):
                continue
            first = index == 0 and layout in ("contiguous", "transposed", "expanded", "odd_strides")
            slow = base.slow or base.dtype != torch.float32 or not (first or layout == "contiguous")
            yield Variant(f"{base.id}-{layout}", base.case, base.dtype, {"layout": layout}, slow)
    for case in spec.select("empty"):
        yield Variant(f"{case.id}-contiguous", case, torch.float32, {"layout": "contiguous"})


def _any_applies(base: Variant, layout: str) -> bool:
    given = [arg for arg in base.case.args.values() if arg is not None]
    return any(layouts.LAYOUTS[layout](torch.zeros(arg.shape)) is not None for arg in given)


def _calls(run: Run, grad: bool = False) -> list[Call]:
    layout = run.extra["layout"]
    placed = {} if layout == "contiguous" else dict.fromkeys(run.case.args, layout)
    if layout.startswith("expanded"):  # writing through a stride of zero is the subject of `overlap`
        placed = {name: kind for name, kind in placed.items() if name not in run.spec.mutates}
    wanted = data.differentiable(run.case) if grad else []
    return list(run.spec.dispatch(run.inputs(layout=placed, grad=wanted), run.options()))


@check("opcheck", laid_out, marks=("compile",))
def opcheck(run: Run) -> None:
    """torch.library.opcheck on every operator of the call: bit-exact without gradients, then with them.

    Gradients of backward operators go through plain PyTorch, whose sums depend on the layout: default
    tolerances there.
    """
    for grad in (False, True):
        for call in _calls(run, grad):
            if grad and not (call.differentiable and run.spec.differentiable):
                continue
            label = f"{call.op}{' with gradients' if grad else ''}"
            tolerance = {} if grad else {"rtol": EXACT, "atol": EXACT}
            try:
                torch.library.opcheck(call.op, call.args, dict(call.kwargs), **tolerance)
            except Exception as error:
                run.fail(f"opcheck of {label}: {type(error).__name__}: {error}")


@check("fake", laid_out)
def fake(run: Run) -> None:
    """Fake results equal real ones in shape, strides, offset, dtype and device, backward operators too."""
    for call in _calls(run):
        real = _flat(call.op(*_fresh(call.args), **call.kwargs))
        with FakeTensorMode(allow_non_fake_inputs=False) as mode:
            args = pytree.tree_map_only(torch.Tensor, mode.from_tensor, call.args)
            pretended = _flat(call.op(*args, **call.kwargs))
        run.require(
            len(real) == len(pretended), f"{call.op}: {len(pretended)} fake results, {len(real)} real"
        )
        for index, (a, b) in enumerate(zip(pretended, real, strict=True)):
            run.require(
                (a is None) == (b is None), f"{call.op}: result {index} is {a} when fake, {b} when real"
            )
            if a is None:
                continue
            for what in ("shape", "dtype", "device"):
                x, y = getattr(a, what), getattr(b, what)
                run.require(x == y, f"{call.op}: result {index} has {what} {x} when fake, {y} when real")
            if b.numel():
                x, y = (a.stride(), a.storage_offset()), (b.stride(), b.storage_offset())
                run.require(x == y, f"{call.op}: result {index} has strides {x} when fake, {y} when real")


def _fresh(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return pytree.tree_map_only(torch.Tensor, layouts.copy_with_layout, args)


def _flat(result: Any) -> list[torch.Tensor | None]:
    return list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]


def cuda_fakes(spec: Spec) -> Iterator[Variant]:
    for base in core_cases(spec):
        yield Variant(base.id, base.case, base.dtype, slow=base.slow)


@check("fake_cuda", cuda_fakes)
def fake_cuda(run: Run) -> None:
    """On a machine without CUDA, fake CUDA tensors go through: results on the device, right shapes.

    Forward only: gradients of fake CUDA tensors abort a process without CUDA.
    """
    expected = run.call(run.inputs())
    with FakeTensorMode():
        tensors = {
            n: t if t is None else torch.empty(t.shape, dtype=t.dtype, device="cuda")
            for n, t in run.tensors.items()
        }
        got = as_tuple(run.spec.op(**tensors, **run.options()))
    for name, a, b in zip(run.spec.outputs, got, expected, strict=True):
        run.require(a.device.type == "cuda", f"{name} is on {a.device}")
        same = (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        run.require(same, f"{name}: fake {a.dtype} {tuple(a.shape)}, real {b.dtype} {tuple(b.shape)}")


def first_call(spec: Spec) -> Iterator[Variant]:
    if spec.dispatch is not None:
        for case in spec.select("core")[:1]:
            yield Variant(f"{case.id}-{short(torch.float32)}", case, torch.float32, {"layout": "contiguous"})


@check("schema", first_call)
def schema(run: Run) -> None:
    """Schemas declare what the operators do.

    Mutated arguments and only those are marked, operators that write return nothing, and tensor lists (whose
    items autograd does not see) do not occur.
    """
    for call in _calls(run):
        found = call.op._schema
        written = {a.name for a in found.arguments if a.alias_info is not None and a.alias_info.is_write}
        for argument in found.arguments:
            kind = str(argument.type)
            run.require("List[Tensor" not in kind and "Tensor[]" not in kind, f"{found}: a list of tensors")
        if written:
            run.require(not found.returns, f"{found}: an operator that writes must return ()")
            run.require(written == set(run.spec.mutates), f"{found} writes {written}, not {run.spec.mutates}")
        else:
            run.require(
                all(r.alias_info is None for r in found.returns), f"{found}: a result aliases an argument"
            )
            changed = _versions_and_values(call)
            run.require(not changed, f"{found} changed argument {changed} without declaring it")


def _versions_and_values(call: Call) -> list[int]:
    copies = _fresh(call.args)
    before = pytree.tree_map_only(torch.Tensor, torch.clone, copies)
    call.op(*copies, **call.kwargs)
    return [
        i
        for i, (now, old) in enumerate(zip(copies, before, strict=True))
        if isinstance(now, torch.Tensor) and not torch.equal(now.nan_to_num(), old.nan_to_num())
    ]
