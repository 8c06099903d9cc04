"""Every reason for which a test may be skipped. Any other skip fails the run (see plugin.py)."""

NO_CUDA = "no CUDA device"
ONE_CUDA = "fewer than two CUDA devices"
NO_LEVEL = {"avx2": "no AVX2", "avx512": "no AVX-512"}

ALLOWED = frozenset({NO_CUDA, ONE_CUDA, *NO_LEVEL.values()})
