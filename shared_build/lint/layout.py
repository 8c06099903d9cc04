"""Rules about layout: what lies at the top, what each package holds, and the link to the shared files."""

from __future__ import annotations

import tomllib
from pathlib import Path

from shared_build.lint.tree import Finding, Tree

TOP_LEVEL = frozenset(
    {"packages", "shared_build", "docs", "noxfile.py", "asv.conf.json", "README.md", "LICENSE", "mkdocs.yml"}
)
PACKAGE_FILES = (
    *("pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md", "CHANGELOG.md", "contract.toml"),
    *("tests/spec.py", "benchmarks/cases.py"),
    *("docs/index.md", "docs/api.md", "docs/assumptions.md", "docs/performance.md", "docs/design.md"),
)
MODULE_FILES = ("__init__.py", "ops.py", "registration.py", "reference.py", "py.typed")
LINK = Path("..") / ".." / "shared_build"


def _check_top(tree: Tree) -> list[Finding]:
    names = {name.split("/", 1)[0] for name in tree.files}
    extra = sorted(name for name in names if not name.startswith(".") and name not in TOP_LEVEL)
    return [
        Finding(name, 1, "layout: nothing else belongs at the top level of the repository") for name in extra
    ]


def _check_package(root: Path, package: str) -> list[Finding]:
    folder = root / "packages" / package
    shown = f"packages/{package}"
    findings = []

    link = folder / "shared_build"
    if not link.is_symlink() or link.readlink() != LINK:
        findings.append(Finding(f"{shown}/shared_build", 1, f"layout: expected a symbolic link to {LINK}"))

    # An archive that holds a link out of itself is refused by pip; the build resolves the one above.
    findings += [
        Finding(str(path.relative_to(root)), 1, "layout: expected a regular file, but got a symbolic link")
        for path in sorted(folder.iterdir())
        if path.is_symlink() and path != link
    ]
    licence, own = root / "LICENSE", folder / "LICENSE"
    if licence.is_file() and own.is_file() and own.read_bytes() != licence.read_bytes():
        findings.append(Finding(f"{shown}/LICENSE", 1, "layout: expected the text of the root's LICENSE"))

    required = [*PACKAGE_FILES, *(f"src/opwright/{package}/{name}" for name in MODULE_FILES)]
    findings += [
        Finding(f"{shown}/{name}", 1, "layout: this file is missing")
        for name in required
        if not (folder / name).is_file()
    ]
    if (folder / "src" / "opwright" / "__init__.py").exists():
        findings.append(
            Finding(
                f"{shown}/src/opwright/__init__.py", 1, "layout: opwright is a namespace package; remove it"
            )
        )

    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    expected = "opwright-" + package.replace("_", "-")
    if project.get("name") != expected:
        message = f"layout: expected the distribution name {expected!r}, but got {project.get('name')!r}"
        findings.append(Finding(f"{shown}/pyproject.toml", 1, message))
    changelog = folder / "CHANGELOG.md"
    version = str(project.get("version"))
    if changelog.is_file() and f"## {version}" not in changelog.read_text(encoding="utf-8"):
        findings.append(Finding(f"{shown}/CHANGELOG.md", 1, f"layout: expected an entry '## {version}'"))
    return findings


def check(tree: Tree) -> list[Finding]:
    """Check the top level (when the whole repository is linted) and each package's files, link and names."""
    findings = [] if tree.only else _check_top(tree)
    for package in tree.packages:
        findings += _check_package(tree.root, package)
    return findings
