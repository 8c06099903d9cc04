"""The data an operator hands to the suite: its cases, its claims and its errors.

Everything here is plain data. A claim is tested in both directions: what a spec says is supported must
work, what it says is not supported must raise.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

Fill = str | Callable[[torch.Generator, tuple[int, ...]], torch.Tensor]
Tensors = dict[str, torch.Tensor | None]
Options = Mapping[str, Any]

FLOAT_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclasses.dataclass(frozen=True)
class Arg:
    """One tensor argument of a case.

    shape: the logical shape.
    fill: the name of a value profile (data.PROFILES) or a function (generator, shape) -> tensor.
    dtype: None for the dtype under test; else this dtype whatever is tested (float64 runs raise it).
    differentiable: whether a gradient may be asked for.
    """

    shape: tuple[int, ...]
    fill: Fill = "normal"
    dtype: torch.dtype | None = None
    differentiable: bool = True


@dataclasses.dataclass(frozen=True)
class Case:
    """Arguments of one call. Tags choose the checks that use it.

    `core`: small, general; every expensive check uses these. `grad`: at most about 40 elements, for
    gradcheck. `parallel`: large enough that the kernel goes parallel. All cases run in value checks.
    dtypes: None for all dtypes of the spec.
    """

    id: str
    args: Mapping[str, Arg | None]
    options: Options = dataclasses.field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    dtypes: tuple[torch.dtype, ...] | None = None


@dataclasses.dataclass(frozen=True)
class ErrorCase:
    """A call that must raise `exception` with a message matching `match`, on every listed backend.

    route: "public" for the public function, "direct" for the dispatcher operator.
    grad: names of arguments that require a gradient. aliases: {name: other} makes two arguments one tensor.
    """

    id: str
    args: Mapping[str, Arg | None]
    options: Options
    match: str
    exception: type[Exception] = ValueError
    backends: tuple[str, ...] = ("cpu", "meta", "fake")
    dtype: torch.dtype = torch.float32
    routes: tuple[str, ...] = ("public", "direct")
    grad: tuple[str, ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Family:
    """How to make a case of any size, for degenerate sizes and for random structure.

    sizes: size name -> (smallest legal, typical, largest) value. A size below the smallest must raise.
    options: option name -> values to draw from.
    build: (sizes, options) -> args.
    """

    sizes: Mapping[str, tuple[int, int, int]]
    build: Callable[[Mapping[str, int], Options], Mapping[str, Arg | None]]
    options: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a dispatcher operator, for opcheck and for fake-against-real comparison.

    differentiable: the operator records gradients, so opcheck also runs it with inputs that need them.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    differentiable: bool = False


@dataclasses.dataclass(frozen=True)
class Sharding:
    """A placement that must work without moving data: per argument and per output "S(dim)" or "R"."""

    args: Mapping[str, str]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ModuleCase:
    """A module class with its constructor arguments and the inputs of one call."""

    id: str
    factory: Callable[..., torch.nn.Module]
    kwargs: Mapping[str, Any]
    inputs: tuple[Arg, ...]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Spec:
    """One public function and everything claimed for it."""

    name: str
    op: Callable[..., Any]
    reference: Callable[..., Any]  # same signature, not in place, any dtype, differentiable
    cases: Sequence[Case]
    outputs: tuple[str, ...] = ("output",)
    direct: Callable[..., Any] | None = None  # the same through torch.ops, same signature
    dispatch: Callable[[Tensors, Options], Sequence[Call]] | None = None
    errors: Sequence[ErrorCase] = ()
    family: Family | None = None
    dtypes: tuple[torch.dtype, ...] = FLOAT_DTYPES

    mutates: tuple[str, ...] = ()  # arguments written in place; then they are the outputs, in this order
    differentiable: bool = True
    direct_differentiable: bool = True  # False where only the public function has gradients
    double_backward: Literal["works", "raises"] = "works"
    forward_ad: Literal["works", "raises"] = "works"
    batched_grad: Literal["works", "raises"] = "works"  # torch.autograd.grad(is_grads_batched=True)
    vmap: Literal["rule", "fallback", "raises"] = "rule"
    vmap_dims: Sequence[Mapping[str, int]] = ()  # per entry: the batched arguments and their batch dims
    threads: Literal["invariant", "tolerance"] = "invariant"
    layouts: Literal["exact", "tolerance"] = "exact"
    autocast: Literal["unchanged"] | torch.dtype = "unchanged"  # dtype of the outputs under autocast
    overlap: Literal["raises", "allowed"] = "raises"  # mutated arguments that share memory
    batch: Mapping[str, int] = dataclasses.field(default_factory=dict)  # argument -> dim of independent items
    batch_outputs: tuple[int, ...] = ()  # per output: its dim of independent items
    dynamic: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    bytes_saved: Callable[[Tensors, Options], int] | None = None
    max_ulp: Mapping[torch.dtype, float] = dataclasses.field(default_factory=dict)
    shardings: Sequence[Sharding] = ()
    cuda: bool = False

    def select(self, *tags: str) -> list[Case]:
        """The cases that carry all the tags."""
        return [case for case in self.cases if set(tags) <= case.tags]

    def dtypes_of(self, case: Case) -> tuple[torch.dtype, ...]:
        """The dtypes in which a case runs."""
        return self.dtypes if case.dtypes is None else case.dtypes

    def grad_routes(self) -> dict[str, Callable[..., Any]]:
        """The routes that record gradients."""
        routes = self.routes() if self.differentiable else {}
        return {n: f for n, f in routes.items() if n != "direct" or self.direct_differentiable}

    def routes(self) -> dict[str, Callable[..., Any]]:
        """The ways a user can reach the operator: the public function and the dispatcher operator."""
        return {"public": self.op} | ({"direct": self.direct} if self.direct else {})


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Package:
    """One installed package: its specs and what is claimed for the package as a whole.

    origin: the file that defines it (`__file__`), so that other processes can load it again.
    path: folders to put on sys.path before the module can be imported (none for an installed package).
    levels: kernel level names of this package from lowest to highest, per architecture.
    """

    module: str
    origin: str | pathlib.Path
    specs: Sequence[Spec]
    kernel_level: Callable[[], str]
    modules: Sequence[ModuleCase] = ()
    levels: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=lambda: {"x86_64": ("default", "avx2", "avx512"), "aarch64": ("neon",)}
    )
    capability_variable: str = "OPWRIGHT_CPU_CAPABILITY"
    import_budget_ms: float = 50.0
    path: Sequence[str] = ()

    def spec(self, name: str) -> Spec:
        """The spec of that name."""
        return next(spec for spec in self.specs if spec.name == name)
