"""One execution of one check: its inputs, its calls into the operator, and its failure report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch

from . import data, layouts, ulp
from .spec import Case, Options, Package, Spec, Tensors

SMALL = 1 << 14  # elements up to which eager's error is taken from several draws
SAVE_VARIABLE = "OPWRIGHT_CONFORMANCE_SAVE"
Outputs = tuple[torch.Tensor, ...]
Function = Callable[..., Outputs]


class ConformanceError(AssertionError):
    """A check failed. `check` is its name."""

    def __init__(self, check: str, report: str) -> None:
        super().__init__(report)
        self.check = check


class Failure(AssertionError):
    """What a check raises; the runner adds the state of the run and raises ConformanceError."""


@dataclasses.dataclass
class Run:
    """The state of one check on one variant."""

    package: Package
    check: str
    id: str
    spec: Spec | None = None
    case: Case | None = None
    dtype: torch.dtype | None = None
    device: str = "cpu"
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    tensors: Tensors = dataclasses.field(default_factory=dict)
    profile: str | None = None
    upstream: Outputs = ()
    notes: list[str] = dataclasses.field(default_factory=list)
    figures: dict[str, float] = dataclasses.field(default_factory=dict)

    # -- inputs -------------------------------------------------------------------------------------

    def inputs(
        self,
        *,
        case: Case | None = None,
        dtype: torch.dtype | None = None,
        grad: Sequence[str] = (),
        profile: str | None = None,
        layout: Mapping[str, str] | None = None,
        seed: int | None = None,
    ) -> Tensors:
        """Fresh tensors of the case, remembered for the report; `layout` names the layout per argument."""
        case, dtype = case or self.case, dtype or self.dtype
        tensors = data.materialise(
            case,
            dtype,
            device=self.device,
            seed=self.seed if seed is None else seed,
            grad=grad,
            profile=profile,
        )
        for name, kind in (layout or {}).items():
            if tensors.get(name) is not None:
                placed = layouts.lay_out(tensors[name], kind)
                tensors[name] = tensors[name] if placed is None else placed
        self.tensors = tensors
        return tensors

    def options(self) -> Options:
        """The keyword options of the case."""
        return self.case.options

    # -- calls --------------------------------------------------------------------------------------

    def call(
        self,
        tensors: Tensors,
        options: Options | None = None,
        *,
        route: str = "public",
        fn: Callable[..., Any] | None = None,
    ) -> Outputs:
        """The outputs of the operator. A mutating operator works on copies with the same layout."""
        fn = fn or self.spec.routes()[route]
        given = dict(tensors)
        for name in self.spec.mutates if fn is not self.spec.reference else ():
            t = given[name]
            if t is not None and t.device.type != "meta":
                given[name] = t.clone() if t.requires_grad else layouts.copy_with_layout(t)
        return as_tuple(fn(**given, **(self.case.options if options is None else options)))

    def golden(self, tensors: Tensors, options: Options | None = None) -> Outputs:
        """The float64 reference on the (rounded) inputs raised to float64, on the CPU."""
        return self.call(raised(tensors), options, fn=self.spec.reference)

    def eager(self, tensors: Tensors, options: Options | None = None) -> Outputs:
        """The reference in the dtype of the inputs, on one thread."""
        with threads(1):
            return self.call(tensors, options, fn=self.spec.reference)

    def function(
        self, names: Sequence[str], tensors: Tensors, options: Options | None = None, route: str = "public"
    ) -> Function:
        """The operator as a function of the named arguments, in that order; mutated ones are cloned."""
        given = self.case.options if options is None else options
        if route == "reference":
            return positional(self.spec.reference, names, tensors, given)
        return positional(self.spec.routes()[route], names, tensors, given, self.spec.mutates)

    def gradients(
        self,
        tensors: Tensors,
        wanted: Sequence[str],
        upstream: Sequence[torch.Tensor | None] | None = None,
        *,
        route: str = "public",
        fn: Callable[..., Any] | None = None,
        options: Options | None = None,
    ) -> dict[str, torch.Tensor | None]:
        """Gradients of the wanted arguments; upstream: one gradient per output, None to leave it out."""
        leaves = {
            name: t if t is None else t.detach().requires_grad_(name in wanted) for name, t in tensors.items()
        }
        outputs = self.call(leaves, options, route=route, fn=fn)
        if upstream is None:
            upstream = data.cotangents(outputs, self.seed)
        used = [(o, u) for o, u in zip(outputs, upstream, strict=True) if u is not None and o.requires_grad]
        if not used:
            self.fail(f"no output requires a gradient, though {', '.join(wanted)} do")
        found = torch.autograd.grad(
            [o for o, _ in used],
            [leaves[name] for name in wanted],
            [u for _, u in used],
            allow_unused=True,
        )
        return dict(zip(wanted, found, strict=True))

    # -- verdicts -----------------------------------------------------------------------------------

    def fail(self, message: str) -> NoReturn:
        """Fail the check with this message; the report of the run is added by the runner."""
        raise Failure(message)

    def require(self, condition: object, message: str) -> None:
        """Fail with this message unless the condition holds."""
        if not condition:
            self.fail(message)

    def judge(
        self,
        label: str,
        got: torch.Tensor,
        golden: torch.Tensor,
        eager: torch.Tensor,
        direction: str = "forward",
        max_ulp: float | None = None,
        more: Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]] | None = None,
    ) -> None:
        """Fail unless the error rule holds for this result (in float64: equal to the golden to 1e-12).

        more: draws (golden, eager) results of the same case for other seeds; used for small results only.
        """
        if got.dtype == eager.dtype == torch.float64:
            self.close(label, got, golden)
            return
        verdict = ulp.judge(got, golden, eager, direction, max_ulp)
        if verdict.problem and more is not None and got.numel() <= SMALL:
            errors = [ulp.eager_error(g.detach().cpu(), e.detach().cpu()) for g, e in more()]
            base = (max(e[0] for e in errors), max(e[1] for e in errors))
            verdict = ulp.judge(got, golden, eager, direction, max_ulp, base)
        for name, value in verdict.figures().items():
            self.figures[name] = max(value, self.figures.get(name, 0.0))
        if verdict.problem:
            self.fail(
                f"{label}: {verdict.problem}"
                + values_at(verdict.worst, got=got, golden=golden, eager=eager)
                + f"\n  max {verdict.max_ulp:.3g} ulp, max abs {verdict.max_abs:.3e}"
            )

    def close(self, label: str, got: torch.Tensor, golden: torch.Tensor) -> None:
        """Fail unless a float64 result equals the golden to 1e-12 of its largest element."""
        golden = golden.to(got.device)
        largest = float(golden.detach().abs().nan_to_num(0, 0, 0).max()) if golden.numel() else 0.0
        try:
            torch.testing.assert_close(
                got, golden, rtol=1e-12, atol=1e-12 * max(largest, 1.0), equal_nan=True
            )
        except AssertionError as error:
            self.fail(f"{label}, in float64 against the golden at rtol 1e-12: {error}")

    def same(self, label: str, got: Outputs, expected: Outputs, *, exact: bool = True) -> None:
        """Fail unless the outputs are equal bit for bit (exact) or within assert_close's tolerance."""
        self.require(
            len(got) == len(expected), f"{label}: {len(got)} outputs where {len(expected)} were expected"
        )
        for index, (a, b) in enumerate(zip(got, expected, strict=True)):
            if exact and not ulp.same_values(a.detach(), b.detach()):
                self.fail(f"{label}: output {index} differs" + difference(a.detach(), b.detach()))
            if not exact:
                try:
                    torch.testing.assert_close(a, b, equal_nan=True)
                except AssertionError as error:
                    self.fail(f"{label}: output {index}: {error}")

    def report(self, headline: str) -> str:
        """The full text of a failure: what, on which inputs, in which state, and how to see it again."""
        name = f"{self.spec.name}: " if self.spec else ""
        lines = [f"{name}{self.check} failed", *("  " + line for line in headline.strip().splitlines())]
        if self.case:
            lines.append(f"  case    : {self.case.id} {dict(self.case.options)}")
        for key, tensor in self.tensors.items():
            lines.append(f"  {key:<8}: {describe(tensor)}")
        lines += [f"  note    : {note}" for note in self.notes]
        level = self.package.kernel_level()
        lines.append(
            f"  state   : seed {self.seed}, {torch.get_num_threads()} threads, kernel level {level},"
            f" device {self.device}, torch {torch.__version__}"
        )
        lines.append(
            f"  again   : {self.package.capability_variable}={level} python -m shared_build.conformance"
            f" {relative(self.package.origin)} --only '{self.id}'"
        )
        if path := self._save():
            lines.append(f"  inputs  : saved as {path}")
        return "\n".join(lines)

    def _save(self) -> pathlib.Path | None:
        folder = os.environ.get(SAVE_VARIABLE)
        if not folder or not self.tensors:
            return None
        path = pathlib.Path(folder) / (self.id.replace("/", "_") + ".pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {k: t if t is None else layouts.contiguous_copy(t) for k, t in self.tensors.items()}
        torch.save({"inputs": kept, "options": dict(self.case.options) if self.case else {}}, path)
        return path


# -- helpers that need no run ---------------------------------------------------------------------------


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with that many intra-op threads, then restore."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Every tensor allocated inside is filled with NaN (or the largest integer) before it is used."""
    before = torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def as_tuple(result: Any) -> Outputs:
    """One tensor or several, as a tuple."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def raised(tensors: Tensors) -> Tensors:
    """Float arguments raised to float64 on the CPU, detached; the rest as they are."""
    return {
        name: t
        if t is None or not t.is_floating_point()
        else layouts.contiguous_copy(t).detach().cpu().double()
        for name, t in tensors.items()
    }


def positional(
    fn: Callable[..., Any],
    names: Sequence[str],
    tensors: Tensors,
    options: Options,
    cloned: Sequence[str] = (),
) -> Function:
    """The function of the named tensor arguments in order; the others are fixed; `cloned` ones are copied."""
    fixed = {name: t for name, t in tensors.items() if name not in names}

    def bound(*given: torch.Tensor) -> Outputs:
        named = dict(zip(names, given, strict=True))
        named |= {name: named[name].clone() for name in cloned if name in named}
        return as_tuple(fn(**fixed, **named, **options))

    return bound


def describe(tensor: torch.Tensor | None) -> str:
    """dtype, shape, strides, offset and requires_grad of a tensor in one line."""
    if tensor is None:
        return "None"
    text = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    try:
        text += f" strides {tensor.stride()} offset {tensor.storage_offset()}"
    except RuntimeError:  # batched and other wrapped tensors have no storage of their own
        text += f" {type(tensor).__name__}"
    return text + (" requires_grad" if tensor.requires_grad else "")


def values_at(index: tuple[int, ...] | None, **tensors: torch.Tensor) -> str:
    """The values of several tensors at one index, for a report."""
    if index is None:
        return ""
    found = ", ".join(f"{name} {float(t[index]):.9g}" for name, t in tensors.items())
    return f"\n  worst index {index}: {found}"


def difference(a: torch.Tensor, b: torch.Tensor) -> str:
    """Where and how far two tensors that should be equal differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f": {a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}"
    unequal = ~((a == b) | (a.isnan() & b.isnan()))
    if not unequal.any():
        return ": only in the sign of zero"
    distance = torch.where(unequal, (a.double() - b.double()).abs().nan_to_num(torch.inf), -1.0)
    index = tuple(int(i) for i in torch.unravel_index(distance.reshape(-1).argmax().cpu(), a.shape))
    return f" in {int(unequal.sum())} of {a.numel()} elements" + values_at(index, got=a, expected=b)


def relative(path: str | pathlib.Path) -> str:
    """A path relative to the working directory where possible."""
    try:
        return str(pathlib.Path(path).resolve().relative_to(pathlib.Path.cwd()))
    except ValueError:
        return str(path)
