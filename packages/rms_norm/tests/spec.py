"""Cases, claims and errors of rms_norm, add_rms_norm, add_rms_norm_ and rms_norm_gated."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from rms_norm_cases import HALVES, claims, error_cases, family, shared_cases

import opwright.rms_norm as package
from opwright.rms_norm import reference
from shared_build.conformance import (
    Arg,
    Call,
    Case,
    ErrorCase,
    Family,
    ModuleCase,
    Package,
    Spec,
)

Tensor = torch.Tensor
ROUNDING = {"once": 0, "llama": 1}
STATISTICS = {"rounded": 0, "exact": 1}
ACTIVATION = {"silu": 0, "sigmoid": 1}
ops = torch.ops.opwright


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def size(*tensors: Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def rstd_size(input: Tensor, groups: int = 1) -> int:
    return input.shape[:-1].numel() * groups * (8 if input.dtype == torch.float64 else 4)


# -- rms_norm --------------------------------------------------------------------------------------------


def rms_norm_arguments(t: Mapping[str, Tensor | None], o: Mapping[str, Any]) -> tuple[Any, ...]:
    return t["input"], t["weight"], o["eps"], o.get("weight_offset", 0.0), ROUNDING[o["rounding"]]


def rms_norm_direct(input: Tensor, weight: Tensor | None = None, **o: Any) -> Tensor:
    return ops.rms_norm_forward(*rms_norm_arguments({"input": input, "weight": weight}, o))[0]


def rms_norm_calls(t: Mapping[str, Tensor | None], o: Mapping[str, Any]) -> list[Call]:
    args = rms_norm_arguments(t, o)
    plain = tuple(map(detached, args))
    output, rstd = ops.rms_norm_forward_raw(*plain)
    back = (torch.ones_like(output), args[0], args[1], rstd, args[2], args[3], True, args[1] is not None)
    return [
        Call(ops.rms_norm_forward.default, args, differentiable=True),
        Call(ops.rms_norm_forward_raw.default, plain),
        Call(ops.rms_norm_backward.default, back, differentiable=True),
        Call(ops.rms_norm_backward_raw.default, tuple(map(detached, back))),
        Call(ops.rms_norm_backward.default, (*map(detached, back[:6]), True, False)),
    ]


BASIC = {"eps": 1e-6, "rounding": "once"}
RMS_NORM = Spec(
    name="rms_norm",
    op=package.rms_norm,
    direct=rms_norm_direct,
    reference=reference.rms_norm,
    cases=shared_cases(("input",), [{}], heads=True),
    dispatch=rms_norm_calls,
    errors=error_cases(("input",), BASIC, True, []),
    family=family(("input",), weight_offset=(0.0, 1.0)),
    bytes_saved=lambda t, o: size(t["input"], t["weight"]) + rstd_size(t["input"]),
    **claims(("input",)),
)

# -- add_rms_norm and add_rms_norm_ ----------------------------------------------------------------------

PAIR = ("input", "residual")


def add_arguments(t: Mapping[str, Tensor | None], o: Mapping[str, Any]) -> tuple[Any, ...]:
    head = (t["input"], t["residual"], t["weight"], o["eps"], o.get("weight_offset", 0.0))
    return *head, ROUNDING[o["rounding"]], STATISTICS[o.get("statistics", "rounded")]


def add_direct(input: Tensor, residual: Tensor, weight: Tensor | None = None, **o: Any) -> tuple[Tensor, ...]:
    t = {"input": input, "residual": residual, "weight": weight}
    return ops.add_rms_norm_forward(*add_arguments(t, o))[:2]


def add_calls(t: Mapping[str, Tensor | None], o: Mapping[str, Any]) -> list[Call]:
    args = add_arguments(t, o)
    plain = tuple(map(detached, args))
    output, total, rstd = ops.add_rms_norm_forward_raw(*plain)
    total = total.requires_grad_(t["input"].requires_grad)
    ups = (torch.ones_like(output), torch.ones_like(total).detach())
    back = (*ups, total, args[2], rstd, args[3], args[4], True, args[2] is not None)
    return [
        Call(ops.add_rms_norm_forward.default, args, differentiable=True),
        Call(ops.add_rms_norm_forward_raw.default, plain),
        Call(ops.add_rms_norm_backward.default, back, differentiable=True),
        Call(ops.add_rms_norm_backward_raw.default, tuple(map(detached, back))),
        Call(ops.add_rms_norm_backward.default, (None, *map(detached, back[1:7]), True, False)),
    ]


ADD_CASES = [
    *shared_cases(
        PAIR, [{"statistics": "rounded"}, {"statistics": "exact"}, {"statistics": "exact"}], heads=True
    ),
    *(
        Case(
            f"residual-float32-{statistics}-{rounding}",
            {"input": Arg((5, 33)), "residual": Arg((5, 33), dtype=torch.float32), "weight": Arg((33,))},
            {"eps": 1e-6, "rounding": rounding, "statistics": statistics},
            frozenset(["subsets"] if statistics == "exact" else []),
            HALVES,
        )
        for statistics, rounding in itertools.product(STATISTICS, ROUNDING)
    ),
]


def add_family() -> Family:
    return family(PAIR, weight_offset=(0.0, 1.0), statistics=("rounded", "exact"))


STATISTICS_ERROR = ErrorCase(
    "statistics",
    {"input": Arg((2, 5)), "residual": Arg((2, 5)), "weight": None},
    {**BASIC, "statistics": "mean"},
    "statistics to be one of rounded, exact",
    routes=("public",),
)
ADD_RMS_NORM = Spec(
    name="add_rms_norm",
    op=package.add_rms_norm,
    direct=add_direct,
    reference=reference.add_rms_norm,
    cases=ADD_CASES,
    dispatch=add_calls,
    errors=error_cases(PAIR, BASIC, True, [STATISTICS_ERROR]),
    family=add_family(),
    # residual_out is saved in place of input and residual
    bytes_saved=lambda t, o: size(t["residual"], t["weight"]) + rstd_size(t["input"]),
    **claims(PAIR, ("output", "residual_out")),
)


def in_place_direct(
    input: Tensor, residual: Tensor, weight: Tensor | None = None, **o: Any
) -> tuple[Tensor, ...]:
    ops.add_rms_norm_(*add_arguments({"input": input, "residual": residual, "weight": weight}, o))
    return input, residual


def in_place_holds(case: Case) -> bool:
    """Whether input can hold the output: llama rounding with a wider weight promotes it."""
    weight, residual = case.args["weight"], case.args["residual"]
    promotes = case.options["rounding"] == "llama" and weight is not None and weight.dtype is not None
    return not promotes and (residual.dtype is None or case.dtypes == HALVES)


IN_PLACE_CLAIMS = claims(PAIR, ("input", "residual")) | {"shardings": (), "vmap_dims": ()}
ADD_RMS_NORM_ = Spec(
    name="add_rms_norm_",
    op=package.add_rms_norm_,
    direct=in_place_direct,
    reference=reference.add_rms_norm,
    mutates=PAIR,
    direct_differentiable=False,
    cases=[case for case in ADD_CASES if in_place_holds(case)],
    dispatch=lambda t, o: [Call(ops.add_rms_norm_.default, add_arguments(t, o))],
    errors=error_cases(
        PAIR,
        BASIC,
        True,
        [
            STATISTICS_ERROR,
            ErrorCase(
                "result-dtype",
                {"input": Arg((2, 5)), "residual": Arg((2, 5), dtype=torch.bfloat16), "weight": None},
                BASIC,
                "residual of dtype float32 to hold its result, but got bfloat16",
            ),
            ErrorCase(
                "promoted-output",
                {"input": Arg((2, 5)), "residual": Arg((2, 5)), "weight": Arg((5,), dtype=torch.float32)},
                {**BASIC, "rounding": "llama"},
                "input of dtype float32 to hold its result, but got bfloat16",
                dtype=torch.bfloat16,
            ),
        ],
    ),
    family=add_family(),
    **IN_PLACE_CLAIMS,
)

# -- rms_norm_gated --------------------------------------------------------------------------------------

GATED = ("input", "gate")


def gated_arguments(t: Mapping[str, Tensor | None], o: Mapping[str, Any]) -> tuple[Any, ...]:
    head = (t["input"], t["gate"], t["weight"], o["eps"], ACTIVATION[o.get("activation", "silu")])
    return *head, o.get("norm_before_gate", True), o.get("group_size") or 0, ROUNDING[o["rounding"]]


def gated_direct(input: Tensor, gate: Tensor | None = None, weight: Tensor | None = None, **o: Any) -> Tensor:
    return ops.rms_norm_gated_forward(*gated_arguments({"input": input, "gate": gate, "weight": weight}, o))[
        0
    ]


def gated_calls(t: Mapping[str, Tensor | None], o: Mapping[str, Any]) -> list[Call]:
    args = gated_arguments(t, o)
    plain = tuple(map(detached, args))
    output, rstd = ops.rms_norm_gated_forward_raw(*plain)
    needs = (True, args[1] is not None, args[2] is not None)
    back = (torch.ones_like(output), *args[:3], rstd, *args[3:7], *needs)
    return [
        Call(ops.rms_norm_gated_forward.default, args, differentiable=True),
        Call(ops.rms_norm_gated_forward_raw.default, plain),
        Call(ops.rms_norm_gated_backward.default, back, differentiable=True),
        Call(ops.rms_norm_gated_backward_raw.default, tuple(map(detached, back))),
        Call(ops.rms_norm_gated_backward.default, (*map(detached, back[:9]), True, False, False)),
    ]


GATED_OPTIONS = [
    {"activation": activation, "norm_before_gate": before, "group_size": group}
    for (activation, before), group in zip(
        itertools.cycle(itertools.product(ACTIVATION, (True, False))), (None, 16, 8, None, 4), strict=False
    )
]
GATED_CASES = [
    *shared_cases(GATED, GATED_OPTIONS, heads=False),
    *(
        Case(
            f"groups-{activation}-{'norm' if before else 'gate'}-first-{rounding}",
            {"input": Arg((3, 24)), "gate": Arg((3, 24)), "weight": Arg((24,))},
            {
                "eps": 1e-5,
                "activation": activation,
                "norm_before_gate": before,
                "group_size": 8,
                "rounding": rounding,
            },
        )
        for activation, before, rounding in itertools.product(ACTIVATION, (True, False), ROUNDING)
    ),
    Case(
        "no-gate", {"input": Arg((3, 12)), "gate": None, "weight": Arg((12,))}, BASIC, frozenset({"subsets"})
    ),
    Case(
        "gate-first-grad",
        {"input": Arg((2, 6)), "gate": Arg((2, 6)), "weight": Arg((6,))},
        {"eps": 1e-5, "norm_before_gate": False, "group_size": 3, "rounding": "llama"},
        frozenset({"grad", "subsets"}),
    ),
]


def gated_error(name: str, match: str, **options: Any) -> ErrorCase:
    args = {"input": Arg((2, 6)), "gate": Arg((2, 6)), "weight": None}
    routes = ("public",) if name == "activation" else ("public", "direct")
    return ErrorCase(name, args, {**BASIC, **options}, match, routes=routes)


RMS_NORM_GATED = Spec(
    name="rms_norm_gated",
    op=package.rms_norm_gated,
    direct=gated_direct,
    reference=reference.rms_norm_gated,
    cases=GATED_CASES,
    dispatch=gated_calls,
    errors=error_cases(
        GATED,
        BASIC,
        False,
        [
            gated_error("activation", "activation to be one of silu, sigmoid", activation="relu"),
            gated_error("group-size", "group_size to be positive and to divide 6, but got 4", group_size=4),
            gated_error(
                "group-negative", "group_size to be positive and to divide 6, but got -2", group_size=-2
            ),
        ],
    ),
    family=family(GATED, activation=("silu", "sigmoid"), norm_before_gate=(True, False)),
    bytes_saved=lambda t, o: (
        size(t["input"], t["gate"], t["weight"])
        + rstd_size(t["input"], t["input"].shape[-1] // o["group_size"] if o.get("group_size") else 1)
    ),
    **claims(GATED),
)

ROW, HEADS = Arg((4, 6)), Arg((4, 3, 6))
PACKAGE = Package(
    module="opwright.rms_norm",
    origin=__file__,
    specs=(RMS_NORM, ADD_RMS_NORM, ADD_RMS_NORM_, RMS_NORM_GATED),
    kernel_level=package.kernel_level,
    modules=(
        ModuleCase("RMSNorm", package.RMSNorm, {"normalized_shape": 6}, (ROW,)),
        ModuleCase(
            "RMSNorm-heads", package.RMSNorm, {"normalized_shape": (3, 6), "rounding": "llama"}, (HEADS,)
        ),
        ModuleCase(
            "AddRMSNorm", package.AddRMSNorm, {"normalized_shape": 6, "weight_offset": 1.0}, (ROW, ROW)
        ),
        ModuleCase("RMSNormGated", package.RMSNormGated, {"hidden_size": 6, "group_size": 3}, (ROW, ROW)),
    ),
)
