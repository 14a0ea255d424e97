"""Charts hold the values that they show; names from a trace stay text."""

from pathlib import Path

import holoviews as hv
import numpy as np
import pytest
from bokeh.models import Plot
from traces import write_trace

from profilers.devices import find_device
from profilers.ingest.pipeline import IngestOptions, collect
from profilers.trace.trace import Trace
from replay.analysis.critical_path import LABELS, task_labels
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.projection.projection import Projection, ProjectionOptions, project
from replay.projection.rows import ProjectionRow
from replay.projection.windows import StepWindow
from replay.what_ifs import parse_what_if
from replay.workloads import load_training, training_job, training_trace
from seqpoint import plots
from seqpoint.description import describe
from seqpoint.iteration_table import iteration_table
from seqpoint.plots.timelines import class_colours, lanes_of
from seqpoint.selection.selecting import SelectionResult, SelectOptions, select
from seqpoint.units import time_unit


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return collect([write_trace(tmp_path / "t.json", steps=6)], IngestOptions(length="aten::mm:0:0"))


@pytest.fixture
def selection(trace: Trace) -> SelectionResult:
    return select(iteration_table(trace), SelectOptions(max_points=3))


@pytest.fixture
def projection(trace: Trace) -> Projection:
    what_ifs = [parse_what_if(text) for text in ("dma_collectives", "overlap:none")]
    return project(
        [StepWindow.alone(build_graph(trace, 1, parameters=load_parameters()))],
        what_ifs,
        meta=trace.meta,
        options=ProjectionOptions(draws=4),
        parameters=load_parameters(),
    )


def elements(chart: hv.core.Dimensioned, kind: type) -> list[hv.Element]:
    """Return every element of one kind in a chart."""
    return chart.traverse(lambda x: x, [kind])


def test_the_histogram_counts_every_iteration_and_marks_the_points(selection: SelectionResult) -> None:
    chart = selection.plot()
    (histogram,) = elements(chart, hv.Histogram)
    assert histogram.dimension_values(1).sum() == len(selection.iterations) == 6
    (marked,) = elements(chart, hv.Points)
    assert sorted(marked.dimension_values("length")) == sorted(selection.iterations.sequence_length[selection.rows])
    assert sorted(marked.dimension_values("weight")) == sorted(selection.weights)


def test_the_scatter_has_every_iteration(selection: SelectionResult) -> None:
    sizes = [len(e) for e in elements(selection.plot_statistic(), hv.Scatter)]
    assert max(sizes) == len(selection.iterations) and len(selection.rows) in sizes


def test_the_breakdown_has_a_bar_a_class(trace: Trace) -> None:
    description = describe(trace)
    (bars,) = elements(description.plot(), hv.Bars)
    assert len(bars) == len(description.classes) == 3


def test_errors_stand_beside_each_other(selection: SelectionResult) -> None:
    (bars,) = elements(selection.plot_baselines(), hv.Bars)
    assert len(bars) == 1 + len(selection.baselines)


def test_a_timeline_has_a_rectangle_a_task(trace: Trace) -> None:
    timeline = replay(build_graph(trace, 1, parameters=load_parameters()))
    rectangles = elements(plots.timeline_lanes(timeline), hv.Rectangles)
    assert sum(len(r) for r in rectangles) == len(lanes_of(timeline)) == 9


def test_kernels_that_quantise_weights_have_a_class_of_their_own() -> None:
    job = training_job({"layers": 1, "hidden": 512, "heads": 8, "length": 128, "micro_batch": 1, "global_batch": 1})
    parameters = load_parameters()
    steps = training_trace(job, find_device("MI210"), fit=load_training(), parameters=parameters)
    graph = parse_what_if("quantize_weights:mx9:gpu")(build_graph(steps, 0, parameters=parameters), parameters)
    labels = {LABELS[label] for label in task_labels(graph)}
    assert {"quantisation", "gemm", "elementwise"} <= labels <= set(class_colours())


def test_a_long_timeline_is_merged_and_says_so(trace: Trace) -> None:
    timeline = replay(build_graph(trace, 1, parameters=load_parameters()))
    whole, few = lanes_of(timeline), lanes_of(timeline, limit=4)
    assert not whole.merged and whole.left_out == 0
    assert len(few) == 4
    assert few.tasks.sum() + few.left_out == 9
    title = hv.render(plots.timeline_lanes(timeline, limit=4), backend="bokeh").title.text
    assert "5" in title and title != hv.render(plots.timeline_lanes(timeline), backend="bokeh").title.text


def test_before_and_after_share_the_axis_of_time(projection: Projection) -> None:
    lines = projection.timelines
    chart = plots.before_after(lines["baseline"], lines["overlap:none"], ("before", "after"))
    model = hv.render(chart, backend="bokeh")
    figures = list(model.select({"type": Plot}))
    assert len(figures) == 2
    assert figures[0].x_range is figures[1].x_range
    assert figures[0].y_range is not figures[1].y_range, "each has as many lanes as it has"


def test_intervals_hold_their_point(projection: Projection) -> None:
    chart = plots.projection_intervals(projection.rows)
    segments = elements(chart, hv.Segments)
    low = np.concatenate([s.dimension_values(0) for s in segments])
    assert sorted(low) == sorted(row.low for row in projection.rows)


def test_a_what_if_that_is_not_applicable_has_a_line_without_a_point(projection: Projection) -> None:
    rows = (*projection.rows, ProjectionRow(("nothing",), reason="changes nothing"))
    chart = plots.projection_intervals(rows)
    low = np.concatenate([s.dimension_values(0) for s in elements(chart, hv.Segments)])
    assert sorted(low) == sorted(row.low for row in projection.rows)
    assert "not applicable" in str(hv.render(chart, backend="bokeh").yaxis[0].major_label_overrides)
    alone = plots.projection_intervals(rows[-1:])
    assert not elements(alone, hv.Segments)


def test_every_class_has_its_own_colour() -> None:
    colours = list(class_colours().values())
    assert len(set(colours)) == len(colours)


@pytest.mark.parametrize(("ns", "unit"), [(5, "ns"), (5e3, "us"), (5e6, "ms"), (5e9, "s")])
def test_units_follow_the_size(ns: float, unit: str) -> None:
    assert time_unit(ns).name == unit
