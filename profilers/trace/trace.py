"""`Trace`: the events of a job as a frozen set of Arrow tables, with their description (`TraceMeta`).

`Quality` counts the events that a reader repaired, dropped or could not link; `MEANINGS` lists every such count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pyarrow as pa

from profilers.trace.arrays import integers
from profilers.trace.schema import SCHEMAS, empty_table

#: The meaning of every quality count; readers use no others.
MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "events": "events in the files",
        "kept": "events kept as rows",
        "skipped_flow": "flow arrows and metadata rows (not events; their links are rebuilt from ids)",
        "skipped_marker": "instant markers and profiler spans without content",
        "skipped_text": "values that are text, kept in the arguments of their kernel",
        "skipped_advice": "rules and advice of the profiler (no measurements)",
        "dropped_broken": "events lost because their text could not be decoded",
        "dropped_no_time": "events lost because they have no usable start time",
        "dropped_negative": "events lost because their duration is negative",
        "dropped_no_value": "values of counters lost because they are no number",
        "lost_arguments": "events kept without their arguments, which are nested too deeply",
        "repaired_escape": "events whose text had a bad backslash, repaired",
        "repaired_nan": "values NaN or Infinity, read as missing",
        "repaired_utf8": "files with bytes that are not UTF-8, replaced",
        "repaired_grid": "launches whose grid and block were swapped (rocprofiler-sdk 1.0), repaired",
        "repaired_work_items": "kernels whose grid was in work-items, turned into workgroups",
        "repaired_duration": "kernels whose end overran many later ones of their stream by milliseconds, cut",
        "truncated_files": "files that end early; what was complete is kept",
        "missing_duration": "events without a duration, kept with a null",
        "missing_name": 'events whose name the files do not hold, kept as "unknown"',
        "assumed_start": "events whose start the files do not hold, put after the one before them",
        "missing_columns": "columns that every version of the format has and the files lack, read as missing",
        "damaged_tables": "tables that are damaged; their rows before the damage are kept",
        "orphan_device": "kernels and copies whose launch is not in the trace",
        "orphan_op": "kernels and copies without an operator that launched them",
        "linked_by_external_id": "kernels and copies linked to an operator by a validated External id",
        "external_id_checked": "kernels and copies on which External id was compared with the launch",
        "external_id_wrong": "of those, External id named another operator",
        "duplicate_correlation": "launches that share a correlation id with another of their rank",
        "early_device": "kernels and copies that start before the call that launched them (clock skew)",
        "stream_overlap": "kernels and copies that overlap their predecessor on the same stream",
        "no_iteration": "kernels and copies in no iteration",
        "iterations_without_length": "iterations whose sequence length was not found",
        "collectives": "collective operations on a device",
        "collectives_matched": "of those, matched on every rank of their group that the trace holds",
        "clock_shift_max_ns": "largest clock shift applied to a rank, from matched collectives (ns)",
        "nodes_joined": "nodes of execution traces whose operator or annotation the timeline has",
        "nodes_joined_by_order": "of those, by the order of calls, since the timeline has no record function id",
        "nodes_without_event": "nodes of execution traces that the timeline does not have",
        "ops_without_node": "operators of the timeline that no node of the execution trace describes",
        "counters_joined": "values of counters given to the kernel of the timeline that they were measured on",
        "counters_without_kernel": "values of counters lost because the timeline lacks their kernel",
        "counted_kernels_joined": "kernels with counters that the timeline has",
        "counted_kernels_missing": "kernels with counters that the timeline lacks",
    }
)


@dataclass(frozen=True)
class Quality:
    """Counts by name; a name that is absent counts zero.

    Parameters
    ----------
    counts : mapping of str to int
        Names from `MEANINGS`.

    Examples
    --------
    >>> (Quality({"events": 2}) + Quality({"events": 3}))["events"]
    5
    """

    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := set(self.counts) - set(MEANINGS):
            raise KeyError(f"no such count: {sorted(unknown)}")
        kept = {name: int(self.counts[name]) for name in MEANINGS if self.counts.get(name)}
        object.__setattr__(self, "counts", MappingProxyType(kept))

    def __getitem__(self, name: str) -> int:
        if name not in MEANINGS:
            raise KeyError(name)
        return self.counts.get(name, 0)

    def __add__(self, other: "Quality") -> "Quality":
        names = {*self.counts, *other.counts}
        return Quality({name: self[name] + other[name] for name in names})

    def __reduce__(self) -> tuple[type["Quality"], tuple[dict[str, int]]]:
        return Quality, (dict(self.counts),)

    def rows(self) -> Iterator[tuple[str, int, str]]:
        """Yield (name, count, meaning) of every count that is not zero, in the order of `MEANINGS`."""
        for name, meaning in MEANINGS.items():
            if self[name]:
                yield name, self[name], meaning


@dataclass(frozen=True)
class DeviceProperties:
    """The facts that the profiler wrote of one device; None if it did not write them.

    Parameters
    ----------
    rank : int
        The rank whose file names the device.
    device : int
        Its number on that rank, as kernels refer to it.
    name : str
        As the driver spells it.
    compute_units : int, optional
        Number of SMs or CUs.
    memory_bytes : int, optional
        Size of its memory.
    """

    rank: int
    device: int
    name: str
    compute_units: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class TraceMeta:
    """The description of a trace: its files, ranks, clock, devices and quality.

    Parameters
    ----------
    format : str
        The reader's name, such as ``"kineto"``, or ``"synthetic"``.
    version : str
        Versions of schema and profiler, as the files state them.
    sources : tuple of str
        File names without their folders.
    ranks : tuple of int
        Ranks in the trace, ascending.
    world_size : int, optional
        Number of ranks of the job; the trace may hold fewer.
    clock_base_ns : int
        Time since the Unix epoch at which the clock of the trace is 0; 0 if the files do not state it.
    devices : tuple of DeviceProperties
        Devices of all ranks.
    quality : Quality
        Counts of repaired, dropped and unlinked events.
    fingerprint : str
        Hash of the source files, by which a result names its input.
    """

    format: str
    version: str = ""
    sources: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    world_size: int | None = None
    clock_base_ns: int = 0
    devices: tuple[DeviceProperties, ...] = ()
    quality: Quality = field(default_factory=Quality)
    fingerprint: str = ""

    @property
    def synthetic(self) -> bool:
        """Whether no profiler measured these times."""
        return self.format == "synthetic"


def _table(kind: str, meaning: str) -> property:
    """Return a property of a trace: its table of one kind."""
    return property(lambda trace: trace.tables[kind], doc=meaning)


@dataclass(frozen=True)
class Trace:
    """The events of a job: one Arrow table a kind of event, and their description.

    Parameters
    ----------
    meta : TraceMeta
        Description of the trace.
    tables : mapping of str to pyarrow.Table
        By kind; a kind that is left out has no rows. Schemas are those of `profilers.trace.schema`. A table may lack
        columns, for functions that need only some; a trace that was collected or loaded lacks none.

    Examples
    --------
    >>> trace = Trace(TraceMeta("synthetic"))
    >>> trace.kernels.num_rows
    0
    """

    meta: TraceMeta
    tables: Mapping[str, pa.Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := set(self.tables) - set(SCHEMAS):
            raise KeyError(f"no such kind: {sorted(unknown)}")
        for kind, table in self.tables.items():
            present = set(table.schema.names)
            if not table.schema.equals(pa.schema([field for field in SCHEMAS[kind] if field.name in present])):
                raise TypeError(f"the table {kind!r} has not the schema of its kind")
        full = {kind: self.tables[kind] if kind in self.tables else empty_table(kind) for kind in SCHEMAS}
        object.__setattr__(self, "tables", MappingProxyType(full))

    ops = _table("ops", "Operators of the framework on the host.")
    launches = _table("launches", "Calls of the runtime or driver.")
    kernels = _table("kernels", "Kernels on the devices, those of collectives included.")
    copies = _table("copies", "Memory copies and fills.")
    collectives = _table("collectives", "Collective operations, each pointing to its kernel.")
    syncs = _table("syncs", "Synchronisations as recorded.")
    ranges = _table("ranges", "Annotations, Python functions, overhead.")
    counters = _table("counters", "Values at instants.")
    iterations = _table("iterations", "One row an iteration and rank.")

    def next_id(self) -> int:
        """Return the smallest id above those of all events."""
        tables = [table for kind, table in self.tables.items() if kind != "iterations" and table.num_rows]
        return max((int(integers(table, "id").max()) + 1 for table in tables), default=0)

    def with_tables(self, **tables: pa.Table) -> "Trace":
        """Return a trace in which the named tables are replaced."""
        return replace(self, tables={**self.tables, **tables})

    def with_quality(self, counts: Mapping[str, int]) -> "Trace":
        """Return a trace whose quality has `counts` added."""
        return replace(self, meta=replace(self.meta, quality=self.meta.quality + Quality(counts)))
