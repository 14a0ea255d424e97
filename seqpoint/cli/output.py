"""What commands print: tables, JSON, messages.

Tables that fit a width: headers break at spaces, texts behind ``+``, ``:`` and spaces, numbers nowhere.

Printing: tables and JSON to stdout, messages and progress to stderr.
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from seqpoint.units import duration

#: Texts become no narrower for the sake of other columns.
_NARROWEST = 16


@dataclass(frozen=True)
class Fitted:
    """A table with its line breaks.

    Parameters
    ----------
    header : list of str
    rows : list of list of str
    widths : list of int
        Of the columns, without padding.
    padding : int
        At each side of a column, 1 or 0.
    """

    header: list[str]
    rows: list[list[str]]
    widths: list[int]
    padding: int

    @property
    def width(self) -> int:
        """Of the whole table, with its lines."""
        return sum(self.widths) + _frame(len(self.widths), self.padding)


def fit(header: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[bool], width: int) -> Fitted:
    """Return a table that is at most so wide, where numbers and words of the header leave room for that.

    Parameters
    ----------
    header : sequence of str
    rows : sequence of sequence of str
    texts : sequence of bool
        Which columns are text; the others are numbers.
    width : int
    """
    names, padding = list(header), 1
    if sum(_widths(names, rows)) + _frame(len(names), 1) > width:
        names = [name.replace(" ", "\n") for name in header]
        least = _least(names, rows, texts)
        padding = int(sum(least) + _frame(len(names), 1) <= width)
    natural, least = _widths(names, rows), _least(names, rows, texts)
    room, cap = width - _frame(len(names), padding), max(natural, default=0)
    while cap and sum(found := [max(one, min(cap, most)) for one, most in zip(least, natural, strict=True)]) > room:
        cap -= 1
    widths = found if cap else least
    folded = [[_folded(cell, widths[i]) if texts[i] else cell for i, cell in enumerate(row)] for row in rows]
    return Fitted(names, folded, widths, padding)


def _frame(columns: int, padding: int) -> int:
    return columns + 1 + 2 * padding * columns


def _widths(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the widths of the columns, unfolded."""
    found = [max(map(cell_len, name.split("\n"))) for name in names]
    for row in rows:
        found = [max(one, cell_len(cell)) for one, cell in zip(found, row, strict=True)]
    return found


def _least(names: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[bool]) -> list[int]:
    """Return the widths that columns need: of texts the longest word up to a limit."""
    found = _widths(names, ())
    for row in rows:
        for i, cell in enumerate(row):
            longest = min(max(map(cell_len, _words(cell)), default=0), _NARROWEST) if texts[i] else cell_len(cell)
            found[i] = max(found[i], longest)
    return found


def _words(text: str) -> list[str]:
    return [word.rstrip(" ") for word in re.split(r"(?<=[+: ])", text)]


def _folded(text: str, width: int) -> str:
    """Return a text in lines that end behind a ``+``, ``:`` or space; a word that is longer than a line as it is."""
    if cell_len(text) <= width:
        return text
    lines = [""]
    for word in re.split(r"(?<=[+: ])", text):
        if lines[-1] and cell_len(lines[-1] + word.rstrip(" ")) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip(" ") for line in lines)


def clean(text: object) -> str:
    """Return text from a trace without control characters, which could drive a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def say(text: str) -> None:
    """Print a line of data."""
    click.echo(clean(text))


def message(text: str) -> None:
    """Print a line to stderr."""
    click.echo(clean(text), err=True)


def print_json(content: Any) -> None:
    """Print JSON; what is not a number in JSON (NaN) becomes null."""
    click.echo(json.dumps(_finite(content), indent=1, ensure_ascii=True))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and value - value != 0 else value


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose name ends in a tilde are text, the others are numbers at the right.

    It is as wide as the terminal, or as COLUMNS says, at most; wider only where numbers and headers, which are not
    broken inside a word, need it.
    """
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _width())
    names, texts = [name.rstrip("~") for name in columns], [name.endswith("~") for name in columns]
    cells = [[clean(cell) for cell in row] for row in rows]
    fitted = fit(names, cells, texts, console.width)
    console.width = max(console.width, fitted.width)
    table = Table(title=title, title_justify="left", header_style="bold", padding=(0, fitted.padding))
    for name, is_text, width in zip(fitted.header, texts, fitted.widths, strict=True):
        table.add_column(Text(name), justify="left" if is_text else "right", width=width, overflow="fold")
    for row in fitted.rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _width() -> int:
    """Return how wide to print where stdout is no terminal."""
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isascii() and given.isdigit() and 0 < len(given) < 5 and int(given) else 140


def byte_progress(what: str) -> Callable[[int, int, str], None] | None:
    """Return a function that shows bytes, rate and time left on stderr, or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        return None
    started = time.monotonic()

    def show(done: int, total: int, name: str) -> None:
        spent = time.monotonic() - started
        rate = done / spent if spent > 0 else 0.0
        left = f", {duration((total - done) / rate * 1e9)} left" if rate > 0 and done < total else ""
        text = f"{what} {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {rate / 1e6:,.0f} MB/s{left}  {clean(name)[:60]}"
        click.echo(f"\r\x1b[K{text}", nl=done >= total, err=True)

    return show


def progress(what: str) -> Callable[[int, int, str], None] | None:
    """Return a function that shows progress on stderr, or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int, name: str) -> None:
        click.echo(f"\r\x1b[K{what} {done + 1}/{total} {clean(name)[:60]}", nl=done + 1 >= total, err=True)

    return show


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on stderr for how long something has been going on that cannot say how far it is; nothing on no terminal."""
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
