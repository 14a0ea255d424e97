"""Traces of different ranks as one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from profilers.arrays import integers, put
from profilers.assembly import Place
from profilers.clocks import base_shifts, collective_shifts
from profilers.collectives import match_collectives
from profilers.errors import InvalidInputError
from profilers.part import combined_fingerprint
from profilers.quality import Quality
from profilers.schema import KINDS
from profilers.trace import Trace

__all__ = ["as_ranks", "merge"]

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
        raise InvalidInputError(f"rank {next(r for r in ranks if ranks.count(r) > 1)} is in two of the traces")
    metas = [trace.meta for trace in traces]
    placed, first = [], 0
    for trace, shift in zip(traces, base_shifts(metas), strict=True):
        place = Place(first, 0, dict.fromkeys(trace.meta.ranks, shift), {})
        placed.append({kind: place.put(table) for kind, table in trace.tables.items()})
        first += max(
            (int(integers(trace.tables[k], "id").max()) + 1 for k in KINDS if trace.tables[k].num_rows), default=0
        )
    tables = {kind: _joined([one[kind] for one in placed]) for kind in placed[0]}
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


def _renumbered(trace: Trace, rank: int) -> Trace:
    tables = {kind: put(table, "rank", np.full(table.num_rows, rank)) for kind, table in trace.tables.items()}
    devices = tuple(replace(device, rank=rank) for device in trace.meta.devices)
    return Trace(replace(trace.meta, ranks=(rank,), devices=devices), tables)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _aligned(trace: Trace) -> Trace:
    shifts = collective_shifts(trace.collectives)
    if not shifts:
        return trace
    place = Place(0, 0, {rank: shifts.get(rank, 0) for rank in trace.meta.ranks}, {})
    moved = trace.with_tables(**{kind: place.put(table) for kind, table in trace.tables.items()})
    return moved.with_quality({"clock_shift_max_ns": int(np.max(np.abs(list(shifts.values()))))})
