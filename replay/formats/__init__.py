"""Low-precision data formats: MX9, MX6 and MX4, the OCP microscaling formats, NVFP4, FP8, and the wider floats.

`catalogue` says how each format is defined. `quantization` converts arrays to it and back, bit for bit, and `codes` has
its loops.
"""

from replay.formats.catalogue import FORMATS, Format, find_format
from replay.formats.quantization import (
    ErrorStatistics,
    Quantized,
    directional_copies,
    error_statistics,
    load_array,
    quantize,
    unpack,
)

__all__ = [
    "FORMATS",
    "ErrorStatistics",
    "Format",
    "Quantized",
    "directional_copies",
    "error_statistics",
    "find_format",
    "load_array",
    "quantize",
    "unpack",
]
