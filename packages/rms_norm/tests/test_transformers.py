"""Real models of transformers, small and random, with the operators in place of every norm they have.

The rounding mode is chosen by class, as docs/models.md lists it. A model computes parts of itself in float32
in any dtype, so float64 cannot be the truth here; the rule for a whole model is relative to the model itself:

- float32: relative L2 difference of the logits at most 1e-5, of every gradient at most 1e-4;
- bfloat16: error against the float32 model at most 2 (logits) and 3 (gradients) times the error that the
  model has in bfloat16 by itself. bfloat16 holds the weights exactly: only activations are rounded.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.model_norms import RULES, steps
from tests.small_models import MODELS, norms, token_ids
from torch.utils._python_dispatch import TorchDispatchMode

import opwright.rms_norm
from opwright.rms_norm import drop_in, reference


class OperatorCalls(TorchDispatchMode):
    """Counts the operators that run below autograd, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "opwright":
            self.calls[func.name().removeprefix("opwright::").split(".")[0]] += 1
        return func(*args, **(kwargs or {}))

    @property
    def forwards(self) -> int:
        return sum(n for name, n in self.calls.items() if "_forward" in name)

    @property
    def backwards(self) -> int:
        return sum(n for name, n in self.calls.items() if "_backward" in name)


@contextlib.contextmanager
def replaced(model: torch.nn.Module, ops: Any):
    """Let ``ops`` compute every norm of ``model``; yields a counter of calls by module."""
    calls: Counter[int] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for cls in {type(module) for module in norms(model).values()}:
            rule = RULES[cls.__name__]

            def forward(module, *args, rule=rule):
                calls[id(module)] += 1
                return rule(ops, module, *args)

            patch.setattr(cls, "forward", forward)
        yield calls


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The models are so small that a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["reference", "operator"])
def ops(request) -> ModuleType:
    """What computes the norms: the reference (which shows that the rules are right), or the operators."""
    return reference if request.param == "reference" else opwright.rms_norm


@pytest.fixture(scope="module", params=MODELS)
def model(request) -> torch.nn.Module:
    return MODELS[request.param]()


def run(model: torch.nn.Module, seed: int = 0) -> dict[str, torch.Tensor]:
    """Logits for random tokens, and the gradient of every parameter for a random cotangent."""
    model.zero_grad(set_to_none=True)
    generator = torch.Generator().manual_seed(seed)
    logits = model(input_ids=token_ids(generator)).logits
    (logits.float() * torch.randn(logits.shape, generator=generator)).sum().backward()
    results = {name: p.grad.float().clone() for name, p in model.named_parameters()}
    return {"logits": logits.detach().float(), **results}


def distance(value: torch.Tensor, truth: torch.Tensor) -> float:
    return ((value - truth).norm() / truth.norm().clamp(min=1e-30)).item()


def assert_ran(model, calls: Counter[int], seen: OperatorCalls, ops: Any) -> None:
    """Every norm was replaced, and where the operators were asked for, a kernel ran for each call."""
    assert calls.keys() == {id(module) for module in norms(model).values()}
    if ops is not reference:
        assert seen.forwards == calls.total()
        assert seen.backwards == calls.total()


def test_float32_model(model, ops):
    expected = run(model)
    with replaced(model, ops) as calls, OperatorCalls() as seen:
        ours = run(model)
    assert_ran(model, calls, seen, ops)
    for name, value in expected.items():
        assert distance(ours[name], value) <= (1e-5 if name == "logits" else 1e-4), name


def test_bfloat16_model(model, ops):
    """Errors are taken over four draws: in a gradient of four elements one draw can be right by chance."""
    low = copy.deepcopy(model).to(torch.bfloat16)
    errors: dict[str, list[tuple[float, float]]] = {}
    for seed in range(4):
        truth, eager = run(model, seed), run(low, seed)
        with replaced(low, ops) as calls, OperatorCalls() as seen:
            ours = run(low, seed)
        assert_ran(low, calls, seen, ops)
        for name, value in truth.items():
            errors.setdefault(name, []).append((distance(ours[name], value), distance(eager[name], value)))
    for name, pairs in errors.items():
        our_error, eager_error = (math.hypot(*column) for column in zip(*pairs))
        assert our_error <= (2 if name == "logits" else 3) * eager_error, name


def test_inference_in_bfloat16(model, ops):
    """Without gradients another path is taken; its logits are those of the model with gradients."""
    low = copy.deepcopy(model).to(torch.bfloat16)
    with replaced(low, ops):
        expected = low(input_ids=token_ids()).logits
        for context in (torch.no_grad, torch.inference_mode):
            with context(), OperatorCalls() as seen:
                assert torch.equal(low(input_ids=token_ids()).logits, expected)
            assert (ops is reference) == (seen.forwards == 0)


def test_module_by_module_on_the_models_own_activations(model, ops):
    """At most one element in ten thousand differs on what the model hands over: head-wise, sliced and all."""
    low = copy.deepcopy(model).to(torch.bfloat16)
    handed: list[tuple[torch.nn.Module, tuple[torch.Tensor, ...], torch.Tensor]] = []
    for module in norms(low).values():
        module.register_forward_hook(lambda module, args, out: handed.append((module, args, out)))
    with torch.no_grad():
        low(input_ids=token_ids())
        differing = [
            steps(RULES[type(module).__name__](ops, module, *args), out).flatten()
            for module, args, out in handed
        ]
    assert {id(module) for module, _, _ in handed} == {id(module) for module in norms(low).values()}
    every = torch.cat(differing)
    assert every.numel() > 20_000
    assert every.count_nonzero() <= 1e-4 * every.numel()


def test_official_patching_builds_the_model_with_the_drop_in_classes():
    """The library's own way to replace classes, here through the context manager that undoes itself."""
    from transformers.monkey_patching import apply_patches, clear_patch_mapping, register_patch_mapping

    expected = MODELS["llama"]()
    register_patch_mapping({"LlamaRMSNorm": drop_in.transformers.LlamaRMSNorm})
    try:
        with apply_patches():
            model = MODELS["llama"]()
    finally:
        clear_patch_mapping()
    assert {type(module) for module in norms(model).values()} == {drop_in.transformers.LlamaRMSNorm}
    assert len(norms(model)) == len(norms(expected))
    ours, theirs = run(model), run(expected)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert distance(ours[name], value) <= (1e-5 if name == "logits" else 1e-4), name
