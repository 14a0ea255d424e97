"""Assemble linked recordings into one trace: one clock, one numbering of ranks and ids, iterations, lengths.

What has to be known of all recordings at once (collectives, annotations, extents) is small, and `assemble` holds it.
The other rows are finished one recording and batch at a time (`finished`), so that recordings can be finished in
different processes.

Files stand on one clock by the clock base that they state (`base_shifts`). If matched collectives contradict it, they
give the shift (`collective_shifts`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.ingest.collectives import match_collectives
from profilers.ingest.duplicates import RankedFile, refuse_same_events
from profilers.ingest.iterations import (
    SEPARATE_FILE,
    Extent,
    Iterations,
    caused_iterations,
    fill_from_neighbours,
    find_iterations,
    find_period,
    is_layer,
    one_iteration,
    periodic,
)
from profilers.ingest.lengths import add_lengths
from profilers.ingest.recording import LinkedRecording, combined_fingerprint
from profilers.trace.arrays import MISSING, Growing, Ints, Narrowed, arrow_array, ends, integers, put, text_codes
from profilers.trace.columns import LaneNumbers, by_lane, lookup, row_slices, sorting
from profilers.trace.quality import Quality
from profilers.trace.schema import KERNEL_SEQUENCE, KINDS, OWN_RANK, WHOLE_TRACE, concatenate
from profilers.trace.trace import Trace, TraceMeta


def base_shifts(metas: Sequence[TraceMeta]) -> list[int]:
    """Return the shift of each file's times, in ns, that puts all files on the smallest clock base.

    Parameters
    ----------
    metas : sequence of TraceMeta
        Descriptions of the files.

    Raises
    ------
    InvalidInputError
        Some files state a clock base and others do not.

    Examples
    --------
    >>> base_shifts([TraceMeta("kineto", clock_base_ns=1000), TraceMeta("kineto", clock_base_ns=400)])
    [600, 0]
    """
    bases = [meta.clock_base_ns for meta in metas]
    if len(set(bases)) > 1 and min(bases) == 0:
        named = ", ".join(f"{m.sources[0]} {m.clock_base_ns}" for m in metas[:4] if m.sources)
        raise InvalidInputError(f"some files state what their clock starts at and some do not: {named}")
    return [base - min(bases) for base in bases]


def collective_shifts(collectives: pa.Table) -> Mapping[int, int]:
    """Return the shift of each rank's times, in ns, if matched collectives contradict its clock.

    A collective ends on no rank before it has begun on all. If most matched collectives of a rank break that against
    the lowest rank, its clock is off. It is then shifted by the median difference of their ends, since a collective
    ends everywhere at about the same time. Other clocks are not shifted: small differences of ends belong to the job.

    Parameters
    ----------
    collectives : Table
        Collectives of all ranks, with ``match_id``.

    Returns
    -------
    mapping of int to int
        Shift by rank; empty if no clock is off.
    """
    rank, match = integers(collectives, "rank"), integers(collectives, "match_id")
    start, end = integers(collectives, "start_ns"), ends(collectives)
    matched = match != MISSING
    reference = int(rank[matched].min()) if matched.any() else 0
    shifts = {}
    for shifted_rank in np.unique(rank[matched]).tolist():
        if shifted_rank == reference:
            continue
        ours, others = _pairs(match, matched & (rank == reference), matched & (rank == shifted_rank))
        apart = (end[ours] <= start[others]) | (end[others] <= start[ours])
        if len(ours) and apart.mean() > 0.5:
            shifts[shifted_rank] = int(np.median(end[ours] - end[others]))
    return shifts


def _pairs(match: Ints, ours: Ints, others: Ints) -> tuple[Ints, Ints]:
    """Return the rows of two ranks that have the same match, pairwise."""
    _, left, right = np.intersect1d(match[ours], match[others], return_indices=True)
    return np.flatnonzero(ours)[left], np.flatnonzero(others)[right]


#: Columns that hold ids of events.
_ID_COLUMNS = ("id", "launch_id", "op_id", "kernel_id", "collective_id")


@dataclass(frozen=True)
class Placement:
    """The ids, ranks, clock and iterations of one recording in the trace.

    Parameters
    ----------
    first_id : int
        Added to its ids.
    own_rank : int
        Rank of the rows that state no rank.
    shift_ns : mapping of int to int
        Added to the times of each rank.
    spans : mapping of int to Iterations
        Iterations by rank.
    """

    first_id: int
    own_rank: int
    shift_ns: Mapping[int, int]
    spans: Mapping[int, Iterations]

    def extents(self, extents: Mapping[int, Extent]) -> dict[int, Extent]:
        """Return the extents of a recording by ranks of the trace, on its clock."""
        ranked = {self.own_rank if rank == OWN_RANK else rank: extent for rank, extent in extents.items()}
        return {rank: extent.shifted(self.shift_ns[rank]) for rank, extent in ranked.items()}

    def put(self, table: pa.Table) -> pa.Table:
        """Return rows of the recording with the ranks, ids and times of the trace."""
        ranks = integers(table, "rank")
        ranks = np.where(ranks == OWN_RANK, self.own_rank, ranks)
        table = put(table, "rank", ranks)
        if self.first_id:
            for column in _ID_COLUMNS:
                if column in table.schema.names:
                    ids = integers(table, column)
                    table = put(table, column, np.where(ids == MISSING, MISSING, ids + self.first_id))
        if any(self.shift_ns.values()):
            shift = np.zeros(len(ranks), dtype=np.int64)
            for rank, by_ns in self.shift_ns.items():
                shift[ranks == rank] = by_ns
            table = put(table, "start_ns", integers(table, "start_ns") + shift)
        return table

    def with_iterations(self, table: pa.Table) -> pa.Table:
        """Return a placed table in which each row has the iteration at its start."""
        ranks, start = integers(table, "rank"), integers(table, "start_ns")
        iterations = np.full(len(ranks), MISSING)
        for rank, spans in self.spans.items():
            of_rank = ranks == rank
            iterations[of_rank] = spans.at(start[of_rank])
        return put(table, "iteration", iterations)


#: Recordings, each with its placement.
_Placed = Sequence[tuple[LinkedRecording, Placement]]


@dataclass(frozen=True)
class AssembledTrace:
    """A trace without its bulk.

    Parameters
    ----------
    meta : TraceMeta
        Description of the trace; its quality lacks the counts of `finished`.
    placements : sequence of Placement
        One a recording.
    iterations, collectives : Table
        Rows of all ranks.
    next_id : int
        The smallest id above those of all events.
    """

    meta: TraceMeta
    placements: Sequence[Placement]
    iterations: pa.Table
    collectives: pa.Table
    next_id: int


def assemble(recordings: Sequence[LinkedRecording], iterations: str, length: str | None) -> AssembledTrace:
    """Place recordings on one clock, ranks and ids, match their collectives, and cut them into iterations.

    Parameters
    ----------
    recordings : sequence of LinkedRecording
        In the order of their files.
    iterations, length : str
        Rules for iterations and sequence lengths, as `profilers.ingest.pipeline.IngestOptions` has them.

    Raises
    ------
    InvalidInputError
        The options do not fit the recordings, or the recordings do not fit each other, or hold the same events.
    """
    placed: _Placed = list(zip(recordings, _placements(recordings, iterations == "file"), strict=True))
    if iterations != "file":  # otherwise each file is an iteration, whatever its clock says
        refuse_same_events([_ranked(recording, placement) for recording, placement in placed])
    trace, placed = _matched(placed)
    spans = _spans(placed, iterations)
    placed = [
        (recording, replace(placement, spans=by_rank))
        for (recording, placement), by_rank in zip(placed, spans, strict=True)
    ]
    trace = trace.with_tables(iterations=_iteration_table(spans), **_annotations(placed))
    trace = add_lengths(trace, length)
    next_id = sum(recording.stage.rows for recording in recordings)
    placements = [placement for _, placement in placed]
    return AssembledTrace(_meta(placed, trace.meta.quality), placements, trace.iterations, trace.collectives, next_id)


def _placements(recordings: Sequence[LinkedRecording], file_mode: bool) -> list[Placement]:
    """Give each recording its first id, its rank, and the shift that puts it on the common clock.

    Files that state the same single rank and overlap in time become ranks in their order.
    """
    ranks = [_stated_rank(recording) for recording in recordings]
    alone = all(set(recording.stage.extents) <= {OWN_RANK, 0} for recording in recordings) and not any(ranks)
    if len(recordings) > 1 and alone and not file_mode and not _follow(recordings):
        ranks = list(range(len(recordings)))
    shifts = base_shifts([recording.meta for recording in recordings])
    first = np.cumsum([0, *(recording.stage.rows for recording in recordings)]).tolist()
    return [_placement(*values) for values in zip(recordings, first, ranks, shifts, strict=False)]


def _stated_rank(recording: LinkedRecording) -> int:
    return recording.meta.ranks[0] if recording.meta.ranks else 0


def _placement(recording: LinkedRecording, first_id: int, own_rank: int, shift_ns: int) -> Placement:
    ranks = (own_rank if rank == OWN_RANK else rank for rank in recording.stage.extents)
    return Placement(first_id, own_rank, dict.fromkeys(ranks, shift_ns), {})


def _follow(recordings: Sequence[LinkedRecording]) -> bool:
    """Return whether each recording begins after the one before it has ended."""
    extents = [recording.stage.extents.values() for recording in recordings]
    times = sorted((min(e.start for e in of_ranks), max(e.end for e in of_ranks)) for of_ranks in extents)
    return all(before[1] <= after[0] for before, after in pairwise(times))


def _ranked(recording: LinkedRecording, placement: Placement) -> RankedFile:
    """Return a recording to compare with others, under the rank that it states, or else rank 0."""
    shift_ns = next(iter(placement.shift_ns.values()), 0)
    stated = _placement(recording, 0, _stated_rank(recording), shift_ns)
    return RankedFile(
        recording.file,
        bool(recording.meta.ranks),
        {} if recording.meta.quality["assumed_start"] else stated.extents(recording.stage.extents),
        lambda kind, names: map(stated.put, recording.stage.batches(kind, names)),
    )


def _matched(placed: _Placed) -> tuple[Trace, _Placed]:
    """Match collectives across ranks; shift the clocks of ranks that they contradict."""
    tables = [placement.put(recording.stage.table("collectives")) for recording, placement in placed]
    trace = match_collectives(Trace(TraceMeta(""), {"collectives": concatenate("collectives", tables)}))
    shifts = collective_shifts(trace.collectives)
    if not shifts:
        return trace, placed
    shifted = Placement(0, placed[0][1].own_rank, shifts, {}).put(trace.collectives)
    trace = trace.with_tables(collectives=shifted)
    moved = []
    for recording, placement in placed:
        shift_ns = {rank: by_ns + shifts.get(rank, 0) for rank, by_ns in placement.shift_ns.items()}
        moved.append((recording, replace(placement, shift_ns=shift_ns)))
    return trace.with_quality({"clock_shift_max_ns": max(map(abs, shifts.values()))}), moved


def _spans(placed: _Placed, iterations: str) -> list[dict[int, Iterations]]:
    """Return the iterations of every rank of every recording."""
    extents = [placement.extents(recording.stage.extents) for recording, placement in placed]
    if iterations == "file":
        files = [recording.meta.sources[0] for recording, _ in placed]
        return [
            {rank: one_iteration(rank, extent, number, files[number], "file") for rank, extent in by_rank.items()}
            for number, by_rank in enumerate(extents)
        ]
    total: dict[int, Extent] = {}
    for by_rank in extents:
        for rank, extent in by_rank.items():
            total[rank] = total.get(rank, extent) | extent
    marks = concatenate("ranges", [placement.put(recording.marks) for recording, placement in placed])
    pattern = None if iterations == "auto" else iterations
    spans = {}
    for rank, extent in sorted(total.items()):
        if iterations == "whole":
            spans[rank] = one_iteration(rank, extent, 0, WHOLE_TRACE, WHOLE_TRACE)
            continue
        marks_of_rank = marks.filter(arrow_array(integers(marks, "rank") == rank))
        spans[rank] = find_iterations(marks_of_rank, rank, extent, pattern)
        if spans[rank].found_by == WHOLE_TRACE:
            period = _periodic(placed, rank, extent)
            spans[rank] = spans[rank] if period is None or is_layer(marks_of_rank, period) else period
    by_recording = [{rank: spans[rank] for rank in by_rank} for by_rank in extents]
    if iterations != "whole":
        for rank, of_rank in spans.items():
            for number, cut in _by_recording(placed, extents, of_rank).items():
                by_recording[number][rank] = cut
    return by_recording


def _by_recording(placed: _Placed, extents: Sequence[Mapping[int, Extent]], spans: Iterations) -> dict[int, Iterations]:
    """Return the iterations of a rank by recording, cut at the borders of its files; nothing if it has one recording.

    Files are separate recordings if they are of one format and do not overlap in time. If nothing marks an iteration
    and no file holds two, each file is one.
    """
    rank = spans.rank
    numbers = sorted(
        (i for i, of_ranks in enumerate(extents) if rank in of_ranks), key=lambda i: extents[i][rank].start
    )
    apart = all(extents[a][rank].end <= extents[b][rank].start for a, b in pairwise(numbers))
    metas = [placed[i][0].meta for i in numbers]
    if len(numbers) < 2 or not apart or any(meta.quality["assumed_start"] for meta in metas):
        return {}
    if len({meta.format for meta in metas}) > 1:
        return {}
    cuts = {i: spans.in_recording(extents[i][rank], order) for order, i in enumerate(numbers)}
    is_marked = not spans.found_by.startswith((WHOLE_TRACE, KERNEL_SEQUENCE))
    if is_marked or max(map(len, cuts.values())) > 1:
        return cuts
    names = [placed[i][0].meta.sources[0] for i in numbers]
    return {
        i: replace(one_iteration(rank, extents[i][rank], order, names[order], SEPARATE_FILE), recording=order)
        for order, i in enumerate(numbers)
    }


def _periodic(placed: _Placed, rank: int, extent: Extent) -> Iterations | None:
    """Return the iterations that recur in the kernels of a rank, in launch order; None if no period is found."""
    codes: dict[str | None, int] = {}
    names, times = Narrowed(), Growing(np.int64)
    for recording, placement in placed:
        shift = placement.shift_ns.get(rank, 0)
        for table, cause in _caused(recording, placement, "kernels", ("rank", "name", "start_ns")):
            of_rank = integers(table, "rank") == rank
            times.append(np.where(cause == MISSING, integers(table, "start_ns"), cause + shift)[of_rank])
            names.append(text_codes(table["name"], codes)[of_rank])
    launched = times.values()
    order = sorting(launched)
    sequence = names.raw() if order is None else names.raw()[order]
    period = find_period(sequence)
    return None if period is None else periodic(rank, period, launched if order is None else launched[order], extent)


def _caused(
    recording: LinkedRecording, placement: Placement, kind: str, names: Sequence[str]
) -> Iterator[tuple[pa.Table, Ints]]:
    """Yield placed kernels or copies, and the time of the call that caused each, on the clock of the recording."""
    row = 0
    for batch in recording.stage.batches(kind, names):
        rows = slice(row, row + batch.num_rows)
        row = rows.stop
        cause = recording.stage.amended(kind, "cause_ns", rows)
        yield placement.put(batch), np.full(batch.num_rows, MISSING) if cause is None else cause


def _iteration_table(spans: Sequence[Mapping[int, Iterations]]) -> pa.Table:
    distinct = {id(of_rank): of_rank for by_rank in spans for of_rank in by_rank.values()}
    # Separate recordings come in the order of time, whatever the names of their files.
    ordered = sorted(distinct.values(), key=lambda of_rank: (of_rank.rank, of_rank.recording or 0))
    table = concatenate("iterations", [of_rank.table() for of_rank in ordered])
    keys = list(zip(table["rank"].to_pylist(), table["iteration"].to_pylist(), strict=True))
    if len(set(keys)) != len(keys):
        raise InvalidInputError("two files hold the same iteration of the same rank; ingest them apart")
    return table


def _annotations(placed: _Placed) -> dict[str, pa.Table]:
    """Return the annotations and operators that can state a sequence length, with their iterations."""
    tables = {}
    for kind, name in (("ranges", "marks"), ("ops", "length_ops")):
        pairs = [(placement, placement.put(getattr(recording, name))) for recording, placement in placed]
        tables[kind] = concatenate(kind, [placement.with_iterations(table) for placement, table in pairs])
    return tables


def _meta(placed: _Placed, quality: Quality) -> TraceMeta:
    metas = []
    for recording, placement in placed:
        devices = (
            replace(device, rank=placement.own_rank if device.rank == OWN_RANK else device.rank)
            for device in recording.meta.devices
        )
        metas.append(replace(recording.meta, devices=tuple(devices), ranks=tuple(placement.spans)))
    return joined_meta(metas, quality)


def joined_meta(metas: Sequence[TraceMeta], quality: Quality) -> TraceMeta:
    """Return the description of one trace that holds the events of several.

    Parameters
    ----------
    metas : sequence of TraceMeta
        Descriptions of the parts, on one clock.
    quality : Quality
        Counts to add to the counts of the parts.
    """
    return replace(
        metas[0],
        format="+".join(dict.fromkeys(meta.format for meta in metas)),
        sources=tuple(name for meta in metas for name in meta.sources),
        ranks=tuple(sorted({rank for meta in metas for rank in meta.ranks})),
        world_size=max((meta.world_size for meta in metas if meta.world_size is not None), default=None),
        clock_base_ns=min(meta.clock_base_ns for meta in metas),
        devices=tuple(dict.fromkeys(device for meta in metas for device in meta.devices)),
        quality=sum((meta.quality for meta in metas), quality),
        fingerprint=combined_fingerprint([meta.fingerprint for meta in metas]),
    )


def finished(
    recording: LinkedRecording, placement: Placement, collectives: pa.Table, counts: dict[str, int]
) -> Iterator[tuple[str, pa.Table]]:
    """Yield (kind, rows) of one recording as they stand in the trace.

    Parameters
    ----------
    recording : LinkedRecording
        The recording to finish.
    placement : Placement
        Its ids, ranks, clock and iterations in the trace.
    collectives : Table
        Matched collectives of all recordings; the rows of this recording are yielded.
    counts : dict
        Takes quality counts while rows are yielded.
    """
    device = _device_iterations(recording, placement, counts)
    counts["no_iteration"] = sum(int((of_kind == MISSING).sum()) for of_kind in device.values())
    ids = integers(collectives, "id")
    recorded = collectives.filter(
        arrow_array((ids >= placement.first_id) & (ids < placement.first_id + recording.stage.rows))
    )
    kernels = np.unique(integers(recorded, "kernel_id"))
    iterations = np.full(len(kernels), MISSING)
    for kind in KINDS:
        if kind == "collectives":
            continue
        row = 0
        for batch in recording.stage.batches(kind):
            rows = slice(row, row + batch.num_rows)
            row += batch.num_rows
            table = placement.put(batch)
            table = put(table, "iteration", device[kind][rows]) if kind in device else placement.with_iterations(table)
            if kind == "kernels" and len(kernels):
                iteration_of_kernel = lookup(integers(table, "id"), device[kind][rows], kernels)
                iterations = np.where(iteration_of_kernel == MISSING, iterations, iteration_of_kernel)
            yield kind, table
    if recorded.num_rows:
        yield "collectives", put(recorded, "iteration", lookup(kernels, iterations, integers(recorded, "kernel_id")))


#: Kinds of device work, whose iteration is that of the call that caused them.
_WORK = ("kernels", "copies")


def _device_iterations(recording: LinkedRecording, placement: Placement, counts: dict[str, int]) -> dict[str, Ints]:
    """Return the iteration of every kernel and copy of a recording, by kind.

    Work without a launch has the iteration of its neighbours on the stream. In a file without launches, work has the
    iteration in which it ran, which is counted.
    """
    result, starts, unknown, is_caused = Growing(np.int64), Growing(np.int64), 0, False
    ranks_of: list[Ints] = [np.empty(0, np.int64)]
    kernels = 0
    for kind in _WORK:
        for table, cause in _caused(recording, placement, kind, ("rank", "start_ns", "launch_id")):
            ranks, start = integers(table, "rank"), integers(table, "start_ns")
            of_batch = np.full(len(ranks), MISSING)
            for rank in np.unique(ranks).tolist():
                of_rank = ranks == rank
                shifted = cause[of_rank] + placement.shift_ns.get(rank, 0)
                cause_ns = np.where(cause[of_rank] == MISSING, MISSING, shifted)
                of_batch[of_rank] = caused_iterations(placement.spans[rank], start[of_rank], cause_ns)
            unknown += int(((integers(table, "launch_id") == MISSING) & (of_batch == MISSING)).sum())
            is_caused |= bool((cause != MISSING).any())
            result.append(of_batch)
            if not is_caused:
                starts.append(start)
                ranks_of.append(ranks)
            kernels += len(ranks) if kind == "kernels" else 0
    iterations: Ints = result.values()
    if unknown and is_caused:
        _fill_orphans(recording, placement, iterations)
    elif unknown:
        counts["iteration_by_time"] = _fill_by_time(placement, np.concatenate(ranks_of), starts.values(), iterations)
    return dict(zip(_WORK, np.split(iterations, [kernels]), strict=True))


def _fill_by_time(placement: Placement, ranks: Ints, starts: Ints, iterations: Ints) -> int:
    """Give device work the iteration in which it ran, in place, and return the number of events that got one."""
    before = int((iterations == MISSING).sum())
    for rank in np.unique(ranks).tolist():
        chosen = (ranks == rank) & (iterations == MISSING)
        iterations[chosen] = placement.spans[rank].at(starts[chosen])
    return before - int((iterations == MISSING).sum())


def _fill_orphans(recording: LinkedRecording, placement: Placement, iterations: Ints) -> None:
    """Give kernels and copies without a launch the iteration of their neighbours on the stream, in place."""
    numbers, lanes, starts, launched = LaneNumbers(), Narrowed(), Growing(np.int64), Growing(np.bool_)
    columns = ("rank", "start_ns", "device", "stream", "launch_id")
    for batch in (batch for kind in _WORK for batch in recording.stage.batches(kind, columns)):
        table = placement.put(batch)
        lanes.append(numbers.of([integers(table, name) for name in ("rank", "device", "stream")]))
        starts.append(integers(table, "start_ns"))
        launched.append(integers(table, "launch_id") != MISSING)
    start = starts.values()
    for lane in by_lane(lambda: (lanes.take(rows) for rows in row_slices(len(start)))):
        order = sorting(start[lane])
        fill_from_neighbours(lane if order is None else lane[order], launched.values(), iterations)
