"""What every package needs at run time: loading its library, and one definition of a derivative.

The build installs this file into each package, so that packages stand alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = [
    "DifferentiableOp",
    "NativeOp",
    "load_library",
    "once",
    "refuse_gradients",
    "transforms_active",
    "vjp_of",
]

NAMESPACE = "opwright"
TORCH_FLOOR = (2, 11)

# The types whose call goes straight to a kernel; subclasses (DTensor, FakeTensor) take the dispatcher's way.
_PLAIN = frozenset((Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", Tensor), type(None)))

_registering = threading.RLock()

# Functions that every call asks, bound once. Whatever traces without Dynamo works under a dispatch mode.
_is_compiling = torch.compiler.is_dynamo_compiling
_modes = torch._C._len_torch_dispatch_stack
_functorch = torch._C._are_functorch_transforms_active
_grad_enabled = torch.is_grad_enabled


def load_library(package: str, probe: str) -> None:
    """Load ``package``'s compiled library, and its CUDA kernels under a torch with CUDA.

    What the process has already is left alone. Whether there is a GPU is not asked: neither this nor loading
    the CUDA kernels touches one. Without CUDA kernels, operators refuse CUDA tensors with what to do.

    Args:
        package: the importing package, for example ``opwright.rms_norm``.
        probe: an operator that the library defines.

    Raises:
        ImportError: if torch is too old or the library is missing or does not load; the message says what to
            do.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < TORCH_FLOOR:
        raise ImportError(
            f"{package}: expected torch {TORCH_FLOOR[0]}.{TORCH_FLOOR[1]} or later, "
            f"but got {torch.__version__}; upgrade it with: pip install --upgrade torch"
        )
    built_for = _built_for(package)
    if built_for is not None and built_for != f"{version[0]}.{version[1]}":
        raise ImportError(
            f"{package}: expected torch {built_for}, which its compiled library was built for, but got "
            f"{torch.__version__}; build it for this one with: "
            f"pip install --force-reinstall --no-deps --no-cache-dir "
            f"--no-binary {_distribution(package)} {_distribution(package)}"
        )
    # A second copy of the library, from another path, would define the same operators again and end the
    # process.
    if not torch._C._dispatch_has_kernel(f"{NAMESPACE}::{probe}"):
        library = find_library(package, "_C")
        if library is None:
            raise ImportError(
                f"{package}: expected its compiled library _C.so beside __init__.py, but got none; install "
                f"the package (pip install {_distribution(package)}) instead of importing its source folder"
            )
        _load(package, library)
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::{probe}", "CUDA"):
        library = find_library(package, "_CUDA")
        if library is not None and torch.version.cuda is not None:
            _load(package, library)
        else:
            lacking = f"{_distribution(package)} is installed without CUDA kernels"
            if library is not None:
                lacking = f"torch {torch.__version__} has no CUDA"
            once(f"{package}.cuda", lambda fragment: _refuse_cuda(fragment, package, lacking))


def find_library(package: str, name: str) -> str | None:
    """Return the path of ``package``'s library ``_C``, or of ``_CUDA``; None where the build has none."""
    spec = importlib.util.find_spec(f".{name}", package)
    return None if spec is None else spec.origin


def _distribution(package: str) -> str:
    return package.replace(".", "-").replace("_", "-")


def _load(package: str, library: str) -> None:
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(
            f"{package}: its compiled library does not load under torch {torch.__version__}: {error}; "
            f"reinstall it with: pip install --force-reinstall --no-deps {_distribution(package)}"
        ) from error


def _refuse_cuda(fragment: torch.library.Library, package: str, lacking: str) -> None:
    """Make the operators that have CPU kernels and no CUDA ones, which are this package's, say so."""

    def refusal(name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(
                f"{name}: expected CPU tensors, since {lacking}, but got a CUDA tensor; build it with CUDA "
                "kernels where nvcc is: OPWRIGHT_CUDA=ON pip install --force-reinstall --no-deps "
                f"{_distribution(package)}"
            )

        return refuse

    with_cuda = set(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"))
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CPU"):
        namespace, _, operator = name.partition("::")
        if namespace == NAMESPACE and name not in with_cuda:
            fragment.impl(operator, refusal(re.sub(r"(_forward|_inference)?(_raw)?$", "", operator)), "CUDA")


def _built_for(package: str) -> str | None:
    """Return the torch minor version that a library of the ATen flavour fits; None for a stable one."""
    if importlib.util.find_spec("._built_for", package) is None:
        return None
    return str(importlib.import_module("._built_for", package).TORCH)


def once(name: str, register: Callable[[torch.library.Library], None]) -> None:
    """Run ``register`` with a library fragment, once per process, whatever is imported twice or reloaded.

    Args:
        name: names the set of registrations; the package's module.
        register: makes registrations on the library it is given, which lives as long as the process.
    """
    done: dict[str, torch.library.Library] = torch.ops.__dict__.setdefault("_opwright_registrations", {})
    with _registering:
        if name not in done:
            library = torch.library.Library(NAMESPACE, "FRAGMENT")
            register(library)
            done[name] = library


def transforms_active() -> bool:
    """Whether a functorch transform or a level of forward-mode AD is active, which kernels do not see."""
    return _functorch() or forward_ad._current_level >= 0


class DifferentiableOp:
    """A call of an operator by the cheapest way that is right in the caller's situation.

    The dispatcher holds the operator twice: ``name``, with autograd registered from here, and ``name_raw``,
    the same kernel without. A forward operator may have a third form, ``inference``, which returns the public
    results only. A call goes

    1. to ``name`` under ``torch.compile`` and ``torch.export``, under a dispatch mode and for tensor
       subclasses;
    2. to the reference under a functorch transform or forward-mode AD, which it supports and a kernel cannot;
    3. through a ``torch.autograd.Function`` around ``name_raw`` if an input requires grad;
    4. to ``inference``, or ``name_raw``, otherwise, which pays for no autograd.

    ``save`` and ``backward`` serve both forms of autograd.

    Args:
        name: the operator's name in the namespace ``opwright``.
        reference: the golden implementation with the operator's arguments and results.
        save: ``save(ctx, inputs, outputs)`` keeps what ``backward`` needs.
        backward: ``backward(ctx, *grad_outputs)`` returns one gradient, or None, per argument.
        inference: name of the form that keeps nothing for a backward.
        public: takes the results that ``inference`` has out of all results; all of them without one.
        in_backward: whether the operator runs in backward passes, where gradients may come in batches.
        for_subclass: called before a call with a tensor subclass.
    """

    def __init__(
        self,
        name: str,
        *,
        reference: Callable[..., Any],
        save: Callable[[Any, tuple[Any, ...], Any], None],
        backward: Callable[..., Any],
        inference: str | None = None,
        public: Callable[[Any], Any] | None = None,
        in_backward: bool = False,
        for_subclass: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.reference = reference
        self.save = save
        self.backward = backward
        self.public = public or (lambda results: results)
        self.in_backward = in_backward
        self.for_subclass = for_subclass
        packet = getattr(torch.ops, NAMESPACE)
        self.op = getattr(packet, name).default
        self.raw = getattr(packet, f"{name}_raw").default
        self.tensors = _count_tensors(self.op)
        # What an OpOverload calls by itself; a Python frame less for the shortest calls.
        self.inference = (getattr(packet, inference).default if inference else self.raw)._op
        self.function = _make_function(name, self.raw, save, backward)
        self.call = self._make_call()

    def register(self, library: torch.library.Library) -> None:
        """Register autograd on ``opwright::name``.

        ``torch.library.register_autograd`` would do, but for forward-mode AD, where it gives silent zeros.
        """
        op, save, backward, reference = self.op, self.save, self.backward, self.reference

        def below(keyset: Any, args: tuple[Any, ...]) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)

        class Recorded(torch.autograd.Function):
            """The operator with its keyset as a last argument, so that the others keep their positions."""

            @staticmethod
            def forward(ctx: Any, *args_and_keyset: Any) -> Any:
                *args, keyset = args_and_keyset
                outputs = below(keyset, tuple(args))
                save(ctx, tuple(args), outputs)
                return outputs

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                return (*backward(ctx, *grads), None)

        def kernel(keyset: Any, *args: Any) -> Any:
            if transforms_active():
                return reference(*args)
            if torch.is_grad_enabled() and _any_requires_grad(args):
                return Recorded.apply(*args, keyset)
            return below(keyset, args)

        library.impl(self.name, kernel, "Autograd", with_keyset=True)

    def __call__(self, *args: Any) -> Any:
        """Call the operator; positional arguments in the order of its schema, the first a tensor or None."""
        return self.call(*args)

    def _make_call(self) -> Callable[..., Any]:
        """Return the call as a plain function, whose variables are at hand: a tenth less for one row."""
        op, inference, function = self.op, self.inference, self.function
        reference, public, tensors, in_backward = self.reference, self.public, self.tensors, self.in_backward
        through_dispatcher = self._through_dispatcher
        compiling, modes, functorch, grad_enabled = _is_compiling, _modes, _functorch, _grad_enabled
        plain, dual = _PLAIN, forward_ad

        def call(*args: Any) -> Any:
            if compiling():
                return public(op(*args))
            if modes():
                return through_dispatcher(args)
            if functorch() or dual._current_level >= 0 or (in_backward and _any_batched(args)):
                return public(reference(*args))
            if type(args[0]) not in plain:
                return through_dispatcher(args)
            if grad_enabled():
                for arg in args[:tensors]:
                    if arg is not None and arg.requires_grad:
                        return public(function.apply(*args))
            return inference(*args)

        return call

    def _through_dispatcher(self, args: tuple[Any, ...]) -> Any:
        if self.for_subclass is not None and type(args[0]) not in _PLAIN:
            self.for_subclass()
        return self.public(self.op(*args))


class NativeOp:
    """A call of an operator whose autograd is in C++, which costs a call without gradients nothing.

    It goes to the reference under a functorch transform or forward-mode AD, which C++ autograd does not
    support, and to the dispatcher otherwise.

    Args:
        name: the operator's name in the namespace ``opwright``.
        reference: the golden implementation with the operator's arguments and result.
        for_subclass: called before a call with a tensor subclass.
    """

    def __init__(
        self, name: str, *, reference: Callable[..., Any], for_subclass: Callable[[], None] | None = None
    ) -> None:
        self.reference = reference
        self.for_subclass = for_subclass
        self.op = getattr(getattr(torch.ops, NAMESPACE), name).default
        self.call = self.op._op

    def __call__(self, *args: Any) -> Any:
        """Call the operator; positional arguments in the order of its schema, the first a tensor."""
        if _is_compiling():
            return self.op(*args)
        if _functorch() or forward_ad._current_level >= 0:
            return self.reference(*args)
        if self.for_subclass is not None and type(args[0]) not in _PLAIN:
            self.for_subclass()
        return self.call(*args)


def _any_batched(args: tuple[Any, ...]) -> bool:
    """Whether autograd.grad(is_grads_batched=True) batched an argument; no transform's flag tells."""
    batched = torch._C._functorch.is_legacy_batchedtensor
    return any(isinstance(arg, Tensor) and batched(arg) for arg in args)


def _count_tensors(op: Any) -> int:
    """Return the number of arguments that are tensors or None; in a schema they come before all others."""
    kinds = [str(argument.type) in ("Tensor", "Optional[Tensor]") for argument in op._schema.arguments]
    count = sum(kinds)
    if not all(kinds[:count]):
        raise TypeError(f"{op}: expected a schema with its tensors first, but got {op._schema}")
    return count


def _any_requires_grad(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)


def refuse_gradients(library: torch.library.Library, name: str, alternative: str) -> None:
    """Make an operator that writes its arguments refuse what autograd would have to record.

    Args:
        library: takes the registration.
        name: the operator in the namespace ``opwright``.
        alternative: what to call instead, for the message.
    """
    op = getattr(getattr(torch.ops, NAMESPACE), name).default

    def kernel(keyset: Any, *args: Any) -> None:
        if forward_ad._current_level >= 0 or (torch.is_grad_enabled() and _any_requires_grad(args)):
            raise RuntimeError(
                f"{name}: expected arguments that need no gradient, but got one that does; call {alternative}"
            )
        with torch._C._AutoDispatchBelowAutograd():
            op.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    library.impl(name, kernel, "Autograd", with_keyset=True)


def _make_function(
    name: str,
    raw: Callable[..., Any],
    save: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., Any],
) -> type[torch.autograd.Function]:
    def forward(ctx: Any, *args: Any) -> Any:
        outputs = raw(*args)
        save(ctx, args, outputs)
        return outputs

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{name}_function", (torch.autograd.Function,), members)


def vjp_of(
    reference: Callable[..., Any], args: tuple[Any, ...], needed: Iterator[bool], grads: tuple[Any, ...]
) -> Any:
    """Return the gradients of ``reference`` at ``args``: right to any order, as slow as eager PyTorch.

    Args:
        reference: a differentiable function of ``args``, returning a tensor or a tuple with tensors and None.
        args: its arguments; the tensors among them may require grad.
        needed: for each argument, whether its gradient is wanted.
        grads: one cotangent, or None, per output.

    Returns:
        A tuple with one gradient, or None, per argument.
    """
    create_graph = torch.is_grad_enabled()
    wanted = [i for i, need in enumerate(needed) if need and isinstance(args[i], Tensor)]
    with torch.enable_grad():
        # Views, so that the derivative is taken here and yet stays connected to the caller's graph.
        views = list(args)
        for i in wanted:
            views[i] = (
                args[i].view_as(args[i]) if args[i].requires_grad else args[i].detach().requires_grad_()
            )
        outputs = reference(*views)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (o, g)
            for o, g in zip(outputs, grads, strict=True)
            if g is not None and o is not None and o.requires_grad
        ]
        found: tuple[Tensor | None, ...] = (None,) * len(wanted)
        if pairs and wanted:
            found = torch.autograd.grad(
                [o for o, _ in pairs],
                [views[i] for i in wanted],
                [g for _, g in pairs],
                create_graph=create_graph,
                allow_unused=True,
            )
    results: list[Tensor | None] = [None] * len(args)
    for i, gradient in zip(wanted, found, strict=True):
        results[i] = gradient
    return tuple(results)
