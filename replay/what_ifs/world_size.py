"""World size what-if: the job runs on another number of ranks."""

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.collectives import KINDS, CollectiveCalibration, Topology, predict_collective
from replay.costs.retiming import source_device
from replay.graph.graph import COLLECTIVE_KINDS, Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import Argument, WhatIf, recipe, what_if_text

#: Kind of collective that joins two ranks, whatever their number.
_PAIRS = "send_recv"


@recipe(
    "communication",
    "change_world_size:64",
    Argument("ranks", "new number of ranks of the largest group", "whole"),
    Argument("per_node", "devices per node", "whole", default="8"),
)
def change_world_size(ranks: int, *, per_node: int = 8) -> WhatIf:
    """Re-time the collectives of the largest group for another number of ranks; the compute of a rank stays.

    This is weak scaling of data parallelism. Each rank keeps its batch, and each all-reduce, all-gather,
    reduce-scatter, all-to-all and broadcast keeps its bytes. That holds for a sharded model too, which is gathered as a
    whole. RANKS fill nodes of PER_NODE devices, then further nodes over a network. Traces of one rank suffice if they
    name the size of their groups.

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
    _topology(ranks, per_node)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        tasks = graph.tasks
        collective = tasks.kind == TaskKind.COLLECTIVE
        if not collective.any():
            return graph.with_notes(["change_world_size: the iteration has no collective"])
        world = int(tasks.ranks[collective].max())
        if world < 1:
            raise InvalidInputError("the trace does not say how many ranks take part in its collectives")
        scales = np.isin(tasks.collective, [COLLECTIVE_KINDS.index(kind) for kind in KINDS if kind != _PAIRS])
        rows = np.flatnonzero(collective & scales & (tasks.bytes > 0) & (tasks.ranks == world))
        note = f"change_world_size: {len(rows)} of {int(collective.sum())} collectives, from {world} ranks"
        if world == ranks:
            return graph.with_notes([note])
        return _retimed(graph, rows, (_topology(world, per_node), _topology(ranks, per_node)), parameters).with_notes(
            [note]
        )

    optional = [per_node] if per_node != 8 else []
    return WhatIf(what_if_text("change_world_size", ranks, *optional), transform)


def _topology(ranks: int, per_node: int) -> Topology:
    """Return the topology of a group whose ranks fill one node after another."""
    return Topology(ranks, min(ranks, per_node), node_devices=per_node)


def _retimed(
    graph: KernelGraph, rows: npt.NDArray[np.intp], topologies: tuple[Topology, Topology], parameters: Parameters
) -> KernelGraph:
    """Return `graph` with the collectives in `rows` re-timed from one topology to another."""
    tasks = graph.tasks
    fits = parameters.calibration(CollectiveCalibration)
    old, _ = _predicted(graph, rows, topologies[0], fits)
    new, basis = _predicted(graph, rows, topologies[1], fits)
    new = new * parameters["collective_ranks_ratio"]
    traced = tasks.duration_ns[rows]
    explained = np.minimum(traced / np.maximum(old, 1e-9), 1.0)
    duration, basis_column, sizes = tasks.duration_ns.copy(), tasks.basis.copy(), tasks.ranks.copy()
    duration[rows] = new * explained + np.maximum(traced - old, 0.0)
    basis_column[rows] = np.maximum(basis_column[rows], basis)
    sizes[rows] = topologies[1].n_workers
    return graph.with_tasks(duration_ns=duration, basis=basis_column, ranks=sizes)


def _predicted(
    graph: KernelGraph, rows: npt.NDArray[np.intp], group: Topology, fits: CollectiveCalibration
) -> tuple[Floats, int]:
    """Return the predicted durations of collectives in a group, ns, and their `Basis`."""
    device, tasks = source_device(graph), graph.tasks
    duration_ns, basis = np.zeros(len(rows)), int(Basis.DERIVED)
    for kind in np.unique(tasks.collective[rows]).tolist():
        of_kind = tasks.collective[rows] == kind
        prediction = predict_collective(COLLECTIVE_KINDS[kind], tasks.bytes[rows][of_kind], group, device, fits)
        duration_ns[of_kind] = prediction.seconds * 1e9
        basis = max(basis, int(Basis.ASSUMED)) if prediction.basis == "prior" else basis
    return duration_ns, basis
