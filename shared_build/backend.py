"""PEP 517 build backend of every package: scikit-build-core, built against the torch that is already there.

pip builds in an isolated environment whose ``site-packages`` holds the build requirements only, while
``sys.prefix`` is still the environment that the package is going to be installed into. So torch is looked
for in that environment, and only if it is not there does a torch requirement enter the isolated build
environment. ``python -m build`` makes a virtual environment of its own, where the requirement is what
applies.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from scikit_build_core import build as _scikit_build

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, str | list[str]] | None

#: Options of the CMake build that may be environment variables too, with their defaults. Always passed on: a
#: build folder remembers what an earlier build was told.
OPTIONS = {"OPWRIGHT_CUDA": "AUTO", "OPWRIGHT_CUDA_ARCHITECTURES": "80;90"}


def _site_with_torch() -> str | None:
    """Return the site-packages folder of the target environment that holds torch, or None."""
    candidates = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    for folder in candidates:
        if folder and (Path(folder) / "torch" / "version.py").is_file():
            return folder
    return None


def _torch_requirement() -> str:
    """Return the torch requirement of the package being built (the working directory is its root)."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"]:
        if re.match(r"torch\s*([<>=!~;\[]|$)", requirement):
            return str(requirement)
    raise RuntimeError(
        f"{project['name']}: expected a torch requirement in [project] dependencies, but got none"
    )


def _with_torch(settings: Settings) -> dict[str, str | list[str]]:
    """Tell CMake where torch lives and what to build; fail early and clearly when torch lives nowhere."""
    folder = _site_with_torch()
    if folder is None:
        raise RuntimeError(
            "opwright: expected torch in the environment of the build or of the installation, but got none. "
            "Install torch first, or build without --no-build-isolation."
        )
    # CMake's own Python must see the torch of the target environment as well.
    os.environ["OPWRIGHT_TORCH_SITE"] = folder
    given = dict(settings or {})
    for name, default in OPTIONS.items():
        given.setdefault(f"cmake.define.{name}", os.environ.get(name) or default)
    return given


def _requirements(hook: Any, settings: Settings) -> list[str]:
    needed = list(hook(settings))
    if _site_with_torch() is None:
        needed.append(_torch_requirement())
    return needed


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return _requirements(_scikit_build.get_requires_for_build_wheel, config_settings)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return _requirements(_scikit_build.get_requires_for_build_editable, config_settings)


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return list(_scikit_build.get_requires_for_build_sdist(config_settings))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    return _scikit_build.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    return _scikit_build.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    return _scikit_build.build_wheel(wheel_directory, _with_torch(config_settings), metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    return _scikit_build.build_editable(wheel_directory, _with_torch(config_settings), metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    return _scikit_build.build_sdist(sdist_directory, config_settings)
