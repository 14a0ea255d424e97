"""`StringIds`: the texts of an export by their number."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.arrays import MISSING, Ints
from profilers.combinations import encoded
from profilers.nsys.tables import Tables, until_damage, whole_numbers

__all__ = ["StringIds", "named"]

_TABLE = "StringIds"
#: Stands where an export has no name for something.
_NO_NAME = "unknown"


class StringIds:
    """Texts by number.

    Parameters
    ----------
    ids : array of int64
    texts : Array of string
        Equally long.

    Examples
    --------
    >>> StringIds(np.array([7, 3]), pa.array(["seven", "three"])).encode(np.array([3, 9, 7])).to_pylist()
    ['three', None, 'seven']
    """

    def __init__(self, ids: Ints, texts: pa.Array) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._texts = texts.take(pa.array(order))

    @classmethod
    def of(cls, tables: Tables, counts: Counter[str]) -> "StringIds":
        """Return the texts of an export as far as its table is whole, none where it has no such table."""
        ids, texts = [np.empty(0, dtype=np.int64)], [pa.array([], pa.string())]
        batches = tables.read(_TABLE, ["id", "value"]) if _TABLE in tables.tables else iter(())
        for batch in until_damage(batches, counts):
            if not isinstance(batch["value"], np.ndarray):  # else there are nulls only
                ids.append(whole_numbers(batch["id"]))
                texts.append(batch["value"].cast(pa.string()))
        return cls(np.concatenate(ids), pa.concat_arrays(texts))

    def encode(self, ids: Any, change: Callable[[str], str] | None = None) -> pa.DictionaryArray:
        """Return the texts that `ids` name, null where there is none.

        Parameters
        ----------
        ids : array of int64, or Array of string
            Some exports put the texts themselves where others put numbers.
        change : callable, optional
            Applied to each distinct text.
        """
        codes = (pa.array(ids) if isinstance(ids, np.ndarray) else ids.cast(pa.string())).dictionary_encode()
        texts = self._look_up(codes.dictionary) if isinstance(ids, np.ndarray) else codes.dictionary
        if change is not None:
            texts = pa.array([None if text is None else change(text) for text in texts.to_pylist()], pa.string())
        if isinstance(ids, np.ndarray):
            return encoded(codes.indices.to_numpy(), texts)
        return pa.DictionaryArray.from_arrays(codes.indices, texts)

    def _look_up(self, wanted: pa.Array) -> pa.Array:
        numbers = wanted.to_numpy()
        if not len(self._ids):
            return pa.nulls(len(numbers), pa.string())
        at = np.minimum(np.searchsorted(self._ids, numbers), len(self._ids) - 1)
        return self._texts.take(pa.array(at, mask=(self._ids[at] != numbers) | (numbers == MISSING)))


def named(*choices: pa.DictionaryArray) -> tuple[pa.DictionaryArray, int]:
    """Return for each row the first of its names, and of how many rows there was none."""
    names = choices[0]
    if not names.null_count:
        return names, 0
    plain = pc.coalesce(*(choice.cast(pa.string()) for choice in choices))
    return pc.fill_null(plain, _NO_NAME).dictionary_encode(), plain.null_count
