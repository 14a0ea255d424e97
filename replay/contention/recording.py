"""Recordings of kernels and copies that ran alone, and side by side, on one device.

A `ContentionRecording` holds works (`RecordedTask`): kernels or copies with their sizes. Each work was timed alone.
Each `RecordedScenario` runs several works side by side; `linked_groups` and `fold_of` decide which scenarios
are fitted and which are scored, so that the same works are never on both sides.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from profilers.errors import InvalidInputError
from replay.graph.operators import DTYPE_BYTES

#: Kinds of works, with the class that kernels of the kind have in a trace.
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
        # Independent multiplications and additions, bound by arithmetic as products are.
        "fma": "gemm",
        # A stand-in on one device, which waits for a flag and then copies.
        "collective": "copy",
    }
)
#: Kinds whose launches all use one buffer. Each launch of the other kinds has operands of its own
#: (benchmarks/gpu/README.md).
REUSING = ("read", "update")
#: Kinds that only move data, with the engine that carries them.
TRANSFERS: Mapping[str, str] = MappingProxyType(
    {"copy_engine": "copy engine", "copy_kernel": "SM copies", "zero_copy": "SM copies", "collective": "SM copies"}
)


@dataclass(frozen=True)
class DeviceFacts:
    """The properties of a recorded device; None if unknown.

    Parameters
    ----------
    name : str
        Name, as the driver gives it.
    vendor, architecture : str
        Vendor and architecture; empty if unknown.
    compute_units, memory_bytes, l2_bytes, copy_engines : int, optional
        Number of compute units, size of memory and of the last-level cache, and number of copy engines.
    threads_per_unit : int, optional
        Threads that a compute unit holds at once.
    is_cpu : bool
        Whether a CPU was recorded in place of a GPU.
    """

    name: str
    vendor: str = ""
    architecture: str = ""
    compute_units: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    copy_engines: int | None = None
    threads_per_unit: int | None = None
    is_cpu: bool = False


@dataclass(frozen=True)
class RecordedTask:
    """A kernel or copy that was recorded; its sizes are those of one launch, and count each operand once.

    Parameters
    ----------
    name, kind, dtype : str
        Name, kind (one of `KINDS`) and data type.
    m, n, k : int
        Shape of the operation; 1 for dimensions that it does not have.
    flops, bytes_read, bytes_written : int
        FLOP, and bytes read from and written to device memory.
    host_bytes : int
        Bytes across the link to the host.
    direction : str
        Direction of a copy: ``"h2d"``, ``"d2h"``, ``"d2d"`` or empty.
    workgroups : int
        Workgroups of the grid; 0 if unknown.
    workgroup_size : int
        Threads of a workgroup; 0 if unknown.
    hint : str
        ``"streaming"`` if it asks the cache to keep none of its data, ``"l1"`` if it asks for L1 in the place of shared
        memory.
    registers, shared_bytes : int
        Registers of a thread, and shared memory of a workgroup; 0 if unknown. `resident` tells which.
    resident : int
        Workgroups that an empty compute unit holds, as the driver says; 0 if unknown.
    kernel : str
        Name of the kernel; empty if unknown.
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
    workgroup_size: int = 0
    hint: str = ""
    registers: int = 0
    shared_bytes: int = 0
    resident: int = 0
    kernel: str = ""

    @property
    def bytes_moved(self) -> int:
        """Bytes read from and written to device memory."""
        return self.bytes_read + self.bytes_written

    @property
    def working_set_bytes(self) -> float:
        """Bytes that successive launches use again: the buffer of `REUSING` kinds, infinite for the others."""
        return float(max(self.bytes_read, self.bytes_written)) if self.kind in REUSING else float("inf")

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the data type."""
        return DTYPE_BYTES.get(self.dtype, 4)


@dataclass(frozen=True)
class RecordedMember:
    """A work as it ran beside others in a scenario; see `benchmarks/gpu/README.md`.

    Parameters
    ----------
    work : str
        Name of the work.
    launches : int
        Number of successive launches on the member's stream.
    priority : int
        Priority of the stream; higher is dispatched first.
    units : int
        Compute units reserved for the member; 0 if it has no partition of its own.
    lag_ns : int
        Delay of the first launch.
    """

    work: str
    launches: int = 1
    priority: int = 0
    units: int = 0
    lag_ns: int = 0


@dataclass(frozen=True)
class RecordedRun:
    """Ends of the members of a scenario in one repetition.

    Parameters
    ----------
    take : int
        Number of the recording session.
    end_ns : tuple of int
        End of each member, from the first start.
    """

    take: int
    end_ns: tuple[int, ...]


@dataclass(frozen=True)
class RecordedScenario:
    """Works that ran side by side under a sharing policy.

    Parameters
    ----------
    group, name, policy : str
        Group, name and sharing policy. Scenarios of one group run the same works.
    members : tuple of RecordedMember
        Works that ran side by side, each on a stream of its own.
    runs : tuple of RecordedRun
        Repetitions, by take.
    """

    group: str
    name: str
    policy: str
    members: tuple[RecordedMember, ...]
    runs: tuple[RecordedRun, ...]

    @cached_property
    def ends_ns(self) -> tuple[float, ...]:
        """End of each member from the first start: median over repetitions, then over takes."""
        takes = [np.median([r.end_ns for r in runs], axis=0) for runs in self._by_take]
        return tuple(np.median(takes, axis=0).tolist())

    @cached_property
    def measured_ns(self) -> float:
        """Time until all members are done: median over repetitions, then over takes."""
        return float(np.median(self._medians))

    @cached_property
    def spread(self) -> float:
        """Relative difference between takes, or the central 80 % of the repetitions if there is one take.

        Predictions of this scenario cannot be checked more finely.
        """
        if len(self._medians) > 1:
            return float((max(self._medians) - min(self._medians)) / np.median(self._medians))
        times = [max(run.end_ns) for run in self.runs]
        return float(np.diff(np.quantile(times, (0.1, 0.9)))[0] / np.median(times))

    @property
    def takes(self) -> int:
        """Number of takes."""
        return len(self._by_take)

    @cached_property
    def _by_take(self) -> list[list[RecordedRun]]:
        return [[r for r in self.runs if r.take == take] for take in sorted({r.take for r in self.runs})]

    @cached_property
    def _medians(self) -> list[float]:
        return [float(np.median([max(run.end_ns) for run in runs])) for runs in self._by_take]


@dataclass(frozen=True)
class ContentionRecording:
    """A checked recording of one device.

    Parameters
    ----------
    source : str
        Name of the folder.
    device : DeviceFacts
        Properties of the device.
    works : mapping of str to RecordedTask
        Works by name.
    alone : mapping of (work, units, take) to mapping of int to float
        Median duration alone in ns, by number of successive launches. `units` is 0 for all compute units.
    scenarios : tuple of RecordedScenario
        Scenarios of works side by side.
    digest : str
        SHA-256 of the tables.
    """

    source: str
    device: DeviceFacts
    works: Mapping[str, RecordedTask]
    alone: Mapping[tuple[str, int, int], Mapping[int, float]]
    scenarios: tuple[RecordedScenario, ...]
    digest: str

    def alone_ns(self, work: str, launches: int = 1, units: int = 0) -> float:
        """Return the isolated duration of some launches of a work: the median over takes.

        If that number of launches was not measured, the nearest measured number is scaled in proportion.

        Parameters
        ----------
        work : str
            Name of the work.
        launches : int
            Number of successive launches.
        units : int
            Number of compute units; 0 for all.

        Raises
        ------
        InvalidInputError
            The work was never measured alone on that number of compute units.
        """
        durations = []
        for times in self._times_by_units.get((work, units), ()):
            nearest = min(times, key=lambda count: (abs(np.log(count / launches)), count))
            durations.append(times[nearest] * launches / nearest)
        if not durations:
            raise InvalidInputError(f"{self.source}: {work} was not measured alone on {units or 'all'} compute units")
        return float(np.median(durations))

    def units_alone(self, work: str) -> tuple[int, ...]:
        """Return the numbers of compute units, other than all, on which a work was measured alone."""
        return self._units.get(work, ())

    def launches_alone(self, work: str, units: int) -> int:
        """Return the smallest number of launches of a work that was measured alone on that number of compute units."""
        return min(launches for times in self._times_by_units[work, units] for launches in times)

    @cached_property
    def _times_by_units(self) -> dict[tuple[str, int], list[Mapping[int, float]]]:
        """Durations alone, one mapping per take, by work and compute units."""
        by_units: dict[tuple[str, int], list[Mapping[int, float]]] = {}
        for (work, units, _), times in self.alone.items():
            by_units.setdefault((work, units), []).append(times)
        return by_units

    @cached_property
    def _units(self) -> dict[str, tuple[int, ...]]:
        """Numbers of compute units, other than all, by work."""
        counts: dict[str, tuple[int, ...]] = {}
        for work, units in sorted(self._times_by_units):
            counts[work] = (*counts.get(work, ()), *([units] if units else []))
        return counts

    def digests_of(self, scenario: RecordedScenario) -> tuple[str, str]:
        """Return digests of a scenario's group and of its works, by which a fit recognises scenarios that it has seen.

        A second recording of the same works on the same device is recognised under any name of its group.
        """
        works = "\n".join(sorted({member.work for member in scenario.members}))
        keys = (f"{self.device.name}\n{scenario.group}", f"{self.device.name}\nworks\n{works}")
        return hashlib.sha256(keys[0].encode()).hexdigest()[:16], hashlib.sha256(keys[1].encode()).hexdigest()[:16]


def linked_groups(recordings: Sequence[ContentionRecording]) -> Mapping[str, str]:
    """Label each group with the first name in its connected component.

    Groups are linked if they run the same set of works, in any recording. No set of works is then both fitted and
    scored.
    """
    root: dict[str, str] = {}

    def label(group: str) -> str:
        while root[group] != group:
            # Halving the path keeps long chains of groups short for later calls.
            root[group] = group = root[root[group]]
        return group

    group_of_works: dict[frozenset[str], str] = {}
    # A pass over the scenarios, about 2 us each.
    for recording in recordings:
        for scenario in recording.scenarios:
            root.setdefault(scenario.group, scenario.group)
            works = frozenset(member.work for member in scenario.members)
            linked = label(scenario.group), label(group_of_works.setdefault(works, scenario.group))
            root[max(linked)] = min(linked)
    return {group: label(group) for group in root}


def fold_of(label: str, folds: int) -> int:
    """Return the fold of a component of groups, by a hash of its label, so that no measured time decides.

    Parameters
    ----------
    label : str
        Label of the component, as `linked_groups` returns it.
    folds : int
        Number of folds, 2 or more.

    Raises
    ------
    InvalidInputError
        There are fewer than two folds.

    Examples
    --------
    >>> sorted({fold_of(str(i), 2) for i in range(20)})
    [0, 1]
    """
    if folds < 2:
        raise InvalidInputError(f"{folds} folds; give 2 or more, so that fitted and scored scenarios differ")
    return int(hashlib.sha256(label.encode()).hexdigest(), 16) % folds
