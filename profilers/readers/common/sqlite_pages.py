"""Columns of a SQLite table, read straight from the pages of its b-tree, a block of leaves at a time.

`PageFile` reads pages, and `scan_table` yields the columns of their records. Only ordinary content is read: a table
with rowids in a UTF-8 file, and values that lie on their leaf. On anything else `Unusual` is raised, and the caller
calls SQLite instead. The format is public (sqlite.org, "Database File Format", sections 1.3, 1.6 and 2).

Every offset is checked against its page before it is used, and no page is visited twice. So a hostile file costs at
most one pass over its pages. This module exists for its speed: 3.5 to 8.4 times that of ADBC, and 11 to 18 times that
of `sqlite3`, on tables of 5 million rows (measured by ``benchmarks/ingest/database_reading.py``).
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.trace.arrays import MISSING, Ints
from profilers.trace.compiled import compiled, inlined

Bytes = npt.NDArray[np.uint8]

#: The first byte of a leaf.
_LEAF = 13
#: The numbers at the start of a record, nine bytes each at most, may be read past the end of a block.
_PADDING = 64
#: Bits of a float64: all but the sign; those of infinity, above which no number lies; and those of NaN.
_NOT_SIGN, _INFINITE, _NAN = (1 << 63) - 1, 0x7FF << 52, 0x7FF8 << 48
#: Types of value that a column holds, as bits; the first three also name the type as which it is read.
_INT, _FLOAT, _TEXT = 1, 2, 4
#: An offset and a serial type in one number; a type that fits a page has 18 bits.
_TYPE_BITS, _TYPE = 20, (1 << 20) - 1


class Unusual(Exception):  # noqa: N818 - no error: the caller takes the other way
    """SQLite has to read the table, or its remaining rows."""


@dataclass(frozen=True)
class Stored:
    """How a column stands in a record.

    Parameters
    ----------
    position : int, optional
        Number of the value in the record; None for a column that is the rowid.
    real : bool
        Whether its integers are read as floating point (affinity REAL).
    has_default : bool
        Whether the column has a default, so that a record that ends before it does not mean null.
    """

    position: int | None
    real: bool = False
    has_default: bool = False


class _Records:
    """Reads columns from the records on leaf pages, and learns from each block which type a column has.

    A block holds leaf pages one after the other, with `_PADDING` bytes behind them. Its shape is the number of pages,
    the size of a page, and the number of bytes of a page that are used.
    """

    def __init__(self, columns: Sequence[Stored]) -> None:
        positions = [column.position for column in columns]
        #: The column that each position of a record fills; -1 for none.
        self._slots = np.full(max((p for p in positions if p is not None), default=-1) + 1, -1, dtype=np.int64)
        for slot, position in enumerate(positions):
            if position is not None:
                self._slots[position] = slot
        self._rowid_slot = positions.index(None) if None in positions else -1
        self._real = np.array([column.real for column in columns], dtype=np.bool_)
        self._has_default = any(column.has_default for column in columns)
        self._modes = np.where(self._real, _FLOAT, _INT).astype(np.uint8)

    def take(self, content: Bytes, shape: Ints, rows: int) -> list[Any]:
        """Return the columns of leaves that hold `rows` rows.

        Raises
        ------
        Unusual
            A record is not ordinary.
        """
        values, lengths, seen = self._scan(content, shape, rows)
        text, number = seen & _TEXT != 0, seen & (_INT | _FLOAT) != 0
        if (text & number).any():
            raise Unusual  # only SQLite knows how it spells a number among texts
        modes = np.where(text, _TEXT, np.where(self._real | (seen & _FLOAT != 0), _FLOAT, _INT))
        modes = np.where(text | number, modes, self._modes).astype(np.uint8)
        if (modes != self._modes).any():
            self._modes = modes
            values, lengths, seen = self._scan(content, shape, rows)
        modes = np.where(seen == 0, 0, modes)
        return [_column(content, *column) for column in zip(values, lengths, modes.tolist(), strict=True)]

    def _scan(self, content: Bytes, shape: Ints, rows: int) -> tuple[Ints, npt.NDArray[np.int32], Bytes]:
        values = np.empty((len(self._modes), rows), dtype=np.int64)
        lengths = np.empty((len(self._modes), rows if (self._modes == _TEXT).any() else 0), dtype=np.int32)
        seen = np.zeros(len(self._modes), dtype=np.uint8)
        state = _scan(content, shape, self._slots, self._modes, self._rowid_slot, values, lengths, seen)
        if state < 0 or (state and self._has_default):
            raise Unusual
        return values, lengths, seen


def _column(content: Bytes, values: Ints, lengths: npt.NDArray[np.int32], mode: int) -> Any:
    if mode == _TEXT:
        return _strings(content, values, lengths)
    if mode == _FLOAT:
        reals = values.view(np.float64)
        return pa.array(reals, mask=np.isnan(reals))  # SQLite knows no NaN: one in a record is a null
    return values if mode == _INT else np.full(len(values), MISSING)


def _strings(content: Bytes, starts: Ints, lengths: npt.NDArray[np.int32]) -> pa.Array:
    """Return texts that stand in `content`; one of length -1 is null, bytes that are not UTF-8 are replaced."""
    valid = lengths >= 0
    offsets = np.zeros(len(starts) + 1, dtype=np.int32)
    np.cumsum(np.where(valid, lengths, 0), out=offsets[1:])
    data = np.empty(offsets[-1], dtype=np.uint8)
    _gather(content, starts, offsets, data)
    nulls = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    texts = pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(data), nulls)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = texts.view(pa.binary()).to_pylist()
        return pa.array([None if text is None else text.decode("utf-8", "replace") for text in raw], pa.string())
    return texts


@compiled
def _gather(content, starts, offsets, data):  # type: ignore[no-untyped-def]
    for row in range(len(starts)):
        for at in range(offsets[row + 1] - offsets[row]):
            data[offsets[row] + at] = content[starts[row] + at]


@compiled
def _count(content, shape):  # type: ignore[no-untyped-def]
    """Return the number of rows that the leaves hold, -1 if a page is no leaf or states more rows than fit."""
    rows = np.int64(0)
    for page in range(shape[0]):
        base = page * shape[1]
        cells = (np.int64(content[base + 3]) << 8) | np.int64(content[base + 4])
        if content[base] != _LEAF or 8 + 6 * cells > shape[2]:
            return -1
        rows += cells
    return rows


@compiled
def _scan(content, shape, slots, modes, rowid_slot, values, lengths, seen):  # type: ignore[no-untyped-def]
    """Fill the columns from every record of the leaves; return -1 if a record is not ordinary, 1 if one is short.

    The first loop notes the offsets of the values of a page, the second decodes them column by column. Both are
    tight, and a page stays in the nearest cache. Arrays are passed separately: in a tuple, numba counts references
    for every value, which takes ten times as long.
    """
    row, short = 0, 0
    for page in range(shape[0]):
        base = page * shape[1]
        first = row
        cells = (np.int64(content[base + 3]) << 8) | np.int64(content[base + 4])
        for cell in range(cells):
            pointer = base + 8 + 2 * cell
            at = base + ((np.int64(content[pointer]) << 8) | np.int64(content[pointer + 1]))
            if at < base + 8 + 2 * cells or at + 4 > base + shape[2]:
                return -1
            state = _locate(content, at, base + shape[2], shape[2], slots, rowid_slot, values, row)
            if state < 0:
                return -1
            short |= state
            row += 1
        for slot in range(len(modes)):
            if slot == rowid_slot:
                seen[slot] |= _INT
            elif modes[slot] == _INT:
                seen[slot] |= _decode_numbers(content, values[slot], first, row, False)
            elif modes[slot] == _FLOAT:
                seen[slot] |= _decode_numbers(content, values[slot], first, row, True)
            else:
                seen[slot] |= _decode_texts(values[slot], lengths[slot], first, row)
    return short


@compiled
def _locate(content, at, page_end, usable, slots, rowid_slot, values, row):  # type: ignore[no-untyped-def]
    """Note the offset and the type of each value of one record.

    Returns -1 if the record is not ordinary or a value lies on another page, 1 if the record ends before a column,
    else 0.
    """
    payload, at = _varint(content, at)
    rowid, at = _varint(content, at)
    header, following = _varint(content, at)
    end, body = at + _on_page(payload, usable), at + header
    if payload < 1 or end > page_end or header < 1 or body > end or following > body:
        return -1
    limit, short = body, 0
    for position in range(len(slots)):
        serial = np.int64(0)
        if following < limit:
            serial = np.int64(content[following])
            following += 1
            if serial >= 128:
                serial, following = _varint(content, following - 1)
        else:
            short = 1
        length = _length(serial)
        if length < 0 or body + length > end or following > limit:
            return -1
        if slots[position] >= 0:
            values[slots[position], row] = (body << _TYPE_BITS) | serial
        body += length
    if rowid_slot >= 0:
        values[rowid_slot, row] = rowid
    return short


@compiled
def _varint(content, at):  # type: ignore[no-untyped-def]
    """Return the integer at `at`, of at most nine bytes, and its end."""
    value = np.int64(content[at])
    if value < 128:
        return value, at + 1
    value &= 127
    for more in range(1, 8):
        byte = np.int64(content[at + more])
        value = (value << 7) | (byte & 127)
        if byte < 128:
            return value, at + more + 1
    return (value << 8) | np.int64(content[at + 8]), at + 9


@compiled
def _on_page(payload, usable):  # type: ignore[no-untyped-def]
    """Return the number of bytes of a record that lie on the leaf itself (section 1.6 of the format)."""
    if payload <= usable - 35:
        return payload
    least = (usable - 12) * 32 // 255 - 23
    size = least + (payload - least) % (usable - 4)
    return size if size <= usable - 35 else least


@compiled
def _length(serial):  # type: ignore[no-untyped-def]
    """Return the number of bytes of a value of this serial type, -1 for a type that is not used."""
    if serial >= 12:
        return (serial - 12) >> 1
    if 0 <= serial <= 4:
        return serial
    if serial == 5:
        return np.int64(6)
    if serial == 6 or serial == 7:
        return np.int64(8)
    return np.int64(0) if serial == 8 or serial == 9 else np.int64(-1)


@compiled
def _number(content, at, serial):  # type: ignore[no-untyped-def]
    """Return the integer, or the bits of the floating-point number, of this serial type."""
    if serial >= 8:
        return serial - 8
    number = np.int64(np.int8(content[at]))
    for more in range(1, _length(serial)):
        number = (number << 8) | np.int64(content[at + more])
    return number


@inlined
def _decode_numbers(content, column, first, last, real):  # type: ignore[no-untyped-def]
    """Replace offsets by integers, or by the bits of float64 if `real`; return the types of value as bits."""
    seen = 0
    for row in range(first, last):
        serial, at = column[row] & _TYPE, column[row] >> _TYPE_BITS
        if serial == 0:
            column[row] = _NAN if real else MISSING
        elif serial >= 12:
            seen |= _TEXT
        elif serial == 7:
            number = _number(content, at, serial)
            column[row] = number if real else MISSING
            seen |= _FLOAT if (number & _NOT_SIGN) <= _INFINITE else 0  # SQLite reads NaN as null
        else:
            number = _number(content, at, serial)
            column[row] = np.float64(number).view(np.int64) if real else number
            seen |= _INT
    return seen


@compiled
def _decode_texts(column, lengths, first, last):  # type: ignore[no-untyped-def]
    """Replace offsets and types by offsets alone, and fill lengths, -1 for null; return the types as bits."""
    seen = 0
    for row in range(first, last):
        serial = column[row] & _TYPE
        column[row] >>= _TYPE_BITS
        lengths[row] = (serial - 12) >> 1 if serial >= 12 else -1
        if serial >= 12:
            seen |= _TEXT
        elif serial == 7:
            seen |= _FLOAT
        elif serial > 0:
            seen |= _INT
    return seen


_INTERIOR = 5
_UTF8 = 1
_ROWS = 32768  # in a batch, about
#: Pages in the first block, whose rows decide the number of pages in a batch; and most bytes of a block.
_FIRST_PAGES, _BLOCK_BYTES = 64, 16 << 20
_MAX_DEPTH = 20  # SQLite's own limit


class PageFile:
    """A SQLite file as numbered pages.

    Parameters
    ----------
    descriptor : int
        Descriptor of the open file.

    Raises
    ------
    Unusual
        The file is in write-ahead mode, has UTF-16 texts or is no SQLite file; or the system lacks ``preadv``.
    """

    def __init__(self, descriptor: int) -> None:
        if not hasattr(os, "preadv"):
            raise Unusual
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
        content = np.empty(len(numbers) * self.size + _PADDING, dtype=np.uint8)
        content[-_PADDING:] = 0
        view = memoryview(content)  # type: ignore[arg-type]
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        # One call a run of neighbours, 1 to 2 us each.
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(numbers)], strict=True):
            run = view[first * self.size : last * self.size]
            if os.preadv(self._descriptor, [run], (int(numbers[first]) - 1) * self.size) != len(run):
                raise Unusual
        return content


def scan_table(pages: PageFile, root: int, columns: Sequence[Stored]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of rows and the columns of a table, batch by batch, in the order of the rowids.

    Parameters
    ----------
    pages : PageFile
        Pages of the file.
    root : int
        Number of the page on which the b-tree starts.
    columns : sequence of Stored
        Columns to read, and how each stands in a record.

    Yields
    ------
    tuple of int and list
        A column of integers and nulls is an int64 array with `MISSING`; another is an Arrow array of float64
        or strings.

    Raises
    ------
    Unusual
        SQLite has to read the rows after those already yielded.
    """
    records = _Records(columns)
    batch = _FIRST_PAGES
    waiting = np.empty(0, dtype=np.int64)
    for leaves in _leaves(pages, np.array([root]), np.zeros(pages.count + 1, dtype=np.bool_), 0):
        waiting = np.concatenate([waiting, leaves])
        while len(waiting) >= batch:
            now, waiting = waiting[:batch], waiting[batch:]
            total = 0
            for rows, arrays in _read(records, pages, now):
                total += rows
                yield rows, arrays
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
    if pages.read(numbers[:1])[0] == _LEAF:
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
    offsets = np.append(cells, 8)[:, None] + np.arange(4)  # the last child stands in the header
    return np.ascontiguousarray(page[offsets]).view(">u4").ravel().astype(np.int64)


def _read(records: _Records, pages: PageFile, numbers: Ints) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of rows on leaves and their columns, in pieces if there are too many rows for one batch."""
    content = pages.read(numbers)
    shape = np.array([len(numbers), pages.size, pages.usable], dtype=np.int64)
    rows = int(_count(content, shape))
    if rows < 0:
        raise Unusual
    if rows > 2 * _ROWS and len(numbers) > 1:
        for half in np.array_split(numbers, 2):
            yield from _read(records, pages, half)
    else:
        yield rows, records.take(content, shape, rows)
