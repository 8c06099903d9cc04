from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2]
if str(SHARED.parent) not in sys.path:
    sys.path.insert(0, str(SHARED.parent))


def nvcc():
    """The nvcc that a build would find, or None."""
    named = os.environ.get("CUDACXX")
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [named, *(f"{home}/bin/nvcc" for home in homes if home), "nvcc", "/usr/local/cuda/bin/nvcc"]
    return next(filter(None, (shutil.which(place) for place in places if place)), None)


def build(package, folder, **environment):
    """Build the package's wheel against this environment's torch; returns the wheel and what was printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
    ]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OPWRIGHT_CUDA")}
    done = subprocess.run(
        [*map(str, command), "--verbose", str(package)],
        env={**kept, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (wheel,) = Path(folder).glob("*.whl")
    return wheel, done.stdout + done.stderr


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A copy of the tiny package, linked to the shared files as every package is."""
    package = tmp_path_factory.mktemp("tiny") / "tiny"
    shutil.copytree(Path(__file__).with_name("tiny"), package)
    (package / "shared_build").symlink_to(SHARED)
    return package


@pytest.fixture(scope="session")
def cuda_wheel(tiny, tmp_path_factory):
    """The tiny package's wheel with CUDA, and its build folder."""
    if nvcc() is None:
        pytest.skip("no nvcc")
    wheel, _ = build(tiny, tmp_path_factory.mktemp("cuda"), OPWRIGHT_CUDA="ON")
    return wheel


@pytest.fixture(scope="session")
def cpu_wheel(tiny, cuda_wheel, tmp_path_factory):
    """The tiny package's wheel without CUDA, built after the other in the same build folder."""
    wheel, _ = build(tiny, tmp_path_factory.mktemp("cpu"), OPWRIGHT_CUDA="OFF")
    return wheel
