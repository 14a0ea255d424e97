"""Workgroups, whatever the vendor's unit of a grid.

CUDA and ``hipLaunchKernel`` / ``hipModuleLaunchKernel`` / ``hipExtLaunchKernel`` write workgroups;
``hipExtModuleLaunchKernel`` writes work-items; rocprofiler-sdk 1.0 writes work-items and swaps grid and block,
which shows by blocks of more than 1024 work-items, a size that no device accepts, and no such grid. (Read off
real files.)
"""

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING, Ints, dense_keys

__all__ = ["IN_WORK_ITEMS", "Grids", "workgroups"]

#: The call that writes its grid in work-items.
IN_WORK_ITEMS = "hipExtModuleLaunchKernel"
_MAX_WORKGROUP_SIZE = 1024
_LIMIT = 2.0**62

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
    grid, block = (np.where(known[:, None], part, 1) for part in (extents[:, :3], extents[:, 3:]))
    too_large = [np.prod(part.astype(float), axis=1) > _MAX_WORKGROUP_SIZE for part in (grid, block)]
    swapped = bool(too_large[1].any() and not too_large[0].any())
    if swapped:
        grid, block = block, grid
    items = known & (in_work_items | swapped)
    grid = np.where(items[:, None], -(-grid // block), grid)
    fits = np.prod(grid.astype(float), axis=1) < _LIMIT
    groups = np.where(known & fits, np.prod(grid, axis=1), MISSING)
    small = np.prod(block.astype(float), axis=1) <= _MAX_WORKGROUP_SIZE
    sizes = np.where(known & small, np.prod(block, axis=1), MISSING)
    repaired = int(known.sum()) if swapped else 0
    return groups, sizes, {"repaired_grid": repaired, "repaired_work_items": int(items.sum())}


class Grids:
    """Collects what kernels and launches of one file say of their grids, until all are known."""

    def __init__(self) -> None:
        self._kernels: list[tuple[Ints, Ints, Ints]] = []
        self._launches: list[tuple[Ints, Ints, Ints, Flags]] = []

    def add_kernels(self, rank: Ints, correlation: Ints, extents: Ints) -> None:
        """Take kernels, in the order of their rows."""
        self._kernels.append((rank, correlation, extents))

    def add_launches(self, rank: Ints, correlation: Ints, extents: Ints, in_work_items: Flags) -> None:
        """Take calls; those that say nothing of a grid are passed over."""
        telling = (extents[:, 0] != MISSING) | in_work_items
        if telling.any():
            self._launches.append((rank[telling], correlation[telling], extents[telling], in_work_items[telling]))

    def workgroups(self) -> tuple[Ints, Ints, dict[str, int]]:
        """Return what `workgroups` does, for all kernels taken."""
        if not self._kernels:
            return np.empty(0, np.int64), np.empty(0, np.int64), {}
        rank, correlation, extents = (np.concatenate(parts) for parts in zip(*self._kernels, strict=True))
        in_items = np.zeros(len(rank), dtype=bool)
        if self._launches:
            of_rank, of_correlation, theirs, flags = (
                np.concatenate(parts) for parts in zip(*self._launches, strict=True)
            )
            found = _first(dense_keys((of_rank, of_correlation), (rank, correlation)))
            hit = (found != MISSING) & (correlation != MISSING)
            in_items[hit] = flags[found[hit]]
            lent = hit & (extents[:, 0] == MISSING)
            extents = extents.copy()
            extents[lent] = theirs[found[lent]]
        return workgroups(extents, in_items)


def _first(keys: list[Ints]) -> Ints:
    """Return for each of the second keys where the first ones have it first, `MISSING` where they lack it."""
    distinct, place = np.unique(keys[0], return_index=True)
    at = np.minimum(np.searchsorted(distinct, keys[1]), len(distinct) - 1)
    return np.where(distinct[at] == keys[1], place[at], MISSING)
