"""Join Chakra execution traces, and counters of kernels, to a timeline of the same ranks.

A node of an execution trace and an operator or annotation of the timeline are the same if their rank, record function
id and name are. A timeline without such ids (Kineto before 2024) is joined by the order of calls: each thread of the
timeline calls the same operators, in the same order, as some thread of the execution trace. `pair_threads` finds that
thread by the names that both call, and `align` the calls that both have.

Ranks are joined one by one: `match_nodes` needs the key columns of the events of a rank, and its nodes;
`MatchedNodes.fill` then adds what the nodes know to the events, a batch at a time.

A profiler of counters slows and repeats kernels, so its times are of no use. `add_counters` matches the kernels of both
runs by rank, device, name and order instead.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Ints, arrow_array, dense_keys, integers, strings, text_codes
from profilers.trace.columns import lookup
from profilers.trace.schema import concatenate, make_table
from profilers.trace.trace import Trace

#: Calls by which two sequences may run apart, and names in a row that must agree to go on.
_LOOK_AHEAD = 32
_RUN = 3
#: Share of the shorter sequence that must agree for two threads to be the same.
_SAME_THREAD = 0.5

#: Names of the operators that each thread calls, in their order; numbers may stand for names.
Calls = Mapping[int, Sequence[Hashable]]


def align(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the positions at which two sequences of names agree, ascending in both.

    Linear in the length where the sequences agree; about 500 comparisons at each position where they do not.

    Parameters
    ----------
    first, second : sequence
        Names in the order of the calls; either may hold names that the other lacks.

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
        i, j = next(_next_runs(first, second, i, j), (i + 1, j + 1))
    return pairs


def _next_runs(first: Sequence[Hashable], second: Sequence[Hashable], i: int, j: int) -> Iterator[tuple[int, int]]:
    """Yield the next positions at which a few names in a row agree, the nearest first."""
    for distance in range(1, _LOOK_AHEAD + 1):
        for skipped in range(distance + 1):
            a, b = i + skipped, j + distance - skipped
            run = min(_RUN, len(first) - a, len(second) - b)
            if run > 0 and first[a : a + run] == second[b : b + run]:
                yield a, b


def pair_threads(first: Calls, second: Calls) -> list[tuple[int, int]]:
    """Return the pairs of threads that call the same names, the longest thread of `first` first.

    Parameters
    ----------
    first, second : mapping of int to sequence
        Names that each thread calls.

    Examples
    --------
    >>> pair_threads({7: ["a", "b"], 8: ["c"]}, {1: ["c"], 2: ["a", "b"]})
    [(7, 2), (8, 1)]
    """
    unpaired = {thread: Counter(names) for thread, names in second.items()}
    pairs = []
    for thread, names in sorted(first.items(), key=lambda item: (-len(item[1]), item[0])):
        called = Counter(names)
        shared = {candidate: sum((called & counts).values()) for candidate, counts in unpaired.items()}
        best = max(shared, key=lambda candidate: (shared[candidate], -candidate), default=None)
        if best is not None and shared[best] >= _SAME_THREAD * min(len(names), len(second[best])) > 0:
            pairs.append((thread, best))
            del unpaired[best]
    return pairs


#: Kinds of event that are matched with nodes.
EVENT_KINDS = ("ops", "ranges")
#: Columns of events that matching reads.
EVENT_COLUMNS = ("rank", "name", "start_ns", "dur_ns", "process", "thread", "record_function_id")
_TEXTS = ("shapes", "dtypes", "strides")
_NUMBERS = ("sequence_number", "forward_thread")
#: Columns of nodes that matching and filling read.
NODE_COLUMNS = (*EVENT_COLUMNS, *_NUMBERS, *_TEXTS, "args")
_KEY = "execution_trace"
#: Suffix that Chakra's converter adds to the names of operators that it split.
_SPLIT_SUFFIX = re.compile(r"\(\d+\)$")

#: Rows of events, and of the nodes that describe them.
_Pairs = tuple[Ints, Ints]


class _CallColumns:
    """Rank, record function id, name, thread and time of operators, annotations or nodes.

    Parameters
    ----------
    tables : sequence of Table
        One after the other, with the columns `EVENT_COLUMNS`.
    codes : dict of str to int
        Number of each name; takes the names that are new.
    """

    def __init__(self, tables: Sequence[pa.Table], codes: dict[str | None, int]) -> None:
        def joined(column: str) -> Ints:
            return np.concatenate([integers(table, column) for table in tables])

        self.rank, self.record = joined("rank"), joined("record_function_id")
        self.name = np.concatenate([text_codes(table["name"], codes) for table in tables])
        (self.thread,) = dense_keys((joined("process"), joined("thread")))
        self.start, self.duration = joined("start_ns"), joined("dur_ns")

    def with_record(self, rank: int) -> Ints:
        """Return the rows of a rank that have a record function id."""
        return np.flatnonzero((self.rank == rank) & (self.record > 0))

    def by_thread(self, rows: Ints) -> tuple[dict[int, list[int]], dict[int, Ints]]:
        """Return the names that each thread calls in these rows, and their rows, in the order given."""
        chosen = {thread: rows[self.thread[rows] == thread] for thread in np.unique(self.thread[rows]).tolist()}
        return {thread: self.name[of_thread].tolist() for thread, of_thread in chosen.items()}, chosen


def common_ranks(timeline: Sequence[int], execution_trace: Sequence[int]) -> list[int]:
    """Return the ranks that a timeline and an execution trace have in common.

    Parameters
    ----------
    timeline, execution_trace : sequence of int
        Ranks of each.

    Raises
    ------
    InvalidInputError
        They have no rank in common.
    """
    ranks = sorted(set(timeline) & set(execution_trace))
    if not ranks:
        raise InvalidInputError(
            f"the timeline has the ranks {list(timeline)}, the execution trace {list(execution_trace)}: "
            "collect both from the same ranks"
        )
    return ranks


def check_joined(nodes_joined: int) -> None:
    """Check that some node was matched.

    Parameters
    ----------
    nodes_joined : int
        Matched nodes of all ranks.

    Raises
    ------
    InvalidInputError
        No node was matched.
    """
    if not nodes_joined:
        raise InvalidInputError("no operator of the timeline is a node; were both recorded in the same steps?")


@dataclass(frozen=True)
class MatchedNodes:
    """The nodes of some ranks, and the operators and annotations that they describe.

    Parameters
    ----------
    nodes : Table
        Rows of ``ops`` with at least the columns `NODE_COLUMNS`.
    node_rows : mapping of str to array of int64
        For ``ops`` and ``ranges``, the row in `nodes` of each event; -1 if no node describes it.
    counts : mapping of str to int
        Quality counts of the match.
    """

    nodes: pa.Table
    node_rows: Mapping[str, Ints]
    counts: Mapping[str, int]

    def fill(self, kind: str, table: pa.Table, first_row: int = 0) -> pa.Table:
        """Return rows of events with what their nodes know.

        Null columns of an operator are filled; the rest of the node comes under the key ``execution_trace`` in
        ``args``.

        Parameters
        ----------
        kind : str
            Kind of event; rows of kinds that have no nodes are returned as they are.
        table : Table
            Consecutive rows of the events that were matched.
        first_row : int
            Position of the first row of `table` among those events.
        """
        if kind not in self.node_rows:
            return table
        of_rows = self.node_rows[kind][first_row : first_row + table.num_rows]
        rows = np.flatnonzero(of_rows >= 0)
        if not len(rows):
            return table
        nodes = of_rows[rows]
        columns: dict[str, Any] = {name: table[name] for name in table.schema.names}
        columns["args"] = _with_nodes(table, rows, self._texts("args", nodes))
        if kind == "ops":
            columns |= {name: _filled(table, name, rows, self._texts(name, nodes)) for name in _TEXTS}
            # Calls that were matched by order may be those of another iteration, whose numbers are others.
            same = integers(table, "record_function_id")[rows] > 0
            for name in _NUMBERS:
                numbers = integers(table, name).copy()
                stated = numbers[rows[same]]
                numbers[rows[same]] = np.where(stated == MISSING, integers(self.nodes, name)[nodes[same]], stated)
                columns[name] = numbers
        return make_table(kind, columns)

    def _texts(self, column: str, rows: Ints) -> npt.NDArray[np.object_]:
        """Return a text column of some nodes; only these become Python's strings."""
        return strings(self.nodes.select([column]).take(arrow_array(rows)), column)


def match_nodes(events: Mapping[str, pa.Table], nodes: pa.Table, ranks: Sequence[int]) -> MatchedNodes:
    """Match the nodes of some ranks with their operators and annotations.

    Parameters
    ----------
    events : mapping of str to Table
        ``ops`` and ``ranges`` with at least the columns `EVENT_COLUMNS`.
    nodes : Table
        Rows of ``ops`` with at least the columns `NODE_COLUMNS`.
    ranks : sequence of int
        Ranks to match.
    """
    codes: dict[str | None, int] = {}
    called = _CallColumns([events[kind] for kind in EVENT_KINDS], codes)
    listed = _CallColumns([nodes], codes)
    unsplit = _unsplit(codes)
    node_row = np.full(len(called.rank), -1)
    by_order = 0
    for rank in ranks:
        if len(called.with_record(rank)):
            event_rows, node_rows = _by_record(called, listed, rank, unsplit)
        else:
            event_rows, node_rows = _by_order(called, listed, rank)
            by_order += len(event_rows)
        node_row[event_rows] = node_rows
    ops = events["ops"].num_rows
    counts = {"nodes_joined": int((node_row >= 0).sum()), "nodes_joined_by_order": by_order}
    counts["ops_without_node"] = int((node_row[:ops] < 0).sum())
    return MatchedNodes(nodes, {"ops": node_row[:ops], "ranges": node_row[ops:]}, counts)


def _unsplit(codes: dict[str | None, int]) -> Ints:
    """Return, by the number of a name, that of the name which Chakra's converter split."""
    names = list(codes)
    return np.array([codes.setdefault(_SPLIT_SUFFIX.sub("", name) if name else name, len(codes)) for name in names])


def _by_record(events: _CallColumns, nodes: _CallColumns, rank: int, unsplit: Ints) -> _Pairs:
    """Return the pairs of a rank by (record function id, name); a key on several rows of a side is left out."""
    sides = [(calls, calls.with_record(rank)) for calls in (events, nodes)]
    keys = dense_keys(*((calls.record[rows], unsplit[calls.name[rows]]) for calls, rows in sides))
    (event_keys, event_at), (node_keys, node_at) = map(_single, keys)
    _, first, second = np.intersect1d(event_keys, node_keys, assume_unique=True, return_indices=True)
    return sides[0][1][event_at[first]], sides[1][1][node_at[second]]


def _single(keys: Ints) -> tuple[Ints, Ints]:
    """Return the keys that occur once, and their positions."""
    distinct, positions, counts = np.unique(keys, return_index=True, return_counts=True)
    return distinct[counts == 1], positions[counts == 1]


def _by_order(events: _CallColumns, nodes: _CallColumns, rank: int) -> _Pairs:
    """Return the pairs of a rank by the order of the calls of each thread; record function ids count up."""
    event_rows = np.flatnonzero(events.rank == rank)
    # Of the calls that begin at the same instant, the longest encloses the others.
    event_rows = event_rows[np.lexsort((event_rows, -events.duration[event_rows], events.start[event_rows]))]
    node_rows = nodes.with_record(rank)
    node_rows = node_rows[np.lexsort((node_rows, nodes.record[node_rows]))]
    called, called_rows = events.by_thread(event_rows)
    listed, listed_rows = nodes.by_thread(node_rows)
    aligned = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for thread, node_thread in pair_threads(called, listed):
        if pairs := align(called[thread], listed[node_thread]):
            first, second = np.array(pairs).T
            aligned.append((called_rows[thread][first], listed_rows[node_thread][second]))
    return np.concatenate([rows for rows, _ in aligned]), np.concatenate([rows for _, rows in aligned])


def _filled(table: pa.Table, column: str, rows: Ints, texts: npt.NDArray[np.object_]) -> pa.Array:
    """Return a text column of events, with the texts of their nodes where it is null."""
    values = strings(table, column)
    missing = np.array([text is None for text in values[rows]], np.bool_)
    values[rows] = np.where(missing, texts, values[rows])
    return pa.array(values.tolist(), pa.string())


def _with_nodes(table: pa.Table, rows: Ints, nodes: npt.NDArray[np.object_]) -> pa.Array:
    """Return the arguments of events, with those of their nodes in the rows given."""
    args = strings(table, "args")
    for row, node in zip(rows.tolist(), nodes, strict=True):
        args[row] = _with_node(args[row], node)
    return pa.array(args.tolist(), pa.string())


def _with_node(args: str | None, node: str | None) -> str | None:
    """Return the arguments of an event with those of its node."""
    if node is None:
        return args
    if not args or args == "{}":
        return f'{{"{_KEY}":{node}}}'
    if f'"{_KEY}":' not in args:
        return f'{args[:-1]},"{_KEY}":{node}}}'
    return json.dumps({**json.loads(args), _KEY: json.loads(node)}, separators=(",", ":"))


#: Columns of a timeline's kernels that joining counters needs.
COUNTED_KERNEL_COLUMNS = ("id", "rank", "device", "name", "start_ns", "iteration")
_CLONE = re.compile(r"\s*\[clone [^\]]*\]|\.kd$")
_RETURNS = re.compile(r"^(?:void|int|bool|auto|static)\s+")


def plain_name(name: str) -> str:
    """Return a kernel's name without return type, clone suffix and spaces, in which profilers differ.

    Parameters
    ----------
    name : str
        Name as a profiler writes it.

    Examples
    --------
    >>> plain_name("void add<float, 4>(float*, int) [clone .kd]")
    'add<float,4>(float*,int)'
    """
    return re.sub(r"\s+", "", _RETURNS.sub("", _CLONE.sub("", name.strip())))


def base_name(name: str) -> str:
    """Return a kernel's name without namespaces, template arguments and parameters.

    Parameters
    ----------
    name : str
        Name as a profiler writes it.

    Examples
    --------
    >>> base_name("void at::native::(anonymous namespace)::add<float, 4>(float*, int)")
    'add'
    """
    depth, kept = 0, []
    text = plain_name(name).replace("(anonymousnamespace)::", "").replace("operator()", "operator")
    for character in text:
        if character in "<(":
            # Parameters end the name, template arguments need not.
            if character == "(" and depth == 0:
                break
            depth += 1
        elif character in ">)":
            depth = max(depth - 1, 0)
        elif depth == 0:
            kept.append(character)
    return "".join(kept).rsplit("::", 1)[-1]


def add_counters(
    kernels: pa.Table, counters: pa.Table, counted: Trace, next_id: int
) -> tuple[pa.Table, dict[str, int]]:
    """Return the counters of a timeline with those of `counted` added, and the quality counts of the join.

    The first measured kernel of a name on a rank and device is the first kernel of that name in the timeline there,
    the second the second, and so on. Names are compared without spaces, ``void`` and ``.kd``. Names that the timeline
    lacks are compared without template arguments and parameters, as Nsight Compute prints them. Devices are compared
    if both traces name the devices of all kernels.

    Parameters
    ----------
    kernels : Table
        The kernels of the timeline, with at least the columns `COUNTED_KERNEL_COLUMNS`.
    counters : Table
        The counters that the timeline has.
    counted : Trace
        Trace of a file of counters, with the same ranks.
    next_id : int
        The id of the first counter that is added.

    Raises
    ------
    InvalidInputError
        `counted` has no counter of a kernel, or none of its kernels is in the timeline.
    """
    measurements = counted.counters
    kernel_of = integers(measurements, "kernel_id")
    ids = integers(counted.kernels, "id")
    rows = np.flatnonzero(np.isin(ids, kernel_of))
    if not len(rows):
        raise InvalidInputError("the second trace has no counter of a kernel; collect a file of counters")
    timeline_row = _same_kernels(kernels, counted.kernels, rows)
    if not timeline_row:
        raise InvalidInputError("no kernel with counters has the name of one in the timeline, on the same rank")
    kernel_rows = lookup(ids[list(timeline_row)], np.array(list(timeline_row.values())), kernel_of)
    joined = kernel_rows != MISSING
    columns = {name: measurements[name].filter(arrow_array(joined)) for name in measurements.schema.names}
    columns |= {name: integers(kernels, name)[kernel_rows[joined]] for name in ("rank", "start_ns", "iteration")}
    columns["kernel_id"] = integers(kernels, "id")[kernel_rows[joined]]
    columns["id"] = np.arange(next_id, next_id + int(joined.sum()))
    added = make_table("counters", columns)
    table = concatenate("counters", [counters, added])
    counts = {
        "counters_joined": int(joined.sum()),
        "counters_without_kernel": int((~joined).sum()),
        "counted_kernels_joined": len(timeline_row),
        "counted_kernels_missing": len(rows) - len(timeline_row),
    }
    return table.sort_by([("start_ns", "ascending"), ("id", "ascending")]), counts


def _same_kernels(timeline: pa.Table, counted: pa.Table, rows: Ints) -> dict[int, int]:
    """Return, by row of `counted`, the row of the same kernel in the timeline; loops over the kernels."""
    with_device = not (timeline["device"].null_count or counted["device"].null_count)
    columns = ("rank", "device") if with_device else ("rank",)
    full_names = {plain_name(name) for name in set(strings(timeline, "name"))}
    has_full_name = np.array([plain_name(name) in full_names for name in strings(counted, "name")[rows]])
    same: dict[int, int] = {}
    for shorten, chosen in ((plain_name, rows[has_full_name]), (base_name, rows[~has_full_name])):
        timeline_rows = _by_name(timeline, np.arange(timeline.num_rows), columns, shorten)
        for key, counted_rows in _by_name(counted, chosen, columns, shorten).items():
            same.update(zip(counted_rows, timeline_rows.get(key, []), strict=False))
    return same


def _by_name(
    kernels: pa.Table, rows: Ints, columns: Sequence[str], shorten: Callable[[str], str]
) -> dict[tuple[int | str, ...], list[int]]:
    """Return some rows of kernels, in the order of their starts, by some columns and by shortened name."""
    order = np.lexsort((integers(kernels, "id")[rows], integers(kernels, "start_ns")[rows]))
    names = strings(kernels, "name")
    short_names = {name: shorten(name) for name in set(names[rows])}
    keys = list(zip(*(integers(kernels, column).tolist() for column in columns), strict=True))
    by_name = defaultdict(list)
    for row in rows[order].tolist():
        by_name[*keys[row], short_names[names[row]]].append(row)
    return by_name
