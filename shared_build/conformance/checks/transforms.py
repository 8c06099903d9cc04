"""torch.func transforms, forward mode, and autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.autograd.forward_ad as forward_ad

from .. import data
from ..registry import Variant, check
from ..run import Outputs, Run
from ..spec import Spec
from .values import core_cases


def vmap_variants(spec: Spec) -> Iterator[Variant]:
    for index, dims in enumerate(spec.vmap_dims):
        for case in spec.select("core")[: 1 if index else 2]:
            if all(case.args.get(name) is not None for name in dims):
                name = "-".join(f"{key}{dim}" for key, dim in dims.items())
                for route in spec.routes():
                    extra = {"dims": dims, "route": route}
                    yield Variant(f"{case.id}-{name}-{route}", case, torch.float64, extra)


def _batched(
    run: Run, dims: Mapping[str, int]
) -> tuple[list[str], list[torch.Tensor], tuple[int | None, ...]]:
    names = [n for n, t in run.inputs().items() if t is not None]
    stacks = [run.inputs(seed=seed) for seed in (0, 1, 2)]
    tensors = [torch.stack([s[n] for s in stacks], dims[n]) if n in dims else stacks[0][n] for n in names]
    return names, tensors, tuple(dims.get(n) for n in names)


@contextlib.contextmanager
def _without_fallback(active: bool) -> Iterator[None]:
    """Make vmap raise where it would run its slow loop, which it does not tell by itself."""
    before = torch._C._functorch._is_vmap_fallback_enabled()
    torch._C._functorch._set_vmap_fallback_enabled(before and not active)
    try:
        yield
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(before)


@check("vmap", vmap_variants)
def vmap(run: Run) -> None:
    """Vmap over each claimed set of batch dims equals a loop; a claimed rule is a rule, not the slow loop."""
    names, tensors, in_dims = _batched(run, run.extra["dims"])
    f = run.function(names, run.inputs(), route=run.extra["route"])
    with _without_fallback(run.spec.vmap == "rule"):
        try:
            got = torch.func.vmap(f, in_dims)(*tensors)
        except Exception as error:
            if run.spec.vmap == "raises":
                return
            run.fail(f"vmap by a rule, not by a loop, raises {type(error).__name__}: {error}")
    run.require(run.spec.vmap != "raises", "vmap must raise, but it works")
    expected = [
        f(*(t if d is None else t.select(d, i) for t, d in zip(tensors, in_dims, strict=True)))
        for i in range(3)
    ]
    for index, out in enumerate(got):
        want = torch.stack([e[index] for e in expected])
        run.require(out.shape == want.shape, f"vmap gives {tuple(out.shape)}, a loop {tuple(want.shape)}")
        _close(run, f"vmap, output {index}", out, want)


def _close(run: Run, label: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    try:
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    except AssertionError as error:
        run.fail(f"{label}: {error}")


def transform_variants(spec: Spec) -> Iterator[Variant]:
    if spec.differentiable:
        for case in spec.select("grad")[:1]:
            for transform in TRANSFORMS:
                for route in spec.grad_routes():
                    extra = {"transform": transform, "route": route}
                    yield Variant(f"{case.id}-{transform}-{route}", case, torch.float64, extra)


Scalar = Callable[..., torch.Tensor]


def _dual(f: Scalar, tensors: list[torch.Tensor], directions: list[torch.Tensor]) -> Outputs:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, d) for t, d in zip(tensors, directions, strict=True)]
        tangent = forward_ad.unpack_dual(f(*duals)).tangent
    return (tangent if tangent is not None else torch.zeros_like(tensors[0].sum()),)


def _vmapped(f: Scalar, tensors: list[torch.Tensor], inner_grad: bool) -> Outputs:
    numbers = tuple(range(len(tensors)))
    stacked = [torch.stack([t, 2 * t]) for t in tensors]
    if inner_grad:
        return torch.func.vmap(torch.func.grad(f, numbers))(*stacked)
    return torch.func.grad(lambda *a: torch.func.vmap(f)(*a).sum(), numbers)(*stacked)


TRANSFORMS: dict[str, Callable[[Scalar, list[torch.Tensor], list[torch.Tensor]], Outputs]] = {
    "grad": lambda f, t, d: torch.func.grad(f, tuple(range(len(t))))(*t),
    "jacrev": lambda f, t, d: torch.func.jacrev(f, tuple(range(len(t))))(*t),
    "jvp": lambda f, t, d: (torch.func.jvp(f, tuple(t), tuple(d))[1],),
    "dual": _dual,
    "hessian": lambda f, t, d: (torch.func.hessian(f)(*t),),
    "vmap(grad)": lambda f, t, d: _vmapped(f, t, True),
    "grad(vmap)": lambda f, t, d: _vmapped(f, t, False),
}


@check("transforms", transform_variants)
def transforms(run: Run) -> None:
    """Each torch.func transform equals that of the reference; the dispatcher route may raise instead.

    Never a silent zero or None. The public function works with all of them (forward mode as claimed).
    """
    names = data.differentiable(run.case)
    tensors = run.inputs()
    leaves = [tensors[n].detach() for n in names]
    directions = [data.fill(data.Arg(tuple(t.shape)), 29 + i) for i, t in enumerate(leaves)]
    transform = TRANSFORMS[run.extra["transform"]]

    def scalar(route: str) -> Scalar:
        f = run.function(names, tensors, route=route)
        return lambda *a: sum((o * o).sum() + o.sum() for o in f(*a))

    expected = transform(scalar("reference"), leaves, directions)
    forward = run.extra["transform"] in ("jvp", "dual", "hessian")
    may_raise = run.extra["route"] == "direct" or (forward and run.spec.forward_ad == "raises")
    try:
        got = transform(scalar(run.extra["route"]), leaves, directions)
    except (RuntimeError, NotImplementedError) as error:
        run.require(may_raise, f"{run.extra['transform']} raises {type(error).__name__}: {error}")
        return
    if forward and run.spec.forward_ad == "raises" and run.extra["route"] == "public":
        run.fail(f"{run.extra['transform']} must raise, but it works")
    for index, (a, b) in enumerate(zip(got, expected, strict=True)):
        _close(run, f"{run.extra['route']}: {run.extra['transform']}, result {index}", a, b)


def autocast_variants(spec: Spec) -> Iterator[Variant]:
    for base in core_cases(spec):
        for cast in (torch.bfloat16, torch.float16):
            suffix = str(cast).removeprefix("torch.")
            slow = base.slow or cast == torch.float16
            yield Variant(f"{base.id}-under-{suffix}", base.case, base.dtype, {"cast": cast}, slow)


@check("autocast", autocast_variants)
def autocast(run: Run) -> None:
    """Under autocast the outputs have the dtype of the policy, nested disabling works, gradients follow.

    With the policy "unchanged" values and gradients keep their bits; backward runs outside autocast.
    """
    tensors = run.inputs()
    wanted = data.differentiable(run.case) if run.spec.differentiable else []
    expected = run.call(tensors)
    for route in run.spec.routes():
        with torch.autocast("cpu", run.extra["cast"]):
            got = run.call(tensors, route=route)
            with torch.autocast("cpu", enabled=False):
                nested = run.call(tensors, route=route)
        run.same(f"{route}: autocast(enabled=False) inside autocast", nested, expected)
        for label, out, plain in zip(run.spec.outputs, got, expected, strict=True):
            want = plain.dtype if run.spec.autocast == "unchanged" else run.spec.autocast
            run.require(out.dtype == want, f"{route}: {label} is {out.dtype} under autocast, not {want}")
        if run.spec.autocast == "unchanged":
            run.same(f"{route}: under autocast", got, expected)
        if wanted and route in run.spec.grad_routes():
            leaves = run.inputs(grad=wanted)
            with torch.autocast("cpu", run.extra["cast"]):
                outputs = run.call(leaves, route=route)
            pairs = [
                (o, u) for o, u in zip(outputs, data.cotangents(outputs, 0), strict=True) if o.requires_grad
            ]
            found = torch.autograd.grad(
                [o for o, _ in pairs], [leaves[n] for n in wanted], [u for _, u in pairs]
            )
            plain = run.gradients(tensors, wanted, data.cotangents(expected, 0), route=route)
            for name, grad in zip(wanted, found, strict=True):
                run.require(grad.dtype == tensors[name].dtype, f"{route}: gradient of {name} is {grad.dtype}")
                if run.spec.autocast == "unchanged":
                    run.same(f"{route}: gradient of {name} of a call under autocast", (grad,), (plain[name],))
