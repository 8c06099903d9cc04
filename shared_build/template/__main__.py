"""``python -m shared_build.template OPERATOR [--description TEXT]``: make a new package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shared_build.template.scaffold import ROOT, ScaffoldError, scaffold


def main(argv: Sequence[str] | None = None) -> int:
    """Make the package and say what comes next; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shared_build.template", description=__doc__)
    parser.add_argument("operator", help="its name, such as my_op")
    parser.add_argument("--description", help="what it computes, in one line")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args(argv)
    try:
        folder = scaffold(options.operator, options.description, options.root.resolve())
    except ScaffoldError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"made {folder.relative_to(options.root.resolve())}: it builds and passes as it is")
    print(f"next: nox -s test -- {options.operator}, then docs/write-an-operator.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
