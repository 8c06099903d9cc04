"""Benchmarks of the RMS norm operators: `cases.py` says what is measured, the other modules are asv's."""
