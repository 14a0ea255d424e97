"""Compare predicted times of collectives with those measured in PATH.

A table has the columns collective, size (bytes), num_workers, devices_per_node, and a column
time_stats.COLLECTIVE.median (ms) of each collective in it; or those of nccl-tests: collective, ranks_count,
message_bytes, time_us. Each group of workers is predicted with its own fit, if it has a fit, then as if no group of
that number of workers had been measured, then as if its device had not.

\b
seqpoint validate collectives a100_dgx_all_reduce.csv --json
seqpoint validate collectives measured.csv --device H200 --refit
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from replay.costs import collectives
from replay.costs.collectives.measurements import holds_collectives
from seqpoint.notebook import Table, table_of
from seqpoint.validation.kernels import accuracy, size_table
from seqpoint.validation.suites import (
    Suite,
    SuiteOptions,
    SuiteResult,
    ValidationRow,
    short_devices,
    summary_row,
    table_columns,
)

#: Ways to predict a group: with its fit; by a curve through its other sizes; without the groups of its number of
#: workers; without its device.
_FITTED, _SIZES_OUT, _WORKERS, _DEVICE = "fitted", "sizes left out", "workers left out", "device left out"
#: Limits of the mean error over groups, and of the share of times in their 90 % interval. Over nodes, what was left out
#: is gated by the mean of the groups' median errors: libraries change their algorithm at sizes of their own.
_LIMITS: Mapping[str, float] = MappingProxyType({_FITTED: 0.05, _SIZES_OUT: 0.08, _WORKERS: 0.15})
_MEDIAN_LIMIT = 0.25
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
        ``"fitted"``, ``"sizes left out"``, ``"workers left out"`` or ``"device left out"``.
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
        were measured. All-reduces of inference frameworks and TCP have no limit.
    source : str
        Name of the file.
    library, network : str
        Library that ran it; adapters and network between nodes, if they are known.
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
    library: str = "nccl"
    network: str = ""

    @property
    def case(self) -> str:
        """Name of the case: collective, device and group."""
        group = f"{self.workers} workers, {self.devices_per_node} a node"
        # NCCL from PyTorch is the library of tables that do not name one.
        words = [self.fabric, *([self.library] if self.library != "torch" else []), *filter(None, [self.network])]
        return f"{self.kind}, {self.device} ({', '.join(words)}), {group}, {self.how}"


def score_collectives(
    measured: Sequence[collectives.MeasuredCollectives], calibration: collectives.CollectiveCalibration | None = None
) -> list[CollectiveScore]:
    """Predict every group in up to three ways.

    Parameters
    ----------
    measured : sequence of MeasuredCollectives
        Groups with their times. A fit is scored on the quarter of the sizes of its file that was not fitted, and on all
        sizes of another file. A curve through few sizes is scored without each of them in turn, from 64 KiB on.
    calibration : CollectiveCalibration, optional
        Fits to predict with; by default the shipped ones.
    """
    calibration = collectives.load_collectives() if calibration is None else calibration
    scores = []
    for groups in collectives.pooled_groups([each for each in measured if each.topology.n_workers > 1]).values():
        scores += _group_scores(groups, calibration)
    return scores


def _group_scores(
    pooled: Sequence[collectives.MeasuredCollectives], calibration: collectives.CollectiveCalibration
) -> list[CollectiveScore]:
    """Predict the measurements of one group in up to three ways."""
    scores: list[CollectiveScore] = []
    sizes, seconds = (np.concatenate([getattr(each, name) for each in pooled]) for name in ("sizes", "seconds"))
    source = ", ".join(sorted({each.source for each in pooled}))
    group = replace(pooled[0], sizes=sizes, seconds=seconds, source=source)
    if calibration.own(group.kind, group.topology, group.device, group.library) is not None:
        is_known = all(each.digest in calibration.digests for each in pooled)
        rows = np.ones(len(group), dtype=bool)
        if is_known and not collectives.has_few_sizes(pooled):
            rows = collectives.scored_rows(group)
        if is_known and collectives.has_few_sizes(pooled):
            scores.append(_score(group, calibration, _SIZES_OUT, collectives.scored_alone(pooled, sizes), pooled))
        elif rows.any():
            scores.append(_score(group, calibration, _FITTED, rows))
    rows = collectives.scored_alone(pooled, sizes)
    scores.append(_score(group, calibration.without_workers(group.topology.n_workers), _WORKERS, rows))
    if group.topology.link != "network" or group.topology.nic_gbps:
        scores.append(_score(group, calibration.without_device(group.device), _DEVICE, rows))
    return scores


def _score(
    group: collectives.MeasuredCollectives,
    calibration: collectives.CollectiveCalibration,
    how: str,
    rows: npt.NDArray[np.bool_],
    pooled: Sequence[collectives.MeasuredCollectives] = (),
) -> CollectiveScore:
    """Return the errors of some rows of a group; with `pooled`, each size by a curve through the other sizes."""
    sizes, topology = group.sizes[rows], group.topology
    predicted = collectives.predict_collective(
        group.kind, sizes, topology, group.device, calibration, library=group.library
    )
    times = predicted.seconds, predicted.low, predicted.high
    if pooled:
        shift = collectives.left_out_seconds(pooled, sizes) / predicted.seconds
        times = predicted.seconds * shift, predicted.low * shift, predicted.high * shift
    others = any(
        fit.kind == group.kind and fit.library == group.library and fit.topology.n_workers != topology.n_workers
        for fit in calibration.fits
    )
    is_gated = not (group.library.startswith("custom") or topology.network.startswith("ethernet"))
    return CollectiveScore(
        kind=group.kind,
        device=group.device.name,
        fabric=topology.fabric,
        link=topology.link,
        workers=topology.n_workers,
        devices_per_node=topology.devices_per_node,
        how=how,
        basis=predicted.basis,
        gated=is_gated and (how in (_FITTED, _SIZES_OUT) or (how == _WORKERS and others)),
        source=group.source,
        library=group.library,
        network=_network_name(topology),
        **accuracy(times, group.seconds[rows], sizes, _SIZES),
    )


def _network_name(topology: collectives.Topology) -> str:
    """Return the adapters and the name of the network of a group, or an empty text."""
    if topology.nodes == 1 or not topology.nic_gbps:
        return ""
    return f"{topology.nics} x {8 * topology.nic_gbps:g} Gbit/s {topology.network}".strip()


def collective_rows(scores: Sequence[CollectiveScore]) -> list[ValidationRow]:
    """Return a row a score, then the means over groups that have limits, and the shares in intervals."""
    rows = [ValidationRow(score.case, None, score.error, score.error, source=score.source) for score in scores]
    for how, limit in _LIMITS.items():
        for kind in sorted({score.kind for score in scores}):
            chosen = [score for score in scores if score.gated and (score.kind, score.how) == (kind, how)]
            between = [score for score in chosen if how != _FITTED and score.link == "network"]
            inside = [score for score in chosen if score not in between]
            if inside:
                rows.append(_summary(f"{kind}, {how}: mean", [score.error for score in inside], limit))
            if between:
                medians = [score.median for score in between]
                rows.append(_summary(f"{kind} over nodes, {how}: mean median", medians, _MEDIAN_LIMIT))
            if chosen:
                covered = float(np.mean([score.covered for score in chosen]))
                case = f"{kind}, {how}: share in 90 % intervals, {len(chosen)} groups"
                rows.append(summary_row(case, covered, _LEAST_COVERED, least=True))
    return rows


def _summary(case: str, errors: list[float], limit: float) -> ValidationRow:
    """Return the row of a mean over groups."""
    return summary_row(f"{case} over {len(errors)} groups", float(np.mean(errors)), limit)


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
            "device": short[s.device]
            + f" {s.fabric}" * (sum(device == s.device for device, _ in fabrics) > 1)
            + f" {s.library}" * (len({other.library for other in scores}) > 1)
            + f" {s.network}" * bool(s.network),
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
