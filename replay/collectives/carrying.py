"""Time of a group that was not measured, from groups that were: what they sent over the same kind of link."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from profilers.devices import Device, find_device
from replay.collectives.algorithms import busiest_volume, ring_steps
from replay.collectives.calibration import CollectiveCalibration, CollectiveFit, same_links, same_place
from replay.collectives.prior import CHAINED_NODES, NETWORK_BYTES_PER_S, PROTOCOLS, fastest, machine_of
from replay.collectives.topology import Topology, link_bytes_per_s

__all__ = ["carried_seconds", "launch_seconds", "nic_rate"]

Floats = npt.NDArray[np.float64]

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
    sizes : array of float64, shape (n,)
        Bytes, above zero.
    topology : Topology
        Of two workers or more.
    device : Device
    known : CollectiveCalibration

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
