"""Selection of the iterations that stand for a run, and estimates from them with intervals.

Read `log` first, then `seqpoint` (the selector of the paper) and `estimate` (totals and speed-ups). `baselines` and
`stratified` hold the other selectors, `kernels` the sampling of kernels within an iteration, `selecting` the selectors
by name, and `evaluation` their errors on held-out iterations.
"""

from seqpoint.selection.baselines import FrequentSelector, MedianSelector, PriorSelector, WorstSelector
from seqpoint.selection.estimate import (
    Estimate,
    assisted_speedup,
    assisted_total,
    estimate_ratio,
    estimate_speedup,
    estimate_total,
    parallel_reduction,
    predict_total,
    relative_error,
    sequential_reduction,
)
from seqpoint.selection.log import FittedSelector, SelectionLog
from seqpoint.selection.seqpoint import SeqPointSelector

__all__ = [
    "Estimate",
    "FittedSelector",
    "FrequentSelector",
    "MedianSelector",
    "PriorSelector",
    "SelectionLog",
    "SeqPointSelector",
    "WorstSelector",
    "assisted_speedup",
    "assisted_total",
    "estimate_ratio",
    "estimate_speedup",
    "estimate_total",
    "parallel_reduction",
    "predict_total",
    "relative_error",
    "sequential_reduction",
]
