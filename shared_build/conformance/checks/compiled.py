"""Graph capture: strict dynamic shapes, unbacked sizes, make_fx, Inductor, export and AOTInductor."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from .. import data
from ..isolated import run_child
from ..registry import Variant, check, load_package
from ..run import Outputs, Run
from ..spec import Case, Spec
from .values import sized

os.environ.setdefault("TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING", "1")

DYNAMIC_SIZES = (3, 5, 7, 11, 13)


def traced_variants(spec: Spec) -> Iterator[Variant]:
    """The same for the dispatcher route, where it exists."""
    for variant in dynamic_variants(spec) if spec.direct else ():
        if not variant.extra["backward"] or "direct" in spec.grad_routes():
            yield variant


def dynamic_variants(spec: Spec) -> Iterator[Variant]:
    """One variant per way of capture; sizes are distinct primes, so no two dimensions share a symbol."""
    if spec.dynamic and spec.family is not None:
        for suffix in ("forward", "backward") if spec.differentiable else ("forward",):
            yield Variant(suffix, dtype=torch.float32, extra={"backward": suffix == "backward"})


def _cases(spec: Spec) -> tuple[Case, Case]:
    """Two cases of the family that differ in every size."""
    options = {name: values[0] for name, values in spec.family.options.items()}
    names = list(spec.family.sizes)
    first = {name: DYNAMIC_SIZES[i] for i, name in enumerate(names)}
    second = {name: DYNAMIC_SIZES[i] + 10 for i, name in enumerate(names)}
    return sized(spec.family, first, options), sized(spec.family, second, options)


def _runner(run: Run, names: Sequence[str], options: Mapping[str, Any]) -> Callable[..., Outputs]:
    return run.function(names, dict.fromkeys(run.case.args), options)


def _named(run: Run, case: Case, grad: bool) -> dict[str, torch.Tensor]:
    wanted = data.differentiable(case) if grad else []
    return {n: t for n, t in run.inputs(case=case, grad=wanted).items() if t is not None}


def _loss(outputs: Outputs) -> torch.Tensor:
    return sum(
        (o.float() * torch.arange(o.numel()).reshape(o.shape)).sum() for o in outputs if o.requires_grad
    )


def _go(f: Callable[..., Outputs], given: Mapping[str, torch.Tensor], backward: bool) -> Outputs:
    outputs = f(*given.values())
    if not backward:
        return tuple(outputs)
    leaves = [t for t in given.values() if t.requires_grad]
    return (*outputs, *torch.autograd.grad(_loss(tuple(outputs)), leaves))


def _reset() -> None:
    torch._dynamo.reset()


@check("dynamic", dynamic_variants, marks=("compile",))
def dynamic(run: Run) -> None:
    """Strictly dynamic dims: no specialisation under mark_dynamic, no recompilation for a second shape."""
    first, second = _cases(run.spec)
    run.case = first
    backward = run.extra["backward"]
    a, b = _named(run, first, backward), _named(run, second, backward)
    f = _runner(run, list(a), first.options)
    _reset()
    for name, dims in run.spec.dynamic.items():
        for dim in dims:
            torch._dynamo.mark_dynamic(a[name], dim)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    try:
        got = _go(compiled, a, backward)
        with torch.compiler.set_stance("fail_on_recompile"):
            again = _go(compiled, b, backward)
    except Exception as error:
        run.fail(f"{type(error).__name__}: {error}")
    finally:
        _reset()
    run.same("compiled with dynamic sizes", _detached(got), _detached(_go(f, a, backward)))
    run.same("the same graph at other sizes", _detached(again), _detached(_go(f, b, backward)))


def _detached(outputs: Outputs) -> Outputs:
    return tuple(o.detach() for o in outputs)


def export_variants(spec: Spec) -> Iterator[Variant]:
    if spec.dynamic and spec.family is not None and not spec.mutates:
        yield Variant("dynamic", dtype=torch.float32)


class _Wrapped(torch.nn.Module):
    def __init__(self, f: Callable[..., Outputs]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *tensors: torch.Tensor) -> Outputs:
        return self.f(*tensors)


def exported(run: Run, first: Case) -> tuple[torch.export.ExportedProgram, dict[str, torch.Tensor]]:
    """The operator exported with every claimed dim strictly dynamic."""
    run.case = first
    given = _named(run, first, False)
    shapes = tuple(
        dict.fromkeys(run.spec.dynamic.get(name, ()), torch.export.Dim.DYNAMIC) or None for name in given
    )
    module = _Wrapped(_runner(run, list(given), first.options))
    return torch.export.export(module, tuple(given.values()), dynamic_shapes=(shapes,)), given


@check("export", export_variants, marks=("compile",))
def export(run: Run) -> None:
    """torch.export with Dim.DYNAMIC keeps every claimed dim; saved and loaded it runs at another size."""
    first, second = _cases(run.spec)
    try:
        program, _ = exported(run, first)
    except Exception as error:
        run.fail(f"{type(error).__name__}: {error}")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/program.pt2"
        torch.export.save(program, path)
        loaded = torch.export.load(path).module()
    given = _named(run, second, False)
    run.case = second
    run.same("exported, at another size", tuple(loaded(*given.values())), run.call(run.tensors))


@check("unbacked", dynamic_variants, marks=("compile",))
def unbacked(run: Run) -> None:
    """Sizes unknown while tracing: a branch on a size in a fake kernel raises here and nowhere else."""
    if run.extra["backward"]:
        return
    first, _ = _cases(run.spec)
    run.case = first
    given = _named(run, first, False)
    f = _runner(run, list(given), first.options)
    batch = {n: (d,) for n, d in run.spec.batch.items()} or run.spec.dynamic
    _reset()
    for name, dims in batch.items():
        for dim in dims:
            if name in given:
                torch._dynamo.decorators.mark_unbacked(given[name], dim, shape_id=f"batch{dim}")
    try:
        got = torch.compile(f, fullgraph=True, backend="aot_eager")(*given.values())
    except Exception as error:
        run.fail(f"{type(error).__name__}: {error}")
    finally:
        _reset()
    run.same("with unbacked sizes", tuple(got), run.call(run.inputs(case=first)))


@check("make_fx", traced_variants)
def fx_graph(run: Run) -> None:
    """The traced graph holds the package's operators and only bookkeeping around them: no decomposition."""
    first, _ = _cases(run.spec)
    run.case = first
    given = _named(run, first, run.extra["backward"])
    f = run.function(list(given), dict.fromkeys(first.args), first.options, route="direct")
    backward = run.extra["backward"]

    def traced(*tensors: torch.Tensor) -> Outputs:
        outputs = f(*tensors)
        if not backward:
            return outputs
        leaves = [t for t in tensors if t.requires_grad]
        ups = [torch.ones_like(o) for o in outputs if o.requires_grad]
        return torch.autograd.grad([o for o in outputs if o.requires_grad], leaves, ups)

    graph = make_fx(traced, tracing_mode="symbolic")(*given.values()).graph
    called = [str(n.target) for n in graph.nodes if n.op == "call_function"]
    own = [name for name in called if not name.startswith(("aten.", "<built-in", "prim"))]
    allowed = BOOKKEEPING | ({"clone"} if run.spec.mutates else set())
    heavy = [n for n in called if n.startswith("aten.") and n.split(".")[1] not in allowed]
    run.require(own, f"no operator of the package in the graph: {called}")
    run.require(len(own) == (2 if backward else 1), f"the package's operators in the graph: {own}")
    run.require(not heavy, f"tensor work beside the package's operators: {heavy}")


BOOKKEEPING = {
    "sym_size",
    "sym_stride",
    "sym_numel",
    "detach",
    "alias",
    "ones_like",
    "view",
    "reshape",
    "empty",
    "_to_copy",
    "new_zeros",
    "zeros_like",
}


# -- Inductor --------------------------------------------------------------------------------------------


def inductor_variants(spec: Spec) -> Iterator[Variant]:
    if spec.mutates:
        return  # see the check `mutation_compiled`
    for index, case in enumerate(spec.select("core")):
        for dtype in (torch.float32, torch.bfloat16):
            slow = index > 0 or dtype != torch.float32
            yield Variant(f"{case.id}-{str(dtype).removeprefix('torch.')}", case, dtype, slow=slow)


@check("inductor", inductor_variants, marks=("compile",))
def inductor(run: Run) -> None:
    """Compiled by Inductor between pointwise neighbours, below a transpose: eager's values and gradients."""
    wanted = data.differentiable(run.case) if run.spec.differentiable else []
    given = {n: t for n, t in run.inputs(grad=wanted).items() if t is not None}
    f = _runner(run, list(given), run.options())

    def surrounded(*tensors: torch.Tensor) -> Outputs:
        produced = [t.transpose(0, -1).contiguous().transpose(0, -1) * 2 for t in tensors]
        return tuple((o + 1).transpose(0, -1) for o in f(*produced))

    torch._dynamo.reset()
    before = torch._inductor.config.nan_asserts
    torch._inductor.config.nan_asserts = True
    try:
        got = _go(torch.compile(surrounded, fullgraph=True), given, bool(wanted))
    except Exception as error:
        run.fail(f"{type(error).__name__}: {error}")
    finally:
        torch._inductor.config.nan_asserts = before
        torch._dynamo.reset()
    expected = _go(surrounded, given, bool(wanted))
    for index, (a, b) in enumerate(zip(got, expected, strict=True)):
        run.require(a.stride() == b.stride(), f"result {index} has strides {a.stride()}, eager {b.stride()}")
    run.same("compiled by Inductor", _detached(got), _detached(expected), exact=False)


# -- AOTInductor -----------------------------------------------------------------------------------------


def aoti_variants(spec: Spec) -> Iterator[Variant]:
    if spec.dynamic and spec.family is not None and not spec.mutates:
        yield Variant("dynamic", dtype=torch.float32, slow=True)


@check("aoti", aoti_variants, marks=("compile", "isolated"))
def aoti(run: Run) -> None:
    """Packaged by AOTInductor and run in a process that loads the operator library alone."""
    first, second = _cases(run.spec)
    program, _ = exported(run, first)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.pt2"
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        run.case = second
        given = _named(run, second, False)
        inputs = f"{folder}/inputs.pt"
        outputs = f"{folder}/outputs.pt"
        torch.save([t.detach() for t in given.values()], inputs)
        payload = {
            "origin": str(run.package.origin),
            "libraries": _libraries(run.package.module),
            "model": path,
            "inputs": inputs,
            "outputs": outputs,
        }
        run_child(f"{__name__}:_run_aoti", payload)
        got = torch.load(outputs)
    run.same("run by AOTInductor", tuple(got), run.call(run.tensors), exact=False)


def _libraries(module: str) -> list[str]:
    """The operator libraries of the package that this process has loaded."""
    tail = module.rpartition(".")[2]
    return [path for path in torch.ops.loaded_libraries if tail in path]


def _run_aoti(payload: Mapping[str, Any]) -> bool:
    for library in payload["libraries"]:
        torch.ops.load_library(library)
    if not payload["libraries"]:  # an operator written in Python has no library: its module is loaded
        load_package(payload["origin"])
    model = torch._inductor.aoti_load_package(payload["model"])
    torch.save(list(model(*torch.load(payload["inputs"]))), payload["outputs"])
    return True
