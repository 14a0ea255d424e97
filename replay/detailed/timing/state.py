"""The state of a timing simulation: all of it in arrays, so that it can be saved and goes on where it was."""

from typing import Any, NamedTuple

import numpy as np

#: Later than any cycle.
NEVER = 1 << 60
#: Elements of `TimingState.rule`.
(
    UNITS, SCHEDULERS, RESIDENT, WARPS, L1_SETS, L1_WAYS, L1_LATENCY, L2_SLICES, L2_SETS, L2_WAYS, L2_RETURN, HOP,
    MEMORY_LATENCY, CHANNELS, BANKS_OF_CHANNEL, BANKS_OF_GROUP, ACCESS_BYTES, SPLIT_AT, GREEDY, BRANCH_AFTER, QUEUE,
    DRAM_WINDOW, SLICE_TENTHS, L1_MISSES, BARRIER_AFTER, CONSTANT_CYCLES, PASS_CYCLES,
) = range(27)  # fmt: skip
#: Elements of `TimingState.now`. FED is the number of blocks whose traces are there.
(
    CYCLE, NEXT_BLOCK, BLOCKS, FED, LEFT, FREE_LOAD, FREE_REQUEST, FREE_WAITER, IN_USE, SPAN_BITS, INSTRUCTIONS,
    LAST_STORE, ORDER, EVENTS, FIRST_BLOCK, OPERATIONS_ISSUED,
) = range(16)  # fmt: skip
#: Columns of `TimingState.warp`: record of the trace, next operation and end of its basic block, cycle from which it
#: may issue, the same by its branches and barriers alone, order of arrival, why it waits, copies on their way of two
#: phases, the phase, and whether it runs or has ended.
RECORD, OPERATION, OPERATIONS_END, AT, AFTER, ARRIVED, REASON, COPIES, _, PHASE, LIVE = range(11)
#: Values of LIVE.
ABSENT, RUNS, ENDED = range(3)
#: Columns of `TimingState.resident`: block, its warps that live and that wait at the barrier, and the cycle it came.
BLOCK_NUMBER, ALIVE, AT_BARRIER, BEGAN = range(4)
#: Columns of `TimingState.scheduler`: cycle at which to look again, last warp, what it did until now and since when;
#: then when each unit is free.
WAKE, LAST_WARP, DID, SINCE, UNIT_FREE = range(5)
#: What a scheduler does in a cycle: it issues, or its warps wait for a unit, a result, memory, a barrier, or are none.
ISSUES, WAITS_UNIT, WAITS_RESULT, WAITS_MEMORY, WAITS_BARRIER, EMPTY = range(6)
#: Columns of `TimingState.pipeline`: when the memory pipeline, the port to L2 and the port from L2 are free (the last
#: in tenths of a cycle), and sectors that are on their way.
PIPELINE, TO_L2, FROM_L2, ON_THEIR_WAY = range(4)
#: Columns of `TimingState.load`: next free one, warp, sectors that are missing, cycle of the last, operation or phase.
FOLLOWING, OF_WARP, MISSING, READY, OF_OPERATION = range(5)
#: Columns of `TimingState.request`: next free one, compute unit, sector, frame of its line in L1 and in L2 (-1 if it
#: has none), first waiter, next request in a list, what happens to it next.
R_FOLLOWING, R_UNIT, R_SECTOR, R_L1, R_L2, R_WAITER, R_NEXT, R_EVENT = range(8)
#: Events.
REPLY, FETCH, FILL, WRITE_BACK = range(4)
#: Columns of the state of a line in L1 and L2: sectors that are there, on their way, and changed, and last use.
VALID, COMING, CHANGED, USED = range(4)
#: Elements of `TimingState.counters`; all but the last four count sectors or instructions.
COUNTERS = (
    "l1_load_hits", "l1_load_misses", "load_sectors", "store_sectors", "l2_read_hits", "l2_read_misses", "l2_writes",
    "dram_read_sectors", "dram_write_sectors", "shared_accesses", "shared_passes", "constant_requests",
    "atomic_accesses", "bypasses",
)  # fmt: skip
(
    L1_LOAD_HITS, L1_LOAD_MISSES, LOAD_SECTORS, STORE_SECTORS, L2_READ_HITS, L2_READ_MISSES, L2_WRITES,
    DRAM_READ_SECTORS, DRAM_WRITE_SECTORS, SHARED_ACCESSES, SHARED_PASSES, CONSTANT_REQUESTS, ATOMIC_ACCESSES, BYPASSES,
) = range(14)  # fmt: skip
#: Windows of time of the series.
WINDOWS = 256


class TimingState(NamedTuple):
    """All arrays of a timing simulation."""

    rule: Any
    now: Any
    warp: Any  #: (warps of the device, 11)
    ready: Any  #: (warps of the device, registers): cycle in which a register can be read
    resident: Any  #: (units, blocks of a unit, 4)
    scheduler: Any  #: (units * schedulers, 4 + execution units)
    pipeline: Any  #: (units, 4)
    l1_line: Any  #: (units * sets * ways): line, -1 for none
    l1_state: Any  #: (units * sets * ways, 4)
    l1_wait: Any  #: (units * sets * ways * 4): first who waits for a sector on its way
    l2_line: Any  #: (slices * sets * ways)
    l2_state: Any  #: (slices * sets * ways, 4)
    l2_wait: Any  #: (slices * sets * ways * 4): first request for a sector on its way
    slice_free: Any  #: (slices,): when a slice is free, in tenths of a cycle
    load: Any
    request: Any
    waiter: Any  #: (n, 2): load that waits, and the next
    ring: Any  #: (cycles,): first event of a cycle
    chain: Any  #: by hash of an address: first request to DRAM
    mapping: Any  #: moves of address bits of the DRAM
    ratio: Any  #: (1,): cycles of the DRAM in a cycle
    counters: Any  #: (14,)
    by_unit: Any  #: (units, 6): cycles of schedulers by what they did
    series: Any  #: (windows, 6): cycles of schedulers by what they did
    unit_series: Any  #: (windows, units): cycles in which a scheduler issued
    slice_series: Any  #: (windows, slices): sectors


class WarpCode(NamedTuple):
    """What the warps of a launch issue: the operations of its basic blocks, and the blocks that each warp goes through.

    The last three belong to an `AssembledKernel`.
    """

    trace: Any  #: records of `replay.detailed.tracing`
    firsts: Any  #: first record of each warp of each block from ``now[FIRST_BLOCK]`` on
    operations: Any
    lists: Any
    blocks: Any


def zeros(*shape: int) -> Any:
    """Return an array of int64 zeros."""
    return np.zeros(shape, dtype=np.int64)
