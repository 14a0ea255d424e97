"""Launches that waited for room in the launch queue, and what they would have taken without that."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING
from profilers.columns import lookup

__all__ = ["unblocked_ns"]

Ints = npt.NDArray[np.int64]

#: Calls that put one piece of work into the launch queue, and block while it is full.
_LAUNCHES = re.compile(r"^(?!.*(?:Graph|HostFunc)).*Launch")
# These limits are chosen, not fitted: of 53 real traces none shows a full queue and none is found; in synthetic jobs
# with queues of 300 to 1024 launches it is (tests/test_steady.py).
#: A launch took long if it took so many times what short launches of its rank take (their 5th percentile).
_TIMES = 3
#: The queue was full if at least `_WAITING` launches waited, and of the launches that found as many waiting as ever, to
#: `_NEARLY`, at least `_SEEN` and the share `_MOST` took long: a queue that is not full blocks none.
_WAITING, _NEARLY, _SEEN, _MOST = 256, 0.99, 8, 0.75
#: The queue was full all along if so many launches waited, and this share of all launches found as many as ever. Then
#: every launch blocked, and none shows what a launch takes: 3 to 6 us in the traces at hand (ns).
_FULL, _ALWAYS, _LAUNCH_NS = 512, 0.5, 5000


def unblocked_ns(
    calls: Mapping[str, Ints], names: npt.NDArray[np.object_], work: Mapping[str, npt.NDArray[Any]]
) -> Ints:
    """Return for each call that found the launch queue full what it would have taken otherwise, in ns; 0 for others.

    Work without a launch that starts before the first other work of its stream was launched before the recording, and
    waits in the queue until then.

    Parameters
    ----------
    calls : mapping of str to array
        Columns id, rank, start, end and name, an index into `names`.
    names : array of str
    work : mapping of str to array
        Columns launch_id, rank, device, stream and start of kernels and copies, ordered by start.
    """
    launches = np.array([_LAUNCHES.search(str(name)) is not None for name in names], dtype=bool)[calls["name"]]
    unblocked = np.zeros(len(calls["id"]), dtype=np.int64)
    row = lookup(calls["id"], np.arange(len(calls["id"])), work["launch_id"])
    for rank in np.unique(calls["rank"]).tolist():
        mine = np.flatnonzero(launches & (calls["rank"] == rank))
        rows = np.flatnonzero(work["rank"] == rank)
        rows = rows[(row[rows] != MISSING) | _before_recording(work, rows, row)]
        if not len(mine) or not len(rows):
            continue
        known = row[rows][row[rows] != MISSING]
        until, took = calls["end"][mine], (calls["end"] - calls["start"])[mine]
        launched = len(rows) - len(known) + np.searchsorted(np.sort(calls["start"][known]), until)
        waiting = launched - np.searchsorted(np.sort(work["start"][rows]), until)
        short = max(int(np.percentile(took, 5)), 1)
        many = (waiting >= _WAITING) & (waiting >= _NEARLY * waiting.max())
        long = took >= _TIMES * short
        if waiting.max() >= _FULL and many.mean() >= _ALWAYS:
            unblocked[mine[many & (took > _LAUNCH_NS)]] = min(short, _LAUNCH_NS)
        elif many.sum() >= _SEEN and long[many].mean() >= _MOST:
            unblocked[mine[long & many]] = short
    return unblocked


def _before_recording(work: Mapping[str, npt.NDArray[Any]], rows: Ints, launch: Ints) -> npt.NDArray[np.bool_]:
    """Return which rows of one rank have no launch and start before the first row of their stream that has one."""
    before = np.zeros(len(rows), dtype=bool)
    places = np.stack([work["device"][rows], work["stream"][rows]], axis=1)
    for number in np.unique(places, axis=0).tolist():  # a few streams
        here = np.flatnonzero((places == number).all(axis=1))
        linked = np.flatnonzero(launch[rows[here]] != MISSING)
        before[here[: linked[0]] if len(linked) else here[:0]] = True
    return before
