"""Estimates: hand-computed intervals, and whether 95 % intervals hold the true number 95 % of the time."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.errors import InvalidInputError
from seqpoint.selection import (
    Estimate,
    FrequentSelector,
    PriorSelector,
    SelectionLog,
    SeqPointSelector,
    estimate_speedup,
    estimate_total,
    parallel_reduction,
    relative_error,
    sequential_reduction,
)
from seqpoint.selection.estimate import relative_noise, spread_of
from seqpoint.selection.log import length_table

N_ITERATIONS = 300
SHAPES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "skewed": lambda rng: rng.gamma(2, 60, N_ITERATIONS),
    "bimodal": lambda rng: np.where(
        rng.random(N_ITERATIONS) < 0.6, rng.normal(80, 15, N_ITERATIONS), rng.normal(400, 40, N_ITERATIONS)
    ),
    "sorted": lambda rng: np.sort(rng.lognormal(5, 0.5, N_ITERATIONS)),
    "heavy-tailed": lambda rng: 20 * (1 + rng.pareto(1.5, N_ITERATIONS)),
}


def epoch_lengths(shape, rng):
    return np.ceil(np.clip(SHAPES[shape](rng), 1, 3000))


def times(lengths, rng, *, noise=0.03):
    """A configuration with its own fixed, linear and quadratic cost, and its own noise."""
    a, b, c = rng.uniform(0, 5000), rng.uniform(10, 100), rng.uniform(0, 0.5)
    return (a + b * lengths + c * lengths**2) * rng.lognormal(0, noise, lengths.size)


def a_log():
    return SelectionLog([5, 5, 9], [98, 102, 300], representatives=[0, 2], weights=[2, 1])


def test_the_interval_of_two_points_by_hand():
    # Lengths 5 (98, 102: mean 100) and 9 (300). Both have their points, so there is no bias. Noise: squares
    # 2 * 0.02**2 = 0.0008 on 1 degree; each length is pooled with 10 degrees of the epoch's, the same 0.0008.
    # The point of length 5 misses one iteration: variance 0.0008 * ((2 - 1)**2 * 50**2 + 1 * 50**2) = 4,
    # and the predicted mean at 5 is the measured 50. Student's t of 1 degree at 97.5 % is 12.706.
    total = estimate_total([50.0, 200.0], a_log())
    assert total.value == 300
    assert total.high - total.value == pytest.approx(12.7062 * 2, rel=1e-4)
    assert total.value - total.low == pytest.approx(12.7062 * 2, rel=1e-4)
    assert total.half_width == pytest.approx(12.7062 * 2, rel=1e-4)
    assert total.confidence == 0.95


def test_a_speedup_by_hand():
    # Relative variance of each side: 4 / 300**2 (above); A is the same as B here, so 8 / 300**2 together.
    speedup = estimate_speedup([50.0, 200.0], [50.0, 200.0], a_log())
    assert speedup.value == 1
    assert np.log(speedup.high) == pytest.approx(12.7062 * np.sqrt(8) / 300, rel=1e-4)
    assert speedup.low * speedup.high == pytest.approx(1)


def test_noise_within_and_between_lengths_by_hand():
    # Within length 1: (9-10)/10, (11-10)/10 -> 0.02 on 1 degree. Length 2 from the line between 10 and 30:
    # 24 against 20, (4 / 22)**2 over 1/1 + 0.25/2 + 0.25/1 = 1.375, on 1 degree.
    statistic = np.array([9.0, 11.0, 24.0, 30.0])
    squares, degrees = relative_noise(length_table(np.array([1.0, 1.0, 2.0, 3.0]), statistic), statistic)
    assert squares == pytest.approx([0.02, (4 / 22) ** 2 / 1.375, 0])
    assert degrees.tolist() == [1, 1, 0]


def test_two_iterations_of_different_lengths_count_as_one_length():
    log = SelectionLog([1, 2], [10, 30], representatives=[0], weights=[2])
    assert spread_of(log).noise == pytest.approx([0.5, 0.5])
    assert estimate_total([10.0], log).high > 40


@pytest.mark.parametrize("n", [1, 2, 7])
def test_an_exhaustive_selection_has_no_width(n):
    rng = np.random.default_rng(n)
    lengths, statistic = rng.integers(1, 5, n), rng.uniform(1, 2, n)
    log = SelectionLog(lengths, statistic, representatives=range(n), weights=np.ones(n))
    values = rng.uniform(1, 9, n)
    assert estimate_total(values, log) == Estimate(values @ np.ones(n), values.sum(), values.sum(), 0.95)
    speedup = estimate_speedup(values, statistic, log)
    assert speedup.low == speedup.value == speedup.high


def test_without_noise_and_with_all_lengths_the_interval_has_no_width():
    lengths = np.array([3.0, 3, 4, 5, 5, 5])
    X, y = lengths[:, None], 10 * lengths
    log = SelectionLog.of(SeqPointSelector().fit(X, y), X, y)
    total = estimate_total([1.0, 4.0, 9.0], log)
    assert total.low == total.value == total.high == 2 * 1 + 4 + 3 * 9


def test_all_zero_values_are_a_total_of_zero():
    assert estimate_total([0.0, 0.0], a_log()) == Estimate(0, 0, 0, 0.95)


def test_a_known_bias_widens_the_interval():
    rng = np.random.default_rng(0)
    lengths = epoch_lengths("skewed", rng)
    X, y = lengths[:, None], 100 * lengths
    width = {}
    for selector in (SeqPointSelector(), FrequentSelector(), PriorSelector()):
        log = SelectionLog.of(selector.fit(X, y), X, y)
        total = estimate_total(y[log.representatives], log)
        width[type(selector).__name__] = total.half_width
        assert total.low <= y.sum() <= total.high
    assert min(width, key=width.__getitem__) == "SeqPointSelector"


@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_cover_the_true_total_and_are_narrow(shape):
    n_epochs, held, half_widths = 400, [], []
    for seed in range(n_epochs):
        rng = np.random.default_rng([seed, list(SHAPES).index(shape)])
        lengths = epoch_lengths(shape, rng)
        X, logged, new = lengths[:, None], times(lengths, rng), times(lengths, rng)
        log = SelectionLog.of(SeqPointSelector().fit(X, logged), X, logged)
        total = estimate_total(new[log.representatives], log)
        held.append(total.low <= new.sum() <= total.high)
        half_widths.append(total.half_width / new.sum())
    assert np.mean(held) >= 0.93  # nominal 0.95; the standard error of 400 epochs is 0.011
    assert np.median(half_widths) < 0.10


@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_cover_the_true_speedup(shape):
    held_speedup, half_widths = [], []
    for seed in range(300):
        rng = np.random.default_rng([seed, 100 + list(SHAPES).index(shape)])
        lengths = epoch_lengths(shape, rng)
        X = lengths[:, None]
        logged, a, b = (times(lengths, rng) for _ in range(3))
        log = SelectionLog.of(SeqPointSelector().fit(X, logged), X, logged)
        speedup = estimate_speedup(a[log.representatives], b[log.representatives], log)
        held_speedup.append(speedup.low <= a.sum() / b.sum() <= speedup.high)
        half_widths.append(speedup.half_width / speedup.value)
    assert np.mean(held_speedup) >= 0.92
    assert np.median(half_widths) < 0.15


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("max_points", "noise"), [(1, 0.03), (3, 0.03), (10, 0.0), (10, 0.1)])
def test_few_points_no_noise_and_much_noise_are_covered_too(shape, max_points, noise):
    held = []
    for seed in range(100):
        rng = np.random.default_rng([seed, 200 + list(SHAPES).index(shape)])
        lengths = epoch_lengths(shape, rng)
        X = lengths[:, None]
        logged, new = (times(lengths, rng, noise=noise) for _ in range(2))
        log = SelectionLog.of(SeqPointSelector(max_points=max_points).fit(X, logged), X, logged)
        total = estimate_total(new[log.representatives], log)
        held.append(total.low <= new.sum() <= total.high)
    assert np.mean(held) >= 0.90


@given(st.integers(0, 10**6), st.floats(1e-3, 1e6), st.integers(1, 12))
def test_scaled_values_scale_the_estimate(seed, factor, max_points):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, 30).astype(float)
    logged, new = times(lengths, rng), times(lengths, rng)
    points = SeqPointSelector(max_points=max_points).fit(lengths[:, None], logged)
    log = SelectionLog.of(points, lengths, logged)
    plain, scaled = (estimate_total(k * new[log.representatives], log) for k in (1.0, factor))
    for end in ("value", "low", "high"):
        assert getattr(scaled, end) == pytest.approx(factor * getattr(plain, end), rel=1e-6)
    assert 0 <= plain.low <= plain.value <= plain.high


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_shuffled_rows_give_the_same_interval(seed, max_points):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, 30).astype(float)
    logged = times(lengths, rng)
    order = rng.permutation(30)
    ends = []
    for rows in (np.arange(30), order):
        X, y = lengths[rows, None], logged[rows]
        log = SelectionLog.of(SeqPointSelector(max_points=max_points, initial_bins=2).fit(X, y), X, y)
        total = estimate_total(2 * log.lengths[log.representatives], log)
        ends.append([total.value, total.low, total.high])
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)


@given(st.integers(0, 10**6), st.floats(0.5, 0.98))
def test_more_confidence_is_never_narrower(seed, confidence):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, 40).astype(float)
    logged = times(lengths, rng)
    log = SelectionLog.of(SeqPointSelector(max_points=5).fit(lengths[:, None], logged), lengths, logged)
    less, more = (estimate_total(logged[log.representatives], log, confidence=c) for c in (confidence, 0.99))
    assert more.low <= less.low <= less.high <= more.high


def test_an_estimate_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Estimate(1, 0, 2, 0.95).value = 3  # type: ignore[misc]


def test_reductions_name_their_denominator():
    assert sequential_reduction(120, [2, 4]) == 20  # by the sum of the points
    assert parallel_reduction(120, [2, 4]) == 30  # by the longest point
    assert relative_error(90, 100) == relative_error(110, 100) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: estimate_total([1.0], a_log()), r"values has shape \(1,\); it must have shape \(2,\)"),
        (lambda: estimate_total([1.0, np.nan], a_log()), r"values\[1\] is nan"),
        (lambda: estimate_total([-1.0, 1.0], a_log()), r"values\[0\] is -1"),
        (lambda: estimate_total([1.0, 1.0], a_log(), confidence=95), "confidence is 95"),
        (lambda: estimate_speedup([1.0, 1.0], [0.0, 0.0], a_log()), "values_b project a total of zero"),
        (lambda: relative_error(1, 0), "measured is 0"),
        (lambda: sequential_reduction(1, [0.0]), "points sum to zero"),
        (lambda: parallel_reduction(1, []), r"values has shape \(0,\)"),
        (lambda: SelectionLog([1, 2], [1], representatives=[0], weights=[2]), "statistic has shape"),
        (lambda: SelectionLog([1, 2], [0, 0], representatives=[0], weights=[2]), "every statistic is zero"),
        (lambda: SelectionLog([1, 2], [1, 1], representatives=[2], weights=[2]), "distinct rows"),
        (lambda: SelectionLog([1, 2], [1, 1], representatives=[0, 0], weights=[1, 1]), "distinct rows"),
        (lambda: SelectionLog([1, 2], [1, 1], representatives=[0.5], weights=[2]), "give row indices"),
        (lambda: SelectionLog([1, 2], [1, 1], representatives=[0], weights=[3]), "their sum 3"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call()
