"""The charts of contention as a page of HTML: predictions against measurements of recordings and traces."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from profilers.files import write_text
from profilers.trace.kernels import CLASSES
from seqpoint import plots
from seqpoint.notebook import DataFrame, counted, data_frame
from seqpoint.reporting.page import ReportFigure, embedded, rendered
from seqpoint.validation.contention import ContentionCase, score_by_mechanism, score_order
from seqpoint.validation.contention_traces import NO_CONTENTION, TraceContentionScore

_CONTENTION_TITLE = "Contention: predicted against measured"


def write_contention_charts(
    scores: Sequence[ContentionCase | TraceContentionScore], path: str | Path, notes: Sequence[str] = ()
) -> Path:
    """Write the charts of contention as a page of HTML, and return its path; a partly written file is never visible.

    Parameters
    ----------
    scores : sequence of ContentionCase or TraceContentionScore
        Scenarios of recordings, and scores of traces; at least one.
    path : str or Path
        File to write.
    notes : sequence of str, optional
        Notes on the recordings, shown first.

    Raises
    ------
    InvalidInputError
        There is no score; or the folder does not exist or may not be written.
    """
    target = Path(path)
    write_text(target, contention_page(scores, notes))
    return target


def contention_page(scores: Sequence[ContentionCase | TraceContentionScore], notes: Sequence[str] = ()) -> str:
    """Return the page of contention charts; all text in it is escaped, and only its own two scripts may run.

    Parameters
    ----------
    scores : sequence of ContentionCase or TraceContentionScore
        Scenarios of recordings, and scores of traces; at least one.
    notes : sequence of str, optional
        Notes on the recordings, shown first.

    Raises
    ------
    InvalidInputError
        There is no score.
    """
    cases = [score for score in scores if isinstance(score, ContentionCase)]
    traces = [score for score in scores if isinstance(score, TraceContentionScore)]
    figures = _scenario_figures(cases) if cases or not traces else []
    for trace in traces:
        bars = "Marks are medians, and bars the central 80 % of the kernels."
        kernels = kernel_rows(trace)
        figures.append(ReportFigure(plots.kernel_slowdowns(kernels, trace.best), "Bands: errors of 10 and 25 %."))
        figures.append(ReportFigure(plots.slowdowns_by_workgroups(kernels), bars))
    scripts, with_html = embedded([(figure, ()) for figure in figures])
    lines = [*notes, *(_lines(cases) if cases else ()), *map(_trace_line, traces)]
    return rendered("charts.html", _CONTENTION_TITLE, scripts, {"lines": lines, "figures": with_html})


def _trace_line(score: TraceContentionScore) -> str:
    """Return the sentence on the errors of a trace."""
    mean, without = (100 * score.methods[name].mean for name in (score.best, NO_CONTENTION))
    return (
        f"{score.trace} ({score.device or 'unknown device'}): {counted(score.kernels, 'kernel')} beside other "
        f"work, of which {score.slowed:,} are slowed by more than 10 %. Mean error {mean:.1f} % of the time alone "
        f"({score.best}); {without:.1f} % without contention. {score.remark}"
    )


def case_rows(cases: Sequence[ContentionCase]) -> DataFrame:
    """Return scenarios for charts."""
    names = ("scenario", "policy", "mechanism", "measured_ns", "predicted_ns", "free_ns", "error", "spread", "fitted")
    return data_frame([{name: getattr(case, name) for name in names} for case in cases])


def kernel_rows(score: TraceContentionScore) -> DataFrame:
    """Return the kernels of a trace for charts."""
    names = ("measured_ns", "predicted_ns", "alone_ns", "workgroups")
    kinds = {"class": np.array(CLASSES)[score.class_], "partner": np.array(score.partners)[score.partner]}
    return data_frame({name: getattr(score, name) for name in names} | kinds)


def _scenario_figures(cases: Sequence[ContentionCase]) -> list[ReportFigure]:
    """Return the charts of the scenarios of recordings."""
    legend = "Hollow: fitted. Hover for names, click a mechanism to hide it, drag to zoom."
    captions = {
        plots.predicted_against_measured: legend,
        plots.slowdowns_against_measured: "If one task is far shorter than the other, times agree easily.",
        plots.error_by_mechanism: "Errors below the dotted lines are within the spread of repeated takes.",
    }
    return [ReportFigure(chart(case_rows(cases)), caption) for chart, caption in captions.items()]


def _lines(cases: Sequence[ContentionCase]) -> list[str]:
    """Return sentences on the recordings, the held-out errors and the order of policies."""
    recordings = sorted({f"{case.recording} ({case.device})" for case in cases})
    fitted = sum(case.fitted for case in cases)
    first = f"Recorded: {', '.join(recordings)}. {counted(len(cases), 'scenario')}, {fitted or 'none'} of them fitted."
    held_out = [case for case in cases if not case.fitted]
    if not held_out:
        return [first, "All were fitted, so nothing says how good the predictions are."]
    overall, order = score_by_mechanism(held_out)[-1], score_order(held_out)
    return [
        first,
        f"Not fitted: median error {100 * overall.median:.1f} % of the time until all are done, 90th percentile "
        f"{100 * overall.p90:.1f} %; takes differ by {100 * overall.spread:.1f} % (median), "
        f"{100 * overall.spread_max:.1f} % at most.",
        f"Order of policies: {order.right} of {order.compared} pairs right.",
    ]
