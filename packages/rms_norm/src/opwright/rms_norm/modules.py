"""``torch.nn`` modules that hold the weight and the options of the operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from . import ops

__all__ = ["AddRMSNorm", "RMSNorm", "RMSNormGated"]


class _Norm(nn.Module):
    """The weight and the options that the three modules share."""

    weight: nn.Parameter | None

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        eps: float,
        elementwise_affine: bool,
        weight_offset: float,
        rounding: str,
        device: torch.device | str | int | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        if rounding not in ("once", "llama"):
            raise ValueError(
                f"{type(self).__name__}: expected rounding to be one of once, llama, but got {rounding}"
            )
        self.eps = float(eps)
        self.elementwise_affine = bool(elementwise_affine)
        self.weight_offset = float(weight_offset)
        self.rounding = rounding
        if self.elementwise_affine:
            self.weight = nn.Parameter(torch.empty(weight_shape, device=device, dtype=dtype))
        else:
            self.register_parameter("weight", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight so that ``weight + weight_offset`` is one: ones, or zeros for an offset of one."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 1.0 - self.weight_offset)

    def _options(self) -> str:
        parts = [f"eps={self.eps:g}"]
        if not self.elementwise_affine:
            parts.append("elementwise_affine=False")
        if self.weight_offset:
            parts.append(f"weight_offset={self.weight_offset:g}")
        parts.append(f"rounding={self.rounding!r}")
        return ", ".join(parts)


class RMSNorm(_Norm):
    """RMS norm of the last dimension: ``x * rsqrt(mean(x ** 2) + eps) * (weight + weight_offset)``.

    The parameter is called ``weight``, as in ``torch.nn.RMSNorm``, so a state dict of either loads into the
    other. There are two differences from ``torch.nn.RMSNorm``: ``eps`` defaults to ``1e-6``, and a pair as
    ``normalized_shape`` means one weight per head, not statistics over both dimensions.
    (``opwright.rms_norm.drop_in.torch_nn.RMSNorm`` follows torch in both.)

    Args:
        normalized_shape: length ``D`` of the last dimension, or a pair ``(H, D)`` for a weight per head; the
            statistics are over ``D`` in both cases.
        eps: added to the mean square; finite and not negative.
        elementwise_affine: whether there is a weight.
        weight_offset: added to the weight in the arithmetic's dtype; 1.0 is Gemma's convention, for which the
            weight starts at zero.
        rounding: ``"once"`` or ``"llama"``; see :func:`opwright.rms_norm.rms_norm`.
        device: of the weight.
        dtype: of the weight; may differ from that of the input.

    Raises:
        ValueError: for a ``normalized_shape`` of another length, or an unknown ``rounding``.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-6,
        *,
        elementwise_affine: bool = True,
        weight_offset: float = 0.0,
        rounding: str = "once",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = _weight_shape(type(self).__name__, normalized_shape)
        super().__init__(shape, eps, elementwise_affine, weight_offset, rounding, device, dtype)
        self.normalized_shape = shape

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input``.

        Args:
            input: ``(..., D)``, or ``(..., H, D)`` with a weight per head.

        Returns:
            ``input``'s shape; for the dtype see :func:`opwright.rms_norm.rms_norm`.
        """
        return ops.rms_norm(
            input, self.weight, self.eps, weight_offset=self.weight_offset, rounding=self.rounding
        )

    def extra_repr(self) -> str:
        """The options, as ``repr`` of the module shows them.

        Returns:
            The shape, ``eps``, and each option that is not the default.
        """
        return f"{self.normalized_shape}, {self._options()}"


class AddRMSNorm(_Norm):
    """Residual addition and RMS norm in one pass: returns ``(norm(input + residual), input + residual)``.

    Args:
        normalized_shape: as for :class:`RMSNorm`.
        eps: as for :class:`RMSNorm`.
        elementwise_affine: as for :class:`RMSNorm`.
        weight_offset: as for :class:`RMSNorm`.
        rounding: as for :class:`RMSNorm`.
        statistics: ``"rounded"`` normalises the sum as it is stored, ``"exact"`` before it is rounded.
        device: of the weight.
        dtype: of the weight.

    Raises:
        ValueError: as :class:`RMSNorm`, and for an unknown ``statistics``.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-6,
        *,
        elementwise_affine: bool = True,
        weight_offset: float = 0.0,
        rounding: str = "once",
        statistics: str = "rounded",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if statistics not in ("rounded", "exact"):
            raise ValueError(
                f"AddRMSNorm: expected statistics to be one of rounded, exact, but got {statistics}"
            )
        shape = _weight_shape(type(self).__name__, normalized_shape)
        super().__init__(shape, eps, elementwise_affine, weight_offset, rounding, device, dtype)
        self.normalized_shape = shape
        self.statistics = statistics

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Add and normalise.

        Args:
            input: ``(..., D)``, or ``(..., H, D)`` with a weight per head.
            residual: ``input``'s shape; may have another dtype.

        Returns:
            ``(output, residual_out)``; for the dtypes see :func:`opwright.rms_norm.add_rms_norm`.
        """
        return ops.add_rms_norm(
            input,
            residual,
            self.weight,
            self.eps,
            weight_offset=self.weight_offset,
            rounding=self.rounding,
            statistics=self.statistics,
        )

    def extra_repr(self) -> str:
        """The options, as ``repr`` of the module shows them.

        Returns:
            The shape, ``eps``, and each option that is not the default.
        """
        return f"{self.normalized_shape}, {self._options()}, statistics={self.statistics!r}"


class RMSNormGated(_Norm):
    """RMS norm with a gate: ``norm(input) * act(gate)``, or ``norm(input * act(gate))``.

    Args:
        hidden_size: length ``D`` of the last dimension.
        eps: added to the mean square; finite and not negative.
        activation: ``"silu"`` or ``"sigmoid"``, applied to the gate.
        norm_before_gate: True for the first formula (Qwen3-Next, Kimi), False for the second (Mamba-2).
        group_size: length of the groups that are normalised separately; None for all of ``D``.
        elementwise_affine: whether there is a weight.
        rounding: ``"once"`` or ``"llama"``; see :func:`opwright.rms_norm.rms_norm_gated`.
        device: of the weight.
        dtype: of the weight; may differ from that of the input.

    Raises:
        ValueError: for an unknown ``activation`` or ``rounding``, or a ``group_size`` that does not divide
            ``hidden_size``.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        *,
        activation: str = "silu",
        norm_before_gate: bool = True,
        group_size: int | None = None,
        elementwise_affine: bool = True,
        rounding: str = "once",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if activation not in ("silu", "sigmoid"):
            raise ValueError(
                f"RMSNormGated: expected activation to be one of silu, sigmoid, but got {activation}"
            )
        if group_size is not None and (group_size <= 0 or hidden_size % group_size):
            raise ValueError(
                f"RMSNormGated: expected group_size to be positive and to divide {hidden_size}, "
                f"but got {group_size}"
            )
        super().__init__((int(hidden_size),), eps, elementwise_affine, 0.0, rounding, device, dtype)
        self.hidden_size = int(hidden_size)
        self.activation = activation
        self.norm_before_gate = bool(norm_before_gate)
        self.group_size = group_size

    def forward(self, input: Tensor, gate: Tensor | None = None) -> Tensor:
        """Normalise and gate.

        Args:
            input: ``(..., D)``.
            gate: ``input``'s shape and dtype, or None for no gate.

        Returns:
            ``input``'s shape; for the dtype see :func:`opwright.rms_norm.rms_norm_gated`.
        """
        return ops.rms_norm_gated(
            input,
            gate,
            self.weight,
            self.eps,
            activation=self.activation,
            norm_before_gate=self.norm_before_gate,
            group_size=self.group_size,
            rounding=self.rounding,
        )

    def extra_repr(self) -> str:
        """The options, as ``repr`` of the module shows them.

        Returns:
            The size, ``eps``, and the options.
        """
        group = "" if self.group_size is None else f", group_size={self.group_size}"
        return (
            f"{self.hidden_size}, {self._options()}, activation={self.activation!r}, "
            f"norm_before_gate={self.norm_before_gate}{group}"
        )


def _weight_shape(name: str, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if len(shape) not in (1, 2):
        raise ValueError(f"{name}: expected normalized_shape to be D or (H, D), but got {shape}")
    return tuple(int(size) for size in shape)
