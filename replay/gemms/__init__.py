"""General matrix multiplications (GEMMs) side by side: kernel variants, degrees of concurrency, and groups in a graph.

Read in this order: `gemm` (a GEMM, the kernels that compute it, and the tiles and waves of a launch), `variant_model`
(the physics of a variant, what measurements add to it, and the libraries of devices), `candidates` (tables of measured
kernels) and `fitting`; then `concurrency` (kernels side by side in the engine), `tuning` (the variants that are best
side by side), `degrees` (how many, predicted by sizes), `groups` (independent GEMMs of a graph) and `planning` (degree
and kernels of a group).
It implements GOLDYLOC (arXiv 2409.02227).
"""

from replay.gemms.candidates import MeasuredCandidates, read_candidates
from replay.gemms.concurrency import concurrent_ns
from replay.gemms.degrees import DegreePredictor, load_degree_predictor
from replay.gemms.fitting import fit_library, fit_variants
from replay.gemms.gemm import Gemm, Variants
from replay.gemms.groups import Groups, UnorderedGemms, independent_gemms
from replay.gemms.tuning import DEGREES, GoKernel, GoMix, go_kernels, go_mix
from replay.gemms.variant_model import (
    VariantCosts,
    VariantFit,
    VariantModel,
    library_of,
    read_variant_fit,
    write_variant_fit,
)

__all__ = [
    "DEGREES",
    "DegreePredictor",
    "Gemm",
    "GoKernel",
    "GoMix",
    "Groups",
    "MeasuredCandidates",
    "UnorderedGemms",
    "VariantCosts",
    "VariantFit",
    "VariantModel",
    "Variants",
    "concurrent_ns",
    "fit_library",
    "fit_variants",
    "go_kernels",
    "go_mix",
    "independent_gemms",
    "library_of",
    "load_degree_predictor",
    "read_candidates",
    "read_variant_fit",
    "write_variant_fit",
]
