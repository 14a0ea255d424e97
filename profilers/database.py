"""SQLite files of strangers: opened read-only, only plain tables read, nothing of the file executed."""

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from profilers.arrays import MISSING
from profilers.errors import BrokenFileError
from profilers.source import DEFAULT_LIMIT_BYTES, unpack_to

__all__ = ["SIGNATURE", "Database", "open_database"]

#: The first bytes of every SQLite 3 file.
SIGNATURE = b"SQLite format 3\0"
_BATCH = 65536


@dataclass(frozen=True)
class Database:
    """The plain tables of an open SQLite file.

    Parameters
    ----------
    path : Path
        As the user named it, for messages.
    tables : mapping of str to tuple of str
        Names of the columns by table; views and virtual tables are not there.
    """

    path: Path
    tables: Mapping[str, tuple[str, ...]]
    _connection: sqlite3.Connection

    def read(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield batches of the named columns, in the order of the rows.

        A column that the table lacks, and a value that is no integer where integers stand, is null.

        Yields
        ------
        dict
            By column: an int64 array whose null is `MISSING` where the column holds integers and nulls alone;
            otherwise an Arrow array of strings or float64.

        Raises
        ------
        BrokenFileError
            The table is absent or damaged.
        """
        if table not in self.tables:
            raise BrokenFileError(f"{self.path}: has no table {table}")
        present = [name for name in columns if name in self.tables[table]]
        names = ", ".join(f'"{name}"' for name in present) or "NULL"
        try:
            cursor = self._connection.execute(f'SELECT {names} FROM "{table}"')
            while rows := cursor.fetchmany(_BATCH):
                found = dict(zip(present, zip(*rows, strict=True), strict=False))
                yield {name: _column(found[name]) if name in found else np.full(len(rows), MISSING) for name in columns}
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise BrokenFileError(f"{self.path}: table {table} is damaged ({error})") from error


def _column(values: Sequence[Any]) -> Any:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int}:
        return np.array([MISSING if value is None else value for value in values], dtype=np.int64)
    if kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@contextmanager
def open_database(path: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Iterator[Database]:
    """Open the SQLite file at `path`, read-only and immutable; a packed one may unpack to `limit_bytes`.

    Raises
    ------
    NotFoundError
        There is no such file.
    BrokenFileError
        It is no SQLite file, or its schema is damaged.
    """
    with tempfile.TemporaryDirectory(prefix="seqpoint.") as folder:
        file = unpack_to(path, Path(folder), limit_bytes)
        try:
            connection = sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro&immutable=1", uri=True)
        except sqlite3.Error as error:
            raise BrokenFileError(f"{path}: cannot be opened ({error})") from error
        try:
            yield Database(path, _tables(path, connection), connection)
        finally:
            connection.close()


def _tables(path: Path, connection: sqlite3.Connection) -> Mapping[str, tuple[str, ...]]:
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        names = [
            name
            for name, root in connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'")
            if root and isinstance(name, str) and '"' not in name
        ]
        return MappingProxyType(
            {name: tuple(r[1] for r in connection.execute(f'PRAGMA table_info("{name}")')) for name in names}
        )
    except sqlite3.Error as error:
        raise BrokenFileError(f"{path}: no usable SQLite file ({error})") from error
