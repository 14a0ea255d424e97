"""Every way to choose iterations, by name: how it is made, and how a total and a speed-up follow from its points."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from seqpoint import sampling
from seqpoint.selection import (
    Estimate,
    FittedSelector,
    FrequentSelector,
    MedianSelector,
    PriorSelector,
    SelectionLog,
    SeqPointSelector,
    WorstSelector,
    assisted_speedup,
    assisted_total,
    estimate_speedup,
    estimate_total,
)

__all__ = ["BASELINES", "METHODS", "Budget", "Method", "method_of"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Budget:
    """How much may be profiled.

    Parameters
    ----------
    points : int
        Lengths, or strata and groups, at most.
    iterations : int, optional
        In all, at most; by default `points`.
    first : int
        Bins that SeqPoint begins with; no more than `points` are made.
    tolerance : float
        Relative error of the total at which SeqPoint stops adding points.
    confidence : float
    seed : int
        Of the methods that draw.
    """

    points: int = 10
    iterations: int | None = None
    first: int = 5
    tolerance: float = 0.01
    confidence: float = 0.95
    seed: int = 0

    @property
    def draws(self) -> int:
        """Iterations of a method that draws them."""
        return self.points if self.iterations is None else self.iterations


@dataclass(frozen=True)
class Method:
    """A way to choose iterations.

    Parameters
    ----------
    make : callable
        Returns an unfitted selector for a budget.
    drawn : bool
        Whether it draws at random from strata, so that sampling theory gives its intervals.
    assisted : bool
        Whether totals are those of `seqpoint.selection.assisted_total`.
    features : bool
        Whether it reads more than the length.
    seeded : bool
        Whether another seed gives other points.
    """

    make: Callable[[Budget], Any]
    drawn: bool = False
    assisted: bool = False
    features: bool = False
    seeded: bool = False

    def own_total(self, fitted: Any, log: tuple[Floats, Floats], confidence: float = 0.95) -> Estimate:
        """Return the total of the log (lengths or features, and statistic) that it was fitted on, from its points."""
        values = log[1][fitted.representatives_]
        if self.drawn:
            return sampling.expand_total(values, fitted)
        return estimate_total(values, SelectionLog.of(fitted, *log), confidence=confidence)

    def total(self, fitted: Any, log: tuple[Floats, Floats], values: Floats) -> Estimate:
        """Return the total on another configuration, where the points took `values`."""
        if self.drawn:
            return sampling.estimate_total(values, fitted)
        return (assisted_total if self.assisted else estimate_total)(values, SelectionLog.of(fitted, *log))

    def speedup(self, fitted: Any, log: tuple[Floats, Floats], values: Floats) -> Estimate:
        """Return the speed-up of the log over a configuration on which the points took `values`."""
        base = log[1][fitted.representatives_]
        if self.drawn:
            return sampling.estimate_speedup(base, values, fitted)
        known = SelectionLog.of(fitted, *log)
        return (assisted_speedup if self.assisted else estimate_speedup)(base, values, known)


def _seqpoint(budget: Budget) -> SeqPointSelector:
    return SeqPointSelector(budget.points, budget.first, budget.tolerance, budget.iterations)


def _stratified(budget: Budget) -> sampling.StratifiedSelector:
    strata = None if budget.iterations is None else min(budget.points, max(1, budget.iterations // 2))
    return sampling.StratifiedSelector(budget.draws, strata, confidence=budget.confidence, seed=budget.seed)


def _ignoring(make: Callable[[], FittedSelector]) -> Callable[[Budget], FittedSelector]:
    return lambda _: make()


#: What SeqPoint is compared with in its paper; each has its own number of points.
BASELINES: Mapping[str, Callable[[], FittedSelector]] = MappingProxyType(
    {"frequent": FrequentSelector, "median": MedianSelector, "worst": WorstSelector, "prior": PriorSelector}
)

#: All, the baselines too, by name.
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "seqpoint": Method(_seqpoint),
        "seqpoint, assisted": Method(_seqpoint, assisted=True),
        "stratified": Method(_stratified, drawn=True, features=True, seeded=True),
        "k-medoids": Method(
            lambda b: sampling.KMedoidsSelector(b.draws, confidence=b.confidence, seed=b.seed),
            drawn=True,
            features=True,
        ),
        "random": Method(
            lambda b: sampling.RandomSelector(b.draws, confidence=b.confidence, seed=b.seed),
            drawn=True,
            seeded=True,
        ),
    }
    | {name: Method(_ignoring(make)) for name, make in BASELINES.items()}
)


def method_of(name: str) -> Method:
    """Return a method by its name.

    Raises
    ------
    InvalidInputError
        There is none; the message lists those that there are.
    """
    if name not in METHODS:
        raise InvalidInputError(f"no selector {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]
