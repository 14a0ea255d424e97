"""Host calls, what blocks them, and the data loader.

Calls that wait for the device: which work each waited for, as recorded or as times tell.

The input pipeline: when the host waits for a batch, and how long the pipeline takes for each.

The host's side: calls in order on their threads, threads that hand over, calls that wait for the device.
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.ingest.iterations import WHOLE_TRACE
from profilers.trace.arrays import MISSING, Bools, Ints, strings
from replay.from_trace.draft import Draft, NewEdges
from replay.from_trace.index import LOADER_PREFIX
from replay.from_trace.window import Calls, Window
from replay.graph.graph import LOADER_THREAD, EdgeKind, Lane, TaskKind

#: Calls that can wait for the device; whether one did shows by device work that ends inside it.
_MAY_BLOCK = re.compile(r"Synchronize|Memcpy|Free")
#: What a call that waits for the device takes if there is nothing to wait for (ns; an assumption, as any call).
_ISSUE_NS = 1000
#: What waits for all that was launched before, by its name alone.
_WAITS_FOR_ALL = re.compile(r"(?:Device|Ctx|Context)Synchronize")


@dataclass(frozen=True)
class Blocking:
    """By call: the row of the device work that it waits for, -1 for none, and what kind of edge says so.

    `blocked` says whether it was still waiting when that work ended. `issue_ns` is what the call would take with
    nothing to wait for. `calls` and `ended` are pairs: a synchronisation, and work that had to be done before it
    returned but ended earlier than other work that it waited for.
    """

    waits_for: Ints
    kind: Ints
    issue_ns: Ints
    blocked: npt.NDArray[np.bool_]
    calls: Ints
    ended: Ints


@dataclass(frozen=True)
class _Sync:
    """What was recorded of one call: the stream that it waited for, and the work launched up to when; None for all."""

    stream: int | None = None
    until: int | None = None


def blocked_calls(window: Window) -> Blocking:
    """Return for each call the last device work that ends inside it, of what it waits for.

    A recorded synchronisation says which stream, and for an event, up to which moment of it; a device's waits for
    all. For other calls (a copy, a free, a stream's synchronisation of which only the call is there) any work counts.
    A launch that found the launch queue full waits for the last work that ends inside it. A synchronisation that is
    known to wait for a stream waits for the last work launched on it, also if that was done before.
    """
    calls, work = window.calls, window.work
    waits_for, kind = np.full(len(calls), -1), np.full(len(calls), int(EdgeKind.SYNC_INFERRED))
    issue, names = np.full(len(calls), _ISSUE_NS), window.index.calls.names
    can = np.array([_MAY_BLOCK.search(name) is not None for name in names], dtype=bool)
    every = np.array([_WAITS_FOR_ALL.search(name) is not None for name in names], dtype=bool)
    nothing = np.zeros(0, dtype=np.int64)
    if not len(calls) or not len(work):
        return Blocking(waits_for, kind, issue, waits_for >= 0, nothing, nothing)
    kind[every[calls.name]] = int(EdgeKind.SYNC)
    full = calls.unblocked > 0
    kind[full], issue[full] = int(EdgeKind.QUEUE), calls.unblocked[full]
    recorded = _recorded(window)
    kind[list(recorded)] = int(EdgeKind.SYNC)
    order = np.argsort(work.end, kind="stable")
    end, rank, stream, launched = work.end[order], work.rank[order], work.stream[order], window.launched()[order]
    chosen = np.flatnonzero(can[calls.name] | full)
    low, high = (np.searchsorted(end, at[chosen], side="right") for at in (calls.start, calls.end))
    some = high > low
    for row, first, last in zip(chosen[some].tolist(), low[some].tolist(), high[some].tolist(), strict=True):
        # A Python loop over calls inside which work ends, about 10 us each.
        fits = (rank[first:last] == calls.rank[row]) & (launched[first:last] <= calls.start[row])
        sync = recorded.get(row, _Sync())
        if sync.stream is not None:
            fits &= stream[first:last] == sync.stream
        if sync.until is not None:
            fits &= launched[first:last] <= sync.until
        if fits.any():
            waits_for[row] = order[first + int(np.flatnonzero(fits)[-1])]
    certain = {int(row): recorded.get(int(row), _Sync()) for row in np.flatnonzero(every[calls.name])} | recorded
    pairs = _ended_before(window, certain)
    blocked = waits_for >= 0
    # Of what had ended before, the last stands for what an idle synchronisation waits for.
    order = np.lexsort((work.end[pairs[1]], pairs[0]))
    for call, row in zip(pairs[0][order].tolist(), pairs[1][order].tolist(), strict=True):  # a few a synchronisation
        waits_for[call] = waits_for[call] if blocked[call] else row
    others = pairs[1] != waits_for[pairs[0]]
    return Blocking(waits_for, kind, issue, blocked, pairs[0][others], pairs[1][others])


def _ended_before(window: Window, syncs: dict[int, _Sync]) -> tuple[Ints, Ints]:
    """Return pairs of a synchronisation and the last work launched before it on each stream that it waits for."""
    calls, work, launched = window.calls, window.work, window.launched()
    streams: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    for rank, stream in set(zip(work.rank.tolist(), work.stream.tolist(), strict=True)):
        rows = np.flatnonzero((work.rank == rank) & (work.stream == stream))
        rows = rows[np.argsort(launched[rows], kind="stable")]
        streams[rank, stream] = (rows, launched[rows])
    pairs: list[tuple[int, int]] = []
    for call, sync in sorted(syncs.items()):  # a few streams a synchronisation, 2 us each
        until = int(calls.start[call]) if sync.until is None else min(sync.until, int(calls.start[call]))
        for (rank, stream), (rows, times) in streams.items():
            if rank != calls.rank[call] or sync.stream not in (None, stream):
                continue
            before = int(np.searchsorted(times, until, side="right")) - 1
            if before >= 0 and work.end[rows[before]] <= calls.end[call]:
                pairs.append((call, int(rows[before])))
    columns = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _recorded(window: Window) -> dict[int, _Sync]:
    """Return what was recorded, by the row of the call; a call of which no stream was recorded is left out."""
    syncs = window.index.syncs
    found: dict[int, _Sync] = {}
    for call, row in zip(*(side.tolist() for side in syncs.of(window.calls.id)), strict=True):
        kind, stream, source = syncs.kind[row], int(syncs.stream[row]), int(syncs.source[row])
        if kind == "Context Sync":
            found[call] = _Sync()
        elif kind == "Stream Sync" and max(stream, source) >= 0:
            found[call] = _Sync(stream if stream >= 0 else source)
        elif kind == "Event Sync" and source >= 0 and syncs.recorded_ns[row] != MISSING:
            found[call] = _Sync(source, int(syncs.recorded_ns[row]) - window.origin_ns)
    return found


#: A pipeline that works in other processes hands over a batch that is ready in 0.07 to 0.12 ms in the traces at hand;
#: a call that takes this long (ns) waited for its batch.
_WAITED_NS = 500_000
#: What the calls of such a pipeline are called.
_IN_OTHER_PROCESSES = "MultiProcessing"


def loader_calls(window: Window) -> tuple[Bools, Bools]:
    """Return which calls load a batch, and which of these waited for a pipeline in other processes.

    A pipeline in the host's own process makes its batch inside the call, and that is work of the host.
    """
    calls, names = window.calls, window.index.calls.names
    loads = np.array([str(name).startswith(LOADER_PREFIX) for name in names], dtype=bool)
    apart = np.array([_IN_OTHER_PROCESSES in str(name) for name in names], dtype=bool)
    if window.index.on_host_alone or not len(calls):
        return np.zeros(len(calls), dtype=bool), np.zeros(len(calls), dtype=bool)
    loading = loads[calls.name]
    return loading, loading & apart[calls.name] & (calls.end - calls.start >= _WAITED_NS)


def add_batches(draft: Draft, window: Window, waited: Ints, tasks: tuple[Ints, Ints]) -> None:
    """Let each call that waited for its batch return when the batch is ready, one after another.

    The time from one batch to the next is that between the returns of two calls that waited: the pipeline then had
    nothing in store. It keeps this pace however fast the host is.
    """
    calls, (begin, done) = window.calls, tasks
    for rank in window.ranks:
        mine = waited[calls.rank[waited] == rank]
        if not len(mine):
            continue
        mine = mine[np.argsort(calls.end[mine], kind="stable")]
        about = {
            "kind": int(TaskKind.MARK),
            "name": draft.name("batch is ready"),
            "lane": draft.lane(Lane(rank, None, LOADER_THREAD))[0],
            "measured_start_ns": calls.end[mine],
            "measured_end_ns": calls.end[mine],
            "iteration": calls.iteration[mine],
        }
        ready = draft.tasks(len(mine), about)
        draft.release(ready[:1], calls.end[mine[:1]].astype(np.float64))
        each = np.diff(calls.end[mine])
        draft.edges(NewEdges(ready[:-1], ready[1:], each, int(EdgeKind.LOADER)))
        draft.edges(NewEdges(ready, done[mine], 0.0, int(EdgeKind.LOADER)))
        draft.edges(NewEdges(begin[mine], done[mine], 0.0, int(EdgeKind.HOST)))


#: Another thread's calls must fill at least this share of a thread's gap to be what the thread waited for.
_HANDOFF_SHARE = 0.5
_HANDOFF_CALLS = 2
_HANDOFF_SEEN = 64


@dataclass(frozen=True)
class HostTasks:
    """Which task stands for each call: where it begins, and where it returns; -1 for calls left out."""

    begin: Ints
    done: Ints
    issued: Ints  #: when the task of `begin` ends, ns from the origin
    blocking: Blocking


def add_host(draft: Draft, window: Window) -> HostTasks:
    """Append the host's tasks and the order among them; time between calls becomes the lag of an edge.

    Calls that neither launch, nor wait, nor load a batch are part of the time between the others.
    """
    calls, work = window.calls, window.work
    blocking = blocked_calls(window)
    launching = np.zeros(len(calls), dtype=bool)
    launching[work.launch[work.launch >= 0]] = True
    loads, loaded = loader_calls(window)
    waits = (blocking.waits_for >= 0) | loaded
    kept = np.flatnonzero(launching | waits | loads) if len(work) else np.arange(len(calls))
    issued = np.where(waits, np.minimum(calls.end, calls.start + blocking.issue_ns), calls.end)
    tasks = _add_calls(draft, window, kept, (waits, issued))
    _order(draft, window, kept, tasks)
    _end_of_step(draft, window, kept, tasks)
    add_batches(draft, window, np.flatnonzero(loaded), tasks)
    return HostTasks(*tasks, issued, blocking)


def _add_calls(draft: Draft, window: Window, kept: Ints, how: tuple[npt.NDArray[np.bool_], Ints]) -> tuple[Ints, Ints]:
    """Append a task for each call, and after it one for the return of each that waits."""
    calls, (waits, issued) = window.calls, how
    rows = np.repeat(kept, 1 + waits[kept])
    returns = np.zeros(len(rows), dtype=bool)
    returns[1:] = rows[1:] == rows[:-1]
    names = window.index.calls.names
    name = np.zeros(len(rows), dtype=np.int64)
    name[~returns] = draft.named(calls.name[rows[~returns]], names)
    name[returns] = draft.named(calls.name[rows[returns]], names, " returns")
    numbers = draft.tasks(
        len(rows),
        {
            "kind": np.where(returns, int(TaskKind.MARK), int(TaskKind.HOST)),
            "name": name,
            "lane": _threads(draft, calls, rows),
            "measured_start_ns": np.where(returns, calls.end[rows], calls.start[rows]),
            "measured_end_ns": np.where(returns, calls.end[rows], issued[rows]),
            "event": np.maximum(calls.id[rows], -1),
            "iteration": calls.iteration[rows],
        },
    )
    begin, done = np.full(len(calls), -1), np.full(len(calls), -1)
    begin[rows[~returns]] = done[rows[~returns]] = numbers[~returns]
    done[rows[returns]] = numbers[returns]
    return begin, done


def _threads(draft: Draft, calls: Calls, rows: Ints) -> Ints:
    """Return the lane of each row, in the order in which threads first appear."""
    if not len(rows):
        return rows
    places = np.stack([calls.rank[rows], calls.thread[rows]], axis=1)
    distinct, first, place = np.unique(places, axis=0, return_index=True, return_inverse=True)
    lanes = np.zeros(len(distinct), dtype=np.int64)
    for number in np.argsort(first).tolist():  # a few threads
        lanes[number] = draft.lane(Lane(int(distinct[number, 0]), None, int(distinct[number, 1])))[0]
    return lanes[place.ravel()]


def _order(draft: Draft, window: Window, kept: Ints, tasks: tuple[Ints, Ints]) -> None:
    """Join the calls of each thread, and threads that hand over to each other."""
    calls, (begin, done) = window.calls, tasks
    before, neighbour = _before(calls, kept)
    giver, kind = _givers(window, kept, before, neighbour)
    own, given = np.flatnonzero(before >= 0), np.flatnonzero(giver >= 0)
    first, then = kept[before[own]], kept[own]
    inside = calls.start[then] < calls.end[first]  # one call inside another
    pause = np.where(giver[own] >= 0, 0, calls.start[then] - calls.end[first])
    draft.edges(
        NewEdges(
            np.where(inside, begin[first], done[first]),
            begin[then],
            np.where(inside, calls.start[then] - calls.start[first], pause),
            int(EdgeKind.HOST),
            inside,
        )
    )
    giving, taking = kept[giver[given]], kept[given]
    handed = calls.start[taking] - calls.end[giving]
    draft.edges(NewEdges(done[giving], begin[taking], handed, kind[given]))
    alone = kept[(before < 0) & (giver < 0)]
    draft.release(begin[alone], calls.start[alone].astype(np.float64))


def _givers(window: Window, kept: Ints, before: Ints, neighbour: Ints) -> tuple[Ints, Ints]:
    """Return the place of the other thread's call that each went on after, -1 for none; and how that is known."""
    calls, giver = window.calls, np.full(len(kept), -1)
    kind = np.full(len(kept), int(EdgeKind.HANDOFF))
    # Where the call before it on the rank is the thread's own, nobody else's stands between.
    for i in np.flatnonzero((neighbour >= 0) & (neighbour != before)).tolist():  # about 5 us a change of thread
        rank = int(calls.rank[kept[i]])
        gap_start = calls.end[kept[before[i]]] if before[i] >= 0 else window.begin_of(rank)
        giver[i] = _forward_call(window, kept, i, int(gap_start))
        if giver[i] >= 0:
            kind[i] = int(EdgeKind.AUTOGRAD)
        else:
            giver[i] = _handed_over(calls, kept, i, int(gap_start))
    return giver, kind


def _forward_call(window: Window, kept: Ints, place: int, gap_start: int) -> int:
    """Return the place of the forward thread's last call that a backward call waited for, -1 for none.

    It waited where its forward operator ended after the thread's own last call: then all that the forward thread
    did until now came before.
    """
    calls, row = window.calls, kept[place]
    start, where = int(calls.start[row]), (int(calls.rank[row]), int(calls.thread[row]))
    forward = window.index.backward.at(where, start + window.origin_ns)
    if forward is None or not gap_start <= forward.end_ns - window.origin_ns <= start:
        return -1
    for i in range(place - 1, -1, -1):  # stops at the first call of that thread
        other = kept[i]
        if calls.start[other] < gap_start:
            break
        if calls.rank[other] == where[0] and calls.thread[other] == forward.thread and calls.end[other] <= start:
            return i
    return -1


def _before(calls: Calls, kept: Ints) -> tuple[Ints, Ints]:
    """Return, as places in `kept`, the call before each on its thread, and on its rank; -1 for none."""
    found = []
    for keys in ((calls.thread[kept], calls.rank[kept]), (calls.rank[kept],)):
        order = np.lexsort((np.arange(len(kept)), *keys))
        same = np.ones(max(len(kept) - 1, 0), dtype=bool)
        for key in keys:
            same &= key[order][1:] == key[order][:-1]
        before = np.full(len(kept), -1)
        before[order[1:]] = np.where(same, order[:-1], -1)
        found.append(before)
    return found[0], found[1]


def _handed_over(calls: Calls, kept: Ints, place: int, gap_start: int) -> int:
    """Return the place of the other thread's call that this thread waited for since `gap_start`, -1 for none."""
    row = kept[place]
    start, thread, rank = int(calls.start[row]), calls.thread[row], calls.rank[row]
    last, count, first = -1, 0, start
    for i in range(place - 1, -1, -1):  # stops at the gap's start, so over the whole trace each is seen a few times
        other = kept[i]
        if calls.rank[other] != rank:
            continue
        if calls.start[other] < gap_start or count > _HANDOFF_SEEN:
            break
        if calls.thread[other] == thread or calls.end[other] > start:
            continue
        last = i if last < 0 else last
        first = int(calls.start[other])
        count += 1
    if count < _HANDOFF_CALLS:
        return -1
    filled = max(int(calls.end[kept[last]]) - (gap_start if count > _HANDOFF_SEEN else first), 0)
    return last if filled >= _HANDOFF_SHARE * max(start - gap_start, 1) else -1


def _end_of_step(draft: Draft, window: Window, kept: Ints, tasks: tuple[Ints, Ints]) -> None:
    """Mark the end of the host's part of each iteration on each rank: after its last call, before those of the next."""
    calls, (begin, done) = window.calls, tasks
    name = draft.name("end of the step on the host")
    before: dict[int, tuple[int, int]] = {}
    device_only = _ranks_without_host(window)
    for step in window.steps:
        end, lane = step.end, draft.lane(Lane(step.rank, None, 0))[0]
        about = {"measured_start_ns": end, "measured_end_ns": end, "iteration": step.iteration}
        mark = draft.tasks(1, {"kind": int(TaskKind.MARK), "name": name, "lane": lane, **about})
        mine = kept[(calls.rank[kept] == step.rank) & (calls.end[kept] <= end)]
        marked, since = before.get(step.rank, (-1, 0))
        before[step.rank] = (int(mark[0]), end)
        if marked >= 0 and not (calls.iteration[mine] == step.iteration).any():
            # A step in which nothing was recorded lasts as long as it did.
            draft.edge(marked, int(mark[0]), end - since, EdgeKind.HOST)
        elif len(mine):
            last = mine[np.argmax(calls.end[mine])]
            draft.edge(int(done[last]), int(mark[0]), end - calls.end[last], EdgeKind.HOST)
        elif step.rank not in device_only:
            draft.release(mark, np.array([float(end)]))
        later = kept[(calls.rank[kept] == step.rank) & (calls.start[kept] >= end)]
        if len(later):
            draft.edge(int(mark[0]), int(begin[later[0]]), calls.start[later[0]] - end, EdgeKind.HOST)


def _ranks_without_host(window: Window) -> set[int]:
    """Return the ranks whose only iteration is the whole recording, with device work and no call of the host.

    Such an iteration ends with its device work, so the end that was recorded is no time of the host.
    """
    iterations = window.index.trace.iterations
    if iterations.num_rows != len(window.steps) or set(strings(iterations, "found_by")) != {WHOLE_TRACE}:
        return set()
    return set(window.work.rank.tolist()) - set(window.calls.rank.tolist())


def add_returns(draft: Draft, window: Window, host: HostTasks, device_tasks: Ints) -> None:
    """Let every blocking call return after what it waited for."""
    blocking, calls = host.blocking, window.calls
    rows = np.flatnonzero(blocking.waits_for >= 0)
    waited, blocked = blocking.waits_for[rows], blocking.blocked[rows]
    idle = np.where(blocked, 0, calls.end[rows] - host.issued[rows])
    draft.edges(NewEdges(host.begin[rows], host.done[rows], idle, int(EdgeKind.HOST)))
    late = np.where(blocked, calls.end[rows] - window.work.end[waited], 0)
    draft.edges(NewEdges(device_tasks[waited], host.done[rows], late, blocking.kind[rows]))
    ended = device_tasks[blocking.ended]
    draft.edges(NewEdges(ended, host.done[blocking.calls], 0.0, blocking.kind[blocking.calls]))
