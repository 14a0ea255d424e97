"""The host's side of a graph: calls in order on their threads, handoffs between threads, and calls that block.

`blocked_calls` finds the device work that each blocking call waited for, as recorded or as times tell. `loader_calls`
and `add_batches` model the input pipeline. `add_host` appends the tasks of calls, `add_returns` the edges from device
work back to the host.
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Bools, Ints
from replay.from_trace.host_waits import SYNCHRONISES
from replay.from_trace.window import BRANCHES, Window, WindowCalls
from replay.graph.assembly import Assembly
from replay.graph.graph import LOADER_PREFIX, LOADER_THREAD, EdgeKind, Lane, TaskKind

#: Names of calls that can wait for the device; device work that ends inside a call shows that it did.
_MAY_BLOCK = f"{SYNCHRONISES}|Memcpy|Free"
#: Time that a blocking call takes if no work is left to wait for (ns; assumed, the same for every call).
_ISSUE_NS = 1000
#: Names of calls that wait for all work launched before.
_WAITS_FOR_ALL = r"(?:Device|Ctx|Context)Synchronize"


@dataclass(frozen=True)
class Blocking:
    """For each call, the row of device work that it waits for (-1 for none), and the kind of that edge.

    `blocked` tells whether the call was still waiting when that work ended. `issue_ns` is how long the call takes if
    there is nothing to wait for. `calls` and `ended` are pairs of a synchronisation, and further work that it waits for
    and that ended earlier.
    """

    waits_for: Ints
    kind: Ints
    issue_ns: Ints
    blocked: npt.NDArray[np.bool_]
    calls: Ints
    ended: Ints


@dataclass(frozen=True)
class _Sync:
    """A recorded synchronisation: the stream waited for, None for all, and the launch time up to which work counts."""

    stream: int | None = None
    until: int = int(np.iinfo(np.int64).max)


def blocked_calls(window: Window) -> Blocking:
    """Return the device work that each call waited for: the last that ends inside the call.

    A recorded synchronisation names its stream, and for an event the time up to which work counts. A synchronisation
    of the device waits for all work. For other calls any work counts: a copy, a free, a stream's synchronisation
    without a record. A synchronisation with a known stream waits for the last work launched on it, even if that was
    done before. A call that found its launch queue full waits for no end, but for a start (`WindowCalls.freed_by`).
    """
    calls, device_work = window.calls, window.device_work
    waits_for, kind = np.full(len(calls), -1), np.full(len(calls), int(EdgeKind.SYNC_INFERRED))
    issue_ns, waits_for_all = np.full(len(calls), _ISSUE_NS), window.calls_named(_WAITS_FOR_ALL)
    kind[waits_for_all] = int(EdgeKind.SYNC)
    recorded = _recorded_syncs(window)
    kind[list(recorded)] = int(EdgeKind.SYNC)
    order = np.argsort(device_work.end, kind="stable")
    columns = (device_work.end, device_work.rank, device_work.stream, window.launched())
    end, rank, stream, launched = (column[order] for column in columns)
    candidates = np.flatnonzero(window.calls_named(_MAY_BLOCK) & (calls.unblocked == 0))
    low, high = (np.searchsorted(end, times[candidates], side="right") for times in (calls.start, calls.end))
    ranges = np.stack([candidates, low, high], axis=1)[high > low]
    for row, first, last in ranges.tolist():  # a Python loop over calls inside which work ends, about 10 us each
        sync = recorded.get(row, _Sync())
        is_possible = rank[first:last] == calls.rank[row]
        is_possible &= launched[first:last] <= min(sync.until, int(calls.start[row]))
        if sync.stream is not None:
            is_possible &= stream[first:last] == sync.stream
        if is_possible.any():
            waits_for[row] = order[first + int(np.flatnonzero(is_possible)[-1])]
    polled = (waits_for < 0) & (calls.polled_inside >= 0)
    waits_for[polled], kind[polled] = calls.polled_inside[polled], int(EdgeKind.POLL)
    syncs = {**dict.fromkeys(np.flatnonzero(waits_for_all).tolist(), _Sync()), **recorded}
    inferred = np.setdiff1d(np.flatnonzero(waits_for >= 0), [*syncs, *np.flatnonzero(polled)])
    places = zip(inferred.tolist(), device_work.stream[waits_for[inferred]].tolist(), strict=True)
    pairs = _work_ended_before(window, syncs | {row: _Sync(stream) for row, stream in places})
    blocked = waits_for >= 0
    # A synchronisation that did not block waits for the last work that had ended before.
    order = np.lexsort((device_work.end[pairs[1]], pairs[0]))
    order = order[~blocked[pairs[0][order]]]
    waits_for[pairs[0][order]] = pairs[1][order]  # of several, the last stays
    is_other = pairs[1] != waits_for[pairs[0]]
    return Blocking(waits_for, kind, issue_ns, blocked, pairs[0][is_other], pairs[1][is_other])


def _work_ended_before(window: Window, syncs: dict[int, _Sync]) -> tuple[Ints, Ints]:
    """Return pairs of a synchronisation and the last work launched before it on each stream that it waits for.

    Work that ran beside that last work, as branches of a graph do, is waited for too.
    """
    calls, device_work, launched = window.calls, window.device_work, window.launched()
    streams: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    for stream_of_rank, rows in window.stream_rows.items():
        by_launch = rows[np.argsort(launched[rows], kind="stable")]
        streams[stream_of_rank] = (by_launch, launched[by_launch])
    pairs: list[tuple[int, int]] = []
    for call, sync in sorted(syncs.items()):  # a few streams a synchronisation, 2 us each
        until = min(sync.until, int(calls.start[call]))
        for (rank, stream), (rows, times) in streams.items():
            if rank != calls.rank[call] or sync.stream not in (None, stream):
                continue
            before = int(np.searchsorted(times, until, side="right")) - 1
            if before >= 0:
                recent = rows[max(before - BRANCHES, 0) : before + 1]
                beside = (device_work.end[recent] > device_work.start[rows[before]]) | (recent == rows[before])
                waited = recent[beside & (device_work.end[recent] <= calls.end[call])]
                pairs += [(call, row) for row in waited.tolist()]
    columns = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _recorded_syncs(window: Window) -> dict[int, _Sync]:
    """Return the recorded synchronisations by row of their call; without a recorded stream a call is left out."""
    syncs = window.index.syncs
    by_call: dict[int, _Sync] = {}
    for call, row in zip(*(side.tolist() for side in syncs.by_call.pairs(window.calls.id)), strict=True):
        kind, stream, source = syncs.kind[row], int(syncs.stream[row]), int(syncs.source[row])
        if kind == "Context Sync":
            by_call[call] = _Sync()
        elif kind == "Stream Sync" and max(stream, source) >= 0:
            by_call[call] = _Sync(stream if stream >= 0 else source)
        elif kind == "Event Sync" and source >= 0 and syncs.recorded_ns[row] != MISSING:
            by_call[call] = _Sync(source, int(syncs.recorded_ns[row]) - window.origin_ns)
    return by_call


#: An input pipeline in other processes hands over a ready batch in 0.07 to 0.12 ms in the traces at hand. A call that
#: takes this long (ns) waited for its batch.
_WAITED_NS = 500_000
#: Part of the name of such a pipeline's calls.
_IN_OTHER_PROCESSES = "MultiProcessing"


def loader_calls(window: Window) -> tuple[Bools, Bools]:
    """Return the mask of calls that load a batch, and of the calls that waited for a pipeline in other processes.

    A pipeline in the host's own process makes its batch inside the call, which is work of the host.
    """
    calls = window.calls
    loads_batch = window.calls_named(f"^{re.escape(LOADER_PREFIX)}") & (not window.index.on_host_alone)
    is_long = calls.end - calls.start >= _WAITED_NS
    return loads_batch, loads_batch & window.calls_named(_IN_OTHER_PROCESSES) & is_long


def add_batches(assembly: Assembly, window: Window, waited: Ints, tasks: tuple[Ints, Ints]) -> None:
    """Append a mark for each batch; a call that waited for its batch returns at its mark.

    The time between two batches is the time between the returns of two calls that waited, since the pipeline then had
    no batch in store. The pipeline keeps this pace however fast the host is.
    """
    calls, (begin, done) = window.calls, tasks
    for rank in window.ranks:
        of_rank = waited[calls.rank[waited] == rank]
        if not len(of_rank):
            continue
        of_rank = of_rank[np.argsort(calls.end[of_rank], kind="stable")]
        lane = assembly.number_lane(Lane(rank, None, LOADER_THREAD))
        ready = assembly.tasks("batch is ready", lane, mark_columns(calls.end[of_rank], calls.iteration[of_rank]))
        assembly.release(ready[:1], calls.end[of_rank[:1]])
        assembly.edges(ready[:-1], ready[1:], lag_ns=np.diff(calls.end[of_rank]), kind=EdgeKind.LOADER)
        assembly.edges(ready, done[of_rank], kind=EdgeKind.LOADER)
        assembly.edges(begin[of_rank], done[of_rank], kind=EdgeKind.HOST)


def mark_columns(time_ns: npt.ArrayLike, iteration: npt.ArrayLike) -> dict[str, npt.ArrayLike]:
    """Return the columns of marks, which stand for no event, at their measured times."""
    return {
        "kind": int(TaskKind.MARK),
        "measured_start_ns": time_ns,
        "measured_end_ns": time_ns,
        "iteration": iteration,
        "event": -1,
    }


#: A thread is taken to have waited for another thread whose calls fill at least this share of its gap.
_HANDOFF_SHARE = 0.5
_HANDOFF_CALLS = 2
_HANDOFF_SEEN = 64


#: Mark of the end of a step, row of the device work for which the host polled before it, and the lag between, ns.
Poll = tuple[int, int, int]


@dataclass(frozen=True)
class HostTasks:
    """Tasks at which each call begins and returns; -1 for calls that are left out."""

    begin: Ints
    done: Ints
    issued: Ints  #: when the task of `begin` ends, ns from the origin
    blocking: Blocking
    polls: list[Poll]


def add_host(assembly: Assembly, window: Window) -> HostTasks:
    """Append the host's tasks and the order among them; the time between calls becomes the lag of an edge.

    Calls that neither launch, nor wait, nor load a batch are part of the time between other calls.
    """
    calls, device_work = window.calls, window.device_work
    blocking = blocked_calls(window)
    launching = np.zeros(len(calls), dtype=bool)
    launching[device_work.launch[device_work.launch >= 0]] = True
    is_load, waited_for_batch = loader_calls(window)
    held = calls.freed_by >= 0
    blocking.issue_ns[held] = calls.unblocked[held]
    waits = (blocking.waits_for >= 0) | waited_for_batch | held
    kept = np.flatnonzero(launching | waits | is_load) if len(device_work) else np.arange(len(calls))
    issued = np.where(waits, np.minimum(calls.end, calls.start + blocking.issue_ns), calls.end)
    tasks = _add_calls(assembly, window, kept, (waits, issued))
    _order_calls(assembly, window, kept, tasks)
    polls = _mark_step_ends(assembly, window, kept, tasks)
    add_batches(assembly, window, np.flatnonzero(waited_for_batch), tasks)
    return HostTasks(*tasks, issued, blocking, polls)


def _add_calls(
    assembly: Assembly, window: Window, kept: Ints, timing: tuple[npt.NDArray[np.bool_], Ints]
) -> tuple[Ints, Ints]:
    """Append a task for each call, and after each call that waits a mark for its return."""
    calls, (waits, issued) = window.calls, timing
    rows = np.repeat(kept, 1 + waits[kept])
    is_return = np.zeros(len(rows), dtype=bool)
    is_return[1:] = rows[1:] == rows[:-1]
    names = window.index.calls.names
    name = np.zeros(len(rows), dtype=np.int64)
    name[~is_return] = assembly.number_names(calls.name[rows[~is_return]], names)
    name[is_return] = assembly.number_names(calls.name[rows[is_return]], names, " returns")
    numbers = assembly.tasks(
        name,
        _thread_lanes(assembly, calls, rows),
        {
            "kind": np.where(is_return, int(TaskKind.MARK), int(TaskKind.HOST)),
            "measured_start_ns": np.where(is_return, calls.end[rows], calls.start[rows]),
            "measured_end_ns": np.where(is_return, calls.end[rows], issued[rows]),
            "event": np.maximum(calls.id[rows], -1),
            "iteration": calls.iteration[rows],
        },
    )
    begin, done = np.full(len(calls), -1), np.full(len(calls), -1)
    begin[rows[~is_return]] = done[rows[~is_return]] = numbers[~is_return]
    done[rows[is_return]] = numbers[is_return]
    return begin, done


def _thread_lanes(assembly: Assembly, calls: WindowCalls, rows: Ints) -> Ints:
    """Return the lane of each row; lanes are numbered in the order in which threads first appear."""
    if not len(rows):
        return rows
    threads = np.stack([calls.rank[rows], calls.thread[rows]], axis=1)
    distinct, first, index = np.unique(threads, axis=0, return_index=True, return_inverse=True)
    lanes = np.zeros(len(distinct), dtype=np.int64)
    for number in np.argsort(first).tolist():  # a few threads
        lanes[number] = assembly.number_lane(Lane(int(distinct[number, 0]), None, int(distinct[number, 1])))
    return lanes[index.ravel()]


def _order_calls(assembly: Assembly, window: Window, kept: Ints, tasks: tuple[Ints, Ints]) -> None:
    """Append the edges between the calls of each thread, and the handoffs between threads."""
    calls, (begin, done) = window.calls, tasks
    before, neighbour = _calls_before(calls, kept)
    source, kind = _handoff_sources(window, kept, before, neighbour)
    has_before, has_source = np.flatnonzero(before >= 0), np.flatnonzero(source >= 0)
    first, second = kept[before[has_before]], kept[has_before]
    inside = calls.start[second] < calls.end[first]  # one call inside another
    is_explained = (source[has_before] >= 0) | (calls.polled_before[second] >= 0)
    pause = np.where(is_explained, 0, calls.start[second] - calls.end[first])
    assembly.edges(
        np.where(inside, begin[first], done[first]),
        begin[second],
        lag_ns=np.where(inside, calls.start[second] - calls.start[first], pause),
        kind=EdgeKind.HOST,
        from_start=inside,
    )
    first_of_handoff, second_of_handoff = kept[source[has_source]], kept[has_source]
    handoff_lag = np.where(
        calls.polled_before[second_of_handoff] >= 0, 0, calls.start[second_of_handoff] - calls.end[first_of_handoff]
    )
    assembly.edges(done[first_of_handoff], begin[second_of_handoff], lag_ns=handoff_lag, kind=kind[has_source])
    unordered = kept[(before < 0) & (source < 0)]
    assembly.release(begin[unordered], calls.start[unordered])


def _handoff_sources(window: Window, kept: Ints, before: Ints, neighbour: Ints) -> tuple[Ints, Ints]:
    """Return for each call the other thread's call that it continued after, -1 for none, and the kind of that edge.

    Calls are positions in `kept`.
    """
    calls, source = window.calls, np.full(len(kept), -1)
    kind = np.full(len(kept), int(EdgeKind.HANDOFF))
    # If the previous call on the rank is on the same thread, no other thread's call lies between.
    for i in np.flatnonzero((neighbour >= 0) & (neighbour != before)).tolist():  # about 5 us a change of thread
        rank = int(calls.rank[kept[i]])
        gap_start = calls.end[kept[before[i]]] if before[i] >= 0 else window.begin_of(rank)
        source[i] = _forward_call(window, kept, i, int(gap_start))
        if source[i] >= 0:
            kind[i] = int(EdgeKind.AUTOGRAD)
        else:
            source[i] = _handoff_call(calls, kept, i, int(gap_start))
    return source, kind


def _forward_call(window: Window, kept: Ints, position: int, gap_start: int) -> int:
    """Return the position of the forward thread's last call that a backward call waited for, -1 for none.

    It waited if its forward operator ended after the last call of its own thread. Then all calls of the forward thread
    up to now came before it.
    """
    calls, row = window.calls, kept[position]
    start, thread = int(calls.start[row]), (int(calls.rank[row]), int(calls.thread[row]))
    operators, time_ns = window.index.backward.get(thread, np.zeros((4, 0), np.int64)), start + window.origin_ns
    last = int(np.searchsorted(operators[0], time_ns, side="right")) - 1
    if last < 0 or operators[1, last] < time_ns:
        return -1
    forward_thread, forward_end = operators[2:, last].tolist()
    if not gap_start <= forward_end - window.origin_ns <= start:
        return -1
    for i in range(position - 1, -1, -1):  # stops at the first call of that thread
        earlier = kept[i]
        if calls.start[earlier] < gap_start:
            break
        if calls.rank[earlier] == thread[0] and calls.thread[earlier] == forward_thread and calls.end[earlier] <= start:
            return i
    return -1


def _calls_before(calls: WindowCalls, kept: Ints) -> tuple[Ints, Ints]:
    """Return the call before each call on its thread, and on its rank, as positions in `kept`; -1 for none."""
    before_by_key = []
    for keys in ((calls.thread[kept], calls.rank[kept]), (calls.rank[kept],)):
        order = np.lexsort((np.arange(len(kept)), *keys))
        same = np.ones(max(len(kept) - 1, 0), dtype=bool)
        for key in keys:
            same &= key[order][1:] == key[order][:-1]
        before = np.full(len(kept), -1)
        before[order[1:]] = np.where(same, order[:-1], -1)
        before_by_key.append(before)
    return before_by_key[0], before_by_key[1]


def _handoff_call(calls: WindowCalls, kept: Ints, position: int, gap_start: int) -> int:
    """Return the position of another thread's call that this thread waited for since `gap_start`; -1 for none."""
    row = kept[position]
    start, thread, rank = int(calls.start[row]), calls.thread[row], calls.rank[row]
    last, count, first = -1, 0, start
    for i in range(position - 1, -1, -1):  # stops at the gap's start, so over the whole trace each is seen a few times
        earlier = kept[i]
        if calls.rank[earlier] != rank:
            continue
        if calls.start[earlier] < gap_start or count > _HANDOFF_SEEN:
            break
        if calls.thread[earlier] == thread or calls.end[earlier] > start:
            continue
        last = i if last < 0 else last
        first = int(calls.start[earlier])
        count += 1
    if count < _HANDOFF_CALLS:
        return -1
    filled = max(int(calls.end[kept[last]]) - (gap_start if count > _HANDOFF_SEEN else first), 0)
    return last if filled >= _HANDOFF_SHARE * max(start - gap_start, 1) else -1


def _mark_step_ends(assembly: Assembly, window: Window, kept: Ints, tasks: tuple[Ints, Ints]) -> list[Poll]:
    """Append a mark at the end of each iteration on each rank's host: after its last call, before the next's calls.

    A rank without a recorded call has none: what is known of its steps is their device work. Return the marks before
    which the host polled.
    """
    calls, (begin, done) = window.calls, tasks
    before: dict[int, tuple[int, int]] = {}
    device_only, polls, polled_back = _ranks_without_host(window), list[Poll](), dict[int, int]()
    for step in window.steps:
        if step.rank in device_only:
            continue
        end, lane = step.end, assembly.number_lane(Lane(step.rank, None, 0))
        mark = assembly.tasks("end of the step on the host", lane, mark_columns(end, step.iteration))
        of_rank = kept[calls.rank[kept] == step.rank]
        calls_before, calls_after = of_rank[calls.end[of_rank] <= end], of_rank[calls.start[of_rank] >= end][:1]
        previous, previous_end = before.get(step.rank, (-1, 0))
        before[step.rank] = (int(mark[0]), end)
        work = _polled_work(window, calls_before, calls_after, polled_back.setdefault(step.rank, -1))
        if work >= 0:
            polled_back[step.rank] = len(calls_before) - int(
                np.searchsorted(calls_before, window.device_work.launch[work])
            )
        is_polled = work >= 0 and window.device_work.end[work] <= end
        polls += [(int(mark[0]), work, end - int(window.device_work.end[work]))] if is_polled else []
        if previous >= 0 and not (calls.iteration[calls_before] == step.iteration).any():
            # A step without recorded calls keeps its measured time.
            assembly.edges(previous, mark, lag_ns=end - previous_end, kind=EdgeKind.HOST)
        elif len(calls_before):
            last = calls_before[np.argmax(calls.end[calls_before])]
            assembly.edges(done[last], mark, lag_ns=0 if is_polled else end - calls.end[last], kind=EdgeKind.HOST)
        else:
            assembly.release(mark, end)
        pause = np.where((calls.polled_before[calls_after] >= 0) & (not is_polled), 0, calls.start[calls_after] - end)
        assembly.edges(mark, begin[calls_after], lag_ns=pause, kind=EdgeKind.HOST)
    return polls


def _polled_work(window: Window, before: Ints, after: Ints, back: int) -> int:
    """Return the row of device work for which the host polled at the end of a step; -1 without polling.

    Parameters
    ----------
    window : Window
        The window.
    before, after : array of int64
        Calls of the step and those before it, and the next call, if the window has one.
    back : int
        How many calls before the end of earlier steps such work was launched; -1 if the host did not poll there.
    """
    if len(after) or back < 0 or len(before) < back:
        return int(window.calls.polled_before[after[0]]) if len(after) else -1
    rows = np.flatnonzero(window.device_work.launch == before[len(before) - back])
    late = rows[window.device_work.end[rows] > window.calls.end[before].max()]
    return int(late[np.argmax(window.device_work.end[late])]) if len(late) else -1


def _ranks_without_host(window: Window) -> set[int]:
    """Return the ranks of which the trace holds device work, and no call of the host."""
    return set(window.device_work.rank.tolist()) - set(window.index.calls.columns["rank"].tolist())


def add_returns(assembly: Assembly, window: Window, host: HostTasks, device_tasks: tuple[Ints, Ints]) -> None:
    """Append the edges by which every blocking call returns after the device work that it waited for.

    A synchronisation returns after an end, a call that found its launch queue full after a start. The call behind a
    time of polling begins after the end of the work.
    """
    blocking, calls = host.blocking, window.calls
    held = np.flatnonzero(calls.freed_by >= 0)
    since_freed = calls.end[held] - window.device_work.start[calls.freed_by[held]]
    assembly.edges(host.begin[held], host.done[held], kind=EdgeKind.HOST)
    assembly.edges(
        device_tasks[0][calls.freed_by[held]],
        host.done[held],
        lag_ns=np.maximum(since_freed, 0),
        kind=EdgeKind.QUEUE,
        from_start=True,
    )
    rows = np.flatnonzero(blocking.waits_for >= 0)
    waited, blocked = blocking.waits_for[rows], blocking.blocked[rows]
    idle_lag = np.where(blocked, 0, calls.end[rows] - host.issued[rows])
    assembly.edges(host.begin[rows], host.done[rows], lag_ns=idle_lag, kind=EdgeKind.HOST)
    return_lag = np.where(blocked, calls.end[rows] - window.device_work.end[waited], 0)
    assembly.edges(device_tasks[1][waited], host.done[rows], lag_ns=return_lag, kind=blocking.kind[rows])
    polled = np.flatnonzero((calls.polled_before >= 0) & (host.begin >= 0))
    since_end = calls.start[polled] - window.device_work.end[calls.polled_before[polled]]
    source = device_tasks[1][calls.polled_before[polled]]
    assembly.edges(source, host.begin[polled], lag_ns=np.maximum(since_end, 0), kind=EdgeKind.POLL)
    marks, works, lag = np.array(host.polls, dtype=np.int64).reshape(-1, 3).T
    assembly.edges(device_tasks[1][works], marks, lag_ns=lag, kind=EdgeKind.POLL)
    ended = device_tasks[1][blocking.ended]
    assembly.edges(ended, host.done[blocking.calls], kind=blocking.kind[blocking.calls])


def add_queue_edges(assembly: Assembly, window: Window, host: HostTasks, begin: Ints) -> dict[int, int]:
    """Append the edges by which calls wait for room in a launch queue that was full in the trace.

    A call waits until the entry that is as far before its own as the queue is long has started. The calls that were
    held up have their edge already. Return the length of each full queue by lane.

    Parameters
    ----------
    assembly : Assembly
        Graph under construction.
    window : Window
        Its window.
    host : HostTasks
        Tasks of the calls.
    begin : array of int64
        First task of each row of device work.
    """
    calls, work, queues, lengths = window.calls, window.device_work, window.index.calls.queues, {}
    rows_of_stream = np.split(np.arange(len(work)), np.flatnonzero(work.queue_starts())[1:])
    for rows in rows_of_stream if len(work) else ():
        stream = int(work.rank[rows[0]]), int(work.device[rows[0]]), int(work.stream[rows[0]])
        if stream not in queues.full:
            continue
        lengths[assembly.number_lane(Lane(*stream))] = length = queues.lengths[stream]
        is_entry = work.launch[rows] < 0
        is_entry[np.unique(work.launch[rows], return_index=True)[1]] = True  # of a launched graph, the first node
        entries = rows[is_entry]
        freeing, call = entries[:-length], work.launch[entries[length:]]
        waits = (host.begin[call] >= 0) & (call >= 0) & (calls.freed_by[call] < 0)
        waits &= work.start[freeing] <= calls.start[call]
        source, target = begin[freeing[waits]], host.begin[call[waits]]
        assembly.edges(source, target, kind=EdgeKind.QUEUE, from_start=True)
    return lengths
