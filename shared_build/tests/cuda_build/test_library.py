"""The CUDA library of a package, compiled and linked here: what is in it, and what it does to CPU tensors.

Nothing here needs a GPU, and nothing here runs a kernel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile

import pytest
import torch

from shared_build.delivery import elf
from shared_build.delivery.audit import audit_wheel

LIBRARY = "opwright/tiny/_CUDA.so"


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def run(wheel, folder, code, **environment):
    """Run Python code in a fresh process that can import the wheel's package."""
    if not (folder / "opwright").is_dir():
        zipfile.ZipFile(wheel).extractall(folder)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_wheels_differ_in_the_cuda_part_only(cuda_wheel, cpu_wheel):
    with_cuda, without = contents(cuda_wheel), contents(cpu_wheel)
    assert with_cuda.keys() - without.keys() == {LIBRARY}
    record = next(name for name in without if name.endswith("RECORD"))
    assert {name for name in without if with_cuda[name] != without[name]} == {record}
    assert cuda_wheel.name == cpu_wheel.name


def test_the_audit_accepts_both(cuda_wheel, cpu_wheel):
    for wheel in (cuda_wheel, cpu_wheel):
        found = {each.check: each for each in audit_wheel(wheel)}
        # The CUDA runtime's calls of the C library have the versions of the system that links it: those of an
        # older one are enforced where release wheels are made.
        told = {"manylinux"} if wheel == cuda_wheel else set()
        wrong = {name: each for name, each in found.items() if each.status not in ("ok", "not run")}
        assert wrong.keys() <= told, wrong
        assert {each.status for each in wrong.values()} <= {"report"}


def test_what_the_library_asks_for(cuda_wheel):
    library = elf.read_library(contents(cuda_wheel)[LIBRARY])
    cuda = [symbol for symbol in library.undefined if "cuda" in symbol.name]
    # torch's stream, weakly; the CUDA runtime is inside.
    assert [
        (symbol.name, symbol.weak) for symbol in cuda if symbol.name != "aoti_torch_device_type_cuda"
    ] == [("aoti_torch_get_current_cuda_stream", True)]
    assert "libtorch.so" in library.needed
    assert not [name for name in library.needed if "cuda" in name]


def test_what_is_compiled(tiny, cuda_wheel):
    library = contents(cuda_wheel)[LIBRARY]
    assert b"CUDA " in library
    (report,) = tiny.glob("build/**/tiny.cu.o.resources.json")
    entries = json.loads(report.read_text())["kernels"]
    assert sorted(entry["arch"] for entry in entries) == ["sm_80", "sm_90"]
    for entry in entries:
        assert "twice_kernel" in entry["kernel"]
        assert 1 <= entry["registers"] <= 255
        assert entry["stores"] == entry["loads"] == 0


def test_line_tables_name_sources_by_no_path_of_this_machine(tiny, cuda_wheel):
    (compiled,) = tiny.glob("build/**/tiny.cu.o")
    content = compiled.read_bytes()
    assert str(tiny).encode() not in content
    assert b"/csrc/cuda\0" in content


def test_an_object_is_compiled_again_when_a_header_of_it_changes(tiny, cuda_wheel):
    (depends,) = tiny.glob("build/**/tiny.cu.o.d")
    named = set(depends.read_text().replace("\\\n", " ").split())
    assert str(tiny / "csrc" / "tiny.h") in named
    assert "/proc/self" not in depends.read_text()


CALL = """
import torch
from opwright.tiny import twice
assert twice(torch.arange(5.0)).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
"""


@pytest.mark.parametrize("kind", ["cuda_wheel", "cpu_wheel"])
def test_cpu_tensors_are_served(kind, request, tmp_path):
    run(request.getfixturevalue(kind), tmp_path, CALL)


def test_the_cuda_library_is_loaded_under_a_torch_with_cuda_only(cuda_wheel, tmp_path):
    mapped = "print(sorted({line.split('/')[-1].strip() for line in open('/proc/self/maps') if '/' in line}))"
    out, _ = run(cuda_wheel, tmp_path, CALL + mapped)
    assert ("_CUDA.so" in out) == (torch.version.cuda is not None)
    # No driver: neither of a GPU that is there, nor by asking whether there is one.
    assert "libcuda.so" not in out


FORCED = """
key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
try:
    twice.redispatch(key, torch.ones(3))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_without_cuda_kernels_a_cuda_tensor_is_refused_with_what_to_do(cpu_wheel, tmp_path):
    # The dispatcher takes the way of a CUDA tensor; the tensor itself is never looked at.
    out, _ = run(cpu_wheel, tmp_path, CALL + FORCED)
    assert out.strip() == (
        "NotImplementedError tiny_twice: expected CPU tensors, since opwright-tiny is installed without CUDA "
        "kernels, but got a CUDA tensor; build it with CUDA kernels where nvcc is: "
        "OPWRIGHT_CUDA=ON pip install --force-reinstall --no-deps opwright-tiny"
    )


def test_the_cuda_implementation_checks_its_device(cuda_wheel, tmp_path):
    if torch.version.cuda is None:
        load = f"torch.ops.load_library({str(tmp_path / LIBRARY)!r})\n"
    else:
        load = ""
    # Under a torch without CUDA it is loaded by hand here: it must load there, and reach no kernel.
    out, _ = run(cuda_wheel, tmp_path, CALL + load + FORCED)
    assert out.strip() == "ValueError tiny_twice: expected input on a CUDA device, but got cpu"


def test_the_stream_comes_from_torch(cuda_wheel, tmp_path):
    """Under a torch with CUDA the weak reference is bound to torch's function; else it stays null."""
    code = CALL + f"torch.ops.load_library({str(tmp_path / LIBRARY)!r})\n"
    _, log = run(cuda_wheel, tmp_path, code, LD_DEBUG="bindings", LD_BIND_NOW="1")
    bound = [
        line
        for line in log.splitlines()
        if "aoti_torch_get_current_cuda_stream" in line and "_CUDA.so" in line
    ]
    assert bool(bound) == (torch.version.cuda is not None)
    assert all("libtorch_cuda.so" in line for line in bound)
