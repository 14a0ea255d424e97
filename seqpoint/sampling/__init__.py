"""Which kernels or iterations to draw at random, how much each stands for, and how sure the total is that they give."""

from seqpoint.sampling.epochs import RandomSelector, StratifiedSelector
from seqpoint.sampling.estimate import Drawn, estimate_speedup, estimate_total, expand_total
from seqpoint.sampling.medoids import KMedoidsSelector, kernel_profiles
from seqpoint.sampling.population import KernelPopulation, kernel_population, kernels_with_shapes
from seqpoint.sampling.sampler import KernelSampler, SamplingPlan, draw_rows
from seqpoint.selection.allocation import neyman_allocation, shared_allocation, stratified_variance

__all__ = [
    "Drawn",
    "KMedoidsSelector",
    "KernelPopulation",
    "KernelSampler",
    "RandomSelector",
    "SamplingPlan",
    "StratifiedSelector",
    "draw_rows",
    "estimate_speedup",
    "estimate_total",
    "expand_total",
    "kernel_population",
    "kernel_profiles",
    "kernels_with_shapes",
    "neyman_allocation",
    "shared_allocation",
    "stratified_variance",
]
