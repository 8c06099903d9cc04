"""Turns a case into callables without arguments, one per contender, and into results that can be checked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .cases import Case, Function, Shape, torch_dtype

Call = Callable[[], Any]
Results = tuple[torch.Tensor, ...]


class Unavailable(Exception):
    """A contender that cannot run here; the message says why."""


def tensors(value: Any) -> Results:
    """The tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return (value,)
    return tuple(item for item in value if isinstance(item, torch.Tensor))


def in_double(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The same arguments, floating-point tensors in float64; leaves again where they required grad."""

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.detach().double().requires_grad_(value.requires_grad)
        return value

    return tuple(map(convert, arguments))


def moved(arguments: Sequence[Any], device: str) -> tuple[Any, ...]:
    """The same arguments with their tensors on the device; leaves again where they required grad."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to(device).requires_grad_(value.requires_grad)
        return value

    return tuple(map(move, arguments))


def own_copies(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Copies that may be written to."""
    return tuple(a.detach().clone() if isinstance(a, torch.Tensor) else a for a in arguments)


class Cell:
    """One case at one shape and dtype: arguments, cotangents and the calls of all contenders.

    Arguments are shared between contenders (they are only read) unless the case mutates them. They are made
    on the CPU, so that every device sees the same values.
    """

    def __init__(self, case: Case, shape: Shape, dtype: str, device: str = "cpu") -> None:
        self.case = case
        self.shape = shape
        self.dtype = dtype
        self.arguments = moved(case.arguments(shape, torch_dtype(dtype)), device)
        self.cotangents: Results | None = None

    def function(self, contender: str) -> Function:
        """What a contender is called by, compiled where it runs compiled.

        Raises:
            Unavailable: a rival that is not installed.
        """
        case = self.case
        if contender == "ours":
            ours = case.ours()
            return _compiled(ours) if case.in_graph else ours
        if contender == "eager":
            return case.eager
        if contender == "compile":
            return _compiled(case.eager)
        try:
            return case.rivals[contender]()
        except ImportError as error:
            raise Unavailable(f"{contender} is not installed ({error})") from error

    def call(self, contender: str) -> Call:
        """The call that is timed. It has run once, so that compilation is over.

        Raises:
            Unavailable: the contender cannot run on this machine.
        """
        function = self.function(contender)
        arguments = own_copies(self.arguments) if self.case.mutates else self.arguments
        if self.case.differentiate:
            self._make_cotangents()
            call = functools.partial(self._step, function, arguments)
        else:
            call = functools.partial(function, *arguments)
        self._first(contender, call)
        return call

    def results(self, contender: str) -> Results:
        """Outputs, and gradients where the case differentiates, from untouched arguments.

        Raises:
            Unavailable: the contender cannot run on this machine.
        """
        function = self.function(contender)
        return self._first(contender, functools.partial(self._results, function, self.arguments))

    def golden(self) -> Results:
        """The same from the golden reference in float64."""
        return self._results(self.case.golden(), in_double(self.arguments))

    def _first(self, contender: str, call: Call) -> Any:
        """Run once; a rival that fails here is unavailable, an error of the operator itself is an error."""
        try:
            return call()
        except Exception as error:
            if contender in ("ours", "eager"):
                raise
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise Unavailable(f"{contender} does not run here: {first_line[:200]}") from error

    def _make_cotangents(self) -> None:
        if self.cotangents is None:
            with torch.no_grad():
                outputs = tensors(self.case.eager(*self.arguments))
            generator = torch.Generator().manual_seed(20240607)
            # Drawn in fp32 and rounded, so that every dtype sees the same direction; never uniform.
            self.cotangents = tuple(
                torch.randn(o.shape, generator=generator, dtype=torch.float32).to(o.device, o.dtype)
                for o in outputs
            )

    def _step(self, function: Function, arguments: tuple[Any, ...]) -> Results:
        outputs = tensors(function(*arguments))
        inputs = [arguments[position] for position in self.case.differentiate]
        return torch.autograd.grad(outputs, inputs, self.cotangents)

    def _results(self, function: Function, arguments: tuple[Any, ...]) -> Results:
        if not self.case.differentiate:
            return tensors(function(*(own_copies(arguments) if self.case.mutates else arguments)))
        self._make_cotangents()
        outputs = tensors(function(*arguments))
        inputs = [arguments[position] for position in self.case.differentiate]
        cotangents = [c.to(o.dtype) for c, o in zip(self.cotangents or (), outputs, strict=True)]
        return (*(o.detach() for o in outputs), *torch.autograd.grad(outputs, inputs, cotangents))


def _compiled(function: Function) -> Function:
    """One graph for exactly these sizes, the best torch.compile can do; a graph break is an error."""
    return torch.compile(function, fullgraph=True, dynamic=False)
