"""Score predicted against measured times of works side by side: by mechanism, by order of policies, by % of ideal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

import numpy as np

from replay.contention import MECHANISMS
from replay.overlap.published import published_figures
from seqpoint.validation.contention import ContentionCase
from seqpoint.validation.rows import ValidationRow

__all__ = [
    "ALL",
    "ContentionScore",
    "OrderScore",
    "PercentOfIdeal",
    "contention_rows",
    "percent_of_ideal",
    "score_by_mechanism",
    "score_ideal",
    "score_order",
]

ALL = "all"
#: Times of two policies that are closer than this, or than takes differ, have no order.
_SAME = 0.02
#: Below this ideal speed-up, less one, a per cent of it is noise.
_LEAST_IDEAL = 0.1
_MEDIAN, _P90, _ORDER, _PAIRS = 0.10, 0.25, 0.90, 300
#: The paper's figures beside carriers: of ConCCL without and with units set aside, of C3 unmanaged and with priorities.
_PUBLISHED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"copy engine": ("conccl", "conccl_rp"), "SM copies": ("c3_base", "c3_sp")}
)


@dataclass(frozen=True)
class ContentionScore:
    """Errors of the scenarios of one mechanism, or of all.

    Parameters
    ----------
    mechanism : str
    cases : int
    median, p90 : float
        Of the error of the time until all are done.
    ends : float
        Median error of members' ends.
    slowdown : float
        Median of `ContentionCase.slowdown_error`.
    serial, free : float
        Median errors of the two baselines: one after the other, and side by side at no cost.
    covered : float
        Share of measured times in their interval.
    spread, spread_p90, spread_max : float
        How far takes differ: the median, the 90th percentile and the largest.
    """

    mechanism: str
    cases: int
    median: float
    p90: float
    ends: float
    slowdown: float
    serial: float
    free: float
    covered: float
    spread: float
    spread_p90: float
    spread_max: float


@dataclass(frozen=True)
class OrderScore:
    """How often of two policies the faster was told.

    Parameters
    ----------
    compared, right : int
        Pairs of policies of one group whose times differ by more than takes do, and by 2 %.
    groups, groups_right : int
        With such a pair, and with all of theirs right.
    """

    compared: int
    right: int
    groups: int
    groups_right: int

    @property
    def share(self) -> float:
        """Of the pairs that were compared; 0 where there is none."""
        return self.right / self.compared if self.compared else 0.0


@dataclass(frozen=True)
class PercentOfIdeal:
    """What of the ideal gain transfers beside kernels reached.

    Parameters
    ----------
    carrier : str
    cases : int
    measured, predicted : float
        Means, %.
    published : mapping of str to float
        By name of the figure in `datasets/published/c3.toml`, %: of other works on another device.
    """

    carrier: str
    cases: int
    measured: float
    predicted: float
    published: Mapping[str, float]


def score_by_mechanism(cases: Sequence[ContentionCase]) -> list[ContentionScore]:
    """Return a score a mechanism that occurs, and one of all; none of no case."""
    groups = {name: [case for case in cases if case.mechanism == name] for name in MECHANISMS}
    return [_score(name, some) for name, some in ({**groups, ALL: list(cases)}).items() if some]


def _score(name: str, cases: Sequence[ContentionCase]) -> ContentionScore:
    errors, spreads = [case.error for case in cases], [case.spread for case in cases]
    measured = np.array([case.measured_ns for case in cases])
    serial, free = (np.array([getattr(case, which) for case in cases]) for which in ("serial_ns", "free_ns"))
    slowdowns = [case.slowdown_error for case in cases if not np.isnan(case.slowdown_error)]
    return ContentionScore(
        name,
        len(cases),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        float(np.median([one for case in cases for one in case.end_errors])),
        float(np.median(slowdowns)) if slowdowns else 0.0,
        float(np.median(np.abs(serial / measured - 1))),
        float(np.median(np.abs(free / measured - 1))),
        float(np.mean([case.covered for case in cases])),
        float(np.median(spreads)),
        float(np.quantile(spreads, 0.9)),
        max(spreads),
    )


def score_order(cases: Sequence[ContentionCase]) -> OrderScore:
    """Return how often the faster of two policies of a group was told; what is predicted the same counts as wrong."""
    groups: dict[tuple[str, str], list[ContentionCase]] = {}
    for case in cases:
        groups.setdefault((case.recording, case.group), []).append(case)
    verdicts = [_verdicts(mine) for mine in groups.values()]
    told = [mine for mine in verdicts if mine]
    return OrderScore(sum(map(len, told)), sum(sum(mine) for mine in told), len(told), sum(all(mine) for mine in told))


def _verdicts(cases: Sequence[ContentionCase]) -> list[bool]:
    """Return for every two policies that differ whether the prediction has them in the measured order."""
    found = []
    for one, other in combinations(cases, 2):
        apart = abs(one.measured_ns - other.measured_ns) / min(one.measured_ns, other.measured_ns)
        if one.policy != other.policy and apart > max(_SAME, one.spread, other.spread):
            measured, predicted = one.measured_ns - other.measured_ns, one.predicted_ns - other.predicted_ns
            found.append(measured * predicted > 0)
    return found


def score_ideal(cases: Sequence[ContentionCase]) -> list[PercentOfIdeal]:
    """Return the mean % of ideal of each carrier of transfers, measured and predicted, beside what C3's paper says.

    Notes
    -----
    ``100 (S - 1) / (S_ideal - 1)`` with ``S = sum / T`` and ``S_ideal = sum / max`` of the times alone (arXiv
    2412.14335); of two works whose ideal is 1.1 or more.
    """
    published = {figure.name: figure.value for figure in published_figures("c3")}
    found = []
    for carrier, names in _PUBLISHED.items():
        mine = [c for c in cases if c.carrier == carrier and len(c.alone_ns) == 2 and _ideal(c) >= 1 + _LEAST_IDEAL]
        if mine:
            measured, predicted = (
                float(np.mean([percent_of_ideal(c.alone_ns, getattr(c, which)) for c in mine]))
                for which in ("measured_ns", "predicted_ns")
            )
            figures = MappingProxyType({name: published[name] for name in names})
            found.append(PercentOfIdeal(carrier, len(mine), measured, predicted, figures))
    return found


def _ideal(case: ContentionCase) -> float:
    return sum(case.alone_ns) / max(case.alone_ns)


def percent_of_ideal(alone_ns: Sequence[float], together_ns: float) -> float:
    """Return what of the ideal gain over one after the other was reached, %.

    Examples
    --------
    >>> percent_of_ideal((10.0, 10.0), 15.0)
    33.33333333333333
    """
    speedup, ideal = sum(alone_ns) / together_ns, sum(alone_ns) / max(alone_ns)
    return 100 * (speedup - 1) / (ideal - 1)


def contention_rows(cases: Sequence[ContentionCase]) -> list[ValidationRow]:
    """Return a row a scenario, then those that are gated, over what was not fitted.

    No figure is given finer than takes differ: where the median or the 90th percentile of errors is below that of the
    spreads, the spread stands.
    """
    rows = [
        ValidationRow(
            c.name, c.measured_ns, c.predicted_ns, c.error, fitted=c.fitted, source=f"{c.recording}, {c.device}"
        )
        for c in cases
    ]
    left = [case for case in cases if not case.fitted]
    source = "the cases above that were not fitted"

    def gated(name: str, ours: float, limit: float, *, least: bool) -> ValidationRow:
        return ValidationRow(name, None, ours, ours, limit, least, source=source)

    rows.append(gated("works side by side, not fitted: number", float(len(left)), _PAIRS, least=True))
    if left:
        every, order = score_by_mechanism(left)[-1], score_order(left)
        rows.append(
            gated("time until all are done: median error", max(every.median, every.spread), _MEDIAN, least=False)
        )
        rows.append(
            gated("time until all are done: 90th percentile", max(every.p90, every.spread_p90), _P90, least=False)
        )
        rows.append(gated("order of policies: share right", order.share, _ORDER, least=True))
    return rows
