"""asv benchmarks of the RMS norm operators: one pair of classes a case, all logic in the shared base classes.

asv finds every class of a module, so the bases are reached through their module and not imported by name.
"""

from pathlib import Path

from shared_build.benchmarking import asv_classes as _bases

_ROOT = Path(__file__).resolve().parent.parent
# One size that a call's cost decides and one that memory decides, where all four would take too long.
_TWO_SIZES = (("1x4096", "2048x2048"), ("fp32", "bf16"), _bases.THREADS)


class ForwardTimed(_bases.Timed):
    operator, case, root = "rms_norm", "forward", _ROOT
    params = _TWO_SIZES


class ForwardBackwardTimed(_bases.Timed):
    operator, case, root = "rms_norm", "forward_backward", _ROOT
    params = _TWO_SIZES


class AddForwardTimed(_bases.Timed):
    operator, case, root = "rms_norm", "add_forward", _ROOT
    params = _TWO_SIZES


class GatedForwardTimed(_bases.Timed):
    operator, case, root = "rms_norm", "gated_forward", _ROOT
    params = _TWO_SIZES


class ForwardCompared(_bases.Compared):
    operator, case, root = "rms_norm", "forward", _ROOT


class ForwardBackwardCompared(_bases.Compared):
    operator, case, root = "rms_norm", "forward_backward", _ROOT
    params = _TWO_SIZES


class AddForwardCompared(_bases.Compared):
    operator, case, root = "rms_norm", "add_forward", _ROOT
    params = _TWO_SIZES


class AddInPlaceCompared(_bases.Compared):
    operator, case, root = "rms_norm", "add_in_place", _ROOT
    params = _TWO_SIZES


class GatedForwardCompared(_bases.Compared):
    operator, case, root = "rms_norm", "gated_forward", _ROOT
    params = _TWO_SIZES


class InGraphCompared(_bases.Compared):
    operator, case, root = "rms_norm", "in_graph", _ROOT
    params = _TWO_SIZES
