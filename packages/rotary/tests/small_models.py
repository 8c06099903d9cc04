"""Random small models of transformers that rotate their queries and keys.

Each builder returns a model in float32, in eval mode, with weights that bfloat16 can hold exactly, so that
the bfloat16 copy of a model computes the same function. Rotated dimensions are a part of the head in GPT-J,
GPT-NeoX and Qwen3-Next. Experts are all routed to: a flipped choice of experts would hide every other
difference.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from types import ModuleType

import torch
import transformers
from torch import Tensor, nn

from opwright.rotary import drop_in

VOCABULARY = 89
SEQUENCE = 31
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 80, "pad_token_id": 0}


def token_ids(generator: torch.Generator | None = None) -> Tensor:
    """Random tokens ``(3, SEQUENCE)``, none of them a special one."""
    generator = generator or torch.Generator().manual_seed(11)
    return torch.randint(5, VOCABULARY, (3, SEQUENCE), generator=generator)


def _build(config: transformers.PretrainedConfig) -> nn.Module:
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):  # else the delta rule's states forget all but the last token
                parameter.uniform_(-4, -2, generator=generator)
            # Larger projections than models start with: scores must depend on where tokens are.
            if "q_proj" in name or "k_proj" in name or "query_key_value" in name:
                parameter.mul_(8)
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


def llama() -> nn.Module:
    return _build(transformers.LlamaConfig(num_hidden_layers=2, **COMMON, **HEADS))


def gptj() -> nn.Module:
    return _build(
        transformers.GPTJConfig(
            vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=64
        )
    )


def gpt_neox() -> nn.Module:
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = {**COMMON, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 64}
    return _build(transformers.GPTNeoXConfig(rope_parameters=parameters, **config))


def qwen3_next() -> nn.Module:
    return _build(
        transformers.Qwen3NextConfig(
            num_hidden_layers=4,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=24,
            num_experts=3,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            **COMMON,
            **HEADS,
        )
    )


@dataclasses.dataclass(frozen=True)
class Model:
    """A builder, the module file whose function is replaced, what replaces it, and the calls of a pass."""

    build: Callable[[], nn.Module]
    family: str
    replacement: Callable[..., object]
    calls: int

    @property
    def file(self) -> ModuleType:
        """The module that holds ``apply_rotary_pos_emb``."""
        return importlib.import_module(f"transformers.models.{self.family}.modeling_{self.family}")


MODELS = {
    "llama": Model(llama, "llama", drop_in.transformers.apply_rotary_pos_emb, 2),
    "gptj": Model(gptj, "gptj", drop_in.transformers_gptj.apply_rotary_pos_emb, 4),
    "gpt_neox": Model(gpt_neox, "gpt_neox", drop_in.transformers.apply_rotary_pos_emb, 2),
    "qwen3_next": Model(qwen3_next, "qwen3_next", drop_in.transformers.apply_rotary_pos_emb, 1),
}
