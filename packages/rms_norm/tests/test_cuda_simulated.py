"""The CUDA kernels of rms_norm, run on the host by the simulator: logic, bounds and races, never speed.

Forward results must be the formula's bit for bit, given the row's own statistics, and those within two units
of the last place; gradients are compared with the golden reference in float64, within bounds that follow from
the roundings made. Sizes take every path: a warp and a block for a row, whole vectors and single elements,
rows kept in shared memory and rows read twice, one block for several pieces of work.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.simulated import MOST_BLOCKS, PACKAGE, SHARED_LIMIT, Simulated, arithmetic, build, compiler

from opwright.rms_norm import reference
from shared_build.conformance import reasons

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(not compiler(), reason=reasons.NO_COMPILER),
]

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
LOW = (BF16, FP16, FP32)
DTYPES = (*LOW, FP64)
ONCE, LLAMA = 0, 1
SILU, SIGMOID = 0, 1
# Up to 64 chunks of 16 bytes are one warp's work; off whole chunks, single elements are moved.
WIDTHS = (1, 5, 8, 33, 64, 256, 520, 1027)
LIBRARY = "OPWRIGHT_SIMULATED_LIBRARY"  # set in the process that runs the checked build


def some(cases) -> list:
    """All cases; on the checked build, which is slow, every third: types make no difference to it."""
    return list(cases)[:: 3 if LIBRARY in os.environ else 1]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of a test run."""
    base = tmp_path_factory.getbasetemp()
    if base.name.startswith("popen-"):  # a worker's own folder lies in the run's
        base = base.parent
    path = base / "cuda-simulated"
    path.mkdir(exist_ok=True)
    return path


def once(folder: Path, name: str, make) -> Path:
    """Make ``folder / name`` in one process while the others wait."""
    target = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "done").exists():
            target.mkdir(exist_ok=True)
            make(target)
            (target / "done").touch()
    return target


@pytest.fixture(scope="session")
def library(folder: Path) -> Simulated:
    if LIBRARY in os.environ:
        return Simulated(Path(os.environ[LIBRARY]), traces=False)  # the other build looks for races
    return Simulated(once(folder, "plain", lambda path: build("plain", path)) / "kernels-plain.so")


@pytest.fixture
def cuda(library: Simulated) -> Simulated:
    library.configure()
    library.misalign = 0
    library.counts()
    return library


def randn(*shape: int, dtype: torch.dtype = FP32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    # rows of very different magnitude, none of them near the limits of float16
    scale = torch.exp2(torch.randint(-4, 5, (*shape[:-1], 1), generator=generator).double())
    return (scale * torch.randn(*shape, generator=generator, dtype=FP64)).to(dtype)


def weight_of(*shape: int, dtype: torch.dtype | None, seed: int = 9) -> torch.Tensor | None:
    return None if dtype is None else randn(*shape, dtype=dtype, seed=seed)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert torch.equal(actual, expected), f"{(actual != expected).sum()} of {actual.numel()} elements differ"


def check_rstd(rstd: torch.Tensor, value: torch.Tensor, eps: float) -> None:
    """Within two units of the last place of the float64 value; in float64 itself, of rounding in a sum."""
    assert rstd.dtype == arithmetic(value.dtype)
    true = torch.rsqrt(value.double().square().mean(-1) + eps)
    bound = 2 * torch.finfo(FP32).eps if rstd.dtype == FP32 else 64 * torch.finfo(FP64).eps
    assert ((rstd.double() - true).abs() <= bound * true).all()


def close(actual: torch.Tensor, golden: torch.Tensor, terms: torch.Tensor | float) -> None:
    """Rounded once from the arithmetic's type, in which a few roundings of ``terms``' size were made."""
    wide = arithmetic(actual.dtype)
    rounding = 0 if actual.dtype == wide else torch.finfo(actual.dtype).eps / 2
    tiny = torch.finfo(actual.dtype).tiny * torch.finfo(actual.dtype).eps
    bound = rounding * golden.abs() + 8 * torch.finfo(wide).eps * terms + tiny
    error = (actual.double() - golden).abs()
    assert (error <= bound).all(), f"{(error / bound).max()} of the bound"


# Every order of threads, rows kept or read twice, many blocks or few: (order, seed, shared limit, blocks).
SETTINGS = [
    ("forward", 0, SHARED_LIMIT, MOST_BLOCKS),
    ("reverse", 0, 0, 2),
    ("random", 1, SHARED_LIMIT, 1),
    ("random", 2, 3000, MOST_BLOCKS),
]


def settings(cuda: Simulated):
    """Set up the simulator in each way, in turn, and tell its number."""
    for number, (order, seed, limit, blocks) in enumerate(SETTINGS):
        cuda.configure(order, seed, shared_limit=limit, most_blocks=blocks)
        yield number


class TestForward:
    @pytest.mark.parametrize(
        ("dtype", "weight_dtype"),
        some([*itertools.product(LOW, (*LOW, None)), *((FP64, w) for w in (BF16, FP64, None))]),
    )
    @pytest.mark.parametrize("rounding", [ONCE, LLAMA])
    def test_bit_for_bit(self, cuda, dtype, weight_dtype, rounding):
        for number, width in zip(itertools.cycle(range(len(SETTINGS))), some(WIDTHS)):
            order, seed, limit, blocks = SETTINGS[number]
            cuda.configure(order, seed, shared_limit=limit, most_blocks=blocks)
            x, offset = randn(7, width, dtype=dtype, seed=width), float(number % 2)
            w = weight_of(width, dtype=weight_dtype)
            output, _, rstd = cuda.forward(x, w, eps=1e-5, offset=offset, rounding=rounding)
            expected, _ = reference.rms_norm_forward(x, w, 1e-5, offset, rounding, rstd=rstd)
            same(output, expected)
            check_rstd(rstd, x, 1e-5)

    @pytest.mark.parametrize("dtype", some(DTYPES))
    def test_every_setting_gives_the_same_bits(self, cuda, dtype):
        for width in (64, 1032):
            x, w = randn(9, width, dtype=dtype), randn(width, dtype=dtype, seed=1)
            results = [cuda.forward(x, w) for _ in settings(cuda)]
            for output, _, rstd in results[1:]:
                same(output, results[0][0])
                same(rstd, results[0][2])

    @pytest.mark.parametrize("dtype", some(DTYPES))
    def test_where_rows_lie_does_not_matter(self, cuda, dtype):
        dense, w = randn(4, 3, 264, dtype=dtype), randn(264, dtype=dtype, seed=1)
        expected, _, rstd = cuda.forward(dense, w)
        layouts = {
            "sliced": torch.cat([dense, dense], -1)[..., :264],
            "moved": torch.cat([dense, dense], -1)[..., 264:],
            "misaligned": torch.cat([dense.flatten(), dense.flatten()[:1]]).roll(1)[1:].view(4, 3, 264),
            "pitched": torch.cat([dense, dense[..., :1]], -1)[..., :264],
            "permuted": dense.transpose(0, 1).contiguous().transpose(0, 1),
            "stepped": dense.repeat_interleave(2, -1)[..., ::2],
            "transposed": dense.transpose(1, 2).contiguous().transpose(1, 2),
            "many dimensions": dense.view(2, 2, 3, 1, 1, 1, 264)
            .transpose(0, 2)
            .contiguous()
            .transpose(0, 2)[..., 0, :],
        }
        for name, x in layouts.items():
            x = x.squeeze(-2) if x.dim() == 7 else x
            output, _, r = cuda.forward(x, w)
            assert torch.equal(output.reshape(expected.shape), expected), name
            assert torch.equal(r.reshape(rstd.shape), rstd), name
        expanded, _, _ = cuda.forward(dense[:1].expand(5, 3, 264), w)
        for row in expanded:
            same(row, expected[0])
        cuda.misalign = 1  # of the results
        same(cuda.forward(dense, w)[0], expected)

    def test_weight_of_heads_and_strides(self, cuda):
        x = randn(5, 3, 72, dtype=BF16)
        for w in (
            randn(3, 72, dtype=BF16, seed=1),
            randn(3, 72, seed=1),
            randn(3, 144, dtype=FP16, seed=1)[:, ::2],
        ):
            for rounding, offset in ((ONCE, 1.0), (LLAMA, 0.0)):
                output, _, rstd = cuda.forward(x, w, offset=offset, rounding=rounding)
                same(output, reference.rms_norm_forward(x, w, 1e-6, offset, rounding, rstd=rstd)[0])

    @pytest.mark.parametrize("dtype", some([BF16, FP32]))
    def test_the_longest_rows(self, cuda, dtype):
        """bfloat16 rows of 65,536 columns are kept; float32 ones are read twice."""
        x, w = randn(1, 65536, dtype=dtype), randn(65536, dtype=dtype, seed=1)
        output, _, rstd = cuda.forward(x, w)
        same(output, reference.rms_norm_forward(x, w, 1e-6, 0.0, ONCE, rstd=rstd)[0])
        check_rstd(rstd, x, 1e-6)

    def test_without_statistics_and_in_a_single_row(self, cuda):
        x = randn(40, dtype=FP16)
        output, _, rstd = cuda.forward(x, keep_rstd=False)
        assert rstd is None
        same(output, cuda.forward(x)[0])

    def test_more_rows_than_blocks(self, cuda):
        cuda.configure("random", 4, most_blocks=3)
        x = randn(1001, 4)
        output, _, rstd = cuda.forward(x)
        same(output, reference.rms_norm_forward(x, None, 1e-6, 0.0, ONCE, rstd=rstd)[0])

    @pytest.mark.parametrize("profile", ["equal", "large", "far from zero", "one spike", "special"])
    def test_statistics_of_difficult_rows(self, cuda, profile):
        x = randn(3, 4096)
        x = {
            "equal": torch.full_like(x, 1.1),
            "large": x * 2.0**40,
            "far from zero": x + 1000,
            "one spike": torch.where(torch.arange(4096) == 77, 3e4, x),
            "special": torch.where(
                torch.arange(4096) == 77, torch.tensor([[0.0], [torch.inf], [torch.nan]]), x
            ),
        }[profile]
        output, _, rstd = cuda.forward(x)
        if profile == "special":
            x = x[:1]
            assert rstd[1] == 0
            assert rstd[2].isnan()
            assert output[1, 77].isnan()
            assert (output[1, :77] == 0).all()
            assert output[2].isnan().all()
        check_rstd(rstd[: len(x)], x, 1e-6)


class TestAdd:
    @pytest.mark.parametrize("residual_dtype", LOW)
    @pytest.mark.parametrize(
        ("dtype", "weight_dtype"), some([*itertools.product(LOW, (BF16, FP32)), (FP64, FP32)])
    )
    @pytest.mark.parametrize("rounding", [ONCE, LLAMA])
    def test_bit_for_bit(self, cuda, dtype, residual_dtype, weight_dtype, rounding):
        if dtype == FP64:
            residual_dtype = FP64  # the binding widens a narrower one
        for exact, (number, width) in itertools.product(
            (False, True), zip(itertools.cycle(range(len(SETTINGS))), (5, 64, 520, 1040))
        ):
            order, seed, limit, blocks = SETTINGS[number]
            cuda.configure(order, seed, shared_limit=limit, most_blocks=blocks)
            x, residual = randn(6, width, dtype=dtype), randn(6, width, dtype=residual_dtype, seed=1)
            w = weight_of(width, dtype=weight_dtype)
            got = cuda.forward(x, w, residual, offset=1.0, rounding=rounding, exact=exact)
            expected = reference.add_rms_norm_forward(
                x, residual, w, 1e-6, 1.0, rounding, int(exact), rstd=got[2]
            )
            same(got[0], expected[0])
            same(got[1], expected[1])
            wide = x.to(arithmetic(dtype)) + residual.to(arithmetic(dtype))
            check_rstd(got[2], wide if exact else got[1], 1e-6)

    @pytest.mark.parametrize(
        ("dtype", "residual_dtype"), [(BF16, BF16), (FP16, FP32), (FP32, FP32), (FP64, FP64)]
    )
    def test_in_place(self, cuda, dtype, residual_dtype):
        for number, width in zip(settings(cuda), (64, 520, 33, 1040)):
            x, residual = randn(6, width, dtype=dtype), randn(6, width, dtype=residual_dtype, seed=1)
            w = weight_of(width, dtype=dtype)
            exact = number % 2 == 1
            expected = cuda.forward(x, w, residual, exact=exact)
            # Columns of larger tensors, so that results have strides of their own.
            a, b = torch.zeros(6, width + 24, dtype=dtype), torch.zeros(6, 2 * width, dtype=residual_dtype)
            a[:, :width], b[:, ::2] = x, residual
            cuda.forward(a[:, :width], w, b[:, ::2], exact=exact, in_place=True)
            same(a[:, :width], expected[0])
            same(b[:, ::2], expected[1])
            assert (a[:, width:] == 0).all()
            assert (b[:, 1::2] == 0).all()
            cuda.forward(x, w, residual, exact=exact, in_place=True)
            same(x, expected[0])
            same(residual, expected[1])


def check_backward(cuda: Simulated, dy, value, w, dres=None, *, offset=0.0, need_input=True) -> None:
    """Compare with the reference in float64; the bounds follow from the sizes of the terms."""
    rstd = torch.rsqrt(value.double().square().mean(-1) + 1e-6).to(arithmetic(value.dtype))
    got = cuda.backward(dy, value, w, rstd, dres, offset=offset, need_input=need_input)
    wide = [None if t is None else t.double() for t in (dy, dres, value, w)]
    golden = reference.add_rms_norm_backward(*wide, None, 1e-6, offset)
    r, grad = rstd.double().unsqueeze(-1), torch.zeros_like(wide[2]) if dy is None else wide[0]
    scale = 1.0 if w is None else wide[3] + offset
    if need_input:
        terms = r * (grad * scale).abs().amax(-1, keepdim=True) * (1 + (wide[2] * r).abs())
        terms = terms + (0 if dres is None else wide[1].abs())
        assert got[0].dtype == value.dtype
        close(got[0], golden[0], terms)
    else:
        assert got[0] is None
    if w is None:
        assert got[1] is None
        return
    assert got[1].dtype == w.dtype
    sums = (grad * wide[2] * r).abs().flatten(0, -1 - w.dim()).sum(0)
    close(got[1], golden[1], sums)


class TestBackward:
    @pytest.mark.parametrize(
        ("dtype", "grad_dtype", "weight_dtype"),
        some(
            [
                *((dtype, dtype, dtype) for dtype in DTYPES),
                *((BF16, FP32, FP32), (FP16, FP32, FP32), (FP32, BF16, BF16), (FP32, FP16, FP16)),
                *((BF16, BF16, FP32), (FP16, FP16, BF16), (FP64, FP64, BF16), (BF16, BF16, None)),
            ]
        ),
    )
    def test_against_the_reference(self, cuda, dtype, grad_dtype, weight_dtype):
        for number, width in zip(itertools.cycle(range(len(SETTINGS))), some(WIDTHS)):
            order, seed, limit, blocks = SETTINGS[number]
            cuda.configure(order, seed, shared_limit=limit, most_blocks=blocks)
            value, dy = randn(21, width, dtype=dtype), randn(21, width, dtype=grad_dtype, seed=1)
            dres = randn(21, width, dtype=dtype, seed=2) if number % 2 else None
            check_backward(
                cuda, dy, value, weight_of(width, dtype=weight_dtype), dres, offset=float(number // 2)
            )

    @pytest.mark.parametrize("dtype", some(DTYPES))
    def test_every_setting_gives_the_same_bits(self, cuda, dtype):
        for width in (64, 1032):
            value, dy, w = (randn(33, width, dtype=dtype, seed=s) for s in range(3))
            rstd = cuda.forward(value)[2]
            results = [cuda.backward(dy, value, w[0], rstd) for _ in settings(cuda)]
            for other in results[1:]:
                same(other[0], results[0][0])
                same(other[1], results[0][1])

    @pytest.mark.parametrize("dtype", [BF16, FP32])
    def test_only_what_is_wanted(self, cuda, dtype):
        value, dy, dres = (randn(13, 520, dtype=dtype, seed=s) for s in range(3))
        w, rstd = randn(520, dtype=dtype), cuda.forward(value)[2]
        both = cuda.backward(dy, value, w, rstd, dres)
        for _ in settings(cuda):
            only_input = cuda.backward(dy, value, w, rstd, dres, need_weight=False)
            same(only_input[0], both[0])
            assert only_input[1] is None
            only_weight = cuda.backward(dy, value, w, rstd, dres, need_input=False)
            same(only_weight[1], both[1])
            assert only_weight[0] is None
            # Without a gradient of the output that of the residual passes through.
            passed = cuda.backward(None, value, w, rstd, dres)
            same(passed[0], dres)
            assert (passed[1] == 0).all()

    def test_weight_of_heads(self, cuda):
        for number, rows in zip(settings(cuda), (1, 2, 21, 40)):
            value, dy = randn(rows, 3, 72, dtype=BF16), randn(rows, 3, 72, dtype=BF16, seed=1)
            check_backward(cuda, dy, value, randn(3, 72, dtype=(BF16, FP32)[number % 2], seed=2), offset=1.0)
            check_backward(cuda, dy, value, randn(3, 72, dtype=BF16, seed=2), need_input=False)

    def test_where_rows_lie_does_not_matter(self, cuda):
        value, dy, dres = (randn(4, 3, 264, dtype=BF16, seed=s) for s in range(3))
        w, rstd = randn(264, dtype=BF16), cuda.forward(value)[2]
        expected = cuda.backward(dy, value, w, rstd, dres)

        def moved(t: torch.Tensor, how: str) -> torch.Tensor:
            if how == "stepped":
                return t.repeat_interleave(2, -1)[..., ::2]
            if how == "pitched":
                return torch.cat([t, t[..., :1]], -1)[..., :264]
            return t.transpose(0, 1).contiguous().transpose(0, 1)

        for how in ("stepped", "pitched", "permuted"):
            for which in range(3):
                dy_, value_, dres_ = (
                    moved(t, how) if i == which else t for i, t in enumerate((dy, value, dres))
                )
                got = cuda.backward(dy_, value_, w, rstd, dres_)
                same(got[0], expected[0])
                same(got[1], expected[1])
        check_backward(cuda, torch.ones(1, dtype=BF16).expand(4, 3, 264), value, w)

    def test_the_longest_rows(self, cuda):
        value, dy, w = (randn(1, 65536, dtype=BF16, seed=s) for s in range(3))
        check_backward(cuda, dy, value, w[0])

    def test_parts_are_few_and_short(self, cuda):
        for rows, heads in itertools.product((1, 3, 4, 5, 1023, 1024, 4096, 65536, 10**6, 10**9), (1, 3, 32)):
            parts, each = cuda.parts(rows, heads), -(-rows // heads)
            assert 1 <= parts <= each
            assert -(-each // parts) <= 128 + 1
            if each >= 65536:
                assert each / parts >= 15


def gated_golden(x, gate, w, activation, before, size):
    return reference.rms_norm_gated_forward(x, gate, w, 1e-6, activation, before, size, ONCE)


class TestGated:
    @pytest.mark.parametrize(
        ("dtype", "weight_dtype"),
        some(
            [*itertools.product((BF16, FP16), (BF16, FP32, None)), (FP32, FP32), (FP32, BF16), (FP64, FP64)]
        ),
    )
    @pytest.mark.parametrize("rounding", [ONCE, LLAMA])
    @pytest.mark.parametrize("before", [True, False])
    @pytest.mark.parametrize("gated", [True, False])
    def test_bit_for_bit_where_the_activation_is_exact(
        self, cuda, dtype, weight_dtype, rounding, before, gated
    ):
        """sigmoid(0) is 0.5 and sigmoid(1000) is 1 in every arithmetic: what is left is rounding."""
        for number, (width, groups) in zip(settings(cuda), ((64, 1), (99, 3), (1560, 3), (1056, 2))):
            x, w = randn(5, width, dtype=dtype), weight_of(width, dtype=weight_dtype)
            gate = 1000 * (randn(5, width, seed=4) > 0).to(dtype) if gated else None
            options = {
                "activation": SIGMOID,
                "norm_before_gate": before,
                "groups": groups,
                "rounding": rounding,
            }
            output, rstd = cuda.gated_forward(x, gate, w, **options, keep_rstd=True)
            expected, _ = reference.rms_norm_gated_forward(
                x, gate, w, 1e-6, SIGMOID, before, width // groups, rounding, rstd=rstd
            )
            same(output, expected)
            value = x.to(rstd.dtype)
            if gated and not before:
                value = value * torch.where(gate > 0, 1.0, 0.5)
            check_rstd(rstd, value.unflatten(-1, (groups, -1)), 1e-6)
            if number == 0:
                same(cuda.gated_forward(x, gate, w, **options, keep_rstd=False)[0], output)

    @pytest.mark.parametrize("dtype", some(DTYPES))
    @pytest.mark.parametrize("activation", [SILU, SIGMOID])
    @pytest.mark.parametrize("before", [True, False])
    def test_against_the_reference(self, cuda, dtype, activation, before):
        for _, (width, groups) in zip(settings(cuda), ((64, 1), (99, 3), (1560, 3), (1056, 2))):
            x, gate, w = (randn(9, width, dtype=dtype, seed=s) for s in range(3))
            wide = [t.double() for t in (x, gate, w[0])]
            golden, _ = gated_golden(*wide, activation, before, width // groups)
            options = {"activation": activation, "norm_before_gate": before, "groups": groups}
            output, rstd = cuda.gated_forward(x, gate, w[0], **options)
            close(output, golden, golden.abs())

            dy = randn(9, width, dtype=dtype, seed=3)
            got = cuda.gated_backward(dy, x, gate, w[0], rstd, **options)
            exact = reference.rms_norm_gated_backward(
                dy.double(), *wide, None, 1e-6, activation, before, width // groups
            )
            grouped = [t.double().unflatten(-1, (groups, -1)) for t in (dy, x, gate, w[0])]
            sizes = [t.abs() for t in grouped]
            act = sizes[2] + 1  # bounds the activation and, twice, its slope
            normal, r = sizes[1] * (1 if before else act), rstd.double().unsqueeze(-1)
            grad = sizes[0] * sizes[3] * (act if before else 1)
            dv = r * (grad + (normal * r) * (grad * normal * r).mean(-1, keepdim=True))
            dx = dv if before else dv * act
            dz = 2 * (sizes[0] * normal * r * sizes[3] if before else dv * sizes[1])
            close(got[0], exact[0], 2 * dx.flatten(-2))
            close(got[1], exact[1], 2 * dz.flatten(-2))
            dw = (sizes[0] * (act if before else 1) * normal * r).flatten(-2).sum(0)
            close(got[2], exact[2], 2 * dw)

    @pytest.mark.parametrize("dtype", some(DTYPES))
    def test_every_setting_gives_the_same_bits(self, cuda, dtype):
        for width, before in itertools.product((64, 1032), (True, False)):
            x, gate, w, dy = (randn(9, width, dtype=dtype, seed=s) for s in range(4))
            results = []
            for _ in settings(cuda):
                output, rstd = cuda.gated_forward(x, gate, w[0], norm_before_gate=before)
                results.append(
                    (output, *cuda.gated_backward(dy, x, gate, w[0], rstd, norm_before_gate=before))
                )
            for other in results[1:]:
                for got, first in zip(other, results[0]):
                    same(got, first)

    @pytest.mark.parametrize("before", [True, False])
    def test_only_what_is_wanted(self, cuda, before):
        x, gate, w, dy = (randn(9, 520, dtype=BF16, seed=s) for s in range(4))
        options = {"norm_before_gate": before, "groups": 2}
        rstd = cuda.gated_forward(x, gate, w[0], **options)[1]
        every = cuda.gated_backward(dy, x, gate, w[0], rstd, **options)
        for need in itertools.product((True, False), repeat=3):
            some = cuda.gated_backward(dy, x, gate, w[0], rstd, **options, need=need)
            for wanted, got, expected in zip(need, some, every):
                same(got, expected) if wanted else None
                assert wanted or got is None

    def test_without_gate_or_weight_and_in_a_wider_gradient(self, cuda):
        x, gate = randn(9, 528, dtype=BF16), randn(9, 528, dtype=BF16, seed=1)
        dy = randn(9, 528, dtype=FP32, seed=2)
        for given, w, _ in ((None, randn(528), 0), (gate, None, 1), (None, None, 2)):
            rstd = cuda.gated_forward(x, given, w, norm_before_gate=False)[1]
            got = cuda.gated_backward(dy, x, given, w, rstd, norm_before_gate=False)
            wide = [None if t is None else t.double() for t in (dy, x, given, w)]
            exact = reference.rms_norm_gated_backward(*wide, None, 1e-6, SILU, False, None)
            for result, golden in zip(got, exact):
                assert (result is None) == (golden is None)
                if golden is not None:
                    close(result, golden, golden.abs().max())

    def test_where_rows_lie_does_not_matter(self, cuda):
        x, gate, w, dy = (randn(4, 3, 264, dtype=BF16, seed=s) for s in range(4))
        output, rstd = cuda.gated_forward(x, gate, w[0, 0], groups=3)
        expected = cuda.gated_backward(dy, x, gate, w[0, 0], rstd, groups=3)
        fused = torch.cat([x, gate, dy], -1)
        stepped = torch.stack([x, gate, dy], -1)
        for x_, gate_, dy_ in ([*fused.split(264, -1)], [*stepped.unbind(-1)]):
            same(cuda.gated_forward(x_, gate_, w[0, 0], groups=3)[0], output)
            for got, first in zip(cuda.gated_backward(dy_, x_, gate_, w[0, 0], rstd, groups=3), expected):
                same(got, first)


class TestWeights:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("offset", [0.0, 1.0])
    def test_convert(self, cuda, dtype, offset):
        w = randn(600, dtype=dtype)
        w[:2] = torch.tensor([-0.0, 0.0])
        wide = arithmetic(dtype)
        for source, blocks in ((w, MOST_BLOCKS), (w[::3], 1)):
            cuda.configure("reverse", most_blocks=blocks)
            for to in {wide, FP64}:
                got = cuda.convert(source, to, offset)
                same(got, source.to(to) + offset if offset else source.to(to))
                assert torch.equal(got.signbit(), (source.to(to) + offset if offset else source).signbit())

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_combine_parts(self, cuda, dtype):
        for number, (parts, count) in zip(settings(cuda), ((1, 1), (31, 40), (33, 64), (100, 7))):
            for partial_dtype in {FP64} if dtype == FP64 else {FP32, FP64}:
                partial = randn(parts, count, dtype=partial_dtype, seed=number)
                got = cuda.combine(partial, torch.Size([count]), dtype)
                assert got.dtype == dtype
                close(got, partial.double().sum(0), partial.double().abs().sum(0))


def moved_by_design() -> dict[str, tuple[float, float]]:
    """The table of docs/design.md: elements moved and partial sums, for each element of a row."""
    text = (PACKAGE / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(\w+)` (forward|backward) \| (\d+) \| (\d+) \|", text.split("## CUDA", 1)[1], re.M
    )
    return {f"{name} {way}": (float(elements), float(sums)) for name, way, elements, sums in rows}


class TestBytesMoved:
    """The kernels ask memory for what the document says, within 5%; the weight comes from the caches."""

    ROWS, COLUMNS = 64, 2048

    def operations(self, cuda: Simulated, dtype: torch.dtype):
        x, other, dy, dres = (randn(self.ROWS, self.COLUMNS, dtype=dtype, seed=s) for s in range(4))
        w = randn(self.COLUMNS, dtype=dtype)
        rstd = torch.ones(self.ROWS)
        return {
            "rms_norm forward": lambda: cuda.forward(x, w),
            "add_rms_norm forward": lambda: cuda.forward(x, w, other),
            "rms_norm backward": lambda: cuda.backward(dy, x, w, rstd),
            "add_rms_norm backward": lambda: cuda.backward(dy, x, w, rstd, dres),
            "rms_norm_gated forward": lambda: cuda.gated_forward(x, other, w),
            "rms_norm_gated backward": lambda: cuda.gated_backward(dy, x, other, w, rstd),
        }

    @pytest.mark.parametrize("dtype", [BF16, FP32])
    def test_as_designed(self, cuda, dtype, record_property):
        design, operations = moved_by_design(), self.operations(cuda, dtype)
        assert set(design) == set(operations)
        elements = self.ROWS * self.COLUMNS
        for name, run in operations.items():
            cuda.counts()
            run()
            read, written, cached, _ = cuda.counts()
            moved, sums = design[name]
            parts = cuda.parts(self.ROWS, 1)
            expected = elements * moved * dtype.itemsize + sums * parts * self.COLUMNS * 4
            assert abs(read + written - expected) <= 0.05 * expected, name
            # A weight in the arithmetic's type, once or twice a row.
            assert cached in (elements * 4, 2 * elements * 4), name
            record_property(f"bytes_{name.replace(' ', '_')}", (read + written) / elements)

    def test_rows_too_long_are_read_twice(self, cuda):
        cuda.configure(shared_limit=0)
        x = randn(8, 1024)
        cuda.forward(x)
        read, written, _, _ = cuda.counts()
        assert read == 2 * x.nbytes
        assert written == x.nbytes + 8 * 4


@pytest.fixture(scope="session")
def checked(folder: Path) -> Path:
    """This file's tests, run once more by a child process on a build with sanitizers and coverage."""

    def run(path: Path) -> None:
        library = build("checked", path)
        runtimes = []
        for name in ("libasan.so", "libstdc++.so.6"):
            found = subprocess.run(
                ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
            )
            runtimes.append(str(Path(found.stdout.strip()).resolve()))
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
            LIBRARY: str(library),
            "LD_PRELOAD": " ".join(runtimes),
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-m", "not isolated", f"{Path(__file__).relative_to(PACKAGE)}"]
        done = subprocess.run(
            command, cwd=PACKAGE, env=environment, capture_output=True, text=True, check=False
        )
        (path / "output").write_text(f"{done.returncode}\n{done.stdout[-20000:]}\n{done.stderr[-20000:]}")

    return once(folder, "checked", run)


def covered(path: Path) -> dict[str, dict[int, bool]]:
    """For each .cuh file, its lines that hold code, and whether any instance of a template ran them."""
    lines: dict[str, dict[int, bool]] = {}
    objects = sorted(str(each) for each in path.glob("*.gcda"))
    done = subprocess.run(
        ["gcov", "--json-format", "--stdout", *objects], cwd=path, capture_output=True, text=True, check=True
    )
    for report in filter(None, done.stdout.splitlines()):
        for file in json.loads(report)["files"]:
            name = Path(file["file"]).name
            if name.endswith(".cuh"):
                seen = lines.setdefault(name, {})
                for line in file["lines"]:
                    seen[line["line_number"]] = seen.get(line["line_number"], False) or line["count"] > 0
    return lines


@pytest.mark.isolated
class TestChecked:
    def test_nothing_is_found(self, checked):
        status, output = (checked / "output").read_text().split("\n", 1)
        assert status == "0", output
        assert re.search(r"\d+ passed", output), output

    def test_every_line_of_the_kernels_runs(self, checked, record_property):
        files = covered(checked)
        assert set(files) == {path.name for path in (PACKAGE / "csrc" / "cuda").glob("*.cuh")}
        for name, lines in files.items():
            missed = sorted(line for line, ran in lines.items() if not ran)
            share = 1 - len(missed) / len(lines)
            record_property(f"coverage_{name}", share)
            assert share >= 0.95, f"{name}: {missed}"


def test_the_checked_build_has_its_sanitizer():
    """In the child process only: the address sanitizer is really there."""
    loaded = "libasan" in Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else True
    assert loaded == (LIBRARY in os.environ)
