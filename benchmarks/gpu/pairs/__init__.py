"""Part h: runs before and after one change, timed without a profiler and traced with one.

`groups` lists what is changed, the runs on both sides, and the what-if that has to predict the gain. `seqpoint validate
pairs` reads the tables `runs` and `pairs` with the traces, and scores each what-if.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.pairs.groups import groups
from benchmarks.gpu.pairs.measuring import group_steps, memory_step, recording_steps, trace_steps
from benchmarks.gpu.step import Step

__all__ = ["steps"]


def steps(facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return the steps of part h: runs without a profiler first, so that none is timed in its wake.

    Parameters
    ----------
    facts : mapping
        Facts of the device; `memory_bytes` is read.
    size : str
        A key of `benchmarks.gpu.sizes.SIZES`.
    """
    listed = groups(size)
    return [
        *group_steps(facts, listed, size),
        *trace_steps(facts, listed),
        *recording_steps(facts, listed),
        memory_step(facts, listed),
    ]
