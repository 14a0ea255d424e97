"""Planes, lines and events of XPlane files.

A file is one message, whose fields are planes. A plane holds lines, and behind them the names of their events. So one
plane at a time is in memory, and its events are decoded in batches. A length is a claim: no more is read than there is.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, BinaryIO, NamedTuple

from google.protobuf import descriptor_pb2, message_factory, text_format
from google.protobuf.message import DecodeError

from profilers.files import dataset_path
from profilers.readers.common.numbers import TIMES_NS
from profilers.readers.common.recording import Output
from profilers.trace.arrays import MISSING

#: The messages of `datasets/formats/xplane.txtpb` by full name.
_MESSAGES = message_factory.GetMessages(
    [text_format.Parse(dataset_path("formats/xplane.txtpb").read_text("utf-8"), descriptor_pb2.FileDescriptorProto())]
)
_EventMessage, _Entry, _Stat, HloMessage = (
    _MESSAGES[f"xla.{name}"] for name in ("XEvent", "Entry", "XStat", "HloProto")
)

#: The largest plane; protobuf allows no larger message.
_LARGEST = 1 << 31
#: The largest message that is decoded at once, and the most bytes of a text that count: many events may name one text.
_LARGEST_MESSAGE, _LONGEST_TEXT = 64 << 20, 1 << 14
_BLOCK = 1 << 20
#: Events that are decoded at a time, and characters of their texts.
BATCH, _BATCH_TEXT = 65536, 32 << 20
_SIGNED, _UNSIGNED = 1 << 63, (1 << 64) - 1
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number that starts at a position, and the position behind it, which is behind the end if it is cut."""
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for end in range(at, min(at + 10, len(data))):
        byte = data[end]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UNSIGNED, end + 1
        shift += 7
    return 0, len(data) + 1


def _fields(data: memoryview, damaged: Callable[[], object], cut: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message: an integer, or the bytes of a text or message.

    Parameters
    ----------
    data : memoryview
        The message.
    damaged : callable
        Called if the message ends early or is none; then the fields before are all.
    cut : int
        Number of the field whose bytes are yielded even if they end early.
    """
    at = 0
    while at < len(data):  # a Python loop over fields, 1 us each
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: int | memoryview | None = None
        if wire == _VARINT:
            value, at = _varint(data, at)
        elif wire == _BYTES:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            at += {_FIXED_64: 8, _FIXED_32: 4}.get(wire, len(data) + 1)
        if at > len(data):
            damaged()
            if number != cut or not isinstance(value, memoryview):
                return
        if value is not None:
            yield number, value


def read_planes(stream: BinaryIO, counts: Counter[str]) -> Iterator[memoryview]:
    """Yield the planes of a file; the last may be cut, which is counted.

    Parameters
    ----------
    stream : binary file
        Content of the file; its ``read`` returns all bytes requested, except at the end.
    counts : Counter
        Counts of the file, updated.
    """
    while first := stream.read(1):
        key = _number(stream, first)
        size = _number(stream, stream.read(1))
        if key & 7 == _VARINT:
            continue
        content = bytearray()
        while key & 7 == _BYTES and (block := stream.read(min(_BLOCK, min(size, _LARGEST) - len(content)))):
            content += block
        if key >> 3 == 1:
            counts["truncated_files"] |= int(len(content) < size)
            yield memoryview(content)
        if len(content) < size:
            counts["truncated_files"] = 1
            return


def _number(stream: BinaryIO, byte: bytes) -> int:
    """Return the varint that starts with `byte`; a number that no field has if it is cut."""
    digits = byte
    while byte and byte[0] >= 0x80 and len(digits) < 10:
        byte = stream.read(1)
        digits += byte
    value, end = _varint(memoryview(digits), 0)
    return value if end == len(digits) else _UNSIGNED


def text(data: Any) -> str:
    """Return the first 16 KiB of bytes as text, without what is no UTF-8; "" for a number."""
    return "" if isinstance(data, int) else str(data[:_LONGEST_TEXT], "utf-8", "replace")


def _signed(value: int) -> int:
    return value - 2 * _SIGNED if value >= _SIGNED else value


class Event(NamedTuple):
    """An event of a line: its name, start and end in ns, and its facts by name."""

    name: str | None
    start: int
    end: int
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A stream or a thread.

    Parameters
    ----------
    number : int
        Number of the thread or, on a device, of the line.
    name : str
        Such as ``Stream #16(Kernel)``.
    start_ns : int
        Time from which the starts of events count.
    content : memoryview
        The message, of which the events are not decoded.
    """

    number: int
    name: str
    start_ns: int
    content: memoryview


class Plane:
    """A device, the threads of a host, or metadata.

    Parameters
    ----------
    data : memoryview
        The message.
    out : Output
        Counts events that are damaged.

    Attributes
    ----------
    name : str
        Such as ``/device:GPU:0``.
    facts : dict of str to Any
        Facts of the plane, such as the memory of the device.
    lines : list of Line
        Its streams or threads.
    programs : dict of int to bytes
        Programs of HLO by number.
    """

    def __init__(self, data: memoryview, out: Output) -> None:
        self.name, self._out = "", out
        self._names: dict[int, str] = {}
        self._texts: dict[int, str] = {}
        self.lines: list[Line] = []
        shared, facts = {}, []
        for number, value in _fields(data, self._damaged, cut=3):  # a Python loop over lines and names, 3 us each
            if number == 2:
                self.name = text(value)
            elif number == 3:
                self.lines.append(_line(value))
            elif number == 6:
                facts += self._parsed(_Stat, value)
            elif number in (4, 5):
                for entry in self._parsed(_Entry, value):
                    (self._names if number == 4 else self._texts)[entry.key] = text(entry.value.name)
                    if number == 4 and entry.value.stats:
                        shared[entry.key] = entry.value.stats
        self.facts = self._facts(facts)
        self._shared = {key: self._facts(stats) for key, stats in shared.items()}
        self.programs = {
            key: s.bytes_value for key, stats in shared.items() for s in stats if s.HasField("bytes_value")
        }

    def _damaged(self) -> None:
        """Count a damaged message, unless it is the cut end of the file."""
        if not self._out.counts["truncated_files"]:
            self._out.skip(1, "dropped_broken")

    def _parsed(self, message: Any, data: Any) -> list[Any]:
        """Return a message, and nothing for one that is damaged or too large, which is counted."""
        try:
            if len(data) <= _LARGEST_MESSAGE:
                return [message.FromString(data)]
        except (DecodeError, TypeError):
            pass
        self._out.skip(1, "dropped_broken")
        return []

    def _facts(self, stats: Sequence[Any]) -> dict[str, Any]:
        """Return facts by name; bytes and numbers that are not finite are left out."""
        facts: dict[str, Any] = {}
        texts = self._texts
        for stat in stats:
            kind = stat.WhichOneof("value")
            value = getattr(stat, kind or "metadata_id")
            if kind == "ref_value":
                value = texts.get(value)
            elif kind == "str_value":
                value = text(value)
            elif kind is None or kind == "bytes_value" or not isfinite(value):
                value = None
            if value is not None:
                facts[texts.get(stat.metadata_id) or str(stat.metadata_id)] = value
        return facts

    def events(self, line: Line) -> Iterator[list[Event]]:
        """Yield the events of a line in batches; damaged events are counted."""
        batch: list[Event] = []
        size = 0
        for number, value in _fields(line.content, self._damaged):  # a Python loop over events, 8 us each
            if number != 4:
                continue
            for message in self._parsed(_EventMessage, value):
                event = self._event(line.start_ns, message)
                batch.append(event)
                size += len(event.name or "") + sum(len(fact) for fact in event.facts.values() if isinstance(fact, str))
            if len(batch) >= BATCH or size >= _BATCH_TEXT:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _event(self, base_ns: int, message: Any) -> Event:
        """Return an event; one that only counts occurrences has no start."""
        facts, key = self._facts(message.stats), message.metadata_id
        start = base_ns + _rounded(message.offset_ps)
        end = start + _rounded(message.duration_ps)
        if message.HasField("num_occurrences") or start not in TIMES_NS:
            start = int(MISSING)
        end = end if end in TIMES_NS else int(MISSING)
        return Event(self._names.get(key), start, end, self._shared[key] | facts if key in self._shared else facts)


def _rounded(picoseconds: int) -> int:
    return (picoseconds + 500) // 1000


def _line(data: Any) -> Line:
    """Return a line; one that is no message is empty."""
    content = memoryview(b"") if isinstance(data, int) else data
    header = {number: value for number, value in _fields(content, lambda: None) if number in (1, 2, 3)}
    number, start = (_signed(value) if isinstance(value := header.get(key), int) else 0 for key in (1, 3))
    return Line(number, text(header.get(2, b"")), start, content)
