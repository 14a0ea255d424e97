"""`ChakraReader`: execution traces, as Chakra's protobuf files or as the JSON of PyTorch's observer.

Both formats give `Node` objects, one at a time, which `NodeRows` turns into rows of the kinds of event. The JSON is
read through a window, so that a file may have any size. Its keys are flat, or nested in attributes, by its schema.
The protobuf format is read by `profilers.readers.chakra.protobuf`.
"""

import codecs
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

from profilers.readers.chakra.protobuf import CATEGORIES, Node, NodeType, is_chakra, read_records
from profilers.readers.common.csv_rows import Batches
from profilers.readers.common.json_documents import UncountedText, listed, mapped, opening
from profilers.readers.common.numbers import INT32_LIMIT, TIMES_NS, integer, plain_text, positive
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.source import first_bytes, open_source, require_events
from profilers.trace.quality import Quality
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import TraceMeta

_BLOCK = 1 << 20
#: Most bytes of a node, or of a member of the header.
_LARGEST = 64 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
#: Start of a node, from which reading continues behind damage.
_NODE = re.compile(r'\{\s*"(?:id|name)"\s*:')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_SIGNS = re.compile(rb'"(?:rf_id|op_schema|ctrl_deps)"')
#: Characters skipped at damage of unknown extent, such as nesting that is too deep.
_STRIDE = 4096
#: An error within this many characters of the window's end means that the node continues behind it.
_NEAR = 16
_MEMBERS = {"inputs": "values", "input_shapes": "shapes", "input_types": "types", "input_strides": "strides"}
_RESULTS = {"outputs": "values", "output_shapes": "shapes", "output_types": "types", "output_strides": "strides"}
_NODE_KEYS = frozenset({"id", "name", "parent", "ctrl_deps", "data_deps", "attrs", *_MEMBERS, *_RESULTS})


def is_execution_trace(start: bytes) -> bool:
    """Return whether the first bytes of a file are those of PyTorch's execution trace."""
    return opening(start) == b"{" and bool(_NODES.search(start) and _SIGNS.search(start))


def read_execution_trace(stream: BinaryIO, header: dict[str, Any], counts: Counter[str]) -> Iterator[Node]:
    """Yield the nodes of a JSON file.

    A node whose text is damaged is lost, with all text up to the next plain start of a node.

    Parameters
    ----------
    stream : binary file
        Text of the file.
    header : dict of str to Any
        Filled with the other members of the file, which come before and after the nodes.
    counts : Counter
        Counts of nodes, repairs and losses, updated.
    """
    text = _Text(stream, counts)
    for element in text.members(header):
        node = _node(element)
        counts["events"] += 1
        if node is None:
            counts["dropped_broken"] += 1
        else:
            yield node


class _Text:
    """One pass over the text of a file, through a window that slides forward."""

    def __init__(self, stream: BinaryIO, counts: Counter[str]) -> None:
        self._stream = stream
        self._counts = counts
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._json = json.JSONDecoder(strict=False, parse_float=_real, parse_constant=self._constant)
        self._text = UncountedText()
        self._position = 0
        self._ended = False

    def _constant(self, _name: str) -> None:
        self._counts["repaired_nan"] += 1

    def _more(self) -> None:
        """Drop the text already read, and read at least as much again as is left."""
        rest = self._text[self._position :]
        raw = self._stream.read(max(_BLOCK, len(rest)))
        self._ended = not raw
        text = self._decoder.decode(raw, final=self._ended)
        if "\ufffd" in text and b"\xef\xbf\xbd" not in raw:
            self._counts["repaired_utf8"] = 1
        self._text, self._position = UncountedText(rest + text), 0

    def _peek(self) -> str:
        """Return the next character that is no space, "" at the end."""
        while True:
            match = _SPACE.match(self._text, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._text) or self._ended:
                return self._text[self._position : self._position + 1]
            self._more()

    def _take(self, character: str) -> bool:
        """Return whether `character` comes next, and pass it if so."""
        is_next = self._peek() == character
        self._position += is_next
        return is_next

    def _value(self) -> Any:
        """Return the next JSON value.

        Raises
        ------
        ValueError
            The value is damaged; the position is behind the damage.
        """
        self._peek()
        while True:
            try:
                value, self._position = self._json.raw_decode(self._text, self._position)
                return value
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self._text) - _NEAR or error.msg.startswith("Unterminated")
                if cut and not self._ended and len(self._text) - self._position < _LARGEST:
                    self._more()
                    continue
                self._position = max(error.pos, self._position + 1)
                raise
            except (RecursionError, ValueError) as error:
                self._position += _STRIDE
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
            # The members around the nodes are not needed.
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
        """Move to the next likely start of a node, or to the end."""
        while not (match := _NODE.search(self._text, self._position)):
            if self._ended:
                self._position = len(self._text)
                return
            self._position = max(self._position, len(self._text) - _NEAR)
            self._more()
        self._position = match.start()


def _real(text: str) -> float | str:
    value = float(text)
    return value if isfinite(value) else text


def _node(element: Any) -> Node | None:
    """Return a node from its JSON, None if it has no id or no name."""
    if not isinstance(element, dict):
        return None
    number = integer(element.get("id"))
    if number is None or "name" not in element:
        return None
    attributes = {plain_text(key): value for key, value in element.items() if key not in _NODE_KEYS}
    attributes.update(_attributes(element.get("attrs")))
    return Node(
        number,
        plain_text(element["name"]),
        NodeType.COMPUTE,
        ctrl_deps=_numbers(element.get("ctrl_deps", element.get("parent"))),
        data_deps=_numbers(element.get("data_deps")),
        attributes=attributes,
        inputs=_tensors(element, "inputs", _MEMBERS),
        outputs=_tensors(element, "outputs", _RESULTS),
    )


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of a node in the nested schema, which lists them, by name."""
    return {plain_text(row.get("name")): row.get("value") for row in map(mapped, listed(value)) if row}


def _numbers(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(number for number in map(integer, values) if number is not None)


def _tensors(members: Mapping[str, Any], key: str, flat: Mapping[str, str]) -> dict[str, Any]:
    """Return inputs or outputs: one object in the nested schema, members of the node in the flat one."""
    nested = members.get(key)
    if isinstance(nested, dict):
        return nested
    return {name: members[key] for key, name in flat.items() if members.get(key)}


#: Kind of event by type of node; computation is an operator or a kernel, and any other type a range.
_KIND_OF: Mapping[int, str | None] = {
    NodeType.METADATA: None,
    **dict.fromkeys((NodeType.LOAD, NodeType.STORE), "copies"),
    **dict.fromkeys((NodeType.SEND, NodeType.RECEIVE, NodeType.COLLECTIVE), "collectives"),
}
#: Names of collectives by `comm_type` of the public schema.
_COMMUNICATION = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter"),
    *("reduce_scatter", "barrier"),
)
#: Collectives that names of nodes may contain, the longest first, which counts.
_IN_NAME = tuple(sorted({*_COMMUNICATION}, key=lambda term: (-len(term), term)))
#: Columns by the attribute that holds their value, and the value that stands for null.
_COLUMN_OF = {"tid": "thread", "seq_id": "sequence_number", "fw_tid": "forward_thread", "rf_id": "record_function_id"}
_NONE = {"seq_id": -1, "fw_tid": 0, "rf_id": 0}
_HOST = ("ops", "ranges")
_HOST_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "ops": ("thread", "sequence_number", "forward_thread", "record_function_id"),
    "ranges": ("thread", "record_function_id"),
}


class NodeRows:
    """Nodes turned into rows of the kinds of event.

    Parameters
    ----------
    sink : Sink
        Takes the rows.
    header : mapping of str to Any
        Metadata of the file, filled before the first node.
    counts : Counter
        Counts of nodes kept, repaired and lost, updated.
    """

    def __init__(self, sink: Sink, header: Mapping[str, Any], counts: Counter[str]) -> None:
        self._header = header
        self._counts = counts
        self.batches = Batches(sink, counts)
        self._next_ns = 0

    def add(self, node: Node) -> None:
        """Add one node, or count the reason for leaving it out."""
        kind = _kind(node)
        if kind is None:
            self._counts["skipped_marker"] += 1
            return
        start, duration = self._time(node)
        if start is None:
            self._counts["dropped_no_time"] += 1
            return
        row: dict[str, Any] = {"rank": OWN_RANK, "name": node.name, "start_ns": start, "dur_ns": duration}
        attributes = dict(node.attributes)
        row |= dict(_columns(kind, node, attributes))
        if kind in _HOST:
            row["process"] = integer(self._header.get("pid"))
        row["args"] = self._args(kind, node, attributes)
        self.batches.add(kind, row)

    def _time(self, node: Node) -> tuple[int | None, int | None]:
        """Return start and duration in ns; a node without a start follows the node before it in the file."""
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
        """Return id, dependencies, tensors and the other attributes of a node as JSON."""
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
    """Return the kind of event that a node becomes, None for metadata."""
    if node.type in (0, NodeType.COMPUTE):
        # Chakra's converter writes kernels as nodes of computation too.
        return "kernels" if node.attributes.get("is_cpu_op") is False else "ops"
    return _KIND_OF.get(node.type, "ranges")


def _columns(kind: str, node: Node, attributes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the typed columns of a node, and remove the attributes that they hold."""
    if kind in _HOST:
        for key, column in _COLUMN_OF.items():
            value = integer(attributes.get(key))
            if column in _HOST_COLUMNS[kind]:
                yield column, None if value == _NONE.get(key) else value
                if value is not None:
                    del attributes[key]
    if kind == "ops":
        for column, key in (("shapes", "shapes"), ("dtypes", "types"), ("strides", "strides")):
            yield column, _json(node.inputs[key]) if node.inputs.get(key) else None
    elif kind == "ranges":
        yield "category", CATEGORIES.get(node.type, "unknown")
    elif kind == "kernels":
        yield "stream", integer(attributes.get("stream", attributes.get("tid")))
    elif kind == "copies":
        yield "bytes", positive(attributes.get("tensor_size"))
        yield "direction", "load" if node.type == NodeType.LOAD else "store"
    else:
        yield from _communication(node, attributes)


def _communication(node: Node, attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    group_size = positive(attributes.get("group_size"))
    group = attributes.get("pg_name", attributes.get("comm_group"))
    yield "collective", _collective(node)
    yield "bytes", positive(attributes.get("comm_size"))
    yield "elements_in", positive(attributes.get("in_msg_nelems"))
    yield "elements_out", positive(attributes.get("out_msg_nelems"))
    yield "dtype", plain_text(attributes.get("dtype")) or None
    yield "group_name", plain_text(group) or None
    yield "group_size", group_size if group_size is not None and group_size < INT32_LIMIT else None


def _collective(node: Node) -> str:
    if node.type != NodeType.COLLECTIVE:
        return "send_recv"
    number = integer(node.attributes.get("comm_type"))
    if number is not None and 0 <= number < len(_COMMUNICATION):
        return _COMMUNICATION[number]
    letters = "".join(c for c in node.name.lower() if c.isalpha())
    return next((term for term in _IN_NAME if term.replace("_", "") in letters), "unknown")


def _json(value: Any) -> str | None:
    """Return `value` as JSON, or None if it is nested deeper than Python's stack."""
    try:
        return json.dumps(value, separators=(",", ":"))
    except (RecursionError, ValueError):
        return None


#: End of the file name of a rank, as simulators expect it.
_RANK = re.compile(r"\.(\d{1,9})\.et(?:\.\w+)?$")


class ChakraReader:
    """Execution traces: Chakra's protobuf files (.et) and the JSON of PyTorch's execution trace observer.

    PyTorch's files hold no times: their events follow each other in the order of the file, which is counted.
    `profilers.ingest.join` adds the arguments of such events to a timeline of the same rank.
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
            The file holds no node that can be used, or unpacks to more than the limit.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        header: dict[str, Any] = {}
        read = read_execution_trace if is_execution_trace(first_bytes(path)) else read_records
        with open_source(path, sink.limit_bytes) as stream, io.BufferedReader(stream, _BLOCK) as buffered:
            rows = NodeRows(sink, header, counts)
            for node in read(buffered, header, counts):  # a Python loop over the nodes, about 20 us each
                rows.add(node)
            rows.batches.flush()
            counts["truncated_files"] |= int(getattr(stream, "truncated", False))
        advice = "record again, and see that the observer starts before the model runs"
        require_events(path, counts, if_empty="holds no node", advice=advice, rows="nodes")
        version = plain_text(header.get("schema")) or plain_text(header.get("version")) or "unknown"
        ranks = tuple(map(int, _RANK.findall(path.name)))
        return TraceMeta(self.name, f"schema {version}", (path.name,), ranks, quality=Quality({**counts}))
