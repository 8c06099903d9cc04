"""The wheel audit: what is inside, what it needs at run time, and on which systems it will load.

``python -m shared_build.delivery.audit WHEEL [--objects BUILD_DIR] [--enforce-manylinux]`` prints one line
a check and exits 1 if one fails. The checks, by the names that ``contract.toml`` uses:

==================  =========================================================================================
wheel-tag           ``py3-none-<platform>``, the same in the file name and in the metadata, and true of the
                    library
wheel-files         only the package's modules, its library and its metadata; RECORD lists each with the right
                    hash
undefined-symbols   only torch's stable C shim as of the floor version, libc, libm, libstdc++ and libgcc; in
                    the ATen flavour: the wheel requires the one minor version of torch it was built for
needed-libraries    links to those libraries and to libtorch, nothing else
manylinux           no GLIBC, GLIBCXX or CXXABI newer than manylinux_2_28 (a report, unless the tag claims it
                    or ``--enforce-manylinux`` asks for it)
memory-protection   no segment both writable and executable, no executable stack
paths               no RPATH or RUNPATH, no path of the building machine in the library
isa-objects         no weak or unique symbol and no static initialiser in an object of one instruction set
==================  =========================================================================================

A pure-Python wheel passes the library checks by having none; only ``isa-objects`` needs the build directory.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from . import elf, stable_shim

CHECKS = (
    "wheel-tag",
    "wheel-files",
    "undefined-symbols",
    "needed-libraries",
    "manylinux",
    "memory-protection",
    "paths",
    "isa-objects",
)
#: The newest symbol versions that the published policy of manylinux_2_28 allows on x86-64 and aarch64.
MANYLINUX = {
    "GLIBC": Version("2.28"),
    "GLIBCXX": Version("3.4.24"),
    "CXXABI": Version("1.3.11"),
    "GCC": Version("7.0.0"),
}
_NEEDED = re.compile(
    r"(libtorch(_cpu)?|libc10|libstdc\+\+|libgcc_s|libc|libm|libpthread|libdl|librt|ld-linux[-\w]*)\.so(\.\d+)*"
)
#: Defined by the compiler's start files or absent, always weak.
_START_FILES = {
    "_ITM_deregisterTMCloneTable",
    "_ITM_registerTMCloneTable",
    "__gmon_start__",
    "__cxa_finalize",
}
#: CMake names the folder of an OBJECT library after its target: CMakeFiles/opwright_<op>_avx2.dir/...
_ISA_FOLDER = re.compile(r"_(default|avx2|avx512|neon)\.dir/")
_ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:[\w.+@~-]+/)+[\w.+@~-]+")
_SYSTEM_ROOTS = {"usr", "lib", "lib64", "proc", "sys", "dev", "etc", "bin"}
_FILES = re.compile(r"opwright/\w+/([\w]+/)*[\w.]+\.(py|pyi|so|dylib)|opwright/\w+/py\.typed")
_METADATA = re.compile(r"[\w.]+-[\w.+!]+\.dist-info/(METADATA|WHEEL|RECORD|top_level\.txt|licenses/[\w./-]+)")


@dataclass(frozen=True)
class Finding:
    """One check of one wheel; ``status``: ``ok``, ``fails``, ``report`` (told, not judged) or ``not run``."""

    check: str
    status: str
    detail: str


def _finding(check: str, problems: list[str], good: str) -> Finding:
    return Finding(check, "fails" if problems else "ok", "; ".join(problems) or good)


def audit_wheel(
    wheel: Path,
    *,
    floor: str = "2.11",
    flavour: str = "stable",
    enforce_manylinux: bool = False,
    objects: Iterable[Path] | None = None,
) -> list[Finding]:
    """Run every check on a wheel and return one finding each, in the order of ``CHECKS``.

    Args:
        wheel: the wheel file.
        floor: the oldest torch version that the stable flavour promises.
        flavour: ``"stable"``, or ``"aten"`` for a wheel that may use any C++ symbol of the one torch it is
            pinned to.
        enforce_manylinux: whether symbol versions above manylinux_2_28 fail instead of being reported.
        objects: object files, or build directories searched for ``isa_*`` objects; None leaves that check
            out.

    Raises:
        zipfile.BadZipFile: the file is not a wheel.
        FileNotFoundError: there is no such file, or no committed symbol list for the floor version.
    """
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    libraries = {name: elf.read_library(data) for name, data in contents.items() if elf.is_elf(data)}
    foreign = [name for name in contents if name.endswith((".dylib", ".pyd", ".dll"))]

    def each(check: str, inspect: Callable[[elf.Library], list[str]], good: str) -> Finding:
        problems = [f"{PurePosixPath(n).name}: {p}" for n, lib in libraries.items() for p in inspect(lib)]
        if foreign:
            return Finding(check, "not run", f"{foreign[0]} is not an ELF file")
        return _finding(check, problems, good if libraries else "no library in the wheel")

    newest: dict[str, Version] = {}
    enforce_manylinux = enforce_manylinux or "-manylinux" in wheel.name
    return [
        _tag(wheel, contents, libraries),
        _files(contents),
        _one_torch(contents)
        if flavour == "aten"
        else each("undefined-symbols", lambda lib: _undefined(lib, floor), f"all known to torch {floor}"),
        each("needed-libraries", _needed, "torch and the system's C and C++ libraries"),
        _manylinux(each("manylinux", lambda lib: _too_new(lib, newest), ""), newest, enforce_manylinux),
        each("memory-protection", _protection, "no writable code, no executable stack"),
        each("paths", _paths, "no search path, no path of the building machine"),
        _isa(objects),
    ]


def _tag(wheel: Path, contents: dict[str, bytes], libraries: dict[str, elf.Library]) -> Finding:
    try:
        name, version, _, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        return Finding("wheel-tag", "fails", str(error))
    problems = []
    for tag in sorted(tags, key=str):
        if (tag.interpreter, tag.abi) != ("py3", "none"):
            problems.append(f"expected py3-none-<platform>, but got {tag}")
        if libraries and tag.platform == "any":
            problems.append(f"expected the platform in the tag, but got {tag} with a compiled library inside")
        if not libraries and tag.platform != "any" and not any(n.endswith(".dylib") for n in contents):
            problems.append(f"expected py3-none-any for a wheel without a library, but got {tag}")
        for path, library in libraries.items():
            if tag.platform != "any" and not tag.platform.endswith(f"_{library.machine}"):
                problems.append(f"expected {tag.platform}, but got {library.machine} in {path}")
    metadata = next((data for path, data in contents.items() if path.endswith(".dist-info/WHEEL")), b"")
    written = set(Parser().parsestr(metadata.decode("utf-8")).get_all("Tag", []))
    if written != {str(tag) for tag in tags}:
        problems.append(f"expected the tags of the file name, but got {sorted(written)} in the WHEEL file")
    return _finding("wheel-tag", problems, f"{name} {version}: {', '.join(sorted(map(str, tags)))}")


def _files(contents: dict[str, bytes]) -> Finding:
    problems = [
        f"unexpected {path}"
        for path in sorted(contents)
        if not (_FILES.fullmatch(path) or _METADATA.fullmatch(path))
    ]
    record_path = next((path for path in contents if path.endswith(".dist-info/RECORD")), None)
    if record_path is None:
        return _finding("wheel-files", [*problems, "no RECORD"], "")
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(contents[record_path].decode("utf-8"))) if row}
    problems += [f"{path} is not in RECORD" for path in sorted(contents.keys() - rows.keys())]
    problems += [f"{path} is in RECORD but missing" for path in sorted(rows.keys() - contents.keys())]
    for path in sorted(contents.keys() & rows.keys() - {record_path}):
        digest = base64.urlsafe_b64encode(hashlib.sha256(contents[path]).digest()).rstrip(b"=").decode()
        if rows[path] != f"sha256={digest}":
            problems.append(f"{path} differs from its hash in RECORD")
    return _finding("wheel-files", problems, f"{len(contents)} files, all expected, all as recorded")


def _one_torch(contents: dict[str, bytes]) -> Finding:
    """Check that a wheel that may use all of torch's C++ interface requires the one torch it fits."""
    metadata = next((data for path, data in contents.items() if path.endswith(".dist-info/METADATA")), b"")
    required = Parser().parsestr(metadata.decode("utf-8")).get_all("Requires-Dist", [])
    torch = [text for text in required if re.match(r"torch\b", text)]
    built_for = next((data for path, data in contents.items() if path.endswith("/_built_for.py")), b"")
    minor = re.search(rb'^TORCH = "(\d+\.\d+)"$', built_for, re.MULTILINE)
    expected = (
        f"torch=={minor.group(1).decode()}.*" if minor else "torch==<the minor version in _built_for.py>.*"
    )
    problems = (
        [] if minor and torch == [expected] else [f"expected the requirement {expected}, but got {torch}"]
    )
    return _finding(
        "undefined-symbols", problems, f"those of the one torch that the wheel requires: {expected}"
    )


def _undefined(library: elf.Library, floor: str) -> list[str]:
    shim = stable_shim.allowed(floor)
    strangers = []
    for symbol in library.undefined:
        known = symbol.version.split("_")[0] in MANYLINUX or (symbol.weak and symbol.name in _START_FILES)
        if symbol.name in shim:
            if shim[symbol.name] == "cuda" and not symbol.weak:
                strangers.append((symbol.name, " must be weak: CPU builds of torch lack it"))
        elif not known:
            strangers.append((symbol.name, f" ({symbol.version})" if symbol.version else ""))
    readable = elf.demangle([name for name, _ in strangers])
    return [f"outside the stable shim of torch {floor}: {readable[name]}{why}" for name, why in strangers]


def _needed(library: elf.Library) -> list[str]:
    return [f"links to {name}" for name in library.needed if not _NEEDED.fullmatch(name)]


def _too_new(library: elf.Library, newest: dict[str, Version]) -> list[str]:
    problems = []
    for symbol in library.undefined:
        family, _, number = symbol.version.partition("_")
        if family in MANYLINUX and re.fullmatch(r"[\d.]+", number):
            version = Version(number)
            newest[family] = max(newest.get(family, version), version)
            if version > MANYLINUX[family]:
                problems.append(f"{elf.demangle([symbol.name])[symbol.name]} needs {symbol.version}")
    return problems


def _manylinux(finding: Finding, newest: dict[str, Version], enforce: bool) -> Finding:
    highest = (
        "newest: " + ", ".join(f"{family}_{newest[family]}" for family in sorted(newest))
        if newest
        else "none"
    )
    if finding.status == "fails":
        return Finding("manylinux", "fails" if enforce else "report", f"{highest}; {finding.detail}")
    return Finding("manylinux", finding.status, finding.detail or highest)


def _protection(library: elf.Library) -> list[str]:
    problems = [f"segment at {address} is writable and executable" for address in library.writable_executable]
    return [*problems, "asks for an executable stack"] if library.executable_stack else problems


def _paths(library: elf.Library) -> list[str]:
    problems = [f"RPATH or RUNPATH {path}" for path in library.rpath]
    found = {path for text in library.strings for path in _ABSOLUTE.findall(text)}
    foreign = sorted(path for path in found if path.split("/")[1] not in _SYSTEM_ROOTS)
    return [*problems, *(f"path of the building machine {path}" for path in foreign)]


def _isa(objects: Iterable[Path] | None) -> Finding:
    if objects is None:
        return Finding("isa-objects", "not run", "needs the object files of a build (--objects)")
    paths: list[Path] = []
    for entry in objects:
        paths += [p for p in entry.rglob("*.o") if _ISA_FOLDER.search(str(p))] if entry.is_dir() else [entry]
    if not paths:
        return Finding(
            "isa-objects", "fails", "expected objects of at least one instruction set, but found none"
        )
    problems = [f"{path.name}: {symbol}" for path in sorted(paths) for symbol in elf.mergeable_symbols(path)]
    return _finding("isa-objects", problems, f"{len(paths)} objects, none with a mergeable symbol")


def main(argv: Iterable[str] | None = None) -> int:
    """Audit one wheel from the command line; exit status 0 or 1."""
    parser = argparse.ArgumentParser(
        prog="python -m shared_build.delivery.audit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--floor", default="2.11", help="oldest torch of the stable flavour (default: 2.11)")
    parser.add_argument(
        "--contract", type=Path, help="the package's contract.toml, which names the flavour (default: stable)"
    )
    parser.add_argument("--enforce-manylinux", action="store_true", help="fail above manylinux_2_28")
    parser.add_argument(
        "--objects", type=Path, action="append", help="object file or build directory, repeatable"
    )
    parser.add_argument("--json", type=Path, help="also write the findings to this file")
    options = parser.parse_args(None if argv is None else list(argv))
    try:
        flavour = "stable"
        if options.contract is not None:
            flavour = tomllib.loads(options.contract.read_text(encoding="utf-8"))["flavour"]
        findings = audit_wheel(
            options.wheel,
            floor=options.floor,
            flavour=flavour,
            enforce_manylinux=options.enforce_manylinux,
            objects=options.objects,
        )
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        print(f"audit: {options.wheel}: {error}", file=sys.stderr)
        return 1
    for finding in findings:
        print(f"{finding.status:8} {finding.check:18} {finding.detail}")
    if options.json is not None:
        options.json.write_text(
            json.dumps([asdict(finding) for finding in findings], indent=2), encoding="utf-8"
        )
    return int(any(finding.status == "fails" for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
