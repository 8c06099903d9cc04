"""Norms of transformers one by one in bfloat16: the operator with the options of docs/models.md rounds alike.

At most one element in ten thousand differs (the order of summation alone makes about one in a hundred
thousand), and that by one step of the rounding at which the two part.
"""

import pytest
import torch
from tests.model_norms import CLASSES, FALCON_LAST, RULES, make_norm, steps

import opwright.rms_norm
from opwright.rms_norm import drop_in, reference


def compare(ours, expected, rule):
    assert ours.dtype == expected.dtype == torch.bfloat16
    differing = steps(ours, expected)
    assert differing.count_nonzero() <= 1e-4 * differing.numel()
    assert differing.max() <= rule.most_steps


@pytest.mark.parametrize("ops", [reference, opwright.rms_norm], ids=["reference", "operator"])
@pytest.mark.parametrize("width", [64, 1024])
@pytest.mark.parametrize("name", CLASSES)
def test_rounds_as_the_model_does(name, width, ops):
    module, args = make_norm(name, width)
    with torch.no_grad():
        compare(RULES[name](ops, module, *args), module(*args), RULES[name])


@pytest.mark.parametrize("name", CLASSES)
def test_the_other_rounding_is_told_apart(name):
    """The control: with the other rounding mode, hundreds of times as many elements differ."""
    module, args = make_norm(name, 64)
    options = dict(RULES[name].options)
    options["rounding"] = {"once": "llama", "llama": "once"}[options["rounding"]]
    rule = type(RULES[name])(RULES[name].eps, options, RULES[name].gated)
    with torch.no_grad():
        differing = steps(rule(opwright.rms_norm, module, *args), module(*args))
    assert differing.count_nonzero() > 1e-2 * differing.numel()


def test_falcon_h1_with_the_norm_first():
    module, args = make_norm("FalconH1RMSNormGated", 64)
    module.norm_before_gate = True
    with torch.no_grad():
        compare(FALCON_LAST(opwright.rms_norm, module, *args), module(*args), FALCON_LAST)


@pytest.mark.parametrize("name", [n for n, rule in RULES.items() if "norm_before_gate" in rule.options])
def test_a_missing_gate(name):
    module, (x, _) = make_norm(name, 64)
    with torch.no_grad():
        compare(RULES[name](opwright.rms_norm, module, x, None), module(x, None), RULES[name])


@pytest.mark.parametrize("name", [n for n, rule in RULES.items() if not rule.gated and "T5" not in n])
def test_a_float32_weight_promotes_where_the_model_does(name):
    """T5 alone casts to the weight's dtype instead, and so needs weight and input of one dtype."""
    module, (x,) = make_norm(name, 64)
    module = module.float()
    with torch.no_grad():
        expected, ours = module(x), RULES[name](opwright.rms_norm, module, x)
    assert ours.dtype == expected.dtype
    torch.testing.assert_close(ours, expected, rtol=2 * torch.finfo(torch.bfloat16).eps, atol=0)


@pytest.mark.parametrize("name", [n for n in vars(drop_in.transformers) if not n.startswith("_")])
def test_drop_in_classes_take_the_place_of_the_models(name):
    module, args = make_norm(name, 64)
    extra = {"group_size": module.group_size} if hasattr(module, "group_size") else {}
    ours = getattr(drop_in.transformers, name)(64, eps=1e-6, **extra)
    fresh = type(module)(64, eps=1e-6, **extra)
    assert torch.equal(ours.weight, fresh.weight)
    ours.load_state_dict(module.state_dict())
    ours.to(torch.bfloat16)
    with torch.no_grad():
        compare(ours(*args), module(*args), RULES[name])
    if hasattr(module, "extra_repr") and module.extra_repr():
        assert ours.extra_repr() == module.extra_repr()


def test_steps_counts_values():
    one = torch.tensor([1.0, -1.0, 0.0, 1.0], dtype=torch.bfloat16)
    other = torch.tensor([1.0078125, -1.0078125, -0.0, -1.0], dtype=torch.bfloat16)
    assert steps(one, other).tolist() == [1, 1, 0, 2 * 0x3F80]
