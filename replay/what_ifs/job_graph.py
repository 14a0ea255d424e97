"""Surgery on the graph of a traced step: layers copied or cut, collectives put in or re-timed.

A block is the work of one layer in one pass: kernels that follow one another, with the calls of the host that launch
them and what else these launch. `repeats` finds the kernels of blocks by the calls that launched them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.kernels import CLASSES, COLLECTIVE
from replay.calibration.parameters import Parameters
from replay.costs.collectives import CollectiveCalibration, predict_collective
from replay.costs.demand import with_demands
from replay.costs.retiming import exchanged, source_device
from replay.costs.wire_time import collective_models, group_topology, link_slowdowns
from replay.graph.edit import next_on_lane, reordered
from replay.graph.graph import (
    COLLECTIVE_KINDS,
    LAUNCH_EDGES,
    Basis,
    EdgeKind,
    Edges,
    KernelGraph,
    Lane,
    TaskKind,
)
from replay.workloads import load_training
from replay.workloads.jobs import Layout
from replay.workloads.traced_job import SUMS, TracedJob, tensor_exchanges

#: Kernels of the shortest block.
_SHORTEST = 3


@dataclass(frozen=True)
class Repeat:
    """Blocks that follow one another and launch the same calls.

    Parameters
    ----------
    start, period, count : int
        Position of the first kernel, kernels of a block, and blocks.
    """

    start: int
    period: int
    count: int

    def block(self, number: int) -> slice:
        """Return the positions of a block."""
        begin = self.start + number * self.period
        return slice(begin, begin + self.period)


@dataclass(frozen=True)
class LayerPass:
    """A pass of all layers: kernels of one direction that follow one another on the compute streams of all ranks.

    Parameters
    ----------
    way : int
        Index into `PHASES`.
    rows : tuple of array of int64
        Kernels of each rank.
    blocks : tuple of Repeat
        Layers of each rank, by positions in its rows; empty if no blocks repeat.
    following : tuple of int
        First kernel of each rank after the pass; -1 for none.
    """

    way: int
    rows: tuple[Ints, ...]
    blocks: tuple[Repeat, ...]
    following: tuple[int, ...]

    def layers(self, graph: KernelGraph, first: int, last: int) -> Bools:
        """Return the mask of the tasks of blocks `first` to `last`, the last one not included, on all ranks."""
        found = []
        for rank, (rows, block) in enumerate(zip(self.rows, self.blocks, strict=True)):
            begin, end = block.block(first).start, block.block(last).start
            following = rows[end] if end < len(rows) else self.following[rank]
            found.append(with_launches(graph, rows[begin:end], int(following)))
        return np.asarray(np.logical_or.reduce(found))

    def end(self, rank: int, number: int) -> int:
        """Return the row of the last kernel of a block of a rank."""
        return int(self.rows[rank][self.blocks[rank].block(number).stop - 1])


#: Kernels of another phase that do not end a pass.
_ISLAND = 3


def find_runs(graph: KernelGraph, ranks: Sequence[Ints], layers: int) -> list[LayerPass]:
    """Return the passes of a step in order.

    Parameters
    ----------
    graph : KernelGraph
        Graph of a step.
    ranks : sequence of array of int64
        Kernels of the compute stream of each rank, in order.
    layers : int
        Layers of each pass.
    """
    passes = [_passes(graph, rows) for rows in ranks]
    runs = []
    ends = [[int(row[0]) for _, row in each[1:]] + [-1] for each in passes]
    for number, each in enumerate(zip(*passes, strict=False)):  # ranks run the same passes
        ways, rows = {way for way, _ in each}, tuple(row for _, row in each)
        blocks = [repeats(graph.tasks.call[row], layers) if layers > 1 else None for row in rows]
        whole = tuple(block for block in blocks if block is not None)
        after = tuple(end[number] for end in ends)
        runs.append(LayerPass(min(ways), rows, whole if len(whole) == len(rows) else (), after))
    return runs


def _passes(graph: KernelGraph, rows: Ints) -> list[tuple[int, Ints]]:
    """Return the phase and the kernels of each pass on one stream."""
    phase = graph.tasks.phase[rows].copy()
    for place in range(len(phase)):  # a comparison for each kernel
        if phase[place] < 0:
            phase[place] = phase[place - 1] if place else 0
    cuts = [0, *(np.flatnonzero(np.diff(phase)) + 1).tolist(), len(phase)]
    passes: list[tuple[int, list[int]]] = []
    for begin, end in pairwise(cuts):
        if passes and (end - begin < _ISLAND or passes[-1][0] == phase[begin]):
            passes[-1][1].extend(range(begin, end))
        elif end > begin:
            passes.append((int(phase[begin]), list(range(begin, end))))
    return [(way, rows[places]) for way, places in passes]


def repeats(calls: Ints, count: int) -> Repeat | None:
    """Return the longest blocks that occur `count` times in a row; None if there are none.

    Parameters
    ----------
    calls : array of int64
        Number of the call of each kernel, in order.
    count : int
        Blocks that are looked for, 2 or more.

    Examples
    --------
    >>> repeats(np.array([9, 1, 2, 3, 1, 2, 3, 8]), 2)
    Repeat(start=1, period=3, count=2)
    """
    spacings: Counter[tuple[int, int]] = Counter()
    order = np.argsort(calls, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(calls[order])) + 1):  # a few hundred calls
        if len(places) % count:
            continue
        gaps = places[len(places) // count :] - places[: -(len(places) // count)]
        if len(gaps) and (gaps == gaps[0]).all():
            spacings[int(gaps[0]), int(places[0])] += 1
    periods = Counter[int]()
    for (period, _), number in spacings.items():
        periods[period] += number
    for period, _ in periods.most_common(4):
        same = np.concatenate(([0], np.cumsum(calls[:-period] == calls[period:])))
        length = period * (count - 1)
        whole = np.flatnonzero(same[length:] - same[: max(len(same) - length, 0)] == length)
        if period >= _SHORTEST and len(whole):
            return Repeat(int(whole[0]), period, count)
    return None


def with_launches(graph: KernelGraph, rows: Ints, following: int = -1) -> Bools:
    """Return the mask of a block: kernels, the host's calls from its first launch on, and what else these launch.

    Parameters
    ----------
    graph : KernelGraph
        The graph.
    rows : array of int64
        Kernels of the block.
    following : int
        First kernel after the block, before whose launch its calls end; -1 if its last launch ends them.
    """
    tasks, edges = graph.tasks, graph.edges
    chosen = np.zeros(len(tasks), dtype=bool)
    chosen[rows] = True
    launches = np.isin(edges.kind, sorted(LAUNCH_EDGES)) & (tasks.kind[edges.source] == TaskKind.HOST)
    callers = np.unique(edges.source[launches & chosen[edges.target]])
    next_callers = edges.source[launches & (edges.target == following)]
    number = np.arange(len(tasks))
    for lane in np.unique(tasks.lane[callers]).tolist():  # one thread, or a few
        mine, others = callers[tasks.lane[callers] == lane], next_callers[tasks.lane[next_callers] == lane]
        last = int(others.max()) - 1 if len(others) and others.max() > mine.max() else int(mine.max())
        chosen[(tasks.lane == lane) & (number >= mine.min()) & (number <= last)] = True
    chosen[edges.target[launches & chosen[edges.source]]] = True
    return _with_arrivals(graph, chosen)


def with_calls(graph: KernelGraph, collectives: Bools) -> Bools:
    """Return the mask of collectives, the marks at which ranks arrive at them, and the host's calls of them alone."""
    edges, chosen = graph.edges, _with_arrivals(graph, collectives.copy())
    launches = edges.select(np.isin(edges.kind, sorted(LAUNCH_EDGES)))
    others = np.isin(np.arange(len(chosen)), launches.source[~chosen[launches.target]])
    called = np.isin(np.arange(len(chosen)), launches.source[chosen[launches.target]])
    return np.asarray(chosen | (called & ~others & (graph.tasks.kind == TaskKind.HOST)))


def _with_arrivals(graph: KernelGraph, chosen: Bools) -> Bools:
    """Add the marks at which ranks arrive at the collectives of a block, and meet."""
    tasks, edges = graph.tasks, graph.edges
    arrival = graph.arrival_marks()
    chosen |= (arrival >= 0) & chosen[arrival]
    marks = arrival[chosen & (arrival >= 0)]
    chosen[marks] = True
    meets = edges.kind == EdgeKind.RENDEZVOUS
    between = (tasks.lane < 0) & (tasks.kind == TaskKind.MARK)
    for_all = edges.target[meets & chosen[edges.source]]
    chosen[for_all[between[for_all]]] = True
    return chosen


def with_copies(graph: KernelGraph, masks: Sequence[Bools], copies: int) -> KernelGraph:
    """Return a graph in which blocks run more often, each copy after the one before it.

    Parameters
    ----------
    graph : KernelGraph
        The graph.
    masks : sequence of array of bool, shape (n_tasks,)
        Mask of the tasks of each block.
    copies : int
        Copies to add of each, 1 or more.
    """
    waiting = list(masks)
    while waiting:
        block, *waiting = waiting
        graph, order = _with_copies(graph, block, copies)
        more = np.zeros(len(order) - len(block), dtype=bool)
        waiting = [np.concatenate((mask, more))[order] for mask in waiting]
    return graph


def _with_copies(graph: KernelGraph, block: Bools, copies: int) -> tuple[KernelGraph, Ints]:
    """Return a graph with copies of one block, and its rows as rows of the graph followed by the copies."""
    tasks, edges = graph.tasks, graph.edges
    members = np.flatnonzero(block)
    lanes = tasks.lane[members]
    last = np.full(len(graph.lanes) + 1, -1)
    last[lanes] = members  # rows are in order, so the last one stays
    position = np.full(len(tasks), -1)
    position[members] = np.arange(len(members))
    inside, outside = block[edges.source], block[edges.target]
    same_lane = (tasks.lane[edges.source] == tasks.lane[edges.target]) & (tasks.lane[edges.source] >= 0)
    within, into = edges.select(inside & outside), edges.select(~inside & outside)
    out, rest = edges.select(inside & ~outside), edges.select(~(inside & ~outside & same_lane))
    leaving = edges.select(inside & ~outside & same_lane)
    blocks, n, m = [rest], len(tasks), len(members)
    # A task that is the first of its lane has no edge from it; its copies follow the block before them all the same.
    used, first = np.unique(lanes, return_index=True)
    entered = np.isin(members[first], into.target[same_lane[~inside & outside]])
    opening = members[first][(used >= 0) & ~entered]
    kind = np.where(tasks.device[opening] >= 0, int(EdgeKind.STREAM), int(EdgeKind.HOST))

    def copied(rows: Ints, copy: int) -> Ints:
        return np.where(position[rows] >= 0, n + (copy - 1) * m + position[rows], rows) if copy else rows

    for copy in range(1, copies + 1):  # a few layers
        blocks.append(replace(within, source=copied(within.source, copy), target=copied(within.target, copy)))
        ordered = same_lane[~inside & outside]
        before = np.where(ordered, copied(last[tasks.lane[into.target]], copy - 1), into.source)
        blocks.append(replace(into, source=before, target=copied(into.target, copy)))
        blocks.append(Edges.of(copied(last[tasks.lane[opening]], copy - 1), copied(opening, copy), kind=kind))
        across = out.select(~same_lane[inside & ~outside])
        blocks.append(replace(across, source=copied(across.source, copy)))
    blocks.append(replace(leaving, source=copied(leaving.source, copies)))
    added = tasks.select(np.tile(members, copies))
    added = replace(
        added,
        measured_start_ns=np.full(len(added), np.nan),
        measured_end_ns=np.full(len(added), np.nan),
        release_ns=np.zeros(len(added)),
        basis=np.maximum(added.basis, int(Basis.DERIVED)),
    )
    grown = replace(graph, tasks=tasks.joined(added), edges=blocks[0].joined(*blocks[1:]))
    at = last[np.tile(lanes, copies)] + (np.arange(len(added)) + 1) / (len(added) + 2)
    order = np.argsort(np.concatenate([np.arange(n), at]), kind="stable")
    return reordered(grown, order), order


def with_collectives(
    graph: KernelGraph, kind: str, after: Ints, columns: Mapping[str, Any], *, until: Ints | None = None,
    call_ns: float = 0.0,
) -> KernelGraph:  # fmt: skip
    """Return a graph with collectives, each after a task, on a stream of their own.

    Parameters
    ----------
    graph : KernelGraph
        The graph.
    kind : str
        One of `COLLECTIVE_KINDS`.
    after : array of int64, shape (n,)
        Rows of the tasks whose results are exchanged.
    columns : mapping
        Columns of the collectives: bytes, ranks, dtype and others, each an array of length n or one value.
    until : array of int64, shape (n,), optional
        Rows of the tasks that wait for them, -1 for none; by default the next task of the lane.
    call_ns : float
        Time of the host's call of each, which follows the launch of the task before it.
    """
    if not len(after):
        return graph
    tasks, n = graph.tasks, len(graph.tasks)
    until = next_on_lane(graph)[after] if until is None else until
    lanes, lane = list(graph.lanes), np.zeros(len(after), np.int64)
    name = f"{kind} (added)"
    for at, row in enumerate(after.tolist()):  # a few collectives a layer
        old = graph.lanes[tasks.lane[row]]
        new = Lane(old.rank, old.device, _STREAM + COLLECTIVE_KINDS.index(kind))
        if new not in lanes:
            lanes.append(new)
        lane[at] = lanes.index(new)
    constant: dict[str, Any] = {
        "kind": int(TaskKind.COLLECTIVE),
        "name": len(graph.names),
        "class_": CLASSES.index(COLLECTIVE),
        "collective": COLLECTIVE_KINDS.index(kind),
        "basis": int(Basis.MODELLED),
        "event": -1,
        "workgroups": _WORKGROUPS,
        **dict.fromkeys(("operator", "memory_operator", "call", "launched_by", "direction"), -1),
        **dict.fromkeys(("duration_ns", "release_ns", "waves"), 0.0),
        **dict.fromkeys(("measured_start_ns", "measured_end_ns"), np.nan),
        "lane": lane,
        **columns,
    }
    added = tasks.select(after)
    changed = {
        key: np.broadcast_to(np.asarray(value, dtype=getattr(added, key).dtype), (len(after),)).copy()
        for key, value in constant.items()
    }
    numbers = np.arange(n, n + len(after))
    ready = Edges.of(after, numbers, kind=EdgeKind.WAIT_INFERRED)
    needed = Edges.of(numbers[until >= 0], until[until >= 0], kind=EdgeKind.WAIT_INFERRED)
    order = np.argsort(lane, kind="stable")
    same = lane[order][1:] == lane[order][:-1]
    queue = Edges.of(numbers[order[:-1][same]], numbers[order[1:][same]], kind=EdgeKind.STREAM)
    calls, edges = _with_calls(graph, after, numbers, call_ns)
    return replace(
        graph,
        tasks=tasks.joined(replace(added, **changed)),
        edges=edges.joined(ready, needed, queue, calls),
        names=(*graph.names, name),
        lanes=tuple(lanes),
    )


def _with_calls(graph: KernelGraph, after: Ints, numbers: Ints, call_ns: float) -> tuple[Edges, Edges]:
    """Return the launches of collectives `numbers`, and the graph's edges with the host's calls of them.

    A call comes where the host would go on after the launch of the task in `after`; what the host does next is later.
    """
    edges = graph.edges
    launch = np.flatnonzero(np.isin(edges.kind, sorted(LAUNCH_EDGES)))
    launch_of = dict(zip(edges.target[launch].tolist(), launch.tolist(), strict=True))
    onward = np.flatnonzero(edges.kind == EdgeKind.HOST)
    next_of = dict(zip(edges.source[onward].tolist(), onward.tolist(), strict=True))
    lag_ns, called = edges.lag_ns.copy(), list[tuple[int, int, float]]()
    for row, number in zip(after.tolist(), numbers.tolist(), strict=True):  # a few collectives a layer
        if call_ns and row in launch_of and (caller := int(edges.source[launch_of[row]])) in next_of:
            following = next_of[caller]
            begin = float(graph.tasks.duration_ns[caller]) if edges.from_start[launch_of[row]] else 0.0
            latency = max(float(edges.lag_ns[launch_of[row]]) - begin, 0.0)
            called.append((caller, number, float(lag_ns[following]) + latency))
            lag_ns[following] += call_ns
    source, target, lag = (np.array([each[i] for each in called]) for i in range(3))
    return (
        Edges.of(source.astype(np.int64), target.astype(np.int64), kind=EdgeKind.LAUNCH, lag_ns=lag.astype(float)),
        replace(edges, lag_ns=lag_ns),
    )


#: First number of the streams of added collectives, and their workgroups.
_STREAM, _WORKGROUPS = 9000, 24


def with_kernels_before(
    graph: KernelGraph, names: Sequence[str], before: Ints, columns: Mapping[str, Any]
) -> tuple[KernelGraph, Ints]:
    """Return a graph with kernels on the compute stream, each right before a kernel, and the new rows of all tasks.

    The same call of the host launches both.

    Parameters
    ----------
    graph : KernelGraph
        The graph.
    names : sequence of str, length n
        Names of the new kernels.
    before : array of int64, shape (n,)
        Rows of the kernels that they come before, each once.
    columns : mapping
        Columns of the new kernels that differ from those of their followers: an array of length n or one value.

    Returns
    -------
    graph : KernelGraph
    rows : array of int64, shape (n_tasks + n,)
        Row of each task in the new graph: those of the old one, then the new kernels.
    """
    tasks, n = graph.tasks, len(graph.tasks)
    new = np.arange(n, n + len(before))
    known = {name: number for number, name in enumerate(graph.names)}
    constant: dict[str, Any] = {
        "name": [known.setdefault(name, len(known)) for name in names],
        **dict.fromkeys(("operator", "memory_operator", "call", "launched_by", "event", "dtype"), -1),
        **dict.fromkeys(("bytes", "workgroups", "waves"), 0),
        **dict.fromkeys(("measured_start_ns", "measured_end_ns"), np.nan),
        **columns,
    }
    added = tasks.select(before)
    changed = {key: np.empty_like(getattr(added, key)) for key in constant}
    for key, column in changed.items():
        column[:] = constant[key]
    heir = np.arange(n)
    heir[before] = new
    edges = graph.edges
    follows = (tasks.lane[edges.source] == tasks.lane[edges.target]) & (tasks.lane[edges.source] >= 0)
    queued = replace(edges, target=np.where(follows, heir[edges.target], edges.target))
    launches = edges.select(np.isin(edges.kind, sorted(LAUNCH_EDGES)) & (heir[edges.target] >= n))
    launched = replace(launches, target=heir[launches.target])
    linked = queued.joined(launched, Edges.of(new, before, kind=EdgeKind.STREAM))
    grown = replace(graph, tasks=tasks.joined(replace(added, **changed)), edges=linked, names=tuple(known))
    order = np.argsort(np.concatenate([np.arange(n), before - 0.5]), kind="stable")
    rows = np.empty(len(order), dtype=np.int64)
    rows[order] = np.arange(len(order))
    return reordered(grown, order), rows


def gradient_exchanges(graph: KernelGraph, job: TracedJob) -> Bools:
    """Return the mask of collectives of replicas, of gradients or weights: those of the streams of the largest."""
    tasks, ranks = graph.tasks, graph.ranks()
    rows = (
        (tasks.kind == TaskKind.COLLECTIVE)
        & np.isin(tasks.collective, (*SUMS, COLLECTIVE_KINDS.index("all_gather")))
        & (tasks.ranks == job.data)
    )
    rows &= (job.data > 1) & ~tensor_exchanges(graph, job)
    of_rank = [np.flatnonzero(rows & (ranks == rank)) for rank in np.unique(ranks[rows]).tolist()]
    lanes = [int(tasks.lane[each[np.argmax(tasks.bytes[each])]]) for each in of_rank]
    return np.asarray(rows & np.isin(tasks.lane, lanes))


@dataclass(frozen=True)
class Replicas:
    """Collectives of replicas, and how the job is split: replicas are apart by as many ranks as share a layer.

    Parameters
    ----------
    rows : array of bool, shape (n_tasks,)
        Mask of the collectives.
    before, after : Layout
        Layout of the trace, and that of the edited job.
    """

    rows: Bools
    before: Layout
    after: Layout

    def placement(self, graph: KernelGraph, rows: Ints, layout: Layout, parameters: Parameters) -> Floats:
        """Return the time of collectives with replicas where a layout puts them, over that if they filled nodes."""
        tasks, device, ratio = graph.tasks, source_device(graph), np.ones(len(rows))
        if min(layout.tensor, layout.data) == 1:
            return ratio
        fits, network = parameters.calibration(CollectiveCalibration), graph.hardware.network
        layout = replace(layout, node_devices=network.devices_per_node)
        groups = layout.topology("gradients", device), group_topology(layout.data, device, network)
        for kind in np.unique(tasks.collective[rows][self.rows[rows]]).tolist():  # three at most
            chosen = self.rows[rows] & (tasks.collective[rows] == kind)
            placed, filled = (
                predict_collective(COLLECTIVE_KINDS[kind], tasks.bytes[rows][chosen], group, device, fits).seconds
                for group in groups
            )
            ratio[chosen] = placed / filled
        return ratio


def with_exchanges(
    graph: KernelGraph, new_bytes: Ints, new_ranks: Ints, parameters: Parameters, *, replicas: Replicas | None = None
) -> tuple[KernelGraph, int]:
    """Return the graph with collectives of other bytes and ranks, and how many changed."""
    tasks = graph.tasks
    changes = (new_bytes != tasks.bytes) | (new_ranks != tasks.ranks)
    if replicas is not None and replicas.before != replicas.after:
        changes |= replicas.rows
    rows = np.flatnonzero(changes & (tasks.kind == TaskKind.COLLECTIVE))
    if not len(rows):
        return graph, 0
    source_device(graph)
    changed = graph.with_tasks(bytes=new_bytes, ranks=new_ranks)
    old, new = (
        collective_models(each, parameters).total_ns(link_slowdowns(each, each.hardware))[rows]
        for each in (graph, changed)
    )
    if replicas is not None:
        old *= replicas.placement(graph, rows, replicas.before, parameters)
        new *= replicas.placement(changed, rows, replicas.after, parameters)
    ratio = np.where(new_ranks[rows] != tasks.ranks[rows], parameters["collective_ranks_ratio"], 1.0)
    duration, basis, traced = tasks.duration_ns.copy(), tasks.basis.copy(), tasks.duration_ns[rows]
    if graph.origin == Basis.ASSUMED:
        timed = np.where(old > 0, traced * new / np.maximum(old, 1e-9), new * ratio)
    else:
        timed = exchanged(traced, old, new * ratio)
    duration[rows] = np.where(new_ranks[rows] == 1, 0.0, timed)
    basis[rows] = np.maximum(basis[rows], int(Basis.MODELLED))
    return changed.with_tasks(duration_ns=duration, basis=basis), len(rows)


def with_new_collectives(
    graph: KernelGraph, kind: str, after: Ints, columns: Mapping[str, Any], parameters: Parameters, *,
    until: Ints | None = None, layout: Layout | None = None,
) -> KernelGraph:  # fmt: skip
    """Return the graph with collectives after tasks, which take the time of their model.

    A host that launches those tasks calls each collective too, as long as Megatron-LM's takes. With a
    layout, the collectives are those of its replicas.
    """
    fit = load_training()
    grown = with_collectives(graph, kind, after, columns, until=until, call_ns=1e9 * fit.costs.collective_call_s)
    new = np.arange(len(graph.tasks), len(grown.tasks))
    models = collective_models(grown, parameters)
    duration = grown.tasks.duration_ns.copy()
    predicted = models.total_ns(link_slowdowns(grown, grown.hardware))
    is_synthetic = graph.origin == Basis.ASSUMED
    links = fit.costs.links * fit.factors_of(source_device(graph)).links if is_synthetic else 1.0
    duration[new] = predicted[new] * parameters["collective_ranks_ratio"] * links
    if layout is not None:
        replicas = Replicas(np.arange(len(duration)) >= len(graph.tasks), layout, layout)
        duration[new] *= replicas.placement(grown, new, layout, parameters)
    return with_demands(grown.with_tasks(duration_ns=duration), parameters)
