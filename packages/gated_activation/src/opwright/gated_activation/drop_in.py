"""The names under which other libraries offer gated activations, with their arguments and conventions.

Functions whose conventions agree stand at the top; a class is a namespace for a library whose functions of
the same name take other arguments. What an option asks for that is not done here raises ``ValueError``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import ops
from .modules import GatedMLP

__all__ = [
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "liger_geglu",
    "liger_swiglu",
    "silu_and_mul",
    "swigluoai_and_mul",
    "transformers",
    "vllm",
]


def _refuse(name: str, **options: Any) -> None:
    """Raise for the first option that is given: these operators do not have it."""
    for option, value in options.items():
        if value is not None:
            raise ValueError(f"{name}: expected no {option}, which is not offered here, but got {value}")


def silu_and_mul(input: Tensor, out: Tensor | None = None, enable_pdl: bool | None = None) -> Tensor:
    """``flashinfer.silu_and_mul``: SiLU of the first half times the second half.

    Args:
        input: ``(..., 2 * d)``.
        out: ``(..., d)``; where given, it is written and returned.
        enable_pdl: must not be True: there is no such launch here.

    Returns:
        ``(..., d)``.
    """
    _refuse("silu_and_mul", enable_pdl=enable_pdl or None)
    return ops.gated_activation_packed(input, "silu", out=out)


def gelu_and_mul(input: Tensor, out: Tensor | None = None, enable_pdl: bool | None = None) -> Tensor:
    """``flashinfer.gelu_and_mul``: the exact GELU of the first half times the second half.

    Args:
        input: ``(..., 2 * d)``.
        out: ``(..., d)``; where given, it is written and returned.
        enable_pdl: must not be True: there is no such launch here.

    Returns:
        ``(..., d)``.
    """
    _refuse("gelu_and_mul", enable_pdl=enable_pdl or None)
    return ops.gated_activation_packed(input, "gelu", out=out)


def gelu_tanh_and_mul(input: Tensor, out: Tensor | None = None, enable_pdl: bool | None = None) -> Tensor:
    """``flashinfer.gelu_tanh_and_mul``: GELU by tanh of the first half times the second half.

    Args:
        input: ``(..., 2 * d)``.
        out: ``(..., d)``; where given, it is written and returned.
        enable_pdl: must not be True: there is no such launch here.

    Returns:
        ``(..., d)``.
    """
    _refuse("gelu_tanh_and_mul", enable_pdl=enable_pdl or None)
    return ops.gated_activation_packed(input, "gelu_tanh", out=out)


def swigluoai_and_mul(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """gpt-oss's form as vLLM names it: ``(up + 1) * g * sigmoid(alpha * g)``, both branches clamped.

    Args:
        x: ``(..., 2 * d)``, gate and up interleaved.
        alpha: factor inside the sigmoid.
        limit: of the gate from above, of the up branch on both sides.

    Returns:
        ``(..., d)``.
    """
    return ops.gated_activation_packed(
        x, "silu", layout="interleaved", alpha=alpha, limit=limit, up_offset=1.0
    )


def liger_swiglu(a: Tensor, b: Tensor) -> Tensor:
    """``liger_kernel.transformers.functional.liger_swiglu``: ``silu(a) * b``.

    Args:
        a: the gate.
        b: the up branch; neither is ever overwritten, as Liger's backward does.

    Returns:
        A tensor of the same shape.
    """
    return ops.gated_activation(a, b, "silu")


def liger_geglu(a: Tensor, b: Tensor) -> Tensor:
    """``liger_kernel.transformers.functional.liger_geglu``: GELU **by tanh** of ``a``, times ``b``.

    Args:
        a: the gate.
        b: the up branch; neither is ever overwritten, as Liger's backward does.

    Returns:
        A tensor of the same shape.
    """
    return ops.gated_activation(a, b, "gelu_tanh")


class vllm:
    """``torch.ops._C`` of vLLM: the result is written into the first argument."""

    @staticmethod
    def silu_and_mul(out: Tensor, input: Tensor) -> None:
        """``silu(input[..., :d]) * input[..., d:]`` into ``out``."""
        ops.gated_activation_packed(input, "silu", out=out)

    @staticmethod
    def mul_and_silu(out: Tensor, input: Tensor) -> None:
        """``input[..., :d] * silu(input[..., d:])`` into ``out``: the gate comes second."""
        ops.gated_activation_packed(input, "silu", gate_first=False, out=out)

    @staticmethod
    def gelu_and_mul(out: Tensor, input: Tensor) -> None:
        """The exact GELU of the first half times the second half into ``out``."""
        ops.gated_activation_packed(input, "gelu", out=out)

    @staticmethod
    def gelu_tanh_and_mul(out: Tensor, input: Tensor) -> None:
        """GELU by tanh of the first half times the second half into ``out``."""
        ops.gated_activation_packed(input, "gelu_tanh", out=out)

    @staticmethod
    def swigluoai_and_mul(out: Tensor, input: Tensor, alpha: float = 1.702, limit: float = 7.0) -> None:
        """gpt-oss's form of an interleaved input into ``out``."""
        ops.gated_activation_packed(
            input, "silu", layout="interleaved", alpha=alpha, limit=limit, up_offset=1.0, out=out
        )


#: hidden_act of a configuration -> activation here
_OF_CONFIGURATION = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "sigmoid": "sigmoid",
    "linear": "identity",
}


class transformers:
    """Classes with the constructors and parameters of ``transformers``, and gpt-oss's gate function."""

    class LlamaMLP(GatedMLP):
        """The MLP of Llama and all that compute alike: Mistral, Qwen 2 and 3, Gemma 1 to 3.

        Not Phi-3's, which has one projection for both branches: that is :class:`PackedGatedMLP`.

        Args:
            config: a configuration with ``hidden_size``, ``intermediate_size`` and ``hidden_act`` or
                ``hidden_activation`` (Gemma 2 and 3); ``mlp_bias`` where the model has it.
        """

        def __init__(self, config: Any) -> None:
            name = getattr(config, "hidden_activation", None) or config.hidden_act
            if name not in _OF_CONFIGURATION:
                raise ValueError(
                    f"LlamaMLP: expected hidden_act to be one of {', '.join(_OF_CONFIGURATION)}, "
                    f"but got {name}"
                )
            super().__init__(
                config.hidden_size,
                config.intermediate_size,
                _OF_CONFIGURATION[name],
                bias=bool(getattr(config, "mlp_bias", False)),
            )
            self.config = config

    class GemmaMLP(LlamaMLP):
        """The MLP of Gemma, which names its activation ``hidden_act`` or ``hidden_activation``."""

    @staticmethod
    def gpt_oss_gate(experts: Any, gate_up: Tensor) -> Tensor:
        """``GptOssExperts._apply_gate``: takes its place as a method, with the module's alpha and limit."""
        return swigluoai_and_mul(gate_up, experts.alpha, experts.limit)
