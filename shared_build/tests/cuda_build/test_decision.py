"""Whether CUDA kernels are built, and the one line that says why or what to set."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CMAKE = Path(__file__).resolve().parents[2] / "cmake" / "Cuda.cmake"
#: An environment without any nvcc, whatever this machine has.
BARE = {"PATH": "/usr/bin:/bin", "CMAKE_SYSTEM_PREFIX_PATH": "/nowhere"}
ARCHITECTURES = "75 80 86 90 100"


def program(name):
    """A program of this environment, or of the system."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else shutil.which(name)


def fake_nvcc(folder, version="13.0", architectures=ARCHITECTURES):
    """A program that answers as nvcc does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvcc"
    listed = "\n".join(f"compute_{arch}" for arch in architectures.split())
    path.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f'--version) echo "Cuda compilation tools, release {version}, V{version}.1" ;;\n'
        f'--list-gpu-arch) echo "{listed}" ;;\nesac\n'
    )
    path.chmod(0o755)
    return path


def decide(
    tmp_path, *, nvcc=None, torch="2.13.0+cu130", torch_cuda="13.0", sources="a.cu", env=None, **options
):
    """Run the decision; return (what was decided, what was printed)."""
    script = tmp_path / "decide.cmake"
    script.write_text(
        # The system's own folders are left out, so that a toolkit of this machine is not found.
        "set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)\n"
        f'include("{CMAKE}")\n'
        f'_opwright_decide_cuda(demo "{sources}" "{torch}" "{torch_cuda}" found)\n'
        'message(STATUS "found=${found}")\n'
    )
    environment = {**BARE, **({"CUDACXX": str(nvcc)} if nvcc else {}), **(env or {})}
    done = subprocess.run(
        [program("cmake"), *(f"-D{name}={value}" for name, value in options.items()), "-P", str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = next((line for line in done.stdout.splitlines() if line.startswith("-- found=")), "")
    text = " ".join((done.stdout + done.stderr).split())
    return (found.removeprefix("-- found=") if done.returncode == 0 else None), text


def test_a_fitting_nvcc_is_used(tmp_path):
    nvcc = fake_nvcc(tmp_path)
    found, text = decide(tmp_path, nvcc=nvcc)
    assert found == str(nvcc)
    assert "CUDA kernels by nvcc 13.0 for sm_80, sm_90 and later" in text


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", "PATH"])
def test_where_nvcc_is_looked_for(tmp_path, variable):
    nvcc = fake_nvcc(tmp_path / "toolkit" / "bin")
    place = f"{nvcc.parent}:{BARE['PATH']}" if variable == "PATH" else str(nvcc.parent.parent)
    assert decide(tmp_path, env={variable: place})[0] == str(nvcc)


def test_off(tmp_path):
    found, text = decide(tmp_path, nvcc=fake_nvcc(tmp_path), OPWRIGHT_CUDA="OFF")
    assert found == ""
    assert "CPU only (OPWRIGHT_CUDA=OFF)" in text


def test_another_minor_version_fits(tmp_path):
    assert decide(tmp_path, nvcc=fake_nvcc(tmp_path, "13.2"))[0]


def test_a_torch_without_cuda(tmp_path):
    nvcc = fake_nvcc(tmp_path)
    cpu = {"nvcc": nvcc, "torch": "2.13.0+cpu", "torch_cuda": ""}
    found, text = decide(tmp_path, **cpu)
    assert found == ""
    assert "expected a torch with CUDA, but got 2.13.0+cpu without; set OPWRIGHT_CUDA=ON" in text
    assert decide(tmp_path, **cpu, OPWRIGHT_CUDA="ON")[0] == str(nvcc)


WRONG = {
    "no sources": ({"sources": ""}, "expected CUDA sources, but demo has none; set OPWRIGHT_CUDA=OFF"),
    "another major version": (
        {"version": "12.8"},
        "expected an nvcc 13.x for torch 2.13.0+cu130 with CUDA 13.0, but got 12.8; set CUDACXX to one, "
        "or OPWRIGHT_CUDA=OFF",
    ),
    "too old": (
        {"version": "11.8", "torch_cuda": "11.8"},
        "expected nvcc 12.4 or later, but got 11.8; set CUDACXX to a newer one, or OPWRIGHT_CUDA=OFF",
    ),
    "not an nvcc": ({"version": ""}, "to name a release, but"),
    "an architecture that it lacks": (
        {"OPWRIGHT_CUDA_ARCHITECTURES": "80;123"},
        "expected OPWRIGHT_CUDA_ARCHITECTURES among 80, 86, 90, 100, but got 123",
    ),
    "an architecture that the kernels lack": (
        {"OPWRIGHT_CUDA_ARCHITECTURES": "75"},
        "expected OPWRIGHT_CUDA_ARCHITECTURES among 80, 86, 90, 100, but got 75",
    ),
    "no architecture": (
        {"OPWRIGHT_CUDA_ARCHITECTURES": ""},
        "expected an architecture in OPWRIGHT_CUDA_ARCHITECTURES, such as 80, but got none",
    ),
}


@pytest.mark.parametrize("mode", ["AUTO", "ON"])
@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_said_in_one_line(tmp_path, kind, mode):
    given, line = dict(WRONG[kind][0]), WRONG[kind][1]
    nvcc = fake_nvcc(tmp_path, given.pop("version", "13.0"))
    found, text = decide(tmp_path, nvcc=nvcc, OPWRIGHT_CUDA=mode, **given)
    assert line in text
    if mode == "ON":
        assert found is None
        assert "CMake Error" in text
    else:
        assert found == ""
        assert f"opwright: CPU only: expected {line.removeprefix('expected ')}" in text or "CPU only" in text


@pytest.mark.parametrize("mode", ["AUTO", "ON"])
def test_no_nvcc(tmp_path, mode):
    found, text = decide(tmp_path, nvcc=tmp_path / "none", OPWRIGHT_CUDA=mode)
    assert found == (None if mode == "ON" else "")
    assert (
        "expected nvcc, but found none; set CUDACXX to it or CUDA_HOME to its toolkit, or OPWRIGHT_CUDA=OFF"
        in text
    )


def test_an_unknown_mode(tmp_path):
    found, text = decide(tmp_path, OPWRIGHT_CUDA="YES")
    assert found is None
    assert "expected OPWRIGHT_CUDA to be AUTO, ON or OFF, but got YES" in text


def test_the_backend_passes_the_environment_on(monkeypatch):
    import importlib.util

    spec = importlib.util.spec_from_file_location("opwright_backend", CMAKE.parents[1] / "backend.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    monkeypatch.setattr(backend, "_site_with_torch", lambda: os.curdir)
    key = "cmake.define.OPWRIGHT_CUDA"
    monkeypatch.delenv("OPWRIGHT_CUDA", raising=False)
    # Always said: the build folder may remember another answer.
    assert backend._with_torch(None)[key] == "AUTO"
    monkeypatch.setenv("OPWRIGHT_CUDA", "ON")
    monkeypatch.setenv("OPWRIGHT_CUDA_ARCHITECTURES", "90")
    assert backend._with_torch({})[key] == "ON"
    assert backend._with_torch({})["cmake.define.OPWRIGHT_CUDA_ARCHITECTURES"] == "90"
    assert backend._with_torch({key: "OFF"})[key] == "OFF"
