"""In-place functions: lost, undeclared, uncounted and misplaced writes."""

from __future__ import annotations

import torch

from shared_build.tests.conformance.zoo.faults import fault
from shared_build.tests.conformance.zoo.faults_values import as_if_contiguous
from shared_build.tests.conformance.zoo.operator import LIBRARY, TAGS, AddScale


@fault("mutation", "never written")
class NeverWrites(AddScale):
    """The second argument is declared as written, but is not."""

    def inplace_kernel(self, x, y, weight, eps):
        x.copy_(self.kernel(x, y, weight, eps)[0])


@fault("mutation", "version")
@fault("mutation_autograd", "was overwritten, and backward said nothing")
class NoVersion(AddScale):
    """Writes are not counted: autograd uses what was overwritten."""

    def inplace_kernel(self, x, y, weight, eps):
        self.refuse_overlap(x, y, weight)
        output, total, _ = self.kernel(x, y, weight, eps)
        x.data.copy_(output)
        y.data.copy_(total)

    def bump(self, *written):
        pass


@fault("mutation_autograd", "call was accepted")
class AcceptsLeaves(AddScale):
    """Arguments that require gradients are overwritten."""

    def inplace_autograd(self, keyset, *args):
        with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
            self.inplace_op.redispatch(keyset & torch._C._after_autograd_keyset, *args)


@fault("mutation_views", "view")
class WritesDense(AddScale):
    """Results are written as if the argument were contiguous."""

    def inplace_kernel(self, x, y, weight, eps):
        output, total, _ = self.kernel(x, y, weight, eps)
        as_if_contiguous(x).copy_(output)
        y.copy_(total)


@fault("overlap", "accepted, though memory overlaps")
class AcceptsOverlap(AddScale):
    """Overlapping arguments are not refused."""

    def refuse_overlap(self, x, y, weight):
        pass


@fault("offsets", "was overwritten")
class Overrun(AddScale):
    """One element after the end of y is written."""

    def inplace_kernel(self, x, y, weight, eps):
        super().inplace_kernel(x, y, weight, eps)
        end = y.storage_offset() + y.numel()
        if y.is_contiguous() and end < y.untyped_storage().nbytes() // y.element_size():
            y.as_strided((1,), (1,), end).zero_()


@fault("schema", "writes|without declaring")
@fault("mutation_compiled", "compiled against eager|after the compiled call|alias|mutat")
class UndeclaredWrite(AddScale):
    """The write to y is missing from the schema: a compiler may drop or reorder it."""

    def register(self):
        define = LIBRARY.define

        def defined(schema, **kwargs):
            define(schema.replace("Tensor(b!) y", "Tensor y"), tags=TAGS)

        LIBRARY.define = defined
        try:
            super().register()
        finally:
            del LIBRARY.define


@fault("errors", "was written before")
class WritesThenChecks(AddScale):
    """The arguments are checked after the first write."""

    def register(self):
        super().register()

    def call_(self, x, y, weight=None, *, eps=1e-6):
        x.data.mul_(1.5) if not x.is_meta and type(x) is torch.Tensor else None
        return super().call_(x, y, weight, eps=eps)
