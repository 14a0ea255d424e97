"""Chakra nodes and their protobuf messages.

Protocol Buffers' wire format, as much as Chakra uses: varints, fixed numbers and length-delimited fields.

Nothing here recurses: a caller goes as deep as it asks for, so that no input can be nested too deeply.

Protocol Buffers' wire format, written: what `profilers.readers.chakra.protobuf` reads.

`Node`: one node of an execution trace, whichever way it was written.

From messages of Chakra's protobuf schema (mlcommons/chakra, ``et_def.proto``) to nodes and metadata.

Nodes of a Chakra file: messages, each behind its length.
"""

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

#: Number, wire type, and the value: an integer for a varint, else the bytes.
Field = tuple[int, int, int | bytes]

_LONGEST_VARINT = 10
_WORD = 1 << 64


class WireError(ValueError):
    """The bytes are no message."""


def decode_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the varint at `place` and the place behind it.

    Raises
    ------
    WireError
        It is longer than 64 bits or cut off.

    Examples
    --------
    >>> decode_varint(bytes([0xBE, 0x02]), 0)
    (318, 2)
    """
    value = 0
    for i, byte in enumerate(data[place : place + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if value >= _WORD:
                break
            return value, place + i + 1
    raise WireError("a varint that does not end")


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises
    ------
    WireError
        The bytes are no message.

    Examples
    --------
    >>> list(fields(bytes([0x08, 5, 0x12, 2]) + b"mm"))
    [(1, 0, 5), (2, 2, b'mm')]
    """
    place = 0
    while place < len(data):
        key, place = decode_varint(data, place)
        number, kind = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise WireError(f"field number {number}")
        if kind == VARINT:
            value, place = decode_varint(data, place)
            yield number, kind, value
            continue
        if kind == LENGTH:
            size, place = decode_varint(data, place)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise WireError(f"wire type {kind}")
        if size > len(data) - place:
            raise WireError("a field longer than its message")
        yield number, kind, data[place : place + size]
        place += size


def decode_varints(data: bytes) -> Iterator[int]:
    """Yield the varints of a packed repeated field.

    Raises
    ------
    WireError
        The last one is cut off.
    """
    place = 0
    while place < len(data):
        value, place = decode_varint(data, place)
        yield value


def signed(value: int) -> int:
    """Return an unsigned 64-bit number as the signed one with the same bits.

    Examples
    --------
    >>> signed(2**64 - 1)
    -1
    """
    return int(struct.unpack("<q", struct.pack("<Q", value))[0])


_WORD_MASK = (1 << 64) - 1
#: Fields of an attribute's value, by Python's type; ``tensor_size`` and the like are signed, as Chakra writes them.
_INT32, _INT64, _BOOL, _STRING = 7, 9, 27, 29
#: The same by the kind of NumPy's type; the next field is a list of them.
_OF_KIND = {"f": 3, "i": 9, "u": 13, "b": 27}


def encode_varint(value: int) -> bytes:
    """Return a number as a varint; a negative one as its 64 bits.

    Examples
    --------
    >>> encode_varint(318).hex(), len(encode_varint(-1))
    ('be02', 10)
    """
    value &= _WORD_MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Return a field that holds a number."""
    return encode_varint(field << 3 | VARINT) + encode_varint(value)


def text(field: int, value: str | bytes) -> bytes:
    """Return a field that holds text or a message."""
    raw = value if isinstance(value, bytes) else value.encode()
    return encode_varint(field << 3 | LENGTH) + encode_varint(len(raw)) + raw


def packed(field: int, values: Iterable[int]) -> bytes:
    """Return a field that holds a list of numbers; nothing where the list is empty."""
    raw = b"".join(map(encode_varint, values))
    return text(field, raw) if raw else b""


def attribute(field: int, name: str, value: str | bool | int) -> bytes:
    """Return a named value as Chakra's ``AttributeProto``."""
    if isinstance(value, bool):
        content = number(_BOOL, value)
    else:
        content = text(_STRING, value) if isinstance(value, str) else number(_INT64, value)
    return text(field, text(1, name) + content)


def array_attribute(field: int, name: str, values: npt.NDArray[Any]) -> bytes:
    """Return a named array of no dimension as a value, of one as a list, both with every bit of their numbers.

    Raises
    ------
    InvalidInputError
        It has more dimensions, or holds anything but numbers and truth values.

    Examples
    --------
    >>> array_attribute(10, "a", np.array([True, False])).hex()
    '520a0a0161e201040a020100'
    """
    kind = _INT32 if values.dtype == np.int32 else _OF_KIND.get(values.dtype.kind)
    if kind is None or values.ndim > 1:
        raise InvalidInputError(f"{name}: Chakra has no attribute for {values.ndim} dimensions of {values.dtype}")
    if values.dtype.kind == "f":
        raw = values.astype("<f8").tobytes()
        content = encode_varint(kind << 3 | FIXED64) + raw if values.ndim == 0 else text(kind + 1, text(1, raw))
    elif values.ndim == 0:
        content = number(kind, int(values))
    else:
        content = text(kind + 1, packed(1, map(int, values)))
    return text(field, text(1, name) + content)


#: Types of a node in the public schema (mlcommons/chakra, ``et_def.proto``).
METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)
#: What later versions add; they are kept as ranges.
CATEGORIES: Mapping[int, str] = {8: "storage", 9: "batch", 10: "checkpoint"}


@dataclass(frozen=True)
class Node:
    """A node.

    Parameters
    ----------
    id : int
        Unique in its file.
    name : str
    type : int
        As in the public schema; 0 where the file says none.
    start_us, duration_us : int, optional
    ctrl_deps, data_deps : tuple of int
        Nodes that come before: the caller (or whatever else orders them), and who makes its inputs.
    attributes : mapping of str to Any
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


_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _START, _DURATION, _INPUTS, _OUTPUTS, _ATTRIBUTE = range(1, 11)
_IO = {1: "values", 2: "shapes", 3: "types"}
_CONSTANTS = {"None": "null", "True": "true", "False": "false"}
_CONSTANT = re.compile(r"\b(?:None|True|False)\b")


def _zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _real(data: bytes) -> float | str:
    """Return a number; as text where JSON could not hold it."""
    value = float(struct.unpack("<d" if len(data) == 8 else "<f", data)[0])
    return value if isfinite(value) else str(value)


def _fixed(form: str) -> Callable[[bytes], int]:
    return lambda data: int(struct.unpack(form, data)[0])


#: Field of an attribute's value to its wire type and how it is read; the next field is a list of the same.
_VALUES: Mapping[int, tuple[int, Callable[[Any], Any]]] = {
    3: (FIXED64, _real),
    5: (FIXED32, _real),
    7: (VARINT, signed),
    9: (VARINT, signed),
    11: (VARINT, int),
    13: (VARINT, int),
    15: (VARINT, _zigzag),
    17: (VARINT, _zigzag),
    19: (FIXED32, _fixed("<I")),
    21: (FIXED64, _fixed("<Q")),
    23: (FIXED32, _fixed("<i")),
    25: (FIXED64, _fixed("<q")),
    27: (VARINT, bool),
    29: (LENGTH, _text),
    31: (LENGTH, bytes.hex),
}


def metadata(data: bytes) -> dict[str, Any]:
    """Return what the first message of a file says, by name.

    Raises
    ------
    WireError
        It is no such message.
    """
    found: dict[str, Any] = {}
    for number, kind, value in fields(data):
        if kind != LENGTH or number not in (1, 2) or not isinstance(value, bytes):
            raise WireError(f"field {number} in metadata")
        # The version came later and took the place of the attributes, which begin with the tag of their name.
        if number == 1 and not value.startswith(b"\n"):
            found["version"] = _text(value)
        else:
            name, content = _attribute(value)
            found[name] = content
    return found


def node(data: bytes) -> Node:
    """Return a node.

    Raises
    ------
    WireError
        The bytes are no message, or one that has neither id nor name.
    """
    numbers: dict[int, int] = {}
    deps: dict[int, list[int]] = {_CTRL_DEPS: [], _DATA_DEPS: []}
    parts: dict[int, bytes] = {}
    attributes: dict[str, Any] = {}
    for number, kind, value in fields(data):
        if number in deps:
            deps[number] += _numbers(value)
        elif number == _ATTRIBUTE and isinstance(value, bytes) and kind == LENGTH:
            name, content = _attribute(value)
            attributes[name] = content
        elif isinstance(value, int):
            numbers[number] = value
        elif kind == LENGTH:
            parts[number] = value
    if _ID not in numbers and _NAME not in parts:
        raise WireError("a node without id and name")
    return Node(
        numbers.get(_ID, 0),
        _text(parts.get(_NAME, b"")),
        numbers.get(_TYPE, 0),
        numbers.get(_START) or None,  # 0 is not written, and stands for none
        numbers.get(_DURATION),
        tuple(deps[_CTRL_DEPS]),
        tuple(deps[_DATA_DEPS]),
        attributes,
        _tensors(parts.get(_INPUTS, b"")),
        _tensors(parts.get(_OUTPUTS, b"")),
    )


def _numbers(value: int | bytes) -> list[int]:
    return [value] if isinstance(value, int) else list(decode_varints(value))


def _attribute(data: bytes) -> tuple[str, Any]:
    name, content = "", None
    for number, kind, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            name = _text(value)
        elif number in _VALUES and kind == _VALUES[number][0]:
            content = _VALUES[number][1](value)
        elif number - 1 in _VALUES and isinstance(value, bytes) and kind == LENGTH:
            content = _list(value, *_VALUES[number - 1])
    return name, content


def _list(data: bytes, kind: int, read: Callable[[Any], Any]) -> list[Any]:
    """Return the values of a list, packed or one by one."""
    found: list[Any] = []
    for number, own, value in fields(data):
        if number != 1:
            continue
        if own == kind:
            found.append(read(value))
        elif isinstance(value, bytes) and own == LENGTH:
            found += [read(one) for one in _packed(value, kind)]
    return found


def _packed(data: bytes, kind: int) -> list[Any]:
    if kind == VARINT:
        return list(decode_varints(data))
    size = 8 if kind == FIXED64 else 4
    if kind == LENGTH or len(data) % size:
        raise WireError("a packed list that is cut off")
    return [data[at : at + size] for at in range(0, len(data), size)]


def _tensors(data: bytes) -> dict[str, Any]:
    return {
        _IO[number]: _listed(_text(value))
        for number, kind, value in fields(data)
        if number in _IO and kind == LENGTH and isinstance(value, bytes) and value
    }


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

#: Broken messages in a row, behind which nothing will be found any more.
_MOST_BROKEN = 10_000


class Bytes(Protocol):
    """What is read: a plain or unpacked file."""

    def readinto(self, buffer: Any) -> int | None:
        """Fill `buffer`; return how much, 0 at the end."""
        ...


def is_chakra(start: bytes) -> bool:
    """Return whether a file begins with Chakra's metadata, and goes on with a node where it goes on."""
    try:
        size, place = decode_varint(start, 0)
        first = start[place : place + size]
        if len(first) < size or not (found := metadata(first)) or not all(name.isprintable() for name in found):
            return size == 0 and _is_node(start[place:])
        return place + size == len(start) or _is_node(start[place + size :])
    except WireError:
        return False


def _is_node(start: bytes) -> bool:
    """Return whether a message with an id, then a name or a type, begins here; only its beginning need be there."""
    try:
        size, place = decode_varint(start, 0)
    except WireError:
        return False
    numbers = []
    try:
        for number, _, _ in fields(start[place : place + min(size, 4096)]):
            numbers.append(number)
    except WireError:
        if len(start) >= place + size <= place + 4096:
            return False
    return numbers[:1] in ([1], [2]) and max(numbers) < 100


def read_records(stream: Bytes, header: dict[str, Any], counts: Counter[str]) -> Iterator[Node]:
    """Yield the nodes of a file; put what its first message says into `header`.

    A message that is damaged costs that node; where a length is, the rest of the file.
    """
    first = True
    broken = 0
    for message in _messages(stream, counts):
        if first:
            first = False
            try:
                header.update(metadata(message))
            except WireError:
                counts["events"] += 1
                counts["dropped_broken"] += 1
            continue
        counts["events"] += 1
        try:
            found = node(message)
        except WireError:
            counts["dropped_broken"] += 1
            broken += 1
            if broken > _MOST_BROKEN:
                counts["truncated_files"] = 1
                return
            continue
        broken = 0
        yield found


def _messages(stream: Bytes, counts: Counter[str]) -> Iterator[bytes]:
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
    """Return the length of the message at `place` and where it begins, which is 0 where that is not known."""
    try:
        return decode_varint(window, place)
    except WireError:
        return 0, 0


def _more(stream: Bytes, kept: bytes, wanted: int, buffer: bytearray) -> bytes:
    """Return `kept` and what follows: a block, and at least `wanted` bytes in all where there are as many."""
    found = bytearray(kept)
    goal = max(wanted, len(kept) + _BLOCK)
    while len(found) < goal and (count := stream.readinto(buffer)):
        found += memoryview(buffer)[:count]
    return bytes(found)
