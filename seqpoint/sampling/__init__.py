"""Which kernels of a trace to time again, how much each stands for, and how sure the total is that they give."""

from seqpoint.sampling.allocation import neyman_allocation, stratified_variance
from seqpoint.sampling.estimate import estimate_total, expand_total
from seqpoint.sampling.population import KernelPopulation, kernel_population, kernels_with_shapes
from seqpoint.sampling.sampler import KernelSampler, SamplingPlan, draw_rows

__all__ = [
    "KernelPopulation",
    "KernelSampler",
    "SamplingPlan",
    "draw_rows",
    "estimate_total",
    "expand_total",
    "kernel_population",
    "kernels_with_shapes",
    "neyman_allocation",
    "stratified_variance",
]
