"""The feed-forward blocks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opwright.gated_activation import GatedMLP, PackedGatedMLP


def test_the_block_is_its_formula() -> None:
    module = GatedMLP(6, 10, "gelu_tanh", bias=True)
    x = torch.randn(4, 6)
    expected = module.down_proj(F.gelu(module.gate_proj(x), approximate="tanh") * module.up_proj(x))
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_the_packed_block_is_the_other_with_its_weights_put_together(layout: str) -> None:
    apart, packed = GatedMLP(6, 10), PackedGatedMLP(6, 10, layout=layout)
    gate, up = apart.gate_proj.weight, apart.up_proj.weight
    both = torch.cat([gate, up]) if layout == "halves" else torch.stack([gate, up], 1).flatten(0, 1)
    packed.load_state_dict({"gate_up_proj.weight": both, "down_proj.weight": apart.down_proj.weight})
    x = torch.randn(4, 6)
    torch.testing.assert_close(packed(x), apart(x))


def test_options_are_shown() -> None:
    assert "activation=silu, alpha=1.702, limit=7.0" in repr(GatedMLP(2, 3, alpha=1.702, limit=7.0))


def test_unknown_activations_raise_at_the_first_call() -> None:
    with pytest.raises(ValueError, match="expected activation to be one of"):
        GatedMLP(2, 3, "swish")(torch.ones(1, 2))
