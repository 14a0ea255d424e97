"""Output of the commands: tables and JSON on stdout, messages and progress on stderr.

A table that is wider than the terminal is narrowed: headings break at spaces, texts break behind ``+``, ``:`` and
spaces, and numbers never break (`fit`).
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from seqpoint.notebook import Result, Table, sentences
from seqpoint.units import duration

if TYPE_CHECKING:
    from replay.engine.timeline import Timeline
    from replay.graph.graph import Hardware


#: A column of text is not narrowed below this width.
_MIN_TEXT_WIDTH = 16
#: Width of tables if stdout is not a terminal and COLUMNS is not set.
_DEFAULT_WIDTH = 140


def fit(
    header: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[bool], width: int
) -> tuple[list[str], list[list[str]], list[int], int]:
    """Return a table with line breaks that fits a width, unless numbers and words of the header need more.

    Parameters
    ----------
    header : sequence of str
        Headings of the columns.
    rows : sequence of sequence of str
        Cells of each row.
    texts : sequence of bool
        Whether each column is text; the others are numbers.
    width : int
        Width of the table in characters, with its lines.

    Returns
    -------
    header : list of str
        Headings of the columns, with line breaks.
    rows : list of list of str
        Cells of each row, with line breaks.
    widths : list of int
        Widths of the columns, without padding.
    padding : int
        Spaces at each side of a column, 1 or 0.
    """
    names, padding = list(header), 1
    if sum(_natural_widths(names, rows)) + _frame(len(names), 1) > width:
        names = [name.replace(" ", "\n") for name in names]
        least = _least_widths(names, rows, texts)
        padding = int(sum(least) + _frame(len(names), 1) <= width)
    natural, least = _natural_widths(names, rows), _least_widths(names, rows, texts)
    room, cap = width - _frame(len(names), padding), max(natural, default=0)
    widths = _capped(natural, least, cap)
    while cap and sum(widths) > room:
        cap -= 1
        widths = _capped(natural, least, cap)
    folded = [[_folded(cell, widths[i]) if texts[i] else cell for i, cell in enumerate(row)] for row in rows]
    return names, folded, widths, padding


def _frame(columns: int, padding: int) -> int:
    return columns + 1 + 2 * padding * columns


def _capped(natural: Sequence[int], least: Sequence[int], cap: int) -> list[int]:
    """Return the natural widths, cut to `cap` as far as the least widths allow."""
    return [max(low, min(cap, high)) for low, high in zip(least, natural, strict=True)]


def _natural_widths(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the widths of the columns without line breaks in cells."""
    widths = [max(map(cell_len, name.split("\n"))) for name in names]
    for row in rows:
        widths = [max(width, cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
    return widths


def _least_widths(names: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[bool]) -> list[int]:
    """Return the widths that the columns need: of texts the longest word, up to a limit."""
    widths = _natural_widths(names, ())
    for row in rows:
        for i, cell in enumerate(row):
            longest = (
                min(max(cell_len(word.rstrip(" ")) for word in _words(cell)), _MIN_TEXT_WIDTH)
                if texts[i]
                else cell_len(cell)
            )
            widths[i] = max(widths[i], longest)
    return widths


def _words(text: str) -> list[str]:
    """Return the pieces of a text that stay on a line, each with the space behind it."""
    return re.split(r"(?<=[+: ])", text)


def _folded(text: str, width: int) -> str:
    """Return a text in lines that end behind a ``+``, ``:`` or space; a word longer than a line stays whole."""
    if cell_len(text) <= width:
        return text
    lines = [""]
    for word in _words(text):
        if lines[-1] and cell_len(lines[-1] + word.rstrip(" ")) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip(" ") for line in lines)


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


def print_result(result: Result, json_: bool, tables: Callable[[], Iterable[Table | str]] | None = None) -> None:
    """Print a result as JSON, or as its sentences, its tables and its closing lines.

    Parameters
    ----------
    result : Result
        The result.
    json_ : bool
        Whether to print JSON.
    tables : callable, optional
        Returns the tables to print, if they are not those of the result.
    """
    if json_:
        print_json(result.to_dict())
        return
    print_lines(*result.summary())
    print_tables(result.tables() if tables is None else tables())
    print_lines(*filter(None, result.closing()))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, at most as wide as the terminal or as COLUMNS says, unless numbers and headings need more.

    Parameters
    ----------
    title : str
        Title above the table.
    columns : sequence of str
        Headings; a column whose heading ends in a tilde is text, the others are numbers, aligned to the right.
    rows : iterable of sequence
        Cells of each row; control characters are replaced.
    """
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _width())
    names, texts = [name.rstrip("~") for name in columns], [name.endswith("~") for name in columns]
    cells = [[clean(cell) for cell in row] for row in rows]
    header, lines, widths, padding = fit(names, cells, texts, console.width)
    console.width = max(console.width, sum(widths) + _frame(len(widths), padding))
    table = RichTable(title=title, title_justify="left", header_style="bold", padding=(0, padding))
    for name, is_text, width in zip(header, texts, widths, strict=True):
        table.add_column(Text(name), justify="left" if is_text else "right", width=width, overflow="fold")
    for row in lines:
        table.add_row(*map(Text, row))
    console.print(table)
    explained = _explained_columns()
    for name, sentence in sentences(title, [name.rstrip("~") for name in columns]).items():
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


def print_tables(tables: Iterable[Table | str]) -> None:
    """Print the tables of a result, and the lines between them."""
    for table in tables:
        if isinstance(table, str):
            print_lines(table)
        else:
            print_table(table.title, table.columns, table.rows)


def _width() -> int:
    """Return the width of tables if stdout is not a terminal: COLUMNS, or 140."""
    columns = os.environ.get("COLUMNS", "")
    is_width = columns.isascii() and columns.isdigit() and 0 < len(columns) < 5 and int(columns)
    return int(columns) if is_width else _DEFAULT_WIDTH


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


def progress(what: str) -> Callable[[int, int, str], None] | None:
    """Return a function that shows progress on stderr, or None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int, name: str) -> None:
        click.echo(f"\r\x1b[K{what} {done + 1}/{total} {clean(name)[:60]}", nl=done + 1 >= total, err=True)

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
