"""The arrays that sharing works on: the task columns of a graph, and a table of the active tasks of every device.

A task is active from its arrival on its device until it is done. Its columns are read once, when it becomes active.
What sharing reads and writes at every event stands in its row of the table `SharingState.active`, where the active
tasks of a device lie side by side.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.compiled import compiled
from replay.engine.units import HOLDING, MAX_HOLDINGS, MAX_UNITS, UNITS
from replay.graph.columns import TASK_COLUMNS
from replay.graph.graph import RESOURCES, TO_HOST, UNIT_COLUMNS, SharingPolicy, TaskKind, Tasks

#: Columns of `RESOURCES` that are shared max-min fair: all but compute units and power. Processing in memory stands in
#: the column of DMA engines, since no task uses both: a further column would slow every graph by 8 %.
FAIR = tuple(i for i, name in enumerate(RESOURCES) if name not in ("cu", "power", "pim"))
N_FAIR = len(FAIR)
#: Positions in `FAIR`.
L2_COLUMN, HBM_COLUMN, LINK_COLUMN, DMA_COLUMN = (
    FAIR.index(RESOURCES.index(name)) for name in ("l2", "hbm", "link", "dma")
)
#: Columns of `RESOURCES`.
CU, POWER, PIM = (RESOURCES.index(name) for name in ("cu", "power", "pim"))
_MARK = int(TaskKind.MARK)

#: A row of the table of active tasks. All compute units are shares of the device's units.
ACTIVE_TASK = np.dtype(
    [
        ("task", np.int64),
        ("started", np.int32),  # 1 once it has run at a rate above 0
        ("waits", np.int16),  # 1 while a collective waits for its peers: it holds units and makes no progress
        ("in_rounds", np.int16),  # 1 if its workgroups run in rounds, and its holdings know the work left
        ("is_placed", np.int16),  # 1 if its workgroups are on units; 0 while it has the device for itself
        ("has_ended", np.int16),  # 1 once it is done while its measured time is not over (`integrate_rates`)
        ("is_let_in", np.int16),  # 1 if it takes units whatever the room
        ("has_waited", np.int16),  # 1 once some of its workgroups found no room
        ("resource_bits", np.int64),  # a bit for each fair resource that it demands
        ("remaining_ns", np.float64),  # work left, in ns at full rate; of a task in rounds only while it is not placed
        ("rate", np.float64),  # progress per ns, 0..1; -1 while `_fill` raises it
        ("needed_cu", np.float64),  # units with which it runs at full rate
        ("occupied_cu", np.float64),  # units that its workgroups fill
        ("per_unit", np.float64),  # workgroups that an empty unit holds
        ("last_wave_cu", np.float64),  # units that its last wave fills
        ("last_wave_ns", np.float64),  # work in its last wave: it runs its last wave once this much or less remains
        ("to_place", np.float64),  # workgroups of a task in rounds that wait for room
        ("running", np.float64),  # workgroups on units
        ("reserved_cu", np.float64),  # units set aside for it as an interleaved task
        ("placed_rate", np.float64),  # rate that the workgroups on units allow
        ("rate_cap", np.float64),  # the same, lowered by all that slows it but for bandwidths
        ("weight", np.float64),  # what `_add_demands` does with its demands: add (1), skip (0) or subtract (-1)
        ("demand", np.float64, N_FAIR),  # demand on each fair resource at full rate
    ]
)
#: Features of `SharingState` in the order in which `_check_columns` writes them.
_FEATURES = ("has_priorities", "has_waves", "has_interleaving", "has_footprints", "has_power", "shares_units")
#: Columns of tasks that sharing reads if the feature beside them is on.
_RARE_COLUMNS = {
    "pressure": "has_pressure",
    "sensitivity": "has_pressure",
    "defers": "has_deferring",
    "unit_compute": "has_crowding",
    "unit_bandwidth": "has_crowding",
    "spins": "has_crowding",
    "memory_part": "has_latency",
    "start_ns": "has_start",
}
#: Columns of tasks that sharing reads, in the order in which `_check_columns` takes them.
_CHECKED = (
    "demand",
    "occupies",
    "waves",
    "footprint",
    "hit_share",
    "priority",
    "cu_mask",
    "interleaved",
    "in_rounds",
    "stays",
    "spreads",
    *UNIT_COLUMNS,
)
#: Links and DMA engines that can be told apart: each takes a bit of `resource_bits`, beside the fair columns and
#: processing in memory.
_MAX_NUMBERED = 61 - N_FAIR

#: Largest part of a duration that passes before the first workgroup.
_MOST_START = 0.9

#: Rows of `SharingState.totals`.
FREE, RISING = 0, 1


class SharingState(NamedTuple):
    """All arrays and settings that sharing reads and writes. Arrays have one row a task if nothing else is said."""

    device: Any  #: device that the task shares; -1 for a host call, a mark or a task without duration
    duration: Any  #: ns alone on the device
    demand: Any  #: shape (tasks, len(RESOURCES)); that of DMA engines holds the demand on processing in memory, too
    occupies: Any
    waves: Any
    footprint: Any
    hit_share: Any
    priority: Any
    cu_mask: Any  #: partitions that the task may run on, a bit each
    interleaved: Any
    in_rounds: Any
    stays: Any
    spreads: Any
    spins: Any
    takes: Any  #: share of each limit of a unit that a workgroup takes, four arrays
    unit_compute: Any
    unit_bandwidth: Any
    memory_part: Any
    start_ns: Any  #: of one element if no task has any
    pressure: Any
    sensitivity: Any
    defers: Any
    resource_of: Any  #: shape (tasks, `N_FAIR`): resource of each fair column; None if every column is one resource
    has_priorities: Any  #: whether priorities differ
    has_waves: Any  #: whether any task has a known number of waves
    has_interleaving: Any  #: whether any task is interleaved
    has_footprints: Any  #: whether footprints can exceed the cache
    has_power: Any  #: whether any task has a power demand
    shares_units: Any  #: whether any workgroup takes less than a whole unit
    has_start: Any  #: whether some time passes before the first workgroup of a task
    has_latency: Any  #: whether memory under load, or the pressure of others, makes tasks take longer
    has_crowding: Any  #: whether workgroups on a unit share its arithmetic or its bandwidth
    has_pressure: Any  #: whether any task puts pressure on others that they feel
    has_deferring: Any  #: whether accesses of memory by some tasks yield to those of others
    has_waiting: Any  #: whether any collective may wait for its peers
    is_undivided: Any  #: whether there is one partition, of all compute units
    in_order: Any  #: as in `SharingPolicy`
    waiting_pressure: Any
    spin_weight: Any
    deferred_share: Any
    power_exponent: Any
    peer_links: Any  #: first of the resources that are links to peers, and the one behind the last
    partitions: Any  #: share of the compute units of each partition
    units: Any  #: table of `UNITS`, `MAX_UNITS` rows a device
    n_units: Any  #: by device: classes of units
    holdings: Any  #: table of `HOLDING`, `MAX_HOLDINGS` rows a device
    n_holdings: Any  #: by device
    totals: (
        Any  #: shape (2, resources): share of each fair resource that is `FREE`; demand of tasks with a `RISING` rate
    )
    active: Any  #: table of `ACTIVE_TASK`, one row a task; rows of one device adjoin, in the order of dispatch


def lay_out(tasks: Tasks, policy: SharingPolicy) -> SharingState:
    """Return the sharing state of tasks before any of them is active.

    Raises
    ------
    InvalidInputError
        A demand or share is not within 0 to 1, or a task may run on no partition, or it demands both DMA engines and
        processing in memory.
    """
    in_memory = np.flatnonzero(tasks.demand[:, PIM])
    resource_of, n_resources, peer_links = _numbered_resources(tasks, in_memory)
    rare, has_rare = _rare_columns(tasks, policy)
    columns = {name: plain(getattr(tasks, name), TASK_COLUMNS[name].dtype) for name in _CHECKED}
    columns["demand"] = _with_pim(columns["demand"]) if len(in_memory) else columns["demand"]
    given = tuple(columns.values())
    device, duration = np.empty(len(tasks), np.int64), plain(tasks.duration_ns)
    placement = (device, duration, plain(tasks.kind, np.int64), plain(tasks.device, np.int64))
    invalid, features = _check_columns(placement, given, (1 << len(policy.partitions)) - 1)
    if invalid >= 0:
        _refuse(tasks, policy, invalid)
    if has_rare["has_start"]:
        rare["start_ns"] = np.where(device >= 0, starts(rare["start_ns"], duration), 0.0)
        duration = duration - rare["start_ns"]
    takes = tuple(columns.pop(name) for name in UNIT_COLUMNS)
    return SharingState(
        **columns,
        takes=takes,
        **rare,
        **has_rare,
        **dict(zip(_FEATURES, features, strict=True)),
        has_waiting=False,  # the tasks alone do not tell
        device=device,
        duration=duration,
        resource_of=resource_of,
        is_undivided=policy.partitions == (1.0,),
        in_order=policy.in_order,
        waiting_pressure=policy.waiting_pressure,
        spin_weight=policy.spin_weight,
        deferred_share=policy.deferred_share,
        peer_links=peer_links,
        power_exponent=policy.power_exponent,
        partitions=np.array(policy.partitions, dtype=np.float64),
        **_places(device, len(policy.partitions)),
        totals=np.zeros((2, n_resources)),
        active=np.empty(len(tasks), ACTIVE_TASK),
    )


def starts(start_ns: Floats, duration_ns: Floats) -> Floats:
    """Return the time before the first workgroup of each task, at most 0.9 of its duration."""
    return np.minimum(start_ns, _MOST_START * duration_ns)


def _rare_columns(tasks: Tasks, policy: SharingPolicy) -> tuple[dict[str, npt.NDArray[Any]], dict[str, bool]]:
    """Return the rare columns, of one element if their feature is off, and which features are on."""
    is_felt = bool(tasks.pressure.any() and tasks.sensitivity.any())
    features = {
        "has_pressure": is_felt,
        "has_start": bool(tasks.start_ns.any()),
        "has_latency": bool(tasks.memory_part.any()) or is_felt,
        "has_crowding": bool(tasks.unit_compute.any() or tasks.unit_bandwidth.any() or tasks.spins.any()),
        "has_deferring": policy.deferred_share > 0 and bool(tasks.defers.any()),
    }
    columns = {}
    for name, feature in _RARE_COLUMNS.items():
        column = getattr(tasks, name)
        if not (column >= 0.0).all():
            task = int(np.argmin(column >= 0.0))
            raise InvalidInputError(f"task {task}: {name} {column[task]}; it must not be negative")
        columns[name] = plain(column) if features[feature] else np.zeros(1)
    return columns, features


def _places(device: Ints, partitions: int) -> dict[str, npt.NDArray[Any]]:
    """Return empty tables of units and holdings for each device."""
    devices = max(int(device.max(initial=-1)) + 1, 1)
    return {
        "units": np.zeros(devices * MAX_UNITS, UNITS),
        "n_units": np.zeros(devices, np.int64),
        "holdings": np.zeros(devices * MAX_HOLDINGS, HOLDING),
        "n_holdings": np.zeros(devices, np.int64),
    }


def _with_pim(demand: Floats) -> Floats:
    """Return demands with those on processing in memory in the column of DMA engines, too."""
    pim, dma = demand[:, PIM], FAIR[DMA_COLUMN]
    both = (pim != 0.0) & (demand[:, dma] != 0.0)
    if both.any():
        raise InvalidInputError(f"task {np.argmax(both)} demands both DMA engines and processing in memory")
    merged = demand.copy()
    merged[:, dma] += pim
    return merged


def plain(column: npt.NDArray[Any], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return a column in the layout that the engine is compiled for; copied only if its layout or type differs."""
    return column if column.dtype == dtype and column.flags.carray else np.require(column, dtype, ["C", "A", "W"])


@compiled
def _check_columns(placement, columns, all_partitions):  # type: ignore[no-untyped-def]
    """Write the device that each task shares, and check the columns.

    Return the first task with an invalid value (-1: none), and which `_FEATURES` of sharing the tasks use.
    """
    shared_device, duration, kind, device = placement
    demand, occupies, waves, footprint, hit_share, priority, cu_mask, interleaved = columns[:8]
    threads, registers, shared, slots = columns[11:]
    has_priorities = has_waves = has_interleaving = has_footprints = has_power = shares_units = False
    for task in range(len(duration)):
        shared_device[task] = -1 if kind[task] == _MARK or duration[task] <= 0.0 else device[task]
        needed, power = demand[task, CU], demand[task, POWER]
        occupied = max(occupies[task], needed)
        valid = (occupied >= 0.0) & (occupied <= 1.0) & (needed >= 0.0) & (power >= 0.0) & (power <= 1.0)
        valid &= (footprint[task] >= 0.0) & (hit_share[task] >= 0.0) & (hit_share[task] < 1.0) & (waves[task] >= 0.0)
        valid &= (cu_mask[task] & all_partitions) != 0
        for c in range(N_FAIR):
            share = demand[task, FAIR[c]]
            valid &= (share >= 0.0) & (share <= 1.0)
        if not valid:
            return task, (False, False, False, False, False, False)
        has_priorities |= priority[task] != priority[0]
        has_waves |= waves[task] > 0.0
        has_interleaving |= interleaved[task]
        has_footprints |= (footprint[task] > 0.0) & (hit_share[task] > 0.0)
        has_power |= power > 0.0
        shares_units |= min(threads[task], registers[task], shared[task], slots[task]) < 1.0
    return -1, (has_priorities, has_waves, has_interleaving, has_footprints, has_power, shares_units)


def _refuse(tasks: Tasks, policy: SharingPolicy, task: int) -> None:
    """Raise the error that says which value of a task is invalid."""
    if not tasks.cu_mask[task] & ((1 << len(policy.partitions)) - 1):
        raise InvalidInputError(f"task {task} may run on none of the {len(policy.partitions)} partitions")
    names = ("demand", "occupies", "waves", "footprint", "hit_share")
    values = ", ".join(f"{name} {getattr(tasks, name)[task].tolist()}" for name in names)
    raise InvalidInputError(
        f"task {task}: {values}; demand and occupies must be within 0 to 1, hit_share below 1, waves and "
        "footprint not negative"
    )


def _numbered_resources(
    tasks: Tasks, in_memory: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.int64] | None, int, tuple[int, int]]:
    """Return the resource of each fair column of each task, the number of resources, and the range of peer links.

    Resources after the fair columns are the numbered links, then the numbered DMA engines, then processing in memory.
    The first result is None if no task names a link or engine, or demands processing in memory (rows `in_memory`).
    """
    links, engines = int(tasks.link.max(initial=-1)) + 1, int(tasks.engine.max(initial=-1)) + 1
    if links <= 0 and engines <= 0 and not len(in_memory):
        return None, N_FAIR, (N_FAIR, N_FAIR)
    if links + engines > _MAX_NUMBERED:
        raise InvalidInputError(f"{links} links and {engines} engines; {_MAX_NUMBERED} together can be told apart")
    resource_of = np.tile(np.arange(N_FAIR), (len(tasks), 1))
    resource_of[:, LINK_COLUMN] = np.where(tasks.link >= 0, N_FAIR + tasks.link, LINK_COLUMN)
    resource_of[:, DMA_COLUMN] = np.where(tasks.engine >= 0, N_FAIR + max(links, 0) + tasks.engine, DMA_COLUMN)
    n_resources = N_FAIR + max(links, 0) + max(engines, 0)
    resource_of[in_memory, DMA_COLUMN] = n_resources
    peers = (min(N_FAIR + TO_HOST + 1, N_FAIR + max(links, 0)), N_FAIR + max(links, 0))
    return resource_of, n_resources + 1, peers
