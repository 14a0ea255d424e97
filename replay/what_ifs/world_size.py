"""What if the job ran on another number of ranks?"""

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.collectives import KINDS, CollectiveCalibration, Topology, predict_collective
from replay.graph.graph import COLLECTIVE_KINDS, Basis, KernelGraph, TaskKind
from replay.what_ifs.device import source_device
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, written

#: Between two ranks, however many there are.
_PAIRS = "send_recv"


def change_world_size(ranks: int, *, per_node: int = 8) -> WhatIf:
    """The collectives of the largest group are re-timed for another number of ranks; the compute of a rank stays.

    That is weak scaling of data parallelism: each rank has its batch as before, and the buffers of its all-reduces,
    all-gathers, reduce-scatters, all-to-alls and broadcasts have the bytes that they had (a sharded model's as well,
    whose whole is gathered). Of a traced time, the part that `replay.costs.collectives` explains with the old number
    of ranks is exchanged for what it says with the new one; the rest, such as waiting inside the collective, stays.
    Ranks fill nodes of PER_NODE devices, then further nodes over a network. Traces of one rank will do, as long as
    they name the size of groups.

    Not modelled: smaller groups (tensor or pipeline parallel), sends between pairs, and collectives of unknown size,
    which stay and are counted; stragglers among more ranks; another batch; what of an optimizer is sharded.

    Source: `replay.costs.collectives` (fitted to measurements, docs/durations.md); how far off another number of
    ranks is, is `collective_ranks_ratio` of `datasets/parameters.toml`.

    Raises
    ------
    InvalidInputError
        A number is not whole or not above zero; when applied: the device or the group's size is unknown, or the ranks
        do not fill their nodes.
    """
    if ranks < 1 or per_node < 1:
        raise InvalidInputError(f"{ranks} ranks, {per_node} in a node: give whole numbers above zero")
    _topology(ranks, per_node)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        tasks = graph.tasks
        collective = tasks.kind == TaskKind.COLLECTIVE
        if not collective.any():
            return graph.with_notes(["change_world_size: the iteration has no collective"])
        world = int(tasks.ranks[collective].max())
        if world < 1:
            raise InvalidInputError("the trace does not say how many ranks take part in its collectives")
        known = np.isin(tasks.collective, [COLLECTIVE_KINDS.index(kind) for kind in KINDS if kind != _PAIRS])
        rows = np.flatnonzero(collective & known & (tasks.bytes > 0) & (tasks.ranks == world))
        note = f"change_world_size: {len(rows)} of {int(collective.sum())} collectives, from {world} ranks"
        if world == ranks:
            return graph.with_notes([note])
        return _changed(graph, rows, (_topology(world, per_node), _topology(ranks, per_node)), parameters).with_notes(
            [note]
        )

    more = [per_node] if per_node != 8 else []
    return WhatIf(written("change_world_size", ranks, *more), transform)


def _topology(ranks: int, per_node: int) -> Topology:
    return Topology(ranks, min(ranks, per_node), node_devices=per_node)


def _changed(
    graph: KernelGraph, rows: npt.NDArray[np.intp], groups: tuple[Topology, Topology], parameters: Parameters
) -> KernelGraph:
    tasks = graph.tasks
    fits = parameters.calibration(CollectiveCalibration)
    old, _ = _modelled(graph, rows, groups[0], fits)
    new, basis = _modelled(graph, rows, groups[1], fits)
    new = new * parameters["collective_ranks_ratio"]
    traced = tasks.duration_ns[rows]
    explained = np.minimum(traced / np.maximum(old, 1e-9), 1.0)
    duration, column, sizes = tasks.duration_ns.copy(), tasks.basis.copy(), tasks.ranks.copy()
    duration[rows] = new * explained + np.maximum(traced - old, 0.0)
    column[rows] = np.maximum(column[rows], basis)
    sizes[rows] = groups[1].n_workers
    return graph.with_tasks(duration_ns=duration, basis=column, ranks=sizes)


def _modelled(
    graph: KernelGraph, rows: npt.NDArray[np.intp], group: Topology, fits: CollectiveCalibration
) -> tuple[Floats, int]:
    """Return how long collectives take in a group, ns, and what that rests on."""
    device, tasks = source_device(graph), graph.tasks
    found, basis = np.zeros(len(rows)), int(Basis.DERIVED)
    for kind in np.unique(tasks.collective[rows]).tolist():
        mine = tasks.collective[rows] == kind
        said = predict_collective(COLLECTIVE_KINDS[kind], tasks.bytes[rows][mine], group, device, fits)
        found[mine] = said.seconds * 1e9
        basis = max(basis, int(Basis.ASSUMED)) if said.basis == "prior" else basis
    return found, basis


RECIPES = (
    Recipe(
        "change_world_size",
        lambda ranks, per_node: change_world_size(ranks, per_node=per_node),
        (
            Argument("ranks", "that the largest group of the trace has then", "whole"),
            Argument("per_node", "devices of a node", "whole", default="8"),
        ),
        "Collectives of the largest group are re-timed for another number of ranks; compute stays (weak scaling).",
        "change_world_size:64",
        "communication",
        change_world_size.__doc__ or "",
    ),
)
