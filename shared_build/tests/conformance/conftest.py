"""The zoo runs under the rules of the suite itself."""

import pathlib
import sys

PLUGIN = "shared_build.conformance.plugin"
ROOT = str(pathlib.Path(__file__).absolute().parents[3])
if ROOT not in sys.path:  # run as `pytest`, not as `python -m pytest`
    sys.path.insert(0, ROOT)


def pytest_configure(config):
    # Not `pytest_plugins`: this conftest need not be at the top of the run.
    if not config.pluginmanager.has_plugin(PLUGIN):
        config.pluginmanager.import_plugin(PLUGIN)
