"""SQLite recordings of ROCm's tools: tables read up to where they are damaged, and lookups by number.

`Recording` reads the tables of one file. `Join` looks up the rows that other rows refer to by number.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError
from profilers.readers.common.database import Database
from profilers.readers.common.references import Strings
from profilers.readers.rocm.records import Block
from profilers.trace.arrays import Ints
from profilers.trace.columns import lookup


class Recording:
    """The tables of an open SQLite file.

    Parameters
    ----------
    database : Database
        The open file.
    counts : Counter
        Counts of the file; damaged tables are added.
    """

    def __init__(self, database: Database, counts: Counter[str]) -> None:
        self._database = database
        self._counts = counts
        #: Names of the columns by table.
        self.tables = database.tables

    def uncounted(self) -> "Recording":
        """Return the same tables, to be read twice: their damage is not counted again."""
        return Recording(self._database, Counter())

    def check(self, table: str, required: Iterable[str]) -> None:
        """Check that a table has the columns that an event needs.

        Raises
        ------
        BrokenFileError
            A column is absent; the message names the file, the table and the column.
        """
        if missing := sorted(set(required) - set(self.tables.get(table, ()))):
            path = self._database.path
            raise BrokenFileError(f"{path}: table {table} lacks the columns {', '.join(missing)}; record again")

    def blocks(self, table: str, columns: Sequence[str]) -> Iterator[Block]:
        """Yield the rows of a table up to where it is damaged, which is counted; no rows if the table is absent."""
        if table not in self.tables:
            return
        try:
            yield from map(Block, self._database.read(table, columns))
        except BrokenFileError:
            self._counts["damaged_tables"] += 1

    def join(self, table: str, columns: Sequence[str]) -> "Join":
        """Return integer columns of all rows of a table, 8 bytes a value; empty if the table is absent."""
        return Join(columns, [[block.ints(name) for name in columns] for block in self.blocks(table, columns)])

    def strings(self, table: str, columns: Sequence[str] = ("id", "string")) -> Strings:
        """Return the texts of a table.

        Parameters
        ----------
        table : str
            Name of the table.
        columns : sequence of str
            The column of numbers, then columns of texts; the first text that is not empty counts.
        """
        texts: dict[int, str] = {}
        for block in self.blocks(table, columns):
            for name in columns[1:]:
                pairs = zip(block.ints(columns[0]).tolist(), block.texts(name).to_pylist(), strict=True)
                for key, text in pairs:  # a loop over the distinct texts, 0.2 us each
                    if text:
                        texts.setdefault(key, text)
        return Strings(np.fromiter(texts, np.int64), pa.array(texts.values(), pa.string()))

    def schema_version(self, table: str) -> str | None:
        """Return the version of the schema that a table of metadata states, or None."""
        for block in self.blocks(table, ("tag", "value")):
            values = dict(zip(block.texts("tag").to_pylist(), block.texts("value").to_pylist(), strict=True))
            if version := values.get("schema_version"):
                return str(version)
        return None


class Join:
    """A table whose rows are looked up by number; the first row counts if a number repeats.

    Parameters
    ----------
    names : sequence of str
        Names of the columns; the first holds the number.
    blocks : sequence of sequence of array of int64
        Blocks of rows: the columns of each, in the order of `names`.

    Examples
    --------
    >>> from profilers.trace.arrays import MISSING
    >>> join = Join(("id", "pid"), [[np.array([7, 3]), np.array([70, 30])]])
    >>> join("pid", np.array([3, 7])).tolist(), (join("pid", np.array([5])) == MISSING).tolist()
    ([30, 70], [True])
    """

    def __init__(self, names: Sequence[str], blocks: Sequence[Sequence[Ints]]) -> None:
        columns = [np.concatenate(arrays) for arrays in zip(*blocks, strict=True)]
        columns = columns or [np.empty(0, np.int64)] * len(names)
        order = np.argsort(columns[0], kind="stable")
        self._key = columns[0][order]
        self._columns = {name: values[order] for name, values in zip(names, columns, strict=True)}

    def __call__(self, name: str, numbers: Ints) -> Ints:
        """Return a column of the rows with these numbers, `MISSING` for a number without a row."""
        return lookup(self._key, self._columns[name], numbers)

    def column(self, name: str) -> Ints:
        """Return a whole column, in the order of the numbers."""
        return self._columns[name]
