"""The C functions that a wheel of the stable flavour may take from torch, read from torch's own headers.

``python -m shared_build.delivery.stable_shim --floor 2.11`` parses the headers of the installed torch and
writes ``data/stable_shim_<floor>.txt``, the list that the wheel audit compares with. A declaration counts
when every preprocessor condition around it is true at the floor version: ``TORCH_FEATURE_VERSION >=
TORCH_VERSION_2_12_0`` hides a function from a floor of 2.11. Functions inside ``#ifdef USE_CUDA`` exist
only in CUDA builds of torch, so they are listed with the mark ``cuda`` and a library may refer to them
weakly only.

A function that a later torch added without such a guard would be listed by mistake: ``--exports`` takes the
shared library of the floor version itself (``libtorch_cpu.so``) and drops, and names, what that library
does not export.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

HEADERS = (
    "torch/csrc/stable/c/shim.h",
    "torch/csrc/inductor/aoti_torch/c/shim.h",
    # What torch/csrc/stable/ops.h calls; the other generated headers belong to AOTInductor and promise
    # nothing.
    "torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h",
)
DATA = Path(__file__).with_name("data")

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FEATURE = re.compile(r"TORCH_FEATURE_VERSION\s*>=\s*TORCH_VERSION_(\d+)_(\d+)_\d+")
_EXPORT = re.compile(r"AOTI_TORCH_EXPORT\b[^;{]*?\b((?:aoti_)?torch_\w+)\s*\(", re.DOTALL)


def parse_floor(text: str) -> tuple[int, int]:
    """Turn ``"2.11"`` into ``(2, 11)``; ValueError for anything else."""
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"stable_shim: expected a torch version such as 2.11, but got {text!r}")
    return int(match[1]), int(match[2])


def _condition(line: str, floor: tuple[int, int]) -> tuple[bool, str]:
    """Evaluate one ``#if``: whether its body counts at the floor, and the mark that it gives."""
    feature = _FEATURE.search(line)
    if feature is not None:
        return (int(feature[1]), int(feature[2])) <= floor, ""
    if re.match(r"#\s*ifdef\s+USE_CUDA\b", line):
        return True, "cuda"
    return True, ""


def declared(text: str, floor: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Yield ``(function, mark)`` for every declaration of a header that exists at the floor version."""
    text = _COMMENT.sub("", text)
    stack: list[tuple[bool, str]] = []
    regions: dict[str, list[str]] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if re.match(r"#\s*if", stripped):
            stack.append(_condition(stripped, floor))
        elif re.match(r"#\s*(else|elif)\b", stripped):
            active, _ = stack.pop()
            stack.append((not active, ""))
        elif re.match(r"#\s*endif\b", stripped):
            stack.pop()
        elif not stripped.startswith("#") and all(active for active, _ in stack):
            mark = "cuda" if any(mark for _, mark in stack) else ""
            regions.setdefault(mark, []).append(line)
    for mark, lines in regions.items():
        for name in _EXPORT.findall("\n".join(lines)):
            yield name, mark


def collect(include: Path, floor: tuple[int, int]) -> dict[str, str]:
    """Read the headers under ``include`` and return ``{function: mark}``, sorted by name."""
    found: dict[str, str] = {}
    for header in HEADERS:
        found.update(declared((include / header).read_text(encoding="utf-8"), floor))
    return dict(sorted(found.items()))


def exported(library: Path) -> set[str]:
    """Return the names of the dynamic symbols that a shared library defines."""
    from elftools.elf.elffile import ELFFile

    with library.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".dynsym")
        return {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}


def data_file(floor: str) -> Path:
    """Return the path of the committed list for a floor version."""
    major, minor = parse_floor(floor)
    return DATA / f"stable_shim_{major}_{minor}.txt"


def allowed(floor: str) -> dict[str, str]:
    """Return the committed ``{function: mark}`` of a floor version; FileNotFoundError says how to make it."""
    path = data_file(floor)
    if not path.is_file():
        raise FileNotFoundError(
            f"stable_shim: expected {path.name} for torch {floor}, but got no such file; "
            f"make it with: python -m shared_build.delivery.stable_shim --floor {floor}"
        )
    entries: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, mark = line.partition(" ")
            entries[name] = mark
    return entries


def _write(path: Path, entries: dict[str, str], floor: str) -> None:
    head = (
        f"# C functions that torch {floor} and later offer to libraries of the stable flavour.\n"
        f"# Made by: python -m shared_build.delivery.stable_shim --floor {floor}\n"
        "# The mark cuda: in CUDA builds of torch only, so a weak reference is the only one allowed.\n"
    )
    lines = [f"{name} {mark}".rstrip() for name, mark in entries.items()]
    path.parent.mkdir(exist_ok=True)
    path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def main(argv: Iterable[str] | None = None) -> int:
    """Write the list of one floor version, or compare it with the committed one (``--check``)."""
    parser = argparse.ArgumentParser(prog="python -m shared_build.delivery.stable_shim", description=__doc__)
    parser.add_argument("--floor", default="2.11", help="torch version that the wheel promises to run on")
    parser.add_argument(
        "--include", type=Path, help="torch's include folder (default: the installed torch's)"
    )
    parser.add_argument("--exports", type=Path, help="libtorch_cpu.so of the floor version, to check against")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if the committed list differs"
    )
    options = parser.parse_args(None if argv is None else list(argv))
    include = options.include
    if include is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            parser.error("expected torch to be installed, or --include, but got neither")
        include = Path(spec.origin).parent / "include"
    entries = collect(include, parse_floor(options.floor))
    if options.exports is not None:
        there = exported(options.exports)
        for name in [name for name, mark in entries.items() if not mark and name not in there]:
            print(f"dropped, not exported by {options.exports.name}: {name}")
            del entries[name]
    if options.check:
        committed = allowed(options.floor)
        for entry in sorted(committed.items() ^ entries.items()):
            print(f"differs: {' '.join(entry)}")
        return int(committed != entries)
    _write(data_file(options.floor), entries, options.floor)
    print(f"{data_file(options.floor).name}: {len(entries)} functions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
