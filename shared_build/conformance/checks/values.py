"""Forward values against the float64 golden: all cases, degenerate sizes, special values, 64-bit strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from .. import data, machine, ulp
from ..registry import Variant, check
from ..run import Outputs, Run, as_tuple, poisoned
from ..spec import Case, Family, Spec
from .rules import forward_rule, gradient_rule


def short(dtype: torch.dtype) -> str:
    """float32 and the like."""
    return str(dtype).removeprefix("torch.")


def all_cases(spec: Spec) -> Iterator[Variant]:
    """Every case in every dtype."""
    for case in spec.cases:
        for dtype in spec.dtypes_of(case):
            yield Variant(f"{case.id}-{short(dtype)}", case, dtype)


def core_cases(spec: Spec) -> Iterator[Variant]:
    """The core cases: float32 and bfloat16 always, the other dtypes in the slow tier."""
    for case in spec.select("core"):
        for dtype in spec.dtypes_of(case):
            slow = dtype not in (torch.float32, torch.bfloat16)
            yield Variant(f"{case.id}-{short(dtype)}", case, dtype, slow=slow)


def first_core(spec: Spec) -> Iterator[Variant]:
    """One core case in float32; the others in the slow tier."""
    for index, case in enumerate(spec.select("core")):
        yield Variant(case.id, case, torch.float32, slow=index > 0)


@check("golden", all_cases)
def golden(run: Run) -> None:
    """Values obey the error rule; dtype and shape are the reference's."""
    forward_rule(run, run.inputs())


def float64_cases(spec: Spec) -> Iterator[Variant]:
    if torch.float64 in spec.dtypes:
        for case in spec.cases:
            if torch.float64 in spec.dtypes_of(case):
                yield Variant(case.id, case, torch.float64)


@check("float64", float64_cases)
def float64(run: Run) -> None:
    """In float64 the operator equals the golden to 1e-12: no float32 accumulator, no float literal."""
    tensors = run.inputs()
    for name, got, expected in zip(run.spec.outputs, run.call(tensors), run.golden(tensors), strict=True):
        run.close(name, got, expected)
    wanted = data.differentiable(run.case)
    if run.spec.differentiable and wanted:
        grads = run.gradients(tensors, wanted)
        goldens = run.gradients(tensors, wanted, fn=run.spec.reference)
        for name in wanted:
            run.close(f"gradient of {name}", grads[name], goldens[name])


# -- degenerate sizes -------------------------------------------------------------------------------------


def sized(family: Family, sizes: dict[str, int], options: dict[str, object]) -> Case:
    """A case of the family with these sizes."""
    name = "-".join(f"{key}{value}" for key, value in sizes.items())
    return Case(name, family.build(sizes, options), options)


def degenerate_sizes(spec: Spec) -> Iterator[Variant]:
    if spec.family is None:
        return
    typical = {name: bounds[1] for name, bounds in spec.family.sizes.items()}
    options = {name: values[0] for name, values in spec.family.options.items()}
    for name, (smallest, _, _) in spec.family.sizes.items():
        for size in (0, 1, 2):
            case = sized(spec.family, typical | {name: size}, options)
            for dtype in (torch.float32, torch.bfloat16):
                extra = {"legal": size >= smallest}
                yield Variant(f"{name}{size}-{short(dtype)}", case, dtype, extra)
    smallest = sized(spec.family, {name: max(b[0], 1) for name, b in spec.family.sizes.items()}, options)
    yield Variant("all-smallest", smallest, torch.float32, {"legal": True})


@check("degenerate", degenerate_sizes)
def degenerate(run: Run) -> None:
    """Sizes 0, 1 and 2 in each dimension: right values and gradients, or a clear error where not legal."""
    tensors = run.inputs()
    if not run.extra["legal"]:
        try:
            run.call(tensors)
        except ValueError:
            return
        run.fail("a size below the smallest legal one must raise ValueError, but it was accepted")
    forward_rule(run, tensors)
    forward_rule(run, run.inputs(layout=dict.fromkeys(tensors, "odd_strides")), "odd strides")
    wanted = data.differentiable(run.case)
    if run.spec.differentiable and wanted:

        def in_poison(upstream: Outputs) -> dict[str, torch.Tensor | None]:
            with poisoned():
                return run.gradients(tensors, wanted, upstream)

        gradient_rule(run, tensors, wanted, in_poison)


# -- special values ---------------------------------------------------------------------------------------

SPECIAL = {
    "nan": lambda info: math.nan,
    "inf": lambda info: math.inf,
    "-inf": lambda info: -math.inf,
    "-0": lambda info: -0.0,
    "subnormal": lambda info: info.smallest_normal / 8,
    "max": lambda info: info.max,
}


def special_values(spec: Spec) -> Iterator[Variant]:
    for case in spec.select("core"):
        for dtype in spec.dtypes_of(case):
            for value in SPECIAL:
                slow = dtype not in (torch.float32, torch.bfloat16)
                yield Variant(f"{case.id}-{short(dtype)}-{value}", case, dtype, {"value": value}, slow=slow)


@check("special", special_values)
def special(run: Run) -> None:
    """NaN, infinities, -0, subnormals and the largest number at the start, middle and end of each argument.

    Non-finite results must appear exactly where the reference has them, with their sign; the other elements
    obey the error rule; a zero has the reference's sign.
    """
    for name in [key for key, t in run.inputs().items() if t is not None and t.is_floating_point()]:
        count = run.inputs()[name].numel()
        for position in sorted({0, count // 2, count - 1}) if count else ():
            tensors = run.inputs()
            value = SPECIAL[run.extra["value"]](torch.finfo(tensors[name].dtype))
            tensors[name].view(-1)[position] = value
            label = f"{run.extra['value']} at {position} of {name}"
            got = forward_rule(run, tensors, label, draws=False)
            for out, a, e in zip(run.spec.outputs, got, run.eager(tensors), strict=True):
                wrong = (e == 0) & (a == 0) & (a.signbit() != e.signbit())
                run.require(not wrong.any(), f"{label}: {out} has a zero of the wrong sign")


# -- strides and sizes beyond 32 bits -----------------------------------------------------------------------


def wide_strides(spec: Spec) -> Iterator[Variant]:
    if spec.family is None:
        return
    sizes = {name: min(max(b[0], 2), b[2]) for name, b in spec.family.sizes.items()}
    options = {name: values[0] for name, values in spec.family.options.items()}
    case = sized(spec.family, sizes, options)
    for name, arg in case.args.items():
        for dim in range(len(arg.shape) if arg else 0):
            if arg.shape[dim] > 1:
                yield Variant(f"{name}-dim{dim}", case, torch.bfloat16, {"name": name, "dim": dim})


def far_apart(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The same values with a stride of more than 2^31 elements in one dimension; takes a few pages."""
    step = 2**31 + 8
    near = [1] * tensor.dim()
    size = 1
    for other in reversed(range(tensor.dim())):
        if other != dim:
            near[other] = size
            size *= tensor.shape[other]
    near[dim] = step
    flat = machine.reserve((tensor.shape[dim] - 1) * step + size, tensor.dtype)
    view = flat.as_strided(tuple(tensor.shape), tuple(near))
    view.copy_(tensor)
    return view


@check("wide_strides", wide_strides)
def wide_strides_check(run: Run) -> None:
    """A stride above 2^31 elements gives the same values and gradients as a contiguous tensor."""
    tensors = run.inputs()
    name, dim = run.extra["name"], run.extra["dim"]
    far = dict(tensors) | {name: far_apart(tensors[name], dim)}
    expected = run.call(tensors)
    if run.spec.mutates:
        fresh = {n: far[n] if n == name else t for n, t in run.inputs().items()}
        run.same("stride above 2^31", as_tuple(run.spec.op(**fresh, **run.options())), expected)
        return
    run.same("stride above 2^31", run.call(far), expected)
    wanted = data.differentiable(run.case)
    if run.spec.differentiable and wanted:
        near = run.gradients(tensors, wanted)
        wide = run.gradients(far, wanted)
        run.same("gradients, stride above 2^31", tuple(wide.values()), tuple(near.values()))
        upstream = data.cotangents(expected, run.seed)
        if upstream[0].dim() > dim and upstream[0].shape[dim] > 1:
            far_up = (far_apart(upstream[0], dim), *upstream[1:])
            wide = run.gradients(tensors, wanted, far_up)
            run.same("upstream gradient, stride above 2^31", tuple(wide.values()), tuple(near.values()))


def large_sizes(spec: Spec) -> Iterator[Variant]:
    if spec.family is not None:
        for name in spec.family.sizes:
            yield Variant(name, extra={"name": name})


@check("large_meta", large_sizes)
def large_meta(run: Run) -> None:
    """Shapes and strides of results with more than 2^31 elements, on the meta device."""
    family = run.spec.family
    sizes = {name: b[1] for name, b in family.sizes.items()} | {run.extra["name"]: 2**31 + 8}
    options = {name: values[0] for name, values in family.options.items()}
    run.case, run.dtype, run.device = sized(family, sizes, options), torch.float32, "meta"
    tensors = run.inputs()
    fn, mutates = run.spec.op, run.spec.mutates
    got = as_tuple(fn(**tensors, **options))
    expected = (
        tuple(tensors[name] for name in mutates)
        if mutates
        else as_tuple(run.spec.reference(**tensors, **options))
    )
    for name, a, e in zip(run.spec.outputs, got, expected, strict=True):
        run.require(
            (a.shape, a.dtype) == (e.shape, e.dtype) and a.is_contiguous(),
            f"{name}: {a.dtype} {tuple(a.shape)} strides {a.stride()} against {e.dtype} {tuple(e.shape)}",
        )


# -- independence of the items of a batch -------------------------------------------------------------------


def batched(spec: Spec) -> Iterator[Variant]:
    if spec.batch:
        yield from core_cases(spec)


@check("slices", batched)
def slices(run: Run) -> None:
    """One item computed alone has the bits it has inside the batch, forward and in its own gradients."""
    tensors = run.inputs()
    given = {n: d for n, d in run.spec.batch.items() if tensors.get(n) is not None}
    count = next(tensors[n].shape[d] for n, d in given.items())
    whole = run.call(tensors)
    wanted = [n for n in data.differentiable(run.case) if n in given] if run.spec.differentiable else []
    upstream = data.cotangents(whole, run.seed)
    grads = run.gradients(tensors, wanted, upstream) if wanted else {}
    for start, size in itertools.islice([(0, 1), (count - 1, 1), (0, count // 2), (1, count - 1)], 4):
        if size < 1:
            continue
        part = {n: t.narrow(given[n], start, size) if n in given else t for n, t in tensors.items()}
        expected = tuple(o.narrow(d, start, size) for o, d in zip(whole, run.spec.batch_outputs, strict=True))
        run.same(f"items {start}..{start + size - 1} alone", run.call(part), expected)
        if wanted:
            ups = tuple(
                u.narrow(d, start, size) for u, d in zip(upstream, run.spec.batch_outputs, strict=True)
            )
            alone = run.gradients(part, wanted, ups)
            for n in wanted:
                same = ulp.same_values(alone[n], grads[n].narrow(given[n], start, size))
                run.require(same, f"gradient of {n} for items {start}..{start + size - 1} alone differs")
