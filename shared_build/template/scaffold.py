"""Make ``packages/<op>`` from the template: a small operator that builds and passes its suite as it is."""

from __future__ import annotations

import keyword
import re
import shutil
import subprocess
import sys
from pathlib import Path

from copier import run_copy

ROOT = Path(__file__).resolve().parents[2]
LINK = Path("..") / ".." / "shared_build"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


class ScaffoldError(ValueError):
    """The package cannot be made; nothing was written."""


def class_name(op: str) -> str:
    """Return the name of the operator's module class: ``my_op`` gives ``MyOp``."""
    return "".join(part.capitalize() for part in op.split("_"))


def scaffold(op: str, description: str | None = None, root: Path = ROOT) -> Path:
    """Make the package.

    Args:
        op: Name of the operator, as in ``opwright.<op>``.
        description: What it computes, in one line.
        root: The repository.

    Returns:
        The new folder, ``packages/<op>``.

    Raises:
        ScaffoldError: For a name that is no lower-case identifier, or that is taken.
    """
    if not _NAME.fullmatch(op) or keyword.iskeyword(op):
        raise ScaffoldError(f"new: expected a name such as my_op, but got {op!r}")
    folder = root / "packages" / op
    if folder.exists():
        raise ScaffoldError(f"new: expected a new name, but got {op!r}, which packages/ has already")
    data = {"op": op, "title": class_name(op)}
    if description:
        data["description"] = description.rstrip(".")
    run_copy(str(Path(__file__).parent), folder, data=data, defaults=True, quiet=True)
    (folder / "shared_build").symlink_to(LINK)
    _format(folder, root)
    return folder


def _format(folder: Path, root: Path) -> None:
    """Let the formatters wrap lines that the operator's name made longer or shorter."""
    sources = [path for path in (folder / "csrc").rglob("*") if path.is_file()]
    commands: list[tuple[str, list[str], list[Path]]] = [
        ("ruff", ["check", "--quiet", "--select=I,RUF022", "--fix"], [folder]),
        ("ruff", ["format", "--quiet"], [folder]),
        ("clang-format", ["-i", "--style=file"], sources),
    ]
    for name, arguments, paths in commands:
        beside = Path(sys.executable).with_name(name)
        program = str(beside) if beside.is_file() else shutil.which(name)
        if program:
            subprocess.run([program, *arguments, *map(str, paths)], cwd=root, check=True)
