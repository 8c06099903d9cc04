"""What a contract may ask for, and what it may not."""

from __future__ import annotations

import copy
from pathlib import Path

import jsonschema
import pytest

from shared_build.benchmarking.cases import load_cases, operator_root, parse_shape, shape_name
from shared_build.benchmarking.floors import SCHEMA, parse

FLOOR = {
    "case": "forward",
    "shapes": ["4x32", "16x64"],
    "dtypes": ["fp32"],
    "threads": [1, "all"],
    "metric": "vs_eager",
    "ratio": 1.5,
}
MEMORY = {"case": "forward", "shapes": ["4x32"], "dtypes": ["fp32"], "ratio": 2.5}


def contract(**changes: object) -> dict[str, object]:
    entry = {**copy.deepcopy(FLOOR), **changes}
    return {"performance": {"floors": [{k: v for k, v in entry.items() if v is not None}]}}


def valid(document: dict[str, object]) -> bool:
    schema = {"type": "object", "properties": SCHEMA}
    return jsonschema.Draft202012Validator(schema).is_valid(document)


def test_a_floor_asks_for_one_verdict_a_cell(package: Path) -> None:
    floors, _ = parse(contract(), load_cases(package))
    assert [name for name, _ in floors[0].groups()] == [
        "forward/4x32/fp32/threads=1/vs_eager",
        "forward/4x32/fp32/threads=all/vs_eager",
        "forward/16x64/fp32/threads=1/vs_eager",
        "forward/16x64/fp32/threads=all/vs_eager",
    ]


def test_a_geometric_mean_asks_for_one_verdict(package: Path) -> None:
    floors, _ = parse(contract(aggregate="geomean"), load_cases(package))
    [(name, keys)] = floors[0].groups()
    assert name == "forward/4x32+16x64/fp32/threads=1+all/vs_eager/geomean"
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"case": "sideways"}, "expected case in forward, forward_backward, in_place, but got 'sideways'"),
        ({"shapes": ["3x3"]}, "expected shape in 4x32, 16x64, but got '3x3'"),
        ({"dtypes": ["fp16"]}, "expected dtype in fp32, bf16, but got 'fp16'"),
        ({"threads": [0]}, "expected threads of at least 1 or 'all', but got 0"),
        ({"threads": ["many"]}, "expected threads of at least 1 or 'all', but got 'many'"),
        (
            {"metric": "vs_luck"},
            "expected metric in vs_eager, vs_compile, vs_rival, of_ceiling, but got 'vs_luck'",
        ),
        (
            {"metric": "vs_compile"},
            "expected contender in ours, eager, slow, wrong, absent, but got 'compile'",
        ),
        ({"metric": "vs_rival"}, "expected a rival exactly with metric vs_rival"),
        ({"rival": "slow"}, "expected a rival exactly with metric vs_rival"),
        ({"aggregate": "median"}, "expected aggregate in each, geomean, but got 'median'"),
        ({"ratio": 0}, "expected a ratio above 0, but got 0"),
        ({"ratio": True}, "expected a ratio above 0, but got True"),
        ({"ratio": None}, "expected ratio, but got"),
        ({"colour": "red"}, "expected a key in .*, but got 'colour'"),
    ],
)
def test_what_no_case_has_is_refused(package: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(contract(**changes), load_cases(package))


def test_the_same_criterion_twice_is_refused(package: Path) -> None:
    document = {"performance": {"floors": [FLOOR, FLOOR]}}
    with pytest.raises(ValueError, match="expected every criterion once"):
        parse(document, load_cases(package))


def test_memory_ceilings_are_read(package: Path) -> None:
    _, ceilings = parse({"memory": {"ceilings": [MEMORY]}}, load_cases(package))
    assert ceilings[0].shapes == ("4x32",)


@pytest.mark.parametrize(
    "changes",
    [
        {"ratio": 0},
        {"ratio": None},
        {"colour": "red"},
        {"metric": "vs_luck"},
        {"metric": "vs_rival"},
        {"rival": "slow"},
        {"threads": [0]},
        {"shapes": []},
        {"shapes": ["4 by 32"]},
        {"dtypes": ["int8"]},
    ],
)
def test_the_schema_refuses_it_too(changes: dict[str, object]) -> None:
    assert not valid(contract(**changes))


def test_the_schema_takes_what_is_right() -> None:
    assert valid(contract())
    assert valid(contract(metric="vs_rival", rival="slow", aggregate="geomean", goal=2, note="why"))
    assert valid({"memory": {"ceilings": [MEMORY]}})


@pytest.mark.parametrize("shape", [(1,), (64, 4096), (2, 3, 5)])
def test_shapes_are_read_as_they_are_written(shape: tuple[int, ...]) -> None:
    assert parse_shape(shape_name(shape)) == shape


def test_a_shape_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a shape like 64x4096, but got '64 x'"):
        parse_shape("64 x")


def test_the_cases_are_found_in_a_package_and_in_a_bundle(
    package: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert operator_root("standin") == package
    above = tmp_path_factory.mktemp("above")
    (above / "packages").mkdir()
    (above / "packages" / "standin").symlink_to(package)
    assert operator_root("standin", above) == above / "packages" / "standin"
    with pytest.raises(FileNotFoundError, match=r"other: expected benchmarks/cases\.py"):
        operator_root("other", above)
