"""The drop-in names: each against the formula of its own library, written out here with its roundings."""

import copy
import inspect
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from opwright.rms_norm import drop_in
from opwright.rms_norm.drop_in import apex, flashinfer, liger, mamba_ssm, quack, torch_nn, vllm

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
EPS = 1e-5
WIDTH = 48


def randn(*shape, dtype=BF16, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normed(x, eps=EPS):
    """``x * rsqrt(mean(x ** 2) + eps)`` in float32, or float64 for float64."""
    x = x if x.dtype == FP64 else x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def agree(actual, expected):
    """The same dtype and values; the order of summation shows in steps, or in a few elements of 16 bits."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    low = expected.dtype in (BF16, FP16)
    torch.testing.assert_close(
        actual, expected, rtol=(2 if low else 8) * torch.finfo(actual.dtype).eps, atol=0
    )
    if low:
        assert (actual != expected).sum() <= max(1, 0.002 * expected.numel())


X, R, Z = randn(40, WIDTH), randn(40, WIDTH, seed=1), randn(40, WIDTH, seed=2)
W, W32 = randn(WIDTH, seed=3), randn(WIDTH, seed=3, dtype=FP32)


class TestTorch:
    @pytest.mark.parametrize("shape", [(WIDTH,), (5, 6), (2, 3, 7)])
    @pytest.mark.parametrize("dtype", [BF16, FP32, FP64])
    @pytest.mark.parametrize("eps", [None, 1e-3])
    @pytest.mark.parametrize("weighted", [True, False])
    def test_rms_norm_is_torchs(self, shape, dtype, eps, weighted):
        # small enough that the default eps, the machine epsilon of float32 or float64, shows
        x = 1e-4 * randn(11, *shape, dtype=dtype)
        w = randn(*shape, dtype=dtype, seed=1) if weighted else None
        agree(torch_nn.rms_norm(x, shape, w, eps), F.rms_norm(x, shape, w, eps))

    def test_a_transposed_input_with_two_normalised_dimensions(self):
        x = randn(5, 6, 11, dtype=FP32).permute(2, 1, 0)
        agree(torch_nn.rms_norm(x, [6, 5]), F.rms_norm(x, [6, 5]))

    def test_module(self):
        theirs, ours = nn.RMSNorm((5, 6)), torch_nn.RMSNorm((5, 6))
        nn.init.normal_(theirs.weight)
        ours.load_state_dict(theirs.state_dict())
        x = randn(3, 5, 6, dtype=FP32)
        agree(ours(x), theirs(x))
        assert repr(ours) == repr(theirs)
        assert isinstance(ours, nn.RMSNorm)

    @pytest.mark.parametrize(
        ("shape", "weight", "message"),
        [
            ((7,), None, r"expected input of shape \(\*, 7,\), but got \(40, 48\)"),
            ((3, 40, WIDTH), None, r"expected input of shape \(\*, 3, 40, 48\), but got \(40, 48\)"),
            ((), None, r"expected input of shape \(\*, \), but got \(40, 48\)"),
            ((WIDTH,), torch.ones(40, WIDTH), r"expected weight of shape \(48,\), but got \(40, 48\)"),
        ],
    )
    def test_errors(self, shape, weight, message):
        with pytest.raises(ValueError, match=f"^torch_nn.rms_norm: {message}$"):
            torch_nn.rms_norm(X, shape, weight)


class TestFlashinfer:
    @pytest.mark.parametrize(("name", "offset"), [("rmsnorm", 0.0), ("gemma_rmsnorm", 1.0)])
    def test_norms(self, name, offset):
        function = getattr(flashinfer, name)
        expected = (normed(X) * (W.float() + offset)).to(BF16)
        agree(function(X, W, EPS), expected)
        out = torch.empty_like(X)
        assert function(X, W, EPS, out=out) is out
        agree(out, expected)
        heads = randn(4, 3, WIDTH)
        agree(function(heads, W, EPS), (normed(heads) * (W.float() + offset)).to(BF16))
        assert torch.equal(function(X, W), function(X, W, 1e-6))

    @pytest.mark.parametrize(
        ("name", "offset"), [("fused_add_rmsnorm", 0.0), ("gemma_fused_add_rmsnorm", 1.0)]
    )
    def test_fused_add_is_in_place_on_both_and_normalises_the_unrounded_sum(self, name, offset):
        x, res = X.clone(), R.clone()
        assert getattr(flashinfer, name)(x, res, W, EPS) is None
        total = X.float() + R.float()
        assert torch.equal(res, total.to(BF16))
        agree(x, (normed(total) * (W.float() + offset)).to(BF16))

    def test_errors(self):
        with pytest.raises(
            ValueError, match=r"^flashinfer.rmsnorm: expected no enable_pdl, .* but got True$"
        ):
            flashinfer.rmsnorm(X, W, enable_pdl=True)
        with pytest.raises(ValueError, match=r"^flashinfer.fused_add_rmsnorm: expected no enable_pdl"):
            flashinfer.fused_add_rmsnorm(X.clone(), R.clone(), W, enable_pdl=True)
        with pytest.raises(
            ValueError, match=r"expected out of shape \(40, 48\) and dtype torch.bfloat16, but"
        ):
            flashinfer.rmsnorm(X, W, out=torch.empty(40, WIDTH))
        flashinfer.rmsnorm(X, W, enable_pdl=False)


class TestVllm:
    def test_rms_norm_writes_out(self):
        out = torch.empty_like(X)
        assert vllm.rms_norm(out, X, W, EPS) is None
        agree(out, (normed(X) * W.float()).to(BF16))

    def test_fused_add(self):
        x, res = X.clone(), R.clone()
        assert vllm.fused_add_rms_norm(x, res, W, EPS) is None
        assert torch.equal(res, X + R)
        agree(x, (normed(X + R) * W.float()).to(BF16))

    def test_rounds_as_llama_away_from_the_cpu(self):
        meta = torch.empty(2, 4, device="meta")
        assert vllm._rounding(meta) == "llama"
        assert vllm._rounding(X) == "once"

    def test_errors(self):
        with pytest.raises(ValueError, match=r"^vllm.rms_norm: expected weight of dtype torch.bfloat16, but"):
            vllm.rms_norm(torch.empty_like(X), X, W32, EPS)
        with pytest.raises(ValueError, match=r"^vllm.rms_norm: expected out of dtype torch.bfloat16, but"):
            vllm.rms_norm(torch.empty(40, WIDTH), X, W, EPS)
        with pytest.raises(ValueError, match=r"^vllm.fused_add_rms_norm: expected residual of dtype"):
            vllm.fused_add_rms_norm(X.clone(), R.float(), W, EPS)


class TestLiger:
    @pytest.mark.parametrize("offset", [0.0, 1.0])
    @pytest.mark.parametrize("weight", [W, W32])
    @pytest.mark.parametrize("in_place", [True, False])
    def test_modes(self, offset, weight, in_place):
        scale = weight.float() + offset
        llama = (normed(X).to(BF16).float() * scale).to(BF16)
        gemma = (normed(X) * scale).to(BF16)
        agree(liger.liger_rms_norm(X, weight, EPS, offset, "llama", in_place), llama)
        agree(liger.liger_rms_norm(X, weight, EPS, offset, "gemma", in_place), gemma)
        assert not torch.equal(llama, gemma)
        y, s = liger.liger_fused_add_rms_norm(X, R, weight, EPS, offset, "llama", in_place)
        assert torch.equal(s, X + R)
        agree(y, (normed(X + R).to(BF16).float() * scale).to(BF16))

    def test_defaults_are_llamas(self):
        expected = normed(X).to(BF16) * W
        agree(liger.liger_rms_norm(X, W, EPS), expected)
        agree(liger.liger_rms_norm(X, None, EPS), normed(X).to(BF16))

    def test_gradients_reach_every_input_and_the_incoming_one_is_left_alone(self):
        x, res, w = X.clone().requires_grad_(), R.clone().requires_grad_(), W.clone().requires_grad_()
        y, s = liger.liger_fused_add_rms_norm(x, res, w, EPS)
        grads = torch.ones_like(y), torch.ones_like(s)
        before = [g.clone() for g in grads]
        torch.autograd.backward((y, s), grads)
        assert all(t.grad is not None and t.grad.any() for t in (x, res, w))
        assert all(torch.equal(g, b) for g, b in zip(grads, before))

    def test_casting_mode_none(self):
        x = X.float()
        agree(liger.liger_rms_norm(x, W32, EPS, casting_mode="none"), normed(x) * W32)
        for args in ((X, W), (x, W)):
            with pytest.raises(
                ValueError, match=r"expected float32 or float64 tensors with casting_mode none"
            ):
                liger.liger_rms_norm(*args, EPS, casting_mode="none")

    def test_errors(self):
        with pytest.raises(
            ValueError, match=r"expected casting_mode to be one of llama, gemma, none, but got t5"
        ):
            liger.liger_rms_norm(X, W, EPS, casting_mode="t5")
        with pytest.raises(ValueError, match=r"^liger.liger_fused_add_rms_norm: expected R of dtype"):
            liger.liger_fused_add_rms_norm(X, R.float(), W, EPS)


class TestQuack:
    @pytest.mark.parametrize("out_dtype", [None, BF16, FP16, FP32])
    @pytest.mark.parametrize("dtype", [BF16, FP32])
    @pytest.mark.parametrize("weight", [None, W, W32])
    def test_one_rounding_to_the_dtype_asked_for(self, out_dtype, dtype, weight):
        x = X.to(dtype)
        scale = 1.0 if weight is None else weight.float() + 0.5
        out = quack.rmsnorm(x, weight, out_dtype=out_dtype, eps=EPS, weight_offset=0.5)
        agree(out, (normed(x) * scale).to(out_dtype or dtype))

    @pytest.mark.parametrize("residual_dtype", [BF16, FP16, FP32])
    @pytest.mark.parametrize("dtype", [BF16, FP32])
    def test_residual(self, residual_dtype, dtype):
        x, res = X.to(dtype), R.to(residual_dtype)
        out, total = quack.rmsnorm(x, W, residual=res, eps=EPS, prenorm=True)
        exact = x.float() + res.float()
        agree(out, (normed(exact) * W.float()).to(dtype))
        assert total.dtype == residual_dtype
        assert torch.equal(total, exact.to(residual_dtype))
        assert torch.equal(quack.rmsnorm(x, W, residual=res, eps=EPS), out)

    def test_prenorm_without_residual(self):
        out, total = quack.rmsnorm(X, W, prenorm=True)
        agree(out, (normed(X, 1e-6) * W.float()).to(BF16))
        assert torch.equal(total, X)
        _, total = quack.rmsnorm(X, W, prenorm=True, residual_dtype=FP32)
        assert torch.equal(total, X.float())

    def test_per_head_weight(self):
        x, w = randn(7, 3, WIDTH), randn(3, WIDTH, seed=4)
        agree(quack.rmsnorm(x, w, eps=EPS), (normed(x) * w.float()).to(BF16))

    def test_bias_is_refused(self):
        with pytest.raises(ValueError, match=r"^quack.rmsnorm: expected no bias, .* but got a tensor$"):
            quack.rmsnorm(X, W, bias=W)

    def test_module(self):
        module = quack.QuackRMSNorm(WIDTH, dtype=BF16)
        assert module.eps == 1e-6
        agree(module(X), normed(X, 1e-6).to(BF16))


class TestApex:
    def test_functions(self):
        expected = (normed(X) * W.float()).to(BF16)
        agree(apex.fused_rms_norm_affine(X, W, (WIDTH,), EPS), expected)
        agree(apex.fused_rms_norm(X, (WIDTH,), EPS), normed(X).to(BF16))
        agree(apex.mixed_dtype_fused_rms_norm_affine(X, W32, (WIDTH,), EPS), normed(X) * W32)
        agree(apex.mixed_dtype_fused_rms_norm_affine(X.float(), W, (WIDTH,), EPS), expected)

    def test_modules(self):
        module = apex.FusedRMSNorm(WIDTH).to(BF16)
        assert module.eps == 1e-5
        agree(module(X), normed(X).to(BF16))
        agree(
            apex.FusedRMSNorm([4, 12], elementwise_affine=False)(X.view(40, 4, 12)).flatten(1),
            normed(X).to(BF16),
        )
        mixed = apex.MixedFusedRMSNorm(WIDTH)
        agree(mixed(X), normed(X))
        assert list(mixed.state_dict()) == ["weight"]

    def test_errors(self):
        for call in (
            lambda: apex.fused_rms_norm(X, (WIDTH,), memory_efficient=True),
            lambda: apex.FusedRMSNorm(WIDTH, memory_efficient=True),
            lambda: apex.MixedFusedRMSNorm(WIDTH, memory_efficient=True),
        ):
            with pytest.raises(
                ValueError, match=r"^apex\.\w+: expected no memory_efficient, .* but got True$"
            ):
                call()


class TestMamba:
    @pytest.mark.parametrize("group_size", [None, 16])
    @pytest.mark.parametrize("norm_before_gate", [True, False])
    @pytest.mark.parametrize("gated", [True, False])
    def test_rmsnorm_fn(self, group_size, norm_before_gate, gated):
        z = Z if gated else None
        act = F.silu(Z.float()) if gated else 1.0
        value = X.float() if norm_before_gate else X.float() * act
        groups = value.unflatten(-1, (-1, group_size or WIDTH))
        expected = normed(groups).flatten(-2) * W.float() * (act if norm_before_gate else 1.0)
        out = mamba_ssm.rmsnorm_fn(X, W, None, z, EPS, group_size, norm_before_gate)
        agree(out, expected.to(BF16))
        module = mamba_ssm.RMSNorm(WIDTH, EPS, group_size, norm_before_gate, dtype=BF16)
        with torch.no_grad():
            module.weight.copy_(W)
        assert torch.equal(module(X, z), out)

    @pytest.mark.parametrize("residual_dtype", [None, BF16, FP32])
    @pytest.mark.parametrize("residual_in_fp32", [False, True])
    def test_rms_norm_fn(self, residual_dtype, residual_in_fp32):
        res = None if residual_dtype is None else R.to(residual_dtype)
        total = X.float() if res is None else X.float() + res.float()
        stored = residual_dtype or (FP32 if residual_in_fp32 else BF16)
        options = {"residual": res, "eps": EPS, "residual_in_fp32": residual_in_fp32}
        out, kept = mamba_ssm.rms_norm_fn(X, W, None, prenorm=True, **options)
        agree(out, (normed(total) * W.float()).to(BF16))
        assert kept.dtype == stored
        assert torch.equal(kept, total.to(stored))
        assert torch.equal(mamba_ssm.rms_norm_fn(X, W, None, **options), out)

    @pytest.mark.parametrize(
        "option", ["x1", "weight1", "bias1", "rowscale", "dropout_p", "return_dropout_mask", "bias"]
    )
    def test_what_is_not_offered_is_refused(self, option):
        value = {"dropout_p": 0.1, "return_dropout_mask": True}.get(option, W)
        args = {"bias": None, option: value}
        with pytest.raises(ValueError, match=f"^mamba_ssm.rms_norm_fn: expected no {option}, which is not"):
            mamba_ssm.rms_norm_fn(X, W, **args)

    def test_bias_of_the_gated_norm_is_refused(self):
        with pytest.raises(ValueError, match=r"^mamba_ssm.rmsnorm_fn: expected no bias"):
            mamba_ssm.rmsnorm_fn(X, W, W)


class TestNamespaces:
    def test_argument_names_and_defaults(self):
        """Positions, names and defaults as the libraries have them; a change here breaks callers."""
        expected = {
            torch_nn.rms_norm: "input, normalized_shape, weight=None, eps=None",
            flashinfer.rmsnorm: "input, weight, eps=1e-06, out=None, enable_pdl=None",
            flashinfer.gemma_rmsnorm: "input, weight, eps=1e-06, out=None, enable_pdl=None",
            flashinfer.fused_add_rmsnorm: "input, residual, weight, eps=1e-06, enable_pdl=None",
            flashinfer.gemma_fused_add_rmsnorm: "input, residual, weight, eps=1e-06, enable_pdl=None",
            vllm.rms_norm: "out, input, weight, epsilon",
            vllm.fused_add_rms_norm: "input, residual, weight, epsilon",
            liger.liger_rms_norm: "X, W, eps, offset=0.0, casting_mode='llama', in_place=True",
            liger.liger_fused_add_rms_norm: "X, R, W, eps, offset=0.0, casting_mode='llama', in_place=True",
            quack.rmsnorm: "x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, "
            "eps=1e-06, prenorm=False, weight_offset=0.0",
            apex.fused_rms_norm_affine: "input, weight, normalized_shape, eps=1e-06, memory_efficient=False",
            apex.fused_rms_norm: "input, normalized_shape, eps=1e-06, memory_efficient=False",
            mamba_ssm.rmsnorm_fn: "x, weight, bias, z=None, eps=1e-06, group_size=None, "
            "norm_before_gate=True",
            mamba_ssm.rms_norm_fn: "x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, "
            "eps=1e-06, dropout_p=0.0, rowscale=None, prenorm=False, residual_in_fp32=False, "
            "return_dropout_mask=False",
        }
        for function, signature in expected.items():
            parameters = inspect.signature(function).parameters.values()
            shown = ", ".join(
                p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters
            )
            assert shown == signature, function

    @pytest.mark.parametrize(
        "module",
        [
            torch_nn.RMSNorm(8),
            quack.QuackRMSNorm(8),
            apex.MixedFusedRMSNorm(8),
            mamba_ssm.RMSNorm(8),
            drop_in.transformers.MambaRMSNormGated(8, 4),
        ],
    )
    def test_modules_can_be_copied_and_pickled(self, module):
        x = randn(3, 8, dtype=FP32)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert torch.equal(other(x), module(x))

    def test_every_name_is_documented(self):
        for name in drop_in.__all__:
            namespace = getattr(drop_in, name)
            assert namespace.__doc__
            for member, value in vars(namespace).items():
                if not member.startswith("_"):
                    assert inspect.getdoc(value), f"{name}.{member}"
