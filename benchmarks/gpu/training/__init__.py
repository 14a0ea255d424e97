"""Part e: epochs of variable length, training steps of fixed shape, and small profiler traces of both."""

from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.step import Step
from benchmarks.gpu.training.epochs import epoch_steps, trace_steps
from benchmarks.gpu.training.prefetching import prefetch_steps
from benchmarks.gpu.training.shapes import shape_steps, shape_trace_steps

__all__ = ["steps"]


def steps(facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return the steps of part e: those without a profiler first, so that none runs in its wake.

    Parameters
    ----------
    facts : mapping
        Of the device; `memory_bytes` is read.
    size : str
        ``"full"``; all others are small enough for a test on a CPU.
    """
    timed = [*shape_steps(facts, size), *epoch_steps(facts, size)]
    return [*timed, *trace_steps(facts, size), *shape_trace_steps(facts, size), *prefetch_steps(facts, size)]
