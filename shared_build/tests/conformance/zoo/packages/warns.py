"""Warns."""

import warnings

warnings.warn("this package is experimental", stacklevel=1)
