"""Reading ``contract.toml``: the acceptance criteria of one operator, as data.

``python -m shared_build.delivery.contract PATH...`` (a contract, a package directory, or a directory of
packages) checks that each contract is well formed, agrees with the package's ``pyproject.toml``, and that
every criterion names a proof that exists. Exit status 0 or 1; each problem is one line that names the file
and the key.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import proofs

#: The order in which a reader meets the sections.
SECTIONS = (
    "accuracy",
    "gradients",
    "determinism",
    "behaviour",
    "framework",
    "models",
    "performance",
    "memory",
    "package",
    "devices",
    "limits",
)
_TYPES = {
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "array": "a list",
    "object": "a table",
    "boolean": "true or false",
}


class ContractError(ValueError):
    """A contract that cannot be used; ``problems`` has one sentence for each fault, each naming its key."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.path = path
        self.problems = problems
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))


@dataclass(frozen=True)
class Criterion:
    """One line of the contract that is proven by tests or by the wheel audit.

    ``at_most`` or ``at_least`` bound the worst value of the figure that the tests recorded; without a
    figure the criterion holds when all of its proof passes.
    """

    id: str
    section: str
    claim: str
    tests: tuple[str, ...] = ()
    audit: tuple[str, ...] = ()
    figure: str | None = None
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""
    note: str = ""

    @property
    def bound(self) -> str:
        """The bound in words, or nothing."""
        if self.at_most is not None:
            return f"at most {self.at_most:g}{' ' + self.unit if self.unit else ''}"
        if self.at_least is not None:
            return f"at least {self.at_least:g}{' ' + self.unit if self.unit else ''}"
        return ""


@dataclass(frozen=True)
class Contract:
    """A contract: ``data`` is the file as it is, ``criteria`` what tests and the wheel audit must prove."""

    path: Path
    data: dict[str, Any]
    criteria: tuple[Criterion, ...] = field(default=())

    @property
    def operator(self) -> str:
        """The module name, such as ``rms_norm``."""
        return str(self.data["operator"])

    @property
    def distribution(self) -> str:
        """The distribution name, such as ``opwright-rms-norm``."""
        return str(self.data["distribution"])

    @property
    def version(self) -> str:
        """The version that the contract speaks of."""
        return str(self.data["version"])

    @property
    def measured(self) -> bool:
        """Whether the contract has speed floors or memory ceilings."""
        return bool(
            self.data.get("performance", {}).get("floors") or self.data.get("memory", {}).get("ceilings")
        )


def _key(path: Iterable[Any], data: Any) -> str:
    """Name a place in the contract, list items by their id too: ``accuracy[2] (forward-bf16).k``."""
    text = ""
    for step in path:
        data = data[step]
        if isinstance(step, int):
            text += f"[{step}]"
            if isinstance(data, dict) and isinstance(data.get("id"), str):
                text += f" ({data['id']})"
        else:
            text += f".{step}" if text else str(step)
    return text or "the contract"


def _got(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _explain(error: Any, data: Any) -> str:
    """Turn one violation into ``<key>: expected <what>, but got <actual>``."""
    where, rule, value, got = (
        _key(error.absolute_path, data),
        error.validator,
        error.validator_value,
        error.instance,
    )
    if rule == "required":
        return f"{where}: expected the key {error.message.split(chr(39))[1]!r}, but got none"
    if rule == "additionalProperties":
        known = list(error.schema["properties"])
        unknown = [key for key in got if key not in known]
        hints = [f"{key!r}" + _suggest(key, known) for key in unknown]
        return f"{where}: expected no other keys, but got {', '.join(hints)}"
    if rule == "dependentRequired":
        return f"{where}: expected {error.message}"
    if "x-expected" in error.schema and rule in ("pattern", "oneOf", "anyOf"):
        return f"{where}: expected {error.schema['x-expected']}, but got {_got(got)}"
    expected = {
        "type": lambda: " or ".join(_TYPES.get(t, t) for t in ([value] if isinstance(value, str) else value)),
        "enum": lambda: "one of " + ", ".join(map(repr, value)),
        "const": lambda: repr(value),
        "minItems": lambda: f"at least {value} item(s)",
        "minLength": lambda: "text",
        "uniqueItems": lambda: "no item twice",
        "minimum": lambda: f"at least {value}",
        "exclusiveMinimum": lambda: f"more than {value}",
    }.get(rule, lambda: f"{rule} {value}")
    return f"{where}: expected {expected()}, but got {_got(got)}"


def _suggest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def schema_problems(data: Any) -> list[str]:
    """Return one sentence for each violation of the schema, in the order of the contract's keys."""
    from jsonschema import Draft202012Validator

    from .schema import SCHEMA

    errors = sorted(
        Draft202012Validator(SCHEMA).iter_errors(data), key=lambda e: [str(s) for s in e.absolute_path]
    )
    return list(dict.fromkeys(_explain(error, data) for error in errors))


def _criteria(data: dict[str, Any]) -> Iterator[Criterion]:
    for section in SECTIONS:
        if section in ("performance", "memory"):
            continue
        for item in data.get(section, []):
            if not item.get("tests") and not item.get("audit"):
                continue  # a limit or a device that promises nothing
            figure, at_most, at_least = item.get("figure"), item.get("at_most"), item.get("at_least")
            unit = item.get("unit", "")
            if "k" in item and figure:
                at_most = item["k"]
            elif "k" in item:
                # The suite applies the rule with its k, which package_problems compares with this one.
                figure, at_most = "of_limit", 1.0
                unit = unit or f"of the allowed error (k = {item['k']:g})"
            elif "max_ulp" in item:
                figure, at_most, unit = figure or "max_ulp", item["max_ulp"], unit or "ulp"
            yield Criterion(
                id=f"{section}/{item['id']}",
                section=section,
                claim=item["claim"],
                tests=tuple(item.get("tests", ())),
                audit=tuple(item.get("audit", ())),
                figure=figure,
                at_most=at_most,
                at_least=at_least,
                unit=unit,
                note=item.get("note", ""),
            )


def load_contract(path: Path, *, validate: bool = True) -> Contract:
    """Read a contract.

    Args:
        path: the file, or the directory that holds ``contract.toml``.
        validate: check the schema first (needs jsonschema); a contract inside a bundle was checked when it
            was made.

    Raises:
        ContractError: the file is missing, is not TOML, or violates the schema; every problem is named.
    """
    if path.is_dir():
        path = path / "contract.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ContractError(path, ["expected a contract, but got no such file"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ContractError(path, [f"expected TOML, but got: {error}"]) from None
    problems = schema_problems(data) if validate else []
    if problems:
        raise ContractError(path, problems)
    criteria = tuple(_criteria(data))
    twice = sorted({c.id for c in criteria if sum(c.id == other.id for other in criteria) > 1})
    if twice:
        raise ContractError(path, [f"{name}: expected an id of its own, but got it twice" for name in twice])
    return Contract(path=path, data=data, criteria=criteria)


def package_problems(contract: Contract) -> list[str]:
    """Compare a contract with the package around it: name, version, torch floor, and the proofs it names."""
    root = contract.path.parent
    problems = []
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    floor = contract.data["torch"]["floor"]
    for key, ours, theirs in (
        ("distribution", contract.distribution, project["name"]),
        ("version", contract.version, project["version"]),
        ("distribution", contract.distribution, "opwright-" + contract.operator.replace("_", "-")),
    ):
        if ours != theirs:
            problems.append(f"{key}: expected {theirs!r} as the package says, but got {ours!r}")
    if contract.data["flavour"] == "stable" and f"torch>={floor}" not in project["dependencies"]:
        theirs = [text for text in project["dependencies"] if text.startswith("torch")]
        problems.append(f"torch.floor: expected the floor of pyproject.toml ({theirs}), but got {floor!r}")
    for criterion in contract.criteria:
        for test in criterion.tests:
            missing = proofs.missing_test(root, test)
            if missing:
                problems.append(f"{criterion.id}: expected a proof that exists, but got {test!r}: {missing}")
    problems += proofs.missing_cases(root, contract.data)
    problems += proofs.other_rules(root, contract.data)
    return problems


def _find(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir() and not (path / "contract.toml").is_file():
            found = sorted(path.glob("*/contract.toml")) or sorted(path.glob("packages/*/contract.toml"))
            yield from found or [path / "contract.toml"]
        else:
            yield path


def main(argv: Iterable[str] | None = None) -> int:
    """Check contracts from the command line; exit status 0 when all are well formed, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m shared_build.delivery.contract",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", type=Path, nargs="+")
    options = parser.parse_args(None if argv is None else list(argv))
    status = 0
    for path in _find(options.paths):
        try:
            contract = load_contract(path)
            problems = package_problems(contract)
        except ContractError as error:
            path, problems = error.path, error.problems
        if problems:
            status = 1
            print("\n".join(f"{path}: {problem}" for problem in problems), file=sys.stderr)
        else:
            floors = len(contract.data.get("performance", {}).get("floors", []))
            floors += len(contract.data.get("memory", {}).get("ceilings", []))
            print(
                f"{path}: well formed: {len(contract.criteria)} criteria proven by tests and audit, "
                f"{floors} floors and ceilings by measurement"
            )
    return status


if __name__ == "__main__":
    sys.exit(main())
