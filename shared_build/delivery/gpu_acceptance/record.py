"""What an acceptance found: outcomes, their verdict, the table and the JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: From the best to the worst.
VERDICTS = ("passed", "skipped", "not reached", "failed")
EXIT = {"passed": 0, "failed": 1, "skipped": 2, "not reached": 2}


@dataclass
class Outcome:
    """One line of the record.

    Attributes:
        step: ``install``, ``checks``, ``sanitizer`` or ``timing``.
        name: what was done.
        verdict: one of ``VERDICTS``; ``skipped`` and ``not reached`` say in ``detail`` why.
        detail: a figure or a reason in one line.
        seconds: wall time.
        data: everything else, for the JSON file.
    """

    step: str
    name: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0
    data: dict[str, Any] = field(default_factory=dict)


def overall(outcomes: Iterable[Outcome]) -> str:
    """The worst verdict; without outcomes nothing was reached."""
    return max((o.verdict for o in outcomes), key=VERDICTS.index, default="not reached")


def one_line(text: str, width: int = 110) -> str:
    """The text without line breaks, cut to the width."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as aligned text, one a line, with a headline."""
    rows = [("step", "name", "verdict", "s", "detail")]
    rows += [(o.step, o.name, o.verdict, f"{o.seconds:.1f}", one_line(o.detail)) for o in outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = []
    for step, name, verdict, seconds, detail in rows:
        cells = (
            f"{step:{widths[0]}}",
            f"{name:{widths[1]}}",
            f"{verdict:{widths[2]}}",
            f"{seconds:>{widths[3]}}",
            detail,
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def write(path: Path, facts: dict[str, Any], outcomes: Sequence[Outcome], seconds: float) -> str:
    """Write the JSON file; return the overall verdict.

    Args:
        path: the file.
        facts: the machine and the versions.
        outcomes: all lines.
        seconds: wall time of everything.
    """
    verdict = overall(outcomes)
    text = {
        "schema": 1,
        "verdict": verdict,
        "seconds": round(seconds, 1),
        "facts": facts,
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    return verdict
