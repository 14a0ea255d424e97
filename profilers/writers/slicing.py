"""Slice a trace by iterations, ranks or time (`slice_trace`), and merge traces of different ranks (`merge`).

A step is the time from one completion to the next, so a slice of an iteration holds its neighbours, too, as context.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.ingest.assembly import Placement, base_shifts, collective_shifts, joined_meta
from profilers.ingest.collectives import match_collectives
from profilers.trace.arrays import MISSING, arrow_array, ends, integers, put
from profilers.trace.quality import Quality, count_rules
from profilers.trace.schema import KINDS, SCHEMAS, concatenate
from profilers.trace.steps import job_steps, step_times, step_window
from profilers.trace.store import TraceWriter, load_trace, read_kind, write_folder
from profilers.trace.trace import Trace, TraceMeta

#: Columns that hold the id of another event.
_REFERENCES = ("launch_id", "op_id", "kernel_id", "collective_id")


@dataclass(frozen=True)
class SliceOptions:
    """The events that a slice keeps; an option that is None keeps all.

    Parameters
    ----------
    iterations, ranks : frozenset of int, optional
        Iterations and ranks to keep. The steps of iterations keep their context, see `slice_trace`.
    start_ns, end_ns : int, optional
        Half-open time on the clock of the trace; events that overlap it are kept whole.
    """

    iterations: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    start_ns: int | None = None
    end_ns: int | None = None


def slice_trace(trace: Trace, options: SliceOptions) -> Trace:
    """Return a slice of a trace; references to events outside it become null.

    With `iterations`, the slice also holds the iterations in which their steps begin, and work that still runs then.
    ``meta.context`` names these iterations. So a step of the slice has the time that it has in the trace.

    The quality of the slice is that of the whole trace, with its own collectives counted.

    Parameters
    ----------
    trace : Trace
        The trace to slice.
    options : SliceOptions
        The events to keep.

    Raises
    ------
    InvalidInputError
        A rank or iteration is not in the trace, or nothing is left.
    """
    _check(trace, options)
    tables = {kind: _kept(trace.tables[kind], options) for kind in (*KINDS, "iterations")}
    context = trace.meta.context
    if options.iterations is not None:
        of_ranks = trace.with_tables(**tables)
        windows = _windows(of_ranks, sorted(options.iterations))
        context = tuple(sorted({n for window in windows for n in window.iterations} - options.iterations))
        tables = {kind: _in_windows(kind, table, windows) for kind, table in tables.items()}
    if not any(tables[kind].num_rows for kind in KINDS):
        raise InvalidInputError("nothing of the trace lies in this slice")
    ids = np.concatenate([integers(tables[kind], "id") for kind in KINDS])
    tables = {kind: _referring(table, ids) for kind, table in tables.items()}
    present = {int(r) for kind in KINDS for r in np.unique(integers(tables[kind], "rank"))}
    devices = tuple(d for d in trace.meta.devices if d.rank in present)
    quality = _recounted(trace.meta.quality, tables["collectives"])
    meta = replace(trace.meta, ranks=tuple(sorted(present)), devices=devices, quality=quality, context=context)
    return Trace(meta, tables)


def _recounted(quality: Quality, collectives: pa.Table) -> Quality:
    """Return the quality of a trace with the counts of these collectives."""
    matched = int((integers(collectives, "match_id") != MISSING).sum())
    counts = {"collectives": collectives.num_rows, "collectives_matched": matched}
    return Quality({**quality.counts, **{name: n for name, n in counts.items() if quality[name]}})


def _check(trace: Trace, options: SliceOptions) -> None:
    if options.ranks is not None and (unknown := options.ranks - set(trace.meta.ranks)):
        raise InvalidInputError(f"no rank {sorted(unknown)}; the trace has {list(trace.meta.ranks)[:20]}")
    numbers = set(integers(trace.iterations, "iteration").tolist())
    if options.iterations is not None and (unknown := options.iterations - numbers):
        raise InvalidInputError(f"no iteration {sorted(unknown)}; the trace has {sorted(numbers)[:20]}")


def _kept(table: pa.Table, options: SliceOptions) -> pa.Table:
    mask: Any = np.ones(table.num_rows, dtype=bool)
    if options.ranks is not None:
        mask &= np.isin(integers(table, "rank"), sorted(options.ranks))
    start, end = integers(table, "start_ns"), ends(table)
    if options.start_ns is not None:
        mask &= (end > options.start_ns) | (start >= options.start_ns)
    if options.end_ns is not None:
        mask &= start < options.end_ns
    return table.filter(arrow_array(mask))


@dataclass(frozen=True)
class _SlicedWindow:
    """Successive iterations of a slice, and the time that they take on each rank.

    `earlier` says whether the trace holds work of iterations before them.
    """

    iterations: tuple[int, ...]
    spans: Mapping[int, tuple[int, int]]
    earlier: bool


def _windows(trace: Trace, iterations: Sequence[int]) -> list[_SlicedWindow]:
    """Return the windows in which the steps of iterations can be timed; windows that touch are joined."""
    steps = step_times(trace)
    of_job = job_steps(steps)
    rows = np.flatnonzero(np.isin(of_job.iteration, iterations)).tolist()
    joined: list[tuple[int, int]] = []
    for first, last in sorted(step_window(steps, of_job, row) for row in rows):
        # A completion that an iteration owes to the one before it needs that one, too.
        while of_job.follows[first] and of_job.completion_ns[first] == of_job.completion_ns[first - 1]:
            first -= 1
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (min(first, joined[-1][0]), max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    windows = []
    for first, last in joined:
        numbers = of_job.iteration[first : last + 1]
        spans: dict[int, tuple[int, int]] = {}
        for row in np.flatnonzero(np.isin(steps.iteration, numbers)).tolist():
            begin, end = int(steps.start_ns[row]), int(steps.completion_ns[row])
            low, high = spans.get(int(steps.rank[row]), (begin, end))
            spans[int(steps.rank[row])] = (min(low, begin), max(high, end))
        windows.append(_SlicedWindow(tuple(numbers.tolist()), spans, bool(of_job.follows[first])))
    return windows


def _in_windows(kind: str, table: pa.Table, windows: Sequence[_SlicedWindow]) -> pa.Table:
    """Return the rows of the windows' iterations, and those of no iteration or an earlier one that lie in their time.

    Of an earlier iteration, that is the work of devices that still runs, and the last work of each stream, by which
    the first work in the window is not the first of its stream. In the slice they belong to no iteration.
    """
    number, rank = integers(table, "iteration"), integers(table, "rank")
    if kind == "iterations":
        return table.filter(arrow_array(np.isin(number, [n for window in windows for n in window.iterations])))
    start, end = integers(table, "start_ns"), ends(table)
    of_window, beside = np.zeros(len(number), dtype=bool), np.zeros(len(number), dtype=bool)
    for window in windows:
        of_window |= np.isin(number, window.iterations)
        for of_rank, (first, last) in window.spans.items():
            in_time = (rank == of_rank) & (end > first) & (start < last)
            if kind in ("kernels", "copies"):
                beside |= in_time & ((number == MISSING) | (number < window.iterations[0]))
                if window.earlier:
                    beside[_last_of_streams(table, np.flatnonzero((rank == of_rank) & (end <= first)))] = True
            else:
                beside |= in_time & (number == MISSING)
    table = put(table, "iteration", np.where(of_window, number, MISSING))
    return table.filter(arrow_array(of_window | beside))


def _last_of_streams(table: pa.Table, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return the row of each device and stream, among `rows`, that starts last."""
    device, stream, start = (integers(table, name)[rows] for name in ("device", "stream", "start_ns"))
    order = np.lexsort((start, stream, device))
    is_last = np.ones(len(rows), dtype=bool)
    is_last[:-1] = (np.diff(device[order]) != 0) | (np.diff(stream[order]) != 0)
    return rows[order[is_last]]


def _referring(table: pa.Table, ids: Any) -> pa.Table:
    """Return `table` with null for references to ids that are not in `ids`."""
    for column in _REFERENCES:
        if column in table.schema.names:
            values = integers(table, column)
            table = put(table, column, np.where(np.isin(values, ids), values, MISSING))
    return table


def merge(traces: Sequence[Trace]) -> Trace:
    """Return one trace of several, on one clock, with distinct ids and with collectives matched across all ranks.

    Parameters
    ----------
    traces : sequence of Trace
        Traces of different ranks.

    Raises
    ------
    InvalidInputError
        Two hold the same rank, some state a clock base and some do not, or there is none.
    """
    _refuse_same_ranks(traces)
    joined, placements = _joined(traces, [trace.next_id() for trace in traces])
    pairs = list(zip(traces, placements, strict=True))
    bulk = [kind for kind in KINDS if kind != "collectives"]
    tables = {kind: concatenate(kind, [place.put(trace.tables[kind]) for trace, place in pairs]) for kind in bulk}
    return joined.with_tables(**tables)


def merge_folders(folders: Sequence[Path], target: str | os.PathLike[str]) -> tuple[Trace, dict[str, int]]:
    """Write one ``.trace`` folder of several, a rank and a kind of event at a time; a crash leaves its old content.

    Parameters
    ----------
    folders : sequence of Path
        ``.trace`` folders of different ranks.
    target : path
        Folder to write, or a ``.trace`` folder to replace.

    Returns
    -------
    Trace, dict of str to int
        The collectives and iterations of the new trace, and its rows by kind.

    Raises
    ------
    SeqPointError
        As `merge`; or a folder is damaged, or the target cannot be written.
    """
    every = {kind: SCHEMAS[kind].names for kind in ("collectives", "iterations")}
    thin = [load_trace(folder, every) for folder in folders]
    _refuse_same_ranks(thin)
    ids = [max(_next_id(read_kind(folder, kind, ["id"])) for kind in KINDS) for folder in folders]
    joined, placements = _joined(thin, ids)

    rows = dict.fromkeys((*KINDS, "iterations"), 0)

    def write(new: Path) -> TraceMeta:
        with TraceWriter(new) as writer:
            for folder, trace, placement in zip(folders, thin, placements, strict=True):
                for kind in KINDS:
                    for rank in trace.meta.ranks if kind != "collectives" else ():
                        writer.write(kind, placement.put(read_kind(folder, kind, ranks=[rank])))
            for kind in every:
                writer.write(kind, joined.tables[kind])
        rows.update(writer.rows)
        return joined.meta

    write_folder(Path(target), write)
    return joined, rows


def _next_id(table: pa.Table) -> int:
    return int(integers(table, "id").max(initial=-1)) + 1


def _refuse_same_ranks(traces: Sequence[Trace]) -> None:
    """Refuse traces of which two hold the same rank."""
    if not traces:
        raise InvalidInputError("no trace to merge")
    counts = Counter(rank for trace in traces for rank in trace.meta.ranks)
    if counts and counts.most_common(1)[0][1] > 1:
        rank = next(r for trace in traces for r in trace.meta.ranks if counts[r] > 1)
        first_files, other_files = [_named(trace.meta.sources) for trace in traces if rank in trace.meta.ranks][:2]
        raise InvalidInputError(
            f"rank {rank} is in two of the traces, of {first_files} and of {other_files}; leave one of them out, "
            "or number them anew if they are different ranks (--as-ranks)"
        )


def _joined(traces: Sequence[Trace], next_ids: Sequence[int]) -> tuple[Trace, list[Placement]]:
    """Return the matched collectives and the iterations of several traces, and the placement of the rows of each."""
    metas = [trace.meta for trace in traces]
    first = [0, *np.cumsum(next_ids).tolist()]
    placements = [
        Placement(start, 0, dict.fromkeys(meta.ranks, shift), {})
        for meta, start, shift in zip(metas, first, base_shifts(metas), strict=False)
    ]
    kinds = ("collectives", "iterations")

    def placed() -> dict[str, pa.Table]:
        pairs = list(zip(traces, placements, strict=True))
        return {kind: concatenate(kind, [place.put(trace.tables[kind]) for trace, place in pairs]) for kind in kinds}

    asked = {n for t in traces for n in integers(t.iterations, "iteration").tolist() if n not in t.meta.context}
    context = tuple(sorted({n for meta in metas for n in meta.context} - asked))
    joined = match_collectives(Trace(replace(_merged_meta(metas), context=context), placed()))
    if not (shifts := collective_shifts(joined.collectives)):
        return joined, placements
    align = Placement(0, 0, {rank: shifts.get(rank, 0) for rank in joined.meta.ranks}, {})
    placements = [
        replace(each, shift_ns={rank: by_ns + shifts.get(rank, 0) for rank, by_ns in each.shift_ns.items()})
        for each in placements
    ]
    shift = max(int(np.max(np.abs(list(shifts.values())))), joined.meta.quality["clock_shift_max_ns"])
    quality = Quality({**joined.meta.quality.counts, "clock_shift_max_ns": shift})
    moved = joined.with_tables(**{kind: align.put(joined.tables[kind]) for kind in kinds})
    return replace(moved, meta=replace(moved.meta, quality=quality)), placements


def _merged_meta(metas: Sequence[TraceMeta]) -> TraceMeta:
    """Return the description of merged traces, in which slices of a trace count as that trace."""
    whole: dict[tuple[object, ...], TraceMeta] = {}
    for number, meta in enumerate(metas):
        key = (meta.fingerprint, meta.sources) if meta.fingerprint else (number,)
        whole[key] = _rejoined(whole[key], meta) if key in whole else meta
    joined = joined_meta(list(whole.values()), Quality())
    shift = max(meta.quality["clock_shift_max_ns"] for meta in metas)
    counts = {**joined.quality.counts, "collectives_matched": 0, "clock_shift_max_ns": shift}
    devices = tuple(sorted(joined.devices, key=lambda device: (device.rank, device.device)))
    rules = tuple(dict.fromkeys(rule for meta in metas for rule in meta.class_rules))
    return replace(joined, devices=devices, quality=Quality(counts), class_rules=rules)


def _rejoined(first: TraceMeta, second: TraceMeta) -> TraceMeta:
    """Return the description of two slices of a trace; each counts its own collectives, and both all other events."""
    counts = {name: max(first.quality[name], second.quality[name]) for name in count_rules()}
    counts["collectives"] = first.quality["collectives"] + second.quality["collectives"]
    return replace(
        first,
        ranks=tuple(sorted({*first.ranks, *second.ranks})),
        devices=(*first.devices, *second.devices),
        quality=Quality(counts),
    )


def as_ranks(traces: Sequence[Trace]) -> list[Trace]:
    """Return traces of one rank each, renumbered as ranks 0, 1, ... in their order.

    Parameters
    ----------
    traces : sequence of Trace
        Traces of one rank each, such as runs that all state rank 0.

    Raises
    ------
    InvalidInputError
        A trace holds several ranks.
    """
    if several := [trace for trace in traces if len(trace.meta.ranks) != 1]:
        raise InvalidInputError(
            f"a trace holds ranks {list(several[0].meta.ranks)}; only those of one can be renumbered"
        )
    return [_renumbered(trace, rank) for rank, trace in enumerate(traces)]


def _named(sources: Sequence[str]) -> str:
    """Return the name of the first source file of a trace, and the number of others."""
    if not sources:
        return "an unnamed file"
    return sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1} more"


def _renumbered(trace: Trace, rank: int) -> Trace:
    tables = {kind: put(table, "rank", np.full(table.num_rows, rank)) for kind, table in trace.tables.items()}
    devices = tuple(replace(device, rank=rank) for device in trace.meta.devices)
    return Trace(replace(trace.meta, ranks=(rank,), devices=devices), tables)
