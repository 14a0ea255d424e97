"""What sharing works on: the columns of the graph as they are, and a seat for each active task.

A task's columns are read once, when it takes its seat; what is looked at from event to event stands on the seats.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.compiled import compiled
from replay.graph.graph import RESOURCES, SharingPolicy, TaskKind, Tasks

#: The resources that are shared max-min, in the order of their columns.
FAIR = tuple(i for i, name in enumerate(RESOURCES) if name not in ("cu", "power"))
COLUMNS = len(FAIR)
_MARK = int(TaskKind.MARK)
_CU, _POWER = RESOURCES.index("cu"), RESOURCES.index("power")
HBM, _LINK, _DMA = (FAIR.index(RESOURCES.index(name)) for name in ("hbm", "link", "dma"))

#: All that a device knows of an active task, and what sharing works out for it.
SEAT = np.dtype(
    [
        ("task", np.int64),
        ("started", np.int64),
        ("uses", np.int64),  # the resources that it demands, a bit each
        ("left", np.float64),  # work, ns alone
        ("rate", np.float64),  # -1 while it rises
        ("need", np.float64),  # of the compute units, for full rate
        ("occupies", np.float64),
        ("last", np.float64),  # what its last wave occupies
        ("resident", np.float64),  # with this much of its work left, or less, it is in its last wave
        ("wants", np.float64),  # compute units
        ("granted", np.float64),  # of them
        ("aside", np.float64),  # of them, what was set aside because it is let in
        ("cap", np.float64),  # of the rate
        ("counts", np.float64),  # how often what it asks is to be added up: once, not, or taken off (-1)
        ("asks", np.float64, COLUMNS),  # of each resource that is shared max-min, at full rate
    ]
)
#: Links and engines that can be told apart: a bit each, beside those that are not named.
_NAMED = 62 - COLUMNS


class Shared(NamedTuple):
    """What sharing reads and writes."""

    device: Any  #: that a task shares, by task; -1 where it shares none or takes no time
    duration: Any  #: by task, as all that follow
    demand: Any
    occupies: Any
    waves: Any
    footprint: Any
    hits: Any
    priority: Any
    mask: Any  #: the partitions that it may run on, a bit each
    let_in: Any
    at: Any  #: shape (tasks, `COLUMNS`): which resource each is of; None where every column is one resource
    ranks: Any  #: whether priorities differ
    stays: Any  #: whether any task has a last wave
    lets_in: Any  #: whether the dispatcher lets any task in beside others
    presses: Any  #: whether footprints can exceed the cache
    throttles: Any  #: whether power can exceed the limit
    whole: Any  #: whether there is one partition, of all compute units
    in_order: Any
    quantised: Any
    exponent: Any
    partitions: Any  #: by partition: share of the compute units
    pool: Any  #: by partition: what is left
    filled: Any  #: shape (2, resources): what is left of each, and what tasks whose rate still rises ask
    seats: Any  #: of `SEAT`, as many as tasks; those of a device stand together, in the order of dispatch


def lay_out(tasks: Tasks, policy: SharingPolicy) -> Shared:
    """Return what sharing needs to know of tasks, nothing of them done yet.

    Raises
    ------
    InvalidInputError
        A demand or share is not within 0 to 1, or a task may run on no partition.
    """
    at, resources = _named(tasks)
    demand, duration, occupies = plain(tasks.demand), plain(tasks.duration_ns), plain(tasks.occupies)
    waves, footprint, hits = plain(tasks.waves), plain(tasks.footprint), plain(tasks.hit_share)
    priority, mask = plain(tasks.priority, np.int64), plain(tasks.cu_mask, np.int64)
    let_in, device = plain(tasks.interleaved, np.bool_), np.empty(len(tasks), np.int64)
    places = (device, duration, plain(tasks.kind, np.int64), plain(tasks.device, np.int64))
    allowed = (1 << len(policy.partitions)) - 1
    wrong, has = _look(places, (demand, occupies, waves, footprint, hits), (priority, mask, let_in), allowed)
    if wrong >= 0:
        _complain(tasks, policy, wrong)
    ranks, stays, lets_in, presses, throttles = has
    return Shared(
        device=device,
        duration=duration,
        demand=demand,
        occupies=occupies,
        waves=waves,
        footprint=footprint,
        hits=hits,
        priority=priority,
        mask=mask,
        let_in=let_in,
        at=at,
        ranks=ranks,
        stays=stays,
        lets_in=lets_in or not policy.in_order,
        presses=presses,
        throttles=throttles,
        whole=policy.partitions == (1.0,),
        in_order=policy.in_order,
        quantised=policy.quantised,
        exponent=policy.power_exponent,
        partitions=np.array(policy.partitions, dtype=np.float64),
        pool=np.zeros(len(policy.partitions)),
        filled=np.zeros((2, resources)),
        seats=np.empty(len(tasks), SEAT),
    )


def plain(column: npt.NDArray[Any], dtype: type = np.float64) -> npt.NDArray[Any]:
    """Return a column as the one kind of array that the engine is compiled for: a copy only where it is another."""
    return column if column.dtype == dtype and column.flags.carray else np.require(column, dtype, ["C", "A", "W"])


@compiled
def _look(places, shares, numbers, allowed):  # type: ignore[no-untyped-def]
    """Write the device that each task shares; return the first whose shares are wrong (-1: none), and what matters."""
    shared, duration, kind, device = places
    demand, occupies, waves, footprint, hits = shares
    priority, mask, let_in = numbers
    ranks, stays, lets_in, presses, throttles = False, False, False, False, False
    for task in range(len(duration)):
        shared[task] = -1 if kind[task] == _MARK or duration[task] <= 0.0 else device[task]
        need, power = demand[task, _CU], demand[task, _POWER]
        held = max(occupies[task], need)
        fine = (held >= 0.0) & (held <= 1.0) & (need >= 0.0) & (power >= 0.0) & (power <= 1.0)
        fine &= (footprint[task] >= 0.0) & (hits[task] >= 0.0) & (hits[task] < 1.0) & (waves[task] >= 0.0)
        fine &= (mask[task] & allowed) != 0
        for c in range(COLUMNS):
            share = demand[task, FAIR[c]]
            fine &= (share >= 0.0) & (share <= 1.0)
        if not fine:
            return task, (False, False, False, False, False)
        ranks |= priority[task] != priority[0]
        stays |= waves[task] > 0.0
        lets_in |= let_in[task]
        presses |= (footprint[task] > 0.0) & (hits[task] > 0.0)
        throttles |= power > 0.0
    return -1, (ranks, stays, lets_in, presses, throttles)


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
