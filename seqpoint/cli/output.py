"""Output of the commands: tables and JSON on stdout, messages and progress on stderr.

A table that is wider than the terminal is narrowed: headings break at spaces, texts break behind ``+``, ``:`` and
spaces, names of traces lose their middle, and numbers never break (`fit`). A result fits a screen: a table has as many
rows as there is room for, and the last line names the tables that have none (`print_tables`).
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.cells import cell_len

from profilers.errors import InvalidInputError
from seqpoint.notebook import NAMES, TOP, Result, Table, counted, names_within, sentences, shortened
from seqpoint.units import duration

if TYPE_CHECKING:
    from replay.engine.timeline import Timeline
    from replay.graph.graph import Hardware
    from seqpoint.table_files import Sheet


#: A column of text is not narrowed below this width, nor one of names below the second, or the third if it must be.
_MIN_TEXT_WIDTH, _MIN_NAME_WIDTH, _LEAST_NAME_WIDTH = 16, 28, 22
#: Width of tables if stdout is not a terminal and COLUMNS is not set.
_DEFAULT_WIDTH = 140
#: Most notes, and least rows of a table that is shown.
_MOST_NOTES, _LEAST_ROWS = 5, 4
#: Space between two columns; one character where two do not fit.
_GAP = "  "


def fit(
    table: Table, rows: Sequence[Sequence[object]], width: int | None
) -> tuple[list[str], list[str], list[list[str]]]:
    """Return a table as lines that fit a width, unless numbers and words of the header need more.

    Parameters
    ----------
    table : Table
        The table, for its headings.
    rows : sequence of sequence
        The rows to show; control characters are replaced.
    width : int, optional
        Width in characters; None for as wide as the cells are.

    Returns
    -------
    header : list of str
        Lines of the headings.
    rule : list of str
        The line below them.
    rows : list of list of str
        Lines of each row.
    """
    names, texts = list(table.names), [kind == "text" for kind in table.kinds]
    cells = [[clean(cell) for cell in row] for row in rows]
    is_name = [text and name in NAMES for name, text in zip(names, texts, strict=True)]
    gaps = len(_GAP) * (len(names) - 1)
    if width is not None and sum(_natural_widths(names, cells)) + gaps > width:
        names = [name.replace(" ", "\n") for name in names]
    natural, least = _natural_widths(names, cells), _least_widths(names, cells, texts, is_name)
    if width is not None and sum(least) + len(least) - 1 > width:
        least = [min(low, _LEAST_NAME_WIDTH) if named else low for low, named in zip(least, is_name, strict=True)]
    gap = _GAP if width is None or sum(least) + gaps <= width else " "
    gaps, widths = len(gap) * (len(names) - 1), natural
    if width is not None:
        cap = max(natural, default=0)
        while cap and sum(widths) > width - gaps:
            cap -= 1
            widths = [max(low, min(cap, high)) for low, high in zip(least, natural, strict=True)]
    columns = [
        names_within(column, size) if named else [_folded(cell, size) if text else cell for cell in column]
        for column, size, text, named in zip(zip(*cells, strict=True), widths, texts, is_name, strict=False)
    ]
    folded = [_lines(row, widths, texts, gap) for row in zip(*columns, strict=True)]
    return _lines(names, widths, texts, gap), [gap.join("─" * size for size in widths)], folded


def _lines(cells: Sequence[str], widths: Sequence[int], texts: Sequence[bool], gap: str) -> list[str]:
    """Return the lines of a row whose cells may have several; numbers are at the right."""
    parts = [cell.split("\n") for cell in cells]
    return [
        gap.join(_padded(part[i] if i < len(part) else "", size, text)
                  for part, size, text in zip(parts, widths, texts, strict=True)).rstrip()
        for i in range(max(map(len, parts), default=0))
    ]  # fmt: skip


def _padded(text: str, width: int, is_text: bool) -> str:
    space = " " * (width - cell_len(text))
    return text + space if is_text else space + text


def _natural_widths(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the widths of the columns without line breaks in cells."""
    widths = [max(map(cell_len, name.split("\n"))) for name in names]
    for row in rows:
        widths = [max(width, cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
    return widths


def _least_widths(
    names: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[bool], is_name: Sequence[bool]
) -> list[int]:
    """Return the widths that the columns need: of texts the longest word, up to a limit."""
    widths = _natural_widths(names, ())
    for row in rows:
        for i, cell in enumerate(row):
            longest = cell_len(cell)
            if is_name[i]:
                longest = min(longest, _MIN_NAME_WIDTH)
            elif texts[i]:
                longest = min(max(cell_len(word.rstrip(" ")) for word in _words(cell)), _MIN_TEXT_WIDTH)
            widths[i] = max(widths[i], longest)
    return widths


def _words(text: str) -> list[str]:
    """Return the pieces of a text that stay on a line, each with the space behind it."""
    return re.split(r"(?<=[+: ])", text)


def _folded(text: str, width: int) -> str:
    """Return a text in lines that end behind a ``+``, ``:`` or space, or where a word is longer than a line."""
    if cell_len(text) <= width:
        return text
    lines = [""]
    for word in chain.from_iterable(_pieces(each, width) for each in _words(text)):
        if lines[-1] and cell_len(lines[-1] + word.rstrip(" ")) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip(" ") for line in lines)


def _pieces(word: str, width: int) -> list[str]:
    return (
        [word[at : at + width] for at in range(0, len(word), width)] if cell_len(word.rstrip(" ")) > width else [word]
    )


def clean(text: object) -> str:
    """Return text from a trace without control characters, which could drive a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def print_lines(*lines: str) -> None:
    """Print lines of data."""
    for line in lines:
        click.echo(clean(line))


def message(text: str) -> None:
    """Print a line to stderr."""
    click.echo(clean(text), err=True)


def print_json(content: Any) -> None:
    """Print JSON; NaN and infinity become null."""
    click.echo(json.dumps(_finite(content), indent=1, ensure_ascii=True))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and value - value != 0 else value


@dataclass(frozen=True)
class View:
    """How much of a result a command prints.

    Parameters
    ----------
    everything : bool
        Whether to print all tables, rows and notes.
    wide : bool
        Whether to print names as long as they are.
    notes : bool
        Whether to print all notes.
    top : int, optional
        Rows of a table, of any number of lines; by default a table has 12 at most, and all tables fit a screen.
    """

    everything: bool = False
    wide: bool = False
    notes: bool = False
    top: int | None = None


#: Key of the view in the context of a command.
VIEW = "seqpoint.view"


def current_view() -> View:
    """Return the view that the options of this command ask for."""
    context = click.get_current_context(silent=True)
    return View(**({} if context is None else context.meta.get(VIEW, {})))


def print_result(result: Result, json_: bool, tables: Callable[[], Iterable[Table | str]] | None = None) -> None:
    """Print a result as JSON, or as its sentences, its tables and its closing lines: on a screen, by default.

    Parameters
    ----------
    result : Result
        The result.
    json_ : bool
        Whether to print JSON.
    tables : callable, optional
        Returns the tables to print, if they are not those of the result.
    """
    view = current_view()
    if json_:
        print_json(_first(result.to_dict(), view.top))
        return
    sentences_, content = list(result.summary()), list(result.tables() if tables is None else tables())
    keep_sheets(lambda: result.sheets(content))
    closing = list(filter(None, result.closing()))
    more = max(len(closing) - _MOST_NOTES, 0) if not (view.everything or view.notes) else 0
    closing = [*closing[: len(closing) - more], *([f"{counted(more, 'more note')}: --notes"] if more else [])]
    print_lines(*sentences_)
    left = result.screen - _height([*sentences_, *closing])
    _print_groups(content, None if view.everything or view.top else left)
    print_lines(*closing)


def _first(content: Any, top: int | None) -> Any:
    """Return JSON with the first elements of each list of rows."""
    if top is None:
        return content
    if isinstance(content, Mapping):
        return {key: _first(value, top) for key, value in content.items()}
    is_rows = isinstance(content, list | tuple) and all(isinstance(row, Mapping) for row in content)
    return [_first(row, top) for row in content[:top]] if is_rows else content


def _height(texts: Iterable[str]) -> int:
    """Return the number of lines that sentences take."""
    return sum(max(-(-cell_len(text) // _width()), 1) for text in texts)


def print_tables(content: Iterable[Table | str]) -> None:
    """Print tables, and the lines below them.

    Parameters
    ----------
    content : iterable of Table or str
        The tables, the most telling first, and sentences, each on the table before it.
    """
    groups = list(content)
    keep_sheets(lambda: [each.sheet() for each in groups if isinstance(each, Table)])
    _print_groups(groups, None)


def _print_groups(content: Iterable[Table | str], left: int | None) -> None:
    """Print tables in so many lines. They get rows in turn; those without room are named in the last line."""
    view = current_view()
    groups: list[list[Table | str]] = []
    for each in content:
        if isinstance(each, Table) or not groups:
            groups.append([])
        groups[-1].append(each)
    shown = [group for group in groups if view.everything or not (isinstance(group[0], Table) and group[0].verbose)]
    heights = [_Height.of(group) for group in shown]
    rows, hidden = _allotted(heights, left, None if view.everything else view.top or TOP)
    for group, count in zip(shown, rows, strict=True):
        for each in group if count is not None else ():
            if isinstance(each, str):
                print_lines(each)
            else:
                _print(each, None if view.everything else count)
    names = [re.split(r"[,(]", str(getattr(shown[i][0], "title", "")))[0].strip() for i in hidden]
    if names := list(dict.fromkeys(filter(None, names))):
        print_lines(shortened(f"more with --all: {', '.join(names)}", _width()))


class _Height(NamedTuple):
    """Lines of a table: around its rows, of each row, and the number of all of its rows."""

    around: int
    rows: list[int]
    total: int

    @classmethod
    def of(cls, group: Sequence[Table | str]) -> "_Height":
        texts = _height(each for each in group if isinstance(each, str))
        if not isinstance(group[0], Table):
            return cls(texts, [], 0)
        rows = group[0].most(TOP)
        header, _, lines = fit(group[0], rows, _table_width())
        return cls(texts + 2 + len(header), [len(row) for row in lines], len(group[0].rows))

    def lines(self, rows: int) -> int:
        return self.around + sum(self.rows[:rows]) + (rows < self.total)


def _allotted(heights: Sequence[_Height], left: int | None, top: int | None) -> tuple[list[int | None], list[int]]:
    """Return the number of rows of each table, None for one that has no room, and the numbers of those."""
    if left is None:
        return [height.total if top is None else top for height in heights], []
    rows: list[int | None] = []
    for i, height in enumerate(heights):
        least = min(_LEAST_ROWS, len(height.rows))
        spare = left - (i + 1 < len(heights) or None in rows)  # a line names what has no room
        rows.append(least if height.lines(least) <= spare or not i else None)
        left -= height.lines(least) if rows[-1] is not None else 0
    left -= None in rows
    for i, height in enumerate(heights):
        count = rows[i]
        while count is not None and count < len(height.rows):
            more = height.lines(count + 1) - height.lines(count)
            if more > left:
                break
            count, left = count + 1, left - more
        rows[i] = count
    return rows, [i for i, count in enumerate(rows) if count is None]


def print_table(title: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    """Print a table, at most as wide as the terminal or as COLUMNS says, unless numbers and headings need more.

    Parameters
    ----------
    title : str
        Title above the table.
    columns : sequence of str
        Headings; a column whose heading ends in a tilde is text, the others are numbers, aligned to the right.
    rows : iterable of tuple
        Cells of each row; control characters are replaced.
    """
    table = Table(title, tuple(columns), list(rows))
    keep_sheets(lambda: [table.sheet()])
    _print(table, None)


def _print(table: Table, rows: int | None) -> None:
    """Print at most so many rows of a table, by default all, and what its columns mean if that was asked for."""
    shown = table.rows if rows is None or len(table.rows) <= (current_view().top or 0) else table.most(rows)
    header, rule, lines = fit(table, shown, _table_width())
    print_lines(table.title)
    for line in header:
        click.echo(click.style(line, bold=True))
    print_lines(*rule, *(line for row in lines for line in row))
    if left := len(table.rows) - len(shown):
        print_lines(f"and {left:,} more: --all")
    explain_columns(table.title, table.names)


#: Key of the tables that a command keeps to write them, in its context; absent without --save-tables.
_SHEETS = "seqpoint.sheets"


def keep_sheets(sheets: "Callable[[], list[Sheet]]") -> None:
    """Keep tables that are printed for the file of `saved_tables`, if the command has one."""
    context = click.get_current_context(silent=True)
    if context is not None and _SHEETS in context.meta:
        context.meta[_SHEETS] += sheets()


@contextmanager
def saved_tables(path: str | None) -> Iterator[None]:
    """Write the tables that a command prints to a file, if the user named one and the command has no error."""
    if not path:
        yield
        return
    from seqpoint.table_files import check_table_file, write_sheets

    check_table_file(path)
    context = click.get_current_context()
    context.meta[_SHEETS] = []
    status = None
    try:
        yield
    except click.exceptions.Exit as stop:  # of a gate, behind the output
        status = stop
    if not context.meta[_SHEETS]:
        raise InvalidInputError(f"{path}: the command printed no table")
    write_sheets(path, context.meta[_SHEETS])
    message(f"wrote {path}")
    if status is not None:
        raise status


def explain_columns(title: str, names: Sequence[str]) -> None:
    """Print a sentence on each column of a table that has not been explained, if the command was asked to explain."""
    explained = _explained_columns()
    for name, sentence in sentences(title, names).items():
        if explained is not None and (name, sentence) not in explained:
            explained.add((name, sentence))
            print_lines(f"  {name}: {sentence}")


#: Key of the columns that a command has explained, in the context of the command; absent without --explain.
_EXPLAINED = "seqpoint.explained"


def explain_tables(context: click.Context, wanted: bool) -> None:
    """Make `print_table` print a sentence on each column, once for each command."""
    if wanted:
        context.meta[_EXPLAINED] = set()


def _explained_columns() -> set[tuple[str, str]] | None:
    """Return the columns and sentences that this command has printed; None without --explain."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_EXPLAINED)


def _table_width() -> int | None:
    return None if current_view().wide else _width()


def _width() -> int:
    """Return the width of the terminal; of another output what COLUMNS says, or 140."""
    if sys.stdout.isatty():
        return get_terminal_size().columns
    named = os.environ.get("COLUMNS", "")
    is_width = named.isascii() and named.isdigit() and 0 < len(named) < 5 and int(named)
    return int(named) if is_width else _DEFAULT_WIDTH


def write_timelines(path: str | None, timelines: Callable[[], "Mapping[str, Timeline]"]) -> None:
    """Write timelines for https://ui.perfetto.dev, if the user named a file."""
    if path:
        from replay.writers.perfetto import write_perfetto

        write_perfetto(Path(path), timelines())
        message(f"wrote {path}")


def save_plot(plot: Callable[[], Any], path: str | None) -> None:
    """Write a chart, if the user named a page."""
    if path:
        plot().save(path)
        message(f"wrote {path}")


def note_guess(hardware: "Hardware") -> None:
    """Say on stderr that the device is a guess, if it is one."""
    if hardware.known_by == "file name" and hardware.device is not None:
        message(f"note: the device {hardware.device.name} is a guess from the file's name (see --device)")


#: Seconds between lines of progress where stderr is a file or a pipe.
_LOGGED_S = 15.0


def byte_progress(what: str) -> Callable[[int, int, str], None] | None:
    """Return a function that shows bytes, rate and time left on stderr, or None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        return None
    started = time.monotonic()

    def show(done: int, total: int, name: str) -> None:
        elapsed = time.monotonic() - started
        rate = done / elapsed if elapsed > 0 else 0.0
        left = f", {duration((total - done) / rate * 1e9)} left" if rate > 0 and done < total else ""
        text = f"{what} {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {rate / 1e6:,.0f} MB/s{left}  {clean(name)[:60]}"
        click.echo(f"\r\x1b[K{text}", nl=done >= total, err=True)

    return show


def progress(what: str) -> Callable[[int, int, str], None]:
    """Return a function that shows progress on stderr: in place on a terminal, else in a line after each 15 s."""
    shown_at = time.monotonic()

    def show(done: int, total: int, name: str) -> None:
        nonlocal shown_at
        text = f"{what} {done + 1}/{total} {clean(name)[:60]}"
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", nl=done + 1 >= total, err=True)
        elif time.monotonic() - shown_at >= _LOGGED_S:
            shown_at = time.monotonic()
            message(text)

    return show


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on stderr the elapsed time of a task without progress; nothing if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    done, started = threading.Event(), time.monotonic()

    def show() -> None:
        while not done.wait(1.0):
            click.echo(f"\r\x1b[K{clean(what)} {time.monotonic() - started:.0f} s", nl=False, err=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        click.echo("\r\x1b[K", nl=False, err=True)
