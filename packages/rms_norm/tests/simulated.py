"""Runs the CUDA kernels of rms_norm on the host: compiles them for the simulator and calls the launchers.

What the binding does for a CUDA tensor is done here for a CPU tensor of any strides: layouts, conversion of
the weight, partial sums. Results are allocated between guards, which must be untouched afterwards.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

Tensor = torch.Tensor

PACKAGE = Path(__file__).resolve().parents[1]
CUDA = PACKAGE / "csrc" / "cuda"
SOURCES = (
    CUDA / "rms_norm.cu",
    CUDA / "rms_norm_gated.cu",
    Path(__file__).with_name("cuda") / "simulated.cpp",
)
INCLUDES = (PACKAGE / "csrc", CUDA, PACKAGE / "shared_build" / "include")
FLAGS = (
    "-std=c++20",
    "-fPIC",
    "-g1",
    "-ffp-contract=off",
    "-fno-gnu-unique",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
)
VARIANTS = {
    "plain": ("-O2",),
    "checked": (
        *(
            "-O1",
            "-fno-omit-frame-pointer",
            "-fsanitize=address,alignment,bounds,shift,signed-integer-overflow",
        ),
        "-fno-sanitize-recover=all",
        *("--coverage", "-DOPWRIGHT_COVERAGE"),
    ),
}
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
ORDERS = {"forward": 0, "reverse": 1, "random": 2}
GUARD = 64
SHARED_LIMIT, MOST_BLOCKS = 163 * 1024, 1 << 18


def compiler() -> list[str]:
    """The command of the C++ compiler, or nothing where there is none."""
    command = (os.environ.get("CXX") or shutil.which("g++") or "c++").split()
    return command if shutil.which(command[0]) else []


def build(variant: str, folder: Path) -> Path:
    """Return the library of the kernels in ``folder``, its object files beside it."""
    flags = [*FLAGS, *VARIANTS[variant], *(f"-I{path}" for path in INCLUDES)]

    def run(*command: str) -> None:
        done = subprocess.run(
            [*compiler(), *command], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")

    objects = [f"{path.stem}.o" for path in SOURCES]
    with ThreadPoolExecutor(max_workers=2) as pool:
        jobs = [
            pool.submit(run, *flags, "-x", "c++", "-c", str(path), "-o", name)
            for path, name in zip(SOURCES, objects, strict=True)
        ]
        for job in jobs:
            job.result()
    library = folder / f"kernels-{variant}.so"
    run(*flags, "-shared", *objects, "-o", str(library))
    return library


class RowLayout(ctypes.Structure):
    _fields_ = [
        ("ndim", ctypes.c_int64),
        ("size", ctypes.c_int64 * 6),
        ("stride", ctypes.c_int64 * 6),
        ("column_stride", ctypes.c_int64),
    ]


def _struct(name: str, members: str) -> type[ctypes.Structure]:
    """A mirror of a struct of rms_norm.h: lines of a C type and the names of members of that type."""
    kinds = {
        "int64_t": ctypes.c_int64,
        "enum": ctypes.c_int32,
        "bool": ctypes.c_bool,
        "double": ctypes.c_double,
        "void*": ctypes.c_void_p,
        "RowLayout": RowLayout,
    }
    lines = [line.split() for line in members.strip().splitlines()]
    fields = [(field, kinds[kind]) for kind, *names in lines for field in names]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Forward = _struct(
    "Forward",
    """
    int64_t rows columns heads
    enum input_type residual_type stream_type output_type rounding
    bool exact_statistics stream_stores
    double eps
    void* input
    RowLayout input_layout
    void* residual
    RowLayout residual_layout
    void* weight output
    RowLayout output_layout
    void* residual_out
    RowLayout residual_out_layout
    void* rstd
    """,
)
Backward = _struct(
    "Backward",
    """
    int64_t rows columns heads
    enum stream_type output_type
    bool stream_stores
    void* grad_output
    RowLayout grad_output_layout
    void* grad_residual_out
    RowLayout grad_residual_out_layout
    void* value
    RowLayout value_layout
    void* weight rstd grad_input partial
    int64_t parts
    """,
)
GatedForward = _struct(
    "GatedForward",
    """
    int64_t rows columns groups
    enum input_type weight_type output_type rounding activation
    bool norm_before_gate stream_stores
    double eps
    void* input
    RowLayout input_layout
    void* gate
    RowLayout gate_layout
    void* weight output rstd
    """,
)
GatedBackward = _struct(
    "GatedBackward",
    """
    int64_t rows columns groups
    enum input_type output_type activation
    bool norm_before_gate stream_stores
    void* grad_output
    RowLayout grad_output_layout
    void* input
    RowLayout input_layout
    void* gate
    RowLayout gate_layout
    void* weight rstd grad_input grad_gate partial
    int64_t parts
    """,
)
Convert = _struct(
    "Convert",
    """
    int64_t count
    enum from_type to_type
    double offset
    void* source
    int64_t from_stride
    void* to
    """,
)
CombineParts = _struct(
    "CombineParts",
    """
    int64_t count parts
    enum partial_type to_type
    void* partial to
    """,
)
CALLS = (Forward, Backward, GatedForward, GatedBackward, Convert, CombineParts)


class Fault(RuntimeError):
    """What the simulator found; the text starts with the fault's name."""


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def layout(tensor: Tensor) -> RowLayout:
    """Rows of a tensor ``(..., D)``: every leading dimension as it is, outermost first."""
    sizes, strides = list(tensor.shape[:-1]) or [1], list(tensor.stride()[:-1]) or [0]
    rest = 6 - len(sizes)
    return RowLayout(
        len(sizes),
        (ctypes.c_int64 * 6)(*sizes, *[1] * rest),
        (ctypes.c_int64 * 6)(*strides, *[0] * rest),
        tensor.stride(-1),
    )


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class Simulated:
    """The launchers, with tensors for arguments. Methods return new tensors unless they say otherwise."""

    def __init__(self, library: Path, *, traces: bool = True) -> None:
        self.traces = traces  # look for races, which takes half of the time
        self.library = ctypes.CDLL(str(library))
        self.library.simulated_size.restype = ctypes.c_int64
        self.library.simulated_parts.restype = ctypes.c_int64
        sizes = [self.library.simulated_size(which) for which in range(len(CALLS))]
        assert sizes == [ctypes.sizeof(call) for call in CALLS], "the structs of rms_norm.h have changed"
        self.guarded: list[tuple[Tensor, int, int]] = []
        self.misalign = 0  # elements by which results are moved off their alignment
        self.configure()

    def configure(
        self,
        order: str = "forward",
        seed: int = 0,
        *,
        shared_limit: int = SHARED_LIMIT,
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        """Choose the order of threads and blocks, and what a device is said to have."""
        self.library.simulated_options(
            ORDERS[order],
            ctypes.c_int64(seed),
            int(self.traces),
            ctypes.c_int64(shared_limit),
            ctypes.c_int64(most_blocks),
        )

    def counts(self) -> tuple[int, int, int, int]:
        """Bytes read, written and read through caches, and launches, since the last call."""
        counts = (ctypes.c_int64 * 4)()
        self.library.simulated_counts(counts)
        return tuple(counts)

    def parts(self, rows: int, heads: int) -> int:
        return self.library.simulated_parts(ctypes.c_int64(rows), ctypes.c_int64(heads))

    def call(self, params: ctypes.Structure) -> None:
        error = ctypes.create_string_buffer(1000)
        status = self.library.simulated_call(CALLS.index(type(params)), ctypes.byref(params), error, 1000)
        if status < 0:
            raise Fault(error.value.decode())
        assert status == 0, status
        for buffer, first, count in self.guarded:
            assert buffer[:first].isnan().all(), "written before the first element of a result"
            assert buffer[first + count :].isnan().all(), "written past the last element of a result"
        self.guarded.clear()

    def fresh(self, shape: Any, dtype: torch.dtype) -> Tensor:
        """NaN everywhere, so that what is not written shows, inside of a larger buffer of NaN."""
        count = torch.Size(shape).numel()
        buffer = torch.full((count + 2 * GUARD,), torch.nan, dtype=dtype)
        # The first element lies on 64 bytes, or `misalign` elements further.
        first = GUARD // 2 + (-buffer.data_ptr() % 64) // buffer.element_size() + self.misalign
        self.guarded.append((buffer, first, count))
        return buffer[first : first + count].view(shape)

    # -- weights ---------------------------------------------------------------------------------------

    def convert(self, tensor: Tensor, dtype: torch.dtype, offset: float) -> Tensor:
        """A vector of any stride in the arithmetic's dtype, ``offset`` added."""
        result = self.fresh(tensor.shape, dtype)
        types = DTYPES[tensor.dtype], DTYPES[dtype]
        self.call(Convert(tensor.numel(), *types, offset, address(tensor), tensor.stride(0), address(result)))
        return result

    def scale(self, weight: Tensor | None, dtype: torch.dtype, offset: float) -> Tensor | None:
        if weight is None or (weight.dtype == arithmetic(dtype) and offset == 0 and weight.is_contiguous()):
            return weight
        rows = [self.convert(row, arithmetic(dtype), offset) for row in weight.reshape(-1, weight.shape[-1])]
        result = self.fresh(weight.shape, arithmetic(dtype))
        return result.copy_(torch.stack(rows).view(weight.shape))

    def combine(self, partial: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """The sum of ``(parts, ...)`` over the parts."""
        result = self.fresh(shape, dtype)
        types = DTYPES[partial.dtype], DTYPES[dtype]
        self.call(CombineParts(result.numel(), partial.shape[0], *types, address(partial), address(result)))
        return result

    # -- rms_norm and add_rms_norm ---------------------------------------------------------------------

    def forward(
        self,
        input: Tensor,
        weight: Tensor | None = None,
        residual: Tensor | None = None,
        *,
        eps: float = 1e-6,
        offset: float = 0.0,
        rounding: int = 0,
        exact: bool = False,
        in_place: bool = False,
        keep_rstd: bool = True,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """``(output, residual_out, rstd)``. ``in_place`` writes over ``input`` and ``residual``."""
        dtype = input.dtype
        promoted = torch.promote_types(dtype, dtype if weight is None else weight.dtype)
        residual_dtype = dtype if residual is None else residual.dtype
        stream = torch.promote_types(dtype, residual_dtype)
        scale = self.scale(weight, dtype, offset)
        output = input if in_place else self.fresh(input.shape, promoted if rounding else dtype)
        residual_out = None
        if residual is not None:
            residual_out = residual if in_place else self.fresh(input.shape, stream)
        rstd = self.fresh(input.shape[:-1], arithmetic(dtype)) if keep_rstd else None
        params = Forward(
            rows=input.shape[:-1].numel(),
            columns=input.shape[-1],
            heads=weight.shape[0] if weight is not None and weight.dim() == 2 else 1,
            input_type=DTYPES[dtype],
            residual_type=DTYPES[residual_dtype],
            stream_type=DTYPES[stream],
            output_type=DTYPES[output.dtype],
            rounding=rounding,
            exact_statistics=exact and stream.itemsize < 4,
            eps=eps,
            input=address(input),
            input_layout=layout(input),
            residual=address(residual),
            residual_layout=layout(input if residual is None else residual),
            weight=address(scale),
            output=address(output),
            output_layout=layout(output),
            residual_out=address(residual_out),
            residual_out_layout=layout(input if residual_out is None else residual_out),
            rstd=address(rstd),
        )
        self.call(params)
        return output, residual_out, rstd

    def backward(
        self,
        grad_output: Tensor | None,
        value: Tensor,
        weight: Tensor | None,
        rstd: Tensor,
        grad_residual_out: Tensor | None = None,
        *,
        offset: float = 0.0,
        need_input: bool = True,
        need_weight: bool = True,
    ) -> tuple[Tensor | None, Tensor | None]:
        """``(grad_value, grad_weight)``."""
        rows, columns = value.shape[:-1].numel(), value.shape[-1]
        heads = weight.shape[0] if weight is not None and weight.dim() == 2 else 1
        dtype = arithmetic(value.dtype)
        scale = self.scale(weight, value.dtype, offset)
        grad_input = self.fresh(value.shape, value.dtype) if need_input else None
        parts = self.parts(rows, heads)
        partial = self.fresh((parts, heads, columns), dtype) if need_weight and weight is not None else None
        other = value if grad_output is None else grad_output
        params = Backward(
            rows=rows,
            columns=columns,
            heads=heads,
            stream_type=DTYPES[value.dtype],
            output_type=DTYPES[other.dtype],
            grad_output=address(grad_output),
            grad_output_layout=layout(other),
            grad_residual_out=address(grad_residual_out),
            grad_residual_out_layout=layout(value if grad_residual_out is None else grad_residual_out),
            value=address(value),
            value_layout=layout(value),
            weight=address(scale),
            rstd=address(rstd),
            grad_input=address(grad_input),
            partial=address(partial),
            parts=parts,
        )
        self.call(params)
        grad_weight = None if partial is None else self.combine(partial, weight.shape, weight.dtype)
        return grad_input, grad_weight

    # -- rms_norm_gated --------------------------------------------------------------------------------

    def gated_forward(
        self,
        input: Tensor,
        gate: Tensor | None,
        weight: Tensor | None,
        *,
        eps: float = 1e-6,
        activation: int = 0,
        norm_before_gate: bool = True,
        groups: int = 1,
        rounding: int = 0,
        keep_rstd: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """``(output, rstd)``; ``rstd`` has shape ``(..., groups)``."""
        weight_dtype = input.dtype if weight is None else weight.dtype
        promoted = torch.promote_types(input.dtype, weight_dtype)
        output = self.fresh(input.shape, promoted if rounding and not norm_before_gate else input.dtype)
        split = [None if t is None else t.unflatten(-1, (groups, -1)) for t in (input, gate)]
        rstd = self.fresh((*input.shape[:-1], groups), arithmetic(input.dtype)) if keep_rstd else None
        scale = self.scale(weight, input.dtype, 0.0)
        params = GatedForward(
            rows=input.shape[:-1].numel() * groups,
            columns=input.shape[-1] // groups,
            groups=groups,
            input_type=DTYPES[input.dtype],
            weight_type=DTYPES[weight_dtype],
            output_type=DTYPES[output.dtype],
            rounding=rounding,
            activation=activation,
            norm_before_gate=norm_before_gate,
            eps=eps,
            input=address(input),
            input_layout=layout(split[0]),
            gate=address(gate),
            gate_layout=layout(split[0] if gate is None else split[1]),
            weight=address(scale),
            output=address(output),
            rstd=address(rstd),
        )
        self.call(params)
        return output, rstd

    def gated_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        gate: Tensor | None,
        weight: Tensor | None,
        rstd: Tensor,
        *,
        activation: int = 0,
        norm_before_gate: bool = True,
        groups: int = 1,
        need: tuple[bool, bool, bool] = (True, True, True),
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """``(grad_input, grad_gate, grad_weight)``."""
        rows, columns = input.shape[:-1].numel() * groups, input.shape[-1] // groups
        split = [None if t is None else t.unflatten(-1, (groups, -1)) for t in (grad_output, input, gate)]
        grad_input = self.fresh(input.shape, input.dtype) if need[0] else None
        grad_gate = self.fresh(input.shape, input.dtype) if need[1] and gate is not None else None
        parts = self.parts(rows, groups)
        partial = None
        if need[2] and weight is not None:
            partial = self.fresh((parts, groups, columns), arithmetic(input.dtype))
        scale = self.scale(weight, input.dtype, 0.0)
        params = GatedBackward(
            rows=rows,
            columns=columns,
            groups=groups,
            input_type=DTYPES[input.dtype],
            output_type=DTYPES[grad_output.dtype],
            activation=activation,
            norm_before_gate=norm_before_gate,
            grad_output=address(grad_output),
            grad_output_layout=layout(split[0]),
            input=address(input),
            input_layout=layout(split[1]),
            gate=address(gate),
            gate_layout=layout(split[1] if gate is None else split[2]),
            weight=address(scale),
            rstd=address(rstd),
            grad_input=address(grad_input),
            grad_gate=address(grad_gate),
            partial=address(partial),
            parts=parts,
        )
        self.call(params)
        grad_weight = None if partial is None else self.combine(partial, weight.shape, weight.dtype)
        return grad_input, grad_gate, grad_weight
