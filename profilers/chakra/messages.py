"""From messages of Chakra's protobuf schema (mlcommons/chakra, ``et_def.proto``) to nodes and metadata."""

import json
import re
import struct
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from profilers.chakra.nodes import Node
from profilers.chakra.wire import FIXED32, FIXED64, LENGTH, VARINT, WireError, fields, signed, varints

__all__ = ["metadata", "node"]

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
    return [value] if isinstance(value, int) else list(varints(value))


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
        return list(varints(data))
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
