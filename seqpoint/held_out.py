"""How well points that were chosen on one half of a run give the total of the other half."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqpoint.methods import METHODS, Budget
from seqpoint.selection import predict_total

__all__ = ["HALF", "SHOWN", "held_out_error", "held_out_errors"]

Floats = npt.NDArray[np.float64]

#: Fewer iterations are not worth halving.
HALF = 20
#: Draws whose mean error is that of a selector that draws.
_DRAWS = 20
#: The ways to choose that are compared; of the worst choice there is no other half.
SHOWN = tuple(name for name in METHODS if name != "worst")


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
    return {name: [_mean_error(name, count, (lengths, statistic)) for count in points] for name in SHOWN}


def _mean_error(name: str, points: int, log: tuple[Floats, Floats]) -> float:
    method = METHODS[name]
    budgets = [Budget(points, first=points, seed=seed) for seed in range(_DRAWS if method.seeded else 1)]
    return float(np.mean([held_out_error(method.make(one), *log, assisted=method.assisted) for one in budgets]))


def held_out_error(selector: Any, lengths: Floats, statistic: Floats, *, assisted: bool = False) -> float:
    """Return the relative error of the total of every second iteration, of points chosen from the others.

    The points' own values are taken; how many iterations each stands for is counted in the half that is judged.
    `assisted`, the cost is a regression on the length instead (`predict_total`), where the points can tell one.

    Examples
    --------
    >>> from seqpoint.selection import SeqPointSelector
    >>> lengths = np.array([5.0, 5, 9, 9, 5, 5, 9, 9])
    >>> held_out_error(SeqPointSelector(), lengths, 10 * lengths)
    0.0
    """
    X = lengths[:, None]
    fitted = selector.fit(X[::2], statistic[::2])
    values = statistic[::2][fitted.representatives_]
    count = len(lengths) - len(X[::2])
    measured = float(statistic[1::2].sum())
    points = fitted.sequence_lengths_
    if assisted and len(points) >= 3 and np.ptp(points) > 0 and values.min() > 0:
        return abs(predict_total(values, points, lengths[1::2]).value - measured) / measured
    if hasattr(fitted, "predict"):
        of_point = fitted.labels_[fitted.representatives_]
        held = np.bincount(fitted.predict(X[1::2]), minlength=int(of_point.max()) + 1)
        weights = held[of_point] / np.bincount(of_point)[of_point]
    else:
        weights = np.full(len(values), count / len(values))
    return abs(float(weights @ values) - measured) / measured
