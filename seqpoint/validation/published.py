"""Published figures beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass

from replay.costs.shipped import load_parameters
from replay.studies.published import SYSTEMS, PublishedFigure, published_figures, reproduced
from seqpoint.validation.rows import ValidationRow


@dataclass(frozen=True)
class PublishedScore:
    """A published figure and ours.

    Parameters
    ----------
    system : str
    figure : PublishedFigure
    ours : float
        In the unit of the figure.
    """

    system: str
    figure: PublishedFigure
    ours: float

    @property
    def row(self) -> ValidationRow:
        """The row of the validation; gated where the evidence allows."""
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


def score_published(systems: Sequence[str] = ()) -> list[PublishedScore]:
    """Return every published figure of the systems (all where none is named) with ours.

    Raises
    ------
    NotFoundError
        There is no such system.
    """
    scores = []
    for system in systems or tuple(SYSTEMS):
        figures, ours = published_figures(system), reproduced(system, load_parameters())
        scores += [PublishedScore(system, figure, ours[figure.name]) for figure in figures]
    return scores
