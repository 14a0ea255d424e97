"""The pages of a SQLite table, read without SQLite: columns straight from the b-tree, a block of leaves at a time.

Only what is ordinary is read: a table with rowids in a UTF-8 file, and values that lie on their leaf. On
anything else `Unusual` is raised and the caller asks SQLite itself. The file format is public (sqlite.org,
"Database File Format", sections 1.3, 1.6 and 2). Every offset is checked against the page that it lies on, and
no page is visited twice, so that a hostile file costs at most one pass over its pages.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.arrays import Ints
from profilers.sqlite_records import LEAF, PADDING, Bytes, Records, Stored, Unusual

__all__ = ["PageFile", "Stored", "Unusual", "scan_table"]

_INTERIOR = 5
_UTF8 = 1
_ROWS = 32768  # in a batch, about
#: Pages in the first block, whose rows say how many pages make a batch; and bytes of a block at most.
_FIRST_PAGES, _BLOCK_BYTES = 64, 16 << 20
_MAX_DEPTH = 20  # SQLite's own limit


class PageFile:
    """A SQLite file as numbered pages.

    Parameters
    ----------
    descriptor : int
        Of the open file.

    Raises
    ------
    Unusual
        The file is in write-ahead mode, has UTF-16 texts or is no SQLite file; or the system cannot read so.
    """

    def __init__(self, descriptor: int) -> None:
        if not hasattr(os, "preadv"):
            raise Unusual  # not every system has it
        self._descriptor = descriptor
        header = os.pread(descriptor, 100, 0)
        size = os.fstat(descriptor).st_size
        if len(header) < 100 or header[18:20] != b"\x01\x01" or int.from_bytes(header[56:60]) != _UTF8:
            raise Unusual
        stated = int.from_bytes(header[16:18])
        #: Bytes of a page; the last ones may be reserved.
        self.size = 65536 if stated == 1 else stated
        self.usable = self.size - header[20]
        if self.size < 512 or self.size & (self.size - 1) or self.usable < 480:
            raise Unusual
        self.count = size // self.size
        counted = int.from_bytes(header[28:32])
        if header[24:28] == header[92:96] and counted:
            self.count = min(self.count, counted)

    def read(self, numbers: Ints) -> Bytes:
        """Return these pages one after the other, with room behind them; neighbours are read at once.

        Raises
        ------
        Unusual
            A page is not in the file.
        """
        if len(numbers) and not 2 <= numbers.min() <= numbers.max() <= self.count:
            raise Unusual
        content = np.empty(len(numbers) * self.size + PADDING, dtype=np.uint8)
        content[-PADDING:] = 0
        view = memoryview(content)  # type: ignore[arg-type]
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        # One call a run of neighbours, 1 to 2 us each.
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(numbers)], strict=True):
            part = view[first * self.size : last * self.size]
            if os.preadv(self._descriptor, [part], (int(numbers[first]) - 1) * self.size) != len(part):
                raise Unusual
        return content


def scan_table(pages: PageFile, root: int, columns: Sequence[Stored]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of rows and the columns of a table, batch by batch, in the order of the rowids.

    Parameters
    ----------
    pages : PageFile
    root : int
        The page on which the b-tree starts.
    columns : sequence of Stored

    Yields
    ------
    tuple of int and list
        A column of integers and nulls is an int64 array with `MISSING`; another is an Arrow array of float64
        or strings.

    Raises
    ------
    Unusual
        What was yielded stands; SQLite has to read the rest.
    """
    records = Records(columns)
    batch = _FIRST_PAGES
    waiting = np.empty(0, dtype=np.int64)
    for leaves in _leaves(pages, np.array([root]), np.zeros(pages.count + 1, dtype=np.bool_), 0):
        waiting = np.concatenate([waiting, leaves])
        while len(waiting) >= batch:
            now, waiting = waiting[:batch], waiting[batch:]
            total = 0
            for rows, found in _read(records, pages, now):
                total += rows
                yield rows, found
            batch = max(1, min(_ROWS * batch // max(total, 1), _BLOCK_BYTES // pages.size))
    if len(waiting):
        yield from _read(records, pages, waiting)


def _leaves(pages: PageFile, numbers: Ints, seen: npt.NDArray[np.bool_], depth: int) -> Iterator[Ints]:
    """Yield the leaves at and below these sisters in order, those of one parent at a time."""
    if numbers.min() < 2 or numbers.max() > pages.count or depth > _MAX_DEPTH:
        raise Unusual
    if seen[numbers].any() or len(np.unique(numbers)) < len(numbers):
        raise Unusual
    seen[numbers] = True
    if pages.read(numbers[:1])[0] == LEAF:
        yield numbers
        return
    # One step an interior page, which stands for about 300 leaves.
    for number in numbers.tolist():
        yield from _leaves(pages, _children(pages, number), seen, depth + 1)


def _children(pages: PageFile, number: int) -> Ints:
    """Return the pages below an interior page."""
    page = pages.read(np.array([number]))
    count = int(page[3]) << 8 | int(page[4])
    if page[0] != _INTERIOR or 12 + 2 * count > pages.usable:
        raise Unusual
    cells = page[12 : 12 + 2 * count].view(">u2").astype(np.int64)
    if count and (cells.min() < 12 + 2 * count or cells.max() + 5 > pages.usable):
        raise Unusual
    places = np.append(cells, 8)[:, None] + np.arange(4)  # the last child stands in the header
    return np.ascontiguousarray(page[places]).view(">u4").ravel().astype(np.int64)


def _read(records: Records, pages: PageFile, numbers: Ints) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of rows on leaves and their columns, in pieces where the rows are very many."""
    content = pages.read(numbers)
    shape = np.array([len(numbers), pages.size, pages.usable], dtype=np.int64)
    rows = records.count(content, shape)
    if rows > 2 * _ROWS and len(numbers) > 1:
        for half in np.array_split(numbers, 2):
            yield from _read(records, pages, half)
    else:
        yield rows, records.take(content, shape, rows)
