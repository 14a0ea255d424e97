"""Write a trace as Chakra execution traces, one file of nodes a rank, as ASTRA-sim reads them.

The format is that of mlcommons/chakra, ``et_def.proto``. Operators and calls of the runtime are nodes of the host; each
follows the one before it on its thread, and its caller. Kernels, copies and collectives follow the call that launched
them and the one before them on their stream. Ranges, synchronisations and counters are no nodes.

``duration_micros`` of a host node is its own time without that of the nodes inside it, as Chakra's converter writes it.
A simulator that runs one node after the other then arrives at the measured time. The attributes ``start_ns`` and
``dur_ns`` hold the measured times. Operations and tensors of a kernel are not known and left out. A send whose peer the
profiler does not name is plain work of the device with its measured duration.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.proto import serialize_length_prefixed

from profilers.errors import InvalidInputError
from profilers.files import replaced_file
from profilers.readers.chakra.protobuf import MetadataMessage, NodeMessage, NodeType, add_attribute
from profilers.readers.common.json_documents import json_object
from profilers.trace.arrays import MISSING, Bools, Ints, dense_keys, integers, integers_or_missing
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace

_KINDS = ("ops", "launches", "kernels", "copies", "collectives")
#: Number of the kinds above that are nodes of the host; they come first.
_HOST_KINDS = 2
_COLUMNS = ("id", "start_ns", "dur_ns", "process", "thread", "device", "stream", "launch_id", "op_id")


class _Nodes:
    """The nodes of one rank in the order of their starts, callers before the nodes that they call.

    A collective is a node if it has no kernel.

    Parameters
    ----------
    trace : Trace
        Trace of any number of ranks.
    rank : int
        The rank.

    Attributes
    ----------
    kind, row : array of int64, shape (n,)
        Position in `_KINDS` of each node's kind, and its row in the table of that kind.
    start_ns : array of int64, shape (n,)
        Start, moved so that the first of the trace is at least 1 us, since 0 means no start.
    self_ns : array of int64, shape (n,)
        Duration without that of the nodes called.
    caller : array of int64, shape (n,)
        Position of the operator around a host node, or of the launch of a device node; or -1.
    before : array of int64, shape (n, 2)
        Positions of the node before on the thread or stream, and of the launch; or -1.
    """

    def __init__(self, trace: Trace, rank: int) -> None:
        tables, rows = zip(*(_of_rank(trace, kind, rank) for kind in _KINDS), strict=True)
        kind = np.repeat(np.arange(len(_KINDS)), [len(of_kind) for of_kind in rows])
        columns = {name: np.concatenate([integers_or_missing(table, name) for table in tables]) for name in _COLUMNS}
        order = np.lexsort((columns["id"], kind, -np.maximum(columns["dur_ns"], 0), columns["start_ns"]))
        columns = {name: values[order] for name, values in columns.items()}
        kind, start, duration = kind[order], columns["start_ns"], np.maximum(columns["dur_ns"], 0)
        host, operators = kind < _HOST_KINDS, np.flatnonzero(kind == 0)
        process = np.where(host, columns["process"], columns["device"])
        thread = np.where(host, columns["thread"], columns["stream"])
        (lane,) = dense_keys((process, thread))
        cause = np.where(columns["launch_id"] == MISSING, columns["op_id"], columns["launch_id"])
        caller = np.maximum(lookup(columns["id"], np.arange(len(kind)), cause), -1)
        around = _around(lane[operators], start[operators], start[operators] + duration[operators])
        caller[operators] = np.where(around < 0, -1, operators[around])
        is_called = host & (caller >= 0)
        inside = np.zeros(len(kind), np.int64)
        np.add.at(inside, caller[is_called], duration[is_called])
        starts = [int(integers(trace.tables[name], "start_ns").min()) for name in _KINDS if trace.tables[name].num_rows]
        self.kind = kind
        self.row = np.concatenate(rows)[order]
        self.start_ns = start + max(0, 1000 - min(starts, default=1000))
        self.self_ns = np.maximum(duration - inside, 0)
        self.caller = caller
        self.before = np.stack([_previous(lane, host), np.where(host, -1, caller)], axis=1)

    def __len__(self) -> int:
        return len(self.row)


def _of_rank(trace: Trace, kind: str, rank: int) -> tuple[pa.Table, Ints]:
    """Return the rows of a rank as a table, and their positions in the table of the trace."""
    table = trace.tables[kind]
    chosen = integers(table, "rank") == rank
    if kind == "collectives":
        chosen &= np.asarray(pc.is_null(table["kernel_id"]))
    rows = np.flatnonzero(chosen)
    return table.take(pa.array(rows)), rows


def _around(lane: Ints, start: Ints, end: Ints) -> Ints:
    """Return the position of the innermost operator around each operator on its thread, or -1.

    Operators are in the order of their starts, the longer first. `profilers.ingest.linking.innermost` would return the
    operator itself, which encloses its own start.
    """
    result = np.full(len(lane), -1)
    open_: dict[int, list[int]] = {}
    for row in range(len(lane)):  # a Python loop over operators, about 1 us each
        stack = open_.setdefault(int(lane[row]), [])
        while stack and end[stack[-1]] <= start[row]:
            stack.pop()
        if stack:
            result[row] = stack[-1]
        stack.append(row)
    return result


def _previous(lane: Ints, host: Bools) -> Ints:
    """Return the position of the node before each node on its thread or stream, or -1."""
    order = np.lexsort((lane, host))
    same = (lane[order][1:] == lane[order][:-1]) & (host[order][1:] == host[order][:-1])
    result = np.full(len(lane), -1)
    result[order[1:][same]] = order[:-1][same]
    return result


_BATCH = 8192
_VERSION = b"0.0.4"
#: ``comm_type`` of the public schema.
_COMMUNICATION = {
    **{"all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6},
    **{"reduce_scatter": 7, "barrier": 9},
}
#: Attributes of host nodes, by column.
_HOST_ATTRIBUTES = {
    "thread": "tid",
    "sequence_number": "seq_id",
    "forward_thread": "fw_tid",
    "record_function_id": "rf_id",
}
_SENT = {"send": (NodeType.SEND, "comm_dst", "Dst Rank"), "recv": (NodeType.RECEIVE, "comm_src", "Src Rank")}

Row = dict[str, Any]


def export_chakra(trace: Trace, path: Path) -> list[Path]:
    """Write one file a rank, ``NAME.RANK.et`` for a `path` of ``NAME.et``, and return their paths.

    All files are written before the first of them is put in place.

    Parameters
    ----------
    trace : Trace
        Trace of any number of ranks.
    path : Path
        Name of the files, with or without ``.et``.

    Raises
    ------
    InvalidInputError
        The trace holds no operator, call or device work, or a file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from profilers.trace.schema import make_table
    >>> from profilers.trace import TraceMeta
    >>> ops = make_table("ops", {"id": [0], "rank": [3], "name": ["aten::mm"], "start_ns": [9000], "dur_ns": [2000]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = export_chakra(Trace(TraceMeta("example", ranks=(3,)), {"ops": ops}), Path(folder) / "job.et")
    >>> [path.name for path in files]
    ['job.3.et']
    """
    nodes = {rank: _Nodes(trace, rank) for rank in trace.meta.ranks}
    if not any(map(len, nodes.values())):
        raise InvalidInputError(f"{path}: the trace has no operator, launch or device work to write as nodes")
    stem = path.with_suffix("") if path.suffix == ".et" else path
    paths = [stem.with_name(f"{stem.name}.{rank}.et") for rank in nodes]
    collectives = _Collectives(trace)
    with ExitStack() as files:
        for target, of_rank in zip(paths, nodes.values(), strict=True):
            _write(trace, of_rank, collectives, files.enter_context(replaced_file(target)))
    return paths


def _write(trace: Trace, nodes: _Nodes, collectives: "_Collectives", stream: IO[bytes]) -> None:
    """Write the nodes of one rank in their order; a Python loop over them, about 20 us each."""
    header = MetadataMessage(version=[_VERSION])
    add_attribute(header.attr, "schema", "seqpoint")
    add_attribute(header.attr, "start_ns", trace.meta.clock_base_ns)
    serialize_length_prefixed(header, stream)
    for first in range(0, len(nodes), _BATCH):
        for row in _rows(trace, nodes, slice(first, first + _BATCH)):
            serialize_length_prefixed(_node(row, nodes, collectives), stream)


def _rows(trace: Trace, nodes: _Nodes, block: slice) -> Iterator[Row]:
    """Yield the rows of consecutive nodes, each with its kind and its position."""
    kinds, rows = nodes.kind[block], nodes.row[block]
    taken = [
        iter(trace.tables[kind].take(pa.array(rows[kinds == code])).to_pylist()) for code, kind in enumerate(_KINDS)
    ]
    for position, code in enumerate(kinds.tolist(), block.start):
        yield {**next(taken[code]), "kind": _KINDS[code], "node": position}


def _node(row: Row, nodes: _Nodes, collectives: "_Collectives") -> Any:
    """Return the message of a node."""
    position = row["node"]
    type_, attributes = _described(row, collectives)
    message = NodeMessage(
        id=position + 1,
        name=row["name"].encode(),
        type=type_,
        ctrl_deps=_ids(nodes.caller[position]),
        data_deps=_ids(*nodes.before[position]),
        start_time_micros=int(nodes.start_ns[position]) // 1000,
        duration_micros=(int(nodes.self_ns[position]) + 500) // 1000,
    )
    for column, name in (("shapes", "shapes"), ("dtypes", "types")):
        if row.get(column):
            setattr(message.inputs, name, row[column].encode())
    for name, value in attributes.items():
        if value is not None:
            add_attribute(message.attr, name, value)
    return message


def _ids(*positions: Any) -> list[int]:
    """Return the distinct ids of the nodes at some positions; -1 is left out."""
    return sorted({int(position) + 1 for position in positions if position >= 0})


def _described(row: Row, collectives: "_Collectives") -> tuple[NodeType, Row]:
    """Return the type of a node and its attributes."""
    kind = row["kind"]
    host = kind in _KINDS[:_HOST_KINDS]
    common = {"is_cpu_op": host, "start_ns": row["start_ns"], "dur_ns": row["dur_ns"]}
    if host:
        return NodeType.COMPUTE, common | {name: row.get(column) for column, name in _HOST_ATTRIBUTES.items()}
    common |= {"tid": row.get("stream"), "stream": row.get("stream"), "device": row.get("device")}
    if kind == "copies":
        type_ = {"HtoD": NodeType.LOAD, "DtoH": NodeType.STORE}.get(row["direction"], NodeType.COMPUTE)
        return type_, common | {"tensor_size": row["bytes"], "direction": row["direction"]}
    fact = row if kind == "collectives" else collectives.of(row["collective_id"])
    if fact is None:
        return NodeType.COMPUTE, common
    type_, communication = _communication(fact, row.get("args"))
    return type_, common | communication


def _communication(fact: Row, args: str | None) -> tuple[NodeType, Row]:
    attributes = {
        "comm_size": fact["bytes"],
        "pg_name": fact["group_name"],
        "group_size": fact["group_size"],
        "group_ranks": fact["group_ranks"],
        "in_msg_nelems": fact["elements_in"],
        "out_msg_nelems": fact["elements_out"],
        "dtype": fact["dtype"],
    }
    kind = _COMMUNICATION.get(fact["collective"] or "")
    if kind is not None:
        return NodeType.COLLECTIVE, {"comm_type": kind, **attributes}
    stated = json_object(args) if fact["collective"] == "send_recv" else {}
    type_, key, peer = _SENT.get(str(stated.get("Collective name")), (NodeType.COMPUTE, "", ""))
    if not isinstance(stated.get(peer), int):
        return NodeType.COMPUTE, attributes
    return type_, {key: stated[peer], **attributes}


class _Collectives:
    """The collectives of a trace, by id."""

    def __init__(self, trace: Trace) -> None:
        self._table = trace.collectives
        self._rows: dict[int | None, int] = {id_: row for row, id_ in enumerate(integers(self._table, "id").tolist())}

    def of(self, id_: int | None) -> Row | None:
        """Return the facts of a collective, or None if the trace has no such collective."""
        row = self._rows.get(id_)
        return None if row is None else dict(self._table.slice(row, 1).to_pylist()[0])
