"""From nodes to rows of the kinds of event."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from profilers.chakra.nodes import (
    CATEGORIES,
    COLLECTIVE,
    COMPUTE,
    LOAD,
    METADATA,
    RECEIVE,
    SEND,
    STORE,
    Node,
)
from profilers.kineto.numbers import TIMES_NS, plain_text, whole
from profilers.reader import Sink
from profilers.schema import OWN_RANK

__all__ = ["Rows"]

_BATCH_ROWS = 65536
_BATCH_BYTES = 32 << 20
_NARROW = 1 << 31
#: `comm_type` of the public schema, in the project's terms.
_COMMUNICATION = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter"),
    *("reduce_scatter", "barrier"),
)
#: The same in names; the longer term counts.
_IN_NAME = tuple(sorted({*_COMMUNICATION}, key=lambda term: (-len(term), term)))
#: Attributes that hold what a column holds, and the value that stands for none.
_COLUMN_OF = {"tid": "thread", "seq_id": "sequence_number", "fw_tid": "forward_thread", "rf_id": "record_function_id"}
_NONE = {"seq_id": -1, "fw_tid": 0, "rf_id": 0}
_HOST = ("ops", "ranges")
_OWN_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "ops": ("thread", "sequence_number", "forward_thread", "record_function_id"),
    "ranges": ("thread", "record_function_id"),
}


class Rows:
    """Collects nodes as columns and gives them to `sink` in batches.

    Parameters
    ----------
    sink : Sink
    header : mapping of str to Any
        What the file says of itself; filled before the first node.
    counts : Counter
    """

    def __init__(self, sink: Sink, header: Mapping[str, Any], counts: Counter[str]) -> None:
        self._sink = sink
        self._header = header
        self._counts = counts
        self._columns: dict[str, dict[str, list[Any]]] = {}
        self._rows = self._bytes = 0
        self._next_ns = 0

    def add(self, node: Node) -> None:
        """Keep one node, or count why it is not kept."""
        kind = _kind(node)
        if kind is None:
            self._counts["skipped_marker"] += 1
            return
        start, duration = self._time(node)
        if start is None:
            self._counts["dropped_no_time"] += 1
            return
        own: dict[str, Any] = {"rank": OWN_RANK, "name": node.name, "start_ns": start, "dur_ns": duration}
        attributes = dict(node.attributes)
        own |= dict(_columns(kind, node, attributes))
        if kind in _HOST:
            own["process"] = whole(self._header.get("pid"))
        own["args"] = args = self._args(kind, node, attributes)
        columns = self._columns.setdefault(kind, defaultdict(list))
        for name, value in own.items():
            columns[name].append(value)
        self._rows += 1
        self._bytes += len(args or "") + sum(len(own.get(name) or "") for name in ("shapes", "dtypes", "strides"))
        if self._rows >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Give what was collected to the sink."""
        for kind, columns in self._columns.items():
            self._counts["kept"] += len(self._sink.write(kind, columns))
        self._columns = {}
        self._rows = self._bytes = 0

    def _time(self, node: Node) -> tuple[int | None, int | None]:
        """Return start and duration; a node without a start comes after the one before it in the file."""
        if node.start_us is None:
            start = self._next_ns
            self._counts["assumed_start"] += 1
        else:
            start = node.start_us * 1000
        duration = None if node.duration_us is None else node.duration_us * 1000
        if duration is not None and start + duration not in TIMES_NS:
            duration = None
        if start not in TIMES_NS:
            return None, None
        if duration is None:
            self._counts["missing_duration"] += 1
        self._next_ns = start + max(duration or 0, 1)
        return start, duration

    def _args(self, kind: str, node: Node, attributes: dict[str, Any]) -> str | None:
        rest: dict[str, Any] = {"node": node.id}
        for key, deps in (("ctrl_deps", node.ctrl_deps), ("data_deps", node.data_deps)):
            if deps:
                rest[key] = list(deps)
        typed = ("shapes", "types", "strides") if kind == "ops" else ()
        for key, tensors in (("inputs", node.inputs), ("outputs", node.outputs)):
            if kept := {k: v for k, v in tensors.items() if v and not (key == "inputs" and k in typed)}:
                rest[key] = kept
        text = _json(rest | {k: v for k, v in attributes.items() if v is not None and v != ""})
        self._counts["lost_arguments"] += text is None
        return text


def _kind(node: Node) -> str | None:
    """Return what the node becomes; None where it is no event."""
    if node.type == METADATA:
        return None
    if node.type in (COLLECTIVE, SEND, RECEIVE):
        return "collectives"
    if node.type in (LOAD, STORE):
        return "copies"
    if node.type in (0, COMPUTE):
        # Chakra's converter keeps the kernels of the device as nodes of computation too.
        return "kernels" if node.attributes.get("is_cpu_op") is False else "ops"
    return "ranges"


def _columns(kind: str, node: Node, attributes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the typed columns of a node; take from `attributes` what they hold."""
    if kind in _HOST:
        for key, column in _COLUMN_OF.items():
            value = whole(attributes.get(key))
            if column in _OWN_COLUMNS[kind]:
                yield column, None if value == _NONE.get(key) else value
                if value is not None:
                    del attributes[key]
    if kind == "ops":
        for column, key in (("shapes", "shapes"), ("dtypes", "types"), ("strides", "strides")):
            yield column, _json(node.inputs[key]) if node.inputs.get(key) else None
    elif kind == "ranges":
        yield "category", CATEGORIES.get(node.type, "unknown")
    elif kind == "kernels":
        yield "stream", whole(attributes.get("stream", attributes.get("tid")))
    elif kind == "copies":
        yield "bytes", _positive(attributes.get("tensor_size"))
        yield "direction", "load" if node.type == LOAD else "store"
    else:
        yield from _communication(node, attributes)


def _communication(node: Node, attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    group_size = _positive(attributes.get("group_size"))
    group = attributes.get("pg_name", attributes.get("comm_group"))
    yield "collective", _collective(node)
    yield "bytes", _positive(attributes.get("comm_size"))
    yield "elements_in", _positive(attributes.get("in_msg_nelems"))
    yield "elements_out", _positive(attributes.get("out_msg_nelems"))
    yield "dtype", plain_text(attributes.get("dtype")) or None
    yield "group_name", plain_text(group) or None
    yield "group_size", group_size if group_size is not None and group_size < _NARROW else None


def _collective(node: Node) -> str:
    if node.type != COLLECTIVE:
        return "send_recv"
    number = whole(node.attributes.get("comm_type"))
    if number is not None and 0 <= number < len(_COMMUNICATION):
        return _COMMUNICATION[number]
    letters = "".join(c for c in node.name.lower() if c.isalpha())
    return next((term for term in _IN_NAME if term.replace("_", "") in letters), "unknown")


def _positive(value: Any) -> int | None:
    number = whole(value)
    return number if number is not None and number > 0 else None


def _json(value: Any) -> str | None:
    """Return `value` as JSON; None where it is nested deeper than Python's stack."""
    try:
        return json.dumps(value, separators=(",", ":"))
    except (RecursionError, ValueError):
        return None
