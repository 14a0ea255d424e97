"""A persistent kernel that sends its slices, against separate kernels and a library's collective.

`add_fused` adds the persistent kernel: workgroups send each slice of their output as soon as it is computed, as puts to
another node or stores to a peer. `add_baseline` adds a kernel that computes, one that packs, and the collective.
`compare` simulates both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES
from replay.engine.timeline import Timeline, replay
from replay.graph.assembly import Assembly
from replay.graph.graph import COLLECTIVE_KINDS, EdgeKind, KernelGraph, TaskKind
from replay.studies.fused.job import Job, Slices

#: Adds a job on some ranks to a graph; returns the first and the last task of each rank.
AddJob = Callable[[Assembly, Job, Sequence[int]], tuple[Ints, Ints]]


@dataclass(frozen=True)
class Sends:
    """Messages of a rank, one row a slice and receiver.

    Parameters
    ----------
    rank : int
        Rank that sends.
    source : array of int64
        The task that computes it.
    offset : array of int64
        Offset of the receiver from the sender (`Cluster`).
    part : array of int64
        Which of the receiver's slices it is.
    size : array of float64
        Bytes.
    task : array of int64
        Task that sends it; none before `add_sends`.
    """

    rank: int
    source: Ints
    offset: Ints
    part: Ints
    size: Floats
    task: Ints | None = None


def add_sends(assembly: Assembly, job: Job, what: Sends) -> Sends:
    """Append the puts and stores of a rank; return what was sent with its tasks.

    Notes
    -----
    A put starts when its slice is computed; puts go one after another through the device's part of the adapters. They
    read local memory. Stores start with the task that computes the slice. If the link lags at its end, they
    go on after it; the next task that stores over the link waits for them, since little is buffered. Of all
    that is sent, as much arrives from others at the same time, and is written to memory.
    """
    cluster = job.cluster
    far = what.offset >= cluster.devices_per_node
    rate = cluster.bytes_per_s(what.offset) * np.where(far, 1.0, job.costs.store_share)
    link = cluster.links(what.offset)
    if not len(link):
        return replace(what, task=np.zeros(0, np.int64))
    columns = {
        "kind": TaskKind.COPY,
        "duration_ns": what.size / rate * 1e9 + np.where(far, job.costs.issue_ns, 0.0),
        "bytes": what.size,
        "hbm": np.minimum(np.where(far, 2.0, 1.0) * rate / job.memory_bytes_per_s, 1.0),
        **{"link": 1.0, "link_number": link},
    }
    task = assembly.tasks("send", assembly.lane(device=what.rank, stream=1), columns)
    assembly.edges(what.source, task, from_start=~far, kind=EdgeKind.WAIT)
    order = np.argsort(link, kind="stable")
    before, after = order[:-1], order[1:]
    same = link[before] == link[after]
    before, after = before[same], after[same]
    moved = what.source[before] != what.source[after]
    stored = ~far[before] & moved
    if stored.any():
        assembly.edges(task[before[stored]], what.source[after[stored]])
    if not stored.all():
        assembly.edges(task[before[~stored]], task[after[~stored]])
    return replace(what, task=task)


def arrive(assembly: Assembly, job: Job, ranks: Sequence[int], sent: Sends, tasks: Ints) -> None:
    """Let the receivers' tasks wait for the flags of messages.

    Parameters
    ----------
    assembly : Assembly
        Graph under construction; edges are added to it.
    job : Job
        Work, cluster and costs.
    ranks : sequence of int
        Simulated ranks.
    sent : Sends
        Sends of one rank, with their tasks.
    tasks : array of int64, shape (ranks, parts) or (ranks, 1)
        Tasks of each simulated rank that wait: one for each of its slices, or one for all.
    """
    if sent.task is None or not len(sent.task):
        return
    rows = np.zeros_like(sent.offset) if len(ranks) == 1 else job.cluster.receiver(sent.rank, sent.offset)
    waiting = tasks[rows, np.minimum(sent.part, tasks.shape[1] - 1)]
    far = sent.offset >= job.cluster.devices_per_node
    flag = np.where(far, job.costs.put_ns, job.costs.store_ns)
    assembly.edges(sent.task, waiting, lag_ns=flag, kind=EdgeKind.WAIT)
    assembly.edges(sent.source, waiting, lag_ns=flag, kind=EdgeKind.WAIT)


@dataclass(frozen=True)
class _Rank:
    """Slices of a rank, the task of each slice, and its messages."""

    rank: int
    slices: Slices
    chunks: Ints
    sends: Sends


def add_fused(assembly: Assembly, job: Job, ranks: Sequence[int]) -> tuple[Ints, Ints]:
    """Append a job as one persistent kernel; return the first and the last task of each rank.

    Parameters
    ----------
    assembly : Assembly
        Graph under construction; tasks are added to it.
    job : Job
        Work, cluster and costs.
    ranks : sequence of int
        Simulated ranks: all, or one that stands for all. A message of this one to an offset stands for a message
        from the opposite offset.

    Notes
    -----
    The kernel holds all compute units until its last slice. Its workgroups come in waves of those that are resident,
    fewer by the loss of occupancy, and a slice is done with the wave of its last workgroup; the rate falls as much as
    the occupancy, which is the most that it can. How slices are sent is in
    `replay.studies.fused.comparison`. An all-reduce of two shots sends each slice to the rank that owns it, which sums
    it and sends it to all; of one shot, each slice to all ranks, and each of them sums.
    """
    lanes = [assembly.lane(device=rank) for rank in ranks]
    launch = assembly.tasks("launch", lanes, {"duration_ns": job.costs.launch_ns})
    members = []
    for i, rank in enumerate(ranks):  # at most a few hundred ranks: more are one that stands for all
        slices = job.slices(rank)
        chunks = _compute(assembly, job, rank, slices)
        assembly.edges(launch[i], chunks[0])
        members.append(_Rank(rank, slices, chunks, _send(assembly, job, rank, slices, chunks)))
    done = assembly.tasks("received", lanes, {"kind": TaskKind.MARK})
    for i, member in enumerate(members):
        assembly.edges(member.chunks[-1], done[i])
    if job.work.collective == "all_to_all" or job.cluster.ranks == 1:
        for member in members:
            arrive(assembly, job, ranks, member.sends, done[:, None])
    else:
        _reduce(assembly, job, members, done)
    return launch, done


def _compute(assembly: Assembly, job: Job, rank: int, slices: Slices) -> Ints:
    """Append the computation, and return the task that ends each slice; slices that end with one wave share a task."""
    kept = 1 - job.costs.occupancy_loss
    reached = np.cumsum(slices.work)
    wave = max(int(job.work.resident * kept), 1) / job.work.workgroups
    ends = np.minimum(np.ceil(reached / wave - 1e-9) * wave, reached[-1])
    alone = (job.compute_ns * slices.work - _unwritten_ns(job, slices)) / kept
    ends, which = np.unique(ends, return_inverse=True)
    times = np.interp(ends, np.append(0.0, reached), np.append(0.0, np.cumsum(alone)))
    columns = {
        "duration_ns": np.maximum(np.diff(times, prepend=0.0), 0.0),
        "workgroups": np.maximum(np.round(np.diff(ends, prepend=0.0) * job.work.workgroups), 1),
        **{"cu": 1.0, "hbm": job.memory_demand * kept, "priority": 1, "class_": job.work.class_},
    }
    chunks = assembly.tasks("slices", assembly.lane(device=rank), columns)
    assembly.chain(chunks)
    return chunks[which]


def _unwritten_ns(job: Job, slices: Slices) -> Floats:
    """Return the time that writing each slice to memory would take, where memory is the limit and it is not written.

    What goes to a peer of the node is stored there, not here.
    """
    inside = (slices.offset > 0) & (slices.offset < job.cluster.devices_per_node)
    if job.in_one_shot or not job.memory_bound:
        return np.zeros(len(slices))
    return np.where(inside, slices.work * job.work.output_bytes / job.memory_bytes_per_s * 1e9, 0.0)


def _send(assembly: Assembly, job: Job, rank: int, slices: Slices, chunks: Ints) -> Sends:
    """Append what sends the slices on: in one shot each to everybody, otherwise each to its own destination."""
    if job.in_one_shot:
        return _to_all(assembly, job, rank, chunks, slices.work)
    row = np.flatnonzero(slices.offset > 0)
    size = slices.work[row] * job.work.output_bytes
    return add_sends(assembly, job, Sends(rank, chunks[row], slices.offset[row], slices.part[row], size))


def _to_all(assembly: Assembly, job: Job, rank: int, tasks: Ints, share: Floats) -> Sends:
    """Append what sends each slice to every other rank."""
    offsets = np.arange(1, job.cluster.ranks)
    row = np.repeat(np.arange(len(tasks)), len(offsets))
    size = share[row] * job.work.output_bytes
    return add_sends(assembly, job, Sends(rank, tasks[row], np.tile(offsets, len(tasks)), row, size))


def _reduce(assembly: Assembly, job: Job, members: Sequence[_Rank], done: Ints) -> None:
    """Append the sums of the slices of all ranks, and in two shots the messages with the sums.

    The kernel's own workgroups sum, between slices, so the sums need memory but no compute units beside the kernel's.
    """
    ranks, sums = [member.rank for member in members], []
    for member in members:
        local = np.flatnonzero(member.slices.offset == 0)
        read = (job.cluster.ranks + 1) * member.slices.work[local] * job.work.output_bytes
        columns = {"duration_ns": read / job.memory_bytes_per_s * 1e9, "hbm": 1.0, "bytes": read}
        sums.append(assembly.tasks("sum", assembly.lane(device=member.rank, stream=2), columns))
        assembly.edges(member.chunks[local], sums[-1])
        assembly.chain(sums[-1])
    table = np.stack(sums)
    for i, member in enumerate(members):
        arrive(assembly, job, ranks, member.sends, table)
        assembly.edges(sums[i][-1], done[i])
        if not job.in_one_shot:
            local = np.flatnonzero(member.slices.offset == 0)
            sent = _to_all(assembly, job, member.rank, sums[i], member.slices.work[local])
            arrive(assembly, job, ranks, sent, done[:, None])


_COPY = CLASSES.index("copy")


def add_baseline(assembly: Assembly, job: Job, ranks: Sequence[int]) -> tuple[Ints, Ints]:
    """Append a job as separate kernels; return the first and the last task of each rank.

    Parameters
    ----------
    assembly : Assembly
        Graph under construction; tasks are added to it.
    job : Job
        Work, cluster and costs.
    ranks : sequence of int
        Simulated ranks: all, or one that stands for all.

    Notes
    -----
    Each kernel starts a launch after its predecessor. The collective runs on a stream of its own: it waits for the
    computation, and the next task waits for it, each time by an event. It starts when the last rank arrives.
    """
    main = [assembly.lane(device=rank) for rank in ranks]
    side = [assembly.lane(device=rank, stream=1) for rank in ranks]
    costs, groups = job.costs, job.work.workgroups
    share = np.array([job.slices(rank).work.sum() for rank in ranks])
    launch = assembly.tasks("launch", main, {"duration_ns": costs.launch_ns})
    columns = {"duration_ns": job.compute_ns * share, "cu": 1.0, "hbm": job.memory_demand, "workgroups": groups}
    columns |= {"priority": 1, "class_": job.work.class_}  # the priority that the fused kernel has
    last = assembly.tasks("compute", main, columns)
    assembly.edges(launch, last)
    if job.cluster.ranks == 1:
        return launch, last
    if job.pack_ns > 0:
        pack = assembly.tasks("pack", main, {"duration_ns": job.pack_ns, "cu": 1.0, "hbm": 1.0, "class_": _COPY})
        assembly.edges(last, pack, lag_ns=costs.launch_ns)
        last = pack
    met = assembly.tasks("all ranks are there", side[0], {"kind": TaskKind.MARK})
    assembly.edges(last, np.repeat(met, len(ranks)), lag_ns=costs.sync_ns, kind=EdgeKind.RENDEZVOUS)
    exchange = assembly.tasks(job.work.collective, side, collective_columns(job))
    assembly.edges(np.repeat(met, len(ranks)), exchange, kind=EdgeKind.RENDEZVOUS)
    done = assembly.tasks("received", main, {"kind": TaskKind.MARK})
    assembly.edges(exchange, done, lag_ns=costs.sync_ns, kind=EdgeKind.WAIT)
    return launch, done


def collective_columns(job: Job) -> dict[str, object]:
    """Return the columns of a job's collective as a library runs it: its demands are averages over its time."""
    size, longest = job.work.output_bytes, max(job.collective_ns, 1.0)
    return {
        "kind": TaskKind.COLLECTIVE,
        "collective": COLLECTIVE_KINDS.index(job.work.collective),
        "duration_ns": job.collective_ns,
        "cu": job.costs.collective_unit_share,
        "hbm": min(2 * size / (job.memory_bytes_per_s * longest * 1e-9), 1.0),
        "link": min(job.wire_ns / longest, 1.0),
        "link_number": job.cluster.network_link if job.cluster.topology.nodes > 1 else -1,
        **{"bytes": int(size), "ranks": job.cluster.ranks},
    }


@dataclass(frozen=True)
class Comparison:
    """Two timelines of one job.

    Parameters
    ----------
    job : Job
        Work, cluster and costs.
    baseline, fused : Timeline
        Simulated separate kernels, and simulated fused kernel.
    """

    job: Job
    baseline: Timeline
    fused: Timeline

    @property
    def saving(self) -> float:
        """Share of the baseline's time that the fused kernel saves: 1 - T_fused / T_baseline."""
        return 1 - self.fused.makespan_ns / self.baseline.makespan_ns

    @property
    def skew(self) -> float:
        """How much earlier than the last the first rank has all that it needs, over the time of the last; fused."""
        named = self.fused.graph.names.index("received")
        ends = self.fused.end_ns[self.fused.graph.tasks.name == named]
        return float(1 - ends.min() / ends.max())


def compare(job: Job, ranks: Sequence[int] | None = None) -> Comparison:
    """Simulate a job both ways.

    Parameters
    ----------
    job : Job
        Work, cluster and costs.
    ranks : sequence of int, optional
        Simulated ranks: all of the cluster, or one if all do the same. By default one if it can stand for all.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.collectives import Topology
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.studies.fused import Cluster, Costs, embedding
    >>> mi210, parameters = find_device("MI210"), load_parameters()
    >>> pair = Cluster(mi210, Topology(2, 1, nics=1))
    >>> work = embedding(mi210, parameters, batch=512, tables=32, pooling=20, dim=128)
    >>> comparison = compare(Job(work, pair, costs=Costs.of(parameters)))
    >>> 0.2 < comparison.saving < 0.6
    True
    """
    return Comparison(job, *(replay(job_graph(add, job, ranks)) for add in (add_baseline, add_fused)))


def job_graph(add: AddJob, job: Job, ranks: Sequence[int] | None = None) -> KernelGraph:
    """Return the graph that `add_baseline` or `add_fused` builds of a job; `ranks` as in `compare`."""
    assembly = Assembly()
    if ranks is None:
        ranks = (0,) if job.schedule.is_symmetric() else range(job.cluster.ranks)
    add(assembly, job, ranks)
    return assembly.graph(job.hardware())
