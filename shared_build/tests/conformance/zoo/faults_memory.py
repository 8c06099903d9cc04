"""Memory: unwritten elements, aliases, touched inputs, leaks."""

from __future__ import annotations

import torch

from shared_build.tests.conformance.zoo.faults import fault
from shared_build.tests.conformance.zoo.operator import AddScale


@fault("poison", "never written|poisoned memory")
class TailUnwritten(AddScale):
    """The last element of the output is never written."""

    def store(self, out, values):
        flat = out.data.view(-1)
        flat[:-1].copy_(values.reshape(-1)[:-1])


@fault("poison", "never written|poisoned memory")
class ReadsUninitialised(AddScale):
    """An accumulator starts from whatever was in memory, times zero."""

    def mean_square(self, total):
        return super().mean_square(total) + 0 * torch.empty(total.shape[:-1], dtype=total.dtype)


@fault("inputs_untouched", "x was modified")
class SlightMutation(AddScale):
    """The input is changed by 1e-7: opcheck's comparison with a tolerance lets that pass."""

    def kernel(self, x, y, weight, eps):
        results = super().kernel(x, y, weight, eps)
        x.data.mul_(1.01 if x.dtype in (torch.bfloat16, torch.float16) else 1 + 1.2e-7)
        return results


@fault("inputs_untouched", "upstream gradient was modified")
class ScratchGradient(AddScale):
    """Backward uses the upstream gradient as scratch memory."""

    def read(self, grad):
        values = grad.contiguous().clone()
        grad.data.mul_(2)
        return values


@fault("inputs_untouched", "writable pointer")
class WritableInput(AddScale):
    """The input is asked for a writable pointer, which makes a lazy copy real."""

    def kernel(self, x, y, weight, eps):
        x.data_ptr()  # torch counts a plain data pointer as one that may be written
        return super().kernel(x, y, weight, eps)


@fault("outputs_fresh", "shares memory with")
class ReturnsInput(AddScale):
    """Where y is zero the total is x itself."""

    def kernel(self, x, y, weight, eps):
        output, total, rstd = super().kernel(x, y, weight, eps)
        return output, x.view(x.shape) if x.is_contiguous() else total, rstd


@fault("outputs_fresh", "shares memory with|keeps")
class SharedBuffer(AddScale):
    """Both outputs are slices of one buffer, so each keeps the other alive."""

    def kernel(self, x, y, weight, eps):
        output, total, rstd = super().kernel(x, y, weight, eps)
        both = torch.stack([output, total])
        return both[0], both[1], rstd


@fault("outputs_fresh", "is not contiguous")
class StridedOutput(AddScale):
    """The output inherits the layout of the arithmetic."""

    def kernel(self, x, y, weight, eps):
        output, total, rstd = super().kernel(x, y, weight, eps)
        return output.t().contiguous().t() if output.dim() == 2 else output, total, rstd


@fault("leaks", "resident memory grew")
class Leak(AddScale):
    """Every call leaves a tensor behind."""

    kept = ()

    def kernel(self, x, y, weight, eps):
        results = super().kernel(x, y, weight, eps)
        self.kept = (*self.kept, results[0].clone())
        return results
