"""What a report shows."""

from dataclasses import dataclass

from replay.projection import Projection, ProjectionRow
from seqpoint.describe import Description
from seqpoint.selecting import SelectionResult

__all__ = ["ReportContent", "ReportSection", "best_row", "timeline_name"]

SYNTHETIC = "synthetic"


@dataclass(frozen=True)
class ReportSection:
    """One trace of a report.

    Parameters
    ----------
    heading : str
    label : str
        Shown as a badge on the section and on every chart and table in it, such as ``"synthetic"``; "" for none.
    description : Description
    selection : SelectionResult, optional
    projection : Projection, optional
    """

    heading: str
    label: str
    description: Description
    selection: SelectionResult | None = None
    projection: Projection | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """All badges: the label, and that the trace is synthetic even where the label does not say so."""
        found = [SYNTHETIC] if self.description.trace.meta.synthetic else []
        return tuple(dict.fromkeys(text for text in (*found, self.label) if text))


@dataclass(frozen=True)
class ReportContent:
    """A report.

    Parameters
    ----------
    title : str
    sections : tuple of ReportSection
    """

    title: str
    sections: tuple[ReportSection, ...]


def best_row(projection: Projection) -> ProjectionRow | None:
    """Return the what-if with the largest speed-up, the first of several; None where there is none."""
    return max(projection.rows, key=lambda row: row.speedup, default=None)


def timeline_name(row: ProjectionRow) -> str:
    """Return the name of a what-if's timeline in `Projection.timelines`."""
    return row.label
