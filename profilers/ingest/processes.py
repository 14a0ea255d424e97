"""`told_apart`: ranks of a file into which several processes were merged without saying so.

A profiler records one process. A file whose calls come from several is a merger of ranks, whose correlation ids repeat.
So each process that launches work is a rank. A stream belongs to the process that launched its kernels. Among several
launches with the correlation id of a kernel, `_last_before` chooses by time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from profilers.ingest.stage import LAUNCHING, Stage
from profilers.trace.arrays import MISSING, Ints, integers, put
from profilers.trace.columns import LaneNumbers, by_lane, lookup
from profilers.trace.schema import KINDS, OWN_RANK
from profilers.trace.trace import TraceMeta

_DEVICE = ("kernels", "copies", "syncs")
#: Fewest launches of a process that is a rank, and its least share of all: a damaged number is no process.
_FEWEST, _LEAST = 3, 0.01
#: Least share of a stream's launched work of a single process, for which the whole stream belongs to that process.
_MAJORITY = 0.9


@dataclass(frozen=True)
class _Processes:
    """The ranks of the processes of a file.

    Parameters
    ----------
    numbers, ranks : array of int64, shape (n,)
        Processes that launch work, ascending, and the rank of each; empty if the calls of the file state their ranks.
    """

    numbers: Ints
    ranks: Ints

    def of(self, stated: Ints, process: Ints) -> Ints:
        """Return the rank that each row states, or that of its process; `OWN_RANK` without either."""
        rank = lookup(self.numbers, self.ranks, process)
        return np.where((stated == OWN_RANK) & (rank != MISSING), rank, stated)


def told_apart(stage: Stage, meta: TraceMeta) -> tuple[Stage, TraceMeta]:
    """Return the rows of a merged file with their ranks, and its devices for each rank; other files as they are.

    Parameters
    ----------
    stage : Stage
        Rows of a file, closed.
    meta : TraceMeta
        Its description, with the rank and the devices that its header states.
    """
    header_rank = meta.ranks[0] if meta.ranks else 0
    processes = _ranks_by_process(stage, header_rank)
    if processes is not None:
        stage = stage.rewritten(partial(_write_ranked, stage, processes))
    ranks = {header_rank if rank == OWN_RANK else rank for rank in stage.extents}
    if len(ranks) < 2 or any(device.rank != OWN_RANK for device in meta.devices):
        return stage, meta
    devices = tuple(replace(device, rank=rank) for rank in sorted(ranks) for device in meta.devices)
    return stage, replace(meta, devices=devices)


def _ranks_by_process(stage: Stage, header_rank: int) -> _Processes | None:
    """Return the ranks of the processes of a file, None if only one launches work, or if all rows state ranks.

    The process of the first launch is the rank that the header states, and the others follow in the order of theirs.
    """
    places = stage.launching_threads()
    stated = {rank for rank, _, _ in places}
    if len(stated) > 1 and (stage.raw("kernels", "rank") == OWN_RANK).any():
        return _Processes(np.empty(0, np.int64), np.empty(0, np.int64))
    if len({process for _, process, _ in places}) < 2 or stated != {OWN_RANK}:
        return None
    (processes,) = _columns(stage, ["launches"], ["process"])
    processes = processes[stage.raw("launches", LAUNCHING) == 1]
    numbers, first, counts = np.unique(processes[processes != MISSING], return_index=True, return_counts=True)
    several = counts >= max(_FEWEST, _LEAST * len(processes))
    numbers, first = numbers[several], first[several]
    if len(numbers) < 2:
        return None
    others = [rank for rank in range(len(numbers) + 1) if rank != header_rank]
    ranks = np.empty(len(numbers), np.int64)
    ranks[np.argsort(first)] = [header_rank, *others][: len(numbers)]
    return _Processes(numbers, ranks)


def _write_ranked(stage: Stage, processes: _Processes, target: Stage) -> None:
    """Write all rows of a file to another stage, each with its rank."""
    on_device = _device_ranks(stage, processes)
    row = 0
    for kind in KINDS:
        for batch in stage.batches(kind):
            stated = integers(batch, "rank")
            if kind in _DEVICE:
                ranks = np.where(stated == OWN_RANK, on_device[row : row + batch.num_rows], stated)
                row += batch.num_rows
            else:
                ranks = processes.of(stated, integers(batch, "process"))
            table = put(batch, "rank", ranks)
            target.write(kind, {name: table[name] for name in table.schema.names if name != "id"})


def _device_ranks(stage: Stage, processes: _Processes) -> Ints:
    """Return the rank of each event of a device by its launch, in the order of the kinds and their rows."""
    stated, process, called, launched_ns = _columns(stage, ["launches"], ["rank", "process", "correlation", "start_ns"])
    device, stream, correlation, start_ns = _columns(stage, _DEVICE, ["device", "stream", "correlation", "start_ns"])
    launch = _last_before((called, launched_ns), (correlation, start_ns))
    ranks = np.where(launch < 0, MISSING, processes.of(stated, process)[launch])
    for lane in by_lane(lambda: iter([LaneNumbers().of([device, stream])])):
        known, counts = np.unique(ranks[lane][ranks[lane] != MISSING], return_counts=True)
        if len(known):
            most = int(counts.argmax())
            unknown = lane if counts[most] >= _MAJORITY * counts.sum() else lane[ranks[lane] == MISSING]
            ranks[unknown] = known[most]
    return np.where(ranks == MISSING, OWN_RANK, ranks)


def _columns(stage: Stage, kinds: Sequence[str], names: Sequence[str]) -> list[Ints]:
    """Return columns of all rows of some kinds."""
    batches = [batch for kind in kinds for batch in stage.batches(kind, names)]
    return [np.concatenate([np.empty(0, np.int64), *(integers(b, name) for b in batches)]) for name in names]


def _last_before(launches: tuple[Ints, Ints], work: tuple[Ints, Ints]) -> Ints:
    """Return the launch of each event, -1 if there is none.

    If as many launches as events have a number, they belong together in their order. Else it is the last launch that
    does not start after the event.

    Parameters
    ----------
    launches, work : tuple of (array of int64, array of int64)
        Correlation and start.
    """
    number, start = (np.concatenate(pair) for pair in zip(launches, work, strict=True))
    count = len(launches[0])
    is_work = np.arange(len(number)) >= count
    order = np.lexsort((is_work, start, number))
    last = np.maximum.accumulate(np.where(is_work[order], -1, np.arange(len(order))))
    launch = order[last]
    launch[(last < 0) | (number[launch] != number[order])] = -1
    result = np.full(len(number), -1)
    result[order] = launch
    counts = [dict(zip(*np.unique(side[0], return_counts=True), strict=True)) for side in (launches, work)]
    equal = np.array([n for n, times in counts[0].items() if counts[1].get(n) == times], np.int64)
    pairs = []
    for numbers, times in (launches, work):
        in_order = np.lexsort((times, numbers))
        pairs.append(in_order[np.isin(numbers[in_order], equal)])
    result[count + pairs[1]] = pairs[0]
    return np.where(work[0] == MISSING, -1, result[count:])
