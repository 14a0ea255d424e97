"""A measured curve of time by size: one alpha-beta line a range of sizes, as a library switches by size."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError

__all__ = ["Curve", "fit_curve"]

Floats = npt.NDArray[np.float64]

#: Lines that a curve has at most, and measurements that one needs at least.
_MOST_LINES, _LEAST_ROWS = 10, 6
#: A line spans at least this factor of sizes: fewer are noise. What is larger than all that was measured continues the
#: line of the largest sizes, down to a half of the largest.
_SPAN, _LARGE = 1.25, 0.5
#: Measurements that a curve looks at: finding where lines end takes the square of their number. Of more, medians.
_MOST_ROWS = 1500
#: Fewer lines are taken where more of them lower the error on the other half by less than this share.
_WORTH = 0.03
#: Rounds of reweighting that turn least squares into least absolute errors, and the error below which it stops.
_ROUNDS, _FLOOR = 12, 1e-3


@dataclass(frozen=True)
class Curve:
    """Lines ``alpha + beta * size``, each from one size on.

    Parameters
    ----------
    starts_bytes : tuple of float
        Size from which each line holds, ascending; the first also holds below.
    alphas_s, betas : tuple of float
        Seconds, and seconds a byte, of each line; none below zero.

    Examples
    --------
    >>> Curve((0.0, 100.0), (1.0, 2.0), (0.0, 0.5)).seconds([50, 100, 200]).tolist()
    [1.0, 52.0, 102.0]
    """

    starts_bytes: tuple[float, ...]
    alphas_s: tuple[float, ...]
    betas: tuple[float, ...]

    def seconds(self, sizes: npt.ArrayLike) -> Floats:
        """Return the time at each size in bytes, of the shape of `sizes`."""
        return self._at(np.asarray(sizes, dtype=np.float64), 1.0)

    def rising(self, sizes: npt.ArrayLike, slower: float = 1.0) -> Floats:
        """Return the least time of each size and all above, with what is fixed `slower` times as long.

        A message can be sent as a longer one: no longer one takes less time.

        Examples
        --------
        >>> Curve((0.0, 100.0), (5.0, 2.0), (0.0, 0.01)).rising([50, 200]).tolist()
        [3.0, 4.0]
        """
        wanted = np.asarray(sizes, dtype=np.float64)
        starts = np.array(self.starts_bytes)
        begins = slower * np.array(self.alphas_s) + np.array(self.betas) * starts
        later = np.append(np.minimum.accumulate(begins[::-1])[::-1], np.inf)
        least = np.minimum(self._at(wanted, slower), later[np.searchsorted(starts, wanted, side="right")])
        return np.asarray(least, dtype=np.float64)

    def _at(self, wanted: Floats, slower: float) -> Floats:
        line = np.maximum(np.searchsorted(np.array(self.starts_bytes), wanted, side="right") - 1, 0)
        return np.asarray(
            slower * np.array(self.alphas_s)[line] + np.array(self.betas)[line] * wanted, dtype=np.float64
        )


def fit_curve(sizes: Floats, seconds: Floats, limit: float | None = None) -> Curve:
    """Fit lines to measured times, as many as halves of the measurements agree on.

    Parameters
    ----------
    sizes, seconds : array of float64, shape (n,)
        Bytes and seconds, above zero, in any order.
    limit : float, optional
        Seconds a byte that the links allow. Sizes beyond all that were measured then take the geometric mean of it
        and of what the largest ones took: the larger a message, the nearer it comes to the limit.

    Raises
    ------
    InvalidInputError
        There are fewer than six sizes.

    Notes
    -----
    Where one line ends and the next begins is found by dynamic programming over the sorted sizes, with the squares of
    the relative errors; each line is then fitted to the least mean of the absolute relative errors. The number of lines
    is the least whose error, fitted on one half of the measurements and scored on the other, is near the best. More
    than 1500 measurements are thinned to the median of each size, and still more sizes to medians of ranges of sizes.
    """
    if (found := len(np.unique(sizes))) < _LEAST_ROWS:
        raise InvalidInputError(f"{found} sizes were measured; a fit needs {_LEAST_ROWS} or more")
    order = np.lexsort((seconds, sizes))
    x, t = _thinned(sizes[order], seconds[order])
    halves = ((x[::2], t[::2], x[1::2], t[1::2]), (x[1::2], t[1::2], x[::2], t[::2]))
    most = max(1, min(_MOST_LINES, len(x) // 2 // _LEAST_ROWS))
    errors = np.zeros(most)
    for near, at, other, then in halves if most > 1 else ():
        for lines, ends in enumerate(_ends(near, at, most)):
            errors[lines] += np.mean(np.abs(_curve(near, at, ends).seconds(other) / then - 1))
    chosen = int(np.flatnonzero(errors <= errors.min() * (1 + _WORTH))[0])
    return _beyond(_curve(x, t, _ends(x, t, most)[chosen]), x, t, limit)


def _thinned(x: Floats, t: Floats) -> tuple[Floats, Floats]:
    """Return medians of sizes and times where there are too many, of as many ranges on a logarithmic scale at most."""
    if len(x) <= _MOST_ROWS:
        return x, t
    x, t = _medians(x, t, np.unique(x, return_inverse=True)[1])
    if len(x) <= _MOST_ROWS:
        return x, t
    place = np.log(x / x[0]) / np.log(x[-1] / x[0]) * _MOST_ROWS
    return _medians(x, t, np.minimum(place.astype(np.int64), _MOST_ROWS - 1))


def _medians(x: Floats, t: Floats, group: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the lower median of size and of time of each group; `x` and `group` ascend together."""
    starts = np.flatnonzero(np.concatenate(([True], group[1:] > group[:-1])))
    middle = (starts + np.append(starts[1:], len(group)) - 1) // 2
    return x[middle], t[np.lexsort((t, group))][middle]


def _beyond(curve: Curve, x: Floats, t: Floats, limit: float | None) -> Curve:
    """Add the line of sizes that are larger than all that were measured."""
    large = x >= _LARGE * x[-1]
    if large.sum() < _LEAST_ROWS:
        return curve
    alpha, beta = _line(x[large], t[large])
    if limit is not None and limit < beta:
        end = alpha + beta * x[-1]
        beta = min(float(np.sqrt(limit * beta)), end / x[-1])
        alpha = end - beta * x[-1]
    return Curve((*curve.starts_bytes, float(x[-1])), (*curve.alphas_s, alpha), (*curve.betas, beta))


def _ends(x: Floats, t: Floats, most: int) -> list[list[int]]:
    """Return where 1 to `most` lines end (exclusive), best by the squares of relative errors."""
    n = len(x)
    costs = _costs(x, t)
    best = costs[0].copy()
    back, found = [], [[n]]
    for _ in range(1, most):
        # total[i, j]: the lines before end at i, the last one takes i to j.
        total = best[:, None] + costs
        previous = np.argmin(total, axis=0)
        best = total[previous, np.arange(n + 1)]
        back.append(previous)
        ends, at = [n], n
        for step in reversed(back):
            at = int(step[at])
            ends.append(at)
        found.append([end for end in reversed(ends) if end > 0] if np.isfinite(best[n]) else found[-1])
    return found


def _costs(x: Floats, t: Floats) -> Floats:
    """Return the sum of squares of the relative errors of the best line over rows i to j, shape (n + 1, n + 1)."""
    n = len(x)
    scale = x.mean()
    u, v = 1 / t, x / scale / t
    sums = [np.concatenate(([0.0], np.cumsum(one))) for one in (u * u, u * v, v * v, u, v)]
    suu, suv, svv, su, sv = (one[None, :] - one[:, None] for one in sums)
    count = np.arange(n + 1)[None, :] - np.arange(n + 1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = suu * svv - suv * suv
        a = (svv * su - suv * sv) / determinant
        b = (suu * sv - suv * su) / determinant
        both = count - a * su - b * sv
        flat, steep = count - su * su / suu, count - sv * sv / svv
        cost = np.where((a >= 0) & (b >= 0) & (determinant > 1e-12 * suu * svv), both, np.minimum(flat, steep))
    from_, to = np.append(x, x[-1]), np.concatenate((x[:1], x))
    wide = to[None, :] >= _SPAN * from_[:, None]
    apart = np.concatenate(([True], x[1:] > x[:-1], [True]))  # a size does not belong to two lines
    return np.where(
        (count >= _LEAST_ROWS) & (wide | (count == n)) & apart[:, None] & apart[None, :], np.maximum(cost, 0.0), np.inf
    )


def _curve(x: Floats, t: Floats, ends: list[int]) -> Curve:
    begins = [0, *ends[:-1]]
    lines = [_line(x[i:j], t[i:j]) for i, j in zip(begins, ends, strict=True)]
    starts = [0.0, *(float(np.sqrt(x[i - 1] * x[i])) for i in begins[1:])]
    return Curve(tuple(starts), tuple(a for a, _ in lines), tuple(b for _, b in lines))


def _line(x: Floats, t: Floats) -> tuple[float, float]:
    """Return the line with the least mean of absolute relative errors, alpha and beta not below zero."""
    weight = np.ones(len(x))
    a, b = 0.0, 0.0
    for _ in range(_ROUNDS):
        a, b = _weighted(x, t, weight)
        weight = 1 / np.maximum(np.abs((a + b * x) / t - 1), _FLOOR)
    return a, b


def _weighted(x: Floats, t: Floats, weight: Floats) -> tuple[float, float]:
    """Return the line with the least weighted squares of relative errors; a negative part is set to zero."""
    u, v = 1 / t, x / t
    suu, suv, svv, su, sv = (float(np.sum(weight * one)) for one in (u * u, u * v, v * v, u, v))
    determinant = suu * svv - suv * suv
    if determinant > 1e-12 * suu * svv:
        a, b = (svv * su - suv * sv) / determinant, (suu * sv - suv * su) / determinant
        if a >= 0 and b >= 0:
            return a, b
        if a < 0:
            return 0.0, sv / svv
    return su / suu, 0.0
