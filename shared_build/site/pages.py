"""Where each file of the repository lies on the site, and how links between them are carried over.

A page is written once and read in two places: in the repository, and on the site, where the pages of
``packages/<op>/docs`` lie under ``operators/<op>``. Links are written so that they work in the repository;
:func:`rewrite_links` makes them work on the site.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ORDER = ("index.md", "api.md", "assumptions.md", "performance.md", "design.md")
ASSETS = frozenset({".md", ".svg", ".png", ".json", ".css", ".js", ".csv", ".html"})

_LINK = re.compile(
    r"(?P<open>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()(?P<target>[^)\s]+)(?P<close>(?:\s+\"[^\"]*\")?\))"
)
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Package:
    """One operator as the site shows it.

    Attributes:
        folder: ``packages/<op>``.
    """

    folder: Path

    @property
    def name(self) -> str:
        """Name of the operator."""
        return self.folder.name

    @cached_property
    def project(self) -> dict[str, str]:
        """The static metadata of the distribution."""
        data = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))
        return dict(data["project"])

    def sources(self) -> Iterator[tuple[str, Path]]:
        """Yield every file of the package that becomes part of the site, with its place there."""
        docs = self.folder / "docs"
        for path in sorted(docs.rglob("*")):
            if path.is_file() and path.suffix in ASSETS:
                yield f"operators/{self.name}/{path.relative_to(docs).as_posix()}", path
        changelog = self.folder / "CHANGELOG.md"
        if changelog.is_file():
            yield f"operators/{self.name}/changelog.md", changelog

    def nav(self) -> list[str]:
        """Return the places of the package's pages, in reading order."""
        pages = [place for place, path in self.sources() if path.suffix == ".md"]
        names = {place: place.rsplit("/", 1)[1] for place in pages}

        def rank(place: str) -> tuple[int, str]:
            name = names[place]
            if name == "changelog.md":
                return len(ORDER) + 1, name
            return (ORDER.index(name) if name in ORDER else len(ORDER)), name

        return sorted(pages, key=rank)


def packages(root: Path) -> list[Package]:
    """Return the packages that have pages, by name."""
    found = sorted((root / "packages").glob("*/docs/index.md"))
    return [
        Package(path.parent.parent) for path in found if (path.parent.parent / "pyproject.toml").is_file()
    ]


def place_of(repository_path: str) -> str | None:
    """Return where a file of the repository lies on the site, or None where it is no part of it."""
    parts = repository_path.split("/")
    if parts[0] == "docs" and len(parts) > 1:
        return "/".join(parts[1:])
    if parts[0] == "packages" and len(parts) > 3 and parts[2] == "docs":
        return "/".join(["operators", parts[1], *parts[3:]])
    if parts[0] == "packages" and len(parts) == 3 and parts[2] == "CHANGELOG.md":
        return f"operators/{parts[1]}/changelog.md"
    return None


def rewrite_links(
    markdown: str, source: str, place: str, root: Path, repository_url: str | None = None
) -> str:
    """Turn links between files of the repository into links between pages of the site.

    Args:
        markdown: Text of a page.
        source: Path of the page in the repository.
        place: Where it lies on the site.
        root: The repository.
        repository_url: Where the sources can be read; files that are no part of the site are linked there, or
            lose their link when it is not known.

    Returns:
        The text with every relative link carried over; code is left as it is.
    """

    def replace(match: re.Match[str]) -> str:
        target, mark, anchor = match["target"].partition("#")
        if not target or re.match(r"[a-z][a-z+.-]*:|/|mailto:", target):
            return match.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.startswith("..") or not (root / path).exists():
            return match.group()  # mkdocs names the broken link
        there = place_of(path)
        if there is not None:
            linked = posixpath.relpath(there, posixpath.dirname(place) or ".")
            return f"{match['open']}{linked}{mark}{anchor}{match['close']}"
        if repository_url:
            kind = "tree" if (root / path).is_dir() else "blob"
            linked = f"{repository_url.rstrip('/')}/{kind}/main/{path}"
            return f"{match['open']}{linked}{mark}{anchor}{match['close']}"
        return match["open"].lstrip("!")[1:-2]

    return _outside_code(markdown, lambda text: _LINK.sub(replace, text))


def _outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply ``change`` to everything but fenced blocks."""
    done: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        done += [change(markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*done, change(markdown[end:])])
