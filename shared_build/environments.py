"""The virtual environments of the nox sessions: one per torch version, one for tools without torch.

Eight operators share an environment instead of having a copy of torch each. An environment is made again
when what it should hold has changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "shared_build" / "requirements"
DEFAULT_TORCH = "2.13.0"


class Environment:
    """A virtual environment below ``.nox`` and the commands run in it."""

    def __init__(self, session: nox.Session, name: str) -> None:
        self.session = session
        self.path = ROOT / ".nox" / name

    @property
    def bin(self) -> Path:
        """The folder of its programs."""
        return self.path / "bin"

    def python(
        self,
        *args: str | os.PathLike[str],
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        success_codes: Sequence[int] = (0,),
    ) -> None:
        """Run its Python with ``args``, from ``cwd``, with shared_build importable."""
        path = os.pathsep.join([str(self.bin), os.environ.get("PATH", "")])
        self.session.chdir(cwd)
        self.session.run(
            str(self.bin / "python"),
            *args,
            env={"PATH": path, "VIRTUAL_ENV": str(self.path), "PYTHONPATH": str(ROOT), **(env or {})},
            external=True,
            success_codes=list(success_codes),
        )
        self.session.chdir(ROOT)

    def status(self, *args: str | os.PathLike[str]) -> int:
        """Run its Python with ``args`` from the root and return the exit status."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), "VIRTUAL_ENV": str(self.path)}
        env["PATH"] = os.pathsep.join([str(self.bin), os.environ.get("PATH", "")])
        command = [str(self.bin / "python"), *map(os.fspath, args)]
        self.session.log(" ".join(command))
        return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode

    def install(self, *args: str | os.PathLike[str]) -> None:
        """Run pip install."""
        self.python(
            "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *args, env={"PYTHONPATH": ""}
        )


def _make(session: nox.Session, name: str, wanted: Sequence[str]) -> Environment:
    environment = Environment(session, name)
    files = [REQUIREMENTS / item for item in wanted if item.endswith(".txt")]
    content = "\n".join([sys.version, *wanted, *(file.read_text(encoding="utf-8") for file in files)])
    stamp = environment.path / "opwright-requirements.txt"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == content:
        return environment
    session.log(f"making the environment {name}")
    session.run(sys.executable, "-m", "venv", "--clear", str(environment.path), external=True)
    environment.install("--upgrade", "pip")
    # torch first and by itself, so that nothing else chooses its version.
    plain = [item for item in wanted if not item.endswith(".txt")]
    if plain:
        environment.install(*plain)
    arguments: list[str] = [*plain]
    for file in files:
        arguments += ["-r", str(file)]
    environment.install(*arguments)
    stamp.write_text(content, encoding="utf-8")
    return environment


def torch_environment(session: nox.Session, torch: str = DEFAULT_TORCH) -> Environment:
    """The environment with this torch (a version, or ``newest``) and all that running operators needs."""
    requirement = "torch" if torch == "newest" else f"torch=={torch}"
    wanted = [requirement, "test.txt", "bench.txt", "delivery.txt", "build.txt", "lint.txt", "docs.txt"]
    return _make(session, f"torch-{torch}", wanted)


def tools_environment(session: nox.Session) -> Environment:
    """The environment for the site, without torch."""
    return _make(session, "tools", ["docs.txt", "bench.txt"])
