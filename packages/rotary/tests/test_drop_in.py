"""The names of other libraries, each against its convention written out in plain PyTorch."""

from __future__ import annotations

import importlib
import inspect

import pytest
import torch

from opwright.rotary import apply_rotary, drop_in

Tensor = torch.Tensor


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def angles(*shape: int) -> tuple[Tensor, Tensor]:
    values = 3 * draw(*shape, seed=9)
    return values.cos(), values.sin()


def doubled(table: Tensor) -> Tensor:
    return torch.cat((table, table), -1)


def by_hand(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the first ``2 * cos.shape[-1]`` columns; tables broadcast against one column of each pair."""
    columns = 2 * cos.shape[-1]
    part, rest = x[..., :columns], x[..., columns:]
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    turned = (a * cos - b * sin, b * cos + a * sin)
    rotated = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat((rotated, rest), -1)


class TestTransformers:
    @pytest.mark.parametrize("unsqueeze_dim", [1, 2])
    @pytest.mark.parametrize("family", ["llama", "gpt_neox", "qwen3_next"])
    def test_like_the_models_own(self, family, unsqueeze_dim):
        theirs = importlib.import_module(
            f"transformers.models.{family}.modeling_{family}"
        ).apply_rotary_pos_emb
        columns = 16 if family == "llama" else 24
        q, k = draw(2, 4, 7, columns), draw(2, 2, 7, columns, seed=1)
        if unsqueeze_dim == 2:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        cos, sin = map(doubled, angles(2, 7, 8))
        got = drop_in.transformers.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        for ours, expected in zip(got, theirs(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim), strict=True):
            torch.testing.assert_close(ours, expected)

    def test_same_arguments(self):
        llama = importlib.import_module("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
        deepseek = importlib.import_module(
            "transformers.models.deepseek_v3.modeling_deepseek_v3"
        ).apply_rotary_pos_emb_interleave
        gptj = importlib.import_module("transformers.models.gptj.modeling_gptj").apply_rotary_pos_emb
        for ours, theirs in (
            (drop_in.transformers.apply_rotary_pos_emb, llama),
            (drop_in.transformers.apply_rotary_pos_emb_interleave, deepseek),
            (drop_in.transformers_gptj.apply_rotary_pos_emb, gptj),
        ):
            named = [
                [(p.name, p.default) for p in inspect.signature(f).parameters.values()]
                for f in (ours, theirs)
            ]
            assert named[0] == named[1]

    @pytest.mark.parametrize(
        ("tensors", "tables"),
        [
            (torch.bfloat16, torch.float32),
            (torch.float32, torch.bfloat16),
            (torch.bfloat16, torch.float16),
            (torch.float32, torch.float64),
            (torch.bfloat16, torch.bfloat16),
        ],
    )
    def test_dtype_of_the_results(self, tensors, tables):
        """That of a product, as transformers has it; gradients come back in the tensors' dtype."""
        theirs = importlib.import_module("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
        q = draw(1, 2, 5, 8, dtype=tensors).requires_grad_()
        k = draw(1, 1, 5, 8, seed=1, dtype=tensors)
        cos, sin = (doubled(t).to(tables) for t in angles(1, 5, 4))
        ours = drop_in.transformers.apply_rotary_pos_emb(q, k, cos, sin)
        expected = theirs(q, k, cos, sin)
        assert [t.dtype for t in ours] == [t.dtype for t in expected]
        (grad,) = torch.autograd.grad(ours[0].sum(), q)
        assert grad.dtype == tensors
        torch.testing.assert_close(ours[0].float(), expected[0].float(), rtol=2e-2, atol=3e-2)

    def test_gptj(self):
        theirs = importlib.import_module("transformers.models.gptj.modeling_gptj").apply_rotary_pos_emb
        x = draw(2, 7, 4, 8)
        cos, sin = angles(2, 7, 4)
        got = drop_in.transformers_gptj.apply_rotary_pos_emb(x, sin, cos)
        torch.testing.assert_close(got, theirs(x, sin, cos))

    def test_unsqueeze_dim(self):
        cos, sin = map(doubled, angles(1, 5, 4))
        x = draw(1, 2, 5, 8)
        for function in (
            drop_in.transformers.apply_rotary_pos_emb,
            drop_in.transformers.apply_rotary_pos_emb_interleave,
        ):
            with pytest.raises(ValueError, match="expected unsqueeze_dim to be 1 or 2, but got 0"):
                function(x, x, cos, sin, unsqueeze_dim=0)


class TestRowsOfTables:
    """A table of one row is that of every token; any other number of rows but the tokens' is refused."""

    @staticmethod
    def calls(tables: tuple[Tensor, Tensor]) -> dict[str, object]:
        q, k = draw(2, 3, 5, 8), draw(2, 1, 5, 8, seed=1)
        cos, sin = map(doubled, tables)
        llama, sections = drop_in.transformers, [2, 1, 1]
        three = (cos.expand(3, *cos.shape), sin.expand(3, *sin.shape))
        return {
            "transformers": lambda: llama.apply_rotary_pos_emb(q, k, cos, sin),
            "tokens first": lambda: llama.apply_rotary_pos_emb(
                q.transpose(1, 2), k.transpose(1, 2), cos, sin, unsqueeze_dim=2
            ),
            "interleave": lambda: llama.apply_rotary_pos_emb_interleave(q, k, cos, sin),
            "gptj": lambda: drop_in.transformers_gptj.apply_rotary_pos_emb(
                q.transpose(1, 2), tables[1], tables[0]
            ),
            "liger": lambda: drop_in.liger.liger_rotary_pos_emb(q, k, cos, sin),
            "multimodal": lambda: drop_in.liger.liger_multimodal_rotary_pos_emb(q, k, *three, sections),
        }

    NAMES = ("transformers", "tokens first", "interleave", "gptj", "liger", "multimodal")

    @pytest.mark.parametrize("name", NAMES)
    def test_one_row(self, name):
        cos, sin = angles(2, 1, 4)
        got = self.calls((cos, sin))[name]()
        expected = self.calls((cos.repeat(1, 5, 1), sin.repeat(1, 5, 1)))[name]()
        torch.testing.assert_close(got, expected, rtol=0, atol=0)

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("rows", [4, 6, 0])
    def test_other_numbers(self, name, rows):
        with pytest.raises(
            ValueError, match=f"expected cos with 5 rows, as many as tokens, or 1, but got {rows}$"
        ):
            self.calls(angles(2, rows, 4))[name]()


class TestLiger:
    def test_rotary(self):
        q, k = draw(2, 4, 7, 16, dtype=torch.bfloat16), draw(2, 2, 7, 16, seed=1, dtype=torch.bfloat16)
        cos, sin = angles(1, 7, 8)
        got = drop_in.liger.liger_rotary_pos_emb(q, k, doubled(cos), doubled(sin))
        for x, ours in zip((q, k), got, strict=True):
            expected = by_hand(x.float(), cos[:, None], sin[:, None], False).bfloat16()
            torch.testing.assert_close(ours, expected)

    def test_multimodal(self):
        q, k = draw(2, 4, 7, 16), draw(2, 2, 7, 16, seed=1)
        cos, sin = angles(3, 2, 7, 8)
        owner = [0] * 3 + [1] * 3 + [2] * 2
        merged = [torch.stack([t[s, ..., i] for i, s in enumerate(owner)], -1)[:, None] for t in (cos, sin)]
        got = drop_in.liger.liger_multimodal_rotary_pos_emb(q, k, doubled(cos), doubled(sin), [3, 3, 2])
        for x, ours in zip((q, k), got, strict=True):
            torch.testing.assert_close(ours, by_hand(x, *merged, False))

    def test_what_is_ignored_there_is_refused(self):
        x = draw(1, 2, 5, 8)
        cos, sin = map(doubled, angles(1, 5, 4))
        with pytest.raises(ValueError, match="expected no position_ids"):
            drop_in.liger.liger_rotary_pos_emb(x, x, cos, sin, position_ids=torch.arange(5))
        with pytest.raises(ValueError, match="expected unsqueeze_dim to be 1, but got 2"):
            drop_in.liger.liger_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=2)
        with pytest.raises(ValueError, match="expected unsqueeze_dim to be 1, but got 2"):
            drop_in.liger.liger_multimodal_rotary_pos_emb(x, x, cos, sin, [2, 1, 1], unsqueeze_dim=2)


class TestFlashAttention:
    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("inplace", [False, True])
    def test_a_batch(self, interleaved, inplace):
        x = draw(2, 5, 3, 12)
        cos, sin = angles(9, 4)
        expected = by_hand(x, cos[:5, None], sin[:5, None], interleaved)
        got = drop_in.flash_attn.apply_rotary_emb(x, cos, sin, interleaved, inplace)
        torch.testing.assert_close(got, expected)
        assert (got is x) == inplace

    @pytest.mark.parametrize("offsets", [4, torch.tensor([4, 1], dtype=torch.int32)])
    def test_offsets(self, offsets):
        x = draw(2, 5, 3, 12)
        cos, sin = angles(9, 4)
        first = [4, 4] if isinstance(offsets, int) else offsets.tolist()
        got = drop_in.flash_attn.apply_rotary_emb(x, cos, sin, seqlen_offsets=offsets)
        for b, start in enumerate(first):
            rows = slice(start, start + 5)
            torch.testing.assert_close(got[b], by_hand(x[b], cos[rows, None], sin[rows, None], False))

    @pytest.mark.parametrize("offsets", [0, torch.tensor([2, 3])])
    def test_packed(self, offsets):
        x = draw(7, 3, 12)
        cos, sin = angles(9, 4)
        bounds = torch.tensor([0, 4, 7], dtype=torch.int32)
        first = [0, 0] if isinstance(offsets, int) else offsets.tolist()
        places = [*range(first[0], first[0] + 4), *range(first[1], first[1] + 3)]
        got = drop_in.flash_attn.apply_rotary_emb(
            x, cos, sin, seqlen_offsets=offsets, cu_seqlens=bounds, max_seqlen=4
        )
        torch.testing.assert_close(got, by_hand(x, cos[places, None], sin[places, None], False))

    def test_gradient(self):
        x = draw(2, 5, 3, 12).requires_grad_()
        cos, sin = angles(5, 4)
        up = draw(2, 5, 3, 12, seed=3)
        (grad,) = torch.autograd.grad(drop_in.flash_attn.apply_rotary_emb(x, cos, sin), x, up)
        torch.testing.assert_close(grad, by_hand(up, cos[:, None], -sin[:, None], False))


class TestServers:
    """vLLM and flashinfer: positions, heads side by side in the last dimension, one table of both."""

    HEAD = 12

    def arguments(self, *leading: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        positions = torch.randint(0, 30, leading, generator=torch.Generator().manual_seed(2))
        query, key = draw(*leading, 3 * self.HEAD), draw(*leading, self.HEAD, seed=1)
        return positions, query, key, torch.cat(angles(30, 4), -1)

    def expected(self, positions: Tensor, x: Tensor, cache: Tensor, is_neox: bool) -> Tensor:
        cos, sin = (t[positions].unsqueeze(-2) for t in cache.chunk(2, -1))
        heads = x.unflatten(-1, (-1, self.HEAD))
        return by_hand(heads, cos, sin, not is_neox).flatten(-2)

    @pytest.mark.parametrize("is_neox", [True, False])
    @pytest.mark.parametrize("leading", [(7,), (2, 7)])
    def test_vllm(self, is_neox, leading):
        positions, query, key, cache = self.arguments(*leading)
        wanted = [self.expected(positions, x, cache, is_neox) for x in (query, key)]
        result = drop_in.vllm.rotary_embedding(positions, query, key, self.HEAD, cache, is_neox)
        assert result is None
        torch.testing.assert_close(query, wanted[0])
        torch.testing.assert_close(key, wanted[1])

    def test_vllm_without_a_key_and_with_heads_apart(self):
        positions, query, _, cache = self.arguments(7)
        wanted = self.expected(positions, query, cache, True)
        drop_in.vllm.rotary_embedding(positions, query.view(7, 3, self.HEAD), None, self.HEAD, cache, True)
        torch.testing.assert_close(query, wanted)

    def test_vllm_on_slices_of_a_fused_projection(self):
        positions, query, key, cache = self.arguments(7)
        fused = torch.cat((query, key, draw(7, self.HEAD, seed=5)), -1).bfloat16()
        q, k, v = fused.split((3 * self.HEAD, self.HEAD, self.HEAD), -1)
        before = v.clone()
        wanted = [self.expected(positions, x.float(), cache, True) for x in (q, k)]
        drop_in.vllm.rotary_embedding(positions, q, k, self.HEAD, cache, True)
        for x, expected in zip((q, k), wanted, strict=True):
            torch.testing.assert_close(x, expected.bfloat16())
        assert torch.equal(v, before)

    @pytest.mark.parametrize("is_neox", [True, False])
    def test_flashinfer(self, is_neox):
        positions, query, key, cache = self.arguments(7)
        before = query.clone()
        wanted = [self.expected(positions, x, cache, is_neox) for x in (query, key)]
        rope = drop_in.flashinfer
        got = rope.apply_rope_with_cos_sin_cache(positions, query, key, self.HEAD, cache, is_neox)
        for ours, expected in zip(got, wanted, strict=True):
            torch.testing.assert_close(ours, expected)
        assert torch.equal(query, before)
        assert (
            rope.apply_rope_with_cos_sin_cache_inplace(positions, query, key, self.HEAD, cache, is_neox)
            is None
        )
        torch.testing.assert_close(query, wanted[0])
        torch.testing.assert_close(key, wanted[1])

    def test_positions_outside_the_table(self):
        positions, query, key, cache = self.arguments(7)
        positions[3] = 30
        before = query.clone()
        with pytest.raises(IndexError, match="positions from 0 to 29"):
            drop_in.vllm.rotary_embedding(positions, query, key, self.HEAD, cache, True)
        assert torch.equal(query, before)


def test_every_name_runs_the_operator(monkeypatch):
    """No name has an implementation of its own."""
    calls = []

    def counted(*args, **options):
        calls.append(options)
        return apply_rotary(*args, **options)

    monkeypatch.setattr(drop_in.ops, "apply_rotary", counted)
    q, cos, sin = draw(1, 2, 5, 8), *map(doubled, angles(1, 5, 4))
    positions, flat, cache = torch.arange(5), draw(5, 16), torch.cat(angles(5, 4), -1)
    drop_in.transformers.apply_rotary_pos_emb(q, q, cos, sin)
    drop_in.transformers.apply_rotary_pos_emb_interleave(q, q, cos, sin)
    drop_in.transformers_gptj.apply_rotary_pos_emb(draw(1, 5, 2, 8), sin[..., :4], cos[..., :4])
    drop_in.liger.liger_rotary_pos_emb(q, q, cos, sin)
    drop_in.liger.liger_multimodal_rotary_pos_emb(
        q, q, cos.expand(3, 1, 5, 8), sin.expand(3, 1, 5, 8), [2, 1, 1]
    )
    drop_in.flash_attn.apply_rotary_emb(draw(1, 5, 2, 8), cos[0, :, :4], sin[0, :, :4])
    drop_in.vllm.rotary_embedding(positions, flat, None, 8, cache, True)
    drop_in.flashinfer.apply_rope_with_cos_sin_cache(positions, flat, flat, 8, cache)
    drop_in.flashinfer.apply_rope_with_cos_sin_cache_inplace(positions, flat, flat.clone(), 8, cache)
    assert len(calls) == 9
