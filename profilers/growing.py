"""Columns that take rows at their end, without a second copy of themselves in memory."""

from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING
from profilers.compiled import compiled

__all__ = ["Growing", "Narrowed", "Runs"]

#: Rows of the first block, and by how many it grows at most: growing moves pages, not bytes.
_FIRST, _STEP = 1 << 14, 1 << 18
#: Stands for `MISSING` in 32 bits.
_LEAST = -(1 << 31)


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
    """Integers in 32 bits each for as long as all fit, then in 64; null is `MISSING`.

    Examples
    --------
    >>> column = Narrowed()
    >>> column.append(np.array([3, MISSING]))
    >>> column.append(np.array([1 << 40]))
    >>> column.values().tolist() == [3, MISSING, 1 << 40]
    True
    """

    def __init__(self) -> None:
        self._narrow: Growing | None = Growing(np.int32)
        self._wide = Growing(np.int64)

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        if self._narrow is not None:
            missing = values == MISSING
            present = values[~missing] if missing.any() else values
            if not len(present) or (present.min() > _LEAST and present.max() < -_LEAST):
                self._narrow.append(np.where(missing, _LEAST, values))
                return
            self._wide.append(self.values())
            self._narrow = None
        self._wide.append(values)

    def values(self) -> npt.NDArray[np.int64]:
        """Return all values; not to be kept while more are appended."""
        if self._narrow is None:
            return self._wide.values()
        narrow = self._narrow.values()
        wide = narrow.astype(np.int64)
        wide[narrow == _LEAST] = MISSING
        return wide


class Runs:
    """Integers that rise by one or stay for long stretches, as ids and ranks do: only the stretches are kept.

    Examples
    --------
    >>> ids = Runs()
    >>> ids.append(np.array([4, 5, 6, 9, 9]))
    >>> ids.append(np.array([9, 10]))
    >>> ids.values().tolist()
    [4, 5, 6, 9, 9, 9, 10]
    """

    def __init__(self) -> None:
        self._starts = Growing(np.int64)
        self._steps = Growing(np.int64)
        self._lengths = Growing(np.int64)

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        if not len(values):
            return
        step = np.diff(values)
        plain = (step == 0) | (step == 1)
        cuts = np.flatnonzero(~plain | np.append(False, step[1:] != step[:-1])[: len(step)]) + 1
        starts = np.append(0, cuts)
        self._starts.append(values[starts])
        steps = np.zeros(len(starts), np.int64)
        within = starts < len(step)
        steps[within] = np.where(plain[starts[within]], step[starts[within]], 0)
        self._steps.append(steps)
        self._lengths.append(np.diff(np.append(starts, len(values))))

    def values(self) -> npt.NDArray[np.int64]:
        """Return all values."""
        lengths = self._lengths.values()
        out = np.empty(int(lengths.sum()), np.int64)
        _fill(self._starts.values(), self._steps.values(), lengths, out)
        return out


@compiled
def _fill(starts: Any, steps: Any, lengths: Any, out: Any) -> None:
    place = 0
    for run in range(len(starts)):
        value = starts[run]
        for _ in range(lengths[run]):
            out[place] = value
            value += steps[run]
            place += 1
