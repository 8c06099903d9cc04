"""Random small language models of transformers whose norms the operators replace.

Each builder returns a model in float32, in eval mode, with weights that bfloat16 can hold exactly, so that
the bfloat16 copy of a model computes the same function. Traps:

- Norm weights start at one (Gemma and Qwen3-Next: at zero), which hides every fault in the weight's product
  and offset; they are drawn at random here.
- Qwen3-Next needs layers of both kinds, or its gated norm never runs: the fourth layer is the attention.
- Its states start out forgetting all but the last token, through decays near exp(-10): then the gradients of
  the decays are differences of rounding errors. Here they remember.
- Experts are all routed to: a flipped choice of experts would hide every other difference.
- gpt-oss keeps its experts' weights as parameters of one module, left uninitialised by the class itself and
  filled by the model's own initialisation, so it must be built through the auto class.
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


def token_ids(generator: torch.Generator | None = None) -> Tensor:
    """Random tokens ``(3, SEQUENCE)``, none of them a special one."""
    generator = generator or torch.Generator().manual_seed(11)
    return torch.randint(5, VOCABULARY, (3, SEQUENCE), generator=generator)


def norms(model: nn.Module) -> dict[str, nn.Module]:
    """The norm modules of a model by name."""
    return {name: module for name, module in model.named_modules() if "Norm" in type(module).__name__}


def _build(config: transformers.PretrainedConfig) -> nn.Module:
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for module in norms(model).values():
            noise = torch.randn(module.weight.shape, generator=generator)
            module.weight += 0.3 * noise
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(-4, -2, generator=generator)
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


def llama() -> nn.Module:
    return _build(transformers.LlamaConfig(num_hidden_layers=2, **COMMON, **HEADS))


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


def qwen3() -> nn.Module:
    return _build(transformers.Qwen3Config(num_hidden_layers=2, **COMMON, **HEADS))


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


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": llama,
    "gemma3_text": gemma3_text,
    "qwen3": qwen3,
    "gpt_oss": gpt_oss,
    "qwen3_next": qwen3_next,
}
