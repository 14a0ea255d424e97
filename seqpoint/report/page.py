"""The page: sections made of blocks of charts and tables, in one file that asks the network for nothing."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from profilers.atomic import write_text
from seqpoint import __version__
from seqpoint.report import tables
from seqpoint.report.charts import Figure, bokeh_script, embedded, section_figures
from seqpoint.report.content import ReportContent, ReportSection
from seqpoint.report.rendering import rendered
from seqpoint.report.summary import Tile, notes, summary, tiles

__all__ = ["html_page", "write_report"]


@dataclass(frozen=True)
class _Block:
    """A heading with charts and tables."""

    heading: str
    figures: tuple[Figure, ...]
    tables: tuple[tables.Table, ...]


@dataclass(frozen=True)
class _View:
    """A section as the template shows it."""

    heading: str
    labels: tuple[str, ...]
    summary: str
    tiles: tuple[Tile, ...]
    blocks: tuple[_Block, ...]
    notes: tuple[str, ...]
    quality: tables.Table
    provenance: Markup


def write_report(content: ReportContent, path: str | Path) -> Path:
    """Write a report and return where it is; a reader never sees half a file.

    Parameters
    ----------
    content : ReportContent
    path : str or Path

    Raises
    ------
    InvalidInputError
        The folder does not exist or may not be written.
    """
    target = Path(path)
    write_text(target, html_page(content))
    return target


def html_page(content: ReportContent) -> str:
    """Return the page. All text in it is escaped, and only the two scripts written here may run in it."""
    found = [section_figures(section) for section in content.sections]
    labelled = [(figure, s.labels) for s, mine in zip(content.sections, found, strict=True) for figure in mine]
    script, done = embedded(labelled)
    rest = iter(done)
    placed = [[next(rest) for _ in mine] for mine in found]
    views = [_view(section, figures) for section, figures in zip(content.sections, placed, strict=True)]
    return rendered("report.html", content.title, (bokeh_script(), script) if script else (), {"views": views})


def _view(section: ReportSection, figures: list[Figure]) -> _View:
    return _View(
        section.heading,
        section.labels,
        summary(section),
        tiles(section),
        tuple(block for block in _blocks(section, figures) if block.figures or block.tables),
        notes(section),
        tables.quality_table(section.description),
        Markup(escape(json.dumps(_provenance(section), indent=2, default=str))),
    )


def _blocks(section: ReportSection, figures: list[Figure]) -> list[_Block]:
    description, selection, projection = section.description, section.selection, section.projection
    classes = tables.classes_table(description) if description.classes else None
    devices = tables.devices_table(description) if description.devices else None
    steps = tables.steps_table(description) if description.steps else None
    points = tables.points_table(selection) if selection else None
    baselines = tables.baselines_table(selection) if selection else None
    what_ifs = tables.projection_table(projection) if projection else None

    def block(heading: str, name: str, table: tables.Table | None) -> _Block:
        mine = tuple(figure for figure in figures if figure.block == name)
        return _Block(heading, mine, () if table is None else (table,))

    return [
        block("Sequence lengths and chosen iterations", "selection", points),
        block("Baselines", "baselines", baselines),
        block("Where the time goes", "classes", classes),
        block("Steps", "", steps),
        block("Devices", "", devices),
        block("Timeline before and after", "timeline", None),
        block("What-ifs", "projection", what_ifs),
    ]


def _provenance(section: ReportSection) -> dict[str, Any]:
    """Return all that is needed to make the section's numbers again."""
    meta, selection = section.description.trace.meta, section.selection
    found: dict[str, Any] = {
        "seqpoint": __version__,
        "trace": {
            "format": meta.format,
            "version": meta.version,
            "sources": list(meta.sources),
            "fingerprint": meta.fingerprint,
            "ranks": list(meta.ranks),
            "world_size": meta.world_size,
            "devices": [asdict(device) for device in meta.devices],
        },
    }
    if selection is not None:
        found["selection"] = {
            "statistic": selection.statistic,
            "unit": selection.unit,
            "iterations": selection.table.iteration[selection.rows].tolist(),
            "weights": selection.weights.tolist(),
            "measured": selection.measured,
            "estimate": [selection.estimate.value, selection.estimate.low, selection.estimate.high],
            "confidence": selection.estimate.confidence,
        }
    if section.projection is not None:
        found["projection"] = section.projection.provenance
    return found
