"""`Quality`: counts of the events that a reader repaired, dropped or could not link, and what follows from each.

`RULES` lists every count with its meaning, its consequence for the figures, and advice. `quality_notes` applies the
rules to a trace: a count that is a small share of its total is fine, a large one is a note or a warning.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

#: How much a count matters, from least to most.
SEVERITIES = ("fine", "note", "warning")
FINE, NOTE, WARNING = SEVERITIES
NOTHING = "nothing to do"


@dataclass(frozen=True)
class Rule:
    """Meaning of a count, what follows from it, and what to do.

    Parameters
    ----------
    meaning : str
        What is counted.
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
_RECORD_AGAIN = "export or record the file again"

#: The rule of every quality count; readers use no other counts.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "events": Rule("events in the files", "none: this is the total"),
        "kept": Rule("events kept as rows", "none: these are the events that all figures rest on"),
        "skipped_flow": Rule(
            "flow arrows and metadata rows (not events; their links are rebuilt from ids)", "none: nothing is lost"
        ),
        "skipped_marker": Rule("instant markers and profiler spans without content", "none: they take no time"),
        "skipped_text": Rule("values that are text, kept in the arguments of their kernel", "none: nothing is lost"),
        "skipped_advice": Rule("rules and advice of the profiler (no measurements)", "none: no figure uses them"),
        "dropped_broken": Rule(
            "events lost because their text could not be decoded",
            "times and counts are lower bounds, and idle time may hide lost kernels",
            _RECORD_AGAIN,
            WARNING,
            of="events",
            limit=0.0001,
            within="the lost events are too few to matter",
        ),
        "dropped_no_time": Rule(
            "events lost because they have no usable start time",
            "times and counts are lower bounds",
            "record again with a newer profiler",
            WARNING,
            of="events",
            limit=0.0001,
            within="the lost events are too few to matter",
        ),
        "dropped_negative": Rule(
            "events lost because their duration is negative",
            "times and counts are lower bounds",
            "record again with a newer profiler",
            WARNING,
            of="events",
            limit=0.0001,
            within="the lost events are too few to matter",
        ),
        "dropped_no_value": Rule(
            "values of counters lost because they are no number",
            "these kernels lack the counter; times are unaffected",
            "measure the counter again if you need it",
            NOTE,
        ),
        "lost_arguments": Rule(
            "events kept without their arguments, which are nested too deeply",
            "their times count, but their shapes and sizes are unknown",
            "look at the file: profilers do not nest arguments so deeply",
            NOTE,
        ),
        "repaired_escape": Rule("events whose text had a bad backslash, repaired", "names may differ by a character"),
        "repaired_nan": Rule("values NaN or Infinity, read as missing", "the values are missing; times are unaffected"),
        "repaired_utf8": Rule("files with bytes that are not UTF-8, replaced", "names may differ by a character"),
        "repaired_grid": Rule(
            "launches whose grid and block were swapped (rocprofiler-sdk 1.0), repaired", "none: the repair is exact"
        ),
        "repaired_work_items": Rule(
            "kernels whose grid was in work-items, turned into workgroups", "none: the repair is exact"
        ),
        "repaired_duration": Rule(
            "kernels whose end overran many later ones of their stream by milliseconds, cut",
            "their durations are upper bounds: each ends where the next begins",
            "update ROCm and record again if these kernels matter",
            NOTE,
        ),
        "truncated_files": Rule(
            "files that end early; what was complete is kept",
            "the end of the recording is missing, and its last iteration may be cut",
            "let the profiler finish writing, and record again; or leave out the last iteration",
            WARNING,
        ),
        "missing_duration": Rule(
            "events without a duration, kept with a null",
            "they count as 0 ns, so times are lower bounds",
            "stop the profiler after the work, not during it",
            NOTE,
            of="events",
            limit=0.0001,
            within="they count as 0 ns, too few to matter",
        ),
        "missing_name": Rule(
            'events whose name the files do not hold, kept as "unknown"',
            "their times count, but their class and operator are unknown",
            "export the names too, or record again",
            WARNING,
            of="events",
            limit=0.001,
            within="too few to matter",
        ),
        "assumed_start": Rule(
            "events whose start the files do not hold, put after the one before them",
            "durations are measured, but order, overlap and idle time are not",
            "use sums of durations only; record a timeline for all else",
            WARNING,
        ),
        "missing_columns": Rule(
            "columns that every version of the format has and the files lack, read as missing",
            "what these columns hold is unknown",
            "export the file again with all columns",
            NOTE,
        ),
        "damaged_tables": Rule(
            "tables that are damaged; their rows before the damage are kept",
            "times and counts are lower bounds",
            _RECORD_AGAIN,
            WARNING,
        ),
        "orphan_device": Rule(
            "kernels and copies whose launch is not in the trace",
            "they count as device time, but nothing says which call or iteration they belong to",
            "start the profiler before the first step that you need, and record host activity too",
            NOTE,
            of=_DEVICE,
            limit=0.01,
            within="mostly work launched before the recording; too few to matter",
        ),
        "orphan_op": Rule(
            "kernels and copies without an operator that launched them",
            "the table of operators has them in a row of their own",
            "record host activity too (CUDA graphs and compiled code launch without operators)",
            NOTE,
            of=_DEVICE,
            limit=0.05,
        ),
        "linked_by_external_id": Rule(
            "kernels and copies linked to an operator by a validated External id",
            "none: the ids agreed with the launches that are in the trace",
        ),
        "external_id_checked": Rule(
            "kernels and copies on which External id was compared with the launch", "none: this is a check"
        ),
        "external_id_wrong": Rule(
            "of those, External id named another operator", "links were taken from correlation ids instead"
        ),
        "duplicate_correlation": Rule(
            "launches that share a correlation id with another of their rank",
            "their kernels are linked to the earliest of them, so some operators may be wrong",
            "record again with a newer profiler if operators matter",
            NOTE,
            of="launches",
            limit=0.01,
            within="too few to matter",
        ),
        "early_device": Rule(
            "kernels and copies that start before the call that launched them (clock skew)",
            "the clocks of host and device disagree, so launch delays and idle time by cause are uncertain",
            "record again with a newer profiler or driver; sums of durations still hold",
            WARNING,
            of=_DEVICE,
            limit=0.01,
            within="launch delays are off by the resolution of the clock",
        ),
        "stream_overlap": Rule(
            "kernels and copies that overlap their predecessor on the same stream",
            "sums of durations count the overlap twice; busy time does not",
            "compare busy time instead of sums of durations",
            NOTE,
            of=_DEVICE,
            limit=0.02,
            within="starts and ends are rounded, or a kernel starts in the tail of the one before",
        ),
        "no_iteration": Rule(
            "kernels and copies in no iteration",
            "steps, selections and projections leave them out; sums by class or name count them",
            "see whether --iterations covers the part that you mean",
            NOTE,
            of=_DEVICE,
            limit=0.01,
            within="steps, selections and projections leave them out: too few to matter",
        ),
        "iterations_without_length": Rule(
            "iterations whose sequence length was not found",
            "`seqpoint select` leaves them out; nothing else needs lengths",
            "only for `seqpoint select`: tell where lengths are with --length",
        ),
        "collectives": Rule(
            "collective operations on a device",
            "those of them that are not matched wait for no peer in a replay, so their time counts as transfer",
            "give the files of all ranks of a group, all of the same steps",
            WARNING,
            of="collectives",
            limit=0.05,
            within="none: all of them are matched, or nearly all",
            less="collectives_matched",
        ),
        "collectives_matched": Rule(
            "of those, matched on every rank of their group that the trace holds",
            "waiting for peers is told from transfer as far as the peers are in the trace",
        ),
        "clock_shift_max_ns": Rule(
            "largest clock shift applied to a rank, from matched collectives (ns)",
            "times between ranks rest on this alignment; times inside a rank do not change",
        ),
        "nodes_joined": Rule(
            "nodes of execution traces whose operator or annotation the timeline has", "none: their arguments are used"
        ),
        "nodes_joined_by_order": Rule(
            "of those, by the order of calls, since the timeline has no record function id",
            "arguments of an operator may be those of its neighbour of the same name",
            "record the timeline with a newer PyTorch, which writes record function ids",
            NOTE,
        ),
        "nodes_without_event": Rule(
            "nodes of execution traces that the timeline does not have",
            "they are left out",
            "record both files in the same steps",
            NOTE,
        ),
        "ops_without_node": Rule(
            "operators of the timeline that no node of the execution trace describes",
            "they keep the arguments of the timeline only",
            "record both files in the same steps",
            NOTE,
        ),
        "counters_joined": Rule(
            "values of counters given to the kernel of the timeline that they were measured on", "none: they are used"
        ),
        "counters_without_kernel": Rule(
            "values of counters lost because the timeline lacks their kernel",
            "these values are unused",
            "measure counters and timeline on the same run of the same program",
            NOTE,
        ),
        "counted_kernels_joined": Rule("kernels with counters that the timeline has", "none: they are used"),
        "counted_kernels_missing": Rule(
            "kernels with counters that the timeline lacks",
            "their counters are unused",
            "measure counters and timeline on the same run of the same program",
            NOTE,
        ),
    }
)


@dataclass(frozen=True)
class Quality:
    """Counts by name; a name that is absent counts zero.

    Parameters
    ----------
    counts : mapping of str to int
        Names from `RULES`.

    Examples
    --------
    >>> (Quality({"events": 2}) + Quality({"events": 3}))["events"]
    5
    """

    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := set(self.counts) - set(RULES):
            raise KeyError(f"no such count: {sorted(unknown)}")
        kept = {name: int(self.counts[name]) for name in RULES if self.counts.get(name)}
        object.__setattr__(self, "counts", MappingProxyType(kept))

    def __getitem__(self, name: str) -> int:
        if name not in RULES:
            raise KeyError(name)
        return self.counts.get(name, 0)

    def __add__(self, other: "Quality") -> "Quality":
        names = {*self.counts, *other.counts}
        return Quality({name: self[name] + other[name] for name in names})

    def __reduce__(self) -> tuple[type["Quality"], tuple[dict[str, int]]]:
        return Quality, (dict(self.counts),)

    def rows(self) -> Iterator[tuple[str, int, str]]:
        """Yield (name, count, meaning) of every count that is not zero, in the order of `RULES`."""
        for name, rule in RULES.items():
            if self[name]:
                yield name, self[name], rule.meaning


@dataclass(frozen=True)
class QualityNote:
    """A count of a trace, and what follows from it.

    Parameters
    ----------
    count : str
        Name of the count, from `RULES`.
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
    rule, n = RULES[name], quality[name]
    share = None
    if rule.of:
        share = (n - quality.counts.get(rule.less, 0)) / max(totals.get(rule.of, 0), 1)
        if share <= rule.limit:
            return QualityNote(name, n, FINE, share, rule.meaning, rule.within or rule.consequence, NOTHING)
    return QualityNote(name, n, rule.severity, share, rule.meaning, rule.consequence, rule.advice)
