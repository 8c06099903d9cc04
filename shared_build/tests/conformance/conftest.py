"""The zoo runs under the rules of the suite itself."""

pytest_plugins = ["shared_build.conformance.plugin"]
