"""Nodes of a Chakra file: messages, each behind its length."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

from profilers.chakra.messages import metadata, node
from profilers.chakra.nodes import Node
from profilers.chakra.wire import WireError, fields, varint

__all__ = ["Bytes", "is_chakra", "read_records"]

#: The largest message that is held in memory; one node is a few KB, a few MB where it lists its tensors.
_LARGEST = 64 << 20
_BLOCK = 1 << 20
_LONGEST_VARINT = 10
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
        size, place = varint(start, 0)
        first = start[place : place + size]
        if len(first) < size or not (found := metadata(first)) or not all(name.isprintable() for name in found):
            return size == 0 and _is_node(start[place:])
        return place + size == len(start) or _is_node(start[place + size :])
    except WireError:
        return False


def _is_node(start: bytes) -> bool:
    """Return whether a message with an id, then a name or a type, begins here; only its beginning need be there."""
    try:
        size, place = varint(start, 0)
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
        return varint(window, place)
    except WireError:
        return 0, 0


def _more(stream: Bytes, kept: bytes, wanted: int, buffer: bytearray) -> bytes:
    """Return `kept` and what follows: a block, and at least `wanted` bytes in all where there are as many."""
    found = bytearray(kept)
    goal = max(wanted, len(kept) + _BLOCK)
    while len(found) < goal and (count := stream.readinto(buffer)):
        found += memoryview(buffer)[:count]
    return bytes(found)
