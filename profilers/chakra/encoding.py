"""Protocol Buffers' wire format, written: what `profilers.chakra.wire` reads."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.chakra.wire import FIXED64, LENGTH, VARINT
from profilers.errors import InvalidInputError

__all__ = ["array_attribute", "attribute", "number", "packed", "text", "varint"]

_WORD = (1 << 64) - 1
#: Fields of an attribute's value, by Python's type; ``tensor_size`` and the like are signed, as Chakra writes them.
_INT32, _INT64, _BOOL, _STRING = 7, 9, 27, 29
#: The same by the kind of NumPy's type; the next field is a list of them.
_OF_KIND = {"f": 3, "i": 9, "u": 13, "b": 27}


def varint(value: int) -> bytes:
    """Return a number as a varint; a negative one as its 64 bits.

    Examples
    --------
    >>> varint(318).hex(), len(varint(-1))
    ('be02', 10)
    """
    value &= _WORD
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Return a field that holds a number."""
    return varint(field << 3 | VARINT) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    """Return a field that holds text or a message."""
    raw = value if isinstance(value, bytes) else value.encode()
    return varint(field << 3 | LENGTH) + varint(len(raw)) + raw


def packed(field: int, values: Iterable[int]) -> bytes:
    """Return a field that holds a list of numbers; nothing where the list is empty."""
    raw = b"".join(map(varint, values))
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
        content = varint(kind << 3 | FIXED64) + raw if values.ndim == 0 else text(kind + 1, text(1, raw))
    elif values.ndim == 0:
        content = number(kind, int(values))
    else:
        content = text(kind + 1, packed(1, map(int, values)))
    return text(field, text(1, name) + content)
