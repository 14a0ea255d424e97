"""How long a kernel takes, and why: compute units, caches and DRAM, cycle by cycle.

Read in this order: `cores` (figures of a device), `expansion` and `assembly` (what the machine issues), `state` (all
arrays), `engine` (compute units), `accesses` and `caches` (what lies
below), and `launches` (a launch from begin to end).
"""
