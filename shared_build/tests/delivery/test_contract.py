"""Contracts: what is refused, in which words; and that a proof has to exist."""

from __future__ import annotations

import tomllib

import demo
import pytest

from shared_build.delivery.contract import (
    ContractError,
    load_contract,
    main,
    package_problems,
    schema_problems,
)
from shared_build.delivery.proofs import matches, missing_test


def changed(edit):
    data = tomllib.loads(demo.CONTRACT)
    edit(data)
    return schema_problems(data)


def test_the_demo_contract_is_well_formed(tmp_path, capsys):
    package = demo.make_package(tmp_path)
    assert main([str(package)]) == 0
    assert "well formed: 5 criteria proven by tests and audit, 1 floors" in capsys.readouterr().out
    assert main([str(tmp_path / "packages")]) == 0


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.pop("version"), "the contract: expected the key 'version', but got none"),
        (lambda d: d.update(version="1"), "version: expected a version such as 0.1.0, but got '1'"),
        (
            lambda d: d.update(flavor="stable"),
            "the contract: expected no other keys, but got 'flavor' (did you mean",
        ),
        (lambda d: d.update(flavour="fast"), "flavour: expected one of 'stable', 'aten', but got 'fast'"),
        (
            lambda d: d.update(dtypes=["float32"]),
            "dtypes[0]: expected one of 'fp32', 'fp64', 'bf16', 'fp16', but got",
        ),
        (lambda d: d.update(dtypes=[]), "dtypes: expected at least 1 item(s), but got []"),
        (lambda d: d.update(summary=3), "summary: expected a string, but got 3"),
        (
            lambda d: d["accuracy"][0].pop("tests"),
            "accuracy[0] (forward): expected the key 'tests', but got none",
        ),
        (
            lambda d: d["accuracy"][0].update(tests=[]),
            "accuracy[0] (forward).tests: expected at least 1 item(s), but got []",
        ),
        (
            lambda d: d["accuracy"][0].update(tests=["test_demo"]),
            "accuracy[0] (forward).tests[0]: expected a test id such as",
        ),
        (lambda d: d["accuracy"][0].update(k=0), "accuracy[0] (forward).k: expected more than 0, but got 0"),
        (
            lambda d: d["accuracy"][0].pop("k"),
            "accuracy[0] (forward): expected one bound: k, max_ulp, exact = true",
        ),
        (
            lambda d: d["accuracy"][0].update(max_ulp=1),
            "accuracy[0] (forward): expected one bound: k, max_ulp, exact = true",
        ),
        (
            lambda d: d["gradients"][0].update(figure="bytes"),
            "gradients[0] (none): expected a bound for the figure",
        ),
        (lambda d: d["gradients"][0].update(at_most=1), "gradients[0] (none): expected"),
        (lambda d: d["package"][0].pop("audit"), "package[0] (symbols): expected a proof: tests or audit"),
        (
            lambda d: d["package"][0].update(audit=["luck"]),
            "package[0] (symbols).audit[0]: expected one of 'wheel-tag'",
        ),
        (lambda d: d["devices"][0].pop("tests"), "devices[0] (cpu): expected the key 'tests', but got none"),
        (
            lambda d: d["devices"][0].update(status="works"),
            "devices[0] (cpu).status: expected one of 'run on hardware'",
        ),
        (
            lambda d: d["performance"]["floors"][0].update(ratio="fast"),
            "performance.floors[0].ratio: expected a number, but got 'fast'",
        ),
        (
            lambda d: d["performance"]["floors"][0].pop("threads"),
            "performance.floors[0]: expected the key 'threads'",
        ),
    ],
)
def test_each_violation_names_its_key(edit, message):
    problems = changed(edit)
    assert len(problems) == 1
    assert problems[0].startswith(message)


def test_every_violation_is_told_at_once():
    problems = changed(lambda d: (d.pop("version"), d["accuracy"][0].update(k=-1), d.update(extra=1)))
    assert len(problems) == 3


def test_the_error_rule_is_the_one_that_the_suite_applies(tmp_path):
    contract = demo.CONTRACT.replace('figure = "error_ratio_forward"\n', "")
    package = demo.make_package(tmp_path, contract=contract)
    loaded = load_contract(package)
    (rule,) = (c for c in loaded.criteria if c.section == "accuracy")
    assert (rule.figure, rule.bound) == ("of_limit", "at most 1 of the allowed error (k = 2)")
    missing = "accuracy/forward: expected k = None"
    assert any(problem.startswith(missing) for problem in package_problems(loaded))
    (package / "shared_build" / "conformance").mkdir()
    (package / "shared_build" / "conformance" / "ulp.py").write_text(
        'RATIO = {"forward": 2.0, "backward": 3.0}\n'
    )
    assert package_problems(loaded) == []
    (package / "contract.toml").write_text(contract.replace("k = 2.0", "k = 0.5"))
    assert package_problems(load_contract(package)) == [
        "accuracy/forward: expected k = 2.0, by which the suite judges the forward direction, but got 0.5"
    ]


def test_a_device_that_never_ran_needs_no_test():
    assert (
        changed(lambda d: d["devices"][0].update(status="not built yet") or d["devices"][0].pop("tests"))
        == []
    )


def test_the_same_id_twice(tmp_path):
    file = tmp_path / "contract.toml"
    file.write_text(
        demo.CONTRACT
        + demo.CONTRACT[demo.CONTRACT.index("[[limits]]") : demo.CONTRACT.index("[performance]")]
    )
    assert load_contract(file).data["limits"][1]["id"] == "numbers"  # a limit without a proof is no criterion
    again = '[[determinism]]\nid = "same"\nclaim = "Twice."\nkind = "batch"\ntests = ["tests/test_demo.py"]\n'
    twice = demo.CONTRACT.replace('id = "run-to-run"', 'id = "same"').replace(
        "[[package]]", again + "[[package]]"
    )
    file.write_text(twice)
    with pytest.raises(ContractError, match="determinism/same: expected an id of its own, but got it twice"):
        load_contract(file)


@pytest.mark.parametrize("text", ["operator = ", 'a = "1"\na = "2"'])
def test_not_toml(tmp_path, text, capsys):
    (tmp_path / "contract.toml").write_text(text)
    assert main([str(tmp_path)]) == 1
    assert "contract.toml: expected TOML, but got: " in capsys.readouterr().err


def test_no_contract(tmp_path, capsys):
    assert main([str(tmp_path / "nothing")]) == 1
    assert "expected a contract, but got no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'version = "0.1.0"',
            'version = "0.2.0"',
            "version: expected '0.1.0' as the package says, but got '0.2.0'",
        ),
        (
            '"opwright-demo-op"',
            '"opwright-other"',
            "distribution: expected 'opwright-demo-op' as the package says",
        ),
        ('floor = "2.11"', 'floor = "2.12"', "torch.floor: expected the floor of pyproject.toml"),
        (
            "test_demo.py::test_values[2*]",
            "test_none.py::test_values",
            "gradients/none: expected a proof that exists, but got 'tests/test_none.py::test_values'",
        ),
        (
            "test_demo.py::test_error",
            "test_demo.py::test_errors",
            "accuracy/forward: expected a proof that exists",
        ),
        (
            'case = "forward"',
            'case = "sideways"',
            "performance.floors: expected a case of benchmarks/cases.py, but got",
        ),
    ],
)
def test_disagreement_with_the_package(tmp_path, old, new, message):
    package = demo.make_package(tmp_path, contract=demo.CONTRACT.replace(old, new))
    problems = package_problems(load_contract(package))
    assert any(problem.startswith(message) for problem in problems), problems


@pytest.mark.parametrize(
    ("pattern", "node", "covered"),
    [
        ("tests/a.py::test_b", "tests/a.py::test_b", True),
        ("tests/a.py::test_b", "tests/a.py::test_b[1-x]", True),
        ("tests/a.py::test_b", "tests/a.py::test_bc", False),
        ("tests/a.py", "tests/a.py::TestX::test_y", True),
        ("tests/a.py::TestX", "tests/a.py::TestX::test_y[1]", True),
        ("tests/a.py::test_b[golden/*]", "tests/a.py::test_b[golden/bf16]", True),
        ("tests/a.py::test_b[golden/*]", "tests/a.py::test_b[poison/bf16]", False),
        ("tests/a.py::test_b[[]", "tests/a.py::test_b[", False),
    ],
)
def test_which_tests_a_pattern_covers(pattern, node, covered):
    assert matches(pattern, node) is covered


def test_a_proof_may_be_imported_from_the_shared_suite(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "shared_build" / "suite").mkdir(parents=True)
    (tmp_path / "shared_build" / "suite" / "__init__.py").write_text("def test_shared(): ...\n")
    (tmp_path / "tests" / "test_a.py").write_text(
        "from shared_build.suite import *\nfrom x import test_named\nclass TestX:\n  def test_y(self): ...\n"
    )
    exists = ["test_shared", "test_named", "TestX::test_y", "TestX", "test_shared[any/thing]"]
    assert [missing_test(tmp_path, f"tests/test_a.py::{name}") for name in exists] == [""] * len(exists)
    assert missing_test(tmp_path, "tests/test_a.py::TestX::test_z") == "no test_z in tests/test_a.py"
    assert missing_test(tmp_path, "tests/test_a.py::test_other") == "no test_other in tests/test_a.py"
