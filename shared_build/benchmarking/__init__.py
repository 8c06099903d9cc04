"""Fair measurement: ratios in one process, results checked before a timing counts, verdicts with intervals.

Importing this package imports neither torch nor an operator: figures are made in a process of their own.
"""

from .cases import Case, load_cases, operator_root
from .evaluation import Report, Verdict, evaluate
from .floors import SCHEMA, Floor, MemoryCeiling
from .runner import MeasurementError
from .stats import Estimate, estimate, geometric_mean, judge

__all__ = [
    "SCHEMA",
    "Case",
    "Estimate",
    "Floor",
    "MeasurementError",
    "MemoryCeiling",
    "Report",
    "Verdict",
    "estimate",
    "evaluate",
    "geometric_mean",
    "judge",
    "load_cases",
    "operator_root",
]
