"""Run every proof of a contract against the installed wheel; the same program for milestone and acceptance.

It runs inside the clean environment, in a copy of the suite (``tests/``, ``benchmarks/``,
``shared_build/``) away from the repository, and writes into ``--out``: ``results.json`` (one verdict for
each criterion, machine, versions), ``junit.xml``, ``tests.jsonl``, ``pytest.log``, ``audit.json``,
``performance.json``; for an acceptance also ``acceptance.html``. Exit status 0 when everything was judged,
whatever the verdict; 3 when the checks could not run.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import measuring, recorder, verdicts
from .bundle_accept import MARK
from .contract import Contract, load_contract

SCHEMA_VERSION = 1


class CheckError(RuntimeError):
    """The checks cannot run at all; the text says why."""


def progress(phase: str, done: int = 0, total: int = 0, what: str = "") -> None:
    """Tell the process that started this one how far it is."""
    print(MARK + json.dumps({"phase": phase, "done": done, "total": total, "what": what}), flush=True)


def installed(contract: Contract) -> dict[str, Any]:
    """Import the operator and make sure that it is the installed wheel of the contract's version.

    Raises:
        CheckError: it cannot be imported, is another version, or comes from somewhere else than this
            environment.
    """
    try:
        version = importlib.metadata.version(contract.distribution)
        module = importlib.import_module(f"opwright.{contract.operator}")
    except Exception as error:
        raise CheckError(
            f"{contract.distribution} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if version != contract.version:
        raise CheckError(f"expected {contract.distribution} {contract.version}, but got {version} installed")
    origin = Path(module.__file__ or "").resolve()
    if not origin.is_relative_to(Path(sys.prefix).resolve()):
        raise CheckError(
            f"expected opwright.{contract.operator} from the environment, but got it from {origin.parent}"
        )
    level = getattr(module, "kernel_level", None)
    return {"version": version, "kernel_level": level() if callable(level) else None, "folder": origin.parent}


def run_tests(contract: Contract, out: Path) -> tuple[list[recorder.TestResult], str]:
    """Run the suite; return what became of each test, and why pytest itself ended badly, if it did."""
    record, log = out / "tests.jsonl", out / "pytest.log"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "shared_build.delivery.recorder",
        "-p",
        "no:cacheprovider",
        f"--junitxml={out / 'junit.xml'}",
        "-o",
        "junit_family=xunit1",  # the one that holds the figures that tests record
        *contract.data["tests"].get("arguments", []),
        "tests",
    ]
    environment = {**os.environ, recorder.VARIABLE: str(record)}
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
        _follow(process, record)
    results = recorder.read_record(record)
    if process.returncode in (0, 1):
        return results, ""
    if process.returncode < 0:
        return results, f"pytest was ended by signal {-process.returncode}"
    last = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()][
        -1:
    ]
    return results, f"pytest ended with status {process.returncode}: {''.join(last)}"


def _follow(process: subprocess.Popen[bytes], record: Path) -> None:
    seen = done = total = 0
    ended = False
    while not ended:
        ended = process.poll() is not None
        for offset, event in recorder.events(record, seen):
            seen = offset
            if event["event"] == "collected":
                total = event["count"]
            elif event["event"] == "result":
                done += 1
                progress("tests", done, total, event["node"])
        if not ended:
            time.sleep(0.2)


def run_audit(contract: Contract, options: argparse.Namespace) -> list[dict[str, str]]:
    """Audit the wheel; what only a build can show is taken from the delivered audit, and says so."""
    from .audit import audit_wheel

    findings = [
        asdict(finding)
        for finding in audit_wheel(
            options.wheel,
            floor=contract.data["torch"]["floor"],
            flavour=contract.data["flavour"],
            enforce_manylinux=options.enforce_manylinux,
            objects=options.objects,
        )
    ]
    if options.delivered_audit is not None:
        delivered = {f["check"]: f for f in json.loads(options.delivered_audit.read_text(encoding="utf-8"))}
        for finding in findings:
            before = delivered.get(finding["check"], {"status": "not run", "detail": ""})
            if finding["status"] == "not run" and before["status"] != "not run":
                finding.update(before, detail=f"as found when the wheel was built: {before['detail']}")
    (options.out / "audit.json").write_text(json.dumps(findings, indent=2), encoding="utf-8")
    return findings


def _facts(contract: Contract, module: dict[str, Any]) -> dict[str, Any]:
    from shared_build.benchmarking.machine import describe_machine

    names = {dist.metadata["Name"].lower(): dist.version for dist in importlib.metadata.distributions()}
    versions = {"python": platform.python_version(), contract.distribution: module["version"]}
    versions |= {name: names[name] for name in ("torch", "numpy", "transformers", "pytest") if name in names}
    compiler = shutil.which(os.environ.get("CXX", "c++").split()[0])
    if compiler:
        told = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=False
        ).stdout.splitlines()
        versions["C++ compiler (for torch.compile)"] = told[0] if told else "unknown"
    return {
        "machine": describe_machine(),
        "versions": versions,
        "kernel_level": module["kernel_level"],
        "load": [round(value, 2) for value in os.getloadavg()],
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def check(contract: Contract, options: argparse.Namespace) -> dict[str, Any]:
    """Run all proofs and return the results as they are written to ``results.json``."""
    begun = time.monotonic()
    progress("import")
    facts = _facts(contract, installed(contract))
    findings: list[dict[str, str]] = []
    partial = ""
    if options.tests_only:
        partial = "--tests-only leaves the wheel audit, speed and memory out"
    elif options.skip_performance:
        partial = "--skip-performance leaves speed and memory out"
    if options.wheel is not None and not options.tests_only:
        progress("wheel audit")
        findings = run_audit(contract, options)
    progress("tests")
    results, died = run_tests(contract, options.out)
    judged = verdicts.judge_suite(contract, results, died)
    judged += verdicts.judge(contract, results, findings)
    report: dict[str, Any] = {}
    if contract.measured:
        if partial:
            judged += verdicts.judge_measured(
                measuring.unmeasured(contract, verdicts.UNDECIDED, f"not measured: {partial}")
            )
        else:
            entries, report = measuring.measure(contract, options.out, progress)
            judged += verdicts.judge_measured(entries)
    skips: dict[str, int] = {}
    for result in results:
        if result.outcome == "skipped":
            skips[result.reason] = skips.get(result.reason, 0) + 1
    verdict = verdicts.overall(one.verdict for one in judged)
    if partial and verdict == verdicts.HOLDS:
        verdict = verdicts.UNDECIDED
    return {
        "schema": SCHEMA_VERSION,
        "verdict": verdict,
        "partial": partial,
        "contract": contract.data,
        "criteria": [one.to_dict() for one in judged],
        "skips": [{"reason": reason, "count": count} for reason, count in sorted(skips.items())],
        "slowest": [
            {"node": result.node, "seconds": round(result.seconds, 1)}
            for result in sorted(results, key=lambda result: -result.seconds)[:10]
        ],
        "audit": findings,
        "performance": report,
        **facts,
        "seconds": round(time.monotonic() - begun),
    }


def main(argv: Iterable[str] | None = None) -> int:
    """Run the checks from the command line."""
    parser = argparse.ArgumentParser(prog="python -m shared_build.delivery.check", description=__doc__)
    parser.add_argument("--contract", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="existing directory for the results")
    parser.add_argument("--wheel", type=Path, help="the wheel to audit")
    parser.add_argument("--objects", type=Path, action="append", help="build directory with the object files")
    parser.add_argument("--enforce-manylinux", action="store_true")
    parser.add_argument("--delivered-audit", type=Path, help="audit.json of the delivery")
    parser.add_argument("--delivered", type=Path, help="report.json of the delivery, to compare with")
    parser.add_argument("--skip-performance", action="store_true")
    parser.add_argument("--tests-only", action="store_true")
    options = parser.parse_args(None if argv is None else list(argv))
    try:
        results = check(load_contract(options.contract, validate=False), options)
    except CheckError as error:
        print(f"check: {error}", file=sys.stderr)
        return 3
    (options.out / "results.json").write_text(json.dumps(results, indent=2), encoding="utf-8")
    if options.delivered is not None:
        from .report import render

        delivered = json.loads(options.delivered.read_text(encoding="utf-8"))
        (options.out / "acceptance.html").write_text(render(results, delivered=delivered), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
