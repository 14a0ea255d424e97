"""How well points that were chosen on one half of a run give the total of the other half."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from seqpoint.sampling import RandomSelector, StratifiedSelector
from seqpoint.selection import FrequentSelector, MedianSelector, PriorSelector, SeqPointSelector

__all__ = ["HALF", "SELECTORS", "held_out_error", "held_out_errors"]

Floats = npt.NDArray[np.float64]

#: Fewer iterations are not worth halving.
HALF = 20
#: Draws whose mean error is that of a selector that draws.
_DRAWS = 20

#: Each by its name, made with the number of points and a seed.
SELECTORS: Mapping[str, Callable[[int, int], Any]] = MappingProxyType(
    {
        "seqpoint": lambda points, _: SeqPointSelector(points, initial_bins=points, tolerance=0.0),
        "stratified": lambda points, seed: StratifiedSelector(points, seed=seed),
        "random": lambda points, seed: RandomSelector(points, seed=seed),
        "frequent": lambda *_: FrequentSelector(),
        "median": lambda *_: MedianSelector(),
        "prior": lambda points, _: PriorSelector(points),
    }
)
_DRAWN = ("stratified", "random")


def held_out_errors(lengths: Floats, statistic: Floats, points: Sequence[int]) -> dict[str, list[float]]:
    """Return the error of every selector for every number of points.

    Parameters
    ----------
    lengths, statistic : array of float64, shape (n_iterations,)
        In the order of the run. Every second iteration is chosen from, the others are judged on.
    points : sequence of int

    Returns
    -------
    dict of str to list of float
        Relative errors of the total, by selector; the mean over 20 draws for those that draw.
    """
    return {
        name: [
            float(np.mean([held_out_error(make(count, seed), lengths, statistic) for seed in range(_draws(name))]))
            for count in points
        ]
        for name, make in SELECTORS.items()
    }


def _draws(name: str) -> int:
    return _DRAWS if name in _DRAWN else 1


def held_out_error(selector: Any, lengths: Floats, statistic: Floats) -> float:
    """Return the relative error of the total of every second iteration, of points chosen from the others.

    The points' own values are taken; how many iterations each stands for is counted in the half that is judged.

    Examples
    --------
    >>> lengths = np.array([5.0, 5, 9, 9, 5, 5, 9, 9])
    >>> held_out_error(SeqPointSelector(), lengths, 10 * lengths)
    0.0
    """
    X = lengths[:, None]
    fitted = selector.fit(X[::2], statistic[::2])
    values = statistic[::2][fitted.representatives_]
    count = len(lengths) - len(X[::2])
    if hasattr(fitted, "predict"):
        of_point = fitted.labels_[fitted.representatives_]
        held = np.bincount(fitted.predict(X[1::2]), minlength=int(of_point.max()) + 1)
        weights = held[of_point] / np.bincount(of_point)[of_point]
    else:
        weights = np.full(len(values), count / len(values))
    measured = float(statistic[1::2].sum())
    return abs(float(weights @ values) - measured) / measured
