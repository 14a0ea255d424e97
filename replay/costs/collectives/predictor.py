"""Times of collectives on any group of workers, with an interval.

A group that was measured has its own curve. A group that was not takes the curves of measured groups over the same kind
of link, moved by what the busiest link carries. Without such a group, constants of NCCL and the data sheet remain.
`calibrate_collectives` fits measured groups, and finds the spread of predictions by leaving groups out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.costs.collectives.algorithms import (
    CHAINED_NODES,
    KINDS,
    MOST_BYTES,
    NETWORK_BYTES_PER_S,
    PROTOCOLS,
    Topology,
    busiest_link_s,
    busiest_volume,
    fastest,
    least_seconds,
    machine_of,
    ring_steps,
    stated_nic_rate,
)
from replay.costs.collectives.fits import (
    Band,
    CollectiveCalibration,
    CollectiveFit,
    fit_curve,
    same_links,
    same_network,
    same_place,
)
from replay.costs.collectives.measurements import MeasuredCollectives
from replay.costs.kernels.predictor import Predicted

#: Size whose time is all launch and waiting for the slowest worker.
_SMALL_BYTES = 65536.0
#: Collectives whose workers pass data on, and those in which each only sends and receives.
_FAMILIES = (("all_reduce", "all_gather", "reduce_scatter", "broadcast"), ("all_to_all", "send_recv"))
#: Least time of a collective: a kernel's launch.
_LEAST_S = 2e-6


def carried_seconds(
    kind: str, sizes: Floats, topology: Topology, device: Device, calibration: CollectiveCalibration
) -> tuple[Floats, str]:
    """Return the time of a group that has no fit, and its basis.

    Parameters
    ----------
    kind : str
        One of `replay.costs.collectives.KINDS`.
    sizes : array of float64, shape (n,)
        Bytes, above zero.
    topology : Topology
        Two workers or more, and how they are linked.
    device : Device
        Device of every worker.
    calibration : CollectiveCalibration
        Fits of measured groups.

    Returns
    -------
    seconds : array of float64, shape (n,)
    basis : str
        ``"carried"`` from measured groups, or ``"prior"``.
    """
    donors = [fit for fit in calibration.fits if fit.topology.link == topology.link]
    if topology.link == "network":
        # A network belongs to a place: adapters of another place say nothing of it.
        local = [fit for fit in donors if same_place(fit, topology, device) and same_network(fit, topology)]
        if topology.nic_gbps and not local:
            rate = stated_nic_rate(kind, topology, device)
        else:
            rate = nic_rate(_same_family(kind, local) or local)
        seconds = _between_nodes(kind, sizes, topology, device, rate)
        return seconds + launch_seconds(kind, calibration), "carried" if local else "prior"
    nearest = _nearest(kind, donors, topology, device)
    if not nearest:
        prior = fastest(kind, topology, machine_of(device, topology), sizes)[0]
        return prior + launch_seconds(kind, calibration), "prior"
    logs = [np.log(_moved(fit, kind, sizes, topology, device)) for fit in nearest]
    return np.exp(np.mean(logs, axis=0)), "carried"


def _between_nodes(kind: str, sizes: Floats, topology: Topology, device: Device, rate: float) -> Floats:
    """Return the fastest algorithm's time, not less than that of two of the nodes."""
    seconds = fastest(kind, topology, machine_of(device, topology, rate), sizes)[0]
    if topology.nodes <= CHAINED_NODES:
        return seconds
    two = replace(topology, n_workers=CHAINED_NODES * topology.devices_per_node)
    return np.maximum(seconds, fastest(kind, two, machine_of(device, two, rate), sizes)[0])


def _nearest(kind: str, donors: list[CollectiveFit], topology: Topology, device: Device) -> list[CollectiveFit]:
    """Return the donors to use: the same collective before its family, the same place before the same links."""
    similar = [fit for fit in donors if fit.kind == kind] or _same_family(kind, donors)
    local = [fit for fit in similar if same_place(fit, topology, device)]
    return local or [fit for fit in similar if same_links(fit, device)] or similar


def _same_family(kind: str, donors: Iterable[CollectiveFit]) -> list[CollectiveFit]:
    family = next(family for family in _FAMILIES if kind in family)
    return [fit for fit in donors if fit.kind in family]


def _moved(donor: CollectiveFit, kind: str, sizes: Floats, topology: Topology, device: Device) -> Floats:
    """Return a donor's time at the size with which its busiest link is as busy, corrected by steps.

    The fixed part of the time is taken to go with the clock, the part that grows with the size with the bandwidth.
    """
    fitted = find_device(donor.device)
    carried = [busiest_link_s(kind, topology, device), busiest_link_s(donor.kind, donor.topology, fitted)]
    clocks = [each.figures["clock_mhz"].value if "clock_mhz" in each.figures else 0.0 for each in (fitted, device)]
    slower = clocks[0] / clocks[1] if min(clocks) > 0 else 1.0
    steps = ring_steps(kind, topology.n_workers) - ring_steps(donor.kind, donor.topology.n_workers)
    moved = donor.curve.rising(sizes * carried[0] / carried[1], slower)
    return np.maximum(moved + steps * PROTOCOLS["LL"].step_s[topology.link], _LEAST_S)


def nic_rate(donors: list[CollectiveFit]) -> float:
    """Return bytes a second of one network adapter: the most that a measured group got out of each adapter.

    Sharing lowers the rate of an adapter, nothing raises it. Without a donor, it is that of 100 Gbit/s.
    """
    step = PROTOCOLS["Simple"].step_s["network"]
    rates = []
    for fit in donors:
        fixed = ring_steps(fit.kind, fit.topology.n_workers) * step
        seconds = max(float(fit.curve.seconds(fit.most_bytes)) - fixed, _LEAST_S)
        rates.append(busiest_volume(fit.kind, fit.topology) * fit.most_bytes / seconds / fit.topology.nics_used)
    return max(rates, default=NETWORK_BYTES_PER_S)


def launch_seconds(kind: str, calibration: CollectiveCalibration) -> float:
    """Return the time of a small message beyond NCCL's latencies: launch, and waiting for the slowest worker."""
    beyond = []
    for fit in _same_family(kind, calibration.fits):
        if fit.topology.link == "device":
            machine = machine_of(find_device(fit.device), fit.topology)
            prior = fastest(kind, fit.topology, machine, np.array([_SMALL_BYTES]))[0][0]
            beyond.append(max(float(fit.curve.seconds(_SMALL_BYTES)) - float(prior), 0.0))
    return float(np.median(beyond)) if beyond else 0.0


#: Confidence level of intervals.
_CONFIDENCE = 0.9
#: Parts of the sizes (`MeasuredCollectives.part`) for the spread of fits, and for scores.
_SPREAD, _SCORE = 1, 3
#: Sizes from which intervals have bounds of their own, and the rows that this takes.
_CLASSES, _LEAST_ROWS = (0.0, 2.0**20, 2.0**24), 20
#: Quantiles that stand for the errors of a group, so that every group counts the same.
_LEVELS = np.linspace(0.005, 0.995, 100)
#: Groups that the spread of a kind of link takes.
_LEAST_GROUPS = 3
#: Spread of a kind of link without measurements.
_UNKNOWN = float(np.log(3))


def predict_collective(
    kind: str,
    sizes: npt.ArrayLike,
    topology: Topology,
    device: Device,
    calibration: CollectiveCalibration,
) -> Predicted:
    """Predict how long a collective takes.

    Parameters
    ----------
    kind : str
        One of `replay.costs.collectives.KINDS`.
    sizes : array-like
        Bytes of one worker's whole buffer, above zero, to 2^50; any shape.
    topology : Topology
        Workers of the group, and the links between them.
    device : Device
        Device of every worker.
    calibration : CollectiveCalibration
        Fits to predict from.

    Returns
    -------
    Predicted
        Times of the shape of the sizes. The interval is wider beyond the largest size and the most workers that were
        measured. Its low end is not below what the links carry at their raw rate.

    Raises
    ------
    InvalidInputError
        There is no such collective, or a size is no number, not above zero, or above 2^50.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.collectives import load_collectives
    >>> known, device = load_collectives(), find_device("A100-SXM4-80GB")
    >>> predicted = predict_collective("all_reduce", [2**26], Topology(8), device, known)
    >>> predicted.basis, bool(predicted.low[0] < 0.72e-3 < predicted.high[0])
    ('fitted', True)
    >>> predict_collective("all_to_all", [2**26], Topology(1), device, known).seconds.tolist()
    [0.0]
    """
    exact = _checked_sizes(kind, sizes)
    if topology.n_workers == 1:
        zeros = np.zeros_like(exact)
        return Predicted(zeros, zeros, zeros, "none")
    flat = exact.ravel()
    least = least_seconds(kind, flat, topology, device)
    fit = calibration.own(kind, topology, device)
    if fit is not None:
        seconds, (low, high), basis = fit.curve.seconds(flat), fit.band.at(flat), "fitted"
        is_beyond, widest = flat > fit.most_bytes, _spread(calibration, topology, "carried")
        low = np.where(is_beyond, np.minimum(low, 1 / widest), low)
        high = np.where(is_beyond, np.maximum(high, widest), high)
    else:
        seconds, basis = carried_seconds(kind, flat, topology, device, calibration)
        seconds = np.maximum(seconds, least)
        high = np.full_like(flat, _spread(calibration, topology, basis))
        low = 1 / high
    shortest = np.minimum(np.maximum(seconds * low, least), seconds)
    seconds, low, high = (each.reshape(exact.shape) for each in (seconds, shortest, seconds * high))
    return Predicted(seconds, low, high, basis)


def _checked_sizes(kind: str, sizes: npt.ArrayLike) -> Floats:
    if kind not in KINDS:
        raise InvalidInputError(f"no collective is called {kind!r}; there are {', '.join(KINDS)}")
    try:
        array = np.asarray(sizes)
    except (ValueError, OverflowError):
        array = np.asarray(None)
    if array.dtype.kind not in "iuf":
        raise InvalidInputError("sizes must be numbers of bytes, in an array of one shape")
    exact = array.astype(np.float64)
    flat = exact.ravel()
    bad = np.flatnonzero(~((flat > 0) & (flat <= MOST_BYTES)))
    if len(bad):
        raise InvalidInputError(
            f"sizes[{int(bad[0])}] is {flat[bad[0]]:g}; it must be finite and above zero, {MOST_BYTES} at most"
        )
    return exact


def _spread(calibration: CollectiveCalibration, topology: Topology, basis: str) -> float:
    """Return the largest factor of error, nine times in ten, of predictions that were not fitted.

    Each doubling beyond the most measured workers over such a link counts as one more independent guess of that kind:
    a group that is left out is one doubling away from the next one.
    """
    n, link = topology.n_workers, topology.link
    most = max((fit.topology.n_workers for fit in calibration.fits if fit.topology.link == link), default=n)
    guesses = 1 + max(float(np.log2(n / most)), 0.0)
    return float(np.exp(calibration.spreads.get((link, basis, calibration.left_out), _UNKNOWN) * np.sqrt(guesses)))


def scored_rows(measured: MeasuredCollectives) -> npt.NDArray[np.bool_]:
    """Return the mask of the rows that no fit uses: a quarter of the sizes."""
    return np.asarray(measured.part == _SCORE)


def calibrate_collectives(
    measured: Sequence[MeasuredCollectives], base: CollectiveCalibration | None = None
) -> CollectiveCalibration:
    """Fit every measured group, and measure how far predictions of groups that were left out are off.

    Parameters
    ----------
    measured : sequence of MeasuredCollectives
        Measurements; those of one group are fitted together.
    base : CollectiveCalibration, optional
        Calibration whose fits of other groups are kept.

    Raises
    ------
    InvalidInputError
        A group has too few sizes, or none has two workers: one alone exchanges nothing.
    """
    base = base or CollectiveCalibration()
    fits = {_key(fit): fit for fit in base.fits}
    sources = ", ".join(sorted({group.source for group in measured}))
    measured = [group for group in measured if group.topology.n_workers > 1]
    if not measured:
        raise InvalidInputError(f"{sources}: no group of two or more workers was measured; one exchanges nothing")
    pooled: dict[tuple[str, str, Topology], list[MeasuredCollectives]] = {}
    for group in measured:
        pooled.setdefault((group.kind, group.device.name, group.topology), []).append(group)
    for groups in pooled.values():
        sizes, seconds = (np.concatenate([getattr(group, name) for group in groups]) for name in ("sizes", "seconds"))
        fit = _fit(replace(groups[0], sizes=sizes, seconds=seconds))
        fits[_key(fit)] = fit
    digests = {group.digest for group in measured}.union(base.digests)
    whole = CollectiveCalibration(tuple(fits[key] for key in sorted(fits)), digests=tuple(sorted(digests)))
    return replace(whole, spreads=MappingProxyType({**base.spreads, **_spreads(whole, measured)}))


def _key(fit: CollectiveFit) -> tuple[str, str, str, int, int]:
    topology = fit.topology
    return fit.device, topology.fabric, fit.kind, topology.n_workers, topology.devices_per_node


def _fit(measured: MeasuredCollectives) -> CollectiveFit:
    topology, fitted, held_out = measured.topology, measured.part % 2 == 0, measured.part == _SPREAD
    limit = None  # the catalogue does not have the limit of a network
    if topology.link != "network":
        limit = busiest_link_s(measured.kind, topology, measured.device)
    group = f"{measured.source}: {measured.kind} of {topology.n_workers} workers"
    try:
        curve = fit_curve(measured.sizes[fitted], measured.seconds[fitted], limit)
    except InvalidInputError as error:
        raise InvalidInputError(f"{group}: half of {error}") from error
    if not held_out.any():
        raise InvalidInputError(
            f"{group}: no size is left for the interval; a hash sets a quarter of the sizes aside, so measure more of "
            "them"
        )
    sizes = measured.sizes[held_out]
    band = _band(sizes, measured.seconds[held_out] / curve.seconds(sizes))
    largest = float(measured.sizes.max())
    return CollectiveFit(measured.kind, measured.device.name, topology, curve, band, len(measured), largest)


def _band(sizes: Floats, ratios: Floats) -> Band:
    """Return split conformal bounds: of m ratios in order, the ones at (m + 1) times 5 and 95 %, by class of size."""
    lows, highs = [], []
    tail = (1 - _CONFIDENCE) / 2
    for start, end in zip(_CLASSES, (*_CLASSES[1:], np.inf), strict=True):
        in_class = (sizes >= start) & (sizes < end)
        ordered = np.sort(ratios[in_class] if in_class.sum() >= _LEAST_ROWS else ratios)
        m = len(ordered)
        lows.append(min(float(ordered[max(int(np.floor((m + 1) * tail)) - 1, 0)]), 1.0))
        highs.append(max(float(ordered[min(int(np.ceil((m + 1) * (1 - tail))) - 1, m - 1)]), 1.0))
    return Band(_CLASSES, tuple(lows), tuple(highs))


def _spreads(
    calibration: CollectiveCalibration, measured: Sequence[MeasuredCollectives]
) -> dict[tuple[str, str, int], float]:
    """Return the spread of predictions that are not fitted, with each number of workers left out in turn, and none.

    Each measured group is predicted without its own number of workers, and without its device, and both times without
    the number that is left out. Every group counts the same.
    """
    spreads = {}
    for left_out in sorted({0, *(group.topology.n_workers for group in measured)}):
        rest = calibration.without_workers(left_out)
        errors: dict[tuple[str, str], list[Floats]] = {}
        for group in measured:
            topology = group.topology
            if topology.n_workers in (1, left_out):
                continue
            for reduced in (rest.without_workers(topology.n_workers), rest.without_device(group.device)):
                seconds, basis = carried_seconds(group.kind, group.sizes, topology, group.device, reduced)
                quantiles = np.quantile(np.abs(np.log(seconds / group.seconds)), _LEVELS)
                errors.setdefault((topology.link, basis), []).append(quantiles)
        for (link, basis), several in errors.items():
            # One or two groups say little of the next: those of every kind of link in a node then count.
            pool = (link,) if link == "network" or len(several) >= _LEAST_GROUPS else ("device", "pcie")
            pooled = [each for key, some in errors.items() if key[0] in pool and key[1] == basis for each in some]
            spreads[link, basis, left_out] = float(np.quantile(pooled, _CONFIDENCE))
    return spreads
