"""Columns of Arrow tables as columns of JSON text, without a Python object for a number."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.arrays import MISSING, Ints, arrow_array

__all__ = ["every", "joined", "member", "microseconds", "numbers", "one", "quoted", "reals", "text"]


def one(values: Any) -> pa.Array:
    """Return one array, whether it was chunked or not."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def text(values: Any) -> pa.Array:
    """Return values as text."""
    return one(values.cast(pa.string()))


def every(count: int, word: str) -> pa.Array:
    """Return the same text for every row."""
    return pa.repeat(word, count)


def joined(parts: Sequence[pa.Array], separator: str) -> pa.Array:
    """Return the parts of each row as one text, those that are null left out; no part may end with the separator.

    Arrow 26 can leave out nulls itself, but gives too few rows where all parts of a row are null.

    Examples
    --------
    >>> joined([pa.array(["a", None]), pa.array([None, None], pa.string()), pa.array(["b", None])], ",").to_pylist()
    ['a,b', '']
    """
    ended = [pc.fill_null(pc.binary_join_element_wise(part, separator, ""), "") for part in parts]
    return pc.utf8_rtrim(pc.binary_join_element_wise(*ended, ""), separator)


def member(key: str, values: pa.Array) -> pa.Array:
    """Return key and value of each row; null where the value is."""
    return pc.binary_join_element_wise(key, values, "")


def numbers(values: Ints) -> pa.Array:
    """Return whole numbers; null where they are `MISSING`."""
    return arrow_array(values, values == MISSING).cast(pa.string())


def reals(values: Any) -> pa.Array:
    """Return numbers that read back as the same float64; null where they are none that JSON can hold."""
    return pa.array([None if v is None or not np.isfinite(v) else repr(v) for v in values.to_pylist()], pa.string())


def microseconds(values: Ints) -> pa.Array:
    """Return times in ns as us with three decimals, exactly; null where they are `MISSING`.

    Examples
    --------
    >>> microseconds(np.array([1500, -7, MISSING])).to_pylist()
    ['1.500', '-0.007', None]
    """
    missing = values == MISSING
    size = np.abs(np.where(missing, 0, values))
    sign = pc.if_else(pa.array(values < 0), "-", "")
    rest = pc.utf8_lpad(arrow_array(size % 1000).cast(pa.string()), 3, "0")
    found = pc.binary_join_element_wise(sign, arrow_array(size // 1000).cast(pa.string()), ".", rest, "")
    return pc.if_else(pa.array(missing), pa.scalar(None, pa.string()), found)


def quoted(values: Any) -> pa.Array:
    """Return texts as JSON; each distinct one is encoded once."""
    encoded = text(values).dictionary_encode()
    return pa.array([json.dumps(word) for word in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)
