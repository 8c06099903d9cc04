"""The delivered directory: what goes into it, its checksums, and how it appears all at once or not at all."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .bundle_accept import SUMS, digest, files_of

#: Parts of ``shared_build`` that the tests and benchmarks of an installed wheel need.
SHARED = ("conformance", "benchmarking", "delivery", "include")
#: Modules that only make a delivery.
_MAKERS = ("milestone.py", "building.py", "bundle.py", "accept.py")
_IGNORE = shutil.ignore_patterns(
    "__pycache__",
    "*.pyc",
    ".pytest_cache",
    ".hypothesis",
    ".asv",
    "*.so",
    "*.ncu-rep",
    ".ruff_cache",
    ".mypy_cache",
)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=_IGNORE, dirs_exist_ok=True)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def stage_suite(package: Path, target: Path) -> None:
    """Copy what proves the contract: a directory in which ``pytest`` runs against the installed wheel."""
    target.mkdir(parents=True, exist_ok=True)
    # The sources too: CUDA kernels are compiled for the host and simulated; documents hold their figures.
    for name in ("pyproject.toml", "tests", "benchmarks", "csrc", "docs"):
        _copy(package / name, target / name)
    for name in SHARED:
        _copy(package / "shared_build" / name, target / "shared_build" / name)
    for name in _MAKERS:
        (target / "shared_build" / "delivery" / name).unlink(missing_ok=True)


def stage_documents(package: Path, target: Path) -> None:
    """Copy the operator's documents as they are, its README, changes and licence, how to read the report."""
    _copy(package / "docs", target)
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        _copy(package / name, target / name)
    _copy(
        (package / "shared_build").resolve().parent / "docs" / "contract.md", target / "how-to-read-this.md"
    )


def write_sums(root: Path) -> dict[str, str]:
    """Write ``SHA256SUMS`` in the form of ``sha256sum -c`` and return its content."""
    sums = {name: digest(root / name) for name in files_of(root)}
    (root / SUMS).write_text("".join(f"{value}  {name}\n" for name, value in sums.items()), encoding="utf-8")
    return sums


@contextlib.contextmanager
def published(target: Path) -> Iterator[Path]:
    """Give a temporary directory beside ``target`` that becomes it at the end, or goes if anything fails.

    An older directory of the same name stays where it is until the new one is complete. A parent directory
    that had to be made for it goes away too when nothing was published.
    """
    made = [parent for parent in target.parents if not parent.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        yield partial
        partial.chmod(0o755)
        _replace(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _replace(partial: Path, target: Path) -> None:
    if not target.exists():
        partial.rename(target)
        return
    older = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".older", dir=target.parent))
    target.rename(older / target.name)
    try:
        partial.rename(target)
    except OSError:
        (older / target.name).rename(target)
        raise
    finally:
        shutil.rmtree(older, ignore_errors=True)
