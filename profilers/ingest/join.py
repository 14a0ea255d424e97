"""Joining a Chakra execution trace to a Kineto trace of the same run.

Which event of a timeline is which node, where neither names the other: both threads call the same in one order.

What an execution trace knows of the operators of a timeline of the same ranks.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Ints, dense_keys, integers, strings
from profilers.trace.schema import make_table
from profilers.trace.trace import Trace

#: How far two sequences may run apart, and how many names in a row must agree to go on.
_LOOK_AHEAD = 32
_RUN = 3
#: Share of the shorter sequence that must agree, below which they are not the same thread.
_SAME_THREAD = 0.5

Sequences = Mapping[int, Sequence[str]]


def align(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of places with the same name, ascending on both sides; either side may have some more.

    Linear in the length where the sequences agree; about 500 comparisons at each place where they do not.

    Examples
    --------
    >>> align(["step", "a", "b", "c", "d"], ["a", "b", "c", "x", "d"])
    [(1, 0), (2, 1), (3, 2), (4, 4)]
    """
    pairs = []
    i = j = 0
    while i < len(first) and j < len(second):
        if first[i] == second[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
            continue
        i, j = next(_steps(first, second, i, j), (i + 1, j + 1))
    return pairs


def _steps(first: Sequence[str], second: Sequence[str], i: int, j: int) -> Iterator[tuple[int, int]]:
    """Yield the next places at which a few names agree, the nearest first."""
    for far in range(1, _LOOK_AHEAD + 1):
        for skipped in range(far + 1):
            a, b = i + skipped, j + far - skipped
            run = min(_RUN, len(first) - a, len(second) - b)
            if run > 0 and first[a : a + run] == second[b : b + run]:
                yield a, b


def pair_threads(first: Sequences, second: Sequences) -> list[tuple[int, int]]:
    """Return which thread of `first` is which of `second`, by the names that they call.

    Examples
    --------
    >>> pair_threads({7: ["a", "b"], 8: ["c"]}, {1: ["c"], 2: ["a", "b"]})
    [(7, 2), (8, 1)]
    """
    named = {thread: Counter(names) for thread, names in second.items()}
    pairs = []
    for thread, names in sorted(first.items(), key=lambda item: (-len(item[1]), item[0])):
        own = Counter(names)
        alike = {other: sum((own & known).values()) for other, known in named.items()}
        best = max(alike, key=lambda other: (alike[other], -other), default=None)
        if best is not None and alike[best] >= _SAME_THREAD * min(len(names), len(second[best])) > 0:
            pairs.append((thread, best))
            del named[best]
    return pairs


def by_thread(threads: Sequence[int], names: Sequence[str]) -> tuple[dict[int, list[str]], dict[int, list[int]]]:
    """Return names, and their places, of each thread in the order given."""
    called: dict[int, list[str]] = defaultdict(list)
    places: dict[int, list[int]] = defaultdict(list)
    for place, (thread, name) in enumerate(zip(threads, names, strict=True)):
        called[thread].append(name)
        places[thread].append(place)
    return called, places


_KINDS = ("ops", "ranges")
_TEXTS = ("shapes", "dtypes", "strides")
_NUMBERS = ("sequence_number", "forward_thread")
_KEY = "execution_trace"
#: What Chakra's converter adds to names of operators that it split.
_PART = re.compile(r"\(\d+\)$")

#: Rows of the timeline (operators, then ranges) and of the nodes, pairwise.
Pairs = list[tuple[int, int]]


class _Side:
    """Identity and place of events: those of the timeline's operators and ranges, or of nodes."""

    def __init__(self, *tables: pa.Table) -> None:
        def joined(column: str) -> Ints:
            return np.concatenate([integers(table, column) for table in tables])

        self.rank, self.record = joined("rank"), joined("record_function_id")
        self.name = np.concatenate([strings(table, "name") for table in tables])
        (self.thread,) = dense_keys((joined("process"), joined("thread")))
        self.start, self.duration = joined("start_ns"), joined("dur_ns")

    def named(self, rank: int) -> Ints:
        """Return the rows of a rank that have a record function id."""
        return np.flatnonzero((self.rank == rank) & (self.record > 0))


def join_execution_trace(trace: Trace, et: Trace) -> Trace:
    """Return `trace` with what `et` knows of the same operators: node, inputs and outputs, dependencies.

    An operator or annotation of the timeline and a node are the same where rank, record function id and name are;
    an id that stands on several rows of either side tells nothing. A rank whose timeline has no such id (Kineto
    before 2024) is joined by order instead: its threads call the same operators in the same sequence; those are
    counted apart. Columns of the timeline that are null are filled; the rest comes under the key
    ``execution_trace`` in ``args``.

    Parameters
    ----------
    trace : Trace
        Collected from Kineto files that were written together with the execution traces.
    et : Trace
        Collected from execution traces, with the same ranks.

    Raises
    ------
    InvalidInputError
        They have no rank in common, or nothing matches.

    Examples
    --------
    >>> from profilers.trace import TraceMeta
    >>> def one(**columns):
    ...     row = {"id": [0], "rank": [0], "name": ["aten::mm"], "start_ns": [0], "record_function_id": [7], **columns}
    ...     return Trace(TraceMeta("example", ranks=(0,)), {"ops": make_table("ops", row)})
    >>> joined = join_execution_trace(one(), one(shapes=["[[2,3],[3,4]]"], args=['{"node":12}']))
    >>> joined.ops["shapes"].to_pylist(), joined.ops["args"].to_pylist()
    (['[[2,3],[3,4]]'], ['{"execution_trace":{"node":12}}'])
    """
    ranks = sorted(set(trace.meta.ranks) & set(et.meta.ranks))
    if not ranks:
        raise InvalidInputError(
            f"the timeline has the ranks {list(trace.meta.ranks)}, the execution trace {list(et.meta.ranks)}: "
            "collect both from the same ranks"
        )
    events, nodes = _Side(*(trace.tables[kind] for kind in _KINDS)), _Side(et.ops)
    pairs: Pairs = []
    by_order = 0
    for rank in ranks:
        found = _by_record(events, nodes, rank)
        if not len(events.named(rank)):
            found = _by_order(events, nodes, rank)
            by_order += len(found)
        pairs += found
    if not pairs:
        raise InvalidInputError("no operator of the timeline is a node; were both recorded in the same steps?")
    return _with_nodes(trace, et, np.array(sorted(pairs)), by_order)


def _with_nodes(trace: Trace, et: Trace, pairs: Ints, by_order: int) -> Trace:
    first_range = trace.ops.num_rows
    ops, ranges = (pairs[(pairs[:, 0] >= first_range) == later] for later in (False, True))
    tables = {
        "ops": _joined("ops", trace.ops, et.ops, ops),
        "ranges": _joined("ranges", trace.ranges, et.ops, ranges - [first_range, 0]),
    }
    counts = {"nodes_joined": len(pairs), "nodes_joined_by_order": by_order}
    counts["nodes_without_event"] = et.ops.num_rows - len(pairs)
    counts["ops_without_node"] = first_range - len(ops)
    return trace.with_tables(**tables).with_quality(counts)


def _by_record(events: _Side, nodes: _Side, rank: int) -> Pairs:
    own, other = _records(events, rank), _records(nodes, rank)
    return [(row, other[key]) for key, row in own.items() if key in other]


def _records(side: _Side, rank: int) -> dict[tuple[int, str], int]:
    """Return the row of each (record function id, name) that is there once; a loop over the operators."""
    found: dict[tuple[int, str], int] = {}
    twice: set[tuple[int, str]] = set()
    rows = side.named(rank)
    for row, record, name in zip(rows.tolist(), side.record[rows].tolist(), side.name[rows], strict=True):
        key = record, _PART.sub("", name)
        if found.setdefault(key, row) != row:
            twice.add(key)
    return {key: row for key, row in found.items() if key not in twice}


def _by_order(events: _Side, nodes: _Side, rank: int) -> Pairs:
    """Return the pairs of a rank by the order of the calls of each thread; record function ids count up."""
    rows = np.flatnonzero(events.rank == rank)
    # What begins at the same instant encloses the shorter one.
    rows = rows[np.lexsort((rows, -events.duration[rows], events.start[rows]))]
    given = nodes.named(rank)
    given = given[np.lexsort((given, nodes.record[given]))]
    called, places = by_thread(events.thread[rows].tolist(), events.name[rows].tolist())
    listed, at = by_thread(nodes.thread[given].tolist(), nodes.name[given].tolist())
    pairs: Pairs = []
    for thread, other in pair_threads(called, listed):
        for i, j in align(called[thread], listed[other]):
            pairs.append((int(rows[places[thread][i]]), int(given[at[other][j]])))
    return pairs


def _joined(kind: str, table: pa.Table, nodes: pa.Table, pairs: Ints) -> pa.Table:
    rows, at = pairs[:, 0], pairs[:, 1]
    columns: dict[str, Any] = {name: table[name] for name in table.schema.names}
    args = strings(table, "args").copy()
    for row, text in zip(rows.tolist(), strings(nodes, "args")[at], strict=True):
        args[row] = _with(args[row], text)
    columns["args"] = pa.array(args.tolist(), pa.string())
    if kind == "ops":
        columns |= {name: _filled(strings(table, name), rows, strings(nodes, name)[at]) for name in _TEXTS}
        # Calls that were matched by order may be those of another iteration, whose numbers are others.
        same = pairs[integers(table, "record_function_id")[rows] > 0]
        for name in _NUMBERS:
            numbers = integers(table, name).copy()
            own, given = numbers[same[:, 0]], integers(nodes, name)[same[:, 1]]
            numbers[same[:, 0]] = np.where(own == MISSING, given, own)
            columns[name] = numbers
    return make_table(kind, columns)


def _filled(values: npt.NDArray[np.object_], rows: Ints, given: npt.NDArray[np.object_]) -> pa.Array:
    found = values.copy()
    for row, text in zip(rows.tolist(), given, strict=True):
        if found[row] is None:
            found[row] = text
    return pa.array(found.tolist(), pa.string())


def _with(args: str | None, node: str | None) -> str | None:
    """Return the arguments of an event with those of its node."""
    if node is None:
        return args
    if not args or args == "{}":
        return f'{{"{_KEY}":{node}}}'
    if f'"{_KEY}":' not in args:
        return f'{args[:-1]},"{_KEY}":{node}}}'
    return json.dumps({**json.loads(args), _KEY: json.loads(node)}, separators=(",", ":"))
