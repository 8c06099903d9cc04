"""Run a delivery's own ``accept.py``.

``python -m shared_build.delivery.accept <bundle> [options of accept.py]``
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Call the script inside the bundle with this interpreter and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0].startswith("-"):
        print(
            "usage: python -m shared_build.delivery.accept BUNDLE [options of its accept.py]", file=sys.stderr
        )
        return 1
    script = Path(arguments[0]) / "accept.py"
    if not script.is_file():
        print(f"accept: expected a delivery with an accept.py, but got {arguments[0]}", file=sys.stderr)
        return 1
    return subprocess.run([sys.executable, str(script), *arguments[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
