"""Wrong, missing, wasted or silently lost gradients."""

from __future__ import annotations

from types import MappingProxyType

import torch
import torch.autograd.forward_ad as forward_ad

from shared_build.tests.conformance.zoo import operator
from shared_build.tests.conformance.zoo.faults import fault
from shared_build.tests.conformance.zoo.operator import LIBRARY, AddScale, recording, reference


@fault("grad_flows", "requires no gradient")
class NoAutograd(AddScale):
    """The kernel has no autograd: outputs do not require gradients, nothing warns."""

    def register_autograd(self):
        LIBRARY.impl(f"{self.name}_forward", self._plain, "Autograd", with_keyset=True)
        LIBRARY.impl(f"{self.name}_inplace", self.inplace_autograd, "Autograd", with_keyset=True)

    def _plain(self, keyset, *args):
        with torch._C._AutoDispatchBelowAutograd():
            return self.forward_op.redispatch(keyset & torch._C._after_autograd_keyset, *args)


@fault("gradcheck", "Jacobian mismatch")
class WrongScale(AddScale):
    """The gradient is one percent too large."""

    def backward_kernel(self, *args):
        first, second = super().backward_kernel(*args)
        return first * 1.01, second


@fault("adjoint", "<Jv, u>")
class SlightlyWrongScale(AddScale):
    """Off by 1e-7, far below what gradcheck sees."""

    def backward_kernel(self, *args):
        first, second = super().backward_kernel(*args)
        return first * (1 + 1e-7), second


@fault("gradgradcheck", "cut off")
class NoSecondOrder(AddScale):
    """Backward calls a kernel without autograd: the second derivative is silently missing."""

    def backward(self, ctx, *grads):
        with torch._C._AutoDispatchBelowAutograd():
            return super().backward(ctx, *grads)


@fault("gradgradcheck", "second order")
class ZeroSecondOrder(AddScale):
    """The second derivative is zero."""

    def backward_backward(self, ctx, *upstream):
        return (*(None if t is None else torch.zeros_like(t) for t in ctx.saved_tensors), None, None)


@fault("gradgradcheck", "must raise")
class ClaimsNoSecondOrder(AddScale):
    """The spec says that the second derivative raises, but it works: claims are tested both ways."""

    double_backward = "raises"


@fault("batched_grad", "is_grads_batched=True raises")
class DataDependentBackward(AddScale):
    """Backward looks at a value of its upstream gradient."""

    def backward(self, ctx, grad, grad_total, _):
        if grad is not None and grad.abs().max().item() < 0:
            return None, None, None, None
        return super().backward(ctx, grad, grad_total, _)


@fault("subsets", "is missing|did not ask|differs")
class WrongSubset(AddScale):
    """When x is frozen, y gets no gradient either."""

    def needed(self, ctx):
        need_x, need_y, need_weight = super().needed(ctx)
        return need_x, need_y and need_x, need_weight


@fault("subsets", "backward computed")
class FrozenPays(AddScale):
    """The gradient of a frozen weight is computed and thrown away."""

    def backward(self, ctx, grad, grad_total, _):
        results = super().backward(ctx, grad, grad_total, _)
        x, y, weight, rstd = ctx.saved_tensors
        if weight is not None:
            self.backward_op(grad, grad_total, x, y, weight, rstd, [False, True])
        return results


@fault("subsets", "only total used")
class LostOutput(AddScale):
    """The gradient of the second output is dropped when the first is not used."""

    def backward_kernel(self, grad, grad_total, x, y, weight, rstd, needs):
        first, second = super().backward_kernel(grad, grad_total, x, y, weight, rstd, needs)
        return first * 0 if grad is None and needs[0] else first, second


@fault("retain_graph", "second backward")
class ConsumesSaved(AddScale):
    """Backward uses a saved tensor as scratch memory."""

    def backward_kernel(self, grad, grad_total, x, y, weight, rstd, needs):
        results = super().backward_kernel(grad, grad_total, x, y, weight, rstd, needs)
        rstd.data.mul_(2)
        return results


@fault("saved_edit", "no error, and the gradient")
@fault("saved_hooks", "bytes saved|poisoned saved")
class InputOnContext(AddScale):
    """Inputs are kept as attributes of the context instead of by save_for_backward."""

    def save(self, ctx, inputs, output):
        ctx.inputs = inputs[:3]
        ctx.save_for_backward(output[2])
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    def backward(self, ctx, grad, grad_total, _):
        (rstd,) = ctx.saved_tensors
        x, y, weight = ctx.inputs
        need_x, need_y, need_weight = self.needed(ctx)
        both, third = self.backward_op(grad, grad_total, x, y, weight, rstd, [need_x or need_y, need_weight])
        return both if need_x else None, both if need_y else None, third if need_weight else None, None


@fault("saved_hooks", "bytes saved for backward")
class SavesTooMuch(AddScale):
    """A float copy of the normalised input is kept, which nothing needs."""

    def save(self, ctx, inputs, output):
        super().save(ctx, inputs, output)
        ctx.save_for_backward(*inputs[:3], output[2], output[0].float())

    def backward(self, ctx, grad, grad_total, _):
        return super().backward(_First(ctx), grad, grad_total, _)


class _First:
    def __init__(self, ctx):
        self.ctx = ctx

    def __getattr__(self, name):
        value = getattr(self.ctx, name)
        return value[:4] if name == "saved_tensors" else value


@fault("no_cycle", "reference cycle")
class OutputOnContext(AddScale):
    """The output is kept as an attribute of its own context."""

    def save(self, ctx, inputs, output):
        super().save(ctx, inputs, output)
        ctx.result = output[0]


@fault("checkpoint", "under checkpoint")
class CachesForward(AddScale):
    """The second call of a pair saves the statistics of the first: recomputation gives other gradients."""

    calls = 0

    def save(self, ctx, inputs, output):
        self.calls += 1
        scale = 1.0 if self.calls % 3 else 2.0
        super().save(ctx, inputs, (output[0], output[1], output[2]))
        ctx.save_for_backward(*inputs[:3], output[2] * scale)


@fault("grad_modes", "has a grad_fn")
class IgnoresNoGrad(AddScale):
    """Gradients are recorded under no_grad."""

    def call(self, x, y, weight=None, *, eps=1e-6):
        with torch.enable_grad():
            return super().call(x, y, weight, eps=eps)


@fault("transforms", "raises RuntimeError|setup_context|NotImplementedError|vmap")
class NoRouting(AddScale):
    """Transforms reach the dispatcher operator, which they cannot differentiate."""

    def transformed(self):
        return False


@fault("transforms", "jvp, result 0|dual, result 0")
class SilentForwardMode(AddScale):
    """Forward mode through the dispatcher operator drops the tangents."""

    def register_autograd(self):
        level = operator.forward_ad

        class _NeverActive:
            _current_level = -1

        operator.forward_ad = _NeverActive
        try:
            quiet = recording(self.forward_op, self.save, self.backward)
            quiet_backward = recording(self.backward_op, self.save_backward, self.backward_backward)
        finally:
            operator.forward_ad = level
        LIBRARY.impl(f"{self.name}_forward", _without_guard(quiet), "Autograd", with_keyset=True)
        LIBRARY.impl(f"{self.name}_backward", _without_guard(quiet_backward), "Autograd", with_keyset=True)
        LIBRARY.impl(f"{self.name}_inplace", self.inplace_autograd, "Autograd", with_keyset=True)


def _without_guard(kernel):
    def run(keyset, *args):
        before = forward_ad._current_level
        forward_ad._current_level = -1
        try:
            return kernel(keyset, *args)
        finally:
            forward_ad._current_level = before

    return run


@fault("vmap", "vmap")
class WrongBatchDim(AddScale):
    """The batching rule takes the batch dim of y to be in front."""

    def vmap_rule(self, info, dims, x, y, weight, eps):
        return super().vmap_rule(
            info, (dims[0], None if dims[1] is None else 0, *dims[2:]), x, y, weight, eps
        )


@fault("vmap", "must raise, but it works")
class ClaimsNoVmap(AddScale):
    """The spec says that vmap raises, but it works."""

    claims = MappingProxyType({"vmap": "raises"})


@fault("vmap", "not by a loop, raises RuntimeError.*[fF]allback")
class NoRule(AddScale):
    """No batching rule is registered: vmap runs a loop."""

    def register_vmap(self):
        pass


@fault("autocast", "under autocast")
class AutocastCasts(AddScale):
    """Under autocast the inputs are cast, whatever the policy says."""

    def call(self, x, y, weight=None, *, eps=1e-6):
        if torch.is_autocast_enabled("cpu"):
            cast = torch.get_autocast_dtype("cpu")
            return reference(x.to(cast), y.to(cast), weight, eps=eps)
        return super().call(x, y, weight, eps=eps)
