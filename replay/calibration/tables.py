"""Tables of measurements, which calibrations are fitted to and scored on.

`read_tables` walks over files. `MeasuredTable` reads the columns of a Parquet or CSV file. `measured_rows` reads a CSV
file row by row. Every value is checked; an error names the file and the row, from 1. Within `skipping_rows`, a row that
is refused is noted and left out instead.
"""

import csv
import hashlib
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.trace.arrays import Bools, Floats, Ints

T = TypeVar("T")
#: Largest number of digits of a whole number, and of characters of a text that a message repeats.
_DIGITS, _SHOWN_CHARACTERS = 9, 40


@dataclass(frozen=True)
class SkippedRow:
    """A row that was refused and left out.

    Parameters
    ----------
    file : str
        Path of the file.
    row : int or str, optional
        Number of the row, from 1 below the header, or its name; None for the whole file.
    reason : str
        What is wrong.
    error : Exception, optional
        The error of a whole file.
    """

    file: str
    row: int | str | None
    reason: str
    error: SeqPointError | None = field(default=None, compare=False, repr=False)

    def content(self) -> dict[str, object]:
        """Return file, row and reason as JSON with stable keys."""
        return {"file": self.file, "row": self.row, "reason": self.reason}

    def __str__(self) -> str:
        row = "" if self.row is None else f"row {self.row}: " if isinstance(self.row, int) else f"{self.row}: "
        return f"{self.file}: {row}{self.reason}"


#: Skipped rows by file and row.
Skipped = dict[tuple[str, int | str | None], SkippedRow]
#: The rows that are skipped in this context; None where a refused row is an error.
_SKIPPED: ContextVar[Skipped | None] = ContextVar("skipped rows", default=None)


class InvalidRowsError(InvalidInputError):
    """Rows of a file are refused; the message names the first.

    Parameters
    ----------
    rows : sequence of SkippedRow
        The rows, one at least.
    """

    def __init__(self, rows: Sequence[SkippedRow]) -> None:
        super().__init__(str(rows[0]))
        self.rows = tuple(rows)


@contextmanager
def skipping_rows() -> Iterator[Skipped]:
    """Note refused rows and leave them out in this context, instead of an error; yield the notes, which fill up."""
    skipped: Skipped = {}
    token = _SKIPPED.set(skipped)
    try:
        yield skipped
    finally:
        _SKIPPED.reset(token)


def refuse_row(file: str | Path, row: int | str, reason: object) -> None:
    """Note that a row is left out, or raise an error if this context skips no rows.

    Parameters
    ----------
    file : str or Path
        The file.
    row : int or str
        Number of the row, from 1, or its name.
    reason : object
        What is wrong.

    Raises
    ------
    InvalidRowsError
        Refused rows are errors here; the message names file and row.
    """
    refused, skipped = SkippedRow(str(file), row, str(reason)), _SKIPPED.get()
    if skipped is None:
        raise InvalidRowsError([refused])
    skipped.setdefault((refused.file, row), refused)


def refuse_file(file: str | Path, error: SeqPointError) -> None:
    """Note that a file is left out, or raise its error if this context skips nothing.

    Parameters
    ----------
    file : str or Path
        The file, or its name.
    error : SeqPointError
        Error at the file.
    """
    if (skipped := _SKIPPED.get()) is None:
        raise error
    reason = str(error).removeprefix(f"{file}: ")
    skipped.setdefault((str(file), None), SkippedRow(str(file), None, reason, error))


def note_row(where: str, reason: object) -> None:
    """Note that a row is of no use here, if this context notes rows.

    Parameters
    ----------
    where : str
        File and row, as `measured_rows` gives them.
    reason : object
        Why it is left out.
    """
    file, _, row = where.rpartition(": row ")
    if _SKIPPED.get() is not None:
        refuse_row(file, int(row), reason)


def skipped_rows(file: Path) -> Ints:
    """Return the rows of a file that this context skips, from 0, ascending."""
    rows = [row - 1 for name, row in _SKIPPED.get() or () if name == str(file) and isinstance(row, int)]
    return np.array(sorted(rows), dtype=np.int64)


def read_tables(
    path: str | Path, read: Callable[[Path], list[T] | str], *, suffixes: Sequence[str], table: str
) -> list[T]:
    """Read a table of measurements, or every table of a layout in a folder.

    Parameters
    ----------
    path : str or Path
        File, or a folder of any depth. Files of a folder that have another layout are passed over.
    read : callable
        Function from a file to its measurements, or to the reason why it has another layout.
    suffixes : sequence of str
        Suffixes of the files of a folder that are tried.
    table : str
        Description of the layout, for the message if a folder has no such table.

    Raises
    ------
    NotFoundError
        There is no such file, or the folder has no table of the layout.
    InvalidInputError
        The file has another layout, or `read` refuses its content.
    """
    root = Path(path)
    if root.is_dir():
        contents = [read(file) for file in sorted(root.rglob("*")) if file.suffix in suffixes]
        tables = [content for content in contents if not isinstance(content, str)]
        if not tables:
            raise NotFoundError(f"{root}: no {table}")
        return [measurement for content in tables for measurement in content]
    if not root.is_file():
        raise NotFoundError(f"{root}: no such file")
    content = read(root)
    if isinstance(content, str):
        raise InvalidInputError(f"{root}: {content}")
    return content


@dataclass(frozen=True)
class MeasuredTable:
    """A table of measurements in Parquet or CSV.

    Parameters
    ----------
    file : Path
        File of the table.
    content : pyarrow.Table
        Content of the file, without rows that are skipped.
    rows : array of int64, optional
        Numbers of the rows in the file, from 0; by default they count up.
    """

    file: Path
    content: pa.Table
    rows: Ints | None = field(default=None, compare=False)

    #: Suffixes of the files that are tables.
    SUFFIXES = (".parquet", ".csv")
    #: Reason why a file that `read` refuses is no table.
    UNREADABLE = "cannot be read as a table; give Parquet or CSV"

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """Return the table of a file; None if the file is no table."""
        broken: list[SkippedRow] = []
        try:
            content = pq.ParquetFile(file).read() if file.suffix == ".parquet" else _read_csv(file, broken)
        except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError):
            return None
        for row in broken:
            refuse_row(row.file, int(row.row or 0), row.reason)
        unread = np.array([int(row.row or 0) - 1 for row in broken], dtype=np.int64)
        rows = np.setdiff1d(np.arange(len(content) + len(unread)), unread)
        if (kept := ~np.isin(rows, skipped_rows(file))).all():
            return cls(file, content, rows if len(unread) else None)
        return cls(file, content.filter(pa.array(kept)), rows[kept])

    @classmethod
    def open(cls, file: Path, columns: Sequence[str] = ()) -> Self:
        """Return the table of a file that has some columns and a row.

        Raises
        ------
        NotFoundError
            There is no such file.
        InvalidInputError
            The file is no table, lacks a column, or has no row.
        """
        if not file.is_file():
            raise NotFoundError(f"{file}: no such file")
        if (table := cls.read(file)) is None:
            raise InvalidInputError(f"{file}: {cls.UNREADABLE}")
        if missing := next((column for column in columns if column not in table.columns), ""):
            raise InvalidInputError(f"{file}: no column {missing}; needed are {', '.join(columns)}")
        if not len(table.content):
            raise InvalidInputError(f"{file}: there is no row")
        return table

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.content.column_names)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file, by which a fit remembers the files that it has seen."""
        return hashlib.sha256(self.file.read_bytes()).hexdigest()

    def number(self, row: int) -> int:
        """Return the number of a row in the file, from 1; rows are counted from 0 here."""
        return (row if self.rows is None else int(self.rows[row])) + 1

    def refusal(self, row: int, problem: object, *others: tuple[int, object]) -> InvalidRowsError:
        """Return the error that names a row, and more rows with their problems.

        Parameters
        ----------
        row : int
            The row, counted from 0 here and from 1 in the message.
        problem : object
            What is wrong.
        *others : (int, object)
            Rows that are refused with it.
        """
        refused = [(row, problem), *others]
        return InvalidRowsError([SkippedRow(str(self.file), self.number(at), str(why)) for at, why in refused])

    def refuse(self, problems: Iterable[tuple[int, object]]) -> None:
        """Raise the error of `refusal` if there is a row with a problem."""
        if refused := list(problems):
            raise self.refusal(*refused[0], *refused[1:])

    def refuse_doubles(self, names: Iterable[str]) -> None:
        """Check that the table has each of these columns once at most."""
        for name in names:
            if (count := self.columns.count(name)) > 1:
                raise InvalidInputError(
                    f"{self.file}: column {name} occurs more than once: it is there {count} times; leave one"
                )

    def floats(self, name: str) -> Floats:
        """Return a column of numbers; NaN where a value is missing."""
        column = self.content[name]
        if pa.types.is_string(column.type):  # one cell of a CSV file that is no number makes the column text
            column = pc.if_else(pc.equal(pc.utf8_trim_whitespace(column), ""), None, column)
            wrong = pc.invert(pc.match_substring_regex(column, _NUMBER)).fill_null(False)
            rows = np.flatnonzero(wrong.to_numpy(zero_copy_only=False))
            if len(rows) < len(column) - column.null_count:
                texts = column.take(pa.array(rows)).to_pylist()
                self.refuse(
                    (row, f"{name} is {text[:_SHOWN_CHARACTERS]!r}; it must be a number")
                    for row, text in zip(rows.tolist(), texts, strict=True)
                )
            column = pc.utf8_trim_whitespace(column)
        try:
            values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0]
            raise InvalidInputError(f"{self.file}: column {name} is no number ({reason})") from error
        return np.asarray(values, dtype=np.float64)

    def numbers(
        self,
        name: str,
        bounds: tuple[float, float] = (1, np.inf),
        *,
        whole: bool = False,
        rows: Bools | None = None,
    ) -> Floats:
        """Return a column of numbers above zero.

        Parameters
        ----------
        name : str
            Name of the column.
        bounds : (float, float)
            Smallest and largest number.
        whole : bool
            Whether the numbers must be whole.
        rows : array of bool, optional
            Rows to check; by default all.
        """
        values = self.floats(name)
        for valid, rule in (
            ((values > 0) & (values < np.inf), "it must be finite and above zero"),
            ((values >= bounds[0]) & (values <= bounds[1]), f"it must be {bounds[0]} to {bounds[1]}"),
            ((values == np.floor(values)) | (not whole), "it must be whole"),
        ):
            invalid = np.flatnonzero(~valid if rows is None else ~valid & rows)
            self.refuse((row, f"{name} is {values[row]:g}; {rule}") for row in invalid.tolist())
        return values

    def texts(self, name: str, allowed: Iterable[str] = (), what: str = "") -> npt.NDArray[np.object_]:
        """Return a column of texts.

        Parameters
        ----------
        name : str
            Name of the column.
        allowed : iterable of str
            Texts that the column may hold; by default any.
        what : str
            Noun for an allowed text, for the message.
        """
        column = self.content[name]
        if pa.types.is_binary(column.type):  # one cell of a CSV file that is no UTF-8 makes the column bytes
            odd = [row for row, cell in enumerate(column.to_pylist()) if not _is_utf8(cell)]
            self.refuse((row, f"{name} is no UTF-8; save the file in that encoding") for row in odd)
        try:
            values = column.cast(pa.string()).to_pylist()
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{self.file}: column {name} is no UTF-8 text") from error
        accepted, missing = set(allowed), f"{name} is None; it must be text"
        choice = f"there are {', '.join(allowed)}"
        self.refuse(  # a Python loop over measurements, about 0.1 us each
            (row, missing if value is None else f"no {what} {value!r:.60}; {choice}")
            for row, value in enumerate(values)
            if value is None or (accepted and value not in accepted)
        )
        return np.array(values, dtype=object)

    def devices(self, names: npt.NDArray[np.object_]) -> dict[str, Device]:
        """Return the catalogue's devices that a column names, by the column's names."""
        devices, unknown = {}, {}
        for name in np.unique(names).tolist():
            try:
                devices[name] = find_device(name)
            except NotFoundError as error:
                unknown[name] = error
        rows = np.flatnonzero(np.isin(names, list(unknown))).tolist() if unknown else []
        self.refuse((row, unknown[names[row]]) for row in rows)
        return devices


def _is_utf8(cell: bytes | None) -> bool:
    try:
        return cell is None or isinstance(cell.decode(), str)
    except UnicodeDecodeError:
        return False


#: A number as a table writes it.
_NUMBER = r"^\s*[-+]?((\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|nan|NaN|inf|Infinity)\s*$"


def _read_csv(file: Path, broken: list[SkippedRow]) -> pa.Table:
    """Return the content of a CSV file, and note the lines that have another number of cells than the header."""

    def note(row: pcsv.InvalidRow) -> str:
        problem = f"{row.actual_columns} cells, not {row.expected_columns}"
        broken.append(SkippedRow(str(file), row.number - 1, problem))
        return "error" if _SKIPPED.get() is None else "skip"

    options = pcsv.ParseOptions(invalid_row_handler=note)
    return pcsv.read_csv(file, pcsv.ReadOptions(use_threads=False), options)


#: Texts of a row by column; None where a line is short.
Row = Mapping[str, str | None]


def measured_rows(path: str | Path, columns: Sequence[str], read: Callable[[str, Row], T]) -> list[T]:
    """Return the results of `read` over the rows of CSV files.

    Parameters
    ----------
    path : str or Path
        CSV file in UTF-8 with these columns; or a folder, in which files with other columns are passed over.
    columns : sequence of str
        Columns that the file must have.
    read : callable
        Function of ``(where, row)``, with the file and the row's number. An error of it ends the reading, and is raised
        again with both.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; a column is missing; there is no row; or a row, which the message names, is no CSV in
        UTF-8.
    """
    needed = f"CSV file with the columns {', '.join(columns)}"
    return read_tables(path, lambda file: _csv_rows(file, columns, read), suffixes=[".csv"], table=needed)


def _csv_rows(file: Path, columns: Sequence[str], read: Callable[[str, Row], T]) -> list[T] | str:
    """Return the results of `read` over the rows, about 5 us each; or the reason why the file has another layout."""
    number = 0
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return "is no regular file"
        # Bytes that are no UTF-8 become lone surrogates, so that the row that has them can be named.
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            table = csv.DictReader(stream)
            if missing := sorted(set(columns) - set(table.fieldnames or ())):
                return f"lacks {', '.join(missing)}; needed are {', '.join(columns)}"
            rows: list[T] = []
            ended = False
            while not ended:
                number += 1
                try:
                    row = next(table, None)
                    ended = row is None
                    rows += [] if row is None else [_result(file, number, row, read)]
                except (SeqPointError, csv.Error, UnicodeEncodeError) as error:
                    refuse_row(file, number, _row_problem(error))
    except csv.Error as error:
        return f"no CSV ({error})"
    except OSError as error:  # such as a link to nothing or to itself
        raise InvalidInputError(f"{file}: cannot be read ({error.strerror})") from error
    if not rows:
        raise InvalidInputError(f"{file}: there is no row below the header")
    return rows


def _result(file: Path, number: int, row: Row, read: Callable[[str, Row], T]) -> T:
    """Return the result of `read` on a row, whose bytes must be UTF-8."""
    "".join(text for text in row.values() if isinstance(text, str)).encode()
    return read(f"{file}: row {number}", row)


def _row_problem(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "no UTF-8; save the file in that encoding"
    return f"no CSV ({error})" if isinstance(error, csv.Error) else str(error)


def measured_count(row: Row, name: str, digits: int = _DIGITS) -> int:
    """Return a whole number of 1 or more.

    Parameters
    ----------
    row : mapping
        Row of a table.
    name : str
        Name of the column.
    digits : int
        Largest number of digits.

    Raises
    ------
    InvalidInputError
        The text is no such number, or has more digits.

    Examples
    --------
    >>> measured_count({"batch": " 8"}, "batch")
    8
    """
    text = (row[name] or "").strip()
    # Digits of other scripts and powers (`²`) count as digits for Python.
    if not (text.isascii() and text.isdigit() and len(text) <= digits) or int(text) < 1:
        shown = text[:_SHOWN_CHARACTERS]
        raise InvalidInputError(f"{name} is {shown!r}; it must be a whole number of 1 or more, of {digits} digits")
    return int(text)


def measured_number(row: Row, name: str) -> float:
    """Return the number above zero of a column.

    Parameters
    ----------
    row : mapping
        Row of a table.
    name : str
        Name of the column.

    Raises
    ------
    InvalidInputError
        The text is no number above zero.

    Examples
    --------
    >>> measured_number({"e2e_ms": " 250"}, "e2e_ms")
    250.0
    """
    text = (row[name] or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (isfinite(value) and value > 0):
        raise InvalidInputError(f"{name} is {text[:_SHOWN_CHARACTERS]!r}; it must be a number above zero")
    return value
