"""Does the proof that a criterion names exist? Answered by reading the test files, without importing them."""

from __future__ import annotations

import ast
import fnmatch
from pathlib import Path
from typing import Any


def matches(pattern: str, node: str) -> bool:
    """Say whether a contract's test id covers a test that ran.

    ``tests/a.py`` covers the file, ``tests/a.py::test_b`` the test with all of its parameters, and the
    parameters in brackets may hold ``*``: ``tests/a.py::test_b[golden-*]``.
    """
    if node == pattern or node.startswith((f"{pattern}[", f"{pattern}::")):
        return True
    # Square brackets are literal in a test id; only * is special.
    return "*" in pattern and fnmatch.fnmatchcase(node, pattern.replace("[", "[[]"))


def _module_file(root: Path, package: Path, module: str | None, level: int) -> Path | None:
    base = root if level == 0 else package
    for _ in range(level - 1):
        base = base.parent
    path = base.joinpath(*(module or "").split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _defines(file: Path, name: str, root: Path, seen: set[Path]) -> ast.AST | bool:
    """Return the definition of a top-level name, True for one that is assigned or imported, or False."""
    if file in seen:
        return False
    seen.add(file)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return True
        if isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name for alias in node.names}
            if name in names:
                return True
            if "*" in names:
                origin = _module_file(root, file.parent, node.module, node.level)
                if origin is not None and _defines(origin, name, root, seen):
                    return True
    return False


def missing_test(root: Path, test: str) -> str:
    """Return why a test id cannot exist in the package at ``root``, or nothing.

    Parameters in brackets are known only when the tests are collected; a pattern that covers no test that
    ran makes its criterion fail there.
    """
    path, *names = test.split("[", 1)[0].split("::")
    file = root / path
    if not file.is_file():
        return f"no file {path}"
    scope: ast.AST | bool = True
    for name in names:
        if "*" in name:
            continue
        if isinstance(scope, ast.ClassDef):
            scope = next((n for n in scope.body if getattr(n, "name", None) == name), False)
        else:
            scope = _defines(file, name, root, set())
        if scope is False:
            return f"no {name} in {path}"
    return ""


def missing_cases(root: Path, data: dict[str, Any]) -> list[str]:
    """Return a problem for each case that a floor or ceiling names and ``benchmarks/cases.py`` does not."""
    wanted = [("performance.floors", entry) for entry in data.get("performance", {}).get("floors", [])]
    wanted += [("memory.ceilings", entry) for entry in data.get("memory", {}).get("ceilings", [])]
    if not wanted:
        return []
    file = root / "benchmarks" / "cases.py"
    if not file.is_file():
        return ["performance: expected benchmarks/cases.py to prove the floors, but got no such file"]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    cases = dict.fromkeys((key, entry["case"]) for key, entry in wanted if entry["case"] not in texts)
    return [f"{key}: expected a case of benchmarks/cases.py, but got {case!r}" for key, case in cases]


def other_rules(root: Path, data: dict[str, Any]) -> list[str]:
    """Return a problem for each ``k`` that is not the one by which the conformance suite judges."""
    claimed = [item for item in data.get("accuracy", []) if "k" in item and "figure" not in item]
    if not claimed:
        return []
    file = root / "shared_build" / "conformance" / "ulp.py"
    applied: dict[str, float] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else ():
        if isinstance(node, ast.Assign) and any(ast.unparse(t) == "RATIO" for t in node.targets):
            applied = ast.literal_eval(node.value)
    return [
        f"accuracy/{item['id']}: expected k = {applied.get(item['direction'])}, by which the suite judges "
        f"the {item['direction']} direction, but got {item['k']}"
        for item in claimed
        if applied.get(item["direction"]) != item["k"]
    ]
