"""Score predicted times of collectives against measured ones: fitted, and as if a group had never been measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from replay.costs.collectives import (
    CollectiveCalibration,
    MeasuredCollectives,
    load_collectives,
    predict_collective,
    scored_rows,
)
from seqpoint.validation.rows import ValidationRow

#: Ways to predict a group: with its own fit; without any group of its number of workers; without its device.
_FITTED, _WORKERS, _DEVICE = "fitted", "workers left out", "device left out"
#: Mean error over groups, and the least share that 90 % intervals hold.
_LIMITS: Mapping[str, float] = MappingProxyType({_FITTED: 0.05, _WORKERS: 0.15})
_LEAST_COVERED = 0.85
_SIZES: tuple[tuple[str, float, float], ...] = (
    ("below 1 MiB", 0.0, 2.0**20),
    ("1 to 16 MiB", 2.0**20, 2.0**24),
    ("above 16 MiB", 2.0**24, np.inf),
)


@dataclass(frozen=True)
class CollectiveScore:
    """Errors of one collective of one group of workers.

    Parameters
    ----------
    kind, device, fabric, link : str
    workers, devices_per_node : int
    how : str
        ``"fitted"``, ``"workers left out"`` or ``"device left out"``.
    basis : str
        What the prediction rests on: ``"fitted"``, ``"carried"`` or ``"prior"``.
    rows : int
    error, median, bias : float
        Mean and median of ``|predicted - measured| / measured``; geometric mean of predicted over measured.
    covered : float
        Share of measured times in their 90 % interval.
    by_size : mapping of str to float
        Mean error by size of the buffer.
    gated : bool
        Whether it counts for the mean that has a limit: a number of workers can only be left out where others were
        measured.
    source : str
    """

    kind: str
    device: str
    fabric: str
    link: str
    workers: int
    devices_per_node: int
    how: str
    basis: str
    rows: int
    error: float
    median: float
    bias: float
    covered: float
    by_size: Mapping[str, float]
    gated: bool
    source: str

    @property
    def case(self) -> str:
        """What was scored, in words."""
        group = f"{self.workers} workers, {self.devices_per_node} a node"
        return f"{self.kind}, {self.device} ({self.fabric}), {group}, {self.how}"


def score_collectives(
    measured: Sequence[MeasuredCollectives], calibration: CollectiveCalibration | None = None
) -> list[CollectiveScore]:
    """Predict every group up to three ways.

    Parameters
    ----------
    measured : sequence of MeasuredCollectives
        Of a file that was fitted, the fit is scored on the quarter of the sizes that it never looked at; of any other
        file, on all.
    calibration : CollectiveCalibration, optional
        By default the shipped one.
    """
    known = load_collectives() if calibration is None else calibration
    found = []
    for one in measured:
        n = one.topology.n_workers
        if n == 1:
            continue
        if known.own(one.kind, one.topology, one.device) is not None:
            rows = scored_rows(one) if one.digest in known.digests else np.ones(len(one), dtype=bool)
            if rows.any():
                found.append(_score(one, known, _FITTED, rows))
        every = np.ones(len(one), dtype=bool)
        found.append(_score(one, known.without_workers(n), _WORKERS, every))
        found.append(_score(one, known.without_device(one.device), _DEVICE, every))
    return found


def _score(
    one: MeasuredCollectives, known: CollectiveCalibration, how: str, rows: npt.NDArray[np.bool_]
) -> CollectiveScore:
    sizes, true = one.sizes[rows], one.seconds[rows]
    found = predict_collective(one.kind, sizes, one.topology, one.device, known)
    ratio = found.seconds / true
    errors = np.abs(ratio - 1)
    by_size = {name: errors[(sizes >= low) & (sizes < high)] for name, low, high in _SIZES}
    others = any(fit.kind == one.kind and fit.topology.n_workers != one.topology.n_workers for fit in known.fits)
    return CollectiveScore(
        one.kind,
        one.device.name,
        one.topology.fabric,
        one.topology.link,
        one.topology.n_workers,
        one.topology.devices_per_node,
        how,
        found.basis,
        int(rows.sum()),
        float(errors.mean()),
        float(np.median(errors)),
        float(np.exp(np.mean(np.log(ratio)))),
        float(np.mean((found.low <= true) & (true <= found.high))),
        {name: float(each.mean()) for name, each in by_size.items() if len(each)},
        how == _FITTED or (how == _WORKERS and others),
        one.source,
    )


def collective_rows(scores: Sequence[CollectiveScore]) -> list[ValidationRow]:
    """Return a row a score, then the means over groups that have limits, and the shares in intervals."""
    rows = [ValidationRow(one.case, None, one.error, one.error, source=one.source) for one in scores]
    for how, limit in _LIMITS.items():
        for kind in sorted({one.kind for one in scores}):
            mine = [one for one in scores if one.gated and (one.kind, one.how) == (kind, how)]
            if not mine:
                continue
            case, error = f"{kind}, {how}: mean over {len(mine)} groups", float(np.mean([one.error for one in mine]))
            rows.append(ValidationRow(case, None, error, error, limit, source="the cases above"))
            covered = float(np.mean([one.covered for one in mine]))
            rows.append(
                ValidationRow(
                    f"{kind}, {how}: share in 90 % intervals, {len(mine)} groups",
                    None,
                    covered,
                    covered,
                    _LEAST_COVERED,
                    least=True,
                    source="the cases above",
                )
            )
    return rows
