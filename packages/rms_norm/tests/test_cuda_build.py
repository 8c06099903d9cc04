"""What a build does with CUDA tensors, asked without any: the dispatcher is told to take their way.

With CUDA kernels the binding is reached and looks at the tensors first; without, what is registered in its
place says what to do. No kernel runs here.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import opwright.rms_norm  # noqa: F401
from opwright.rms_norm._runtime import find_library

X, W, RSTD = torch.ones(3, 4), torch.ones(4), torch.ones(3)
ADD = (X, X.clone(), W, 1e-6, 0.0, 0, 0)
GATED = (X, None, W, 1e-6, 0, True, 0, 0)
#: Every operator that has kernels, with arguments that a CPU build accepts.
ARGUMENTS = {
    "rms_norm_forward": (X, W, 1e-6, 0.0, 0),
    "rms_norm_backward": (X, X, W, RSTD, 1e-6, 0.0, True, True),
    "rms_norm_inference": (X, W, 1e-6, 0.0, 0),
    "add_rms_norm_forward": ADD,
    "add_rms_norm_backward": (X, X, X, W, RSTD, 1e-6, 0.0, True, True),
    "add_rms_norm_inference": ADD,
    "add_rms_norm_": ADD,
    "rms_norm_gated_forward": GATED,
    "rms_norm_gated_backward": (X, X, None, W, RSTD, 1e-6, 0, True, 0, True, False, True),
    "rms_norm_gated_inference": GATED,
}
RAW = [
    f"{name}_raw" for name in ARGUMENTS if name.endswith(("_forward", "_backward")) or name == "add_rms_norm_"
]
CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


def by_cuda(name):
    """The error of an operator called as for a CUDA tensor."""
    operator = getattr(torch.ops.opwright, name).default
    with pytest.raises(Exception) as raised:
        operator.redispatch(CUDA, *ARGUMENTS[name.removesuffix("_raw")])
    return raised.value


def with_kernels(key):
    listed = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("opwright::") for name in listed if "opwright::" in name and "rms_norm" in name}


def test_every_operator_is_here():
    assert with_kernels("CPU") == {*ARGUMENTS, *RAW, "add_rms_norm_check"}


def test_what_serves_the_cpu_answers_for_cuda():
    assert with_kernels("CUDA") == with_kernels("CPU")


@pytest.mark.parametrize("name", [*ARGUMENTS, *RAW])
def test_a_cuda_tensor_without_cuda_kernels(name):
    error = by_cuda(name)
    if find_library("opwright.rms_norm", "_CUDA") and torch.version.cuda:
        # The binding itself: it looks where the tensors are before anything else is done with them.
        assert type(error) is ValueError
        assert "on a CUDA device, but got cpu" in str(error)
        return
    assert type(error) is NotImplementedError
    public = name.removesuffix("_raw").removesuffix("_forward").removesuffix("_inference")
    assert str(error).startswith(f"{public}: expected CPU tensors, since ")
    assert "OPWRIGHT_CUDA=ON pip install --force-reinstall --no-deps opwright-rms-norm" in str(error)


BY_HAND = """
import json, sys, warnings
import torch
warnings.simplefilter("ignore")
import opwright.rms_norm
from opwright.rms_norm._runtime import find_library
torch.ops.load_library(find_library("opwright.rms_norm", "_CUDA"))
key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
found = {}
for name, arguments in eval(sys.stdin.read(), {"torch": torch, "tensor": torch.tensor}).items():
    for form in (name, name + "_raw"):
        if hasattr(torch.ops.opwright, form):
            try:
                getattr(torch.ops.opwright, form).default.redispatch(key, *arguments)
            except Exception as error:
                found[form] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def test_the_cuda_library_loads_under_any_torch_and_checks_the_device():
    if find_library("opwright.rms_norm", "_CUDA") is None:
        # Nothing is there to be loaded, and the package says so when it is asked for it.
        assert torch._C._dispatch_has_kernel_for_dispatch_key("opwright::rms_norm_forward", "CUDA")
        assert type(by_cuda("rms_norm_forward")) is NotImplementedError
        return
    done = subprocess.run(
        [sys.executable, "-c", BY_HAND], input=repr(ARGUMENTS), capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found.keys() == {*ARGUMENTS, *RAW}
    assert set(found.values()) <= {
        f"ValueError: {name.removesuffix('_forward').removesuffix('_inference')}: expected "
        f"input on a CUDA device, but got cpu"
        for name in ARGUMENTS
    }
