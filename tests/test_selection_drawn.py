"""Iterations drawn at random: sampling theory's weights, strata and intervals, and how selectors are scored."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.schema import make_table
from profilers.trace.trace import Trace, TraceMeta
from seqpoint.cli import cli
from seqpoint.iteration_table import IterationTable
from seqpoint.selection.estimate import shared_allocation, stratified_variance
from seqpoint.selection.kernels import estimate_drawn_speedup as estimate_speedup
from seqpoint.selection.kernels import estimate_drawn_total as estimate_total
from seqpoint.selection.log import exact_sums, length_table, nearest_iterations
from seqpoint.selection.selecting import SelectOptions, select
from seqpoint.selection.stratified import KMedoidsSelector, RandomSelector, StratifiedSelector, kernel_profiles
from seqpoint.validation.selection import Epochs, noise_floor, read_epochs, score
from seqpoint.validation.suites import geometric_mean


@given(
    rows=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9), st.integers(1, 10**6)), min_size=1, max_size=80),
    max_points=st.integers(1, 12),
    seed=st.integers(0, 5),
)
def test_draws_stand_for_the_whole_epoch(rows, max_points, seed):
    table = np.array(rows)
    for selector in (RandomSelector(max_points, seed=seed), StratifiedSelector(max_points, seed=seed)):
        fitted = selector.fit(table[:, :2], table[:, 2])
        assert fitted.representatives_.size == min(max(max_points, fitted.n_strata_), len(rows))
        assert fitted.weights_.sum() == pytest.approx(len(rows)) and fitted.weights_.min() >= 1
        drawn = fitted.labels_[fitted.representatives_]
        assert set(drawn.tolist()) == set(fitted.labels_.tolist())
        found = estimate_total(table[:, 2][fitted.representatives_], fitted)
        assert found.low <= found.value <= found.high
        assert found.value == pytest.approx(table[:, 2].sum())  # the ratio knows the log's own total


def test_a_stratum_is_found_again():
    features = np.array([[length, batch] for length in (8, 16, 64) for batch in (1, 4) for _ in range(5)])
    fitted = StratifiedSelector(max_points=12).fit(features, features.prod(axis=1))
    assert fitted.predict(features).tolist() == fitted.labels_.tolist()
    assert fitted.n_strata_ == 6


def test_several_features_beat_the_length_alone():
    rng = np.random.default_rng(2)
    features = np.column_stack((rng.integers(10, 200, 4000), rng.integers(1, 64, 4000)))
    time_ns = 1000.0 * features.prod(axis=1) * rng.normal(1, 0.01, 4000)
    errors = {}
    for name, columns in (("length", features[:, :1]), ("both", features)):
        found = []
        for seed in range(40):
            fitted = StratifiedSelector(max_points=24, seed=seed).fit(columns, time_ns)
            found.append(fitted.relative_error_)
        errors[name] = float(np.mean(found))
    assert errors["both"] < errors["length"] / 2


@pytest.mark.parametrize(("make", "least"), [(RandomSelector, 0.75), (StratifiedSelector, 0.95)])
def test_intervals_hold_what_their_documentation_says(make, least):
    rng = np.random.default_rng(7)
    lengths = np.clip(rng.lognormal(4, 0.7, 1500), 5, 900).round()
    base = (50 * lengths + 0.1 * lengths**2) * rng.normal(1, 0.03, 1500)
    other = (30 * lengths + 0.2 * lengths**2) * rng.normal(1, 0.03, 1500)
    held = {"total": 0, "speed-up": 0}
    for seed in range(300):
        fitted = make(max_points=30, seed=seed).fit(lengths[:, None], base)
        rows = fitted.representatives_
        total = estimate_total(other[rows], fitted)
        speedup = estimate_speedup(base[rows], other[rows], fitted)
        held["total"] += total.low <= other.sum() <= total.high
        held["speed-up"] += speedup.low <= base.sum() / other.sum() <= speedup.high
    assert min(held.values()) >= least * 300


def test_samples_are_shared_where_they_help_most():
    sizes, spreads = [10, 40, 6], [1.0, 5.0, 0.0]
    assert shared_allocation(sizes, spreads, 12).tolist() == [2, 9, 1]
    assert shared_allocation(sizes, spreads, 1).tolist() == [1, 1, 1]
    assert shared_allocation(sizes, spreads, 1000).tolist() == sizes
    best = stratified_variance(sizes, spreads, [2, 9, 1])
    assert all(stratified_variance(sizes, spreads, [n, 11 - n, 1]) >= best for n in range(2, 10))


@pytest.mark.parametrize("parameters", [{"max_points": 0}, {"seed": -1}, {"max_points": float("nan")}])
def test_parameters_that_cannot_be(parameters):
    for make in (RandomSelector, StratifiedSelector):
        with pytest.raises(InvalidInputError):
            make(**parameters).fit([[1], [2]], [1, 2])


def test_a_speedup_over_nothing():
    fitted = RandomSelector().fit([[1], [2]], [1, 2])
    with pytest.raises(InvalidInputError, match="total of zero"):
        estimate_speedup([1, 2], [0, 0], fitted)


def test_medoids_are_the_middle_of_what_is_alike():
    rng = np.random.default_rng(5)
    kinds = np.array([[10, 0, 5], [0, 40, 5], [25, 25, 0]]) * 1000.0
    of_row = rng.permutation(np.repeat([0, 1, 2], [70, 20, 10]))
    profiles = kinds[of_row] * rng.normal(1, 0.01, (100, 3))
    found = KMedoidsSelector(max_points=3).fit(profiles, profiles.sum(axis=1))
    assert sorted(found.weights_.tolist()) == [10, 20, 70]
    assert found.relative_error_ < 0.01
    assert found.predict(profiles).tolist() == found.labels_.tolist()
    assert found.labels_[found.representatives_].tolist() == [0, 1, 2]
    other = profiles @ [1.0, 0.5, 2.0]
    total = estimate_total(other[found.representatives_], found)
    assert total.low <= other.sum() <= total.high


def test_more_medoids_than_profiles_that_differ():
    found = KMedoidsSelector(max_points=5).fit([[1, 2]] * 3 + [[4, 4]], [3, 3, 3, 8])
    assert found.representatives_.tolist() == [0, 3] and found.weights_.tolist() == [3, 1]


def test_medoids_of_a_long_epoch_are_looked_for_in_a_sample():
    profiles = np.repeat([[1.0, 8.0], [9.0, 1.0]], [3000, 1500], axis=0)
    found = KMedoidsSelector(max_points=2).fit(profiles, profiles.sum(axis=1))
    assert sorted(found.weights_.tolist()) == [1500, 3000] and found.relative_error_ == 0


def test_profiles_of_a_trace():
    kernels = make_table(
        "kernels",
        {
            "id": range(5),
            "rank": [0, 0, 0, 1, 0],
            "name": ["b", "a", "b", "a", "a"],
            "iteration": [3, 3, 3, 3, None],
            "dur_ns": [5, 7, 6, 9, 1],
        },
    )
    numbers, profiles = kernel_profiles(Trace(TraceMeta(""), {"kernels": kernels}))
    assert numbers.tolist() == [3] and profiles.tolist() == [[7, 11]]
    with pytest.raises(InvalidInputError, match="rank 2 has no kernel"):
        kernel_profiles(Trace(TraceMeta(""), {"kernels": kernels}), rank=2)


VALUES = st.one_of(st.floats(0, 1e300), st.floats(0, 1.0), st.integers(0, 10**9).map(float))


@given(st.lists(st.tuples(st.integers(0, 3), VALUES), min_size=1, max_size=60), st.randoms())
def test_sums_do_not_depend_on_the_order(rows, random):
    def sums(some):
        codes, values = (np.array(column) for column in zip(*some, strict=True))
        return exact_sums(codes, values.astype(np.float64), 4)

    shuffled = random.sample(rows, len(rows))
    found = sums(rows)
    assert found.tolist() == sums(shuffled).tolist()
    expected = [sum(value for code, value in rows if code == one) for one in range(4)]
    assert found.tolist() == pytest.approx(expected, rel=1e-13, abs=1e-300)


@given(st.lists(st.tuples(st.sampled_from([3.0, 3.5, 8.0, 1e12, 7.0]), st.integers(1, 99)), min_size=1, max_size=40))
def test_lengths_that_cannot_be_counted_are_sorted(rows):
    lengths, statistic = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    table = length_table(lengths, statistic)
    assert table.lengths.tolist() == sorted(set(lengths.tolist()))
    assert table.lengths[table.of_iteration].tolist() == lengths.tolist()
    assert table.counts.tolist() == [int((lengths == length).sum()) for length in table.lengths]
    assert (table.counts * table.means).tolist() == pytest.approx(
        [statistic[lengths == length].sum() for length in table.lengths]
    )
    every = np.arange(table.lengths.size)
    for row, chosen in zip(every, nearest_iterations(table, statistic, every), strict=True):
        own = np.flatnonzero(lengths == table.lengths[row])
        assert chosen == own[np.argmin(np.abs(statistic[own] - table.means[row]))]


def epochs(noise: float = 0.0) -> Epochs:
    rng = np.random.default_rng(0)
    lengths = np.sort(rng.integers(10, 400, 600)).astype(np.float64)
    base = 1000 * lengths
    return Epochs(
        "model",
        "sorted",
        lengths,
        {"base": base, "again": 1.01 * base, "faster": base / 2, "quadratic": 3 * lengths**2 * (1 + noise)},
    )


def test_a_score_by_hand():
    found = score(epochs(), "seqpoint")
    assert found.points == 10 or found.points >= 5
    assert found.total_error < 0.01 and found.covered == 1.0
    assert found.sequential_reduction > 50 and found.parallel_reduction > 200
    prior = score(epochs(), "prior")
    assert prior.points == 50 and prior.total_error > 0.7  # only the shortest lengths
    assert noise_floor(epochs()) == pytest.approx(0.01)
    assert geometric_mean([0.01, 0.0001]) == pytest.approx(0.001) and geometric_mean([0.0]) == pytest.approx(1e-6)
    with pytest.raises(InvalidInputError, match="no selector 'best'"):
        score(epochs(), "best")


def write(folder: Path, name: str, lengths: list[int], durations: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(
        f"{i},{length},{duration}\n" for i, (length, duration) in enumerate(zip(lengths, durations, strict=True))
    )
    (folder / name).write_text("iteration,sequence_length,duration_ns\n" + rows)


def test_the_command(tmp_path):
    lengths = [8, 16, 24, 32] * 30
    write(tmp_path / "m", "base-sorted.csv", lengths, [100 * n for n in lengths])
    write(tmp_path / "m", "slow-sorted.csv", lengths, [300 * n for n in lengths])
    done = CliRunner().invoke(cli, ["validate", "selection", str(tmp_path), "--json"])
    assert done.exit_code == 0
    content = json.loads(done.stdout)
    assert content["noise_floor"] == [{"model": "m", "order": "sorted", "noise_floor": None}]
    found = {one["selector"]: one for one in content["scores"]}
    assert found["seqpoint"]["total_error"] == pytest.approx(1e-6) and found["seqpoint"]["points"] == 12
    assert found["worst"]["total_error"] > 0.5
    table = CliRunner().invoke(cli, ["validate", "selection", str(tmp_path)])
    assert table.exit_code == 0 and "seqpoint" in table.output


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ([], NotFoundError, "no logs"),
        (["base.csv"], InvalidInputError, "is not CONFIGURATION-ORDER"),
        (["slow-sorted.csv"], InvalidInputError, "needs base-sorted"),
        (["base-sorted.csv"], InvalidInputError, "another configuration"),
        (["base-sorted.csv", "again-sorted.csv"], InvalidInputError, "another configuration"),
    ],
)
def test_folders_that_cannot_be_scored(tmp_path, names, error, message):
    for name in names:
        write(tmp_path / "m", name, [8, 16], [1, 2])
    with pytest.raises(error, match=message):
        read_epochs(tmp_path)


def test_logs_of_another_epoch(tmp_path):
    write(tmp_path / "m", "base-sorted.csv", [8, 16], [1, 2])
    write(tmp_path / "m", "slow-sorted.csv", [8, 24], [1, 2])
    with pytest.raises(InvalidInputError, match="are not those of base-sorted"):
        read_epochs(tmp_path)


def test_a_trace_is_grouped_by_the_time_in_each_kernel() -> None:
    """Two kinds of iterations of one length, told apart by their kernels alone."""
    kinds = [0, 1] * 6
    zeros = np.zeros(12, np.int64)
    time_ns = np.array([100.0 + 900.0 * kind for kind in kinds])
    table = IterationTable(
        zeros, np.arange(12), zeros, np.full(12, 8.0), {"kernel_time": time_ns}, ("mark",) * 12, ("shape",) * 12
    )
    profiles = np.array([[100.0, 0.0] if kind == 0 else [0.0, 1000.0] for kind in kinds])
    options = SelectOptions(selector="k-medoids", max_points=2)
    found = select(table, options, (np.arange(12), profiles))
    assert found.error == 0 and sorted(found.weights.tolist()) == [6.0, 6.0]
    half = select(table, options, (np.arange(6), profiles[:6]))
    assert sum(half.weights.tolist()) == 12 and half.error < 1
    with pytest.raises(InvalidInputError, match="reads the length alone"):
        select(table, SelectOptions(), (np.arange(12), profiles))
