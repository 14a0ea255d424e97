"""The fused kernel: persistent workgroups that send each slice of their output as soon as it is computed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.assembly import Assembly, Ints
from replay.graph import TaskKind
from replay.overlap.fused.job import Job
from replay.overlap.fused.schedule import Slices
from replay.overlap.fused.sending import Sends, add_sends, arrive

__all__ = ["add_fused"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Rank:
    """What a rank computes, the task of each slice, and what it sends."""

    rank: int
    slices: Slices
    chunks: Ints
    sends: Sends


def add_fused(work: Assembly, job: Job, ranks: Sequence[int]) -> tuple[Ints, Ints]:
    """Append a job as one persistent kernel; return the first and the last task of each rank.

    Parameters
    ----------
    work : Assembly
    job : Job
    ranks : sequence of int
        That are simulated: all, or one that stands for all. Of one, what it sends to an offset stands for what comes
        to it from the opposite one.

    Notes
    -----
    The kernel holds all compute units until its last slice. Its workgroups come in waves of those that are resident,
    fewer by the loss of occupancy, and a slice is done with the wave of its last workgroup; the rate falls as much as
    the occupancy, which is the most that it can. How slices are sent is in
    `replay.overlap.fused.sending`. An all-reduce of two shots sends each slice to the rank that owns it, which sums
    it and sends it to all; of one shot, each slice to all ranks, and each of them sums.
    """
    lanes = [work.lane(device=rank) for rank in ranks]
    launch = work.tasks("launch", lanes, {"duration_ns": job.costs.launch_ns})
    members = []
    for place, rank in enumerate(ranks):  # at most a few hundred ranks: more are one that stands for all
        slices = job.slices(rank)
        chunks = _compute(work, job, rank, slices)
        work.edges(launch[place], chunks[0])
        members.append(_Rank(rank, slices, chunks, _send(work, job, rank, (slices, chunks))))
    done = work.tasks("received", lanes, {"kind": TaskKind.MARK})
    for place, one in enumerate(members):
        work.edges(one.chunks[-1], done[place])
    if job.work.collective == "all_to_all" or job.cluster.ranks == 1:
        for one in members:
            arrive(work, job, one.sends, _receivers(job, ranks, one.rank, one.sends.offset, done[:, None]))
    else:
        _reduce(work, job, members, done)
    return launch, done


def _receivers(job: Job, ranks: Sequence[int], rank: int, offset: Ints, tasks: Ints) -> Ints:
    """Return the rows of `tasks`, one a simulated rank, of the receivers at `offset` from `rank`."""
    rows = np.zeros_like(offset) if len(ranks) == 1 else job.cluster.receiver(rank, offset)
    return np.asarray(tasks[rows])


def _compute(work: Assembly, job: Job, rank: int, slices: Slices) -> Ints:
    """Append the computation, and return which task ends each slice: those that end with one wave share a task."""
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
    chunks = work.tasks("slices", work.lane(device=rank), columns)
    work.chain(chunks)
    return chunks[which]


def _unwritten_ns(job: Job, slices: Slices) -> Floats:
    """Return the time that writing each slice to memory would take, where memory is the limit and it is not written.

    What goes to a peer of the node is stored there, not here.
    """
    inside = (slices.offset > 0) & (slices.offset < job.cluster.devices_per_node)
    if job.in_one_shot or not job.memory_bound:
        return np.zeros(len(slices))
    return np.where(inside, slices.work * job.work.output_bytes / job.memory_bytes_per_s * 1e9, 0.0)


def _send(work: Assembly, job: Job, rank: int, computed: tuple[Slices, Ints]) -> Sends:
    """Append what sends the slices on: in one shot each to everybody, otherwise each to its own destination."""
    slices, chunks = computed
    if job.in_one_shot:
        return _to_all(work, job, rank, (chunks, slices.work))
    row = np.flatnonzero(slices.offset > 0)
    what = Sends(chunks[row], slices.offset[row], slices.part[row], slices.work[row] * job.work.output_bytes)
    return add_sends(work, job, rank, what)


def _to_all(work: Assembly, job: Job, rank: int, computed: tuple[Ints, Floats]) -> Sends:
    """Append what sends each slice to every other rank."""
    tasks, share = computed
    others = np.arange(1, job.cluster.ranks)
    row = np.repeat(np.arange(len(tasks)), len(others))
    what = Sends(tasks[row], np.tile(others, len(tasks)), row, share[row] * job.work.output_bytes)
    return add_sends(work, job, rank, what)


def _reduce(work: Assembly, job: Job, members: Sequence[_Rank], done: Ints) -> None:
    """Append the sums of what came from all ranks, and in two shots what sends them on.

    The kernel's own workgroups sum, between slices, so the sums need memory but no compute units beside the kernel's.
    """
    ranks, sums = [one.rank for one in members], []
    for one in members:
        own = np.flatnonzero(one.slices.offset == 0)
        read = (job.cluster.ranks + 1) * one.slices.work[own] * job.work.output_bytes
        columns = {"duration_ns": read / job.memory_bytes_per_s * 1e9, "hbm": 1.0, "bytes": read}
        sums.append(work.tasks("sum", work.lane(device=one.rank, stream=2), columns))
        work.edges(one.chunks[own], sums[-1])
        work.chain(sums[-1])
    table = np.stack(sums)
    for place, one in enumerate(members):
        arrive(work, job, one.sends, _receivers(job, ranks, one.rank, one.sends.offset, table), one.sends.part)
        work.edges(sums[place][-1], done[place])
        if not job.in_one_shot:
            own = np.flatnonzero(one.slices.offset == 0)
            sent = _to_all(work, job, one.rank, (sums[place], one.slices.work[own]))
            arrive(work, job, sent, _receivers(job, ranks, one.rank, sent.offset, done[:, None]))
