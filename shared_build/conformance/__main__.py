"""Run checks without pytest: `python -m shared_build.conformance tests/spec.py --only 'name/check/*'`."""

from __future__ import annotations

import argparse
import sys

from .registry import load_package, only
from .run import ConformanceError


def main(arguments: list[str] | None = None) -> int:
    """Run the matching checks, print each failure; the number of failures decides the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shared_build.conformance", description=__doc__)
    parser.add_argument("spec", help="the spec file of a package, tests/spec.py")
    parser.add_argument("--only", action="append", metavar="ID", help="id or shell pattern; may be repeated")
    parser.add_argument("--slow", action="store_true", help="include the slow tier in patterns")
    parser.add_argument("--list", action="store_true", help="print the ids instead of running them")
    chosen = parser.parse_args(arguments)
    patterns = chosen.only or ["*"]
    exact = any("*" not in pattern for pattern in patterns)
    found = only(load_package(chosen.spec), patterns, slow=chosen.slow or exact)
    if not found:
        print(f"conformance: expected a check that matches {patterns}, but got none", file=sys.stderr)
        return 2
    failures = 0
    for invocation in found:
        if chosen.list:
            print(invocation.id)
            continue
        try:
            invocation()
        except ConformanceError as error:
            failures += 1
            print(error, file=sys.stderr)
    if not chosen.list:
        print(f"{len(found) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
