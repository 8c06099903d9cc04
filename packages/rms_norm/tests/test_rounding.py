"""Where the operators round: bit by bit, given the row statistics that the operators return themselves.

A formula with the row's own ``rstd`` has no freedom left: every product is one operation of IEEE arithmetic,
so the result must agree in every bit, at every instruction-set level. What is left is ``rstd`` itself, which
must be within 2 units in the last place of the true value. The formulas are written out here, apart from the
reference.
"""

import decimal
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from opwright.rms_norm import add_rms_norm, reference, rms_norm, rms_norm_gated

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
LOW = (BF16, FP16, FP32)
DTYPES = [*itertools.product(LOW, (*LOW, None)), *((FP64, w) for w in (*LOW, FP64, None))]
WIDTHS = (1, 7, 64, 300)
ONCE, LLAMA = 0, 1
ROUNDED, EXACT = 0, 1
SILU, SIGMOID = 0, 1
ops = torch.ops.opwright


def randn(*shape, dtype=FP32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # rows of very different magnitude, none of them near the limits of float16
    scale = torch.exp2(torch.randint(-6, 7, (*shape[:-1], 1), generator=generator).double())
    return (scale * torch.randn(*shape, generator=generator, dtype=FP64)).to(dtype)


def weight(width, dtype, seed=9):
    return None if dtype is None else randn(width, dtype=dtype, seed=seed)


def wide(tensor, dtype):
    """``tensor`` in the dtype of the arithmetic for inputs of ``dtype``."""
    return tensor.to(FP64 if dtype == FP64 else FP32)


def scaled(value, rstd, w, offset, rounding, dtype):
    """``value * rstd * (w + offset)`` with the roundings of a mode, for inputs of ``dtype``."""
    product = value * rstd.unsqueeze(-1)
    if rounding == ONCE:
        return (product if w is None else product * (wide(w, dtype) + offset)).to(dtype)
    product = product.to(dtype)
    if w is None:
        return product
    return (wide(product, dtype) * (wide(w, dtype) + offset)).to(torch.promote_types(dtype, w.dtype))


def same(actual, expected):
    assert actual.dtype == expected.dtype
    assert torch.equal(actual, expected), f"{(actual != expected).sum()} of {actual.numel()} elements differ"


class TestBitForBit:
    @pytest.mark.parametrize(("dtype", "weight_dtype"), DTYPES)
    @pytest.mark.parametrize("rounding", [ONCE, LLAMA])
    @pytest.mark.parametrize("offset", [0.0, 1.0])
    def test_rms_norm(self, dtype, weight_dtype, rounding, offset):
        for width in WIDTHS:
            x, w = randn(33, width, dtype=dtype), weight(width, weight_dtype)
            out, rstd = ops.rms_norm_forward_raw(x, w, 1e-6, offset, rounding)
            assert rstd.dtype == wide(x, dtype).dtype
            same(out, scaled(wide(x, dtype), rstd, w, offset, rounding, dtype))

    @pytest.mark.parametrize(
        ("dtype", "weight_dtype"), [(BF16, BF16), (BF16, FP32), (FP16, BF16), (FP64, FP32)]
    )
    @pytest.mark.parametrize("rounding", [ONCE, LLAMA])
    def test_per_head_weight_and_strides(self, dtype, weight_dtype, rounding):
        x = randn(5, 6, 3, 70, dtype=dtype).transpose(0, 1)[..., ::2]
        w = randn(3, 70, dtype=weight_dtype, seed=9)[:, 1::2]
        out, rstd = ops.rms_norm_forward_raw(x, w, 1e-6, 0.0, rounding)
        assert rstd.shape == (6, 5, 3)
        same(out, scaled(wide(x, dtype), rstd, w, 0.0, rounding, dtype))

    @pytest.mark.parametrize("residual_dtype", LOW)
    @pytest.mark.parametrize(("dtype", "weight_dtype"), [*itertools.product(LOW, (BF16, FP32)), (FP64, FP32)])
    @pytest.mark.parametrize("rounding", [ONCE, LLAMA])
    @pytest.mark.parametrize("statistics", [ROUNDED, EXACT])
    def test_add_rms_norm(self, dtype, residual_dtype, weight_dtype, rounding, statistics):
        stored = torch.promote_types(dtype, residual_dtype)
        for width in WIDTHS:
            x, res = randn(33, width, dtype=dtype), randn(33, width, dtype=residual_dtype, seed=1)
            w = weight(width, weight_dtype)
            out, total, rstd = ops.add_rms_norm_forward_raw(x, res, w, 1e-6, 1.0, rounding, statistics)
            exact = wide(x, dtype) + wide(res, dtype)
            same(total, exact.to(stored))
            value = exact if statistics == EXACT else wide(total, dtype)
            same(out, scaled(value, rstd, w, 1.0, rounding, dtype))
            torch.testing.assert_close(
                rstd, torch.rsqrt(value.square().mean(-1) + 1e-6), rtol=1e-6, atol=0, check_dtype=True
            )
            if stored == residual_dtype and (
                rounding == ONCE or torch.promote_types(dtype, weight_dtype) == dtype
            ):
                ops.add_rms_norm_(x, res, w, 1e-6, 1.0, rounding, statistics)
                same(x, out)
                same(res, total)

    @pytest.mark.parametrize(("dtype", "weight_dtype"), DTYPES)
    @pytest.mark.parametrize("rounding", [ONCE, LLAMA])
    @pytest.mark.parametrize("norm_before_gate", [True, False])
    @pytest.mark.parametrize("gated", [True, False])
    def test_gated_where_the_activation_is_exact(
        self, dtype, weight_dtype, rounding, norm_before_gate, gated
    ):
        """sigmoid(0) is 0.5 and sigmoid(1000) is 1 in every arithmetic: what is left is rounding."""
        for width, groups in ((64, 1), (96, 3)):
            x, w = randn(33, width, dtype=dtype), weight(width, weight_dtype)
            gate = 1000 * (randn(33, width, seed=4) > 0).to(dtype) if gated else None
            act = wide(torch.where(gate > 0, 1.0, 0.5), dtype) if gated else 1.0
            size = width // groups
            out, rstd = ops.rms_norm_gated_forward_raw(
                x, gate, w, 1e-6, SIGMOID, norm_before_gate, size, rounding
            )
            assert rstd.shape == (33, groups)
            value = wide(x, dtype)
            each = rstd.repeat_interleave(size, -1)
            if not norm_before_gate:
                product = (value * act) * each
                same(out, scaled(product, torch.ones(33).to(each), w, 0.0, rounding, dtype))
                continue
            if rounding == ONCE:
                product = value * each
                product = product if w is None else product * wide(w, dtype)
            else:
                product = wide(scaled(value * each, torch.ones(33).to(each), w, 0.0, LLAMA, dtype), dtype)
            same(out, (product * act).to(dtype))

    @pytest.mark.parametrize("activation", [SILU, SIGMOID])
    @pytest.mark.parametrize("norm_before_gate", [True, False])
    @pytest.mark.parametrize("rounding", [ONCE, LLAMA])
    def test_gated_to_the_last_place_of_the_activation(self, activation, norm_before_gate, rounding):
        """Elsewhere the activation's own last place shows, in bfloat16 in less than one element in 10,000."""
        x, w = randn(2048, 128, dtype=BF16), weight(128, BF16)
        gate = 3 * torch.randn(2048, 128, generator=torch.Generator().manual_seed(4)).to(BF16)
        out, rstd = ops.rms_norm_gated_forward_raw(
            x, gate, w, 1e-6, activation, norm_before_gate, 128, rounding
        )
        act = F.silu(gate.float()) if activation == SILU else torch.sigmoid(gate.float())
        ones = torch.ones(2048)
        if not norm_before_gate:
            expected = scaled((x.float() * act) * rstd, ones, w, 0.0, rounding, BF16)
        elif rounding == ONCE:
            expected = (x.float() * rstd * w.float() * act).to(BF16)
        else:
            expected = (scaled(x.float() * rstd, ones, w, 0.0, LLAMA, BF16).float() * act).to(BF16)
        assert (out != expected).sum() <= 1e-4 * out.numel()
        torch.testing.assert_close(out, expected, rtol=2 * torch.finfo(BF16).eps, atol=0)


PROFILES = {
    "normal": lambda x: x,
    "small": lambda x: x * 2.0**-14,
    "large": lambda x: x * 2.0**12,
    "far from zero": lambda x: x + 1000,
    "one spike": lambda x: torch.where(torch.arange(x.shape[-1]) == 0, 3.0e4, x),
    "constant": lambda x: torch.full_like(x, 1.1),
}


def true_rstd(row, eps):
    """``1 / sqrt(mean(row ** 2) + eps)`` to 50 digits."""
    with decimal.localcontext(decimal.Context(prec=60)):
        squares = sum((decimal.Decimal(v) ** 2 for v in row.double().tolist()), decimal.Decimal(0))
        return 1 / (squares / len(row) + decimal.Decimal(eps)).sqrt()


def units(value, truth, dtype):
    """Distance of ``value`` from ``truth`` in units of the last place that ``truth`` has in ``dtype``."""
    _, exponent = math.frexp(float(truth))
    unit = decimal.Decimal(math.ldexp(torch.finfo(dtype).eps, exponent - 1))
    return float(abs(decimal.Decimal(value) - truth) / unit)


class TestRstd:
    @pytest.mark.parametrize("dtype", [*LOW, FP64])
    @pytest.mark.parametrize("profile", PROFILES)
    @pytest.mark.parametrize("eps", [0.0, 1e-6])
    def test_is_close_to_the_true_value(self, dtype, profile, eps, record_property):
        """Within 2 units in float32; float64 has no wider type to add in, so its bound grows with the row."""
        arithmetic = FP64 if dtype == FP64 else FP32
        worst = 0.0
        for width in (1, 3, 64, 257, 1024, 4096):
            x = torch.randn(3, width, generator=torch.Generator().manual_seed(width))
            x = PROFILES[profile](x).to(dtype)
            x[x == 0] = torch.finfo(dtype).smallest_normal  # a row of zeros has no norm without eps
            _, rstd = ops.rms_norm_forward_raw(x, None, eps, 0.0, ONCE)
            errors = [units(value.item(), true_rstd(row, eps), arithmetic) for row, value in zip(x, rstd)]
            assert max(errors) <= (2 if dtype != FP64 else 2 + width / 64), width
            worst = max(worst, *errors)
        record_property("max_ulp", worst)

    def test_units_counts_last_places(self):
        assert units(1 + 2**-23, decimal.Decimal(1), FP32) == 1
        assert units(0.5 - 2**-25, decimal.Decimal("0.5"), FP32) == 0.5
        assert units(3.0, decimal.Decimal(3) + decimal.Decimal(2**-21), FP32) == 2

    @pytest.mark.parametrize("statistics", [ROUNDED, EXACT])
    def test_of_the_sum(self, statistics):
        x, res = randn(5, 257, dtype=BF16), randn(5, 257, dtype=BF16, seed=1)
        _, total, rstd = ops.add_rms_norm_forward_raw(x, res, None, 1e-6, 0.0, ONCE, statistics)
        value = total if statistics == ROUNDED else x.float() + res.float()
        for row, got in zip(value, rstd):
            assert units(got.item(), true_rstd(row, 1e-6), FP32) <= 2

    def test_of_groups_behind_a_gate(self):
        x, gate = randn(5, 96), randn(5, 96, seed=1)
        _, rstd = ops.rms_norm_gated_forward_raw(x, gate, None, 1e-6, SIGMOID, False, 32, ONCE)
        value = (x.double() * torch.sigmoid(gate.double())).unflatten(-1, (3, 32)).flatten(0, 1)
        # the activation's own error, up to 2 units, is part of the value here
        for row, got in zip(value, rstd.flatten()):
            assert units(got.item(), true_rstd(row, 1e-6), FP32) <= 4


class TestCasesFromReports:
    """Numbers with which other implementations were found wrong."""

    @pytest.mark.parametrize("rounding", ["once", "llama"])
    def test_squares_leave_the_range_of_float16(self, rounding):
        w = torch.ones(1, dtype=FP16)
        for value, width in ((300.0, 4), (60000.0, 4096)):
            x = torch.full((2, width), value, dtype=FP16)
            assert torch.equal(rms_norm(x, w.expand(width), rounding=rounding), torch.ones_like(x))
        x = torch.full((2, 4), 1e-4, dtype=FP16)
        expected = x.double() / (x.double() ** 2 + 1e-6).sqrt()
        torch.testing.assert_close(rms_norm(x, w.expand(4)).double(), expected, rtol=2**-10, atol=0)
        assert 0.0994 < rms_norm(x, w.expand(4))[0, 0] < 0.0996

    @pytest.mark.parametrize("rounding", ["once", "llama"])
    def test_a_sum_beyond_float16(self, rounding):
        """The sum is stored as infinity. Its own norm is then NaN, as in PyTorch; the exact sum's is one."""
        x = torch.full((2, 4), 40000.0, dtype=FP16)
        out, total = add_rms_norm(x, x, statistics="exact", rounding=rounding)
        assert total.isposinf().all()
        assert torch.equal(out, torch.ones_like(x))
        out, total = add_rms_norm(x, x, statistics="rounded", rounding=rounding)
        assert total.isposinf().all()
        assert out.isnan().all()
        assert rms_norm(total, rounding=rounding).isnan().all()
        assert F.rms_norm(total, (4,)).isnan().all()

    @pytest.mark.parametrize("rounding", ["once", "llama"])
    def test_a_small_weight_survives_its_offset(self, rounding):
        """1 + 2**-8 is 1 in bfloat16: a scale formed there is 0.39% too small in every element.

        With llama's rounding the product of bfloat16 values with this scale is above the true one nearly
        always, so there only the gradient tells; its output is compared bit by bit above, with an offset too.
        """
        x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(1)).to(BF16)
        w = torch.full((4096,), 2.0**-8, dtype=BF16)
        grad = torch.randn(64, 4096, generator=torch.Generator().manual_seed(2)).to(BF16)
        leaf = x.clone().requires_grad_()
        out = rms_norm(leaf, w, weight_offset=1.0, rounding=rounding)
        (dx,) = torch.autograd.grad(out, leaf, grad)
        exact = x.double().requires_grad_()
        true_out = reference.rms_norm(exact, w.double(), weight_offset=1.0)
        (true_dx,) = torch.autograd.grad(true_out, exact, grad.double())
        assert abs(bias(dx, true_dx)) < 1e-4
        if rounding == "once":
            assert abs(bias(out, true_out)) < 1e-4

    @pytest.mark.parametrize(("rounding", "output_dtype"), [("once", BF16), ("llama", FP32)])
    def test_float32_weight_with_bfloat16_input(self, rounding, output_dtype):
        x = (1.0039 * torch.randn(64, 96, generator=torch.Generator().manual_seed(1))).to(BF16)
        w = (1.0039 * torch.randn(96, generator=torch.Generator().manual_seed(2))).requires_grad_()
        x.requires_grad_()
        res = torch.randn(64, 96, generator=torch.Generator().manual_seed(3)).to(BF16).requires_grad_()
        out, total = add_rms_norm(x, res, w, rounding=rounding)
        assert out.dtype == rms_norm(x, w, rounding=rounding).dtype == output_dtype
        assert total.dtype == BF16
        assert rms_norm_gated(x, res, w, rounding=rounding).dtype == BF16
        assert rms_norm_gated(x, res, w, rounding=rounding, norm_before_gate=False).dtype == output_dtype
        for tensor, grad in zip((x, res, w), torch.autograd.grad((out.sum(), total.sum()), (x, res, w))):
            assert grad.dtype == tensor.dtype

    @pytest.mark.parametrize("rounding", [ONCE, LLAMA])
    def test_no_error_is_common_to_a_row(self, rounding):
        """A reciprocal root that is rounded to bfloat16 moves its whole row by up to 0.4%.

        The truth is the mode's own formula with the statistics in float64. (Rounding ``x * r`` to bfloat16
        has a bias of its own where ``r`` is close to a power of two: then ``x`` itself is the nearest value.)
        """
        x = randn(256, 4096, dtype=BF16)
        w = torch.randn(4096, generator=torch.Generator().manual_seed(1))
        rstd = torch.rsqrt(x.double().square().mean(-1) + 1e-6)
        product = x.double() * rstd.unsqueeze(-1)
        truth = (product if rounding == ONCE else product.float().to(BF16).double()) * w.double()
        out, _ = ops.rms_norm_forward_raw(x, w, 1e-6, 0.0, rounding)
        assert bias(out, truth, -1).abs().max() < 2e-4
        coarse = (x.double() * rstd.to(BF16).double().unsqueeze(-1) * w.double()).to(BF16)
        assert bias(coarse, product * w.double(), -1).abs().max() > 1e-3


def bias(got, truth, dim=None):
    """Mean signed error relative to the truth, weighed by it so that elements near zero do not decide."""
    return ((got.double() - truth) * truth.sign()).sum(dim) / truth.abs().sum(dim)
