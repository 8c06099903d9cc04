"""Sets flush-to-zero for the whole process, as a library built with -ffast-math does."""

import torch

torch.set_flush_denormal(True)
