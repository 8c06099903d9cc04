"""A whole operator package without torch or a compiler, so that deliveries can be made in seconds.

``make_package`` writes it, ``make_wheelhouse`` packs what its environments need from this environment's own
packages: no test here needs a package index.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2]
ROOT = SHARED.parent
NEEDED = (
    "pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "jinja2",
    "markupsafe",
    "pyelftools",
    "rich",
    "markdown-it-py",
    "mdurl",
)

BACKEND = '''
"""A build backend for pure Python that needs nothing."""
import base64, hashlib, io, tarfile, zipfile
from pathlib import Path

NAME, VERSION = "opwright_demo_op", "0.1.0"
INFO = f"{NAME}-{VERSION}.dist-info"

def get_requires_for_build_sdist(config_settings=None):
    return []

get_requires_for_build_wheel = get_requires_for_build_sdist

def build_sdist(directory, config_settings=None):
    path = Path(directory) / f"{NAME}-{VERSION}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file in ("pyproject.toml", "backend.py", "src/opwright/demo_op/__init__.py"):
            archive.add(file, f"{NAME}-{VERSION}/{file}")
        data = f"Metadata-Version: 2.1\\nName: opwright-demo-op\\nVersion: {VERSION}\\n".encode()
        member = tarfile.TarInfo(f"{NAME}-{VERSION}/PKG-INFO")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return path.name

def build_wheel(directory, config_settings=None, metadata_directory=None):
    path = Path(directory) / f"{NAME}-{VERSION}-py3-none-any.whl"
    files = {
        "opwright/demo_op/__init__.py": Path("src/opwright/demo_op/__init__.py").read_bytes(),
        f"{INFO}/METADATA": (
            f"Metadata-Version: 2.1\\nName: opwright-demo-op\\nVersion: {VERSION}\\n"
            "Requires-Dist: torch>=2.11\\n"
        ).encode(),
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\\n"
        archive.writestr(f"{INFO}/RECORD", record + f"{INFO}/RECORD,,\\n")
    return path.name
'''

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "opwright-demo-op"
version = "0.1.0"
dependencies = ["torch>=2.11"]

[tool.pytest.ini_options]
pythonpath = ["."]
addopts = ["--import-mode=importlib", "--strict-markers"]
"""

CONTRACT = """
schema = 1
operator = "demo_op"
distribution = "opwright-demo-op"
version = "0.1.0"
summary = "Twice a number: the smallest operator there is."
flavour = "stable"
dtypes = ["fp32"]
torch = { floor = "2.11" }
tests = { skips = ["^no such device$"] }

[[devices]]
id = "cpu"
claim = "Runs on any CPU that Python runs on."
device = "CPU"
status = "run on hardware"
tests = ["tests/test_demo.py::test_values"]

[[accuracy]]
id = "forward"
claim = "The error is small."
direction = "forward"
dtypes = ["fp32"]
figure = "error_ratio_forward"
k = 2.0
tests = ["tests/test_demo.py::test_error"]

[[gradients]]
id = "none"
claim = "There is no gradient, and asking for one raises."
order = 1
by = "refused"
tests = ["tests/test_demo.py::test_values[2*]"]

[[determinism]]
id = "run-to-run"
claim = "The same input gives the same bits."
kind = "run-to-run"
tests = ["tests/test_demo.py::test_values"]

[[package]]
id = "symbols"
claim = "The wheel needs nothing that torch 2.11 lacks."
audit = ["undefined-symbols", "wheel-tag", "wheel-files"]

[[limits]]
id = "numbers"
claim = "Numbers only."

[performance]
[[performance.floors]]
case = "forward"
shapes = ["4x4"]
dtypes = ["fp32"]
threads = [1]
metric = "vs_eager"
ratio = 2.0
goal = 4.0
"""

TESTS = """
import opwright.demo_op
import pytest

@pytest.mark.parametrize("value", [1, 2])
def test_values(value):
    assert opwright.demo_op.twice(value) == 2 * value

def test_error(record_property):
    record_property("error_ratio_forward", 1.25)

def test_elsewhere():
    pytest.skip("no such device")
"""

#: Stands in for the measuring package: the floors are judged by it, here from one fixed ratio.
BENCHMARKING = '''
import dataclasses
import os
from .floors import Floor

class MeasurementError(RuntimeError):
    """As in the real one."""

class Report:
    def __init__(self, verdicts):
        self.verdicts = verdicts

    def to_dict(self):
        return {"schema": 1, "command": "measure demo_op", "verdicts": self.verdicts}

@dataclasses.dataclass
class Case:
    title: str

def load_cases(root):
    return {"forward": Case("Twice")}

def evaluate(contract, operator, root, python, **options):
    if (root / "benchmarks" / "red").exists():
        raise MeasurementError("forward: the result is wrong")
    verdicts = []
    for entry in contract["performance"]["floors"]:
        floor = Floor(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
        for name, keys in floor.groups():
            case, shape, dtype, threads = keys[0]
            verdicts.append({
                "id": name, "case": case, "shape": shape, "dtype": dtype, "threads": threads,
                "metric": floor.metric, "contender": floor.contender, "floor": floor.ratio, "ceiling": None,
                "verdict": "holds" if floor.ratio <= 3 else "fails", "ratio": 3.0, "low": 2.9, "high": 3.1,
                "rounds": 9, "goal": floor.goal, "reason": "", "note": "",
            })
    return Report(verdicts)
'''


def make_package(root: Path, **changes: str) -> Path:
    """Write ``packages/demo_op`` below a directory and return it.

    Args:
        root: the repository root to be.
        changes: files with another content: ``contract``, ``tests``, ``cmake`` (only written if given).
    """
    package = root / "packages" / "demo_op"
    files = {
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
        "contract.toml": changes.get("contract", CONTRACT),
        "README.md": "# demo_op\n",
        "docs/index.md": "# demo_op\n\nTwice a number.\n",
        "src/opwright/demo_op/__init__.py": "def twice(value):\n    return 2 * value\n",
        "tests/test_demo.py": changes.get("tests", TESTS),
        "benchmarks/cases.py": 'CASES = ["forward"]\n',
        "shared_build/requirements/test.txt": "pytest\n",
        "shared_build/requirements/bench.txt": "rich\n",
        "shared_build/benchmarking/__init__.py": BENCHMARKING,
        "shared_build/benchmarking/profile.py": (
            "import sys, pathlib\n"
            "out = pathlib.Path(sys.argv[sys.argv.index('--out') + 1])\n"
            "out.mkdir()\n"
            "(out / 'table.txt').write_text('twice 100%')\n"
        ),
    }
    if "cmake" in changes:
        files["CMakeLists.txt"] = changes["cmake"]
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (package / "shared_build" / "delivery").symlink_to(SHARED / "delivery")
    for module in (SHARED / "benchmarking").glob("*.py"):
        target = package / "shared_build" / "benchmarking" / module.name
        if not target.exists():
            target.symlink_to(module)
    return package


def _record(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def pack(folder: Path, name: str, version: str, tag: str, files: dict[str, bytes]) -> Path:
    """Write a wheel from its files; RECORD is made here."""
    base = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{base}-{tag}.whl"
    record = "".join(_record(file, data) for file, data in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for file, data in files.items():
            archive.writestr(file, data)
        archive.writestr(f"{base}.dist-info/RECORD", record + f"{base}.dist-info/RECORD,,\n")
    return path


def wheel_metadata(name: str, version: str, tag: str, requires: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Return the two metadata files of a wheel."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {text}\n" for text in requires)
    return {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}


def make_wheelhouse(folder: Path) -> Path:
    """Pack the installed packages of ``NEEDED`` into wheels, beside an empty stand-in for torch 2.13.0."""
    for name in NEEDED:
        there = importlib.metadata.distribution(name)
        files = {
            str(file): Path(str(there.locate_file(file))).read_bytes()
            for file in there.files or []
            if ".." not in file.parts and file.suffix != ".pyc" and file.name not in ("RECORD", "INSTALLER")
        }
        told = there.read_text("WHEEL") or ""
        tags = [line.removeprefix("Tag: ") for line in told.splitlines() if line.startswith("Tag: ")]
        base = next(file for file in files if file.endswith(".dist-info/METADATA")).removesuffix(
            ".dist-info/METADATA"
        )
        distribution, version = base.rsplit("-", 1)
        pack(folder, distribution, version, tags[0], files)
    files = {
        "torch/__init__.py": b"__version__ = '2.13.0'\n",
        **wheel_metadata("torch", "2.13.0", "py3-none-any"),
    }
    pack(folder, "torch", "2.13.0", "py3-none-any", files)
    return folder


def run_module(
    module: str, *arguments: object, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m shared_build.delivery.<module>`` in a package and return what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PIP_") and k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-m", f"shared_build.delivery.{module}", *map(str, arguments)],
        cwd=cwd,
        env={**kept, "PIP_CONFIG_FILE": os.devnull, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
