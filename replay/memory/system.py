"""The memory system of a device: its caches, its DRAM, and what a policy lets them keep.

`MemorySystem` holds the figures. `memory_system` makes it from a device of the catalogue and from
`datasets/caches.toml`, which holds what the catalogue lacks.
"""

from dataclasses import dataclass

from profilers.errors import InvalidInputError
from replay.memory.dram import Dram

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
    """

    name: str
    clock_hz: float
    units: int
    wavefront: int
    l1: Cache
    l2: Cache
    dram: Dram
    dies: int = 1
    llc: Cache | None = None
