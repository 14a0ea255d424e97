"""Tables of SQLite recordings: read up to where they are damaged, joined by number, strings looked up."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from profilers.arrays import MISSING, Ints
from profilers.columns import lookup
from profilers.database import Database
from profilers.errors import BrokenFileError
from profilers.rocm.block import Block, renamed

__all__ = ["Join", "Strings", "check_columns", "in_blocks", "whole_table"]


def check_columns(path: Path, table: str, present: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise where a table lacks columns of the minimum.

    Raises
    ------
    BrokenFileError
        It names the file, the table and the columns.
    """
    if missing := sorted(set(wanted) - set(present)):
        raise BrokenFileError(f"{path}: table {table} lacks the columns {', '.join(missing)}; record again")


def in_blocks(database: Database, table: str, columns: Sequence[str], counts: Counter[str]) -> Iterator[Block]:
    """Yield the rows of a table up to where it is damaged, which is counted; none of a table that is absent."""
    if table not in database.tables:
        return
    try:
        for batch in database.read(table, columns):
            yield Block(batch)
    except BrokenFileError:
        counts["damaged_tables"] += 1


def whole_table(database: Database, table: str, columns: Sequence[str], counts: Counter[str]) -> dict[str, Ints]:
    """Return integer columns of all rows of a table, 8 bytes a value; empty where the table is absent."""
    parts = [[block.ints(name) for name in columns] for block in in_blocks(database, table, columns, counts)]
    found = (
        [np.concatenate(part) for part in zip(*parts, strict=True)] if parts else [np.empty(0, np.int64)] * len(columns)
    )
    return dict(zip(columns, found, strict=True))


class Join:
    """Rows found by a number, the first where a number repeats.

    Parameters
    ----------
    columns : mapping of str to array of int64
        Equally long.
    key : str
        The column that holds the number.

    Examples
    --------
    >>> join = Join({"id": np.array([7, 3]), "pid": np.array([70, 30])}, "id")
    >>> join("pid", np.array([3, 7])).tolist(), (join("pid", np.array([5])) == MISSING).tolist()
    ([30, 70], [True])
    """

    def __init__(self, columns: Mapping[str, Ints], key: str) -> None:
        order = np.argsort(columns[key], kind="stable")
        self._key = columns[key][order]
        self._columns = {name: values[order] for name, values in columns.items()}

    def __call__(self, name: str, wanted: Ints) -> Ints:
        """Return a column of the rows with these numbers, `MISSING` where there is none."""
        return lookup(self._key, self._columns[name], wanted)


class Strings:
    """A table of texts by number.

    Parameters
    ----------
    texts : mapping of int to str
    """

    def __init__(self, texts: Mapping[int, str]) -> None:
        keys = np.array(sorted(texts), dtype=np.int64)
        self._row = Join({"key": keys, "row": np.arange(len(keys))}, "key")
        self._texts = pa.array([texts[key] for key in keys.tolist()], pa.string())

    @classmethod
    def of(cls, database: Database, table: str, columns: Sequence[str], counts: Counter[str]) -> "Strings":
        """Return the texts of a table, from the first of the columns after the number that has one."""
        texts: dict[int, str] = {}
        for block in in_blocks(database, table, columns, counts):
            for name in columns[1:]:
                own = zip(block.ints(columns[0]).tolist(), block.texts(name).to_pylist(), strict=True)
                for key, text in own:  # a loop over the distinct texts, 0.2 us each
                    if text:
                        texts.setdefault(key, text)
        return cls(texts)

    def encode(self, numbers: Ints, change: Callable[[str], str | None] = str) -> pa.DictionaryArray:
        """Return the texts of numbers, each distinct one changed once; null for a number without one."""
        rows = self._row("row", numbers)
        missing = rows == MISSING
        if not len(self._texts):
            return pa.nulls(len(rows), pa.string()).dictionary_encode()
        distinct, which = np.unique(np.where(missing, 0, rows), return_inverse=True)
        index = pa.array(which.astype(np.int32), mask=missing)
        return renamed(pa.DictionaryArray.from_arrays(index, self._texts.take(pa.array(distinct))), change)
