"""Deterministic tensors: a value profile, a shape and a seed give the same numbers everywhere."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection

import torch

from .spec import Arg, Case, Tensors


def _normal(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _positive(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5


def _scale(generator: torch.Generator) -> float:
    """A factor of the seed, so that values without other randomness differ between draws."""
    return float(torch.rand((), generator=generator, dtype=torch.float64)) + 0.5


def _spikes(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.zeros(shape, dtype=torch.float64)
    if values.numel():
        flat = values.view(-1)
        flat[torch.randint(flat.numel(), (max(1, flat.numel() // 17),), generator=generator)] = 30.0 * _scale(
            generator
        )
    return values


def _duplicates(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(-2, 3, shape, generator=generator).double() * _scale(generator)


PROFILES: dict[str, Callable[[torch.Generator, tuple[int, ...]], torch.Tensor]] = {
    "normal": _normal,
    "tiny": lambda g, s: _normal(g, s) * 1e-4,
    "huge": lambda g, s: _normal(g, s) * 3e3,
    "offset": lambda g, s: 100.0 + 0.01 * _normal(g, s),  # large mean, small variance
    "wide": lambda g, s: _normal(g, s) * torch.exp(2.0 * _normal(g, s)),  # many binades
    "zeros": lambda g, s: torch.zeros(s, dtype=torch.float64),
    "equal": lambda g, s: torch.full(s, _scale(g), dtype=torch.float64),
    "positive": _positive,
    "spikes": _spikes,
    "duplicates": _duplicates,
    "subnormal": lambda g, s: _normal(g, s) * 1e-39,
}


def seed_of(*parts: object) -> int:
    """A seed that depends only on the names given, not on the process or the platform."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def fill(arg: Arg, seed: int) -> torch.Tensor:
    """The float64 (or integer) values of one argument."""
    maker = PROFILES[arg.fill] if isinstance(arg.fill, str) else arg.fill
    return maker(torch.Generator().manual_seed(seed), arg.shape)


def dtype_of(arg: Arg, dtype: torch.dtype) -> torch.dtype:
    """The dtype an argument has when the case runs in `dtype`; float64 raises every float argument."""
    if arg.dtype is None:
        return dtype
    return dtype if arg.dtype.is_floating_point and dtype == torch.float64 else arg.dtype


def materialise(
    case: Case,
    dtype: torch.dtype,
    *,
    device: str = "cpu",
    seed: int = 0,
    grad: Collection[str] = (),
    profile: str | None = None,
) -> Tensors:
    """The tensors of a case, contiguous, by argument name (None for an omitted argument).

    grad: names of the arguments that require a gradient. profile: replaces the named fill of every argument.
    On the meta device nothing is filled.
    """
    tensors: Tensors = {}
    for name, arg in case.args.items():
        if arg is None:
            tensors[name] = None
            continue
        target = dtype_of(arg, dtype)
        if device == "meta":
            tensor = torch.empty(arg.shape, dtype=target, device="meta")
        else:
            chosen = arg
            if profile is not None and isinstance(arg.fill, str):
                chosen = Arg(arg.shape, profile, arg.dtype, arg.differentiable)
            tensor = fill(chosen, seed_of(case.id, name, seed)).to(target).to(device)
        tensors[name] = tensor.requires_grad_(name in grad)
    return tensors


def differentiable(case: Case) -> list[str]:
    """The names of the given arguments of a case for which a gradient may be asked."""
    return [
        name
        for name, arg in case.args.items()
        if arg is not None and arg.differentiable and (arg.dtype is None or arg.dtype.is_floating_point)
    ]


def cotangents(outputs: tuple[torch.Tensor, ...], seed: int) -> tuple[torch.Tensor, ...]:
    """Random, non-uniform upstream gradients in the dtype and on the device of each output."""
    return tuple(
        fill(Arg(tuple(out.shape)), seed_of("cotangent", index, seed)).to(out.dtype).to(out.device)
        for index, out in enumerate(outputs)
    )
