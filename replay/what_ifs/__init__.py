"""What-ifs: pure functions from graph to graph, which compose."""

from replay.what_ifs.algebra import WhatIf, compose, parse_what_if, what_ifs
from replay.what_ifs.device import scale_device, scale_links
from replay.what_ifs.dma import dma_collectives
from replay.what_ifs.dtype import change_dtype
from replay.what_ifs.modified import scale_clock, scale_compute_units, scale_memory_bandwidth
from replay.what_ifs.overlap import overlap
from replay.what_ifs.scale import scale_host, scale_kernels

__all__ = [
    "WhatIf",
    "change_dtype",
    "compose",
    "dma_collectives",
    "overlap",
    "parse_what_if",
    "scale_clock",
    "scale_compute_units",
    "scale_device",
    "scale_host",
    "scale_kernels",
    "scale_links",
    "scale_memory_bandwidth",
    "what_ifs",
]
