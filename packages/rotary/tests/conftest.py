"""Tiers, markers and the list of allowed skip reasons come from the conformance plugin."""

PLUGIN = "shared_build.conformance.plugin"


def pytest_configure(config):
    # Not `pytest_plugins`: this conftest need not be at the top of the run.
    if not config.pluginmanager.has_plugin(PLUGIN):
        config.pluginmanager.import_plugin(PLUGIN)
