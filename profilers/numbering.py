"""`Index`: the rows of a kind by rank and number, as kernels find their launch by correlation."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from profilers.arrays import MISSING, Ints
from profilers.columns import Columns, parts
from profilers.compiled import compiled

__all__ = ["Index", "Numbering"]

#: Numbers that lie this many times further apart than there are of them, and more, are numbered by their order.
_SPARSE, _MORE = 4, 1 << 16


class Index:
    """The rows of a kind by rank and a number; of several with the same, the one that starts first."""

    def __init__(self, columns: Columns, kind: str, name: str) -> None:
        slices = list(parts(columns.count(kind)))
        self._ranks = Numbering(lambda: (columns.part(kind, "rank", rows) for rows in slices))
        self._numbers = Numbering(lambda: (columns.part(kind, name, rows) for rows in slices))

        def pairs() -> Iterator[Ints]:
            for rows in slices:
                yield self._pairs(columns.part(kind, "rank", rows), columns.part(kind, name, rows))

        self._places = Numbering(pairs)
        self._rows = np.full(self._places.size, -1, np.int32)
        self.duplicates = 0
        starts = columns.raw(kind, "start_ns")
        for rows, keys in zip(slices, pairs(), strict=True):
            self.duplicates += int(_enter(self._rows, self._places.of(keys), rows.start, starts))

    def find(self, ranks: Ints, numbers: Ints) -> Ints:
        """Return the row with each rank and number, or -1."""
        if not len(self._rows):
            return np.full(len(ranks), -1)
        places = self._places.of(self._pairs(ranks, numbers))
        return np.where(places < 0, -1, self._rows[places])

    def _pairs(self, ranks: Ints, numbers: Ints) -> Ints:
        rank, number = self._ranks.of(ranks), self._numbers.of(numbers)
        return np.where((rank < 0) | (number < 0), MISSING, rank * self._numbers.size + number)


class Numbering:
    """Numbers integers from 0: by their distance to the least where they lie close, else by their order.

    Parameters
    ----------
    chunks : callable
        Yields all of them; `MISSING` has no number.
    """

    def __init__(self, chunks: Callable[[], Iterator[Ints]]) -> None:
        low, high, count = 0, -1, 0
        for chunk in chunks():
            if len(present := _present(chunk)):
                least, most = int(present.min()), int(present.max())
                low, high = (min(low, least), max(high, most)) if count else (least, most)
                count += len(present)
        self._low, self._high = low, high
        #: Numbers are less than this.
        self.size = high - low + 1
        self._distinct: Ints | None = None
        if self.size > _SPARSE * count + _MORE:
            self._distinct = np.unique(np.concatenate([_present(chunk) for chunk in chunks()]))
            self.size = len(self._distinct)

    def of(self, values: Ints) -> Ints:
        """Return the number of each value, -1 where it has none."""
        if self._distinct is None:
            return np.where((values >= self._low) & (values <= self._high), values - self._low, -1)
        found = np.minimum(np.searchsorted(self._distinct, values), self.size - 1)
        return np.where(self._distinct[found] == values, found, -1)


def _present(values: Ints) -> Ints:
    missing = values == MISSING
    return values[~missing] if missing.any() else values


@compiled
def _enter(rows: Any, places: Any, first: Any, starts: Any) -> Any:
    """Put the numbers of rows from `first` on into their places, of two the one that starts first; count those."""
    again = 0
    for i in range(len(places)):
        place = places[i]
        if place < 0:
            continue
        if rows[place] >= 0:
            again += 1
        if rows[place] < 0 or starts[first + i] < starts[rows[place]]:
            rows[place] = first + i
    return again
