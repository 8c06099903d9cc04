"""Each lint check finds the fault it is there for, and stays silent on clean files."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from shared_build.lint import Tree, docstrings, layout, text_rules, tools
from shared_build.lint.__main__ import main

# Put together here, so that this file does not break the rules it tests.
FAST_MATH = "-ffast" + "-math"
UNFINISHED = "TO" + "DO"
LOCAL = "/" + "home/someone/build"

PYPROJECT = '[project]\nname = "opwright-demo"\nversion = "0.1.0"\n'
OPS = '''
"""Demo."""

__all__ = ["demo"]


def demo(input: int, scale: float) -> float:
    """Scale a number.

    Args:
        input: A number.
        scale: Another one.

    Returns:
        The product.

    Raises:
        ValueError: Never.
    """
    return input * scale
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a git checkout with one package, ``demo``, that passes every check that reads files only."""
    package = tmp_path / "packages" / "demo"
    module = package / "src" / "opwright" / "demo"
    for folder in (module, *(package / name for name in ("tests", "docs", "benchmarks", "csrc/cpu"))):
        folder.mkdir(parents=True)
    (tmp_path / "shared_build").mkdir()
    for name in layout.PACKAGE_FILES:
        (package / name).write_text("# demo\n")
    (package / "pyproject.toml").write_text(PYPROJECT)
    (package / "CHANGELOG.md").write_text("# Changes\n\n## 0.1.0\n\nFirst.\n")
    for name in layout.MODULE_FILES:
        (module / name).write_text("")
    (module / "__init__.py").write_text(OPS.lstrip())
    (package / "shared_build").symlink_to(layout.LINK)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    return tmp_path


def _write(checkout: Path, name: str, text: str) -> None:
    path = checkout / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_clean_checkout_has_no_findings(checkout: Path) -> None:
    tree = Tree(checkout)
    assert tree.packages == ["demo"]
    for check in (layout.check, text_rules.check, docstrings.check):
        assert check(tree) == []


@pytest.mark.parametrize(
    ("rule", "name", "text", "line"),
    [
        ("sized-integers", "packages/demo/csrc/a.h", "int a;\nunsigned long b;\n", 2),
        ("sized-integers", "packages/demo/csrc/a.h", "long long b;\n", 1),
        ("operator-words", "packages/demo/csrc/a.cpp", "bool f(bool a, bool b) {\n return a and b; }\n", 2),
        (
            "vector-extensions",
            "packages/demo/csrc/cpu/a_kernel.cpp",
            "auto v = __builtin_shuffle(a, b);\n",
            1,
        ),
        ("kernel-includes", "packages/demo/csrc/cpu/a_kernel.cpp", "#include <vector>\n", 1),
        ("kernel-includes", "packages/demo/csrc/cuda/a.cuh", '#include "torch/csrc/x.h"\n', 1),
        ("floating-point-flags", "packages/demo/CMakeLists.txt", f"# x\nset(A {FAST_MATH})\n", 2),
        ("unfinished", "packages/demo/docs/index.md", f"# a\n\n{UNFINISHED} later\n", 3),
        ("local-path", "packages/demo/README.md", f"see {LOCAL}\n", 1),
        ("trailing-space", "packages/demo/README.md", "a \nb\n", 1),
        ("merge-marker", "packages/demo/README.md", "a\n" + "<" * 7 + " HEAD\n", 2),
        ("final-newline", "packages/demo/README.md", "a", 1),
        ("length", "packages/demo/tests/test_a.py", "a = 1\n" * (text_rules.MAX_LINES + 1), 701),
    ],
)
def test_text_rule_finds_its_fault(checkout: Path, rule: str, name: str, text: str, line: int) -> None:
    _write(checkout, name, text)
    (found,) = text_rules.check(Tree(checkout))
    assert (found.path, found.line) == (name, line)
    assert found.message.startswith(rule)


@pytest.mark.parametrize(
    "text",
    [
        "// a long way, and not a type\nint64_t a;\n",
        'const char* s = "unsigned long and or";\n',
        "/* long\n long */ int b = 1'000'000;\n",
        'auto r = R"x(long)x"; int longitude = 0; int band = 1;\n',
    ],
)
def test_words_in_comments_and_literals_are_no_findings(checkout: Path, text: str) -> None:
    _write(checkout, "packages/demo/csrc/demo.h", text)
    assert text_rules.check(Tree(checkout)) == []


def test_blanking_keeps_line_numbers() -> None:
    source = "/* a\nb */ int x; // c\n\"d\" 'e' long"
    blank = text_rules.without_comments(source)
    assert blank.count("\n") == source.count("\n")
    assert blank.split() == ["int", "x;", "long"]


def test_layout_wants_the_link(checkout: Path) -> None:
    link = checkout / "packages/demo/shared_build"
    link.unlink()
    link.mkdir()
    (found,) = layout.check(Tree(checkout))
    assert "symbolic link to ../../shared_build" in found.message


def test_layout_refuses_another_link(checkout: Path) -> None:
    (checkout / "LICENSE").write_text("# demo\n")
    licence = checkout / "packages/demo/LICENSE"
    licence.unlink()
    licence.symlink_to("../../LICENSE")
    (found,) = layout.check(Tree(checkout))
    assert str(found).startswith("packages/demo/LICENSE:1: layout: expected a regular file")


def test_layout_wants_one_licence(checkout: Path) -> None:
    (checkout / "LICENSE").write_text("another\n")
    (found,) = layout.check(Tree(checkout))
    assert "the text of the root's LICENSE" in found.message


@pytest.mark.parametrize("name", layout.PACKAGE_FILES[1:])
def test_layout_names_a_missing_file(checkout: Path, name: str) -> None:
    (checkout / "packages/demo" / name).unlink()
    assert [str(found) for found in layout.check(Tree(checkout))] == [
        f"packages/demo/{name}:1: layout: this file is missing"
    ]


def test_layout_refuses_a_stray_file_at_the_top(checkout: Path) -> None:
    _write(checkout, "setup.py", "\n")
    assert [found.path for found in layout.check(Tree(checkout))] == ["setup.py"]


def test_layout_refuses_a_regular_namespace_package(checkout: Path) -> None:
    _write(checkout, "packages/demo/src/opwright/__init__.py", "")
    assert [found.path for found in layout.check(Tree(checkout))] == [
        "packages/demo/src/opwright/__init__.py"
    ]


def test_layout_wants_a_changelog_entry_and_the_right_name(checkout: Path) -> None:
    _write(checkout, "packages/demo/pyproject.toml", '[project]\nname = "demo"\nversion = "0.2.0"\n')
    messages = [found.message for found in layout.check(Tree(checkout))]
    assert messages == [
        "layout: expected the distribution name 'opwright-demo', but got 'demo'",
        "layout: expected an entry '## 0.2.0'",
    ]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("        scale: Another one.\n", "", "parameter 'scale' is not described"),
        (
            "        scale: Another one.\n",
            "        scale: One.\n        bias: None.\n",
            "'bias', which is no",
        ),
        ("    Returns:\n        The product.\n\n", "", "expected a section 'Returns:'"),
        ("    Raises:\n        ValueError: Never.\n", "", "expected a section 'Raises:'"),
        ('__all__ = ["demo"]', '__all__ = ["demo", "ghost"]', "__all__ names 'ghost'"),
    ],
)
def test_docstring_check_finds_what_is_not_said(checkout: Path, old: str, new: str, complaint: str) -> None:
    assert old in OPS
    module = checkout / "packages/demo/src/opwright/demo/__init__.py"
    module.write_text(OPS.lstrip().replace(old, new))
    messages = [found.message for found in docstrings.check(Tree(checkout))]
    assert any(complaint in message for message in messages), messages


def test_docstring_check_follows_reexports(checkout: Path) -> None:
    module = checkout / "packages/demo/src/opwright/demo"
    (module / "ops.py").write_text(OPS.lstrip().replace("        scale: Another one.\n", ""))
    (module / "__init__.py").write_text('from opwright.demo.ops import demo\n\n__all__ = ["demo"]\n')
    (found,) = docstrings.check(Tree(checkout))
    assert found.path == "packages/demo/src/opwright/demo/ops.py"


def test_formatters_report_and_fix(checkout: Path) -> None:
    _write(checkout, ".clang-format", "BasedOnStyle: Google\n")
    _write(checkout, "packages/demo/csrc/a.h", "int   a ;\n")
    _write(checkout, "packages/demo/tests/test_a.py", "a  =  1\n")
    cxx, py = tools.clang_format(Tree(checkout)), tools.ruff_format(Tree(checkout))
    assert any("packages/demo/csrc/a.h" in str(found) for found in cxx)
    assert any("packages/demo/tests/test_a.py" in str(found) for found in py)
    assert tools.clang_format(Tree(checkout, fix=True)) == tools.ruff_format(Tree(checkout, fix=True)) == []
    assert (checkout / "packages/demo/csrc/a.h").read_text() == "int a;\n"
    assert (checkout / "packages/demo/tests/test_a.py").read_text() == "a = 1\n"


def test_type_check_reports_a_wrong_return(checkout: Path) -> None:
    module = checkout / "packages/demo/src/opwright/demo/__init__.py"
    module.write_text(OPS.lstrip().replace("-> float:", "-> str:"))
    findings = tools.types(Tree(checkout, ("demo",)))
    assert any("Incompatible return value" in str(found) for found in findings), findings


def test_workflow_schema_refuses_an_unknown_key(checkout: Path) -> None:
    workflow = """
        on: push
        jobs:
          build:
            runs_on: ubuntu-latest
            steps: [{run: "true"}]
    """
    _write(checkout, ".github/workflows/a.yml", textwrap.dedent(workflow).lstrip())
    assert any(
        "runs_on" in str(found) or "runs-on" in str(found) for found in tools.workflows(Tree(checkout))
    )


def test_unknown_package_is_refused(checkout: Path) -> None:
    with pytest.raises(SystemExit, match="expected one of the packages"):
        _ = Tree(checkout, ("nothing",)).packages


def test_command_line_exit_status(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--root", str(checkout), "--check", "layout", "--check", "text"]
    assert main(arguments) == 0
    _write(checkout, "packages/demo/README.md", f"{UNFINISHED}\n")
    assert main(arguments) == 1
    assert "packages/demo/README.md:1" in capsys.readouterr().out
