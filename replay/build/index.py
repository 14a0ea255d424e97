"""`TraceIndex`: what every graph of a trace is built from, arranged once: by iteration, by time, by call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.arrays import MISSING, dense_keys, ends, integers
from profilers.columns import lookup
from profilers.errors import InvalidInputError
from profilers.kernels import classify
from profilers.trace import Trace
from replay.build.autograd import BackwardOps, backward_ops
from replay.build.dtype_names import dtype_of_name
from replay.build.launch_queue import unblocked_ns
from replay.build.recorded_syncs import RecordedSyncs, recorded_syncs
from replay.graph import Hardware
from replay.hardware import hardware_of

__all__ = ["LOADER_PREFIX", "CallColumns", "Groups", "Keys", "Names", "TraceIndex", "WorkColumns", "index_trace"]

Ints = npt.NDArray[np.int64]
#: How the time in PyTorch's input pipeline is called in traces.
LOADER_PREFIX = "enumerate(DataLoader)"
_FIRST, _LAST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Groups:
    """Rows by a key: the rows of each key in their own order."""

    order: Ints
    keys: Ints

    @classmethod
    def by(cls, keys: Ints) -> "Groups":
        """Arrange the rows of `keys`."""
        order = np.argsort(keys, kind="stable")
        return cls(order, keys[order])

    def of(self, key: int) -> Ints:
        """Return the rows of one key."""
        low, high = np.searchsorted(self.keys, [key, key + 1])
        return self.order[low:high]


@dataclass(frozen=True)
class Keys:
    """The rows of a table by id, sorted once, so that looking some up costs nothing of the others."""

    sorted: Ints
    rows: Ints

    @classmethod
    def of(cls, ids: Ints) -> "Keys":
        """Arrange the ids of a table."""
        order = np.argsort(ids, kind="stable")
        return cls(ids[order], order)

    def find(self, ids: Ints) -> Ints:
        """Return the row of each id, `MISSING` where there is none."""
        if not len(self.sorted):
            return np.full(len(ids), MISSING)
        place = np.minimum(np.searchsorted(self.sorted, ids), len(self.sorted) - 1)
        return np.where((self.sorted[place] == ids) & (ids != MISSING), self.rows[place], MISSING)


@dataclass(frozen=True)
class Names:
    """The distinct names of a trace's device work, with what is known from the name alone.

    `class_` and `dtype` are made once a name, since regular expressions cost 10 to 30 us each.
    """

    text: npt.NDArray[np.object_]
    class_: npt.NDArray[np.object_]
    dtype: Ints


@dataclass(frozen=True)
class WorkColumns:
    """Kernels and copies of all ranks, ordered by start; equally long columns in ns on the trace's clock.

    `began` is when the row's iteration begins on its rank: the far past where it has none, the far future where
    the trace does not have that iteration. `reach` is the latest end so far, so that what still runs at a time
    is found by bisection.
    """

    columns: dict[str, npt.NDArray[Any]]
    names: Names
    directions: npt.NDArray[np.object_]
    began: Ints
    reach: Ints
    iterations: Groups

    def running(self, first: int, last: int) -> slice:
        """Return a range of rows that has all which run at some time after `first` and begin before `last`."""
        low = int(np.searchsorted(self.reach, first, side="right"))
        return slice(low, max(low, int(np.searchsorted(self.columns["start"], last))))


@dataclass(frozen=True)
class CallColumns:
    """Calls of the runtime and of the input pipeline, or operators, ordered by (start, id)."""

    columns: dict[str, Ints]
    names: npt.NDArray[np.object_]
    iterations: Groups


@dataclass(frozen=True)
class TraceIndex:
    """A trace, arranged so that the graph of one iteration costs what that iteration holds.

    Parameters
    ----------
    trace : Trace
    work : WorkColumns
    calls : CallColumns
        Of the runtime; on a job without devices, operators.
    ops, collectives : Keys
        Rows of those tables by id.
    syncs : RecordedSyncs
    backward : BackwardOps
    launching_ranks : frozenset of int
        Ranks of which at least one launch was recorded; on the others, gaps stand for the host.
    hardware : Hardware
    """

    trace: Trace
    work: WorkColumns
    calls: CallColumns
    ops: Keys
    collectives: Keys
    syncs: RecordedSyncs
    backward: BackwardOps
    launching_ranks: frozenset[int]
    hardware: Hardware

    @property
    def on_host_alone(self) -> bool:
        """Whether nothing ran on a device, so that operators are the calls."""
        return not len(self.work.reach)

    def check_iterations(self, iterations: Sequence[int]) -> None:
        """Raise an error that names the first of `iterations` that the trace lacks, and those that it has.

        Raises
        ------
        InvalidInputError
        """
        have = np.unique(integers(self.trace.iterations, "iteration")).tolist()
        for number in iterations:
            if number not in have:
                some = ", ".join(map(str, have[:12]))
                listed = f"{some}, ... {len(have)} in all" if len(have) > 12 else some or "none"
                raise InvalidInputError(f"the trace has no iteration {number} (it has {listed})")


def index_trace(trace: Trace) -> TraceIndex:
    """Arrange a trace for `build_graph`: worth it where more than one iteration is built.

    Costs a sort of the events, and a look at each distinct name.
    """
    work = _work(trace)
    calls = _calls(trace.launches, _loader_calls(trace)) if len(work.reach) else _calls(trace.ops)
    hardware = hardware_of(trace)
    queued = unblocked_ns(calls.columns, calls.names, work.columns) if hardware.launch_queue else None
    queued = np.zeros(len(calls.columns["id"]), np.int64) if queued is None else queued
    calls = replace(calls, columns={**calls.columns, "unblocked": queued})
    ranks, launched = work.columns["rank"], work.columns["launch_id"] != MISSING
    return TraceIndex(
        trace,
        work,
        calls,
        Keys.of(integers(trace.ops, "id")),
        Keys.of(integers(trace.collectives, "id")),
        recorded_syncs(trace),
        backward_ops(trace),
        frozenset(np.unique(ranks[launched]).tolist()),
        hardware,
    )


def _work(trace: Trace) -> WorkColumns:
    kernels, copies = trace.kernels, trace.copies
    parts = [_columns(kernels, is_copy=False), _columns(copies, is_copy=True)]
    both = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    (kernel_code, kernel_names), (copy_code, copy_names) = _coded(kernels["name"]), _coded(copies["name"])
    both["name"] = np.concatenate([kernel_code, copy_code + len(kernel_names)])
    direction, directions = _coded(copies["direction"])
    both["direction"] = np.concatenate([np.full(kernels.num_rows, -1), direction])
    order = np.argsort(both["start"], kind="stable")
    columns = {name: values[order] for name, values in both.items()}
    text = np.concatenate([kernel_names, copy_names])
    columns["opens"] = _opens(columns)
    names = _names(text)
    reach = np.maximum.accumulate(columns["end"]) if len(order) else columns["end"]
    return WorkColumns(columns, names, directions, _began(trace, columns), reach, Groups.by(columns["iteration"]))


def _opens(columns: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Return which rows, in order of start, are the first of their stream in the whole trace."""
    opens = np.zeros(len(columns["id"]), dtype=bool)
    places = np.stack([columns["rank"], columns["device"], columns["stream"]], axis=1)
    opens[np.unique(places, axis=0, return_index=True)[1]] = True
    return opens


def _names(text: npt.NDArray[np.object_]) -> Names:
    class_ = np.empty(len(text), object)
    class_[:] = [classify(name) for name in text]
    return Names(text, class_, np.array([dtype_of_name(name) for name in text], dtype=np.int64))


def _columns(table: pa.Table, *, is_copy: bool) -> dict[str, npt.NDArray[Any]]:
    n = table.num_rows
    absent = np.full(n, MISSING)
    place = {name: integers(table, name) for name in ("device", "stream")}
    return {
        **{name: integers(table, name) for name in ("id", "rank", "iteration", "launch_id")},
        "op": integers(table, "op_id"),
        **{name: np.where(values == MISSING, -1, values) for name, values in place.items()},
        "start": integers(table, "start_ns"),
        "end": ends(table),
        "is_copy": np.full(n, is_copy),
        "collective": absent if is_copy else integers(table, "collective_id"),
        "workgroups": absent if is_copy else integers(table, "workgroups"),
        "workgroup_size": absent if is_copy else integers(table, "workgroup_size"),
        "bytes": integers(table, "bytes") if is_copy else absent,
    }


def _began(trace: Trace, columns: dict[str, npt.NDArray[Any]]) -> Ints:
    table = trace.iterations
    own, given = dense_keys(
        (columns["rank"], columns["iteration"]), (integers(table, "rank"), integers(table, "iteration"))
    )
    found = lookup(given, integers(table, "start_ns"), own)
    return np.where(columns["iteration"] == MISSING, _FIRST, np.where(found == MISSING, _LAST, found))


def _loader_calls(trace: Trace) -> pa.Table:
    """Return the times at which the host asks PyTorch's input pipeline for a batch; ids are negative."""
    names = ("rank", "process", "thread", "iteration", "start_ns", "dur_ns")
    tables: list[pa.Table] = []
    texts: list[str] = []
    for table in (trace.ops, trace.ranges):
        codes, distinct = _coded(table["name"])
        loads = np.array([*(str(text).startswith(LOADER_PREFIX) for text in distinct), False], dtype=bool)
        rows = np.flatnonzero(loads[codes])
        tables.append(table.select(names).take(rows))
        texts.extend(str(text) for text in distinct[codes[rows]])
    found = pa.concat_tables(tables, promote_options="permissive")
    ids = pa.array(-2 - np.arange(found.num_rows), pa.int64())
    return found.append_column("id", ids).append_column("name", pa.array(texts, pa.string()))


def _calls(*tables: pa.Table) -> CallColumns:
    known = [name for name in ("id", "rank", "process", "thread", "op_id", "iteration")
             if name in tables[0].schema.names]  # fmt: skip
    columns = {name: np.concatenate([_integers(part, name) for part in tables]) for name in known}
    columns["start"] = np.concatenate([integers(part, "start_ns") for part in tables])
    columns["end"] = np.concatenate([ends(part) for part in tables])
    columns.setdefault("op_id", columns["id"])
    coded = [_coded(part["name"]) for part in tables]
    before = np.cumsum([0, *(len(text) for _, text in coded)])
    columns["name"] = np.concatenate(
        [np.where(codes < 0, -1, codes + at) for (codes, _), at in zip(coded, before, strict=False)]
    )
    text = np.concatenate([text for _, text in coded])
    order = np.lexsort((columns["id"], columns["start"]))
    columns = {name: values[order] for name, values in columns.items()}
    return CallColumns(columns, text, Groups.by(columns["iteration"]))


def _integers(table: pa.Table, name: str) -> Ints:
    return integers(table, name) if name in table.schema.names else np.full(table.num_rows, MISSING)


def _coded(column: pa.ChunkedArray) -> tuple[Ints, npt.NDArray[np.object_]]:
    """Return the codes of a text column, -1 for null, and the texts that they stand for."""
    if not len(column):
        return np.zeros(0, np.int64), np.empty(0, object)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries()
    texts = whole.chunk(0).dictionary.to_pylist()
    codes = integers(pa.table({"code": pa.chunked_array([chunk.indices for chunk in whole.chunks])}), "code")
    values = np.empty(len(texts), object)
    values[:] = texts
    return np.where(codes == MISSING, -1, codes), values
