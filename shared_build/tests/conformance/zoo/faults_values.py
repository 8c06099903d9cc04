"""Wrong numbers: formulas, precision, tails, special values, offsets, layouts."""

from __future__ import annotations

import torch

from shared_build.tests.conformance.zoo.faults import fault
from shared_build.tests.conformance.zoo.operator import AddScale, total_of, work_dtype


@fault("golden", "max error")
class EpsOutside(AddScale):
    """The eps is added to the root instead of under it."""

    def kernel(self, x, y, weight, eps):
        output, total, rstd = super().kernel(x, y, weight, 0.0)
        return (output.float() * (1 / (1 + eps * rstd.float().unsqueeze(-1)))).to(x.dtype), total, rstd


@fault("golden", "max error|rms error")
class HalfAccumulation(AddScale):
    """The squares are added up in the dtype of the input."""

    def kernel(self, x, y, weight, eps):
        self.low = x.dtype
        return super().kernel(x, y, weight, eps)

    def mean_square(self, total):
        square = total.to(self.low).square()
        running = torch.zeros(total.shape[:-1], dtype=self.low)
        for column in range(total.shape[-1]):
            running = (running + square[..., column]).to(self.low)
        return running.to(total.dtype) / total.shape[-1]


@fault("golden", "rms error|max error")
class RoundedRstd(AddScale):
    """The reciprocal root is rounded to bfloat16: a bias that is the same along each row."""

    def mean_square(self, total):
        return super().mean_square(total).to(torch.bfloat16).to(total.dtype)


@fault("float64", "in float64 against the golden")
class FloatAccumulator(AddScale):
    """Float64 inputs are summed in float32."""

    def mean_square(self, total):
        return super().mean_square(total.float()).to(total.dtype)


@fault("golden", "max error|non-finite")
class TailElementWrong(AddScale):
    """The last element of a row that does not fill a vector is not scaled."""

    def store(self, out, values):
        super().store(out, values)
        if out.shape[-1] % 8 and out.numel():
            out.data[..., -1] = 0


@fault("structure", "max error|rms error")
class RareTail(AddScale):
    """Wrong only for widths from 20 on that leave a remainder of 3: no listed case has one."""

    def store(self, out, values):
        super().store(out, values)
        if out.shape[-1] >= 20 and out.shape[-1] % 8 == 3 and out.numel():
            out.data[..., -1] += 1


@fault("degenerate", "must raise ValueError")
class AcceptsNoFeatures(AddScale):
    """A row without features is accepted, though its mean does not exist."""

    def validate(self, x, y, weight, eps):
        if x.shape[-1]:
            super().validate(x, y, weight, eps)

    def mean_square(self, total):
        return total.sum(-1)


@fault("degenerate", "gradient of weight")
class EmptyBatchGradient(AddScale):
    """Without rows the gradient of the weight is returned as it was allocated."""

    def backward_kernel(self, grad, grad_total, x, y, weight, rstd, needs):
        first, second = super().backward_kernel(grad, grad_total, x, y, weight, rstd, needs)
        return first, torch.empty_like(second) if x.numel() == 0 and needs[1] else second


@fault("special", "non-finite values differ")
class NanSwallowed(AddScale):
    """A clamp with its operands in the wrong order turns NaN into a number."""

    def store(self, out, values):
        super().store(out, values.nan_to_num(nan=0.0))


@fault("special", "zero of the wrong sign")
class ZeroSign(AddScale):
    """Zero is added to the weight, which turns -0 into +0."""

    def store(self, out, values):
        super().store(out, values + 0.0)


@fault("special", "non-finite values differ")
class EarlyOverflow(AddScale):
    """The squares are formed in float16."""

    def mean_square(self, total):
        clipped = total.clamp(-1e19, 1e19)
        return super().mean_square(clipped)


def wrapped(t: torch.Tensor) -> torch.Tensor:
    """The tensor as a kernel sees it that keeps strides in 31 bits."""
    return t.as_strided(t.shape, [s % 2**31 for s in t.stride()], t.storage_offset())


@fault("wide_strides", "stride above 2")
class ShortStride(AddScale):
    """Strides are kept in 32 bits."""

    def kernel(self, x, y, weight, eps):
        return super().kernel(wrapped(x), wrapped(y), weight, eps)


@fault("wide_strides", "upstream gradient, stride above 2")
class ShortGradientStride(AddScale):
    """Strides of the upstream gradient are kept in 32 bits."""

    def read(self, grad):
        return wrapped(grad).contiguous()


@fault("large_meta", "fewer than 2")
class ShortCount(AddScale):
    """More than 2^31 elements are refused, on the meta device too."""

    def validate(self, x, y, weight, eps):
        super().validate(x, y, weight, eps)
        if x.numel() >= 2**31:
            raise ValueError(f"{self.name}: expected fewer than 2**31 elements, but got {x.numel()}")


@fault("slices", "alone")
class BatchDependent(AddScale):
    """A single row is multiplied in another order than the rows of a batch."""

    def kernel(self, x, y, weight, eps):
        output, total, rstd = super().kernel(x, y, weight, eps)
        if x.shape[0] == 1 and weight is not None:
            wide = work_dtype(x)
            output = (((x.to(wide) + y.to(wide)) * weight.to(wide)) * rstd.unsqueeze(-1)).to(x.dtype)
        return output, total, rstd


def as_if_contiguous(t: torch.Tensor) -> torch.Tensor:
    """What a kernel reads that ignores the strides."""
    strides, step = [], 1
    for n in reversed(t.shape):
        strides.insert(0, step)
        step *= n
    room = t.untyped_storage().nbytes() // t.element_size() - t.storage_offset()
    return t.as_strided(t.shape, strides) if room >= t.numel() else t.contiguous() * 0


@fault("layouts", "against contiguous arguments")
class IgnoresStrides(AddScale):
    """The input is read as if it were contiguous."""

    def kernel(self, x, y, weight, eps):
        return super().kernel(as_if_contiguous(x), y, weight, eps)


@fault("gradient_layouts", "upstream gradient that is")
@fault("gradcheck", "transpose|sum|cat")
class IgnoresGradientStrides(AddScale):
    """The upstream gradient is read as if it were contiguous, which plain gradcheck never notices."""

    def read(self, grad):
        return as_if_contiguous(grad)


@fault("gradient_consumers", "stride 0 are not supported")
class RefusesExpanded(AddScale):
    """The gradient that sum() hands over is refused."""

    def read(self, grad):
        if 0 in grad.stride():
            raise RuntimeError("gradients with stride 0 are not supported")
        return grad.contiguous()


@fault("views", "view of x")
class GradientInInputStrides(AddScale):
    """The gradient is written in the order of the input's memory."""

    def backward_kernel(self, grad, grad_total, x, y, weight, rstd, needs):
        first, second = super().backward_kernel(grad, grad_total, x, y, weight, rstd, needs)
        dense = sorted(x.stride(), reverse=True) == list(x.stride())
        if needs[0] and x.dim() == 2 and not dense:
            first = first.t().contiguous().view(x.shape)
        return first, second


@fault("offsets", "at offset")
class AlignedLoads(AddScale):
    """The address of the input is rounded down to whole vectors of four elements."""

    def kernel(self, x, y, weight, eps):
        start = x.storage_offset()
        return super().kernel(x.as_strided(x.shape, x.stride(), start - start % 4), y, weight, eps)


@fault("gradient_error", "gradient of weight")
class HalfWeightGradient(AddScale):
    """The gradient of the weight is added up in its own dtype."""

    def backward_kernel(self, grad, grad_total, x, y, weight, rstd, needs):
        first, second = super().backward_kernel(grad, grad_total, x, y, weight, rstd, needs)
        if needs[1] and grad is not None and x.numel():
            wide = work_dtype(x)
            normal = (x.to(wide) + y.to(wide)) * rstd.unsqueeze(-1)
            running = torch.zeros_like(weight)
            for row in (grad.to(wide) * normal).reshape(-1, x.shape[-1]):
                running = running + row.to(weight.dtype)
            second = running
        return first, second


@fault("repeat", "repetition")
class Unordered(AddScale):
    """The order of summation changes from call to call, as with atomics."""

    calls = 0

    def mean_square(self, total):
        self.calls += 1
        square = total.square()
        return (square.sum(-1) if self.calls % 3 else total_of(square, -1)) / total.shape[-1]
