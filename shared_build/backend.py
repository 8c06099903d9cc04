"""PEP 517 build backend of every package: scikit-build-core, built against the torch that is already there.

pip builds in an isolated environment whose ``site-packages`` holds the build requirements only, while
``sys.prefix`` is still the environment that the package is going to be installed into. So torch is looked
for in that environment, and only if it is not there does a torch requirement enter the isolated build
environment. ``python -m build`` makes a virtual environment of its own, where the requirement is what
applies.

A package of the ATen flavour fits one minor version of torch. It names this module as the provider of its
dependencies::

    [[tool.dynamic-metadata]]
    provider = {path = "shared_build", module = "backend"}
    requires = ["torch>=2.11"]

and its wheel then requires ``torch==2.13.*`` where it was built with 2.13; its source distribution keeps what
``requires`` says.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping
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
    "build_state",
    "build_wheel",
    "dynamic_metadata",
    "dynamic_wheel",
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
    text = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    project = text["project"]
    requirements = list(project.get("dependencies", []))
    for entry in text.get("tool", {}).get("dynamic-metadata", []):
        requirements += entry.get("requires", [])
    for requirement in requirements:
        if _is_torch(requirement):
            return str(requirement)
    raise RuntimeError(f"{project['name']}: expected a torch requirement in its dependencies, but got none")


def _is_torch(requirement: str) -> bool:
    return re.match(r"torch\s*([<>=!~;\[]|$)", requirement) is not None


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


# ---- metadata of the ATen flavour: what scikit-build-core asks a provider -------------------------------

_state = "metadata_wheel"


def build_state(state: str) -> None:
    """Take note of what the metadata is for: ``sdist``, ``wheel``, ``editable`` and so on."""
    global _state
    _state = state


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the dependencies: ``settings["requires"]``, torch pinned to a minor version except in sdists."""
    requires = [str(requirement) for requirement in settings["requires"]]
    if _state == "sdist":
        return {"dependencies": requires}
    pinned = f"torch=={_torch_minor(str(project['name']))}.*"
    return {"dependencies": [pinned if _is_torch(text) else text for text in requires]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Say that a wheel's dependencies are not those of the source distribution."""
    del settings
    return {"dependencies": True}


def _torch_minor(name: str) -> str:
    folder = _site_with_torch()
    if folder is None:
        raise RuntimeError(
            f"{name}: expected torch in the environment of the build or of the installation, but got none"
        )
    text = (Path(folder) / "torch" / "version.py").read_text(encoding="utf-8")
    version = re.search(r"^__version__ = ['\"](\d+\.\d+)", text, re.MULTILINE)
    if version is None:
        raise RuntimeError(f"{name}: expected the version of torch in {folder}, but got none")
    return version.group(1)


# ---- the hooks of PEP 517 and PEP 660 -------------------------------------------------------------------


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
