"""Benchmarks of apply_rotary: `cases.py` says what is measured, `bench_rotary.py` is for asv."""

import sys
from pathlib import Path

# asv imports this package alone, from wherever it was started; what the benchmarks share lies beside it.
sys.path.append(str(Path(__file__).resolve().parent.parent))
