"""The regression estimate: exact cases by hand, linearity, and coverage on simulated epochs of four shapes."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.errors import InvalidInputError
from seqpoint.selection import (
    SelectionLog,
    SeqPointSelector,
    assisted_speedup,
    assisted_total,
    estimate_speedup,
    estimate_total,
)

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "accuracy" / "selection_coverage.csv"


def epoch(noise: float = 0.0, n: int = 400) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(8)
    lengths = np.clip(rng.lognormal(4, 0.6, n), 8, 500).round()
    return lengths, (100 + 10 * lengths) * rng.normal(1, noise, n), rng


def points_of(lengths: np.ndarray, statistic: np.ndarray) -> SelectionLog:
    X = lengths[:, None]
    return SelectionLog.of(SeqPointSelector().fit(X, statistic), X, statistic)


@given(fixed=st.floats(0, 1e3), linear=st.floats(0.1, 50), square=st.floats(0, 0.2))
def test_what_is_quadratic_in_the_length_is_exact(fixed: float, linear: float, square: float) -> None:
    lengths, base, _ = epoch()
    other = fixed + linear * lengths + square * lengths**2
    log = points_of(lengths, base)
    found = assisted_total(other[log.representatives], log)
    assert found.value == pytest.approx(other.sum(), rel=1e-8)
    assert found.half_width <= 1e-6 * other.sum()
    ratio = assisted_speedup(base[log.representatives], other[log.representatives], log)
    assert ratio.value == pytest.approx(base.sum() / other.sum(), rel=1e-8)


def test_it_is_closer_than_the_weighted_sum() -> None:
    lengths, base, rng = epoch(noise=0.02)
    log = points_of(lengths, base)
    errors: dict[str, list[float]] = {"sum": [], "assisted": []}
    for _ in range(200):
        other = (50 + 2 * lengths + 0.1 * lengths**2) * rng.normal(1, 0.02, len(lengths))
        values = other[log.representatives]
        errors["sum"].append(abs(estimate_total(values, log).value / other.sum() - 1))
        errors["assisted"].append(abs(assisted_total(values, log).value / other.sum() - 1))
    assert np.mean(errors["assisted"]) < np.mean(errors["sum"])


def test_the_same_configuration_twice_has_a_speedup_of_one() -> None:
    lengths, base, _ = epoch(noise=0.02)
    log = points_of(lengths, base)
    values = base[log.representatives]
    found = assisted_speedup(values, values, log)
    assert found.value == 1 and found.low * found.high == pytest.approx(1)


@pytest.mark.parametrize("representatives", [[0], [3, 4]])
def test_points_that_cannot_tell_growth_fall_back(representatives: list[int]) -> None:
    weights = [6 / len(representatives)] * len(representatives)
    log = SelectionLog([1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 9], representatives=representatives, weights=weights)
    values = [2.0] * len(representatives)
    assert assisted_total(values, log) == estimate_total(values, log)
    assert assisted_speedup(values, values, log) == estimate_speedup(values, values, log)


def test_every_iteration_as_a_point_is_certain() -> None:
    log = SelectionLog([5, 9, 7], [10, 30, 19], representatives=[0, 1, 2], weights=[1, 1, 1])
    found = assisted_total([7.0, 20.0, 30.0], log)
    assert found.value == pytest.approx(57) and found.half_width == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("confidence", [0, 1, float("nan")])
def test_a_confidence_that_cannot_be(confidence: float) -> None:
    lengths, base, _ = epoch(noise=0.02)
    log = points_of(lengths, base)
    with pytest.raises(InvalidInputError, match="confidence"):
        assisted_total(base[log.representatives], log, confidence=confidence)


def test_values_that_cannot_be() -> None:
    log = points_of(*epoch()[:2])
    with pytest.raises(InvalidInputError, match=r"values\[0\] is -1"):
        assisted_total([-1.0] * len(log.weights), log)
    with pytest.raises(InvalidInputError, match="values_b has shape"):
        assisted_speedup([1.0] * len(log.weights), [1.0], log)


def test_intervals_cover_as_the_table_says() -> None:
    rows = list(csv.DictReader(TABLE.read_text().splitlines()))
    assert {row["shape"] for row in rows} == {"skewed", "bimodal", "sorted", "heavy_tail"}
    for row in rows:
        if row["selector"].startswith("seqpoint_assisted"):
            assert 93 <= float(row["total_covered"]) <= 97 and 93 <= float(row["speedup_covered"]) <= 97.5
    command = [sys.executable, str(ROOT / "benchmarks" / "selection" / "interval_coverage.py"), "--epochs", "150"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    again = list(csv.DictReader(done.stdout.splitlines()))
    for old, new in zip(rows, again, strict=True):
        for column in ("total_covered", "speedup_covered"):
            share = float(old[column]) / 100
            spread = 100 * (share * (1 - share) / 150) ** 0.5
            assert abs(float(new[column]) - float(old[column])) <= 4 * spread + 0.1
