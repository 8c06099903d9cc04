"""``python -m shared_build.ci.tag TAG``: check a release tag ``<op>-vX.Y.Z`` and print the operator's name.

The tag must name a package, and its version must be the one in that package's ``pyproject.toml``, with an
entry in the changelog. Anything else ends with status 1 and the reason.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TAG = re.compile(r"(?P<op>[a-z][a-z0-9_]*)-v(?P<version>\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)")


class TagError(ValueError):
    """The tag may not be released."""


def check(tag: str, root: Path = ROOT) -> str:
    """Return the operator that ``tag`` releases.

    Args:
        tag: Name of the tag, ``<op>-vX.Y.Z``.
        root: The repository.

    Returns:
        Name of the operator.

    Raises:
        TagError: Where the tag has another form, names no package, or does not fit the package's version.
    """
    match = _TAG.fullmatch(tag)
    if match is None:
        raise TagError(f"release: expected a tag <op>-vX.Y.Z, but got {tag!r}")
    folder = root / "packages" / match["op"]
    if not (folder / "pyproject.toml").is_file():
        raise TagError(f"release: expected the name of a package, but got {match['op']!r}")
    version = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if version != match["version"]:
        raise TagError(f"release: expected version {version} of pyproject.toml, but got {match['version']}")
    if f"## {version}" not in (folder / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise TagError(
            f"release: expected an entry '## {version}' in {folder.name}/CHANGELOG.md, but got none"
        )
    return match["op"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the operator, or the reason why there is none; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shared_build.ci.tag", description=__doc__)
    parser.add_argument("tag")
    try:
        print(check(parser.parse_args(argv).tag))
    except TagError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
