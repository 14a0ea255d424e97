"""Charts of changes: the speed-ups of what-ifs, the operators of a comparison, and scenarios of a scaling."""

from collections.abc import Mapping, Sequence
from typing import Any

import holoviews as hv
import numpy as np

from profilers.errors import InvalidInputError
from replay.projection.rows import ProjectionRow
from replay.workloads.job_memory import JobMemory
from seqpoint.plots.frame import BLUE, GREY, INK, NAME_LENGTH, RED, Chart, Rows, framed, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable, stacked
from seqpoint.units import TimeUnit, duration, time_unit

#: Most characters of an operator on the axis; the tooltip has more.
_LABEL_LENGTH = 44


@saveable
def projection_intervals(rows: Sequence[ProjectionRow]) -> Chart:
    """Return the chart of the speed-up of each what-if with its interval, from top to bottom.

    A what-if that is not applicable has its row, without a point.

    Parameters
    ----------
    rows : sequence of ProjectionRow
        The projected what-ifs.

    Returns
    -------
    holoviews.Overlay
        A ``VLine`` at 1, and ``Segments`` and ``Points`` for each verdict.
    """
    level = {id(row): float(len(rows) - 1 - i) for i, row in enumerate(rows)}
    layers = [hv.VLine(1.0).opts(color=INK, line_width=1, line_dash="dashed", backend="bokeh")]
    for verdict, colour in (("faster", BLUE), ("slower", RED), ("either: the interval holds 1", GREY)):
        chosen = [row for row in rows if row.applied and _verdict(row) == verdict]
        if chosen:
            layers += _intervals(chosen, [level[id(row)] for row in chosen], (verdict, colour))
    ticks = [(level[id(row)], _label(row)) for row in rows]
    lines = sum(max(1, label.count("\n") + 1) for _, label in ticks)
    ends = [1.0, *(end for row in rows if row.applied for end in (row.low, row.high))]
    margin = 0.06 * (max(ends) - min(ends)) or 0.05
    return overlay(
        layers,
        "Projected speed-up, with its interval",
        ("speed-up (1 = as fast as the baseline)", ""),
        height=110 + 26 * len(rows) + 12 * (lines - len(rows)),
        ylim=(-0.6, len(rows) - 0.4),
        xlim=(min(ends) - margin, max(ends) + margin),
        yticks=ticks,
    )


def _label(row: ProjectionRow) -> str:
    return "\n+ ".join(plain_text(step, 40) for step in row.what_if) + ("" if row.applied else "\nnot applicable")


def _verdict(row: ProjectionRow) -> str:
    if row.low > 1:
        return "faster"
    return "slower" if row.high < 1 else "either: the interval holds 1"


def _intervals(rows: Sequence[ProjectionRow], y: Sequence[float], look: tuple[str, str]) -> list[Chart]:
    low, high, value = (np.array([getattr(row, name) for row in rows]) for name in ("low", "high", "speedup"))
    names = [plain_text(" + ".join(row.what_if), NAME_LENGTH) for row in rows]
    hover = hover_tips(
        ("what-if", "@name"), ("speed-up", "@speedup{0.000}"), ("interval", "@low{0.000} to @high{0.000}")
    )
    verdict, colour = look
    return [
        hv.Segments((low, y, high, y)).opts(color=colour, line_width=3, backend="bokeh"),
        hv.Points(
            (value, y, names, low, high),
            kdims=["speedup", "level"],
            vdims=["name", "low", "high"],
            label=verdict,
        ).opts(color=colour, size=10, line_color="white", backend="bokeh", **hover),
    ]


@saveable
def changes_by_operator(rows: Rows, sides: tuple[str, str], title: str) -> Chart:
    """Return bars of the change of each operator: red for longer, blue for shorter, grey within the noise.

    Parameters
    ----------
    rows : pandas.DataFrame
        Operators, the largest change first, with ``name``, ``shapes``, ``before_ns``, ``after_ns``, ``noise_ns`` and
        ``beyond_noise``.
    sides : pair of str
        Names of the times before and after.
    title : str
        Title of the chart.

    Returns
    -------
    holoviews.Overlay
        ``Bars`` of the changes, the largest on top, and ``ErrorBars`` of their noise.

    Raises
    ------
    InvalidInputError
        No operator changed.
    """
    if rows.empty:
        raise InvalidInputError("no operator changed, so there is nothing to draw")
    before, after = rows.before_ns, rows.after_ns
    unit = time_unit((after - before).abs().max())
    pairs = zip(rows["name"], rows["shapes"], strict=True)
    names = [plain_text(f"{name} {shapes}".strip(), NAME_LENGTH) for name, shapes in pairs]
    labels = [f"{number}. {plain_text(name, _LABEL_LENGTH)}" for number, name in enumerate(names, 1)]
    change = ((after - before) / unit.ns).tolist()
    noise_ns = rows.noise_ns.astype(float)
    noise, is_known = (noise_ns.fillna(0.0) / unit.ns).tolist(), noise_ns.notna().any()
    clear = zip(rows.beyond_noise, change, strict=True)
    colours = [GREY if is_clear is False else RED if each > 0 else BLUE for is_clear, each in clear]
    columns = {
        "operator": labels,
        "change": change,
        "noise": noise,
        "colour": colours,
        "name": names,
        sides[0]: (before / unit.ns).tolist(),
        sides[1]: (after / unit.ns).tolist(),
    }
    tips = (
        ("operator", "@name"), *((side, f"@{side} {unit.name}") for side in sides),
        ("change", f"@change {unit.name}"), ("noise", f"@noise {unit.name}"),
    )  # fmt: skip
    bars = hv.Bars(columns, kdims=["operator"], vdims=list(columns)[1:]).opts(
        color="colour", line_color=None, bar_width=0.72, backend="bokeh", **hover_tips(*tips)
    )
    layers = [bars]
    if is_known:
        errors = hv.ErrorBars((labels, change, noise), kdims=["operator"], vdims=["change", "noise"])
        layers.append(errors.opts(line_color=INK, hooks=[_to_front], backend="bokeh"))
    return overlay(
        layers,
        f"{title} ({'grey: within the noise' if is_known else 'noise unknown'})",
        ("", f"{sides[1]} less {sides[0]} ({unit.name})"),
        height=110 + 26 * len(rows),
        invert_axes=True,
        invert_yaxis=True,
        show_legend=False,
    )


def _to_front(plot: Any, _element: Any) -> None:
    """Draw the marks of the noise above the bars."""
    plot.handles["glyph"].level = "overlay"


#: Colours of lines, which differ for most eyes (Okabe and Ito), and marks beyond them.
_LINES = (BLUE, RED, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
_MARKS = ("circle", "square", "triangle", "diamond", "cross")
#: Parts of a step and their colours; they add up to it.
_PARTS = {
    "compute alone": GREY,
    "compute beside communication": "#56B4E9",
    "exposed communication": RED,
    "bubble": "#E69F00",
    "idle": "#D8DEE4",
}


@saveable
def communication_share(rows: Rows, axis: str, of: str) -> Chart:
    """Return the share of the step in which communication is exposed, by an axis.

    Scenarios that do not fit into memory have a cross.

    Parameters
    ----------
    rows : pandas.DataFrame
        Scenarios: the value of the axis ``x``, the ``line`` that it is on, ``share``, ``step_ns`` and ``fits``.
    axis : str
        Name of the axis.
    of : str
        What is scaled, for the title.

    Returns
    -------
    holoviews.Overlay
        A ``Curve`` and a ``Scatter`` for each line.
    """
    values, lines = sorted(set(rows.x)), rows.groupby("line", sort=False)
    is_log, margin = values[-1] >= 4 * values[0], 0.05 * (values[-1] - values[0])
    layers, hover = [], hover_tips((axis, "@x"), ("exposed communication", "@share{0.0} %"), ("step", "@step"))
    for number, (label, of_line) in enumerate(lines):
        look = {"color": _LINES[number % len(_LINES)], "backend": "bokeh"}
        of_line = of_line.sort_values("x", kind="stable")
        points = list(zip(of_line.x, 100 * of_line.share, map(duration, of_line.step_ns), strict=True))
        marks = hv.Scatter(points, kdims=["x"], vdims=["share", "step"], label=label)
        mark = _MARKS[number // len(_LINES) % len(_MARKS)]
        layers += [
            hv.Curve([point[:2] for point in points], "x", "share", label=label).opts(line_width=2, **look),
            marks.opts(size=7, marker=mark, **look, **hover),
        ]
    large = rows[[fits is False for fits in rows.fits]]
    if len(large):
        crosses = hv.Scatter(
            (large.x, 100 * large.share), kdims=["x"], vdims=["share"], label="does not fit into memory"
        )
        layers.append(crosses.opts(marker="x", size=14, color=INK, line_width=2, backend="bokeh"))
    return overlay(
        layers,
        f"Exposed communication: {plain_text(of, NAME_LENGTH)}",
        (axis, "share of the step (%)"),
        height=360,
        logx=is_log,
        xlim=(values[0] / 1.08, values[-1] * 1.08) if is_log else (values[0] - margin, values[-1] + margin),
        legend_cols=1 + len(lines) // 14,
        legend_position="right",
        xticks=[(value, f"{value:g}") for value in values],
        ylim=(0, max(108 * float(rows.share.max()), 1)),
        show_legend=len(lines) > 1 or len(large) > 0,
    )


@saveable
def scaling_times(rows: Rows, of: str) -> Chart:
    """Return bars of the step of each scenario: compute, communication beside it and exposed, bubble, idle time.

    Parameters
    ----------
    rows : pandas.DataFrame
        Scenarios: ``label``, ``step_ns``, and its parts ``compute_ns``, ``hidden_ns`` (communication beside compute),
        ``exposed_ns``, ``bubble_ns`` and ``idle_ns``.
    of : str
        What is scaled, for the title.

    Returns
    -------
    holoviews.Bars
        Horizontal bars, whose parts add up to the step time.
    """
    unit = time_unit(rows.step_ns.max())
    cells = []
    for row in rows.itertuples():
        parts = (row.compute_ns - row.hidden_ns, row.hidden_ns, row.exposed_ns, row.bubble_ns, row.idle_ns)
        for part, ns in zip(_PARTS, parts, strict=True):
            cells.append((row.label, part, ns / unit.ns, 100 * ns / row.step_ns))
    shown = {part for _, part, time, _ in cells if time}
    colours = {part: colour for part, colour in _PARTS.items() if part in shown}
    bars = hv.Bars([cell for cell in cells if cell[1] in shown], kdims=["scenario", "part"], vdims=["time", "share"])
    return _stacked(bars, colours, f"Time of a step: {plain_text(of, NAME_LENGTH)}", ("time of a step", unit.name))


#: Colours of parts of memory, as they are stacked.
_MEMORY: Mapping[str, str] = {
    "weights": BLUE, "gradients": "#56B4E9", "optimizer": "#009E73", "activations": "#E69F00", "buffers": GREY,
}  # fmt: skip


@saveable
def memory_by_part(memories: Mapping[str, JobMemory]) -> Chart:
    """Return bars of the memory of a rank by part, one for each scenario.

    Parameters
    ----------
    memories : mapping of str to JobMemory
        Memory by the name of its scenario, such as ``"copies just in time"``.

    Returns
    -------
    holoviews.Bars
        Horizontal bars, whose parts add up to the allocated memory in GB.

    Raises
    ------
    InvalidInputError
        There is no memory to draw.
    """
    if not memories:
        raise InvalidInputError("no memory to draw; give that of one or more jobs, as job_memory returns it")
    cells = [
        (plain_text(name, NAME_LENGTH), part, getattr(memory, part) / 1e9, 100 * getattr(memory, part) / memory.total)
        for name, memory in memories.items()
        for part in _MEMORY
    ]
    bars = hv.Bars(cells, kdims=["scenario", "part"], vdims=["memory", "share"])
    return _stacked(bars, _MEMORY, "Memory of a rank", ("memory", "GB"))


def _stacked(bars: Chart, colours: Mapping[str, str], title: str, value: tuple[str, str]) -> Chart:
    """Return horizontal bars of scenarios, stacked by part; `value` is what they show, and its unit."""
    (what, unit), name = value, bars.vdims[0].name
    tips = hover_tips(
        ("scenario", "@scenario"), ("part", "@part"), (name, f"@{name} {unit}"), ("share", "@share{0.0} %")
    )
    return bars.opts(
        stacked=True,
        color="part",
        cmap=dict(colours),
        line_color=None,
        bar_width=0.72,
        invert_axes=True,
        invert_yaxis=True,
        xlabel="",
        ylabel=f"{what} ({unit})",
        height=max(130 + 26 * len(set(bars.dimension_values("scenario"))), 210),
        legend_position="right",
        **framed(title),
        **{**tips, "backend": "bokeh"},
    )


#: Most scenarios that a chart draws; of more, evenly spaced ones.
_MOST_POINTS = 20_000
#: Most numbers of devices that the axis names.
_MOST_TICKS = 14
#: Dashes of the fronts of what-ifs; there are lines for as many.
_DASHES = ("dashed", "dotted", "dotdash")
#: Bytes of a GB.
_GB = 1e9


@saveable
def pareto_front(scenarios: Rows, front: Sequence[Mapping[str, Any]], main: str = "nothing") -> Chart:
    """Return step time against devices of the scenarios of a sweep, with the front that no scenario beats in both.

    Each device has a colour: a line for its front, faint points for other scenarios, crosses for scenarios that do not
    fit into memory. Fronts of what-ifs are dashed, and have no other points.

    Parameters
    ----------
    scenarios : pandas.DataFrame
        Rows with ``device``, ``what_if``, ``gpus``, ``step_s``, ``memory_bytes``, ``fits``, and what tells them apart;
        as `seqpoint.sweep_result.SweepResult.table` returns them. Rows without a time are left out.
    front : sequence of mapping
        Rows of the fronts, by what-if, device and number of devices.
    main : str
        What-if whose scenarios are points.

    Returns
    -------
    holoviews.Overlay
        ``Points`` of the scenarios, and a ``Curve`` of each front.

    Raises
    ------
    InvalidInputError
        No scenario has a time.
    """
    timed = scenarios[scenarios.step_s.notna()]
    if timed.empty:
        raise InvalidInputError("no scenario has a time, so there is nothing to draw")
    unit = time_unit(1e9 * float(timed.step_s.median()))
    fronts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in front:
        fronts.setdefault((row["what_if"], row["device"] or ""), []).append(row)
    others = list(dict.fromkeys(what_if for what_if, _ in fronts if what_if != main))[: len(_DASHES)]
    dashes = {main: "solid", **dict(zip(others, _DASHES, strict=False))}
    shown = timed[timed.what_if == main]
    shown = shown.iloc[:: max(-(-len(shown) // _MOST_POINTS), 1)]
    names = timed.device.fillna("").unique()
    colours = {name: _LINES[number % len(_LINES)] for number, name in enumerate(names)}
    layers = _scenario_points(shown, colours, unit)
    for (what_if, device), rows in fronts.items():
        if what_if in dashes:
            layers += _front_line(rows, _front_name(device, what_if, main), (colours[device], dashes[what_if]), unit)
    counts = np.unique(timed.gpus).tolist()
    ticks = {"xticks": [(count, f"{count:,.0f}") for count in counts]} if len(counts) <= _MOST_TICKS else {}
    device = f" on {plain_text(names[0], NAME_LENGTH)}" * (len(names) == 1 and bool(names[0]))
    title = (
        f"Step time against devices{device}: {len(timed):,} of {len(scenarios):,} scenarios have a time "
        "(faint: each scenario; full: Pareto front)"
    )
    look = {"logx": len(counts) > 1, "logy": True, "legend_cols": 3, **ticks}
    return overlay(layers, title, ("GPUs", f"step time ({unit.name})"), height=480, **look)


def _front_name(device: str, what_if: str, main: str) -> str:
    return plain_text(f"{device or 'Pareto front'}{'' if what_if == main else f', {what_if}'}", NAME_LENGTH)


def _scenario_points(timed: Rows, colours: Mapping[str, str], unit: TimeUnit) -> list[Chart]:
    """Return a faint point for each scenario, and a cross for each that does not fit."""
    texts = timed.columns[: list(timed.columns).index("device")]
    names = [
        plain_text(", ".join(f"{key} {value}" for key, value in zip((*texts, "", ""), row, strict=True)), NAME_LENGTH)
        for row in timed[[*texts, "device", "what_if"]].itertuples(index=False, name=None)
    ]
    memory = timed.memory_bytes.astype(float).to_numpy() / _GB
    columns = (timed.gpus.to_numpy(), timed.step_s.to_numpy() * 1e9 / unit.ns, memory, np.array(names, dtype=object))
    hover = hover_tips(
        ("scenario", "@name"), ("GPUs", "@gpus"), ("step", f"@step{{0.000}} {unit.name}"), ("memory", "@memory{0.0} GB")
    )
    fits, devices = timed.fits.fillna(True).to_numpy(dtype=bool), timed.device.fillna("").to_numpy()
    layers = []
    for name, colour in colours.items():
        for rows, marker, size, words in ((fits, "circle", 5, ""), (~fits, "x", 8, "does not fit")):
            if (chosen := rows & (devices == name)).any():
                cells = tuple(column[chosen] for column in columns)
                label = ", ".join(filter(None, (_front_name(name, "", ""), words)))
                look = {"color": colour, "marker": marker, "size": size, "alpha": 0.25 if not words else 0.6}
                points = hv.Points(cells, ["gpus", "step"], ["memory", "name"], label=label)
                layers.append(points.opts(**look, backend="bokeh", **hover))
    return layers


def _front_line(rows: Sequence[Mapping[str, Any]], label: str, look: tuple[str, str], unit: TimeUnit) -> list[Chart]:
    """Return the line of a front, with a mark for each of its scenarios; `look` is colour and dash."""
    cells = [(row["gpus"], 1e9 / unit.ns * row["step_s"]) for row in rows]
    colour, dash = look
    line = {"color": colour, "line_dash": dash, "line_width": 2, "backend": "bokeh"}
    marks = {"color": colour, "size": 7 if dash == "solid" else 4, "backend": "bokeh"}
    return [
        hv.Curve(cells, "gpus", "step", label=label).opts(**line),
        hv.Points(cells, ["gpus", "step"], label=label).opts(**marks),
    ]


@saveable
def load_curves(rows: Rows) -> Chart:
    """Return the percentiles of the times to first token and per output token of an engine, by rate of arrival.

    Parameters
    ----------
    rows : pandas.DataFrame
        A row for each rate, as `replay.serving.load_table` returns them.

    Returns
    -------
    holoviews.Layout
        An ``Overlay`` of a ``Curve`` for each percentile, for each of the two times; time axes are logarithmic.
    """
    charts = []
    for key, title in (("ttft", "Time to first token"), ("tpot", "Time per output token")):
        layers = []
        for level, colour in ((50, BLUE), (90, GREY), (99, RED)):
            column = f"{key}_p{level}_s"
            if rows[column].notna().any():
                points = (rows["rate"], 1e3 * rows[column].astype(float))
                layers.append(hv.Curve(points, label=f"p{level}").opts(color=colour, line_width=2, backend="bokeh"))
        if layers:
            charts.append(overlay(layers, title, ("requests/s", "ms"), height=300, logy=True))
    return stacked(charts)
