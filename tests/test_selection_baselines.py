"""The baselines: hand-computed choices, and what SeqPoint has to be better than."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.errors import InvalidInputError
from seqpoint.selection import FrequentSelector, MedianSelector, PriorSelector, SeqPointSelector, WorstSelector

ONE_POINT = [FrequentSelector(), MedianSelector(), WorstSelector()]
ALL = [*ONE_POINT, PriorSelector(window=4, warmup=2)]
# Lengths 8 8 8 16 24 32 32; time 10 a token, but 90 for one of the 8s.
X = np.array([[8], [32], [8], [16], [24], [8], [32]])
y = np.array([80, 320, 80, 160, 240, 90, 330])


@pytest.mark.parametrize(
    ("selector", "rows", "length", "projected"),
    [
        (FrequentSelector(), [0], [8], 7 * 250 / 3),
        (MedianSelector(), [3], [16], 7 * 160),
        (WorstSelector(), [1], [32], 7 * 325),
        (PriorSelector(window=2, warmup=3), [3, 4], [16, 24], 7 * 200),
    ],
)
def test_each_choice_by_hand(selector, rows, length, projected):
    fitted = selector.fit(X, y)
    assert fitted.representatives_.tolist() == rows
    assert fitted.sequence_lengths_.tolist() == length
    assert fitted.weights_.tolist() == [7 / len(rows)] * len(rows)
    assert fitted.labels_.tolist() == [0] * 7
    assert fitted.bin_edges_.tolist() == [[8, 32]]
    assert fitted.projected_total_ == pytest.approx(projected)
    assert fitted.relative_error_ == pytest.approx(abs(projected - 1300) / 1300)
    assert fitted.converged_


def test_of_an_even_number_the_lower_median_is_taken():
    assert MedianSelector().fit([[1], [2], [3], [4]], [1, 2, 3, 4]).sequence_lengths_.tolist() == [2]


@pytest.mark.parametrize(("n", "rows"), [(100, range(10, 60)), (55, range(5, 55)), (20, range(20))])
def test_a_short_epoch_gives_up_warmup_then_window(n, rows):
    epoch = np.arange(1, n + 1)
    assert PriorSelector().fit(epoch[:, None], epoch).representatives_.tolist() == list(rows)


@pytest.mark.parametrize("parameters", [{"window": 0}, {"warmup": -1}])
def test_parameters_out_of_range_are_named(parameters):
    with pytest.raises(InvalidInputError, match=f"{next(iter(parameters))} is"):
        PriorSelector(**parameters).fit(X, y)


@pytest.mark.parametrize("selector", ALL)
def test_bad_epochs_are_refused(selector):
    with pytest.raises(InvalidInputError, match="every y is zero"):
        selector.fit([[1], [2]], [0, 0])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10**6)), min_size=1, max_size=40))
def test_no_single_length_is_worse_than_worst(rows):
    table = np.array(rows)
    errors = [s.fit(table[:, :1], table[:, 1]).relative_error_ for s in ONE_POINT]
    assert errors[2] >= max(errors[:2]) * (1 - 1e-12)
    for selector in ALL:
        assert selector.fit(table[:, :1], table[:, 1]).weights_.sum() == pytest.approx(len(rows))


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10**6)), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_shuffled_rows_choose_the_same_length(rows, random):
    shuffled = random.sample(rows, len(rows))
    for selector in ONE_POINT:
        first, other = (
            (fitted.sequence_lengths_.tolist(), fitted.projected_total_)
            for table in (np.array(rows), np.array(shuffled))
            for fitted in [selector.fit(table[:, :1], table[:, 1])]
        )
        assert first == other


def test_seqpoint_beats_every_baseline_on_another_configuration_of_a_sorted_epoch():
    rng = np.random.default_rng(3)
    lengths = np.sort(rng.lognormal(5, 0.5, 446).round())  # as DeepSpeech2's first epoch: 446, sorted
    logged, other = 1e4 + 50 * lengths, 3e4 + 20 * lengths + 0.1 * lengths**2
    errors = {}
    for selector in (SeqPointSelector(), *ONE_POINT, PriorSelector()):
        points = selector.fit(lengths[:, None], logged)
        projected = points.weights_ @ other[points.representatives_]
        errors[type(selector).__name__] = abs(projected - other.sum()) / other.sum()
    assert min(errors, key=errors.__getitem__) == "SeqPointSelector"
    assert errors["PriorSelector"] > 0.1  # its window has only short iterations
