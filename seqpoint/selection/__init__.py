"""Which iterations stand for a run, with their weights, estimates and intervals; kernels inside an iteration.

Read `seqpoint` first (`SeqPointSelector`), then `log` (what every selector reads and sets), `estimate` (totals and
speed-ups with intervals) and `selecting` (selectors by name). A selector of another package needs the names that are
exported here; docs/extending.md shows one.
"""

from seqpoint.selection.estimate import (
    Estimate,
    assisted_speedup,
    assisted_total,
    estimate_speedup,
    estimate_total,
    parallel_reduction,
    predict_total,
    relative_error,
    sequential_reduction,
)
from seqpoint.selection.log import Choice, Epoch, FittedSelector, SelectionLog, read_epoch, remember
from seqpoint.selection.selecting import Budget, SelectionMethod, selectors
from seqpoint.selection.seqpoint import FrequentSelector, MedianSelector, PriorSelector, SeqPointSelector, WorstSelector

__all__ = [
    "Budget",
    "Choice",
    "Epoch",
    "Estimate",
    "FittedSelector",
    "FrequentSelector",
    "MedianSelector",
    "PriorSelector",
    "SelectionLog",
    "SelectionMethod",
    "SeqPointSelector",
    "WorstSelector",
    "assisted_speedup",
    "assisted_total",
    "estimate_speedup",
    "estimate_total",
    "parallel_reduction",
    "predict_total",
    "read_epoch",
    "relative_error",
    "remember",
    "selectors",
    "sequential_reduction",
]
