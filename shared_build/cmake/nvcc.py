"""Runs nvcc so that no path of this machine enters its line tables, and keeps what ptxas reports, as JSON.

``nvcc.py REPORT PACKAGE TOOLKIT ARGUMENTS...``; ``@/`` in an argument is the package's folder. nvcc's own
messages are passed on, ptxas's reports are not.

nvcc writes absolute paths into the tables that ``-lineinfo`` asks for, and has no option to map them as host
compilers do. So it is given both folders under the names that open files have, ``/proc/self/fd/<number>``:
they are the same everywhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

#: Numbers of the two folders; high, so that nothing else has them.
PACKAGE, TOOLKIT = 100, 101
_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>[^']+)'")
_STACK = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"Used (?P<registers>\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_OWN = re.compile(r"\bopwright::|\(anonymous namespace\)::|^void ")
_INFO = re.compile(r"ptxas info|^\s+\d+ bytes stack frame")


def parse(output: str) -> list[dict[str, Any]]:
    """Return one entry a kernel and architecture, with mangled names, from nvcc's error output."""
    found: list[dict[str, Any]] = []
    entry: dict[str, Any] | None = None
    for line in output.splitlines():
        if match := _ENTRY.search(line):
            entry = {"kernel": match["name"], "arch": match["arch"]}
            found.append(entry)
        elif entry is not None and (match := _STACK.search(line)):
            # Functions that were not inlined report their own frames before the kernel's registers.
            for key, value in match.groupdict().items():
                entry[key] = entry.get(key, 0) + int(value)
        elif entry is not None and (match := _USED.search(line)):
            shared = _SHARED.search(line)
            entry |= {
                "registers": int(match["registers"]),
                "shared": int(shared[1]) if shared else 0,
            }
            entry = None
    return found


def demangled(names: list[str]) -> dict[str, str]:
    """Map mangled names to readable ones, to themselves where c++filt is not installed."""
    tool = shutil.which("c++filt")
    if tool is None or not names:
        return {name: name for name in names}
    done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True)
    lines = (_OWN.sub("", line) for line in done.stdout.splitlines())
    return dict(zip(names, lines, strict=True))


def version(nvcc: str, **options: Any) -> str:
    """Return nvcc's version, such as 13.0."""
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False, **options).stdout
    match = re.search(r"release (\d+\.\d+)", told)
    return match[1] if match else "unknown"


def named(folder: str, number: int) -> str:
    """Open a folder under a number and return the path that it has by it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.dup2(descriptor, number)
    os.close(descriptor)
    return f"/proc/self/fd/{number}"


def main(arguments: list[str]) -> int:
    """Run the compiler, write the report; return nvcc's exit status."""
    report, package, toolkit, *given = arguments
    here, there = named(package, PACKAGE), named(toolkit, TOOLKIT)
    nvcc, open_too = f"{there}/bin/nvcc", {"pass_fds": (PACKAGE, TOOLKIT)}
    command = [nvcc, *(argument.replace("@/", f"{here}/") for argument in given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **open_too)
    sys.stdout.write(done.stdout)
    told = [line for line in done.stderr.splitlines() if not _INFO.search(line)]
    if told:
        print("\n".join(told).replace(here, package), file=sys.stderr)
    if done.returncode == 0:
        entries = parse(done.stderr)
        names = demangled([entry["kernel"] for entry in entries])
        for entry in entries:
            entry["kernel"] = names[entry["kernel"]]
        text = json.dumps({"nvcc": version(nvcc, **open_too), "kernels": entries}, indent=1)
        Path(report).write_text(text + "\n", encoding="utf-8")
        if "-MF" in given:
            # The build looks for what the object depends on by the names that it knows.
            depends = Path(given[given.index("-MF") + 1])
            text = depends.read_text(encoding="utf-8").replace(here, package).replace(there, toolkit)
            depends.write_text(text, encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
