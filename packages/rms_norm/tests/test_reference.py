"""The golden reference against things that share no code with it: closed forms, numpy in float64, torch.

Everything here runs without the compiled library.
"""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from opwright.rms_norm import reference
from opwright.rms_norm._reference_common import ACTIVATIONS, ROUNDINGS, STATISTICS, rounded

LOW = (torch.bfloat16, torch.float16, torch.float32)
SHAPES = ((), (1,), (5,), (2, 3), (3, 2, 7))


def randn(*shape, dtype=torch.float64, seed=0, requires_grad=False):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    value = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return value.to(dtype).requires_grad_(requires_grad)


def numpy_norm(x, weight, eps, offset=0.0, groups=1):
    """The defining formula in float64, written with loops over rows and groups."""
    x = np.asarray(x, dtype=np.float64)
    rows = x.reshape(-1, x.shape[-1])
    out = np.empty_like(rows)
    size = x.shape[-1] // groups
    for i, row in enumerate(rows):
        for k in range(groups):
            part = row[k * size : (k + 1) * size]
            mean_square = math.fsum(v * v for v in part.tolist()) / size
            out[i, k * size : (k + 1) * size] = part / math.sqrt(mean_square + eps)
    out = out.reshape(x.shape)
    return out if weight is None else out * (np.asarray(weight, dtype=np.float64) + offset)


def numpy_act(gate, activation):
    gate = np.asarray(gate, dtype=np.float64)
    sigmoid = 1 / (1 + np.exp(-gate))
    return gate * sigmoid if activation == "silu" else sigmoid


def close(actual, expected):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=1e-13, atol=1e-13)


class TestAgainstTheFormula:
    @pytest.mark.parametrize("lead", SHAPES)
    @pytest.mark.parametrize("offset", [0.0, 1.0, -0.5])
    @pytest.mark.parametrize("rounding", ROUNDINGS)
    def test_rms_norm(self, lead, offset, rounding):
        x, w = randn(*lead, 13), randn(13, seed=1)
        out = reference.rms_norm(x, w, 1e-3, weight_offset=offset, rounding=rounding)
        close(out, numpy_norm(x, w, 1e-3, offset))

    def test_per_head_weight(self):
        x, w = randn(5, 3, 11), randn(3, 11, seed=1)
        close(reference.rms_norm(x, w, 1e-3), numpy_norm(x, w, 1e-3))

    def test_without_weight(self):
        x = randn(4, 9)
        close(reference.rms_norm(x, eps=1e-3), numpy_norm(x, None, 1e-3))

    @pytest.mark.parametrize("statistics", STATISTICS)
    def test_add_rms_norm(self, statistics):
        x, res, w = randn(4, 9), randn(4, 9, seed=2), randn(9, seed=1)
        out, total = reference.add_rms_norm(x, res, w, 1e-3, weight_offset=1.0, statistics=statistics)
        close(total, np.asarray(x) + np.asarray(res))
        close(out, numpy_norm(np.asarray(x) + np.asarray(res), w, 1e-3, 1.0))

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize("group_size", [None, 12, 6, 1])
    @pytest.mark.parametrize("rounding", ROUNDINGS)
    def test_gated(self, activation, group_size, rounding):
        x, gate, w = randn(3, 2, 12), randn(3, 2, 12, seed=3), randn(12, seed=1)
        groups = 12 // (group_size or 12)
        act = numpy_act(gate, activation)
        options = {"activation": activation, "group_size": group_size, "rounding": rounding}
        after = reference.rms_norm_gated(x, gate, w, 1e-3, **options)
        close(after, numpy_norm(x, w, 1e-3, groups=groups) * act)
        before = reference.rms_norm_gated(x, gate, w, 1e-3, norm_before_gate=False, **options)
        close(before, numpy_norm(np.asarray(x) * act, w, 1e-3, groups=groups))
        for norm_before_gate in (True, False):
            bare = reference.rms_norm_gated(x, None, w, 1e-3, norm_before_gate=norm_before_gate, **options)
            close(bare, numpy_norm(x, w, 1e-3, groups=groups))

    def test_closed_forms(self):
        # A constant row has the root mean square of its value, (3, 4) has sqrt(12.5); eps alone scales zeros.
        close(reference.rms_norm(torch.full((2, 8), -7.0).double(), eps=0.0), -np.ones((2, 8)))
        close(reference.rms_norm(torch.tensor([3.0, 4.0]).double(), eps=0.0), np.array([3, 4]) / 12.5**0.5)
        _, rstd = reference.rms_norm_forward(torch.zeros(2, 5).double(), None, 0.25, 0.0, "once")
        close(rstd, np.full(2, 2.0))
        _, rstd = reference.rms_norm_gated_forward(
            torch.tensor([[1.0, 1.0, 3.0, 3.0]]).double(), None, None, 0.0, 0, True, 2, 0
        )
        close(rstd, np.array([[1.0, 1 / 3]]))

    def test_signs_of_zero(self):
        out = reference.rms_norm(torch.tensor([3.0, -0.0, 2.0]), torch.tensor([-0.0, 1.0, 0.0]))
        assert torch.signbit(out).tolist() == [True, True, False]

    def test_scale_equivariance_without_eps(self):
        x = randn(3, 17)
        close(reference.rms_norm(x * 2.0**20, eps=0.0), reference.rms_norm(x, eps=0.0))


class TestAgainstTorch:
    @pytest.mark.parametrize("dtype", LOW)
    @pytest.mark.parametrize("weight_dtype", LOW)
    @pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
    def test_once_is_torch_bit_for_bit(self, dtype, weight_dtype):
        x, w = randn(64, 96, dtype=dtype), randn(96, dtype=weight_dtype, seed=1)
        assert torch.equal(reference.rms_norm(x, w), F.rms_norm(x, (96,), w, 1e-6))
        assert torch.equal(reference.rms_norm(x), F.rms_norm(x, (96,), None, 1e-6))

    def test_gradients_are_torchs(self):
        grads = []
        for function in (
            lambda x, w: reference.rms_norm(x, w, 1e-3),
            lambda x, w: F.rms_norm(x, (12,), w, 1e-3),
        ):
            x, w = randn(5, 12, requires_grad=True), randn(12, seed=1, requires_grad=True)
            grads.append(torch.autograd.grad(function(x, w), (x, w), randn(5, 12, seed=4)))
        for ours, theirs in zip(*grads):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


class TestDtypes:
    @pytest.mark.parametrize(
        ("dtype", "weight_dtype"),
        [*itertools.product(LOW, (*LOW, None)), *((torch.float64, w) for w in (*LOW, torch.float64, None))],
    )
    def test_output_dtypes(self, dtype, weight_dtype):
        x = randn(3, 4, dtype=dtype)
        w = None if weight_dtype is None else randn(4, dtype=weight_dtype)
        promoted = dtype if weight_dtype is None else torch.promote_types(dtype, weight_dtype)
        expected = {"once": dtype, "llama": promoted}
        for rounding in ROUNDINGS:
            assert reference.rms_norm(x, w, rounding=rounding).dtype == expected[rounding]
            for gate in (x, None):
                first = reference.rms_norm_gated(x, gate, w, rounding=rounding)
                assert first.dtype == dtype
                last = reference.rms_norm_gated(x, gate, w, rounding=rounding, norm_before_gate=False)
                assert last.dtype == expected[rounding]
            for residual_dtype in LOW:
                out, total = reference.add_rms_norm(x, x.to(residual_dtype), w, rounding=rounding)
                assert out.dtype == expected[rounding]
                assert total.dtype == torch.promote_types(dtype, residual_dtype)

    @pytest.mark.parametrize("dtype", LOW)
    def test_gradients_keep_the_dtypes_of_their_tensors(self, dtype):
        x, res = randn(3, 4, dtype=dtype, requires_grad=True), randn(3, 4, seed=2, dtype=torch.float32)
        gate, w = randn(3, 4, dtype=dtype, seed=3), randn(4, seed=1, dtype=torch.float32)
        for tensor in (res, gate, w):
            tensor.requires_grad_()
        out, total = reference.add_rms_norm(x, res, w, rounding="llama")
        out = out.sum() + total.sum() + reference.rms_norm_gated(x, gate, w).float().sum()
        for grad, tensor in zip(torch.autograd.grad(out, (x, res, gate, w)), (x, res, gate, w)):
            assert grad.dtype == tensor.dtype

    def test_rounding_passes_the_gradient_unrounded(self):
        # 1 + 2**-9 cannot be stored in bfloat16; a gradient cast to it on the way would come back as 1.
        value = torch.tensor([1.0 + 2**-10, -0.0, math.inf, 1e30], requires_grad=True)
        out = rounded(value, torch.bfloat16)
        assert out[0] == 1.0
        assert math.copysign(1.0, out[1].item()) == -1.0
        assert out[2] == math.inf
        (grad,) = torch.autograd.grad(out[0] * (1.0 + 2**-9), value)
        assert grad[0] == 1.0 + 2**-9


class TestTransforms:
    def test_vmap_grad_jvp_and_hessian(self):
        x, w = randn(4, 6), randn(6, seed=1)

        def loss(x, w):
            return reference.rms_norm(x, w, 1e-2, rounding="llama").square().sum()

        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(leaf, w), leaf)
        close(torch.func.grad(loss)(x, w), expected)
        close(torch.vmap(torch.func.grad(loss), (0, None))(x, w), expected)
        close(torch.func.grad(lambda x: torch.vmap(loss, (0, None))(x, w).sum())(x), expected)
        tangent = randn(4, 6, seed=7)
        _, jvp = torch.func.jvp(lambda x: loss(x, w), (x,), (tangent,))
        close(jvp, (expected * tangent).sum())
        hessian = torch.func.hessian(loss)(x, w).reshape(24, 24)
        torch.testing.assert_close(hessian, hessian.T, rtol=1e-12, atol=1e-12)

    @pytest.mark.compile
    @pytest.mark.parametrize("rounding", ROUNDINGS)
    def test_compile_without_graph_break(self, rounding):
        def function(x, res, gate, w):
            out, total = reference.add_rms_norm(x, res, w, rounding=rounding)
            return reference.rms_norm_gated(out, gate, w, rounding=rounding, group_size=4), total

        args = [randn(5, 8, dtype=torch.bfloat16, seed=s) for s in (0, 2, 3)] + [
            randn(8, dtype=torch.bfloat16)
        ]
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
        for mine, theirs in zip(compiled(*args), function(*args)):
            assert torch.equal(mine, theirs)

    def test_meta(self):
        x = torch.empty(3, 5, 8, dtype=torch.bfloat16, device="meta")
        w = torch.empty(8, device="meta")
        out, rstd = reference.rms_norm_gated_forward(x, x, w, 1e-6, "silu", False, 4, "llama")
        assert out.shape == x.shape
        assert out.dtype == torch.float32
        assert rstd.shape == (3, 5, 2)
        assert rstd.dtype == torch.float32

    def test_rstd_is_not_differentiable(self):
        _, rstd = reference.rms_norm_forward(randn(2, 3, requires_grad=True), None, 1e-6, 0.0, "once")
        assert not rstd.requires_grad

    def test_given_rstd_is_used(self):
        x = randn(2, 4)
        out, rstd = reference.rms_norm_forward(x, None, 1e-6, 0.0, 0, rstd=torch.full((2,), 2.0).double())
        assert torch.equal(out, 2 * x)
        assert torch.equal(rstd, torch.full((2,), 2.0).double())


class TestInPlace:
    def test_writes_both(self):
        x, res, w = randn(3, 4), randn(3, 4, seed=2), randn(4, seed=1)
        out, total = reference.add_rms_norm(x, res, w)
        mine = reference.add_rms_norm_(x, res, w)
        assert mine[0] is x
        assert mine[1] is res
        assert torch.equal(x, out)
        assert torch.equal(res, total)

    @pytest.mark.parametrize(
        ("dtypes", "rounding", "message"),
        [
            ((torch.bfloat16, torch.bfloat16, torch.float32), "llama", "expected input of dtype float32"),
            ((torch.float32, torch.bfloat16, torch.float32), "once", "expected residual of dtype float32"),
        ],
    )
    def test_refuses_what_it_cannot_hold(self, dtypes, rounding, message):
        x, res, w = randn(3, 4, dtype=dtypes[0]), randn(3, 4, dtype=dtypes[1]), randn(4, dtype=dtypes[2])
        before = x.clone(), res.clone()
        with pytest.raises(ValueError, match=f"^add_rms_norm_: {message}"):
            reference.add_rms_norm_(x, res, w, rounding=rounding)
        assert torch.equal(x, before[0])
        assert torch.equal(res, before[1])


X = torch.zeros(2, 3)
ERRORS = [
    ("rms_norm", (torch.zeros(2, 3, dtype=torch.int32),), {}, "expected input of dtype .*, but got int32"),
    ("rms_norm", (torch.zeros(()),), {}, "expected input with at least 1 dimension, but got 0"),
    ("rms_norm", (X, torch.zeros(4)), {}, r"expected weight of shape \(3,\) or \(2, 3\), but got \(4,\)"),
    ("rms_norm", (X[0], torch.zeros(2, 3)), {}, r"expected weight of shape \(3,\), but got \(2, 3\)"),
    ("rms_norm", (X, torch.zeros(3).double()), {}, "expected weight of dtype .*, but got float64"),
    ("rms_norm", (X, torch.zeros(3), -1.0), {}, "expected eps to be finite and not negative, but got -1.0"),
    ("rms_norm", (X, torch.zeros(3), math.nan), {}, "expected eps .*, but got nan"),
    ("rms_norm", (X,), {"rounding": "twice"}, "expected rounding to be one of once, llama, but got twice"),
    ("add_rms_norm", (X, X[:1]), {}, r"expected residual of shape \(2, 3\), but got \(1, 3\)"),
    ("add_rms_norm", (X, X.double()), {}, "expected residual of dtype .*, but got float64"),
    ("add_rms_norm", (X, X), {"statistics": "none"}, "expected statistics to be one of .*, but got none"),
    ("rms_norm_gated", (X, X[:1]), {}, r"expected gate of shape \(2, 3\), but got \(1, 3\)"),
    ("rms_norm_gated", (X, X.bfloat16()), {}, "expected gate of dtype float32, but got bfloat16"),
    ("rms_norm_gated", (X, X, X), {}, r"expected weight of shape \(3,\), but got \(2, 3\)"),
    ("rms_norm_gated", (X,), {"group_size": 2}, "expected group_size .* to divide 3, but got 2"),
    ("rms_norm_gated", (X,), {"group_size": 0}, "expected group_size .* to divide 3, but got 0"),
    ("rms_norm_gated", (X,), {"activation": "relu"}, "expected activation to be one of .*, but got relu"),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "message"), ERRORS)
def test_errors(name, args, kwargs, message):
    with pytest.raises(ValueError, match=f"^{name}: {message}$"):
        getattr(reference, name)(*args, **kwargs)


@pytest.mark.isolated
def test_imports_where_the_library_cannot_load():
    """Then the operators say what to do, and the reference computes."""
    code = """
import torch

def refuse(path):
    raise OSError("undefined symbol: aoti_torch_something")

torch.ops.load_library = refuse
from opwright.rms_norm import reference

assert reference.rms_norm(torch.full((2, 4), 3.0), eps=0.0).eq(1).all()
try:
    from opwright.rms_norm import rms_norm
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "aoti_torch_something" in done.stdout
