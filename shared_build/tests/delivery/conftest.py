from __future__ import annotations

import sys
from pathlib import Path

import pytest

# shared_build is imported by path, as its packages are; this folder's helpers too.
for folder in (Path(__file__).resolve().parents[3], Path(__file__).resolve().parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import demo  # noqa: E402


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory):
    return demo.make_wheelhouse(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def offline(wheelhouse):
    """The arguments that keep an installation on this machine."""
    return ["--no-index", "--find-links", wheelhouse]


@pytest.fixture(scope="session")
def delivery(tmp_path_factory, offline):
    """A delivery of the demo operator in which everything holds: what the milestone printed, and its path."""
    root = tmp_path_factory.mktemp("good")
    package = demo.make_package(root)
    done = demo.run_module(
        "milestone", "demo_op", "--out", root / "dist", "--space", 0, *offline, cwd=package
    )
    return done, root / "dist" / "demo_op-0.1.0"
