"""What a figure depends on besides the code: the processor, its load, the versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUSY_CORES = 0.2
"""Other processes that use more than this many cores during a measurement are named in undecided verdicts."""


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _run(*command: str, cwd: Path | None = None) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=cwd, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def cpu_model() -> str:
    """The marketing name of the processor, or its architecture where none is told."""
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    if match:
        return " ".join(match.group(1).split())
    return _run("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine()


def machine_name() -> str:
    """A name for this kind of machine, for files of results: `amd-epyc-2-cores`. It names no host."""
    name = re.sub(r"\(.*?\)|@.*|\bCPU\b|\bProcessor\b", " ", cpu_model())
    return "-".join(re.findall(r"[a-z0-9]+", f"{name} {cores()} cores".lower()))


def caches() -> dict[str, str]:
    """Data cache sizes of the first core, such as {"L1d": "48K", "L2": "1024K", "L3": "32768K"}."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size = (_read(index / name) for name in ("type", "level", "size"))
        if size and kind != "Instruction":
            sizes[f"L{level}" + ("d" if kind == "Data" else "")] = size
    return sizes


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_machine() -> dict[str, Any]:
    """Processor, cores, caches, memory, operating system; the governor where it can be read."""
    flags = _read("/proc/cpuinfo")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "cores": cores(),
        "caches": caches(),
        "memory_gib": round(memory),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "not readable",
        "virtual": " hypervisor" in flags,
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()).strip(),
    }


def _library_compiler(library: Path | None) -> str:
    """The compiler that left its name in the operator's library."""
    if library is None or not library.is_file():
        return "unknown"
    names = re.findall(rb"(GCC: \([^)\0]*\) [\d.]+|clang version [\d.]+)", library.read_bytes())
    return "; ".join(sorted({name.decode() for name in names})) or "unknown"


def describe_versions(distribution: str, root: Path, library: Path | None = None) -> dict[str, Any]:
    """Versions of Python, torch, operator and compilers (the library's, torch.compile's), the commit."""
    import torch

    try:
        package = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        package = "not installed"
    commit = _run("git", "rev-parse", "HEAD", cwd=root)
    if commit and _run("git", "status", "--porcelain", "--untracked-files=no", cwd=root):
        commit += " with changes"
    host = _run(os.environ.get("CXX", "c++").split()[0], "--version").splitlines()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        distribution: package,
        "library_compiler": _library_compiler(library),
        "host_compiler": host[0] if host else "none",
        "commit": commit or "none",
    }


@dataclass
class Load:
    """Watches what other processes did to the machine between its creation and `finish`."""

    wall: float
    own: float
    busy: float | None
    average: float

    @classmethod
    def start(cls) -> Load:
        """Read all counters now."""
        return cls(time.monotonic(), _own_seconds(), _busy_seconds(), os.getloadavg()[0])

    def finish(self) -> dict[str, Any]:
        """Load averages, and how many cores others kept busy (None where it cannot be read)."""
        wall = max(time.monotonic() - self.wall, 1e-9)
        busy = _busy_seconds()
        others = None
        if busy is not None and self.busy is not None:
            others = round(max(0.0, (busy - self.busy - (_own_seconds() - self.own)) / wall), 2)
        return {
            "load_before": round(self.average, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "other_cores_busy": others,
            "seconds": round(wall, 1),
        }


def _own_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _busy_seconds() -> float | None:
    """CPU seconds that were not idle on the whole machine, stolen ones included; Linux only."""
    fields = _read("/proc/stat").split("\n", 1)[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def busy_reason(conditions: dict[str, Any]) -> str:
    """A sentence that names a busy machine, or nothing."""
    others = conditions.get("other_cores_busy")
    if others is not None and others > BUSY_CORES:
        return f"the machine was busy: other processes used {others:.1f} of {cores()} cores"
    return ""
