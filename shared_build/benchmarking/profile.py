"""Shows where the time goes: inside the operator, and in a small graph with and without it.

`python -m shared_build.benchmarking.profile <operator> --out DIR` runs torch.profiler on the operator's
cases (operator level) and on the package's block (graph level: eager and compiled, inference and training,
with and without the operator), prints two tables, and writes them with the traces to a folder. The page
docs/benchmarks/profiling.md says how to read them. Times are taken without the profiler, which makes every
call dearer; shares are taken with it.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from . import allocator
from .cases import load_cases, operator_root, shape_name
from .runner import terminal

Call = Callable[[], Any]
SHAPES = ((1, 4096), (2048, 2048))
DTYPE = "bf16"
STEPS = 5
OUTSIDE = "(outside of ops)"


@dataclass
class Profiled:
    """One profiled call: time without the profiler, and where it went with it."""

    name: str
    step_us: float
    dispatched: int
    ops: dict[str, float] = field(default_factory=dict)
    """Self CPU time of each op in microseconds a step, the largest first."""
    trace: str = ""

    def share(self, chosen: Callable[[str], bool]) -> float:
        """Part of the profiled time that ops with a chosen name took themselves."""
        total = sum(self.ops.values())
        return sum(value for name, value in self.ops.items() if chosen(name)) / total if total else 0.0


def profile_call(name: str, call: Call, step_us: float, trace: Path) -> Profiled:
    """Profile a few steps of a warm call and write its trace."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(STEPS):
            with record_function("step"):
                call()
    write_trace(profiler, trace)
    averages = [item for item in profiler.key_averages() if item.key not in ("step", "[memory]")]
    ops: dict[str, float] = {}
    for item in averages:
        # Every compiled graph has a name of its own; what is inside it is the compiler's code.
        key = "compiled code" if "CompiledFxGraph" in item.key else item.key
        ops[key] = ops.get(key, 0.0) + item.self_cpu_time_total / STEPS
    step = next((item for item in profiler.key_averages() if item.key == "step"), None)
    if step is not None:
        # What the step itself spent is Python: everything that is not inside an op.
        ops[OUTSIDE] = step.self_cpu_time_total / STEPS
    ordered = dict(sorted(ops.items(), key=lambda pair: -pair[1]))
    dispatched = sum(item.count for item in averages if "::" in item.key) // STEPS
    return Profiled(name, step_us, dispatched, ordered, trace.name)


def write_trace(profiler: Any, path: Path) -> None:
    """Write a profile's trace, compressed, without the names of the host and of temporary files."""
    with tempfile.TemporaryDirectory(prefix="opwright-profile-") as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        trace = json.loads(plain.read_text(encoding="utf-8"))
    for name in ("host_name", "traceName"):
        trace.pop(name, None)
    path.write_bytes(gzip.compress(json.dumps(trace).encode(), mtime=0))


def time_together(calls: dict[str, Call]) -> dict[str, float]:
    """Microseconds a step of each call, interleaved, without the profiler."""
    from .timing import Plan, interleave

    times = interleave(calls, Plan(min_rounds=9, max_rounds=21, seconds=1.0))
    return {name: 1e6 * median(values) for name, values in times.items()}


def profile_operator(operator: str, root: Path, out: Path, progress: Callable[[str], None]) -> list[Profiled]:
    """Ours and eager of every case at two sizes, results checked first."""
    from .check import Checker
    from .contenders import Cell

    found = []
    for case in load_cases(root).values():
        for shape in SHAPES:
            if shape not in case.shapes or DTYPE not in case.dtypes or case.in_graph:
                continue
            label = f"{case.name} {shape_name(shape)} {DTYPE}"
            progress(label)
            cell = Cell(case, shape, DTYPE)
            Checker(operator, cell).check("ours")
            calls = {name: cell.call(name) for name in ("ours", "eager")}
            times = time_together(calls)
            for name, call in calls.items():
                trace = out / f"operator-{case.name}-{shape_name(shape)}-{name}.json.gz"
                found.append(profile_call(f"{label} {name}", call, times[name], trace))
    return found


def profile_graph(root: Path, out: Path, progress: Callable[[str], None]) -> list[Profiled]:
    """The package's block, eager and compiled, for inference and training, with and without the operator.

    Raises:
        RuntimeError: the two variants do not compute the same, so comparing their times would mean nothing.
    """
    import torch

    block = importlib.import_module("benchmarks.block")
    inputs = block.inputs()
    modules = {"without": block.make(False), "with": block.make(True)}
    with torch.no_grad():
        results = {name: module(*inputs) for name, module in modules.items()}
    error = float((results["with"] - results["without"]).norm() / results["without"].norm())
    if not error <= 1e-5:
        raise RuntimeError(
            f"profile: expected the same block within 1e-5 with the operator, but got {error:.2e}"
        )
    found = []
    for kind in ("eager", "compiled"):
        for purpose in ("inference", "training"):
            calls = {}
            for name, module in modules.items():
                progress(f"block {kind} {purpose} {name}")
                torch.compiler.reset()
                run = torch.compile(module, fullgraph=True, dynamic=False) if kind == "compiled" else module
                calls[name] = _step(run, list(module.parameters()), inputs, purpose == "training")
                calls[name]()
            times = time_together(calls)
            for name, call in calls.items():
                trace = out / f"graph-{kind}-{purpose}-{name}.json.gz"
                found.append(profile_call(f"{kind} {purpose} {name}", call, times[name], trace))
    return found


def _step(run: Call, parameters: list[Any], inputs: Sequence[Any], training: bool) -> Call:
    import torch

    def infer() -> Any:
        with torch.no_grad():
            return run(*inputs)

    def train() -> Any:
        return torch.autograd.grad(run(*inputs).square().mean(), parameters)

    return train if training else infer


def operator_table(found: Sequence[Profiled]) -> Table:
    """A row a case: times of ours and eager, and for ours where the profiled time went."""
    table = Table(title="operator level: one call, all threads", title_justify="left")
    table.add_column("call")
    for column in ("ours us", "eager us", "ratio", "ops ours / eager", "in opwright", "outside of ops"):
        table.add_column(column, justify="right")
    for ours, eager in zip(found[::2], found[1::2], strict=True):
        table.add_row(
            ours.name.removesuffix(" ours"),
            f"{ours.step_us:.4g}",
            f"{eager.step_us:.4g}",
            f"{eager.step_us / ours.step_us:.2f}x",
            f"{ours.dispatched} / {eager.dispatched}",
            f"{ours.share(is_ours):.0%}",
            f"{ours.share(lambda name: name == OUTSIDE):.0%}",
        )
    return table


def graph_table(found: Sequence[Profiled]) -> Table:
    """A row a block: its time, and how much faster it is with the operator; the parts that took most."""
    table = Table(title="graph level: one step of a transformer block, all threads", title_justify="left")
    table.add_column("block")
    for column in ("ms", "ratio", "ops", "in opwright"):
        table.add_column(column, justify="right")
    table.add_column("largest")
    before: Profiled | None = None
    for item in found:
        total = sum(item.ops.values()) or 1.0
        largest = [f"{name} {value / total:.0%}" for name, value in list(item.ops.items())[:3]]
        table.add_row(
            item.name,
            f"{item.step_us / 1e3:.3f}",
            "-" if before is None else f"{before.step_us / item.step_us:.2f}x",
            str(item.dispatched),
            f"{item.share(is_ours):.0%}",
            ", ".join(largest),
        )
        # They come in pairs: without the operator, then with it.
        before = item if before is None else None
    return table


def is_ours(name: str) -> bool:
    """Whether an op of a profile is one of this project's."""
    return name.startswith("opwright::")


def run(operator: str, root: Path, out: Path, console: Console) -> list[Path]:
    """Profile everything; print and write the tables; returns the written files.

    Raises:
        RedCheckError: a result of the operator is wrong.
        RuntimeError: the block differs with the operator.
    """
    out.mkdir(parents=True, exist_ok=True)
    with terminal(stderr=True).status("profiling") as status:
        found = {"operator": profile_operator(operator, root, out, status.update), "graph": []}
        if (root / "benchmarks" / "block.py").is_file():
            found["graph"] = profile_graph(root, out, status.update)
    tables = [operator_table(found["operator"])]
    if found["graph"]:
        tables.append(graph_table(found["graph"]))
    text = out / "profile.txt"
    with text.open("w", encoding="utf-8") as stream:
        for table in tables:
            console.print(table)
            Console(file=stream, width=140).print(table)
    data = out / "profile.json"
    plain = {level: [asdict(item) for item in items] for level, items in found.items()}
    data.write_text(
        json.dumps({"schema": 1, "operator": operator, **plain}, indent=1) + "\n", encoding="utf-8"
    )
    traces = [out / item.trace for items in found.values() for item in items]
    console.print(f"{len(traces)} traces; a trace viewer (chrome://tracing, Perfetto) opens them")
    return [text, data, *traces]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's text. Exit status 3 where nothing could be profiled."""
    parser = argparse.ArgumentParser(prog="shared_build.benchmarking.profile", description=__doc__)
    parser.add_argument("operator")
    parser.add_argument("--out", type=Path, required=True, help="folder for tables and traces")
    options = parser.parse_args(arguments)
    if not allocator.in_force():
        # The setting is read when a process starts.
        command = [sys.executable, "-m", "shared_build.benchmarking.profile", options.operator]
        environment = {**allocator.environment(), "KINETO_LOG_LEVEL": "99"}
        return subprocess.run([*command, "--out", str(options.out)], env=environment, check=False).returncode
    try:
        run(options.operator, operator_root(options.operator), options.out, terminal())
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        terminal(stderr=True).print(str(error), style="bold red", markup=False, soft_wrap=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
