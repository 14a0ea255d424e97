"""Columns that take rows at their end, without a second copy of themselves in memory."""

from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING

__all__ = ["Growing", "Narrowed", "Runs"]

#: Rows of the first block, and by how many it grows at most: growing moves pages, not bytes.
_FIRST, _STEP = 1 << 14, 1 << 18
_WIDTHS = tuple(np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))


class Growing:
    """Values of one type in one block of memory, which the system can enlarge in place.

    Many small arrays in a list would leave holes between what is freed, so that memory never goes back.

    Parameters
    ----------
    dtype : dtype
        Of the values.

    Examples
    --------
    >>> column = Growing(np.int64)
    >>> column.append(np.arange(3))
    >>> column.append(np.arange(2))
    >>> column.values()
    array([0, 1, 2, 0, 1])
    """

    def __init__(self, dtype: Any) -> None:
        self._values: npt.NDArray[Any] = np.empty(_FIRST, dtype)
        self._count = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end; arrays that `values` returned before no longer follow."""
        count = self._count + len(values)
        if count > len(self._values):
            self._values.resize(max(count, len(self._values) + min(len(self._values), _STEP)), refcheck=False)
        self._values[self._count : count] = values
        self._count = count

    def values(self) -> npt.NDArray[Any]:
        """Return all values, without a copy; not to be kept while more are appended."""
        return self._values[: self._count]


class Narrowed:
    """Integers in as few bits as all of them fit, 8 to 64; null is `MISSING`.

    Parameters
    ----------
    least : dtype
        The narrowest that is tried.

    Examples
    --------
    >>> column = Narrowed()
    >>> column.append(np.array([3, MISSING]))
    >>> column.append(np.array([1 << 40]))
    >>> column.part(slice(None)).tolist() == [3, MISSING, 1 << 40]
    True
    """

    def __init__(self, least: Any = np.int8) -> None:
        self._block = Growing(least)

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        if not len(values):
            return
        missing = values == MISSING
        some = bool(missing.any())
        dtype = self._fitting(values[~missing] if some else values)
        if dtype != self.raw().dtype:
            wider = Growing(dtype)
            for first in range(0, len(self.raw()), _STEP):
                wider.append(_narrow(self.part(slice(first, first + _STEP)), dtype))
            self._block = wider
        self._block.append(_narrow(values, dtype) if some else values)

    def _fitting(self, present: npt.NDArray[Any]) -> Any:
        """Return the narrowest type from the present one on that holds the numbers and has its least one free."""
        own = self.raw().dtype
        low, high = (int(present.min()), int(present.max())) if len(present) else (0, 0)
        fits = (w for w in _WIDTHS if w.itemsize >= own.itemsize and np.iinfo(w).min < low and high <= np.iinfo(w).max)
        return next(fits, _WIDTHS[-1])

    def raw(self) -> npt.NDArray[Any]:
        """Return all values in the width they are held in, null as its least number; not to be kept or changed."""
        return self._block.values()

    def part(self, rows: slice) -> npt.NDArray[np.int64]:
        """Return some values; not to be changed."""
        return _wide(self.raw()[rows])

    def take(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the values of these rows."""
        return _wide(self.raw()[rows])


def _narrow(values: npt.NDArray[np.int64], dtype: Any) -> npt.NDArray[Any]:
    return np.where(values == MISSING, np.iinfo(dtype).min, values).astype(dtype, copy=False)


def _wide(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if values.dtype == np.int64:
        return values
    wide = values.astype(np.int64)
    wide[values == np.iinfo(values.dtype).min] = MISSING
    return wide


class Runs:
    """Integers that rise by one or stay for long stretches, as ids do: only the stretches are kept.

    Examples
    --------
    >>> ids = Runs()
    >>> ids.append(np.array([4, 5, 6, 9, 9]))
    >>> ids.append(np.array([9, 10]))
    >>> ids.take(np.arange(7)).tolist()
    [4, 5, 6, 9, 9, 9, 10]
    """

    def __init__(self) -> None:
        self._count = 0
        self._firsts = Growing(np.int64)
        self._starts = Growing(np.int64)
        self._steps = Growing(np.int64)

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        if not len(values):
            return
        step = np.diff(values)
        plain = (step == 0) | (step == 1)
        cuts = np.flatnonzero(~plain | np.append(False, step[1:] != step[:-1])[: len(step)]) + 1
        starts = np.append(0, cuts)
        steps = np.zeros(len(starts), np.int64)
        within = starts < len(step)
        steps[within] = np.where(plain[starts[within]], step[starts[within]], 0)
        self._firsts.append(starts + self._count)
        self._starts.append(values[starts])
        self._steps.append(steps)
        self._count += len(values)

    def raw(self) -> npt.NDArray[np.int64]:
        """Return all values."""
        return self.part(slice(None))

    def part(self, rows: slice) -> npt.NDArray[np.int64]:
        """Return some values."""
        return self.take(np.arange(*rows.indices(self._count)))

    def take(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the values of these rows."""
        firsts = self._firsts.values()
        run = np.searchsorted(firsts, rows, "right") - 1
        taken: npt.NDArray[np.int64] = self._starts.values()[run] + self._steps.values()[run] * (rows - firsts[run])
        return taken
