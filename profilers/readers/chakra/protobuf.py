"""Nodes of Chakra's protobuf files (mlcommons/chakra, ``et_def.proto``), and the classes of their messages.

`NodeMessage` and `MetadataMessage` are classes of Google's `protobuf`. `Node` is one node of an execution trace, of
either format. `read_records` yields the nodes of a file, in which each message stands behind its length.

Texts are declared as bytes, which have the same encoding: a text that is not UTF-8 then costs only itself. Fields know
whether they were set, which distinguishes a duration of 0 from none.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import isfinite
from typing import Any, BinaryIO

from google.protobuf import descriptor_pb2, message_factory, text_format
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from profilers.files import dataset_path

#: The messages of `datasets/formats/chakra.txtpb` by full name.
_MESSAGES = message_factory.GetMessages(
    [text_format.Parse(dataset_path("formats/chakra.txtpb").read_text("utf-8"), descriptor_pb2.FileDescriptorProto())]
)
#: A named value or list of values; the first message of a file, with the version of the schema; and an operator,
#: kernel, copy or communication with the nodes on which it depends.
_AttributeMessage, MetadataMessage, NodeMessage = (
    _MESSAGES[f"chakra.{name}"] for name in ("AttributeProto", "GlobalMetadata", "Node")
)


def add_attribute(attributes: Any, name: str, value: str | bool | int) -> None:
    """Add a named value to the attributes of a message.

    Examples
    --------
    >>> node = NodeMessage(id=1)
    >>> add_attribute(node.attr, "a", 318)
    >>> node.SerializeToString().hex()
    '080152060a016148be02'
    """
    raw = name.encode()
    if isinstance(value, bool):
        attributes.add(name=raw, bool_val=value)
    elif isinstance(value, str):
        attributes.add(name=raw, string_val=value.encode())
    else:
        attributes.add(name=raw, int64_val=value)


#: Types of a node in the public schema (mlcommons/chakra, ``et_def.proto``).
NodeType = IntEnum("NodeType", ["METADATA", "LOAD", "STORE", "COMPUTE", "SEND", "RECEIVE", "COLLECTIVE"])
#: What later versions add; they are kept as ranges.
CATEGORIES: Mapping[int, str] = {8: "storage", 9: "batch", 10: "checkpoint"}


@dataclass(frozen=True)
class Node:
    """A node of an execution trace: an operator, a kernel, a copy or a communication.

    Parameters
    ----------
    id : int
        Number of the node, unique in its file.
    name : str
        Name of the operator or kernel.
    type : int
        Type in the public schema; 0 if the file lacks it.
    start_us, duration_us : int, optional
        Start and duration in microseconds; None if the file lacks them.
    ctrl_deps, data_deps : tuple of int
        Nodes that precede this one: its caller or another node that orders it, and the producers of its inputs.
    attributes : mapping of str to Any
        Attributes by name, such as ``"comm_size"``.
    inputs, outputs : mapping of str to Any
        ``values``, ``shapes``, ``types``, and in newer files ``strides``.
    """

    id: int
    name: str
    type: int = 0
    start_us: int | None = None
    duration_us: int | None = None
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)


_IO = ("values", "shapes", "types")
_CONSTANTS = {"None": "null", "True": "true", "False": "false"}
_CONSTANT = re.compile(r"\b(?:None|True|False)\b")
#: Fields of later schemas lie below; a message with higher ones is of another kind of file.
_MOST_FIELDS = 100


class MessageError(ValueError):
    """The bytes are no message of the schema."""


def _parsed(message: Any, data: bytes) -> Any:
    """Return `message` filled from `data`."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise MessageError(str(error)) from error
    return message


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def metadata(data: bytes) -> dict[str, Any]:
    """Return the version and the attributes in the first message of a file, by name.

    Raises
    ------
    MessageError
        The bytes are no such message.

    Examples
    --------
    >>> metadata(MetadataMessage(version=[b"0.0.4"]).SerializeToString())
    {'version': '0.0.4'}
    """
    message = _parsed(MetadataMessage(), data)
    if len(UnknownFieldSet(message)):
        raise MessageError("fields that metadata does not have")
    header: dict[str, Any] = {}
    for value in message.version:
        # The version came later and took the place of the attributes, which begin with the tag of their name.
        if value.startswith(b"\n"):
            name, content = _attribute(_parsed(_AttributeMessage(), value))
            header[name] = content
        else:
            header["version"] = _text(value)
    return header | dict(map(_attribute, message.attr))


def node(data: bytes) -> Node:
    """Return a node.

    Raises
    ------
    MessageError
        The bytes are no message, or one that has neither id nor name.

    Examples
    --------
    >>> node(NodeMessage(id=7, name=b"aten::mm", data_deps=[3, 5]).SerializeToString()).data_deps
    (3, 5)
    """
    message = _parsed(NodeMessage(), data)
    if not message.HasField("id") and not message.HasField("name"):
        raise MessageError("a node without id and name")
    return Node(
        message.id,
        _text(message.name),
        message.type,
        message.start_time_micros or None,  # 0 is not written, and stands for none
        message.duration_micros if message.HasField("duration_micros") else None,
        tuple(message.ctrl_deps),
        tuple(message.data_deps),
        dict(map(_attribute, message.attr)),
        _tensors(message.inputs),
        _tensors(message.outputs),
    )


def is_node(data: bytes) -> bool:
    """Return whether `data` is a node that starts with its id or its name, as the first node of a file does."""
    try:
        message = _parsed(NodeMessage(), data)
    except MessageError:
        return False
    return data[:1] in (b"\x08", b"\x12") and all(
        field.field_number < _MOST_FIELDS for field in UnknownFieldSet(message)
    )


def _attribute(message: Any) -> tuple[str, Any]:
    """Return the name and the value of an attribute."""
    kind = message.WhichOneof("value")
    if kind is None:
        return _text(message.name), None
    type_, _, form = kind.rpartition("_")
    value = getattr(message, kind)
    if form == "list":
        return _text(message.name), [_plain(type_, item) for item in value.values]
    return _text(message.name), _plain(type_, value)


def _plain(type_: str, value: Any) -> Any:
    """Return a value as JSON can hold it: bytes as digits, numbers that are not finite as text."""
    if isinstance(value, bytes):
        return _text(value) if type_ == "string" else value.hex()
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _tensors(message: Any) -> dict[str, Any]:
    return {name: _listed(_text(value)) for name in _IO if (value := getattr(message, name))}


def _listed(text: str) -> Any:
    """Return a list that was written as JSON or as Python prints it; other text as it is.

    Examples
    --------
    >>> _listed("[[4, None, 'cuda:0']]"), _listed("[")
    ([[4, None, 'cuda:0']], '[')
    """
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        pass
    if '"' in text or "\\" in text:
        return text
    plain = _CONSTANT.sub(lambda match: _CONSTANTS[match.group()], text).replace("'", '"')
    try:
        return json.loads(plain, parse_constant=str)
    except (ValueError, RecursionError):
        return text


#: The largest message that is held in memory; a node is a few KB, or a few MB if it lists its tensors.
_LARGEST = 64 << 20
_LONGEST_VARINT = 10
#: Broken messages in a row after which the rest of a file is given up.
_MOST_BROKEN = 10_000


def is_chakra(start: bytes) -> bool:
    """Return whether a file begins with Chakra's metadata, followed by a node or by nothing."""
    stream = io.BytesIO(start)
    size = _length(stream, stream.read(1))
    if size is None or len(first := stream.read(min(size, len(start)))) < size:
        return False
    try:
        header = metadata(first)
    except MessageError:
        return False
    if not all(name.isprintable() for name in header):
        return False
    if size and stream.tell() == len(start):
        return True
    size = _length(stream, stream.read(1))
    message = stream.read(min(size or 0, len(start)))
    if size is not None and len(message) < size:
        # Only the beginning of the node is there: the tag of its id or its name.
        return bool(header) and message[:1] in (b"\x08", b"\x12")
    return size is not None and is_node(message)


def read_records(stream: BinaryIO, header: dict[str, Any], counts: Counter[str]) -> Iterator[Node]:
    """Yield the nodes of a file.

    A damaged message costs that node; a damaged length costs the rest of the file.

    Parameters
    ----------
    stream : binary file
        Content of the file; its ``read`` returns all bytes requested, except at the end.
    header : dict of str to Any
        Filled with the content of the first message.
    counts : Counter
        Counts of nodes and losses, updated.
    """
    messages = _messages_in(stream, counts)
    try:
        header.update(metadata(next(messages, b"")))
    except MessageError:
        counts["events"] += 1
        counts["dropped_broken"] += 1
    broken = 0
    for message in messages:
        counts["events"] += 1
        try:
            element = node(message)
        except MessageError:
            counts["dropped_broken"] += 1
            broken += 1
            if broken > _MOST_BROKEN:
                counts["truncated_files"] = 1
                return
            continue
        broken = 0
        yield element


def _messages_in(stream: BinaryIO, counts: Counter[str]) -> Iterator[bytes]:
    while first := stream.read(1):
        size = _length(stream, first)
        message = stream.read(size) if size is not None and size <= _LARGEST else b""
        if size is None or len(message) < size:
            # The bytes behind an impossible length are no message either.
            counts["truncated_files"] = 1
            counts["events"] += 1
            counts["dropped_broken"] += 1
            return
        yield message


def _length(stream: BinaryIO, byte: bytes) -> int | None:
    """Return the length that starts with `byte` and continues in `stream`, None if it is not valid.

    It is a varint: seven bits a byte, the lowest first; all but the last have the eighth bit.
    """
    value = 0
    for i in range(_LONGEST_VARINT):
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << (7 * i)
        if byte[0] < 0x80:
            return value if value < 1 << 64 else None
        byte = stream.read(1)
    return None
