"""The norms of transformers 5.24, and what serves each of them: the tables of docs/models.md as data."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Rule:
    """Which operator serves a class of norm, and with which options.

    Attributes:
        eps: Name of the attribute that holds it.
        options: What the operator is called with.
        gated: Whether it is ``rms_norm_gated``.
        most_steps: In bfloat16, how far an element may be off that differs. Two computations may part by one
            step at one rounding, because they add up the squares in another order; every product that is
            rounded after that can make two steps of one, as its place between two powers of two changes.
    """

    eps: str = "variance_epsilon"
    options: dict[str, Any] = field(default_factory=dict)
    gated: bool = False
    most_steps: int = 1

    def __call__(self, ops: Any, module: nn.Module, x: Tensor, *gate: Tensor) -> Tensor:
        eps, weight = getattr(module, self.eps), getattr(module, "weight", None)
        if not self.gated:
            return ops.rms_norm(x, weight, eps, **self.options)
        size = getattr(module, "group_size", None)
        if hasattr(module, "n_groups"):
            size = x.shape[-1] // module.n_groups
        return ops.rms_norm_gated(x, *gate, weight, eps, group_size=size, **self.options)


LLAMA = Rule(options={"rounding": "llama"}, most_steps=2)
LLAMA_EPS = Rule("eps", {"rounding": "llama"}, most_steps=2)
ONCE = Rule(options={"rounding": "once"})
ONCE_EPS = Rule("eps", {"rounding": "once"})
GEMMA = Rule("eps", {"rounding": "once", "weight_offset": 1.0})
QWEN_GATED = Rule(options={"rounding": "llama", "activation": "silu"}, gated=True, most_steps=4)
KIMI_GATED = Rule(options={"rounding": "once", "activation": "sigmoid"}, gated=True)
MAMBA_GATED = Rule(options={"rounding": "llama", "norm_before_gate": False}, gated=True, most_steps=2)
FALCON_FIRST = Rule(options={"rounding": "once", "norm_before_gate": False}, gated=True)
FALCON_LAST = Rule(options={"rounding": "once", "norm_before_gate": True}, gated=True)

GROUPS = 4

# class -> (module of transformers.models, further constructor arguments, rule)
CLASSES: dict[str, tuple[str, dict[str, Any], Rule]] = {
    "LlamaRMSNorm": ("llama", {}, LLAMA),
    "Qwen3RMSNorm": ("qwen3", {}, LLAMA),
    "MistralRMSNorm": ("mistral", {}, LLAMA),
    "DeepseekV3RMSNorm": ("deepseek_v3", {}, LLAMA),
    "Mamba2RMSNorm": ("mamba2", {}, LLAMA),
    "KimiLinearRMSNorm": ("kimi_linear", {}, LLAMA),
    "T5LayerNorm": ("t5", {}, LLAMA),
    "Llama4TextRMSNorm": ("llama4", {}, LLAMA_EPS),
    "GptOssRMSNorm": ("gpt_oss", {}, ONCE),
    "Olmo2RMSNorm": ("olmo2", {}, ONCE),
    "OlmoHybridRMSNorm": ("olmo_hybrid", {}, ONCE),
    "NemotronHRMSNorm": ("nemotron_h", {}, ONCE),
    "HeliumRMSNorm": ("helium", {}, ONCE),
    "Gemma3nRMSNorm": ("gemma3n", {}, ONCE_EPS),
    "GemmaRMSNorm": ("gemma", {}, GEMMA),
    "Gemma3RMSNorm": ("gemma3", {}, GEMMA),
    "Qwen3NextRMSNorm": ("qwen3_next", {}, GEMMA),
    "Qwen3_5RMSNorm": ("qwen3_5", {}, GEMMA),
    "Qwen3NextRMSNormGated": ("qwen3_next", {}, QWEN_GATED),
    "Qwen3_5RMSNormGated": ("qwen3_5", {}, QWEN_GATED),
    "OlmoHybridRMSNormGated": ("olmo_hybrid", {}, QWEN_GATED),
    "KimiLinearRMSNormGated": ("kimi_linear", {}, KIMI_GATED),
    "MambaRMSNormGated": ("mamba2", {"group_size": True}, MAMBA_GATED),
    "BambaRMSNormGated": ("bamba", {"group_size": True}, MAMBA_GATED),
    "Zamba2RMSNormGated": ("zamba2", {"group_size": True}, MAMBA_GATED),
    "GraniteMoeHybridRMSNormGated": ("granitemoehybrid", {"group_size": True}, MAMBA_GATED),
    "NemotronHRMSNormGated": ("nemotron_h", {"group_size": True}, MAMBA_GATED),
    "FalconH1RMSNormGated": ("falcon_h1", {"n_groups": GROUPS, "norm_before_gate": False}, FALCON_FIRST),
}
RULES = {name: rule for name, (_, _, rule) in CLASSES.items()}


def make_norm(name: str, width: int) -> tuple[nn.Module, list[Tensor]]:
    """A norm of transformers in bfloat16 with a random weight, and half a million elements of input."""
    family, extra, rule = CLASSES[name]
    extra = {**extra, **({"group_size": width // GROUPS} if "group_size" in extra else {})}
    cls = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)
    module = cls(width, eps=1e-6, **extra)
    rows = 2**19 // width
    generator = torch.Generator().manual_seed(width)
    with torch.no_grad():
        module.weight += 0.5 * torch.randn(width, generator=generator)
    scale = torch.exp(torch.randn(rows, 1, generator=generator))
    args = [(scale * torch.randn(rows, width, generator=generator)).to(torch.bfloat16)]
    if rule.gated:
        args.append(torch.randn(rows, width, generator=generator).to(torch.bfloat16))
    return module.to(torch.bfloat16), args


def steps(actual: Tensor, expected: Tensor) -> Tensor:
    """How many bfloat16 values lie between two bfloat16 tensors, element by element."""

    def order(value: Tensor) -> Tensor:
        bits = value.view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (order(actual) - order(expected)).abs()
