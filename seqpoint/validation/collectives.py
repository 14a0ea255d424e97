"""Compare predicted times of collectives with those measured in PATH.

A table has the columns collective, size (bytes), num_workers, devices_per_node, and a column
time_stats.COLLECTIVE.median (ms) of each collective in it. Each group of workers is predicted with its own fit,
if it has a fit, then as if no group of that number of workers had been measured, then as if its device had not.

\b
seqpoint validate collectives a100_dgx_all_reduce.csv --json
seqpoint validate collectives measured.csv --device H200 --refit
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from replay.costs import collectives
from replay.costs.collectives.measurements import holds_collectives
from seqpoint.notebook import Table, table_of
from seqpoint.validation.rows import ValidationRow, accuracy, short_devices, size_table, summary_row
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult, table_columns

#: Ways to predict a group: with its fit; without the groups of its number of workers; without its device.
_FITTED, _WORKERS, _DEVICE = "fitted", "workers left out", "device left out"
#: Limits of the mean error over groups, and of the share of times in their 90 % interval.
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
        The collective, the device, the connection of the devices of a node, and its link.
    workers, devices_per_node : int
        Workers of the group, and workers of the group on each node.
    how : str
        ``"fitted"``, ``"workers left out"`` or ``"device left out"``.
    basis : str
        Evidence for the prediction: ``"fitted"``, ``"carried"`` or ``"prior"``.
    rows : int
        Number of measured times.
    error, median, bias : float
        Mean and median of ``|predicted - measured| / measured``; geometric mean of predicted over measured.
    covered : float
        Share of measured times in their 90 % interval.
    by_size : mapping of str to float
        Mean error by size of the buffer.
    gated : bool
        Whether it counts for the mean that has a limit. A number of workers can only be left out if other numbers
        were measured.
    source : str
        Name of the file.
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
        """Name of the case: collective, device and group."""
        group = f"{self.workers} workers, {self.devices_per_node} a node"
        return f"{self.kind}, {self.device} ({self.fabric}), {group}, {self.how}"


def score_collectives(
    measured: Sequence[collectives.MeasuredCollectives], calibration: collectives.CollectiveCalibration | None = None
) -> list[CollectiveScore]:
    """Predict every group in up to three ways.

    Parameters
    ----------
    measured : sequence of MeasuredCollectives
        Groups with their times. A fit is scored on the quarter of the sizes of its file that was not fitted, and on all
        sizes of another file.
    calibration : CollectiveCalibration, optional
        Fits to predict with; by default the shipped ones.
    """
    calibration = collectives.load_collectives() if calibration is None else calibration
    scores = []
    for group in measured:
        n = group.topology.n_workers
        if n == 1:
            continue
        every = np.ones(len(group), dtype=bool)
        if calibration.own(group.kind, group.topology, group.device) is not None:
            rows = collectives.scored_rows(group) if group.digest in calibration.digests else every
            if rows.any():
                scores.append(_score(group, calibration, _FITTED, rows))
        scores.append(_score(group, calibration.without_workers(n), _WORKERS, every))
        scores.append(_score(group, calibration.without_device(group.device), _DEVICE, every))
    return scores


def _score(
    group: collectives.MeasuredCollectives,
    calibration: collectives.CollectiveCalibration,
    how: str,
    rows: npt.NDArray[np.bool_],
) -> CollectiveScore:
    """Return the errors of some rows of a group."""
    sizes, topology = group.sizes[rows], group.topology
    predicted = collectives.predict_collective(group.kind, sizes, topology, group.device, calibration)
    others = any(fit.kind == group.kind and fit.topology.n_workers != topology.n_workers for fit in calibration.fits)
    return CollectiveScore(
        kind=group.kind,
        device=group.device.name,
        fabric=topology.fabric,
        link=topology.link,
        workers=topology.n_workers,
        devices_per_node=topology.devices_per_node,
        how=how,
        basis=predicted.basis,
        gated=how == _FITTED or (how == _WORKERS and others),
        source=group.source,
        **accuracy((predicted.seconds, predicted.low, predicted.high), group.seconds[rows], sizes, _SIZES),
    )


def collective_rows(scores: Sequence[CollectiveScore]) -> list[ValidationRow]:
    """Return a row a score, then the means over groups that have limits, and the shares in intervals."""
    rows = [ValidationRow(score.case, None, score.error, score.error, source=score.source) for score in scores]
    for how, limit in _LIMITS.items():
        for kind in sorted({score.kind for score in scores}):
            chosen = [score for score in scores if score.gated and (score.kind, score.how) == (kind, how)]
            if not chosen:
                continue
            error, covered = (float(np.mean([getattr(s, name) for s in chosen])) for name in ("error", "covered"))
            case, groups = f"{kind}, {how}", f"{len(chosen)} groups"
            rows.append(summary_row(f"{case}: mean over {groups}", error, limit))
            rows.append(summary_row(f"{case}: share in 90 % intervals, {groups}", covered, _LEAST_COVERED, least=True))
    return rows


_GROUP = "{s.workers} ({s.devices_per_node})"
_CASE = MappingProxyType(
    {"collective~": "{s.kind}", "device~": "{device}", "workers\n(a node)": _GROUP, "left out~": "{left_out}"}
)
_ERRORS = MappingProxyType({"err %": "{s.error:.1%}", "bias": "{s.bias:.2f}", "held %": "{s.covered:.0%}"})


def _scored(measured: Sequence[collectives.MeasuredCollectives], options: SuiteOptions) -> SuiteResult:
    """Score groups with the shipped fits, or those of a file, refitted with ``--refit``."""
    calibration = (
        collectives.read_collective_calibration(options.calibration)
        if options.calibration
        else collectives.load_collectives()
    )
    if options.refit:
        calibration = collectives.calibrate_collectives(measured, calibration)
    scores = score_collectives(measured, calibration)
    details = {"scores": [asdict(score) for score in scores]}
    return SuiteResult(collective_rows(scores), details, _tables(scores), scores)


def _tables(scores: Sequence[CollectiveScore]) -> list[Table]:
    """Return the tables of scores: errors, errors by size, files; with the fabric if a device has several."""
    short = short_devices(s.device for s in scores)
    fabrics = {(s.device, s.fabric) for s in scores}
    names = [
        {
            "s": s,
            "device": short[s.device] + f" {s.fabric}" * (sum(device == s.device for device, _ in fabrics) > 1),
            "left_out": s.how.removesuffix(" left out") if s.how != _FITTED else "",
        }
        for s in scores
    ]
    return [
        table_of("Predicted against measured times (held: in the 90 % interval)", _CASE | _ERRORS, names),
        size_table("Error % by size of the buffer", _CASE, names),
        Table("Files", ("file~",), sorted({(s.source,) for s in scores}), verbose=True),
    ]


SUITE = Suite(
    name="collectives",
    description=__doc__,
    needs="table of measured collectives (columns collective, size, num_workers, devices_per_node)",
    source=lambda file: file if holds_collectives(table_columns(file)) else None,
    read=lambda sources, options: [
        group for source in sources for group in collectives.read_collectives(source, options.device, options.fabric)
    ],
    score=_scored,
    options=("calibration", "device", "fabric", "refit"),
)
