"""World size what-if: the job runs on another number of ranks."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.costs.collectives import KINDS, Topology
from replay.costs.retiming import exchanged, source_device
from replay.costs.wire_time import collective_models, group_ranks, link_slowdowns, network_note
from replay.graph.graph import COLLECTIVE_KINDS, Basis, KernelGraph, Network, TaskKind
from replay.what_ifs.what_if import Argument, WhatIf, recipe, what_if_text

#: Kind of collective that joins two ranks, whatever their number.
_PAIRS = "send_recv"
#: Text of an argument that is left to the catalogue.
_CATALOGUE = "0"
#: Largest number of adapters of a node, and largest bandwidth of one, GB/s.
_MOST_ADAPTERS, _MOST_GBPS = 10_000, 100_000.0


@recipe(
    "communication",
    "change_world_size:64",
    Argument("ranks", "new number of ranks of the largest group", "whole"),
    Argument("per_node", "devices per node", "whole", default="8"),
    Argument("adapters", "network adapters per node; 0: the catalogue's, or one a device", "whole", default=_CATALOGUE),
    Argument("adapter_gbps", "GB/s of an adapter, one way; 0: the catalogue's", "number", default=_CATALOGUE),
)
def change_world_size(ranks: int, *, per_node: int = 8, adapters: int = 0, adapter_gbps: float = 0.0) -> WhatIf:
    """Re-time the collectives of the largest group for another number of ranks; the compute of a rank stays.

    This is weak scaling of data parallelism. Each rank keeps its batch, and each all-reduce, all-gather,
    reduce-scatter, all-to-all and broadcast keeps its bytes. That holds for a sharded model too, which is gathered as a
    whole. RANKS fill nodes of PER_NODE devices, then further nodes over a network. Traces of one rank suffice if they
    name the size of their groups.

    The network between nodes has ADAPTERS in each node, each of ADAPTER_GBPS. By default they are those of a usual
    node of the device (`seqpoint devices NAME`: node_adapters, adapter_gbps). A device without these figures is
    taken to have one adapter of 100 Gbit/s. A note says what was assumed. The network given here is that of the
    trace, too. Earlier steps of a composition take the usual one.

    `replay.costs.collectives` predicts each collective for the old and the new number of ranks. The predicted part of
    the traced duration is exchanged; the rest, such as waiting inside the collective, stays.

    Not modelled: smaller groups (tensor or pipeline parallel), sends between pairs, and collectives of unknown size.
    They stay and are counted. Also not: stragglers among more ranks, another batch, and the sharded part of an
    optimizer.

    Source: `replay.costs.collectives`, fitted to measurements (docs/durations.md). `collective_ranks_ratio` of
    `datasets/parameters.toml` is the error for another number of ranks.

    Raises
    ------
    InvalidInputError
        A number is not whole or not above zero. When applied: the device or the size of the group is unknown, or the
        ranks do not fill their nodes.
    """
    if ranks < 1 or per_node < 1:
        raise InvalidInputError(f"{ranks} ranks, {per_node} in a node: give two whole numbers above zero")
    network = checked_network(per_node, adapters, adapter_gbps)
    _check_nodes(ranks, network)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        tasks = graph.tasks
        collective = tasks.kind == TaskKind.COLLECTIVE
        if not collective.any():
            return graph.with_notes(["change_world_size: the iteration has no collective"])
        of_ranks = group_ranks(graph)
        world = int(of_ranks[collective].max())
        if world < 1:
            raise InvalidInputError("the trace does not say how many ranks take part in its collectives")
        scales = np.isin(tasks.collective, [COLLECTIVE_KINDS.index(kind) for kind in KINDS if kind != _PAIRS])
        rows = np.flatnonzero(collective & scales & (tasks.bytes > 0) & (of_ranks == world))
        note = f"change_world_size: {len(rows)} of {int(collective.sum())} collectives, from {world} ranks"
        if world == ranks:
            return graph.with_notes([note])
        _check_nodes(world, network)
        notes = [note]
        if len(rows) and max(world, ranks) > per_node:
            device = graph.hardware.base or source_device(graph)
            notes.append(f"change_world_size: {network_note(device, network)}; {_HOW.format(max(world, ranks))}")
        return _resized(graph, rows, (ranks, network), parameters).with_notes(notes)

    given, usual = (per_node, adapters, adapter_gbps), (8, 0, 0.0)
    count = max((i + 1 for i in range(len(usual)) if given[i] != usual[i]), default=0)
    return WhatIf(what_if_text("change_world_size", ranks, *given[:count]), transform, retimes=True)


def checked_network(per_node: int, adapters: int, adapter_gbps: float) -> Network:
    """Return the network that a user gave.

    Raises
    ------
    InvalidInputError
        A number is out of range.
    """
    if per_node < 1 or not 0 <= adapters <= _MOST_ADAPTERS or not 0 <= adapter_gbps <= _MOST_GBPS:
        raise InvalidInputError(
            f"nodes of {per_node} devices, {adapters} adapters of {adapter_gbps:g} GB/s: give 1 device or more, "
            f"0 to {_MOST_ADAPTERS} adapters, and 0 to {_MOST_GBPS:g}"
        )
    return Network(per_node, adapters, adapter_gbps)


_HOW = "give others as change_world_size:{}:PER_NODE:ADAPTERS:ADAPTER_GBPS"


def _check_nodes(ranks: int, network: Network) -> None:
    """Raise an error if the ranks do not fill their nodes."""
    Topology(ranks, min(ranks, network.devices_per_node), node_devices=network.devices_per_node)


def _resized(
    graph: KernelGraph, rows: npt.NDArray[np.intp], group: tuple[int, Network], parameters: Parameters
) -> KernelGraph:
    """Return `graph` with the collectives in `rows` re-timed for a group of other ranks on another network."""
    tasks, (ranks, network) = graph.tasks, group
    source_device(graph)
    sizes = group_ranks(graph)
    sizes[rows] = ranks
    before = replace(graph, hardware=replace(graph.hardware, network=network))
    after = before.with_tasks(ranks=sizes)
    old, new = collective_models(before, parameters), collective_models(after, parameters)
    old_ns = old.total_ns(link_slowdowns(before, before.hardware))[rows]
    new_ns = new.total_ns(link_slowdowns(after, after.hardware))[rows] * parameters["collective_ranks_ratio"]
    duration, basis = tasks.duration_ns.copy(), tasks.basis.copy()
    duration[rows] = exchanged(duration[rows], old_ns, new_ns)
    is_prior = old.is_prior or new.is_prior
    basis[rows] = np.maximum(basis[rows], int(Basis.ASSUMED if is_prior else Basis.MODELLED))
    return after.with_tasks(duration_ns=duration, basis=basis)
