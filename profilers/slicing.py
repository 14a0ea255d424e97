"""A part of a trace: some iterations, some ranks, some time."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.arrays import MISSING, arrow_array, ends, integers, put
from profilers.errors import InvalidInputError
from profilers.schema import KINDS
from profilers.trace import Trace

__all__ = ["SliceOptions", "slice_trace"]

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
