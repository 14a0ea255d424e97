"""Along a timeline that is known: at which rates its tasks ran, under the sharing of the engine."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.compiled import bare
from replay.engine import DONE_NS
from replay.graph import RESOURCES
from replay.layout import COLUMNS
from replay.sharing import share

__all__ = ["Record", "events_of", "no_record", "walk"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_CU, _POWER = RESOURCES.index("cu"), RESOURCES.index("power")
_FAIR = tuple(i for i, name in enumerate(RESOURCES) if name not in ("cu", "power"))


class Record(NamedTuple):
    """Room for what is in use from one change to the next, four rows a task: come, last wave, gone, idle; or none."""

    at: Floats
    use: Floats  #: shape (rows, len(RESOURCES))


def no_record() -> Record:
    """Return room for nothing."""
    return Record(np.zeros(0), np.zeros((0, len(RESOURCES))))


def events_of(times: tuple[Floats, Floats], rows: Ints, arrival: npt.NDArray[Any]) -> tuple[Ints, Any, Floats]:
    """Return the starts and ends of the tasks `rows` of a device in the order of time.

    Parameters
    ----------
    times : (start, end)
        Of all tasks.
    rows : array of int64
    arrival : array
        Of each of them: which came first, of those that start at one time.

    Returns
    -------
    task, begins, time : arrays
    """
    both = np.concatenate([rows, rows])
    begins = np.arange(len(both)) < len(rows)
    at = np.where(begins, times[0][both], times[1][both])
    order = np.lexsort((both, np.concatenate([arrival, arrival]), begins, at))
    return both[order], begins[order], at[order]


@bare
def walk(events, shared, work, record):  # type: ignore[no-untyped-def]
    """Add rate times time of the tasks of one device to `work`; note what is in use, and return how many rows."""
    order, begins, at = events
    rows, active = shared.rows, shared.walked
    count, noted, before = 0, 0, 0.0
    for k in range(len(order)):
        task, now = order[k], at[k]
        while count > 0 and before < now:
            short = share(shared, active, 0, count)
            if noted < len(record.at):
                _note(record, noted, before, shared, active, count)
                noted += 1
            step = now - before
            for i in range(count):
                row = rows[active[i]]
                if short and row.left > row.resident and row.rate > 0.0:
                    step = min(step, (row.left - row.resident) / row.rate)
            for i in range(count):
                row = rows[active[i]]
                work[active[i]] += row.rate * step
                row.left -= row.rate * step
                if row.resident < row.left <= row.resident + DONE_NS:  # to the digit, as in the engine
                    row.left = row.resident
            before = min(before + step, now) if step < now - before else now
        before = now
        if begins[k]:
            i = count
            while i > 0 and rows[active[i - 1]].priority < rows[task].priority:
                active[i] = active[i - 1]
                i -= 1
            active[i] = task
            count += 1
        else:
            i = 0
            while active[i] != task:
                i += 1
            count -= 1
            for j in range(i, count):
                active[j] = active[j + 1]
        if count == 0 and noted < len(record.at):
            record.at[noted] = now
            record.use[noted, :] = 0.0
            noted += 1
    return noted


@bare
def _note(record, place, time, shared, active, count):  # type: ignore[no-untyped-def]
    """Note what the active tasks have in use: compute units as they hold them, the rest as they draw it."""
    record.at[place] = time
    record.use[place, :] = 0.0
    for i in range(count):
        row, seat = shared.rows[active[i]], shared.seats[i]
        record.use[place, _CU] += row.granted
        record.use[place, _POWER] += row.rate * row.power
        for c in range(COLUMNS):
            # A task alone keeps no seat.
            record.use[place, _FAIR[c]] += row.rate * (seat.asks[c] if count > 1 else row.use[c])
