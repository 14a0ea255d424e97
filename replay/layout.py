"""The arrays that the engine and the sharing work on: a row a task, so that a task is at one place in memory."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.compiled import compiled
from profilers.errors import InvalidInputError
from replay.graph import RESOURCES, TaskKind, Tasks
from replay.policy import SharingPolicy

__all__ = ["COLUMNS", "HBM", "SEAT", "TASK", "Shared", "lay_out"]

#: The resources that are shared max-min, in the order of their columns.
_FAIR = tuple(i for i, name in enumerate(RESOURCES) if name not in ("cu", "power"))
COLUMNS = len(_FAIR)
_MARK = int(TaskKind.MARK)
_CU, _POWER = RESOURCES.index("cu"), RESOURCES.index("power")
HBM, _LINK, _DMA = (_FAIR.index(RESOURCES.index(name)) for name in ("hbm", "link", "dma"))

#: All that a run knows of a task, at one place in memory.
TASK = np.dtype(
    [
        ("left", np.float64),  # work, ns alone
        ("rate", np.float64),
        ("ready", np.float64),
        ("start", np.float64),
        ("end", np.float64),
        ("need", np.float64),  # of the compute units, for full rate
        ("occupies", np.float64),
        ("last", np.float64),  # what its last wave occupies
        ("resident", np.float64),  # with this much of its work left, or less, it is in its last wave
        ("waves", np.float64),
        ("granted", np.float64),  # of the compute units
        ("use", np.float64, COLUMNS),  # of each resource that is shared max-min
        ("footprint", np.float64),
        ("hits", np.float64),
        ("power", np.float64),
        ("device", np.int64),
        ("priority", np.int64),
        ("uses", np.int64),  # the resources that it demands, a bit each
        ("mask", np.int64),  # the partitions that it may run on, a bit each
        ("first", np.int64),  # of the edges that leave it
        ("beyond", np.int64),  # the last of them
        ("waiting", np.int32),  # edges that have not yet fired
        ("let_in", np.int32),
    ]
)
#: What sharing works out for an active task.
SEAT = np.dtype(
    [
        ("wants", np.float64),  # compute units
        ("aside", np.float64),  # of them, what was set aside because it is let in
        ("cap", np.float64),  # of the rate
        ("gets", np.float64),  # 1 where it gets compute units or needs none, else 0
        ("rate", np.float64),  # -1 while it rises
        ("asks", np.float64, COLUMNS),
    ]
)
#: Links and engines that can be told apart: a bit each, beside those that are not named.
_NAMED = 62 - COLUMNS


class Shared(NamedTuple):
    """What sharing reads and writes."""

    rows: Any  #: by task, of `TASK`
    at: Any  #: shape (tasks, `COLUMNS`): which resource each is of; None where every column is one resource
    whole: Any  #: whether there is one partition, of all compute units
    presses: Any  #: whether footprints can exceed the cache
    throttles: Any  #: whether power can exceed the limit
    quantised: Any
    exponent: Any
    partitions: Any  #: by partition: share of the compute units
    pool: Any  #: by partition: what is left
    filled: Any  #: shape (2, resources): what is left of each, and what tasks whose rate still rises ask
    seats: Any  #: by active task, of `SEAT`
    walked: Any  #: room for the active tasks of a timeline that is known


def lay_out(tasks: Tasks, policy: SharingPolicy) -> Shared:
    """Return the rows of tasks, nothing of them done yet, and what sharing needs beside.

    Raises
    ------
    InvalidInputError
        A demand or share is not within 0 to 1, or a task may run on no partition.
    """
    at, resources = _named(tasks)
    rows = np.empty(len(tasks), TASK)
    shares = (tasks.occupies, tasks.waves, tasks.footprint, tasks.hit_share)
    numbers = (tasks.kind, tasks.device, tasks.priority, tasks.cu_mask, tasks.interleaved)
    rules = ((1 << len(policy.partitions)) - 1, policy.in_order)
    wrong, presses, throttles = _write(
        rows, (tasks.duration_ns, tasks.release_ns, tasks.demand), shares, numbers, rules
    )
    if wrong >= 0:
        _complain(tasks, policy, wrong)
    if at is not None:
        rows["uses"] = ((tasks.demand[:, _FAIR] > 0).astype(np.int64) << at).sum(axis=1)
    return Shared(
        rows=rows,
        at=at,
        whole=policy.partitions == (1.0,),
        presses=presses,
        throttles=throttles,
        quantised=policy.quantised,
        exponent=policy.power_exponent,
        partitions=np.array(policy.partitions, dtype=np.float64),
        pool=np.zeros(len(policy.partitions)),
        filled=np.zeros((2, resources)),
        seats=np.zeros(len(tasks), SEAT),
        walked=np.zeros(len(tasks) + 1, np.int64),
    )


@compiled
def _write(rows, times, shares, numbers, rules):  # type: ignore[no-untyped-def]
    """Write the rows; return the first task whose shares are wrong (-1: none), and which of cache and power matter."""
    (duration, release, demand), (occupies, waves, footprint, hits) = times, shares
    kind, device, priority, mask, interleaved = numbers
    allowed, in_order = rules
    presses, throttles = False, False
    for task in range(len(duration)):
        row = rows[task]
        row.left, row.ready, row.rate = duration[task], release[task], 1.0
        row.start, row.end = np.nan, np.nan
        row.granted, row.resident = 0.0, 0.0
        row.first, row.beyond, row.waiting = 0, 0, 0
        row.device = -1 if kind[task] == _MARK else device[task]
        row.priority, row.mask, row.let_in = priority[task], mask[task], interleaved[task] or not in_order
        row.need = demand[task, _CU]
        row.occupies = max(occupies[task], row.need)
        row.last = row.occupies
        row.waves = waves[task]
        if waves[task] > 0.0:
            whole = np.ceil(waves[task] - 1e-9)
            row.resident = duration[task] / max(whole, 1.0)
            row.last *= waves[task] - whole + 1.0 if waves[task] > 1.0 else 1.0
        row.footprint, row.hits, row.power = footprint[task], hits[task], demand[task, _POWER]
        fine = 0.0 <= row.occupies <= 1.0 and row.need >= 0.0 and footprint[task] >= 0.0 and 0.0 <= hits[task] < 1.0
        fine &= 0.0 <= row.power <= 1.0 and waves[task] >= 0.0 and (mask[task] & allowed) != 0
        uses = 0
        for c in range(COLUMNS):
            share = demand[task, _FAIR[c]]
            row.use[c] = share
            fine &= 0.0 <= share <= 1.0
            uses |= (share > 0.0) << c
        row.uses = uses
        if not fine:
            return task, False, False
        presses |= footprint[task] > 0.0 and hits[task] > 0.0
        throttles |= row.power > 0.0
    return -1, presses, throttles


def _complain(tasks: Tasks, policy: SharingPolicy, task: int) -> None:
    if not tasks.cu_mask[task] & ((1 << len(policy.partitions)) - 1):
        raise InvalidInputError(f"task {task} may run on none of the {len(policy.partitions)} partitions")
    names = ("demand", "occupies", "waves", "footprint", "hit_share")
    found = ", ".join(f"{name} {getattr(tasks, name)[task].tolist()}" for name in names)
    raise InvalidInputError(
        f"task {task}: {found}; demands and what it occupies are shares within 0 to 1, hits below 1, waves and "
        "footprint not negative"
    )


def _named(tasks: Tasks) -> tuple[npt.NDArray[np.int64] | None, int]:
    """Return which resource each column of each task is of, and how many there are; None where none is named."""
    links, engines = int(tasks.link.max(initial=-1)) + 1, int(tasks.engine.max(initial=-1)) + 1
    if links <= 0 and engines <= 0:
        return None, COLUMNS
    if links + engines > _NAMED:
        raise InvalidInputError(f"{links} links and {engines} engines; {_NAMED} together can be told apart")
    at = np.tile(np.arange(COLUMNS), (len(tasks), 1))
    at[:, _LINK] = np.where(tasks.link >= 0, COLUMNS + tasks.link, _LINK)
    at[:, _DMA] = np.where(tasks.engine >= 0, COLUMNS + max(links, 0) + tasks.engine, _DMA)
    return at, COLUMNS + max(links, 0) + max(engines, 0)
