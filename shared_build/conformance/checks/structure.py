"""Random structure: sizes, options, dtypes, layouts and value profiles drawn by hypothesis.

Only structure shrinks; values come from a seeded generator. Deterministic in CI; the slow tier draws more,
at random, and prints what reproduces a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import torch
from hypothesis import strategies

from .. import data, layouts, ulp
from ..registry import Variant, check
from ..run import Run
from ..spec import Family, Spec, Tensors
from .rules import forward_rule, gradient_rule
from .values import sized

PROFILES = ("normal", "tiny", "huge", "wide", "duplicates", "spikes", "equal", "offset")
EXAMPLES = {False: 25, True: 500}


@strategies.composite
def structures(draw: Any, family: Family, dtypes: tuple[torch.dtype, ...]) -> dict[str, Any]:
    """A case of the family with a dtype, a layout per argument, a value profile and a seed."""
    sizes = {n: draw(strategies.integers(b[0], b[2]), label=n) for n, b in family.sizes.items()}
    options = {n: draw(strategies.sampled_from(list(v)), label=n) for n, v in family.options.items()}
    case = sized(family, sizes, options)
    kinds = strategies.sampled_from(["contiguous", *layouts.LAYOUTS])
    return {
        "case": case,
        "dtype": draw(strategies.sampled_from(dtypes), label="dtype"),
        "layout": {n: draw(kinds, label=f"layout of {n}") for n in case.args},
        "profile": draw(strategies.sampled_from(PROFILES), label="profile"),
        "seed": draw(strategies.integers(0, 2**16), label="seed"),
    }


def tiers(spec: Spec) -> Iterator[Variant]:
    if spec.family is not None:
        for what in ("values", "gradients") if spec.differentiable else ("values",):
            yield Variant(what, extra={"what": what, "many": False})
            yield Variant(f"{what}-many", extra={"what": what, "many": True}, slow=True)


@check("structure", tiers)
def structure(run: Run) -> None:
    """The error rule, equivariance under permutation of the batch, and gradients, for random structure."""
    many = run.extra["many"]
    settings = hypothesis.settings(
        max_examples=EXAMPLES[many],
        derandomize=not many,
        deadline=None,
        database=None,
        print_blob=many,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    @settings
    @hypothesis.given(structures(run.spec.family, run.spec.dtypes))
    def holds(drawn: dict[str, Any]) -> None:
        run.case, run.dtype, run.seed = drawn["case"], drawn["dtype"], drawn["seed"]
        run.profile = drawn["profile"]
        placed = {n: k for n, k in drawn["layout"].items() if k != "contiguous"}
        placed = {n: k for n, k in placed.items() if not (n in run.spec.mutates and k.startswith("expanded"))}
        tensors = run.inputs(layout=placed, profile=run.profile)
        run.notes = [f"profile {drawn['profile']}", f"layouts {placed or 'contiguous'}"]
        if run.extra["what"] == "values":
            forward_rule(run, tensors)
            _permuted(run, tensors)
        else:
            _gradients(run, tensors)

    holds()


def _permuted(run: Run, tensors: Tensors) -> None:
    """Permuting the items of the batch permutes the results, bit for bit."""
    given = {n: d for n, d in run.spec.batch.items() if tensors.get(n) is not None}
    if not given:
        return
    name, dim = next(iter(given.items()))
    order = torch.randperm(tensors[name].shape[dim], generator=torch.Generator().manual_seed(run.seed))
    shuffled = {n: t.index_select(given[n], order) if n in given else t for n, t in tensors.items()}
    expected = [
        o.index_select(d, order) for o, d in zip(run.call(tensors), run.spec.batch_outputs, strict=True)
    ]
    for index, (a, b) in enumerate(zip(run.call(shuffled), expected, strict=True)):
        run.require(ulp.same_values(a, b.to(a.dtype)), f"output {index}: a permuted batch gives other bits")


def _gradients(run: Run, tensors: Tensors) -> None:
    wanted = data.differentiable(run.case)
    if wanted:
        gradient_rule(run, tensors, wanted, lambda upstream: run.gradients(tensors, wanted, upstream))
