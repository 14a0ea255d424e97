"""Measured times of collectives: tables in the layout of Vidur's profiles or of nccl-tests, checked.

A table of nccl-tests has a row a collective, number of ranks and size. `load_systems` says which adapters the nodes of
a named system have.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device, device_of_file, find_device
from profilers.errors import InvalidInputError
from profilers.files import dataset_path, read_toml, typed_tables
from profilers.trace.arrays import Floats, Ints
from replay.calibration.tables import MeasuredTable, read_tables
from replay.costs.architectures import architecture_of
from replay.costs.collectives.algorithms import KINDS, MOST_BYTES, MOST_GBPS, MOST_WORKERS, Topology
from replay.costs.collectives.fits import LIBRARIES

_WORKERS = ("num_workers", "devices_per_node", "max_devices_per_node", "nics")
_REQUIRED = ("size", "num_workers", "devices_per_node", "collective")
_TIME = "time_stats.{}.median"
_NEEDED = "time_stats.<collective>.median (ms), size (bytes), num_workers, devices_per_node, collective"
#: Columns of a table in the layout of nccl-tests, and names there that differ from ours.
_SWEPT = ("collective", "ranks_count", "message_bytes", "time_us")
_SWEPT_KINDS = MappingProxyType({"alltoall": "all_to_all", "sendrecv": "send_recv", **{kind: kind for kind in KINDS}})
_SWEPT_LIBRARIES = MappingProxyType({"custom_allreduce": "custom", **{name: name for name in LIBRARIES}})
#: Settings up to which the Slingshot systems of Argonne use TCP instead of the plug-in for their adapters.
_TCP_SETTINGS = 2
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
    library : str
        One of `replay.costs.collectives.LIBRARIES`.
    """

    kind: str
    device: Device
    topology: Topology
    sizes: Floats
    seconds: Floats
    source: str
    digest: str
    library: str = "nccl"

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

    In the layout of nccl-tests a row has ``collective``, ``ranks_count``, ``message_bytes`` (of the larger buffer) and
    ``time_us``; ``gpu``, ``system`` (a name of `load_systems`, or a device), ``ranks_per_node_count``, ``library`` and
    ``setting_id`` (settings of the library) may be there.

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
    return any(set(layout) <= set(columns) for layout in (_REQUIRED, _SWEPT))


def _groups(file: Path, device: str | None, fabric: str | None) -> list[MeasuredCollectives] | str:
    """Return the groups of a table; or the reason why the file has another layout."""
    table = MeasuredTable.read(file)
    if table is None:
        return MeasuredTable.UNREADABLE
    if set(_SWEPT) <= set(table.columns):
        return _swept_groups(table, device, fabric)
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
                kinds[first], group_device, topology, sizes[order], times[order], file.name, table.digest, "torch"
            )
        )
    return groups


def _swept_groups(table: MeasuredTable, device: str | None, fabric: str | None) -> list[MeasuredCollectives]:
    """Return the groups of a table in the layout of nccl-tests."""
    if not len(table.content):
        raise InvalidInputError(f"{table.file}: there is no row")
    optional = ("gpu", "system", "cluster", "ranks_per_node_count", "library", "implementation", "setting_id")
    table.refuse_doubles((*_SWEPT, *optional))
    kinds = table.texts("collective", _SWEPT_KINDS, "collective")
    sizes = table.numbers("message_bytes", (1, MOST_BYTES))
    times = table.numbers("time_us", (1e3 * _LEAST_MS, 1e3 * _MOST_MS)) / 1e6
    workers = table.numbers("ranks_count", (1, MOST_WORKERS), whole=True).astype(np.int64)
    here = workers
    if "ranks_per_node_count" in table.columns:
        here = table.numbers("ranks_per_node_count", (1, MOST_WORKERS), whole=True).astype(np.int64)
    systems, devices = _systems(table), _swept_devices(table, device)
    settings = table.floats("setting_id") if "setting_id" in table.columns else np.full(len(kinds), np.nan)
    labels = [
        devices,
        systems,
        kinds,
        _libraries(table),
        workers.tolist(),
        here.tolist(),
        settings.astype(str).tolist(),
    ]
    rows: dict[tuple[str, ...], list[int]] = {}
    for row, key in enumerate(zip(*labels, strict=True)):  # one pass over the rows, about 1 us each
        rows.setdefault(key, []).append(row)
    groups: dict[tuple[str, str, Topology, str], list[int]] = {}
    for (name, system, kind, library, n, each, setting), at in rows.items():
        found = find_device(str(name))
        try:
            topology = _swept_topology(
                str(system), (int(n), int(each)), float(setting), fabric or _fabric(table.file, found)
            )
        except InvalidInputError as error:
            raise table.refusal(at[0], error, *((row, error) for row in at[1:])) from error
        groups.setdefault((_SWEPT_KINDS[kind], found.name, topology, library), []).extend(at)
    measured = []
    for (group_kind, device_name, group_topology, group_library), at in groups.items():
        order = np.array(at)[np.lexsort((times[at], sizes[at]))]
        group = (group_kind, find_device(device_name), group_topology, sizes[order], times[order])
        measured.append(MeasuredCollectives(*group, table.file.name, table.digest, group_library))
    return measured


def _swept_topology(system: str, ranks: tuple[int, int], setting: float, fabric: str) -> Topology:
    """Return the group of a row: the adapters of a known system, which only traffic between nodes uses."""
    n, here = ranks
    known = load_systems().get(system)
    if known is None or n <= here:
        return Topology(n, min(n, here), max(known.devices if known else 0, min(n, here)), fabric)
    topology = known.topology(n, here)
    if topology.network != "slingshot" or np.isnan(setting):
        return topology
    network = "ethernet" if setting <= _TCP_SETTINGS else topology.network
    return replace(topology, network=f"{network}:{setting:g}")


def _systems(table: MeasuredTable) -> npt.NDArray[np.object_]:
    """Return the name of the known system of each row, or an empty text."""
    names = {name.lower(): name for name in load_systems()}
    for column in ("system", "cluster"):
        if column in table.columns:
            return np.array([names.get(text.lower(), "") for text in table.texts(column)], dtype=object)
    return np.full(len(table.content), "", dtype=object)


def _swept_devices(table: MeasuredTable, device: str | None) -> npt.NDArray[np.object_]:
    """Return the device of each row: by the option, by a column, or by the file's name."""
    column = next((name for name in ("device", "gpu", "system") if name in table.columns), None)
    if device is not None or column is None:
        return np.full(len(table.content), device_of_file(table.file, device).name, dtype=object)
    names = table.texts(column)
    devices = table.devices(names)
    return np.array([devices[name].name for name in names], dtype=object)


def _libraries(table: MeasuredTable) -> npt.NDArray[np.object_]:
    """Return the library of each row; an implementation that launches kernel by kernel is a library of its own."""
    if "library" not in table.columns:
        return np.full(len(table.content), "nccl", dtype=object)
    names = [_SWEPT_LIBRARIES[name] for name in table.texts("library", _SWEPT_LIBRARIES, "library")]
    if "implementation" in table.columns:
        eager = [text.endswith("eager") for text in table.texts("implementation")]
        pairs = zip(names, eager, strict=True)
        names = ["custom_eager" if name == "custom" and is_eager else name for name, is_eager in pairs]
    return np.array(names, dtype=object)


def _times(table: MeasuredTable, kinds: npt.NDArray[np.object_]) -> Floats:
    """Return the median of each row, in s."""
    times = np.zeros(len(kinds))
    for kind in sorted(set(kinds)):
        name, rows = _TIME.format(kind), kinds == kind
        if name not in table.columns:
            raise InvalidInputError(f"{table.file}: no column {name}; needed are {_NEEDED}")
        times[rows] = table.numbers(name, (0, np.inf), rows=rows)[rows]
        for odd, what in ((times > _MOST_MS, "more than a day"), (times < _LEAST_MS, "less than a nanosecond")):
            bad = np.flatnonzero(odd & rows).tolist()
            table.refuse([(row, f"{name} is {times[row]:g}, {what}; it must be in ms") for row in bad])
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
    if architecture_of(device.architecture).mesh:
        return "mesh"
    return "switch" if "link_gbps" in device.figures else "pcie"


class System(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A usual system, as `datasets/systems.toml` holds it.

    Parameters
    ----------
    device : str
        Name of its device in the catalogue.
    devices, nics : int
        Devices of a node, and its network adapters for traffic between them.
    nic_gbps : float
        Bandwidth of an adapter, one way, GB/s.
    network : str
        One of `NETWORKS`, or ``""``.
    source : str
        Where the figures are from.
    """

    device: str
    devices: int
    nics: int
    nic_gbps: float
    network: str
    source: str

    def topology(self, n_workers: int, devices_per_node: int = 0, settings: str = "") -> Topology:
        """Return a group on this system; by default it fills nodes.

        Examples
        --------
        >>> group = load_systems()["Polaris"].topology(2160)
        >>> group.nodes, group.nics, group.network
        (540, 2, 'slingshot')
        """
        here = devices_per_node or min(n_workers, self.devices)
        network = f"{self.network}:{settings}" if settings else self.network
        return Topology(n_workers, here, self.devices, nics=self.nics, nic_gbps=self.nic_gbps, network=network)


@cache
def load_systems() -> Mapping[str, System]:
    """Return the usual systems by name.

    Examples
    --------
    >>> load_systems()["DGX H100"].topology(80).nodes
    10
    """
    file = dataset_path("systems.toml")
    return MappingProxyType(typed_tables(read_toml(file, "systems"), "systems", System, file))
