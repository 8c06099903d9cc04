"""The error rule on whole calls: every output, every gradient, with further draws for small results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from .. import data
from ..run import Outputs, Run, raised
from ..spec import Tensors

DRAWS = 8


def forward_rule(run: Run, tensors: Tensors, label: str = "forward", *, draws: bool = True) -> Outputs:
    """The error rule for every output of one call; returns the outputs.

    draws: whether other seeds of the case stand for these tensors (not where values were put in by hand).
    """
    got = run.call(tensors)
    golden, eager = run.golden(tensors), run.eager(tensors)
    run.require(len(got) == len(eager), f"{label}: {len(got)} outputs where the reference has {len(eager)}")
    for index, (name, a, g, e) in enumerate(zip(run.spec.outputs, got, golden, eager, strict=True)):

        def more(index: int = index) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for other in _redrawn(run):
                yield run.golden(other)[index], run.eager(other)[index]

        published = run.spec.max_ulp.get(a.dtype)
        run.judge(f"{label}: {name}", a, g, e, "forward", published, more if draws else None)
    return got


def _redrawn(run: Run) -> Iterator[Tensors]:
    for seed in range(run.seed + 1, run.seed + DRAWS):
        yield data.materialise(run.case, run.dtype, device=run.device, seed=seed, profile=run.profile)


def golden_gradients(
    run: Run, tensors: Tensors, wanted: list[str], upstream: Outputs | None = None
) -> dict[str, torch.Tensor]:
    """Float64 gradients of the reference for the rounded inputs and the rounded upstream gradients."""
    if upstream is None:
        upstream = data.cotangents(run.eager(tensors), run.seed)
    high = tuple(u if u is None else u.detach().cpu().double() for u in upstream)
    found = run.gradients(raised(tensors), wanted, high, fn=run.spec.reference)
    return {
        name: torch.zeros_like(tensors[name], dtype=torch.float64) if grad is None else grad
        for name, grad in found.items()
    }


def gradient_rule(
    run: Run,
    tensors: Tensors,
    wanted: list[str],
    compute: Callable[[Outputs], dict[str, torch.Tensor | None]],
    used: tuple[bool, ...] | None = None,
    label: str = "gradient",
) -> None:
    """The error rule for every wanted gradient.

    compute: (upstream gradients, one per output or None) -> gradients by name. used: the outputs that are
    used, None for all. A gradient that the reference does not have is not asked for.
    """

    def upstream_of(given: Tensors) -> Outputs:
        ups = data.cotangents(run.eager(given), run.seed)
        return ups if used is None else tuple(u if on else None for u, on in zip(ups, used, strict=True))

    def reference(given: Tensors) -> tuple[dict, dict]:
        ups = upstream_of(given)
        eagers = run.gradients(given, wanted, ups, fn=run.spec.reference)
        return golden_gradients(run, given, wanted, ups), eagers

    goldens, eagers = reference(tensors)
    grads = compute(upstream_of(tensors))
    for name in wanted:
        text = f"{label} of {name}"
        if eagers[name] is None:
            zero = grads[name] is None or not grads[name].any()
            run.require(zero, f"{text} is not zero, though nothing depends on it")
            continue
        run.require(grads[name] is not None, f"{text} is missing")

        def more(name: str = name) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for other in _redrawn(run):
                golden, eager = reference(other)
                yield golden[name], eager[name]

        run.judge(text, grads[name], goldens[name], eagers[name], "backward", more=more)
