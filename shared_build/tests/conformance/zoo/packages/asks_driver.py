"""Decides by whether there is a GPU."""

import torch

AVAILABLE = torch.cuda.is_available()
