"""DTensor sharding and data-parallel training on a real group of two gloo processes."""

from __future__ import annotations

import pathlib
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .. import data
from ..isolated import run_child
from ..registry import Variant, check, load_package
from ..run import Run, as_tuple, difference
from ..spec import Case, Package, Spec

RANKS = 2


def once(package: Package) -> Iterator[Variant]:
    if any(spec.shardings for spec in package.specs) or package.modules:
        yield Variant(f"{RANKS}-ranks")


@check("distributed", once, whole_package=True, marks=("isolated",))
def distributed(run: Run) -> None:
    """Every declared placement works without moving data and equals the local result, gradients too.

    Other placements are redistributed or refused, never silently wrong. One step of DistributedDataParallel
    and of fully_shard (FSDP2) gives the parameters that one process gets.
    """
    with tempfile.TemporaryDirectory() as folder:
        payload = {"origin": str(run.package.origin), "folder": folder}
        problems = run_child(f"{__name__}:_group", payload, env={"OMP_NUM_THREADS": "1"}, timeout=240)
    run.require(not problems, "\n".join(problems))


def _group(payload: Mapping[str, str]) -> list[str]:
    """Start the ranks and collect their problems."""
    import torch.multiprocessing as multiprocessing

    multiprocessing.start_processes(_rank, (payload,), nprocs=RANKS, start_method="spawn")
    problems = []
    for rank in range(RANKS):
        text = pathlib.Path(payload["folder"], f"rank{rank}").read_text()
        problems += [line for line in text.split("\0") if line]
    return problems


def _rank(rank: int, payload: Mapping[str, str]) -> None:
    import torch.distributed as dist

    store = dist.FileStore(f"{payload['folder']}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    package = load_package(payload["origin"])
    problems: list[str] = []
    for spec in package.specs:
        for index, sharding in enumerate(spec.shardings):
            label = f"rank {rank}, {spec.name}, placement {dict(sharding.args)}"
            try:
                problems += [f"{label}: {text}" for text in _sharded(package, spec, index)]
            except Exception:
                problems.append(f"{label}: {traceback.format_exc()}")
    for case in package.modules:
        label = f"rank {rank}, module {case.id}"
        try:
            problems += [f"{label}: {text}" for text in _trained(case, rank)]
        except Exception:
            problems.append(f"{label}: {traceback.format_exc()}")
    pathlib.Path(payload["folder"], f"rank{rank}").write_text("\0".join(problems))
    dist.destroy_process_group()


def _placement(text: str) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if text == "R":
        return Replicate()
    return Partial() if text == "P" else Shard(int(text[2:-1]))


def _even(spec: Spec) -> Case:
    """The first core case, or a family member with even sizes, so that shards are of equal length."""
    family = spec.family
    sizes = {name: max(4, 2 * (bounds[1] // 2)) for name, bounds in family.sizes.items()}
    options = {name: values[0] for name, values in family.options.items()}
    return Case("even", family.build(sizes, options), options)


def _sharded(package: Package, spec: Spec, index: int) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    sharding = spec.shardings[index]
    mesh = init_device_mesh("cpu", (RANKS,))
    case = _even(spec)
    run = Run(package, "distributed", "even", spec, case, torch.float32)
    wanted = data.differentiable(case) if spec.differentiable else []
    local = run.inputs()
    expected = run.call(local)
    upstream = data.cotangents(expected, 0)
    problems: list[str] = []
    for recording in (False, True) if wanted else (False,):
        leaves = {}
        for name, t in local.items():
            leaf = None
            if t is not None:
                leaf = distribute_tensor(t.clone(), mesh, [_placement(sharding.args.get(name, "R"))])
                leaf = leaf.detach().requires_grad_(recording and name in wanted)
            leaves[name] = leaf
        with CommDebugMode() as traffic:
            outputs = as_tuple(spec.op(**leaves, **case.options))
        if traffic.get_total_counts():
            problems.append(f"forward moves data between ranks: {dict(traffic.get_comm_counts())}")
        for name, out, want, placement in zip(spec.outputs, outputs, expected, sharding.outputs, strict=True):
            if tuple(out.placements) != (_placement(placement),):
                problems.append(f"{name} is placed {out.placements}, not {placement}")
            whole = out.full_tensor().detach()
            if not torch.equal(whole, want):
                problems.append(f"{name} differs from the local result{difference(whole, want)}")
        if recording:
            ups = [
                distribute_tensor(u, mesh, list(o.placements)) for u, o in zip(upstream, outputs, strict=True)
            ]
            found = torch.autograd.grad(outputs, [leaves[n] for n in wanted], ups)
            grads = run.gradients(local, wanted, upstream)
            for n, grad in zip(wanted, found, strict=True):
                whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
                if not torch.allclose(whole, grads[n], rtol=1e-5, atol=1e-6):
                    problems.append(f"gradient of {n} differs{difference(whole, grads[n])}")
    return problems


def _trained(case: Any, rank: int) -> list[str]:
    """One step of plain, DDP and FSDP2 training on the two halves of a batch give the same parameters."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    inputs = [data.fill(arg, i).float() for i, arg in enumerate(case.inputs)]
    inputs = [torch.cat([t, 0.5 * t.flip(0)]) for t in inputs]

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = case.factory(**case.kwargs)

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return sum((o * torch.linspace(0, 1, o.shape[-1])).sum() for o in as_tuple(self.inner(*tensors)))

    def step(module: torch.nn.Module, given: list[torch.Tensor], scale: float) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        (module(*given) * scale).backward()
        optimizer.step()
        return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach() for p in module.parameters()]

    torch.manual_seed(0)
    plain = Wrapped()
    if not list(plain.parameters()):
        return []
    state = {k: v.clone() for k, v in plain.state_dict().items()}
    expected = step(plain, inputs, 1.0)
    half = [t.chunk(RANKS)[rank].contiguous() for t in inputs]
    problems = []
    for label, wrap in (("DDP", DistributedDataParallel), ("fully_shard", fully_shard)):
        module = Wrapped()
        module.load_state_dict(state)
        got = step(wrap(module), half, float(RANKS))  # both average gradients over the ranks
        for a, b in zip(got, expected, strict=True):
            if not torch.allclose(a, b, rtol=1e-5, atol=1e-6):
                problems.append(f"{label}: parameters after one step differ{difference(a, b)}")
    return problems


def refused_variants(spec: Spec) -> Iterator[Variant]:
    if not spec.shardings and spec.family is not None:
        yield Variant("undeclared")


def _refuses(payload: Mapping[str, str]) -> str:
    """What happens when DTensors reach a function that declares no sharding (one process, fake group)."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    store = dist.FileStore(f"{payload['folder']}/store", 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    package = load_package(payload["origin"])
    spec = package.spec(payload["spec"])
    case = _even(spec)
    local = Run(package, "distributed", "even", spec, case, torch.float32).inputs()
    mesh = init_device_mesh("cpu", (1,))
    tensors = {n: t if t is None else distribute_tensor(t, mesh, [Shard(0)]) for n, t in local.items()}
    try:
        spec.op(**tensors, **case.options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        dist.destroy_process_group()
    return "accepted"


@check("sharding_refused", refused_variants, marks=("isolated",))
def sharding_refused(run: Run) -> None:
    """A function without a sharding rule raises when it is given DTensors."""
    with tempfile.TemporaryDirectory() as folder:
        payload = {"origin": str(run.package.origin), "spec": run.spec.name, "folder": folder}
        answer = run_child(f"{__name__}:_refuses", payload)
    run.require(answer != "accepted", "DTensors are accepted, though no sharding is declared")
