"""The plugin's rules, each tried on a small run of pytest inside this one."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def outcome(pytester):
    def run(source, *arguments):
        pytester.makepyfile(source)
        arguments = ("-p", "shared_build.conformance.plugin", "-p", "no:cacheprovider", *arguments)
        return pytester.runpytest_inprocess(*arguments)

    return run


def test_listed_skip_is_a_skip(outcome):
    result = outcome("import pytest\n\n@pytest.mark.skip(reason='no CUDA device')\ndef test_it(): pass\n")
    result.assert_outcomes(skipped=1)


def test_unlisted_skip_is_a_failure(outcome):
    result = outcome("import pytest\n\ndef test_it(): pytest.skip('not today')\n")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*expected one of the listed skip reasons*but got 'not today'*"])


def test_unlisted_skip_mark_is_a_failure(outcome):
    result = outcome("import pytest\n\n@pytest.mark.skip(reason='slow box')\ndef test_it(): pass\n")
    assert result.ret != 0


def test_skipped_module_is_a_failure(outcome):
    result = outcome(
        "import pytest\npytest.importorskip('a_module_that_is_not_there')\n\ndef test_it(): pass\n"
    )
    assert result.ret != 0


def test_expected_failure_that_passes_is_a_failure(outcome):
    result = outcome(
        "import pytest\n\n@pytest.mark.xfail(reason='known', strict=False)\ndef test_it(): pass\n"
    )
    assert result.ret != 0


def test_expected_failure_that_fails_is_none(outcome):
    result = outcome("import pytest\n\n@pytest.mark.xfail(reason='known')\ndef test_it(): assert False\n")
    result.assert_outcomes(xfailed=1)


def test_slow_tests_run_when_asked_for(outcome):
    source = "import pytest\n\n@pytest.mark.slow\ndef test_slow(): pass\n\ndef test_quick(): pass\n"
    outcome(source).assert_outcomes(passed=1, deselected=1)
    outcome(source, "-m", "slow").assert_outcomes(passed=1, deselected=1)
    outcome(source, "-m", "slow or not slow").assert_outcomes(passed=2)


def test_missing_autograd_kernel_is_an_error(outcome):
    source = """
        import warnings

        def test_it():
            warnings.warn("x::y: an autograd kernel was not registered to the Autograd key(s)")
    """
    assert outcome(source).ret != 0
