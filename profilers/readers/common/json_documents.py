"""JSON documents of trace files, damaged ones included.

`Document` decodes the events of Chrome's trace format (Kineto, rocprof 1) one at a time with the standard library. So
a damaged event costs that event and not the file. Numbers with a decimal point stay `decimal.Decimal`, since a
time in microseconds with three decimals is not exact in float64.

`load` decodes a whole document (rocprofv3). A document that ends early is closed after its last complete record.
`mapped`, `listed`, `walked` and `ints` read values from decoded JSON that may have any type.
"""

import json
import re
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import partial
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from profilers.errors import BrokenFileError
from profilers.readers.common.reader import Sink
from profilers.readers.common.source import read_source
from profilers.trace.arrays import MISSING, Ints

_SPACE = re.compile(r"[ \t\n\r]*")
#: Most likely start of an event: a brace, then one of the keys that profilers write first. A brace behind a colon or
#: a bracket opens a value inside the broken event.
_EVENT_START = re.compile(r'[^:\[\s]\s*(\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s)"\s*:)')
_ARRAY_END = re.compile(r'\}\s*(\])\s*(?:,\s*"|\}|\Z)')
#: A text, or a comma behind the last element of an array or object.
_LAST_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
#: Exceptions of the decoder: bad syntax or too many digits, too deep a nesting, too large an exponent.
_UNDECODABLE = (ValueError, RecursionError, InvalidOperation)


def opening(start: bytes) -> bytes:
    """Return the first byte of a text that is neither white space nor a byte order mark.

    Examples
    --------
    >>> opening(b"\\xef\\xbb\\xbf  {"), opening(b"")
    (b'{', b'')
    """
    return start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]


def count_constant(counts: Counter[str], _name: str) -> None:
    """Count a number that JSON lacks, such as NaN, and read it as missing; for a decoder's ``parse_constant``."""
    counts["repaired_nan"] += 1


class UncountedText(str):
    """A text whose lines are not counted.

    The decoder's exception counts the lines before the error. A file with many broken events would cost their number
    times its size.
    """

    __slots__ = ()

    def count(self, *_: object) -> int:
        """Return 0."""
        return 0

    def rfind(self, *_: object) -> int:
        """Return -1."""
        return -1


class Document:
    """The text of a file in Chrome's trace format: iterate over its events, then read `header` and `counts`.

    Parameters
    ----------
    text : str
        The whole text.
    file_name : str
        Name of the file, for messages.
    """

    def __init__(self, text: str, file_name: str) -> None:
        self._text = UncountedText(text)
        self._file_name = file_name
        self.header: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()
        self.found_events = False
        #: Whether an event had to be repaired or lost.
        self.repaired = False
        self._decoder = json.JSONDecoder(
            parse_float=Decimal, parse_constant=partial(count_constant, self.counts), strict=False
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each event; a Python loop over events, about 4 us each, most of it in the JSON decoder.

        Raises
        ------
        BrokenFileError
            The text starts with neither a JSON object nor an array.
        """
        position = self._skip(0)
        opening = self._text[position : position + 1]
        if opening == "[":
            position = yield from self._array(position + 1)
            self._note_rest(position)
        elif opening == "{":
            yield from self._members(position + 1)
        else:
            raise BrokenFileError(
                f"{self._file_name}: byte {position}: neither a JSON object nor an array; is it a trace?"
            )

    def _note_rest(self, position: int) -> None:
        """Count text behind the end of the document."""
        if self._text[position:].strip(" \t\r\n\0"):
            self.counts["text_behind_end"] = 1

    def _members(self, position: int) -> Iterator[dict[str, Any]]:
        """Yield the events, and keep the other top-level members, which may come before or after them."""
        while True:
            position = self._skip(position, ",")
            if self._text[position : position + 1] != '"':
                if self._text[position : position + 1] != "}":
                    self.counts["truncated_files"] = 1
                else:
                    self._note_rest(position + 1)
                return
            try:
                key, position = scanstring(self._text, position + 1, False)
                position = self._skip(position, ":")
                if key == "traceEvents" and self._text[position : position + 1] == "[":
                    self.found_events = True
                    position = yield from self._array(position + 1)
                    continue
                self.header[key], position = self._member(position)
            except _UNDECODABLE:
                position = self._text.find('"traceEvents"', position) if not self.found_events else -1
                if position < 0:
                    self.counts["truncated_files"] = 1
                    return

    def _member(self, position: int) -> tuple[Any, int]:
        """Return the value of a top-level member and the position after it, repaired if need be."""
        try:
            return self._decoder.raw_decode(self._text, position)
        except ValueError:
            end = self._text.find('"traceEvents"', position)
            return self._lenient(position, len(self._text) if end < 0 else end)

    def _lenient(self, position: int, end: int) -> tuple[Any, int]:
        """Return the value at `position` decoded without last commas, or else with bad escapes doubled, and its end.

        Raises
        ------
        ValueError, RecursionError, InvalidOperation
            It cannot be decoded either way.
        """
        piece = _LAST_COMMA.sub(_without_comma, self._text[position:end])
        with suppress(*_UNDECODABLE):
            value, used = self._decoder.raw_decode(piece)
            return value, position + used
        bad = [m.start() for m in _ESCAPE.finditer(piece) if not m.group(1)]
        value, used = self._decoder.raw_decode(_ESCAPE.sub(lambda m: m.group() if m.group(1) else r"\\", piece))
        self.counts["repaired_escape"] += 1
        doubled = sum(at + i < used for i, at in enumerate(bad))
        return value, position + used - doubled

    def _array(self, position: int) -> Generator[dict[str, Any], None, int]:
        """Yield the events of the array that opens before `position`; return the position after it."""
        while True:
            position = self._skip(position, ",")
            mark = self._text[position : position + 1]
            if mark == "]":
                return position + 1
            if not mark:
                self.counts["truncated_files"] = 1
                return position
            event, position = self.event_at(position)
            if event is not None:
                yield event

    def event_at(self, position: int) -> tuple[dict[str, Any] | None, int]:
        """Return the event at `position`, None if it is lost, and the position after it."""
        try:
            event, end = self._decoder.raw_decode(self._text, position)
        except _UNDECODABLE:
            self.repaired = True
            event, end = self._repair(position)
        if event is None:  # lost and counted, or the word null
            return None, end
        self.counts["events"] += 1
        if isinstance(event, dict):
            return event, end
        self.counts["dropped_broken"] += 1
        return None, end

    def _repair(self, position: int) -> tuple[Any, int]:
        """Return the event at `position` repaired, or None, and the position after it."""
        end = self._resume(position)
        try:
            return self._lenient(position, end)
        except _UNDECODABLE:
            self.counts["events"] += 1
            self.counts["dropped_broken"] += 1
            if end == len(self._text):
                self.counts["truncated_files"] = 1
            self.counts["mixed_writers"] |= '"traceEvents"' in self._text[position:end]
            return None, end

    def _resume(self, position: int) -> int:
        """Return the position of the next event, or else of the end of the array, or else of the text."""
        following = _EVENT_START.search(self._text, position)
        limit = following.start(1) if following else len(self._text)
        later = position
        for match in _ARRAY_END.finditer(self._text, position, limit):
            if match.start(1) > later and (later := self._text.find('"ph"', match.start(1))) < 0:
                return match.start(1)
        return limit

    def _skip(self, position: int, mark: str = "") -> int:
        """Return the position after white space, and after any `mark` in it."""
        position = _SPACE.match(self._text, position).end()  # type: ignore[union-attr]
        while mark and self._text.startswith(mark, position):
            position = _SPACE.match(self._text, position + 1).end()  # type: ignore[union-attr]
        return position


def _without_comma(match: re.Match[str]) -> str:
    """Return a text as it is, and a space for a comma."""
    return " " if match[0] == "," else match[0]


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_CLOSING = {"[": "]", "{": "}"}
_INT_LIMIT = 1 << 62


class _Bracket(NamedTuple):
    """An open bracket, and the one around it."""

    mark: str
    outer: "_Bracket | None"


def load(path: Path, sink: Sink, counts: Counter[str]) -> Any:
    """Return the decoded value of a JSON file.

    The standard library holds the text, and a dictionary for each record. That takes about ten times the size of the
    file: 4 KB and 7 us a dispatch.

    Parameters
    ----------
    path : Path
        The file, plain or packed.
    sink : Sink
        Its limit bounds the size of the unpacked text.
    counts : Counter
        Counts of repairs, updated.

    Raises
    ------
    BrokenFileError
        The file is larger than the limit, or no JSON.
    """
    content, _ = read_source(path, sink.limit_bytes)
    if len(content) > sink.limit_bytes:
        raise BrokenFileError(
            f"{path}: holds more than {sink.limit_bytes:,} bytes; raise the limit if there is memory for ten times that"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        counts["repaired_utf8"] = 1
        text = content.decode("utf-8", "replace").removeprefix("\ufeff")
    try:
        return json.loads(text, strict=False)
    except _UNDECODABLE as error:
        return _salvaged(path, text, error, counts)


def _salvaged(path: Path, text: str, error: Exception, counts: Counter[str]) -> Any:
    """Return the value of a text that ends early, up to its last complete record.

    A loop over the brackets and texts of the file, 0.3 us each, for damaged files alone.
    """
    innermost: _Bracket | None = None
    complete, around = 0, innermost
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in _CLOSING:
            innermost = _Bracket(mark, innermost)
        elif mark in ("]", "}"):
            if innermost is None or _CLOSING[innermost.mark] != mark:
                break
            innermost = innermost.outer
            if innermost is not None and innermost.mark == "[":
                complete, around = token.end(), innermost
    closing = []
    while around is not None:
        closing.append(_CLOSING[around.mark])
        around = around.outer
    try:
        value = json.loads(text[:complete] + "".join(closing), strict=False)
    except _UNDECODABLE:
        position = getattr(error, "pos", 0)
        raise BrokenFileError(f"{path}: byte {position}: no JSON that can be read; copy the file again") from error
    counts["truncated_files"] = 1
    return value


def mapped(value: Any) -> dict[str, Any]:
    """Return a JSON object, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """Return a JSON array, and an empty one for any other value."""
    return value if isinstance(value, list) else []


def walked(records: list[Any], *keys: str) -> list[Any]:
    """Return the value at a path of keys in each record, None if a record lacks the path.

    Examples
    --------
    >>> walked([{"a": {"b": 1}}, {"a": 7}, None], "a", "b")
    [1, None, None]
    """
    for key in keys:  # 0.05 us a record and key
        records = [record.get(key) if type(record) is dict else None for record in records]
    return records


def ints(records: list[Any], *keys: str) -> Ints:
    """Return the integers at a path of keys in each record, `MISSING` if a record has none.

    Examples
    --------
    >>> ints([{"a": 1}, {"a": 2}], "a").tolist()
    [1, 2]
    """
    values = walked(records, *keys)
    fitting = (value if type(value) is int and -_INT_LIMIT < value < _INT_LIMIT else MISSING for value in values)
    return np.fromiter(fitting, np.int64, len(values))


def json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object of a text, empty if it holds none."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
