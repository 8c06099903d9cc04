"""What is linted: the files of the repository that git knows or would add, and the packages among them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

CXX_SUFFIXES = frozenset({".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"})
TEXT_SUFFIXES = CXX_SUFFIXES | {
    *(".py", ".pyi", ".md", ".toml", ".yml", ".yaml", ".json", ".ini", ".cfg", ".txt", ".cmake"),
    *(".sh", ".jinja", ".html", ".css", ".js", ".in"),
}
TEXT_NAMES = frozenset({"LICENSE", ".clang-format", ".gitignore", "run"})


@dataclass(frozen=True)
class Finding:
    """One thing to mend, printed as ``path:line: message``."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        """Return the form that editors and terminals make clickable."""
        return f"{self.path}:{self.line}: {self.message}" if self.path else self.message


@dataclass
class Tree:
    """A checkout, narrowed to some packages when names are given.

    Attributes:
        root: The repository root.
        only: Names of packages; empty means the whole repository.
        fix: Let the formatters rewrite files instead of complaining.
    """

    root: Path
    only: tuple[str, ...] = ()
    fix: bool = False
    _texts: dict[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def packages(self) -> list[str]:
        """Names of the operator packages under lint, sorted."""
        known = sorted(path.parent.name for path in (self.root / "packages").glob("*/pyproject.toml"))
        unknown = [name for name in self.only if name not in known]
        if unknown:
            raise SystemExit(f"lint: expected one of the packages {known}, but got {unknown}")
        return [name for name in known if not self.only or name in self.only]

    @cached_property
    def files(self) -> list[str]:
        """Every regular file in scope, relative to the root; symbolic links are left out."""
        command = [
            "git",
            "-C",
            str(self.root),
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]
        try:
            listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(
                f"lint: expected a git checkout at {self.root}, but git said: {error}"
            ) from error
        names = sorted(set(filter(None, listed.split("\0"))))
        paths = {name: self.root / name for name in names}
        found = [name for name, path in paths.items() if path.is_file() and not path.is_symlink()]
        if self.only:
            prefixes = tuple(f"packages/{name}/" for name in self.packages)
            found = [name for name in found if name.startswith(prefixes)]
        return found

    def with_suffix(self, *suffixes: str) -> list[str]:
        """Return the files in scope whose suffix is one of ``suffixes``."""
        return [name for name in self.files if PurePosixPath(name).suffix in suffixes]

    @cached_property
    def text_files(self) -> list[str]:
        """The files in scope that hold text written by hand."""
        return [
            name
            for name in self.files
            if PurePosixPath(name).suffix in TEXT_SUFFIXES or PurePosixPath(name).name in TEXT_NAMES
        ]

    def text(self, name: str) -> str:
        """Return the content of one file, read once."""
        if name not in self._texts:
            self._texts[name] = (self.root / name).read_text(encoding="utf-8", errors="replace")
        return self._texts[name]
