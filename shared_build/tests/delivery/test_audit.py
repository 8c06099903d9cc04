"""The wheel audit against libraries that are wrong in one way each, built here with the system's compiler."""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import zipfile

import demo
import pytest
from elftools.elf.constants import P_FLAGS
from elftools.elf.elffile import ELFFile

from shared_build.delivery import stable_shim
from shared_build.delivery.audit import audit_wheel, main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ELF libraries are made on Linux only")

MACHINE = platform.machine()
TAG = f"py3-none-linux_{MACHINE}"
EXPORT = 'extern "C" __attribute__((visibility("default"))) '
#: A good library: torch's C shim, libc, libm and a C++ runtime symbol.
GOOD = """
#include <cmath>
#include <cstdlib>
#include <stdexcept>
extern "C" int aoti_torch_get_dim(void*, long*);
extern "C" __attribute__((weak)) int aoti_torch_get_current_cuda_stream(int, void**);
extern "C" __attribute__((visibility("default"))) double run(void* t) {
  long d = 0;
  if (aoti_torch_get_current_cuda_stream) return 1;
  if (aoti_torch_get_dim(t, &d) != 0) throw std::runtime_error("demo: expected a tensor");
  return std::cbrt(static_cast<double>(d)) + std::atoi(std::getenv("DEMO"));
}
"""


def compile_library(folder, source, *flags):
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "these tests need a C++ compiler, as the packages do"
    code, library = folder / "library.cpp", folder / "_C.so"
    code.write_text(source, encoding="utf-8")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O2",
        "-fvisibility=hidden",
        "-Wl,-s",
        code.name,
        "-o",
        library.name,
        *flags,
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return library.read_bytes()


def make_wheel(folder, library=None, tag=TAG, *, told=None, name="opwright-demo", requires=(), **more):
    files = {"opwright/demo/__init__.py": b"", "opwright/demo/py.typed": b""}
    if library is not None:
        files["opwright/demo/_C.so"] = library
    files |= {path if "/" in path else path.replace("__", "/"): data for path, data in more.items()}
    return demo.pack(
        folder, name, "0.1.0", tag, {**files, **demo.wheel_metadata(name, "0.1.0", told or tag, requires)}
    )


def findings(wheel, **options):
    return {finding.check: finding for finding in audit_wheel(wheel, **options)}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return compile_library(tmp_path_factory.mktemp("good"), GOOD)


def test_a_good_wheel_passes_every_check(good, tmp_path):
    found = findings(make_wheel(tmp_path, good), enforce_manylinux=True)
    assert {check: f.status for check, f in found.items() if f.status != "ok"} == {"isa-objects": "not run"}
    assert "GLIBC_2." in found["manylinux"].detail


@pytest.mark.parametrize(
    ("declaration", "call", "message"),
    [
        (
            "namespace at { void detach(); }",
            "at::detach();",
            "outside the stable shim of torch 2.11: at::detach()",
        ),
        (
            'extern "C" int torch_tag_core();',
            "torch_tag_core();",
            "outside the stable shim of torch 2.11: torch_tag_core",
        ),
        ('extern "C" int aoti_torch_cpu_mm(int);', "aoti_torch_cpu_mm(1);", "torch 2.11: aoti_torch_cpu_mm"),
        (
            'extern "C" int torch_get_current_cuda_blas_handle(void**);',
            "torch_get_current_cuda_blas_handle(nullptr);",
            "torch_get_current_cuda_blas_handle must be weak",
        ),
    ],
    ids=["C++ symbol", "newer than the floor", "generated shim", "CUDA not weak"],
)
def test_undefined_symbols(tmp_path, declaration, call, message):
    source = f"{declaration}\n{EXPORT}void run() {{ {call} }}"
    found = findings(make_wheel(tmp_path, compile_library(tmp_path, source)))["undefined-symbols"]
    assert found.status == "fails"
    assert message in found.detail


def test_the_floor_decides_what_is_known(tmp_path):
    source = f'extern "C" int torch_from_blob(int);\n{EXPORT}int run() {{ return torch_from_blob(1); }}'
    wheel = make_wheel(tmp_path, compile_library(tmp_path, source))
    assert findings(wheel)["undefined-symbols"].status == "ok"
    with pytest.raises(FileNotFoundError, match=r"expected stable_shim_9_9.txt for torch 9.9"):
        audit_wheel(wheel, floor="9.9")


def test_the_aten_flavour_may_use_any_symbol_of_its_torch(tmp_path):
    source = f"namespace at {{ void detach(); }}\n{EXPORT}void run() {{ at::detach(); }}"
    built_for = {"opwright/demo/_built_for.py": b'TORCH = "2.13"\n'}
    library = compile_library(tmp_path, source)
    wheel = make_wheel(tmp_path, library, requires=("torch==2.13.*", "numpy"), **built_for)
    assert findings(wheel, flavour="aten")["undefined-symbols"].status == "ok"


DEVICE = """
__attribute__((section(".nv_fatbin"), used)) static const char code[] = "{}";
extern "C" __attribute__((visibility("default"))) void run() {{}}
"""


@pytest.mark.parametrize(
    ("text", "status"),
    [
        # A directory of a line table begins behind a byte of the table and ends with a zero.
        (r"\001/home/me/csrc\000", "fails"),
        (r"\001/proc/self/fd/100/csrc\000", "ok"),
        # Compressed code looks like anything.
        (r"x/gi/efEwD\201\377", "ok"),
    ],
)
def test_paths_in_device_code(tmp_path, text, status):
    library = compile_library(tmp_path, DEVICE.format(text))
    assert findings(make_wheel(tmp_path, library))["paths"].status == status


@pytest.mark.parametrize(
    "requires", [(), ("torch>=2.11",), ("torch==2.12.*",), ("torch==2.13.*", "torch>=2")]
)
def test_the_aten_flavour_must_require_the_torch_it_was_built_for(good, tmp_path, requires):
    wheel = make_wheel(
        tmp_path, good, requires=requires, **{"opwright/demo/_built_for.py": b'TORCH = "2.13"\n'}
    )
    found = findings(wheel, flavour="aten")["undefined-symbols"]
    assert found.status == "fails"
    assert f"expected the requirement torch==2.13.*, but got {list(requires)}" in found.detail


def test_the_aten_flavour_must_say_which_torch_it_was_built_for(good, tmp_path):
    found = findings(make_wheel(tmp_path, good, requires=("torch==2.13.*",)), flavour="aten")
    assert found["undefined-symbols"].status == "fails"


BAD_LIBRARIES = {
    "rpath": (("-Wl,-rpath,/somewhere/lib",), "", "paths", "RPATH or RUNPATH /somewhere/lib"),
    "executable stack": (("-Wl,-z,execstack",), "", "memory-protection", "executable stack"),
    "build path": (
        (),
        'const char* where() { return "/home/me/src/kernel.cpp"; }',
        "paths",
        "/home/me/src/kernel.cpp",
    ),
    "another library": (
        ("-fopenmp", "-Wl,--no-as-needed", "-lgomp"),
        "",
        "needed-libraries",
        "links to libgomp.so.1",
    ),
}


@pytest.mark.parametrize("kind", BAD_LIBRARIES)
def test_bad_libraries(tmp_path, kind):
    flags, source, check, message = BAD_LIBRARIES[kind]
    library = compile_library(tmp_path, GOOD + (EXPORT + source if source else ""), *flags)
    found = findings(make_wheel(tmp_path, library))[check]
    assert found.status == "fails"
    assert message in found.detail


def test_writable_code(good, tmp_path):
    elf = ELFFile(io.BytesIO(good))
    index = next(i for i, segment in enumerate(elf.iter_segments()) if segment["p_flags"] & P_FLAGS.PF_X)
    # p_flags is the second word of a 64-bit program header.
    place = elf["e_phoff"] + index * elf["e_phentsize"] + 4
    library = good[:place] + bytes([P_FLAGS.PF_R | P_FLAGS.PF_W | P_FLAGS.PF_X]) + good[place + 1 :]
    found = findings(make_wheel(tmp_path, library))["memory-protection"]
    assert found.status == "fails"
    assert "is writable and executable" in found.detail


def test_system_paths_are_not_the_building_machines(tmp_path):
    source = (
        'extern "C" __attribute__((visibility("default"))) const char* f() { return "/proc/self/status"; }'
    )
    assert findings(make_wheel(tmp_path, compile_library(tmp_path, GOOD + source)))["paths"].status == "ok"


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """A library that needs GLIBC_2.36; a stand-in for libc defines the symbol, so any system can link it."""
    folder = tmp_path_factory.mktemp("newer")
    (folder / "versions.map").write_text("GLIBC_2.36 { global: pidfd_open; local: *; };\n")
    (folder / "libc_stub.c").write_text("int pidfd_open(int a, unsigned b) { return a + (int)b; }\n")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-nostdlib", "libc_stub.c", "-Wl,--version-script=versions.map",
         "-Wl,-soname,libc.so.6", "-o", "libstub.so"], cwd=folder, check=True,
    )  # fmt: skip
    source = f'extern "C" int pidfd_open(int, unsigned);\n{EXPORT}int run() {{ return pidfd_open(1, 0); }}'
    return compile_library(folder, source, "-L.", "-lstub")


@pytest.mark.parametrize(("enforce", "status"), [(False, "report"), (True, "fails")])
def test_symbol_versions_above_manylinux(newer, tmp_path, enforce, status):
    found = findings(make_wheel(tmp_path, newer), enforce_manylinux=enforce)["manylinux"]
    assert found.status == status
    assert "newest: " in found.detail
    assert "GLIBC_2.36" in found.detail
    assert "pidfd_open needs GLIBC_2.36" in found.detail


def test_a_manylinux_tag_is_always_held_to_its_word(newer, tmp_path):
    wheel = make_wheel(tmp_path, newer, f"py3-none-manylinux_2_28_{MACHINE}")
    assert findings(wheel)["manylinux"].status == "fails"


OTHER = "aarch64" if MACHINE == "x86_64" else "x86_64"


@pytest.mark.parametrize(
    ("tag", "told", "message"),
    [
        (
            f"cp311-cp311-linux_{MACHINE}",
            None,
            f"expected py3-none-<platform>, but got cp311-cp311-linux_{MACHINE}",
        ),
        (f"py3-abi3-linux_{MACHINE}", None, "expected py3-none-<platform>"),
        ("py3-none-any", None, "expected the platform in the tag"),
        (f"py3-none-linux_{OTHER}", None, f"but got {MACHINE} in opwright/demo/_C.so"),
        (
            TAG,
            "py3-none-any",
            "expected the tags of the file name, but got ['py3-none-any'] in the WHEEL file",
        ),
    ],
)
def test_wrong_tags(good, tmp_path, tag, told, message):
    found = findings(make_wheel(tmp_path, good, tag, told=told))["wheel-tag"]
    assert found.status == "fails"
    assert message in found.detail


def test_a_pure_wheel_carries_no_platform(tmp_path):
    assert findings(make_wheel(tmp_path, None, "py3-none-any"))["wheel-tag"].status == "ok"
    found = findings(make_wheel(tmp_path, None, TAG))["wheel-tag"]
    assert "expected py3-none-any for a wheel without a library" in found.detail


@pytest.mark.parametrize(
    "path",
    ["tests/test_a.py", "opwright/__init__.py", "opwright/demo/kernel.cpp", "opwright/demo/__pycache__/a.pyc",
     "opwright/demo/shared_build/backend.py~", "other/module.py"],
)  # fmt: skip
def test_files_that_do_not_belong(tmp_path, path):
    wheel = make_wheel(tmp_path, None, "py3-none-any")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(path, b"x")
    found = findings(wheel)["wheel-files"]
    assert found.status == "fails"
    assert f"unexpected {path}" in found.detail
    assert f"{path} is not in RECORD" in found.detail


def test_a_changed_file_is_found_by_its_hash(tmp_path):
    wheel = make_wheel(tmp_path, None, "py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    contents["opwright/demo/__init__.py"] = b"import os\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    assert "opwright/demo/__init__.py differs from its hash" in findings(wheel)["wheel-files"].detail


ISA_SOURCES = {
    "clean": ("namespace { inline int f(int x) { return x + 1; } }\nint run(int x) { return f(x); }", None),
    "inline function": ("inline int f(int x) { return x + 1; }\nint run(int x) { return f(x); }", "W f(int)"),
    "template": (
        "template <class T> T f(T x) { return x + 1; }\nint run(int x) { return f(x); }",
        "W int f<int>(int)",
    ),
    "weak object": ("__attribute__((weak)) int table = 3;\nint run() { return table; }", "V table"),
    "weak reference": ('extern "C" __attribute__((weak)) int f();\nint run() { return f ? 1 : 0; }', "w f"),
    "unique static": (
        "template <class T> struct S { static int v; };\ntemplate <class T> int S<T>::v = 1;\n"
        "int run() { return S<int>::v++; }",
        "u S<int>::v",
    ),
    "static initialiser": (
        "int make();\nint value = make();\nint run() { return value; }",
        "section .init_array",
    ),
}


@pytest.mark.parametrize("kind", ISA_SOURCES)
def test_objects_of_one_instruction_set(tmp_path, kind):
    source, message = ISA_SOURCES[kind]
    folder = tmp_path / "build" / "CMakeFiles" / "opwright_demo_avx2.dir"
    folder.mkdir(parents=True)
    (folder / "kernel.cpp").write_text(source + "\n")
    subprocess.run(
        ["g++", "-std=c++20", "-O0", "-fPIC", "-c", "kernel.cpp", "-o", "kernel.cpp.o"],
        cwd=folder,
        check=True,
    )
    wheel = make_wheel(tmp_path, None, "py3-none-any")
    found = findings(wheel, objects=[tmp_path / "build"])["isa-objects"]
    if message is None:
        assert found.status == "ok"
        assert "1 objects" in found.detail
    else:
        assert found.status == "fails"
        readable = subprocess.run(
            ["c++filt"], input=found.detail, capture_output=True, text=True, check=True
        ).stdout
        assert message in readable


def test_a_build_without_such_objects_is_not_a_pass(tmp_path):
    (tmp_path / "build").mkdir()
    wheel = make_wheel(tmp_path, None, "py3-none-any")
    assert findings(wheel, objects=[tmp_path / "build"])["isa-objects"].status == "fails"


def test_command_line(good, tmp_path, capsys):
    assert main([str(make_wheel(tmp_path, good)), "--json", str(tmp_path / "audit.json")]) == 0
    assert "ok       undefined-symbols" in capsys.readouterr().out
    assert main([str(make_wheel(tmp_path, good, "cp311-cp311-linux_x86_64"))]) == 1
    assert main([str(tmp_path / "none.whl")]) == 1
    contract = tmp_path / "contract.toml"
    contract.write_text('flavour = "aten"\n', encoding="utf-8")
    # A stable wheel does not say which torch it was built for, as one of the ATen flavour must.
    assert main([str(make_wheel(tmp_path, good)), "--contract", str(contract)]) == 1
    assert "No such file" in capsys.readouterr().err


# ---- the list of torch's C functions ----

HEADER = """
#ifndef GUARD
#define GUARD
// AOTI_TORCH_EXPORT int torch_in_a_comment();
AOTI_TORCH_EXPORT AOTITorchError
aoti_torch_always(int* out); // with a comment (and brackets)
#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_11_0
AOTI_TORCH_EXPORT int torch_at_the_floor();
#ifdef USE_CUDA
AOTI_TORCH_EXPORT int torch_on_cuda(
    void* stream);
#endif // USE_CUDA
#endif
#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_12_0
AOTI_TORCH_EXPORT int torch_too_new();
#else
AOTI_TORCH_EXPORT int torch_before();
#endif
#endif
"""


def test_which_declarations_exist_at_a_floor():
    assert dict(stable_shim.declared(HEADER, (2, 11))) == {
        "aoti_torch_always": "",
        "torch_at_the_floor": "",
        "torch_on_cuda": "cuda",
        "torch_before": "",
    }
    assert "torch_too_new" in dict(stable_shim.declared(HEADER, (2, 12)))
    assert set(dict(stable_shim.declared(HEADER, (2, 10)))) == {"aoti_torch_always", "torch_before"}


def test_the_committed_list_is_what_the_installed_torch_says():
    pytest.importorskip("torch", reason="torch is not installed")
    assert stable_shim.main(["--floor", "2.11", "--check"]) == 0


def test_the_committed_list_holds_what_the_binding_headers_call():
    names = stable_shim.allowed("2.11")
    for name in (
        "torch_call_dispatcher",
        "torch_library_impl",
        "torch_parallel_for",
        "aoti_torch_get_strides",
    ):
        assert names[name] == ""
    assert names["aoti_torch_get_current_cuda_stream"] == "cuda"
    assert "torch_tag_core" not in names
