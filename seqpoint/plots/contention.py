"""Charts of contention: predicted against measured times and slow-downs, and errors by mechanism."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import holoviews as hv
import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from seqpoint.plots.frame import INK, NAME_LENGTH, Chart, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable
from seqpoint.units import time_unit

if TYPE_CHECKING:
    from seqpoint.validation.contention_cases import ContentionCase

#: Okabe and Ito's colours, and markers of about one area, so that mechanisms can be told apart without colour.
_LOOKS: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "SM": ("#0072B2", "circle", 7),
        "L2": ("#CC79A7", "diamond", 12),
        "HBM": ("#D55E00", "square", 6),
        "copy engine": ("#009E73", "triangle", 8),
        "host link": ("#E69F00", "inverted_triangle", 8),
    }
)
#: Fill of the marks of held-out scenarios, and of fitted ones.
_HELD_OUT_FILL, _FITTED_FILL = 0.85, 0.0
#: Relative errors that the bands show, and the darkness of each band.
_BANDS = ((0.25, 0.10), (0.10, 0.16))
#: Half the width of a mechanism's column of marks.
_HALF_WIDTH = 0.36


@saveable
def predicted_against_measured(cases: "Sequence[ContentionCase]") -> Chart:
    """Return the chart of predicted against measured times, with a mark for each scenario, on logarithmic axes.

    Marks of fitted scenarios are hollow.

    Parameters
    ----------
    cases : sequence of ContentionCase
        The scenarios; at least one.

    Returns
    -------
    holoviews.Overlay
        ``Area`` for errors of 25 and 10 %, a ``Curve`` of equal times, and ``Points`` for each mechanism.

    Raises
    ------
    InvalidInputError
        There is no scenario.
    """
    _check(cases)
    unit = time_unit(float(np.median([case.measured_ns for case in cases])))
    times = np.array([(case.measured_ns, case.predicted_ns) for case in cases]) / unit.ns
    # A logarithmic axis with some room around all times.
    line = np.asarray(np.geomspace(times.min() / 1.3, times.max() * 1.3, 32))
    title = "Time until all are done, predicted against measured (bands: 10 and 25 %)"
    labels = (f"measured ({unit.name})", f"predicted ({unit.name})")
    return _scatter(cases, times, line, title, labels, logx=True, logy=True)


@saveable
def slowdowns_against_measured(cases: "Sequence[ContentionCase]") -> Chart:
    """Return the chart of predicted against measured slow-downs: times over those without contention.

    Parameters
    ----------
    cases : sequence of ContentionCase
        The scenarios; at least one.

    Returns
    -------
    holoviews.Overlay
        As `predicted_against_measured`.

    Raises
    ------
    InvalidInputError
        There is no scenario.
    """
    _check(cases)
    slower = np.array([(case.measured_ns / case.free_ns, case.predicted_ns / case.free_ns) for case in cases])
    margin = 0.05 * max(float(np.ptp(slower)), 0.1)
    line = np.linspace(slower.min() - margin, slower.max() + margin, 32)
    title = "Slow-down: time over that of the longest alone, predicted against measured"
    return _scatter(cases, slower, line, title, ("measured (1 = side by side at no cost)", "predicted"))


@saveable
def error_by_mechanism(cases: "Sequence[ContentionCase]") -> Chart:
    """Return the chart of the error of every scenario by mechanism, with medians of errors and of the spread of takes.

    Medians are those of the held-out scenarios, or of all if all were fitted.

    Parameters
    ----------
    cases : sequence of ContentionCase
        The scenarios; at least one.

    Returns
    -------
    holoviews.Overlay
        ``Points`` for each mechanism, and ``Segments`` at the medians.

    Raises
    ------
    InvalidInputError
        There is no scenario.
    """
    _check(cases)
    names = [name for name in _LOOKS if any(case.mechanism == name for case in cases)]
    x = np.zeros(len(cases))
    lines: dict[str, list[tuple[float, float, float, float]]] = {"median error": [], "takes differ (median)": []}
    for i, name in enumerate(names):
        rows = [k for k, case in enumerate(cases) if case.mechanism == name]
        x[rows] = i + _HALF_WIDTH * np.linspace(-1, 1, len(rows) + 2)[1:-1]
        held_out = [cases[k] for k in rows if not cases[k].fitted] or [cases[k] for k in rows]
        medians = (float(np.median([100 * getattr(case, which) for case in held_out])) for which in ("error", "spread"))
        for line, y in zip(lines.values(), medians, strict=True):
            line.append((i - _HALF_WIDTH, y, i + _HALF_WIDTH, y))
    errors = np.array([100 * case.error for case in cases])
    layers = _marks(cases, x, errors)
    for (label, segments), dash in zip(lines.items(), ("solid", "dotted"), strict=True):
        layers.append(
            hv.Segments(segments, label=label).opts(color=INK, line_width=2.5, line_dash=dash, backend="bokeh")
        )
    return overlay(
        layers,
        "Error of the time until all are done, by the resource that is shared",
        ("", "error (%)"),
        height=380,
        xticks=list(enumerate(f"{name} ({sum(case.mechanism == name for case in cases)})" for name in names)),
        xlim=(-0.6, len(names) - 0.4),
        ylim=(-0.03 * max(float(errors.max()), 1.0), 1.08 * max(float(errors.max()), 1.0)),
    )


def _check(cases: "Sequence[ContentionCase]") -> None:
    if not cases:
        raise InvalidInputError("there is no scenario to show")


def _scatter(
    cases: "Sequence[ContentionCase]", pairs: Floats, line: Floats, title: str, labels: tuple[str, str], **look: Any
) -> Chart:
    """Return the chart of pairs of a measured and a predicted value, with bands about the line of equal values."""
    layers = [*_bands(line), *_marks(cases, pairs[:, 0], pairs[:, 1])]
    ends = (line[0], line[-1])
    return overlay(layers, title, labels, height=460, xlim=ends, ylim=ends, **look)


def _bands(x: Floats) -> list[Chart]:
    layers = [
        hv.Area((x, x * (1 - share), x * (1 + share)), kdims=["x"], vdims=["low", "high"]).opts(
            color="#777777", fill_alpha=alpha, line_alpha=0.0, backend="bokeh"
        )
        for share, alpha in _BANDS
    ]
    same = hv.Curve((x, x), kdims=["x"], vdims=["same"])
    return [*layers, same.opts(color=INK, line_width=1, line_dash="dashed", backend="bokeh")]


def _marks(cases: "Sequence[ContentionCase]", x: Floats, y: Floats) -> list[Chart]:
    tips = hover_tips(
        ("scenario", "@scenario"), ("policy", "@policy"), ("error", "@error{0.0} %"), ("takes differ", "@spread{0.0} %")
    )
    layers = []
    for name, (colour, marker, size) in _LOOKS.items():
        rows = [i for i, case in enumerate(cases) if case.mechanism == name]
        if not rows:
            continue
        of_mechanism = [cases[i] for i in rows]
        columns = (
            x[rows],
            y[rows],
            [plain_text(case.scenario, NAME_LENGTH) for case in of_mechanism],
            [plain_text(case.policy, NAME_LENGTH) for case in of_mechanism],
            [100 * case.error for case in of_mechanism],
            [100 * case.spread for case in of_mechanism],
            [_FITTED_FILL if case.fitted else _HELD_OUT_FILL for case in of_mechanism],
        )
        values = ["scenario", "policy", "error", "spread", "full"]
        points = hv.Points(columns, kdims=["x", "y"], vdims=values, label=name)
        look = {"color": colour, "marker": marker, "size": size, "line_width": 0.7, "fill_alpha": "full"}
        layers.append(points.opts(**look, backend="bokeh", **tips))
    return layers
