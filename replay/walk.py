"""Along a timeline that is known: at which rates its tasks ran, under the sharing of the engine."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.compiled import bare
from replay.engine import DONE_NS
from replay.graph import RESOURCES
from replay.layout import COLUMNS, FAIR
from replay.sharing import seat, share

__all__ = ["Record", "events_of", "no_record", "walk"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_CU, _POWER = RESOURCES.index("cu"), RESOURCES.index("power")


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
    seats = shared.seats
    count, noted, before = 0, 0, 0.0
    for k in range(len(order)):
        task, now = order[k], at[k]
        while count > 0 and before < now:
            short = share(shared, 0, count)
            if noted < len(record.at):
                _note(record, noted, before, shared, count)
                noted += 1
            step = now - before
            for i in range(count):
                row = seats[i]
                if short and row.left > row.resident and row.rate > 0.0:
                    step = min(step, (row.left - row.resident) / row.rate)
            for i in range(count):
                row = seats[i]
                work[row.task] += row.rate * step
                row.left -= row.rate * step
                if row.resident < row.left <= row.resident + DONE_NS:  # to the digit, as in the engine
                    row.left = row.resident
            before = min(before + step, now) if step < now - before else now
        before = now
        if begins[k]:
            seat(shared, 0, count, task)
            count += 1
        else:
            i = 0
            while seats[i].task != task:
                i += 1
            count -= 1
            for j in range(i, count):
                seats[j] = seats[j + 1]
        if count == 0 and noted < len(record.at):
            record.at[noted] = now
            record.use[noted, :] = 0.0
            noted += 1
    return noted


@bare
def _note(record, place, time, shared, count):  # type: ignore[no-untyped-def]
    """Note what the active tasks have in use: compute units as they hold them, the rest as they draw it."""
    record.at[place] = time
    record.use[place, :] = 0.0
    for i in range(count):
        row = shared.seats[i]
        record.use[place, _CU] += row.granted
        record.use[place, _POWER] += row.rate * shared.demand[row.task, _POWER]
        for c in range(COLUMNS):
            # One that is alone has the whole cache.
            asks = row.asks[c] if count > 1 else shared.demand[row.task, FAIR[c]]
            record.use[place, FAIR[c]] += row.rate * asks
