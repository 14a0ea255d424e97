"""`Trace`: the events of a job as a frozen set of Arrow tables, with their description (`TraceMeta`)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from textwrap import wrap
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from profilers.trace.arrays import MISSING, integers
from profilers.trace.kernels import ClassRule, classify
from profilers.trace.quality import WARNING, Quality, QualityNote, quality_notes
from profilers.trace.schema import SCHEMAS, empty_table

#: Names of a list that a trace shows of itself; characters of a name, and of a line without its heading.
_SHOWN, _NAME, _COLUMNS = 5, 60, 86


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
    context : tuple of int
        Iterations that a slice holds only because the steps of the others begin in them.
    class_rules : tuple of ClassRule
        A user's own classes of kernels, which come before those of `profilers.trace.kernels`.
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
    context: tuple[int, ...] = ()
    class_rules: tuple[ClassRule, ...] = ()

    def class_of(self, name: str) -> str:
        """Return the class of a kernel of this trace by its name."""
        return classify(name, self.class_rules)

    @property
    def represents_others(self) -> bool:
        """Whether ranks of the trace were left out, which the ranks here represent: they meet without them."""
        return self.quality["ranks_left_out"] > 0

    @property
    def synthetic(self) -> bool:
        """Whether no profiler measured these times, or some of them."""
        return "synthetic" in self.format.split("+")


def _some(names: Sequence[object]) -> str:
    """Return the first few of some names, and the number of the others."""
    texts = [text if len(text) <= _NAME else f"{text[: _NAME - 3]}..." for text in map(str, names[:_SHOWN])]
    while len(texts) > 1 and len(", ".join(texts)) > _COLUMNS - len(" and 1,000,000 more"):
        texts.pop()
    more = f" and {len(names) - len(texts):,} more" if len(names) > len(texts) else ""
    return ", ".join(texts) + more


def _printable(text: str) -> str:
    """Return a text that fits a line, without control characters, which names of files may have."""
    shown = "".join(character if character.isprintable() else "?" for character in text[: 4 * _COLUMNS])
    return shown if len(shown) <= _COLUMNS else f"{shown[: _COLUMNS - 3]}..."


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

    def __repr__(self) -> str:
        rows = [f"{count:,} {kind}" for kind, count in self._rows().items() if kind != "iterations"]
        warnings = _some([f"{note.count} ({note.n:,})" for note in self.warnings])
        lines = [f"  {name}: {_printable(text)}" for name, text in self._facts().items() if text]
        lines += wrap(", ".join(rows), _COLUMNS, initial_indent="  rows: ", subsequent_indent=" " * 8)
        lines += [f"  warnings: {_printable(warnings)}"] if warnings else []
        return "\n".join([f"Trace: {self._title()}", *lines])

    def _repr_html_(self) -> str:
        facts = [f"{name}: {_printable(text)}" for name, text in self._facts().items() if text]
        facts += [f"warning: {note.count} ({note.n:,}): {note.meaning}" for note in self.warnings[:_SHOWN]]
        rows = "".join(f"<tr><td>{kind}</td><td>{count:,}</td></tr>" for kind, count in self._rows().items())
        head = "<tr><th>rows of</th><th>number</th></tr>"
        table = f'<table border="0" class="dataframe">{head}{rows}</table>' if rows else ""
        paragraphs = "".join(f"<p>{escape(fact)}</p>" for fact in facts)
        return f"<div><h4>Trace: {escape(self._title())}</h4>{paragraphs}{table}</div>"

    def _title(self) -> str:
        return _printable(f"{self.meta.format} {self.meta.version}".strip())

    def _rows(self) -> dict[str, int]:
        """Return the number of rows of each kind that has some."""
        return {kind: table.num_rows for kind, table in self.tables.items() if table.num_rows}

    @property
    def warnings(self) -> list[QualityNote]:
        """What readers lost or repaired, as far as figures follow from it."""
        return [note for note in quality_notes(self.meta.quality, self._rows()) if note.severity == WARNING]

    def _facts(self) -> dict[str, str]:
        """Return what a trace says of itself, a line each, by name."""
        meta, numbers = self.meta, np.unique(integers(self.iterations, "iteration"))
        devices = Counter(device.name or "unnamed" for device in meta.devices)
        return {
            "files": _some(meta.sources),
            "ranks": _some(meta.ranks) + (f" of {meta.world_size}" if meta.world_size else ""),
            "devices": _some([f"{count} x {name}" for name, count in devices.items()]),
            "iterations": f"{len(numbers):,}, {numbers[0]} to {numbers[-1]}" if len(numbers) else "none",
        }

    def next_id(self) -> int:
        """Return the smallest id above those of all events."""
        tables = [table for kind, table in self.tables.items() if kind != "iterations" and table.num_rows]
        return max((int(integers(table, "id").max()) + 1 for table in tables), default=0)

    def with_tables(self, **tables: pa.Table) -> "Trace":
        """Return a trace in which the named tables are replaced."""
        return replace(self, tables={**self.tables, **tables})

    def without_context(self) -> "Trace":
        """Return the trace without the events of a slice that are not of the iterations asked for."""
        if not self.meta.context:
            return self
        known = {kind: integers(table, "iteration") for kind, table in self.tables.items()}
        masks = {kind: (n != MISSING) & ~np.isin(n, self.meta.context) for kind, n in known.items()}
        return self.with_tables(**{kind: table.filter(pa.array(masks[kind])) for kind, table in self.tables.items()})

    def with_quality(self, counts: Mapping[str, int]) -> "Trace":
        """Return a trace whose quality has `counts` added."""
        return replace(self, meta=replace(self.meta, quality=self.meta.quality + Quality(counts)))
