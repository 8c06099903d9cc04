"""The Python in the documents runs as it stands, against the installed packages."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from shared_build.site import code_blocks

ROOT = Path(__file__).resolve().parents[3]
PAGES = list(code_blocks.pages(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page_runs(path: Path) -> None:
    code_blocks.run(path)


def test_the_first_pages_that_people_read_hold_code() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in PAGES}
    assert {"README.md", "docs/index.md", "docs/getting-started.md"} <= names


def test_blocks_share_a_namespace_and_errors_name_the_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '# A\n\n```python\nx = 1\n```\n\n=== "Tab"\n\n    ```python\n    y = x + 1\n    z = y / 0\n    ```\n'
    )
    first, second = code_blocks.blocks(page)
    assert (first.line, first.code) == (4, "x = 1\n")
    assert (second.line, second.code) == (10, "y = x + 1\nz = y / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        code_blocks.run(page)
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno) == (str(page), 11)


def test_other_languages_are_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\nexit 1\n```\n\n```\nx\n```\n")
    assert code_blocks.blocks(page) == []
    assert list(code_blocks.pages(tmp_path)) == []
