"""Collectives fused with the computation before them: one persistent kernel that sends each slice when it is done."""

from replay.studies.fused.comparison import Comparison, compare
from replay.studies.fused.job import (
    Cluster,
    Costs,
    Job,
    Schedule,
    Work,
    embedding,
    gemm,
    gemv,
)
from replay.studies.fused.study import (
    compare_training,
    load_workloads,
)

__all__ = [
    "Cluster",
    "Comparison",
    "Costs",
    "Job",
    "Schedule",
    "Work",
    "compare",
    "compare_training",
    "embedding",
    "gemm",
    "gemv",
    "load_workloads",
]
