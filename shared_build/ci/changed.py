"""``python -m shared_build.ci.changed BASE``: the packages to test after a change, as a JSON list.

A change inside ``packages/<op>`` concerns that package. A change of anything that all packages are made with
(``shared_build``, the nox file, the workflows) concerns every package. Documents outside of the packages
concern none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Places whose files no test of a package depends on.
DOCUMENTS = ("docs/", "shared_build/site/", "shared_build/tests/site/", "mkdocs.yml", "README.md", "LICENSE")


def all_packages(root: Path = ROOT) -> list[str]:
    """Return the names of all packages."""
    return sorted(path.parent.name for path in (root / "packages").glob("*/pyproject.toml"))


def concerned(changed: Iterable[str], packages: Sequence[str]) -> list[str]:
    """Return the packages that a set of changed files concerns.

    Args:
        changed: Paths relative to the root, with forward slashes.
        packages: Names of the packages that exist now.

    Returns:
        A sorted part of ``packages``.
    """
    found: set[str] = set()
    for name in changed:
        parts = name.split("/")
        if parts[0] == "packages" and len(parts) > 2:
            found.add(parts[1])
        elif not name.startswith(DOCUMENTS):
            return sorted(packages)
    return sorted(found & set(packages))


def changed_files(base: str, root: Path = ROOT) -> list[str]:
    """Return the files that differ between the common ancestor of ``base`` and the present commit."""
    command = ["git", "-C", str(root), "diff", "--name-only", "--no-renames", f"{base}...HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def main(argv: Sequence[str] | None = None) -> int:
    """Print the list; every package where ``BASE`` is not known, as on the first push of a branch."""
    parser = argparse.ArgumentParser(prog="python -m shared_build.ci.changed", description=__doc__)
    parser.add_argument("base", help="commit to compare with")
    options = parser.parse_args(argv)
    packages = all_packages()
    try:
        packages = concerned(changed_files(options.base), packages)
    except subprocess.CalledProcessError as error:
        print(
            f"no comparison with {options.base}: {error.stderr.strip()}; taking all packages", file=sys.stderr
        )
    print(json.dumps(packages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
