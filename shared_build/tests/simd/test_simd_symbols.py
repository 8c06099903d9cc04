"""Objects made from the headers hold nothing that the linker could merge with another level's.

All of the headers is compiled, with and without optimisation, for every level of the architecture. That needs
the compiler only, not the processor.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from shared_build.tests.simd.levels import INCLUDE, build_object, compile_file, level_flags, machine_levels

# What a compiler itself may call for, at -O0 too.
ALLOWED_UNDEFINED = {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_"}
WEAK_HEADER = """
#pragma once
namespace opwright {
template <class T> T twice(T x) { return x + x; }
}
"""


def symbols(path: Path) -> list[tuple[str, str]]:
    """Return (type, name) of every symbol, as nm prints them."""
    listing = subprocess.run(["nm", str(path)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^[0-9a-f ]{16} (\w) (\S+)$", listing, re.MULTILINE)


def mergeable(path: Path) -> list[tuple[str, str]]:
    return [(kind, name) for kind, name in symbols(path) if kind in "WwVvu"]


@pytest.fixture(
    scope="module",
    params=[(level, optimisation) for level in machine_levels() for optimisation in ("-O0", "-O3")],
    ids=lambda value: f"{value[0].name}{value[1]}",
)
def compiled_object(request: pytest.FixtureRequest, libraries: Path) -> Path:
    level, optimisation = request.param
    ready = libraries / f"probe-{level.name}{optimisation}.o"
    return ready if ready.exists() else build_object(level, optimisation, libraries)


def test_nothing_is_weak_or_unique(compiled_object: Path) -> None:
    assert len(symbols(compiled_object)) > 50
    assert mergeable(compiled_object) == []


def test_only_the_probes_own_functions_are_visible(compiled_object: Path) -> None:
    visible = {name for kind, name in symbols(compiled_object) if kind in "TDBRGS"}
    assert "float_exp" in visible
    assert not [name for name in visible if name.startswith("_Z")]


def test_nothing_outside_is_called(compiled_object: Path) -> None:
    undefined = {name for kind, name in symbols(compiled_object) if kind == "U"}
    assert undefined <= ALLOWED_UNDEFINED


def test_nothing_runs_when_the_library_is_loaded(compiled_object: Path) -> None:
    sections = subprocess.run(
        ["readelf", "-SW", str(compiled_object)], capture_output=True, text=True, check=True
    )
    assert ".text" in sections.stdout
    assert not re.search(r"\.(init_array|ctors|preinit_array|tbss|tdata)", sections.stdout)


def test_a_weak_symbol_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "weak.h").write_text(WEAK_HEADER, encoding="utf-8")
    source = tmp_path / "weak.cpp"
    source.write_text('#include "weak.h"\nint f(int x) { return opwright::twice(x); }\n', encoding="utf-8")
    flags = (*level_flags(machine_levels()[0]), "-O0", "-c")
    assert mergeable(compile_file(source, tmp_path / "weak.o", flags))


def test_headers_include_only_what_is_free_of_templates() -> None:
    allowed = {"<cstdint>", "<immintrin.h>", "<arm_neon.h>"}
    for header in INCLUDE.glob("opwright/simd*.h"):
        text = header.read_text(encoding="utf-8")
        for included in re.findall(r"^#include (.+)$", text, re.MULTILINE):
            assert included in allowed or included.startswith('"opwright/'), f"{header.name}: {included}"
        names = set(re.findall(r"\bstd::(\w+)", text))
        assert names <= {"int32_t", "int64_t", "uint16_t", "uint32_t", "uint64_t"}, f"{header.name}: {names}"


@pytest.mark.parametrize("header", sorted(path.name for path in INCLUDE.glob("opwright/simd*.h")))
def test_each_header_compiles_by_itself(header: str, tmp_path: Path) -> None:
    source = tmp_path / "alone.cpp"
    source.write_text(f'#include "opwright/{header}"\n', encoding="utf-8")
    compile_file(source, tmp_path / "alone.o", (*level_flags(machine_levels()[0]), "-O0", "-c"))
