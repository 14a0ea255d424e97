"""Which iterations stand for a run, with their weights, estimates and intervals; kernels inside an iteration."""

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
