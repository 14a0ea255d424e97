"""Measured times of collectives: tables in the layout of Vidur's profiles, checked."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from profilers.devices.catalogue import Device, device_of_file, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import Floats
from replay.costs.collectives.algorithms import KINDS, MOST_BYTES, MOST_WORKERS, Topology

_SUFFIXES = (".parquet", ".csv")
_WORKERS = ("num_workers", "devices_per_node", "max_devices_per_node", "nics")
_HAS_TO = ("size", "num_workers", "devices_per_node", "collective")
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
        """Of four parts, the one of each row: a hash of its size, whatever the other rows are.

        Fits look at parts 0 and 2, intervals at 1, and 3 scores. The hash is the finaliser of splitmix64 (Steele, Lea
        and Flood, OOPSLA 2014).
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
    ``time_stats.<collective>.median``; ``max_devices_per_node`` and ``nics`` (adapters of a node) may be there. In a
    folder, tables with other columns are passed over.

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
    root = Path(path)
    if root.is_dir():
        files = sorted(file for file in root.rglob("*") if file.suffix in _SUFFIXES)
        tables = [(file, table) for file in files if (table := _table(file)) is not None and not _lacks(table)]
        if not tables:
            raise NotFoundError(f"{root}: no table of measured collectives (columns {_NEEDED})")
        return [one for file, table in tables for one in _groups(file, table, device, fabric)]
    if not root.is_file():
        raise NotFoundError(f"{root}: no such file")
    table = _table(root)
    if table is None:
        raise InvalidInputError(f"{root}: cannot be read as a table; give Parquet or CSV")
    if lacks := _lacks(table):
        raise InvalidInputError(f"{root}: no column {lacks}; needed are {_NEEDED}")
    return list(_groups(root, table, device, fabric))


def _table(file: Path) -> pa.Table | None:
    try:
        return pq.ParquetFile(file).read() if file.suffix == ".parquet" else pcsv.read_csv(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None


def _lacks(table: pa.Table) -> str:
    """Return a needed column that is not there."""
    return next((column for column in _HAS_TO if column not in table.column_names), "")


def holds_collectives(columns: Sequence[str]) -> bool:
    """Return whether a table with these columns has the layout that `read_collectives` reads.

    Examples
    --------
    >>> holds_collectives(["size", "num_workers", "devices_per_node", "collective"])
    True
    """
    return set(_HAS_TO) <= set(columns)


def _refuse_doubles(file: Path, table: pa.Table) -> None:
    names = table.column_names
    ours = (*_HAS_TO, *_WORKERS, "device", "fabric", *(f"time_stats.{kind}.median" for kind in KINDS))
    if double := next((name for name in ours if names.count(name) > 1), ""):
        raise InvalidInputError(f"{file}: the column {double} is there {names.count(double)} times; leave one")


def _groups(file: Path, table: pa.Table, device: str | None, fabric: str | None) -> Iterator[MeasuredCollectives]:
    if not len(table):
        raise InvalidInputError(f"{file}: there is no row")
    _refuse_doubles(file, table)
    kinds = _kinds(file, table)
    sizes, workers = _bounded(file, table, "size", MOST_BYTES), _workers(file, table)
    times = _times(file, table, kinds)
    devices = _devices(file, table, device)
    fabrics = _texts(table, "fabric") if "fabric" in table.column_names and fabric is None else [fabric] * len(table)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    rows: dict[tuple[object, ...], list[int]] = {}
    # One pass over the rows, about 1 us each.
    for row, key in enumerate(zip(kinds, devices, fabrics, map(tuple, workers.tolist()), strict=True)):
        rows.setdefault(key, []).append(row)
    for at in rows.values():
        first = at[0]
        one = _device(file, first, devices[first])
        how = _topology(file, first, workers[first], fabrics[first] or _fabric(file, one))
        x, t = _by_size(sizes[at], times[at])
        yield MeasuredCollectives(kinds[first], one, how, x, t, file.name, digest)


def _by_size(sizes: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Return the rows by ascending size, and time where a size repeats."""
    order = np.lexsort((seconds, sizes))
    return sizes[order], seconds[order]


def _kinds(file: Path, table: pa.Table) -> list[str]:
    found = _texts(table, "collective")
    for row, kind in enumerate(found):
        if kind not in KINDS:
            raise InvalidInputError(f"{file}: row {row + 1}: no collective {kind!r}; there are {', '.join(KINDS)}")
    return [str(kind) for kind in found]


def _times(file: Path, table: pa.Table, kinds: list[str]) -> Floats:
    times, of = np.zeros(len(kinds)), np.array(kinds)
    for kind in sorted(set(kinds)):
        name = f"time_stats.{kind}.median"
        if name not in table.column_names:
            raise InvalidInputError(f"{file}: no column {name}; needed are {_NEEDED}")
        at = np.flatnonzero(of == kind)
        times[at] = _positive(file, table, name, at)[at]
        for odd, what in ((times[at] > _MOST_MS, "more than a day"), (times[at] < _LEAST_MS, "less than a nanosecond")):
            if odd.any():
                row = int(at[odd][0])
                raise InvalidInputError(f"{file}: row {row + 1}: {name} is {times[row]:g}, {what}; it must be in ms")
    return times / 1e3


def _bounded(file: Path, table: pa.Table, name: str, most: int) -> Floats:
    values = _positive(file, table, name)
    if len(bad := np.flatnonzero((values < 1) | (values > most))):
        row = int(bad[0])
        raise InvalidInputError(f"{file}: row {row + 1}: {name} is {values[row]:g}; it must be 1 to {most}")
    return values


def _positive(file: Path, table: pa.Table, name: str, at: npt.NDArray[np.int64] | None = None) -> Floats:
    try:
        values = table[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise InvalidInputError(f"{file}: column {name} is no number ({str(error).splitlines()[0]})") from error
    wanted = np.arange(len(values)) if at is None else at
    bad = wanted[~((values[wanted] > 0) & (values[wanted] < np.inf))]
    if len(bad):
        row = int(bad[0])
        raise InvalidInputError(f"{file}: row {row + 1}: {name} is {values[row]:g}; it must be finite and above zero")
    return np.asarray(values, dtype=np.float64)


def _workers(file: Path, table: pa.Table) -> npt.NDArray[np.int64]:
    """Return workers, devices of the group in a node, devices of a node, and its adapters (0: not said)."""
    names = [name if name in table.column_names else "devices_per_node" for name in _WORKERS]
    values = np.column_stack([_bounded(file, table, name, MOST_WORKERS) for name in names])
    if "nics" not in table.column_names:
        values[:, -1] = 0
    bad = np.argwhere(values != np.floor(values))
    if len(bad):
        row, column = bad[0].tolist()
        raise InvalidInputError(f"{file}: row {row + 1}: {names[column]} is {values[row, column]:g}; it must be whole")
    return values.astype(np.int64)


def _topology(file: Path, row: int, workers: npt.NDArray[np.int64], fabric: object) -> Topology:
    n, devices, most, nics = workers.tolist()
    try:
        # A profile says 2 devices a node of a group of 1, too.
        return Topology(n, min(n, devices), most, str(fabric), nics)
    except InvalidInputError as error:
        raise InvalidInputError(f"{file}: row {row + 1}: {error}") from error


def _texts(table: pa.Table, name: str) -> list[object]:
    return list(table[name].to_pylist())


def _devices(file: Path, table: pa.Table, device: str | None) -> list[object]:
    if "device" in table.column_names:
        return _texts(table, "device")
    return [device_of_file(file, device).name] * len(table)


def _device(file: Path, row: int, name: object) -> Device:
    try:
        return find_device(str(name))
    except NotFoundError as error:
        raise InvalidInputError(f"{file}: row {row + 1}: {error}") from error


def _fabric(file: Path, device: Device) -> str:
    if "pairwise" in re.split(r"[^a-z0-9]+", file.stem.lower()):
        return "pairs"
    return "mesh" if device.architecture.startswith("CDNA") else "switch"
