"""Prints what the machine is, as one JSON line; run in a process of its own, since it asks the driver."""

from __future__ import annotations

import json
import platform
import subprocess
import sys


def _driver() -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else ""


def facts() -> dict[str, object]:
    """Versions, and the devices that torch sees; ``devices`` is empty where there is none."""
    import torch

    found: dict[str, object] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda or "",
        "driver": _driver(),
        "devices": [],
    }
    if torch.cuda.is_available():
        found["devices"] = [
            {
                "name": p.name,
                "capability": f"{p.major}.{p.minor}",
                "memory_gib": round(p.total_memory / 2**30, 1),
                "multiprocessors": p.multi_processor_count,
                "l2_mib": round(getattr(p, "L2_cache_size", 0) / 2**20, 1),
            }
            for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        ]
    return found


if __name__ == "__main__":
    print(json.dumps(facts()))
    sys.exit(0)
