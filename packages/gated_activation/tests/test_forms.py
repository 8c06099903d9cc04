"""The packed in-place form, ``out=``, broadcasting, and gradients of every order through C++."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from opwright.gated_activation import (
    gated_activation,
    gated_activation_,
    gated_activation_packed,
    gated_activation_packed_,
    reference,
)

GPT_OSS = {"alpha": 1.702, "limit": 0.9, "up_offset": 1.0}
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "identity")


class TestPackedInPlace:
    @pytest.mark.parametrize("layout", ["halves", "interleaved"])
    @pytest.mark.parametrize("gate_first", [True, False])
    def test_the_gates_half_is_written_and_the_other_kept(self, layout: str, gate_first: bool) -> None:
        input = torch.randn(5, 74)
        before = input.clone()
        expected = gated_activation_packed(input, layout=layout, gate_first=gate_first, **GPT_OSS)
        got = gated_activation_packed_(input, layout=layout, gate_first=gate_first, **GPT_OSS)
        assert torch.equal(got, expected)
        assert got.untyped_storage().data_ptr() == input.untyped_storage().data_ptr()
        changed = (input != before).any(0)
        written = torch.zeros(74, dtype=torch.bool)
        view = written[::2] if layout == "interleaved" else written[:37]
        other = written[1::2] if layout == "interleaved" else written[37:]
        (view if gate_first else other).fill_(True)
        assert torch.equal(changed, written)

    def test_gradients_through_a_computed_input(self) -> None:
        leaf = torch.randn(3, 8, dtype=torch.float64).requires_grad_()
        got = gated_activation_packed_(leaf * 2)
        (found,) = torch.autograd.grad(got.square().sum(), leaf)
        (expected,) = torch.autograd.grad(reference.gated_activation_packed(leaf * 2).square().sum(), leaf)
        torch.testing.assert_close(found, expected)

    def test_a_leaf_is_refused(self) -> None:
        leaf = torch.randn(3, 8).requires_grad_()
        with pytest.raises(RuntimeError, match=r"leaf|view"):
            gated_activation_(leaf, torch.randn(3, 8))


class TestOut:
    def test_packed_into_a_strided_tensor(self) -> None:
        input = torch.randn(5, 74).bfloat16()
        out = torch.zeros(37, 5).bfloat16().t()
        got = gated_activation_packed(input, "gelu", out=out)
        assert got is out
        assert torch.equal(out, gated_activation_packed(input, "gelu"))

    def test_gradients_are_refused(self) -> None:
        gate = torch.randn(3, 4).requires_grad_()
        with pytest.raises(RuntimeError, match="expected arguments that need no gradient"):
            gated_activation(gate, torch.randn(3, 4), out=torch.empty(3, 4))


class TestLayouts:
    def test_a_transposed_pair_gives_a_transposed_result(self) -> None:
        gate, up = torch.randn(7, 5).t(), torch.randn(7, 5).t()
        y = gated_activation(gate, up)
        assert y.stride() == torch.add(gate, up).stride() == (1, 5)
        assert torch.equal(y, gated_activation(gate.contiguous(), up.contiguous()))

    @pytest.mark.parametrize(
        "shapes", [((4, 1, 7), (3, 1)), ((), (3, 5)), ((1, 7), (6, 7)), ((2, 0), (2, 1))]
    )
    def test_broadcasting_and_its_gradients(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        tensors = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]
        y, expected = (f(*tensors, **GPT_OSS) for f in (gated_activation, reference.gated_activation))
        torch.testing.assert_close(y, expected)
        upstream = torch.randn_like(y)
        found = torch.autograd.grad(y, tensors, upstream)
        torch.testing.assert_close(found, torch.autograd.grad(expected, tensors, upstream))

    def test_gradients_of_mixed_dtypes_have_their_own(self) -> None:
        gate = torch.randn(3, 5).bfloat16().requires_grad_()
        up = torch.randn(3, 5).requires_grad_()
        y = gated_activation(gate, up)
        y.sum().backward()
        assert (y.dtype, gate.grad.dtype, up.grad.dtype) == (torch.float32, torch.bfloat16, torch.float32)


class TestHigherOrders:
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize("clamp", ["input", "output"])
    def test_third_derivatives_are_the_references(self, activation: str, clamp: str) -> None:
        options = {"activation": activation, "limit": 0.9, "clamp": clamp, "up_offset": 0.5}
        gate, up = (torch.randn(4, 6, dtype=torch.float64).requires_grad_() for _ in range(2))
        results = []
        for function in (gated_activation, reference.gated_activation):
            y = function(gate, up, **options).square().sum()
            for _ in range(3):
                grads = torch.autograd.grad(y, (gate, up), create_graph=True, allow_unused=True)
                y = sum(g.square().sum() for g in grads if g is not None)
            results.append(y.detach())
        torch.testing.assert_close(*results)

    def test_only_one_gradient_used_in_the_second_order(self) -> None:
        gate, up = (torch.randn(4, 6, dtype=torch.float64).requires_grad_() for _ in range(2))
        for index in range(2):
            results = []
            for function in (gated_activation, reference.gated_activation):
                first = torch.autograd.grad(function(gate, up).square().sum(), (gate, up), create_graph=True)
                results.append(torch.autograd.grad(first[index].square().sum(), (gate, up)))
            torch.testing.assert_close(*results)


class TestTransforms:
    """The dispatcher's operator has no rule for them and says so; the public function has the reference."""

    def direct(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return torch.ops.opwright.gated_activation_forward(gate, up, 0, 1.0, None, 0.0, False)

    def test_grad(self) -> None:
        gate, up = torch.randn(5), torch.randn(5)
        message = r"gated_activation_forward: expected no torch.func transform .*, but got one; call opwright"
        with pytest.raises(RuntimeError, match=message):
            torch.func.grad(lambda g: self.direct(g, up).sum())(gate)
        found = torch.func.grad(lambda g: gated_activation(g, up).sum())(gate)
        torch.testing.assert_close(found, torch.func.grad(lambda g: (g * g.sigmoid() * up).sum())(gate))

    def test_forward_mode(self) -> None:
        gate, up = torch.randn(5), torch.randn(5)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(gate, torch.ones(5))
            with pytest.raises(RuntimeError, match="expected no forward-mode derivative"):
                self.direct(dual, up)
            tangent = forward_ad.unpack_dual(gated_activation(dual, up)).tangent
        _, expected = torch.func.jvp(lambda g: g * g.sigmoid() * up, (gate,), (torch.ones(5),))
        torch.testing.assert_close(tangent, expected)
