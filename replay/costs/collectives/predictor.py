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
    KINDS,
    MOST_BYTES,
    NETWORK_BYTES_PER_S,
    PROTOCOLS,
    Topology,
    algorithms_of,
    busiest_link_s,
    busiest_volume,
    fastest,
    least_seconds,
    links_of,
    phases_of,
    ring_steps,
    stated_nic_rate,
    usual_topology,
)
from replay.costs.collectives.fits import (
    LEAST_POINTS,
    LIBRARIES,
    Band,
    CollectiveCalibration,
    CollectiveFit,
    Curve,
    fit_curve,
    is_group_on_unknown_network,
    point_curve,
    same_library,
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
#: Share of the smallest measured size down to which a fit holds.
_NEAR = 0.5
#: Least time of a collective: a kernel's launch.
_LEAST_S = 2e-6


def carried_seconds(
    kind: str,
    sizes: Floats,
    topology: Topology,
    device: Device,
    calibration: CollectiveCalibration,
    library: str = "nccl",
) -> tuple[Floats, str]:
    """Return the time of a group that has no fit, and the evidence for it.

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
    library : str
        One of `replay.costs.collectives.LIBRARIES`.

    Returns
    -------
    seconds : array of float64, shape (n,)
    evidence : str
        ``"carried"`` from measured groups of the same links, ``"device"`` from groups of other links, ``"custom"`` from
        any of the all-reduces of inference frameworks, or ``"prior"``.
    """
    if topology.link == "network":
        return _between_nodes(kind, sizes, topology, device, calibration)
    # A group that was measured with large messages only says nothing of latencies.
    donors = [
        fit
        for fit in calibration.fits
        if fit.topology.link == topology.link
        and same_library(fit, library)
        and fit.curve.starts_bytes[0] <= _SMALL_BYTES
    ]
    if topology.fabric == "mesh" and all(fit.topology.fabric != "mesh" for fit in donors):
        # No mesh was measured. Its published times are those of frameworks, with launches, as the ones from PyTorch.
        donors = [fit for fit in donors if fit.library == "torch"]
    nearest = _nearest(kind, donors, topology, device)
    if not nearest:
        prior = fastest(kind, topology, links_of(device, topology), sizes)[0]
        return prior + launch_seconds(kind, calibration), "prior"
    logs = [share * np.log(_moved(fit, kind, sizes, topology, device)) for fit, share in nearest]
    evidence = "carried" if same_links(nearest[0][0], device) else "device"
    return np.exp(np.sum(logs, axis=0)), "custom" if library.startswith("custom") else evidence


def _between_nodes(
    kind: str, sizes: Floats, topology: Topology, device: Device, calibration: CollectiveCalibration
) -> tuple[Floats, str]:
    """Return the time over a network, and the evidence for it.

    The model is the fastest algorithm with the rate of the adapters. Groups that were measured on as many devices a
    node correct it, each at the size with messages as large as theirs: a ring and an exchange of n workers send a n-th
    of the buffer at once. A network belongs to a place: adapters of another place say nothing of it.
    """
    local = [fit for fit in calibration.fits if same_place(fit, topology, device) and same_network(fit, topology)]
    local = [fit for fit in local if fit.topology.link == "network"]
    similar = [fit for fit in local if fit.kind == kind] or _same_family(kind, local) or local
    if topology.nic_gbps and not similar:
        rate = stated_nic_rate(kind, topology, device)
    else:
        rate = nic_rate(similar)
        if topology.nic_gbps:
            rate = min(rate, topology.nic_gbps * 1e9)
    if similar and not topology.network:
        topology = replace(topology, network=similar[0].topology.network)
    seconds = fastest(kind, topology, links_of(device, topology, rate), _GRID)[0]
    same = [fit for fit in similar if fit.topology.devices_per_node == topology.devices_per_node] or similar
    reached = [fit.topology.nodes for fit in same if fit.topology.nodes <= topology.nodes]
    nearest = max(reached, default=min((fit.topology.nodes for fit in same), default=0))
    donors = [fit for fit in same if fit.topology.nodes == nearest]
    if donors:
        seconds = seconds * np.exp(np.mean([_beyond_model(fit, _GRID, topology, rate) for fit in donors], axis=0))
    else:
        seconds = seconds + launch_seconds(kind, calibration)
    least = np.minimum.accumulate(seconds[::-1])[::-1]  # a message can be sent as a longer one
    return np.exp(np.interp(np.log(sizes), np.log(_GRID), np.log(least))), "carried" if local else "prior"


#: Sizes at which times over a network are found, bytes; between them they are interpolated on logarithmic scales.
_GRID = 2.0 ** np.arange(0, 51, 0.125)
#: Share of a measured group's size that a larger group's messages are compared at, at least: two to eight nodes were
#: checked, and beyond them libraries go over to trees, whose messages do not shrink with the group.
_LEAST_SHARE = 0.25


def _beyond_model(fit: CollectiveFit, sizes: Floats, topology: Topology, rate: float) -> Floats:
    """Return the logarithm of measured over modelled time of a fit, at the sizes that a group's messages have there."""
    share = max(fit.topology.n_workers / topology.n_workers, _LEAST_SHARE)
    at = np.clip(sizes * share, max(fit.curve.starts_bytes[0], 1.0), fit.most_bytes)
    links = links_of(find_device(fit.device), fit.topology, rate)
    return np.asarray(np.log(fit.curve.seconds(at) / fastest(fit.kind, fit.topology, links, at)[0]))


def _nearest(
    kind: str, donors: list[CollectiveFit], topology: Topology, device: Device
) -> list[tuple[CollectiveFit, float]]:
    """Return the donors to use with their shares: the same collective before its family, the same place before links.

    Of each device and fabric, the groups with the next fewer and the next more workers count, the nearer one more.
    """
    similar = [fit for fit in donors if fit.kind == kind] or _same_family(kind, donors)
    local = [fit for fit in similar if same_place(fit, topology, device)]
    chosen = local or [fit for fit in similar if same_links(fit, device)] or similar
    by_place: dict[tuple[str, ...], dict[int, CollectiveFit]] = {}
    for fit in chosen:
        place = (fit.device, fit.topology.fabric, fit.kind, fit.library)
        by_place.setdefault(place, {})[fit.topology.n_workers] = fit
    shares = []
    for fits in by_place.values():
        fewer = max((n for n in fits if n <= topology.n_workers), default=min(fits))
        more = min((n for n in fits if n >= topology.n_workers), default=max(fits))
        above = np.log2(topology.n_workers / fewer) / np.log2(more / fewer) if more > fewer else 0.0
        shares += [(fits[n], float(share)) for n, share in ((fewer, 1 - above), (more, above)) if share > 0]
    return [(fit, share / len(by_place)) for fit, share in shares]


def _same_family(kind: str, donors: Iterable[CollectiveFit]) -> list[CollectiveFit]:
    family = next(family for family in _FAMILIES if kind in family)
    return [fit for fit in donors if fit.kind in family]


def _moved(donor: CollectiveFit, kind: str, sizes: Floats, topology: Topology, device: Device) -> Floats:
    """Return a donor's time at the size with which its busiest link is as busy, corrected by steps.

    The time of a small message is taken to go with the clock, the part that grows with the size with the bandwidth.
    """
    fitted = find_device(donor.device)
    carried = [busiest_link_s(kind, topology, device), busiest_link_s(donor.kind, donor.topology, fitted)]
    clocks = [each.figures["clock_mhz"].value if "clock_mhz" in each.figures else 0.0 for each in (fitted, device)]
    slower = clocks[0] / clocks[1] if min(clocks) > 0 else 1.0
    steps = ring_steps(kind, topology.n_workers) - ring_steps(donor.kind, donor.topology.n_workers)
    moved = donor.curve.rising(sizes * carried[0] / carried[1]) + (slower - 1) * donor.curve.alphas_s[0]
    return np.maximum(moved + steps * PROTOCOLS["LL"].step_s[topology.link], _LEAST_S)


def nic_rate(donors: list[CollectiveFit]) -> float:
    """Return bytes a second of one network adapter: the most that a measured group got out of each adapter.

    Sharing lowers the rate of an adapter, nothing raises it. Without a donor, it is that of 100 Gbit/s.
    """
    rates = []
    for fit in donors:
        volume, seconds = busiest_volume(fit.kind, fit.topology), float(fit.curve.seconds(fit.most_bytes))
        steps = sum(
            phase.steps for phase in phases_of(fit.kind, _simplest(fit), fit.topology) if phase.level == "network"
        )
        fixed = min(steps * PROTOCOLS["Simple"].step_s["network"], seconds / 2)
        rates.append(volume * fit.most_bytes / max(seconds - fixed, _LEAST_S) / fit.topology.nics_used)
    return max(rates, default=NETWORK_BYTES_PER_S)


def _simplest(fit: CollectiveFit) -> str:
    """Return the ring, or the direct exchange, of a fit's collective."""
    return algorithms_of(fit.kind, fit.topology)[0]


def launch_seconds(kind: str, calibration: CollectiveCalibration) -> float:
    """Return the time of a small message beyond NCCL's latencies: launch, and waiting for the slowest worker."""
    beyond = []
    for fit in _same_family(kind, calibration.fits):
        if fit.topology.link == "device" and same_library(fit, "nccl"):
            links = links_of(find_device(fit.device), fit.topology)
            prior = fastest(kind, fit.topology, links, np.array([_SMALL_BYTES]))[0][0]
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
    *,
    library: str = "nccl",
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
    library : str
        One of `replay.costs.collectives.LIBRARIES`.

    Returns
    -------
    Predicted
        Times of the shape of the sizes. The interval is wider beyond the largest size and the most workers that were
        measured. Its low end is not below what the links carry at their raw rate.

    Raises
    ------
    InvalidInputError
        There is no such collective or library, or a size is no number, not above zero, or above 2^50.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.collectives import load_collectives
    >>> known, device = load_collectives(), find_device("A100-SXM4-80GB")
    >>> predicted = predict_collective("all_reduce", [2**26], Topology(8), device, known)
    >>> predicted.basis, bool(predicted.low[0] < 0.62e-3 < predicted.high[0])
    ('fitted', True)
    >>> predict_collective("all_to_all", [2**26], Topology(1), device, known).seconds.tolist()
    [0.0]
    """
    exact = _checked_sizes(kind, sizes)
    if library not in LIBRARIES:
        raise InvalidInputError(f"no library is called {library!r:.40}; there are {', '.join(LIBRARIES)}")
    if topology.n_workers == 1:
        zeros = np.zeros_like(exact)
        return Predicted(zeros, zeros, zeros, "none")
    flat, topology = exact.ravel(), known_topology(topology, device, calibration)
    least = least_seconds(kind, flat, topology, device)
    seconds, evidence = carried_seconds(kind, flat, topology, device, calibration, library)
    seconds = np.maximum(seconds, least)
    high = np.full_like(flat, _spread(calibration, topology, evidence))
    low, basis = 1 / high, "prior" if evidence == "prior" else "carried"
    related, behind = "", tuple[str, ...]()
    fit = calibration.own(kind, topology, device, library)
    if fit is not None:
        # Far below the smallest measured size, a curve says nothing of the latency.
        is_within, is_beyond = flat >= _NEAR * fit.curve.starts_bytes[0], flat > fit.most_bytes
        seconds = np.where(is_within, fit.curve.seconds(flat), seconds)
        bounds, widest = fit.band.at(flat), _spread(calibration, topology, "carried")
        low = np.where(is_within, np.where(is_beyond, np.minimum(bounds[0], 1 / widest), bounds[0]), low)
        high = np.where(is_within, np.where(is_beyond, np.maximum(bounds[1], widest), bounds[1]), high)
        related = "fitted" if fit.device == device.name else "sibling"
        basis, behind = "fitted" if related == "fitted" else "carried", (fit.device,)
    shortest = np.minimum(np.maximum(seconds * low, least), seconds)
    times = [np.asarray(each.reshape(exact.shape)) for each in (seconds, shortest, seconds * high)]
    return Predicted(times[0], times[1], times[2], basis, devices=behind, relation=related)


def known_topology(topology: Topology, device: Device, calibration: CollectiveCalibration) -> Topology:
    """Return a topology with what is not given: by measured nodes with as many adapters, or by the catalogue."""
    usual = usual_topology(topology, device)
    if topology.link != "network" or topology.nic_gbps:
        return usual
    places = [fit for fit in calibration.fits if fit.topology.link == "network" and same_place(fit, topology, device)]
    if any(same_network(fit, topology) or is_group_on_unknown_network(fit, topology) for fit in places):
        return topology
    nodes = (topology.node_devices, topology.nics)
    rates = {
        fit.topology.nic_gbps
        for fit in places
        if (fit.topology.node_devices, fit.topology.nics) == nodes and not fit.topology.network.startswith("ethernet")
    }
    if not rates:
        return usual
    return replace(topology, nic_gbps=usual.nic_gbps if usual.nic_gbps in rates else max(rates))


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
    fits = {_key(fit.kind, fit.device, fit.topology, fit.library): fit for fit in base.fits}
    sources = ", ".join(sorted({group.source for group in measured}))
    measured = [group for group in measured if group.topology.n_workers > 1]
    if not measured:
        raise InvalidInputError(f"{sources}: no group of two or more workers was measured; one exchanges nothing")
    pooled = pooled_groups(measured)
    again = {key[:-1] for key in pooled if key[-1] in ("nccl", "torch")}
    fits = {key: fit for key, fit in fits.items() if key[:-1] not in again}
    for key, groups in pooled.items():
        fits[key] = _fit(groups)
    digests = {group.digest for group in measured}.union(base.digests)
    whole = CollectiveCalibration(tuple(fits[key] for key in sorted(fits)), digests=tuple(sorted(digests)))
    return replace(whole, spreads=MappingProxyType({**base.spreads, **_spreads(whole, measured)}))


_Key = tuple[str, str, str, int, int, int, float, str, str]


def _key(kind: str, device: str, topology: Topology, library: str) -> _Key:
    """Return what tells groups apart: within a node, adapters and devices outside the group do not."""
    network = (topology.nics, topology.nic_gbps, topology.network) if topology.nodes > 1 else (0, 0.0, "")
    return device, topology.fabric, kind, topology.n_workers, topology.devices_per_node, *network, library


def pooled_groups(measured: Sequence[MeasuredCollectives]) -> dict[_Key, list[MeasuredCollectives]]:
    """Return measurements by the group that they are of, so that those of several files are fitted together."""
    pooled: dict[_Key, list[MeasuredCollectives]] = {}
    for group in measured:
        pooled.setdefault(_key(group.kind, group.device.name, group.topology, group.library), []).append(group)
    return pooled


#: Sizes up to which a curve goes through all of them; of more, lines are fitted.
_FEW_SIZES = 40


def has_few_sizes(groups: Sequence[MeasuredCollectives]) -> bool:
    """Return whether the curve of a group goes through every measured size."""
    return len(np.unique(np.concatenate([group.sizes for group in groups]))) <= _FEW_SIZES


def scored_alone(groups: Sequence[MeasuredCollectives], sizes: Floats) -> npt.NDArray[np.bool_]:
    """Return the mask of the sizes on which a group that is left out is scored.

    Of few sizes, they are those from 64 KiB on, if there are any: tables of nccl-tests begin with a few bytes, whose
    times are launches.
    """
    is_large = sizes >= _SMALL_BYTES
    return is_large if has_few_sizes(groups) and is_large.any() else np.ones(len(sizes), dtype=bool)


def _points(groups: Sequence[MeasuredCollectives]) -> tuple[Floats, Floats]:
    """Return each size and its time: the geometric mean over files of their medians."""
    times: dict[float, list[float]] = {}
    for group in groups:
        for size in np.unique(group.sizes):  # tens of sizes
            times.setdefault(float(size), []).append(float(np.log(np.median(group.seconds[group.sizes == size]))))
    sizes = np.array(sorted(times))
    return sizes, np.exp([np.mean(times[size]) for size in sizes.tolist()])


def left_out_seconds(groups: Sequence[MeasuredCollectives], sizes: Floats) -> Floats:
    """Return the time of each size by a curve through the other sizes.

    Parameters
    ----------
    groups : sequence of MeasuredCollectives
        Measurements of one group, of few sizes.
    sizes : array of float64, shape (n,)
        Measured sizes, bytes.
    """
    points, times = _points(groups)
    found = [
        float(point_curve(points[points != size], times[points != size]).seconds(size)) for size in points.tolist()
    ]
    return np.array(found)[np.searchsorted(points, sizes)]


def _fit(groups: Sequence[MeasuredCollectives]) -> CollectiveFit:
    sizes, seconds = (np.concatenate([getattr(group, name) for group in groups]) for name in ("sizes", "seconds"))
    measured = replace(groups[0], sizes=sizes, seconds=seconds)
    name = f"{measured.source}: {measured.kind} of {measured.topology.n_workers} workers"
    curve, band = _curve_through(groups, name) if has_few_sizes(groups) else _curve_of_lines(measured, name)
    group = (measured.kind, measured.device.name, measured.topology)
    return CollectiveFit(*group, curve, band, len(measured), float(sizes.max()), measured.library)


def _curve_through(groups: Sequence[MeasuredCollectives], name: str) -> tuple[Curve, Band]:
    """Return a curve through all sizes, and its bounds on sizes that were left out in turn."""
    points, times = _points(groups)
    if len(points) < LEAST_POINTS:
        raise InvalidInputError(f"{name}: {len(points)} sizes were measured; a fit needs {LEAST_POINTS} or more")
    sizes, seconds = (np.concatenate([getattr(group, name) for group in groups]) for name in ("sizes", "seconds"))
    return point_curve(points, times), _band(sizes, seconds / left_out_seconds(groups, sizes))


def _curve_of_lines(measured: MeasuredCollectives, group: str) -> tuple[Curve, Band]:
    """Return lines fitted to half of the sizes, and their bounds on a quarter."""
    topology, fitted, held_out = measured.topology, measured.part % 2 == 0, measured.part == _SPREAD
    limit = None  # the catalogue does not have the limit of a network
    if topology.link != "network":
        limit = busiest_link_s(measured.kind, topology, measured.device)
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
    return curve, _band(sizes, measured.seconds[held_out] / curve.seconds(sizes))


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
    named = [group for group in measured if group.topology.link != "network" or group.topology.nic_gbps]
    for left_out in sorted({0, *(group.topology.n_workers for group in measured)}):
        rest = calibration.without_workers(left_out)
        errors: dict[tuple[str, str], list[Floats]] = {}
        for group in measured:
            topology = group.topology
            if topology.n_workers in (1, left_out):
                continue
            rows = scored_alone([group], group.sizes)
            reduced = [rest.without_workers(topology.n_workers)]
            reduced += [rest.without_device(group.device)] if any(group is each for each in named) else []
            for fits in reduced:
                usual = known_topology(topology, group.device, fits)
                sizes = group.sizes[rows]
                seconds, evidence = carried_seconds(group.kind, sizes, usual, group.device, fits, group.library)
                quantiles = np.quantile(np.abs(np.log(seconds / group.seconds[rows])), _LEVELS)
                errors.setdefault((topology.link, evidence), []).append(quantiles)
        for (link, basis), several in errors.items():
            # One or two groups say little of the next: those of every kind of link in a node then count.
            pool = (link,) if link == "network" or len(several) >= _LEAST_GROUPS else ("device", "pcie")
            pooled = [each for key, some in errors.items() if key[0] in pool and key[1] == basis for each in some]
            spreads[link, basis, left_out] = float(np.quantile(pooled, _CONFIDENCE))
    return spreads
