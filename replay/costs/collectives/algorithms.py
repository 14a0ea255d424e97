"""Groups of workers, algorithms of collectives, and their time from data sheets.

A `Topology` says where the workers of a group are and which links join them. Each algorithm of a collective is a list
of phases: steps one after another, and bytes over the busiest link. `fastest` takes the least time over algorithms and
protocols, with the constants of NCCL. `least_seconds` is the bound that the links set for every algorithm.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.costs.architectures import architecture_of

#: How the devices of a node are joined: each to each, by a switch, in a ring, in pairs, or not at all. A bridge joins a
#: pair; other traffic goes over PCIe. Without links, it goes over PCIe and through the memory of the host.
FABRICS = ("mesh", "switch", "ring", "pairs", "pcie")
#: Networks between nodes. A group may add a word after a colon, such as the settings of its library.
NETWORKS = ("infiniband", "roce", "slingshot", "ethernet")
#: Cards whose links need a bridge to one other card, so that no switch joins more.
_BRIDGED = ("A100-PCIE-40GB", "A100-PCIE-80GB", "H100-PCIE-80GB", "H100-NVL-94GB", "H200-NVL-141GB", "A40", "RTX A6000")
#: The slowest kind of link that a group has to cross.
LINKS = ("device", "pcie", "network")
#: More is a number in another unit, or a mistake.
MOST_BYTES, MOST_WORKERS = 2**50, 2**20
#: No network adapter has more, GB/s.
MOST_GBPS = 1e5

#: Share of the raw rate of PCIe that is left after headers.
_PCIE_SHARE = 0.75
#: Share of that rate between devices without a direct way to each other: NCCL writes to the memory of the host and
#: reads from it, so each byte passes the host bridge twice. Four and eight cards of RTX PRO 6000 reach this share.
_HOST_BRIDGE_SHARE = 0.5


@dataclass(frozen=True)
class Topology:
    """A group of workers, one a device.

    Parameters
    ----------
    n_workers : int
        Workers of the group.
    devices_per_node : int, optional
        Devices of the group in each node; by default all are in one node. A smaller group is in one node, too.
    node_devices : int, optional
        Devices of a node, in the group or not; by default those of the group.
    fabric : str
        One of `FABRICS`.
    nics : int, optional
        Network adapters of a node for traffic between devices. By default there is one for two devices, as in many
        rented nodes. A DGX A100 or H100 has one for each device.
    nic_gbps : float
        Bandwidth of an adapter by its data sheet, one way, GB/s; 0 if it is not known. Then the catalogue's adapters
        for the device are taken, unless such nodes were measured. If some pairs of nodes are slower than others, give
        the bandwidth of the slowest: every collective of the group waits for it.
    network : str
        One of `NETWORKS`, with settings after a colon if several were measured (``"slingshot:4"``); ``""`` if it is
        not known.

    Raises
    ------
    InvalidInputError
        A number is not whole, or not 1 to 2^20 (0 stands for the default), the group does not fill its nodes, a node
        has fewer devices than the group uses there, or there is no such fabric or network.

    Examples
    --------
    >>> Topology(16, 8).nodes, Topology(16, 8).link, Topology(8).link
    (2, 'network', 'device')
    >>> Topology(4, fabric="pairs").link, Topology(2, node_devices=4, fabric="pairs").link
    ('pcie', 'device')
    >>> Topology(2, 8).devices_per_node, Topology(2, 8).node_devices
    (2, 8)
    """

    n_workers: int
    devices_per_node: int = 0
    node_devices: int = 0
    fabric: str = "switch"
    nics: int = 0
    nic_gbps: float = 0.0
    network: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.nic_gbps <= MOST_GBPS:
            raise InvalidInputError(f"an adapter of {self.nic_gbps:g} GB/s; give 0 to {MOST_GBPS:g}")
        for name in ("n_workers", "devices_per_node", "node_devices", "nics"):
            least = 1 if name == "n_workers" else 0
            object.__setattr__(self, name, _whole(name, getattr(self, name), least))
        if self.node_devices == 0:
            object.__setattr__(self, "node_devices", self.devices_per_node or self.n_workers)
        if self.devices_per_node == 0 or self.n_workers < self.devices_per_node:
            object.__setattr__(self, "devices_per_node", self.n_workers)
        if self.nics == 0:
            object.__setattr__(self, "nics", max(1, self.node_devices // 2))
        if self.fabric not in FABRICS:
            raise InvalidInputError(f"no fabric is called {self.fabric!r}; there are {', '.join(FABRICS)}")
        if self.network and self.network.split(":")[0] not in NETWORKS:
            raise InvalidInputError(f"no network is called {self.network!r:.40}; there are {', '.join(NETWORKS)}")
        if self.n_workers % self.devices_per_node or self.devices_per_node > self.node_devices:
            raise InvalidInputError(
                f"{self.n_workers} workers, {self.devices_per_node} in each node of {self.node_devices} devices: "
                "workers must fill whole nodes, and a node must have the devices"
            )

    @property
    def nodes(self) -> int:
        """Nodes that the group spans."""
        return self.n_workers // self.devices_per_node

    @cached_property
    def link(self) -> str:
        """The slowest kind of link that the group crosses: one of `LINKS`."""
        if self.nodes > 1:
            return "network"
        return "pcie" if self.fabric == "pcie" or (self.fabric == "pairs" and self.n_workers > 2) else "device"

    @property
    def nics_used(self) -> int:
        """Adapters of a node that the group drives: no more than it has devices there."""
        return min(self.nics, self.devices_per_node)


def usual_topology(topology: Topology, device: Device) -> Topology:
    """Return a topology with what the catalogue knows of the device in place of what is not given.

    Devices that no switch joins are on a bridge or on PCIe. Adapters of unknown bandwidth are those of the device's
    usual node.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> usual_topology(Topology(8), find_device("L4")).fabric, usual_topology(Topology(8), find_device("A40")).fabric
    ('pcie', 'pairs')
    >>> group = usual_topology(Topology(80, 8), find_device("H100-SXM5-80GB"))
    >>> group.nics, group.nic_gbps
    (8, 50.0)
    """
    fabric, nics, rate = topology.fabric, topology.nics, topology.nic_gbps
    if fabric == "switch" and "link_gbps" not in device.figures:
        fabric = "pcie"
    elif fabric == "switch" and device.name in _BRIDGED:
        fabric = "pairs"
    if topology.nodes > 1 and not rate and {"node_adapters", "adapter_gbps"} <= set(device.figures):
        if nics == max(1, topology.node_devices // 2):
            nics = max(1, round(device.value("node_adapters") * topology.node_devices / _USUAL_NODE))
        rate = device.value("adapter_gbps")
    return replace(topology, fabric=fabric, nics=nics, nic_gbps=rate)


#: Devices of the node for which the catalogue gives adapters.
_USUAL_NODE = 8


def _whole(name: str, value: object, least: int) -> int:
    """Return a whole number, of Python or NumPy."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number <= MOST_WORKERS:
        shown = "beyond that" if isinstance(value, int) and abs(value) > MOST_BYTES else f"{value!r:.40}"
        raise InvalidInputError(f"{name} is {shown}; it must be a whole number, 1 to {MOST_WORKERS}")
    return number


def link_bytes_per_s(device: Device, link: str) -> float:
    """Return the rate at which a device sends over a kind of link, one way, after protocol headers.

    Parameters
    ----------
    device : Device
        Device that sends.
    link : str
        ``"device"`` (of a device without such links: PCIe) or ``"pcie"``.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> a100 = find_device("A100-SXM4-80GB")
    >>> link_bytes_per_s(a100, "device") / 1e9, link_bytes_per_s(a100, "pcie") / 1e9
    (240.0, 24.0)
    """
    if link == "device" and "link_gbps" in device.figures:
        return device.value("link_gbps") * 1e9 * architecture_of(device.architecture).link_share
    return architecture_of(device.architecture).pcie_gbps * 1e9


def raw_link_bytes_per_s(device: Device, link: str) -> float:
    """Return the rate at which a device sends over a kind of link, one way, headers included: nothing is faster.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> a100 = find_device("A100-SXM4-80GB")
    >>> raw_link_bytes_per_s(a100, "device") / 1e9, raw_link_bytes_per_s(a100, "pcie") / 1e9
    (300.0, 32.0)
    """
    if link == "device" and "link_gbps" in device.figures:
        return device.value("link_gbps") * 1e9
    return link_bytes_per_s(device, "pcie") / _PCIE_SHARE


#: Collectives. The size of a collective is that of one worker's whole buffer: reduced, gathered, scattered or sent.
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
#: Collectives in which each worker only sends to its peers and receives from them.
_PAIRWISE = ("all_to_all", "send_recv")


@dataclass(frozen=True)
class Phase:
    """A phase of an algorithm.

    Parameters
    ----------
    level : str
        Links that carry it: ``"port"``, all links of a device; ``"peer"``, its links to one other device;
        ``"network"``, all adapters of a node; ``"network tree"``, the same with the latency of a tree's step.
    steps : float
        Messages that wait for each other.
    volume : float
        Bytes that the busiest link of the level sends, over the size of the buffer; for a network, those of a node.
        A link carries as much the other way at the same time.
        A message over one adapter of several counts as if each adapter carried as much.
    """

    level: str
    steps: float
    volume: float


#: Phases of an algorithm of a collective on a group of two workers or more.
_Phases = Callable[[str, Topology], tuple[Phase, ...]]


@dataclass(frozen=True)
class Algorithm:
    """A way in which libraries carry out collectives: a row of `ALGORITHMS`.

    Parameters
    ----------
    name, meaning : str
        Name, and what workers do, in a sentence.
    kinds : tuple of str
        Collectives that it carries out, of `KINDS`.
    phases : callable
        Return the phases of one of these collectives on a topology of two workers or more.
    fits : callable
        Whether a topology allows it for a collective.
    protocols : callable
        Protocols, of `PROTOCOLS`, with which libraries choose it by themselves on the links of a group. `fastest` never
        takes a row that has none; a what-if or `least_seconds` may.
    """

    name: str
    meaning: str
    kinds: tuple[str, ...]
    phases: _Phases
    fits: Callable[[str, Topology], bool] = lambda kind, topology: True
    protocols: Callable[[str, Topology, "GroupLinks"], tuple[str, ...]] = lambda kind, topology, links: ()


def _passes(kind: str) -> int:
    """Return how often the buffer goes around: an all-reduce scatters, then gathers."""
    return 2 if kind == "all_reduce" else 1


def _ring(kind: str, topology: Topology) -> tuple[Phase, ...]:
    steps = ring_steps(kind, topology.n_workers)
    volume = 1.0 if kind == "broadcast" else steps / topology.n_workers
    if topology.nodes == 1:
        return (Phase("port", steps, volume),)
    between = _passes(kind) * (topology.nodes - 1)
    inside = (Phase("port", steps - between, 0.0),) if steps > between else ()
    return (Phase("network", between, volume), *inside)


def _tree(kind: str, topology: Topology) -> tuple[Phase, ...]:
    passes = _passes(kind)
    if topology.nodes == 1:
        return (Phase("port", passes * (topology.n_workers - 1).bit_length(), float(passes)),)
    between = Phase("network tree", passes * (topology.nodes - 1).bit_length(), float(passes))
    steps = passes * (topology.devices_per_node - 1)
    return (between, Phase("port", steps, 0.0)) if steps else (between,)


def _hierarchical(kind: str, topology: Topology) -> tuple[Phase, ...]:
    nodes, steps = topology.nodes, _passes(kind) * (topology.devices_per_node - 1)
    between = Phase("network", _passes(kind) * (nodes - 1), _passes(kind) * (nodes - 1) / nodes)
    return (Phase("port", steps, steps / topology.devices_per_node), between)


def _exchange(kind: str, topology: Topology) -> tuple[Phase, ...]:
    n, nodes = topology.n_workers, topology.nodes
    if kind not in _PAIRWISE:
        return (Phase("peer", 1, 1 / n if kind in ("all_gather", "reduce_scatter") else 1.0),)
    if nodes > 1:  # one message takes one adapter
        volume = topology.nics_used if kind == "send_recv" else topology.devices_per_node * (nodes - 1) / nodes
        return (Phase("network", 1 if kind == "send_recv" else nodes - 1, float(volume)),)
    is_mesh = topology.fabric == "mesh"
    if kind == "send_recv":
        return (Phase("peer" if is_mesh else "port", 1, 1.0),)
    return (Phase("peer", 1, 1 / n),) if is_mesh else (Phase("port", 1, (n - 1) / n),)


def _all_linked(kind: str, topology: Topology) -> bool:
    """Return whether each worker may send to each other one directly."""
    linked = topology.nodes == 1 and (topology.fabric == "mesh" or topology.n_workers == 2)
    return linked or kind in _PAIRWISE


def _has_nvls(kind: str, topology: Topology) -> bool:
    """Return whether a switch may reduce; two devices have nothing to gain."""
    return topology.nodes == 1 and topology.fabric == "switch" and topology.n_workers > 2


#: NVLS by NCCL 2.30 (src/graph/tuning.cc): 85 % of the links on Hopper, and 25 us, which five steps take.
_NVLS_SHARE, _NVLS_STEPS = 0.85, 5
#: Nodes up to which a tree is a chain, so that no tree is taken; on more nodes, a ring's steps add up.
_CHAINED_NODES = 2


def _usual_protocols(kind: str, topology: Topology, links: "GroupLinks") -> tuple[str, ...]:
    """Return all protocols in a node; between nodes, NCCL uses LL128 on conditions only (src/graph/tuning.cc)."""
    return tuple(PROTOCOLS) if topology.nodes == 1 else ("LL", "Simple")


def _tree_protocols(kind: str, topology: Topology, links: "GroupLinks") -> tuple[str, ...]:
    """Return the usual protocols; none for a tree that is a chain, and for a broadcast between nodes."""
    is_taken = topology.nodes == 1 or (kind == "all_reduce" and topology.nodes > _CHAINED_NODES)
    return _usual_protocols(kind, topology, links) if is_taken else ()


#: Algorithms, in the order in which the first of equal times is taken. The first one of a kind is its ring, or direct
#: exchange; `busiest_volume` and `busiest_link_s` take its bytes. A row that libraries choose changes `launch_seconds`
#: too: the part of the measured times of small messages that is beyond the fastest algorithm. With LL128 or a tree
#: among the choices between nodes, the measured groups, all on two nodes, are predicted worse.
ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        "ring", "Each worker passes on to the next what it got; over nodes, each pass crosses the network once a node.",
        ("all_reduce", "all_gather", "reduce_scatter", "broadcast"), _ring, protocols=_usual_protocols,
    ),
    Algorithm(
        "tree", "Workers reduce towards a root and send the result back down.",
        ("all_reduce", "broadcast"), _tree, protocols=_tree_protocols,
    ),
    Algorithm(
        "one-shot", "Each worker sends its buffer to every other one and adds what it gets.",
        ("all_reduce",), _exchange, _all_linked,
    ),
    Algorithm(
        "two-shot", "Each worker adds its part of all buffers and sends the sum to every other one.",
        ("all_reduce",), lambda kind, topology: (Phase("peer", 2, 2 / topology.n_workers),), _all_linked,
    ),
    Algorithm(
        "direct", "Each worker sends to every peer what is for it.",
        ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"), _exchange, _all_linked,
        _usual_protocols,
    ),
    Algorithm(
        "hierarchical", "Nodes reduce-scatter, exchange their parts over the network, and gather.",
        ("all_reduce", "all_gather", "reduce_scatter"), _hierarchical, lambda kind, topology: topology.nodes > 1,
    ),
    Algorithm(
        "nvls", "A switch reduces: a device sends its buffer once, and gets its part of the result.",
        ("all_reduce",),
        lambda kind, topology: (Phase("port", _NVLS_STEPS, (1 + 1 / topology.n_workers) / _NVLS_SHARE),), _has_nvls,
        lambda kind, topology, links: ("Simple",) if links.reduces else (),
    ),
)  # fmt: skip


def phases_of(kind: str, algorithm: str, topology: Topology) -> tuple[Phase, ...]:
    """Return the phases of an algorithm, one after another.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    algorithm : str
        One of `algorithms_of`.
    topology : Topology
        Workers of the group, and the links between them.

    Raises
    ------
    InvalidInputError
        There is no such collective, or no such algorithm of it on this topology.

    Notes
    -----
    The alpha-beta costs of Thakur, Rabenseifner and Gropp (2005), with n workers: ring all-reduce 2(n-1) steps and
    2(n-1)/n of the buffer, half of each for all-gather and reduce-scatter; tree all-reduce 2 log2(n) steps and twice
    the buffer, between nodes 2 log2(nodes) steps and 2(g-1) in each of g devices (NCCL, src/graph/tuning.cc), whose
    bytes flow at the same time; one-shot one step and the buffer to every peer, two-shot two steps and 2/n of it. A
    direct exchange on a mesh has its links for each pair of devices; on a switch a device sends all over its own.

    Examples
    --------
    >>> phases_of("all_reduce", "ring", Topology(4))
    (Phase(level='port', steps=6, volume=1.5),)
    """
    rows = {row.name: row for row in _rows_of(kind, topology)}
    if algorithm not in rows:
        raise InvalidInputError(f"no algorithm {algorithm!r} of {kind} here; there are {', '.join(rows)}")
    return rows[algorithm].phases(kind, topology) if topology.n_workers > 1 else ()


def _rows_of(kind: str, topology: Topology) -> list[Algorithm]:
    """Return the rows of `ALGORITHMS` for a collective on a topology."""
    if kind not in KINDS:
        raise InvalidInputError(f"no collective is called {kind!r}; there are {', '.join(KINDS)}")
    return [row for row in ALGORITHMS if kind in row.kinds and row.fits(kind, topology)]


def algorithms_of(kind: str, topology: Topology) -> tuple[str, ...]:
    """Return the algorithms that a library can choose from.

    Raises
    ------
    InvalidInputError
        There is no such collective.

    Examples
    --------
    >>> algorithms_of("all_reduce", Topology(8, fabric="mesh"))
    ('ring', 'tree', 'one-shot', 'two-shot')
    >>> algorithms_of("all_reduce", Topology(16, 8))
    ('ring', 'tree', 'hierarchical')
    >>> algorithms_of("all_reduce", Topology(8))
    ('ring', 'tree', 'nvls')
    """
    return tuple(row.name for row in _rows_of(kind, topology))


def busiest_volume(kind: str, topology: Topology) -> float:
    """Return bytes over the busiest link (of a node for a network) over the size, of the ring or the direct exchange.

    Examples
    --------
    >>> busiest_volume("all_gather", Topology(4)), busiest_volume("send_recv", Topology(2))
    (0.75, 1.0)
    """
    return sum(phase.volume for phase in phases_of(kind, algorithms_of(kind, topology)[0], topology))


def ring_steps(kind: str, n_workers: int) -> int:
    """Return how many messages of a ring, or of a direct exchange, wait for each other.

    Examples
    --------
    >>> ring_steps("all_reduce", 8), ring_steps("send_recv", 2), ring_steps("all_reduce", 1)
    (14, 1, 0)
    """
    if n_workers == 1:
        return 0
    if kind in _PAIRWISE:
        return 1
    return (2 if kind == "all_reduce" else 1) * (n_workers - 1)


def least_seconds(kind: str, sizes: Floats, topology: Topology, device: Device) -> Floats:
    """Return the time that the busiest links need for the bytes alone, at their raw rates.

    Adapters of unknown bandwidth are those of the device's usual node, or as fast as their 16 lanes of PCIe.

    Parameters
    ----------
    kind : str
        One of the modelled kinds.
    sizes : array of float64, shape (n,)
        Bytes.
    topology : Topology
        Two workers or more, and how they are linked.
    device : Device
        Device of every worker.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> a100 = find_device("A100-SXM4-80GB")
    >>> float(least_seconds("all_reduce", np.array([32e9]), Topology(4, fabric="pairs"), a100)[0])  # PCIe: 32 GB/s
    1.5
    """
    topology = usual_topology(topology, device)
    if topology.link == "network":
        rate = topology.nics_used * (topology.nic_gbps * 1e9 or raw_link_bytes_per_s(device, "pcie"))
    else:
        rate = raw_link_bytes_per_s(device, topology.link)
        if topology.fabric == "mesh" and topology.node_devices > 1:
            peers = 1 if kind == "send_recv" else topology.devices_per_node - 1
            rate *= peers / (topology.node_devices - 1)
    return np.asarray(least_volume(kind, topology, device) * sizes / rate)


def least_volume(kind: str, topology: Topology, device: Device) -> float:
    """Return the least bytes that a device (between nodes: all adapters of a node) sends, over the size.

    They are those of the ring, or of the hierarchy between nodes. An all-reduce sends the buffer once if switches or
    networks reduce (NVLink SHARP, InfiniBand SHARP).

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> [least_volume("all_reduce", Topology(4), find_device(name)) for name in ("A100", "H100")]
    [1.5, 1.0]
    """
    if topology.nodes > 1 and "hierarchical" in algorithms_of(kind, topology):
        volume = phases_of(kind, "hierarchical", topology)[-1].volume
    elif kind == "all_to_all" and topology.nodes == 1:
        volume = (topology.n_workers - 1) / topology.n_workers
    else:
        volume = busiest_volume(kind, topology)
    adds_up = topology.nodes > 1 or _is_reduced(topology, device)
    return min(volume, 1.0) if kind == "all_reduce" and adds_up else volume


def _is_reduced(topology: Topology, device: Device) -> bool:
    """Return whether switches in a node reduce the data that they pass on."""
    return topology.fabric == "switch" and architecture_of(device.architecture).reducing


#: An adapter of 100 Gbit/s by NCCL's table (src/graph/topo.h), where nothing is known of the network.
NETWORK_BYTES_PER_S = 12e9
#: Share of an adapter's raw rate that large messages get, and the latency of a step over NCCL's. The first row is
#: NCCL's table, 12 of 12.5 GB/s, which InfiniBand of 25 and 50 GB/s keeps to (0.91 to 0.98). Slingshot and TCP are
#: measured on nodes of four A100 and two adapters. RoCE was not measured.
_NETWORK_FIGURES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"": (0.96, 1.0), "infiniband": (0.96, 1.0), "roce": (0.96, 1.0), "slingshot": (0.73, 2.4), "ethernet": (0.19, 4.0)}
)


def stated_nic_rate(kind: str, topology: Topology, device: Device) -> float:
    """Return bytes a second of an adapter whose bandwidth is given.

    In a ring, all bytes also cross the links of each device, which may carry less than the adapters of its node.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> nodes = Topology(16, 8, nics=8, nic_gbps=25)
    >>> stated_nic_rate("all_reduce", nodes, find_device("A100-SXM4-80GB")) / 1e9
    24.0
    """
    rate = topology.nic_gbps * 1e9 * _NETWORK_FIGURES[topology.network.split(":")[0]][0]
    if kind in _PAIRWISE or topology.devices_per_node == 1:
        return rate
    return min(rate, links_of(device, topology).port / topology.nics_used)


@dataclass(frozen=True)
class Protocol:
    """How a library packs messages.

    Parameters
    ----------
    base_s : float
        Latency that is paid once.
    step_s : mapping of str to float
        Latency of each step, by kind of link; ``"network tree"`` is a tree between nodes.
    share : float
        Share of the bandwidth that payload gets.
    """

    base_s: float
    step_s: Mapping[str, float]
    share: float


#: Base latency, latency of a ring's step by link and of a tree's step over the network, in us, and share (NCCL 2.30,
#: src/graph/tuning.cc; commit b647562 of it for trees). LL sends a flag with every 4 bytes, LL128 one with every 120.
PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        name: Protocol(base * 1e-6, MappingProxyType({link: 1e-6 * step for link, step in steps.items()}), share)
        for name, base, steps, share in (
            ("LL", 6.6, {"device": 0.6, "pcie": 1.0, "network": 2.7, "network tree": 5.0}, 0.5),
            ("LL128", 14.0, {"device": 1.9, "pcie": 2.5, "network": 4.0, "network tree": 8.5}, 0.9375),
            ("Simple", 8.4, {"device": 3.4, "pcie": 5.7, "network": 14.0, "network tree": 28.0}, 1.0),
        )
    }
)


@dataclass(frozen=True)
class GroupLinks:
    """The bandwidths of a group.

    Parameters
    ----------
    link : str
        Link whose latency is paid in a node, one of `replay.costs.collectives.algorithms.LINKS`.
    port, peer, network : float
        Bytes a second of all links of a device, of its links to one other device, and of all used adapters of a node.
    slowness : float
        Latency of a step over the network over NCCL's.
    reduces : bool
        Whether the switches reduce what they pass on.
    """

    link: str
    port: float
    peer: float
    network: float
    slowness: float = 1.0
    reduces: bool = False

    def of(self, phase: Phase) -> float:
        """Return the bandwidth of a phase."""
        return {"port": self.port, "peer": self.peer}.get(phase.level, self.network)


def links_of(device: Device, topology: Topology, nic_bytes_per_s: float = NETWORK_BYTES_PER_S) -> GroupLinks:
    """Return the bandwidths of a group by the catalogue and NCCL's tables.

    Parameters
    ----------
    device : Device
        Device of every worker.
    topology : Topology
        Workers of the group, and the links between them.
    nic_bytes_per_s : float
        Rate of one adapter, one way.
    """
    is_bridged = topology.fabric == "pairs" and topology.devices_per_node > 2
    inside = "pcie" if is_bridged or topology.fabric == "pcie" else "device"
    # Two cards lie under one switch or bridge, more share the memory of the host.
    is_shared = topology.fabric == "pcie" and topology.devices_per_node > 2
    port = peer = link_bytes_per_s(device, inside) * (_HOST_BRIDGE_SHARE if is_shared else 1.0)
    if topology.fabric == "mesh" and topology.node_devices > 1:
        # Each other device of the node has its share of the links; those of devices outside the group lie idle.
        peer = port / (topology.node_devices - 1)
        port = peer * max(topology.devices_per_node - 1, 1)
    slowness = _NETWORK_FIGURES[topology.network.split(":")[0]][1]
    return GroupLinks(inside, port, peer, topology.nics_used * nic_bytes_per_s, slowness, _is_reduced(topology, device))


def busiest_link_s(kind: str, topology: Topology, device: Device) -> float:
    """Return the time that the busiest link of a group in a node needs for a byte of the buffer, s.

    It is that of the ring, or of the direct exchange. On a mesh, each pair of devices has its share of the links.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> mesh, device = Topology(8, fabric="mesh"), find_device("MI300X")  # seven links of 48 GB/s
    >>> [round(busiest_link_s(kind, mesh, device) * 48e9, 6) for kind in ("all_gather", "all_to_all", "send_recv")]
    [0.125, 0.125, 1.0]
    """
    links = links_of(device, topology)
    phases = phases_of(kind, algorithms_of(kind, topology)[0], topology)
    return sum(phase.volume / links.of(phase) for phase in phases)


def algorithm_seconds(phases: tuple[Phase, ...], protocol: str, links: GroupLinks, sizes: Floats) -> Floats:
    """Return base + steps * alpha + volume * size / bandwidth, of all phases.

    Parameters
    ----------
    phases : tuple of Phase
        Phases of the algorithm; without phases the time is 0.
    protocol : str
        One of `PROTOCOLS`.
    links : GroupLinks
        Bandwidths of the group.
    sizes : array of float64, shape (n,)
        Bytes of one worker's whole buffer.

    Examples
    --------
    >>> links = GroupLinks("device", 1e9, 1e9, 1e9)
    >>> f"{algorithm_seconds((Phase('port', 6, 1.5),), 'Simple', links, np.array([2e6]))[0] * 1e6:.1f}"
    '3028.8'
    """
    if not phases:
        return np.zeros_like(sizes)
    packing = PROTOCOLS[protocol]
    fixed = packing.base_s
    for phase in phases:
        is_between = phase.level.startswith("network")
        step_s = packing.step_s[phase.level] * links.slowness if is_between else packing.step_s[links.link]
        fixed += phase.steps * step_s
    return np.asarray(fixed + sum(phase.volume / (packing.share * links.of(phase)) for phase in phases) * sizes)


def fastest(kind: str, topology: Topology, links: GroupLinks, sizes: Floats) -> tuple[Floats, npt.NDArray[np.str_]]:
    """Return the time of the fastest algorithm and protocol that libraries choose from at each size, and their names.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    topology : Topology
        Workers of the group, and the links between them.
    links : GroupLinks
        Bandwidths of the group.
    sizes : array of float64, shape (n,)
        Bytes.

    Returns
    -------
    seconds : array of float64, shape (n,)
    names : array of str, shape (n,)
        Algorithm and protocol of each size, such as ``"ring LL"``; ``"none"`` for one worker.
    """
    if topology.n_workers == 1:
        return np.zeros_like(sizes), np.full(sizes.shape, "none")
    times = {
        f"{row.name} {protocol}": algorithm_seconds(row.phases(kind, topology), protocol, links, sizes)
        for row in _rows_of(kind, topology)
        for protocol in row.protocols(kind, topology, links)
    }
    seconds = np.array(list(times.values()))
    return np.min(seconds, axis=0), np.array(list(times))[np.argmin(seconds, axis=0)]
