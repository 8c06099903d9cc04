"""What is measured of the RMS norm operators, against whom, and the bytes each case has to move.

Bytes count every tensor that must be read or written once; intermediate results of a composition do not
count, so GB/s is comparable between contenders, and a fused operator can approach what a copy reaches.
"""

from __future__ import annotations

import importlib

import torch
import torch.nn.functional as F
from torch import Tensor

from shared_build.benchmarking.cases import Case, Function, Lazy, Shape

EPS = 1e-6
SHAPES: tuple[Shape, ...] = ((1, 4096), (64, 4096), (2048, 2048), (4096, 4096))
# The largest is far beyond any second-level cache: only there is the memory's bandwidth the ceiling.
CUDA_SHAPES: tuple[Shape, ...] = ((1, 4096), (4096, 4096), (32768, 8192))
DTYPES = ("fp32", "bf16", "fp16")


def _operator(name: str, **options: object) -> Lazy:
    """The operator's function, with options fixed; resolved when it is measured."""

    def resolve() -> Function:
        function = getattr(importlib.import_module("opwright.rms_norm"), name)
        if not options:
            return function

        def call(*arguments: object) -> object:
            return function(*arguments, **options)

        return call

    return resolve


def _reference(name: str, **options: object) -> Lazy:
    """The same function of the golden reference."""

    def resolve() -> Function:
        function = getattr(importlib.import_module("opwright.rms_norm.reference"), name)

        def call(*arguments: object) -> object:
            return function(*arguments, **options)

        return call

    return resolve


# ---- inputs ------------------------------------------------------------------------------------------------


def _normal(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    # Drawn in fp32 and rounded: every dtype sees the same numbers.
    return torch.randn(shape, generator=generator).to(dtype)


def _weight(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return (1 + 0.1 * torch.randn(shape[-1], generator=generator)).to(dtype)


def one_input(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """`(input, weight, eps)`."""
    return _normal(shape, dtype, generator), _weight(shape, dtype, generator), EPS


def two_inputs(
    shape: Shape, dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, float]:
    """`(input, residual or gate, weight, eps)`."""
    first, second = (_normal(shape, dtype, generator) for _ in range(2))
    return first, second, _weight(shape, dtype, generator), EPS


# ---- what is written without the operator ------------------------------------------------------------------


def eager_norm(input: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Torch's own function."""
    return F.rms_norm(input, (input.shape[-1],), weight, eps)


def eager_llama(input: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of Llama models: rounded before the weight, and after."""
    wide = input.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(input.dtype)


def eager_add_norm(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """A residual addition and torch's norm."""
    total = input + residual
    return F.rms_norm(total, (input.shape[-1],), weight, eps), total


def eager_add_norm_(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The same, the results in the place of the arguments."""
    residual.add_(input)
    input.copy_(F.rms_norm(residual, (input.shape[-1],), weight, eps))
    return input, residual


def eager_gated(input: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm, weight in the input's dtype, then the gate in fp32: what Qwen3-Next computes."""
    wide = input.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    weighted = weight * normed.to(input.dtype)
    return (weighted * F.silu(gate.float())).to(input.dtype)


def graph(norm: Function) -> Function:
    """A norm between two pointwise neighbours, as in a block: `h = x + silu(u); norm(h) * 0.5 + h`."""

    def block(input: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        hidden = input + F.silu(update)
        return norm(hidden, weight, eps) * 0.5 + hidden

    return block


def _in_graph(lazy: Lazy) -> Lazy:
    return lambda: graph(lazy())


def read(norm: Function) -> Function:
    """A norm whose result is read at once: here stores that bypass the caches pay for what they save."""

    def norm_and_read(input: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        output = norm(input, weight, eps)
        return output, output.amax(-1)

    return norm_and_read


def _read(lazy: Lazy) -> Lazy:
    return lambda: read(lazy())


def _transformers_llama() -> Function:
    """The module that transformers' Llama models run, called with our weight."""
    module = importlib.import_module("transformers.models.llama.modeling_llama").LlamaRMSNorm

    def call(input: Tensor, weight: Tensor, eps: float) -> Tensor:
        return torch.func.functional_call(norm, {"weight": weight}, (input,))

    norm = module(1, eps=EPS)
    return call


# ---- bytes -------------------------------------------------------------------------------------------------


def _bytes(tensors: int, weights: int = 1) -> Function:
    """`tensors` tensors of the input's size and `weights` weights."""

    def count(shape: Shape, itemsize: int) -> int:
        return (tensors * torch.Size(shape).numel() + weights * shape[-1]) * itemsize

    return count


CASES = [
    Case(
        name="forward",
        title="RMS norm, forward",
        shapes=SHAPES,
        cuda_shapes=CUDA_SHAPES,
        dtypes=DTYPES,
        make=one_input,
        ours=_operator("rms_norm"),
        eager=eager_norm,
        golden=_reference("rms_norm"),
        bytes_moved=_bytes(2),
    ),
    Case(
        name="forward_llama",
        title="RMS norm with Llama's rounding, forward",
        shapes=SHAPES,
        cuda_shapes=CUDA_SHAPES,
        dtypes=DTYPES,
        make=one_input,
        ours=_operator("rms_norm", rounding="llama"),
        eager=eager_llama,
        golden=_reference("rms_norm", rounding="llama"),
        bytes_moved=_bytes(2),
        rivals={"transformers": _transformers_llama},
    ),
    Case(
        name="forward_read",
        title="RMS norm, forward, its result read at once",
        shapes=SHAPES,
        cuda_shapes=CUDA_SHAPES,
        dtypes=DTYPES,
        make=one_input,
        ours=_read(_operator("rms_norm")),
        eager=read(eager_norm),
        golden=_read(_reference("rms_norm")),
        bytes_moved=_bytes(3),
    ),
    Case(
        name="forward_backward",
        title="RMS norm, forward and backward",
        shapes=SHAPES,
        cuda_shapes=CUDA_SHAPES,
        dtypes=DTYPES,
        make=one_input,
        ours=_operator("rms_norm"),
        eager=eager_norm,
        golden=_reference("rms_norm"),
        bytes_moved=_bytes(5, weights=3),
        differentiate=(0, 1),
    ),
    Case(
        name="add_forward",
        title="residual addition and RMS norm, forward",
        shapes=SHAPES,
        cuda_shapes=CUDA_SHAPES,
        dtypes=DTYPES,
        make=two_inputs,
        ours=_operator("add_rms_norm"),
        eager=eager_add_norm,
        golden=_reference("add_rms_norm"),
        bytes_moved=_bytes(4),
    ),
    Case(
        name="add_forward_backward",
        title="residual addition and RMS norm, forward and backward",
        shapes=SHAPES,
        cuda_shapes=CUDA_SHAPES,
        dtypes=DTYPES,
        make=two_inputs,
        ours=_operator("add_rms_norm"),
        eager=eager_add_norm,
        golden=_reference("add_rms_norm"),
        bytes_moved=_bytes(9, weights=3),
        differentiate=(0, 1, 2),
    ),
    Case(
        name="add_in_place",
        title="residual addition and RMS norm, in place",
        shapes=SHAPES,
        cuda_shapes=CUDA_SHAPES,
        dtypes=DTYPES,
        make=two_inputs,
        ours=_operator("add_rms_norm_"),
        eager=eager_add_norm_,
        golden=_reference("add_rms_norm"),
        bytes_moved=_bytes(4),
        mutates=True,
    ),
    Case(
        name="gated_forward",
        title="gated RMS norm (norm, then SiLU gate), forward",
        shapes=SHAPES,
        cuda_shapes=CUDA_SHAPES,
        dtypes=DTYPES,
        make=two_inputs,
        ours=_operator("rms_norm_gated", rounding="llama"),
        eager=eager_gated,
        golden=_reference("rms_norm_gated", rounding="llama"),
        bytes_moved=_bytes(3),
    ),
    Case(
        name="gated_forward_backward",
        title="gated RMS norm (norm, then SiLU gate), forward and backward",
        shapes=SHAPES,
        cuda_shapes=CUDA_SHAPES,
        dtypes=DTYPES,
        make=two_inputs,
        ours=_operator("rms_norm_gated", rounding="llama"),
        eager=eager_gated,
        golden=_reference("rms_norm_gated", rounding="llama"),
        bytes_moved=_bytes(8, weights=3),
        differentiate=(0, 1, 2),
    ),
    Case(
        name="in_graph",
        title="RMS norm between pointwise neighbours, inside a compiled graph",
        shapes=SHAPES,
        cuda_shapes=CUDA_SHAPES,
        dtypes=DTYPES,
        make=two_inputs,
        ours=_in_graph(_operator("rms_norm")),
        eager=graph(eager_norm),
        golden=_in_graph(_reference("rms_norm")),
        bytes_moved=_bytes(3),
        in_graph=True,
    ),
]
