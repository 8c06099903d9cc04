"""Faults reported against other implementations, each as the values that would show it here.

Tensors of more than 2**31 elements take more memory than a test may: their offset arithmetic is exercised
through strides of that size.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from opwright.rotary import RotaryEmbedding, apply_rotary, reference
from shared_build.conformance import machine

Tensor = torch.Tensor
PAIRINGS = [{}, {"interleaved": True}, {"deinterleave": True}]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def table(length: int, rotary_dim: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """``theta ** (-2i / rotary_dim)`` in float64: the exponent counts rotated columns only."""
    frequencies = base ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return angle.cos(), angle.sin()


class TestOffsetsBeyond32Bits:
    """Offsets of more than 2**31 elements."""

    @pytest.mark.parametrize("options", PAIRINGS)
    def test_packed_projection_whose_batch_is_far_apart(self, options):
        """The last batch element of a packed qkv lies 2**31 elements behind the first."""
        step = 2**31 + 16
        buffer = machine.reserve(step + 4096, torch.bfloat16)
        qkv = buffer.as_strided((2, 4, 3, 2, 72), (step, 432, 144, 72, 1))
        qkv.copy_(draw(2, 4, 3, 2, 72))
        cos, sin = table(4, 72)
        options = dict(options, cos=cos.float(), sin=sin.float())
        q, k = apply_rotary(qkv[:, :, 0], qkv[:, :, 1], **options)
        alone = qkv[-1:].clone()
        q_alone, k_alone = apply_rotary(alone[:, :, 0], alone[:, :, 1], **options)
        assert torch.equal(q[-1:], q_alone)
        assert torch.equal(k[-1:], k_alone)


class TestPartial:
    """head_dim for rotary_dim, in the exponent of the frequencies and in the distance of a pair."""

    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("trailing", [False, True])
    def test_positions_and_untouched_columns(self, interleaved, trailing):
        places = torch.tensor([0, 1, 700, 2355])
        x = draw(1, 4, 2, 256).requires_grad_()
        cos, sin = table(2356, 64)
        out = apply_rotary(
            x,
            cos=cos.float(),
            sin=sin.float(),
            positions=places,
            interleaved=interleaved,
            rotary_dim=64,
            trailing=trailing,
        )
        part = slice(192, 256) if trailing else slice(0, 64)
        rest = slice(0, 192) if trailing else slice(64, 256)
        rotated = x.detach().double()[..., part]
        a, b = (
            (rotated[..., 0::2], rotated[..., 1::2])
            if interleaved
            else (rotated[..., :32], rotated[..., 32:])
        )
        c, s = cos[places][:, None], sin[places][:, None]
        turned = (a * c - b * s, b * c + a * s)
        expected = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
        torch.testing.assert_close(out[..., part].double(), expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(out[..., rest].detach().view(torch.int32), x[..., rest].detach().view(torch.int32))
        up = draw(1, 4, 2, 256, seed=1)
        (grad,) = torch.autograd.grad(out, x, up)
        assert torch.equal(grad[..., rest], up[..., rest])

    def test_nan_payloads_pass(self):
        """Columns that are not rotated keep every bit, signalling NaNs of 16-bit types too."""
        bits = torch.tensor([0x7F81, 0x7FC1, 0xFF82, 0x8000, 0x0001, 0x7F80], dtype=torch.int32)
        x = bits.to(torch.int16).view(torch.bfloat16).view(1, 1, 6)
        cos, sin = table(1, 2)
        out = apply_rotary(x, cos=cos.float(), sin=sin.float(), rotary_dim=2, trailing=True)
        assert torch.equal(out[..., :4].view(torch.int16), x[..., :4].view(torch.int16))
        none = apply_rotary(x, cos=cos[:, :0].float(), sin=sin[:, :0].float(), rotary_dim=0)
        assert torch.equal(none.view(torch.int16), x.view(torch.int16))

    @pytest.mark.parametrize("rotary_dim", [256, None])
    def test_all_columns(self, rotary_dim):
        x = draw(1, 3, 2, 256)
        cos, sin = (t.float() for t in table(3, 256))
        out = apply_rotary(x, cos=cos, sin=sin, rotary_dim=rotary_dim)
        torch.testing.assert_close(out, reference.apply_rotary(x, cos=cos, sin=sin))


class TestHeads:
    """k indexed with q's heads, and one stride for q and k."""

    @pytest.mark.parametrize("options", PAIRINGS)
    def test_different_strides_of_q_and_k(self, options):
        q_full, k_full = draw(8, 64, 256, dtype=torch.bfloat16), draw(8, 41, 64, seed=1, dtype=torch.bfloat16)
        q, k = q_full[..., :64], k_full[:, :1]
        assert (q.stride(), k.stride()) == ((16384, 256, 1), (2624, 64, 1))
        cos, sin = (t.float() for t in table(2048, 64))
        positions = torch.tensor([5, 0, 2047, 3, 3, 1000, 1, 8])
        options = dict(options, cos=cos, sin=sin, positions=positions)
        got = apply_rotary(q, k, **options)
        dense = apply_rotary(q.contiguous(), k.contiguous(), **options)
        for a, b, c in zip(got, dense, reference.apply_rotary(q, k, **options), strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c)

    @pytest.mark.parametrize(("heads", "few"), [(64, 1), (8, 8), (3, 1)])
    def test_ratios(self, heads, few):
        q, k = draw(2, 5, heads, 32), draw(2, 5, few, 32, seed=1)
        cos, sin = (t.float() for t in table(5, 32))
        got_q, got_k = apply_rotary(q, k, cos=cos, sin=sin)
        assert torch.equal(got_q, apply_rotary(q, cos=cos, sin=sin))
        assert torch.equal(got_k, apply_rotary(k, cos=cos, sin=sin))


class TestTablesOfAModule:
    """A table made under inference mode, and kept for other devices, dtypes and lengths."""

    def test_inference_first_then_training(self):
        rotary = RotaryEmbedding(8)
        x = draw(2, 5, 3, 8)
        with torch.inference_mode():
            expected = rotary(x).clone()
        leaf = x.clone().requires_grad_()
        out = rotary(leaf)
        assert torch.equal(out.detach(), expected)
        up = draw(2, 5, 3, 8, seed=1)
        (grad,) = torch.autograd.grad(out, leaf, up)
        torch.testing.assert_close(rotary(grad), up)

    def test_tables_given_by_a_user_under_inference_mode(self):
        with torch.inference_mode():
            cos, sin = (t.float() for t in table(5, 8))
        x = draw(2, 5, 3, 8).requires_grad_()
        up = draw(2, 5, 3, 8, seed=1)
        (grad,) = torch.autograd.grad(apply_rotary(x, cos=cos, sin=sin), x, up)
        (expected,) = torch.autograd.grad(apply_rotary(x, cos=cos.clone(), sin=sin.clone()), x, up)
        assert torch.equal(grad, expected)

    def test_longer_sequences_and_other_dtypes(self):
        rotary = RotaryEmbedding(8)
        for length, dtype in (
            (5, torch.float32),
            (9, torch.float32),
            (9, torch.float64),
            (4, torch.bfloat16),
        ):
            x = draw(1, length, 2, 8, dtype=dtype)
            cos, sin = table(length, 8)
            compute = torch.float64 if dtype == torch.float64 else torch.float32
            expected = reference.apply_rotary(x, cos=cos.to(compute), sin=sin.to(compute))
            torch.testing.assert_close(rotary(x), expected)
        assert rotary(torch.empty(1, 3, 2, 8, device="meta")).device.type == "meta"
        torch.testing.assert_close(copy.deepcopy(rotary)(x), rotary(x), rtol=0, atol=0)

    def test_angles_are_not_rounded_to_the_models_dtype(self):
        """Far positions in bfloat16: the angle itself must not be rounded to 8 bits."""
        rotary = RotaryEmbedding(8).to(torch.bfloat16)
        x = torch.ones(1, 1, 1, 8, dtype=torch.bfloat16)
        cos, sin = table(4002, 8)
        expected = reference.apply_rotary(x.double(), cos=cos, sin=sin, offsets=4001)
        torch.testing.assert_close(rotary(x, offsets=4001).double(), expected, rtol=1e-2, atol=1e-2)


class TestInputsAreKept:
    """Inputs overwritten where they are contiguous, and copied where not."""

    @pytest.mark.parametrize("options", PAIRINGS)
    @pytest.mark.parametrize("transposed", [False, True])
    def test_called_twice(self, options, transposed):
        q = draw(2, 3, 5, 8).transpose(1, 2) if transposed else draw(2, 5, 3, 8)
        before = q.clone()
        cos, sin = (t.float() for t in table(5, 8))
        first, second = (apply_rotary(q, cos=cos, sin=sin, **options) for _ in range(2))
        assert torch.equal(first, second)
        assert torch.equal(q, before)
        assert first.data_ptr() != q.data_ptr()

    def test_used_elsewhere_in_the_loss(self):
        x = draw(2, 5, 3, 8, dtype=torch.float64).requires_grad_()
        cos, sin = table(5, 8)

        def loss(rotate) -> Tensor:
            return (rotate(x, cos=cos, sin=sin) * x.square()).sum() + x.sin().sum()

        (got,) = torch.autograd.grad(loss(apply_rotary), x)
        (expected,) = torch.autograd.grad(loss(reference.apply_rotary), x)
        torch.testing.assert_close(got, expected)

    def test_in_place_counts_a_version(self):
        q = draw(2, 5, 3, 8)
        cos, sin = (t.float() for t in table(5, 8))
        expected = apply_rotary(q, cos=cos, sin=sin)
        version = q._version
        assert apply_rotary(q, cos=cos, sin=sin, inplace=True) is q
        assert q._version > version
        assert torch.equal(q, expected)


class TestBackward:
    """A backward without the pairing or the sign of the forward."""

    @pytest.mark.parametrize("pairing", PAIRINGS)
    @pytest.mark.parametrize("rotary_dim", [4, 6])
    @pytest.mark.parametrize("places", ["positions", "offsets"])
    @pytest.mark.parametrize("alone", [0, 1])
    def test_gradcheck(self, pairing, rotary_dim, places, alone):
        q, k = draw(2, 3, 2, 6, dtype=torch.float64), draw(2, 3, 1, 6, seed=1, dtype=torch.float64)
        cos, sin = table(9, rotary_dim)
        where = {
            "positions": {"positions": torch.tensor([[4, 0, 8], [1, 1, 2]])},
            "offsets": {"offsets": torch.tensor([6, 1])},
        }[places]
        tensors = [q, k]
        tensors[alone].requires_grad_()

        def f(x: Tensor) -> Tensor:
            given = [x if i == alone else t for i, t in enumerate(tensors)]
            out = apply_rotary(*given, cos=cos, sin=sin, rotary_dim=rotary_dim, **pairing, **where)
            assert not out[1 - alone].requires_grad
            return out[alone]

        assert torch.autograd.gradcheck(f, (tensors[alone],))
        assert torch.autograd.gradgradcheck(f, (tensors[alone],))

    @pytest.mark.parametrize("pairing", PAIRINGS)
    def test_a_right_angle(self, pairing):
        x = torch.tensor([1.0, 0.0]).view(1, 1, 2).requires_grad_()
        out = apply_rotary(x, cos=torch.zeros(1, 1), sin=torch.ones(1, 1), **pairing)
        assert out.flatten().tolist() == [0.0, 1.0]
        (grad,) = torch.autograd.grad(out, x, torch.tensor([1.0, 0.0]).view(1, 1, 2))
        assert grad.flatten().tolist() == [0.0, -1.0]

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_negated_sines_invert(self, interleaved):
        x = draw(2, 5, 3, 16, dtype=torch.float64)
        cos, sin = table(5, 16)
        there = apply_rotary(x, cos=cos, sin=sin, interleaved=interleaved)
        torch.testing.assert_close(apply_rotary(there, cos=cos, sin=-sin, interleaved=interleaved), x)


class TestLongAxes:
    """An axis of more than 65535."""

    @pytest.mark.parametrize(
        "shape", [(1, 65535, 1, 4), (1, 65536, 1, 4), (1, 131072, 1, 4), (65536, 1, 1, 4), (1, 1, 65536, 4)]
    )
    def test_sizes(self, shape):
        x = draw(*shape)
        cos, sin = (t.float() for t in table(shape[1], 4))
        torch.testing.assert_close(
            apply_rotary(x, cos=cos, sin=sin), reference.apply_rotary(x, cos=cos, sin=sin)
        )


class TestModulesTravel:
    """Local closures stored on the module."""

    @pytest.mark.parametrize("used", [False, True])
    def test_pickle_save_and_copy(self, used):
        rotary = RotaryEmbedding(8, interleaved=True)
        x = draw(2, 5, 3, 8)
        if used:
            rotary(x)
        assert rotary.state_dict() == {}
        buffer = io.BytesIO()
        torch.save(rotary, buffer)
        buffer.seek(0)
        copies = [
            pickle.loads(pickle.dumps(rotary)),
            torch.load(buffer, weights_only=False),
            copy.deepcopy(rotary),
        ]
        for each in copies:
            each.load_state_dict(rotary.state_dict(), strict=True)
            assert torch.equal(each(x), rotary(x))


class TestPositionsOutsideTheTable:
    """An index out of range raises IndexError on the CPU, and nothing is written."""

    @pytest.mark.parametrize("inplace", [False, True])
    @pytest.mark.parametrize("wrong", [-1, 5, 2**40])
    def test_nothing_is_written(self, inplace, wrong):
        q, k = draw(2, 3, 2, 8), draw(2, 3, 1, 8, seed=1)
        before = q.clone(), k.clone()
        cos, sin = (t.float() for t in table(5, 8))
        positions = torch.tensor([[0, 1, 2], [3, 4, wrong]])
        with pytest.raises(IndexError, match=f"positions from 0 to 4, the rows of cos, but got {wrong}$"):
            apply_rotary(q, k, cos=cos, sin=sin, positions=positions, inplace=inplace)
        assert torch.equal(q, before[0])
        assert torch.equal(k, before[1])


class TestPackedViewsInPlace:
    """q and k of one packed projection interleave in memory and share no element."""

    @pytest.mark.parametrize("options", PAIRINGS)
    @pytest.mark.parametrize("heads_first", [False, True])
    def test_views_of_a_fused_projection(self, options, heads_first):
        fused = draw(2, 5, 8, 16)
        cos, sin = (t.float() for t in table(5, 16))
        options = dict(options, cos=cos, sin=sin)
        q, k, v = fused.split((4, 2, 2), 2)
        value = v.clone()
        if heads_first:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
            options["seq_dim"] = 2
        expected = apply_rotary(q, k, **options)
        apply_rotary(q, k, inplace=True, **options)
        assert torch.equal(q, expected[0])
        assert torch.equal(k, expected[1])
        assert torch.equal(v, value)

    def test_stacked_projection(self):
        qkv = draw(2, 5, 3, 4, 16)
        cos, sin = (t.float() for t in table(5, 16))
        q, k = qkv[:, :, 0], qkv[:, :, 1]
        expected = apply_rotary(q, k, cos=cos, sin=sin)
        apply_rotary(q, k, cos=cos, sin=sin, inplace=True)
        assert torch.equal(qkv[:, :, 0], expected[0])
        assert torch.equal(qkv[:, :, 1], expected[1])

    def test_k_first_and_more_heads_than_k(self):
        fused = draw(3, 7, 9, 8)
        cos, sin = (t.float() for t in table(7, 8))
        k, q = fused.split((2, 7), 2)
        expected = apply_rotary(q, k, cos=cos, sin=sin)
        apply_rotary(q, k, cos=cos, sin=sin, inplace=True)
        assert torch.equal(q, expected[0])
        assert torch.equal(k, expected[1])

    @pytest.mark.parametrize(("first", "second"), [((0, 4), (3, 5)), ((0, 4), (0, 4)), ((2, 5), (0, 3))])
    def test_shared_heads_are_refused(self, first, second):
        fused = draw(2, 5, 6, 8)
        before = fused.clone()
        cos, sin = (t.float() for t in table(5, 8))
        q, k = fused[:, :, slice(*first)], fused[:, :, slice(*second)]
        with pytest.raises(ValueError, match="q and k whose elements lie apart, but got overlapping memory"):
            apply_rotary(q, k, cos=cos, sin=sin, inplace=True)
        assert torch.equal(fused, before)

    def test_shifted_tokens_are_refused(self):
        """The same columns, one token later: each view by itself is fine."""
        fused = draw(6, 2, 8)
        cos, sin = (t.float() for t in table(5, 8))
        with pytest.raises(ValueError, match="q and k whose elements lie apart"):
            apply_rotary(fused[:-1], fused[1:], cos=cos, sin=sin, inplace=True)

    def test_tables_are_refused(self):
        fused = draw(5, 2, 8)
        with pytest.raises(ValueError, match="q and the tables in memory of their own"):
            apply_rotary(fused, cos=fused[:, 0], sin=fused[:, 1], inplace=True)

    def test_nothing_is_written_where_autograd_refuses_k(self):
        """A result of split cannot be written with gradients: q keeps its values, too."""
        weight = draw(5, 6, 8).requires_grad_()
        fused = weight * 2
        q, k = fused[:, :4], fused.split((4, 2), 1)[1]
        cos, sin = (t.float() for t in table(5, 8))
        with pytest.raises(RuntimeError, match="view"):
            apply_rotary(q, k, cos=cos, sin=sin, inplace=True)
        assert torch.equal(fused, 2 * weight)

    def test_slices_with_gradients(self):
        weight = draw(5, 6, 8, dtype=torch.float64).requires_grad_()
        cos, sin = table(5, 8)

        def loss(inplace: bool) -> Tensor:
            fused = weight * 2
            q, k = apply_rotary(fused[:, :4], fused[:, 4:], cos=cos, sin=sin, inplace=inplace)
            return q.square().sum() + (k * k.detach().cos()).sum()

        got, expected = (torch.autograd.grad(loss(inplace), weight)[0] for inplace in (True, False))
        torch.testing.assert_close(got, expected)
