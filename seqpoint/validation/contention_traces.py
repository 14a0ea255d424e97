"""Scores of the contention model on traces: kernels that ran beside other work, against the same kernels alone.

`score_contention` predicts every overlapped kernel of a trace from its time alone, with the work beside it where the
trace has it. `trace_rows` and `trace_tables` show the errors beside three baselines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters, conformal_bound
from replay.contention import ContentionFit, ContentionPairs, measure_pairs
from replay.contention.fitting import Progress
from replay.contention.traces import (
    LEAST_KERNELS,
    OverlappedKernels,
    held_out_slowdowns,
    overlapped_kernels,
    slowdowns,
)
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import ValidationRow

#: A kernel that takes this many times as long as alone is slowed.
SLOWED = 1.1
#: Folds of kernels, if neither ranks nor classes can be held out.
_FOLDS = 5
#: Confidence level of intervals.
_CONFIDENCE = 0.9
NO_CONTENTION, EQUAL_SHARES, CONSTANT = BASELINES = ("no contention", "equal shares", "best constant")
SHIPPED, CALIBRATED = "shipped", "calibrated"
BY_RANK, BY_CLASS, BY_KERNEL = HELD_OUT = (
    "fitted to other ranks",
    "fitted to other classes",
    "fitted to other kernels",
)


@dataclass(frozen=True)
class MethodScore:
    """Errors of one way to predict the overlapped kernels of a trace.

    Parameters
    ----------
    mean, p90 : float
        Difference of predicted and measured times over the times alone: all together, and the 90th percentile by time.
    inferred : float
        The other way round: difference of the times alone that follow from the measured times, over the times alone.
    explained : float
        Median share of the slow-down that is predicted, of kernels that are slowed; NaN without any.
    sides : float
        Share of the groups for which it is predicted right whether they are slowed.
    covered : float
        Share of the groups whose median slow-down is in its 90 % interval; NaN for a prediction without one.
    """

    mean: float
    p90: float
    inferred: float
    explained: float
    sides: float
    covered: float


@dataclass(frozen=True)
class TraceContentionScore:
    """Errors of the contention model on one trace.

    Parameters
    ----------
    trace, device : str
        Names of the trace and of its device.
    kernels, groups, slowed : int
        Overlapped kernels with a time alone, distinct kernels among them, and kernels that are slowed.
    noise : float
        Error of alone kernels that are predicted from other alone kernels, by time.
    remark : str
        Why the pairs do not measure contention, or why there are none; empty otherwise.
    methods : mapping of str to MethodScore
        Scores of the baselines, of the shipped parameters, and of fits.
    measured_ns, predicted_ns, alone_ns : array of float64
        Times of each kernel; predicted by the last method that could be scored.
    class_, workgroups : array of int64
        Classes of the kernels, as an index into `profilers.trace.kernels.CLASSES`, and their workgroups.
    partner : array of int64
        Kind of work beside each kernel for the longest time, as an index into `partners`.
    partners : tuple of str
        Collectives with their workgroups in brackets, copies and kernels.
    best : str
        Method of `predicted_ns`.
    """

    trace: str
    device: str
    kernels: int
    groups: int
    slowed: int
    noise: float
    remark: str
    methods: Mapping[str, MethodScore]
    measured_ns: Floats
    predicted_ns: Floats
    alone_ns: Floats
    class_: Ints
    workgroups: Ints
    partner: Ints
    partners: tuple[str, ...]
    best: str


def score_contention(
    name: str,
    trace: Trace,
    *,
    parameters: Parameters,
    fit: ContentionFit | None = None,
    progress: Progress | None = None,
) -> TraceContentionScore:
    """Return the errors of the contention model on a trace.

    Parameters
    ----------
    name : str
        Name of the trace.
    trace : Trace
        The trace.
    parameters : Parameters
        Shipped parameters.
    fit : ContentionFit, optional
        Calibration to score beside them.
    progress : callable, optional
        Called with (graphs built, graphs in all, what).
    """
    pairs = measure_pairs(trace)
    device = ", ".join(sorted({each.name for each in trace.meta.devices if each.name}))
    if not len(pairs.event):
        return _empty(name, device, pairs, _no_pairs(pairs))
    try:
        kernels = overlapped_kernels(trace, pairs, parameters=parameters, progress=progress)
    except InvalidInputError as error:
        return _empty(name, device, pairs, str(error))
    measured, alone = kernels.measured_ns, kernels.alone_ns
    predictions: dict[str, tuple[Floats, Ints | None]] = {}
    predictions |= {name: (slow, None) for name, slow in _baselines(kernels, pairs).items()}
    predictions[SHIPPED] = (slowdowns(kernels, parameters), None)
    if fit is not None:
        predictions[CALIBRATED] = (slowdowns(kernels, fit.parameters(parameters)), None)
    elif len(kernels) >= LEAST_KERNELS:
        folds = {BY_RANK: kernels.rank, BY_CLASS: kernels.class_, BY_KERNEL: kernels.label % _FOLDS}
        for method, fold in folds.items():
            if len(np.unique(fold)) > 1:
                predictions[method] = (held_out_slowdowns(kernels, fold, parameters), fold)
    best = next((m for m in (CALIBRATED, *HELD_OUT) if m in predictions), SHIPPED)
    methods = {method: _score(kernels, slow, fold) for method, (slow, fold) in predictions.items()}
    counts = len(kernels), len(kernels.labels), int((measured > SLOWED * alone).sum())
    facts = pairs.noise_mean, pairs.confounded, MappingProxyType(methods)
    times = measured, predictions[best][0] * alone, alone
    device = device or next((g.hardware.device.name for g, _ in kernels.graphs if g.hardware.device), "")
    workgroups = np.concatenate([graph.tasks.workgroups[tasks] for graph, tasks in kernels.graphs])
    beside = _partners(pairs, kernels.pair)
    return TraceContentionScore(name, device, *counts, *facts, *times, kernels.class_, workgroups, *beside, best)


def _partners(pairs: ContentionPairs, rows: Ints) -> tuple[Ints, tuple[str, ...]]:
    """Return the kind of work that is beside each pair for the longest time, and the names of the kinds."""
    columns = (pairs.partners[name].to_pylist() for name in ("kind", "collective", "name", "workgroups"))
    kinds = [
        f"{collective or name.partition('(')[0]} ({grid or '?'})" if kind == "collective" else kind
        for kind, collective, name, grid in zip(*columns, strict=True)
    ]
    names, code = np.unique(np.array(kinds, dtype=object)[pairs.partner[rows]], return_inverse=True)
    return code, tuple(names.tolist())


def _empty(name: str, device: str, pairs: ContentionPairs, remark: str) -> TraceContentionScore:
    """Return the score of a trace without overlapped kernels."""
    nothing, none, methods = np.zeros(0), np.zeros(0, np.int64), MappingProxyType[str, MethodScore]({})
    facts = (0, 0, 0, pairs.noise_mean, remark, methods)
    return TraceContentionScore(name, device, *facts, nothing, nothing, nothing, none, none, none, (), "")


def _no_pairs(pairs: ContentionPairs) -> str:
    """Return why a trace has no pair: the reason of most launches."""
    if not pairs.launches:
        return "no kernel"
    reason, count = max(pairs.excluded.items(), key=lambda item: item[1], default=("never overlapped", pairs.launches))
    return f"no pair: {count:,} of {pairs.launches:,} launches are left out ({reason})"


def _baselines(kernels: OverlappedKernels, pairs: ContentionPairs) -> dict[str, Floats]:
    """Return the slow-downs that the baselines predict.

    Equal shares: each kernel has half of the device while other work is beside it. Best constant: the factor with the
    least mean error, in hindsight.
    """
    ratio = kernels.measured_ns / kernels.alone_ns
    order = np.argsort(ratio)
    weight = np.cumsum(kernels.alone_ns[order])
    constant = ratio[order][np.searchsorted(weight, weight[-1] / 2)]
    return {
        NO_CONTENTION: np.ones(len(kernels)),
        EQUAL_SHARES: 1.0 + pairs.beside_share[kernels.pair],
        CONSTANT: np.full(len(kernels), constant),
    }


def _score(kernels: OverlappedKernels, slow: Floats, fold: Ints | None) -> MethodScore:
    """Return the errors of predicted slow-downs; with folds, also of their intervals."""
    measured, alone = kernels.measured_ns, kernels.alone_ns
    error = np.abs(slow * alone - measured)
    order = np.argsort(error / alone)
    weight = np.cumsum(alone[order])
    is_slowed = measured > SLOWED * alone
    explained = (slow - 1)[is_slowed] / (measured / alone - 1)[is_slowed]
    groups = _medians(kernels.label, measured / alone), _medians(kernels.label, slow)
    return MethodScore(
        float(error.sum() / alone.sum()),
        float((error / alone)[order][np.searchsorted(weight, 0.9 * weight[-1])]),
        float(np.abs(measured / slow - alone).sum() / alone.sum()),
        float(np.median(explained)) if len(explained) else float("nan"),
        float(np.mean((groups[0] > SLOWED) == (groups[1] > SLOWED))),
        float("nan") if fold is None else _coverage(kernels, slow, fold),
    )


def _medians(label: Ints, values: Floats) -> Floats:
    """Return the median of each label's values, in the order of labels."""
    order = np.argsort(label, kind="stable")
    blocks = np.split(values[order], np.flatnonzero(np.diff(label[order])) + 1)
    return np.array([np.median(block) for block in blocks])


def _coverage(kernels: OverlappedKernels, slow: Floats, fold: Ints) -> float:
    """Return the share of held-out groups whose median slow-down is in the interval that other folds give.

    The interval is the conformal bound of the logarithmic errors of the groups of all other folds.
    """
    key = np.unique(np.stack([fold, kernels.label]), axis=1, return_inverse=True)
    errors = np.abs(np.log(_medians(key[1], kernels.measured_ns / kernels.alone_ns) / _medians(key[1], slow)))
    folds = key[0][0]
    inside = []
    for each in np.unique(folds).tolist():
        others = errors[folds != each]
        inside.append(errors[folds == each] <= conformal_bound(others, _CONFIDENCE))
    return float(np.mean(np.concatenate(inside)))


def trace_rows(scores: Sequence[TraceContentionScore]) -> list[ValidationRow]:
    """Return a row for each trace and method; fits must be better than every baseline, or as good as the noise."""
    rows = []
    for score in scores:
        if not score.methods:
            continue
        limit = np.fmax(min(score.methods[name].mean for name in BASELINES), score.noise)
        for method, errors in score.methods.items():
            gated = method in (BY_RANK, CALIBRATED) and not score.remark
            case, bound = f"{score.trace}: overlapped kernels, {method}", float(limit) if gated else None
            figures = (None, errors.mean, errors.mean, bound)
            rows.append(ValidationRow(case, *figures, fitted=method == CONSTANT, source=score.device))
    return rows


def trace_content(score: TraceContentionScore) -> dict[str, object]:
    """Return a score as JSON, without the times of single kernels."""
    arrays = ("measured_ns", "predicted_ns", "alone_ns", "class_", "workgroups", "partner", "partners", "methods")
    plain = {key: value for key, value in vars(score).items() if key not in arrays}
    numbers = {name: {k: None if np.isnan(v) else v for k, v in asdict(m).items()} for name, m in score.methods.items()}
    return {**plain, "noise": None if np.isnan(score.noise) else score.noise, "methods": numbers}


#: Headings of the methods in the table.
_HEADINGS: Mapping[str, str] = MappingProxyType(
    {
        NO_CONTENTION: "no con-\ntention",
        EQUAL_SHARES: "equal\nshares",
        CONSTANT: "best con-\nstant",
        SHIPPED: "shipped",
        CALIBRATED: "cali-\nbrated",
        BY_RANK: "other\nranks",
        BY_CLASS: "other\nclasses",
        BY_KERNEL: "other\nkernels",
    }
)


def trace_tables(scores: Sequence[TraceContentionScore]) -> list[Table | str]:
    """Return the table of errors by trace, a table of details, and a line for each remark."""
    scored = [score for score in scores if score.methods]
    methods = [name for name in _HEADINGS if any(name in score.methods for score in scored)]
    columns = {"trace~": "{trace}", "kernels": "{kernels:,}", "slowed": "{slowed:,}", "noise": "{noise:.1%}"}
    means = [
        {**vars(s), **{f"m{i}": getattr(s.methods.get(name), "mean", None) for i, name in enumerate(methods)}}
        for s in scored
    ]
    columns |= {_HEADINGS[name]: f"{{m{i}:.1%}}" for i, name in enumerate(methods)}
    title = "Kernels beside other work: differences of predicted and measured times, in % of the times alone"
    tables = [table_of(title, columns, means), _details(scored)] if scored else []
    return [*tables, *(f"{score.trace}: {score.remark}" for score in scores if score.remark)]


def _details(scored: Sequence[TraceContentionScore]) -> Table:
    """Return the table of the other measures, without contention and by the best method that was not fitted."""
    columns = {
        "trace~": "{trace}", "method~": "{method}", "90th": "{p90:.1%}", "alone from\nbeside": "{inferred:.1%}",
        "slow-down\nexplained": "{explained:.1%}", "slowed or\nnot: right": "{sides:.1%}",
        "in the\ninterval": "{covered:.1%}",
    }  # fmt: skip
    rows = [
        {"trace": score.trace, "method": name, **vars(score.methods[name])}
        for score in scored
        for name in dict.fromkeys((NO_CONTENTION, score.best))
    ]
    return table_of("The same: other measures, in %", columns, rows)
