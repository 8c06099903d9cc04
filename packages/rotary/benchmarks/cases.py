"""What is measured of apply_rotary, against whom, and the bytes each case has to move.

Shapes are those of q, `(batch, heads, seq_len, head_dim)`; k has a quarter of the heads. Bytes count every
tensor that must be read or written once; intermediate results of a composition do not count, so GB/s is
comparable between contenders, and a fused operator can approach what a copy reaches.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from shared_build.benchmarking.cases import Case, Function, Lazy, Shape

SHAPES: tuple[Shape, ...] = ((1, 32, 1, 128), (1, 32, 256, 128), (1, 32, 2048, 128), (4, 32, 2048, 128))
DTYPES = ("fp32", "bf16", "fp16")
GROUP = 4  # heads of q for each of k
BASE = 10000.0
PARTIAL = 32  # rotated columns of the partial case, a quarter of the head

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def _with_tables(module: str, **options: object) -> Lazy:
    """`apply_rotary` of a module as a function of (q, k, cos, sin); resolved when it is measured."""

    def resolve() -> Function:
        function = importlib.import_module(module).apply_rotary

        def call(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> object:
            return function(q, k, cos=cos, sin=sin, seq_dim=2, **options)

        return call

    return resolve


def _operator(**options: object) -> Lazy:
    return _with_tables("opwright.rotary", **options)


def _reference(**options: object) -> Lazy:
    return _with_tables("opwright.rotary.reference", **options)


# ---- inputs ------------------------------------------------------------------------------------------------


def _tables(tokens: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Tables as models hand them over: `(1, seq_len, rotary_dim)`, a value for each column."""
    frequencies = BASE ** (-torch.arange(0, columns, 2) / columns)
    angles = torch.arange(tokens)[:, None] * frequencies
    doubled = torch.cat((angles, angles), -1)[None]
    return doubled.cos().to(dtype), doubled.sin().to(dtype)


def _normal(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    # Drawn in fp32 and rounded: every dtype sees the same numbers.
    return torch.randn(shape, generator=generator).to(dtype)


def dense(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Contiguous `(batch, heads, seq_len, head_dim)`."""
    batch, heads, tokens, columns = shape
    q = _normal(shape, dtype, generator)
    k = _normal((batch, heads // GROUP, tokens, columns), dtype, generator)
    return q, k, *_tables(tokens, columns, dtype)


def projected(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Views of a fused projection `(batch, seq_len, heads of q, k and v, head_dim)`, as in a model."""
    batch, heads, tokens, columns = shape
    few = heads // GROUP
    fused = _normal((batch, tokens, heads + 2 * few, columns), dtype, generator)
    q, k, _ = fused.transpose(1, 2).split((heads, few, few), 1)
    return q, k, *_tables(tokens, columns, dtype)


def pairs(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Contiguous, with tables of one value a pair."""
    q, k, cos, sin = dense(shape, dtype, generator)
    half = shape[-1] // 2
    return q, k, cos[..., :half].contiguous(), sin[..., :half].contiguous()


def partial(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Contiguous, with tables of fewer columns than a head has."""
    q, k, _, _ = dense(shape, dtype, generator)
    return q, k, *_tables(shape[2], PARTIAL, dtype)


# ---- what is written without the operator ------------------------------------------------------------------


def _turned_halves(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def eager_halves(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The rotation of Llama and most other models, as transformers writes it."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + _turned_halves(q) * sin, k * cos + _turned_halves(k) * sin


def eager_halves_(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The same, the results in the place of the arguments."""
    q_out, k_out = eager_halves(q, k, cos, sin)
    return q.copy_(q_out), k.copy_(k_out)


def _turned_neighbours(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)


def eager_neighbours(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The rotation of GPT-J, with its tables of one value a pair."""
    cos = cos.repeat_interleave(2, -1).unsqueeze(1)
    sin = sin.repeat_interleave(2, -1).unsqueeze(1)
    return q * cos + _turned_neighbours(q) * sin, k * cos + _turned_neighbours(k) * sin


def eager_partial(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The rotation of GPT-NeoX and Qwen3-Next: the first columns are rotated, the others are appended."""
    columns = cos.shape[-1]
    q_out, k_out = eager_halves(q[..., :columns], k[..., :columns], cos, sin)
    return torch.cat((q_out, q[..., columns:]), -1), torch.cat((k_out, k[..., columns:]), -1)


def graph(rotary: Function) -> Function:
    """Rotation between pointwise neighbours: q and k are scaled before and q once more behind."""

    def block(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        q_out, k_out = rotary(q * 1.25 + 0.5, k * 1.25 + 0.5, cos, sin)
        return q_out * 0.125, k_out

    return block


def _in_graph(lazy: Lazy) -> Lazy:
    return lambda: graph(lazy())


def read(rotary: Function) -> Function:
    """Results that are read at once: here stores that bypass the caches pay for what they save."""

    def rotate_and_read(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        q_out, k_out = rotary(q, k, cos, sin)
        return q_out, k_out, q_out.amax(-1), k_out.amax(-1)

    return rotate_and_read


def _read(lazy: Lazy) -> Lazy:
    return lambda: read(lazy())


def _transformers(model: str) -> Lazy:
    """The function of a model file of transformers."""
    return lambda: (
        importlib.import_module(f"transformers.models.{model}.modeling_{model}").apply_rotary_pos_emb
    )


# ---- bytes -------------------------------------------------------------------------------------------------


def _bytes(passes: int, columns: int | None = None) -> Function:
    """`passes` times q and k, and both tables."""

    def count(shape: Shape, itemsize: int) -> int:
        batch, heads, tokens, head_dim = shape
        rows = batch * (heads + heads // GROUP) * tokens
        return (passes * rows * head_dim + 2 * tokens * (columns or head_dim)) * itemsize

    return count


CASES = [
    Case(
        name="forward",
        title="q and k, forward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=dense,
        ours=_operator(),
        eager=eager_halves,
        golden=_reference(),
        bytes_moved=_bytes(2),
        rivals={"transformers": _transformers("llama")},
    ),
    Case(
        name="forward_backward",
        title="q and k, forward and backward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=dense,
        ours=_operator(),
        eager=eager_halves,
        golden=_reference(),
        bytes_moved=_bytes(4),
        differentiate=(0, 1),
    ),
    Case(
        name="forward_projected",
        title="q and k as views of a fused projection, forward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=projected,
        ours=_operator(),
        eager=eager_halves,
        golden=_reference(),
        bytes_moved=_bytes(2),
    ),
    Case(
        name="forward_read",
        title="q and k, forward, the results read at once",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=dense,
        ours=_read(_operator()),
        eager=read(eager_halves),
        golden=_read(_reference()),
        bytes_moved=_bytes(3),
    ),
    Case(
        name="in_place",
        title="q and k, in place",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=dense,
        ours=_operator(inplace=True),
        eager=eager_halves_,
        golden=_reference(),
        bytes_moved=_bytes(2),
        mutates=True,
    ),
    Case(
        name="interleaved_forward",
        title="q and k with interleaved pairs, forward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=pairs,
        ours=_operator(interleaved=True),
        eager=eager_neighbours,
        golden=_reference(interleaved=True),
        bytes_moved=_bytes(2, columns=64),
    ),
    Case(
        name="partial_forward",
        title="q and k, a quarter of the columns rotated, forward",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=partial,
        ours=_operator(rotary_dim=PARTIAL),
        eager=eager_partial,
        golden=_reference(rotary_dim=PARTIAL),
        bytes_moved=_bytes(2, columns=PARTIAL),
        rivals={"transformers": _transformers("gpt_neox")},
    ),
    Case(
        name="in_graph",
        title="q and k between pointwise neighbours, inside a compiled graph",
        shapes=SHAPES,
        dtypes=DTYPES,
        make=dense,
        ours=_in_graph(_operator()),
        eager=graph(eager_halves),
        golden=_in_graph(_reference()),
        bytes_moved=_bytes(2),
        in_graph=True,
    ),
]
