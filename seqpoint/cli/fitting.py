"""Tables that fit a width: headers break at spaces, texts behind ``+``, ``:`` and spaces, numbers nowhere."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

__all__ = ["Fitted", "fit"]

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
