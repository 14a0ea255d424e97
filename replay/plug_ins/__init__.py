"""What-ifs that rest on an annex.

They are those of simulated caches (`replay.memory`), of GEMMs side by side (`replay.gemms`), and of low-precision
copies of weights (`replay.formats`). `replay.what_ifs.registry` loads this package by its name, so that nothing of the
heart imports an annex.
"""

from replay.plug_ins.caching import cache_policy, memory_mapping, scale_cache, simulated_caches
from replay.plug_ins.concurrent_gemms import concurrent_gemms
from replay.plug_ins.quantize_weights import quantize_weights

__all__ = [
    "cache_policy",
    "concurrent_gemms",
    "memory_mapping",
    "quantize_weights",
    "scale_cache",
    "simulated_caches",
]
