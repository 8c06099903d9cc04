"""asv benchmarks of the gated activations: one pair of classes a case, all logic in the shared base classes.

asv finds every class of a module, so the bases are reached through their module and not imported by name.
"""

from pathlib import Path

from shared_build.benchmarking import asv_classes as _bases

_ROOT = Path(__file__).resolve().parent.parent
# One size that a call's cost decides and one that memory decides, where all four would take too long.
_TWO_SIZES = (("1x8192", "2048x8192"), ("fp32", "bf16"), _bases.THREADS)


class PackedForwardTimed(_bases.Timed):
    operator, case, root = "gated_activation", "packed_forward", _ROOT
    params = _TWO_SIZES


class GptOssForwardTimed(_bases.Timed):
    operator, case, root = "gated_activation", "gpt_oss_forward", _ROOT
    params = _TWO_SIZES


class PackedForwardBackwardTimed(_bases.Timed):
    operator, case, root = "gated_activation", "packed_forward_backward", _ROOT
    params = _TWO_SIZES


class ForwardCompared(_bases.Compared):
    operator, case, root = "gated_activation", "forward", _ROOT


class PackedForwardCompared(_bases.Compared):
    operator, case, root = "gated_activation", "packed_forward", _ROOT
    params = _TWO_SIZES


class GptOssForwardCompared(_bases.Compared):
    operator, case, root = "gated_activation", "gpt_oss_forward", _ROOT
    params = _TWO_SIZES


class GeluTanhForwardCompared(_bases.Compared):
    operator, case, root = "gated_activation", "gelu_tanh_forward", _ROOT
    params = _TWO_SIZES


class PackedForwardBackwardCompared(_bases.Compared):
    operator, case, root = "gated_activation", "packed_forward_backward", _ROOT
    params = _TWO_SIZES


class GptOssForwardBackwardCompared(_bases.Compared):
    operator, case, root = "gated_activation", "gpt_oss_forward_backward", _ROOT
    params = _TWO_SIZES


class InGraphCompared(_bases.Compared):
    operator, case, root = "gated_activation", "in_graph", _ROOT
    params = _TWO_SIZES
