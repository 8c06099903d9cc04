"""The table of docs/design/numerics.md states the bounds that the tests assert, and what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared_build.tests.simd import bounds, measure

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "design" / "numerics.md"


@pytest.fixture
def rows() -> dict[str, list[float]]:
    """The numbers of each row: bound, measured without and with fma, for float32 and then for float64."""
    text = DOCUMENT.read_text(encoding="utf-8").split(measure.BEGIN)[1].split(measure.END)[0]
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    return {name: [float(number) for number in numbers] for name, *numbers in cells[2:]}


def test_every_function_has_its_row(rows: dict[str, list[float]]) -> None:
    assert tuple(rows) == bounds.FUNCTIONS


@pytest.mark.parametrize("name", bounds.FUNCTIONS)
def test_published_bounds_are_the_asserted_ones(rows: dict[str, list[float]], name: str) -> None:
    for kind, (bound, plain, fused) in zip(
        ("float", "double"), (rows[name][:3], rows[name][3:]), strict=True
    ):
        assert bound == bounds.BOUNDS[kind][name]
        assert 0.5 <= plain <= bound
        assert 0.5 <= fused <= bound


def test_write_replaces_what_is_between_the_marks(tmp_path: Path) -> None:
    results = {
        kind: {name: {"plain": 0.5, "fused": 0.75} for name in bounds.FUNCTIONS}
        for kind in ("float", "double")
    }
    document = tmp_path / "numerics.md"
    document.write_text(f"before\n{measure.BEGIN}\nold\n{measure.END}\nafter\n", encoding="utf-8")
    measure.write(document, results)
    text = document.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{measure.BEGIN}\n| function |")
    assert text.endswith(f"\n{measure.END}\nafter\n")
    assert "| `exp` | 1.1 | 0.500 | 0.750 | 1.1 | 0.500 | 0.750 |" in text
    assert "old" not in text
