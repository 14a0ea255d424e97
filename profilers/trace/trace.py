"""`Trace`: the events of a job as a frozen set of Arrow tables, with their description (`TraceMeta`).

`Quality` counts the events that a reader repaired, dropped or could not link. `count_rules` lists every count with its
meaning, its consequence for the figures, and advice; `datasets/quality.toml` holds them. `quality_notes` applies the
rules to a trace: a count that is a small share of its total is fine, a large one is a note or a warning.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from html import escape
from textwrap import wrap
from types import MappingProxyType

import msgspec
import numpy as np
import pyarrow as pa

from profilers.files import dataset_path, read_toml, typed_table
from profilers.trace.arrays import MISSING, integers
from profilers.trace.kernels import ClassRule, classify
from profilers.trace.schema import SCHEMAS, empty_table

#: How much a count matters, from least to most.
SEVERITIES = ("fine", "note", "warning")
FINE, NOTE, WARNING = SEVERITIES
NOTHING = "nothing to do"


class CountRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Meaning of a count, what follows from it, and what to do.

    Parameters
    ----------
    meaning : str
        What is counted; ``{}`` stands for the subject of a count such as ``unread_device[CATEGORY]``.
    consequence : str
        Effect on the figures.
    advice : str
        What to do.
    severity : str
        One of `SEVERITIES`, for a count above zero or above the limit.
    of : str
        Total that the count is compared with: a kind of event, ``"device work"`` (kernels and copies), or another
        count; "" for none.
    limit : float
        Share of the total up to which the count is fine.
    within : str
        Consequence of a count within the limit; `consequence` by default.
    less : str
        Count that is subtracted before the share is taken.
    """

    meaning: str
    consequence: str
    advice: str = NOTHING
    severity: str = FINE
    of: str = ""
    limit: float = -1.0
    within: str = ""
    less: str = ""


_DEVICE = "device work"


@cache
def count_rules() -> Mapping[str, CountRule]:
    """Return the rule of every quality count; readers use no other counts."""
    file = dataset_path("quality.toml")
    content = read_toml(file, "rules of counts")
    return MappingProxyType({name: typed_table(rule, CountRule, f"{file}: {name}") for name, rule in content.items()})


def _rule(name: str) -> str:
    """Return the name of a count without its subject."""
    return name.partition("[")[0]


def _order(name: str) -> tuple[int, str]:
    """Return a sort key in the order of the rules."""
    return list(count_rules()).index(_rule(name)), name


@dataclass(frozen=True)
class Quality:
    """Counts by name; a name that is absent counts zero.

    Parameters
    ----------
    counts : mapping of str to int
        Names from `count_rules`; a name may have a subject in brackets, which tells counts of one rule apart.

    Examples
    --------
    >>> (Quality({"events": 2}) + Quality({"events": 3}))["events"]
    5
    """

    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := {name for name in self.counts if _rule(name) not in count_rules()}:
            raise KeyError(f"no such count: {sorted(unknown)}")
        kept = {name: int(self.counts[name]) for name in sorted(self.counts, key=_order) if self.counts[name]}
        object.__setattr__(self, "counts", MappingProxyType(kept))

    def __getitem__(self, name: str) -> int:
        if _rule(name) not in count_rules():
            raise KeyError(name)
        return self.counts.get(name, 0)

    def __add__(self, other: "Quality") -> "Quality":
        names = {*self.counts, *other.counts}
        return Quality({name: self[name] + other[name] for name in names})

    def __reduce__(self) -> tuple[type["Quality"], tuple[dict[str, int]]]:
        return Quality, (dict(self.counts),)

    def rows(self) -> Iterator[tuple[str, int, str]]:
        """Yield (name, count, meaning) of every count that is not zero, in the order of `count_rules`."""
        for name, count in self.counts.items():
            yield name, count, _meaning(name)


def _meaning(name: str) -> str:
    """Return what a count means, with its subject."""
    return count_rules()[_rule(name)].meaning.replace("{}", name.partition("[")[2].removesuffix("]"))


@dataclass(frozen=True)
class QualityNote:
    """A count of a trace, and what follows from it.

    Parameters
    ----------
    count : str
        Name of the count, from `count_rules`.
    n : int
        The count.
    severity : str
        One of `SEVERITIES`.
    share : float, optional
        Share of the total of its rule; None for a rule without a total.
    meaning, consequence, advice : str
        What is counted, its effect on the figures, and what to do.
    """

    count: str
    n: int
    severity: str
    share: float | None
    meaning: str
    consequence: str
    advice: str


def quality_notes(quality: Quality, rows: Mapping[str, int]) -> tuple[QualityNote, ...]:
    """Return what follows from each count that is not zero, the most severe first.

    Parameters
    ----------
    quality : Quality
        Counts of a trace.
    rows : mapping of str to int
        Number of rows of each table of the trace.

    Examples
    --------
    >>> (note,) = quality_notes(Quality({"no_iteration": 30}), {"kernels": 90, "copies": 10})
    >>> note.severity, note.share
    ('note', 0.3)
    """
    totals = {**rows, **quality.counts, _DEVICE: rows.get("kernels", 0) + rows.get("copies", 0)}
    notes = [_note(name, quality, totals) for name in quality.counts]
    return tuple(sorted(notes, key=lambda note: -SEVERITIES.index(note.severity)))


def _note(name: str, quality: Quality, totals: Mapping[str, int]) -> QualityNote:
    rule, n, meaning = count_rules()[_rule(name)], quality[name], _meaning(name)
    share = None
    if rule.of:
        share = (n - quality.counts.get(rule.less, 0)) / max(totals.get(rule.of, 0), 1)
        if share <= rule.limit:
            return QualityNote(name, n, FINE, share, meaning, rule.within or rule.consequence, NOTHING)
    return QualityNote(name, n, rule.severity, share, meaning, rule.consequence, rule.advice)


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
        warnings = _some([f"{note.count} ({note.n:,})" for note in self._warnings()])
        lines = [f"  {name}: {_printable(text)}" for name, text in self._facts().items() if text]
        lines += wrap(", ".join(rows), _COLUMNS, initial_indent="  rows: ", subsequent_indent=" " * 8)
        lines += [f"  warnings: {_printable(warnings)}"] if warnings else []
        return "\n".join([f"Trace: {self._title()}", *lines])

    def _repr_html_(self) -> str:
        facts = [f"{name}: {_printable(text)}" for name, text in self._facts().items() if text]
        facts += [f"warning: {note.count} ({note.n:,}): {note.meaning}" for note in self._warnings()[:_SHOWN]]
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

    def _warnings(self) -> list[QualityNote]:
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
