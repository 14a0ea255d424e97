"""Protocol Buffers' wire format, as much as Chakra uses: varints, fixed numbers and length-delimited fields.

Nothing here recurses: a caller goes as deep as it asks for, so that no input can be nested too deeply.
"""

import struct
from collections.abc import Iterator

__all__ = ["FIXED32", "FIXED64", "LENGTH", "VARINT", "Field", "WireError", "fields", "signed", "varint", "varints"]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

#: Number, wire type, and the value: an integer for a varint, else the bytes.
Field = tuple[int, int, int | bytes]

_LONGEST_VARINT = 10
_WORD = 1 << 64


class WireError(ValueError):
    """The bytes are no message."""


def varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the varint at `place` and the place behind it.

    Raises
    ------
    WireError
        It is longer than 64 bits or cut off.

    Examples
    --------
    >>> varint(bytes([0xBE, 0x02]), 0)
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
        key, place = varint(data, place)
        number, kind = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise WireError(f"field number {number}")
        if kind == VARINT:
            value, place = varint(data, place)
            yield number, kind, value
            continue
        if kind == LENGTH:
            size, place = varint(data, place)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise WireError(f"wire type {kind}")
        if size > len(data) - place:
            raise WireError("a field longer than its message")
        yield number, kind, data[place : place + size]
        place += size


def varints(data: bytes) -> Iterator[int]:
    """Yield the varints of a packed repeated field.

    Raises
    ------
    WireError
        The last one is cut off.
    """
    place = 0
    while place < len(data):
        value, place = varint(data, place)
        yield value


def signed(value: int) -> int:
    """Return an unsigned 64-bit number as the signed one with the same bits.

    Examples
    --------
    >>> signed(2**64 - 1)
    -1
    """
    return int(struct.unpack("<q", struct.pack("<Q", value))[0])
