"""Collectives fused with the computation before them: one persistent kernel that sends each slice when it is done."""

from replay.overlap.fused.baseline import add_baseline
from replay.overlap.fused.cluster import Cluster
from replay.overlap.fused.comparison import Comparison, baseline_graph, compare, fused_graph
from replay.overlap.fused.costs import Costs
from replay.overlap.fused.job import Job
from replay.overlap.fused.persistent import add_fused
from replay.overlap.fused.schedule import ORDERS, Schedule, Slices, slices_of
from replay.overlap.fused.work import COLLECTIVES, Work, embedding, gemm, gemv

__all__ = [
    "COLLECTIVES",
    "ORDERS",
    "Cluster",
    "Comparison",
    "Costs",
    "Job",
    "Schedule",
    "Slices",
    "Work",
    "add_baseline",
    "add_fused",
    "baseline_graph",
    "compare",
    "embedding",
    "fused_graph",
    "gemm",
    "gemv",
    "slices_of",
]
