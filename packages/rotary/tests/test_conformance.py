"""The conformance suite on this package; its cases and claims are in spec.py."""

from __future__ import annotations

import pathlib

import pytest

from shared_build.conformance import conform, load_package

PACKAGE = load_package(pathlib.Path(__file__).with_name("spec.py"))


@pytest.mark.parametrize("check", conform(PACKAGE))
def test_conformance(check, record_property):
    for name, value in check().items():
        record_property(name, value)
