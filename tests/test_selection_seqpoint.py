"""SeqPoint selection: hand-computed epochs, scikit-learn's contract, and what holds for every epoch."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

from profilers.errors import InvalidInputError
from seqpoint.selection import SeqPointSelector


@st.composite
def epochs(draw, max_size=60):
    """Lengths and integer times of one epoch, with many repeated lengths or nearly none."""
    longest = draw(st.sampled_from([3, 12, 2000]))
    rows = draw(st.lists(st.tuples(st.integers(0, longest), st.integers(1, 10**9)), min_size=1, max_size=max_size))
    table = np.array(rows)
    return table[:, :1], table[:, 1]


def test_few_lengths_are_all_points_and_the_projection_is_exact():
    X, y = [[20], [10], [20], [30], [20]], [7, 2, 9, 12, 11]
    points = SeqPointSelector(max_points=3).fit(X, y)
    assert points.sequence_lengths_.tolist() == [10, 20, 30]
    assert points.weights_.tolist() == [1, 3, 1]
    assert points.representatives_.tolist() == [1, 2, 3]  # of 7, 9, 11 the 9 is the mean
    assert points.labels_.tolist() == [1, 0, 1, 2, 1]
    assert points.bin_edges_.tolist() == [[10, 10], [20, 20], [30, 30]]
    assert (points.projected_total_, points.relative_error_, points.converged_) == (41, 0, True)
    assert points.representatives_.dtype == np.int64
    assert points.weights_.dtype == np.float64


def test_two_bins_by_hand():
    # Range 0 to 100 in 2 bins: {0, 10, 40} mean (10+20+60)/3 = 30, nearest 10 (20); {50, 100} mean
    # (50+150+100)/3 = 100, nearest 100 (its own mean is 100, that of 50 is (50+150)/2 = 100: tie, the shorter).
    X, y = [[0], [10], [40], [50], [50], [100]], [10, 20, 60, 50, 150, 100]
    points = SeqPointSelector(max_points=2, initial_bins=2).fit(X, y)
    assert points.sequence_lengths_.tolist() == [10, 50]
    assert points.representatives_.tolist() == [1, 3]  # 50 and 150 are as far from 100: the earliest
    assert points.weights_.tolist() == [3, 3]
    assert points.labels_.tolist() == [0, 0, 0, 1, 1, 1]
    assert points.bin_edges_.tolist() == [[0, 50], [50, 100]]
    assert points.projected_total_ == 3 * 20 + 3 * 100
    assert points.relative_error_ == pytest.approx(30 / 390)
    assert not points.converged_


def test_empty_bins_are_dropped():
    X, y = [[0], [1], [2], [99], [100]], [1, 2, 3, 50, 50]
    points = SeqPointSelector(max_points=4, initial_bins=4).fit(X, y)
    assert points.bin_edges_.tolist() == [[0, 25], [75, 100]]
    assert points.sequence_lengths_.tolist() == [1, 99]
    assert points.relative_error_ == 0
    assert points.converged_


def test_bins_are_added_only_until_the_tolerance_is_met():
    X, y = [[0], [10], [40], [60], [100]], [10, 20, 60, 50, 100]
    errors = {
        k: SeqPointSelector(max_points=k, initial_bins=k, tolerance=0).fit(X, y).relative_error_ for k in (1, 2, 3)
    }
    assert errors[1] == pytest.approx(10 / 240)  # mean 48, nearest 50, five times
    assert errors[2] == pytest.approx(80 / 240)  # 3 * 20 + 2 * 50: of 60 and 100, as near, the shorter
    assert errors[3] == 0  # 2 * 10 + 2 * 60 + 100
    assert SeqPointSelector(max_points=3, initial_bins=1, tolerance=0.05).fit(X, y).weights_.tolist() == [5]
    assert SeqPointSelector(max_points=3, initial_bins=1, tolerance=0.04).fit(X, y).relative_error_ == 0
    unmet = SeqPointSelector(max_points=2, initial_bins=1, tolerance=0.04).fit(X, y)
    assert unmet.relative_error_ == errors[1]  # not the last that was tried: the best
    assert not unmet.converged_


def test_more_initial_bins_than_points_start_lower():
    X, y = np.arange(100)[:, None], np.arange(100) ** 2 + 1
    points = SeqPointSelector(max_points=4, initial_bins=50).fit(X, y)
    assert points.weights_.size == 4


@pytest.mark.parametrize(("X", "y", "weight"), [([[7]] * 5, [1, 2, 3, 4, 90], 5), ([[7]], [3], 1)])
def test_equal_lengths_and_a_single_iteration_give_one_point(X, y, weight):
    points = SeqPointSelector().fit(X, y)
    assert points.weights_.tolist() == [weight]
    assert points.sequence_lengths_.tolist() == [7]
    assert points.relative_error_ == 0


def test_only_the_first_column_is_the_length():
    X = np.array([[5, 900], [9, 1], [5, 7]])
    one, two = (SeqPointSelector().fit(columns, [1, 4, 1]) for columns in (X[:, :1], X))
    assert one.sequence_lengths_.tolist() == two.sequence_lengths_.tolist() == [5, 9]
    assert two.n_features_in_ == 2


def test_another_epoch_is_weighed_by_the_nearest_bin():
    points = SeqPointSelector(max_points=2, initial_bins=2).fit([[0], [10], [40], [60], [100]], [10, 20, 60, 50, 100])
    assert points.bin_edges_.tolist() == [[0, 50], [50, 100]]
    assert points.predict([[0], [49], [50], [400]]).tolist() == [0, 0, 1, 1]
    with pytest.raises(NotFittedError):
        SeqPointSelector().predict([[3]])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_points": 0}, "max_points is 0; it must be a finite number, 1 or more"),
        ({"initial_bins": 0}, "initial_bins is 0"),
        ({"tolerance": -0.1}, "tolerance is -0.1"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
    ],
)
def test_parameters_out_of_range_are_named(parameters, message):
    with pytest.raises(InvalidInputError, match=message):
        SeqPointSelector(**parameters).fit([[1]], [1])


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        ([[1], [2]], [3, -1], InvalidInputError, r"y\[1\] is -1"),
        ([[1], [2]], [0, 0], InvalidInputError, "every y is zero"),
        ([[1], [2]], [1, np.nan], ValueError, "NaN"),
        ([[1], [np.inf]], [1, 2], ValueError, "infinity"),
        ([[-1], [2]], [1, 2], ValueError, "Negative values"),
        ([[1], [2]], [1], ValueError, "inconsistent numbers of samples"),
        (np.empty((0, 1)), [], ValueError, "0 sample"),
        ([1, 2], [1, 2], ValueError, "Expected 2D array"),
    ],
)
def test_bad_epochs_are_refused(X, y, error, message):
    with pytest.raises(error, match=message):
        SeqPointSelector().fit(X, y)


def test_arguments_are_not_changed():
    X, y = np.array([[3.0], [1.0], [2.0]]), np.array([5.0, 1.0, 2.0])
    before = X.copy(), y.copy()
    SeqPointSelector(max_points=2).fit(X, y)
    assert np.array_equal(X, before[0])
    assert np.array_equal(y, before[1])


@given(epochs(), st.integers(1, 12), st.integers(1, 12))
def test_weights_and_labels_count_every_iteration_once(epoch, max_points, initial_bins):
    X, y = epoch
    points = SeqPointSelector(max_points=max_points, initial_bins=initial_bins).fit(X, y)
    k = points.weights_.size
    assert points.weights_.sum() == len(X)
    assert k <= max_points
    assert np.bincount(points.labels_, minlength=k).tolist() == points.weights_.tolist()
    assert points.labels_[points.representatives_].tolist() == list(range(k))
    assert np.array_equal(X[points.representatives_, 0], points.sequence_lengths_)
    assert np.array_equal(points.predict(X), points.labels_)
    assert np.all(points.bin_edges_[points.labels_, 0] <= X[:, 0])
    assert np.all(X[:, 0] <= points.bin_edges_[points.labels_, 1])


@given(epochs())
def test_as_many_points_as_lengths_project_exactly(epoch):
    X, y = epoch
    points = SeqPointSelector(max_points=np.unique(X).size, tolerance=0).fit(X, y)
    assert points.projected_total_ == pytest.approx(y.sum(), rel=1e-12)
    assert points.converged_


@given(epochs(), st.randoms(use_true_random=False), st.integers(1, 6))
def test_shuffled_rows_change_nothing(epoch, random, max_points):
    X, y = epoch
    order = list(range(len(X)))
    random.shuffle(order)
    first = SeqPointSelector(max_points=max_points, initial_bins=2).fit(X, y)
    other = SeqPointSelector(max_points=max_points, initial_bins=2).fit(X[order], y[order])
    assert np.array_equal(first.sequence_lengths_, other.sequence_lengths_)
    assert np.array_equal(first.weights_, other.weights_)
    assert first.projected_total_ == other.projected_total_
    assert np.array_equal(first.labels_[order], other.labels_)


@given(epochs(), st.sampled_from([0.25, 2.0, 1024.0]))
def test_a_scaled_statistic_scales_the_projection(epoch, factor):
    X, y = epoch
    plain = SeqPointSelector(max_points=4).fit(X, y)
    scaled = SeqPointSelector(max_points=4).fit(X, y * factor)  # powers of two: exact in floating point
    assert scaled.projected_total_ == plain.projected_total_ * factor
    assert np.array_equal(scaled.representatives_, plain.representatives_)


@given(epochs())
def test_the_iteration_of_a_length_is_the_one_nearest_its_mean(epoch):
    X, y = epoch
    points = SeqPointSelector(max_points=3, initial_bins=1).fit(X, y)
    for row in points.representatives_:
        same = np.flatnonzero(X[:, 0] == X[row, 0])
        distance = np.abs(y[same] - y[same].mean())
        assert abs(y[row] - y[same].mean()) <= distance.min() * (1 + 1e-9) + 1e-6


def test_a_million_iterations_take_well_under_seconds():
    rng = np.random.default_rng(7)
    X = rng.integers(1, 4000, (1_000_000, 1))
    y = X[:, 0] * rng.uniform(0.9, 1.1, 1_000_000)
    began = time.perf_counter()
    points = SeqPointSelector(tolerance=0).fit(X, y)
    assert time.perf_counter() - began < 5  # 0.6 s on one core of a 2024 server; loose for a busy machine
    assert points.weights_.sum() == 1_000_000


def test_importing_the_package_does_not_load_scikit_learn():
    code = "import sys, seqpoint; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
