"""The modules: construction, state, what they pass on, and what users do to modules."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from opwright.rms_norm import AddRMSNorm, RMSNorm, RMSNormGated, reference

X = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(0))
R = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1))

MODULES = {
    "plain": (lambda **k: RMSNorm(8, **k), (X,), lambda m: reference.rms_norm(X, m.weight)),
    "gemma": (
        lambda **k: RMSNorm(8, 1e-5, weight_offset=1.0, **k),
        (X,),
        lambda m: reference.rms_norm(X, m.weight, 1e-5, weight_offset=1.0),
    ),
    "heads": (lambda **k: RMSNorm((3, 8), **k), (X,), lambda m: reference.rms_norm(X, m.weight)),
    "no weight": (
        lambda **k: RMSNorm(8, elementwise_affine=False, **k),
        (X,),
        lambda m: reference.rms_norm(X),
    ),
    "llama": (
        lambda **k: RMSNorm(8, rounding="llama", **k),
        (X.bfloat16(),),
        lambda m: reference.rms_norm(X.bfloat16(), m.weight, rounding="llama"),
    ),
    "add": (
        lambda **k: AddRMSNorm(8, 1e-5, weight_offset=0.5, rounding="llama", statistics="exact", **k),
        (X.bfloat16(), R),
        lambda m: reference.add_rms_norm(
            X.bfloat16(), R, m.weight, 1e-5, weight_offset=0.5, rounding="llama", statistics="exact"
        ),
    ),
    "gated": (
        lambda **k: RMSNormGated(
            8, 1e-5, activation="sigmoid", norm_before_gate=False, group_size=4, rounding="llama", **k
        ),
        (X.bfloat16(), R.bfloat16()),
        lambda m: reference.rms_norm_gated(
            X.bfloat16(),
            R.bfloat16(),
            m.weight,
            1e-5,
            activation="sigmoid",
            norm_before_gate=False,
            group_size=4,
            rounding="llama",
        ),
    ),
    "no gate": (
        lambda **k: RMSNormGated(8, **k),
        (X,),
        lambda m: reference.rms_norm_gated(X, None, m.weight),
    ),
}


@pytest.fixture(params=MODULES)
def case(request):
    """A module with a random weight, its inputs, and a function that gives the expected outputs."""
    make, args, expected = MODULES[request.param]
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    return module, args, expected


def tensors(result):
    return result if isinstance(result, tuple) else (result,)


def assert_same(actual, expected):
    for mine, theirs in zip(tensors(actual), tensors(expected), strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


def test_every_option_reaches_the_operator(case):
    module, args, expected = case
    for mine, theirs in zip(tensors(module(*args)), tensors(expected(module)), strict=True):
        assert mine.dtype == theirs.dtype
        # one step of the dtype at most, for the order of summation
        torch.testing.assert_close(mine, theirs, rtol=1.01 * torch.finfo(mine.dtype).eps * 2, atol=1e-6)


def test_the_weight_gets_a_gradient(case):
    module, args, expected = case
    weights = [
        torch.randn(t.shape, generator=torch.Generator().manual_seed(3)) for t in tensors(module(*args))
    ]

    def loss(outputs):
        return sum((o.float() * w).sum() for o, w in zip(tensors(outputs), weights))

    leaves = [args[0].clone().requires_grad_(), *args[1:]]
    loss(module(*leaves)).backward()
    assert leaves[0].grad is not None
    if module.weight is not None:
        (theirs,) = torch.autograd.grad(loss(expected(module)), module.weight)
        torch.testing.assert_close(module.weight.grad, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("offset", "value"), [(0.0, 1.0), (1.0, 0.0), (0.25, 0.75)])
def test_reset_parameters_makes_the_scale_one(offset, value):
    for module in (RMSNorm(5, weight_offset=offset), AddRMSNorm((2, 5), weight_offset=offset)):
        assert torch.equal(module.weight, torch.full_like(module.weight, value))
        nn.init.normal_(module.weight)
        module.reset_parameters()
        assert torch.equal(module.weight, torch.full_like(module.weight, value))
    assert torch.equal(RMSNormGated(5).weight, torch.ones(5))


def test_state_dict_is_interchangeable_with_torch():
    theirs, ours = nn.RMSNorm(6, eps=1e-6), RMSNorm(6)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == ["weight"]
    x = torch.randn(3, 6)
    torch.testing.assert_close(ours(x), theirs(x))
    theirs.load_state_dict(ours.state_dict())
    assert dict(RMSNorm(6, elementwise_affine=False).state_dict()) == {}


def test_deepcopy_pickle_and_save(case):
    module, args, _ = case
    expected = module(*args)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(buffer, weights_only=False),
    ]
    for duplicate in copies:
        assert repr(duplicate) == repr(module)
        assert_same(duplicate(*args), expected)
        if module.weight is not None:
            assert duplicate.weight.data_ptr() != module.weight.data_ptr()


def test_meta_device_then_materialise():
    with torch.device("meta"):
        module = RMSNormGated(6)
    assert module.weight.is_meta
    module = RMSNorm(6, weight_offset=1.0, device="meta").to_empty(device="cpu")
    module.reset_parameters()
    assert torch.equal(module.weight, torch.zeros(6))
    assert nn.utils.skip_init(RMSNorm, 6).weight.shape == (6,)
    assert RMSNorm(6, device="meta", dtype=torch.bfloat16)(torch.empty(2, 6, device="meta")).shape == (2, 6)


def test_conversions_move_the_weight():
    module = RMSNorm(6)
    assert module.to(torch.bfloat16).weight.dtype == torch.bfloat16
    assert module.double().weight.dtype == torch.float64
    assert module(torch.randn(2, 6).double()).dtype == torch.float64
    assert module.half().weight.dtype == torch.float16
    assert RMSNorm(6, dtype=torch.float64).weight.dtype == torch.float64


def test_functional_call_and_parametrize():
    module, weight, x = RMSNorm(6), torch.randn(6), torch.randn(2, 6)
    out = torch.func.functional_call(module, {"weight": weight}, (x,))
    torch.testing.assert_close(out, reference.rms_norm(x, weight))

    class Doubled(nn.Module):
        def forward(self, value):
            return 2 * value

    nn.utils.parametrize.register_parametrization(module, "weight", Doubled())
    torch.testing.assert_close(module(x), reference.rms_norm(x, torch.full((6,), 2.0)))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (RMSNorm(8), "RMSNorm((8,), eps=1e-06, rounding='once')"),
        (
            RMSNorm((2, 8), 1e-5, weight_offset=1.0, elementwise_affine=False, rounding="llama"),
            "RMSNorm((2, 8), eps=1e-05, elementwise_affine=False, weight_offset=1, rounding='llama')",
        ),
        (AddRMSNorm(8), "AddRMSNorm((8,), eps=1e-06, rounding='once', statistics='rounded')"),
        (
            RMSNormGated(8, group_size=4),
            "RMSNormGated(8, eps=1e-06, rounding='once', activation='silu', "
            "norm_before_gate=True, group_size=4)",
        ),
    ],
)
def test_repr(module, expected):
    assert repr(module) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RMSNorm(8, rounding="twice"), "RMSNorm: expected rounding to be one of once, llama"),
        (
            lambda: RMSNorm((2, 3, 4)),
            r"RMSNorm: expected normalized_shape to be D or \(H, D\), but got \(2, 3, 4\)",
        ),
        (lambda: RMSNorm(()), r"RMSNorm: expected normalized_shape to be D or \(H, D\), but got \(\)"),
        (
            lambda: AddRMSNorm(8, statistics="no"),
            "AddRMSNorm: expected statistics to be one of rounded, exact",
        ),
        (
            lambda: RMSNormGated(8, activation="relu"),
            "RMSNormGated: expected activation to be one of silu, sigmoid",
        ),
        (
            lambda: RMSNormGated(8, group_size=3),
            "RMSNormGated: expected group_size .* to divide 8, but got 3",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make()
