"""Recordings of kernels that ran side by side.

`ContentionRecording`: works that were measured alone, and side by side, on one device.

Which scenarios are fitted and which are scored: by group, so that the same works are never on both sides.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType

import numpy as np

from profilers.errors import InvalidInputError
from replay.graph.operators import DTYPE_BYTES

#: Architecture of a device that is a program (`benchmarks/gpu/virtual`).
SIMULATED = "virtual"
#: What a work can be, and the class that the profiler's kernels of that kind have.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "gemm": "gemm",
        "copy_kernel": "copy",
        "copy_engine": "copy",
        "zero_copy": "copy",
        "elementwise": "elementwise",
        "softmax": "softmax",
        "read": "reduction",
        "update": "elementwise",
    }
)
#: Works that go over one buffer again and again; launches of the others find other operands each
#: (benchmarks/gpu/README.md).
REUSING = ("read", "update")
#: Works that only move data, and what carries them.
TRANSFERS: Mapping[str, str] = MappingProxyType(
    {"copy_engine": "copy engine", "copy_kernel": "SM copies", "zero_copy": "SM copies"}
)


@dataclass(frozen=True)
class DeviceFacts:
    """What a recording says of its device; None is not known.

    Parameters
    ----------
    name : str
    vendor, architecture : str
        Empty where not known.
    compute_units, memory_bytes, l2_bytes, copy_engines : int, optional
    """

    name: str
    vendor: str = ""
    architecture: str = ""
    compute_units: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    copy_engines: int | None = None


@dataclass(frozen=True)
class RecordedWork:
    """What one launch does; sizes in bytes count each operand once.

    Parameters
    ----------
    name, kind, dtype : str
        `kind` is one of `KINDS`.
    m, n, k : int
    flops, bytes_read, bytes_written : int
        `bytes_read` and `bytes_written` of the device's memory.
    host_bytes : int
        Across the link to the host.
    direction : str
        ``"h2d"``, ``"d2h"``, ``"d2d"`` or empty.
    workgroups : int
        0 where not known.
    hint : str
        ``"streaming"`` where it asks that nothing of it is kept in a cache.
    """

    name: str
    kind: str
    dtype: str
    m: int
    n: int
    k: int
    flops: int
    bytes_read: int
    bytes_written: int
    host_bytes: int = 0
    direction: str = ""
    workgroups: int = 0
    hint: str = ""

    @property
    def bytes_moved(self) -> int:
        """Of the device's memory."""
        return self.bytes_read + self.bytes_written

    @property
    def working_set_bytes(self) -> float:
        """What launches behind each other go over: their own buffer in `REUSING`, else so many that no cache helps."""
        return float(max(self.bytes_read, self.bytes_written)) if self.kind in REUSING else float("inf")

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return DTYPE_BYTES.get(self.dtype, 4)


@dataclass(frozen=True)
class AloneTime:
    """How long some launches of a work took with nothing beside them.

    Parameters
    ----------
    launches : int
    median_ns : float
        Over the repetitions of a take.
    spread : float
        Central 80 % of the repetitions over the median.
    repetitions : int
    """

    launches: int
    median_ns: float
    spread: float
    repetitions: int


@dataclass(frozen=True)
class RecordedMember:
    """A work that ran beside others; see `benchmarks/gpu/README.md`."""

    work: str
    launches: int = 1
    priority: int = 0
    units: int = 0
    lag_ns: int = 0


@dataclass(frozen=True)
class RecordedRun:
    """When the members of a scenario began and ended, once.

    Parameters
    ----------
    take, repetition : int
    start_ns, end_ns : tuple of int
        By member, from the first start.
    """

    take: int
    repetition: int
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]


@dataclass(frozen=True)
class RecordedScenario:
    """Works side by side under a policy.

    Parameters
    ----------
    group, name, policy, part : str
        Scenarios of one group do the same work.
    members : tuple of RecordedMember
    runs : tuple of RecordedRun
    """

    group: str
    name: str
    policy: str
    part: str
    members: tuple[RecordedMember, ...]
    runs: tuple[RecordedRun, ...]

    @cached_property
    def ends_ns(self) -> tuple[float, ...]:
        """By member, from the first start: median over repetitions, then over takes."""
        takes = [np.median([r.end_ns for r in runs], axis=0) for runs in self._by_take]
        return tuple(np.median(takes, axis=0).tolist())

    @cached_property
    def measured_ns(self) -> float:
        """Until all are done: median over repetitions, then over takes."""
        return float(np.median(self._medians))

    @cached_property
    def spread(self) -> float:
        """How far takes differ, over their median; of one take, the central 80 % of its repetitions.

        No claim about this scenario is finer than that.
        """
        if len(self._medians) > 1:
            return share_between_takes(self._medians)
        times = [max(run.end_ns) for run in self.runs]
        return float(np.diff(np.quantile(times, (0.1, 0.9)))[0] / np.median(times))

    @property
    def takes(self) -> int:
        """How often it was recorded."""
        return len(self._by_take)

    @cached_property
    def _by_take(self) -> list[list[RecordedRun]]:
        return [[r for r in self.runs if r.take == take] for take in sorted({r.take for r in self.runs})]

    @cached_property
    def _medians(self) -> list[float]:
        return [float(np.median([max(run.end_ns) for run in runs])) for runs in self._by_take]


def share_between_takes(times: Sequence[float]) -> float:
    """Return the largest less the smallest, over the median.

    Examples
    --------
    >>> share_between_takes([100.0, 104.0, 100.0])
    0.04
    """
    return float((max(times) - min(times)) / np.median(times))


@dataclass(frozen=True)
class ContentionRecording:
    """A recording of one device, checked.

    Parameters
    ----------
    source : str
        Name of its folder.
    device : DeviceFacts
    works : mapping of str to RecordedWork
    alone : mapping of (work, units, take) to tuple of AloneTime
        One a number of launches, ascending; `units` is 0 for all.
    scenarios : tuple of RecordedScenario
    digest : str
        SHA-256 of its tables.
    """

    source: str
    device: DeviceFacts
    works: Mapping[str, RecordedWork]
    alone: Mapping[tuple[str, int, int], tuple[AloneTime, ...]]
    scenarios: tuple[RecordedScenario, ...]
    digest: str

    def alone_ns(self, work: str, launches: int = 1, units: int = 0) -> float:
        """Return how long launches of a work take alone: the median over takes.

        Where that number was not measured, the nearest that was, in proportion.

        Raises
        ------
        InvalidInputError
            It was never measured alone on so many compute units.
        """
        found = []
        for times in (self.alone[key] for key in self._places.get((work, units), ())):
            near = min(times, key=lambda one: (abs(np.log(one.launches / launches)), one.launches))
            found.append(near.median_ns * launches / near.launches)
        if not found:
            raise InvalidInputError(f"{self.source}: {work} was not measured alone on {units or 'all'} compute units")
        return float(np.median(found))

    def units_alone(self, work: str) -> tuple[int, ...]:
        """Return the numbers of compute units, below all, on which a work was measured alone."""
        return self._units.get(work, ())

    def launches_alone(self, work: str, units: int) -> int:
        """Return the least number of launches with which a work was measured alone on so many compute units."""
        return min(time.launches for key in self._places[work, units] for time in self.alone[key])

    @cached_property
    def _places(self) -> dict[tuple[str, int], list[tuple[str, int, int]]]:
        found: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
        for key in self.alone:
            found.setdefault(key[:2], []).append(key)
        return found

    @cached_property
    def _units(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for work, units in sorted(self._places):
            found[work] = (*found.get(work, ()), *([units] if units else []))
        return found

    def digests_of(self, scenario: RecordedScenario) -> tuple[str, str]:
        """Return what tells a scenario's group, and its works, on such a device: by these a fit knows what it has seen.

        A second recording of the same works on such a device counts as the same, whatever its groups are called.
        """
        works = "\n".join(sorted({member.work for member in scenario.members}))
        keys = (f"{self.device.name}\n{scenario.group}", f"{self.device.name}\nworks\n{works}")
        group, same = (hashlib.sha256(key.encode()).hexdigest()[:16] for key in keys)
        return group, same


def kin_of(recordings: Sequence[ContentionRecording]) -> Mapping[str, str]:
    """Return for each group the first, by name, of those that it must not be parted from.

    Groups that run the same set of works belong together, whatever they are called, in all recordings.
    """
    root: dict[str, str] = {}

    def find(one: str) -> str:
        while root[one] != one:
            # Each step halves the way for the next, so that a long chain is not walked for every group of it.
            root[one] = one = root[root[one]]
        return one

    first: dict[frozenset[str], str] = {}
    # A pass over the scenarios, about 2 us each.
    for recording in recordings:
        for scenario in recording.scenarios:
            root.setdefault(scenario.group, scenario.group)
            works = frozenset(member.work for member in scenario.members)
            a, b = sorted((find(scenario.group), find(first.setdefault(works, scenario.group))))
            root[b] = a
    return {group: find(group) for group in root}


def fold_of(kin: str, folds: int) -> int:
    """Return which of so many parts a group and all its kin belong to: by a hash, so no time is looked at.

    Raises
    ------
    InvalidInputError
        There are fewer than two parts.

    Examples
    --------
    >>> sorted({fold_of(str(i), 2) for i in range(20)})
    [0, 1]
    """
    if folds < 2:
        raise InvalidInputError(f"{folds} parts; what is fitted and what is scored are two at least")
    return int(sha256(kin.encode()).hexdigest(), 16) % folds
