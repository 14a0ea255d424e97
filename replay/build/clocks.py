"""Clocks that disagree, of ranks and of host and device: how many times say so, by how much, and where."""

import numpy as np

from replay.build.window import Window

__all__ = ["clock_notes"]

#: A start this much before its launch is the resolution of a profiler's clock (ns).
_RESOLUTION_NS = 1000


def clock_notes(window: Window) -> list[str]:
    """Return a note of clocks that were brought together, and one for each rank on which work precedes its launch."""
    work, calls = window.work, window.calls
    shift = window.trace.meta.quality.counts.get("clock_shift_max_ns", 0)
    notes = (
        [f"clocks of ranks disagreed by up to {shift / 1e3:.1f} us; matched collectives brought them together"]
        if shift and len(window.ranks) > 1
        else []
    )
    if not len(calls):
        return notes
    early = np.where((work.launch >= 0) & work.own, calls.start[work.launch] - work.start, 0)
    for rank in np.unique(work.rank).tolist():
        rows = np.flatnonzero((work.rank == rank) & (early > _RESOLUTION_NS))
        if len(rows):
            worst = rows[np.argmax(early[rows])]
            name = window.index.work.names.text[work.name[worst]][:60]
            notes.append(
                f"rank {rank}: the clocks of host and GPU {work.device[worst]} disagree: {len(rows)} kernels or copies "
                f"start before the call that launched them, by up to {early[worst] / 1e3:.1f} us ({name}, "
                f"{work.start[worst] / 1e6:.3f} ms after the start); they wait for their stream alone"
            )
    return notes
