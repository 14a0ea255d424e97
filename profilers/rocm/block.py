"""`Block`: rows of one table of a recording, whose columns may be absent, texts or numbers."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.arrays import MISSING, Ints, text_array
from profilers.combinations import combinations, encoded
from profilers.kineto.numbers import plain_text, whole

__all__ = ["Block", "constant", "narrow", "renamed", "text_list", "whole_numbers"]

_NARROW = 1 << 31
#: Texts with fewer digits are integers of 64 bits.
_DIGITS = 19


@dataclass(frozen=True)
class Block:
    """Rows as columns; one that is absent reads as missing.

    Parameters
    ----------
    columns : mapping of str to array
        An int64 array whose null is `MISSING`, or an Arrow array; equally long.

    Examples
    --------
    >>> block = Block({"Start": pa.array(["7", "x"])})
    >>> block.rows, block.ints("Start").tolist()[0], block.texts("Name").to_pylist()
    (2, 7, [None, None])
    """

    columns: Mapping[str, Any]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values()), ()))

    def ints(self, name: str) -> Ints:
        """Return a column as integers; what is none is `MISSING`."""
        return whole_numbers(self.columns[name]) if name in self.columns else np.full(self.rows, MISSING)

    def narrow(self, name: str) -> Ints:
        """Return a column as integers from 0 that fit 32 bits; what does not is `MISSING`."""
        return narrow(self.ints(name))

    def texts(self, name: str) -> pa.Array:
        """Return a column as Arrow strings."""
        if name not in self.columns:
            return pa.nulls(self.rows, pa.string())
        values = self.columns[name]
        if isinstance(values, np.ndarray):
            return text_list(None if n == MISSING else str(n) for n in values.tolist())
        return values if values.type == pa.string() else values.cast(pa.string())

    def arguments(self, names: Sequence[str]) -> pa.Array:
        """Return the values of columns as a JSON object a row, without nulls; null where there is none.

        An object is made once for each combination of values, so name no column that differs in every row.
        """
        present = [name for name in names if name in self.columns]
        if not present:
            return pa.nulls(self.rows, pa.string())
        codes, values = zip(*(_coded(self.columns[name]) for name in present), strict=True)
        combined, firsts = combinations(np.stack(codes))
        made = []
        for row in firsts.tolist():  # a loop over distinct combinations
            cells = ((name, own[int(code[row])]) for name, code, own in zip(present, codes, values, strict=True))
            found = {name: value for name, value in cells if value is not None and value != ""}
            made.append(json.dumps(found, separators=(",", ":")) if found else None)
        return encoded(combined, text_list(made))

    def take(self, rows: npt.NDArray[np.intp]) -> "Block":
        """Return the block with these rows alone."""
        index = pa.array(rows)
        return Block({n: v[rows] if isinstance(v, np.ndarray) else v.take(index) for n, v in self.columns.items()})


def _coded(values: Any) -> tuple[Ints, list[Any]]:
    """Return a code a row and the value of each code; a text that is an integer becomes one."""
    if isinstance(values, np.ndarray):
        distinct, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64), [None if n == MISSING else n for n in distinct.tolist()]
    found = values if isinstance(values, pa.DictionaryArray) else values.dictionary_encode()
    own = [_plain(value) for value in found.dictionary.to_pylist()]
    codes = found.indices.cast(pa.int64()).fill_null(len(own)).to_numpy(zero_copy_only=False)
    return np.asarray(codes), [*own, None]


def _plain(value: Any) -> Any:
    """Return a value for JSON: an integer for its text, None for a number that JSON lacks."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) < _DIGITS else value
    return None if isinstance(value, float) and not isfinite(value) else value


def whole_numbers(values: Any) -> Ints:
    """Return integers from texts or numbers; `MISSING` for what is none.

    Examples
    --------
    >>> whole_numbers(pa.array(["12", " 5", "1e3", "", None, "x"])).tolist()[:3]
    [12, 5, 1000]
    """
    if isinstance(values, np.ndarray):
        return values.astype(np.int64, copy=False)
    if pa.types.is_floating(values.type):
        floats = np.asarray(values.fill_null(np.nan).to_numpy(zero_copy_only=False), dtype=float)
        good = np.isfinite(floats) & (np.abs(floats) < 2.0**53) & (floats == np.floor(floats))
        return np.where(good, np.where(good, floats, 0).astype(np.int64), MISSING)
    try:
        found = values.cast(pa.int64())
    except pa.ArrowInvalid:
        found = _some_whole(values)
    return np.asarray(found.fill_null(int(MISSING)).to_numpy(zero_copy_only=False), dtype=np.int64)


def _some_whole(values: pa.Array) -> pa.Array:
    """Return integers of texts some of which are none; a loop over the distinct ones, 1 us each."""
    own = values.dictionary_encode()
    numbers = pa.array(
        [None if text is None else whole(text.strip()) for text in own.dictionary.to_pylist()], pa.int64()
    )
    return numbers.take(own.indices)


def narrow(values: Ints) -> Ints:
    """Return integers, `MISSING` where one is negative or needs more than 32 bits."""
    return np.where((values >= 0) & (values < _NARROW), values, MISSING)


def renamed(values: pa.Array, change: Callable[[str], str | None]) -> pa.DictionaryArray:
    """Return texts, each distinct one changed once.

    Examples
    --------
    >>> renamed(pa.array(["a", None, "b", "a"]), str.upper).to_pylist()
    ['A', None, 'B', 'A']
    """
    own = values if isinstance(values, pa.DictionaryArray) else values.dictionary_encode()
    texts = text_list(None if text is None else change(text) for text in own.dictionary.to_pylist())
    distinct = texts.dictionary_encode()
    return pa.DictionaryArray.from_arrays(pc.take(distinct.indices, own.indices), distinct.dictionary)


def constant(text: str, rows: int) -> pa.DictionaryArray:
    """Return a column that holds one text."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def text_list(texts: Iterable[str | None]) -> pa.Array:
    """Return texts of strangers as Arrow strings; half a surrogate pair, which UTF-8 cannot hold, is replaced."""
    plain = [None if text is None else plain_text(text) for text in texts]
    if plain and all(text is not None for text in plain):
        return text_array([text for text in plain if text is not None])
    return pa.array(plain, pa.string())
