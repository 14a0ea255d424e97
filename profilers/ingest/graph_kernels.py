"""Operators of the kernels that a CUDA or HIP graph launched, from captures of the same job.

The kernels of one launch of a graph, in their order, are aligned with the launches of each sequence of the captures
by name; the sequence with the best alignment is taken. A sequence that states no names (CUDA does not write them
while a stream is captured) must have as many launches as the graph has kernels, and the same call must launch the same
kernel wherever it recurs. Of sequences that align equally well, those with the graph's grids are taken, then those
with the tokens of the iteration, then the one that follows the last one taken.

Each matched kernel gets a row of ``ops`` as its operator, one for each launch of the graph and call of the capture, so
that an operator has the kernels of one call only, and times, counts and FLOP by call are right. The row has the name,
the shapes and the types of the call. It stands at the start of the launch, on its thread and in its iteration, and has
no duration, since the operator did not run on the host. A kernel without a grid takes that of the call.

Shapes are left out if the captures may be of another batch: grids differ; without grids, the tokens differ from those
of the iteration by more than padding, or are unknown and names of kernels differ; or sequences of several batches align
equally well and nothing tells them apart.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.ingest.alignment import Alignment, CapturedNames, KernelNames
from profilers.ingest.capture import CALL_COLUMNS, GRAPH_LAUNCH, CapturedSequence, Captures
from profilers.trace.arrays import MISSING, Bools, Ints, arrow_array, encode_text, integers, put, strings
from profilers.trace.columns import lookup
from profilers.trace.schema import make_table

#: Columns of kernels, of launches and of iterations that matching reads.
GRAPH_KERNEL_COLUMNS = (
    "id",
    "rank",
    "name",
    "start_ns",
    "dur_ns",
    "launch_id",
    "op_id",
    "workgroups",
    "graph_node",
)
LAUNCH_COLUMNS = ("id", "rank", "name", "start_ns", "process", "thread", "iteration")
ITERATION_COLUMNS = ("rank", "iteration", "sequence_length", "batch", "length_found_by")

#: Share of the kernels of graph launches below which captures are refused.
_LEAST_SHARE = 0.5
#: Least share of grids that must be equal.
_SAME_GRIDS = 0.75

#: Number of a sequence, and its alignment with a graph.
_Place = tuple[int, Alignment]


@dataclass
class _NodeChoice:
    """The choice of a sequence for each launch of a graph, with the last one taken."""

    names: CapturedNames
    aligned: dict[bytes, list[Alignment]] = field(default_factory=dict)
    narrowed: dict[tuple[Any, ...], tuple[list[_Place], bool]] = field(default_factory=dict)
    last: tuple[int, int] = (-1, -1)

    def take(self, graph: KernelNames, groups: Ints, needed: tuple[int, int], rank: int) -> tuple[_Place | None, bool]:
        """Return a sequence with its alignment, and whether its shapes are sure; (None, False) if nothing aligns."""
        key = graph.exact.tobytes()
        if key not in self.aligned:
            self.aligned[key] = self.names.alignments(graph)
        full = (key, groups.tobytes(), needed, rank)
        if full not in self.narrowed:
            self.narrowed[full] = self._narrowed(self.aligned[key], groups, needed, rank)
        choices, sure = self.narrowed[full]
        if not choices:
            return None, False
        chosen = next((place for place in choices if _position(place) > self.last), choices[0])
        self.last = _position(chosen)
        return chosen, sure

    def _narrowed(
        self, aligned: Sequence[Alignment], groups: Ints, needed: tuple[int, int], rank: int
    ) -> tuple[list[_Place], bool]:
        captures, sequences = self.names.captures, self.names.captures.sequences
        places = sorted(((n, each) for each in aligned for n in each.sequences.tolist()), key=_position)
        ranked = [place for place in places if sequences[place[0]].rank == rank] or places
        grids = [_share_of_grids(sequences[n], each, groups) for n, each in ranked]
        best = max(grids, default=-1.0)
        ranked = [place for place, share in zip(ranked, grids, strict=True) if share == best]
        tokens = [captures.tokens(sequences[n].call[each.launch]) for n, each in ranked]
        fits = [_fit(number, needed) for number in tokens]
        chosen = [row for row, fit in enumerate(fits) if fit == min(fits)]
        fit = min(fits, default=(_OTHER, 0))[0]
        told = best >= _SAME_GRIDS or (best < 0 and fit <= _PADDED)
        told |= best < 0 and fit == _UNKNOWN and all(ranked[row][1].has_same_names for row in chosen)
        return [ranked[row] for row in chosen], told and len({tokens[row] for row in chosen}) == 1


def _position(place: _Place) -> tuple[int, int]:
    return place[0], int(place[1].launch[0])


def _share_of_grids(sequence: CapturedSequence, alignment: Alignment, groups: Ints) -> float:
    """Return the share of matched kernels with the same number of workgroups; -1 if none is known on both sides."""
    first, second = groups[alignment.graph], sequence.workgroups[alignment.launch]
    known = (first != MISSING) & (second != MISSING)
    return float((first[known] == second[known]).mean()) if known.any() else -1.0


#: How well the tokens of a sequence fit an iteration, the best first: equal, more by padding, unknown, another batch.
_EQUAL, _PADDED, _UNKNOWN, _OTHER = range(4)


def _fit(tokens: int | None, needed: tuple[int, int]) -> tuple[int, int]:
    """Return how well the tokens of a sequence fit an iteration with some length and batch; lower is better.

    A graph may have more tokens than the iteration, since engines pad a batch to the next size that has a graph. These
    sizes are at most twice the one before.
    """
    length, batch = needed
    stated = [number for number in (length, length * batch if min(needed) > 0 else -1, batch) if number > 0]
    if tokens is None or not stated:
        return _UNKNOWN, 0
    if tokens in stated:
        return _EQUAL, stated.index(tokens)
    return (_PADDED, tokens) if any(number < tokens <= 2 * number for number in stated[:1]) else (_OTHER, tokens)


@dataclass(frozen=True)
class GraphOperators:
    """Operators of the kernels of a recording that graphs launched.

    Parameters
    ----------
    ops : Table
        Rows of ``ops`` to add.
    op_id, workgroups, workgroup_size : array of int64
        For each kernel of the recording what its operator and its grid become; `MISSING` to keep them.
    counts : mapping of str to int
        Quality counts.
    """

    ops: pa.Table
    op_id: Ints
    workgroups: Ints
    workgroup_size: Ints
    counts: Mapping[str, int]

    def fill(self, table: pa.Table, first_row: int) -> pa.Table:
        """Return consecutive rows of kernels with their operators and grids; the first is kernel `first_row`."""
        rows = slice(first_row, first_row + table.num_rows)
        op_id = self.op_id[rows]
        table = put(table, "op_id", np.where(op_id == MISSING, integers(table, "op_id"), op_id))
        for column, values in (("workgroups", self.workgroups), ("workgroup_size", self.workgroup_size)):
            own = integers(table, column)
            table = put(table, column, np.where(own == MISSING, values[rows], own))
        return table


def graph_operators(
    kernels: pa.Table, launches: pa.Table, iterations: pa.Table, captures: Captures, next_id: int
) -> GraphOperators:
    """Match the kernels of graph launches of one recording with captures.

    Parameters
    ----------
    kernels, launches : Table
        Rows of the recording, with at least the columns `GRAPH_KERNEL_COLUMNS` and `LAUNCH_COLUMNS`.
    iterations : Table
        Iterations of the trace.
    captures : Captures
        Captures of the same job.
    next_id : int
        The smallest id above those of all events; the operators get ids from `next_id` to twice that.
    """
    codes, texts = encode_text(kernels["name"])
    names = CapturedNames(captures, [str(text) for text in texts])
    distinct = names.of([str(text) for text in texts])
    groups = integers(kernels, "workgroups")
    needed = _needed(launches, iterations)
    result = _Matched(kernels, captures)
    choices: dict[int, _NodeChoice] = defaultdict(lambda: _NodeChoice(names))
    for launch, rows in _graph_launches(kernels, launches):
        graph = KernelNames(distinct.exact[codes[rows]], distinct.loose[codes[rows]])
        rank = int(integers(kernels, "rank")[rows[0]])
        chosen, sure = choices[rank].take(graph, groups[rows], needed.get(launch, (-1, -1)), rank)
        result.add(launch, rows, chosen, sure=sure)
    return result.finished(launches, next_id)


def _graph_launches(kernels: pa.Table, launches: pa.Table) -> list[tuple[int, Ints]]:
    """Return the row of each launch of a graph with kernels, in the order of launches, and the rows of its kernels.

    Nodes are numbered in the order in which they were captured; without numbers, the order is that of the starts.
    """
    called = np.array([GRAPH_LAUNCH in (name or "") for name in strings(launches, "name")], dtype=bool)
    graphs = np.flatnonzero(called)
    row = lookup(integers(launches, "id")[graphs], graphs, integers(kernels, "launch_id"))
    of_graph = np.flatnonzero(row != MISSING)
    columns = [integers(kernels, name)[of_graph] for name in ("id", "start_ns", "graph_node")]
    start = integers(launches, "start_ns")[row[of_graph]]
    order = np.lexsort((columns[0], columns[1], columns[2], row[of_graph], start))
    ordered = of_graph[order]
    pieces = np.split(ordered, np.flatnonzero(np.diff(row[ordered])) + 1) if len(ordered) else []
    return [(int(row[piece[0]]), piece) for piece in pieces]


def _needed(launches: pa.Table, iterations: pa.Table) -> dict[int, tuple[int, int]]:
    """Return the annotated sequence length and batch of the iteration of each launch of a graph, by its row; or -1."""
    found_by = strings(iterations, "length_found_by")
    length = np.where(found_by == "annotation", integers(iterations, "sequence_length"), MISSING)
    columns = [integers(iterations, name).tolist() for name in ("rank", "iteration", "batch")]
    stated = {(r, i): (max(n, -1), max(b, -1)) for r, i, b, n in zip(*columns, length.tolist(), strict=True)}
    keys = zip(integers(launches, "rank").tolist(), integers(launches, "iteration").tolist(), strict=True)
    return {row: stated[key] for row, key in enumerate(keys) if key in stated}


class _Matched:
    """Collects the kernels of graph launches with the calls of their operators.

    Parameters
    ----------
    kernels : Table
        Kernels of the recording.
    captures : Captures
        The captures.
    """

    def __init__(self, kernels: pa.Table, captures: Captures) -> None:
        self._kernels, self._captures = kernels, captures
        self._call, self._launch, self._groups, self._size = np.full((4, kernels.num_rows), MISSING)
        self._unsure = np.zeros(kernels.num_rows, dtype=bool)
        self._counts: Counter[str] = Counter()

    def add(self, launch: int, rows: Ints, chosen: _Place | None, *, sure: bool) -> None:
        """Add the kernels of a launch, and their sequence and alignment if any fits."""
        time = np.maximum(integers(self._kernels, "dur_ns")[rows], 0)
        self._counts.update(graph_kernels=len(rows), graph_kernel_ns=int(time.sum()), graph_launches=1)
        if chosen is None:
            self._counts.update(graph_kernels_unmatched=len(rows))
            return
        sequence, alignment = self._captures.sequences[chosen[0]], chosen[1]
        matched, launched = rows[alignment.graph], alignment.launch
        call = sequence.call[launched]
        self._counts.update(
            graph_kernels_matched=len(matched),
            graph_kernel_matched_ns=int(time[alignment.graph].sum()),
            graph_kernels_unmatched=len(rows) - len(matched),
            graph_kernels_without_call=int((call < 0).sum()),
            graph_kernels_other_batch=0 if sure else len(matched),
        )
        self._call[matched] = np.where(call < 0, MISSING, call)
        self._launch[matched] = launch
        self._unsure[matched] = not sure
        if sure:
            self._groups[matched] = sequence.workgroups[launched]
            self._size[matched] = sequence.workgroup_size[launched]

    def finished(self, launches: pa.Table, next_id: int) -> GraphOperators:
        """Return the operators of all kernels that were added."""
        rows = np.flatnonzero(self._call != MISSING)
        keys = np.stack([self._launch[rows], self._call[rows]])
        distinct, first, of_kernel = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        # An operator has the id of its first kernel, above those of all events: the same however a job is read.
        ids = next_id + integers(self._kernels, "id")[rows[first]]
        op_id = np.full(self._kernels.num_rows, MISSING)
        op_id[rows] = ids[np.asarray(of_kernel).ravel()]
        new = int((integers(self._kernels, "op_id")[rows] == MISSING).sum())
        counts = {**self._counts, "orphan_op": -new}
        ops = self._operators(launches, distinct, ids, self._unsure[rows[first]])
        return GraphOperators(ops, op_id, self._groups, self._size, counts)

    def _operators(self, launches: pa.Table, keys: Ints, ids: Ints, unsure: Bools) -> pa.Table:
        order = np.argsort(ids)
        launch, call = keys[:, order]
        calls = self._captures.calls.take(arrow_array(call))
        columns: dict[str, Any] = {name: calls[name] for name in CALL_COLUMNS}
        for name in ("shapes", "strides", "concrete_inputs"):
            kept = arrow_array(np.where(unsure[order], -1, np.arange(len(call))), unsure[order])
            columns[name] = calls[name].take(kept)
        columns |= {name: integers(launches, name)[launch] for name in LAUNCH_COLUMNS if name not in ("id", "name")}
        return make_table("ops", {**columns, "id": ids[order]})


def check_captured(counts: Mapping[str, int], captures: Captures, sources: Sequence[str]) -> None:
    """Check that captures belong to a trace.

    Parameters
    ----------
    counts : mapping of str to int
        Quality counts of all recordings.
    captures : Captures
        The captures.
    sources : sequence of str
        Files of the trace.

    Raises
    ------
    InvalidInputError
        The trace has no kernel of a graph launch, or too few of them are in the captures.
    """
    kernels, matched = counts.get("graph_kernels", 0), counts.get("graph_kernels_matched", 0)
    names, files = ", ".join(captures.files[:4]), ", ".join(sources[:4])
    if not kernels:
        raise InvalidInputError(
            f"{files}: no kernel was launched by a graph (cudaGraphLaunch, hipGraphLaunch), so the capture {names} "
            "has nothing to tell; leave --capture out"
        )
    if matched < _LEAST_SHARE * kernels:
        raise InvalidInputError(
            f"{names}: is not a capture of the graphs in {files}: {matched:,} of {kernels:,} kernels "
            f"({100 * matched / kernels:.0f} %) match by name and order, at least {100 * _LEAST_SHARE:.0f} % must; "
            "give the capture of the same job, model and batch"
        )
