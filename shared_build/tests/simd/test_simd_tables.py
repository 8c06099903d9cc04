"""The polynomials in the header are the ones that minimax.py derives."""

from __future__ import annotations

import re

import mpmath
import pytest

from shared_build.tests.simd import minimax
from shared_build.tests.simd.levels import INCLUDE

TABLES = (INCLUDE / "opwright" / "simd_math_tables.h").read_text(encoding="utf-8")


def header_table(kind: str, name: str) -> list[float]:
    """Return the coefficients of ``name`` in the header's table of ``kind``."""
    block = TABLES.split(f"struct Table<{kind}>")[1].split("\n};")[0]
    values = re.search(rf"constexpr {kind} {name}\[\] = \{{([^}}]*)\}}", block)
    assert values, f"no table {name} for {kind}"
    return [float.fromhex(value.strip().rstrip("f")) for value in values.group(1).split(",")]


@pytest.mark.parametrize("fit", minimax.FITS, ids=lambda fit: fit.name)
def test_coefficients_are_the_derived_ones(fit: minimax.Fit) -> None:
    kind, name = fit.name.split("::")
    coefficients, error = minimax.fitted(fit)
    assert header_table(kind, name) == [float(c) for c in coefficients]
    # A sixteenth of an ulp for float and of the last place but three bits for double.
    assert error < mpmath.mpf(2) ** (-26 if kind == "float" else -54)


def test_every_table_of_the_header_is_derived() -> None:
    names = set(re.findall(r"constexpr (?:float|double) ([a-z_]+)\[\]", TABLES))
    assert names == {fit.name.split("::")[1] for fit in minimax.FITS}


def test_constants_are_the_rounded_values() -> None:
    with mpmath.workprec(400):
        for kind, digits in (("float", 24), ("double", 53)):
            rest = +mpmath.pi / 2
            for part in header_table(kind, "kHalfPi"):
                assert part == float(minimax.rounded(rest, digits))
                rest -= mpmath.mpf(part)
        for name, widths in (("kHalfPiShort", (33, 33, 33, 53)), ("kHalfPiLong", (33, 53))):
            rest = +mpmath.pi / 2
            for part, width in zip(header_table("double", name), widths, strict=True):
                assert part == float(minimax.rounded(rest, width))
                rest -= mpmath.mpf(part)


def test_bits_of_two_over_pi() -> None:
    source = (INCLUDE / "opwright" / "simd_math_trig.h").read_text(encoding="utf-8")
    array = source.split("kTwoOverPiBits[] = {")[1].split("}")[0]
    words = [int(word, 16) for word in re.findall(r"0x[0-9a-f]{16}", array)]
    assert len(words) == 20
    with mpmath.workprec(1400):
        expected = int(mpmath.floor(2 / mpmath.pi * mpmath.mpf(2) ** (64 * 19)))
    assert int("".join(f"{word:016x}" for word in words), 16) == expected
