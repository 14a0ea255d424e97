"""Concurrent computation and communication (C3) and collectives on DMA engines (ConCCL), arXiv 2412.14335."""
