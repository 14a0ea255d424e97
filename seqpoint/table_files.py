"""Tables as files: a spreadsheet, Markdown or CSV; and a result as a comment of a pull request.

Cells come from traces: none becomes a formula of a spreadsheet, nor HTML, a link or a mention in Markdown.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from profilers.errors import DependencyError, InvalidInputError
from profilers.files import file_to_write, replaced_file

#: Rows, and characters of a name and of a cell, that a sheet can have.
_MOST_ROWS, _MOST_NAME, _MOST_CELL = 1_048_576, 31, 32_767
#: Characters of the tables of a comment, and of a cell in it; GitHub takes 65,536 characters.
_COMMENT, _COMMENT_CELL = 50_000, 100
#: Numbers as tables print them, and times, with the factor to ms.
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_TIME = re.compile(rf"({_NUMBER.pattern}) (s|ms|us|ns)")
_MS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
#: Beginnings of a text that a spreadsheet takes for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: Signs that mean something in Markdown, and those that make links and mentions of words behind them.
_MARKDOWN = re.compile(r"[\\`*{}\[\]<>|~$&!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LINK = re.compile(r"[@#]|(?<=:)(?=//)|\bwww(?=\.)")


@dataclass(frozen=True)
class Sheet:
    """A table to write.

    Parameters
    ----------
    title : str
        Title above the table.
    names : tuple of str
        Headings.
    is_text : tuple of bool
        Whether each column is text; the others are numbers and times.
    rows : sequence of tuple
        All rows.
    sentences : tuple of str
        Sentence on each column; "" for a column without one.
    """

    title: str
    names: tuple[str, ...]
    is_text: tuple[bool, ...]
    rows: Sequence[Sequence[object]]
    sentences: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """The title up to its first comma or bracket."""
        return re.split(r"[,(]", self.title)[0].strip() or "table"


def check_table_file(path: str | PathLike[str]) -> None:
    """Check that tables can be written to a file, before they are computed.

    Raises
    ------
    InvalidInputError
        The name does not end in .xlsx, .md or .csv, or the file cannot be written.
    DependencyError
        A spreadsheet needs openpyxl.
    """
    target = Path(path)
    if target.suffix not in _WRITERS:
        raise InvalidInputError(f"{target}: tables are written as .xlsx, .md or .csv; end the name in one of these")
    file_to_write(target)
    if target.suffix == ".xlsx":
        _openpyxl()


def write_sheets(path: str | PathLike[str], sheets: Sequence[Sheet]) -> Path:
    """Write tables with all rows, and a last one of what their columns mean, whole or not at all.

    Parameters
    ----------
    path : str or path
        File to write; ``.xlsx``, ``.md`` or ``.csv`` sets the format. In a spreadsheet and in CSV, columns of times are
        numbers in ms.
    sheets : sequence of Sheet
        The tables. Those without rows are left out.

    Raises
    ------
    InvalidInputError
        As `check_table_file`; or a table has more rows than a sheet has room for.
    DependencyError
        As `check_table_file`.
    """
    check_table_file(path)
    target, sheets = Path(path), [sheet for sheet in sheets if len(sheet.rows)]
    too_long = [sheet for sheet in sheets if len(sheet.rows) >= _MOST_ROWS and target.suffix == ".xlsx"]
    if too_long:
        raise InvalidInputError(
            f"{target}: the table {too_long[0].short!r} has {len(too_long[0].rows):,} rows, and a sheet has room for "
            f"{_MOST_ROWS:,} with the headings; write .csv"
        )
    explained = [
        (sheet.short, name, sentence)
        for sheet in sheets for name, sentence in zip(sheet.names, sheet.sentences, strict=False) if sentence
    ]  # fmt: skip
    columns = Sheet("Columns", ("table", "column", "meaning"), (True,) * 3, explained)
    with replaced_file(target) as stream:
        _WRITERS[target.suffix](stream, [*sheets, columns])
    return target


def _openpyxl() -> Any:
    try:
        import openpyxl
    except ImportError as error:
        raise DependencyError("a spreadsheet needs openpyxl: pip install 'seqpoint[spreadsheet]'") from error
    return openpyxl


def _write_workbook(stream: BinaryIO, sheets: Sequence[Sheet]) -> None:
    openpyxl = _openpyxl()
    from openpyxl.cell import WriteOnlyCell

    book = openpyxl.Workbook(write_only=True)
    taken: set[str] = set()
    for sheet in sheets:
        page = book.create_sheet(_sheet_name(sheet.short, taken))
        page.freeze_panes = "A2"
        for row in _valued(sheet):
            cells = [WriteOnlyCell(page, value=value) for value in row]
            for cell, value in zip(cells, row, strict=True):
                if isinstance(value, str):
                    cell.data_type, cell.quotePrefix = "s", value.startswith(_FORMULA)
            page.append(cells)
    book.save(stream)


def _sheet_name(title: str, taken: set[str]) -> str:
    """Return a name of a sheet that no other has, whatever its case, and add it to `taken`.

    Examples
    --------
    >>> taken = set()
    >>> [_sheet_name("what/if: " + "x" * 40, taken) for _ in range(2)]
    ['what if  xxxxxxxxxxxxxxxxxxxxxx', 'what if  xxxxxxxxxxxxxxxxxx (2)']
    """
    plain = "".join(c if c.isprintable() and c not in "[]:*?/\\" else " " for c in title).strip(" '") or "table"
    name, number = plain[:_MOST_NAME], 1
    while name.lower() in taken | {"history"}:
        number += 1
        name = f"{plain[: _MOST_NAME - 4 - len(str(number)) + 1]} ({number})"
    taken.add(name.lower())
    return name


def _write_csv(stream: BinaryIO, sheets: Sequence[Sheet]) -> None:
    text = io.TextIOWrapper(stream, "utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    for sheet in sheets:
        writer.writerow([sheet.title])
        for row in _valued(sheet):
            quoted = (isinstance(value, str) and value.startswith(_FORMULA) for value in row)
            writer.writerow([f"'{value}" if quote else value for value, quote in zip(row, quoted, strict=True)])
        writer.writerow([])
    text.detach()


def _valued(sheet: Sheet) -> Iterator[list[object]]:
    """Yield the headings and the rows of a table; numbers are numbers, and times are in ms, as their heading says."""
    times = [
        not is_text and any(_TIME.fullmatch(str(row[at])) for row in sheet.rows)
        for at, is_text in enumerate(sheet.is_text)
    ]
    yield [f"{name} (ms)" if is_time else name for name, is_time in zip(sheet.names, times, strict=True)]
    for row in sheet.rows:
        yield [_printable(cell) if text else _number(cell) for cell, text in zip(row, sheet.is_text, strict=True)]


def _number(cell: object) -> object:
    """Return a printed number or time as a number, a dash as None, and any other cell as text.

    Examples
    --------
    >>> _number("1,234"), _number("+250 us"), _number("-"), _number("<0.001")
    (1234, 0.25, None, '<0.001')
    """
    text = str(cell)
    if cell is None or text in ("-", "", "nan", "None"):
        return None
    if isinstance(cell, int | float):
        return cell
    if match := _TIME.fullmatch(text):
        return float(match[1].replace(",", "")) * _MS[match[2]]
    if _NUMBER.fullmatch(text):
        plain = text.replace(",", "")
        return int(plain) if re.fullmatch(r"[-+]?\d{1,15}", plain) else float(plain)
    return _printable(text)


def _printable(cell: object) -> str:
    text = "".join(c if c.isprintable() else " " for c in str(cell))
    return text if len(text) <= _MOST_CELL else f"{text[: _MOST_CELL - 3]}..."


def _write_markdown(stream: BinaryIO, sheets: Sequence[Sheet]) -> None:
    for sheet in sheets:
        stream.write(f"## {escaped(sheet.title)}\n\n{markdown_table(sheet)}\n\n".encode())


_WRITERS: Mapping[str, Callable[[BinaryIO, Sequence[Sheet]], None]] = MappingProxyType(
    {".xlsx": _write_workbook, ".csv": _write_csv, ".md": _write_markdown}
)


def escaped(text: object) -> str:
    """Return a text that Markdown shows as it is: no markup, HTML, link or mention.

    Examples
    --------
    >>> print(escaped("<b>|`x`| @me"))
    \\<b\\>\\|\\`x\\`\\| @&#8203;me
    """
    marked = _MARKDOWN.sub(r"\\\g<0>", _printable(text))
    return _LINK.sub(r"\g<0>&#8203;", marked)


def markdown_table(sheet: Sheet, most: int | None = None, width: int | None = None) -> str:
    """Return the first rows of a table in Markdown, by default all, with at most so many characters of a cell."""
    head, *rows = [[escaped(str(cell)[:width]) for cell in row] for row in (sheet.names, *sheet.rows[:most])]
    rule = ["---" if is_text else "--:" for is_text in sheet.is_text]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def as_comment(sentences: Sequence[str], sheets: Sequence[Sheet], notes: Sequence[str], most: int = 8) -> str:
    """Return a result as Markdown for a pull request: its verdict, one short table, and the rest behind a click.

    Parameters
    ----------
    sentences : sequence of str
        Sentences of the result, the verdict first.
    sheets : sequence of Sheet
        Its tables, the most telling first.
    notes : sequence of str
        What the figures do and do not tell.
    most : int
        Most rows of the first table.
    """
    verdict, *others = map(escaped, sentences)
    known = [sheet for sheet in sheets if len(sheet.rows)]
    shown = [markdown_table(sheet, most, _COMMENT_CELL) for sheet in known[:1]]
    tables = [f"**{escaped(sheet.title)}**\n\n{markdown_table(sheet, 10 * most, _COMMENT_CELL)}" for sheet in known]
    sizes = accumulate(map(len, tables))
    hidden = [table for table, size in zip(tables, sizes, strict=True) if size < _COMMENT]
    hidden += ["\n".join(f"- {escaped(note)}" for note in notes)] if notes else []
    details = ["<details><summary>All tables and notes</summary>", *hidden, "</details>"] if hidden else []
    return "\n\n".join([f"**{verdict}**", *(["  \n".join(others)] if others else []), *shown, *details])
