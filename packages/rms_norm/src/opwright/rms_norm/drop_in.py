"""The names and arguments that users know from other libraries, one namespace a library.

``from opwright.rms_norm.drop_in import flashinfer`` and then ``flashinfer.rmsnorm(...)``: names that several
libraries use for different things do not hide one another. Each follows the convention of its library:
argument order, defaults, what is written in place, dtype of the results, and where it rounds. An option that
these operators do not have raises ValueError; none is ignored silently. Tensors may be of any layout and any
dtype that the operators accept, also where the library itself wants contiguous tensors on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import ops
from ._drop_in_common import into, norm_of_sum, refuse, same_dtype
from ._transformers_norms import transformers

__all__ = ["apex", "flashinfer", "liger", "mamba_ssm", "quack", "torch_nn", "transformers", "vllm"]


class torch_nn:
    """``torch.nn`` and ``torch.nn.functional``: statistics over all of ``normalized_shape``, one rounding."""

    @staticmethod
    def rms_norm(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        """``torch.nn.functional.rms_norm``; eps None is the machine epsilon of the arithmetic's dtype."""
        shape = tuple(normalized_shape)
        tail = tuple(input.shape[max(input.dim() - len(shape), 0) :])
        if not shape or tail != shape:
            raise ValueError(
                f"torch_nn.rms_norm: expected input of shape (*, {str(shape)[1:]}, "
                f"but got {tuple(input.shape)}"
            )
        if weight is not None and tuple(weight.shape) != shape:
            raise ValueError(
                f"torch_nn.rms_norm: expected weight of shape {shape}, but got {tuple(weight.shape)}"
            )
        if eps is None:
            eps = torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
        if len(shape) == 1:
            return ops.rms_norm(input, weight, eps)
        flat = None if weight is None else weight.flatten()
        return ops.rms_norm(input.flatten(-len(shape)), flat, eps).view(input.shape)

    class RMSNorm(nn.RMSNorm):
        """``torch.nn.RMSNorm``, with its constructor and its state dict."""

        def forward(self, x: Tensor) -> Tensor:
            """Normalise the last dimensions of ``x``."""
            return torch_nn.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class flashinfer:
    """``flashinfer.norm``: one rounding; the fused add is in place and normalises the unrounded sum."""

    @staticmethod
    def rmsnorm(
        input: Tensor,
        weight: Tensor,
        eps: float = 1e-6,
        out: Tensor | None = None,
        enable_pdl: bool | None = None,
    ) -> Tensor:
        """``flashinfer.rmsnorm``; ``out``, where given, is written and returned."""
        refuse("flashinfer.rmsnorm", enable_pdl=enable_pdl or None)
        return into("flashinfer.rmsnorm", out, ops.rms_norm(input, weight, eps))

    @staticmethod
    def gemma_rmsnorm(
        input: Tensor,
        weight: Tensor,
        eps: float = 1e-6,
        out: Tensor | None = None,
        enable_pdl: bool | None = None,
    ) -> Tensor:
        """``flashinfer.gemma_rmsnorm``: as ``rmsnorm`` with a scale of ``weight + 1``."""
        refuse("flashinfer.gemma_rmsnorm", enable_pdl=enable_pdl or None)
        return into("flashinfer.gemma_rmsnorm", out, ops.rms_norm(input, weight, eps, weight_offset=1.0))

    @staticmethod
    def fused_add_rmsnorm(
        input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, enable_pdl: bool | None = None
    ) -> None:
        """``flashinfer.fused_add_rmsnorm``: ``residual += input``, then ``input = norm(residual)``."""
        refuse("flashinfer.fused_add_rmsnorm", enable_pdl=enable_pdl or None)
        ops.add_rms_norm_(input, residual, weight, eps, statistics="exact")

    @staticmethod
    def gemma_fused_add_rmsnorm(
        input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, enable_pdl: bool | None = None
    ) -> None:
        """``flashinfer.gemma_fused_add_rmsnorm``: as ``fused_add_rmsnorm`` with a scale of ``weight + 1``."""
        refuse("flashinfer.gemma_fused_add_rmsnorm", enable_pdl=enable_pdl or None)
        ops.add_rms_norm_(input, residual, weight, eps, weight_offset=1.0, statistics="exact")


class vllm:
    """``vllm._custom_ops``: writes its arguments; one rounding on a CPU, Llama's two elsewhere."""

    @staticmethod
    def rms_norm(out: Tensor, input: Tensor, weight: Tensor, epsilon: float) -> None:
        """``vllm._custom_ops.rms_norm``: writes ``out``."""
        same_dtype("vllm.rms_norm", input, out=out, weight=weight)
        into("vllm.rms_norm", out, ops.rms_norm(input, weight, epsilon, rounding=vllm._rounding(input)))

    @staticmethod
    def fused_add_rms_norm(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
        """``vllm._custom_ops.fused_add_rms_norm``: in place on both.

        The statistics are of the rounded sum, as in vLLM's GPU kernels. vLLM's CPU kernel takes those of the
        unrounded sum and then scales the rounded one: the row's scale differs by the rounding of the sum,
        averaged over the row.
        """
        same_dtype("vllm.fused_add_rms_norm", input, residual=residual, weight=weight)
        ops.add_rms_norm_(input, residual, weight, epsilon, rounding=vllm._rounding(input))

    @staticmethod
    def _rounding(input: Tensor) -> str:
        return "once" if input.device.type == "cpu" else "llama"


class liger:
    """``liger_kernel.transformers``: casting modes by name, results in the dtype of ``X``.

    ``in_place`` allows Liger to overwrite the incoming gradient in the backward. It is accepted with either
    value: gradients are never overwritten here, and the results are the same.
    """

    @staticmethod
    def liger_rms_norm(
        X: Tensor,
        W: Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str = "llama",
        in_place: bool = True,
    ) -> Tensor:
        """``liger_kernel.transformers.functional.liger_rms_norm``."""
        rounding = liger._rounding("liger.liger_rms_norm", casting_mode, X, W)
        return ops.rms_norm(X, W, eps, weight_offset=offset, rounding=rounding).to(X.dtype)

    @staticmethod
    def liger_fused_add_rms_norm(
        X: Tensor,
        R: Tensor,
        W: Tensor,
        eps: float,
        offset: float = 0.0,
        casting_mode: str = "llama",
        in_place: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """``liger_kernel.transformers.functional.liger_fused_add_rms_norm``: ``(Y, S)``, ``S = X + R``."""
        same_dtype("liger.liger_fused_add_rms_norm", X, R=R)
        rounding = liger._rounding("liger.liger_fused_add_rms_norm", casting_mode, X, W)
        y, s = ops.add_rms_norm(X, R, W, eps, weight_offset=offset, rounding=rounding)
        return y.to(X.dtype), s

    @staticmethod
    def _rounding(name: str, casting_mode: str, X: Tensor, W: Tensor | None) -> str:
        if casting_mode in ("llama", "gemma"):
            return {"llama": "llama", "gemma": "once"}[casting_mode]
        if casting_mode != "none":
            raise ValueError(
                f"{name}: expected casting_mode to be one of llama, gemma, none, but got {casting_mode}"
            )
        if X.dtype not in (torch.float32, torch.float64) or (W is not None and W.dtype != X.dtype):
            shown = f"X of dtype {X.dtype}" if W is None else f"X of dtype {X.dtype} and W of dtype {W.dtype}"
            raise ValueError(
                f"{name}: expected float32 or float64 tensors with casting_mode none, which computes in "
                f"their dtype, but got {shown}"
            )
        return "once"


class quack:
    """``quack``: float32 arithmetic, one rounding to the dtypes asked for, the unrounded sum normalised."""

    @staticmethod
    def rmsnorm(
        x: Tensor,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        residual_dtype: torch.dtype | None = None,
        eps: float = 1e-6,
        prenorm: bool = False,
        weight_offset: float = 0.0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """``quack.rmsnorm``: the output, with ``prenorm`` also the sum (``x`` itself without a residual)."""
        refuse("quack.rmsnorm", bias=bias)
        if residual_dtype is None or residual is not None:
            residual_dtype = x.dtype if residual is None else residual.dtype
        out, total = norm_of_sum(x, residual, weight, eps, weight_offset, out_dtype or x.dtype)
        return (out, total.to(residual_dtype)) if prenorm else out

    class QuackRMSNorm(nn.RMSNorm):
        """``quack.rmsnorm.QuackRMSNorm``: ``torch.nn.RMSNorm`` over one dimension, eps 1e-6."""

        def __init__(
            self,
            dim: int,
            eps: float = 1e-6,
            elementwise_affine: bool = True,
            device: Any = None,
            dtype: torch.dtype | None = None,
        ) -> None:
            super().__init__(dim, eps, elementwise_affine, device=device, dtype=dtype)

        def forward(self, x: Tensor) -> Tensor:
            """Normalise the last dimension of ``x``."""
            return torch_nn.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class apex:
    """``apex.normalization``, as its CUDA kernels round: once, to ``input``'s dtype (mixed: to the weight's).

    Under autocast nothing is cast (Apex casts to autocast's dtype). ``memory_efficient=True`` is refused.
    """

    @staticmethod
    def fused_rms_norm_affine(
        input: Tensor,
        weight: Tensor,
        normalized_shape: Sequence[int],
        eps: float = 1e-6,
        memory_efficient: bool = False,
    ) -> Tensor:
        """``apex.normalization.fused_layer_norm.fused_rms_norm_affine``."""
        refuse("apex.fused_rms_norm_affine", memory_efficient=memory_efficient or None)
        return torch_nn.rms_norm(input, normalized_shape, weight, eps)

    @staticmethod
    def fused_rms_norm(
        input: Tensor, normalized_shape: Sequence[int], eps: float = 1e-6, memory_efficient: bool = False
    ) -> Tensor:
        """``apex.normalization.fused_layer_norm.fused_rms_norm``."""
        refuse("apex.fused_rms_norm", memory_efficient=memory_efficient or None)
        return torch_nn.rms_norm(input, normalized_shape, None, eps)

    @staticmethod
    def mixed_dtype_fused_rms_norm_affine(
        input: Tensor,
        weight: Tensor,
        normalized_shape: Sequence[int],
        eps: float = 1e-6,
        memory_efficient: bool = False,
    ) -> Tensor:
        """``apex.normalization.fused_layer_norm.mixed_dtype_fused_rms_norm_affine``: the weight's dtype."""
        refuse("apex.mixed_dtype_fused_rms_norm_affine", memory_efficient=memory_efficient or None)
        wide = input.to(torch.promote_types(input.dtype, weight.dtype))
        return torch_nn.rms_norm(wide, normalized_shape, weight, eps).to(weight.dtype)

    class FusedRMSNorm(nn.RMSNorm):
        """``apex.normalization.FusedRMSNorm``."""

        def __init__(
            self,
            normalized_shape: int | Sequence[int],
            eps: float = 1e-5,
            elementwise_affine: bool = True,
            memory_efficient: bool = False,
        ) -> None:
            refuse(f"apex.{type(self).__name__}", memory_efficient=memory_efficient or None)
            shape = normalized_shape if isinstance(normalized_shape, int) else list(normalized_shape)
            super().__init__(shape, eps, elementwise_affine)

        def forward(self, input: Tensor) -> Tensor:
            """Normalise the last dimensions of ``input``."""
            return torch_nn.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    class MixedFusedRMSNorm(FusedRMSNorm):
        """``apex.normalization.MixedFusedRMSNorm``: the output has the weight's dtype."""

        def __init__(
            self, normalized_shape: int | Sequence[int], eps: float = 1e-5, *, memory_efficient: bool = False
        ) -> None:
            super().__init__(normalized_shape, eps, True, memory_efficient)

        def forward(self, input: Tensor) -> Tensor:
            """Normalise the last dimensions of ``input``."""
            wide = input.to(torch.promote_types(input.dtype, self.weight.dtype))
            return super().forward(wide).to(self.weight.dtype)


class mamba_ssm:
    """``mamba_ssm.ops.triton``: float32 arithmetic and one rounding; the unrounded sum is normalised."""

    @staticmethod
    def rmsnorm_fn(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        z: Tensor | None = None,
        eps: float = 1e-6,
        group_size: int | None = None,
        norm_before_gate: bool = True,
    ) -> Tensor:
        """``mamba_ssm.ops.triton.layernorm_gated.rmsnorm_fn``: gated by ``silu(z)`` where ``z`` is given."""
        refuse("mamba_ssm.rmsnorm_fn", bias=bias)
        return ops.rms_norm_gated(x, z, weight, eps, norm_before_gate=norm_before_gate, group_size=group_size)

    @staticmethod
    def rms_norm_fn(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None = None,
        x1: Tensor | None = None,
        weight1: Tensor | None = None,
        bias1: Tensor | None = None,
        eps: float = 1e-6,
        dropout_p: float = 0.0,
        rowscale: Tensor | None = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
        return_dropout_mask: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """``mamba_ssm.ops.triton.layer_norm.rms_norm_fn``: the output, with ``prenorm`` also the sum."""
        refuse(
            "mamba_ssm.rms_norm_fn",
            bias=bias,
            x1=x1,
            weight1=weight1,
            bias1=bias1,
            dropout_p=dropout_p or None,
            rowscale=rowscale,
            return_dropout_mask=return_dropout_mask or None,
        )
        stored = torch.float32 if residual_in_fp32 else x.dtype
        out, total = norm_of_sum(x, residual, weight, eps, 0.0, x.dtype)
        return (out, total.to(stored if residual is None else residual.dtype)) if prenorm else out

    class RMSNorm(nn.Module):
        """``mamba_ssm.ops.triton.layernorm_gated.RMSNorm``."""

        def __init__(
            self,
            hidden_size: int,
            eps: float = 1e-5,
            group_size: int | None = None,
            norm_before_gate: bool = True,
            device: Any = None,
            dtype: torch.dtype | None = None,
        ) -> None:
            super().__init__()
            self.eps = eps
            self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
            self.register_parameter("bias", None)
            self.group_size = group_size
            self.norm_before_gate = norm_before_gate

        def reset_parameters(self) -> None:
            """Set the weight to one."""
            nn.init.ones_(self.weight)

        def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
            """Normalise ``x``, gated by ``silu(z)`` where ``z`` is given."""
            return mamba_ssm.rmsnorm_fn(
                x, self.weight, None, z, self.eps, self.group_size, self.norm_before_gate
            )
