"""Pages of HTML that never access the network, and the report on traces as one.

`ReportContent` and `ReportSection` hold the results. `blocks` gives the blocks of a section: sentences, tables, charts
and notes. The verdict and the actions of `seqpoint advise` come before them; quality and provenance come after them,
folded.

A page is a single file that never accesses the network. Templates escape all text, since names come from traces. A
content security policy names the digests of the scripts that may run: BokehJS and the script of the charts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from profilers.files import write_text
from replay.contention.totals import ContentionTime
from replay.projection.evidence import EVIDENCE
from replay.projection.rows import ProjectionRow
from seqpoint import plots
from seqpoint.advising import TraceAdvice
from seqpoint.breakdown import LIMITS_EXPLAINED, contention_lines, contention_table, limits_table
from seqpoint.characterization import Characterization
from seqpoint.description import Description, row_counts, trace_facts
from seqpoint.notebook import Table, data_frame, rows_within, without_middle
from seqpoint.plots.saving import FONTS, drawn, inert, policy_of
from seqpoint.plots.timelines import class_colours
from seqpoint.projecting import TraceProjection, pace_lines
from seqpoint.units import duration

if TYPE_CHECKING:
    from seqpoint.comparison import Comparison
    from seqpoint.selection.selecting import SelectionResult  # loads scikit-learn


def clean(text: object) -> str:
    r"""Return text without control characters, direction marks and lone surrogates; a line break is a space.

    Examples
    --------
    >>> clean("a\x1b[31m\nb\u202e")
    'a[31m b'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "" for c in str(text))


def percent(share: float, digits: int = 1) -> str:
    """Return a share as text in per cent.

    Examples
    --------
    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * share:.{digits}f} %"


SYNTHETIC = "synthetic"
_RECORDING = "in the recording"
#: Most characters of a name in a table and in an action.
_NAME, _SHORT = 52, 32
#: Most visible rows of a table, most rows of one that may be long, and most rectangles of a timeline.
_VISIBLE, _ROWS, _RECTANGLES = 12, 48, 1000
#: Colours of the kinds of evidence.
_EVIDENCE_COLOURS = dict(zip(EVIDENCE, ("#0072b2", "#56b4e9", "#009e73", "#e69f00"), strict=True))


@dataclass(frozen=True)
class ReportSection:
    """Section of a report, on a trace.

    Parameters
    ----------
    heading : str
        Heading of the section.
    label : str
        Badge on the section and on every chart and table in it, such as ``"synthetic"``; "" for none.
    description : Description
        Description of the trace.
    selection : SelectionResult, optional
        Selected iterations of the trace.
    projection : TraceProjection, optional
        What-ifs projected on the trace.
    contention : ContentionTime, optional
        Time that contention took from its kernels.
    characterization : Characterization, optional
        Where the time of its kernels goes.
    advice : TraceAdvice, optional
        What limits its steps, and what to do.
    comparison : Comparison, optional
        What changed since another trace.
    """

    heading: str
    label: str
    description: Description
    selection: "SelectionResult | None" = None
    projection: TraceProjection | None = None
    contention: ContentionTime | None = None
    characterization: Characterization | None = None
    advice: TraceAdvice | None = None
    comparison: "Comparison | None" = None

    @property
    def labels(self) -> tuple[str, ...]:
        """All badges: the label, and ``"synthetic"`` if the trace is."""
        synthetic = SYNTHETIC if self.description.trace.meta.synthetic else ""
        return tuple(dict.fromkeys(text for text in (synthetic, self.label) if text))


@dataclass(frozen=True)
class ReportContent:
    """Content of a report.

    Parameters
    ----------
    title : str
        Title of the page.
    sections : tuple of ReportSection
        Sections, from top to bottom.
    """

    title: str
    sections: tuple[ReportSection, ...]


@dataclass(frozen=True)
class ReportFigure:
    """A chart of a page, as a HoloViews object or as HTML.

    Parameters
    ----------
    chart : object
        A HoloViews object, or the HTML element that Bokeh fills.
    caption : str
        Text below the chart.
    title : str
        Name of the chart where it is folded.
    """

    chart: Any
    caption: str = ""
    title: str = ""


@dataclass(frozen=True)
class ReportBar:
    """Cell of a table that shows shares as a bar: of each its name, its share in per cent and its colour."""

    parts: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True)
class ReportBlock:
    """Block of a section, which answers one question.

    Parameters
    ----------
    heading : str
        Heading of the block.
    text : str
        Sentences below it.
    items : sequence of Table or ReportFigure
        Tables and charts.
    more : sequence of Table or ReportFigure
        Tables and charts that stay folded.
    notes : sequence of str
        What the figures of the block do and do not tell.
    """

    heading: str
    text: str = ""
    items: Sequence[Table | ReportFigure] = ()
    more: Sequence[Table | ReportFigure] = ()
    notes: Sequence[str] = ()


def best_row(projection: TraceProjection) -> ProjectionRow | None:
    """Return the applied row with the largest speed-up, the first of several; None if there is none."""
    return max((row for row in projection.rows if row.applied), key=lambda row: row.speedup, default=None)


def prose(lines: Iterable[str]) -> str:
    """Return lines as sentences.

    Examples
    --------
    >>> prose(["one file", "two kernels"])
    'One file. Two kernels.'
    """
    return " ".join(f"{line[:1].upper()}{line[1:]}." for line in lines if line)


def summary(section: ReportSection) -> str:
    """Return a paragraph on the trace: what it holds, and where the time of its kernels goes."""
    description = section.description
    # The advice says better what sets the pace.
    verdict = description.verdict() if section.advice else None
    lines = [line for line in description.summary() if line != verdict]
    return " ".join(filter(None, [prose(lines), _spent(description)]))


def _spent(description: Description) -> str:
    if not description.classes:
        return "The trace holds no kernels, only work on the host."
    total = sum(row.time_ns for row in description.classes)
    most = ", ".join(f"{row.class_} {percent(row.share)}" for row in description.classes[:3])
    text = f"Kernels took {duration(total)}: {most}."
    elapsed = sum(row.elapsed_ns for row in description.devices)
    if not elapsed:
        return text
    times = [row.times for row in description.devices]
    busy, exposed = (sum(getattr(row, name) for row in times) / elapsed for name in ("busy_ns", "exposed_ns"))
    covered = "the steps" if description.covers == "steps" else "the recording"
    text += f" Devices were busy for {percent(busy)} of {covered}; exposed communication took {percent(exposed)}"
    if not exposed:
        return f"{text}."
    if any(row.unmatched for row in times):
        return f"{text}, which contains unknown waiting for other ranks."
    waiting = sum(row.exposed_waiting_ns or 0.0 for row in times) / elapsed
    return f"{text}: {percent(waiting)} waiting for other ranks and {percent(exposed - waiting)} transfer."


@dataclass(frozen=True)
class PageTable(Table):
    """Table of a page, with the number of rows that only the JSON of the command has."""

    hidden: int = 0


def _page_table(table: Table | None) -> tuple[PageTable, ...]:
    """Return a table as a page shows it, with short names; nothing for a table without rows."""
    if table is None or not (table.rows or table.note):
        return ()
    shown = table.most(_ROWS)
    facts, hidden = (table.verbose, table.marked, table.note), len(table.rows) - len(shown)
    return (PageTable(table.title, table.columns, rows_within(table, shown, _NAME), *facts, hidden=hidden),)


def _page_tables(*tables: Table | None) -> list[PageTable]:
    return [shown for table in tables for shown in _page_table(table)]


def blocks(section: ReportSection) -> list[ReportBlock]:
    """Return the blocks of a section that are not empty, in the order of a reader's questions."""
    every = (_where(section), _steps(section), _overlap(section), _selected(section), _what_ifs(section))
    compared = _compared(section.comparison) if section.comparison is not None else ReportBlock("")
    against = section.advice.against if section.advice else ()  # stands beside the verdict
    shown = [
        replace(block, notes=tuple(dict.fromkeys(note for note in block.notes if note not in against)))
        for block in (*every, compared)
    ]
    return [block for block in shown if block.text or block.items or block.notes]


def _where(section: ReportSection) -> ReportBlock:
    """Return where the time goes: classes, operators, and the roofline, folded."""
    of_trace, result = section.description.named_tables(), section.characterization
    classes, shares = of_trace["classes"], [row.share for row in section.description.classes]
    bars = [ReportBar(((row.class_, 100 * row.share / max(shares), class_colours()[row.class_]),))
            for row in section.description.classes]  # fmt: skip
    rows = [(*row, bar) for row, bar in zip(classes.rows, bars, strict=True)]
    classes = replace(classes, columns=(*classes.columns, "share of the largest~"), rows=rows)
    more: list[Table | ReportFigure] = [*_page_tables(of_trace["memory"], of_trace["copies"])]
    if section.description.memory:
        more.insert(0, ReportFigure(section.description.memory_plot(), title="Memory in use"))
    if result is None:
        return ReportBlock("Where the time goes", summary(section), _page_tables(classes), more)
    operators = replace(result.text_table(), note=prose(result.summary()))
    if len(result.roofs()) and any(row.flops and row.bytes for row in result.rows("shape")):
        more.append(ReportFigure(result.plot("roofline"), "Hover for names and shapes, drag to zoom.", "Roofline"))
    more += _page_tables(result.text_table("shape"))
    items = _page_tables(classes, operators)
    return ReportBlock("Where the time goes", summary(section), items, more, result.notes())


def _steps(section: ReportSection) -> ReportBlock:
    """Return what sets the pace of the steps, the steps of each device, and how ranks wait for each other."""
    of_trace, projection, result = section.description.named_tables(), section.projection, section.characterization
    limits, lines = None, []
    if projection is not None:
        lines = pace_lines(projection.projection)
        limits = replace(limits_table(projection.projection.limits), note=prose([LIMITS_EXPLAINED]))
    pace, notes = (
        [line.removeprefix(kind) for line in lines if line.startswith(kind)] for kind in ("pace: ", "note: ")
    )
    causes = result.ranks_table() if result else None
    return ReportBlock(
        "Steps and pace", prose(pace), _page_tables(limits, of_trace["devices"]),
        _page_tables(causes, of_trace["host"], of_trace["late"]), [*notes, *section.description.notes()],
    )  # fmt: skip


def _overlap(section: ReportSection) -> ReportBlock:
    """Return communication and the other work on the devices beside each other, and what contention took."""
    communication = section.description.named_tables()["communication"]
    contention = None if section.contention is None else contention_block(section.contention)
    return ReportBlock("Overlap", "", _page_tables(communication if communication.rows else None, contention))


def _selected(section: ReportSection) -> ReportBlock:
    """Return the iterations that stand for the run: those selected by length, and those replayed."""
    selection, projection = section.selection, section.projection
    lines, items, more = list[str](), list[Table | ReportFigure](), list[Table | ReportFigure]()
    if selection is not None:
        lines += selection.summary()
        items += [ReportFigure(selection.plot()), *_page_tables(points_table(selection))]
        more.append(ReportFigure(selection.plot_statistic(), title="Every iteration"))
        more.append(ReportFigure(selection.plot_baselines(), title="Errors of other selections"))
        more += [*_baseline_figures(selection), *_page_tables(selection.tables()[-1])]
    if projection is not None:
        lines += [line for line in projection.summary() if not line.startswith("pace: ")]
    notes = () if selection is None else selection.notes()
    return ReportBlock("Selection of iterations", prose(lines), items, more, notes)


def _baseline_figures(selection: "SelectionResult") -> list[ReportFigure]:
    """Return the charts of errors by the number of points, and of the coverage of intervals, of long selections."""
    from seqpoint.selection.estimate import HALF
    from seqpoint.selection.evaluation import coverages_of, errors_of

    if len(selection.regular) < HALF:
        return []
    counts, errors = errors_of(selection)
    coverages = {name: asdict(coverage) for name, coverage in coverages_of(selection).items()}
    of_selectors = data_frame(list(coverages.values())).set_axis(list(coverages))
    return [
        ReportFigure(plots.errors_by_points(errors, counts, selection.statistic), title="Errors by points"),
        ReportFigure(plots.interval_coverage(of_selectors, selection.estimate.confidence), title="Coverage"),
    ]


def _what_ifs(section: ReportSection) -> ReportBlock:
    """Return the projected what-ifs, and the timeline before and after the best."""
    projection = section.projection
    if projection is None:
        return ReportBlock("What-ifs")
    timelines, best = projection.projection.timelines, best_row(projection)
    text = "" if best else f"Baseline alone: no what-if {'applies' if projection.rows else 'was asked for'}."
    items: list[Table | ReportFigure] = []
    if projection.rows:
        named = [replace(row, what_if=(name,)) for row, name in zip(projection.rows, _names(projection), strict=True)]
        items = [ReportFigure(plots.projection_intervals(named)), *_page_tables(projection_table(projection))]
    if "baseline" in timelines:
        pace = projection.projection.pace_by_rank
        rank = max(pace, key=lambda rank: pace[rank], default=None)
        if best is not None and best.label in timelines:
            chart = projection.plot_timelines(best.label, limit=_RECTANGLES, rank=rank)
        else:
            chart = plots.timeline_lanes(timelines["baseline"], limit=_RECTANGLES, rank=rank)
        items.append(ReportFigure(chart, _caption(projection.provenance, rank)))
    notes = [line.removeprefix("note: ").removeprefix("note on ") for line in projection.notes()]
    pace_notes = {line.removeprefix("note: ") for line in pace_lines(projection.projection)}
    graph_notes = timelines["baseline"].graph.notes if "baseline" in timelines else ()
    return ReportBlock("What-ifs", text, items, (), [*graph_notes, *(note for note in notes if note not in pace_notes)])


def _compared(comparison: "Comparison") -> ReportBlock:
    """Return what changed since another trace."""
    more = _page_tables(*comparison.tables())
    return ReportBlock("Comparison", prose(comparison.summary()), (), more, comparison.notes())


def points_table(selection: "SelectionResult") -> Table:
    """Return the table of the selected iterations, with the lengths of their bins."""
    edges, table = selection.bin_edges.tolist(), selection.tables()[0]
    bins = (f"{low:.4g} – {high:.4g}" if high > low else f"{low:.4g}" for low, high in edges)
    rows = [(*row, cell) for row, cell in zip(table.rows, bins, strict=True)]
    return replace(table, columns=(*table.columns, "lengths in bin"), rows=rows, title="Chosen iterations")


def evidence_bar(shares: Mapping[str, float]) -> ReportBar:
    """Return the bar of the shares of evidence."""
    return ReportBar(tuple((kind, 100 * share, _EVIDENCE_COLOURS[kind]) for kind, share in shares.items()))


def _names(projection: TraceProjection) -> list[str]:
    """Return the names of the what-ifs; one that extends the one above says only by what."""
    names, before = [], tuple[str, ...]()
    for row in projection.rows:
        is_more = bool(before) and row.what_if[: len(before)] == before
        names.append(f"the same + {' + '.join(row.what_if[len(before) :])}" if is_more else " + ".join(row.what_if))
        before = row.what_if
    return names


def _projection_cells(row: ProjectionRow, name: str) -> tuple[object, ...]:
    """Return the cells of a what-if; one that is not applicable has its reason in place of figures."""
    if row.evidence is None:
        return name, "-", "-", "-", "-", f"not applicable: {row.reason}"
    interval = f"[{row.low:.3f}, {row.high:.3f}]"
    limits = " and ".join(row.limited_by)
    bar = evidence_bar({kind: row.evidence.share(kind) for kind in EVIDENCE})
    return name, f"{row.speedup:.3f}", interval, duration(row.projected_ns), limits, bar


def contention_block(time: ContentionTime) -> Table:
    """Return the table of the time that contention took in the recording, with its sentences."""
    table, lines = contention_table(time, _RECORDING), contention_lines(time, _RECORDING)
    return replace(table, title=table.title or "Time that contention took", note=prose(lines))


def projection_table(projection: TraceProjection) -> Table:
    """Return the table of the what-ifs, with the best highlighted."""
    best = best_row(projection)
    rows = [_projection_cells(row, name) for row, name in zip(projection.rows, _names(projection), strict=True)]
    confidence = percent(float(projection.provenance.get("confidence", 0.9)), 0)
    source = "synthesised" if projection.provenance.get("synthetic") else "measured"
    note = (
        f"Baseline: {duration(projection.projection.baseline_ns)}, the {source} step times. "
        "Projected: these, times the ratio of two steady states, with and without the what-if. "
        f"Interval: {confidence}, from the ranges of the parameters and the error of the replay. "
        "Evidence: shares of the projected time, by how each piece of its critical path is known."
    )
    columns = ("what-if~", "speed-up", "interval", "projected time", "limited by~", "evidence~")
    marked = -1 if best is None else projection.rows.index(best)
    return Table("What-ifs", columns, rows, marked=marked, note=note)


def _caption(provenance: Mapping[str, Any], rank: int | None) -> str:
    chosen = list(provenance.get("iterations") or [])
    which = f"Iteration {chosen[0]}, the first that was" if chosen else "The first iteration that was"
    of_rank = "" if rank is None else f" of rank {rank}, which sets the pace"
    return (
        f"{which} replayed. Each row is a thread or stream{of_rank}; the dotted line is the end of the step. "
        "Drag to zoom along time, hover for names, click a class to hide it."
    )


def embedded(figures: Sequence[tuple[ReportFigure, Sequence[str]]]) -> tuple[list[str], list[ReportFigure]]:
    """Return BokehJS and the script that draws all charts, and the figures with their HTML elements.

    Parameters
    ----------
    figures : sequence of (ReportFigure, labels)
        Charts as HoloViews objects. Their labels are added to the titles inside, so that saved images show them too.
    """
    if not figures:
        return [], []
    scripts, elements = drawn([(figure.chart, labels) for figure, labels in figures])
    return scripts, [replace(figure, chart=html) for (figure, _), html in zip(figures, elements, strict=True)]


def rendered(template: str, title: str, scripts: Sequence[str], content: Mapping[str, Any]) -> str:
    """Render a template to a page that never accesses the network.

    Parameters
    ----------
    template : str
        Name of a template of this package, which extends ``page.html``.
    title : str
        Title of the page.
    scripts : sequence of str
        The scripts that may run in the page.
    content : mapping
        Variables of the template; text is escaped unless it is `Markup`.
    """
    environment = Environment(
        loader=PackageLoader("seqpoint.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    safe = inert(scripts)
    return environment.get_template(template).render(
        content,
        title=title,
        version=version("seqpoint"),
        scripts=safe,
        policy=policy_of(safe),
        fonts=Markup(FONTS),
    )


def write_report(content: ReportContent, path: str | Path) -> Path:
    """Write a report as a page of HTML, and return its path; a partly written file is never visible.

    Parameters
    ----------
    content : ReportContent
        Title and sections of the report.
    path : str or Path
        File to write.

    Raises
    ------
    InvalidInputError
        The folder does not exist or may not be written.
    """
    target = Path(path)
    write_text(target, html_page(content))
    return target


def html_page(content: ReportContent) -> str:
    """Return the page of a report; all text in it is escaped, and only its own two scripts may run."""
    of_sections = [(section, blocks(section)) for section in content.sections]
    items = [
        (item, section.labels)
        for section, each in of_sections
        for block in each
        for item in (*block.items, *block.more)
    ]
    scripts, with_html = embedded([(item, labels) for item, labels in items if isinstance(item, ReportFigure)])
    charts = iter(with_html)
    views = []
    for section, each in of_sections:
        drawn_blocks = [
            replace(block, items=_with_charts(block.items, charts), more=_with_charts(block.more, charts))
            for block in each
        ]
        views.append(_view(section, drawn_blocks))
    return rendered("report.html", content.title, scripts, {"views": views, "most": _VISIBLE})


def _with_charts(
    items: Sequence[Table | ReportFigure], charts: Iterator[ReportFigure]
) -> tuple[Table | ReportFigure, ...]:
    """Return tables and charts, the charts as HTML."""
    return tuple(next(charts) if isinstance(item, ReportFigure) else item for item in items)


def _view(section: ReportSection, of_section: Sequence[ReportBlock]) -> dict[str, Any]:
    """Return the variables of a section in the template."""
    quality, advice = section.description.named_tables()["quality"], section.advice
    actions = [
        {
            **asdict(each),
            "evidence": evidence_bar(each.evidence),
            "where": [without_middle(name, _SHORT) for name in each.where],
        }
        for each in (advice.actions if advice else ())
    ]
    return {
        "heading": section.heading,
        "labels": section.labels,
        "advice": advice,
        "actions": actions,
        "blocks": of_section,
        "quality": _page_table(quality if quality.rows else replace(quality, note="Nothing was counted."))[0],
        "provenance": Markup(escape(json.dumps(_provenance(section), indent=2, default=str))),
    }


def _provenance(section: ReportSection) -> dict[str, Any]:
    """Return the facts from which the numbers of a section can be computed again."""
    trace = section.description.trace
    meta, rows = trace.meta, row_counts(trace)
    devices = [asdict(device) for device in meta.devices]
    facts: dict[str, Any] = {
        "seqpoint": version("seqpoint"),
        "trace": {**trace_facts(meta, rows), "format": meta.format, "version": meta.version, "devices": devices},
    }
    if section.selection is not None:
        facts["selection"] = section.selection.to_dict()
    if section.projection is not None:
        facts["projection"] = section.projection.provenance
    return facts
