"""The part of a collective's duration that its bytes need on the links.

A traced collective takes the latency of its steps, the wire time of its bytes, and the wait for other ranks. Only the
wire time depends on the bandwidth of links. `collective_models` predicts latency and wire time from bytes, kind and
ranks; `exchanged` puts another predicted time in the place of the one that is in a duration. What the model does not
explain is taken for waiting, and stays.
"""

from dataclasses import dataclass, replace

import numpy as np

from profilers.devices.catalogue import Device
from profilers.trace.arrays import Bools, Floats, Ints
from replay.calibration.parameters import Parameters
from replay.costs.collectives import KINDS, CollectiveCalibration, Topology, predict_collective
from replay.costs.retiming import exchanged
from replay.graph.graph import (
    COLLECTIVE_KINDS,
    RESOURCES,
    TO_HOST,
    EdgeKind,
    Hardware,
    KernelGraph,
    Network,
    TaskKind,
)

#: Kinds that have no model of their own, and the kind that moves as many bytes.
_LIKE = {"reduce": "broadcast", "gather": "all_gather", "scatter": "reduce_scatter"}
_DMA = RESOURCES.index("dma")
_BARRIER, _UNKNOWN = COLLECTIVE_KINDS.index("barrier"), COLLECTIVE_KINDS.index("unknown")
#: Devices of the nodes for which the catalogue gives adapters.
_CATALOGUE_NODE = 8
#: Sizes whose difference in time is bytes over bandwidth alone: no library changes its algorithm between them.
_LARGE = (2**29, 2**30)
#: Parameters for collectives without a prediction: whose wait is a task of its own, and whose duration contains it.
_SHARES = ("collective_wire_share", "collective_wire_share_waiting")
#: Ranks of the smallest group that sends anything.
_FEWEST_RANKS = 2
#: An adapter of 100 Gbit/s, where nothing is known of the network.
_USUAL_GBPS = 12.5


@dataclass(frozen=True)
class CollectiveModels:
    """Predicted times of the collectives of a graph on the links of the trace, one row a task of the graph.

    Parameters
    ----------
    latency_ns : array of float64
        Predicted time without the wire time; 0 for other tasks.
    wire_ns : array of float64
        Bytes over the bandwidth that a large message of the group reaches, at most the predicted time; 0 for other
        tasks.
    is_known : array of bool
        Whether bytes and kind are known, so that there is a prediction.
    is_assumed : array of bool
        Whether the prediction is for a number of ranks that is assumed, see `likely_ranks`.
    is_prior : bool
        Whether a prediction rests on data sheets alone, without a measured group.
    """

    latency_ns: Floats
    wire_ns: Floats
    is_known: Bools
    is_assumed: Bools
    is_prior: bool

    @property
    def is_guess(self) -> Bools:
        """Whether the wire time of a task rests on an assumption: a share of its time, or a number of ranks."""
        return np.asarray(~self.is_known | self.is_assumed)

    def select(self, rows: Ints) -> "CollectiveModels":
        """Return the predictions for some tasks."""
        columns = {name: column[rows] for name, column in vars(self).items() if name != "is_prior"}
        return replace(self, **columns)

    def total_ns(self, slowdown: Floats) -> Floats:
        """Return the predicted time of each task, with wire times `slowdown` times as long."""
        return np.asarray(self.latency_ns + self.wire_ns * slowdown)


def collective_models(graph: KernelGraph, parameters: Parameters) -> CollectiveModels:
    """Predict latency and wire time of each collective on the links of the traced device.

    Parameters
    ----------
    graph : KernelGraph
        Its collectives have bytes, kind and ranks, as far as the trace says; `likely_ranks` assumes others.
    parameters : Parameters
        With a calibration of collectives; `collective_wire_ratio` multiplies every wire time, `collective_ranks_ratio`
        that of assumed ranks.
    """
    tasks, hardware = graph.tasks, graph.hardware
    latency, wire = np.zeros(len(tasks)), np.zeros(len(tasks))
    is_collective, is_prior, of_ranks = tasks.kind == TaskKind.COLLECTIVE, False, likely_ranks(graph)
    is_assumed = is_collective & (of_ranks != group_ranks(graph))
    is_silent = is_collective & ((tasks.collective == _BARRIER) | (of_ranks == 1))
    device = hardware.original.device
    if device is None or not is_collective.any():
        return CollectiveModels(latency, wire, is_silent, is_assumed, is_prior)
    is_sized = _sized(graph) & ~is_silent & (of_ranks > 1)
    fits = parameters.calibration(CollectiveCalibration)
    groups = np.unique(np.stack([tasks.collective[is_sized], of_ranks[is_sized]]), axis=1).T
    for kind, ranks in groups.tolist():  # a few groups a job
        rows = np.flatnonzero(is_sized & (tasks.collective == kind) & (of_ranks == ranks))
        name = _LIKE.get(COLLECTIVE_KINDS[kind], COLLECTIVE_KINDS[kind])
        assert name in KINDS
        group = group_topology(ranks, device, hardware.network)
        sizes = np.concatenate([tasks.bytes[rows], _LARGE])
        predicted = predict_collective(name, sizes, group, device, fits)
        total_ns, large_ns = 1e9 * predicted.seconds[:-2], 1e9 * predicted.seconds[-2:]
        needed = tasks.bytes[rows] * (large_ns[1] - large_ns[0]) / (_LARGE[1] - _LARGE[0])
        wire[rows] = np.clip(needed, 0.0, total_ns)
        latency[rows] = total_ns - wire[rows]
        is_prior |= predicted.basis == "prior"
    wire *= parameters["collective_wire_ratio"]
    wire[is_assumed] *= parameters["collective_ranks_ratio"]
    return CollectiveModels(latency, wire, is_sized | is_silent, is_assumed, is_prior)


def _sized(graph: KernelGraph) -> Bools:
    """Return the mask of collectives of known bytes and kind."""
    tasks = graph.tasks
    is_known_kind = (tasks.collective >= 0) & (tasks.collective != _UNKNOWN) & (tasks.collective != _BARRIER)
    return np.asarray((tasks.kind == TaskKind.COLLECTIVE) & (tasks.bytes > 0) & is_known_kind)


def group_ranks(graph: KernelGraph) -> Ints:
    """Return the ranks of each collective: the number in the trace, else how many meet in the graph; 0 if unknown.

    The number that meet is that of the group only if all ranks of the job are in the graph.

    Parameters
    ----------
    graph : KernelGraph
        Graph of one or more ranks.
    """
    tasks = graph.tasks
    if not ((tasks.kind == TaskKind.COLLECTIVE) & (tasks.ranks == 0)).any():
        return tasks.ranks.copy()
    meetings = graph.edges.of_kind(EdgeKind.RENDEZVOUS)
    arrivals = np.bincount(meetings.target, minlength=len(tasks))
    met = np.zeros(len(tasks), dtype=np.int64)
    leaving = tasks.kind[meetings.target] == TaskKind.COLLECTIVE
    met[meetings.target[leaving]] = arrivals[meetings.source[leaving]]
    return np.where((tasks.ranks == 0) & (met > 1) & _holds_all_ranks(graph), met, tasks.ranks)


def _holds_all_ranks(graph: KernelGraph) -> bool:
    """Return whether the graph holds as many ranks as the job has, or nobody knows how many these are."""
    return len({lane.rank for lane in graph.lanes}) >= graph.world_size


def likely_ranks(graph: KernelGraph) -> Ints:
    """Return the ranks of each collective; where only bytes and kind are known, all ranks of the job.

    If the trace does not say how many these are either, two ranks are taken: no group needs less time for its bytes.

    Parameters
    ----------
    graph : KernelGraph
        Graph of one or more ranks.
    """
    ranks = group_ranks(graph)
    return np.where((ranks == 0) & _sized(graph), graph.world_size or _FEWEST_RANKS, ranks)


def on_links(
    graph: KernelGraph, models: CollectiveModels, slowdowns: tuple[Floats, Floats], parameters: Parameters
) -> Floats:
    """Return the durations of all tasks with collectives on other links.

    Parameters
    ----------
    graph : KernelGraph
        Graph on the present links.
    models : CollectiveModels
        Predicted times of its collectives.
    slowdowns : (array of float64, array of float64)
        Wire time over the wire time on the links of the trace, on the present links and on the new ones.
    parameters : Parameters
        A collective without a prediction takes `collective_latency_ns`. A share of its further time is wire time:
        `collective_wire_share`, or `collective_wire_share_waiting` if it contains the wait for other ranks.
    """
    tasks, rows = graph.tasks, np.flatnonzero(slowdowns[0] != slowdowns[1])
    duration, models, (before, after) = tasks.duration_ns[rows], models.select(rows), (each[rows] for each in slowdowns)
    latency = parameters["collective_latency_ns"]
    share = np.where(waits_apart(graph)[rows], *(parameters[name] for name in _SHARES))
    stretch = (1 - share + share * after) / (1 - share + share * before)
    fixed = np.minimum(duration, latency)
    guessed = fixed + (duration - fixed) * stretch
    predicted = exchanged(duration, models.total_ns(before), models.total_ns(after))
    moved = np.where(models.is_known, predicted, guessed)
    is_copy = tasks.demand[rows, _DMA] > 0  # by a DMA engine; its command stays
    fixed = np.where(is_copy, np.minimum(duration, parameters["dma_latency_ns"]), duration)
    moved = np.where(tasks.engine[rows] >= 0, fixed + (duration - fixed) * after / before, moved)
    result = tasks.duration_ns.copy()
    result[rows] = np.where(_on_peer_link(graph)[rows], duration * after / before, moved)
    return result


def resized_collectives(
    graph: KernelGraph, moved_bytes: Ints, parameters: Parameters, *, size: float
) -> tuple[Floats, Bools]:
    """Return durations of all tasks as if collectives moved other bytes, and which rest on an assumption.

    Parameters
    ----------
    graph : KernelGraph
        Graph with the present bytes.
    moved_bytes : array of int64, shape (n_tasks,)
        New bytes.
    parameters : Parameters
        As for `on_links`.
    size : float
        New bytes over present ones, for collectives of unknown bytes.
    """
    present = collective_models(graph, parameters)
    future = collective_models(graph.with_tasks(bytes=moved_bytes), parameters)
    slowdown = link_slowdowns(graph, graph.hardware)
    predicted = exchanged(graph.tasks.duration_ns, present.total_ns(slowdown), future.total_ns(slowdown))
    guessed = on_links(
        graph, replace(present, is_known=np.zeros_like(present.is_known)), (slowdown, slowdown * size), parameters
    )
    return np.where(present.is_known, predicted, guessed), present.is_guess


def waits_apart(graph: KernelGraph) -> Bools:
    """Return which collectives meet all ranks of their group, so that their durations hold no wait for these."""
    edges = graph.edges
    waits = np.zeros(len(graph.tasks), dtype=bool)
    waits[edges.target[edges.kind == EdgeKind.RENDEZVOUS]] = True
    return np.asarray(waits & (graph.tasks.kind == TaskKind.COLLECTIVE) & (group_ranks(graph) > 0))


def _on_peer_link(graph: KernelGraph) -> Bools:
    """Return the mask of tasks that use the link to one peer: blocks of a transfer, without its latency."""
    return np.asarray(graph.tasks.link > TO_HOST)


def link_slowdowns(graph: KernelGraph, hardware: Hardware) -> Floats:
    """Return the wire time of each task on `hardware` over the wire time on the links of the trace.

    A group in a node goes by the links of the device. A group of several nodes goes by their network. Both go by the
    factor of `scale_links`. So do blocks on the link to one peer, whose whole time is wire time.

    Parameters
    ----------
    graph : KernelGraph
        Its collectives have ranks.
    hardware : Hardware
        Hardware to run on.

    Raises
    ------
    InvalidInputError
        The catalogue lacks the links of one of two devices.
    """
    tasks, traced = graph.tasks, hardware.original
    is_collective = (tasks.kind == TaskKind.COLLECTIVE) | _on_peer_link(graph)
    crosses = is_collective & (likely_ranks(graph) > hardware.network.devices_per_node)
    slowdown = np.where(is_collective, 1.0 / hardware.factor("links"), 1.0)
    old, new = traced.device, hardware.base or hardware.device
    if old is None or new is None or old.name == new.name:
        return slowdown
    if (is_collective & ~crosses).any():
        slowdown[is_collective & ~crosses] *= old.link_bytes_per_s / new.link_bytes_per_s
    if crosses.any():
        slowdown[crosses] *= network_bytes_per_s(old, hardware.network) / network_bytes_per_s(new, hardware.network)
    return slowdown


def group_topology(ranks: int, device: Device, network: Network) -> Topology:
    """Return the topology of a group whose ranks fill one node after another.

    A group that does not fill its nodes has as many ranks in each as divide it.

    Parameters
    ----------
    ranks : int
        Ranks of the group.
    device : Device
        Device of every rank.
    network : Network
        Nodes, and the network between them.

    Examples
    --------
    >>> from profilers.devices.catalogue import find_device
    >>> group = group_topology(64, find_device("A100-SXM4-80GB"), Network())
    >>> group.nodes, group.nics, group.nic_gbps
    (8, 8, 25.0)
    """
    node = network.devices_per_node
    here = ranks if ranks <= node else max(n for n in range(1, node + 1) if ranks % n == 0)
    fabric = "mesh" if device.architecture.startswith("CDNA") else "switch"
    if ranks <= node:
        return Topology(ranks, here, node_devices=node, fabric=fabric)
    adapters, gbps, _ = node_network(device, network)
    return Topology(ranks, here, node_devices=node, fabric=fabric, nics=adapters, nic_gbps=gbps)


def node_network(device: Device, network: Network) -> tuple[int, float, str]:
    """Return the adapters of a node, the bandwidth of each in GB/s, and where both are from, for people.

    Parameters
    ----------
    device : Device
        Device of the nodes.
    network : Network
        What a user gave of the network.

    Examples
    --------
    >>> from profilers.devices.catalogue import find_device
    >>> node_network(find_device("A100-SXM4-80GB"), Network(adapters=4))
    (4, 25.0, 'adapters as given, bandwidth of the catalogue')
    """
    figures = device.figures
    is_listed = "node_adapters" in figures and "adapter_gbps" in figures
    adapters, gbps, source = network.devices_per_node, _USUAL_GBPS, "assumed: one for each device, 100 Gbit/s"
    if is_listed:
        share = network.devices_per_node / _CATALOGUE_NODE
        adapters, gbps = max(round(figures["node_adapters"].value * share), 1), figures["adapter_gbps"].value
        source = "the catalogue's node of this device"
    if network.adapters and network.adapter_gbps:
        source = "as given"
    elif network.adapters:
        source = f"adapters as given, bandwidth {'of the catalogue' if is_listed else 'assumed'}"
    return network.adapters or adapters, network.adapter_gbps or gbps, source


def network_bytes_per_s(device: Device, network: Network) -> float:
    """Return the bandwidth of all adapters of a node, one way, bytes/s."""
    adapters, gbps, _ = node_network(device, network)
    return adapters * gbps * 1e9


def network_note(device: Device, network: Network) -> str:
    """Return a sentence on the network between nodes that is assumed.

    Examples
    --------
    >>> from profilers.devices.catalogue import find_device
    >>> network_note(find_device("A100-SXM4-80GB"), Network())
    "8 adapters of 200 Gbit/s in each node of 8 devices (the catalogue's node of this device)"
    """
    adapters, gbps, source = node_network(device, network)
    plural = "s" * (adapters != 1)
    node = f"each node of {network.devices_per_node} device{'s' * (network.devices_per_node != 1)}"
    return f"{adapters} adapter{plural} of {8 * gbps:g} Gbit/s in {node} ({source})"
