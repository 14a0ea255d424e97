"""`work_phases`: the phase of a training step, forward, backward or optimizer, that launched each kernel and copy.

A trace tells phases in three ways. The optimizer is an operator or a range of PyTorch (``Optimizer.step#Adam.step``).
Autograd gives every operator that it records a sequence number, and a backward operator has the number of its forward
operator. And people annotate their loops (``## forward ##``). `work_phases` takes them in this order, by the call that
launched the work.
"""

import re

import numpy as np
import pyarrow as pa

from profilers.trace.arrays import MISSING, Bools, Ints, encode_text, ends, integers, row_keys
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace
from replay.graph.graph import PHASES

_FORWARD, _BACKWARD, _OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))
#: Names of operators and ranges of an optimizer, its ``zero_grad`` included.
_OPTIMIZER_NAME = re.compile(r"Optimizer\.(step|zero_grad)")
#: Names of backward operators. Older versions of PyTorch have no range of the engine around them.
_BACKWARD_NAME = re.compile(r"autograd::engine::evaluate_function|(^|::)\w+Backward\d*$")
#: Annotations of people, by phase.
_ANNOTATION = re.compile(
    r"[#\s]*(?:(?P<forward>forward|fwd)|(?P<backward>backward|bwd)|(?P<optimizer>optimizer|optim))"
    r"(?:[ _.-]?(?:pass|step))?[#\s]*",
    re.IGNORECASE,
)
#: Category of annotations that a profiler repeats on the device, where they are not the host's time.
_ON_DEVICE = "gpu_user_annotation"


def annotated_phase(name: str) -> int:
    """Return the phase that an annotation names, as an index into `PHASES`; -1 if it names none.

    Examples
    --------
    >>> [annotated_phase(name) for name in ("## backward ##", "optimizer_step", "forward_hook")]
    [1, 2, -1]
    """
    match = _ANNOTATION.fullmatch(name)
    return -1 if match is None or match.lastgroup is None else PHASES.index(match.lastgroup)


def work_phases(trace: Trace, launch_id: Ints, op_id: Ints) -> Ints:
    """Return the phase of kernels and copies, as indices into `PHASES`; -1 if the trace does not tell it.

    The phase is that in which the call that launched the work lies: an operator or range of the optimizer, a backward
    operator, an annotation, or a forward operator with a sequence number, in this order. Work between two launches of
    one phase on its rank belongs to that phase too.

    Parameters
    ----------
    trace : Trace
        The trace.
    launch_id, op_id : array of int64
        Ids of the call and of the operator that launched each kernel or copy; `MISSING` if unknown.
    """
    rank, thread, time = _launch_times(trace, launch_id, op_id)
    phase = np.full(len(time), -1)
    spans = _op_spans(trace)
    known = time != MISSING
    keys = row_keys(rank, thread)
    for first in np.unique(np.where(known, keys, MISSING), return_index=True)[1].tolist():  # a few threads a rank
        rows = np.flatnonzero(known & (keys == keys[first]))
        rows = rows[np.argsort(time[rows], kind="stable")]
        on_thread = {number: span.on(int(rank[first]), int(thread[first])) for number, span in spans.items()}
        phase[rows] = _of_spans(time[rows], on_thread)
    for number, (ranks, start, end) in _annotations(trace).items():
        for each in np.unique(ranks).tolist():
            rows = np.flatnonzero(known & (rank == each) & np.isin(phase, (-1, _FORWARD)))
            phase[rows[_covered(time[rows], start[ranks == each], end[ranks == each])]] = number
    order = np.lexsort((time, rank))
    order = order[time[order] != MISSING]
    phase[order] = filled_phases(phase[order], rank[order])
    return phase


def _launch_times(trace: Trace, launch_id: Ints, op_id: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the rank, the thread and the time at which each row was launched; `MISSING` if unknown."""
    launches, ops = trace.launches, trace.ops
    launch, op = (
        lookup(integers(table, "id"), np.arange(table.num_rows), ids)
        for table, ids in ((launches, launch_id), (ops, op_id))
    )
    columns = []
    for name in ("rank", "thread", "start_ns"):
        # A row more, for work whose call or operator is unknown.
        of_launch, of_op = (np.append(integers(table, name), MISSING) for table in (launches, ops))
        by_op = of_op[np.where(op == MISSING, ops.num_rows, op)]
        columns.append(
            np.where(launch == MISSING, by_op, of_launch[np.where(launch == MISSING, launches.num_rows, launch)])
        )
    return columns[0], columns[1], columns[2]


class _Spans:
    """Spans of host time by rank and thread."""

    def __init__(self, tables: list[tuple[Ints, Ints, Ints, Ints]]) -> None:
        columns = [np.concatenate(column) for column in zip(*tables, strict=True)]
        order = np.lexsort((columns[2], columns[1], columns[0]))
        self._rank, self._thread, self._start, self._end = (column[order] for column in columns)

    def on(self, rank: int, thread: int) -> tuple[Ints, Ints]:
        """Return start and end of the spans on a thread, by start."""
        rows = (self._rank == rank) & (self._thread == thread)
        return self._start[rows], self._end[rows]


def _op_spans(trace: Trace) -> dict[int, _Spans]:
    """Return the spans of operators and ranges that tell a phase, by phase."""
    ops, ranges = trace.ops, trace.ranges
    number, forward_thread = integers(ops, "sequence_number"), integers(ops, "forward_thread")
    numbered = (number != MISSING) & (number >= 0)
    backward = (numbered & (forward_thread > 0)) | _named(ops, _BACKWARD_NAME)
    of_optimizer = [_rows_of(table, _named(table, _OPTIMIZER_NAME)) for table in (ops, ranges)]
    return {
        _FORWARD: _Spans([_rows_of(ops, numbered & ~backward)]),
        _BACKWARD: _Spans([_rows_of(ops, backward)]),
        _OPTIMIZER: _Spans(of_optimizer),
    }


def _named(table: pa.Table, pattern: re.Pattern[str]) -> Bools:
    """Return which rows have a name with a match of `pattern`; each distinct name is searched once."""
    codes, names = encode_text(table["name"])
    return np.array([*(pattern.search(str(name)) is not None for name in names), False], dtype=bool)[codes]


def _rows_of(table: pa.Table, rows: Bools) -> tuple[Ints, Ints, Ints, Ints]:
    """Return rank, thread, start and end of some rows."""
    columns = (integers(table, "rank"), integers(table, "thread"), integers(table, "start_ns"), ends(table))
    return columns[0][rows], columns[1][rows], columns[2][rows], columns[3][rows]


def _of_spans(time: Ints, spans: dict[int, tuple[Ints, Ints]]) -> Ints:
    phase = np.full(len(time), -1)
    for number in (_FORWARD, _BACKWARD, _OPTIMIZER):  # the later ones count
        phase[_covered(time, *spans[number])] = number
    return phase


def _covered(time: Ints, start: Ints, end: Ints) -> Bools:
    """Return which times lie inside one of the spans, which are ordered by start."""
    if not len(start):
        return np.zeros(len(time), dtype=bool)
    position = np.searchsorted(start, time, side="right") - 1
    return np.asarray((position >= 0) & (np.maximum.accumulate(end)[np.maximum(position, 0)] > time))


def _annotations(trace: Trace) -> dict[int, tuple[Ints, Ints, Ints]]:
    """Return rank, start and end of the annotations of each phase, by start."""
    ranges = trace.ranges
    codes, names = encode_text(ranges["name"])
    phase = np.array([*(annotated_phase(str(name)) for name in names), -1], dtype=np.int64)[codes]
    categories, texts = encode_text(ranges["category"])
    phase[np.array([*(text == _ON_DEVICE for text in texts), False], dtype=bool)[categories]] = -1
    rank, start, end = integers(ranges, "rank"), integers(ranges, "start_ns"), ends(ranges)
    blocks = {}
    for number in range(len(PHASES)):
        rows = np.flatnonzero(phase == number)
        rows = rows[np.argsort(start[rows], kind="stable")]
        blocks[number] = (rank[rows], start[rows], end[rows])
    return blocks


def filled_phases(phase: Ints, rank: Ints | int = 0) -> Ints:
    """Return the phases of work in order of launch, with work between two launches of one phase in that phase.

    Parameters
    ----------
    phase : array of int64, shape (n,)
        Phase of each kernel or copy, -1 if unknown.
    rank : array of int64, shape (n,), or int
        Rank of each; those of a rank adjoin.
    """
    known, position = phase >= 0, np.arange(len(phase))
    before = np.maximum.accumulate(np.where(known, position, 0))
    after = np.minimum.accumulate(np.where(known, position, max(len(phase) - 1, 0))[::-1])[::-1]
    ranks = np.broadcast_to(rank, len(phase))
    same = (phase[before] == phase[after]) & (ranks[before] == ranks) & (ranks[after] == ranks)
    return np.where(~known & same, phase[before], phase)
