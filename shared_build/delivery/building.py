"""Building what is delivered: preconditions, sdist and wheel, clean environment, pinned requirements."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .bundle_accept import AcceptError, clean_environment, create_environment, pip_install, run

COMPILERS = ("c++", "g++", "clang++")
#: Two copies of torch's CPU build (build environment, clean environment) and the rest, in bytes.
SPACE = 4 * 2**30
REQUIREMENTS = ("requirements/test.txt", "requirements/bench.txt", "delivery/requirements.txt")


class MilestoneError(AcceptError):
    """The milestone cannot be made; nothing has been written. The text is for the person at the terminal."""


@dataclass(frozen=True)
class Built:
    """What ``python -m build`` made."""

    wheel: Path
    sdist: Path
    objects: Path


def find_package(operator: str, start: Path) -> Path:
    """Return the package directory of an operator, from the repository root or from inside the package.

    Raises:
        MilestoneError: there is none.
    """
    for root in (start, *start.parents):
        for candidate in (root / "packages" / operator, root):
            if candidate.name == operator and (candidate / "contract.toml").is_file():
                return candidate
    raise MilestoneError(
        f"expected packages/{operator} with a contract.toml, but got none above or below {start}"
    )


def compiler() -> str:
    """Return the version line of the C++ compiler that a build will use.

    Raises:
        MilestoneError: there is none, or it does not run.
    """
    wanted = os.environ.get("CXX", "").split()
    found = shutil.which(wanted[0]) if wanted else next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        what = f"CXX={wanted[0]}" if wanted else " or ".join(COMPILERS)
        raise MilestoneError(
            f"expected a C++20 compiler ({what}), but found none; install g++ or clang++, or set CXX to one"
        )
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise MilestoneError(
            f"expected a C++20 compiler, but {found} --version ended with status {told.returncode}"
        )
    return told.stdout.splitlines()[0].strip()


def check_space(places: Iterable[Path], needed: int = SPACE) -> None:
    """Make sure that there is room before anything is downloaded or built.

    Raises:
        MilestoneError: a file system has less free space than ``needed`` bytes.
    """
    for place in places:
        there = next(p for p in (place, *place.parents) if p.exists())
        free = shutil.disk_usage(there).free
        if free < needed:
            raise MilestoneError(
                f"expected {needed / 2**30:.1f} GiB free in {there}, but got {free / 2**30:.1f} GiB"
            )


def build(package: Path, work: Path, torch: str, index: Mapping[str, str]) -> Built:
    """Build the sdist, and the wheel from it, each in build's own isolated environment.

    Args:
        package: the package directory.
        work: an empty directory for the products, the object files and the constraint.
        torch: the torch version to build with, such as ``2.13.0``.
        index: pip's settings as environment variables.

    Raises:
        MilestoneError: the build failed; the text ends with the last lines of its output.
    """
    constraint = work / "constraint.txt"
    constraint.write_text(f"torch=={torch}\n", encoding="utf-8")
    constraints = " ".join(filter(None, (os.environ.get("PIP_CONSTRAINT"), str(constraint))))
    products, objects = work / "products", work / "objects"
    run(
        [sys.executable, "-m", "build", "--outdir", products, f"-Cbuild-dir={objects}", package],
        f"building {package.name}",
        "The compiler's messages are above; if a download failed, is the package index reachable?",
        env=clean_environment(PIP_CONSTRAINT=constraints, **index),
    )
    wheels, sdists = list(products.glob("*.whl")), list(products.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        raise MilestoneError(
            f"expected one wheel and one sdist, but got {sorted(p.name for p in products.iterdir())}"
        )
    return Built(wheels[0], sdists[0], objects)


def requirement_files(package: Path) -> list[Path]:
    """Return the requirement files of a run against an installed wheel, those that exist."""
    folder = package / "shared_build"
    return [folder / name for name in REQUIREMENTS if (folder / name).is_file()]


def install(where: Path, python: str, torch: str, files: list[Path], wheel: Path, index: list[str]) -> Path:
    """Make the clean environment (torch, requirements, the wheel from its file); return its interpreter."""
    interpreter = create_environment(where, python)
    arguments: list[str | Path] = [f"torch=={torch}"]
    for file in files:
        arguments += ["-r", file]
    pip_install(interpreter, arguments, f"torch {torch} and the requirements", index)
    pip_install(interpreter, ["--no-index", "--no-deps", wheel], wheel.name, [])
    run([interpreter, "-m", "pip", "check"], "checking the environment (pip check)")
    return interpreter


def _wanted(files: Iterable[Path]) -> list[Requirement]:
    found = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            text = line.split("#")[0].strip()
            if text.startswith("-r"):
                found += _wanted([file.parent / text[2:].strip()])
            elif text and not text.startswith("-"):
                found.append(Requirement(text))
    return found


def pins(interpreter: Path, files: list[Path]) -> str:
    """Return ``requirements.txt``: the requirements and all that they need, in the versions installed.

    torch and what only torch needs are left out: the acceptance chooses torch, and torch brings its own.
    """
    ask = "import sysconfig as s; print(s.get_path('purelib')); print(s.get_path('platlib'))"
    told = run([interpreter, "-c", ask], "asking the environment for its packages")
    places = list(dict.fromkeys(told.splitlines()))
    there = {canonicalize_name(d.metadata["Name"]): d for d in importlib.metadata.distributions(path=places)}
    chosen: dict[str, str] = {}
    queue = [(requirement, "") for requirement in _wanted(files)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement, extra = queue.pop()
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        key = (name, frozenset(requirement.extras))
        if not applies or name == "torch" or name not in there or key in seen:
            continue
        seen.add(key)
        # A local part such as +cpu belongs to an index, not to the version.
        chosen[name] = re.sub(r"\+.*", "", there[name].version)
        for text in there[name].requires or []:
            queue += [(Requirement(text), e) for e in ("", *requirement.extras)]
    return "".join(f"{name}=={version}\n" for name, version in sorted(chosen.items()))
