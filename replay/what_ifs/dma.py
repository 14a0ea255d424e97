"""DMA what-if: collectives run on the DMA engines instead of the compute units (ConCCL, arXiv 2412.14335).

A collective becomes a command and a copy for each peer. The host writes the commands one after another, and each copy
runs on an engine of its own:

    arrival ──▶ command ──▶ command ──▶ command
                   └▶ copy     └▶ copy     └▶ copy ──▶ end
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from profilers.trace.arrays import Floats, Ints
from replay.calibration.parameters import Parameters
from replay.costs.collectives import fastest, links_of
from replay.costs.interference import memory_bytes, transfer_share
from replay.costs.wire_time import group_topology, likely_ranks
from replay.graph.graph import COLLECTIVE_KINDS, PLACE_COLUMNS, RESOURCES, Basis, EdgeKind, Edges, KernelGraph, TaskKind
from replay.what_ifs.splice import task_budget
from replay.what_ifs.targets import Miss, Target, Targets
from replay.what_ifs.what_if import WhatIf, recipe

#: DMA engines copy and do no arithmetic, so collectives that reduce stay on the compute units.
_COPIES_ONLY = ("all_gather", "all_to_all", "broadcast", "gather", "scatter", "send_recv")
#: Kinds in which every device sends to all its peers; and kinds that spend as long on their bytes as others.
_TO_ALL, _LIKE = _COPIES_ONLY[:2], {"gather": "all_gather", "scatter": "all_to_all"}
_DMA, _LINK, _HBM, _L2 = (RESOURCES.index(name) for name in ("dma", "link", "hbm", "l2"))
#: Reason and advice for collectives that stay on the compute units.
_ARITHMETIC = (
    "need arithmetic, which DMA engines do not have, or are of unknown kind",
    "use a reduction near memory (t3), or an all-gather or all-to-all",
)
#: DMA engines that are told apart.
_MOST_ENGINES = 32
#: Sizes whose difference in time is bytes over bandwidth alone.
_LARGE = (2.0**29, 2.0**30)
#: Columns of tasks that use nothing but their time, and further columns that are written.
_CLEARED = (
    *("duration_ns", "demand", "occupies", "waves", "workgroups", "bytes", "pressure"),
    *("footprint", "hit_share", *PLACE_COLUMNS),
)
_WRITTEN = (*("kind", "event", "release_ns", "measured_start_ns", "measured_end_ns", "basis", "engine"),)


@recipe("communication", "dma_collectives")
def dma_collectives() -> WhatIf:
    """Run collectives without arithmetic on the DMA engines.

    The collective becomes a command and a copy for each peer. Commands follow each other (`dma_command_ns`), and each
    copy runs on an engine of its own. A copy takes `dma_latency_ns`, and the time that the traced collective spends on
    the bytes, divided by `dma_bandwidth_ratio`. Copies use no compute units, but links and memory. The wait for other
    ranks stays. Collectives that reduce, those of unknown kind or bytes, and those of several nodes stay on the
    compute units; a note counts them. Without a known device, all stay.

    Not modelled: an engine whose rate depends on the size of the copy, engines that copies of the host share, and
    fewer engines than peers.

    Source: ConCCL (arXiv 2412.14335).
    """
    return WhatIf("dma_collectives", _transform, retimes=True, targets=movable)


def _transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    targets = movable(graph, parameters)
    rows = np.array([target.collective for target in targets.found], dtype=np.int64)
    note = f"dma_collectives: {len(rows)} of {len(rows) + len(targets.misses)} collectives moved"
    notes = [note, *(f"{count} {reason}" for reason, count in Counter(miss.reason for miss in targets.misses).items())]
    moved = _on_engines(graph, _copies_of(graph, rows, parameters), parameters) if len(rows) else graph
    return moved.with_notes(["; ".join(notes)])


def movable(graph: KernelGraph, _parameters: Parameters) -> Targets:
    """Return the collectives that DMA engines can run, and the others."""
    tasks, ranks = graph.tasks, likely_ranks(graph)
    left = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.engine < 0) & graph.on_device()
    kinds = [COLLECTIVE_KINDS.index(kind) for kind in _COPIES_ONLY]
    several_nodes = ranks > graph.hardware.network.devices_per_node
    misses: list[Miss] = []
    for reason, advice, applies in (
        (*_ARITHMETIC, ~np.isin(tasks.collective, kinds)),
        ("are of unknown bytes", "a trace with the sizes of collectives", tasks.bytes <= 0),
        ("are on an unknown device", "--device NAME", np.full(len(tasks), graph.hardware.device is None)),
        ("span several nodes", "groups of ranks of one node", several_nodes),
    ):
        misses += [Miss(row, reason, advice) for row in np.flatnonzero(left & applies).tolist()]
        left &= ~applies
    return Targets(tuple(Target(row, (), -1) for row in np.flatnonzero(left).tolist()), tuple(misses))


@dataclass(frozen=True)
class _Copies:
    """Copies in the place of collectives: arrays with a row a collective.

    Parameters
    ----------
    rows : array of int64
        Rows of the collectives.
    count : array of int64
        Number of copies.
    peers : array of float64
        Number of peers that a copy stands for: 1, if the graph is not too large for that.
    link_share : array of float64
        Share of the links of the device that a copy uses alone.
    memory_share : array of float64
        Share of the memory's bandwidth that a copy uses, of what it delivers to mixed streams.
    waiting_ns : array of float64
        Part of the collective's duration in which it waits for other ranks.
    copy_ns : array of float64
        Duration of a copy alone.
    """

    rows: Ints
    count: Ints
    peers: Floats
    link_share: Floats
    memory_share: Floats
    waiting_ns: Floats
    copy_ns: Floats


def _copies_of(graph: KernelGraph, rows: Ints, parameters: Parameters) -> _Copies:
    """Return the copies of collectives, by the time that each collective spends on its bytes."""
    tasks, device = graph.tasks, graph.hardware.device
    assert device is not None
    count, most = np.ones(len(rows), np.int64), task_budget(len(rows)) // 2
    peers, link_share, latency_ns, total_ns = (np.ones(len(rows)) for _ in range(4))
    keys = np.stack([tasks.collective[rows], likely_ranks(graph)[rows]])
    for kind, ranks in np.unique(keys, axis=1).T.tolist():  # a few groups a job
        group = (keys[0] == kind) & (keys[1] == ranks)
        topology = group_topology(ranks, device, graph.hardware.network)
        sizes = np.append(tasks.bytes[rows[group]], _LARGE)
        name = COLLECTIVE_KINDS[kind]
        seconds = fastest(_LIKE.get(name, name), topology, links_of(device, topology), sizes)[0]
        wire = np.minimum(sizes * (seconds[-1] - seconds[-2]) / (_LARGE[1] - _LARGE[0]), seconds)
        total_ns[group], latency_ns[group] = 1e9 * seconds[:-2], 1e9 * (seconds - wire)[:-2]
        sent = ranks - 1 if name in _TO_ALL and ranks > 1 else 1
        count[group] = min(sent, most)
        peers[group] = sent / count[group]
        # On a mesh a copy has the link to its peer; through a switch it may use all links of the device.
        link_share[group] = 1.0 / count[group] if topology.fabric == "mesh" else 1.0
    duration = tasks.duration_ns[rows]
    busy = np.maximum(duration * transfer_share(graph, parameters)[rows], np.minimum(duration, total_ns))
    wire_ns = np.maximum(busy - latency_ns, 0.0) / (count * link_share) / parameters["dma_bandwidth_ratio"]
    copy_ns = parameters["dma_latency_ns"] + wire_ns
    rate = memory_bytes(graph)[rows] / count / np.maximum(copy_ns, 1.0) * 1e9
    memory = np.minimum(rate / (device.memory_bytes_per_s * parameters["memory_efficiency_mixed"]), 1.0)
    return _Copies(rows, count, peers, link_share, memory, duration - busy, copy_ns)


def _on_engines(graph: KernelGraph, copies: _Copies, parameters: Parameters) -> KernelGraph:
    """Return `graph` with commands and copies. The first command keeps the row of its collective."""
    n, rows, total = len(graph.tasks), copies.rows, int(copies.count.sum())
    parent = np.repeat(np.arange(len(rows)), copies.count)
    position = np.arange(total) - np.repeat(np.cumsum(copies.count) - copies.count, copies.count)
    later = np.flatnonzero(position > 0)
    command = rows[parent]
    command[later] = n + np.arange(len(later))
    copy = n + len(later) + np.arange(total)
    end = n + len(later) + total + np.arange(len(rows))
    tasks = graph.tasks.select(np.concatenate([np.arange(n), rows[parent[later]], rows[parent], rows]))
    changed = np.append(rows, np.arange(n, len(tasks)))
    columns = {name: getattr(tasks, name).copy() for name in (*_CLEARED, *_WRITTEN)}
    for name in _CLEARED:
        columns[name][changed] = 0
    columns["release_ns"][n:], columns["kind"][end], columns["event"][end] = 0.0, int(TaskKind.MARK), -1
    for name in ("measured_start_ns", "measured_end_ns"):
        columns[name][n:] = np.nan
    columns["basis"][changed] = np.maximum(tasks.basis[changed], int(Basis.DERIVED))
    columns["duration_ns"][command] = parameters["dma_command_ns"] * copies.peers[parent]
    columns["duration_ns"][rows] += copies.waiting_ns
    columns["duration_ns"][copy] = copies.copy_ns[parent]
    columns["engine"][copy], columns["engine"][command] = position % _MOST_ENGINES, 0
    columns["demand"][copy, _DMA], columns["demand"][copy, _LINK] = 1.0, copies.link_share[parent]
    columns["demand"][copy, _HBM] = columns["demand"][copy, _L2] = copies.memory_share[parent]
    columns["bytes"][rows] = graph.tasks.bytes[rows]  # of all copies together
    return _rewired(replace(graph, tasks=replace(tasks, **columns)), graph.edges, (rows, command, copy, end, parent))


def _rewired(graph: KernelGraph, edges: Edges, blocks: tuple[Ints, Ints, Ints, Ints, Ints]) -> KernelGraph:
    """Return `graph` with the order of commands and copies; what waited for a collective waits for its last copy."""
    rows, command, copy, end, parent = blocks
    last = np.arange(len(graph.tasks))
    last[rows] = end
    moved = replace(edges, source=np.where(edges.from_start, edges.source, last[edges.source]))
    same = parent[1:] == parent[:-1]
    order = Edges.of(command[:-1][same], command[1:][same], kind=EdgeKind.STREAM)
    started = Edges.of(command, copy, kind=EdgeKind.STREAM)
    ended = Edges.of(copy, end[parent], kind=EdgeKind.STREAM)
    return replace(graph, edges=moved.joined(order, started, ended))
