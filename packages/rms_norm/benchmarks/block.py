"""A small pre-norm transformer block, with torch's norm or with the operator: the graph that is profiled.

Both variants have the same parameters and compute the same function; the operator also takes the residual
addition in front of the second norm.
"""

from __future__ import annotations

import importlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, SEQUENCE, WIDTH, HEADS, HIDDEN = 2, 256, 512, 8, 1408
EPS = 1e-6


class Block(nn.Module):
    """Attention and a SwiGLU feed-forward part, each behind a norm: `(batch, seq_len, width)` to the same."""

    def __init__(self, with_operator: bool) -> None:
        super().__init__()
        self.with_operator = with_operator
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)) for _ in range(2)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.operators = importlib.import_module("opwright.rms_norm") if with_operator else None

    def _norm(self, x: Tensor) -> Tensor:
        if self.operators is not None:
            return self.operators.rms_norm(x, self.norms[0], EPS)
        return F.rms_norm(x, (WIDTH,), self.norms[0], EPS)

    def _add_norm(self, update: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        if self.operators is not None:
            return self.operators.add_rms_norm(update, residual, self.norms[1], EPS)
        total = update + residual
        return F.rms_norm(total, (WIDTH,), self.norms[1], EPS), total

    def _attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        """One block: `x + attention(norm(x))`, then the same with the feed-forward part."""
        normed, residual = self._add_norm(self._attention(self._norm(x)), x)
        gate, up = self.up(normed).chunk(2, -1)
        return self.down(F.silu(gate) * up) + residual


def make(with_operator: bool) -> nn.Module:
    """The block in fp32; both variants get the same parameters."""
    torch.manual_seed(0)
    return Block(with_operator)


def inputs() -> tuple[Tensor, ...]:
    """What the block is called with."""
    return (torch.randn(BATCH, SEQUENCE, WIDTH, generator=torch.Generator().manual_seed(1)),)
