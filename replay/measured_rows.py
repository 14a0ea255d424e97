"""Rows of measurements in CSV files, or in those of a folder; what cannot be read is named by file and row."""

import csv
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from profilers.errors import InvalidInputError, NotFoundError

__all__ = ["Row", "measured_count", "measured_rows"]

#: Texts by column; None where a line is short.
Row = Mapping[str, str | None]
T = TypeVar("T")
#: Of a whole number, at most, and of a text that a message repeats.
_DIGITS, _SHOWN = 9, 40


def measured_rows(path: str | Path, columns: Sequence[str], read: Callable[[str, Row], T]) -> list[T]:
    """Return what `read` makes of every row.

    Parameters
    ----------
    path : str or Path
        A CSV file in UTF-8 with these columns; or a folder, in which files with other columns are passed over.
    columns : sequence of str
    read : callable
        ``(place, row)``, with the place (file and row, from 1) for messages; a row that it refuses ends the reading.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; a column is missing; there is no row; or a row is no CSV in UTF-8: it is named.
    """
    root = Path(path)
    if root.is_dir():
        files = [file for file in sorted(root.rglob("*.csv")) if _is_file(file) and set(columns) <= set(_header(file))]
        if not files:
            raise NotFoundError(f"{root}: no CSV file with the columns {', '.join(columns)}")
        return [found for file in files for found in _read(file, read)]
    if not root.is_file():
        raise NotFoundError(f"{root}: no such file")
    if missing := sorted(set(columns) - set(_header(root))):
        raise InvalidInputError(f"{root}: lacks {', '.join(missing)}; needed are {', '.join(columns)}")
    return _read(root, read)


def _is_file(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except OSError as error:  # a link to nothing or to itself
        raise InvalidInputError(f"{file}: cannot be read ({error.strerror})") from error


def _header(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            return next(csv.reader(stream), [])
    except csv.Error:
        return []
    except OSError as error:
        raise InvalidInputError(f"{file}: cannot be read ({error.strerror})") from error


def _read(file: Path, read: Callable[[str, Row], T]) -> list[T]:
    found = [read(place, row) for place, row in _rows(file)]
    if not found:
        raise InvalidInputError(f"{file}: there is no row below the header")
    return found


def _rows(file: Path) -> Iterator[tuple[str, Row]]:
    """Yield place and row; about 5 us each."""
    place = f"{file}: row 1"
    try:
        # Bytes that are no UTF-8 become lone surrogates, so that the row that has them can be named.
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            for number, row in enumerate(csv.DictReader(stream), 1):
                "".join(text for text in row.values() if isinstance(text, str)).encode()
                yield place, row
                place = f"{file}: row {number + 1}"
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{place}: no UTF-8; save the file in that encoding") from error
    except csv.Error as error:
        raise InvalidInputError(f"{place}: no CSV ({error})") from error
    except OSError as error:
        raise InvalidInputError(f"{place}: cannot be read ({error.strerror})") from error


def measured_count(row: Row, name: str, digits: int = _DIGITS) -> int:
    """Return a whole number of 1 or more.

    Raises
    ------
    InvalidInputError
        It is none, or has more digits.

    Examples
    --------
    >>> measured_count({"batch": " 8"}, "batch")
    8
    """
    text = (row[name] or "").strip()
    # Digits of other scripts and powers (`²`) count as digits for Python.
    if not (text.isascii() and text.isdigit() and len(text) <= digits) or int(text) < 1:
        shown = text[:_SHOWN]
        raise InvalidInputError(f"{name} is {shown!r}; it must be a whole number of 1 or more, of {digits} digits")
    return int(text)
