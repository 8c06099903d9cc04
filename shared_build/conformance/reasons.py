"""Every reason for which a test may be skipped. Any other skip fails the run (see plugin.py)."""

NO_CUDA = "no CUDA device"
ONE_CUDA = "fewer than two CUDA devices"
NO_LEVEL = {"avx2": "no AVX2", "avx512": "no AVX-512"}

#: The delivered suite runs against a wheel, which holds no sources.
NO_CUDA_SOURCES = "no sources of the CUDA kernels"

ALLOWED = frozenset({NO_CUDA, ONE_CUDA, NO_CUDA_SOURCES, *NO_LEVEL.values()})
