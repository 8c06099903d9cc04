"""Uses the global random generator."""

import torch

TABLE = torch.randn(8)
