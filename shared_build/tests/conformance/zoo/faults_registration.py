"""What the dispatcher and the compilers are told."""

from __future__ import annotations

from types import MappingProxyType

import torch

from shared_build.tests.conformance.zoo.faults import fault
from shared_build.tests.conformance.zoo.operator import LIBRARY, AddScale


@fault("fake", "shape|strides")
@fault("opcheck", "test_faketensor")
class FakeShape(AddScale):
    """The fake's statistics keep a last dimension of one."""

    def fake(self, x, y, weight, eps):
        output, total, rstd = super().fake(x, y, weight, eps)
        return output, total, rstd.unsqueeze(-1).contiguous()


@fault("fake", "dtype")
class FakeDtype(AddScale):
    """The fake's statistics have the dtype of the input."""

    def fake(self, x, y, weight, eps):
        output, total, rstd = super().fake(x, y, weight, eps)
        return output, total, rstd.to(torch.float64)


@fault("fake", "strides")
class FakeStrides(AddScale):
    """The fake keeps the strides of the input: right for contiguous samples."""

    def fake(self, x, y, weight, eps):
        _, total, rstd = super().fake(x, y, weight, eps)
        return torch.empty_like(x), total, rstd


@fault("inductor", "stride|size|Error")
class StridesUnderCompile(AddScale):
    """The kernel's strides differ from the fake's: compiled code addresses the wrong elements."""

    def kernel(self, x, y, weight, eps):
        output, total, rstd = super().kernel(x, y, weight, eps)
        return output.t().contiguous().t() if output.dim() == 2 else output, total, rstd


@fault("fake", "UnsupportedOperator|NotImplementedError")
@fault("dynamic", "fake impl|Unsupported|Meta")
class NoFake(AddScale):
    """No fake is registered."""

    def register_fakes(self):
        pass


@fault("fake_cuda", "is on cpu")
class FakeDevice(AddScale):
    """The fake allocates on the CPU."""

    def fake(self, x, y, weight, eps):
        rstd = torch.empty(x.shape[:-1], dtype=torch.float32)
        return torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype), rstd


@fault("dynamic", "ConstraintViolation|specializ|constraint")
@fault("export", "specializ|ConstraintViolation|UserError|Constraints")
class SpecialisingFake(AddScale):
    """The fake makes a number of a size."""

    def fake(self, x, y, weight, eps):
        return x.new_empty((int(x.shape[0]), *x.shape[1:])), *super().fake(x, y, weight, eps)[1:]


@fault("unbacked", "data-dependent|DataDependent|unbacked")
class BranchingFake(AddScale):
    """The fake branches on a size."""

    def fake(self, x, y, weight, eps):
        if x.shape[0] > 4:
            return super().fake(x, y, weight, eps)
        return super().fake(x, y, weight, eps)


@fault("make_fx", "tensor work beside|operators in the graph")
class Decomposes(AddScale):
    """The dispatcher call is wrapped in tensor arithmetic that no compiler can remove."""

    def direct(self, x, y, weight=None, *, eps=1e-6):
        return super().direct(x * 1.0, y, weight, eps=eps)


@fault("opcheck", "test_schema|mutated|Argument")
class UndeclaredMutation(AddScale):
    """The functional operator overwrites y."""

    def kernel(self, x, y, weight, eps):
        results = super().kernel(x, y, weight, eps)
        y.data.add_(1)
        return results


@fault("opcheck", "test_autograd_registration|autograd")
class AtenUnderCpu(AddScale):
    """Differentiable aten calls under the CPU key instead of an autograd formula."""

    def register(self):
        super().register()

    def register_autograd(self):
        LIBRARY.impl(f"{self.name}_inplace", self.inplace_autograd, "Autograd", with_keyset=True)

    def kernel(self, x, y, weight, eps):
        with torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.AutogradCPU), torch.enable_grad():
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
            with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradCPU, False):
                del keys
                total = x + y
                rstd = torch.rsqrt(total.square().mean(-1) + eps)
                return total * rstd.unsqueeze(-1), total.clone(), rstd


@fault("errors", "was expected, but the call was accepted")
class MissingError(AddScale):
    """A negative eps is not refused."""

    def validate(self, x, y, weight, eps):
        super().validate(x, y, weight, max(eps, 0.0))


@fault("errors", "was expected, but the call was accepted")
class FakeAccepts(AddScale):
    """The fake accepts what the kernel refuses."""

    def validate(self, x, y, weight, eps):
        if x.device.type == "cpu" and type(x) is torch.Tensor:
            super().validate(x, y, weight, eps)


@fault("errors", "ValueError was expected, but")
class ErrorType(AddScale):
    """The fake raises another type than the kernel."""

    def validate(self, x, y, weight, eps):
        try:
            super().validate(x, y, weight, eps)
        except ValueError as error:
            if x.device.type == "cpu" and type(x) is torch.Tensor:
                raise
            raise RuntimeError(str(error)) from None


@fault("errors", "not of the form")
class ErrorForm(AddScale):
    """The message does not say what it got."""

    def validate(self, x, y, weight, eps):
        try:
            super().validate(x, y, weight, eps)
        except ValueError as error:
            raise ValueError(str(error).replace("but got", "not")) from None


@fault("strict_dtypes", "was accepted")
class ConvertsIntegers(AddScale):
    """Integers are converted silently."""

    def call(self, x, y, weight=None, *, eps=1e-6):
        x, y = (t if t.dtype.is_floating_point else t.float().real for t in (x, y))
        return super().call(x, y, weight, eps=eps)


@fault("distributed", "gradient of weight differs|gradient of weight")
class ReplicatedWeightGradient(AddScale):
    """The weight's gradient of a row shard is declared complete; it is a partial sum."""

    def partial_weight(self, partial):
        from torch.distributed.tensor import Replicate

        return Replicate()


@fault("sharding_refused", "though no sharding is declared")
class UnclaimedSharding(AddScale):
    """DTensors are accepted, though the spec claims no sharding."""

    claims = MappingProxyType({"shardings": ()})


@fault("aoti", "was not set up", slow=True)
class NeedsWrapper(AddScale):
    """The kernel needs something that only the Python function sets up."""

    ready = False

    def call(self, x, y, weight=None, *, eps=1e-6):
        self.prepare()
        return super().call(x, y, weight, eps=eps)

    @torch.compiler.disable
    def _mark(self):
        self.ready = True

    def prepare(self):
        if not torch.compiler.is_compiling():
            self._mark()

    def mean_square(self, total):
        if not self.ready:
            raise RuntimeError("the operator was not set up")
        return super().mean_square(total)
