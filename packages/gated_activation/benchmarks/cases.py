"""What is measured of the gated activations, against whom, and the bytes each case has to move.

Bytes count every tensor that must be read or written once; intermediate results of a composition do not
count. A shape is that of the result, `(rows, D)`; packed inputs are `(rows, 2 D)`. The ceiling is the fastest
addition of two tensors into a third: the same three streams.
"""

from __future__ import annotations

import importlib

import torch
import torch.nn.functional as F
from torch import Tensor

from shared_build.benchmarking.cases import Case, Function, Lazy, Shape

SHAPES: tuple[Shape, ...] = ((1, 8192), (64, 8192), (2048, 4096), (2048, 8192))
DTYPES = ("fp32", "bf16", "fp16")
GPT_OSS = {"layout": "interleaved", "alpha": 1.702, "limit": 7.0, "up_offset": 1.0}


def _operator(name: str, *fixed: object, **options: object) -> Lazy:
    """The operator's function, with options fixed; resolved when it is measured."""
    return _resolved("opwright.gated_activation", name, fixed, options)


def _reference(name: str, *fixed: object, **options: object) -> Lazy:
    """The same function of the golden reference."""
    return _resolved("opwright.gated_activation.reference", name, fixed, options)


def _resolved(module: str, name: str, fixed: tuple[object, ...], options: dict[str, object]) -> Lazy:
    def resolve() -> Function:
        function = getattr(importlib.import_module(module), name)

        def call(*arguments: object) -> object:
            return function(*arguments, *fixed, **options)

        return call

    return resolve


# ---- inputs ------------------------------------------------------------------------------------------------


def _normal(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    # Drawn in fp32 and rounded: every dtype sees the same numbers. Wide enough that clamps at 7 matter.
    return (2 * torch.randn(shape, generator=generator)).to(dtype)


def two_inputs(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`(gate, up)`."""
    return _normal(shape, dtype, generator), _normal(shape, dtype, generator)


def packed_input(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor]:
    """`(input,)` with twice the result's width."""
    return (_normal((*shape[:-1], 2 * shape[-1]), dtype, generator),)


# ---- what is written without the operator ------------------------------------------------------------------


def eager_silu(gate: Tensor, up: Tensor) -> Tensor:
    """The MLP of Llama."""
    return F.silu(gate) * up


def eager_packed_silu(input: Tensor) -> Tensor:
    """The same of a packed input, as in Phi-3."""
    gate, up = input.chunk(2, -1)
    return F.silu(gate) * up


def eager_packed_gelu_tanh(input: Tensor) -> Tensor:
    """The MLP of Gemma of a packed input."""
    gate, up = input.chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


def eager_packed_gelu(input: Tensor) -> Tensor:
    """The exact GELU of a packed input."""
    gate, up = input.chunk(2, -1)
    return F.gelu(gate) * up


def eager_gpt_oss(input: Tensor) -> Tensor:
    """The gate function of gpt-oss."""
    gate, up = input[..., ::2], input[..., 1::2]
    gate = gate.clamp(max=7.0)
    up = up.clamp(min=-7.0, max=7.0)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


def read(function: Function) -> Function:
    """A function whose result is read at once: here stores that bypass the caches pay for what they save."""

    def call_and_read(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        output = function(*arguments)
        return output, output.amax(-1)

    return call_and_read


def _read(lazy: Lazy) -> Lazy:
    return lambda: read(lazy())


def graph(function: Function) -> Function:
    """A gated activation between two pointwise neighbours: `f(0.5 x) + 1`."""

    def block(input: Tensor) -> Tensor:
        return function(input * 0.5) + 1

    return block


def _in_graph(lazy: Lazy) -> Lazy:
    return lambda: graph(lazy())


# ---- bytes -------------------------------------------------------------------------------------------------


def _bytes(tensors: int) -> Function:
    """`tensors` tensors of the result's size."""

    def count(shape: Shape, itemsize: int) -> int:
        return tensors * torch.Size(shape).numel() * itemsize

    return count


CASES = [
    Case(
        name="forward",
        title="SwiGLU of two tensors, forward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=two_inputs,
        ours=_operator("gated_activation"),
        eager=eager_silu,
        golden=_reference("gated_activation"),
        bytes_moved=_bytes(3),
        ceiling="add",
    ),
    Case(
        name="packed_forward",
        title="SwiGLU of a packed tensor, forward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=packed_input,
        ours=_operator("gated_activation_packed"),
        eager=eager_packed_silu,
        golden=_reference("gated_activation_packed"),
        bytes_moved=_bytes(3),
        ceiling="add",
    ),
    Case(
        name="gpt_oss_forward",
        title="gpt-oss's gate of an interleaved tensor, forward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=packed_input,
        ours=_operator("gated_activation_packed", **GPT_OSS),
        eager=eager_gpt_oss,
        golden=_reference("gated_activation_packed", **GPT_OSS),
        bytes_moved=_bytes(3),
        ceiling="add",
    ),
    Case(
        name="gelu_tanh_forward",
        title="GeGLU by tanh of a packed tensor, forward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=packed_input,
        ours=_operator("gated_activation_packed", "gelu_tanh"),
        eager=eager_packed_gelu_tanh,
        golden=_reference("gated_activation_packed", "gelu_tanh"),
        bytes_moved=_bytes(3),
        ceiling="add",
    ),
    Case(
        name="gelu_forward",
        title="exact GeGLU of a packed tensor, forward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=packed_input,
        ours=_operator("gated_activation_packed", "gelu"),
        eager=eager_packed_gelu,
        golden=_reference("gated_activation_packed", "gelu"),
        bytes_moved=_bytes(3),
        ceiling="add",
    ),
    Case(
        name="forward_read",
        title="SwiGLU of a packed tensor, forward, its result read at once",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=packed_input,
        ours=_read(_operator("gated_activation_packed")),
        eager=read(eager_packed_silu),
        golden=_read(_reference("gated_activation_packed")),
        bytes_moved=_bytes(4),
        ceiling="add",
    ),
    Case(
        name="forward_backward",
        title="SwiGLU of two tensors, forward and backward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=two_inputs,
        ours=_operator("gated_activation"),
        eager=eager_silu,
        golden=_reference("gated_activation"),
        bytes_moved=_bytes(8),
        differentiate=(0, 1),
        ceiling="add",
    ),
    Case(
        name="packed_forward_backward",
        title="SwiGLU of a packed tensor, forward and backward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=packed_input,
        ours=_operator("gated_activation_packed"),
        eager=eager_packed_silu,
        golden=_reference("gated_activation_packed"),
        bytes_moved=_bytes(8),
        differentiate=(0,),
        ceiling="add",
    ),
    Case(
        name="gpt_oss_forward_backward",
        title="gpt-oss's gate of an interleaved tensor, forward and backward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=packed_input,
        ours=_operator("gated_activation_packed", **GPT_OSS),
        eager=eager_gpt_oss,
        golden=_reference("gated_activation_packed", **GPT_OSS),
        bytes_moved=_bytes(8),
        differentiate=(0,),
        ceiling="add",
    ),
    Case(
        name="in_graph",
        title="SwiGLU of a packed tensor between pointwise neighbours, inside a compiled graph",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=packed_input,
        ours=_in_graph(_operator("gated_activation_packed")),
        eager=graph(eager_packed_silu),
        golden=_in_graph(_reference("gated_activation_packed")),
        bytes_moved=_bytes(3),
        in_graph=True,
        ceiling="add",
    ),
]
