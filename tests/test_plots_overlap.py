"""Charts of overlap hold the values that they show."""

import holoviews as hv
import numpy as np
import pyarrow as pa
import pytest

from profilers.errors import InvalidInputError
from seqpoint import plots


def elements(chart: hv.core.Dimensioned, kind: type) -> list[hv.Element]:
    """Return every element of one kind in a chart."""
    return chart.traverse(lambda x: x, [kind])


def test_every_scenario_has_a_mark_for_every_policy() -> None:
    speedups = {"a $$x$$": {"base": 1.1, "dma": 1.5}, "b": {"base": 0.9, "dma": 1.2}}
    chart = plots.speedup_by_scenario(speedups)
    base, dma = elements(chart, hv.Points)
    assert base.dimension_values("speedup").tolist() == [1.1, 0.9] and base.label == "base"
    assert dma.dimension_values("speedup").tolist() == [1.5, 1.2]
    assert dma.dimension_values("scenario").tolist() == ["a $x$", "b"]
    assert hv.render(chart, backend="bokeh")


def test_a_sweep_has_a_curve_and_marks_each() -> None:
    chart = plots.sweep_curves([8, 16], {"product": [1.0, 0.9], "collective": [0.5, 1.0]}, ("units", "speed"))
    curves, marks = elements(chart, hv.Curve), elements(chart, hv.Scatter)
    assert [one.label for one in curves] == ["product", "collective"] and len(marks) == 2
    assert marks[1].dimension_values("value").tolist() == [0.5, 1.0]
    assert hv.render(chart, backend="bokeh")


def test_a_map_has_every_point_under_its_choice() -> None:
    chart = plots.choice_map([1.0, 10.0, 100.0], [1.0, 2.0, 3.0], ["b", "a", "b"], ("OTB", "MT"))
    a, b = elements(chart, hv.Points)
    assert (a.label, b.label) == ("a (1)", "b (2)")
    assert np.column_stack([b.dimension_values("x"), b.dimension_values("y")]).tolist() == [[1.0, 1.0], [100.0, 3.0]]
    assert hv.render(chart, backend="bokeh")


def test_pieces_stand_on_their_lanes() -> None:
    pieces = pa.table(
        {"lane": ["a", "a", "b"], "number": [0, 1, 0], "start_ns": [0.0, 1e6, 2e6], "end_ns": [1e6, 2e6, 3e6]}
    )
    chart = plots.piece_lanes(pieces)
    even, odd = elements(chart, hv.Rectangles)
    assert even.dimension_values("left").tolist() == [0.0, 2.0] and odd.dimension_values("right").tolist() == [2.0]
    assert even.dimension_values("bottom").tolist() == [0.6, -0.4]
    assert hv.render(chart, backend="bokeh")
    with pytest.raises(InvalidInputError, match="no piece"):
        plots.piece_lanes(pieces.slice(0, 0))


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="same policies"):
        plots.speedup_by_scenario({"a": {"x": 1.0}, "b": {"y": 1.0}})
    with pytest.raises(InvalidInputError, match="1 to 8 series, not 0"):
        plots.speedup_by_scenario({})
    with pytest.raises(InvalidInputError, match="1 to 8 series, not 9"):
        plots.sweep_curves([1], {str(i): [1] for i in range(9)}, ("x", "y"))
    with pytest.raises(InvalidInputError, match="has shape"):
        plots.sweep_curves([1, 2], {"a": [1]}, ("x", "y"))
    with pytest.raises(InvalidInputError, match="have shapes"):
        plots.choice_map([1.0], [1.0, 2.0], ["a"], ("x", "y"))
