"""Collectives fused with the computation before them: one persistent kernel that sends each slice when it is done."""

from replay.studies.fused.comparison import Comparison, add_baseline, add_fused, baseline_graph, compare, fused_graph
from replay.studies.fused.job import (
    COLLECTIVES,
    ORDERS,
    Cluster,
    Costs,
    Job,
    Schedule,
    Slices,
    Work,
    common_slices,
    embedding,
    gemm,
    gemv,
    slices_of,
)
from replay.studies.fused.study import (
    SWEEPS,
    Recommendation,
    Workloads,
    compare_training,
    load_workloads,
    training_graph,
)

__all__ = [
    "COLLECTIVES",
    "ORDERS",
    "SWEEPS",
    "Cluster",
    "Comparison",
    "Costs",
    "Job",
    "Recommendation",
    "Schedule",
    "Slices",
    "Work",
    "Workloads",
    "add_baseline",
    "add_fused",
    "baseline_graph",
    "common_slices",
    "compare",
    "compare_training",
    "embedding",
    "fused_graph",
    "gemm",
    "gemv",
    "load_workloads",
    "slices_of",
    "training_graph",
]
