"""Iterations of a trace without markers: the period of its sequence of kernels.

A kernel that runs once an iteration cuts the sequence into iterations that hold the same kernels as often. Each
kernel whose name recurs evenly is tried as such a cut, and each cut is judged by how many kernels it takes to
write the sequence down with it: one typical iteration, what every iteration has more or less than that, and what
lies outside (the idea of minimum description length, Rissanen 1978, Automatica 14, 465). Layers that repeat inside
of an iteration lose, since what stands between the iterations has to be written again each time. A trace that holds
nothing but one pass through many equal layers cannot be told from as many iterations.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.arrays import Ints

__all__ = ["Period", "find_period"]

#: Fewer iterations are no period.
_MIN_ITERATIONS = 3
#: Share of a typical iteration's kernels that an iteration holds; a piece with fewer is none.
_WHOLE = 0.8
#: Share of the kernels of all iterations that have to be those of a typical one.
_ALIKE = 0.9
#: Share of all kernels that have to lie inside of iterations: the layers of a single iteration hold less.
_INSIDE = 0.8
#: Counts of symbols that are tried, and symbols of each.
_CUTS, _EACH = 64, 4
#: Kernels in which a cut is looked for; pieces times names that it may have.
_WINDOW, _CELLS = 1 << 18, 1 << 24
#: Names with numbers below need no new ones.
_DENSE = 1 << 12

Codes = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Period:
    """A sequence of kernels that repeats.

    Parameters
    ----------
    first, end : array of int64, shape (n_iterations,)
        Positions of the first kernel of each iteration, and of the one after its last.
    alike : float
        Share of the kernels of these iterations that a typical one has too, 0.9 to 1.
    inside : float
        Share of all kernels that are in these iterations, 0.8 to 1.
    """

    first: Ints
    end: Ints
    alike: float
    inside: float

    @property
    def confidence(self) -> float:
        """Share of all kernels that the period explains: how sure it is."""
        return self.alike * self.inside


def find_period(names: Ints) -> Period | None:
    """Return the iterations in a sequence of kernels, None where it has no period.

    Neither durations nor gaps are looked at, so a slow first iteration changes nothing; one that runs other kernels
    besides (tuning, compilation) is still one, and what holds less than 0.8 of the typical kernels is none.

    Parameters
    ----------
    names : array of int64, shape (n,)
        A number for the name of each kernel, in the order in which they were launched.

    Examples
    --------
    >>> period = find_period(np.array([9, 1, 2, 2, 3, 1, 2, 2, 3, 1, 2, 2, 3]))
    >>> period.first.tolist(), period.end.tolist(), period.alike
    ([1, 5, 9], [5, 9, 13], 1.0)
    """
    if len(names) < 2 * _MIN_ITERATIONS:
        return None
    dense = names.min() >= 0 and names.max() < _DENSE
    codes = (names if dense else np.unique(names, return_inverse=True)[1]).astype(np.int32)
    for symbols in (codes, _pairs(codes)):
        if (best := _best(codes[:_WINDOW], symbols[:_WINDOW])) is not None:
            found = _cut(codes, np.flatnonzero(symbols == best))
            return None if found is None else found[1]
    return None


def _pairs(codes: Codes) -> Codes:
    """Return a number for each kernel and the one before it, for sequences of which every name comes twice."""
    width = int(codes.max()) + 1
    pairs = codes.astype(np.int64) * (width + 1)
    pairs[1:] += codes[:-1]
    pairs[0] += width
    return np.unique(pairs, return_inverse=True)[1].astype(np.int32)


def _best(codes: Codes, symbols: Codes) -> int | None:
    """Return the symbol with which each iteration begins, None where there is none."""
    tried = [(symbol, _cut(codes, np.flatnonzero(symbols == symbol))) for symbol in _candidates(symbols)]
    good = [(cut[0], int(cut[1].first[0]), symbol) for symbol, cut in tried if cut is not None]
    return min(good)[2] if good else None


def _candidates(symbols: Codes) -> list[int]:
    """Return symbols that may begin an iteration: of those that come equally often a few, the first to come.

    What an iteration holds once comes equally often, and one of it is as good a cut as the other. How often more
    symbols come is tried first.
    """
    counts = np.bincount(symbols)
    able = np.flatnonzero((counts >= _MIN_ITERATIONS) & (2 * counts <= len(symbols)))
    first = np.full(len(counts), len(symbols))
    np.minimum.at(first, symbols, np.arange(len(symbols)))
    by_count: dict[int, list[int]] = {}
    for symbol in able[np.argsort(first[able], kind="stable")].tolist():
        by_count.setdefault(int(counts[symbol]), []).append(symbol)
    tried = sorted(by_count.values(), key=lambda one: (-len(one), -counts[one[0]]))[:_CUTS]
    return [symbol for one in tried for symbol in one[:_EACH]]


def _cut(codes: Codes, first: Ints) -> tuple[float, Period] | None:
    """Return what it costs to write the sequence down with these cuts, in kernels, and the iterations they make."""
    width = int(codes.max()) + 1
    end = np.append(first[1:], len(codes))
    if len(first) * width > _CELLS or not _even(end - first, len(codes)):
        return None
    table = _contents(codes, first, width)
    typical = np.floor(np.median(table, axis=0)).astype(np.int32)
    size = int(typical.sum())
    common = np.minimum(table, typical).sum(axis=1)
    length = end - first
    whole = (common >= _WHOLE * size) & (size > 0)
    if whole.sum() < _MIN_ITERATIONS:
        return None
    alike = float(common[whole].sum() / np.maximum(length[whole], size).sum())
    inside = float(length[whole].sum() / len(codes))
    if alike < _ALIKE or inside < _INSIDE:
        return None
    cost = float(first[0] + size + np.minimum(length + size - 2 * common, length).sum())
    return cost, Period(first[whole], end[whole], alike, inside)


def _even(length: Ints, kernels: int) -> bool:
    """Return whether pieces of about the same length hold most kernels, as they must where their contents are alike."""
    middle = np.median(length)
    near = length[(length >= _WHOLE * _ALIKE * middle) & (length * _WHOLE * _ALIKE <= middle)]
    return bool(len(near) >= _MIN_ITERATIONS and near.sum() >= _INSIDE * _ALIKE * kernels)


def _contents(codes: Codes, first: Ints, width: int) -> Codes:
    """Return how often each piece holds each name, shape (n_pieces, n_names)."""
    start = np.zeros(len(codes) - first[0], np.int64)
    start[first - first[0]] = width
    cells = np.cumsum(start) - width + codes[first[0] :]
    return np.bincount(cells, minlength=len(first) * width).reshape(-1, width).astype(np.int32)
