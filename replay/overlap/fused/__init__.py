"""Collectives fused with the computation before them: one persistent kernel that sends each slice when it is done."""

from replay.overlap.fused.baseline import add_baseline
from replay.overlap.fused.cluster import Cluster
from replay.overlap.fused.comparison import Comparison, baseline_graph, compare, fused_graph
from replay.overlap.fused.costs import Costs
from replay.overlap.fused.job import Job
from replay.overlap.fused.persistent import add_fused
from replay.overlap.fused.recommendation import Recommendation, compare_training, training_graph
from replay.overlap.fused.schedule import ORDERS, Schedule, Slices, common_slices, slices_of
from replay.overlap.fused.work import COLLECTIVES, Work, embedding, gemm, gemv
from replay.overlap.fused.workloads import SWEEPS, Workloads, load_workloads

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
