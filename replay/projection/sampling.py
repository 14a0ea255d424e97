"""Error of a projection on selected steps: each stands for others, whose times and gains nobody replayed.

The speed-up of selected steps is the ratio of two weighted sums: of base times :math:`b_p`, and of
:math:`b_p r_p`, with the ratio :math:`r_p` of changed to unchanged time. Two things are known with an error only:

- the weight of a step in the run: the steps that it stands for take :math:`b_p (1 + d_p z_p)` together;
- the gain of the steps that it stands for: :math:`r_p (1 + t_p z'_p)`. Neighbouring points tell how gains differ: their
  squared differences, halved, are the variance within a pair (Cochran 1977, 5A.12, collapsed strata).

Each draw takes :math:`z` and :math:`z'` from the standard normal distribution. A step that stands for itself alone has
no error. So the interval grows as far as the gains of the points differ; equal gains leave it as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profilers.trace.arrays import Floats

if TYPE_CHECKING:
    from replay.projection.projection import StepWindow

#: Seed of these draws, beside that of the projection.
_SEED = 20
#: Smallest ratio of times, so that its logarithm is finite.
_SMALLEST = 1e-9


@dataclass(frozen=True)
class SampledStep:
    """A step that stands for others.

    Parameters
    ----------
    position : float
        Sequence length, or number of the step: steps of neighbouring positions are alike.
    deviation : float
        Relative standard deviation of the steps that it stands for.
    """

    position: float
    deviation: float


def selection_factors(
    windows: "Sequence[StepWindow]", base_ns: Sequence[float], ratios: Sequence[float], *, draws: int, seed: int
) -> Floats:
    """Return the factor of the projected time in each draw, by the error of the selection.

    Parameters
    ----------
    windows : sequence of StepWindow
        Windows of the selected steps.
    base_ns : sequence of float
        Weighted base time of each window.
    ratios : sequence of float
        Changed over unchanged time of each window.
    draws, seed : int
        Number of draws, and their seed.

    Returns
    -------
    ndarray of float64, shape (draws,)
        Ones if no step stands for others, or if all ratios are equal.
    """
    base, ratio = np.array(base_ns, dtype=np.float64), np.array(ratios, dtype=np.float64)
    if not any(window.sampled for window in windows) or base.sum() * (base @ ratio) <= 0:
        return np.ones(draws)
    errors = np.array([_window_error(window) for window in windows])
    positions, deviations, unseen = errors.T
    gain = _gain_deviation(ratio, positions)
    random = np.random.default_rng([seed, _SEED])
    first, second = random.standard_normal((2, draws, base.size))
    drawn = base * np.maximum(1 + deviations * first, 0.0)
    changed = drawn * ratio * np.maximum(1 + gain * unseen * second, 0.0)
    usual = float(base @ ratio) / float(base.sum())
    total = drawn.sum(axis=1)
    return np.asarray(np.where(total > 0, changed.sum(axis=1) / np.maximum(total, _SMALLEST) / usual, 1.0))


def _window_error(window: "StepWindow") -> tuple[float, float, float]:
    """Return the position of a window, the relative error of its base time, and that of its gain over one step's."""
    if not window.sampled:
        return 0.0, 0.0, 0.0
    weight = np.array(window.weights)
    share = weight * np.array(window.measured_ns)
    share = share / share.sum() if share.sum() else np.full(weight.size, 1 / weight.size)
    unseen = np.sqrt(np.maximum(1 - 1 / np.maximum(weight, 1), 0.0))
    deviation = np.array([step.deviation for step in window.sampled])
    position = float(share @ np.array([step.position for step in window.sampled]))
    return position, float(np.linalg.norm(share * deviation * unseen)), float(np.linalg.norm(share * unseen))


def _gain_deviation(ratio: Floats, positions: Floats) -> float:
    """Return the relative standard deviation of gains between points of neighbouring positions."""
    if ratio.size < 2:
        return 0.0
    gains = np.log(np.maximum(ratio, _SMALLEST))[np.argsort(positions, kind="stable")]
    return float(np.sqrt(np.mean(np.diff(gains) ** 2) / 2))
