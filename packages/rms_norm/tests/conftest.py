"""Tiers, markers and the list of allowed skip reasons come from the conformance plugin."""

pytest_plugins = ["shared_build.conformance.plugin"]
