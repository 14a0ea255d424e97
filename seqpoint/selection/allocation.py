"""Allocation of samples to strata, and the variance of the total that it gives."""

import numpy as np
from numpy.typing import ArrayLike

from profilers.trace.arrays import Ints


def stratified_variance(sizes: ArrayLike, spreads: ArrayLike, sampled: ArrayLike) -> float:
    r"""Return the variance of a stratified estimate of a total.

    Parameters
    ----------
    sizes : array-like, shape (n_strata,)
        Number of members :math:`N_h` of each stratum.
    spreads : array-like, shape (n_strata,)
        Standard deviation :math:`S_h` in each stratum, with the divisor :math:`N_h - 1`; 0 for one member.
    sampled : array-like, shape (n_strata,)
        Number of sampled members :math:`n_h`, 1 to :math:`N_h`.

    Returns
    -------
    float
        :math:`\sum_h N_h (N_h - n_h) S_h^2 / n_h`, in the square of the unit of `spreads`.

    Notes
    -----
    Cochran, Sampling Techniques (1977), theorem 5.3; :math:`1 - n_h / N_h` is the finite population correction.

    Examples
    --------
    >>> stratified_variance([10, 20], [3.0, 0.0], [4, 1])  # 10 * 6 * 9 / 4
    135.0
    """
    N, S, n = np.asarray(sizes), np.asarray(spreads, dtype=np.float64), np.asarray(sampled)
    return float(np.sum(N * (N - n) / n * S * S))


def neyman_allocation(sizes: ArrayLike, spreads: ArrayLike, variance: float, *, least: int = 2) -> Ints:
    r"""Return the smallest sample of each stratum that estimates a total with at most the given variance.

    Parameters
    ----------
    sizes : array-like, shape (n_strata,)
        Number of members :math:`N_h` of each stratum.
    spreads : array-like, shape (n_strata,)
        Standard deviation :math:`S_h` in each stratum; 0 for a single member.
    variance : float
        Largest variance of the total, 0 or more, in the square of the unit of `spreads`.
    least : int, default 2
        Fewest members to sample of a stratum with a spread. A stratum without a spread, or with a single member, gets a
        single sample.

    Returns
    -------
    ndarray of int64, shape (n_strata,)
        :math:`n_h = \lambda N_h S_h`, rounded, within the fewest and :math:`N_h`, for the smallest
        :math:`\lambda` that keeps the variance.

    Notes
    -----
    Neyman's allocation (Cochran 1977, 5.5, equation 5.26). A stratum whose share exceeds its members is taken whole
    and the others share the rest (5.8 there); clipping under a common :math:`\lambda` does that.

    Examples
    --------
    If no bound is reached n is ``(sum N S)^2 / (V + sum N S^2)`` = 110^2 / (300 + 290) = 20.5, in the ratio 20 : 90.

    >>> neyman_allocation([20, 30], [1.0, 3.0], 300.0).tolist()
    [4, 17]
    """
    N, S = np.asarray(sizes, dtype=np.int64), np.asarray(spreads, dtype=np.float64)
    fewest = np.where(S > 0, np.minimum(least, N), 1)
    products = N * S
    varies = products > 0
    if not varies.any() or stratified_variance(N, S, fewest) <= variance:
        return fewest
    most = np.where(varies, N, 1)

    def rounded(scale: float) -> Ints:
        return np.clip(np.rint(np.minimum(scale * products, N)).astype(np.int64), fewest, most)

    # Bisect the logarithm of the scale, between one that samples the fewest and one that samples all.
    low, high = np.log(0.25 / products.max()), -np.log(S[varies].min())
    for _ in range(60):  # after that float64 has no more digits
        middle = (low + high) / 2
        enough = stratified_variance(N, S, rounded(float(np.exp(min(middle, 700.0))))) <= variance
        low, high = (low, middle) if enough else (middle, high)
    return rounded(float(np.exp(min(high + 1e-12, 700.0))))


def shared_allocation(sizes: ArrayLike, spreads: ArrayLike, total: int) -> Ints:
    r"""Return the sample of each stratum that estimates a total with the smallest variance, for a number of samples.

    Parameters
    ----------
    sizes : array-like, shape (n_strata,)
        Number of members :math:`N_h` of each stratum.
    spreads : array-like, shape (n_strata,)
        Standard deviation :math:`S_h` in each stratum; 0 for a single member.
    total : int
        Number of samples to share. Each stratum gets at least one, and at least two if it has a spread and `total`
        suffices for that.

    Returns
    -------
    ndarray of int64, shape (n_strata,)
        Samples of each stratum. They sum to `total`, but not to less than the strata or to more than the members.

    Notes
    -----
    Neyman's allocation for a fixed sample size (Cochran 1977, 5.5, equation 5.25) in whole samples: each next sample
    goes to the stratum whose variance it lowers most (Wright 2012, The American Statistician 66, 217).

    Examples
    --------
    >>> shared_allocation([20, 30, 5], [1.0, 3.0, 0.0], 10).tolist()
    [2, 7, 1]
    """
    N, S = np.asarray(sizes, dtype=np.int64), np.asarray(spreads, dtype=np.float64)
    n = np.ones(N.size, dtype=np.int64)
    varying = np.flatnonzero((S > 0) & (N > 1))
    if N.size + varying.size <= total:
        n[varying] = 2
    for _ in range(max(0, min(total, int(N.sum())) - int(n.sum()))):  # a Python loop over the samples
        gain = np.where(n < N, (N * S) ** 2 / (n * (n + 1.0)), -1.0)
        n[np.argmax(gain)] += 1
    return n
