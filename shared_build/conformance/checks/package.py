"""The installed package: what its import costs and changes, and that its library loads twice."""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..isolated import editable_builds, run_child
from ..registry import Variant, check
from ..run import Run
from ..spec import Package

DRIVERS = ("libcuda", "libnvidia-ml", "libnvcuvid", "libcudart", "libhsa-runtime", "libze_loader")
IMPORT_TRIES = 6
HEAVY = ("torch.distributed.tensor", "torch._dynamo", "torch._inductor", "transformers", "numpy.testing")


def once(package: Package) -> Iterator[Variant]:
    yield Variant("import")


def _mapped() -> set[str]:
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}


def _writable_code() -> list[str]:
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "rwx" in line.split()[1]]


def _float_state() -> list[Any]:
    """Subnormals are kept, rounding is to nearest, and no exception traps: as IEEE 754 starts out."""
    import torch

    tiny = torch.tensor(1e-45)
    c = ctypes.CDLL(None)
    return [float(tiny * 1) != 0.0, 5e-324 * 1.0 != 0.0, c.fegetround(), 1.0 / 3.0]


def _watch_drivers() -> list[str]:
    """From now on, record every library or device of a GPU driver that is opened and every question asked."""
    import torch

    touched: list[str] = []

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event in ("ctypes.dlopen", "open") and args and isinstance(args[0], (str, bytes)):
            name = os.fsdecode(args[0])
            if any(d in name for d in DRIVERS) or name.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
                touched.append(f"{event} {name}")

    def recorded(name: str) -> Callable[..., Any]:
        original = getattr(torch.cuda, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            touched.append(f"torch.cuda.{name}")
            return original(*args, **kwargs)

        return wrapped

    for name in ("is_available", "device_count", "init", "_lazy_init", "current_device"):
        setattr(torch.cuda, name, recorded(name))
    sys.addaudithook(watch)
    return touched


def _state() -> dict[str, Any]:
    """What an import must leave as it is, by name."""
    import torch

    return {
        "the floating-point state (flush-to-zero or rounding)": _float_state(),
        "the number of threads": len(list(pathlib.Path("/proc/self/task").iterdir())),
        "the number of Python threads": threading.active_count(),
        "memory that is writable and executable": len(_writable_code()),
        "torch's number of threads": torch.get_num_threads(),
        "torch's default dtype": str(torch.get_default_dtype()),
        "torch's grad mode": torch.is_grad_enabled(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's random state": int(torch.random.get_rng_state().long().sum()),
        "the environment": dict(os.environ),
    }


def _import(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Import the module after torch and tell what changed in this process."""
    sys.path[:0] = payload["path"]
    os.environ["SKBUILD_EDITABLE_SKIP"] = editable_builds()
    import torch

    touched = _watch_drivers()
    before, mapped, loaded = _state(), _mapped(), set(sys.modules)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        __import__(payload["module"])
        cost = time.perf_counter() - start
    after, added = _state(), _mapped() - mapped
    return {
        "ms": 1e3 * cost,
        "changed": [f"{k}: {before[k]} -> {after[k]}" for k in before if before[k] != after[k]],
        "drivers": touched + [m for m in added if any(d in m for d in DRIVERS)],
        "initialized": torch.cuda.is_initialized(),
        "openmp": [m for m in added if "omp" in pathlib.Path(m).name and ".so" in m],
        "warnings": [str(w.message) for w in caught],
        "heavy": sorted(m for m in set(sys.modules) - loaded if m in HEAVY),
    }


def _observe(run: Run, env: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    payload = {"module": run.package.module, "path": list(run.package.path)}
    return run_child(f"{__name__}:_import", payload, env=env)


@check("import_effects", once, whole_package=True, marks=("isolated",))
def import_effects(run: Run) -> None:
    """Import leaves the process as it was.

    Floating-point state, torch's global settings, the random state and the environment are unchanged; no
    thread starts, no GPU driver is touched, no memory becomes writable and executable, no second OpenMP
    runtime is loaded, nothing is warned about and no heavy module is imported.
    """
    found = _observe(run)
    run.require(not found["changed"], "the import changed " + "; ".join(found["changed"]))
    run.require(not found["drivers"], f"a GPU driver was touched: {found['drivers']}")
    run.require(not found["initialized"], "CUDA was initialised")
    run.require(not found["openmp"], f"a second OpenMP runtime was loaded: {found['openmp']}")
    run.require(not found["warnings"], f"warnings at import: {found['warnings']}")
    run.require(not found["heavy"], f"heavy modules were imported: {found['heavy']}")


@check("import_cost", once, whole_package=True, marks=("isolated",))
def import_cost(run: Run) -> None:
    """Import costs at most the budget beyond torch's own, in the best of a few fresh processes.

    The first one compiles the sources into a bytecode cache of its own, as an installer does.
    """
    costs = []
    with tempfile.TemporaryDirectory() as cache:
        env = {"PYTHONDONTWRITEBYTECODE": None, "PYTHONPYCACHEPREFIX": cache}
        for _ in range(IMPORT_TRIES):
            costs.append(_observe(run, env)["ms"])
            if costs[-1] <= run.package.import_budget_ms:
                run.figures["import_ms"] = costs[-1]
                return
    budget = run.package.import_budget_ms
    run.fail(f"import costs {min(costs):.0f} ms beyond torch, the budget is {budget:g} ms")


def _load_twice(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Load the library again under the same path, from a copy, and reload the module."""
    sys.path[:0] = payload["path"]
    import importlib

    import torch

    module = importlib.import_module(payload["module"])
    tail = payload["module"].rpartition(".")[2]
    found = [path for path in torch.ops.loaded_libraries if tail in path]
    steps = {"libraries": len(found)}
    for path in found:
        torch.ops.load_library(path)
        copy = pathlib.Path(payload["folder"]) / ("copy_" + pathlib.Path(path).name)
        shutil.copy(path, copy)
        try:
            torch.ops.load_library(str(copy))
            steps["copy"] = "loaded"
        except Exception as error:
            steps["copy"] = f"{type(error).__name__}: {error}"
    for name in [n for n in sys.modules if n == payload["module"] or n.startswith(payload["module"] + ".")]:
        del sys.modules[name]
    again = importlib.import_module(payload["module"])
    steps["fresh"] = again is not module
    return steps


@check("loaded_twice", once, whole_package=True, marks=("isolated",))
def loaded_twice(run: Run) -> None:
    """Loaded again, from a copy elsewhere, and imported a second time: it works or says what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        payload = {"module": run.package.module, "path": list(run.package.path), "folder": folder}
        found = run_child(f"{__name__}:_load_twice", payload)
    run.require(found["fresh"], "the module was not imported again")
    if found["libraries"]:
        copied = found["copy"]
        run.require(
            copied == "loaded" or "already" in copied or "twice" in copied,
            f"a second copy of the library fails without saying why: {copied}",
        )
