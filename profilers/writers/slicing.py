"""Cutting a trace, and merging traces of different ranks.

A part of a trace: some iterations, some ranks, some time.

Traces of different ranks as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.ingest.assembly import Place, base_shifts, collective_shifts
from profilers.ingest.collectives import match_collectives
from profilers.ingest.part import combined_fingerprint
from profilers.trace.arrays import MISSING, arrow_array, ends, integers, put
from profilers.trace.schema import KINDS
from profilers.trace.trace import Quality, Trace

_REFERENCES = ("launch_id", "op_id", "kernel_id", "collective_id")


@dataclass(frozen=True)
class SliceOptions:
    """What to keep; None keeps all.

    Parameters
    ----------
    iterations, ranks : frozenset of int, optional
    start_ns, end_ns : int, optional
        Events that overlap this half-open time are kept whole, on the clock of the trace.
    """

    iterations: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    start_ns: int | None = None
    end_ns: int | None = None


def slice_trace(trace: Trace, options: SliceOptions) -> Trace:
    """Return the events of `trace` that `options` keep; a reference to an event that is not kept becomes null.

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
    return Trace(replace(trace.meta, ranks=tuple(sorted(present)), devices=devices), tables)


def _check(trace: Trace, options: SliceOptions) -> None:
    if options.ranks is not None and (unknown := options.ranks - set(trace.meta.ranks)):
        raise InvalidInputError(f"no rank {sorted(unknown)}; the trace has {list(trace.meta.ranks)[:20]}")
    known = set(integers(trace.iterations, "iteration").tolist())
    if options.iterations is not None and (unknown := options.iterations - known):
        raise InvalidInputError(f"no iteration {sorted(unknown)}; the trace has {sorted(known)[:20]}")


def _kept(table: pa.Table, options: SliceOptions) -> pa.Table:
    mask: Any = np.ones(table.num_rows, dtype=bool)
    for column, wanted in (("iteration", options.iterations), ("rank", options.ranks)):
        if wanted is not None:
            mask &= np.isin(integers(table, column), sorted(wanted))
    start, end = integers(table, "start_ns"), ends(table)
    if options.start_ns is not None:
        mask &= (end > options.start_ns) | (start >= options.start_ns)
    if options.end_ns is not None:
        mask &= start < options.end_ns
    return table.filter(arrow_array(mask))


def _referring(table: pa.Table, ids: Any) -> pa.Table:
    for column in _REFERENCES:
        if column in table.schema.names:
            values = integers(table, column)
            table = put(table, column, np.where(np.isin(values, ids), values, MISSING))
    return table


#: Counts that only hold for the traces apart.
_ANEW = ("collectives_matched", "clock_shift_max_ns")


def merge(traces: Sequence[Trace]) -> Trace:
    """Return one trace of all, on one clock and with ids of their own; collectives are matched anew.

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
        one, other = [_named(trace.meta.sources) for trace in traces if rank in trace.meta.ranks][:2]
        raise InvalidInputError(
            f"rank {rank} is in two of the traces, of {one} and of {other}; leave one of them out, "
            "or number them anew if they are different ranks (--as-ranks)"
        )
    metas = [trace.meta for trace in traces]
    placed, first = [], 0
    for trace, shift in zip(traces, base_shifts(metas), strict=True):
        place = Place(first, 0, dict.fromkeys(trace.meta.ranks, shift), {})
        placed.append({kind: place.put(table) for kind, table in trace.tables.items()})
        first += trace.next_id()
    tables = {kind: pa.concat_tables([one[kind] for one in placed]) for kind in placed[0]}
    tables = {kind: table.unify_dictionaries().combine_chunks() for kind, table in tables.items()}
    quality = sum((meta.quality for meta in metas), Quality())
    meta = replace(
        metas[0],
        format="+".join(dict.fromkeys(meta.format for meta in metas)),
        sources=tuple(name for meta in metas for name in meta.sources),
        ranks=tuple(sorted(ranks)),
        world_size=max((meta.world_size for meta in metas if meta.world_size is not None), default=None),
        clock_base_ns=min(meta.clock_base_ns for meta in metas),
        devices=tuple(dict.fromkeys(device for meta in metas for device in meta.devices)),
        quality=Quality({name: n for name, n in quality.counts.items() if name not in _ANEW}),
        fingerprint=combined_fingerprint([meta.fingerprint for meta in metas]),
    )
    return _aligned(match_collectives(Trace(meta, tables)))


def as_ranks(traces: Sequence[Trace]) -> list[Trace]:
    """Return traces of one rank each as those of rank 0, 1, ... in their order: runs that all called themselves 0.

    Raises
    ------
    InvalidInputError
        One holds several ranks.
    """
    if several := [trace for trace in traces if len(trace.meta.ranks) != 1]:
        raise InvalidInputError(
            f"a trace holds ranks {list(several[0].meta.ranks)}; only those of one can be renumbered"
        )
    return [_renumbered(trace, rank) for rank, trace in enumerate(traces)]


def _named(sources: Sequence[str]) -> str:
    """Return the files that a trace was read from, in short."""
    if not sources:
        return "an unnamed file"
    return sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1} more"


def _renumbered(trace: Trace, rank: int) -> Trace:
    tables = {kind: put(table, "rank", np.full(table.num_rows, rank)) for kind, table in trace.tables.items()}
    devices = tuple(replace(device, rank=rank) for device in trace.meta.devices)
    return Trace(replace(trace.meta, ranks=(rank,), devices=devices), tables)


def _aligned(trace: Trace) -> Trace:
    shifts = collective_shifts(trace.collectives)
    if not shifts:
        return trace
    place = Place(0, 0, {rank: shifts.get(rank, 0) for rank in trace.meta.ranks}, {})
    moved = trace.with_tables(**{kind: place.put(table) for kind, table in trace.tables.items()})
    return moved.with_quality({"clock_shift_max_ns": int(np.max(np.abs(list(shifts.values()))))})
