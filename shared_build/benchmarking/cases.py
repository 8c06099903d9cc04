"""Benchmark cases as data: what is computed, by whom, on which shapes, and how many bytes it has to move.

A package lists its cases in `benchmarks/cases.py` as `CASES: list[Case]`. Everything that measures (the
contract, asv, charts) takes them from there, so that a figure means the same wherever it is printed.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]
Function = Callable[..., Any]
Lazy = Callable[[], Function]
"""Gives a function when it is needed: listing the cases must work where the operator is not installed."""

DTYPES = ("fp32", "bf16", "fp16", "fp64")


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        name: identifier used by contracts, such as `forward`.
        title: the same for people.
        shapes: sizes of the main input.
        dtypes: among `fp32`, `bf16`, `fp16`, `fp64`.
        make: `make(shape, dtype, generator)` gives the arguments that every contender is called with.
        ours: gives the operator's function.
        eager: what is written without the operator, in plain PyTorch.
        golden: gives the golden reference; called with the arguments in float64.
        bytes_moved: `bytes_moved(shape, itemsize)`, the bytes that have to be read and written at least once.
        differentiate: positions of the arguments whose gradients are computed; empty means forward only,
            without grad.
        mutates: the contenders write into their arguments, so each gets its own copy.
        in_graph: the operator runs inside a compiled graph: ours is `torch.compile(ours)`.
        compiled: whether `torch.compile(eager)` is a contender.
        ceiling: what the share of the ceiling refers to: `copy` (one stream in, one out) or `add` (two in,
            one out).
        rivals: other implementations by name; a `Lazy` that raises ImportError is not installed.
        cuda_shapes: sizes to measure on a CUDA device, the smallest first; `shapes` if there are none.
    """

    name: str
    title: str
    shapes: Sequence[Shape]
    dtypes: Sequence[str]
    make: Callable[[Shape, torch.dtype, torch.Generator], tuple[Any, ...]]
    ours: Lazy
    eager: Function
    golden: Lazy
    bytes_moved: Callable[[Shape, int], int]
    differentiate: tuple[int, ...] = ()
    mutates: bool = False
    in_graph: bool = False
    compiled: bool = True
    ceiling: Literal["copy", "add"] = "copy"
    rivals: Mapping[str, Lazy] = field(default_factory=dict)
    cuda_shapes: Sequence[Shape] = ()

    def contenders(self) -> list[str]:
        """Names of all contenders, the operator first."""
        return ["ours", "eager", *(["compile"] if self.compiled else []), *self.rivals]

    def arguments(self, shape: Shape, dtype: torch.dtype) -> tuple[Any, ...]:
        """The arguments for one shape and dtype; the same values in every process.

        Returns:
            What `make` gave; floating-point tensors named by `differentiate` require grad.
        """
        import torch

        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.name}/{shape_name(shape)}".encode()))
        arguments = self.make(shape, dtype, generator)
        for position in self.differentiate:
            arguments[position].requires_grad_(True)
        return arguments


def shape_name(shape: Shape) -> str:
    """`(64, 4096)` as `64x4096`."""
    return "x".join(map(str, shape))


def parse_shape(name: str) -> Shape:
    """`64x4096` as `(64, 4096)`.

    Raises:
        ValueError: not numbers joined by `x`.
    """
    try:
        return tuple(int(part) for part in name.split("x"))
    except ValueError:
        raise ValueError(f"performance: expected a shape like 64x4096, but got {name!r}") from None


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name in `DTYPES`."""
    import torch

    table = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
    return table[name]


def operator_root(operator: str, start: Path | None = None) -> Path:
    """The directory that holds `benchmarks/cases.py` of the operator.

    Looked for in this order: the working directory (a package or an unpacked bundle), `packages/<operator>`
    below it.

    Raises:
        FileNotFoundError: neither holds the cases.
    """
    start = Path.cwd() if start is None else start
    # The package's own folder is preferred: the working directory may be another operator's.
    for candidate in (start / "packages" / operator, start):
        if (candidate / "benchmarks" / "cases.py").is_file():
            return candidate
    raise FileNotFoundError(
        f"{operator}: expected benchmarks/cases.py in the working directory or in packages/{operator}, "
        f"but got neither in {start.name or start}"
    )


def repository_root(start: Path | None = None) -> Path:
    """The directory with asv.conf.json, at the working directory or above it.

    Raises:
        FileNotFoundError: not inside the repository, as in an unpacked bundle.
    """
    start = Path.cwd() if start is None else start
    for candidate in (start, *start.parents):
        if (candidate / "asv.conf.json").is_file():
            return candidate
    raise FileNotFoundError(f"benchmarks: expected asv.conf.json in {start.name} or above it, but got none")


def load_cases(root: Path) -> dict[str, Case]:
    """The cases of the package or bundle at `root`, by name.

    Raises:
        ValueError: two cases share a name, or the module is another package's.
    """
    root = root.resolve()
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module = importlib.import_module("benchmarks.cases")
    if not Path(module.__file__ or "").resolve().is_relative_to(root):
        raise ValueError(
            f"benchmarks: expected the cases of {root.name}, but got {module.__file__} loaded before"
        )
    cases = {case.name: case for case in module.CASES}
    if len(cases) != len(module.CASES):
        raise ValueError(
            f"benchmarks: expected distinct case names, but got {[c.name for c in module.CASES]}"
        )
    return cases
