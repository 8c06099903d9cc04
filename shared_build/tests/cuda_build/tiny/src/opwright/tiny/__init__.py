"""Twice a float32 tensor: the smallest package with a CUDA part, for the tests of the build."""

import torch

from ._runtime import load_library

load_library(__package__, "tiny_twice")
twice = torch.ops.opwright.tiny_twice.default
