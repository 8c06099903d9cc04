"""What the wheel audit asks of one ELF file: plain facts, no verdicts."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from elftools.elf.constants import P_FLAGS
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
#: nm's letters for a symbol that a linker may merge with one of the same name from another object.
_WEAK = {("STT_OBJECT", True): "V", ("STT_OBJECT", False): "v"}


@dataclass(frozen=True)
class Undefined:
    """A symbol that the loader has to find elsewhere; ``version`` is ``GLIBC_2.14`` or empty."""

    name: str
    version: str
    weak: bool


@dataclass
class Library:
    """The facts about one shared library."""

    machine: str
    needed: list[str] = field(default_factory=list)
    rpath: list[str] = field(default_factory=list)
    undefined: list[Undefined] = field(default_factory=list)
    writable_executable: list[str] = field(default_factory=list)
    executable_stack: bool = False
    strings: list[str] = field(default_factory=list)


def is_elf(data: bytes) -> bool:
    """Say whether the bytes begin like an ELF file."""
    return data[:4] == b"\x7fELF"


def read_library(data: bytes) -> Library:
    """Read a shared library from its bytes."""
    elf = ELFFile(io.BytesIO(data))
    library = Library(machine=MACHINES.get(elf["e_machine"], str(elf["e_machine"])))
    stack_declared = False
    for segment in elf.iter_segments():
        flags = segment["p_flags"]
        if segment["p_type"] == "PT_GNU_STACK":
            stack_declared = True
            library.executable_stack = bool(flags & P_FLAGS.PF_X)
        elif segment["p_type"] == "PT_LOAD" and flags & P_FLAGS.PF_W and flags & P_FLAGS.PF_X:
            library.writable_executable.append(f"0x{segment['p_vaddr']:x}")
    # Without the header the loader falls back to an executable stack.
    library.executable_stack = library.executable_stack or not stack_declared
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    library.needed.append(tag.needed)
                elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    library.rpath.append(str(getattr(tag, "rpath", None) or getattr(tag, "runpath", "")))
    library.undefined = _undefined(elf)
    library.strings = _strings(elf, data)
    return library


def _strings(elf: ELFFile, data: bytes) -> list[str]:
    """The texts in a library; of device code whole ones only, since compressed code looks like anything."""
    device = elf.get_section_by_name(".nv_fatbin")
    start, size = (device["sh_offset"], device["sh_size"]) if device is not None else (0, 0)
    code = data[start : start + size]
    found = re.findall(rb"[\x20-\x7e]{6,}", data[:start] + bytes(8) + data[start + size :])
    found += re.findall(rb"(?<=[\x00-\x1f])[\x20-\x7e]{6,}(?=\x00)", code)
    return [text.decode("ascii") for text in found]


def _undefined(elf: ELFFile) -> list[Undefined]:
    symbols = elf.get_section_by_name(".dynsym")
    if symbols is None:
        return []
    versions: GNUVerSymSection | None = None
    needs: GNUVerNeedSection | None = None
    for section in elf.iter_sections():
        if isinstance(section, GNUVerSymSection):
            versions = section
        elif isinstance(section, GNUVerNeedSection):
            needs = section
    found = []
    for index, symbol in enumerate(symbols.iter_symbols()):
        if symbol["st_shndx"] != "SHN_UNDEF" or not symbol.name:
            continue
        version = ""
        if versions is not None and needs is not None:
            number = versions.get_symbol(index)["ndx"]
            if isinstance(number, int):
                entry = needs.get_version(number & 0x7FFF)
                version = entry[1].name if entry is not None else ""
        found.append(Undefined(symbol.name, version, symbol["st_info"]["bind"] == "STB_WEAK"))
    return found


def mergeable_symbols(path: Path) -> list[str]:
    """List what makes an object file of one instruction set unsafe beside the others, as ``"W name"``.

    A weak or unique symbol can be merged with one of the same name from another object, and then baseline
    code runs instructions that the machine lacks; ``.init_array`` runs code when the library is loaded,
    before any check.
    """
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        found = [
            f"section {s.name}" for s in elf.iter_sections() if s.name.startswith((".init_array", ".ctors"))
        ]
        for section in elf.iter_sections():
            if not isinstance(section, SymbolTableSection):
                continue
            for symbol in section.iter_symbols():
                bind = symbol["st_info"]["bind"]
                defined = symbol["st_shndx"] != "SHN_UNDEF"
                if bind == "STB_WEAK":
                    letter = _WEAK.get((symbol["st_info"]["type"], defined), "W" if defined else "w")
                    found.append(f"{letter} {symbol.name}")
                elif bind in ("STB_LOOS", "STB_GNU_UNIQUE", 10):
                    found.append(f"u {symbol.name}")
    return found


def demangle(names: list[str]) -> dict[str, str]:
    """Map mangled names to readable ones where ``c++filt`` is installed, else to themselves."""
    tool = shutil.which("c++filt")
    if tool is None or not names:
        return {name: name for name in names}
    done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=False)
    readable = done.stdout.splitlines()
    return dict(zip(names, readable)) if len(readable) == len(names) else {name: name for name in names}
