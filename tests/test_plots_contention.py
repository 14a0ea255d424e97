"""Charts of works side by side hold the values that they show, on a page where text stays text."""

import holoviews as hv
import numpy as np
import pytest
from test_contention import case

from profilers.errors import InvalidInputError
from profilers.trace.kernels import CLASSES
from seqpoint import plots
from seqpoint.reporting.contention import case_rows, contention_page, kernel_rows, write_contention_charts
from seqpoint.validation.contention_traces import MethodScore, TraceContentionScore

CASES = [
    case("a", 2e5, 1.8e5, mechanism="HBM", scenario="<script>alert(1)</script>", spread=0.03),
    case("b", 1e5, 1.1e5, mechanism="SM", alone_ns=(1e5, 4e4), spread=0.01),
    case("c", 3e5, 3e5, mechanism="SM", fitted=True, alone_ns=(1.5e5, 1.5e5), spread=0.01),
]


def elements(chart: hv.core.Dimensioned, kind: type) -> list[hv.Element]:
    return chart.traverse(lambda x: x, [kind])


def test_every_scenario_has_a_mark_in_the_unit_of_the_axis() -> None:
    chart = plots.predicted_against_measured(case_rows(CASES))
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
    sm, hbm = elements(plots.slowdowns_against_measured(case_rows(CASES)), hv.Points)
    np.testing.assert_allclose(sm.dimension_values("x"), [1.0, 2.0])
    np.testing.assert_allclose(hbm.dimension_values("y"), [1800.0])


def test_errors_stand_by_mechanism_with_the_median_of_what_was_held_out() -> None:
    chart = plots.error_by_mechanism(case_rows(CASES))
    median, spread = elements(chart, hv.Segments)
    np.testing.assert_allclose(median.dimension_values(1), [10.0, 10.0])  # not 5, with the one that was fitted
    np.testing.assert_allclose(spread.dimension_values(1), [1.0, 3.0])
    assert hv.render(chart, backend="bokeh")


def test_no_scenario_makes_no_chart() -> None:
    for chart in (plots.predicted_against_measured, plots.slowdowns_against_measured, plots.error_by_mechanism):
        with pytest.raises(InvalidInputError, match="no scenario"):
            chart(case_rows([]))


def test_the_page_is_one_file_in_which_names_are_text(tmp_path) -> None:
    target = write_contention_charts(CASES, tmp_path / "c.html")
    page = target.read_text(encoding="utf-8")
    assert "alert(1)</script>" not in page and "src=" not in page.split("<script>")[0]
    assert "3 scenarios, 1 of them fitted" in page and "median error 10.0 %" in page
    assert "All were fitted" in contention_page([CASES[2]])
    assert '<p class="summary">V &lt;1&gt; is a CPU</p>' in contention_page([CASES[2]], ["V <1> is a CPU"])


def trace_score(count: int = 4) -> TraceContentionScore:
    """Return kernels of 100 us alone: products of 304 workgroups beside 24, and elementwise kernels beside a copy."""
    is_gemm = np.arange(count) % 2 == 0
    slow, predicted = np.where(is_gemm, 1.5, 1.0), np.where(is_gemm, 1.4, 1.1)
    classes = np.where(is_gemm, CLASSES.index("gemm"), CLASSES.index("elementwise"))
    errors = MethodScore(0.1, 0.2, 0.1, 0.8, 1.0, 0.9)
    return TraceContentionScore(
        *("job<b>", "", count, 2, int(is_gemm.sum()), 0.02, "", {"no contention": errors, "shipped": errors}),
        *(100e3 * slow, 100e3 * predicted, np.full(count, 100e3), classes),
        *(np.where(is_gemm, 304, 40), np.where(is_gemm, 0, 1), ("all_reduce (24)", "copy"), "shipped"),
    )


def test_every_kernel_of_a_trace_has_a_mark_by_class() -> None:
    chart = plots.kernel_slowdowns(kernel_rows(trace_score()), "shipped")
    marks = {points.label: points for points in elements(chart, hv.Points)}
    assert set(marks) == {"gemm", "elementwise"}
    np.testing.assert_allclose(marks["gemm"].dimension_values("x"), [1.5, 1.5])
    np.testing.assert_allclose(marks["gemm"].dimension_values("y"), [1.4, 1.4])
    np.testing.assert_allclose(marks["elementwise"].dimension_values("workgroups"), [40, 40])
    assert hv.render(chart, backend="bokeh")
    many = elements(plots.kernel_slowdowns(kernel_rows(trace_score(20_001)), "shipped"), hv.Points)
    assert sum(map(len, many)) == 5000


def test_slow_downs_of_a_trace_stand_by_workgroups_and_partner() -> None:
    chart = plots.slowdowns_by_workgroups(kernel_rows(trace_score(8)))
    marks = {points.label: points for points in elements(chart, hv.Points)}
    assert [(name, points.dimension_values("workgroups").tolist()) for name, points in marks.items()] == [
        ("all_reduce (24)", [304]),
        ("copy", [40]),
    ]
    assert marks["all_reduce (24)"].dimension_values("y").tolist() == [1.5]
    assert marks["copy"].dimension_values("n").tolist() == [4]
    ((low, high),) = [(s.dimension_values(1), s.dimension_values(3)) for s in elements(chart, hv.Segments)[:1]]
    assert (low.tolist(), high.tolist()) == ([1.5], [1.5])
    assert hv.render(chart, backend="bokeh")


def test_a_page_holds_traces_beside_recordings() -> None:
    page = contention_page([*CASES, trace_score()])
    assert "3 scenarios, 1 of them fitted" in page and page.count("<figure") == 5
    assert "job&lt;b&gt; (unknown device): 4 kernels beside other work, of which 2 are slowed by more than 10 %" in page
    assert contention_page([trace_score()]).count("<figure") == 2
    with pytest.raises(InvalidInputError, match="no scenario and no overlapped kernel"):
        contention_page([])
