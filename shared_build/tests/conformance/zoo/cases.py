"""The cases and claims of the zoo: small, one per kind, so that all of it runs in a minute or two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shared_build.conformance import Arg, Call, Case, ErrorCase, Family, Sharding, Spec
from shared_build.tests.conformance.zoo.operator import EPS, AddScale, reference

Tensor = torch.Tensor


def arguments(sizes: Mapping[str, int], options: Mapping[str, Any]) -> dict[str, Arg | None]:
    """X, y and weight for these sizes."""
    shape = (sizes["rows"], sizes["features"])
    return {"x": Arg(shape), "y": Arg(shape), "weight": Arg((sizes["features"],))}


def case(name: str, shape: tuple[int, ...], *tags: str, fill: str = "normal", weight: bool = True) -> Case:
    """One case with the given shape of x and y."""
    args = {"x": Arg(shape, fill), "y": Arg(shape, fill), "weight": Arg(shape[-1:]) if weight else None}
    return Case(name, args, {"eps": EPS}, frozenset(tags))


CASES = (
    case("3x17", (3, 17), "core"),
    case("2x3x5", (2, 3, 5)),
    case("2x3", (2, 3), "grad"),
    case("7", (7,)),
    case("0x5", (0, 5), "empty"),
    case("wide", (5, 33), fill="wide"),
    case("no-weight", (3, 11), "subsets", weight=False),
    case("100x257", (100, 257), "parallel"),
)


def errors_of(op: AddScale) -> tuple[ErrorCase, ...]:
    """Calls that must be refused."""
    good = Arg((3, 5))
    return (
        ErrorCase(
            "y-shape", {"x": good, "y": Arg((3, 4)), "weight": None}, {"eps": EPS}, "expected y like x"
        ),
        ErrorCase(
            "weight-shape",
            {"x": good, "y": good, "weight": Arg((4,))},
            {"eps": EPS},
            r"weight of shape \(5,\)",
        ),
        ErrorCase("eps", {"x": good, "y": good, "weight": None}, {"eps": -1.0}, "expected eps >= 0"),
    )


def spec_of(op: AddScale) -> Spec:
    """The spec of the functional operator."""

    def dispatch(t: dict, o: Mapping[str, Any]) -> list[Call]:
        _, _, rstd = op.kernel(
            *(v if v is None else v.detach() for v in (t["x"], t["y"], t["weight"])), o["eps"]
        )
        needs = [True, t["weight"] is not None]
        grads = (torch.ones_like(t["x"]).detach(), torch.ones_like(t["x"]).detach())
        return [
            Call(op.forward_op, (t["x"], t["y"], t["weight"], o["eps"]), differentiable=True),
            Call(op.backward_op, (*grads, t["x"], t["y"], t["weight"], rstd, needs), differentiable=True),
        ]

    claims: dict[str, Any] = {
        "name": op.name,
        "op": op.call,
        "direct": op.direct,
        "reference": reference,
        "outputs": ("output", "total"),
        "cases": CASES,
        "dispatch": dispatch,
        "errors": errors_of(op),
        "family": Family({"rows": (0, 3, 9), "features": (1, 5, 40)}, arguments, {"eps": (EPS,)}),
        "vmap_dims": ({"x": 0, "y": 0}, {"x": 1}, {"x": 0, "y": 1, "weight": 0}),
        "batch": {"x": 0, "y": 0},
        "batch_outputs": (0, 0),
        "dynamic": {"x": (0, 1), "y": (0, 1), "weight": (0,)},
        "bytes_saved": lambda t, o: (
            sum(v.numel() * v.element_size() for v in t.values() if v is not None)
            + 4 * t["x"].shape[:-1].numel()
        ),
        "shardings": (Sharding({"x": "S(0)", "y": "S(0)"}, ("S(0)", "S(0)")),),
        "double_backward": op.double_backward,
        "cuda": True,
    }
    return Spec(**(claims | dict(op.claims)))


def inplace_spec_of(op: AddScale) -> Spec:
    """The spec of the operator that writes its arguments."""

    def direct(x: Tensor, y: Tensor, weight: Tensor | None = None, *, eps: float) -> tuple:
        op.inplace_op(x, y, weight, eps)
        return x, y

    return Spec(
        name=f"{op.name}_",
        op=op.call_,
        direct=direct,
        reference=reference,
        outputs=("output", "total"),
        mutates=("x", "y"),
        differentiable=False,
        cuda=True,
        cases=list(CASES),
        dispatch=lambda t, o: [Call(op.inplace_op, (t["x"], t["y"], t["weight"], o["eps"]))],
        errors=errors_of(op),
        family=Family({"rows": (0, 3, 9), "features": (1, 5, 40)}, arguments, {"eps": (EPS,)}),
        batch={"x": 0, "y": 0},
        batch_outputs=(0, 0),
        dynamic={"x": (0, 1), "y": (0, 1), "weight": (0,)},
    )
