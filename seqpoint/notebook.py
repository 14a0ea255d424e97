"""Results: what every result of the front door has in common, and its tables of text for the terminal and for pages.

A `Result` says its sentences, its tables and its notes; printing, notebooks and JSON are made of these.
Each column of a table has a sentence in `datasets/columns.toml`: what `--explain` and a report show. A test fails on a
column without one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from html import escape
from string import Formatter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from profilers.errors import InvalidInputError
from profilers.files import shipped_table
from seqpoint.units import duration

if TYPE_CHECKING:
    from pandas import DataFrame as DataFrame
else:
    DataFrame = Any  # pandas takes a quarter of a second to load


#: Rows of a table as text by default; the JSON has all.
TOP: Final = 20
#: End of the title of a table that leaves rows out.
MORE: Final = " (--top shows more)"
#: Parts of names of kernels that tell them not apart.
COMMON: Final = re.compile(r"^void |\b(?:at::native::|std::)|\(anonymous namespace\)::")
#: Rows of a table that a notebook shows; `.table()` has all of them.
_SHOWN_ROWS = 25


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
        Whether only ``--verbose`` shows the table.
    marked : int
        Row that a page highlights; -1 for none.
    note : str
        Text that a page shows below the table.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    verbose: bool = False
    marked: int = -1
    note: str = ""

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
        if format_spec == "time":
            return duration(value)
        for unit, factor in _UNITS.items():
            if format_spec.endswith(unit):
                return format(factor * value, f"{format_spec.removesuffix(unit)}f")
        return super().format_field(value, format_spec)


#: Units of a format, with the factor from a share, from seconds, and from nanoseconds.
_UNITS: Mapping[str, float] = MappingProxyType({"%": 1e2, "ms": 1e3, "us": 1e-3})


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
        nanoseconds). It may end in a unit, which is not printed: ``%`` (from a share), ``ms`` (from seconds) or ``us``
        (from nanoseconds). None and NaN are a dash in any format.
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
    cells = _Cells()
    lines = [tuple(cells.vformat(text, (row,), {}) for text in columns.values()) for row in rows]
    return Table(title, tuple(columns), lines, verbose, note=note)


def more_of(rows: Sequence[object], top: int) -> str:
    """Return the end of the title of a table with the first `top` rows; "" if these are all.

    Examples
    --------
    >>> more_of("abc", 2), more_of("abc", 3)
    (': 2 of 3 (--top shows more)', '')
    """
    return f": {top} of {len(rows)}{MORE}" if len(rows) > top else ""


def shortened(text: str, length: int) -> str:
    """Return a text of at most `length` characters; a longer text is cut and ends in dots.

    Examples
    --------
    >>> shortened("vectorized", 8), shortened("gemm", 8)
    ('vecto...', 'gemm')
    """
    return text if len(text) <= length else text[: length - 3] + "..."


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

    def tables(self, top: int = TOP) -> Sequence[Table | str]:
        """Return the tables of text that the command prints, and lines between them.

        Parameters
        ----------
        top : int
            Most rows of a table that may be long.
        """
        return ()

    def frames(self) -> "Mapping[str, DataFrame | Table]":
        """Return the tables that a notebook shows, by caption; by default those that the command prints."""
        tables = (table for table in self.tables() if isinstance(table, Table))
        shown = {table.title.replace(MORE, " (.table() has all)"): table for table in tables}
        return shown or {self.heading: self.table()}

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
        Tables by caption. The first 25 rows of each are shown, and all of a table of text; a table without rows is left
        out.

    Examples
    --------
    >>> print(as_html("A & B", ["One sentence."], {}))
    <div><h4>A &amp; B</h4>
    <p>One sentence.</p></div>
    """
    parts = [f"<h4>{escape(heading)}</h4>", *(f"<p>{escape(sentence)}</p>" for sentence in sentences)]
    for caption, table in tables.items():
        if isinstance(table, Table):
            parts += [f"<p><b>{escape(caption)}</b></p>", _text_html(table)] if table.rows else []
            continue
        if table.empty:
            continue
        more = f" (the first {_SHOWN_ROWS} of {len(table)} rows)" if len(table) > _SHOWN_ROWS else ""
        parts.append(f"<p><b>{escape(caption)}</b>{more}</p>")
        parts.append(_table_html(table.head(_SHOWN_ROWS)))
    return "<div>" + "\n".join(parts) + "</div>"


def _text_html(table: Table) -> str:
    """Return a table of text as HTML, with numbers aligned to the right."""
    sides = ["left" if kind == "text" else "right" for kind in table.kinds]

    def line(tag: str, cells: Sequence[object]) -> str:
        pairs = zip(sides, cells, strict=True)
        texts = (
            f'<{tag} style="text-align: {side}; padding: 0 0.5em">{escape(str(cell))}</{tag}>' for side, cell in pairs
        )
        return f"<tr>{''.join(texts)}</tr>"

    rows = [line("th", table.names), *(line("td", row) for row in table.rows)]
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
