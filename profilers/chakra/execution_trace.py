"""Nodes of a PyTorch execution trace: JSON of any size through a window, its schemas with flat keys and with nested."""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from profilers.chakra.nodes import COMPUTE, Node
from profilers.chakra.records import Bytes
from profilers.kineto.numbers import plain_text, whole

__all__ = ["is_execution_trace", "read_execution_trace"]

_BLOCK = 1 << 20
#: The largest node, or member of the header, that is held in memory.
_LARGEST = 64 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
#: Where reading goes on behind damage.
_NODE = re.compile(r'\{\s*"(?:id|name)"\s*:')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_SIGNS = re.compile(rb'"(?:rf_id|op_schema|ctrl_deps)"')
#: How much is passed over where Python cannot say how far it came: in what is nested too deeply.
_STRIDE = 4096
#: An error this near to the end of the window is one of a node that goes on behind it.
_NEAR = 16
_MEMBERS = {"inputs": "values", "input_shapes": "shapes", "input_types": "types", "input_strides": "strides"}
_RESULTS = {"outputs": "values", "output_shapes": "shapes", "output_types": "types", "output_strides": "strides"}
_PLAIN = frozenset({"id", "name", "parent", "ctrl_deps", "data_deps", "attrs", *_MEMBERS, *_RESULTS})


def is_execution_trace(start: bytes) -> bool:
    """Return whether a file starts like PyTorch's execution trace."""
    return start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and bool(_NODES.search(start) and _SIGNS.search(start))


def read_execution_trace(stream: Bytes, header: dict[str, Any], counts: Counter[str]) -> Iterator[Node]:
    """Yield the nodes of a file; put the other members that come before and after them into `header`.

    A node whose text is damaged is lost with what follows it up to the next that begins plainly.
    """
    text = _Text(stream, counts)
    for found in text.members(header):
        node = _node(found)
        counts["events"] += 1
        if node is None:
            counts["dropped_broken"] += 1
        else:
            yield node


class _Window(str):
    """Text for which an error need not know its line: to count lines costs as much as the text is long."""

    def count(self, *_: object) -> int:
        """Return 0."""
        return 0

    def rfind(self, *_: object) -> int:
        """Return -1."""
        return -1


class _Text:
    """One pass over the text of a file."""

    def __init__(self, stream: Bytes, counts: Counter[str]) -> None:
        self._stream = stream
        self._counts = counts
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._json = json.JSONDecoder(strict=False, parse_float=_real, parse_constant=self._constant)
        self._buffer = bytearray(_BLOCK)
        self._text = _Window()
        self._place = 0
        self._ended = False

    def _constant(self, _name: str) -> None:
        self._counts["repaired_nan"] += 1

    def _more(self) -> None:
        """Drop what was read and read on; at least as much again as there is."""
        parts = [self._text[self._place :]]
        size, goal = 0, max(_BLOCK, len(parts[0]))
        while size < goal and not self._ended:
            count = self._stream.readinto(self._buffer) or 0
            raw = bytes(self._buffer[:count])
            self._ended = not count
            parts.append(self._decoder.decode(raw, final=self._ended))
            if "\ufffd" in parts[-1] and b"\xef\xbf\xbd" not in raw:
                self._counts["repaired_utf8"] = 1
            size += count
        self._text, self._place = _Window("".join(parts)), 0

    def _peek(self) -> str:
        """Return the next character that is no space; nothing at the end."""
        while True:
            match = _SPACE.match(self._text, self._place)
            self._place = match.end() if match else self._place
            if self._place < len(self._text) or self._ended:
                return self._text[self._place : self._place + 1]
            self._more()

    def _take(self, character: str) -> bool:
        found = self._peek() == character
        self._place += found
        return found

    def _value(self) -> Any:
        """Return the JSON value that comes next; `ValueError` where there is none, having passed what is damaged."""
        self._peek()
        while True:
            try:
                value, self._place = self._json.raw_decode(self._text, self._place)
                return value
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self._text) - _NEAR or error.msg.startswith("Unterminated")
                if cut and not self._ended and len(self._text) - self._place < _LARGEST:
                    self._more()
                    continue
                self._place = max(error.pos, self._place + 1)
                raise
            except (RecursionError, ValueError) as error:
                self._place += _STRIDE
                raise ValueError("nested too deeply, or a number too long") from error

    def members(self, header: dict[str, Any]) -> Iterator[Any]:
        """Yield the elements of ``nodes``; put every other member of the file's object into `header`."""
        self._peek()
        if not self._take("{"):
            return
        try:
            while self._peek() not in ("", "}"):
                key = self._value()
                if not self._take(":"):
                    return
                if key == "nodes" and self._take("["):
                    yield from self._elements()
                else:
                    header[plain_text(key)] = self._value()
                if not self._take(","):
                    break
        except ValueError:
            # What stands around the nodes is not needed.
            self._counts["truncated_files"] = 1
        if self._peek() != "}":
            self._counts["truncated_files"] = 1

    def _elements(self) -> Iterator[Any]:
        while (following := self._peek()) not in ("", "]"):
            try:
                if following != "{":
                    raise ValueError("no object")
                element = self._value()
            except ValueError:
                self._counts["events"] += 1
                self._counts["dropped_broken"] += 1
                self._resume()
                continue
            yield element
            if not self._take(",") and self._peek() not in ("", "]"):
                self._resume()
        if not self._take("]"):
            self._counts["truncated_files"] = 1

    def _resume(self) -> None:
        """Go on to where a node seems to begin."""
        while not (match := _NODE.search(self._text, self._place)):
            if self._ended:
                self._place = len(self._text)
                return
            self._place = max(self._place, len(self._text) - _NEAR)
            self._more()
        self._place = match.start()


def _real(text: str) -> float | str:
    value = float(text)
    return value if isfinite(value) else text


def _node(found: Any) -> Node | None:
    if not isinstance(found, dict):
        return None
    number = whole(found.get("id"))
    if number is None or "name" not in found:
        return None
    attributes = {plain_text(key): value for key, value in found.items() if key not in _PLAIN}
    attributes.update(_attributes(found.get("attrs")))
    return Node(
        number,
        plain_text(found["name"]),
        COMPUTE,
        ctrl_deps=_numbers(found.get("ctrl_deps", found.get("parent"))),
        data_deps=_numbers(found.get("data_deps")),
        attributes=attributes,
        inputs=_tensors(found, "inputs", _MEMBERS),
        outputs=_tensors(found, "outputs", _RESULTS),
    )


def _attributes(listed: Any) -> dict[str, Any]:
    """Return the attributes of the nested schema by name."""
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return {plain_text(row.get("name")): row.get("value") for row in rows}


def _numbers(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(number for number in map(whole, values) if number is not None)


def _tensors(found: Mapping[str, Any], key: str, flat: Mapping[str, str]) -> dict[str, Any]:
    """Return inputs or outputs, which the nested schema holds in one object."""
    nested = found.get(key)
    if isinstance(nested, dict):
        return nested
    return {name: found[one] for one, name in flat.items() if found.get(one)}
