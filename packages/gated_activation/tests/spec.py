"""Cases, claims and errors of gated_activation, its packed, in-place and out= forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gated_activation_cases import ACTIVATIONS, GPT_OSS, errors, numbers, shared_cases, size

import opwright.gated_activation as package
from opwright.gated_activation import reference
from shared_build.conformance import (
    Arg,
    Call,
    Case,
    ErrorCase,
    Family,
    ModuleCase,
    Package,
    Sharding,
    Spec,
)

Tensor = torch.Tensor
Tensors = Mapping[str, Tensor | None]
Options = Mapping[str, Any]
ops = torch.ops.opwright
# Exhaustive over one branch in tests/test_ulp.py; here over the cases of all options.
MAX_ULP = {torch.bfloat16: 0.6, torch.float16: 0.6}


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def like(t: Tensor | None) -> Tensor:
    return torch.ones_like(t)


# -- gated_activation ------------------------------------------------------------------------------------


def pair(shape: tuple[int, ...], fill: str) -> dict[str, Arg | None]:
    return {"gate": Arg(shape, fill), "up": Arg(shape, fill)}


def direct(gate: Tensor, up: Tensor, **o: Any) -> Tensor:
    return ops.gated_activation_forward(gate, up, *numbers(o))


def calls(t: Tensors, o: Options) -> list[Call]:
    args = (t["gate"], t["up"], *numbers(o))
    output = ops.gated_activation_forward(*map(detached, args))
    back = (torch.ones_like(output), *args)
    return [
        Call(ops.gated_activation_forward.default, args, differentiable=True),
        Call(ops.gated_activation_backward.default, (*back, True, True), differentiable=True),
        Call(ops.gated_activation_backward.default, (*map(detached, back), True, False)),
        Call(ops.gated_activation_backward.default, (*map(detached, back), False, True)),
    ]


def broadcast(gate: tuple[int, ...], up: tuple[int, ...], name: str, *tags: str, **options: Any) -> Case:
    return Case(f"broadcast-{name}", {"gate": Arg(gate), "up": Arg(up)}, options, frozenset(tags))


PAIR_CASES = [
    *shared_cases(pair, [{}]),
    broadcast((4, 7), (7,), "row", activation="silu"),
    broadcast((4, 1), (4, 7), "column", "grad", activation="gelu_tanh", limit=0.5),
    broadcast((3, 1, 7), (5, 1), "both", "grad", **GPT_OSS),
    broadcast((), (3, 5), "scalar", activation="gelu"),
    Case(
        "mixed-dtypes",
        {"gate": Arg((3, 33)), "up": Arg((3, 33), dtype=torch.float32)},
        GPT_OSS,
        dtypes=(torch.bfloat16, torch.float16),
    ),
]

WRONG = [
    ErrorCase(
        "shapes",
        {"gate": Arg((2, 6)), "up": Arg((2, 5))},
        {},
        r"up that broadcasts with gate of shape \(2, 6\), but got \(2, 5\)",
    ),
    ErrorCase(
        "gate-dtype",
        {"gate": Arg((2, 6), dtype=torch.int64), "up": Arg((2, 6))},
        {},
        "gate of dtype bfloat16, float16, float32 or float64, but got int64",
    ),
    ErrorCase(
        "up-dtype",
        {"gate": Arg((2, 6)), "up": Arg((2, 6), dtype=torch.complex64)},
        {},
        "up of dtype bfloat16, float16, float32 or float64, but got complex64",
    ),
]


def pair_family() -> Family:
    def build(sizes: Mapping[str, int], _: Options) -> dict[str, Arg | None]:
        return pair((sizes["rows"], sizes["columns"]), "normal")

    return Family({"rows": (0, 3, 40), "columns": (0, 5, 300)}, build, FAMILY_OPTIONS)


FAMILY_OPTIONS: dict[str, Any] = {
    "activation": ACTIVATIONS,
    "limit": (None, 0.7),
    "up_offset": (0.0, 1.0),
    "clamp": ("input", "output"),
}
ELEMENTWISE = Sharding({"gate": "S(0)", "up": "S(0)"}, ("S(0)",))
GATED_ACTIVATION = Spec(
    name="gated_activation",
    op=package.gated_activation,
    direct=direct,
    reference=reference.gated_activation,
    cases=PAIR_CASES,
    dispatch=calls,
    errors=[*errors(pair), *WRONG],
    family=pair_family(),
    vmap_dims=({"gate": 0, "up": 0}, {"gate": 1, "up": 0}, {"gate": 0}, {"up": 1}),
    batch={"gate": 0, "up": 0},
    batch_outputs=(0,),
    dynamic={"gate": (0, 1), "up": (0, 1)},
    bytes_saved=lambda t, o: size(t["gate"], t["up"]),
    shardings=(ELEMENTWISE, Sharding({"gate": "S(1)", "up": "S(1)"}, ("S(1)",)), Sharding({}, ("R",))),
    max_ulp=MAX_ULP,
)

# -- in place and out= -----------------------------------------------------------------------------------


def in_place_direct(gate: Tensor, up: Tensor, **o: Any) -> Tensor:
    ops.gated_activation_(gate, up, *numbers(o))
    return gate


def same_kernel(case: Case) -> bool:
    """The cases of the forms that write: they run the kernel of the others, whose cases are many."""
    kept = (
        "core",
        "grad-0",
        "grad-9",
        "width-33",
        "empty",
        "parallel",
        "vector",
        "broadcast",
        "mixed",
        "profile-w",
    )
    return case.id.startswith(kept)


def holds(case: Case) -> bool:
    gate, up = case.args["gate"], case.args["up"]
    return gate.dtype == up.dtype and torch.broadcast_shapes(gate.shape, up.shape) == gate.shape


IN_PLACE = Spec(
    name="gated_activation_",
    op=package.gated_activation_,
    direct=in_place_direct,
    reference=reference.gated_activation,
    mutates=("gate",),
    direct_differentiable=False,
    cases=[case for case in PAIR_CASES if holds(case) and same_kernel(case)],
    dispatch=lambda t, o: [Call(ops.gated_activation_.default, (t["gate"], t["up"], *numbers(o)))],
    errors=[
        *errors(pair),
        *WRONG,
        ErrorCase(
            "result-shape",
            {"gate": Arg((1, 6)), "up": Arg((2, 6))},
            {},
            r"gate of shape \(2, 6\)",
        ),
        ErrorCase(
            "result-dtype",
            {"gate": Arg((2, 6)), "up": Arg((2, 6), dtype=torch.float32)},
            {},
            "gate of dtype float32 to hold its result, but got bfloat16",
            dtype=torch.bfloat16,
        ),
    ],
    family=pair_family(),
    batch={"gate": 0, "up": 0},
    batch_outputs=(0,),
    dynamic={"gate": (0, 1), "up": (0, 1)},
)


def into(gate: Tensor, up: Tensor, out: Tensor, **o: Any) -> Tensor:
    return package.gated_activation(gate, up, out=out, **o)


def into_direct(gate: Tensor, up: Tensor, out: Tensor, **o: Any) -> Tensor:
    ops.gated_activation_out(gate, up, out, *numbers(o))
    return out


def into_reference(gate: Tensor, up: Tensor, out: Tensor, **o: Any) -> Tensor:
    return reference.gated_activation(gate, up, **o)


def with_out(args: Mapping[str, Arg | None]) -> dict[str, Arg | None]:
    shape = torch.broadcast_shapes(args["gate"].shape, args["up"].shape)
    return {**args, "out": Arg(tuple(shape), "positive", args["up"].dtype)}


def out_family() -> Family:
    inner = pair_family()
    return Family(inner.sizes, lambda s, o: with_out(inner.build(s, o)), inner.options)


OUT = Spec(
    name="gated_activation_out",
    op=into,
    direct=into_direct,
    reference=into_reference,
    mutates=("out",),
    differentiable=False,
    cases=[
        Case(case.id, with_out(case.args), case.options, case.tags - {"grad", "subsets"}, case.dtypes)
        for case in PAIR_CASES
        if same_kernel(case)
    ],
    dispatch=lambda t, o: [
        Call(ops.gated_activation_out.default, (t["gate"], t["up"], t["out"], *numbers(o)))
    ],
    errors=[
        ErrorCase(
            "out-shape",
            {**pair((2, 6), "normal"), "out": Arg((2, 5))},
            {},
            r"out of shape \(2, 6\), but got \(2, 5\)",
        ),
        ErrorCase(
            "out-dtype",
            {**pair((2, 6), "normal"), "out": Arg((2, 6), dtype=torch.float64)},
            {},
            "out of dtype float32 to hold its result, but got float64",
        ),
    ],
    family=out_family(),
    dynamic={"gate": (0, 1), "up": (0, 1), "out": (0, 1)},
)

# -- gated_activation_packed -----------------------------------------------------------------------------


def packed(shape: tuple[int, ...], fill: str) -> dict[str, Arg | None]:
    return {"input": Arg((*shape[:-1], 2 * shape[-1]), fill)}


def packing(o: Options) -> tuple[bool, bool]:
    return o.get("layout", "halves") == "interleaved", o.get("gate_first", True)


def packed_direct(input: Tensor, **o: Any) -> Tensor:
    return ops.gated_activation_packed_forward(input, *packing(o), *numbers(o))


def packed_calls(t: Tensors, o: Options) -> list[Call]:
    args = (t["input"], *packing(o), *numbers(o))
    output = ops.gated_activation_packed_forward(*map(detached, args))
    back = (torch.ones_like(output), *args)
    return [
        Call(ops.gated_activation_packed_forward.default, args, differentiable=True),
        Call(ops.gated_activation_packed_backward.default, back, differentiable=True),
    ]


def packed_family() -> Family:
    def build(sizes: Mapping[str, int], _: Options) -> dict[str, Arg | None]:
        return packed((sizes["rows"], sizes["columns"]), "normal")

    options = FAMILY_OPTIONS | {"layout": ("halves", "interleaved"), "gate_first": (True, False)}
    return Family({"rows": (0, 3, 40), "columns": (0, 5, 300)}, build, options)


PACKINGS = [
    {"layout": layout, "gate_first": first} for first in (True, False) for layout in ("halves", "interleaved")
]
GATED_ACTIVATION_PACKED = Spec(
    name="gated_activation_packed",
    op=package.gated_activation_packed,
    direct=packed_direct,
    reference=reference.gated_activation_packed,
    # Five entries, so that every option meets every packing somewhere.
    cases=shared_cases(packed, [*PACKINGS, {"layout": "interleaved"}]),
    dispatch=packed_calls,
    errors=[
        *errors(packed),
        ErrorCase("odd", {"input": Arg((2, 5))}, {}, "input with an even last dimension, but got 5"),
        ErrorCase("scalar", {"input": Arg(())}, {}, "input with at least 1 dimension, but got 0"),
        ErrorCase(
            "dtype",
            {"input": Arg((2, 6), dtype=torch.int32)},
            {},
            "input of dtype bfloat16, float16, float32 or float64, but got int32",
        ),
        ErrorCase(
            "layout",
            {"input": Arg((2, 6))},
            {"layout": "blocks"},
            "layout to be one of halves, interleaved, but got blocks",
            routes=("public",),
        ),
    ],
    family=packed_family(),
    vmap_dims=({"input": 0}, {"input": 1}),
    batch={"input": 0},
    batch_outputs=(0,),
    dynamic={"input": (0, 1)},
    bytes_saved=lambda t, o: size(t["input"]),
    shardings=(Sharding({"input": "S(0)"}, ("S(0)",)), Sharding({}, ("R",))),
    max_ulp=MAX_ULP,
)

ROW = Arg((4, 6))
SIZES = {"hidden_size": 6, "intermediate_size": 10}
PACKAGE = Package(
    module="opwright.gated_activation",
    origin=__file__,
    specs=(GATED_ACTIVATION, IN_PLACE, OUT, GATED_ACTIVATION_PACKED),
    kernel_level=package.kernel_level,
    modules=(
        ModuleCase("GatedMLP", package.GatedMLP, SIZES, (ROW,)),
        ModuleCase(
            "PackedGatedMLP",
            package.PackedGatedMLP,
            {**SIZES, **GPT_OSS, "layout": "interleaved", "bias": True},
            (ROW,),
        ),
    ),
)
