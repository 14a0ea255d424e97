"""Communication of devices as a table: the same columns, words and notes in every command."""

from collections.abc import Iterable, Sequence

from profilers.trace.activity import COMMUNICATION_KEYS, DeviceTimes
from seqpoint.notebook import Table
from seqpoint.units import duration

#: Rank, number (None if the trace does not number it) and times of a device.
DeviceRow = tuple[int, int | None, DeviceTimes]
_LEGEND = (
    "Waiting: every collective on the device waits for another rank. Transfer: the rest of communication. "
    "Exposed: nothing but collectives is on the device. Hidden: beside other work."
)
#: Keys whose figure is a lower, or an upper, bound while the last rank of some collectives is unknown.
_AT_LEAST, _AT_MOST = ("waiting_ns", "exposed_waiting_ns"), ("transfer_ns", "exposed_transfer_ns")


def device_text(device: int | None) -> str:
    """Return the number of a device for a table; a dash if the trace does not number it."""
    return "-" if device is None else str(device)


def communication_table(title: str, rows: Iterable[DeviceRow]) -> Table:
    """Return the communication of devices as text; devices without collectives are left out.

    Parameters
    ----------
    title : str
        Title that names the span of the figures.
    rows : iterable of (int, int or None, DeviceTimes)
        Rank, number and times of each device.

    Examples
    --------
    >>> table = communication_table("Communication", [(0, None, DeviceTimes(5e3, 4e3, 3e3, 2e3, 2e3, 2, 1))])
    >>> table.names[2:5], table.rows
    (('communication', 'waiting', 'transfer'),
     [(0, '-', '4 us', '≥ 1 us', '≤ 3 us', '2 us', '2 us', '≥ 0 ns', '≤ 2 us')])
    """
    columns = ("rank", "device", *(key.removesuffix("_ns").replace("_", " ") for key in COMMUNICATION_KEYS))
    cells = [(rank, device_text(device), *_cells(times)) for rank, device, times in rows if times.collectives]
    return Table(title, columns, cells, note=_LEGEND)


def _cells(times: DeviceTimes) -> list[str]:
    partly = 0 < times.unmatched < times.collectives
    cells = []
    for key, value in times.row().items():
        bound = "" if not partly else "≥ " if key in _AT_LEAST else "≤ " if key in _AT_MOST else ""
        cells.append("-" if value is None else bound + duration(value))
    return cells


def communication_notes(rows: Sequence[DeviceRow], ranks: int, world_size: int | None) -> list[str]:
    """Return a note on the collectives whose last rank is unknown, if there are any.

    Parameters
    ----------
    rows : sequence of (int, int or None, DeviceTimes)
        Rank, number and times of each device.
    ranks : int
        Number of ranks in the trace.
    world_size : int, optional
        Number of ranks of the job, if the trace says.
    """
    unmatched, collectives = (sum(getattr(row[2], name) for row in rows) for name in ("unmatched", "collectives"))
    if not unmatched:
        return []
    if world_size and world_size > ranks:
        why = f"{world_size - ranks} of {world_size} ranks are absent"
    else:
        why = "the trace does not show all ranks of their groups on one clock"
    return [f"{unmatched:,} of {collectives:,} collectives: {why}, so their waiting is unknown and inside transfer"]
