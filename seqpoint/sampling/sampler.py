"""Which kernels to time again, and how many each stands for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri  # type: ignore[import-untyped, unused-ignore]
from sklearn.base import BaseEstimator

from profilers.errors import InvalidInputError
from seqpoint.sampling.population import KernelPopulation, kernel_population
from seqpoint.sampling.strata import Strata, cut_strata
from seqpoint.selection.allocation import neyman_allocation, stratified_variance
from seqpoint.selection.fitted import require_at_least

__all__ = ["KernelSampler", "SamplingPlan", "draw_rows"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SamplingPlan:
    """Strata, and how many kernels of each are sampled; it does not depend on the seed.

    Attributes
    ----------
    strata : Strata
    sampled : ndarray of int64, shape (n_strata,)
        Kernels to sample of each stratum.
    total_ns : float
        Sum of the traced times of all kernels.
    """

    strata: Strata
    sampled: Ints
    total_ns: float


class KernelSampler(BaseEstimator):  # type: ignore[misc]
    """Choose kernels such that their new times give the total of all, with a known error.

    Kernels of one name form a stratum, which is cut between kinds of launch as long as that saves samples
    (`seqpoint.sampling.strata`). Each stratum is sampled at random without replacement, in proportion to its size
    times its spread (Neyman), so that the traced total would be estimated within `relative_error`.

    Parameters
    ----------
    confidence : float, default 0.95
        Of the error that is planned for, and of intervals; between 0 and 1.
    relative_error : float, default 0.01
        Half-width of the interval to plan for, as a share of the traced total; 0 or more. With 0 every kernel is
        sampled.
    min_per_stratum : int, default 2
        Fewest samples of a stratum that has a spread, 1 or more; of 1 no variance can be estimated. A stratum whose
        traced times are all equal, or that has one kernel, gets one.
    seed : int, default 0
        Of the draw; 0 or more.

    Attributes
    ----------
    indices_ : ndarray of int64, shape (n_sampled,)
        Rows to time again, ascending.
    weights_ : ndarray of float64, shape (n_sampled,)
        Kernels that each stands for; they sum to the number of kernels.
    strata_ : ndarray of int64, shape (n_kernels,)
        Stratum of every row.
    n_strata_ : int
    planned_error_ : float
        The half-width to expect of times that spread as planned (`Strata.planned_ns`), by expansion, as a share of
        the traced total; by the normal quantile.
    traced_ns_ : ndarray of float64, shape (n_kernels,)
        The times that were fitted.
    plan_ : SamplingPlan

    Notes
    -----
    Cochran, Sampling Techniques (1977), chapters 5 and 5A. The idea is that of SeqPoint (arXiv 2007.10459), one
    level down, as in Sieve and STEM+ROOT. The error is planned for times that spread in a stratum as the traced ones
    do; `seqpoint.sampling.estimate` takes its interval from the new times, whatever they do.

    Examples
    --------
    >>> kernels = {"name": ["gemm"] * 98 + ["copy"] * 2, "dur_ns": [1000, 1010] * 49 + [7, 7]}
    >>> sampler = KernelSampler().fit(kernels)
    >>> sampler.indices_.size, sampler.n_strata_, float(sampler.weights_.sum())
    (3, 2, 100.0)
    """

    def __init__(
        self,
        confidence: float = 0.95,
        relative_error: float = 0.01,
        min_per_stratum: int = 2,
        seed: int = 0,
    ) -> None:
        self.confidence = confidence
        self.relative_error = relative_error
        self.min_per_stratum = min_per_stratum
        self.seed = seed

    def fit(self, X: pa.Table | Mapping[str, ArrayLike] | KernelPopulation, y: None = None) -> Self:
        """Choose the kernels to time again.

        Parameters
        ----------
        X : pyarrow.Table, mapping of str to array-like, or KernelPopulation
            As `kernel_population` takes it: the table `kernels` of a trace, perhaps with the operators' shapes.
        y : None
            Not read; scikit-learn's interface.

        Returns
        -------
        KernelSampler
            Itself, fitted.

        Raises
        ------
        InvalidInputError
            A parameter is out of range, or the kernels are not what `kernel_population` accepts.
        """
        self._check()
        population = kernel_population(X)
        plan = self._plan(population)
        strata = plan.strata
        variance = stratified_variance(strata.sizes, strata.planned_ns, plan.sampled)
        self.plan_ = plan
        self.traced_ns_ = population.duration_ns
        self.strata_ = strata.of_row
        self.n_strata_ = int(strata.sizes.size)
        self.planned_error_ = _quantile(self.confidence) * variance**0.5 / plan.total_ns
        self.indices_ = draw_rows(plan, self.seed)
        self.weights_ = (strata.sizes / plan.sampled)[self.strata_[self.indices_]]
        return self

    def _check(self) -> None:
        if not 0 < self.confidence < 1:
            raise InvalidInputError(f"confidence is {self.confidence!r}; it must lie between 0 and 1, such as 0.95")
        require_at_least("relative_error", self.relative_error, 0)
        require_at_least("min_per_stratum", self.min_per_stratum, 1)
        require_at_least("seed", self.seed, 0)

    def _plan(self, population: KernelPopulation) -> SamplingPlan:
        total = float(population.duration_ns.sum())
        variance = (self.relative_error * total / _quantile(self.confidence)) ** 2
        strata = cut_strata(population, variance, least=self.min_per_stratum)
        if self.relative_error == 0:
            return SamplingPlan(strata, strata.sizes, total)
        sampled = neyman_allocation(strata.sizes, strata.planned_ns, variance, least=self.min_per_stratum)
        return SamplingPlan(strata, sampled, total)


def draw_rows(plan: SamplingPlan, seed: int) -> Ints:
    """Draw the planned number of kernels of each stratum, every choice as likely as any other.

    Parameters
    ----------
    plan : SamplingPlan
    seed : int
        The same seed draws the same rows.

    Returns
    -------
    ndarray of int64, shape (n_sampled,)
        Rows, ascending.

    Notes
    -----
    Each kernel gets a uniform number, and the smallest ones of a stratum win. Only those below a bound that is very
    likely to leave enough are sorted; where it does not, the stratum is sorted whole, so that the draw stays exact.

    Examples
    --------
    >>> sampler = KernelSampler(relative_error=0.5).fit({"name": ["a"] * 9, "dur_ns": range(1, 10)})
    >>> draw_rows(sampler.plan_, 0).size == draw_rows(sampler.plan_, 1).size
    True
    """
    of_row, wanted = plan.strata.of_row, plan.sampled
    luck = np.random.default_rng(seed).random(of_row.size)
    bound = np.minimum(1.0, (wanted + 6 * np.sqrt(wanted) + 20) / plan.strata.sizes)
    rows = np.flatnonzero(luck < bound[of_row])
    short = np.bincount(of_row[rows], minlength=wanted.size) < wanted
    if short.any():
        rows = np.flatnonzero((luck < bound[of_row]) | short[of_row])
    rows = rows[np.lexsort((rows, luck[rows], of_row[rows]))]
    kept = np.bincount(of_row[rows], minlength=wanted.size)
    place = np.arange(rows.size) - np.repeat(np.cumsum(kept) - kept, kept)
    return np.sort(rows[place < np.repeat(wanted, kept)])


def _quantile(confidence: float) -> float:
    return float(ndtri((1 + confidence) / 2))
