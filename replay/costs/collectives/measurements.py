"""Measured times of collectives: tables in the layout of Vidur's profiles, checked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device, device_of_file, find_device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from replay.calibration.tables import MeasuredTable, read_tables
from replay.costs.collectives.algorithms import KINDS, MOST_BYTES, MOST_GBPS, MOST_WORKERS, Topology

_WORKERS = ("num_workers", "devices_per_node", "max_devices_per_node", "nics")
_REQUIRED = ("size", "num_workers", "devices_per_node", "collective")
_TIME = "time_stats.{}.median"
_NEEDED = "time_stats.<collective>.median (ms), size (bytes), num_workers, devices_per_node, collective"
#: Beyond a day, and below a nanosecond, a time is in another unit.
_LEAST_MS, _MOST_MS = 1e-6, 86_400_000.0


@dataclass(frozen=True)
class MeasuredCollectives:
    """Measurements of one collective by one group of workers.

    Parameters
    ----------
    kind : str
        One of `replay.costs.collectives.KINDS`.
    device : Device
        Device of every worker.
    topology : Topology
        Group of workers that was measured.
    sizes, seconds : array of float64, shape (n,)
        Bytes of a worker's whole buffer, ascending; medians over repetitions and over ranks.
    source : str
        Name of the file.
    digest : str
        SHA-256 of the file, by which a fit remembers what it has seen.
    """

    kind: str
    device: Device
    topology: Topology
    sizes: Floats
    seconds: Floats
    source: str
    digest: str

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def part(self) -> npt.NDArray[np.int64]:
        """The part of each row, 0 to 3, by a hash of its size.

        Curves are fitted to parts 0 and 2, intervals to part 1, and part 3 scores. The hash is the finaliser of
        splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
        """
        mixed = self.sizes.astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return np.asarray((mixed ^ (mixed >> np.uint64(31))) % np.uint64(4), dtype=np.int64)


def read_collectives(
    path: str | Path, device: str | None = None, fabric: str | None = None
) -> list[MeasuredCollectives]:
    """Read a table of measured collectives, or all those in a folder.

    A row is a collective of `num_workers` devices, of `size` bytes, with its median time in ms in the column
    ``time_stats.<collective>.median``; ``max_devices_per_node``, ``nics`` (adapters of a node) and ``nic_gbps`` (GB/s
    of an adapter, one way) may be there. In a folder, tables with other columns are passed over.

    Parameters
    ----------
    path : str or Path
        CSV file of measured collectives, or a folder of such files.
    device : str, optional
        Its name, where neither a column ``device`` nor the file's name (``a100_dgx.csv``) says it.
    fabric : str, optional
        One of `replay.costs.collectives.FABRICS`; by default that of a column ``fabric``, else pairs where the
        file's name has the word ``pairwise``, a mesh on AMD's Instinct, else a switch.

    Raises
    ------
    NotFoundError
        There is no such file, no table in the folder, or no such device as the given one.
    InvalidInputError
        A column is missing or there twice, the device is not known, or a value cannot be: the message names file and
        row.
    """
    if device is not None:
        find_device(device)
    return read_tables(
        path,
        partial(_groups, device=device, fabric=fabric),
        suffixes=MeasuredTable.SUFFIXES,
        table=f"table of measured collectives (columns {_NEEDED})",
    )


def holds_collectives(columns: Sequence[str]) -> bool:
    """Return whether a table with these columns has the layout that `read_collectives` reads.

    Examples
    --------
    >>> holds_collectives(["size", "num_workers", "devices_per_node", "collective"])
    True
    """
    return set(_REQUIRED) <= set(columns)


def _groups(file: Path, device: str | None, fabric: str | None) -> list[MeasuredCollectives] | str:
    """Return the groups of a table; or the reason why the file has another layout."""
    table = MeasuredTable.read(file)
    if table is None:
        return MeasuredTable.UNREADABLE
    if missing := next((column for column in _REQUIRED if column not in table.columns), ""):
        return f"no column {missing}; needed are {_NEEDED}"
    if not len(table.content):
        raise InvalidInputError(f"{file}: there is no row")
    table.refuse_doubles((*_REQUIRED, *_WORKERS, "nic_gbps", "device", "fabric", *map(_TIME.format, KINDS)))
    kinds = table.texts("collective", KINDS, "collective")
    sizes, workers, times = table.numbers("size", (1, MOST_BYTES)), _workers(table), _times(table, kinds)
    has_rates = "nic_gbps" in table.columns
    rates = table.numbers("nic_gbps", (0, MOST_GBPS)) if has_rates else np.zeros(len(kinds))
    named = "device" in table.columns
    names = table.texts("device") if named else np.full(len(kinds), device_of_file(file, device).name, dtype=object)
    devices = table.devices(names)
    fabrics = [fabric] * len(kinds)
    if fabric is None and "fabric" in table.columns:
        fabrics = table.content["fabric"].to_pylist()
    rows: dict[tuple[object, ...], list[int]] = {}
    # One pass over the rows, about 1 us each.
    for row, key in enumerate(zip(kinds, names, fabrics, map(tuple, workers.tolist()), rates, strict=True)):
        rows.setdefault(key, []).append(row)
    groups = []
    for at in rows.values():
        first = at[0]
        group_device = devices[names[first]]
        fabric_here = fabrics[first] or _fabric(file, group_device)
        topology = _topology(table, first, (*workers[first].tolist(), float(rates[first])), fabric_here)
        order = np.array(at)[np.lexsort((times[at], sizes[at]))]
        groups.append(
            MeasuredCollectives(
                kinds[first], group_device, topology, sizes[order], times[order], file.name, table.digest
            )
        )
    return groups


def _times(table: MeasuredTable, kinds: npt.NDArray[np.object_]) -> Floats:
    """Return the median of each row, in s."""
    times = np.zeros(len(kinds))
    for kind in sorted(set(kinds)):
        name, rows = _TIME.format(kind), kinds == kind
        if name not in table.columns:
            raise InvalidInputError(f"{table.file}: no column {name}; needed are {_NEEDED}")
        times[rows] = table.numbers(name, (0, np.inf), rows=rows)[rows]
        for odd, what in ((times > _MOST_MS, "more than a day"), (times < _LEAST_MS, "less than a nanosecond")):
            if len(bad := np.flatnonzero(odd & rows)):
                raise table.refusal(int(bad[0]), f"{name} is {times[bad[0]]:g}, {what}; it must be in ms")
    return times / 1e3


def _workers(table: MeasuredTable) -> Ints:
    """Return workers, devices of the group in a node, devices of a node, and its adapters (0: unknown)."""
    names = [name if name in table.columns else "devices_per_node" for name in _WORKERS]
    values = np.column_stack([table.numbers(name, (1, MOST_WORKERS), whole=True) for name in names])
    if "nics" not in table.columns:
        values[:, -1] = 0
    return values.astype(np.int64)


def _topology(table: MeasuredTable, row: int, group: tuple[int, int, int, int, float], fabric: object) -> Topology:
    n, devices, most, nics, rate = group
    try:
        # A profile says 2 devices a node of a group of 1, too.
        return Topology(n, min(n, devices), most, str(fabric), nics, rate)
    except InvalidInputError as error:
        raise table.refusal(row, error) from error


def _fabric(file: Path, device: Device) -> str:
    """Return the fabric that the file's name or the device's architecture suggests."""
    if "pairwise" in re.split(r"[^a-z0-9]+", file.stem.lower()):
        return "pairs"
    return "mesh" if device.architecture.startswith("CDNA") else "switch"
