"""Imports a module that costs a second."""

from torch.distributed import tensor

DTENSOR = tensor.DTensor
