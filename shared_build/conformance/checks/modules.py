"""Module wrappers: copies, pickles, state, dtype moves, functional calls, meta construction, compile."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator

import torch

from .. import data, ulp
from ..registry import Variant, check
from ..run import Outputs, Run, as_tuple
from ..spec import ModuleCase, Package


def module_variants(package: Package) -> Iterator[Variant]:
    for case in package.modules:
        yield Variant(case.id, extra={"module": case})


def _make(case: ModuleCase) -> torch.nn.Module:
    module = case.factory(**case.kwargs)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter + 0.1 * noise.to(parameter.dtype))
    return module


def _inputs(case: ModuleCase, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [data.fill(arg, i).to(data.dtype_of(arg, dtype)) for i, arg in enumerate(case.inputs)]


def _call(module: torch.nn.Module, case: ModuleCase, dtype: torch.dtype = torch.float32) -> Outputs:
    return tuple(o.detach() for o in as_tuple(module(*_inputs(case, dtype))))


@check("modules", module_variants, whole_package=True)
def modules(run: Run) -> None:
    """deepcopy, pickle, torch.save, state_dict, functional_call, .to/.half, parametrize, skip_init, repr."""
    case: ModuleCase = run.extra["module"]
    module = _make(case)
    expected = _call(module, case)
    run.same("deepcopy", _call(copy.deepcopy(module), case), expected)
    run.same("pickle", _call(pickle.loads(pickle.dumps(module)), case), expected)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    run.same("torch.save", _call(torch.load(buffer, weights_only=False), case), expected)
    other = case.factory(**case.kwargs)
    other.load_state_dict(module.state_dict(), strict=True)
    run.same("state_dict", _call(other, case), expected)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    fresh = case.factory(**case.kwargs)
    called = as_tuple(torch.func.functional_call(fresh, state, tuple(_inputs(case))))
    run.same("functional_call", tuple(o.detach() for o in called), expected)
    run.require(type(module).__name__ in repr(module), f"repr does not name the class: {module!r}")
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        moved = copy.deepcopy(module).to(dtype)
        run.require(
            all(p.dtype == dtype for p in moved.parameters()), f".to({dtype}) left a parameter behind"
        )
        for out in _call(moved, case, dtype):
            run.require(out.isfinite().all(), f"not finite in {dtype}")
    run.require(all(p.requires_grad for p in module.parameters()), "a parameter does not require a gradient")
    plain = [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
    run.require(not plain, f"plain tensors as attributes, which state and moves lose: {plain}")
    if list(module.parameters()):
        sum(o.double().sum() for o in as_tuple(module(*_inputs(case)))).backward()
    for name, parameter in module.named_parameters():
        run.require(parameter.grad is not None, f"parameter {name} gets no gradient")
    _meta(run, case, module, expected)
    _parametrized(run, case, module)


def _meta(run: Run, case: ModuleCase, module: torch.nn.Module, expected: Outputs) -> None:
    with torch.device("meta"):
        empty = case.factory(**case.kwargs)
    run.require(all(p.is_meta for p in empty.parameters()), "built under device('meta'), a parameter is real")
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(module.state_dict())
    run.same("built on meta, then filled", _call(filled, case), expected)
    if not list(module.parameters()):
        return  # a module without parameters has neither a device nor a dtype of its own
    skipped = torch.nn.utils.skip_init(case.factory, **case.kwargs)
    skipped.load_state_dict(module.state_dict())
    run.same("skip_init", _call(skipped, case), expected)
    explicit = case.factory(**case.kwargs, dtype=torch.float64)
    right = all(p.dtype == torch.float64 for p in explicit.parameters())
    run.require(right, "the argument dtype is not obeyed")


class _Double(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


def _parametrized(run: Run, case: ModuleCase, module: torch.nn.Module) -> None:
    for name, parameter in list(module.named_parameters()):
        if "." in name:
            continue
        changed = copy.deepcopy(module)
        torch.nn.utils.parametrize.register_parametrization(changed, name, _Double())
        doubled = copy.deepcopy(module)
        with torch.no_grad():
            getattr(doubled, name).mul_(2)
        run.same(f"parametrized {name}", _call(changed, case), _call(doubled, case))
        run.require(ulp.same_values(getattr(module, name).detach(), parameter.detach()), f"{name} changed")


@check("modules_compiled", module_variants, whole_package=True, marks=("compile",))
def modules_compiled(run: Run) -> None:
    """A compiled module gives eager's values and gradients, of inputs and parameters, in one graph."""
    case: ModuleCase = run.extra["module"]
    module = _make(case)
    torch._dynamo.reset()
    results = []
    for f in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        module.zero_grad()
        inputs = [tensor.requires_grad_() for tensor in _inputs(case)]
        outputs = as_tuple(f(*inputs))
        sum((o * torch.arange(o.numel()).reshape(o.shape)).sum() for o in outputs).backward()
        grads = tuple(leaf.grad.clone() for leaf in (*inputs, *module.parameters()))
        results.append((*(o.detach() for o in outputs), *grads))
    torch._dynamo.reset()
    run.same("compiled", results[1], results[0])
