"""The sub-layers that T3 was evaluated on, and the system that they run on."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profilers.datasets import dataset_path
from profilers.devices import Device, find_device, load_devices
from profilers.errors import InvalidInputError, NotFoundError
from profilers.toml_text import read_toml
from replay.sizes import checked_size

__all__ = ["REPLACEMENTS", "SubLayer", "System", "Workload", "find_sublayer", "load_workload"]

_SHOWN = 60
_SYSTEM = (
    "latency_ns",
    "tracker_entries",
    "tile_rows",
    "tile_columns",
    "panels_in_group",
    "slice_depth",
    "block_bytes",
)
#: How a cache chooses what it drops: the least recently used, any, or so that it serves best.
REPLACEMENTS = ("lru", "random", "best")
_TABLES: Mapping[str, Mapping[str, type]] = MappingProxyType(
    {
        "system": {"device": str, **dict.fromkeys(_SYSTEM, int), "replacement": str, "source": str},
        "sublayers": {"factor": int, "title": str, "source": str},
        "models": {"title": str, "hidden": int, "tokens": int, "workers": list, "source": str},
    }
)
#: Workers whose rings are simulated device by device.
_MOST_WORKERS = 256


@dataclass(frozen=True)
class System:
    """A ring of alike GPUs, and how products run on them.

    Parameters
    ----------
    device : Device
        With `link_gbps`: what it sends to one neighbour.
    latency_ns : float
        Of a link.
    tracker_entries : int
        Tiles that a memory controller counts the updates of at one time.
    tile_rows, tile_columns : int
        Of the result, that a workgroup computes; a compute unit holds one workgroup.
    panels_in_group : int
        Rows of tiles that workgroups go over column by column before they come to the next.
    slice_depth : int
        Of the product, for which operands are read at a time.
    block_bytes : int
        In which transfers are read, sent and written.
    replacement : str
        Of the last-level cache: one of `REPLACEMENTS`.
    """

    device: Device
    latency_ns: float = 500.0
    tracker_entries: int = 256
    tile_rows: int = 128
    tile_columns: int = 128
    panels_in_group: int = 8
    slice_depth: int = 128
    block_bytes: int = 2**18
    replacement: str = "random"

    def __post_init__(self) -> None:
        for name in _SYSTEM[1:]:
            object.__setattr__(self, name, checked_size(f"system: {name}", getattr(self, name)))
        if self.replacement not in REPLACEMENTS:
            names = ", ".join(REPLACEMENTS)
            raise InvalidInputError(f"system: no replacement is called {self.replacement!r:.60}; there are {names}")
        if not 0 <= self.latency_ns < float("inf"):
            raise InvalidInputError(f"system: a latency of {self.latency_ns} ns; it is finite and not negative")

    def link_ns(self, size_bytes: float) -> float:
        """Return how long a link carries so many bytes, ns, without its latency."""
        return 1e9 * size_bytes / self.device.link_bytes_per_s

    def memory_ns(self, size_bytes: float) -> float:
        """Return how long the memory takes for so many bytes, ns."""
        return 1e9 * size_bytes / self.device.memory_bytes_per_s


@dataclass(frozen=True)
class SubLayer:
    """A product whose result is reduce-scattered and gathered again over tensor-parallel workers; 2-byte elements.

    Parameters
    ----------
    model, name : str
        Such as ``"t_nlg"`` and ``"fc2"``.
    tokens, hidden, factor, workers : int
        The product of a worker is tokens x hidden x (factor * hidden / workers).
    """

    model: str
    name: str
    tokens: int
    hidden: int
    factor: int
    workers: int

    def __post_init__(self) -> None:
        for size in ("tokens", "hidden", "factor"):
            object.__setattr__(self, size, checked_size(f"{self.label}: {size}", getattr(self, size)))
        object.__setattr__(self, "workers", checked_size(f"{self.label}: workers", self.workers, _MOST_WORKERS))
        if self.workers < 2:
            raise InvalidInputError(f"{self.label}: one worker reduces nothing; give 2 or more")
        if self.factor * self.hidden < self.workers:
            raise InvalidInputError(f"{self.label}: more workers than the product is deep; give fewer")

    @property
    def label(self) -> str:
        """For people and tables, such as ``"t_nlg/fc2/8"``."""
        return f"{self.model}/{self.name}/{self.workers}"

    @property
    def depth(self) -> int:
        """Of a worker's part of the product; what does not divide evenly is cut."""
        return self.factor * self.hidden // self.workers

    @property
    def output_bytes(self) -> int:
        """Of the whole result, which every worker has a partial sum of."""
        return 2 * self.tokens * self.hidden


@dataclass(frozen=True)
class Workload:
    """Sub-layers by their labels, in the order of the file, and the system.

    Parameters
    ----------
    system : System
    sublayers : mapping of str to SubLayer
    """

    system: System
    sublayers: Mapping[str, SubLayer]


def load_workload(path: str | Path | None = None) -> Workload:
    """Read sub-layers from a TOML file in the layout of `datasets/workloads/t3.toml`, by default that one.

    The device is one of the catalogue, or that of `datasets/workloads/t3_device.toml`.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file or device; or it is no such file: the table and the key are named.

    Examples
    --------
    >>> load_workload().sublayers["t_nlg/fc2/8"].depth
    2128
    """
    return _shipped() if path is None else _read(Path(path))


def find_sublayer(label: str, workload: Workload | None = None) -> SubLayer:
    """Return a sub-layer by its label.

    Raises
    ------
    NotFoundError
        There is none of that label; those that are there are listed.
    """
    known = (workload or load_workload()).sublayers
    if label not in known:
        raise NotFoundError(f"no sub-layer {label!r:.60}; there are {', '.join(known)}")
    return known[label]


@cache
def _shipped() -> Workload:
    return _read(dataset_path("workloads/t3.toml"))


def _read(file: Path) -> Workload:
    content = read_toml(file, "sub-layers")
    if sorted(content) != sorted(_TABLES):
        raise InvalidInputError(f"{file}: has tables {', '.join(sorted(content))}; give {', '.join(_TABLES)}")
    try:
        return _workload(content)
    except InvalidInputError as error:
        raise InvalidInputError(f"{file}: {error}") from error


def _workload(content: Mapping[str, Any]) -> Workload:
    given = _checked("system", content["system"], "system")
    devices = load_devices(dataset_path("workloads/t3_device.toml"))
    system = System(find_device(given["device"], devices), **{name: given[name] for name in (*_SYSTEM, "replacement")})
    parts = {name: _checked("sublayers", row, name) for name, row in _rows(content, "sublayers")}
    sublayers = {}
    for name, row in _rows(content, "models"):
        model = _checked("models", row, name)
        for workers in model["workers"]:
            for part, found in parts.items():
                one = SubLayer(name, part, model["tokens"], model["hidden"], found["factor"], workers)
                sublayers[one.label] = one
    return Workload(system, MappingProxyType(sublayers))


def _rows(content: Mapping[str, Any], table: str) -> list[tuple[str, object]]:
    if not isinstance(content[table], dict) or not content[table]:
        raise InvalidInputError(f"no table [{table}.NAME]")
    return list(content[table].items())


def _checked(table: str, row: object, name: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InvalidInputError(f"{table}: {name!r:.60} is no table")
    known = _TABLES[table]
    for key, value in row.items():
        if key not in known or not isinstance(value, known[key]) or isinstance(value, bool):
            text = f"{key} = {value!r}"[:_SHOWN]
            raise InvalidInputError(f"{table}: {name}: {text}; keys are {', '.join(known)}")
    if missing := [key for key in known if key not in row]:
        raise InvalidInputError(f"{table}: {name} lacks {', '.join(missing)}")
    return row
