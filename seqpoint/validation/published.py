"""Compare what papers report with what our models of their set-ups say.

PATH is a system (c3, t3, ficco, fused, goldyloc, caching, comp_vs_comm, detailed, jitq or bert) or a file of figures
named after a system, such as c3.toml. Evidence: A the paper's abstract, S a public source, D arithmetic; W a secondary
description and M recollection are shown and have no limit. A figure that a parameter was fitted on is marked; the
others are predictions.

\b
seqpoint validate published
seqpoint validate published t3 --gate
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml
from replay.calibration.parameters import Parameters
from replay.calibration.tables import refuse_row
from replay.workloads.architecture import named_tables
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult, ValidationRow

#: By system, the function that works out what the paper reports, and the functions that load its published set-up.
SYSTEMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "c3": ("replay.studies.c3:reproduce", "replay.studies.c3:load_scenarios"),
        "t3": ("replay.studies.t3:reproduce", "replay.studies.t3:load_workload"),
        "ficco": (
            "replay.studies.ficco:reproduce",
            "replay.studies.ficco:load_scenarios",
            "replay.what_ifs.chooser:load_chooser",
        ),
        "fused": ("replay.studies.fused:reproduce", "replay.studies.fused:load_workloads"),
        "goldyloc": ("replay.studies.goldyloc:reproduce", "replay.studies.goldyloc:load_workloads"),
        "caching": ("replay.studies.caching:reproduce", "replay.studies.workloads:load_study"),
        "comp_vs_comm": ("replay.studies.comp_vs_comm:reproduce", "replay.studies.comp_vs_comm:load_study"),
        "detailed": ("replay.studies.detailed:reproduce",),
        "jitq": ("replay.studies.jitq:reproduce", "replay.studies.jitq:load_study"),
        "bert": ("seqpoint.validation.bert:reproduce", "seqpoint.validation.bert:load_cases"),
    }
)
#: Abstract of the paper, a public source that was read, derived by arithmetic, a secondary description, recollection.
_GRADES = ("A", "S", "D", "W", "M")
_LIMITS = ("absolute", "relative")


@dataclass(frozen=True)
class PublishedFigure:
    """A figure that a paper reports.

    Parameters
    ----------
    name : str
        Name of the figure in its file.
    paper, setting, quantity : str
        Paper, set-up, and quantity that the figure is of.
    value : float
        The published value, in `unit`.
    unit : str
        ``"cases"``: in how many of `value` cases something holds.
    grade : str
        Its evidence: ``"A"`` abstract of the paper, ``"S"`` a public source, ``"D"`` arithmetic, ``"W"`` a secondary
        description, ``"M"`` recollection. The last two are shown and not gated.
    limit : float
        Largest difference of ours that is accepted.
    limit_is : str
        ``"absolute"``, in the unit, or ``"relative"``.
    fitted : bool
        Whether a parameter was fitted on it; otherwise ours is a prediction.
    source : str
        Where the value stands, in words.
    """

    name: str
    paper: str
    setting: str
    quantity: str
    value: float
    unit: str
    grade: str
    limit: Annotated[float, msgspec.Meta(ge=0)]
    limit_is: str
    fitted: bool
    source: str

    def __post_init__(self) -> None:
        if self.grade not in _GRADES or self.limit_is not in _LIMITS:
            raise InvalidInputError(
                f"{self.name}: a grade is one of {', '.join(_GRADES)}, a limit one of {', '.join(_LIMITS)}"
            )
        if self.value == 0 and self.limit_is == "relative":
            raise InvalidInputError(f"{self.name}: the limit of a value of 0 is absolute")

    @property
    def gated(self) -> bool:
        """Whether it decides anything."""
        return self.grade in ("A", "S", "D")

    @property
    def scale(self) -> float:
        """Scale of errors: the value, or 1 if that is 0."""
        return abs(self.value) or 1.0

    @property
    def relative_limit(self) -> float:
        """`limit` as a share of `scale`."""
        return self.limit if self.limit_is == "relative" else self.limit / self.scale


def published_figures(system: str) -> tuple[PublishedFigure, ...]:
    """Return the published figures of one of `SYSTEMS`.

    Raises
    ------
    NotFoundError
        There is no such system.

    Examples
    --------
    >>> {figure.paper for figure in published_figures("t3")}
    {'arXiv 2401.16677'}
    """
    if system not in SYSTEMS:
        raise NotFoundError(f"no published system is called {system[:40]!r}; there are {', '.join(SYSTEMS)}")
    return read_figures(dataset_path(f"published/{system}.toml"))


@cache
def read_figures(file: Path) -> tuple[PublishedFigure, ...]:
    """Read published figures.

    Parameters
    ----------
    file : Path
        TOML file in the layout of `datasets/published`.

    Raises
    ------
    BrokenFileError
        An entry lacks a key, has one too many, or one of the wrong kind; the message names it.
    """
    content: Mapping[str, Any] = {}
    try:
        content = read_toml(file, "published figures")
        return tuple(named_tables(content, "figures", PublishedFigure, file).values())
    except InvalidInputError as error:
        tables = content.get("figures")
        figures = list(_known_figures(file, tables)) if isinstance(tables, dict) else []
        if not figures:
            raise BrokenFileError(str(error)) from error
        return tuple(figures)


def _known_figures(file: Path, tables: Mapping[str, Any]) -> Iterator[PublishedFigure]:
    """Yield the figures of a file without the entries that are refused."""
    for name, entry in tables.items():
        try:
            yield from named_tables({"figures": {name: entry}}, "figures", PublishedFigure, file).values()
        except InvalidInputError as error:
            try:
                refuse_row(file, f"figures.{name[:80]}", str(error).removeprefix(f"{file}: figures.{name}: "))
            except InvalidInputError as refused:
                raise BrokenFileError(str(error)) from refused


def reproduced(system: str, parameters: Parameters) -> dict[str, float]:
    """Return our figure for each published one of a system, by name.

    Parameters
    ----------
    system : str
        One of `SYSTEMS`.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Raises
    ------
    NotFoundError
        There is no such system.
    """
    published_figures(system)
    reproduce, *loaders = map(resolve_name, SYSTEMS[system])
    figures: dict[str, float] = reproduce(parameters, *(load() for load in loaders))
    return figures


@dataclass(frozen=True)
class PublishedScore:
    """A published figure and ours.

    Parameters
    ----------
    system : str
        The published system, a key of `SYSTEMS`.
    figure : PublishedFigure
        The figure as published.
    ours : float
        Our figure, in the unit of the published one.
    """

    system: str
    figure: PublishedFigure
    ours: float

    @property
    def row(self) -> ValidationRow:
        """The row of the validation, with a limit if the evidence allows."""
        figure = self.figure
        return ValidationRow(
            case=f"{self.system}: {figure.quantity}",
            reference=figure.value,
            ours=self.ours,
            error=abs(self.ours - figure.value) / figure.scale,
            limit=figure.relative_limit if figure.gated else None,
            fitted=figure.fitted,
            source=f"{figure.paper} [{figure.grade}] {figure.source}: {figure.setting}",
        )

    def content(self) -> dict[str, object]:
        """Return the score as JSON."""
        names = ("name", "paper", "setting", "quantity", "unit", "grade", "fitted")
        figure = {name: getattr(self.figure, name) for name in names}
        scores = {"system": self.system, "published": self.figure.value, "ours": self.ours, "met": self.row.met}
        return figure | scores


def score_published(parameters: Parameters, systems: Sequence[str] = ()) -> list[PublishedScore]:
    """Return every published figure of the systems with ours; by default those of all systems.

    Raises
    ------
    NotFoundError
        There is no such system.
    """
    return _compared([(system, published_figures(system)) for system in systems or tuple(SYSTEMS)], parameters)


#: A system and its published figures.
_Published = tuple[str, tuple[PublishedFigure, ...]]


def _compared(published: Sequence[_Published], parameters: Parameters) -> list[PublishedScore]:
    """Return the figures of systems with ours."""
    scores = []
    for system, figures in published:
        ours = reproduced(system, parameters)
        for figure in figures:
            if figure.name in ours:
                scores.append(PublishedScore(system, figure, ours[figure.name]))
            else:
                refuse_row(system, figure.name[:60], f"no study reproduces it; there are {', '.join(ours)}")
    return scores


def _source(file: Path) -> Path | None:
    """Return a file that has the name of a system."""
    return file if file.suffix == ".toml" and file.stem in SYSTEMS else None


def _read(sources: Sequence[Path], options: SuiteOptions) -> list[_Published]:
    """Read files of figures, in the order of `SYSTEMS`; a path that is no file is the name of a system."""
    published = [
        (path.stem, read_figures.__wrapped__(path))  # a cache does not note the entries that are refused
        if _source(path) and path.is_file()
        else (str(path), published_figures(str(path)))
        for path in sources
    ]
    order = list(SYSTEMS)
    return sorted(published, key=lambda pair: order.index(pair[0]))


def _scored(published: Sequence[_Published], options: SuiteOptions) -> SuiteResult:
    """Score figures."""
    if not (scores := _compared(published, options.parameters)):
        raise InvalidInputError("no figure that a study reproduces")
    limited = [score for score in scores if score.figure.gated]
    predicted = [score for score in limited if not score.figure.fitted]
    met, right = (sum(bool(score.row.met) for score in some) for some in (limited, predicted))
    line = f"{met} of {len(limited)} gated figures within their limit; of the {len(predicted)} not fitted, {right}"
    details = {"figures": [score.content() for score in scores]}
    return SuiteResult([score.row for score in scores], details, [_table(scores), line], scores)


def _table(scores: Sequence[PublishedScore]) -> Table:
    """Return the table of figures."""
    columns = {
        "system~": "{s.system}", "what~": "{s.figure.quantity}", "unit~": "{s.figure.unit}",
        "published": "{s.figure.value:.4g}", "ours": "{s.ours:.4g}", "evidence~": "{s.figure.grade}",
        "fitted~": "{fitted}", "within~": "{within}",
    }  # fmt: skip
    words = {True: "yes", False: "NO", None: ""}
    names = [{"s": s, "fitted": "yes" * s.figure.fitted, "within": words[s.row.met]} for s in scores]
    return table_of("Published figures and ours", columns, names)


SUITE = Suite(
    name="published",
    description=__doc__,
    needs=f"file of published figures ({', '.join(f'{name}.toml' for name in SYSTEMS)})",
    source=_source,
    read=_read,
    score=_scored,
    shipped="published",
)
