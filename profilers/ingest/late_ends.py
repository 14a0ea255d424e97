"""`repair_late_ends`: durations of AMD devices whose end stamp is damaged.

Some versions of ROCm stamp the end of a kernel or copy seconds late. A stream runs its work in order, so such an event
covers later events of its stream. But branches of a graph may run beside each other on one stream. So an end is only
taken for damaged on evidence:

- it lies beyond the start of the next event by more than any other event of its name takes, and the duration is an
  outlier of its name; or
- its name occurs once, and most of its time lies after all other events of the file have ended.

The last event of a stream has no next one. It is judged by its name, and has to end after all other events of the
file. Without events of the host among them, only an extreme outlier is cut: the host may have waited for it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from profilers.ingest.stage import Stage
from profilers.trace.arrays import MISSING, Ints, text_codes
from profilers.trace.columns import LANE, by_lane, row_slices

#: Least time by which an end is late, and how many times a duration exceeds the median of its name.
_LATE_NS, _OUTLIER, _EXTREME = 1_000_000, 10, 1000
_KINDS = ("kernels", "copies")


class _Events(NamedTuple):
    """Kernels, then copies: start and end, and the start of the next event of the stream, `MISSING` for the last."""

    start: Ints
    end: Ints
    following: Ints


def repair_late_ends(stage: Stage) -> dict[str, int]:
    """Cut the durations of kernels and copies whose end stamp is damaged, and return their number by quality count.

    A repaired event ends where the next event of its stream begins, or after the longest time that its name takes
    elsewhere, if that is earlier.

    Parameters
    ----------
    stage : Stage
        Rows of the file, which holds ``rank``, ``start_ns``, ``dur_ns`` and the lane of kernels and copies.
    """
    durations = _repaired(stage, _events(stage))
    first = 0
    for kind in _KINDS:
        count = stage.count(kind)
        rows = np.array(sorted(row for row in durations if first <= row < first + count), np.int64)
        if len(rows):
            values = np.array([durations[row] for row in rows.tolist()], np.int64)
            stage.shorten(kind, rows - first, values)
        first += count
    return {"repaired_duration": len(durations)}


def _events(stage: Stage) -> _Events:
    parts = [stage.raw(kind, "start_ns").astype(np.int64) for kind in _KINDS]
    lengths = [np.maximum(stage.raw(kind, "dur_ns").astype(np.int64), 0) for kind in _KINDS]
    start = np.concatenate(parts)
    following = np.full(len(start), MISSING)
    for lane in by_lane(lambda: _lanes(stage)):
        order = lane[np.argsort(start[lane], kind="stable")]
        following[order[:-1]] = start[order[1:]]
    return _Events(start, start + np.concatenate(lengths), following)


def _lanes(stage: Stage) -> Iterator[Ints]:
    for kind in _KINDS:
        for rows in row_slices(stage.count(kind)):
            yield stage.part(kind, LANE, rows)


def _repaired(stage: Stage, events: _Events) -> dict[int, int]:
    """Return the repaired durations of the rows that are shown to be damaged; a loop over late rows."""
    duration, host_end = events.end - events.start, stage.end_without(_KINDS)
    is_last = events.following == MISSING
    bound = np.where(is_last, max(host_end, int(events.start.max(initial=0))), events.following)
    is_late = events.end > bound + _LATE_NS
    if not is_late.any():
        return {}
    codes: dict[str | None, int] = {}
    names = np.concatenate(list(_names(stage, codes)))
    all_end = max(host_end, int(events.end[~is_late].max(initial=0)))
    repaired = {}
    for row in np.flatnonzero(is_late).tolist():
        others = duration[(names == names[row]) & (np.arange(len(names)) != row)]
        until = int(bound[row] - events.start[row])
        if not len(others):
            after = int(events.end[row]) - max(all_end, int(events.start[row]))
            if not is_last[row] and 2 * after > duration[row]:
                repaired[row] = until
            continue
        factor = _OUTLIER if host_end or not is_last[row] else _EXTREME
        typical = max(float(np.median(others)), 1.0)
        longest = int(others[others <= _OUTLIER * typical].max())
        beyond = int(events.end[row]) - (max(all_end, int(bound[row])) if is_last[row] else int(bound[row]))
        if duration[row] > factor * typical and beyond > longest:
            repaired[row] = longest if is_last[row] or until > _OUTLIER * longest else until
    return repaired


def _names(stage: Stage, codes: dict[str | None, int]) -> Iterator[Ints]:
    for kind in _KINDS:
        for batch in stage.batches(kind, ["name"]):
            yield text_codes(batch["name"], codes).astype(np.int64)
