"""`KinetoReader`: traces of the PyTorch profiler, of any size, in bounded memory.

A window of a few MB slides over the text. The scanner turns plain events into columns; an event that is not plain is
decoded by the standard library (`profilers.readers.common.json_documents`). So is a whole file whose frame, the JSON
around the events, is damaged.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.readers.common.json_documents import Document, count_constant, listed, mapped, opening
from profilers.readers.common.numbers import INT32_LIMIT, integer, plain_text, positive
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.source import Bytes, Plain, open_source, require_events
from profilers.readers.kineto import lexing
from profilers.readers.kineto.columns import Columns
from profilers.readers.kineto.lanes import FileLanes
from profilers.readers.kineto.lexing import at, object_end, space_end
from profilers.readers.kineto.rows import EventRows, file_lanes
from profilers.readers.kineto.scanner import scan
from profilers.readers.kineto.tokens import END, FULL, GROW, MORE, NEW_CATEGORY, NEW_ID, NEW_LANE
from profilers.trace.compiled import bare
from profilers.trace.quality import Quality
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, TraceMeta

_WINDOW = 4 << 20
#: Most bytes of an event, or of the metadata before or behind the events.
_LARGEST = 256 << 20
#: Bytes of text decoded at first for an event that is not plain, and at most.
_NEAR, _FAR = 4 << 10, 4 << 20
_SLOW_ROWS = 65536
#: A byte that is not UTF-8, as the error handler `surrogateescape` decodes it.
_INVALID = re.compile("[\udc80-\udcff]")
_EVENTS = np.frombuffer(b'"traceEvents"', np.uint8)


class _TextWindow:
    """The part of a file that is in memory: ``data[begin:end]``, followed by padding."""

    def __init__(self, stream: Bytes) -> None:
        self.stream = stream
        self.data = np.full(_WINDOW + lexing.PADDING, lexing.QUOTE, np.uint8)
        self.end = 0
        self.ended = False

    def more(self, keep_from: int) -> int:
        """Drop the text before `keep_from` and read more; return the new position of `keep_from`."""
        rest = self.data[keep_from : self.end].copy()
        kept = len(rest)
        if kept > (len(self.data) - lexing.PADDING) // 2:
            self.data = np.full(2 * len(self.data), lexing.QUOTE, np.uint8)
        self.data[:kept] = rest
        self.end = kept
        room = len(self.data) - lexing.PADDING
        view = self.data.data
        while self.end < room and not self.ended:
            count = self.stream.readinto(view[self.end : room])
            self.ended = not count
            self.end += count or 0
        self.data[self.end : self.end + lexing.PADDING] = lexing.QUOTE
        return 0

    def text(self, start: int, end: int) -> bytes:
        """Return the text between two positions, as far as it is in memory."""
        return self.data[start : min(end, self.end)].tobytes()

    def rest(self, start: int, limit: int) -> bytes:
        """Return the text from `start` to the end of the file, or until it is longer than `limit` bytes."""
        while not self.ended and self.end - start < limit:
            start = self.more(start)
        return self.text(start, self.end)


def read_stream(stream: Bytes, file_name: str, sink: Sink, lanes: FileLanes | None = None) -> Document:
    """Give the events of a Kineto file to `sink`; return the members around them, with all counts.

    Parameters
    ----------
    stream : Bytes
        Text of the file.
    file_name : str
        Name of the file, for messages.
    sink : Sink
        Takes the rows.
    lanes : FileLanes, optional
        Processes and threads of the file; by default those of a file without metadata.

    Raises
    ------
    BrokenFileError
        The text starts with neither a JSON object nor an array.
    """
    window = _TextWindow(stream)
    window.more(0)
    first = 3 if window.text(0, 3) == b"\xef\xbb\xbf" else 0
    start = _events_start(window.data, first, window.end)
    while start < 0 and not window.ended and window.end < _LARGEST:
        window.more(0)
        start = _events_start(window.data, first, window.end)
    reading = _KinetoReading(window, file_name, sink, file_lanes() if lanes is None else lanes)
    if start < 0:  # the frame is damaged: the standard library reads the whole file
        return reading.finished(window.rest(first, sys.maxsize))
    frame = window.text(first, start)
    after = reading.events(start)
    if after is not None:
        frame += b"]" + window.rest(after, _LARGEST)
    return reading.finished(frame)


@bare
def _events_start(a: npt.NDArray[np.uint8], p: int, end: int) -> int:
    """Return the position behind the bracket that opens the array of events, -1 if the text before is not plain."""
    p = space_end(a, p)
    if at(a, p) == lexing.OPEN_ARRAY:
        return p + 1
    if at(a, p) != lexing.OPEN_OBJECT:
        return -1
    p = space_end(a, p + 1)
    while p < end and at(a, p) == lexing.QUOTE:
        is_events = True
        for i in range(_EVENTS.size):
            is_events = is_events and at(a, p + i) == _EVENTS[i]
        p = lexing.key_end(a, p, end)
        if p < 0 or p >= end:
            return -1
        p = space_end(a, p)
        if is_events and at(a, p) == lexing.OPEN_ARRAY:
            return p + 1
        opening = at(a, p)
        p = (
            lexing.nested_end(a, p, end)
            if opening in (lexing.OPEN_OBJECT, lexing.OPEN_ARRAY)
            else lexing.scalar_end(a, p, end)
        )
        if p < 0 or p >= end:
            return -1
        p = space_end(a, p)
        if at(a, p) != lexing.COMMA:
            return -1
        p = space_end(a, p + 1)
    return -1


class _KinetoReading:
    """One pass over a file."""

    def __init__(self, window: _TextWindow, file_name: str, sink: Sink, lanes: FileLanes) -> None:
        self._window = window
        self._file_name = file_name
        self._sink = sink
        self._columns = Columns(sink, lanes)
        self._rows = EventRows(lanes)
        self._counts: Counter[str] = Counter()
        self._decoder = json.JSONDecoder(
            parse_float=Decimal, parse_constant=partial(count_constant, self._counts), strict=False
        )
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
            elif state == NEW_ID:
                columns.add_ids()
            elif state == NEW_LANE:
                columns.add_lanes()
            elif state == GROW and not self._grown:
                columns.flush()
            elif state == MORE and not window.ended and window.end - p < _LARGEST:
                p = window.more(p)
                self._sink.advance(window.stream.tell())
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
        end = int(object_end(window.data, p, window.end))
        if 0 < end < window.end and (event := self._decoded(window.text(p, end))) is not None:
            self._add(event)
            return end
        return self._damaged_event(p)

    def _decoded(self, raw: bytes) -> dict[str, Any] | None:
        """Return the event in a text that holds nothing else, repaired if need be, and count it; else None."""
        try:
            text = raw.decode()
            event = self._decoder.decode(text)
        except UnicodeDecodeError:
            return None
        except (ValueError, RecursionError, InvalidOperation):
            document = Document(text, self._file_name)
            event, used = document.event_at(0)
            if type(event) is dict and used == len(text) and text.count('"ph"') == 1:
                self._counts += document.counts
                return event
            return None
        if type(event) is not dict:
            return None
        self._counts["events"] += 1
        return event

    def _damaged_event(self, p: int) -> int | None:
        """Decode the event at `p`, which is no JSON of its own, as `_slow_event`."""
        window = self._window
        size = _NEAR
        while True:
            if window.end - p < size and not window.ended:
                p = window.more(p)
            raw = window.text(p, p + size)
            at_end = p + size >= window.end and window.ended
            text = raw.decode("utf-8", "surrogateescape")
            document = Document(_INVALID.sub("\ufffd", text), self._file_name)
            event, used = document.event_at(0)
            # A repair must see the event and the start of the next one.
            if at_end or size >= _FAR or (used < len(text) - 1 and not document.repaired) or used < len(text) // 2:
                break
            size *= 8
        if _INVALID.search(text, 0, used):
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
        for kind, columns in self._rows.columns.items():
            self._sink.write(kind, columns)
        self._rows.add_grids(self._columns.grids)
        self._counts += self._rows.counts
        self._rows.clear()

    def finished(self, raw: bytes) -> Document:
        """Read text with the standard library, the last step of reading; return it with the counts of the file."""
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "replace")
            self._counts["repaired_utf8"] = 1
        document = Document(text, self._file_name)
        for event in document:
            self._add(event)
        columns = self._columns
        columns.flush()
        self._rows.pair()
        self._flush_slow()
        groups, sizes, repaired = columns.grids.workgroups()
        if len(groups):
            self._sink.amend("kernels", "workgroups", groups)
            self._sink.amend("kernels", "workgroup_size", sizes)
        document.counts += self._counts + columns.totals() + Counter(repaired)
        for flag in ("truncated_files", "repaired_utf8", "text_behind_end", "mixed_writers"):
            document.counts[flag] = int(document.counts[flag] > 0)
        return document


#: A Kineto file has a match in its first 64 KB: a key of Kineto's, or an event of Chrome's trace format.
_SIGN = re.compile(rb'"(traceEvents|deviceProperties|schemaVersion|distributedInfo|baseTimeNanoseconds)"\s*:|"ph"\s*:')


#: What a file of times that nobody measured states beside its events; ``otherData`` is Chrome's place for such facts.
SYNTHETIC_MARK: Mapping[str, Mapping[str, str]] = MappingProxyType({"otherData": {"seqpoint": "synthetic"}})


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
        lanes = file_lanes(partial(open_source, path, sink.limit_bytes))
        with open_source(path, sink.limit_bytes) as stream:
            document = read_stream(stream, path.name, sink, lanes)
            document.counts["truncated_files"] |= getattr(stream, "truncated", False)
            fingerprint = stream.fingerprint() if isinstance(stream, Plain) else ""
        where = "its traceEvents is empty" if document.found_events else "it has no traceEvents"
        advice = "record again, and see that the profiler is active when the trace is written"
        require_events(path, document.counts, if_empty=f"no event to read: {where}", advice=advice, rows="events")
        return replace(_meta(path, document.header, document.counts), fingerprint=fingerprint)


def _meta(path: Path, header: dict[str, Any], counts: Counter[str]) -> TraceMeta:
    distributed = mapped(header.get("distributedInfo"))
    rank = integer(distributed.get("rank"))
    synthetic = all(mapped(header.get(key)) == value for key, value in SYNTHETIC_MARK.items())
    return TraceMeta(
        format="synthetic" if synthetic else "kineto",
        version=f"schema {plain_text(header.get('schemaVersion')) or 'unknown'}",
        sources=(path.name,),
        ranks=() if rank is None or not 0 <= rank < INT32_LIMIT else (rank,),
        world_size=positive(distributed.get("world_size")),
        clock_base_ns=integer(header.get("baseTimeNanoseconds")) or 0,
        devices=_devices(header),
        quality=Quality({name: n for name, n in counts.items() if n}),
    )


def _devices(header: dict[str, Any]) -> tuple[DeviceProperties, ...]:
    stated = header.get("deviceProperties")
    rows = map(mapped, [stated] if isinstance(stated, dict) and "name" in stated else listed(stated))
    return tuple(
        DeviceProperties(
            rank=OWN_RANK,
            device=integer(row.get("id")) or 0,
            name=plain_text(row.get("name")),
            compute_units=positive(row.get("numSms")),
            memory_bytes=positive(row.get("totalGlobalMem")),
        )
        for row in rows
    )
