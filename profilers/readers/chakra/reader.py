"""The reader of Chakra execution traces.

Nodes of a PyTorch execution trace: JSON of any size through a window, its schemas with flat keys and with nested.

From nodes to rows of the kinds of event.

`ChakraReader`: one execution trace to rows of the kinds of event.
"""

import codecs
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from profilers.errors import BrokenFileError
from profilers.readers.chakra.protobuf import (
    CATEGORIES,
    COLLECTIVE,
    COMPUTE,
    LOAD,
    METADATA,
    RECEIVE,
    SEND,
    STORE,
    Bytes,
    Node,
    is_chakra,
    read_records,
)
from profilers.readers.common.numbers import TIMES_NS, plain_text, whole
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.source import head, open_source
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

_BLOCK = 1 << 20
#: The largest node, or member of the header, that is held in memory.
_LARGEST = 64 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
#: Where reading goes on behind damage.
_NODE = re.compile(r'\{\s*"(?:id|name)"\s*:')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_SIGNS = re.compile(rb'"(?:rf_id|op_schema|ctrl_deps)"')
#: How much is passed over where Python cannot say how far it came: in what is nested too deeply.
_STRIDE = 4096
#: An error this near to the end of the window is one of a node that goes on behind it.
_NEAR = 16
_MEMBERS = {"inputs": "values", "input_shapes": "shapes", "input_types": "types", "input_strides": "strides"}
_RESULTS = {"outputs": "values", "output_shapes": "shapes", "output_types": "types", "output_strides": "strides"}
_PLAIN = frozenset({"id", "name", "parent", "ctrl_deps", "data_deps", "attrs", *_MEMBERS, *_RESULTS})


def is_execution_trace(start: bytes) -> bool:
    """Return whether a file starts like PyTorch's execution trace."""
    return start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and bool(_NODES.search(start) and _SIGNS.search(start))


def read_execution_trace(stream: Bytes, header: dict[str, Any], counts: Counter[str]) -> Iterator[Node]:
    """Yield the nodes of a file; put the other members that come before and after them into `header`.

    A node whose text is damaged is lost with what follows it up to the next that begins plainly.
    """
    text = _Text(stream, counts)
    for found in text.members(header):
        node = _node(found)
        counts["events"] += 1
        if node is None:
            counts["dropped_broken"] += 1
        else:
            yield node


class _Window(str):
    """Text for which an error need not know its line: to count lines costs as much as the text is long."""

    def count(self, *_: object) -> int:
        """Return 0."""
        return 0

    def rfind(self, *_: object) -> int:
        """Return -1."""
        return -1


class _Text:
    """One pass over the text of a file."""

    def __init__(self, stream: Bytes, counts: Counter[str]) -> None:
        self._stream = stream
        self._counts = counts
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._json = json.JSONDecoder(strict=False, parse_float=_real, parse_constant=self._constant)
        self._buffer = bytearray(_BLOCK)
        self._text = _Window()
        self._place = 0
        self._ended = False

    def _constant(self, _name: str) -> None:
        self._counts["repaired_nan"] += 1

    def _more(self) -> None:
        """Drop what was read and read on; at least as much again as there is."""
        parts = [self._text[self._place :]]
        size, goal = 0, max(_BLOCK, len(parts[0]))
        while size < goal and not self._ended:
            count = self._stream.readinto(self._buffer) or 0
            raw = bytes(self._buffer[:count])
            self._ended = not count
            parts.append(self._decoder.decode(raw, final=self._ended))
            if "\ufffd" in parts[-1] and b"\xef\xbf\xbd" not in raw:
                self._counts["repaired_utf8"] = 1
            size += count
        self._text, self._place = _Window("".join(parts)), 0

    def _peek(self) -> str:
        """Return the next character that is no space; nothing at the end."""
        while True:
            match = _SPACE.match(self._text, self._place)
            self._place = match.end() if match else self._place
            if self._place < len(self._text) or self._ended:
                return self._text[self._place : self._place + 1]
            self._more()

    def _take(self, character: str) -> bool:
        found = self._peek() == character
        self._place += found
        return found

    def _value(self) -> Any:
        """Return the JSON value that comes next; `ValueError` where there is none, having passed what is damaged."""
        self._peek()
        while True:
            try:
                value, self._place = self._json.raw_decode(self._text, self._place)
                return value
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self._text) - _NEAR or error.msg.startswith("Unterminated")
                if cut and not self._ended and len(self._text) - self._place < _LARGEST:
                    self._more()
                    continue
                self._place = max(error.pos, self._place + 1)
                raise
            except (RecursionError, ValueError) as error:
                self._place += _STRIDE
                raise ValueError("nested too deeply, or a number too long") from error

    def members(self, header: dict[str, Any]) -> Iterator[Any]:
        """Yield the elements of ``nodes``; put every other member of the file's object into `header`."""
        self._peek()
        if not self._take("{"):
            return
        try:
            while self._peek() not in ("", "}"):
                key = self._value()
                if not self._take(":"):
                    return
                if key == "nodes" and self._take("["):
                    yield from self._elements()
                else:
                    header[plain_text(key)] = self._value()
                if not self._take(","):
                    break
        except ValueError:
            # What stands around the nodes is not needed.
            self._counts["truncated_files"] = 1
        if self._peek() != "}":
            self._counts["truncated_files"] = 1

    def _elements(self) -> Iterator[Any]:
        while (following := self._peek()) not in ("", "]"):
            try:
                if following != "{":
                    raise ValueError("no object")
                element = self._value()
            except ValueError:
                self._counts["events"] += 1
                self._counts["dropped_broken"] += 1
                self._resume()
                continue
            yield element
            if not self._take(",") and self._peek() not in ("", "]"):
                self._resume()
        if not self._take("]"):
            self._counts["truncated_files"] = 1

    def _resume(self) -> None:
        """Go on to where a node seems to begin."""
        while not (match := _NODE.search(self._text, self._place)):
            if self._ended:
                self._place = len(self._text)
                return
            self._place = max(self._place, len(self._text) - _NEAR)
            self._more()
        self._place = match.start()


def _real(text: str) -> float | str:
    value = float(text)
    return value if isfinite(value) else text


def _node(found: Any) -> Node | None:
    if not isinstance(found, dict):
        return None
    number = whole(found.get("id"))
    if number is None or "name" not in found:
        return None
    attributes = {plain_text(key): value for key, value in found.items() if key not in _PLAIN}
    attributes.update(_attributes(found.get("attrs")))
    return Node(
        number,
        plain_text(found["name"]),
        COMPUTE,
        ctrl_deps=_numbers(found.get("ctrl_deps", found.get("parent"))),
        data_deps=_numbers(found.get("data_deps")),
        attributes=attributes,
        inputs=_tensors(found, "inputs", _MEMBERS),
        outputs=_tensors(found, "outputs", _RESULTS),
    )


def _attributes(listed: Any) -> dict[str, Any]:
    """Return the attributes of the nested schema by name."""
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return {plain_text(row.get("name")): row.get("value") for row in rows}


def _numbers(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(number for number in map(whole, values) if number is not None)


def _tensors(found: Mapping[str, Any], key: str, flat: Mapping[str, str]) -> dict[str, Any]:
    """Return inputs or outputs, which the nested schema holds in one object."""
    nested = found.get(key)
    if isinstance(nested, dict):
        return nested
    return {name: found[one] for one, name in flat.items() if found.get(one)}


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


#: What simulators expect the file of a rank to be called.
_RANK = re.compile(r"\.(\d{1,9})\.et(?:\.\w+)?$")


class ChakraReader:
    """Execution traces: Chakra's protobuf files (.et) and the JSON of PyTorch's execution trace observer.

    Where the files hold no times, as PyTorch's do not, events follow each other in the order of the file, which is
    counted; `join_execution_trace` takes what they know to a timeline of the same rank.
    """

    name = "chakra"

    def sniff(self, head: Head) -> bool:
        """Return whether a file starts with Chakra's metadata or like PyTorch's execution trace."""
        return is_execution_trace(head.start) or is_chakra(head.start)

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the nodes of one file to `sink`.

        Raises
        ------
        BrokenFileError
            It holds no node that can be used, or unpacks to more than the limit.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        header: dict[str, Any] = {}
        read = read_execution_trace if is_execution_trace(head(path)) else read_records
        with open_source(path, sink.limit_bytes) as stream:
            rows = Rows(sink, header, counts)
            for node in read(stream, header, counts):  # a Python loop over the nodes, about 20 us each
                rows.add(node)
            rows.flush()
            counts["truncated_files"] |= int(getattr(stream, "truncated", False))
        _check_not_empty(path, counts)
        version = plain_text(header.get("schema")) or plain_text(header.get("version")) or "unknown"
        return TraceMeta(self.name, f"schema {version}", (path.name,), _rank(path), quality=Quality({**counts}))


def _rank(path: Path) -> tuple[int, ...]:
    """Return the rank that the file's name states, or nothing."""
    match = _RANK.search(path.name)
    return (int(match[1]),) if match else ()


def _check_not_empty(path: Path, counts: Counter[str]) -> None:
    if counts["kept"]:
        return
    if not counts["events"]:
        raise BrokenFileError(f"{path}: holds no node; was the observer started before the model ran?")
    lost = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if n and name not in ("events", "kept"))
    raise BrokenFileError(f"{path}: none of its {counts['events']} nodes can be used ({lost})")
