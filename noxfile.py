"""Everything that is done with a package, as sessions of nox.

``nox -s SESSION -- [OPERATOR ...] [--torch VERSION] [options]``.

Without operators a session serves all of them; ``milestone`` needs one. ``nox`` alone runs what continuous
integration runs. The work itself is in shared_build; this file puts it in order.
"""

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from shared_build.environments import DEFAULT_TORCH, Environment, tools_environment, torch_environment  # noqa: E402

PACKAGES = ROOT / "packages"
OPERATORS = sorted(path.parent.name for path in PACKAGES.glob("*/pyproject.toml"))

# mkdocs-material advertises its successor in the output otherwise.
QUIET_MKDOCS = {"NO_MKDOCS_2_WARNING": "1"}

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "none"
nox.options.error_on_external_run = False
nox.options.sessions = ["lint", "contracts", "build", "cuda", "shared", "test", "docs"]


def parse(session: nox.Session) -> tuple[list[str], str, list[str]]:
    """Split a session's arguments into operators, the torch version, and what is passed on."""
    parser = argparse.ArgumentParser(prog=f"nox -s {session.name} --", add_help=False)
    parser.add_argument("--torch", default=DEFAULT_TORCH)
    options, rest = parser.parse_known_args(session.posargs)
    # Operators come first; what follows the first option is that option's business.
    named = list(itertools.takewhile(lambda item: not item.startswith("-"), rest))
    for name in named:
        if name not in OPERATORS:
            session.error(f"{session.name}: expected operators among {', '.join(OPERATORS)}, but got {name}")
    return named or OPERATORS, options.torch, rest[len(named) :]


def wheel(environment: Environment, operator: str, cuda: str | None = None) -> Path:
    """Build a package's wheel against the environment's torch, and audit it.

    With ``cuda`` (nvcc's version) the wheel has CUDA kernels, whatever the torch, and says so in its name.
    """
    folder = ROOT / "build" / ("wheels-cuda" if cuda else "wheels") / environment.path.name / operator
    shutil.rmtree(folder, ignore_errors=True)
    package = PACKAGES / operator
    settings = ["-C", f"wheel.build-tag=1cu{cuda.replace('.', '')}"] if cuda else []
    variables = {"OPWRIGHT_CUDA": "ON"} if cuda else {}
    environment.python(
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        *settings,
        "--wheel-dir",
        folder,
        package,
        env={"PYTHONPATH": "", **variables},
    )
    (built,) = folder.glob("*.whl")
    objects = package / "build" / built.stem.split("-", 2)[2]
    # What the CUDA runtime asks of the C library depends on the system that links it: judged at a release.
    strict = [] if cuda else ["--enforce-manylinux"]
    contract = ["--contract", package / "contract.toml"]
    environment.python("-m", "shared_build.delivery.audit", built, *contract, "--objects", objects, *strict)
    return built


def nvcc_version() -> str | None:
    """The version of the nvcc that a build finds (in the places of Cuda.cmake, in its order), or None."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [os.environ.get("CUDACXX"), *(f"{home}/bin/nvcc" for home in homes if home), "nvcc"]
    found = next(filter(None, (shutil.which(p) for p in [*places, "/usr/local/cuda/bin/nvcc"] if p)), None)
    if found is None:
        return None
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"release (\d+\.\d+)", told)
    return match[1] if match else None


def installed(environment: Environment, operator: str) -> None:
    """Install a freshly built wheel of the package."""
    environment.install("--force-reinstall", "--no-deps", wheel(environment, operator))


def finish(status: int) -> None:
    """End nox with the exit status of a delivery, where 1 and 2 mean different things."""
    if status:
        raise SystemExit(status)


@nox.session
def lint(session: nox.Session) -> None:
    """Formatters, linters, types, docstrings, layout, workflows. ``--fix`` rewrites what can be."""
    operators, torch, rest = parse(session)
    named = operators if operators != OPERATORS else []
    torch_environment(session, torch).python("-m", "shared_build.lint", *named, *rest)


@nox.session
def contracts(session: nox.Session) -> None:
    """Every contract.toml is well formed, and every criterion names its proof."""
    operators, torch, _ = parse(session)
    paths = [PACKAGES / operator for operator in operators]
    torch_environment(session, torch).python("-m", "shared_build.delivery.contract", *paths)


@nox.session
def build(session: nox.Session) -> None:
    """Build each wheel and audit it."""
    operators, torch, _ = parse(session)
    environment = torch_environment(session, torch)
    for operator in operators:
        wheel(environment, operator)


@nox.session
def cuda(session: nox.Session) -> None:
    """Compile and link the CUDA part of each package, audit it, compare registers, run kernels simulated."""
    operators, torch, rest = parse(session)
    version = nvcc_version()
    if version is None:
        session.skip("no nvcc: nothing of CUDA was compiled or tried; CUDACXX or CUDA_HOME would name one")
    environment = torch_environment(session, torch)
    for operator in operators:
        package = PACKAGES / operator
        if not (package / "csrc" / "cuda").is_dir():
            session.log(f"{operator} has no CUDA kernels")
            continue
        built = wheel(environment, operator, cuda=version)
        objects = package / "build" / built.stem.split("-", 2)[2]
        # Status 2: no baseline of this nvcc, so nothing to judge by.
        gate = ["-m", "shared_build.benchmarking.registers", operator, "--build", objects]
        environment.python(*gate, success_codes=(0, 2))
        environment.install("--force-reinstall", "--no-deps", built)
        tests = sorted(str(path) for path in (package / "tests").glob("test_cuda*.py"))
        environment.python("-m", "pytest", "-n", "2", *tests, *rest, cwd=package, env={"PYTHONPATH": ""})


@nox.session
def shared(session: nox.Session) -> None:
    """Tests of the shared code: SIMD, the zoo of broken operators, delivery, measurement, scaffolding."""
    _, torch, rest = parse(session)
    environment = torch_environment(session, torch)
    # Some of them call the operators: the code in the documents is run.
    for operator in OPERATORS:
        installed(environment, operator)
    # The zoo runs by itself, under the rules of the suite whose checks it proves.
    zoo = "shared_build/tests/conformance"
    environment.python("-m", "pytest", zoo, "-n", "2", *rest)
    others = ["shared_build/tests", f"--ignore={zoo}", "-n", "2", "--dist", "loadfile", *rest]
    environment.python("-m", "pytest", *others, env=QUIET_MKDOCS)


@nox.session
def test(session: nox.Session) -> None:
    """Install each package's wheel and run its tests and its conformance; pytest's options are passed on."""
    operators, torch, rest = parse(session)
    environment = torch_environment(session, torch)
    for operator in operators:
        installed(environment, operator)
        environment.python("-m", "pytest", "-n", "2", *rest, cwd=PACKAGES / operator, env={"PYTHONPATH": ""})


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run each package's tests on builds with the address, undefined-behaviour and thread sanitizers."""
    operators, torch, rest = parse(session)
    environment = torch_environment(session, torch)
    for operator in operators:
        environment.python("-m", "shared_build.sanitize", operator, *rest)


@nox.session
def bench(session: nox.Session) -> None:
    """Run asv benchmarks and compare with the last committed results. ``--quick`` for a smoke test."""
    operators, torch, rest = parse(session)
    environment = torch_environment(session, torch)
    for operator in operators:
        installed(environment, operator)
        environment.python("-m", "shared_build.benchmarking.asv", operator, *rest)
        # Status 2: no valgrind here, or no baseline for this compiler, so nothing to judge by.
        environment.python("-m", "shared_build.benchmarking.callgrind", operator, success_codes=(0, 2))


@nox.session
def profile(session: nox.Session) -> None:
    """Profile each operator by itself and inside a transformer block, eager and compiled."""
    operators, torch, rest = parse(session)
    environment = torch_environment(session, torch)
    for operator in operators:
        installed(environment, operator)
        out = ROOT / "build" / "profiles" / operator
        environment.python("-m", "shared_build.benchmarking.profile", operator, "--out", out, *rest)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, every warning an error. ``--serve`` shows it while it is written."""
    _, _, rest = parse(session)
    environment = tools_environment(session)
    command = ["serve"] if "--serve" in rest else ["build", "--strict"]
    environment.python("-m", "mkdocs", *command, env=QUIET_MKDOCS)


@nox.session
def milestone(session: nox.Session) -> None:
    """Deliver one operator and prove its contract; exit 0 all holds, 1 something fails, 2 undecided."""
    if not session.posargs or session.posargs[0] not in OPERATORS:
        got = " ".join(session.posargs) or "none"
        session.error(f"milestone: expected one operator among {', '.join(OPERATORS)}, but got {got}")
    operators, torch, rest = parse(session)
    environment = torch_environment(session, torch)
    finish(environment.status("-m", "shared_build.delivery.milestone", operators[0], "--torch", torch, *rest))


@nox.session
def accept(session: nox.Session) -> None:
    """Prove a delivered bundle again, from the bundle alone: ``nox -s accept -- dist/<op>-<version>``."""
    if not session.posargs:
        session.error("accept: expected the folder of a bundle, but got nothing")
    command = [sys.executable, "-m", "shared_build.delivery.accept", *session.posargs]
    finish(subprocess.run(command, cwd=ROOT, check=False).returncode)


@nox.session
def new(session: nox.Session) -> None:
    """Scaffold a package that builds and passes the whole suite as it is made: ``nox -s new -- my_op``."""
    if len(session.posargs) != 1:
        session.error("new: expected one name, but got " + (" ".join(session.posargs) or "none"))
    torch_environment(session).python("-m", "shared_build.template", session.posargs[0])


@nox.session
def wheels(session: nox.Session) -> None:
    """Prove that one wheel, built on one torch, serves others: tested under each ``--also VERSION`` too."""
    parser = argparse.ArgumentParser(prog="nox -s wheels --", add_help=False)
    parser.add_argument("--also", action="append", default=[])
    options, _ = parser.parse_known_args(session.posargs)
    operators, torch, _ = parse(session)
    environment = torch_environment(session, torch)
    for operator in (item for item in operators if item in OPERATORS):
        built = wheel(environment, operator)
        for version in [torch, *options.also]:
            other = torch_environment(session, version)
            other.install("--force-reinstall", "--no-deps", built)
            other.python("-m", "pytest", "-n", "2", cwd=PACKAGES / operator, env={"PYTHONPATH": ""})


@nox.session
def peers(session: nox.Session) -> None:
    """Compare with rival packages, where one can be installed."""
    operators, torch, rest = parse(session)
    environment = torch_environment(session, torch)
    for operator in operators:
        installed(environment, operator)
        environment.python("-m", "shared_build.benchmarking.measure", operator, "--contender", "rival", *rest)
