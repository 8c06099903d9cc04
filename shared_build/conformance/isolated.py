"""Run a function in a fresh interpreter and get its JSON result back.

Used where the state of a process matters: imports, forks, first calls, kernel levels, process groups.
The child starts in an empty folder, so the installed package is what it imports, and without LD_PRELOAD, so
that a sanitizer of the parent does not reach it.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from .run import Failure

ROOT = pathlib.Path(__file__).absolute().parents[2]


def editable_builds() -> str:
    """Build folders of editable installs: a child with these in SKBUILD_EDITABLE_SKIP does not rebuild."""
    finders = [f for f in sys.meta_path if type(f).__name__ == "ScikitBuildRedirectingFinder"]
    return os.pathsep.join(str(f.path) for f in finders if getattr(f, "path", None))


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment of a child: this one's, with shared_build importable, no preload, and the changes."""
    env = dict(os.environ)
    env.pop("LD_PRELOAD", None)
    env["SKBUILD_EDITABLE_SKIP"] = editable_builds()
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    for name, value in (changes or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def run_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120.0,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command in an empty folder; a timeout fails the check and ends the whole process group."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            _, err = process.communicate()
            raise Failure(f"a child process hung: no answer after {timeout:g} s\n{err[-2000:]}") from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_child(
    entry: str,
    payload: Mapping[str, Any],
    *,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120.0,
) -> Any:
    """The result of `module:function` called with the payload in a fresh interpreter.

    A non-zero exit fails the check with the end of the child's error output.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as answer:
        command = [sys.executable, "-m", __name__, entry, answer.name]
        done = run_command(command, env=env, timeout=timeout, stdin=json.dumps(payload))
        if done.returncode:
            raise Failure(f"child process exited with {done.returncode}\n{done.stderr[-3000:]}")
        return json.loads(pathlib.Path(answer.name).read_text())


def _main(entry: str, answer: str) -> None:
    module, _, function = entry.partition(":")
    result = getattr(importlib.import_module(module), function)(json.load(sys.stdin))
    pathlib.Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
