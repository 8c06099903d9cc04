"""The names and arguments that users know from other libraries, one namespace a library.

``from opwright.rotary.drop_in import transformers`` and then ``transformers.apply_rotary_pos_emb(...)``:
names that several libraries use for different things do not hide one another. Each follows the convention of
its library: argument order, defaults, what is written in place and dtype of the results. An option that this
operator does not have raises ValueError; none is ignored silently. Tensors may be of any layout that the
operator accepts, also where the library itself wants contiguous tensors on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import ops

__all__ = ["flash_attn", "flashinfer", "liger", "transformers", "transformers_gptj", "vllm"]


def _promoted(cos: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype that multiplying them by ``cos`` gives."""
    return tuple(x.to(torch.promote_types(x.dtype, cos.dtype)) for x in tensors)


def _seq_dim(name: str, unsqueeze_dim: int) -> int:
    """The dimension of tokens, where tables get a dimension of heads at ``unsqueeze_dim``."""
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"{name}: expected unsqueeze_dim to be 1 or 2, but got {unsqueeze_dim}")
    return 3 - unsqueeze_dim


def _of_tokens(name: str, q: Tensor, seq_dim: int, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Tables with a row for each token of ``q``; those of one row are expanded, others raise ValueError."""
    if q.dim() not in (3, 4) or cos.dim() < 2 or sin.shape != cos.shape:
        return cos, sin  # which the operator refuses
    tokens, rows = q.shape[seq_dim - 4], cos.shape[-2]
    if rows == tokens:
        return cos, sin
    if rows != 1:
        raise ValueError(f"{name}: expected cos with {tokens} rows, as many as tokens, or 1, but got {rows}")
    shape = (*cos.shape[:-2], tokens, cos.shape[-1])
    return cos.expand(shape), sin.expand(shape)


class transformers:
    """The functions of transformers' model files; results in the dtype that the tables promote to.

    The rotation is computed in float32 and rounded once. The functions there round each product and the sum
    to the tensors' dtype, so in bfloat16 and float16 the results here are closer to the exact ones.
    """

    @staticmethod
    def apply_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        """``apply_rotary_pos_emb`` of Llama, GPT-NeoX, Qwen3-Next and most others.

        Tables are ``(batch, seq_len, rotary_dim)``; columns behind ``rotary_dim`` are copied.
        """
        seq_dim = _seq_dim("transformers.apply_rotary_pos_emb", unsqueeze_dim)
        cos, sin = _of_tokens("transformers.apply_rotary_pos_emb", q, seq_dim, cos, sin)
        q, k = _promoted(cos, q, k)
        return ops.apply_rotary(q, k, cos=cos, sin=sin, seq_dim=seq_dim, rotary_dim=cos.shape[-1])

    @staticmethod
    def apply_rotary_pos_emb_interleave(
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        position_ids: Tensor | None = None,
        unsqueeze_dim: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """``apply_rotary_pos_emb_interleave`` of DeepSeek-V3: reads interleaved pairs and writes halves.

        ``position_ids`` are not used there either: the tables are those of the tokens.
        """
        seq_dim = _seq_dim("transformers.apply_rotary_pos_emb_interleave", unsqueeze_dim)
        cos, sin = _of_tokens("transformers.apply_rotary_pos_emb_interleave", q, seq_dim, cos, sin)
        half = cos.shape[-1] // 2
        q, k = _promoted(cos, q, k)
        return ops.apply_rotary(
            q,
            k,
            cos=cos[..., :half],
            sin=sin[..., :half],
            seq_dim=seq_dim,
            deinterleave=True,
            rotary_dim=cos.shape[-1],
        )


class transformers_gptj:
    """The function of transformers' GPT-J and CodeGen, whose sines come before the cosines."""

    @staticmethod
    def apply_rotary_pos_emb(tensor: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        """Rotate interleaved pairs of ``(batch, seq_len, heads, rotary_dim)``; tables have a value a pair."""
        cos, sin = _of_tokens("transformers_gptj.apply_rotary_pos_emb", tensor, 1, cos, sin)
        (tensor,) = _promoted(cos, tensor)
        return ops.apply_rotary(tensor, cos=cos, sin=sin, interleaved=True, rotary_dim=2 * cos.shape[-1])


class liger:
    """``liger_kernel.transformers``: the whole head is rotated in halves."""

    @staticmethod
    def liger_rotary_pos_emb(
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        position_ids: Tensor | None = None,
        unsqueeze_dim: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """``liger_rotary_pos_emb``: ``(batch, heads, seq_len, head_dim)``, results in the dtype of ``q``.

        Liger ignores ``position_ids`` and ``unsqueeze_dim``; a value that would have a meaning raises here.
        """
        if position_ids is not None:
            raise ValueError("liger.liger_rotary_pos_emb: expected no position_ids, but got a tensor")
        if unsqueeze_dim != 1:
            raise ValueError(
                f"liger.liger_rotary_pos_emb: expected unsqueeze_dim to be 1, but got {unsqueeze_dim}"
            )
        cos, sin = _of_tokens("liger.liger_rotary_pos_emb", q, 2, cos, sin)
        return ops.apply_rotary(q, k, cos=cos, sin=sin, seq_dim=2)

    @staticmethod
    def liger_multimodal_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: list[int], unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        """``liger_multimodal_rotary_pos_emb``: blocked sections, tables ``(3, batch, seq_len, head_dim)``."""
        if unsqueeze_dim != 1:
            raise ValueError(
                f"liger.liger_multimodal_rotary_pos_emb: expected unsqueeze_dim to be 1, "
                f"but got {unsqueeze_dim}"
            )
        cos, sin = _of_tokens("liger.liger_multimodal_rotary_pos_emb", q, 2, cos, sin)
        return ops.apply_rotary(q, k, cos=cos, sin=sin, seq_dim=2, sections=mrope_section)


class flash_attn:
    """``flash_attn.layers.rotary``: one tensor, ``(batch, seq_len, heads, head_dim)`` or packed sequences."""

    @staticmethod
    def apply_rotary_emb(
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        interleaved: bool = False,
        inplace: bool = False,
        seqlen_offsets: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Tensor:
        """``apply_rotary_emb``: tables ``(seqlen_rotary, rotary_dim / 2)``.

        With ``cu_seqlens``, ``x`` is ``(total_seqlen, heads, head_dim)``. ``max_seqlen`` sizes a grid of GPU
        blocks there and has no meaning here.
        """
        return ops.apply_rotary(
            x,
            cos=cos,
            sin=sin,
            interleaved=interleaved,
            rotary_dim=2 * cos.shape[-1],
            cu_seqlens=cu_seqlens,
            offsets=seqlen_offsets,
            inplace=inplace,
        )


def _cached(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    inplace: bool,
) -> Any:
    """Rotate heads of ``head_size`` that follow one another in the last dimensions of query and key."""
    cos, sin = cos_sin_cache.chunk(2, -1)
    tokens = positions.reshape(-1)

    def heads_of(tensor: Tensor) -> Tensor:
        return tensor.view(tokens.shape[0], -1, head_size)

    return ops.apply_rotary(  # type: ignore[call-overload]
        heads_of(query),
        None if key is None else heads_of(key),
        cos=cos,
        sin=sin,
        positions=tokens,
        interleaved=not is_neox,
        rotary_dim=cos_sin_cache.shape[-1],
        inplace=inplace,
    )


class vllm:
    """``vllm._custom_ops``: writes its arguments."""

    @staticmethod
    def rotary_embedding(
        positions: Tensor,
        query: Tensor,
        key: Tensor | None,
        head_size: int,
        cos_sin_cache: Tensor,
        is_neox: bool,
    ) -> None:
        """``rotary_embedding``: ``query`` and ``key`` are rotated in place.

        ``positions`` are ``(num_tokens,)`` or ``(batch, seq_len)``; ``query`` and ``key`` have these
        dimensions and then ``heads * head_size`` or ``heads, head_size``; ``cos_sin_cache`` is
        ``(max_position, rotary_dim)``, the cosines before the sines, and may be of another dtype.
        """
        _cached(positions, query, key, head_size, cos_sin_cache, is_neox, inplace=True)


class flashinfer:
    """``flashinfer.rope``: packed tokens with a table of cosines and sines."""

    @staticmethod
    def apply_rope_with_cos_sin_cache(
        positions: Tensor,
        query: Tensor,
        key: Tensor,
        head_size: int,
        cos_sin_cache: Tensor,
        is_neox: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """``apply_rope_with_cos_sin_cache``: ``(nnz, heads * head_size)``, new tensors of these shapes."""
        q, k = _cached(positions, query, key, head_size, cos_sin_cache, is_neox, inplace=False)
        return q.view(query.shape), k.view(key.shape)

    @staticmethod
    def apply_rope_with_cos_sin_cache_inplace(
        positions: Tensor,
        query: Tensor,
        key: Tensor,
        head_size: int,
        cos_sin_cache: Tensor,
        is_neox: bool = True,
    ) -> None:
        """``apply_rope_with_cos_sin_cache_inplace``: the same, written into ``query`` and ``key``."""
        _cached(positions, query, key, head_size, cos_sin_cache, is_neox, inplace=True)
