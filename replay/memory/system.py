"""The memory system of a device: its caches, its DRAM, and what a policy lets them keep.

`MemorySystem` holds the figures. `memory_system` makes it from a device of the catalogue and from
`datasets/caches.toml`, which holds what the catalogue lacks. `CachePolicy` says what caches keep, as data.
`load_policies` reads `datasets/cache_policies.toml` and a user's file of the same layout.
"""

import difflib
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from os import PathLike
from pathlib import Path

import msgspec

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml, shipped_table, typed_table
from replay.memory.dram import Dram, find_dram, scaled_dram

REPLACEMENTS = ("lru", "plru", "rrip", "random")


@dataclass(frozen=True)
class Cache:
    """A sectored, set-associative cache.

    Parameters
    ----------
    size : int
        Bytes of all slices together; of one compute unit, for an L1 cache.
    ways : int
        Lines of a set.
    line_bytes, sector_bytes : int
        Bytes of a line, and of the part of it that is filled at a time.
    slices : int
        Slices that serve different addresses at the same time; 1 for an L1 cache.
    replacement : str
        One of `REPLACEMENTS`: least recently used, tree pseudo-LRU, re-reference interval prediction, random.
    latency : int
        Cycles of a hit.
    line_cycles : float
        Cycles in which a slice serves a line.
    misses : int
        Misses that a slice keeps outstanding (MSHRs).
    hashed : bool
        Whether a XOR hash of the higher bits of the address chooses the set, so that strides of powers of two spread.

    Raises
    ------
    InvalidInputError
        Sizes do not fit each other, or the replacement is unknown or cannot work with the ways.
    """

    size: int
    ways: int
    line_bytes: int
    sector_bytes: int
    slices: int = 1
    replacement: str = "lru"
    latency: int = 100
    line_cycles: float = 1.0
    misses: int = 256
    hashed: bool = True

    def __post_init__(self) -> None:
        if min(self.size, self.ways, self.slices, self.misses) < 1:
            raise InvalidInputError(f"a cache of {self.size} bytes, {self.ways} ways and {self.slices} slices")
        if self.replacement not in REPLACEMENTS:
            raise InvalidInputError(f"replacement {self.replacement!r}; one of {', '.join(REPLACEMENTS)}")
        if self.replacement == "plru" and self.ways & (self.ways - 1):
            raise InvalidInputError(f"a cache of {self.ways} ways with plru: its tree needs a power of two")
        if self.sets < 1:
            raise InvalidInputError(
                f"a cache of {self.size} bytes has no room for {self.ways} ways of {self.line_bytes} bytes "
                f"in {self.slices} slices"
            )

    @property
    def sets(self) -> int:
        """Sets of a slice."""
        return self.size // (self.ways * self.line_bytes * self.slices)


@dataclass(frozen=True)
class MemorySystem:
    """The caches and the DRAM of a device.

    Parameters
    ----------
    name : str
        Name of the device.
    clock_hz : float
        Clock of compute units and caches.
    units : int
        Compute units.
    wavefront : int
        Threads of a wavefront.
    l1 : Cache
        L1 cache of a compute unit.
    l2 : Cache
        L2 cache of a die.
    dies : int
        Dies, each with its own L2 cache; compute unit u is on die ``u % dies``.
    llc : Cache, optional
        Last-level cache on the side of the memory, which all dies share.
    dram : Dram
        Memory.
    memory_latency : int
        Cycles from a miss of the last cache to its data, when nothing else waits.
    """

    name: str
    clock_hz: float
    units: int
    wavefront: int
    l1: Cache
    l2: Cache
    dram: Dram
    memory_latency: int = 300
    dies: int = 1
    llc: Cache | None = None

    def scaled(self, cache: str, factor: float) -> "MemorySystem":
        """Return the system with one of its caches larger or smaller: more or fewer sets, the same ways.

        Parameters
        ----------
        cache : str
            ``"l1"``, ``"l2"`` or ``"llc"``.
        factor : float
            New bytes over old; the sets are rounded to a whole number, at least one.

        Raises
        ------
        InvalidInputError
            The device has no such cache.
        """
        old: Cache | None = getattr(self, cache)
        if old is None:
            raise InvalidInputError(f"{self.name} has no last-level cache behind its L2 in the catalogue (llc_mb)")
        way_bytes = old.ways * old.line_bytes * old.slices
        new = replace(old, size=max(round(old.sets * factor), 1) * way_bytes)
        if cache == "l1":
            return replace(self, l1=new)
        return replace(self, l2=new) if cache == "l2" else replace(self, llc=new)


class _CacheTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cache of `datasets/caches.toml`, whose head explains its keys."""

    ways: int
    line_bytes: int
    sector_bytes: int
    latency: int
    line_cycles: float
    misses: int
    source: str
    certainty: str
    kb: int = 0
    slices: int = 1

    def cache(self, size: float) -> Cache:
        return Cache(
            int(size), self.ways, self.line_bytes, self.sector_bytes, self.slices,
            latency=self.latency, line_cycles=self.line_cycles, misses=self.misses,
        )  # fmt: skip


class _ArchitectureTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    wavefront: int
    die_units: int
    memory_latency: int
    dram: str
    l1: _CacheTable
    l2: _CacheTable
    llc: _CacheTable | None = None
    mapping: str = "xor"


class _CachesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    drams: dict[str, str]
    architectures: dict[str, _ArchitectureTable]


@cache
def _shipped() -> _CachesFile:
    return shipped_table("caches.toml", "caches", _CachesFile)


@lru_cache(64)
def memory_system(device: Device) -> MemorySystem:
    """Return the memory system of a device.

    Sizes of L2 and last-level cache, clock, compute units and bandwidth are the catalogue's. Ways, lines, slices and
    latencies are those of the architecture (`datasets/caches.toml`). The DRAM has as many channels as give the
    bandwidth of the catalogue.

    Parameters
    ----------
    device : Device
        Device of the catalogue.

    Raises
    ------
    NotFoundError
        The caches of its architecture are not known.
    InvalidInputError
        The catalogue lacks a figure that is needed.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> system = memory_system(find_device("MI300X"))
    >>> system.dies, system.l2.size // 2**20, system.llc.size // 2**20
    (8, 4, 256)
    """
    tables = _shipped()
    table = tables.architectures.get(device.architecture)
    if table is None:
        known = ", ".join(sorted(tables.architectures))
        raise NotFoundError(
            f"the caches of {device.name} ({device.architecture}) are unknown; those of {known} are (caches.toml)"
        )
    dies = device.compute_units // table.die_units if table.die_units else 1
    last = "llc_mb" in device.figures and table.llc is not None
    dram = scaled_dram(find_dram(tables.drams.get(device.name, table.dram)), device.memory_bytes_per_s)
    return MemorySystem(
        name=device.name,
        clock_hz=device.value("clock_mhz") * 1e6,
        units=device.compute_units,
        wavefront=table.wavefront,
        l1=table.l1.cache(table.l1.kb * 2**10),
        l2=table.l2.cache(device.value("l2_mb") * 2**20 / max(dies, 1)),
        dram=dram.with_mapping(table.mapping),
        memory_latency=table.memory_latency,
        dies=max(dies, 1),
        llc=table.llc.cache(device.value("llc_mb") * 2**20) if last and table.llc else None,
    )


class CachePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the caches of a device keep: a row of `datasets/cache_policies.toml`.

    Parameters
    ----------
    name : str
        Name, such as ``"CacheRW"``.
    loads : bool
        Whether loads are kept in L1 and L2; otherwise they bypass both.
    stores : bool
        Whether stores are combined in the L2, and written back on eviction or at the end of the kernel; otherwise they
        go to memory at once.
    allocation_bypass : bool
        Whether an access bypasses a cache in whose set all ways wait for memory; otherwise it stalls (AB).
    rinse : bool
        Whether the eviction of a dirty line also writes back the dirty lines of the same DRAM row (CR).
    operand_bypass : bool
        Whether loads and stores of an instruction without reuse bypass the L2 (PCby).
    adaptive : bool
        Whether a kernel measures the choices of loads and stores on a few sets, and the rest follows the best.
    waits_at_end : bool
        Whether a kernel ends when its dirty lines are written back; otherwise they go to memory beside later kernels.
    about : str
        One sentence, with the source.
    """

    name: str
    loads: bool
    stores: bool
    allocation_bypass: bool = False
    rinse: bool = False
    operand_bypass: bool = False
    adaptive: bool = False
    waits_at_end: bool = True
    about: str = ""


def load_policies(path: str | PathLike[str] | None = None) -> dict[str, CachePolicy]:
    """Return the shipped policies, and those of a user's file, which go before shipped ones of the same name.

    Parameters
    ----------
    path : str or path, optional
        TOML file: a list ``policies`` of tables with the keys of `CachePolicy`.

    Raises
    ------
    NotFoundError
        The file is missing.
    InvalidInputError
        The file is no TOML, or a policy lacks a key, has an unknown one, or has the name of another of the file.

    Examples
    --------
    >>> list(load_policies())[:3]
    ['Device', 'Uncached', 'CacheR']
    """
    shipped = _read_policies(dataset_path("cache_policies.toml"))
    return shipped if path is None else shipped | _read_policies(Path(path))


def find_policy(name: str, path: str | PathLike[str] | None = None) -> CachePolicy:
    """Return the policy of a name; case does not matter.

    Parameters
    ----------
    name : str
        Name of a policy.
    path : str or path, optional
        A user's file of policies, as of `load_policies`.

    Raises
    ------
    NotFoundError
        There is no such policy, the message gives the nearest; or no such file.
    InvalidInputError
        As of `load_policies`.

    Examples
    --------
    >>> find_policy("cacherw-ab").allocation_bypass
    True
    """
    policies = load_policies(path)
    by_case = {policy.casefold(): policy for policy in policies}
    if name in policies or name.casefold() in by_case:
        return policies.get(name) or policies[by_case[name.casefold()]]
    near = difflib.get_close_matches(name.casefold(), list(by_case), 3, 0.4)
    listed = ", ".join(by_case[key] for key in near) or ", ".join(policies)
    raise NotFoundError(f"no cache policy is called {name[:60]!r}; nearest: {listed}; others can be given in a file")


def _read_policies(path: Path) -> dict[str, CachePolicy]:
    """Return the policies of a file by name."""
    content = read_toml(path, "cache policies")
    rows = content.get("policies")
    if set(content) != {"policies"} or not isinstance(rows, list) or not rows:
        raise InvalidInputError(f"{path}: a file of cache policies holds a list 'policies', and nothing else")
    policies: dict[str, CachePolicy] = {}
    for number, row in enumerate(rows, 1):
        table = typed_table(row, CachePolicy, f"{path}: policy {number}")
        if table.name in policies:
            raise InvalidInputError(f"{path}: policy {number} is called {table.name!r}, as is one before it")
        policies[table.name] = table
    return policies
