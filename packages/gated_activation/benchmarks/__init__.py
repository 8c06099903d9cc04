"""Benchmarks of the gated activations: `cases.py` says what is measured, the other module is for asv."""

import sys
from pathlib import Path

# asv imports this package alone, from wherever it was started; what the benchmarks share lies beside it.
sys.path.append(str(Path(__file__).resolve().parent.parent))
