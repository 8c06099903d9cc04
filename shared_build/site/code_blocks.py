"""The Python in the documents, run as it stands: a page that no longer works is a failing test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"^(?P<indent>[ ]*)```python\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One block of Python of a page.

    Attributes:
        path: The page.
        line: Line of the page on which the code starts.
        code: The code, without the page's indentation.
    """

    path: Path
    line: int
    code: str


def blocks(path: Path) -> list[Block]:
    """Return the Python blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        indent = match["indent"]
        code = "".join(line.removeprefix(indent) for line in match["code"].splitlines(keepends=True))
        found.append(Block(path, text.count("\n", 0, match.start("code")) + 1, code))
    return found


def run(path: Path) -> None:
    """Run the blocks of a page one after the other in one namespace, as a reader would.

    Args:
        path: The page. An error's traceback names it and the line.
    """
    namespace: dict[str, object] = {"__name__": "__page__"}
    for block in blocks(path):
        # Line breaks in front keep the numbers of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        exec(code, namespace)


def pages(root: Path) -> Iterator[Path]:
    """Yield every page of the repository that holds Python."""
    for pattern in ("README.md", "docs/**/*.md", "packages/*/README.md", "packages/*/docs/*.md"):
        for path in sorted(root.glob(pattern)):
            if blocks(path):
                yield path
