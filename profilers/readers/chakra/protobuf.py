"""Chakra nodes and their protobuf messages.

The messages of Chakra's protobuf schema (mlcommons/chakra, ``et_def.proto``), as classes of Google's `protobuf`.

Texts are declared as bytes, which are the same on the wire: a text that is not UTF-8 then costs itself and not its
node. Fields know whether they were set, which tells a duration of 0 from none.

`Node`: one node of an execution trace, whichever way it was written.

From messages of Chakra's protobuf schema (mlcommons/chakra, ``et_def.proto``) to nodes and metadata.

Nodes of a Chakra file: messages, each behind its length.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from profilers.readers.common.source import Bytes

_PACKAGE = "chakra"
_FIELD = descriptor_pb2.FieldDescriptorProto
#: What an attribute can hold; the fields are numbered from 3 on, each followed by that of a list of the same.
_VALUES: Mapping[str, int] = {
    "double": _FIELD.TYPE_DOUBLE,
    "float": _FIELD.TYPE_FLOAT,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "uint64": _FIELD.TYPE_UINT64,
    "sint32": _FIELD.TYPE_SINT32,
    "sint64": _FIELD.TYPE_SINT64,
    "fixed32": _FIELD.TYPE_FIXED32,
    "fixed64": _FIELD.TYPE_FIXED64,
    "sfixed32": _FIELD.TYPE_SFIXED32,
    "sfixed64": _FIELD.TYPE_SFIXED64,
    "bool": _FIELD.TYPE_BOOL,
    "string": _FIELD.TYPE_BYTES,
    "bytes": _FIELD.TYPE_BYTES,
}
_FIRST_VALUE = 3


def _messages() -> Mapping[str, Any]:
    """Return the classes by the names of the messages."""
    file = descriptor_pb2.FileDescriptorProto(name="seqpoint/et_def.proto", package=_PACKAGE, syntax="proto2")
    for name, type_ in _VALUES.items():
        _add(file, f"{name}_list", ("values*", 1, type_))
    attribute: list[tuple[str, int, int | str]] = [("name", 1, _FIELD.TYPE_BYTES)]
    for number, (name, type_) in enumerate(_VALUES.items()):
        field = _FIRST_VALUE + 2 * number
        attribute += [(f"{name}_val", field, type_), (f"{name}_list", field + 1, f"{name}_list")]
    _add(file, "AttributeProto", *attribute)
    file.message_type[-1].oneof_decl.add(name="value")
    for value in file.message_type[-1].field[1:]:
        value.oneof_index = 0
    _add(
        file,
        "IOInfo",
        *((name, place, _FIELD.TYPE_BYTES) for place, name in enumerate(("values", "shapes", "types"), 1)),
    )
    # Field 1 held the attributes before it held the version.
    _add(file, "GlobalMetadata", ("version*", 1, _FIELD.TYPE_BYTES), ("attr*", 2, "AttributeProto"))
    _add(
        file,
        "Node",
        ("id", 1, _FIELD.TYPE_UINT64),
        ("name", 2, _FIELD.TYPE_BYTES),
        ("type", 3, _FIELD.TYPE_UINT64),
        ("ctrl_deps*", 4, _FIELD.TYPE_UINT64),
        ("data_deps*", 5, _FIELD.TYPE_UINT64),
        ("start_time_micros", 6, _FIELD.TYPE_UINT64),
        ("duration_micros", 7, _FIELD.TYPE_UINT64),
        ("inputs", 8, "IOInfo"),
        ("outputs", 9, "IOInfo"),
        ("attr*", 10, "AttributeProto"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("AttributeProto", "GlobalMetadata", "Node")
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{n}")) for n in names}


def _add(file: Any, name: str, *fields: tuple[str, int, int | str]) -> None:
    """Declare a message by the name, number and type of its fields; a star marks a list."""
    message = file.message_type.add(name=name)
    for own, number, type_ in fields:
        repeated = own.endswith("*")
        field = message.field.add(name=own.rstrip("*"), number=number)
        field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
        if isinstance(type_, str):
            field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{type_}"
        else:
            field.type = type_
            field.options.packed = repeated and type_ != _FIELD.TYPE_BYTES


_CLASSES = _messages()
AttributeMessage = _CLASSES["AttributeProto"]
AttributeMessage.__doc__ = "A named value, or a list of values of one type."
MetadataMessage = _CLASSES["GlobalMetadata"]
MetadataMessage.__doc__ = "The first message of a file: the version of the schema, and attributes."
NodeMessage = _CLASSES["Node"]
NodeMessage.__doc__ = "An operator, kernel, copy or communication, with the nodes that it depends on."


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
METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)
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
        Type in the public schema; 0 if the file does not say.
    start_us, duration_us : int, optional
        Start and duration in microseconds; None if the file does not say.
    ctrl_deps, data_deps : tuple of int
        Nodes that come before: the caller (or whatever else orders them), and who makes its inputs.
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
    """Return `message` with what `data` holds."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise MessageError(str(error)) from error
    return message


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def metadata(data: bytes) -> dict[str, Any]:
    """Return what the first message of a file says, by name.

    Raises
    ------
    MessageError
        It is no such message.

    Examples
    --------
    >>> metadata(MetadataMessage(version=[b"0.0.4"]).SerializeToString())
    {'version': '0.0.4'}
    """
    message = _parsed(MetadataMessage(), data)
    if len(UnknownFieldSet(message)):
        raise MessageError("fields that metadata does not have")
    found: dict[str, Any] = {}
    for value in message.version:
        # The version came later and took the place of the attributes, which begin with the tag of their name.
        if value.startswith(b"\n"):
            name, content = _attribute(_parsed(AttributeMessage(), value))
            found[name] = content
        else:
            found["version"] = _text(value)
    return found | dict(map(_attribute, message.attr))


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
    """Return whether `data` is a message with an id, then a name or a type, as those that begin a file."""
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
    value = getattr(message, kind)
    type_ = kind.removesuffix("_val")
    if type_ == kind:
        type_ = kind.removesuffix("_list")
        return _text(message.name), [_plain(type_, one) for one in value.values]
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


#: The largest message that is held in memory; one node is a few KB, a few MB where it lists its tensors.
_LARGEST = 64 << 20
_BLOCK = 1 << 20
_LONGEST_VARINT = 10
#: Broken messages in a row, behind which nothing will be found any more.
_MOST_BROKEN = 10_000


def is_chakra(start: bytes) -> bool:
    """Return whether a file begins with Chakra's metadata, and goes on with a node where it goes on."""
    size, place = _length(start, 0)
    first, rest = start[place : place + size], start[place + size :]
    if not place or len(first) < size:
        return False
    try:
        found = metadata(first)
    except MessageError:
        return False
    if not all(name.isprintable() for name in found):
        return False
    if size and not rest:
        return True
    size, place = _length(rest, 0)
    if len(rest) < place + size:
        # Only the beginning of the node is there: the tag of its id or its name.
        return bool(found) and rest[place : place + 1] in (b"\x08", b"\x12")
    return bool(place) and is_node(rest[place : place + size])


def read_records(stream: Bytes, header: dict[str, Any], counts: Counter[str]) -> Iterator[Node]:
    """Yield the nodes of a file; put what its first message says into `header`.

    A message that is damaged costs that node; where a length is, the rest of the file.
    """
    first = True
    broken = 0
    for message in _record_messages(stream, counts):
        if first:
            first = False
            try:
                header.update(metadata(message))
            except MessageError:
                counts["events"] += 1
                counts["dropped_broken"] += 1
            continue
        counts["events"] += 1
        try:
            found = node(message)
        except MessageError:
            counts["dropped_broken"] += 1
            broken += 1
            if broken > _MOST_BROKEN:
                counts["truncated_files"] = 1
                return
            continue
        broken = 0
        yield found


def _record_messages(stream: Bytes, counts: Counter[str]) -> Iterator[bytes]:
    window, buffer, ended, place = b"", bytearray(_BLOCK), False, 0
    while True:
        size, begin = _length(window, place)
        if begin and len(window) >= begin + size:
            yield window[begin : begin + size]
            place = begin + size
        elif ended or (begin and size > _LARGEST) or (not begin and len(window) - place >= _LONGEST_VARINT):
            # What follows a length that cannot be is no message either.
            if place < len(window):
                counts["truncated_files"] = 1
                counts["events"] += 1
                counts["dropped_broken"] += 1
            return
        else:
            window, place, ended = _more(stream, window[place:], max(begin - place + size, 1), buffer), 0, False
            # Too short for what was asked: the file ends here.
            size, begin = _length(window, 0)
            ended = not begin or len(window) < begin + size


def _length(window: bytes, place: int) -> tuple[int, int]:
    """Return the length of the message at `place` and where it begins, which is 0 where that is not known.

    It is a varint: seven bits a byte, the lowest first; all but the last have the eighth bit.
    """
    value = 0
    for i, byte in enumerate(window[place : place + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return (value, place + i + 1) if value < 1 << 64 else (0, 0)
    return 0, 0


def _more(stream: Bytes, kept: bytes, wanted: int, buffer: bytearray) -> bytes:
    """Return `kept` and what follows: a block, and at least `wanted` bytes in all where there are as many."""
    found = bytearray(kept)
    goal = max(wanted, len(kept) + _BLOCK)
    while len(found) < goal and (count := stream.readinto(buffer)):
        found += memoryview(buffer)[:count]
    return bytes(found)
