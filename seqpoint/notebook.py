"""Results: what every result of the front door has in common, and its tables of text for the terminal and for pages.

A `Result` says its sentences, its tables and its notes; printing, notebooks and JSON are made of these.
Each column of a table has a sentence in `datasets/columns.toml`: what `--explain` and a report show. A test fails on a
column without one.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from html import escape
from itertools import chain
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, overload

import msgspec

from profilers.errors import InvalidInputError
from profilers.files import shipped_table
from seqpoint.table_files import Sheet, write_sheets
from seqpoint.units import duration

if TYPE_CHECKING:
    from pandas import DataFrame as DataFrame
else:
    DataFrame = Any  # pandas takes a quarter of a second to load


#: Rows of a table on a screen by default; ``--all`` and the JSON have all.
TOP: Final = 12
#: Lines that a command prints by default.
SCREEN: Final = 40
#: Parts of names of kernels that tell them not apart.
COMMON: Final = re.compile(r"^void |\b(?:at::native::|std::)|\(anonymous namespace\)::")
#: Columns of names from traces, which lose their middle where others break.
NAMES: Final = frozenset(
    {"name", "kernel", "kernels", "operator", "host operator", "module", "range", "file", "shapes"}
)
#: Rows of a table and characters of a name that a notebook shows; `.table()` has all of them.
_SHOWN_ROWS, _NAME = 25, 64
#: Ranks from which a table sums them up, and ranks with most that it then shows.
_MANY_RANKS, _WORST_RANKS = 8, 3


@dataclass(frozen=True)
class Table:
    """A table of text, for the terminal or a page.

    Parameters
    ----------
    title : str
        Title above the table.
    columns : tuple of str
        Headings; a column whose heading ends in a tilde is text, the others are numbers, aligned to the right.
    rows : sequence of tuple
        Cells, as many as there are headings.
    verbose : bool
        Whether only ``--verbose`` or ``--all`` shows the table.
    marked : int
        Row that a page highlights; -1 for none.
    note : str
        Text that a page shows below the table.
    brief : sequence of tuple
        Rows that stand for all where these do not fit; by default the first.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    verbose: bool = False
    marked: int = -1
    note: str = ""
    brief: Sequence[tuple[object, ...]] = ()

    def most(self, rows: int) -> Sequence[tuple[object, ...]]:
        """Return at most so many rows: all of them, those that stand for all, or the first.

        Examples
        --------
        >>> list(Table("Squares", ("n", "square"), [(1, 1), (2, 4), (3, 9)]).most(2))
        [(1, 1), (2, 4)]
        """
        if len(self.rows) <= rows and not (self.brief and len(self.rows) > _MANY_RANKS):
            return self.rows
        return (self.brief or self.rows)[:rows]

    @property
    def names(self) -> tuple[str, ...]:
        """Heading of each column."""
        return tuple(name.removesuffix("~") for name in self.columns)

    @property
    def kinds(self) -> tuple[str, ...]:
        """``"text"`` or ``"number"`` for each column."""
        return tuple("text" if name.endswith("~") else "number" for name in self.columns)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentence on each column, as `--explain` prints it; "" for a column without one."""
        known = sentences(self.title, self.names)
        return tuple(known.get(name, "") for name in self.names)

    def frame(self) -> DataFrame:
        """Return the table for pandas; its cells stay text."""
        return data_frame(self.rows, list(self.names))

    def sheet(self) -> Sheet:
        """Return the table with all rows, to be written to a file."""
        is_text = tuple(kind == "text" for kind in self.kinds)
        return Sheet(self.title, self.names, is_text, self.rows, self.sentences)


class _Cells(Formatter):
    """Format strings with the units of `table_of`, whose names are keys or attributes of a row."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a key of the row, or an attribute if the row has no keys."""
        (row,) = args
        return row[key] if isinstance(row, Mapping) else getattr(row, str(key))

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Format a value: a dash if it is unknown, a time, or a number scaled to the unit at the end of its format."""
        if value is None or value != value:
            return "-"
        if format_spec in _FORMATS:
            return _FORMATS[format_spec](value)
        for unit, factor in _UNITS.items():
            if format_spec.endswith(unit):
                return format(factor * value, f"{format_spec.removesuffix(unit)}f")
        return super().format_field(value, format_spec)


def _rate(value: float) -> str:
    """Return a rate in 3 digits, at most 3 of them after the point.

    Examples
    --------
    >>> [_rate(value) for value in (0.0, 2.671e-05, 0.02417, 0.25, 622.8, 1273.4)]
    ['0', '<0.001', '0.024', '0.25', '623', '1270']
    """
    if 0 < abs(value) < _LEAST_RATE:
        return f"<{_LEAST_RATE}"
    digits = min(2 - math.floor(math.log10(abs(value))), 3) if value else 0
    text = f"{round(value, digits):.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


#: Least rate that a table tells from 0.
_LEAST_RATE: Final = 0.001
#: Formats of `table_of` that are none of Python's.
_FORMATS: Mapping[str, Callable[[float], str]] = MappingProxyType({"time": duration, "rate": _rate})
#: Units of a format, with the factor from a share, from seconds, and from nanoseconds.
_UNITS: Mapping[str, float] = MappingProxyType({"%": 1e2, "ms": 1e3, "us": 1e-3})


class _Rows(Sequence[tuple[object, ...]]):
    """Rows of text that are made when they are shown: a table of a trace has thousands, and a screen a dozen."""

    def __init__(self, formats: Sequence[str], rows: Iterable[object]) -> None:
        self._formats, self._rows, self._cells = formats, list(rows), _Cells()

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> tuple[object, ...]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[object, ...]]: ...
    def __getitem__(self, at: int | slice) -> Any:
        return [self._row(row) for row in self._rows[at]] if isinstance(at, slice) else self._row(self._rows[at])

    def __eq__(self, other: object) -> bool:
        return list(self) == other

    def __repr__(self) -> str:
        return repr(list(self))

    def _row(self, row: object) -> tuple[object, ...]:
        return tuple(self._cells.vformat(text, (row,), {}) for text in self._formats)


def by_rank(table: Table, worst: Sequence[float | None]) -> Table:
    """Return a table with a row for each rank that can be shown in brief: the worst three, the median and the least.

    Parameters
    ----------
    table : Table
        The table; its first column is the rank. Rows beyond those of `worst`, such as a sum, are always shown.
    worst : sequence of float or None
        What the ranks are ordered by, one for each row; the largest is the worst.

    Examples
    --------
    >>> table = Table("Waits", ("rank", "ms"), [(0, 5), (1, 9), (2, 7), (3, 8), (4, 1), ("all", 30)])
    >>> by_rank(table, [5, 9, 7, 8, 1]).brief
    [(1, 9), (3, 8), (2, 7), ('least: 4', 1), ('all', 30)]
    """
    order = sorted(range(len(worst)), key=lambda row: -(worst[row] or 0.0))
    if len(order) <= _WORST_RANKS:
        return table
    others = {len(order) // 2: "median: ", len(order) - 1: "least: "}
    cells = [table.rows[row] for row in order[:_WORST_RANKS]]
    for at, name in others.items():
        rank, *figures = table.rows[order[at]]
        cells += [(f"{name}{rank}", *figures)] if at >= _WORST_RANKS else []
    return replace(table, brief=[*cells, *table.rows[len(worst) :]])


def table_of(
    title: str, columns: Mapping[str, str], rows: Iterable[object], *, verbose: bool = False, note: str = ""
) -> Table:
    """Return the table of some results.

    Parameters
    ----------
    title : str
        Title above the table.
    columns : mapping of str to str
        Headings, as `Table` takes them, and the format string of the cells below each. A format may be ``time`` (from
        nanoseconds), or ``rate`` (three digits, never in powers of ten). It may end in a unit, which is not printed:
        ``%`` (from a share), ``ms`` (from seconds) or ``us`` (from nanoseconds). None and NaN are a dash in any format.
    rows : iterable of object
        Result of each row. The names of the format strings are its keys, or its attributes.
    verbose : bool
        Whether only ``--verbose`` shows the table.
    note : str
        Text that a page shows below the table.

    Examples
    --------
    >>> table_of("Errors", {"kind~": "{kind}", "err %": "{error:.1%}"}, [{"kind": "matmul", "error": 0.125}]).rows
    [('matmul', '12.5')]
    """
    return Table(title, tuple(columns), _Rows(list(columns.values()), rows), verbose, note=note)


def without_middle(name: str, most: int) -> str:
    """Return a name that is short, and different from others: without namespaces, then arguments, then its middle.

    Parameters
    ----------
    name : str
        The name, such as that of a kernel.
    most : int
        Most characters of the result.

    Examples
    --------
    >>> without_middle("void at::native::vectorized_elementwise_kernel<4, add>", 30)
    'vectorized_elem..ernel<4, add>'
    >>> without_middle("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 40)
    'ncclDevKernel_AllGather_RING_LL'
    """
    name = name if len(name) <= most else COMMON.sub("", name)
    name = name if len(name) <= most else _without_arguments(name)
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}..{name[len(name) - most + half + 2 :]}"


def _without_arguments(name: str) -> str:
    """Return the name of a kernel without the arguments in brackets at its end."""
    depth, i = 0, len(name)
    while i > 0 and (depth or i == len(name)):
        i -= 1
        depth += (name[i] == ")") - (name[i] == "(")
    return name[:i] if name.endswith(")") and i else name


def names_within(names: Sequence[str], most: int) -> list[str]:
    """Return names of at most `most` characters, so that two that differ stay different.

    They are shortened as by `without_middle`. Where two become the same, what stays is around the first character that
    differs; if they are still the same, they end in a number.

    Examples
    --------
    >>> names_within(["gemm_bf16_128x64_tn_kernel_first", "gemm_bf16_128x32_tn_kernel_first"], 20)
    ['gemm_..16_128x64_tn_', 'gemm_..16_128x32_tn_']
    """
    short = {name: without_middle(name, most) for name in names}
    for same in _same(short):
        at = next(i for i in range(max(map(len, same))) if len({name[: i + 1] for name in same}) > 1)
        head = most // 4
        for name in same:
            start = min(max(at - (most - head) // 2, head), len(name) - (most - head - 2))
            short[name] = f"{name[:head]}..{name[start : start + most - head - 2]}"
    for number, name in enumerate(chain.from_iterable(_same(short)), 1):
        short[name] = f"{short[name][: most - 1 - len(str(number))]}#{number}"
    return [short[name] for name in names]


def rows_within(table: Table, rows: Sequence[tuple[object, ...]], most: int) -> list[tuple[object, ...]]:
    """Return rows of a table with names of at most `most` characters."""
    columns = zip(table.names, zip(*rows, strict=True), strict=False)
    cells = [names_within(list(map(str, each)), most) if name in NAMES else each for name, each in columns]
    return list(zip(*cells, strict=True))


def _same(short: Mapping[str, str]) -> list[list[str]]:
    """Return the groups of names that are the same when they are short."""
    groups: dict[str, list[str]] = {}
    for name, text in short.items():
        groups.setdefault(text, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def shortened(text: str, length: int) -> str:
    """Return a text of at most `length` characters; a longer text is cut and ends in dots.

    Examples
    --------
    >>> shortened("vectorized", 8), shortened("gemm", 8)
    ('vecto...', 'gemm')
    """
    return text if len(text) <= length else text[: length - 3] + "..."


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, singular or plural.

    Examples
    --------
    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def data_frame(content: Any, columns: list[str] | None = None) -> DataFrame:
    """Return a table of pandas, which loads when the first table is made.

    Parameters
    ----------
    content : sequence or mapping
        Rows, or columns by name, as `pandas.DataFrame` takes them.
    columns : list of str, optional
        Names of the columns of rows that have none.
    """
    import pandas as pd

    return pd.DataFrame(content, columns=columns)


class Result:
    """What a function of the front door returns: sentences, rows, notes and charts, shown alike everywhere.

    A result says each of them in a method. It prints as its sentences and its main table, and a notebook shows its
    sentences and notes with the tables of `frames`.
    """

    #: Heading in a notebook.
    heading: ClassVar[str] = ""

    @property
    def screen(self) -> int:
        """Most lines that the command prints by default."""
        return SCREEN

    def summary(self) -> Sequence[str]:
        """Return the result in sentences."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return what the figures do and do not tell, in sentences."""
        return ()

    def closing(self) -> Sequence[str]:
        """Return the lines below the tables; by default the notes."""
        return [f"note: {note}" for note in self.notes()]

    def table(self) -> DataFrame:
        """Return the main rows of the result, for pandas."""
        return data_frame([])

    def tables(self) -> Sequence[Table | str]:
        """Return the tables of text that the command prints, the most telling first, and lines below some of them."""
        return ()

    def frames(self) -> "Mapping[str, DataFrame | Table]":
        """Return the tables that a notebook shows, by caption; by default those that the command prints."""
        tables = (table for table in self.tables() if isinstance(table, Table))
        return {table.title: table for table in tables if not table.verbose} or {self.heading: self.table()}

    def sheets(self, tables: "Iterable[Table | str] | None" = None) -> list[Sheet]:
        """Return the tables of text with all rows, and the main rows with all digits, to be written to a file.

        Parameters
        ----------
        tables : iterable of Table or str, optional
            The tables of text, if they are not those of the result.
        """
        texts = self.tables() if tables is None else tables
        main = self.table()
        is_text = tuple(type_.kind not in "iuf" for type_ in main.dtypes)
        rows = list(main.itertuples(index=False, name=None))
        main_rows = Sheet("Rows with all digits", tuple(map(str, main.columns)), is_text, rows)
        return [*(each.sheet() for each in texts if isinstance(each, Table)), main_rows]

    def save(self, path: str | Path) -> Path:
        """Write all tables, with all rows and columns, and what the columns mean, whole or not at all.

        Parameters
        ----------
        path : str or path
            File to write; ``.xlsx``, ``.md`` or ``.csv`` sets the format.

        Raises
        ------
        InvalidInputError
            The name has another ending, the file cannot be written, or a table has more rows than a sheet.
        DependencyError
            A spreadsheet needs openpyxl.
        """
        return write_sheets(path, self.sheets())

    def plot(self) -> Any:
        """Return the main chart, as a HoloViews object."""
        raise InvalidInputError(f"there is no chart of {self.heading.lower()}")

    def to_dict(self) -> dict[str, Any]:
        """Return what the command prints with --json."""
        return {}

    def __repr__(self) -> str:
        """Return what the command prints, without its layout."""
        return as_text([*self.summary(), *self.closing()], self.table())

    def _repr_html_(self) -> str:
        return as_html(self.heading, [*self.summary(), *self.closing()], self.frames())


def as_text(sentences: Sequence[str], table: DataFrame) -> str:
    """Return a result as plain text: its sentences, then its table with every column.

    Parameters
    ----------
    sentences : sequence of str
        Sentences on the result, a line each.
    table : pandas.DataFrame
        Its main table.
    """
    return "\n".join([*sentences, table.to_string(index=False, float_format="{:,.4g}".format)])


def as_html(heading: str, sentences: Sequence[str], tables: Mapping[str, "DataFrame | Table"]) -> str:
    """Return a result as HTML; all text is escaped, since names come from traces.

    Parameters
    ----------
    heading : str
        Name of the result.
    sentences : sequence of str
        Sentences below the heading, a paragraph each.
    tables : mapping of str to pandas.DataFrame or Table
        Tables by caption. The first 25 rows of each are shown, or those that stand for all; a table without rows is
        left out.

    Examples
    --------
    >>> print(as_html("A & B", ["One sentence."], {}))
    <div><h4>A &amp; B</h4>
    <p>One sentence.</p></div>
    """
    parts = [f"<h4>{escape(heading)}</h4>", *(f"<p>{escape(sentence)}</p>" for sentence in sentences)]
    for caption, table in tables.items():
        if isinstance(table, Table):
            rows = table.most(_SHOWN_ROWS)
            shown, total, content = len(rows), len(table.rows), _text_html(replace(table, rows=rows))
        else:
            shown, total, content = min(len(table), _SHOWN_ROWS), len(table), _table_html(table.head(_SHOWN_ROWS))
        if total:
            more = f" ({shown} of {total} rows)" if shown < total else ""
            parts += [f"<p><b>{escape(caption)}</b>{more}</p>", content]
    return "<div>" + "\n".join(parts) + "</div>"


def _text_html(table: Table) -> str:
    """Return a table of text as HTML, with numbers aligned to the right; long names lose their middle."""
    sides = ["left" if kind == "text" else "right" for kind in table.kinds]
    styles = [f'style="text-align: {side}; padding: 0 0.5em"' for side in sides]

    def line(tag: str, cells: Sequence[object]) -> str:
        texts = (f"<{tag} {style}>{escape(str(cell))}</{tag}>" for style, cell in zip(styles, cells, strict=True))
        return f"<tr>{''.join(texts)}</tr>"

    rows = [line("th", table.names), *(line("td", row) for row in rows_within(table, table.rows, _NAME))]
    return '<table border="0" class="dataframe">' + "\n".join(rows) + "</table>"


def _table_html(table: DataFrame) -> str:
    """Return a table as HTML, its texts in full."""
    import pandas as pd

    times: Any = {
        name: _number for name, type_ in table.dtypes.items() if str(name).endswith("_ns") and type_.kind == "i"
    }
    with pd.option_context("display.max_colwidth", None):
        return table.to_html(index=False, escape=True, border=0, float_format=_number, formatters=times)


def _number(value: float) -> str:
    """Return a number with four digits, and with all digits before the point.

    Examples
    --------
    >>> _number(1234567.8), _number(0.0123456)
    ('1,234,568', '0.01235')
    """
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"


class Sentences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sentences of columns: `shared` by all tables, and `tables` by the title of a table."""

    shared: dict[str, str]
    tables: dict[str, dict[str, str]]


@cache
def all_sentences() -> Sentences:
    """Return the sentences on all columns."""
    return shipped_table("columns.toml", "sentences on columns", Sentences)


def sentences(title: str, names: Sequence[str]) -> dict[str, str]:
    """Return the sentence on each column of a table; columns without one are left out.

    Parameters
    ----------
    title : str
        Title of the table.
    names : sequence of str
        Headings of its columns.

    Examples
    --------
    >>> sentences("Events", ["kind", "no such column"])
    {'kind': 'Kind of event.'}
    """
    of_table = [columns for pattern, columns in all_sentences().tables.items() if fnmatchcase(title, pattern)]
    explained = {name: _sentence(" ".join(name.split()), of_table) for name in names}
    return {name: sentence for name, sentence in explained.items() if sentence}


def _sentence(name: str, of_table: Sequence[Mapping[str, str]]) -> str:
    """Return the sentence on a column: that of its table, the shared one, or that of a pattern of its table."""
    for columns in (*of_table, all_sentences().shared):
        if name in columns:
            return columns[name]
    patterns = [(pattern, text) for columns in of_table for pattern, text in columns.items()]
    return next((text for pattern, text in patterns if fnmatchcase(name, pattern)), "")
