"""Build XPlane files for the tests, field by field as protobuf encodes them."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

Facts = Mapping[str, Any]
#: Name, start and duration in us, and facts.
Event = tuple[str, float, float, Facts]


def varint(number: int) -> bytes:
    """Return an integer, negative ones in ten bytes."""
    number %= 1 << 64
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def field(number: int, value: int | float | str | bytes) -> bytes:
    """Return a field of a message: an integer, a double, a text or a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


class _Names:
    """Numbers of names, from 1."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers) + 1)


def _stats(facts: Facts, names: _Names, number: int) -> bytes:
    """Return facts as stats of this number; a text in a list refers to a name, as XLA writes texts that recur."""
    stats = b""
    for name, value in facts.items():
        key = field(1, names.of(name))
        if isinstance(value, list):
            content = field(7, names.of(value[0]))
        else:
            content = field({int: 4, float: 2, str: 5, bytes: 6}[type(value)], value)
        stats += field(number, key + content)
    return stats


def line(name: str, events: Sequence[Event], plane: "Plane", number: int = 1, start_ns: int = 1000) -> bytes:
    """Return a line of a plane."""
    content = field(1, number) + field(2, name) + field(3, start_ns)
    for event, start, duration, facts in events:
        times = field(2, round(start * 1e6)) + field(3, round(duration * 1e6))
        content += field(4, field(1, plane.events.of(event)) + times + _stats(facts, plane.facts, 4))
    return content


class Plane:
    """A plane under construction.

    Parameters
    ----------
    name : str
        Such as ``/device:GPU:0``.
    facts : mapping of str to Any
        Facts of the plane.
    """

    def __init__(self, name: str, facts: Facts | None = None) -> None:
        self.name, self._plane_facts = name, facts or {}
        self.events, self.facts = _Names(), _Names()
        self.lines: list[bytes] = []
        #: Facts that all events of a name share.
        self.shared: dict[str, Facts] = {}

    def add(self, name: str, events: Sequence[Event], number: int = 1, start_ns: int = 1000) -> "Plane":
        """Add a line."""
        self.lines.append(line(name, events, self, number, start_ns))
        return self

    def message(self) -> bytes:
        """Return the plane, its names behind its lines as XLA writes them."""
        of_plane = _stats(self._plane_facts, self.facts, 6)
        content = field(2, self.name) + b"".join(field(3, line) for line in self.lines)
        for name, number in self.events.numbers.items():
            stats = _stats(self.shared.get(name, {}), self.facts, 5)
            metadata = field(1, number) + field(2, name) + stats
            content += field(4, field(1, number) + field(2, metadata))
        for name, number in self.facts.numbers.items():
            content += field(5, field(1, number) + field(2, field(1, number) + field(2, name)))
        return content + of_plane


def space(*planes: Plane) -> bytes:
    """Return a file."""
    return b"".join(field(1, plane.message()) for plane in planes) + field(4, "host")
