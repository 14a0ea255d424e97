"""What leaves a slice: a put to another node, or stores to a peer of the node while the slice is computed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.assembly import Assembly, Ints
from replay.graph import EdgeKind, TaskKind
from replay.overlap.fused.job import Job

__all__ = ["Sends", "add_sends", "arrive"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sends:
    """What a rank sends, one row a slice and receiver.

    Parameters
    ----------
    source : array of int64
        The task that computes it.
    offset : array of int64
        Of the receiver (`Cluster`).
    part : array of int64
        Which of the receiver's slices it is.
    size : array of float64
        Bytes.
    task : array of int64
        That sends it; none before `add_sends`.
    """

    source: Ints
    offset: Ints
    part: Ints
    size: Floats
    task: Ints | None = None


def add_sends(work: Assembly, job: Job, rank: int, what: Sends) -> Sends:
    """Append the puts and stores of a rank; return what was sent with its tasks.

    Notes
    -----
    A put starts when its slice is computed; puts go one after another through the device's part of the adapters. They
    read local memory. Stores start with the task that computes the slice, and what the link is behind at its
    end goes on after it; the next task that stores over the link waits for that, since little of it is buffered. Of all
    that is sent, as much arrives from others at the same time, and is written to memory.
    """
    cluster = job.cluster
    far = what.offset >= cluster.devices_per_node
    rate = cluster.bytes_per_s(what.offset) * np.where(far, 1.0, job.costs.store_share)
    link = cluster.links(what.offset)
    if not len(link):
        return Sends(what.source, what.offset, what.part, what.size, np.zeros(0, np.int64))
    columns = {
        "kind": TaskKind.COPY,
        "duration_ns": what.size / rate * 1e9 + np.where(far, job.costs.issue_ns, 0.0),
        "bytes": what.size,
        "hbm": np.minimum(np.where(far, 2.0, 1.0) * rate / job.memory_bytes_per_s, 1.0),
        **{"link": 1.0, "link_number": link},
    }
    task = work.tasks("send", work.lane(device=rank, stream=1), columns)
    work.edges(what.source, task, from_start=~far, kind=EdgeKind.WAIT)
    order = np.argsort(link, kind="stable")
    before, after = order[:-1], order[1:]
    same = link[before] == link[after]
    before, after = before[same], after[same]
    moved = what.source[before] != what.source[after]
    stored = ~far[before] & moved
    if stored.any():
        work.edges(task[before[stored]], what.source[after[stored]])
    if not stored.all():
        work.edges(task[before[~stored]], task[after[~stored]])
    return Sends(what.source, what.offset, what.part, what.size, task)


def arrive(work: Assembly, job: Job, sent: Sends, tasks: Ints, part: Ints | None = None) -> None:
    """Let the receivers' tasks wait for the flags of what was sent.

    Parameters
    ----------
    work : Assembly
    job : Job
    sent : Sends
    tasks : array of int64, shape (n, parts)
        What waits at the receiver of each of the n sends.
    part : array of int64, shape (n,), optional
        Which of its tasks; by default the first.
    """
    if sent.task is None or not len(sent.task):
        return
    waiting = tasks[np.arange(len(tasks)), 0 if part is None else part]
    far = sent.offset >= job.cluster.devices_per_node
    flag = np.where(far, job.costs.put_ns, job.costs.store_ns)
    work.edges(sent.task, waiting, lag_ns=flag, kind=EdgeKind.WAIT)
    work.edges(sent.source, waiting, lag_ns=flag, kind=EdgeKind.WAIT)
