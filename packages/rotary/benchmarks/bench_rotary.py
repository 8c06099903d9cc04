"""asv benchmarks of apply_rotary: one pair of classes a case, all logic in the shared base classes.

asv finds every class of a module, so the bases are reached through their module and not imported by name.
"""

from pathlib import Path

from shared_build.benchmarking import asv_classes as _bases

_ROOT = Path(__file__).resolve().parent.parent
# One size that a call's cost decides and one that memory decides, where all four would take too long.
_TWO_SIZES = (("1x32x1x128", "1x32x2048x128"), ("fp32", "bf16"), _bases.THREADS)


class ForwardTimed(_bases.Timed):
    operator, case, root = "rotary", "forward", _ROOT
    params = _TWO_SIZES


class ForwardBackwardTimed(_bases.Timed):
    operator, case, root = "rotary", "forward_backward", _ROOT
    params = _TWO_SIZES


class ForwardProjectedTimed(_bases.Timed):
    operator, case, root = "rotary", "forward_projected", _ROOT
    params = _TWO_SIZES


class InterleavedForwardTimed(_bases.Timed):
    operator, case, root = "rotary", "interleaved_forward", _ROOT
    params = _TWO_SIZES


class ForwardCompared(_bases.Compared):
    operator, case, root = "rotary", "forward", _ROOT
    params = _TWO_SIZES


class ForwardBackwardCompared(_bases.Compared):
    operator, case, root = "rotary", "forward_backward", _ROOT
    params = _TWO_SIZES


class ForwardProjectedCompared(_bases.Compared):
    operator, case, root = "rotary", "forward_projected", _ROOT
    params = _TWO_SIZES


class InPlaceCompared(_bases.Compared):
    operator, case, root = "rotary", "in_place", _ROOT
    params = _TWO_SIZES


class InterleavedForwardCompared(_bases.Compared):
    operator, case, root = "rotary", "interleaved_forward", _ROOT
    params = _TWO_SIZES


class PartialForwardCompared(_bases.Compared):
    operator, case, root = "rotary", "partial_forward", _ROOT
    params = _TWO_SIZES


class InGraphCompared(_bases.Compared):
    operator, case, root = "rotary", "in_graph", _ROOT
    params = _TWO_SIZES
