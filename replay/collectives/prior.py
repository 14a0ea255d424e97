"""Time of a collective before anything is measured: algorithms and protocols with NCCL's constants, the fastest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.devices import Device
from replay.collectives.algorithms import Phase, algorithms_of, phases_of
from replay.collectives.topology import Topology, link_bytes_per_s

__all__ = [
    "CHAINED_NODES",
    "IN_A_NODE",
    "NETWORK_BYTES_PER_S",
    "OVER_THE_NETWORK",
    "PROTOCOLS",
    "Machine",
    "algorithm_seconds",
    "fastest",
    "machine_of",
]

Floats = npt.NDArray[np.float64]

#: An adapter of 100 Gbit/s by NCCL's table (src/graph/topo.h), where nothing is known of the network.
NETWORK_BYTES_PER_S = 12e9


@dataclass(frozen=True)
class Protocol:
    """How a library packs messages.

    Parameters
    ----------
    base_s : float
        Paid once.
    step_s : mapping of str to float
        Paid each step, by kind of link; ``"network tree"`` is that of a tree between nodes.
    share : float
        Of the bandwidth that payload gets.
    """

    base_s: float
    step_s: Mapping[str, float]
    share: float


def _protocol(base: float, steps: tuple[float, float, float, float], share: float) -> Protocol:
    each = dict(zip(("device", "pcie", "network", "network tree"), (1e-6 * step for step in steps), strict=True))
    return Protocol(base * 1e-6, MappingProxyType(each), share)


#: NCCL 2.30, src/graph/tuning.cc: base latency, and of a ring's step over NVLink, PCIe and the network, and of a tree's
#: over the network (commit b647562 of the same file), in us. LL sends a flag with every 4 bytes, LL128 one with every
#: 120.
PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        "LL": _protocol(6.6, (0.6, 1.0, 2.7, 5.0), 0.5),
        "LL128": _protocol(14.0, (1.9, 2.5, 4.0, 8.5), 0.9375),
        "Simple": _protocol(8.4, (3.4, 5.7, 14.0, 28.0), 1.0),
    }
)


#: Algorithms and protocols that libraries choose from by themselves; the other algorithms are for asking what they
#: would give. Between nodes NCCL uses LL128 on conditions only (src/graph/tuning.cc); with LL128, or a tree, among the
#: choices, the measured groups, all on two nodes, are predicted worse. Between two nodes a tree is no more than a
#: chain, so all-reduces have it on more than two, where a ring's steps add up.
IN_A_NODE = tuple((algorithm, protocol) for algorithm in ("ring", "tree", "direct") for protocol in PROTOCOLS)
OVER_THE_NETWORK = tuple((algorithm, protocol) for algorithm in ("ring", "direct") for protocol in ("LL", "Simple"))
#: Nodes up to which no tree is taken.
CHAINED_NODES = 2
_TREES = (("tree", "LL"), ("tree", "Simple"))


@dataclass(frozen=True)
class Machine:
    """Bandwidths that a group has.

    Parameters
    ----------
    link : str
        One of `replay.collectives.topology.LINKS`: whose latency is paid in a node.
    port, peer, network : float
        Bytes a second: all links of a device, its links to one other, all adapters of a node that are used.
    """

    link: str
    port: float
    peer: float
    network: float

    def of(self, phase: Phase) -> float:
        """Return the bandwidth that a phase has."""
        return {"port": self.port, "peer": self.peer}.get(phase.level, self.network)


def machine_of(device: Device, topology: Topology, nic_bytes_per_s: float = NETWORK_BYTES_PER_S) -> Machine:
    """Return the bandwidths of a group by the catalogue and NCCL's tables.

    Parameters
    ----------
    device : Device
    topology : Topology
    nic_bytes_per_s : float
        Of one adapter, one way.
    """
    inside = "pcie" if topology.fabric == "pairs" and topology.devices_per_node > 2 else "device"
    port = peer = link_bytes_per_s(device, inside)
    if topology.fabric == "mesh" and topology.node_devices > 1:
        # Each other device of the node has its share of the links; those of devices outside the group lie idle.
        peer = port / (topology.node_devices - 1)
        port = peer * max(topology.devices_per_node - 1, 1)
    return Machine(inside, port, peer, topology.nics_used * nic_bytes_per_s)


def algorithm_seconds(phases: tuple[Phase, ...], protocol: str, machine: Machine, sizes: Floats) -> Floats:
    """Return base + steps * alpha + volume * size / bandwidth, of all phases.

    Parameters
    ----------
    phases : tuple of Phase
        None costs nothing.
    protocol : str
        One of `PROTOCOLS`.
    machine : Machine
    sizes : array of float64, shape (n,)

    Examples
    --------
    >>> machine = Machine("device", 1e9, 1e9, 1e9)
    >>> f"{algorithm_seconds((Phase('port', 6, 1.5),), 'Simple', machine, np.array([2e6]))[0] * 1e6:.1f}"
    '3028.8'
    """
    if not phases:
        return np.zeros_like(sizes)
    how = PROTOCOLS[protocol]
    fixed = how.base_s + sum(
        phase.steps * how.step_s[phase.level if phase.level.startswith("network") else machine.link] for phase in phases
    )
    return np.asarray(fixed + sum(phase.volume / (how.share * machine.of(phase)) for phase in phases) * sizes)


def fastest(
    kind: str,
    topology: Topology,
    machine: Machine,
    sizes: Floats,
    choices: Sequence[tuple[str, str]] | None = None,
) -> tuple[Floats, npt.NDArray[np.str_]]:
    """Return the time of the fastest algorithm and protocol at each size, and their names.

    Parameters
    ----------
    kind : str
    topology : Topology
    machine : Machine
    sizes : array of float64, shape (n,)
        Bytes.
    choices : sequence of (str, str), optional
        Algorithms and protocols to choose from; those that the collective lacks on this topology are passed over.
        By default what libraries choose from.

    Returns
    -------
    seconds : array of float64, shape (n,)
    names : array of str, shape (n,)
        Of each size, such as ``"ring LL"``; of one worker ``"none"``.
    """
    if topology.n_workers == 1:
        return np.zeros_like(sizes), np.full(sizes.shape, "none")
    if choices is None:
        choices = _choices(kind, topology)
    there = algorithms_of(kind, topology)
    names, times = [], []
    for algorithm, protocol in (one for one in choices if one[0] in there):
        names.append(f"{algorithm} {protocol}")
        times.append(algorithm_seconds(phases_of(kind, algorithm, topology), protocol, machine, sizes))
    best = np.argmin(times, axis=0)
    return np.min(times, axis=0), np.array(names)[best]


def _choices(kind: str, topology: Topology) -> Sequence[tuple[str, str]]:
    if topology.nodes == 1:
        return IN_A_NODE
    treed = kind == "all_reduce" and topology.nodes > CHAINED_NODES
    return (*OVER_THE_NETWORK, *_TREES) if treed else OVER_THE_NETWORK
