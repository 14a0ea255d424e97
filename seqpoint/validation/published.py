"""Compare what papers report with what our models of their set-ups say.

PATH is a system (c3, t3, ficco, fused, goldyloc or caching) or a file of figures named after a system, such as
c3.toml. Evidence: A the paper's abstract, S a public source, D arithmetic; W a secondary description and M recollection
are shown and have no limit. A figure that a parameter was fitted on is marked; the others are predictions.

\b
seqpoint validate published
seqpoint validate published t3 --gate
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profilers.errors import InvalidInputError
from replay.costs.shipped import load_parameters
from replay.studies.published import SYSTEMS, PublishedFigure, published_figures, read_figures, reproduced
from seqpoint.notebook import Table, table_of
from seqpoint.validation.rows import ValidationRow
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult


@dataclass(frozen=True)
class PublishedScore:
    """A published figure and ours.

    Parameters
    ----------
    system : str
        The published system, a key of `replay.studies.published.SYSTEMS`.
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


def score_published(systems: Sequence[str] = ()) -> list[PublishedScore]:
    """Return every published figure of the systems with ours; by default those of all systems.

    Raises
    ------
    NotFoundError
        There is no such system.
    """
    return _compared([(system, published_figures(system)) for system in systems or tuple(SYSTEMS)])


#: A system and its published figures.
_Published = tuple[str, tuple[PublishedFigure, ...]]


def _compared(published: Sequence[_Published]) -> list[PublishedScore]:
    """Return the figures of systems with ours."""
    scores = []
    for system, figures in published:
        ours = reproduced(system, load_parameters())
        if unknown := next((figure.name for figure in figures if figure.name not in ours), None):
            raise InvalidInputError(f"{system}: no study reproduces {unknown!r:.60}; there are {', '.join(ours)}")
        scores += [PublishedScore(system, figure, ours[figure.name]) for figure in figures]
    return scores


def _source(file: Path) -> Path | None:
    """Return a file that has the name of a system."""
    return file if file.suffix == ".toml" and file.stem in SYSTEMS else None


def _read(sources: Sequence[Path], options: SuiteOptions) -> list[_Published]:
    """Read files of figures, in the order of `SYSTEMS`; a path that is no file is the name of a system."""
    published = [
        (path.stem, read_figures(path))
        if _source(path) and path.is_file()
        else (str(path), published_figures(str(path)))
        for path in sources
    ]
    order = list(SYSTEMS)
    return sorted(published, key=lambda pair: order.index(pair[0]))


def _scored(published: Sequence[_Published], options: SuiteOptions) -> SuiteResult:
    """Score figures."""
    scores = _compared(published)
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
