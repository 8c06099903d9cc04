"""The machine's ceilings, measured by the operator's library in the same run: copies, multiply-adds, exp.

The library exports a few C functions for this (ceilings.h), so nothing has to be compiled where a benchmark
runs, and the copies use the same threads and the same instruction set as the kernels they are a bound for.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

Call = Callable[[], Any]

LINE = 64
COPIES = {"copy:memcpy": 0, "copy:stream": 1, "copy:plain": 2}
ADDITIONS = {"copy:add-stream": 1, "copy:add-plain": 2}
TORCH_COPY = "copy:torch"
TORCH_ADD = "copy:add-torch"
COPY_PREFIX = "copy:"


def library_path(operator: str) -> Path | None:
    """Where the operator's compiled library lies, or None where the package is not installed."""
    try:
        spec = importlib.util.find_spec(f"opwright.{operator}._C")
    except ImportError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


class Ceilings:
    """Ceilings of one operator library.

    Args:
        operator: whose library measures them; it must be installed.

    Raises:
        RuntimeError: the library is missing, or exports no ceilings.
    """

    def __init__(self, operator: str) -> None:
        path = library_path(operator)
        if path is None:
            raise RuntimeError(
                f"{operator}: expected the compiled library opwright.{operator}._C, but got none"
            )
        # The package loads its library in its own way first; this only finds the functions in what is loaded.
        importlib.import_module(f"opwright.{operator}")
        library = ctypes.CDLL(str(path))
        try:
            self._copy = library.opwright_ceiling_copy
            self._add = library.opwright_ceiling_add
            self._multiply_add = library.opwright_ceiling_multiply_add
            self._exp = library.opwright_ceiling_exp
        except AttributeError as error:
            raise RuntimeError(
                f"{operator}: expected a library with ceilings, but got {path.name} ({error})"
            ) from error
        self._copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
        self._add.argtypes = (*(ctypes.c_void_p,) * 3, ctypes.c_int64, ctypes.c_int32)
        self._multiply_add.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_double))
        self._exp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        for function in (self._copy, self._add, self._multiply_add, self._exp):
            function.restype = ctypes.c_int32

    def copies(self, bytes_moved: int, dtype: torch.dtype) -> dict[str, Call]:
        """Calls that copy into a new tensor, reading and writing about `bytes_moved` bytes together.

        New as an operator's result is: a target that the call before left in the caches would make the
        ceiling one that no function with a result can reach.
        The size is rounded down to whole cache lines; `copied_bytes` says what it became.
        """
        size = copied_bytes(bytes_moved) // 2
        count = size // dtype.itemsize
        source = torch.ones(count, dtype=dtype)

        def copy(mode: int) -> torch.Tensor:
            target = torch.empty(count, dtype=dtype)
            if self._copy(target.data_ptr(), source.data_ptr(), size, mode) != 0:
                raise RuntimeError(f"copy: expected a mode of the library, but got {mode}")
            return target

        calls: dict[str, Call] = {TORCH_COPY: lambda: torch.empty(count, dtype=dtype).copy_(source)}
        for name, mode in COPIES.items():
            if not torch.equal(source, copy(mode)):
                raise RuntimeError(
                    f"{name}: expected a whole copy of {size} bytes, but got a different target"
                )
            calls[name] = functools.partial(copy, mode)
        return calls

    def additions(self, bytes_moved: int) -> dict[str, Call]:
        """Calls that add two tensors into a new one, moving about `bytes_moved` bytes over three streams.

        The ceiling of operators with two inputs and one result, in place of the copies; otherwise as they
        are. Elements are fp32 whatever the case's dtype: it is bytes that are compared.
        """
        size = added_bytes(bytes_moved) // 3
        count = size // 4
        first, second = torch.ones(count), torch.full((count,), 0.5)

        def add(mode: int) -> torch.Tensor:
            target = torch.empty(count)
            status = self._add(target.data_ptr(), first.data_ptr(), second.data_ptr(), size, mode)
            if status != 0:
                raise RuntimeError(f"add: expected a mode of the library, but got {mode}")
            return target

        calls: dict[str, Call] = {TORCH_ADD: lambda: torch.add(first, second)}
        for name, mode in ADDITIONS.items():
            if not bool((add(mode) == 1.5).all()):
                raise RuntimeError(f"{name}: expected the sum of {size} bytes, but got another target")
            calls[name] = functools.partial(add, mode)
        return calls

    def arithmetic(self, threads: int, seconds: float = 0.4) -> dict[str, float]:
        """Peak rates over `threads` threads: fp32 GFLOP/s of multiply-adds, 1e9/s of the library's exp."""
        flops = ctypes.c_double()
        steps = 20_000

        def multiply_add() -> float:
            self._multiply_add(threads, steps, ctypes.byref(flops))
            return flops.value

        # 4096 floats a thread: 32 KiB with the results, inside a first-level cache.
        count, repeats = 4096 * threads, 50
        source = torch.linspace(-20, 20, count)
        target = torch.empty_like(source)

        def exponential() -> float:
            self._exp(target.data_ptr(), source.data_ptr(), count, repeats)
            return float(count * repeats)

        exponential()
        if not torch.allclose(target, source.exp(), rtol=1e-5, atol=0):
            raise RuntimeError("ceilings: expected exp within 1e-5, but got other values")
        return {
            "multiply_add_gflops": round(_rate(multiply_add, seconds / 2), 1),
            "exp_gelements": round(_rate(exponential, seconds / 2), 3),
        }


def copied_bytes(bytes_moved: int) -> int:
    """Bytes that the copies for a case read and write together: whole lines, at least one each way."""
    return 2 * max(LINE, bytes_moved // 2 // LINE * LINE)


def added_bytes(bytes_moved: int) -> int:
    """Bytes that the additions for a case read and write together: whole lines, at least one a stream."""
    return 3 * max(LINE, bytes_moved // 3 // LINE * LINE)


def _rate(work: Callable[[], float], seconds: float) -> float:
    """Median rate in 1e9 per second over samples that fill `seconds`."""
    work()
    rates: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(rates) < 5:
        start = time.perf_counter()
        amount = work()
        rates.append(amount / (time.perf_counter() - start) / 1e9)
    return median(rates)
