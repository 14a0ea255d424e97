"""`KinetoReader`: traces of the PyTorch profiler, of any size, in bounded memory.

A window of a few MB slides over the text. The scanner turns plain events into columns; an event that is not plain is
decoded by the standard library (`profilers.readers.common.json_documents`). So is a whole file whose frame, the JSON
around the events, is damaged.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.readers.common.json_documents import Document, listed, mapped, opening
from profilers.readers.common.numbers import INT32_LIMIT, plain_text, positive, whole
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.source import Bytes, Plain, open_source, require_events
from profilers.readers.kineto.columns import Columns
from profilers.readers.kineto.lexing import (
    COMMA,
    OPEN_ARRAY,
    OPEN_OBJECT,
    PADDING,
    QUOTE,
    at,
    key_end,
    nested_end,
    scalar_end,
    space_end,
)
from profilers.readers.kineto.rows import Rows
from profilers.readers.kineto.scan import scan
from profilers.readers.kineto.tokens import END, FULL, GROW, MORE, NEW_CATEGORY
from profilers.trace.compiled import bare
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, Quality, TraceMeta

_WINDOW = 4 << 20
#: Most bytes of an event, or of the metadata before or behind the events.
_LARGEST = 256 << 20
#: Bytes of text decoded at first for an event that is not plain, and at most.
_NEAR, _FAR = 64 << 10, 4 << 20
_SLOW_ROWS = 65536
_EVENTS = np.frombuffer(b'"traceEvents"', np.uint8)


@dataclass(frozen=True)
class Content:
    """Content of a file other than its rows.

    Parameters
    ----------
    header : dict of str to Any
        Top-level members other than the events.
    counts : Counter
        Counts of events kept, skipped, repaired and lost.
    found_events : bool
        Whether the file has an array of events.
    """

    header: dict[str, Any]
    counts: Counter[str]
    found_events: bool


class _Window:
    """The part of a file that is in memory: ``data[begin:end]``, followed by padding."""

    def __init__(self, stream: Bytes) -> None:
        self._stream = stream
        self.data = np.full(_WINDOW + PADDING, QUOTE, np.uint8)
        self.end = 0
        self.ended = False

    def more(self, keep_from: int) -> int:
        """Drop the text before `keep_from` and read more; return the new position of `keep_from`."""
        kept = self.end - keep_from
        if kept > (len(self.data) - PADDING) // 2:
            larger = np.full(2 * len(self.data), QUOTE, np.uint8)
            larger[:kept] = self.data[keep_from : self.end]
            self.data = larger
        else:
            self.data[:kept] = self.data[keep_from : self.end].copy()
        self.end = kept
        room = len(self.data) - PADDING
        view = self.data.data
        while self.end < room and not self.ended:
            count = self._stream.readinto(view[self.end : room])
            self.ended = not count
            self.end += count or 0
        self.data[self.end : self.end + PADDING] = QUOTE
        return 0

    def position(self) -> int:
        """Return the number of bytes of the file read so far."""
        return self._stream.tell()

    def text(self, start: int, end: int) -> bytes:
        """Return the text between two positions, as far as it is in memory."""
        return self.data[start : min(end, self.end)].tobytes()


def read_stream(stream: Bytes, place: str, sink: Sink) -> Content:
    """Give the events of a Kineto file to `sink`.

    Parameters
    ----------
    stream : Bytes
        Text of the file.
    place : str
        Name of the file, for messages.
    sink : Sink
        Takes the rows.

    Raises
    ------
    BrokenFileError
        The text starts with neither a JSON object nor an array.
    """
    window = _Window(stream)
    window.more(0)
    first = 3 if window.text(0, 3) == b"\xef\xbb\xbf" else 0
    start = _events_start(window.data, first, window.end)
    while start < 0 and not window.ended and window.end < _LARGEST:
        window.more(0)
        start = _events_start(window.data, first, window.end)
    reading = _Reading(window, place, sink)
    if start < 0:
        return reading.all_slowly(first)
    before = window.text(first, start)
    after = reading.events(start)
    return reading.finished(before, after)


@bare
def _events_start(a: npt.NDArray[np.uint8], p: int, end: int) -> int:
    """Return the position behind the bracket that opens the array of events, -1 if the text before is not plain."""
    p = space_end(a, p)
    if at(a, p) == OPEN_ARRAY:
        return p + 1
    if at(a, p) != OPEN_OBJECT:
        return -1
    p = space_end(a, p + 1)
    while p < end and at(a, p) == QUOTE:
        is_events = True
        for i in range(_EVENTS.size):
            is_events = is_events and at(a, p + i) == _EVENTS[i]
        p = key_end(a, p, end, False)
        if p < 0 or p >= end:
            return -1
        p = space_end(a, p)
        if is_events and at(a, p) == OPEN_ARRAY:
            return p + 1
        opening = at(a, p)
        p = nested_end(a, p, end) if opening in (OPEN_OBJECT, OPEN_ARRAY) else scalar_end(a, p, end)
        if p < 0 or p >= end:
            return -1
        p = space_end(a, p)
        if at(a, p) != COMMA:
            return -1
        p = space_end(a, p + 1)
    return -1


class _Reading:
    """One pass over a file."""

    def __init__(self, window: _Window, file_name: str, sink: Sink) -> None:
        self._window = window
        self._file_name = file_name
        self._sink = sink
        self._columns = Columns(sink)
        self._rows = Rows()
        self._counts: Counter[str] = Counter()
        self._grown = False

    def events(self, p: int) -> int | None:
        """Read the array of events from `p` on; return the position behind it, None if the file ends earlier."""
        window, columns = self._window, self._columns
        while True:
            p, state = scan(window.data, p, window.end, columns.scan)
            if state == END:
                return int(p)
            if state == FULL:
                columns.flush_full()
            elif state == NEW_CATEGORY:
                columns.add_categories()
            elif state == GROW and not self._grown:
                columns.flush()
            elif state == MORE and not window.ended and window.end - p < _LARGEST:
                p = window.more(p)
                self._sink.advance(window.position())
            elif state == MORE and p >= window.end:
                return None
            else:
                following = self._slow_event(p)
                if following is None:
                    return None
                p = following
            self._grown = state == GROW and not self._grown

    def _slow_event(self, p: int) -> int | None:
        """Decode the event at `p` with the standard library; return the start of the next one, None at the end."""
        window = self._window
        size = _NEAR
        while True:
            if window.end - p < size and not window.ended:
                p = window.more(p)
            raw = window.text(p, p + size)
            at_end = p + size >= window.end and window.ended
            text = raw.decode("utf-8", "surrogateescape")
            document = Document(_replaced(text), self._file_name)
            event, used = document.event_at(0)
            # A repair must see the event and the start of the next one.
            if at_end or size >= _FAR or (used < len(text) - 1 and not document.repaired) or used < len(text) // 2:
                break
            size *= 8
        if not text.isascii() and any("\udc80" <= c <= "\udcff" for c in text[:used]):
            self._counts["repaired_utf8"] = 1
        self._counts += document.counts
        if isinstance(event, dict):
            self._add(event)
        if at_end and used >= len(text):
            return None
        return p + len(text[:used].encode("utf-8", "surrogateescape"))

    def _add(self, event: dict[str, Any]) -> None:
        self._rows.add(event)
        if self._rows.counts["kept"] >= _SLOW_ROWS:
            self._flush_slow()

    def _flush_slow(self) -> None:
        for kind, columns in self._rows.columns().items():
            self._sink.write(kind, columns)
        self._rows.add_grids(self._columns.grids)
        self._counts += self._rows.counts
        self._rows = Rows()

    def all_slowly(self, first: int) -> Content:
        """Read the whole file, whose frame is damaged, with the standard library."""
        window = self._window
        while not window.ended:
            window.more(0)
        return self._content(self._slowly(window.text(first, window.end)))

    def finished(self, before: bytes, after: int | None) -> Content:
        """Read the metadata before and behind the events, the last step of reading."""
        window = self._window
        rest = b""
        if after is not None:
            while not window.ended and window.end - after < _LARGEST:
                after = window.more(after)
            rest = b"]" + window.text(after, window.end)
        document = self._slowly(before + rest)
        if after is None:
            document.counts["truncated_files"] = 1
        return self._content(document)

    def _slowly(self, raw: bytes) -> Document:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "replace")
            self._counts["repaired_utf8"] = 1
        document = Document(text, self._file_name)
        for event in document:
            self._add(event)
        return document

    def _content(self, document: Document) -> Content:
        columns = self._columns
        columns.flush()
        self._flush_slow()
        groups, sizes, repaired = columns.grids.workgroups()
        if len(groups):
            self._sink.amend("kernels", "workgroups", groups)
            self._sink.amend("kernels", "workgroup_size", sizes)
        counts = document.counts + self._counts + columns.totals() + Counter(repaired)
        for flag in ("truncated_files", "repaired_utf8"):
            counts[flag] = int(counts[flag] > 0)
        return Content(document.header, counts, document.found_events)


def _replaced(text: str) -> str:
    """Return text of the same length, with the replacement character for each invalid byte."""
    if text.isascii():
        return text
    return "".join("�" if "\udc80" <= c <= "\udcff" else c for c in text)


#: A match in the first 64 KB tells a Kineto file: a key of Kineto's, or an event of Chrome's trace format.
_SIGN = re.compile(rb'"(traceEvents|deviceProperties|schemaVersion|distributedInfo|baseTimeNanoseconds)"\s*:|"ph"\s*:')


class KinetoReader:
    """Traces of the PyTorch profiler, of every age and vendor: JSON, plain or packed."""

    name = "kineto"

    def sniff(self, head: Head) -> bool:
        """Return whether a file starts like Kineto's JSON."""
        is_trace = opening(head.start) in (b"{", b"[") and _SIGN.search(head.start) is not None
        return is_trace and b'"BeginNs"' not in head.start  # rocprof 1 adds this to Chrome's events

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`.

        Raises
        ------
        BrokenFileError
            The file holds no event that can be used, or unpacks to more than the limit.
        """
        (path,) = files
        with open_source(path, sink.limit_bytes) as stream:
            content = read_stream(stream, path.name, sink)
            content.counts["truncated_files"] |= getattr(stream, "truncated", False)
            fingerprint = stream.fingerprint() if isinstance(stream, Plain) else ""
        where = "its traceEvents is empty" if content.found_events else "it has no traceEvents"
        advice = "record again, and see that the profiler is active when the trace is written"
        require_events(path, content.counts, if_empty=f"no event to read: {where}", advice=advice, rows="events")
        return replace(_meta(path, content.header, content.counts), fingerprint=fingerprint)


def _meta(path: Path, header: dict[str, Any], counts: Counter[str]) -> TraceMeta:
    distributed = mapped(header.get("distributedInfo"))
    return TraceMeta(
        format="kineto",
        version=f"schema {plain_text(header.get('schemaVersion')) or 'unknown'}",
        sources=(path.name,),
        ranks=_rank(header),
        world_size=positive(distributed.get("world_size")),
        clock_base_ns=whole(header.get("baseTimeNanoseconds")) or 0,
        devices=_devices(header),
        quality=Quality({name: n for name, n in counts.items() if n}),
    )


def _devices(header: dict[str, Any]) -> tuple[DeviceProperties, ...]:
    rows = map(mapped, listed(header.get("deviceProperties")))
    return tuple(
        DeviceProperties(
            rank=OWN_RANK,
            device=whole(row.get("id")) or 0,
            name=plain_text(row.get("name")),
            compute_units=positive(row.get("numSms")),
            memory_bytes=positive(row.get("totalGlobalMem")),
        )
        for row in rows
    )


def _rank(header: dict[str, Any]) -> tuple[int, ...]:
    """Return the rank that the file states for itself, or an empty tuple."""
    rank = whole(mapped(header.get("distributedInfo")).get("rank"))
    return () if rank is None or not 0 <= rank < INT32_LIMIT else (rank,)
