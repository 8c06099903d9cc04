"""Random small language models of transformers whose gated activations the operator replaces.

Each builder returns a model in float32, in eval mode, with weights that bfloat16 can hold exactly, so that
the bfloat16 copy of a model computes the same function. Weights of the projections before the activation
are large, so that the activation works on its curved part and gpt-oss's clamps saturate; its experts are
all routed to, since a flipped choice of experts would hide every other difference. gpt-oss's experts are
filled by the model's own initialisation, so the models are built through the auto class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn

VOCABULARY = 89
SEQUENCE = 31
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 80, "pad_token_id": 0}


def token_ids() -> Tensor:
    """Random tokens ``(3, SEQUENCE)``, none of them a special one."""
    return torch.randint(5, VOCABULARY, (3, SEQUENCE), generator=torch.Generator().manual_seed(11))


def _build(config: transformers.PretrainedConfig) -> nn.Module:
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gate_proj" in name or "up_proj" in name:
                parameter.mul_(20)
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


def llama() -> nn.Module:
    return _build(transformers.LlamaConfig(num_hidden_layers=2, **COMMON, **HEADS))


def gemma() -> nn.Module:
    return _build(transformers.GemmaConfig(num_hidden_layers=2, **COMMON, **HEADS))


def gemma3_text() -> nn.Module:
    return _build(
        transformers.Gemma3TextConfig(
            num_hidden_layers=2,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
            query_pre_attn_scalar=16,
            **COMMON,
            **HEADS,
        )
    )


def gpt_oss() -> nn.Module:
    return _build(
        transformers.GptOssConfig(
            num_hidden_layers=2,
            num_local_experts=3,
            num_experts_per_tok=3,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
            max_position_embeddings=128,
            rope_parameters={"rope_type": "default", "rope_theta": 150000.0},
            **COMMON,
            **HEADS,
        )
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": llama,
    "gemma": gemma,
    "gemma3_text": gemma3_text,
    "gpt_oss": gpt_oss,
}
