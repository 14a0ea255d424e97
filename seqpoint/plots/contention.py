"""Charts of works side by side: predicted against measured times, what they cost each other, errors by mechanism."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import holoviews as hv
import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from seqpoint.plots.frame import INK, NAME_LENGTH, hover_tips, overlay, plain_text
from seqpoint.units import time_unit

if TYPE_CHECKING:
    from seqpoint.validation.contention_cases import ContentionCase

Chart = Any  # HoloViews has no types

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
#: How full the marks are of what was held out, and of what was fitted.
_HELD, _FITTED = 0.85, 0.0
#: Errors that the bands show, and how dark they are.
_BANDS = ((0.25, 0.10), (0.10, 0.16))
_WIDTH = 0.36


def predicted_against_measured(cases: "Sequence[ContentionCase]") -> Chart:
    """Return the predicted over the measured time of every scenario, a mark each, on logarithmic axes.

    Marks of what was fitted are hollow.

    Returns
    -------
    holoviews.Overlay
        ``Area`` for errors of 25 and 10 %, a ``Curve`` where both are the same, and ``Points`` a mechanism.

    Raises
    ------
    InvalidInputError
        There is no scenario.
    """
    _check(cases)
    unit = time_unit(float(np.median([case.measured_ns for case in cases])))
    times = np.array([(case.measured_ns, case.predicted_ns) for case in cases]) / unit.ns
    return overlay(
        [*_bands(_decades(times)), *_marks(cases, times[:, 0], times[:, 1])],
        "Time until all are done, predicted against measured (bands: 10 and 25 %)",
        (f"measured ({unit.name})", f"predicted ({unit.name})"),
        height=460,
        logx=True,
        logy=True,
        xlim=tuple(_decades(times)[[0, -1]]),
        ylim=tuple(_decades(times)[[0, -1]]),
    )


def slowdowns_against_measured(cases: "Sequence[ContentionCase]") -> Chart:
    """Return the predicted over the measured slow-down of every scenario: its time over that without contention.

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
    ends = np.array([slower.min() - margin, slower.max() + margin])
    return overlay(
        [*_bands(np.linspace(ends[0], ends[1], 32)), *_marks(cases, slower[:, 0], slower[:, 1])],
        "Slow-down: time over that of the longest alone, predicted against measured",
        ("measured (1 = side by side at no cost)", "predicted"),
        height=460,
        xlim=tuple(ends),
        ylim=tuple(ends),
    )


def error_by_mechanism(cases: "Sequence[ContentionCase]") -> Chart:
    """Return the error of every scenario by what its works fight for, and by how much takes differ.

    Medians are of what was not fitted, where there is any.

    Returns
    -------
    holoviews.Overlay
        ``Points`` a mechanism, ``Segments`` at medians of errors and of spreads.

    Raises
    ------
    InvalidInputError
        There is no scenario.
    """
    _check(cases)
    names = [name for name in _LOOKS if any(case.mechanism == name for case in cases)]
    place = np.zeros(len(cases))
    lines: dict[str, list[tuple[float, float, float, float]]] = {"median error": [], "takes differ (median)": []}
    for i, name in enumerate(names):
        rows = [k for k, case in enumerate(cases) if case.mechanism == name]
        place[rows] = i + _WIDTH * np.linspace(-1, 1, len(rows) + 2)[1:-1]
        shown = [cases[k] for k in rows if not cases[k].fitted] or [cases[k] for k in rows]
        middle = (float(np.median([100 * getattr(one, which) for one in shown])) for which in ("error", "spread"))
        for line, y in zip(lines.values(), middle, strict=True):
            line.append((i - _WIDTH, y, i + _WIDTH, y))
    errors = np.array([100 * case.error for case in cases])
    layers = _marks(cases, place, errors)
    for (label, segments), dash in zip(lines.items(), ("solid", "dotted"), strict=True):
        layers.append(
            hv.Segments(segments, label=label).opts(color=INK, line_width=2.5, line_dash=dash, backend="bokeh")
        )
    return overlay(
        layers,
        "Error of the time until all are done, by what the works fight for",
        ("", "error (%)"),
        height=380,
        xticks=list(enumerate(f"{name} ({sum(case.mechanism == name for case in cases)})" for name in names)),
        xlim=(-0.6, len(names) - 0.4),
        ylim=(-0.03 * max(float(errors.max()), 1.0), 1.08 * max(float(errors.max()), 1.0)),
    )


def _check(cases: "Sequence[ContentionCase]") -> None:
    if not cases:
        raise InvalidInputError("there is no scenario to show")


def _decades(times: Floats) -> Floats:
    """Return a range with some room about all times, evenly on a logarithmic scale."""
    return np.asarray(np.geomspace(times.min() / 1.3, times.max() * 1.3, 32))


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
        mine = [cases[i] for i in rows]
        columns = (
            x[rows],
            y[rows],
            [plain_text(case.scenario, NAME_LENGTH) for case in mine],
            [plain_text(case.policy, NAME_LENGTH) for case in mine],
            [100 * case.error for case in mine],
            [100 * case.spread for case in mine],
            [_FITTED if case.fitted else _HELD for case in mine],
        )
        values = ["scenario", "policy", "error", "spread", "full"]
        points = hv.Points(columns, kdims=["x", "y"], vdims=values, label=name)
        look = {"color": colour, "marker": marker, "size": size, "line_width": 0.7, "fill_alpha": "full"}
        layers.append(points.opts(**look, backend="bokeh", **tips))
    return layers
