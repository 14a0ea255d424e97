"""Charts of works side by side hold the values that they show, on a page where text stays text."""

import holoviews as hv
import numpy as np
import pytest
from test_contention import case

from profilers.errors import InvalidInputError
from seqpoint import plots
from seqpoint.reporting.page import contention_page, write_contention_charts

CASES = [
    case("a", 2e5, 1.8e5, mechanism="HBM", scenario="<script>alert(1)</script>", spread=0.03),
    case("b", 1e5, 1.1e5, mechanism="SM", alone_ns=(1e5, 4e4), spread=0.01),
    case("c", 3e5, 3e5, mechanism="SM", fitted=True, alone_ns=(1.5e5, 1.5e5), spread=0.01),
]


def elements(chart: hv.core.Dimensioned, kind: type) -> list[hv.Element]:
    return chart.traverse(lambda x: x, [kind])


def test_every_scenario_has_a_mark_in_the_unit_of_the_axis() -> None:
    chart = plots.predicted_against_measured(CASES)
    sm, hbm = elements(chart, hv.Points)
    assert (sm.label, hbm.label) == ("SM", "HBM")
    np.testing.assert_allclose(sm.dimension_values("x"), [100.0, 300.0])
    np.testing.assert_allclose(sm.dimension_values("y"), [110.0, 300.0])
    np.testing.assert_allclose(hbm.dimension_values("error"), [10.0])
    assert sm.dimension_values("full").tolist()[1] == 0.0 < sm.dimension_values("full").tolist()[0]
    wide, narrow = elements(chart, hv.Area)
    np.testing.assert_allclose(wide.dimension_values("low"), 0.75 * wide.dimension_values("x"))
    np.testing.assert_allclose(narrow.dimension_values("high"), 1.1 * narrow.dimension_values("x"))
    assert hv.render(chart, backend="bokeh")


def test_slow_downs_are_over_the_longest_alone() -> None:
    sm, hbm = elements(plots.slowdowns_against_measured(CASES), hv.Points)
    np.testing.assert_allclose(sm.dimension_values("x"), [1.0, 2.0])
    np.testing.assert_allclose(hbm.dimension_values("y"), [1800.0])


def test_errors_stand_by_mechanism_with_the_median_of_what_was_held_out() -> None:
    chart = plots.error_by_mechanism(CASES)
    median, spread = elements(chart, hv.Segments)
    np.testing.assert_allclose(median.dimension_values(1), [10.0, 10.0])  # not 5, with the one that was fitted
    np.testing.assert_allclose(spread.dimension_values(1), [1.0, 3.0])
    assert hv.render(chart, backend="bokeh")


def test_no_scenario_makes_no_chart() -> None:
    for chart in (plots.predicted_against_measured, plots.slowdowns_against_measured, plots.error_by_mechanism):
        with pytest.raises(InvalidInputError, match="no scenario"):
            chart([])


def test_the_page_is_one_file_in_which_names_are_text(tmp_path) -> None:
    target = write_contention_charts(CASES, tmp_path / "c.html")
    page = target.read_text(encoding="utf-8")
    assert "alert(1)</script>" not in page and "src=" not in page.split("<script>")[0]
    assert "3 scenarios, 1 of them fitted" in page and "median error 10.0 %" in page
    assert "All were fitted" in contention_page([CASES[2]])
    assert '<p class="summary">V &lt;1&gt; is a CPU</p>' in contention_page([CASES[2]], ["V <1> is a CPU"])
