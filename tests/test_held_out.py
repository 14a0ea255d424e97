"""Points chosen on one half of a run, judged on the other."""

import numpy as np
import pytest

from seqpoint import plots
from seqpoint.iteration_table import IterationTable
from seqpoint.selection import FrequentSelector, SeqPointSelector
from seqpoint.selection.evaluation import SHOWN, errors_of, held_out_error, held_out_errors
from seqpoint.selection.selecting import select


def run(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    lengths = np.clip(rng.lognormal(3.5, 0.6, n), 4, 300).round()
    return lengths, 1e6 + 1e4 * lengths * rng.normal(1, 0.01, n)


def test_the_other_half_is_counted_and_not_looked_at() -> None:
    lengths = np.array([5.0, 5.0, 9.0, 9.0, 5.0, 9.0])  # chosen from 5, 9, 5; judged on 5, 9, 9
    time_ns = np.array([10.0, 11.0, 30.0, 33.0, 10.0, 33.0])
    assert held_out_error(SeqPointSelector(), lengths, time_ns) == pytest.approx((77 - 70) / 77)
    assert held_out_error(FrequentSelector(), lengths, time_ns) == pytest.approx((77 - 30) / 77)


def test_more_points_are_better_and_baselines_are_worse() -> None:
    found = held_out_errors(*run(), [2, 20])
    assert set(found) == set(SHOWN)
    for name in ("seqpoint", "stratified"):
        assert found[name][1] < 0.03 and found[name][1] < found[name][0]
        assert found[name][1] < min(found[other][1] for other in ("frequent", "median", "prior"))


def test_the_chart_has_a_line_for_every_selector() -> None:
    lengths, time_ns = run()
    zeros = np.zeros(len(lengths), np.int64)
    names = ("log",) * len(lengths)
    table = IterationTable(zeros, np.arange(len(lengths)), zeros, lengths, {"duration": time_ns}, names, names)
    counts, errors = errors_of(select(table))
    chart = plots.errors_by_points(errors, counts, "duration")
    assert [curve.label for curve in chart] == list(SHOWN)
    assert all(len(curve) == 11 for curve in chart)
