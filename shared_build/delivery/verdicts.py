"""From what ran to one verdict for each criterion: ``holds``, ``fails`` or ``undecided``.

A criterion that tests prove holds when every test it names passed and its figure, if it has one, keeps its
bound. It fails when one of them failed, when none ran, or when the figure breaks the bound. It is undecided
when all of its tests were skipped or none of them recorded the figure: nothing was shown either way. A
speed floor gets its verdict where it is measured; see ``shared_build.benchmarking``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from .contract import Contract, Criterion
from .proofs import matches
from .recorder import TestResult

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
#: The exit status of milestone and accept.
EXIT = {HOLDS: 0, FAILS: 1, UNDECIDED: 2}


@dataclass
class Judged:
    """The verdict on one criterion. ``figure`` is None where the proof is a plain pass."""

    id: str
    section: str
    claim: str
    verdict: str
    bound: str = ""
    figure: float | None = None
    unit: str = ""
    reason: str = ""
    note: str = ""
    proof: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    measured: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, which knows no NaN or infinity: the reason tells of such a figure."""
        finite = self.figure is not None and math.isfinite(self.figure)
        return {**asdict(self), "figure": self.figure if finite else None}


def overall(verdicts: Iterable[str]) -> str:
    """One verdict for many: fails before undecided before holds."""
    seen = set(verdicts)
    return FAILS if FAILS in seen else UNDECIDED if UNDECIDED in seen else HOLDS


def _fill(criterion: Criterion) -> Judged:
    return Judged(
        id=criterion.id,
        section=criterion.section,
        claim=criterion.claim,
        verdict=HOLDS,
        bound=criterion.bound,
        unit=criterion.unit,
        note=criterion.note,
        proof=[*criterion.tests, *(f"wheel audit: {check}" for check in criterion.audit)],
    )


def _judge_tests(criterion: Criterion, results: list[TestResult], judged: Judged) -> None:
    chosen: dict[str, TestResult] = {}
    for pattern in criterion.tests:
        found = {result.node: result for result in results if matches(pattern, result.node)}
        if not found:
            judged.verdict, judged.reason = FAILS, f"no test that ran matches {pattern}"
            return
        chosen |= found
    judged.counts = dict(Counter(result.outcome for result in chosen.values()))
    judged.seconds = round(sum(result.seconds for result in chosen.values()), 2)
    broken = [result for result in chosen.values() if result.outcome in ("failed", "crashed")]
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        judged.verdict, judged.reason = FAILS, f"{broken[0].node}: {broken[0].reason}{more}"
    elif all(result.outcome == "skipped" for result in chosen.values()):
        judged.verdict, judged.reason = UNDECIDED, f"skipped: {next(iter(chosen.values())).reason}"
    if criterion.figure is not None:
        values = [v for result in chosen.values() for v in result.properties.get(criterion.figure, [])]
        _judge_figure(criterion, values, judged)


def _judge_figure(criterion: Criterion, values: list[float], judged: Judged) -> None:
    if not values:
        if judged.verdict == HOLDS:
            judged.verdict, judged.reason = UNDECIDED, f"no test recorded {criterion.figure}"
        return
    # NaN is never within a bound, and must not hide behind max().
    low = criterion.at_least is not None
    worst = next((v for v in values if math.isnan(v)), min(values) if low else max(values))
    judged.figure = worst
    kept = (
        worst >= criterion.at_least if criterion.at_least is not None else worst <= (criterion.at_most or 0.0)
    )
    if not kept and judged.verdict != FAILS:
        judged.verdict, judged.reason = (
            FAILS,
            f"{criterion.figure} is {worst:.4g}, {judged.bound} was promised",
        )


def _judge_audit(criterion: Criterion, findings: dict[str, dict[str, str]], judged: Judged) -> None:
    for check in criterion.audit:
        finding = findings.get(check, {"status": "not run", "detail": "the audit did not run"})
        if finding["status"] == "fails":
            judged.verdict, judged.reason = FAILS, f"{check}: {finding['detail']}"
        elif finding["status"] != "ok" and judged.verdict == HOLDS:
            judged.verdict, judged.reason = UNDECIDED, f"{check}: {finding['detail']}"


def judge(
    contract: Contract, results: list[TestResult], findings: list[dict[str, str]], partial: str = ""
) -> list[Judged]:
    """Judge every criterion that tests and the wheel audit prove.

    Args:
        contract: the contract.
        results: what became of each test.
        findings: the wheel audit's findings, as dicts.
        partial: why the wheel was not audited, if it was not.
    """
    by_check = {finding["check"]: finding for finding in findings}
    if partial:
        by_check = {}
    judged = []
    for criterion in contract.criteria:
        one = _fill(criterion)
        if criterion.tests:
            _judge_tests(criterion, results, one)
        if criterion.audit:
            _judge_audit(criterion, by_check, one)
        judged.append(one)
    return judged


def judge_suite(contract: Contract, results: list[TestResult], died: str = "") -> list[Judged]:
    """Judge what every contract promises unsaid: all tests pass, and each skip has a listed reason."""
    broken = [result for result in results if result.outcome in ("failed", "crashed")]
    reasons = Counter(result.reason for result in results if result.outcome == "skipped")
    allowed = [re.compile(pattern) for pattern in contract.data["tests"]["skips"]]
    unlisted = [reason for reason in reasons if not any(pattern.search(reason) for pattern in allowed)]
    passed = Judged(
        "suite/all-tests-pass", "suite", "Every test of the package passes.", HOLDS, proof=["tests"]
    )
    passed.counts = dict(Counter(result.outcome for result in results))
    passed.seconds = round(sum(result.seconds for result in results), 2)
    if broken:
        passed.verdict = FAILS
        passed.reason = f"{len(broken)} of {len(results)}, first {broken[0].node}: {broken[0].reason}"
    elif died or not results:
        passed.verdict, passed.reason = FAILS, died or "no test ran"
    skips = Judged(
        "suite/skips-are-listed", "suite", "Every skipped test has a reason that the contract lists.", HOLDS
    )
    skips.proof, skips.counts = ["tests"], {"skipped": sum(reasons.values())}
    if unlisted:
        skips.verdict, skips.reason = FAILS, f"not listed: {unlisted[0]!r}"
    return [passed, skips]


def judge_measured(verdicts: list[dict[str, Any]]) -> list[Judged]:
    """Take over the verdicts on speed floors and memory ceilings from the benchmarks' report."""
    return [_measured(entry) for entry in verdicts]


def _measured(entry: dict[str, Any]) -> Judged:
    memory = entry.get("ceiling") is not None
    limit = entry["ceiling"] if memory else entry["floor"]
    versus = {
        "vs_eager": "eager PyTorch",
        "vs_compile": "torch.compile",
        "of_ceiling": "the best copy measured in the same run",
        "peak_memory": "what it returns",
    }.get(entry["metric"], entry.get("contender") or "the rival")
    threads = entry.get("threads")
    what = entry.get("title") or entry["case"]
    where = ", ".join(str(part) for part in (entry.get("shape"), entry.get("dtype")) if part)
    if threads is not None:
        where += f", {threads} thread{'' if threads == 1 else 's'}"
    reason = entry.get("reason", "")
    if entry["verdict"] == FAILS and entry.get("ratio") is not None:
        told = (
            f"{entry['ratio']:.3g} was measured, {'at most' if memory else 'at least'} {limit:g} was promised"
        )
        reason = f"{told} ({reason})" if reason else told
    return Judged(
        id=f"{'memory' if memory else 'performance'}/{entry['id']}",
        section="memory" if memory else "performance",
        claim=f"{what} ({where}) against {versus}" if where else f"{what} against {versus}",
        verdict=entry["verdict"],
        bound=f"{'at most' if memory else 'at least'} {limit:g}",
        figure=entry.get("ratio"),
        unit="x",
        reason=reason,
        note=entry.get("note", ""),
        proof=[f"benchmark case {entry['case']}"],
        measured=entry,
    )
