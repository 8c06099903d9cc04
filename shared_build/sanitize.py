"""Run a package's tests on builds with sanitizers.

``python -m shared_build.sanitize OPERATOR [--kind address|thread]``.

Each build is first shown a fault that it must report; if it does not, the run would prove nothing and fails.
AddressSanitizer runs against the stock torch wheel: its allocator gives torch's own CPU tensors red zones,
so an overrun of a tensor is seen. Compiling and child processes are left out: the sanitizer would be loaded
into the compiler, and children run without it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# torch's own kernels are not instrumented: the join of their threads is invisible. Ours have no such frame.
TORCH_KERNELS = "race:at::native::\n"

# kind -> (runtime library, its options, faults that must be reported: (probe, text))
KINDS = {
    "address": (
        "libasan.so",
        {
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        [(0, "heap-buffer-overflow"), (1, "signed integer overflow")],
    ),
    "thread": ("libtsan.so", {"TSAN_OPTIONS": "halt_on_error=1:report_bugs=1"}, [(2, "data race")]),
}
LEFT_OUT = "not compile and not isolated and not slow"
# The sanitizer keeps freed memory in quarantine, so memory in use says nothing about leaks.
MEANINGLESS = "not leaks"


def library(compiler: str, name: str) -> str:
    """Path of a runtime library of the compiler."""
    found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        raise SystemExit(
            f"sanitize: expected {name} of {compiler}, but got none; install the compiler's sanitizer runtime"
        )
    return str(path.resolve())


def build(operator: str, kind: str) -> Path:
    """Build and install the package with the sanitizer into a folder of its own."""
    target = ROOT / "build" / "sanitize" / kind / operator
    objects = ROOT / "build" / "sanitize" / f"{kind}-objects" / operator
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--upgrade",
        "--no-build-isolation",
    ]
    command += ["--target", str(target), f"-Cbuild-dir={objects}", f"-Ccmake.define.OPWRIGHT_SANITIZE={kind}"]
    subprocess.run([*command, str(ROOT / "packages" / operator)], check=True)
    return target


def environment(kind: str, target: Path) -> dict[str, str]:
    """Environment of a run; without libstdc++ beside the runtime the first C++ exception ends the process."""
    runtime, options, _ = KINDS[kind]
    compiler = os.environ.get("CXX", "g++")
    if kind == "thread":
        suppressions = target / "tsan-suppressions.txt"
        suppressions.write_text(TORCH_KERNELS, encoding="utf-8")
        options = {
            "TSAN_OPTIONS": f"{options['TSAN_OPTIONS']}:suppressions={suppressions}:print_suppressions=0"
        }
    preload = f"{library(compiler, runtime)} {library(compiler, 'libstdc++.so.6')}"
    return {
        **os.environ,
        **options,
        "LD_PRELOAD": preload,
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(target),
    }


def prefix(kind: str) -> list[str]:
    """ThreadSanitizer needs its shadow memory where the loader would otherwise put things at random."""
    return ["setarch", "-R"] if kind == "thread" else []


def check_armed(operator: str, kind: str, target: Path) -> None:
    """Fail unless the build reports each fault made on purpose."""
    path = target / "opwright" / operator / "_C.so"
    for probe, text in KINDS[kind][2]:
        code = f"import torch, ctypes; torch.set_num_threads(2); library = ctypes.CDLL({str(path)!r}); "
        code += f"library.opwright_sanitizer_probe({probe})"
        command = [*prefix(kind), sys.executable, "-c", code]
        result = subprocess.run(
            command, env=environment(kind, target), capture_output=True, text=True, check=False
        )
        if result.returncode == 0 or text not in result.stderr:
            raise SystemExit(
                f"sanitize: expected the {kind} build to report {text!r}, but got {result.returncode}\n"
                f"{result.stderr[-2000:]}"
            )
        print(f"sanitize: the {kind} build of {operator} reports {text}", flush=True)


def main() -> int:
    """Build, prove that the build is armed, and run the tests."""
    parser = argparse.ArgumentParser(prog="python -m shared_build.sanitize", description=__doc__)
    parser.add_argument("operator")
    parser.add_argument("--kind", choices=sorted(KINDS), action="append")
    options, rest = parser.parse_known_args()
    for kind in options.kind or sorted(KINDS):
        target = build(options.operator, kind)
        check_armed(options.operator, kind, target)
        command = [
            *prefix(kind),
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            LEFT_OUT,
            "-k",
            MEANINGLESS,
            *rest,
        ]
        cwd = ROOT / "packages" / options.operator
        status = subprocess.run(command, env=environment(kind, target), cwd=cwd, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
