"""`Trace`: the events of a job as Arrow tables, frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from profilers.quality import Quality
from profilers.schema import COMMON, KINDS, SCHEMAS, empty_table

__all__ = ["DeviceProperties", "Trace", "TraceMeta"]


@dataclass(frozen=True)
class DeviceProperties:
    """What the profiler wrote of one device; None where it did not say.

    Parameters
    ----------
    rank : int
        The rank whose file names the device.
    device : int
        Its number on that rank, as kernels refer to it.
    name : str
        As the driver spells it.
    compute_units : int, optional
        SMs or CUs.
    memory_bytes : int, optional
    """

    rank: int
    device: int
    name: str
    compute_units: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class TraceMeta:
    """Where a trace came from and on what clock it stands.

    Parameters
    ----------
    format : str
        The reader's name, such as ``"kineto"``, or ``"synthetic"``.
    version : str
        What the files say of their schema and profiler.
    sources : tuple of str
        File names without their folders.
    ranks : tuple of int
    world_size : int, optional
        Ranks of the job, which can be more than the trace holds.
    clock_base_ns : int
        What to add to a time to get the Unix epoch, where the files say.
    devices : tuple of DeviceProperties
    quality : Quality
    fingerprint : str
        Of the source files, so that a result can name what it stands on.
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


@dataclass(frozen=True)
class Trace:
    """The events of a job: one Arrow table a kind, and where they came from.

    Parameters
    ----------
    meta : TraceMeta
    tables : mapping of str to pyarrow.Table
        By kind; a kind that is left out has no rows. Schemas are those of `profilers.schema`. A table may lack
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
            own = set(table.schema.names)
            if not table.schema.equals(pa.schema([field for field in SCHEMAS[kind] if field.name in own])):
                raise TypeError(f"the table {kind!r} has not the schema of its kind")
        full = {kind: self.tables[kind] if kind in self.tables else empty_table(kind) for kind in SCHEMAS}
        object.__setattr__(self, "tables", MappingProxyType(full))

    @property
    def ops(self) -> pa.Table:
        """Operators of the framework on the host."""
        return self.tables["ops"]

    @property
    def launches(self) -> pa.Table:
        """Calls of the runtime or driver."""
        return self.tables["launches"]

    @property
    def kernels(self) -> pa.Table:
        """Kernels on the devices, those of collectives included."""
        return self.tables["kernels"]

    @property
    def copies(self) -> pa.Table:
        """Memory copies and fills."""
        return self.tables["copies"]

    @property
    def collectives(self) -> pa.Table:
        """Collective operations, each pointing to its kernel."""
        return self.tables["collectives"]

    @property
    def syncs(self) -> pa.Table:
        """Synchronisations as recorded."""
        return self.tables["syncs"]

    @property
    def ranges(self) -> pa.Table:
        """Annotations, Python functions, overhead."""
        return self.tables["ranges"]

    @property
    def counters(self) -> pa.Table:
        """Values at instants."""
        return self.tables["counters"]

    @property
    def iterations(self) -> pa.Table:
        """One row an iteration and rank."""
        return self.tables["iterations"]

    def with_tables(self, **tables: pa.Table) -> "Trace":
        """Return a trace in which the named tables are replaced."""
        return replace(self, tables={**self.tables, **tables})

    def with_quality(self, counts: Mapping[str, int]) -> "Trace":
        """Return a trace whose quality has `counts` added."""
        return replace(self, meta=replace(self.meta, quality=self.meta.quality + Quality(counts)))

    def events(self) -> pa.Table:
        """Return the union of all kinds: the common columns and ``kind``, ordered by start and id."""
        names = [column.name for column in COMMON]
        parts = [_with_kind(self.tables[kind].select(names), kind) for kind in KINDS]
        return pa.concat_tables(parts).combine_chunks().sort_by([("start_ns", "ascending"), ("id", "ascending")])


def _with_kind(table: pa.Table, kind: str) -> pa.Table:
    column: Any = pa.array([kind] * table.num_rows, pa.string())
    plain = table.set_column(table.schema.get_field_index("name"), "name", table["name"].cast(pa.string()))
    return plain.append_column("kind", column)
