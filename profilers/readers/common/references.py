"""Texts and processes that the rows of a recording refer to by number: `Strings` and `Ranks`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.readers.common.numbers import plain_text
from profilers.trace.arrays import MISSING, Ints, arrow_array, text_array
from profilers.trace.columns import lookup
from profilers.trace.schema import OWN_RANK

#: Function from a text to another, or to None for null.
Change = Callable[[str], str | None]


def renamed(values: pa.Array, change: Change | None) -> pa.DictionaryArray:
    """Return texts with `change` applied, if it is given, once to each distinct text.

    Examples
    --------
    >>> renamed(pa.array(["a", None, "b", "a"]), str.upper).to_pylist()
    ['A', None, 'B', 'A']
    """
    dictionary = values.dictionary_encode()
    texts = dictionary.dictionary
    if change is not None:
        texts = text_list(None if text is None else change(text) for text in texts.to_pylist())
    distinct = texts.dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.take(dictionary.indices), distinct.dictionary)


def text_list(texts: Iterable[str | None]) -> pa.Array:
    """Return untrusted texts as Arrow strings; half a surrogate pair, which UTF-8 cannot hold, is replaced."""
    return text_array([None if text is None else plain_text(text) for text in texts])


class Strings:
    """Texts by number.

    Parameters
    ----------
    ids : array of int64
        Numbers of the texts; the first text counts if a number repeats.
    texts : Array of string
        Texts, as many as numbers.

    Examples
    --------
    >>> Strings(np.array([7, 3]), pa.array(["seven", "three"])).encode(np.array([3, 9, 7])).to_pylist()
    ['three', None, 'seven']
    """

    def __init__(self, ids: Ints, texts: pa.Array) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._texts = texts.take(pa.array(order))

    def encode(self, ids: Any, change: Change | None = None) -> pa.DictionaryArray:
        """Return the texts with these numbers, null for a number without a text.

        Parameters
        ----------
        ids : array of int64, or Array of string
            Numbers, or the texts themselves, which some exports have instead.
        change : callable, optional
            Function applied to each distinct text; None stands for null.
        """
        if isinstance(ids, np.ndarray):
            codes = arrow_array(ids).dictionary_encode()
            rows = lookup(self._ids, np.arange(len(self._ids)), codes.dictionary.to_numpy())
            texts = self._texts.take(arrow_array(rows, rows == MISSING))
            return renamed(pa.DictionaryArray.from_arrays(codes.indices, texts), change)
        return renamed(ids.cast(pa.string()), change)

    def texts(self, ids: Ints, change: Change | None = None) -> pa.Array:
        """Return the texts as `encode`, as a plain array."""
        return self.encode(ids, change).cast(pa.string())


class Ranks:
    """Ranks of the processes of a recording.

    Parameters
    ----------
    rank_of : mapping of int to int
        Rank of each process that did device work.
    count : int
        Number of all ranks of the recording.

    Examples
    --------
    >>> ranks = Ranks({70: 0, 71: 1}, 2)
    >>> ranks.numbers, ranks.of(np.array([71, 5])).tolist()
    ((0, 1), [1, 0])
    """

    def __init__(self, rank_of: Mapping[int, int], count: int) -> None:
        #: Processes that did device work, ascending.
        self.processes = np.array(sorted(rank_of), np.int64)
        self._ranks = np.array([rank_of[process] for process in sorted(rank_of)], np.int64)
        #: All ranks; empty for a single process.
        self.numbers = tuple(range(count)) if count > 1 else ()

    def of(self, process: Ints) -> Ints:
        """Return the rank of each process; a process without device work belongs to the first rank."""
        if not self.numbers:
            return np.full(len(process), OWN_RANK)
        return np.maximum(lookup(self.processes, self._ranks, process), 0)
