"""Grids of ROCm's tools: work-items along three axes, or their product, turned into workgroups."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING, Ints
from profilers.rocm.block import narrow

__all__ = ["workgroups"]

#: Products below are exact in float64.
_EXACT = 2.0**53


def workgroups(
    grid: Sequence[Ints], size: Sequence[Ints], in_work_items: npt.NDArray[np.bool_] | None = None
) -> tuple[Ints, Ints]:
    """Return workgroups and work-items a workgroup of each kernel, `MISSING` where an axis is not positive.

    Parameters
    ----------
    grid, size : sequence of array of int64
        By axis.
    in_work_items : array of bool, optional
        Whether a grid counts work-items; without it all do, as in all formats but RPD. The last workgroup of an
        axis need not be full.

    Examples
    --------
    >>> groups, sizes = workgroups([np.array([1000]), np.array([4])], [np.array([256]), np.array([2])])
    >>> groups.tolist(), sizes.tolist()
    ([8], [512])
    """
    known = np.logical_and.reduce([axis > 0 for axis in (*grid, *size)])
    divided = known if in_work_items is None else known & in_work_items
    groups, sizes = np.ones(len(known)), np.ones(len(known))
    for items, own in zip(grid, size, strict=True):
        groups *= np.where(divided, (items - 1) // np.where(known, own, 1) + 1, items)
        sizes *= own
    exact = known & (np.abs(groups) < _EXACT) & (np.abs(sizes) < _EXACT)
    found = [np.where(exact, np.where(exact, values, 0).astype(np.int64), MISSING) for values in (groups, sizes)]
    return found[0], narrow(found[1])
