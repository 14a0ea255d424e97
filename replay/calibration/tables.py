"""Tables of measurements, which calibrations are fitted to and scored on.

`read_tables` walks over files. `MeasuredTable` reads the columns of a Parquet or CSV file. `measured_rows` reads a CSV
file row by row. Every value is checked; an error names the file and the row, from 1.
"""

import csv
import hashlib
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.trace.arrays import Bools, Floats

T = TypeVar("T")
#: Largest number of digits of a whole number, and of characters of a text that a message repeats.
_DIGITS, _SHOWN_CHARACTERS = 9, 40


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
        Content of the file.
    """

    file: Path
    content: pa.Table

    #: Suffixes of the files that are tables.
    SUFFIXES = (".parquet", ".csv")
    #: Reason why a file that `read` refuses is no table.
    UNREADABLE = "cannot be read as a table; give Parquet or CSV"

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """Return the table of a file; None if the file is no table."""
        try:
            return cls(file, pq.ParquetFile(file).read() if file.suffix == ".parquet" else pcsv.read_csv(file))
        except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError):
            return None

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.content.column_names)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file, by which a fit remembers the files that it has seen."""
        return hashlib.sha256(self.file.read_bytes()).hexdigest()

    def refusal(self, row: int, problem: object) -> InvalidInputError:
        """Return the error that names a row, which is counted from 0 here and from 1 in the message."""
        return InvalidInputError(f"{self.file}: row {row + 1}: {problem}")

    def refuse_doubles(self, names: Iterable[str]) -> None:
        """Check that the table has each of these columns once at most."""
        for name in names:
            if (count := self.columns.count(name)) > 1:
                raise InvalidInputError(
                    f"{self.file}: column {name} occurs more than once: it is there {count} times; leave one"
                )

    def floats(self, name: str) -> Floats:
        """Return a column of numbers; NaN where a value is missing."""
        try:
            values = self.content[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
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
            if len(invalid):
                raise self.refusal(int(invalid[0]), f"{name} is {values[invalid[0]]:g}; {rule}")
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
        try:
            values = self.content[name].cast(pa.string()).to_pylist()
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{self.file}: column {name} is no UTF-8 text") from error
        accepted = set(allowed)
        for row, value in enumerate(values):  # a Python loop over measurements, about 0.1 us each
            if value is None:
                raise self.refusal(row, f"{name} is {value!r}; it must be text")
            if accepted and value not in accepted:
                raise self.refusal(row, f"no {what} {value!r}; there are {', '.join(allowed)}")
        return np.array(values, dtype=object)

    def devices(self, names: npt.NDArray[np.object_]) -> dict[str, Device]:
        """Return the catalogue's devices that a column names, by the column's names."""
        devices = {}
        for name, row in zip(*np.unique(names, return_index=True), strict=True):
            try:
                devices[name] = find_device(name)
            except NotFoundError as error:
                raise self.refusal(int(row), error) from error
        return devices


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
    rows: list[T] = []
    where = str(file)
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return "is no regular file"
        # Bytes that are no UTF-8 become lone surrogates, so that the row that has them can be named.
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            table = csv.DictReader(stream)
            if missing := sorted(set(columns) - set(table.fieldnames or ())):
                return f"lacks {', '.join(missing)}; needed are {', '.join(columns)}"
            where = f"{file}: row 1"
            for number, row in enumerate(table, 1):
                "".join(text for text in row.values() if isinstance(text, str)).encode()
                rows.append(read(where, row))
                where = f"{file}: row {number + 1}"
    except SeqPointError as error:
        raise InvalidInputError(f"{where}: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{where}: no UTF-8; save the file in that encoding") from error
    except csv.Error as error:
        if where == str(file):
            return f"no CSV ({error})"
        raise InvalidInputError(f"{where}: no CSV ({error})") from error
    except OSError as error:  # such as a link to nothing or to itself
        raise InvalidInputError(f"{where}: cannot be read ({error.strerror})") from error
    if not rows:
        raise InvalidInputError(f"{file}: there is no row below the header")
    return rows


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


def measured_seconds(row: Row, name: str) -> float:
    """Return the time of a column in ms, in s.

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
    >>> measured_seconds({"e2e_ms": "250"}, "e2e_ms")
    0.25
    """
    try:
        milliseconds = float(row[name] or "")
    except ValueError:
        milliseconds = 0.0
    if not (isfinite(milliseconds) and milliseconds > 0):
        shown = (row[name] or "")[:_SHOWN_CHARACTERS]
        raise InvalidInputError(f"{name} is {shown!r}; it must be a number above zero")
    return milliseconds / 1e3
