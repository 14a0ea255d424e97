"""General matrix multiplications (GEMMs) side by side: kernel variants, degrees of concurrency, and groups in a graph.

Read in this order: `gemm` (a GEMM and its operands), `variants` (tiles, splits and the resources of a kernel), and
`variant_model` (the time and the demands of a variant on a share of a device). It implements GOLDYLOC
(arXiv 2409.02227).
"""

from replay.gemms.gemm import Gemm
from replay.gemms.variant_model import VariantCosts, VariantModel, library_of
from replay.gemms.variants import Variants

__all__ = ["Gemm", "VariantCosts", "VariantModel", "Variants", "library_of"]
