"""Cases and errors of apply_rotary, for its two forms.

Numbers of pairs sit around the vector lengths (4, 8 and 16 lanes, two registers at a time) and include
primes; other sizes are small primes. Options are spread over the cases rather than multiplied. Tables hold
random numbers, so that every value of a table with a value for each column has an effect of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from shared_build.conformance import Arg, Case, ErrorCase, Family

HALVES = (torch.bfloat16, torch.float16)
PAIRS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 127, 129)
PROFILES = ("tiny", "huge", "offset", "wide", "zeros", "equal", "spikes", "duplicates", "subnormal")
PAIRINGS: tuple[dict[str, bool], ...] = ({}, {"interleaved": True}, {"deinterleave": True})
TENSORS = ("q", "k", "cos", "sin", "positions", "cu_seqlens", "offsets")


def below(limit: int) -> Callable[[torch.Generator, tuple[int, ...]], torch.Tensor]:
    """Fill with random rows of a table of ``limit`` rows."""
    return lambda generator, shape: torch.randint(limit, shape, generator=generator).double()


def fixed(*values: int) -> Callable[[torch.Generator, tuple[int, ...]], torch.Tensor]:
    """Fill with these numbers."""
    return lambda _, shape: torch.tensor(values, dtype=torch.float64).reshape(shape)


def make(
    name: str,
    *tags: str,
    batch: int | None = 2,
    tokens: int = 3,
    heads: int = 4,
    k_heads: int | None = 2,
    columns: int = 16,
    table: tuple[int, ...] | None = None,
    table_dtype: torch.dtype | None = None,
    table_grad: bool = False,
    fill: str = "normal",
    index: torch.dtype = torch.int64,
    positions: tuple[int, ...] | None = None,
    cu_seqlens: tuple[int, ...] | None = None,
    offsets: tuple[int, ...] | None = None,
    dtypes: tuple[torch.dtype, ...] | None = None,
    **options: Any,
) -> Case:
    """A case; ``table`` is the tables' shape, by default one row a token and one value a pair."""

    def shape(count: int) -> tuple[int, ...]:
        inner = (count, tokens) if options.get("seq_dim") == 2 else (tokens, count)
        return (*(() if batch is None else (batch,)), *inner, columns)

    rotary = options.get("rotary_dim")
    table = table or (tokens + 2, (columns if rotary is None else rotary) // 2)
    tables = Arg(table, dtype=table_dtype, differentiable=table_grad)
    args: dict[str, Arg | None] = {
        "q": Arg(shape(heads), fill),
        "k": None if k_heads is None else Arg(shape(k_heads), fill),
        "cos": tables,
        "sin": tables,
    }
    if positions is not None:
        # In the lower half of the table, so that twice a position is one, too.
        args["positions"] = Arg(positions, below((table[-2] + 1) // 2), index)
    if cu_seqlens is not None:
        args["cu_seqlens"] = Arg((len(cu_seqlens),), fixed(*cu_seqlens), index)
    if offsets is not None:
        args["offsets"] = Arg((len(offsets),), fixed(*offsets), index)
    return Case(name, args, options, frozenset(tags), dtypes)


CORE = [
    make("halves", "core", rotary_dim=8),
    make("neighbours", "core", seq_dim=2, columns=10, table=(5, 10), interleaved=True, positions=(3,)),
]
GRAD = [
    make("grad-halves", "grad", batch=1, tokens=2, heads=2, k_heads=1, columns=4),
    make(
        "grad-tables", "grad", "subsets", batch=1, tokens=2, heads=2, k_heads=1, columns=6, rotary_dim=4,
        table=(3, 4), table_grad=True, interleaved=True, trailing=True, positions=(1, 2),
    ),
    make(
        "grad-deinterleave", "grad", batch=1, tokens=2, heads=1, k_heads=1, columns=6, table=(3, 1, 2, 3),
        table_grad=True, deinterleave=True, sections=(1, 1, 1),
    ),
]  # fmt: skip
ALONE = [
    make("alone", "core", k_heads=None, table=(5, 16), interleaved=True),
    make("alone-grad", "grad", tokens=2, heads=1, k_heads=None, columns=4, table=(9, 4), offsets=(3, 1)),
    make("alone-no-batch", batch=None, k_heads=None, trailing=True, rotary_dim=8, seq_dim=2),
    make("alone-parallel", "parallel", batch=3, tokens=200, heads=5, k_heads=None, columns=64),
    make("alone-one-head", batch=1, tokens=33, heads=1, k_heads=None, columns=70, deinterleave=True),
]
PLACES = [
    make("no-batch", batch=None, tokens=5),
    make("no-batch-heads-first", batch=None, tokens=5, seq_dim=2, interleaved=True),
    make("tables-of-batch", table=(2, 3, 8)),
    make("tables-of-batch-columns", table=(2, 3, 16), seq_dim=2),
    make("table-of-one", table=(1, 4, 8), interleaved=True),
    make("positions-row", tokens=5, table=(11, 8), positions=(5,), index=torch.int32),
    make("positions-batch", tokens=5, table=(11, 8), positions=(2, 5)),
    make("positions-one", tokens=5, table=(11, 16), positions=(1, 5)),
    make("positions-tables-of-batch", tokens=5, table=(2, 11, 8), positions=(2, 5), interleaved=True),
    make("positions-row-tables-of-batch", tokens=5, table=(2, 11, 8), positions=(5,)),
    make("positions-table-of-one", tokens=5, table=(1, 11, 8), positions=(2, 5), deinterleave=True),
    make("positions-one-tables-of-batch", tokens=5, table=(2, 11, 8), positions=(1, 5)),
    make("offset-number", table=(11, 8), offsets=None, seq_dim=2),
    make("offsets", table=(11, 8), offsets=(7, 0)),
    make("offsets-int32", table=(11, 16), offsets=(0, 8), index=torch.int32, interleaved=True),
    make("packed", batch=None, tokens=9, table=(5, 8), cu_seqlens=(0, 2, 2, 7, 9)),
    make("packed-batch-of-one", batch=1, tokens=9, table=(5, 8), cu_seqlens=(0, 5, 9), index=torch.int32),
    make("packed-padding", batch=None, tokens=9, table=(5, 8), cu_seqlens=(0, 5, 7), deinterleave=True),
    make("packed-offsets", batch=None, tokens=9, table=(9, 8), cu_seqlens=(0, 5, 9), offsets=(3, 1)),
    make("packed-all-padding", batch=None, tokens=3, cu_seqlens=(0, 0), rotary_dim=8),
    make("packed-nothing", batch=None, tokens=3, cu_seqlens=(0,), interleaved=True),
]
SECTIONS = [
    make("sections-blocked", table=(3, 2, 3, 8), sections=(2, 3, 3)),
    make("sections-interleaved", table=(3, 2, 3, 8), sections=(4, 2, 2), section_layout="interleaved"),
    make("sections-uneven", table=(3, 1, 3, 8), sections=(0, 7, 1), section_layout="interleaved"),
    make(
        "sections-columns",
        table=(3, 2, 3, 16),
        sections=(3, 3, 2),
        section_layout="interleaved",
        interleaved=True,
    ),
    make("sections-positions", tokens=5, table=(3, 2, 11, 8), sections=(2, 4, 2), positions=(2, 5)),
    make(
        "sections-positions-each", tokens=5, table=(11, 8), sections=(2, 4, 2), positions=(3, 2, 5), seq_dim=2
    ),
    make(
        "sections-positions-each-one",
        tokens=5,
        table=(11, 16),
        sections=(3, 3, 2),
        section_layout="interleaved",
        positions=(3, 1, 5),
    ),
    make(
        "sections-partial",
        columns=32,
        rotary_dim=22,
        table=(3, 1, 3, 11),
        sections=(4, 4, 3),
        section_layout="interleaved",
    ),
]
SIZES = [
    make("heads-64-1", heads=64, k_heads=1, tokens=2),
    make("heads-8-8", heads=8, k_heads=8, tokens=2),
    make("heads-3-1", heads=3, k_heads=1, tokens=2),
    make("decode", batch=1, tokens=1, heads=32, k_heads=8, columns=128, table=(1, 1, 128), seq_dim=2),
    make("rotary-0", rotary_dim=0, columns=7),
    make("columns-0", columns=0),
    make("trailing", columns=24, rotary_dim=8, trailing=True),
    make("trailing-neighbours", columns=23, rotary_dim=16, trailing=True, interleaved=True),
    make("trailing-all", columns=8, trailing=True, deinterleave=True),
    make("no-tokens", "empty", tokens=0),
    make("no-batch-elements", "empty", batch=0),
    make("no-heads", "empty", heads=0, k_heads=0),
    make("no-k-heads", "empty", k_heads=0),
    make("parallel", "parallel", batch=2, tokens=150, heads=6, k_heads=2, columns=64),
    make("parallel-heads-first", "parallel", tokens=150, heads=6, columns=64, seq_dim=2, interleaved=True),
    make(
        "parallel-deinterleave",
        "parallel",
        batch=1,
        tokens=700,
        heads=3,
        k_heads=1,
        columns=48,
        rotary_dim=32,
        deinterleave=True,
    ),
    make(
        "one-token-parallel", "parallel", batch=300, tokens=1, heads=5, k_heads=1, columns=64, table=(2, 32)
    ),
]
TABLES = [
    make("table-float32", table=(4, 8), table_dtype=torch.float32, dtypes=HALVES),
    make("table-float32-columns", table=(4, 16), table_dtype=torch.float32, dtypes=HALVES, interleaved=True),
    make("table-bfloat16", table_dtype=torch.bfloat16, dtypes=(torch.float32, torch.float16)),
    make(
        "table-float16", table_dtype=torch.float16, dtypes=(torch.float32, torch.bfloat16), interleaved=True
    ),
]
WIDTHS = [
    make(
        f"pairs-{pairs}",
        batch=1,
        tokens=2,
        heads=2,
        k_heads=1,
        columns=2 * pairs + extra,
        rotary_dim=2 * pairs,
        table=(2, 2 * pairs if extra else pairs),
        trailing=extra == 3,
        **PAIRINGS[index % 3],
    )
    for index, pairs in enumerate(PAIRS)
    for extra in (0, index % 4)
    if extra or index % 4 == 0 or index % 3
]
for _position, _case in enumerate(WIDTHS):
    WIDTHS[_position] = Case(f"{_case.id}-{_position}", _case.args, _case.options, _case.tags, _case.dtypes)
VALUES = [
    make(profile, tokens=5, columns=20, fill=profile, **PAIRINGS[index % 3])
    for index, profile in enumerate(PROFILES)
]


def _with_offset(case: Case) -> Case:
    """The case whose offset is a number and not a tensor."""
    return Case(case.id, case.args, {**case.options, "offsets": 6}, case.tags, case.dtypes)


CASES = [
    _with_offset(case) if case.id == "offset-number" else case
    for case in [*CORE, *GRAD, *PLACES, *SECTIONS, *SIZES, *TABLES, *WIDTHS, *VALUES]
]

# ---- errors --------------------------------------------------------------------------------------------

INTEGER, DOUBLE = torch.int64, torch.float64


def _arguments(**other: Arg | None) -> dict[str, Arg | None]:
    table = Arg((5, 4))
    return {"q": Arg((2, 5, 3, 8)), "k": Arg((2, 5, 1, 8)), "cos": table, "sin": table} | other


def _tables(*shape: int, dtype: torch.dtype | None = None) -> dict[str, Arg | None]:
    return {"cos": Arg(shape, dtype=dtype), "sin": Arg(shape, dtype=dtype)}


def _refused(
    name: str,
    match: str,
    exception: type[Exception] = ValueError,
    backends: tuple[str, ...] = ("cpu", "meta", "fake"),
    options: Mapping[str, Any] | None = None,
    **args: Arg | None,
) -> ErrorCase:
    routes = ("public",) if name == "section-layout" else ("public", "direct")
    return ErrorCase(name, _arguments(**args), options or {}, match, exception, backends, routes=routes)


def _index(*values: int) -> Arg:
    return Arg((len(values),), fixed(*values), INTEGER)


def _outside(name: str, got: int, **args: Arg | None) -> ErrorCase:
    """Values of a tensor, which only a CPU tensor shows."""
    rows = args["cos"].shape[-2] if args.get("cos") else 5
    match = rf"positions from 0 to {rows - 1}, the rows of cos, but got {got}$"
    return _refused(name, match, IndexError, ("cpu",), **args)


PACKED = {"q": Arg((1, 5, 3, 8)), "k": Arg((1, 5, 1, 8))}
ERRORS = [
    _refused("q-rank", "q with 3 or 4 dimensions, but got 2", q=Arg((5, 8))),
    _refused("q-integer", "q of dtype .*but got int32", q=Arg((2, 5, 3, 8), dtype=torch.int32)),
    _refused("seq-dim", "seq_dim to be 1 or 2, but got 3", options={"seq_dim": 3}),
    _refused("k-dtype", "k of dtype float32 like q, but got float64", k=Arg((2, 5, 1, 8), dtype=DOUBLE)),
    _refused("k-tokens", r"k of q's shape \(2, 5, 3, 8\) but for the heads", k=Arg((2, 4, 1, 8))),
    _refused("k-batch", "k of q's shape", k=Arg((1, 5, 1, 8))),
    _refused("k-columns", "k of q's shape", k=Arg((2, 5, 1, 6))),
    _refused("k-rank", "k of q's shape", k=Arg((5, 1, 8))),
    _refused("rotary-odd", "rotary_dim to be even and from 0 to 8, but got 3", options={"rotary_dim": 3}),
    _refused("rotary-large", "rotary_dim to be even and from 0 to 8, but got 10", options={"rotary_dim": 10}),
    _refused("rotary-negative", "rotary_dim to be .*but got -2", options={"rotary_dim": -2}),
    _refused("columns-odd", "rotary_dim to be .*but got 7", q=Arg((2, 5, 3, 7)), k=None),
    _refused(
        "section-layout",
        "section_layout to be one of blocked, interleaved, but got spread",
        options={"section_layout": "spread"},
    ),
    _refused(
        "sections-sum",
        r"sections to be 3 numbers of pairs that add up to 4, but got \(1, 1, 1\)",
        options={"sections": (1, 1, 1)},
        **_tables(3, 2, 5, 4),
    ),
    _refused("sections-two", "sections to be 3", options={"sections": (2, 2)}, **_tables(3, 2, 5, 4)),
    _refused("sections-negative", "sections to be 3", options={"sections": (-1, 4, 1)},
             **_tables(3, 2, 5, 4)),
    _refused(
        "sections-plain-table",
        r"cos of shape \(3, 2 or 1, rows, 4 or 8\), but got \(5, 4\)",
        options={"sections": (1, 2, 1)},
    ),
    _refused("no-sections", r"cos of shape \(rows, 4 or 8\), or \(2 or 1, rows", **_tables(3, 2, 5, 4)),
    _refused("table-width", r"cos of shape \(rows, 4 or 8\).*but got \(5, 6\)", **_tables(5, 6)),
    _refused("table-batch", r"cos of shape .*but got \(3, 5, 4\)", **_tables(3, 5, 4)),
    _refused("table-rank", r"cos of shape .*but got \(4,\)", **_tables(4)),
    _refused("table-integer", "cos of dtype .*but got int64", **_tables(5, 4, dtype=INTEGER)),
    _refused("table-double", "cos of dtype .*with float32 q, but got float64", **_tables(5, 4, dtype=DOUBLE)),
    _refused("sin-dtype", "sin of dtype float32 like cos", sin=Arg((5, 4), dtype=torch.float16)),
    _refused("sin-shape", r"sin of cos's shape \(5, 4\), but got \(5, 8\)", sin=Arg((5, 8))),
    _refused("sin-rank", r"sin of cos's shape \(5, 4\), but got \(1, 5, 4\)", sin=Arg((1, 5, 4))),
    _refused("positions-float", "positions of dtype int32 or int64, but got float32", positions=Arg((5,))),
    _refused("positions-shape", r"positions of shape \(5,\) or \(2 or 1, 5\), but got \(4,\)",
             positions=_index(0, 1, 2, 3)),
    _refused("positions-batch", r"but got \(3, 5\)", positions=Arg((3, 5), below(5), INTEGER)),
    _refused("positions-rank", r"but got \(3, 2, 5\)", positions=Arg((3, 2, 5), below(5), INTEGER)),
    _refused("positions-and-offset", "positions without cu_seqlens and offsets, but got both",
             options={"offsets": 1}, positions=_index(0, 1, 2, 3, 4)),
    _refused("positions-and-offsets", "positions without cu_seqlens", positions=_index(0, 1, 2, 3, 4),
             offsets=_index(0, 0)),
    _refused("packed-batch", "a batch of 1 with cu_seqlens, but got 2", cu_seqlens=_index(0, 5)),
    _refused("packed-float", "cu_seqlens of dtype int32", cu_seqlens=Arg((2,)), **PACKED),
    _refused("packed-rank", r"cu_seqlens of shape \(sequences \+ 1,\)",
             cu_seqlens=Arg((1, 2), fixed(0, 5), INTEGER), **PACKED),
    _refused("packed-none", r"cu_seqlens of shape .*but got \(0,\)",
             cu_seqlens=Arg((0,), fixed(), INTEGER), **PACKED),
    _refused("packed-start", "cu_seqlens to start with 0, but got 1", backends=("cpu",),
             cu_seqlens=_index(1, 5), **PACKED),
    _refused("packed-order", "cu_seqlens to ascend to at most 5, but got 2 after 3", backends=("cpu",),
             cu_seqlens=_index(0, 3, 2), **PACKED),
    _refused("packed-end", "cu_seqlens to ascend to at most 5, but got 6 after 0", backends=("cpu",),
             cu_seqlens=_index(0, 6), **PACKED),
    _refused("offsets-shape", r"offsets of shape \(2,\), but got \(3,\)", offsets=_index(0, 0, 0)),
    _refused("offsets-packed", r"offsets of shape \(1,\), but got \(2,\)", cu_seqlens=_index(0, 5),
             offsets=_index(0, 0), **PACKED),
    _refused("offsets-float", "offsets of dtype int32 or int64, but got float32", offsets=Arg((2,))),
    _refused("table-short", "positions from 0 to 3, the rows of cos, but got 4", IndexError,
             **_tables(4, 4)),
    _refused("offset-large", "positions from 0 to 6, the rows of cos, but got 7", IndexError,
             options={"offsets": 3}, **_tables(7, 4)),
    _refused("offset-negative", "positions from 0 to 4, the rows of cos, but got -1", IndexError,
             options={"offsets": -1}),
    _outside("position-large", 5, positions=_index(0, 1, 2, 3, 5)),
    _outside("position-negative", -1, positions=_index(0, 1, -1, 3, 4)),
    _outside("offsets-large", 6, offsets=_index(0, 2), **_tables(6, 4)),
    _outside("offsets-negative", -2, offsets=_index(0, -2)),
    _outside("packed-long", 3, cu_seqlens=_index(0, 1, 5), **PACKED, **_tables(3, 4)),
]  # fmt: skip


# ---- sizes of any kind ---------------------------------------------------------------------------------


def _any_size(sizes: Mapping[str, int], _: Mapping[str, Any]) -> dict[str, Arg | None]:
    batch, tokens, pairs = sizes["batch"], sizes["tokens"], sizes["pairs"]
    table = Arg((tokens + 2, pairs), differentiable=False)
    return {
        "q": Arg((batch, tokens, sizes["heads"], 2 * pairs)),
        "k": Arg((batch, tokens, 2, 2 * pairs)),
        "cos": table,
        "sin": table,
    }


FAMILY = Family(
    {"batch": (0, 2, 6), "tokens": (0, 3, 9), "heads": (0, 3, 7), "pairs": (0, 5, 40)},
    _any_size,
    {"interleaved": (False, True), "deinterleave": (False, True)},
)
