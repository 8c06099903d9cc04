"""Rules about text: words, types and flags that must not appear, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from shared_build.lint.tree import CXX_SUFFIXES, Finding, Tree

MAX_LINES = 700

_CXX_NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)


def without_comments(source: str) -> str:
    """Return C++ source with comments and literals blanked out, every line break kept."""
    return _CXX_NOISE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), source)


def _is_cxx(name: str) -> bool:
    return PurePosixPath(name).suffix in CXX_SUFFIXES


def _is_kernel(name: str) -> bool:
    return re.search(r"packages/[^/]+/csrc/(cpu/.*\.(cpp|h)|cuda/.*\.cuh)$", name) is not None


def _holds_flags(name: str) -> bool:
    path = PurePosixPath(name)
    return (path.suffix in {".cmake", ".txt", ".py", ".toml", ".yml", ".yaml", ".json"}) and (
        "tests" not in path.parts
    )


@dataclass(frozen=True)
class TextRule:
    """A pattern that must not be found.

    Attributes:
        name: Short name, printed with the finding.
        pattern: What must not be there.
        applies: Whether a file (by its path) is under the rule.
        why: What to write instead, or the reason.
        code_only: Look at C++ code with comments and literals blanked out.
    """

    name: str
    pattern: re.Pattern[str]
    applies: Callable[[str], bool]
    why: str
    code_only: bool = False

    def search(self, name: str, text: str) -> Iterator[Finding]:
        """Yield a finding for each place in ``text`` that breaks the rule."""
        haystack = without_comments(text) if self.code_only else text
        for match in self.pattern.finditer(haystack):
            line = haystack.count("\n", 0, match.start()) + 1
            yield Finding(name, line, f"{self.name}: {match.group().strip()!r}; {self.why}")


RULES: tuple[TextRule, ...] = (
    TextRule(
        "sized-integers",
        re.compile(r"\b(?:unsigned\s+|signed\s+)?long(?:\s+long)?\b"),
        _is_cxx,
        "its width differs between platforms: write int64_t or uint64_t",
        code_only=True,
    ),
    TextRule(
        "operator-words",
        re.compile(r"(?<![\w#])(?:and|or|not|and_eq|or_eq|not_eq|xor|bitand|bitor)(?!\w)"),
        _is_cxx,
        "write the operator itself: some compilers know these words only with an extra header",
        code_only=True,
    ),
    TextRule(
        "vector-extensions",
        re.compile(r"\b(?:vector_size|__builtin_shufflevector|__builtin_shuffle|__builtin_convertvector)\b"),
        lambda name: _is_cxx(name) and not name.startswith("shared_build/include/opwright/"),
        "compiler vector extensions stay inside the shared SIMD headers",
        code_only=True,
    ),
    TextRule(
        "kernel-includes",
        re.compile(
            r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch/|ATen/|c10/|vector>|string>|memory>|functional>)", re.M
        ),
        _is_kernel,
        "kernel files know neither torch nor STL containers",
    ),
    TextRule(
        "floating-point-flags",
        re.compile(r"-(?:ffast-math|Ofast|march=native|-use_fast_math|funsafe-math-optimizations)\b"),
        _holds_flags,
        "it changes results, or the floating-point state of the process, or ties the library to this machine",
    ),
    TextRule(
        "unfinished",
        re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X]:)"),
        lambda name: True,
        "finish it, or describe the limit in the documents",
    ),
    TextRule(
        "local-path",
        re.compile(r"(?<![\w.:/])/(?:work|home|root|Users|scratch|mnt)/\w+"),
        lambda name: "tests" not in PurePosixPath(name).parts,  # tests make up paths
        "a path of one machine means nothing on another",
    ),
    TextRule(
        "trailing-space",
        re.compile(r"[ \t]+$", re.M),
        lambda name: True,
        "no space at the end of a line",
    ),
    TextRule(
        "merge-marker",
        re.compile(r"^(?:<{7}|>{7}|={7})(?:\s|$)", re.M),
        lambda name: True,
        "an unresolved merge",
    ),
)


def check(tree: Tree) -> list[Finding]:
    """Apply every rule to every text file, and bound the length of sources."""
    findings: list[Finding] = []
    for name in tree.text_files:
        text = tree.text(name)
        for rule in RULES:
            if rule.applies(name):
                findings += rule.search(name, text)
        if text and not text.endswith("\n"):
            findings.append(
                Finding(name, text.count("\n") + 1, "final-newline: the last line has no line break")
            )
        lines = text.count("\n")
        if lines > MAX_LINES and (_is_cxx(name) or name.endswith(".py")):
            findings.append(
                Finding(name, lines, f"length: {lines} lines, expected at most {MAX_LINES}: two files?")
            )
    return findings
