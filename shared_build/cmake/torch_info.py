"""Prints what CMake needs to know of the torch to build against, as ``key=value`` lines.

Reads torch's files without importing it: quicker, and a build environment need not hold what torch itself
imports.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path


def main() -> int:
    """Print the lines; exit status 1 if there is no torch."""
    site = os.environ.get("OPWRIGHT_TORCH_SITE")
    if site:
        sys.path.append(site)
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        print(
            "opwright: expected torch for the Python at " + sys.executable + ", but got none", file=sys.stderr
        )
        return 1
    root = Path(spec.submodule_search_locations[0])
    text = (root / "version.py").read_text(encoding="utf-8")
    version = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?:: [^=]+)? = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    include = root / "include"
    print(f"version={version.group(1) if version else ''}")
    print(f"cuda={cuda.group(1) if cuda else ''}")
    print(f"include={include.as_posix()}")
    print(f"include_api={(include / 'torch' / 'csrc' / 'api' / 'include').as_posix()}")
    print(f"lib={(root / 'lib').as_posix()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
