"""Every reason for which a test may be skipped. Any other skip fails the run (see plugin.py)."""

NO_CUDA = "no CUDA device"
ONE_CUDA = "fewer than two CUDA devices"
NO_LEVEL = {"avx2": "no AVX2", "avx512": "no AVX-512"}

#: Kernels for CUDA are compiled for the host to be simulated.
NO_COMPILER = "no C++ compiler"

ALLOWED = frozenset({NO_CUDA, ONE_CUDA, NO_COMPILER, *NO_LEVEL.values()})
