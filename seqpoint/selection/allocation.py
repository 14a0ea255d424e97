"""How many kernels of each stratum to sample, for a given error of the total."""

import numpy as np
from numpy.typing import ArrayLike

from profilers.trace.arrays import Ints


def stratified_variance(sizes: ArrayLike, spreads: ArrayLike, sampled: ArrayLike) -> float:
    r"""Return the variance of a stratified estimate of a total.

    Parameters
    ----------
    sizes : array-like, shape (n_strata,)
        Members :math:`N_h` of each stratum.
    spreads : array-like, shape (n_strata,)
        Standard deviation :math:`S_h` in each stratum, with the divisor :math:`N_h - 1`; 0 for one member.
    sampled : array-like, shape (n_strata,)
        Members that are sampled :math:`n_h`, 1 to :math:`N_h`.

    Returns
    -------
    float
        :math:`\sum_h N_h (N_h - n_h) S_h^2 / n_h`, in the square of the unit of `spreads`.

    Notes
    -----
    Cochran, Sampling Techniques (1977), theorem 5.3; the factor :math:`1 - n_h / N_h` is the finite population's.

    Examples
    --------
    >>> stratified_variance([10, 20], [3.0, 0.0], [4, 1])  # 10 * 6 * 9 / 4
    135.0
    """
    N, S, n = np.asarray(sizes), np.asarray(spreads, dtype=np.float64), np.asarray(sampled)
    return float(np.sum(N * (N - n) / n * S * S))


def neyman_allocation(sizes: ArrayLike, spreads: ArrayLike, variance: float, *, least: int = 2) -> Ints:
    r"""Return the smallest samples that estimate a total with at most the given variance.

    Parameters
    ----------
    sizes, spreads : array-like, shape (n_strata,)
        As in `stratified_variance`.
    variance : float
        The variance to stay within, 0 or more, in the square of the unit of `spreads`.
    least : int, default 2
        Fewest members to sample of a stratum that has a spread; of one that has none, and of one that has a
        single member, one is sampled.

    Returns
    -------
    ndarray of int64, shape (n_strata,)
        :math:`n_h = \lambda N_h S_h`, rounded, within the fewest and :math:`N_h`, for the smallest
        :math:`\lambda` that keeps the variance.

    Notes
    -----
    Neyman's allocation (Cochran 1977, 5.5, equation 5.26). Strata that would be sampled more than once over are taken
    whole and the others share the rest (5.8 there), which the bounds under one :math:`\lambda` do.

    Examples
    --------
    With no bounds met, n is ``(sum N S)^2 / (V + sum N S^2)`` = 110^2 / (300 + 290) = 20.5, in the ratio 20 : 90.

    >>> neyman_allocation([20, 30], [1.0, 3.0], 300.0).tolist()
    [4, 17]
    """
    N, S = np.asarray(sizes, dtype=np.int64), np.asarray(spreads, dtype=np.float64)
    fewest = np.where(S > 0, np.minimum(least, N), 1)
    need = N * S
    inside = need > 0
    if not inside.any() or stratified_variance(N, S, fewest) <= variance:
        return fewest
    whole = np.where(inside, N, 1)

    def rounded(scale: float) -> Ints:
        return np.clip(np.rint(np.minimum(scale * need, N)).astype(np.int64), fewest, whole)

    # The scale at which nothing is sampled more than once, and that at which all is; halved in the logarithm.
    low, high = np.log(0.25 / need.max()), -np.log(S[inside].min())
    for _ in range(60):  # after that float64 has no more digits
        middle = (low + high) / 2
        enough = stratified_variance(N, S, rounded(float(np.exp(min(middle, 700.0))))) <= variance
        low, high = (low, middle) if enough else (middle, high)
    return rounded(float(np.exp(min(high + 1e-12, 700.0))))


def shared_allocation(sizes: ArrayLike, spreads: ArrayLike, total: int) -> Ints:
    r"""Share a number of samples among strata such that the variance of an estimated total is smallest.

    Parameters
    ----------
    sizes, spreads : array-like, shape (n_strata,)
        As in `stratified_variance`.
    total : int
        Samples to share; at least one a stratum is taken, and two where there is a spread and enough to share.

    Returns
    -------
    ndarray of int64, shape (n_strata,)
        They sum to `total`, or to the number of strata where that is more, or to all members where they are fewer.

    Notes
    -----
    Neyman's allocation for a fixed sample size (Cochran 1977, 5.5, equation 5.25), in whole samples by always giving
    the next one to the stratum whose variance it lowers most (Wright 2012, The American Statistician 66, 217).

    Examples
    --------
    >>> shared_allocation([20, 30, 5], [1.0, 3.0, 0.0], 10).tolist()
    [2, 7, 1]
    """
    N, S = np.asarray(sizes, dtype=np.int64), np.asarray(spreads, dtype=np.float64)
    n = np.ones(N.size, dtype=np.int64)
    twice = np.flatnonzero((S > 0) & (N > 1))
    if N.size + twice.size <= total:
        n[twice] = 2
    for _ in range(max(0, min(total, int(N.sum())) - int(n.sum()))):  # a Python loop over the samples
        gain = np.where(n < N, (N * S) ** 2 / (n * (n + 1.0)), -1.0)
        n[np.argmax(gain)] += 1
    return n
