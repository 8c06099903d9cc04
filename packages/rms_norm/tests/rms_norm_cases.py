"""Cases, errors, sizes and claims that the functions of rms_norm share.

Widths sit around the vector lengths (4, 8 and 16 lanes, four registers at a time) and include primes; row
counts are small primes. Options are spread over the cases rather than multiplied.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from opwright.rms_norm._runtime import find_library
from shared_build.conformance import Arg, Case, ErrorCase, Family, Sharding

HALVES = (torch.bfloat16, torch.float16)
WIDTHS = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 257, 1023)
PROFILES = ("tiny", "huge", "offset", "wide", "zeros", "equal", "spikes", "duplicates", "subnormal")
OPTIONS = [
    {"eps": eps, "weight_offset": offset, "rounding": rounding}
    for eps, offset, rounding in zip(
        itertools.cycle((1e-6, 1e-5, 1e-6, 1e-3)),
        itertools.cycle((0.0, 1.0, -0.25)),
        ("once", "llama") * 6,
        strict=False,
    )
]


def shared_cases(rowwise: tuple[str, ...], more: list[dict[str, Any]], heads: bool) -> list[Case]:
    """Cases that every function has: widths, profiles, degenerate sizes, mixed dtypes, large ones.

    rowwise: the arguments of input's shape. more: options of the function, cycled through.
    """
    numbered = iter(zip(itertools.cycle(OPTIONS), itertools.cycle(more), strict=False))

    def make(
        name: str,
        shape: tuple[int, ...],
        *tags: str,
        fill: str = "normal",
        weight: tuple[int, ...] | str | None = "row",
        weight_dtype: torch.dtype | None = None,
        dtypes: tuple[torch.dtype, ...] | None = None,
        **fixed: Any,
    ) -> Case:
        common, own = next(numbered)
        chosen = {k: v for k, v in {**common, **own}.items() if heads or k != "weight_offset"} | fixed
        if chosen.get("group_size") and shape[-1] % chosen["group_size"]:
            chosen["group_size"] = None
        args: dict[str, Arg | None] = {n: Arg(shape, fill) for n in rowwise}
        weight_shape = shape[-1:] if weight == "row" else weight
        args["weight"] = None if weight_shape is None else Arg(weight_shape, dtype=weight_dtype)
        return Case(name, args, chosen, frozenset(tags), dtypes)

    cases = [
        make("3x17", (3, 17), "core", rounding="once", group_size=None)
        if not heads
        else make("3x17", (3, 17), "core", rounding="once"),
        make("2x3x32", (2, 3, 32), "core", rounding="llama"),
        make("2x4", (2, 4), "grad", rounding="once"),
        make("1x2x6", (1, 2, 6), "grad", "heads", rounding="llama"),
        make("no-weight", (3, 11), "subsets", weight=None),
        make("no-weight-grad", (2, 4), "grad", weight=None),
        make("vector", (13,)),
        make("0x5", (0, 5), "empty"),
        make("2x0x3", (2, 0, 3), "empty"),
        make("1x4096", (1, 4096)),
        make("70x1000", (70, 1000), "parallel"),
        make("3000x16", (3000, 16), "parallel"),
        make("weight-float32", (5, 33), weight_dtype=torch.float32, dtypes=HALVES, rounding="once"),
        make("weight-float32-llama", (5, 33), weight_dtype=torch.float32, dtypes=HALVES, rounding="llama"),
        make("weight-half", (5, 33), weight_dtype=torch.float16, dtypes=(torch.bfloat16, torch.float32)),
        make("weight-bfloat16", (5, 33), weight_dtype=torch.bfloat16, dtypes=(torch.float16, torch.float32)),
        *(make(f"5x{width}", (5, width)) for width in WIDTHS),
        *(make(f"{profile}", (4, 67), fill=profile) for profile in PROFILES),
    ]
    if heads:
        cases += [
            make("heads-3x16", (2, 3, 16), "subsets", weight=(3, 16), rounding="once"),
            make("heads-5x7", (3, 2, 5, 7), weight=(5, 7), rounding="llama"),
            make("heads-only", (2, 4), "grad", weight=(2, 4), rounding="once"),
        ]
    return cases


def error_cases(
    rowwise: tuple[str, ...], options: Mapping[str, Any], heads: bool, own: list[ErrorCase]
) -> list[ErrorCase]:
    """Refusals that every function has, and its own."""

    def given(
        shape: tuple[int, ...] = (2, 3, 5), weight: Arg | None = None, **other: Arg | None
    ) -> dict[str, Arg | None]:
        return {n: Arg(shape) for n in rowwise} | {"weight": weight} | other

    double, half = torch.float64, torch.float16
    found = [
        ErrorCase("scalar", given(()), options, "input with at least 1 dimension, but got 0"),
        ErrorCase(
            "integer", given(input=Arg((2, 3, 5), dtype=torch.int32)), options, "input .*but got int32"
        ),
        ErrorCase("weight-length", given(weight=Arg((4,))), options, r"weight of shape \(5,\)"),
        ErrorCase(
            "weight-rank",
            given(weight=Arg((1, 1, 5))),
            options,
            r"weight of shape \(5,\).* but got \(1, 1, 5\)",
        ),
        ErrorCase(
            "weight-float64",
            given(weight=Arg((5,), dtype=double)),
            options,
            "weight of dtype .*but got float64",
        ),
        ErrorCase(
            "weight-integer",
            given(weight=Arg((5,), dtype=torch.int64)),
            options,
            "weight of dtype .*got int64",
        ),
        ErrorCase("eps-negative", given(), {**options, "eps": -1e-6}, "eps to be finite and not negative"),
        ErrorCase("eps-nan", given(), {**options, "eps": float("nan")}, "eps to be finite and not negative"),
        ErrorCase("eps-inf", given(), {**options, "eps": float("inf")}, "eps to be finite and not negative"),
        ErrorCase(
            "rounding",
            given(),
            {**options, "rounding": "up"},
            "rounding to be one of once, llama",
            routes=("public",),
        ),
    ]
    wrong_heads = Arg((2, 5) if heads else (3, 5))
    found.append(ErrorCase("weight-heads", given(weight=wrong_heads), options, "weight of shape"))
    for name in rowwise[1:]:
        found.append(ErrorCase(f"{name}-shape", given(**{name: Arg((2, 3, 4))}), options, f"{name} of shape"))
        found.append(
            ErrorCase(
                f"{name}-dtype",
                given(**{name: Arg((2, 3, 5), dtype=double)}),
                options,
                f"{name} of dtype",
                dtype=half,
            )
        )
    return found + own


ROWS = {"rows": (0, 5, 40), "columns": (0, 19, 150)}
COMMON = {"eps": (1e-6, 1e-3), "rounding": ("once", "llama")}


def family(rowwise: tuple[str, ...], **options: tuple[Any, ...]) -> Family:
    """Two-dimensional calls of any size."""

    def build(sizes: Mapping[str, int], _: Mapping[str, Any]) -> dict[str, Arg | None]:
        shape = (sizes["rows"], sizes["columns"])
        return {n: Arg(shape) for n in rowwise} | {"weight": Arg(shape[-1:])}

    return Family(ROWS, build, COMMON | options)


def claims(rowwise: tuple[str, ...], outputs: tuple[str, ...] = ("output",)) -> dict[str, Any]:
    """What is claimed for every function."""
    rows = dict.fromkeys(rowwise, 0)
    shard = dict.fromkeys(rowwise, "S(0)")
    return {
        "outputs": outputs,
        "vmap_dims": (rows, dict.fromkeys(rowwise, 1), rows | {"weight": 0}, {"weight": 0}, {rowwise[0]: 0}),
        "batch": rows,
        "batch_outputs": (0,) * len(outputs),
        "dynamic": dict.fromkeys(rowwise, (0, 1)) | {"weight": (0,)},
        "shardings": (Sharding(shard, ("S(0)",) * len(outputs)), Sharding({}, ("R",) * len(outputs))),
        "cuda": find_library("opwright.rms_norm", "_CUDA") is not None,
    }
