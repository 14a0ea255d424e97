"""The baseline: a kernel that computes, one that packs, and a library's collective, one after another."""

from collections.abc import Sequence

import numpy as np

from profilers.kernels import CLASSES
from replay.assembly import Assembly, Ints
from replay.graph import COLLECTIVE_KINDS, EdgeKind, TaskKind
from replay.overlap.fused.job import Job
from replay.parameters import load_parameters

__all__ = ["add_baseline", "collective_columns"]

_COPY = CLASSES.index("copy")


def add_baseline(work: Assembly, job: Job, ranks: Sequence[int]) -> tuple[Ints, Ints]:
    """Append a job as separate kernels; return the first and the last task of each rank.

    Parameters
    ----------
    work : Assembly
    job : Job
    ranks : sequence of int
        That are simulated: all, or one that stands for all.

    Notes
    -----
    Each kernel starts a launch after what it waits for. The collective runs on a stream of its own: it waits for the
    computation, and what comes after waits for it, each time by an event. It starts when the last rank has come.
    """
    main = [work.lane(device=rank) for rank in ranks]
    side = [work.lane(device=rank, stream=1) for rank in ranks]
    costs, groups = job.costs, job.work.workgroups
    share = np.array([job.slices(rank).work.sum() for rank in ranks])
    launch = work.tasks("launch", main, {"duration_ns": costs.launch_ns})
    columns = {"duration_ns": job.compute_ns * share, "cu": 1.0, "hbm": job.memory_demand, "workgroups": groups}
    columns |= {"priority": 1, "class_": job.work.class_}  # the priority that the fused kernel has
    last = work.tasks("compute", main, columns)
    work.edges(launch, last)
    if job.cluster.ranks == 1:
        return launch, last
    if job.pack_ns > 0:
        pack = work.tasks("pack", main, {"duration_ns": job.pack_ns, "cu": 1.0, "hbm": 1.0, "class_": _COPY})
        work.edges(last, pack, lag_ns=costs.launch_ns)
        last = pack
    met = work.tasks("all ranks are there", side[0], {"kind": TaskKind.MARK})
    work.edges(last, np.repeat(met, len(ranks)), lag_ns=costs.sync_ns, kind=EdgeKind.RENDEZVOUS)
    exchange = work.tasks(job.work.collective, side, collective_columns(job))
    work.edges(np.repeat(met, len(ranks)), exchange, kind=EdgeKind.RENDEZVOUS)
    done = work.tasks("received", main, {"kind": TaskKind.MARK})
    work.edges(exchange, done, lag_ns=costs.sync_ns, kind=EdgeKind.WAIT)
    return launch, done


def collective_columns(job: Job) -> dict[str, object]:
    """Return the columns of a job's collective as a library runs it: its demands are what it carries over its time."""
    size, longest = job.work.output_bytes, max(job.collective_ns, 1.0)
    return {
        "kind": TaskKind.COLLECTIVE,
        "collective": COLLECTIVE_KINDS.index(job.work.collective),
        "duration_ns": job.collective_ns,
        "cu": load_parameters()["cu_share_collective"],
        "hbm": min(2 * size / (job.memory_bytes_per_s * longest * 1e-9), 1.0),
        "link": min(job.wire_ns / longest, 1.0),
        "link_number": job.cluster.network_link if job.cluster.topology.nodes > 1 else -1,
        **{"bytes": int(size), "ranks": job.cluster.ranks},
    }
