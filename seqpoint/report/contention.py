"""A page of charts of works side by side, in one file that asks the network for nothing."""

from collections.abc import Sequence
from pathlib import Path

from profilers.atomic import write_text
from seqpoint import plots
from seqpoint.report.charts import Figure, bokeh_script, embedded
from seqpoint.report.rendering import rendered
from seqpoint.report.text import count
from seqpoint.validation.contention import ContentionCase
from seqpoint.validation.contention_scores import score_by_mechanism, score_order

__all__ = ["contention_page", "write_contention_charts"]

_TITLE = "Works side by side: predicted against measured"


def write_contention_charts(cases: Sequence[ContentionCase], path: str | Path, notes: Sequence[str] = ()) -> Path:
    """Write the charts of scenarios and return where they are; a reader never sees half a file.

    Parameters
    ----------
    cases : sequence of ContentionCase
    path : str or Path
    notes : sequence of str, optional
        On the recordings, shown first.

    Raises
    ------
    InvalidInputError
        There is no scenario; or the folder does not exist or may not be written.
    """
    target = Path(path)
    write_text(target, contention_page(cases, notes))
    return target


def contention_page(cases: Sequence[ContentionCase], notes: Sequence[str] = ()) -> str:
    """Return the page. All text in it is escaped, and only the two scripts written here may run in it.

    Raises
    ------
    InvalidInputError
        There is no scenario.
    """
    held = "Hollow: fitted. Hover for names, click a mechanism to hide it, drag to zoom."
    figures = [
        Figure("", plots.predicted_against_measured(cases), held),
        Figure("", plots.slowdowns_against_measured(cases), "Where one work is far shorter, times agree easily."),
        Figure("", plots.error_by_mechanism(cases), "Nothing is known finer than the dotted lines."),
    ]
    script, done = embedded([(figure, ()) for figure in figures])
    return rendered(
        "charts.html", _TITLE, (bokeh_script(), script), {"lines": [*notes, *_lines(cases)], "figures": done}
    )


def _lines(cases: Sequence[ContentionCase]) -> list[str]:
    """Return what the charts are of, in words."""
    recordings = sorted({f"{case.recording} ({case.device})" for case in cases})
    fitted = sum(case.fitted for case in cases)
    first = f"Recorded: {', '.join(recordings)}. {count(len(cases), 'scenario')}, {fitted or 'none'} of them fitted."
    held = [case for case in cases if not case.fitted]
    if not held:
        return [first, "All were fitted, so nothing says how good the predictions are."]
    every, order = score_by_mechanism(held)[-1], score_order(held)
    return [
        first,
        f"Not fitted: median error {100 * every.median:.1f} % of the time until all are done, 90th percentile "
        f"{100 * every.p90:.1f} %; takes differ by {100 * every.spread:.1f} % (median), "
        f"{100 * every.spread_max:.1f} % at most.",
        f"Order of policies: {order.right} of {order.compared} pairs right.",
    ]
