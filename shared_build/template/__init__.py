"""Scaffolding of a new operator package: ``python -m shared_build.template my_op``."""
