"""What comes at each step of a schedule, over the links that there are."""

from dataclasses import replace

from profilers.devices import Device
from replay.collectives import Topology
from replay.overlap.ficco.schedules import Schedule
from replay.overlap.ficco.workload import Scenario
from replay.overlap.transfers import Transfer

__all__ = ["ring_hops", "step_transfer", "steps_of"]


def steps_of(scenario: Scenario, schedule: Schedule) -> int:
    """Return in how many steps a schedule's data come: one, one a peer, or one a piece of a shard.

    Examples
    --------
    >>> from replay.overlap.ficco.schedules import find_schedule
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> scenario = load_scenarios()["g1"]
    >>> [steps_of(scenario, find_schedule(name)) for name in ("serial", "shards", "uniform_fused_2d")]
    [1, 7, 8]
    """
    return {"whole": 1, "shards": scenario.peers}.get(schedule.transfer, scenario.topology.n_workers)


def step_transfer(scenario: Scenario, schedule: Schedule) -> Transfer:
    """Return what one step moves.

    A shard goes to one peer: on a mesh over the links to it alone, on a switch or round a ring over all that a device
    has. Pieces go to all peers at once: on a mesh each over links of its own, on a switch side by side, and on a ring
    through all devices between, so that each takes as many links as there are hops.

    Source: point to point a shard takes ``(S / P) / L`` a step on a mesh, FiCCO's pieces ``(S / P) / P / L`` with P
    devices, S bytes in all and L bytes/s a pair (arXiv 2512.10236).

    Examples
    --------
    >>> from replay.overlap.ficco.schedules import find_schedule
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> scenario = load_scenarios()["g1"]
    >>> shards, pieces = (step_transfer(scenario, find_schedule(name)) for name in ("shards", "uniform_fused_1d"))
    >>> round(shards.sent_bytes / 2**20), round(pieces.sent_bytes / 2**20)
    (512, 448)
    """
    whole, topology = scenario.transfer, scenario.topology
    n = topology.n_workers
    if schedule.transfer == "whole":
        return whole
    if schedule.transfer == "shards":
        pair = Topology(2, node_devices=max(topology.node_devices, n), fabric=topology.fabric)
        return Transfer(whole.kind, 2 * whole.size_bytes / n, pair, whole.device)
    device = _slower(whole.device, ring_hops(n)) if topology.fabric == "ring" else whole.device
    return Transfer(whole.kind, whole.size_bytes / n, topology, device)


def ring_hops(n_workers: int) -> float:
    """Return how many links, on average, lie between a device of a ring and each other one, the shorter way round.

    Examples
    --------
    >>> round(ring_hops(8), 3)
    2.286
    """
    return sum(min(i, n_workers - i) for i in range(1, n_workers)) / (n_workers - 1)


def _slower(device: Device, factor: float) -> Device:
    """Return the device with links that carry so much less of its own."""
    figures = dict(device.figures)
    figures["link_gbps"] = replace(figures["link_gbps"], value=figures["link_gbps"].value / factor)
    return replace(device, figures=figures)
