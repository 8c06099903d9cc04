"""asv benchmarks of the RMS norm operators: one pair of classes a case, all logic in the shared base classes.

asv finds every class of a module, so the bases are reached through their module and not imported by name.
"""

from pathlib import Path

from shared_build.benchmarking import asv_classes as _bases

_ROOT = Path(__file__).resolve().parent.parent


class ForwardTimed(_bases.Timed):
    operator, case, root = "rms_norm", "forward", _ROOT


class ForwardBackwardTimed(_bases.Timed):
    operator, case, root = "rms_norm", "forward_backward", _ROOT


class AddForwardTimed(_bases.Timed):
    operator, case, root = "rms_norm", "add_forward", _ROOT


class GatedForwardTimed(_bases.Timed):
    operator, case, root = "rms_norm", "gated_forward", _ROOT


class ForwardCompared(_bases.Compared):
    operator, case, root = "rms_norm", "forward", _ROOT


class ForwardBackwardCompared(_bases.Compared):
    operator, case, root = "rms_norm", "forward_backward", _ROOT


class AddForwardCompared(_bases.Compared):
    operator, case, root = "rms_norm", "add_forward", _ROOT


class AddInPlaceCompared(_bases.Compared):
    operator, case, root = "rms_norm", "add_in_place", _ROOT


class GatedForwardCompared(_bases.Compared):
    operator, case, root = "rms_norm", "gated_forward", _ROOT


class InGraphCompared(_bases.Compared):
    operator, case, root = "rms_norm", "in_graph", _ROOT
