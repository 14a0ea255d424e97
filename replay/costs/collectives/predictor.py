"""Times of collectives on any group of workers, with an interval.

A group that was measured has its own curve. A group that was not takes the curves of measured groups over the same kind
of link, moved by what the busiest link carries. Without such a group, constants of NCCL and the data sheet remain.
`calibrate_collectives` fits measured groups, and finds the spread of predictions by leaving groups out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
    busiest_volume,
    fastest,
    least_seconds,
    link_bytes_per_s,
    machine_of,
    ring_steps,
)
from replay.costs.collectives.fits import (
    Band,
    CollectiveCalibration,
    CollectiveFit,
    fit_curve,
    same_links,
    same_place,
)
from replay.costs.collectives.measurements import MeasuredCollectives

#: Size whose time is all launch and waiting for the slowest worker.
_SMALL_BYTES = 65536.0
#: Collectives whose workers pass data on, and those in which each only sends and receives.
_FAMILIES = (("all_reduce", "all_gather", "reduce_scatter", "broadcast"), ("all_to_all", "send_recv"))
#: Least time of a collective: a kernel's launch.
_LEAST_S = 2e-6


def carried_seconds(
    kind: str, sizes: Floats, topology: Topology, device: Device, known: CollectiveCalibration
) -> tuple[Floats, str]:
    """Return the time of a group that has no fit, and what it rests on.

    Parameters
    ----------
    kind : str
        One of `replay.costs.collectives.KINDS`.
    sizes : array of float64, shape (n,)
        Bytes, above zero.
    topology : Topology
        Of two workers or more.
    device : Device
        Device of every worker.
    known : CollectiveCalibration
        Fits of measured groups.

    Returns
    -------
    seconds : array of float64, shape (n,)
    basis : str
        ``"carried"`` from measured groups, or ``"prior"``.
    """
    donors = [one for one in known.fits if one.topology.link == topology.link]
    if topology.link == "network":
        # A network belongs to the place: another place's adapters say nothing of it.
        places = [one for one in donors if same_place(one, topology, device)]
        seconds = _between_nodes(kind, sizes, topology, device, nic_rate(_alike(kind, places) or places))
        return seconds + launch_seconds(kind, known), "carried" if places else "prior"
    near = _nearest(kind, donors, topology, device)
    if not near:
        prior = fastest(kind, topology, machine_of(device, topology), sizes)[0]
        return prior + launch_seconds(kind, known), "prior"
    logs = [np.log(_moved(one, kind, sizes, topology, device)) for one in near]
    return np.exp(np.mean(logs, axis=0)), "carried"


def _between_nodes(kind: str, sizes: Floats, topology: Topology, device: Device, rate: float) -> Floats:
    """Return the fastest algorithm's time, not less than that of two of the nodes."""
    seconds = fastest(kind, topology, machine_of(device, topology, rate), sizes)[0]
    if topology.nodes <= CHAINED_NODES:
        return seconds
    two = replace(topology, n_workers=CHAINED_NODES * topology.devices_per_node)
    return np.maximum(seconds, fastest(kind, two, machine_of(device, two, rate), sizes)[0])


def _nearest(kind: str, donors: list[CollectiveFit], topology: Topology, device: Device) -> list[CollectiveFit]:
    """Return the donors to use: the same collective before those built alike, the same place before the same links."""
    same = [one for one in donors if one.kind == kind] or _alike(kind, donors)
    here = [one for one in same if same_place(one, topology, device)]
    alike = [one for one in same if same_links(find_device(one.device), device)]
    return here or alike or same


def _alike(kind: str, donors: Iterable[CollectiveFit]) -> list[CollectiveFit]:
    family = next(family for family in _FAMILIES if kind in family)
    return [one for one in donors if one.kind in family]


def _moved(donor: CollectiveFit, kind: str, sizes: Floats, topology: Topology, device: Device) -> Floats:
    """Return a donor's time at the size with which its busiest link is as busy, corrected by steps.

    What is fixed in it is taken to go with the clock, what grows with the size with the bandwidth.
    """
    theirs = find_device(donor.device)
    volume = busiest_volume(kind, topology) / busiest_volume(donor.kind, donor.topology)
    rates = [link_bytes_per_s(one, topology.link) for one in (theirs, device)]
    clocks = [one.figures["clock_mhz"].value if "clock_mhz" in one.figures else 0.0 for one in (theirs, device)]
    slower = clocks[0] / clocks[1] if min(clocks) > 0 else 1.0
    steps = ring_steps(kind, topology.n_workers) - ring_steps(donor.kind, donor.topology.n_workers)
    moved = donor.curve.rising(sizes * volume * rates[0] / rates[1], slower)
    return np.maximum(moved + steps * PROTOCOLS["LL"].step_s[topology.link], _LEAST_S)


def nic_rate(donors: list[CollectiveFit]) -> float:
    """Return bytes a second of one network adapter: the most that a measured group got out of each of its own.

    Sharing lowers what an adapter gives, nothing raises it. Without a donor, that of 100 Gbit/s.
    """
    step = PROTOCOLS["Simple"].step_s["network"]
    rates = []
    for one in donors:
        fixed = ring_steps(one.kind, one.topology.n_workers) * step
        took = max(float(one.curve.seconds(one.most_bytes)) - fixed, _LEAST_S)
        rates.append(busiest_volume(one.kind, one.topology) * one.most_bytes / took / one.topology.nics_used)
    return max(rates, default=NETWORK_BYTES_PER_S)


def launch_seconds(kind: str, known: CollectiveCalibration) -> float:
    """Return what a small message costs beyond NCCL's latencies: launch, and waiting for the slowest worker."""
    small = []
    for one in _alike(kind, known.fits):
        if one.topology.link == "device":
            prior = fastest(
                kind, one.topology, machine_of(find_device(one.device), one.topology), np.array([_SMALL_BYTES])
            )
            small.append(max(float(one.curve.seconds(_SMALL_BYTES)) - float(prior[0][0]), 0.0))
    return float(np.median(small)) if small else 0.0


#: What intervals are meant to cover.
_CONFIDENCE = 0.9
#: Of the four parts of the sizes, one says how far off fits are, and one is never looked at: it scores.
_SPREAD, _SCORE = 1, 3
#: Sizes from which intervals have bounds of their own, and the rows that this takes.
_CLASSES, _LEAST_ROWS = (0.0, 2.0**20, 2.0**24), 20
#: Quantiles that stand for the errors of a group, so that every group counts the same.
_LEVELS = np.linspace(0.005, 0.995, 100)
#: Groups that the spread of a kind of link takes.
_LEAST_GROUPS = 3
#: Spread of a kind of link that nothing was measured of.
_UNKNOWN = float(np.log(3))


@dataclass(frozen=True)
class PredictedCollectives:
    """Predicted times.

    Parameters
    ----------
    seconds, low, high : array of float64, of the shape of the sizes
        `low` to `high` is meant to hold nine measured times of ten; wider beyond the largest size and the most workers
        that were measured. `low` is not below what the links carry at their raw rate.
    basis : str
        ``"fitted"`` on this group of workers, ``"carried"`` over from others, ``"prior"`` from constants and the device
        catalogue, ``"none"`` of one worker.
    """

    seconds: Floats
    low: Floats
    high: Floats
    basis: str


def predict_collective(
    kind: str,
    sizes: npt.ArrayLike,
    topology: Topology,
    device: Device,
    calibration: CollectiveCalibration,
) -> PredictedCollectives:
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
    wanted = _checked(kind, sizes)
    flat = wanted.ravel()
    if topology.n_workers == 1:
        nothing = np.zeros_like(wanted)
        return PredictedCollectives(nothing, nothing, nothing, "none")
    known = calibration
    own = known.own(kind, topology, device)
    if own is not None:
        seconds, (low, high), basis = own.curve.seconds(flat), own.band.at(flat), "fitted"
        far, widest = flat > own.most_bytes, _spread(known, topology, "carried")
        low, high = np.where(far, np.minimum(low, 1 / widest), low), np.where(far, np.maximum(high, widest), high)
    else:
        seconds, basis = carried_seconds(kind, flat, topology, device, known)
        seconds = np.maximum(seconds, least_seconds(kind, flat, topology, device))
        high = np.full_like(flat, _spread(known, topology, basis))
        low = 1 / high
    shortest = np.minimum(np.maximum(seconds * low, least_seconds(kind, flat, topology, device)), seconds)
    shape = wanted.shape
    return PredictedCollectives(seconds.reshape(shape), shortest.reshape(shape), (seconds * high).reshape(shape), basis)


def _checked(kind: str, sizes: npt.ArrayLike) -> Floats:
    if kind not in KINDS:
        raise InvalidInputError(f"no collective is called {kind!r}; there are {', '.join(KINDS)}")
    try:
        given = np.asarray(sizes)
    except (ValueError, OverflowError):
        given = np.asarray(None)
    if given.dtype.kind not in "iuf":
        raise InvalidInputError("sizes must be numbers of bytes, in an array of one shape")
    wanted = given.astype(np.float64)
    flat = wanted.ravel()
    bad = np.flatnonzero(~((flat > 0) & (flat <= MOST_BYTES)))
    if len(bad):
        raise InvalidInputError(
            f"sizes[{int(bad[0])}] is {flat[bad[0]]:g}; it must be finite and above zero, {MOST_BYTES} at most"
        )
    return wanted


def _spread(known: CollectiveCalibration, topology: Topology, basis: str) -> float:
    """Return the factor that predictions which were not fitted are off by at most, nine times in ten.

    Each doubling beyond the most workers that were measured over such a link counts as one more guess of that kind,
    independent of the others, as groups that are left out are one doubling away from the next.
    """
    n, link = topology.n_workers, topology.link
    most = max((one.topology.n_workers for one in known.fits if one.topology.link == link), default=n)
    guesses = 1 + max(float(np.log2(n / most)), 0.0)
    return float(np.exp(known.spreads.get((link, basis, known.left_out), _UNKNOWN) * np.sqrt(guesses)))


def scored_rows(measured: MeasuredCollectives) -> npt.NDArray[np.bool_]:
    """Return which rows no fit looks at: a quarter of the sizes."""
    return np.asarray(measured.part == _SCORE)


def calibrate_collectives(
    measured: Sequence[MeasuredCollectives], base: CollectiveCalibration | None = None
) -> CollectiveCalibration:
    """Fit every measured group, and measure how far predictions of groups that were left out are off.

    Parameters
    ----------
    measured : sequence of MeasuredCollectives
        Of a group that occurs in several, all rows are taken together.
    base : CollectiveCalibration, optional
        Whose fits of other groups are kept.

    Raises
    ------
    InvalidInputError
        A group has too few sizes, or none has two workers: one alone exchanges nothing.
    """
    fits = {_key(one): one for one in base.fits} if base else {}
    sources = ", ".join(sorted({one.source for one in measured}))
    measured = [one for one in measured if one.topology.n_workers > 1]
    if not measured:
        raise InvalidInputError(f"{sources}: no group of two or more workers was measured; one exchanges nothing")
    for group in _pooled(measured):
        found = _fit(group)
        fits[_key(found)] = found
    digests = {one.digest for one in measured} | set(base.digests if base else ())
    whole = CollectiveCalibration(tuple(fits[key] for key in sorted(fits)), digests=tuple(sorted(digests)))
    spreads = {**(base.spreads if base else {}), **_spreads(whole, measured)}
    return CollectiveCalibration(whole.fits, MappingProxyType(spreads), whole.digests)


def _key(fit: CollectiveFit) -> tuple[str, str, str, int, int]:
    where = fit.topology
    return fit.device, where.fabric, fit.kind, where.n_workers, where.devices_per_node


def _pooled(measured: Sequence[MeasuredCollectives]) -> list[MeasuredCollectives]:
    groups: dict[tuple[str, str, Topology], list[MeasuredCollectives]] = {}
    for one in measured:
        groups.setdefault((one.kind, one.device.name, one.topology), []).append(one)
    return [
        replace(
            several[0],
            sizes=np.concatenate([one.sizes for one in several]),
            seconds=np.concatenate([one.seconds for one in several]),
        )
        for several in groups.values()
    ]


def _fit(one: MeasuredCollectives) -> CollectiveFit:
    fitted, held = one.part % 2 == 0, one.part == _SPREAD
    try:
        curve = fit_curve(one.sizes[fitted], one.seconds[fitted], _limit(one))
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{one.source}: {one.kind} of {one.topology.n_workers} workers: half of {error}"
        ) from error
    if not held.any():
        raise InvalidInputError(
            f"{one.source}: {one.kind} of {one.topology.n_workers} workers: no size is left for the interval; a hash "
            "sets a quarter of the sizes aside, so measure more of them"
        )
    band = _band(one.sizes[held], one.seconds[held] / curve.seconds(one.sizes[held]))
    return CollectiveFit(one.kind, one.device.name, one.topology, curve, band, len(one), float(one.sizes.max()))


def _limit(one: MeasuredCollectives) -> float | None:
    """Return the seconds a byte that links in a node allow; what a network allows is not in the catalogue."""
    if one.topology.link == "network" or one.topology.n_workers == 1:
        return None
    return busiest_volume(one.kind, one.topology) / link_bytes_per_s(one.device, one.topology.link)


def _band(sizes: Floats, ratios: Floats) -> Band:
    """Split conformal bounds: of m ratios in order, the ones at (m + 1) times 5 and 95 %, by class of size."""
    starts, bounds = [], []
    for start, end in zip(_CLASSES, (*_CLASSES[1:], np.inf), strict=True):
        mine = (sizes >= start) & (sizes < end)
        among = np.sort(ratios[mine] if mine.sum() >= _LEAST_ROWS else ratios)
        m = len(among)
        tail = (1 - _CONFIDENCE) / 2
        low = max(int(np.floor((m + 1) * tail)) - 1, 0)
        high = min(int(np.ceil((m + 1) * (1 - tail))) - 1, m - 1)
        starts.append(start)
        bounds.append((min(float(among[low]), 1.0), max(float(among[high]), 1.0)))
    return Band(tuple(starts), tuple(low for low, _ in bounds), tuple(high for _, high in bounds))


def _spreads(
    known: CollectiveCalibration, measured: Sequence[MeasuredCollectives]
) -> dict[tuple[str, str, int], float]:
    """Return the spread of predictions that are not fitted, with each number of workers left out in turn, and none.

    Each measured group is predicted without its own number of workers, and without its device, and both times without
    the number that is left out. Every group counts the same.
    """
    found = {}
    for left_out in sorted({0, *(one.topology.n_workers for one in measured)}):
        rest = known.without_workers(left_out)
        errors: dict[tuple[str, str, int], list[Floats]] = {}
        for one in measured:
            if one.topology.n_workers in (1, left_out):
                continue
            for less in (rest.without_workers(one.topology.n_workers), rest.without_device(one.device)):
                seconds, basis = carried_seconds(one.kind, one.sizes, one.topology, one.device, less)
                each = np.quantile(np.abs(np.log(seconds / one.seconds)), _LEVELS)
                errors.setdefault((one.topology.link, basis, left_out), []).append(each)
        for (link, basis, _), several in errors.items():
            # One or two groups say little of the next: those of every kind of link in a node then count.
            pool = (link,) if link == "network" or len(several) >= _LEAST_GROUPS else ("device", "pcie")
            among = [
                each for (other, how, _), some in errors.items() if other in pool and how == basis for each in some
            ]
            found[link, basis, left_out] = float(np.quantile(among, _CONFIDENCE))
    return found
