"""Cases, claims and errors of apply_rotary, out of place and in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from rotary_cases import ALONE, CASES, ERRORS, FAMILY, TENSORS

import opwright.rotary as package
from opwright.rotary import reference
from shared_build.conformance import Arg, Call, ErrorCase, ModuleCase, Package, Sharding, Spec

Tensor = torch.Tensor
SECTION_LAYOUT = {"blocked": 0, "interleaved": 1}
ops = torch.ops.opwright


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def size(*tensors: Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def arguments(t: Mapping[str, Tensor | None], o: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of the operators from those of the function."""
    offset = o.get("offsets")
    rotary_dim = o.get("rotary_dim")
    return (
        *(t.get(name) for name in TENSORS),
        0 if offset is None else offset,
        o.get("seq_dim", 1),
        o.get("interleaved", False),
        o.get("deinterleave", False),
        -1 if rotary_dim is None else rotary_dim,
        o.get("trailing", False),
        list(o.get("sections", (0,))),
        SECTION_LAYOUT[o.get("section_layout", "blocked")],
    )


def split(given: Mapping[str, Any]) -> tuple[dict[str, Tensor | None], dict[str, Any]]:
    """Tensors and options of a call of the function."""
    tensors = {n: v for n, v in given.items() if v is None or isinstance(v, Tensor)}
    return tensors, {n: v for n, v in given.items() if n not in tensors}


def given_results(q: Tensor, k: Tensor | None) -> Any:
    return q if k is None else (q, k)


def direct(**given: Any) -> Any:
    return given_results(*ops.apply_rotary_forward(*arguments(*split(given))))


def calls(t: Mapping[str, Tensor | None], o: Mapping[str, Any]) -> list[Call]:
    args = arguments(t, o)
    plain = tuple(map(detached, args))
    outputs = ops.apply_rotary_forward_raw(*plain)
    # Upstream gradients as leaves, where the inputs are.
    ups = tuple(None if out is None else torch.ones_like(out) for out in outputs)
    if t["q"].requires_grad:
        ups = tuple(None if up is None else up.requires_grad_() for up in ups)
    back = (*ups, *args[2:])
    return [
        Call(ops.apply_rotary_forward.default, args, differentiable=True),
        Call(ops.apply_rotary_forward_raw.default, plain),
        Call(ops.apply_rotary_backward.default, back, differentiable=True),
        Call(ops.apply_rotary_backward_raw.default, tuple(map(detached, back))),
        Call(ops.apply_rotary_backward.default, (detached(back[0]), None, *map(detached, back[2:]))),
    ]


def kept_bytes(t: Mapping[str, Tensor | None], o: Mapping[str, Any]) -> int:
    """Tables and what says where tokens are; q and k only for the tables' gradients."""
    kept = size(*(t.get(name) for name in TENSORS[2:]))
    return kept + (size(t["q"], t["k"]) if t["cos"].requires_grad else 0)


Q_AND_K = {"q": 0, "k": 0}
BOTH = ("q", "k")
APPLY_ROTARY = Spec(
    name="apply_rotary",
    op=package.apply_rotary,
    direct=direct,
    reference=reference.apply_rotary,
    outputs=BOTH,
    cases=CASES,
    dispatch=calls,
    errors=ERRORS,
    family=FAMILY,
    bytes_saved=kept_bytes,
    vmap_dims=(
        Q_AND_K,
        {"q": 1, "k": 1},
        {"q": 2},
        {"k": 0},
        {"cos": 0, "sin": 0},
        Q_AND_K | {"cos": 1, "sin": 1},
    ),
    batch=Q_AND_K,
    batch_outputs=(0, 0),
    dynamic={"q": (0, 1, 2, 3), "k": (0, 1, 3), "cos": (0, 1), "sin": (0, 1)},
    shardings=(
        Sharding({"q": "S(0)", "k": "S(0)"}, ("S(0)", "S(0)")),
        Sharding({"q": "S(2)", "k": "S(2)"}, ("S(2)", "S(2)")),
        Sharding({}, ("R", "R")),
    ),
)


# One tensor goes the same way as two; what differs is the missing second result.
APPLY_ROTARY_ALONE = Spec(
    name="apply_rotary_alone",
    op=package.apply_rotary,
    direct=direct,
    reference=reference.apply_rotary,
    cases=ALONE,
    dispatch=calls,
    bytes_saved=kept_bytes,
    vmap_dims=({"q": 0}, {"q": 2}, {"q": 1, "cos": 0, "sin": 0}),
    batch={"q": 0},
    batch_outputs=(0,),
)


def in_place(**given: Any) -> Any:
    return package.apply_rotary(**given, inplace=True)


def in_place_direct(**given: Any) -> Any:
    ops.apply_rotary_(*arguments(*split(given)))
    return given_results(given["q"], given.get("k"))


IN_PLACE_ERRORS = [
    ErrorCase(
        "k-is-q",
        {"q": Arg((5, 1, 8)), "k": Arg((5, 1, 8)), "cos": Arg((5, 8)), "sin": Arg((5, 8))},
        {"seq_dim": 1},
        "q and k whose elements lie apart, but got overlapping memory",
        backends=("cpu",),
        aliases={"k": "q"},
    )
]
APPLY_ROTARY_ = Spec(
    name="apply_rotary_",
    op=in_place,
    direct=in_place_direct,
    reference=reference.apply_rotary,
    mutates=BOTH,
    outputs=BOTH,
    direct_differentiable=False,
    cases=CASES,
    dispatch=lambda t, o: [Call(ops.apply_rotary_.default, arguments(t, o))],
    errors=[*ERRORS, *IN_PLACE_ERRORS],
    family=FAMILY,
    batch=Q_AND_K,
    batch_outputs=(0, 0),
    dynamic=APPLY_ROTARY.dynamic,
)

HEADS, FEW = Arg((2, 5, 3, 8)), Arg((2, 5, 1, 8))
PACKAGE = Package(
    module="opwright.rotary",
    origin=__file__,
    specs=(APPLY_ROTARY, APPLY_ROTARY_ALONE, APPLY_ROTARY_),
    kernel_level=package.kernel_level,
    modules=(
        ModuleCase("RotaryEmbedding", package.RotaryEmbedding, {"rotary_dim": 8}, (HEADS, FEW)),
        ModuleCase(
            "RotaryEmbedding-partial",
            package.RotaryEmbedding,
            {"rotary_dim": 4, "interleaved": True, "trailing": True, "base": 500.0},
            (HEADS, FEW),
        ),
    ),
)
