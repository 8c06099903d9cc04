"""Docstrings of the public functions and classes, compared with their signatures without importing them.

Ruff sees that a docstring is there and well formed. This check sees that it says what a caller needs: every
parameter described, what is returned, and which errors are raised.
"""

from __future__ import annotations

import logging
from pathlib import Path

import griffe

from shared_build.lint.tree import Finding, Tree

_KINDS = griffe.DocstringSectionKind


def _documented(thing: griffe.Function | griffe.Class) -> dict[griffe.DocstringSectionKind, set[str]]:
    """Return the sections of a docstring, with the parameter names of the section on parameters."""
    if thing.docstring is None:
        return {}
    sections: dict[griffe.DocstringSectionKind, set[str]] = {}
    for section in thing.docstring.parse("google", warnings=False):
        names = {item.name for item in section.value} if section.kind is _KINDS.parameters else set()
        sections.setdefault(section.kind, set()).update(names)
    return sections


def _check_callable(thing: griffe.Function | griffe.Class, shown: str, raises: bool) -> list[Finding]:
    line = thing.lineno or 1
    label = f"docstring of {thing.path}"
    if thing.docstring is None:
        return [Finding(shown, line, f"{label}: expected one, but got none")]
    sections = _documented(thing)
    own = [p.name for p in thing.parameters if p.name not in ("self", "cls")]
    described = sections.get(_KINDS.parameters, set())
    findings = [
        Finding(shown, line, f"{label}: parameter {name!r} is not described under 'Args:'")
        for name in own
        if name not in described
    ]
    findings += [
        Finding(shown, line, f"{label}: 'Args:' describes {name!r}, which is no parameter")
        for name in sorted(described)
        if name.lstrip("*") not in {other.lstrip("*") for other in own}
    ]
    if isinstance(thing, griffe.Function) and str(thing.returns) != "None" and _KINDS.returns not in sections:
        findings.append(Finding(shown, line, f"{label}: expected a section 'Returns:'"))
    if raises and own and _KINDS.raises not in sections:
        findings.append(Finding(shown, line, f"{label}: expected a section 'Raises:'"))
    return findings


def _check_module(module: griffe.Module, root: Path, raises: bool) -> list[Finding]:
    findings = []
    for name in module.exports or []:
        member = module.members.get(str(name))
        if member is None:
            findings.append(Finding(module.path, 1, f"__all__ names {name!r}, which is not there"))
            continue
        target = member.final_target if isinstance(member, griffe.Alias) else member
        if not isinstance(target, (griffe.Function, griffe.Class)):
            continue
        shown = Path(str(target.filepath)).relative_to(root).as_posix()
        findings += _check_callable(target, shown, raises and isinstance(target, griffe.Function))
    return findings


def check(tree: Tree) -> list[Finding]:
    """Check every name in ``__all__`` of each package and of its ``drop_in`` and ``reference`` modules."""
    logging.getLogger("griffe").setLevel(logging.ERROR)
    findings: list[Finding] = []
    for package in tree.packages:
        source = tree.root / "packages" / package / "src"
        try:
            module = griffe.load(f"opwright.{package}", search_paths=[source], resolve_aliases=True)
        except (ImportError, KeyError, griffe.GriffeError) as error:
            message = f"docstrings: opwright.{package} cannot be read: {error}"
            findings.append(Finding(f"packages/{package}/src", 1, message))
            continue
        if not isinstance(module, griffe.Module):
            findings.append(Finding(f"packages/{package}/src", 1, f"opwright.{package} is no module"))
            continue
        findings += _check_module(module, tree.root, raises=True)
        for name in ("drop_in", "reference"):
            inner = module.members.get(name)
            if isinstance(inner, griffe.Module):
                findings += _check_module(inner, tree.root, raises=False)
    return findings
