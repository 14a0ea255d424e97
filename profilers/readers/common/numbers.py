"""Numbers and launch grids from the text and the JSON of trace files.

Exact numbers from JSON values that drift in type between profiler versions.

Workgroups, whatever the vendor's unit of a grid.

CUDA and ``hipLaunchKernel`` / ``hipModuleLaunchKernel`` / ``hipExtLaunchKernel`` write workgroups;
``hipExtModuleLaunchKernel`` writes work-items; rocprofiler-sdk 1.0 writes work-items and swaps grid and block,
which shows by blocks of more than 1024 work-items, a size that no device accepts, and no such grid. (Read off
real files.)
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Ints, dense_keys

_LIMIT = 1 << 63
_NS_PER_US = 1000
#: Every time lies in here (1933 to 2116 as an epoch), so that differences of times fit int64.
TIMES_NS = range(-(1 << 60), 1 << 62)
#: Wide enough for every digit of a time, so that it is rounded once: to the nanosecond.
_EXACT = Context(prec=400, Emin=-9999, Emax=9999)


def plain_text(value: Any) -> str:
    """Return a name as text that can be stored; what is no text or number gives "".

    Examples
    --------
    >>> plain_text("aten::mm"), plain_text(7), plain_text(None), plain_text("\\ud800")
    ('aten::mm', '7', '', '?')
    """
    if not isinstance(value, str):
        return str(value) if isinstance(value, int | Decimal) else ""
    # JSON can hold half of a surrogate pair, which no UTF-8 text can.
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def real(value: Any) -> float | None:
    """Return a finite float64 where `value` is a number that fits one; None otherwise.

    Examples
    --------
    >>> real(Decimal("0.5")), real(10**400), real(True)
    (0.5, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    try:
        result = float(value)
    except (OverflowError, ValueError):
        return None
    return result if isfinite(result) else None


def nanoseconds(value: Any) -> int | None:
    """Return microseconds as exact nanoseconds; None where `value` is no time in `TIMES_NS`.

    Examples
    --------
    >>> nanoseconds(Decimal("1106964728033.929"))
    1106964728033929
    """
    number = _number(value)
    if number is None:
        return None
    if isinstance(number, int):
        result = number * _NS_PER_US
    else:
        result = int(number.scaleb(3, _EXACT).to_integral_value(ROUND_HALF_EVEN))
    return result if result in TIMES_NS else None


def whole(value: Any) -> int | None:
    """Return an int64 (but the least) where `value` is one, whatever its JSON type; None otherwise.

    Examples
    --------
    >>> whole("25738"), whole(Decimal("2.5")), whole(True)
    (25738, None, None)
    """
    number = value if type(value) is int else _number(value)
    if isinstance(number, Decimal):
        number = int(number) if number == number.to_integral_value() else None
    return number if number is not None and -_LIMIT < number < _LIMIT else None


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


#: The call that writes its grid in work-items.
IN_WORK_ITEMS = "hipExtModuleLaunchKernel"
_MAX_WORKGROUP_SIZE = 1024
_GRID_LIMIT = 2.0**62

Flags = npt.NDArray[np.bool_]


def workgroups(extents: Ints, in_work_items: Flags) -> tuple[Ints, Ints, dict[str, int]]:
    """Return workgroups and workgroup size of each kernel of one file, and what was repaired.

    Parameters
    ----------
    extents : array of int64, shape (n, 6)
        Grid and block as written; `MISSING` in the first column where they are not known. All from one file,
        since an impossible block shows that the whole file is swapped, unless one is impossible the other way
        round too.
    in_work_items : array of bool, shape (n,)
        Whether the call that launched the kernel writes its grid in work-items.

    Examples
    --------
    >>> groups, sizes, counts = workgroups(np.array([[256, 1, 1, 524288, 1, 1]]), np.array([False]))
    >>> groups.tolist(), sizes.tolist(), counts
    ([2048], [256], {'repaired_grid': 1, 'repaired_work_items': 1})
    """
    known = extents[:, 0] != MISSING
    swapped = _is_swapped([extents])
    groups, sizes, items = _counted(extents, in_work_items, swapped)
    return groups, sizes, {"repaired_grid": int(known.sum()) if swapped else 0, "repaired_work_items": items}


def _is_swapped(parts: Sequence[Ints]) -> bool:
    """Return whether some block is larger than any device accepts, and no grid is."""
    large_grid = large_block = False
    for extents in parts:
        known = extents[extents[:, 0] != MISSING].astype(float)
        large_grid |= bool((np.prod(known[:, :3], axis=1) > _MAX_WORKGROUP_SIZE).any())
        large_block |= bool((np.prod(known[:, 3:], axis=1) > _MAX_WORKGROUP_SIZE).any())
    return large_block and not large_grid


def _counted(extents: Ints, in_work_items: Flags, swapped: bool) -> tuple[Ints, Ints, int]:
    """Return workgroups and their size, and how many grids were in work-items."""
    known = extents[:, 0] != MISSING
    grid, block = (np.where(known[:, None], part, 1).astype(np.int64) for part in (extents[:, :3], extents[:, 3:]))
    if swapped:
        grid, block = block, grid
    items = known & (in_work_items | swapped)
    grid = np.where(items[:, None], -(-grid // block), grid)
    fits = np.prod(grid.astype(float), axis=1) < _GRID_LIMIT
    groups = np.where(known & fits, np.prod(grid, axis=1), MISSING)
    small = np.prod(block.astype(float), axis=1) <= _MAX_WORKGROUP_SIZE
    return groups, np.where(known & small, np.prod(block, axis=1), MISSING), int(items.sum())


class Grids:
    """Collects what kernels and launches of one file say of their grids, until all are known."""

    def __init__(self) -> None:
        self._kernels: list[tuple[Ints, Ints, Ints]] = []
        self._launches: list[tuple[Ints, Ints, Ints, Flags]] = []

    def add_kernels(self, rank: Ints, correlation: Ints, extents: Ints) -> None:
        """Take kernels, in the order of their rows."""
        self._kernels.append((_narrow(rank), _narrow(correlation), _narrow(extents)))

    def add_launches(self, rank: Ints, correlation: Ints, extents: Ints, in_work_items: Flags) -> None:
        """Take calls; those that say nothing of a grid are passed over."""
        telling = (extents[:, 0] != MISSING) | in_work_items
        if telling.any():
            self._launches.append((rank[telling], correlation[telling], extents[telling], in_work_items[telling]))

    def workgroups(self) -> tuple[Ints, Ints, dict[str, int]]:
        """Return what `workgroups` does, for all kernels taken."""
        swapped = _is_swapped([extents for _, _, extents in self._kernels])
        found = [_counted(*self._with_launches(*kernels), swapped) for kernels in self._kernels]
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64), {}
        groups, sizes, items = zip(*found, strict=True)
        known = sum(int((part != MISSING).sum()) for part in groups)
        counts = {"repaired_grid": known if swapped else 0, "repaired_work_items": sum(items)}
        return np.concatenate(groups), np.concatenate(sizes), counts

    def _with_launches(self, rank: Ints, correlation: Ints, extents: Ints) -> tuple[Ints, Flags]:
        """Return what kernels or else their launches say of the grid, and whether it is in work-items."""
        items = np.zeros(len(rank), dtype=bool)
        if not self._launches:
            return extents, items
        if len(self._launches) > 1:
            ranks, correlations, grids, flags_ = (np.concatenate(parts) for parts in zip(*self._launches, strict=True))
            self._launches = [(ranks, correlations, grids, flags_)]
        of_rank, of_correlation, theirs, flags = self._launches[0]
        found = _first(dense_keys((of_rank, of_correlation), (rank, correlation)))
        hit = (found != MISSING) & (correlation != MISSING)
        items[hit] = flags[found[hit]]
        lent = hit & (extents[:, 0] == MISSING)
        extents = extents.astype(np.int64)
        extents[lent] = theirs[found[lent]]
        return extents, items


def _narrow(values: Ints) -> Ints:
    """Return values in half the memory where they fit; `MISSING` does not."""
    fits = len(values) > 0 and values.min() >= -(1 << 31) and values.max() < 1 << 31
    return values.astype(np.int32) if fits else values


def _first(keys: list[Ints]) -> Ints:
    """Return for each of the second keys where the first ones have it first, `MISSING` where they lack it."""
    distinct, place = np.unique(keys[0], return_index=True)
    at = np.minimum(np.searchsorted(distinct, keys[1]), len(distinct) - 1)
    return np.where(distinct[at] == keys[1], place[at], MISSING)
