"""How sure the order of predicted plans is: the error of a ratio of two plans is smaller than that of each.

Plans of one job on one device share what their predictions get wrong. The ratio of two plans has a spread of its own,
found on measured steps (`benchmarks/jobs/accuracy_of_order.py`).
"""

from collections.abc import Sequence
from math import log
from statistics import NormalDist
from typing import NamedTuple

#: Standard deviation of the logarithm of predicted over measured ratios of two plans: Megatron-LM's steps on A100 that
#: the shipped costs were fitted to. `tests/accuracy/plan_order.csv` has the score on the others.
SPREAD = 0.11
#: Chance of being faster, from which a plan counts as faster.
_SURE = 0.9


class PlanOrder(NamedTuple):
    """How sure the fastest of some plans is.

    Parameters
    ----------
    chance : float
        Chance that it is faster than the next one.
    as_fast : int
        Other plans that it is faster than with less than 90 %.
    """

    chance: float
    as_fast: int

    def __str__(self) -> str:
        """Return the chance, and how many plans may be as fast."""
        several = f", {self.as_fast} may be as fast" if self.as_fast > 1 else ""
        return f"{100 * self.chance:.0f} % sure to beat the next{several}"


def likely_faster(first_s: float, second_s: float) -> float:
    """Return the chance that a plan is faster than another one of the same job and device, of their predicted times.

    Examples
    --------
    >>> likely_faster(1.0, 1.0), round(likely_faster(1.0, 1.1), 2)
    (0.5, 0.81)
    """
    return NormalDist(0.0, SPREAD).cdf(log(second_s / first_s))


def plan_order(seconds: Sequence[float]) -> PlanOrder | None:
    """Return how sure the fastest of some plans is; None of fewer than two.

    Examples
    --------
    >>> plan_order([1.3, 1.0, 1.05])
    PlanOrder(chance=0.6713..., as_fast=1)
    """
    first, *others = sorted(seconds) or [0.0]
    if not others:
        return None
    chances = [likely_faster(first, other) for other in others]
    return PlanOrder(chances[0], sum(chance < _SURE for chance in chances))
