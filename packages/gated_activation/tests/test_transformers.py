"""Real models of transformers, small and random, with the operator in place of every gated activation.

A model computes parts of itself in float32 in any dtype, so float64 cannot be the truth here; the rule for a
whole model is relative to the model itself:

- float32: relative L2 difference of the logits at most 1e-5, of every gradient at most 1e-4;
- bfloat16: error against the float32 model at most 2 (logits) and 3 (gradients) times the error that the
  model has in bfloat16 by itself. bfloat16 holds the weights exactly: only activations are rounded.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.small_models import MODELS, token_ids
from torch import Tensor, nn

from opwright.gated_activation import drop_in, gated_activation, reference

ACTIVATION = {"LlamaMLP": "silu", "GemmaMLP": "gelu_tanh", "Gemma3MLP": "gelu_tanh"}
# What a wrong operator would be: the models must tell it from the right one.
WRONG = {"silu": "gelu_tanh", "gelu_tanh": "silu"}


@contextlib.contextmanager
def replaced(model: nn.Module, wrong: bool = False) -> Iterator[Counter[str]]:
    """Let the operator compute every gated activation of ``model``; yields a counter of calls by class."""
    calls: Counter[str] = Counter()

    def mlp(module: Any, x: Tensor) -> Tensor:
        name = type(module).__name__
        calls[name] += 1
        activation = ACTIVATION[name]
        hidden = gated_activation(
            module.gate_proj(x), module.up_proj(x), WRONG[activation] if wrong else activation
        )
        return module.down_proj(hidden)

    def gate(experts: Any, gate_up: Tensor) -> Tensor:
        calls[type(experts).__name__] += 1
        if wrong:
            return reference.gated_activation_packed(gate_up, layout="interleaved", alpha=1.702, limit=7.0)
        return drop_in.transformers.gpt_oss_gate(experts, gate_up)

    with pytest.MonkeyPatch.context() as patch:
        for module in model.modules():
            if type(module).__name__ in ACTIVATION:
                patch.setattr(type(module), "forward", mlp)
            elif hasattr(module, "_apply_gate"):
                patch.setattr(type(module), "_apply_gate", gate)
        yield calls


def run(model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and the gradient of every parameter for a random direction of the logits."""
    model.zero_grad()
    logits = model(input_ids=token_ids()).logits.float()
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(13))
    (logits * direction).sum().backward()
    grads = {n: p.grad.float().clone() for n, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), grads


def distance(a: Tensor, b: Tensor) -> float:
    """Relative L2 difference."""
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


@pytest.mark.parametrize("name", MODELS)
def test_float32_model(name: str, record_property) -> None:
    model = MODELS[name]()
    logits, grads = run(model)
    with replaced(model) as calls:
        got, got_grads = run(model)
    assert calls
    assert all(count >= 2 for count in calls.values()), calls
    record_property("logits", distance(got, logits))
    assert distance(got, logits) <= 1e-5
    assert got_grads.keys() == grads.keys()
    worst = max((distance(got_grads[n], grads[n]), n) for n in grads if grads[n].norm() > 0)
    assert worst[0] <= 1e-4, worst


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_model(name: str) -> None:
    model = MODELS[name]()
    logits, grads = run(model)
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    eager, eager_grads = run(narrow)
    with replaced(narrow) as calls:
        got, got_grads = run(narrow)
    assert calls
    assert distance(got, logits) <= 2 * distance(eager, logits)
    for n, grad in grads.items():
        allowed = 3 * distance(eager_grads[n], grad)
        assert distance(got_grads[n], grad) <= allowed, (n, distance(got_grads[n], grad), allowed)


@pytest.mark.parametrize("name", MODELS)
def test_the_comparison_tells_a_wrong_activation(name: str) -> None:
    model = MODELS[name]()
    with torch.no_grad():
        logits = model(input_ids=token_ids()).logits
        with replaced(model, wrong=True):
            got = model(input_ids=token_ids()).logits
    assert distance(got, logits) > 1e-3


@pytest.mark.parametrize("name", ["llama", "gemma", "gemma3_text"])
def test_the_drop_in_class_takes_a_models_place(name: str) -> None:
    model = MODELS[name]()
    cls = drop_in.transformers.LlamaMLP if name == "llama" else drop_in.transformers.GemmaMLP
    with torch.no_grad():
        logits = model(input_ids=token_ids()).logits
        for path, module in list(model.named_modules()):
            if type(module).__name__ in ACTIVATION:
                ours = cls(model.config)
                ours.load_state_dict(module.state_dict())
                model.set_submodule(path, ours)
        got = model(input_ids=token_ids()).logits
    assert distance(got, logits) <= 1e-5
