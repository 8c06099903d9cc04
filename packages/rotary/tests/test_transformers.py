"""Real models of transformers, small and random, with the operator in place of their rotation.

A model computes parts of itself in float32 in any dtype, so float64 cannot be the truth here; the rule for a
whole model is relative to the model itself:

- float32: relative L2 difference of the logits at most 1e-5, of every gradient at most 1e-4;
- bfloat16: error against the float32 model at most 2 (logits) and 3 (gradients) times the error that the
  model has in bfloat16 by itself. bfloat16 holds the weights exactly: only activations are rounded.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import math
from collections import Counter

import pytest
import torch
import transformers
from tests.small_models import MODELS, Model, token_ids
from torch.utils._python_dispatch import TorchDispatchMode

from opwright.rotary import apply_rotary, drop_in, reference

Tensor = torch.Tensor


class OperatorCalls(TorchDispatchMode):
    """Counts the operators that run below autograd, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "opwright":
            self.calls[func.name().removeprefix("opwright::").split(".")[0]] += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def replaced(model: Model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.file, "apply_rotary_pos_emb", model.replacement)
        yield


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The models are so small that a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=MODELS)
def model(request) -> tuple[Model, torch.nn.Module]:
    return MODELS[request.param], MODELS[request.param].build()


def run(model: torch.nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Logits for random tokens, and the gradient of every parameter for a random cotangent."""
    model.zero_grad(set_to_none=True)
    generator = torch.Generator().manual_seed(seed)
    logits = model(input_ids=token_ids(generator)).logits
    (logits.float() * torch.randn(logits.shape, generator=generator)).sum().backward()
    results = {name: p.grad.float().clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().float(), **results}


def distance(value: Tensor, truth: Tensor) -> float:
    return ((value - truth).norm() / truth.norm().clamp(min=1e-30)).item()


def count(seen: OperatorCalls, form: str) -> int:
    return sum(n for name, n in seen.calls.items() if form in name)


def test_float32_model(model):
    entry, network = model
    expected = run(network)
    with replaced(entry), OperatorCalls() as seen:
        ours = run(network)
    assert count(seen, "_forward") == entry.calls
    assert count(seen, "_backward") == entry.calls
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert distance(ours[name], value) <= (1e-5 if name == "logits" else 1e-4), name


def test_bfloat16_model(model):
    """Errors are taken over four draws: in a gradient of few elements one draw can be right by chance."""
    entry, network = model
    low = copy.deepcopy(network).to(torch.bfloat16)
    errors: dict[str, list[tuple[float, float]]] = {}
    for seed in range(4):
        truth, eager = run(network, seed), run(low, seed)
        with replaced(entry):
            ours = run(low, seed)
        for name, value in truth.items():
            errors.setdefault(name, []).append((distance(ours[name], value), distance(eager[name], value)))
    for name, pairs in errors.items():
        our_error, eager_error = (math.hypot(*column) for column in zip(*pairs, strict=True))
        assert our_error <= (2 if name == "logits" else 3) * eager_error, name


def test_the_rotation_matters(model):
    """Control: without any rotation the logits are others, so the comparison above can fail."""
    entry, network = model
    expected = network(input_ids=token_ids()).logits
    with pytest.MonkeyPatch.context() as patch:
        plain = (lambda x, *_: x) if entry.family == "gptj" else (lambda q, k, *_: (q, k))
        patch.setattr(entry.file, "apply_rotary_pos_emb", plain)
        assert distance(network(input_ids=token_ids()).logits, expected) > 1e-3


def test_decoding_with_a_cache(model):
    """Tokens one by one, where each call rotates a single position, give the same tokens."""
    entry, network = model
    prompt = token_ids()[:1, :5]
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = network.generate(prompt, **options)
    with replaced(entry):
        assert torch.equal(network.generate(prompt, **options), expected)


def test_interleaved_form_of_deepseek():
    """DeepSeek-V3's function, which reads interleaved pairs and writes halves, on its own layout."""
    theirs = importlib.import_module(
        "transformers.models.deepseek_v3.modeling_deepseek_v3"
    ).apply_rotary_pos_emb_interleave
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 4, 7, 16, generator=generator).requires_grad_()
    k = torch.randn(2, 1, 7, 16, generator=generator).requires_grad_()
    angle = torch.randn(2, 7, 8, generator=generator)
    cos, sin = (torch.cat((t, t), -1) for t in (angle.cos(), angle.sin()))
    results = [f(q, k, cos, sin) for f in (drop_in.transformers.apply_rotary_pos_emb_interleave, theirs)]
    up = torch.randn(2, 4, 7, 16, generator=generator)
    grads = [torch.autograd.grad(out, (q, k), (up, up[:, :1])) for out in results]
    for ours, expected in zip((*results[0], *grads[0]), (*results[1], *grads[1]), strict=True):
        torch.testing.assert_close(ours, expected)


# ---- multimodal sections -------------------------------------------------------------------------------


def vision_model_rotary(family: str):
    """``(the model's rotary module, its function, its sections)``, small but with the family's own layout."""
    file = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    text = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 89,
        "intermediate_size": 80,
        "num_hidden_layers": 1,
    }
    if family == "qwen2_vl":
        rope["mrope_section"] = [2, 3, 3]
        config = transformers.Qwen2VLTextConfig(rope_parameters=rope, **text)
        module = file.Qwen2VLRotaryEmbedding(config)
    elif family == "qwen3_vl":
        rope["mrope_section"] = [4, 2, 2]
        config = transformers.Qwen3VLTextConfig(rope_parameters=rope, head_dim=16, **text)
        module = file.Qwen3VLTextRotaryEmbedding(config)
    else:
        rope |= {"mrope_section": [3, 3, 2], "partial_rotary_factor": 0.25}
        config = transformers.Qwen3_5TextConfig(rope_parameters=rope, head_dim=64, **text)
        module = file.Qwen3_5TextRotaryEmbedding(config)
    return module, file.apply_rotary_pos_emb, rope["mrope_section"]


@pytest.mark.parametrize(
    ("family", "layout", "columns"),
    [("qwen2_vl", "blocked", 16), ("qwen3_vl", "interleaved", 16), ("qwen3_5", "interleaved", 64)],
)
def test_sections(family, layout, columns):
    """Unmerged tables of three different position rows, against the model's merging and plain rotation."""
    module, rotate, sections = vision_model_rotary(family)
    generator = torch.Generator().manual_seed(3)
    positions = torch.randint(0, 500, (3, 2, 9), generator=generator)
    q = torch.randn(2, 4, 9, columns, generator=generator).requires_grad_()
    k = torch.randn(2, 2, 9, columns, generator=generator).requires_grad_()
    expected = rotate(q, k, *module(q, positions))
    angle = positions[..., None].float() * module.inv_freq
    assert angle.shape == (3, 2, 9, sum(sections))
    options = {
        "seq_dim": 2,
        "rotary_dim": 2 * sum(sections),
        "sections": sections,
        "section_layout": layout,
    }
    up = torch.randn(2, 4, 9, columns, generator=generator)
    wanted = torch.autograd.grad(expected, (q, k), (up, up[:, :2]))
    for function in (apply_rotary, reference.apply_rotary):
        got = function(q, k, cos=angle.cos(), sin=angle.sin(), **options)
        grads = torch.autograd.grad(got, (q, k), (up, up[:, :2]))
        for ours, theirs in zip((*got, *grads), (*expected, *wanted), strict=True):
            assert distance(ours, theirs) <= 1e-6
    wrong = "interleaved" if layout == "blocked" else "blocked"
    other = apply_rotary(q, k, cos=angle.cos(), sin=angle.sin(), **options | {"section_layout": wrong})
    assert distance(other[0], expected[0]) > 1e-2


@pytest.mark.parametrize("layout", ["blocked", "interleaved"])
def test_one_table_and_three_rows_of_positions(layout):
    """A table by position and positions of each section, as servers keep them."""
    generator = torch.Generator().manual_seed(5)
    positions = torch.randint(0, 50, (3, 2, 9), generator=generator)
    angle = torch.randn(50, 8, generator=generator)
    q = torch.randn(2, 9, 4, 16, generator=generator)
    options = {"sections": [4, 2, 2], "section_layout": layout}
    got = apply_rotary(q, cos=angle.cos(), sin=angle.sin(), positions=positions, **options)
    gathered = angle[positions]
    assert torch.equal(got, apply_rotary(q, cos=gathered.cos(), sin=gathered.sin(), **options))
