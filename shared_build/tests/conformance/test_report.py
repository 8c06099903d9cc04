"""A failure tells everything that is needed to see it again; the command line does see it again."""

from __future__ import annotations

import re
import shlex
import sys

import pytest
import torch

from shared_build.conformance import ConformanceError, data, only
from shared_build.conformance.__main__ import main
from shared_build.conformance.isolated import run_command
from shared_build.conformance.run import SAVE_VARIABLE
from shared_build.conformance.spec import Arg
from shared_build.tests.conformance.zoo.specs import HERE, PACKAGES

ID = "eps_outside/golden/3x17-float32"


def report(monkeypatch, folder=None):
    if folder is not None:
        monkeypatch.setenv(SAVE_VARIABLE, str(folder))
    (check,) = only(PACKAGES["EpsOutside-golden"], [ID])
    with pytest.raises(ConformanceError) as caught:
        check()
    return str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    [
        r"eps_outside: golden failed",
        r"max error \S+ > 2 x eager \S+ \+ 1 ulp",
        r"worst index \(\d+, \d+\): got \S+, golden \S+, eager \S+",
        r"max \S+ ulp, max abs",
        r"case +: 3x17 \{'eps': 0.001\}",
        r"x +: float32 \(3, 17\) strides \(17, 1\) offset 0",
        r"seed 0, \d+ threads, kernel level \w+, device cpu, torch 2",
        r"again +: OPWRIGHT_CPU_CAPABILITY=\w+ python -m shared_build.conformance \S+ --only '" + ID,
    ],
)
def test_report_says(monkeypatch, pattern):
    assert re.search(pattern, report(monkeypatch))


def test_inputs_are_saved_where_asked(monkeypatch, tmp_path):
    text = report(monkeypatch, tmp_path)
    (file,) = tmp_path.iterdir()
    assert str(file) in text
    saved = torch.load(file)
    assert saved["inputs"]["x"].shape == (3, 17)
    assert saved["options"] == {"eps": 1e-3}


def test_the_line_given_reproduces_the_failure(monkeypatch):
    line = re.search(r"again +: (.*)", report(monkeypatch)).group(1)
    setting, _, *words = shlex.split(line)
    name, _, value = setting.partition("=")
    words[words.index("shared_build.conformance") + 1] = f"{HERE}::EpsOutside-golden"
    done = run_command([sys.executable, *words], env={name: value})
    assert done.returncode == 1
    assert "eps_outside: golden failed" in done.stderr


def test_command_line_counts_and_refuses_unknown_ids(capsys):
    assert main([f"{HERE}::healthy", "--only", "add_scale/golden/3x17-*"]) == 0
    assert "4 passed, 0 failed" in capsys.readouterr().out
    assert main([f"{HERE}::healthy", "--only", "no_such/*"]) == 2
    assert main([f"{HERE}::healthy", "--list", "--only", "add_scale/adjoint/*"]) == 0
    assert "add_scale/adjoint/2x3-public" in capsys.readouterr().out


def test_ids_are_unique_and_stable():
    ids = [each.id for each in only(PACKAGES["healthy"], ["*"])]
    assert len(ids) == len(set(ids))
    assert ids == [each.id for each in only(PACKAGES["healthy"], ["*"])]


def test_values_depend_on_names_and_seed_only():
    first = data.fill(Arg((3, 4)), data.seed_of("case", "x", 0))
    assert torch.equal(first, data.fill(Arg((3, 4)), data.seed_of("case", "x", 0)))
    assert not torch.equal(first, data.fill(Arg((3, 4)), data.seed_of("case", "x", 1)))
    assert data.seed_of("case", "x", 0) == 1553282675
