"""Collectives fused with the computation before them: one persistent kernel that sends each slice when it is done."""

from replay.studies.fused.comparison import Comparison, baseline_graph, compare, fused_graph
from replay.studies.fused.job import (
    ORDERS,
    Cluster,
    Costs,
    Job,
    Schedule,
    Work,
    embedding,
    gemm,
    gemv,
    slices_of,
)
from replay.studies.fused.study import (
    compare_training,
    load_workloads,
)

__all__ = [
    "ORDERS",
    "Cluster",
    "Comparison",
    "Costs",
    "Job",
    "Schedule",
    "Work",
    "baseline_graph",
    "compare",
    "compare_training",
    "embedding",
    "fused_graph",
    "gemm",
    "gemv",
    "load_workloads",
    "slices_of",
]
