"""Synthetic traces: the events that a profiler would write of a job that nobody ran.

Nobody measured these times; `TraceMeta.synthetic` is true for such a trace, and everything that shows one says so.
"""

from profilers.synthetic.program import Exchange, SyntheticJob, SyntheticStep, Wait, Work
from profilers.synthetic.tensor_parallel import TransformerJob, synthesize, write_trace

__all__ = ["Exchange", "SyntheticJob", "SyntheticStep", "TransformerJob", "Wait", "Work", "synthesize", "write_trace"]
