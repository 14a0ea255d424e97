"""Planes, lines and events of XPlane files.

A file is one message, whose fields are planes. A plane holds lines, and behind them the names of their events. So one
plane at a time is in memory, and its events are decoded in batches. A length is a claim: no more is read than there is.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, message_factory, text_format
from google.protobuf.message import DecodeError

from profilers.files import dataset_path
from profilers.readers.common.numbers import TIMES_NS
from profilers.readers.common.reader import Sink
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
_BLOCK = 1 << 20
#: Events that are decoded at a time.
BATCH = 65536
_SIGNED = 1 << 63
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number that starts at a position, and the position behind it, which is behind the end if it is cut."""
    value = shift = 0
    for end in range(at, min(at + 10, len(data))):
        byte = data[end]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, end + 1
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


def read_planes(stream: io.BufferedReader, sink: Sink, counts: Counter[str]) -> Iterator[memoryview]:
    """Yield the planes of a file; the last may be cut, which is counted."""
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
            sink.advance(stream.raw.tell())
            yield memoryview(content)
        if len(content) < size:
            counts["truncated_files"] = 1
            return


def _number(stream: io.BufferedReader, byte: bytes) -> int:
    """Return the varint that starts with `byte`; a number that no field has if it is cut."""
    digits = byte
    while byte and byte[0] >= 0x80 and len(digits) < 10:
        byte = stream.read(1)
        digits += byte
    value, end = _varint(memoryview(digits), 0)
    return value if end == len(digits) else _SIGNED * 2 - 1


def text(data: memoryview | bytes) -> str:
    """Return bytes as text; what is no UTF-8 is replaced."""
    return str(data, "utf-8", "replace")


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
        parts: dict[int, list[memoryview]] = {number: [] for number in range(2, 7)}
        for number, value in _fields(data, self._damaged, cut=3):
            if number in parts and isinstance(value, memoryview):
                parts[number].append(value)
        for name in parts[2]:
            self.name = text(name)
        entries = {number: self._parsed(_Entry, parts[number]) for number in (4, 5)}
        self._texts = {entry.key: text(entry.value.name) for entry in entries[5]}
        self._names = {entry.key: text(entry.value.name) for entry in entries[4]}
        self._shared = {entry.key: self._facts(entry.value.stats) for entry in entries[4] if entry.value.stats}
        self.programs = {e.key: s.bytes_value for e in entries[4] for s in e.value.stats if s.HasField("bytes_value")}
        self.facts = self._facts(self._parsed(_Stat, parts[6]))
        self.lines = [_line(line) for line in parts[3]]

    def _damaged(self) -> None:
        """Count a damaged message, unless it is the cut end of the file."""
        if not self._out.counts["truncated_files"]:
            self._out.skip(1, "dropped_broken")

    def _parsed(self, message: Any, data: Sequence[memoryview]) -> list[Any]:
        parsed = []
        for item in data:  # a Python loop over names, 2 us each
            try:
                parsed.append(message.FromString(item))
            except DecodeError:
                self._out.skip(1, "dropped_broken")
        return parsed

    def _facts(self, stats: Sequence[Any]) -> dict[str, Any]:
        """Return facts by name; bytes and numbers that are not finite are left out."""
        facts = {}
        for stat in stats:
            kind = stat.WhichOneof("value")
            value = getattr(stat, kind) if kind else None
            if kind == "ref_value":
                value = self._texts.get(value)
            elif isinstance(value, bytes):
                value = text(value) if kind == "str_value" else None
            elif isinstance(value, float) and not isfinite(value):
                value = None
            if value is not None:
                facts[self._texts.get(stat.metadata_id) or str(stat.metadata_id)] = value
        return facts

    def events(self, line: Line) -> Iterator[list[Event]]:
        """Yield the events of a line in batches; damaged events are counted."""
        batch = []
        for number, value in _fields(line.content, self._damaged):  # a Python loop over events, 6 us each
            if number != 4:
                continue
            try:
                batch.append(self._event(line.start_ns, _EventMessage.FromString(value)))
            except (DecodeError, TypeError):
                self._out.skip(1, "dropped_broken")
            if len(batch) == BATCH:
                yield batch
                batch = []
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


def _line(data: memoryview) -> Line:
    header = {number: value for number, value in _fields(data, lambda: None) if number in (1, 2, 3)}
    number, name, start = (header.get(key) for key in (1, 2, 3))
    return Line(
        _signed(number) if isinstance(number, int) else 0,
        text(name) if isinstance(name, memoryview) else "",
        _signed(start) if isinstance(start, int) else 0,
        data,
    )
