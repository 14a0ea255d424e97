"""`Quality`: counts of the events that a reader repaired, dropped or could not link, and what follows from each.

`count_rules` lists every count with its meaning, its consequence for the figures, and advice; `datasets/quality.toml`
holds them. `quality_notes` applies the rules to a trace: a count that is a small share of its total is fine, a large
one is a note or a warning.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

import msgspec

from profilers.files import dataset_path, read_toml, typed_table

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
