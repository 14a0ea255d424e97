"""Protocol Buffers' wire format, written: what `profilers.chakra.wire` reads."""

from collections.abc import Iterable

from profilers.chakra.wire import LENGTH, VARINT

__all__ = ["attribute", "number", "packed", "text", "varint"]

_WORD = (1 << 64) - 1
#: Fields of an attribute's value, by Python's type; ``tensor_size`` and the like are signed, as Chakra writes them.
_INT64, _BOOL, _STRING = 9, 27, 29


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
