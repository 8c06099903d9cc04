"""Opens the driver by itself."""

import contextlib
import ctypes

with contextlib.suppress(OSError):
    ctypes.CDLL("libcuda.so.1")
