"""Slice a trace by iterations, ranks or time (`slice_trace`), and merge traces of different ranks (`merge`)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.ingest.assembly import Placement, base_shifts, collective_shifts, joined_meta
from profilers.ingest.collectives import match_collectives
from profilers.trace.arrays import MISSING, arrow_array, ends, integers, put
from profilers.trace.quality import RULES, Quality
from profilers.trace.schema import KINDS, concatenate
from profilers.trace.trace import Trace, TraceMeta

#: Columns that hold the id of another event.
_REFERENCES = ("launch_id", "op_id", "kernel_id", "collective_id")


@dataclass(frozen=True)
class SliceOptions:
    """The events that a slice keeps; an option that is None keeps all.

    Parameters
    ----------
    iterations, ranks : frozenset of int, optional
        Iterations and ranks to keep.
    start_ns, end_ns : int, optional
        Half-open time on the clock of the trace; events that overlap it are kept whole.
    """

    iterations: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    start_ns: int | None = None
    end_ns: int | None = None


def slice_trace(trace: Trace, options: SliceOptions) -> Trace:
    """Return a slice of a trace; references to events outside it become null.

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
    if not any(tables[kind].num_rows for kind in KINDS):
        raise InvalidInputError("nothing of the trace lies in this slice")
    ids = np.concatenate([integers(tables[kind], "id") for kind in KINDS])
    tables = {kind: _referring(table, ids) for kind, table in tables.items()}
    present = {int(r) for kind in KINDS for r in np.unique(integers(tables[kind], "rank"))}
    devices = tuple(d for d in trace.meta.devices if d.rank in present)
    quality = _recounted(trace.meta.quality, tables["collectives"])
    return Trace(replace(trace.meta, ranks=tuple(sorted(present)), devices=devices, quality=quality), tables)


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
    for column, kept in (("iteration", options.iterations), ("rank", options.ranks)):
        if kept is not None:
            mask &= np.isin(integers(table, column), sorted(kept))
    start, end = integers(table, "start_ns"), ends(table)
    if options.start_ns is not None:
        mask &= (end > options.start_ns) | (start >= options.start_ns)
    if options.end_ns is not None:
        mask &= start < options.end_ns
    return table.filter(arrow_array(mask))


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
    if not traces:
        raise InvalidInputError("no trace to merge")
    ranks = [rank for trace in traces for rank in trace.meta.ranks]
    if len(set(ranks)) < len(ranks):
        rank = next(r for r in ranks if ranks.count(r) > 1)
        first_files, other_files = [_named(trace.meta.sources) for trace in traces if rank in trace.meta.ranks][:2]
        raise InvalidInputError(
            f"rank {rank} is in two of the traces, of {first_files} and of {other_files}; leave one of them out, "
            "or number them anew if they are different ranks (--as-ranks)"
        )
    metas = [trace.meta for trace in traces]
    placed, first = [], 0
    for trace, shift in zip(traces, base_shifts(metas), strict=True):
        placement = Placement(first, 0, dict.fromkeys(trace.meta.ranks, shift), {})
        placed.append({kind: placement.put(table) for kind, table in trace.tables.items()})
        first += trace.next_id()
    tables = {kind: concatenate(kind, [of_trace[kind] for of_trace in placed]) for kind in placed[0]}
    return _aligned(match_collectives(Trace(_merged_meta(metas), tables)))


def _merged_meta(metas: Sequence[TraceMeta]) -> TraceMeta:
    """Return the description of merged traces, in which slices of a trace count as that trace."""
    whole: dict[tuple[object, ...], TraceMeta] = {}
    for meta in metas:
        key = (meta.fingerprint, meta.sources)
        whole[key] = _rejoined(whole[key], meta) if meta.fingerprint and key in whole else meta
    joined = joined_meta(list(whole.values()), Quality())
    shift = max(meta.quality["clock_shift_max_ns"] for meta in metas)
    counts = {**joined.quality.counts, "collectives_matched": 0, "clock_shift_max_ns": shift}
    devices = tuple(sorted(joined.devices, key=lambda device: (device.rank, device.device)))
    return replace(joined, devices=devices, quality=Quality(counts))


def _rejoined(first: TraceMeta, second: TraceMeta) -> TraceMeta:
    """Return the description of two slices of a trace; each counts its own collectives, and both all other events."""
    counts = {name: max(first.quality[name], second.quality[name]) for name in RULES}
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


def _aligned(trace: Trace) -> Trace:
    """Return `trace` with the clocks of ranks shifted that matched collectives contradict."""
    shifts = collective_shifts(trace.collectives)
    if not shifts:
        return trace
    placement = Placement(0, 0, {rank: shifts.get(rank, 0) for rank in trace.meta.ranks}, {})
    moved = trace.with_tables(**{kind: placement.put(table) for kind, table in trace.tables.items()})
    shift = max(int(np.max(np.abs(list(shifts.values())))), trace.meta.quality["clock_shift_max_ns"])
    quality = Quality({**moved.meta.quality.counts, "clock_shift_max_ns": shift})
    return replace(moved, meta=replace(moved.meta, quality=quality))
