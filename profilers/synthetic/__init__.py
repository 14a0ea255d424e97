"""Synthetic traces: the events that a profiler would write of a job that nobody ran.

Nobody measured these times; `TraceMeta.synthetic` is true for such a trace, and everything that shows one says so.
"""

from profilers.synthetic.program import Collective, KernelCall, SyntheticJob, SyntheticStep, Wait, write_trace

__all__ = [
    "Collective",
    "KernelCall",
    "SyntheticJob",
    "SyntheticStep",
    "Wait",
    "write_trace",
]
