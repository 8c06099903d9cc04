"""A small attention layer, with its rotation written out or by the operator: the graph that is profiled.

Both variants have the same parameters and compute the same function.
"""

from __future__ import annotations

import importlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, SEQUENCE, WIDTH, HEADS, FEW = 2, 256, 512, 8, 2
COLUMNS = WIDTH // HEADS
BASE = 10000.0


def _turned(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Block(nn.Module):
    """Rotated attention with fewer heads of keys: `(batch, seq_len, width)` to the same."""

    def __init__(self, with_operator: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * FEW) * COLUMNS, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        angles = torch.arange(SEQUENCE)[:, None] * BASE ** (-torch.arange(0, COLUMNS, 2) / COLUMNS)
        self.cos = nn.Buffer(torch.cat((angles, angles), -1).cos(), persistent=False)
        self.sin = nn.Buffer(torch.cat((angles, angles), -1).sin(), persistent=False)
        self.operators = importlib.import_module("opwright.rotary") if with_operator else None

    def _rotated(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.operators is not None:
            return self.operators.apply_rotary(q, k, cos=self.cos, sin=self.sin, seq_dim=2)
        return q * self.cos + _turned(q) * self.sin, k * self.cos + _turned(k) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        """One layer: projection, rotation, causal attention, projection."""
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, HEADS + 2 * FEW, COLUMNS).transpose(1, 2)
        q, k, v = heads.split((HEADS, FEW, FEW), 1)
        q, k = self._rotated(q, k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def make(with_operator: bool) -> nn.Module:
    """The layer in fp32; both variants get the same parameters."""
    torch.manual_seed(0)
    return Block(with_operator)


def inputs() -> tuple[Tensor, ...]:
    """What the layer is called with."""
    return (torch.randn(BATCH, SEQUENCE, WIDTH, generator=torch.Generator().manual_seed(1)),)
