"""Which iterations to profile, how much each stands for, and how sure the total is that they give."""

from seqpoint.selection.assisted import assisted_speedup, assisted_total
from seqpoint.selection.baselines import FrequentSelector, MedianSelector, PriorSelector, WorstSelector
from seqpoint.selection.estimate import (
    Estimate,
    estimate_ratio,
    estimate_speedup,
    estimate_total,
    parallel_reduction,
    relative_error,
    sequential_reduction,
)
from seqpoint.selection.fitted import FittedSelector
from seqpoint.selection.log import SelectionLog
from seqpoint.selection.seqpoint import SeqPointSelector
from seqpoint.selection.transfer import predict_total

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
