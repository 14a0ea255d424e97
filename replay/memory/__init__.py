"""Caches and DRAM under a kernel: the lines that it touches, what the caches keep, and what the memory delivers.

Read in this order: `accesses` (a kernel as tiles, and the lines that they touch), `streams` (tiles of each kind of
operator), `system` (the figures of a device), `policies`, `caches`, `dram`, and `simulation` (the time of a kernel).
"""
