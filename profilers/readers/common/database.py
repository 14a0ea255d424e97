"""SQLite files from untrusted sources: read-only, plain tables alone, and no code of the file is executed."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError
from profilers.readers.common.source import DEFAULT_LIMIT_BYTES, decompress_to
from profilers.readers.common.sqlite_pages import PageFile, Stored, Unusual, scan_table
from profilers.trace.arrays import MISSING

#: The first bytes of every SQLite 3 file.
SIGNATURE = b"SQLite format 3\0"
_BATCH = 65536
#: Longest value that SQLite may put together, from however long a chain of pages.
_LONGEST = 64 << 20
#: Steps of SQLite's machine between two looks at how many a table may cost.
_STEPS = 100_000
#: Exceptions of a query on a damaged file; a message of SQLite's that quotes the file may be no UTF-8.
_FAILURES = (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError)
#: Actions of SQLite that reading a plain table needs; a schema that asks for any other is refused.
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_PRAGMA})
_PRAGMAS = frozenset({"table_xinfo", "index_list", "trusted_schema", "query_only", "writable_schema"})


#: How a table lies in the file: the first page of its tree, and its columns by name.
_Layout = tuple[int, Mapping[str, Stored]]


@dataclass(frozen=True)
class Database:
    """The plain tables of an open SQLite file.

    Parameters
    ----------
    path : Path
        As the user named it, for messages.
    """

    path: Path
    _layouts: Mapping[str, _Layout]
    _connection: sqlite3.Connection
    _descriptor: int

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the columns by table, without views, virtual tables and generated columns."""
        return {table: tuple(columns) for table, (_, columns) in self._layouts.items()}

    def read(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield batches of about 65,536 rows of the named columns, in the order of the rows.

        A column that the table lacks is null.

        Yields
        ------
        dict
            By column: an int64 array whose null is `MISSING` if the batch holds only integers and nulls;
            otherwise an Arrow array of strings or float64.

        Raises
        ------
        BrokenFileError
            The table is absent or damaged.
        """
        if table not in self._layouts:
            raise BrokenFileError(f"{self.path}: has no table {table}")
        root, stored = self._layouts[table]
        present = [name for name in dict.fromkeys(columns) if name in stored]
        done = 0
        try:
            pages = PageFile(self._descriptor)
            for rows, arrays in scan_table(pages, root, [stored[name] for name in present]):
                done += rows
                if rows:
                    yield _batch(columns, present, arrays, rows)
        except Unusual:
            yield from self._select(table, columns, present, done)

    def _select(self, table: str, columns: Sequence[str], present: list[str], skip: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table after the first `skip`, read by SQLite."""
        names = ", ".join(f'"{name}"' for name in present) or "NULL"
        budget = _Budget(os.fstat(self._descriptor).st_size, len(present))
        self._connection.set_progress_handler(budget.spend_steps, _STEPS)
        try:
            cursor = self._connection.execute(f'SELECT {names} FROM "{table}" LIMIT -1 OFFSET {skip}')
            while rows := budget.take(cursor):
                arrays = [_column(values) for values in zip(*rows, strict=True)] if present else []
                yield _batch(columns, present, arrays, len(rows))
        except _FAILURES as error:
            raise BrokenFileError(f"{self.path}: table {table} is damaged ({error})") from error


class _Budget:
    """Limits on the cost of a table: one row for every four bytes of the file at most, and no byte twice.

    A tree whose pages name each other, or texts that share their pages, would otherwise never end.
    """

    def __init__(self, size: int, columns: int) -> None:
        self._steps = (size // 4 + 1000) * (columns + 8)
        self._bytes = 2 * size + (1 << 20)
        self._failure: Exception | None = None

    def spend_steps(self) -> bool:
        """Return whether SQLite has to stop."""
        self._steps -= _STEPS
        return self._steps < 0

    def take(self, cursor: sqlite3.Cursor) -> list[tuple[Any, ...]]:
        """Return the next rows, which may be those before a failure; the next call then raises it."""
        if self._failure is not None:
            raise self._failure
        rows: list[tuple[Any, ...]] = []
        try:
            for row in cursor:  # about 1 us each
                rows.append(row)
                self._bytes -= sum(len(value) for value in row if isinstance(value, str | bytes))
                if self._bytes < 0:
                    raise OverflowError("its texts are longer than the file")
                if len(rows) == _BATCH:
                    break
        except _FAILURES as error:
            if not rows:
                raise
            self._failure = error
        return rows


def _batch(columns: Sequence[str], present: Sequence[str], arrays: Sequence[Any], rows: int) -> dict[str, Any]:
    by_name = dict(zip(present, arrays, strict=True))
    return {name: by_name[name] if name in by_name else np.full(rows, MISSING) for name in columns}


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
    return _decoded(value) if isinstance(value, bytes) else str(value)


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "replace")


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
        file = decompress_to(path, Path(folder), limit_bytes)
        with file.open("rb") as raw:
            connection = _connect(path, file)
            try:
                yield Database(path, _layouts(path, connection), connection, raw.fileno())
            finally:
                connection.close()


def _connect(path: Path, file: Path) -> sqlite3.Connection:
    try:
        # Another thread may read batches ahead; only one thread uses the connection at a time.
        name = f"file:{quote(str(file.absolute()))}?mode=ro&immutable=1"
        connection = sqlite3.connect(name, uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        raise BrokenFileError(f"{path}: cannot be opened ({error})") from error
    # Without this check, values from a damaged page would depend on the former content of SQLite's memory.
    connection.execute("PRAGMA cell_size_check = ON")
    connection.text_factory = _decoded
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    connection.set_authorizer(_authorise)
    return connection


def _authorise(action: int, first: str | None, _second: str | None, _name: str | None, view: str | None) -> int:
    """Allow SQLite to read a plain table; refuse functions, writes, and requests of a view or a trigger."""
    allowed = action in _ALLOWED and view is None and (action != sqlite3.SQLITE_PRAGMA or first in _PRAGMAS)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _layouts(path: Path, connection: sqlite3.Connection) -> Mapping[str, _Layout]:
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        # Nothing is written: this makes SQLite open a file that ends early, and skip statements it cannot parse.
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("PRAGMA query_only = ON")
        rows = connection.execute("SELECT name, rootpage, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        layouts = {name: (root, _stored(connection, name)) for name, root, sql in rows if _is_plain(name, root, sql)}
    except _FAILURES as error:
        raise BrokenFileError(f"{path}: no usable SQLite file ({error})") from error
    return {name: layout for name, layout in layouts.items() if layout[1]}


def _is_plain(name: Any, root: Any, sql: Any) -> bool:
    """Return whether an entry of the schema is a table; its statement decides, not only its stated type."""
    if not isinstance(name, str) or '"' in name or "\0" in name or not isinstance(root, int) or root < 1:
        return False
    return isinstance(sql, str) and sql.split(None, 2)[:2] == ["CREATE", "TABLE"]


def _stored(connection: sqlite3.Connection, table: str) -> Mapping[str, Stored]:
    """Return how each column of a table stands in a record."""
    rows = connection.execute(f'PRAGMA table_xinfo("{table}")').fetchall()
    keys = [row for row in rows if row[5]]
    indexed = any(row[3] == "pk" for row in connection.execute(f'PRAGMA index_list("{table}")'))
    columns: dict[str, Stored] = {}
    position = 0
    for _, name, declared, _, default, key, hidden in rows:
        rowid = bool(key) and len(keys) == 1 and not indexed and str(declared).upper() == "INTEGER"
        if not hidden and isinstance(name, str) and '"' not in name:
            columns[name] = Stored(None if rowid else position, _is_real(str(declared)), default is not None)
        position += hidden != 2  # a virtual generated column takes no place in the record
    return columns


def _is_real(declared: str) -> bool:
    """Return whether a declared type has the affinity REAL (sqlite.org/datatype3.html, section 3.1)."""
    name = declared.upper()
    if any(word in name for word in ("INT", "CHAR", "CLOB", "TEXT", "BLOB")):
        return False
    return any(word in name for word in ("REAL", "FLOA", "DOUB"))
