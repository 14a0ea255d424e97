"""Numbers and launch grids from the text and the JSON of trace files.

JSON values change type between versions of a profiler: 7, "7" and 7.0 may all be the same integer.
`integer`, `finite_float`, `exact_ns` and `plain_text` read such values exactly. They give None, or an empty text, for
anything else.

`Grids` turns launch grids into workgroups, whatever the unit of the grid (observed in real files):

- CUDA, ``hipLaunchKernel``, ``hipModuleLaunchKernel`` and ``hipExtLaunchKernel`` record workgroups.
- ``hipExtModuleLaunchKernel`` records work-items.
- rocprofiler-sdk 1.0 records work-items, and swaps grid and block. Such a file has blocks of more than 1024
  work-items, which no device accepts, and no such grid.
"""

import re
import zlib
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.trace.arrays import MISSING, Bools, Floats, Ints, dense_keys
from profilers.trace.columns import lookup

#: Integers from minus this to below this fit 32 bits.
INT32_LIMIT = 1 << 31
_INT64_LIMIT = 1 << 63
#: All valid times in ns since the epoch (1933 to 2116), so that differences of times fit int64.
TIMES_NS = range(-(1 << 60), 1 << 62)
#: Enough digits for every time, so that it is rounded only once, to the nanosecond.
_EXACT = Context(prec=400, Emin=-9999, Emax=9999)


def plain_text(value: Any) -> str:
    """Return a name as text that Arrow can store, and "" for a value that is no text or number.

    Examples
    --------
    >>> plain_text("aten::mm"), plain_text(7), plain_text(None), plain_text("\\ud800")
    ('aten::mm', '7', '', '?')
    """
    if not isinstance(value, str):
        return str(value) if isinstance(value, int | Decimal) else ""
    # JSON can hold half of a surrogate pair, which no UTF-8 text can.
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def finite_float(value: Any) -> float | None:
    """Return a number as a finite float64, or None.

    Examples
    --------
    >>> finite_float(Decimal("0.5")), finite_float(10**400), finite_float(True)
    (0.5, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    try:
        result = float(value)
    except (OverflowError, ValueError):
        return None
    return result if isfinite(result) else None


def finite_number(text: str | None) -> float | None:
    """Return the finite number that a text spells, or None.

    Examples
    --------
    >>> finite_number("1e3"), finite_number("nan"), finite_number(None)
    (1000.0, None, None)
    """
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if isfinite(value) else None


def exact_ns(value: Any, power: int = 3) -> int | None:
    """Return a number times a power of ten in whole nanoseconds, rounded once, or None if it is no time in `TIMES_NS`.

    Parameters
    ----------
    value : int, Decimal or str
        A decimal number, as text with or without an exponent.
    power : int
        Exponent of ten of the unit in nanoseconds: 3 for microseconds, 6 for milliseconds, 9 for seconds.

    Examples
    --------
    >>> exact_ns("1700000000.123456789", 9), exact_ns(Decimal("1106964728033.929")), exact_ns("", 0)
    (1700000000123456789, 1106964728033929, None)
    """
    number = _number(value)
    if number is None:
        return None
    if isinstance(number, int):
        result = number * 10**power
    else:
        result = int(number.scaleb(power, _EXACT).to_integral_value(ROUND_HALF_EVEN))
    return result if result in TIMES_NS else None


def integer(value: Any) -> int | None:
    """Return an integer of any JSON type as an int, or None; the lowest int64 stands for null and is none.

    Examples
    --------
    >>> integer("25738"), integer(Decimal("2.5")), integer(True)
    (25738, None, None)
    """
    number = value if type(value) is int else _number(value)
    if isinstance(number, Decimal):
        number = int(number) if number == number.to_integral_value() else None
    return number if number is not None and -_INT64_LIMIT < number < _INT64_LIMIT else None


def identity(value: Any) -> int | None:
    """Return a number by which a process, thread, stream or queue is told from others, or None without any.

    An integer stands for itself, and one that needs 64 bits without a sign for the int64 of the same bits. A text
    stands for its last integer, and a text without one for a negative number made of it.

    Examples
    --------
    >>> identity("stream 7"), identity("[TP00] 4000"), identity("0x1041"), identity(2**64 - 1), identity(None)
    (7, 4000, 4161, -1, None)
    """
    number = integer(value)
    if number is not None:
        return number
    if isinstance(value, str) and (handle := _HANDLE.search(value[-_TAIL:])):
        value = int(handle[1] or handle[2], 16)
    if isinstance(value, str) and not _UNSIGNED.fullmatch(value):
        digits = re.findall("[0-9]+", value[-_TAIL:])
        return int(digits[-1][-18:]) if digits else unnumbered(value)
    unsigned = int(value) if isinstance(value, str) else value
    if type(unsigned) is not int or not 0 <= unsigned < 2 * _INT64_LIMIT or unsigned == _INT64_LIMIT:
        return None
    return unsigned if unsigned < _INT64_LIMIT else unsigned - 2 * _INT64_LIMIT


def unnumbered(text: str) -> int | None:
    """Return a negative number that is made of a text, None for an empty one."""
    return -2 - zlib.crc32(text.encode("utf-8", "replace")) if text else None


#: A handle of up to 64 bits in hexadecimal digits, a long integer, and the end of a text in which an integer counts.
_HANDLE = re.compile(r"0[xX]([0-9a-fA-F]{1,16})(?![0-9a-fA-F])|^((?=[0-9a-f]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,16})$")
_UNSIGNED = re.compile(r"[1-9][0-9]{18,19}")
_TAIL = 64


def positive(value: Any) -> int | None:
    """Return an integer above zero of any JSON type, or None.

    Examples
    --------
    >>> positive("80"), positive(0)
    (80, None)
    """
    number = integer(value)
    return number if number is not None and number > 0 else None


def _number(value: Any) -> int | Decimal | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except InvalidOperation:
            return None
    # A huge exponent must not become a huge integer.
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() < 19:
        return value
    return None


#: Integers below are exact in float64.
_EXACT_FLOAT = 2.0**53


def whole_numbers(values: Any) -> Ints:
    """Return a column of texts or numbers as int64, `MISSING` where a value is no integer.

    Examples
    --------
    >>> whole_numbers(pa.array(["12", " 5", "1e3", "", None, "x"])).tolist()[:3]
    [12, 5, 1000]
    """
    if isinstance(values, np.ndarray):
        return values.astype(np.int64, copy=False)
    if pa.types.is_floating(values.type):
        floats = np.asarray(values.fill_null(np.nan).to_numpy(zero_copy_only=False), dtype=float)
        return _exact_integers(np.where(floats == np.floor(floats), floats, np.nan))
    try:
        numbers = values.cast(pa.int64())
    except pa.ArrowInvalid:
        texts = values.dictionary_encode()  # a loop over the distinct texts, 1 us each
        distinct = [None if text is None else integer(text.strip()) for text in texts.dictionary.to_pylist()]
        numbers = pa.array(distinct, pa.int64()).take(texts.indices)
    return np.asarray(numbers.fill_null(int(MISSING)).to_numpy(zero_copy_only=False), dtype=np.int64)


def _exact_integers(floats: Floats) -> Ints:
    """Return float64 integers as int64, `MISSING` for NaN and for magnitudes that float64 does not hold exactly."""
    exact = np.abs(floats) < _EXACT_FLOAT
    return np.where(exact, np.where(exact, floats, 0).astype(np.int64), MISSING)


def narrow(values: Ints) -> Ints:
    """Return integers with `MISSING` where one is negative or needs more than 32 bits."""
    return np.where((values >= 0) & (values < INT32_LIMIT), values, MISSING)


def workgroups(
    grid: Ints | Sequence[Ints], size: Ints | Sequence[Ints], in_work_items: Bools | None = None
) -> tuple[Ints, Ints]:
    """Return the workgroups of each kernel and the work-items of each workgroup.

    Both are `MISSING` for a kernel with an axis that is not positive. The last workgroup of an axis need not be full.

    Parameters
    ----------
    grid, size : array of int64, shape (axes, n), or sequence of array of int64
        Extents of the grid and of a workgroup, by axis.
    in_work_items : array of bool, optional
        Whether a kernel's grid counts work-items; by default all grids do, as in all formats but RPD.

    Examples
    --------
    >>> groups, sizes = workgroups([np.array([1000]), np.array([4])], [np.array([256]), np.array([2])])
    >>> groups.tolist(), sizes.tolist()
    ([8], [512])
    """
    positive = np.logical_and.reduce([axis > 0 for axis in (*grid, *size)])
    divided = positive if in_work_items is None else positive & in_work_items
    groups, sizes = np.ones(len(positive)), np.ones(len(positive))
    for grid_axis, size_axis in zip(grid, size, strict=True):
        rounded_up = (grid_axis - 1) // np.where(positive, size_axis, 1) + 1
        groups *= np.where(divided, rounded_up, grid_axis)
        sizes *= size_axis
    group_counts, group_sizes = (_exact_integers(np.where(positive, values, np.nan)) for values in (groups, sizes))
    return group_counts, narrow(group_sizes)


#: Name of the call that records its grid in work-items.
IN_WORK_ITEMS = "hipExtModuleLaunchKernel"
_MAX_WORKGROUP_SIZE = 1024


def _is_swapped(batches: Sequence[Ints]) -> bool:
    """Return whether some block is larger than any device accepts, and no grid is."""
    large_grid = large_block = False
    for extents in batches:
        recorded = extents[extents[:, 0] != MISSING].astype(float)
        large_grid |= bool((np.prod(recorded[:, :3], axis=1) > _MAX_WORKGROUP_SIZE).any())
        large_block |= bool((np.prod(recorded[:, 3:], axis=1) > _MAX_WORKGROUP_SIZE).any())
    return large_block and not large_grid


def _counted(extents: Ints, in_work_items: Bools, swapped: bool) -> tuple[Ints, Ints, int]:
    """Return workgroups and workgroup size of kernels, and the number of grids that were in work-items."""
    grid, block = extents[:, :3].T, extents[:, 3:].T
    divided = (extents[:, 0] != MISSING) & (in_work_items | swapped)
    groups, sizes = workgroups(block, grid, divided) if swapped else workgroups(grid, block, divided)
    return groups, np.where(sizes <= _MAX_WORKGROUP_SIZE, sizes, MISSING), int(divided.sum())


class Grids:
    """Grids of the kernels and launches of one file, collected until all are read.

    A kernel without a grid takes that of its launch, so workgroups are only known at the end of a file. A block that
    is too large shows that all of the file's grids and blocks are swapped, unless a grid is too large for a block too.

    Examples
    --------
    >>> grids, zeros = Grids(), np.zeros(1, np.int64)
    >>> grids.add_kernels(zeros, zeros, np.array([[256, 1, 1, 524288, 1, 1]]))
    >>> groups, sizes, counts = grids.workgroups()
    >>> groups.tolist(), sizes.tolist(), counts
    ([2048], [256], {'repaired_grid': 1, 'repaired_work_items': 1})
    """

    def __init__(self) -> None:
        self._kernels: list[tuple[Ints, Ints, Ints]] = []
        self._launches: list[tuple[Ints, Ints, Ints, Bools]] = []

    def add_kernels(self, rank: Ints, correlation: Ints, extents: Ints) -> None:
        """Add kernels in the order of their rows.

        Parameters
        ----------
        rank, correlation : array of int64, shape (n,)
            Numbers by which a kernel finds its launch.
        extents : array of int64, shape (n, 6)
            Recorded grid and block, `MISSING` in the first column if they are unknown.
        """
        self._kernels.append((_compact(rank), _compact(correlation), _compact(extents)))

    def add_launches(self, rank: Ints, correlation: Ints, extents: Ints, in_work_items: Bools) -> None:
        """Add calls that launch kernels; calls without any statement about a grid are ignored.

        Parameters
        ----------
        rank, correlation, extents
            As in `add_kernels`.
        in_work_items : array of bool, shape (n,)
            Whether the call records its grid in work-items.
        """
        relevant = (extents[:, 0] != MISSING) | in_work_items
        if relevant.any():
            launches = (rank[relevant], correlation[relevant], extents[relevant], in_work_items[relevant])
            self._launches.append(launches)

    def workgroups(self) -> tuple[Ints, Ints, dict[str, int]]:
        """Return workgroups and workgroup size of all kernels added, and the counts of repairs."""
        swapped = _is_swapped([extents for _, _, extents in self._kernels])
        batches = [_counted(*self._with_launches(*kernels), swapped) for kernels in self._kernels]
        if not batches:
            return np.empty(0, np.int64), np.empty(0, np.int64), {}
        groups, sizes, divided = zip(*batches, strict=True)
        repaired = sum(int((batch != MISSING).sum()) for batch in groups) if swapped else 0
        counts = {"repaired_grid": repaired, "repaired_work_items": sum(divided)}
        return np.concatenate(groups), np.concatenate(sizes), counts

    def _with_launches(self, rank: Ints, correlation: Ints, extents: Ints) -> tuple[Ints, Bools]:
        """Return the extents of kernels, or else of their launches, and whether these are in work-items."""
        in_work_items = np.zeros(len(rank), dtype=bool)
        if not self._launches:
            return extents, in_work_items
        if len(self._launches) > 1:
            ranks, correlations, grids, flags = (np.concatenate(arrays) for arrays in zip(*self._launches, strict=True))
            self._launches = [(ranks, correlations, grids, flags)]
        launch_rank, launch_correlation, launch_extents, launch_flags = self._launches[0]
        keys, searched = dense_keys((launch_rank, launch_correlation), (rank, correlation))
        row = lookup(keys, np.arange(len(keys)), searched)
        launched = (row != MISSING) & (correlation != MISSING)
        in_work_items[launched] = launch_flags[row[launched]]
        without_own = launched & (extents[:, 0] == MISSING)
        extents = extents.astype(np.int64)
        extents[without_own] = launch_extents[row[without_own]]
        return extents, in_work_items


def _compact(values: Ints) -> Ints:
    """Return values as int32 if they all fit, which `MISSING` does not."""
    fits = len(values) > 0 and values.min() >= -INT32_LIMIT and values.max() < INT32_LIMIT
    return values.astype(np.int32) if fits else values
