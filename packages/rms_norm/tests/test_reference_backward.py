"""Gradients of the golden reference: against finite differences, and explicit formulas against autograd."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from opwright.rms_norm import reference
from opwright.rms_norm._reference_common import ACTIVATIONS, STATISTICS

LOW = (torch.bfloat16, torch.float16, torch.float32)


def randn(*shape, dtype=torch.float64, seed=0, requires_grad=False):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    value = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return value.to(dtype).requires_grad_(requires_grad)


class TestGradients:
    @pytest.mark.parametrize("heads", [False, True])
    def test_rms_norm(self, heads):
        x = randn(3, 2, 5, requires_grad=True)
        w = randn(*((2, 5) if heads else (5,)), seed=1, requires_grad=True)

        def function(x, w):
            return reference.rms_norm(x, w, 1e-2, weight_offset=0.5, rounding="llama")

        assert gradcheck(function, (x, w), check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(function, (x, w), gen_non_contig_grad_outputs=True)

    @pytest.mark.parametrize("statistics", STATISTICS)
    def test_add_rms_norm(self, statistics):
        inputs = [randn(3, 5, seed=s, requires_grad=True) for s in (0, 2)] + [randn(5, requires_grad=True)]

        def function(x, res, w):
            return reference.add_rms_norm(x, res, w, 1e-2, statistics=statistics)

        assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(function, inputs, gen_non_contig_grad_outputs=True)

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize("norm_before_gate", [True, False])
    def test_gated(self, activation, norm_before_gate):
        inputs = [randn(3, 6, seed=s, requires_grad=True) for s in (0, 3)] + [randn(6, requires_grad=True)]

        def function(x, gate, w):
            options = {"activation": activation, "norm_before_gate": norm_before_gate, "group_size": 3}
            return reference.rms_norm_gated(x, gate, w, 1e-2, **options)

        assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(function, inputs, gen_non_contig_grad_outputs=True)


def autograd_of(function, inputs, grads):
    """First-order gradients, and the gradients of a random projection of them, by autograd of the forward."""
    present = [t for t in inputs if t is not None]
    first = torch.autograd.grad(function(*inputs), present, grads, create_graph=True)
    weights = [randn(*g.shape, seed=20 + k) for k, g in enumerate(first)]
    second = torch.autograd.grad(sum((g * w).sum() for g, w in zip(first, weights)), [*present, *grads])
    return first, second, weights


class TestExplicitBackward:
    """The backward formulas equal autograd of the forward, in first and in second order."""

    def check(self, forward, backward, inputs, grads):
        first, second, weights = autograd_of(forward, inputs, grads)
        ours = [g for g in backward(*inputs) if g is not None]
        assert len(ours) == len(first)
        for mine, theirs in zip(ours, first):
            torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)
        present = [t for t in inputs if t is not None]
        projected = sum((g * w).sum() for g, w in zip(ours, weights))
        for mine, theirs in zip(torch.autograd.grad(projected, [*present, *grads]), second):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-11)

    @pytest.mark.parametrize("weight_shape", [None, (7,), (2, 7)])
    def test_rms_norm(self, weight_shape):
        x, grad = randn(4, 2, 7, requires_grad=True), randn(4, 2, 7, seed=5, requires_grad=True)
        w = None if weight_shape is None else randn(*weight_shape, seed=1, requires_grad=True)
        _, rstd = reference.rms_norm_forward(x, w, 1e-2, 0.5, "once")

        def forward(x, w):
            return reference.rms_norm(x, w, 1e-2, weight_offset=0.5)

        def backward(x, w):
            return reference.rms_norm_backward(grad, x, w, rstd, 1e-2, 0.5)

        self.check(forward, backward, (x, w), [grad])

    @pytest.mark.parametrize("used", ["both", "output", "residual_out"])
    def test_add_rms_norm(self, used):
        x, res = (randn(4, 7, seed=s, requires_grad=True) for s in (0, 2))
        w = randn(7, seed=1, requires_grad=True)
        out_grad, sum_grad = (randn(4, 7, seed=s, requires_grad=True) for s in (5, 6))
        wanted = {"both": (out_grad, sum_grad), "output": (out_grad, None), "residual_out": (None, sum_grad)}[
            used
        ]
        if used == "residual_out":
            total = reference.add_rms_norm(x, res, w, 1e-2)[1]
            grad_sum, grad_weight = reference.add_rms_norm_backward(None, sum_grad, total, w, None, 1e-2)
            assert torch.equal(grad_sum, sum_grad)
            assert not grad_weight.any()
            return

        def forward(x, res, w):
            outputs = reference.add_rms_norm(x, res, w, 1e-2)
            return [o for o, g in zip(outputs, wanted) if g is not None]

        def backward(x, res, w):
            total = reference.add_rms_norm(x, res, w, 1e-2)[1]
            grad_sum, grad_weight = reference.add_rms_norm_backward(*wanted, total, w, None, 1e-2)
            return grad_sum, grad_sum, grad_weight

        self.check(forward, backward, (x, res, w), [g for g in wanted if g is not None])

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize("norm_before_gate", [True, False])
    @pytest.mark.parametrize("gated", [True, False])
    @pytest.mark.parametrize("weighted", [True, False])
    @pytest.mark.parametrize("group_size", [None, 4])
    def test_gated(self, activation, norm_before_gate, gated, weighted, group_size):
        x, grad = randn(3, 8, requires_grad=True), randn(3, 8, seed=5, requires_grad=True)
        gate = randn(3, 8, seed=3, requires_grad=True) if gated else None
        w = randn(8, seed=1, requires_grad=True) if weighted else None
        options = {"activation": activation, "norm_before_gate": norm_before_gate, "group_size": group_size}

        def forward(x, gate, w):
            return reference.rms_norm_gated(x, gate, w, 1e-2, **options)

        def backward(x, gate, w):
            return reference.rms_norm_gated_backward(grad, x, gate, w, None, 1e-2, **options)

        self.check(forward, backward, (x, gate, w), [grad])

    @pytest.mark.parametrize("dtype", LOW)
    def test_results_are_rounded_once(self, dtype):
        x, w, grad = (randn(6, 33, dtype=dtype, seed=s) for s in (0, 1, 5))
        w = w[0]
        ours = reference.rms_norm_backward(grad, x, w, None, 1e-6)
        exact = reference.rms_norm_backward(grad.double(), x.double(), w.double(), None, 1e-6)
        for mine, truth in zip(ours, exact):
            assert mine.dtype == dtype
            step = torch.finfo(dtype).eps * truth.abs().clamp(min=torch.finfo(dtype).smallest_normal)
            # half a unit in the last place of the result, and float32's own errors in sums of 33 terms
            assert ((mine.double() - truth).abs() <= 0.5 * step + 1e-5 * truth.abs() + 1e-6).all()
