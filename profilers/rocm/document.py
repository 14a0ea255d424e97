"""A JSON document of rocprofv3, decoded whole; one that ends early is closed after its last complete record."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from profilers.arrays import MISSING, Ints
from profilers.errors import BrokenFileError
from profilers.reader import Sink
from profilers.source import read_source

__all__ = ["ints", "listed", "load", "mapped", "walked"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_CLOSING = {"[": "]", "{": "}"}
_LIMIT = 1 << 62
_FAILURES = (ValueError, RecursionError)


def load(path: Path, sink: Sink, counts: Counter[str]) -> Any:
    """Return the value of a JSON file.

    The standard library holds the text and every record as a dictionary of its own: about ten times the file,
    4 KB a dispatch, and 7 us for each.

    Raises
    ------
    BrokenFileError
        It is larger than the sink's limit, or no JSON.
    """
    source = read_source(path, sink.limit_bytes)
    if len(source.content) > sink.limit_bytes:
        raise BrokenFileError(
            f"{path}: holds more than {sink.limit_bytes:,} bytes; raise the limit if there is memory for ten times that"
        )
    try:
        text = source.content.decode("utf-8-sig")
    except UnicodeDecodeError:
        counts["repaired_utf8"] = 1
        text = source.content.decode("utf-8", "replace").removeprefix("\ufeff")
    try:
        return json.loads(text, strict=False)
    except _FAILURES as error:
        return _salvaged(path, text, error, counts)


def _salvaged(path: Path, text: str, error: Exception, counts: Counter[str]) -> Any:
    """Return the value of a text that ends early.

    A loop over the brackets and texts of the file, 0.3 us each, for damaged files alone.
    """
    opened: list[str] = []
    last, closing = 0, ""
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in _CLOSING:
            opened.append(mark)
        elif mark in ("]", "}"):
            if not opened or _CLOSING[opened.pop()] != mark:
                break
            if opened and opened[-1] == "[":
                last, closing = token.end(), "".join(_CLOSING[m] for m in reversed(opened))
    try:
        value = json.loads(text[:last] + closing, strict=False)
    except _FAILURES:
        place = getattr(error, "pos", 0)
        raise BrokenFileError(f"{path}: byte {place}: no JSON that can be read; copy the file again") from error
    counts["truncated_files"] = 1
    return value


def mapped(value: Any) -> dict[str, Any]:
    """Return an object, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """Return an array, an empty one for anything else."""
    return value if isinstance(value, list) else []


def walked(records: list[Any], *keys: str) -> list[Any]:
    """Return what stands at a path of keys in each record, None where a record has no such path.

    Examples
    --------
    >>> walked([{"a": {"b": 1}}, {"a": 7}, None], "a", "b")
    [1, None, None]
    """
    for key in keys:  # 0.05 us a record and key
        records = [record.get(key) if type(record) is dict else None for record in records]
    return records


def ints(records: list[Any], *keys: str) -> Ints:
    """Return integers at a path, `MISSING` where there is none.

    Examples
    --------
    >>> ints([{"a": 1}, {"a": 2}], "a").tolist()
    [1, 2]
    """
    found = walked(records, *keys)
    good = (value if type(value) is int and -_LIMIT < value < _LIMIT else MISSING for value in found)
    return np.fromiter(good, np.int64, len(found))
