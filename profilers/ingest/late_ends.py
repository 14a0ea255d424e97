"""`repair_late_ends`: durations of AMD devices whose end stamp is damaged.

Some versions of ROCm stamp the end of a kernel or copy seconds late. A stream runs its work in order, so such an event
covers later events of its stream. But branches of one graph, which share a launch, may run beside each other on a
stream. So an end is only taken for damaged on evidence:

- it lies beyond the start of the next launch's work by more than any other event of its name takes, and the duration is
  an outlier of its name; or
- its name occurs once, and most of its time lies after all other events of the file have ended.

The last work of a stream has no next one. It is judged by its name, and has to end after all other events of the file;
without another of its name, after ten times the time that the file spans. Without calls of the host, only an extreme
outlier is cut: the host may have waited for it.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from profilers.ingest.stage import Stage
from profilers.trace.arrays import MISSING, Ints, ends, text_codes
from profilers.trace.columns import LANE, by_lane, row_slices
from profilers.trace.trace import TraceMeta

#: Least time by which an end is late: kernels of a stream overlap by up to 3.7 us on real devices (74 pairs on a B200),
#: and damaged ends by seconds (public reports). Least ratio of a duration to the median of its name, with and without
#: calls of the host; chosen, not measured.
_LATE_NS, _OUTLIER, _EXTREME = 1_000_000, 10, 1000
_KINDS = ("kernels", "copies")


#: Watch that keeps a call of HIP, if there is one.
HIP_CALLS = "hip_calls"
_AMD_DEVICE = re.compile(r"\bAMD\b|Instinct|Radeon|\bgfx\d", re.IGNORECASE)


class _StampedEvents(NamedTuple):
    """Kernels, then copies: start, end, and the start of the work of the next launch on the stream, else `MISSING`."""

    start: Ints
    end: Ints
    following: Ints


def is_stamped_by_rocm(reader: str, meta: TraceMeta, stage: Stage) -> bool:
    """Return whether ROCm stamped the times of a recording, by its format, its devices or its calls.

    Parameters
    ----------
    reader : str
        Name of the reader.
    meta : TraceMeta
        Description of the recording.
    stage : Stage
        Its rows, which watches `HIP_CALLS`.
    """
    by_name = any(_AMD_DEVICE.search(device.name) for device in meta.devices)
    return reader.startswith(("roc", "rpd")) or by_name or bool(len(stage.watched_rows(HIP_CALLS)))


def repair_late_ends(stage: Stage) -> dict[str, int]:
    """Cut the durations of kernels and copies whose end stamp is damaged, and return their number by quality count.

    A repaired event ends where the next event of its stream begins, or after the longest time that its name takes
    elsewhere, if that is earlier.

    Parameters
    ----------
    stage : Stage
        Rows of the file. It holds ``rank``, ``start_ns``, ``dur_ns``, ``correlation`` and the lane of kernels and
        copies, and watches ``annotations``.
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


def _events(stage: Stage) -> _StampedEvents:
    start = np.concatenate([stage.raw(kind, "start_ns").astype(np.int64) for kind in _KINDS])
    lengths = [np.maximum(stage.raw(kind, "dur_ns").astype(np.int64), 0) for kind in _KINDS]
    launch = np.concatenate([values for kind in _KINDS for values in _parts(stage, kind, "correlation")] or [start])
    following = np.full(len(start), MISSING)
    for lane in by_lane(lambda: (part for kind in _KINDS for part in _parts(stage, kind, LANE))):
        order = lane[np.argsort(start[lane], kind="stable")]
        begins = np.ones(len(order), np.bool_)  # work of another launch than the event before
        begins[1:] = (launch[order[1:]] != launch[order[:-1]]) | (launch[order[1:]] == MISSING)
        firsts = np.append(start[order[begins]], MISSING)
        following[order] = firsts[np.cumsum(begins)]
    return _StampedEvents(start, start + np.concatenate(lengths), following)


def _parts(stage: Stage, kind: str, column: str) -> Iterator[Ints]:
    return (stage.part(kind, column, rows) for rows in row_slices(stage.count(kind)))


def _repaired(stage: Stage, events: _StampedEvents) -> dict[int, int]:
    """Return the repaired durations of the rows that are shown to be damaged; a loop over late rows."""
    duration, last_start = events.end - events.start, int(events.start.max(initial=0))
    # Other ranges may be annotations of a device, which have the stamps of their kernels.
    host_end = max(stage.end_of(("ops", "launches")), int(ends(stage.watched("annotations")).max(initial=0)))
    is_last = events.following == MISSING
    bound = np.where(is_last, max(host_end, last_start), events.following)
    is_late = events.end > bound + _LATE_NS
    if not is_late.any():
        return {}
    all_end = max(host_end, last_start, int(events.end[~is_late].max(initial=0)))
    span = all_end - int(events.start.min())
    after = events.end - np.maximum(all_end, events.start)
    is_beyond = is_late & (2 * after > duration)
    codes: dict[str | None, int] = {}
    names = np.concatenate(list(_names(stage, codes)))
    credible = np.lexsort((duration, names))
    credible = credible[~is_beyond[credible]]
    of_names, durations = names[credible], duration[credible]
    repaired = {}
    for row in np.flatnonzero(is_late).tolist():
        of_name = slice(*np.searchsorted(of_names, (names[row], names[row] + 1)).tolist())
        usual = _usual(durations[of_name], None if is_beyond[row] else int(duration[row]))
        until = int(bound[row] - events.start[row])
        if usual is None:
            is_shown = host_end and after[row] > _OUTLIER * span if is_last[row] else is_beyond[row]
            if is_shown and until > 0:
                repaired[row] = until
            continue
        factor = _OUTLIER if host_end or not is_last[row] else _EXTREME
        typical, longest = usual
        beyond = int(events.end[row]) - (max(all_end, int(bound[row])) if is_last[row] else int(bound[row]))
        if duration[row] > factor * typical and beyond > longest:
            repaired[row] = longest if is_last[row] or until > _OUTLIER * longest else until
    return repaired


def _usual(durations: Ints, left_out: int | None) -> tuple[float, int] | None:
    """Return the median of other events of a name, and the longest that is no outlier; None without other events.

    Parameters
    ----------
    durations : array of int64
        Durations of the name, ascending.
    left_out : int, optional
        A duration among them that does not count.
    """
    count = len(durations) - (left_out is not None)
    if not count:
        return None
    skipped = len(durations) if left_out is None else int(np.searchsorted(durations, left_out))

    def other(i: int) -> int:
        return int(durations[i + (i >= skipped)])

    typical = max((other((count - 1) // 2) + other(count // 2)) / 2, 1.0)
    limit = int(_OUTLIER * typical)  # a float would convert all durations
    usual = int(np.searchsorted(durations, limit, side="right"))
    return typical, other(usual - 1 - (left_out is not None and left_out <= limit))


def _names(stage: Stage, codes: dict[str | None, int]) -> Iterator[Ints]:
    for kind in _KINDS:
        for batch in stage.batches(kind, ["name"]):
            yield text_codes(batch["name"], codes).astype(np.int64)
