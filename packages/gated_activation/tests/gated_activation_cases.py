"""Cases, errors, sizes and claims that the functions of gated_activation share.

Widths sit around the vector lengths (a block is two vectors: 8, 16 or 32 elements) and include primes; row
counts are small primes. Options are spread over the cases rather than multiplied.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from shared_build.conformance import Arg, Case, ErrorCase

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "identity")
WIDTHS = (1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 257, 515, 1023)
PROFILES = ("tiny", "huge", "offset", "wide", "zeros", "equal", "spikes", "duplicates", "subnormal")
GPT_OSS = {"activation": "silu", "alpha": 1.702, "limit": 7.0, "up_offset": 1.0}

# Every activation with every kind of bound; limits near the values, so that both sides occur.
OPTIONS: list[dict[str, Any]] = [
    {"activation": activation, **bounds}
    for bounds in ({}, {"limit": 0.7}, {"limit": 0.6, "clamp": "output"}, {"up_offset": -0.25})
    for activation in ACTIVATIONS
] + [GPT_OSS, {"activation": "silu", "alpha": 1.702}]

Make = Callable[[tuple[int, ...], str], dict[str, Arg | None]]


def shared_cases(make: Make, more: list[dict[str, Any]]) -> list[Case]:
    """Cases that every function has: widths, profiles, degenerate sizes, large ones, every option.

    make: (shape of the result, fill) -> arguments. more: options of the function's own, cycled through.
    """
    options = itertools.cycle(OPTIONS)
    own = itertools.cycle(more)

    def case(name: str, shape: tuple[int, ...], *tags: str, fill: str = "normal", **fixed: Any) -> Case:
        chosen = {**(fixed or next(options)), **next(own)}
        return Case(name, make(shape, fill), chosen, frozenset(tags))

    def cases() -> Iterator[Case]:
        yield case("core-silu", (5, 37), "core", activation="silu")
        yield case("core-gpt-oss", (3, 7, 20), "core", **GPT_OSS)
        yield case("core-gelu-output", (3, 65), "core", activation="gelu", limit=0.6, clamp="output")
        # gradcheck: every activation plain and with each kind of clamp, spread; the rest is compared below.
        for index, chosen in enumerate(OPTIONS):
            if index % 3 == 0 or chosen is GPT_OSS:
                yield case(f"grad-{index}-{chosen['activation']}", (2, 5), "grad", **chosen)
        for index, chosen in enumerate(OPTIONS):
            yield case(f"options-{index}-{chosen['activation']}", (3, 67), **chosen)
        for width in WIDTHS:
            yield case(f"width-{width}", (3, width))
        for profile in PROFILES:
            yield case(f"profile-{profile}", (3, 33), fill=profile)
        yield case("vector", (13,))
        yield case("four-dimensional", (2, 3, 1, 9))
        yield case("empty-rows", (0, 5), "empty")
        yield case("empty-columns", (3, 0), "empty")
        yield case("parallel-rows", (1024, 130), "parallel")
        yield case("parallel-row", (1, 70001), "parallel", **GPT_OSS)
        yield case("streamed", (1027, 2051), activation="silu")

    return list(cases())


def errors(make: Make, direct: bool = True) -> list[ErrorCase]:
    """Errors in options, the same for every function. direct: the dispatcher operator takes the options."""
    args = make((2, 6), "normal")
    both = ("public", "direct") if direct else ("public",)

    def error(name: str, match: str, routes: tuple[str, ...] = both, **options: Any) -> ErrorCase:
        return ErrorCase(name, args, {"activation": "silu", **options}, match, routes=routes)

    return [
        error(
            "activation",
            "activation to be one of silu, gelu, gelu_tanh, relu, relu2, sigmoid, identity, but got swish",
            ("public",),
            activation="swish",
        ),
        error("clamp", "clamp to be one of input, output, but got both", ("public",), clamp="both"),
        error("alpha-infinite", "alpha to be finite, but got inf", alpha=float("inf")),
        error(
            "alpha-elsewhere",
            "alpha to be 1 with another activation than silu, but got 1.7",
            activation="gelu",
            alpha=1.702,
        ),
        error("limit-zero", "limit to be positive, but got 0", limit=0.0),
        error("limit-negative", "limit to be positive, but got -7", limit=-7.0),
        error("limit-nan", "limit to be positive, but got nan", limit=float("nan")),
        error("offset", "up_offset to be finite, but got nan", up_offset=float("nan")),
    ]


def size(*tensors: torch.Tensor | None) -> int:
    """Bytes of the tensors' elements."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def numbers(o: Mapping[str, Any]) -> tuple[Any, ...]:
    """The options as the schemas take them."""
    return (
        ACTIVATIONS.index(o.get("activation", "silu")),
        o.get("alpha", 1.0),
        o.get("limit"),
        o.get("up_offset", 0.0),
        o.get("clamp", "input") == "output",
    )
