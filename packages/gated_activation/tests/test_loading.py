"""The library fits one minor version of torch: what the wheel says, and what loading under another says."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys

import torch

MINOR = ".".join(torch.__version__.split(".")[:2])
OTHER = f"2.{int(MINOR.split('.')[1]) + 1}.0"

SCRIPT = f"""
import torch
torch.__version__ = "{OTHER}"
from opwright.gated_activation import reference
print("reference", reference.gated_activation(torch.ones(2), torch.ones(2)).shape)
try:
    from opwright.gated_activation import gated_activation
except ImportError as error:
    print("refused", error)
"""


def test_the_metadata_require_the_torch_that_the_library_was_built_with() -> None:
    required = importlib.metadata.requires("opwright-gated-activation") or []
    assert [text for text in required if re.match(r"torch\b", text)] == [f"torch=={MINOR}.*"]


def test_another_torch_is_refused_with_the_command_that_helps() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    reference, refused = done.stdout.splitlines()
    assert reference == "reference torch.Size([2])"
    assert f"expected torch {MINOR}, which its compiled library was built for, but got {OTHER}" in refused
    assert refused.endswith(
        "pip install --force-reinstall --no-deps --no-cache-dir --no-binary opwright-gated-activation "
        "opwright-gated-activation"
    )


def test_the_version_that_the_build_wrote_down() -> None:
    built_for = importlib.import_module("opwright.gated_activation._built_for")
    assert built_for.TORCH == MINOR
