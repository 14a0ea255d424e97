"""How a kernel's data is split over workgroups and steps: `Walk`, `pieces`, and the workgroups that a unit holds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints

#: Threads that a compute unit holds: 2,048 on NVIDIA since Kepler (CUDA programming guide) and on AMD CDNA (32
#: wavefronts of 64).
UNIT_THREADS = 2048
#: Most workgroups of a unit (CUDA programming guide, compute capability 7.0).
_MOST_RESIDENT = 32
#: Bytes that a workgroup touches of an array in a step, so that a block of accesses stays small.
STEP_BYTES = 16 << 10


def resident_workgroups(threads: int) -> int:
    """Return the workgroups that a compute unit holds, as far as threads limit them.

    Examples
    --------
    >>> resident_workgroups(256), resident_workgroups(32)
    (8, 32)
    """
    return max(min(UNIT_THREADS // threads, _MOST_RESIDENT), 1)


def checked_sizes(**sizes: int) -> None:
    """Check that all sizes are 1 or more.

    Raises
    ------
    InvalidInputError
        A size is below 1.
    """
    for name, size in sizes.items():
        if size < 1:
            raise InvalidInputError(f"{name} is {size}; a dimension must be 1 or more")


def pieces(begin: npt.ArrayLike, end: npt.ArrayLike, length: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut ranges at the multiples of a length.

    Parameters
    ----------
    begin, end : array of int64, shape (n,)
        Half-open ranges; an empty range has no pieces.
    length : int
        Distance between two cuts, such as the elements of a row.

    Returns
    -------
    tuple of arrays of int64
        For each piece, in order: number of its range, number of its row, first and end position in the row.

    Examples
    --------
    >>> [column.tolist() for column in pieces([0, 7], [7, 10], 5)]
    [[0, 0, 1], [0, 1, 1], [0, 0, 2], [5, 2, 5]]
    """
    begins, ends = np.broadcast_arrays(np.asarray(begin, np.int64), np.asarray(end, np.int64))
    counts = np.where(ends > begins, (ends - 1) // length - begins // length + 1, 0)
    number = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    ordinal = np.arange(len(number), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    row = begins[number] // length + ordinal
    first = np.maximum(begins[number] - row * length, 0)
    last = np.minimum(ends[number] - row * length, length)
    return number, row, first, last


@dataclass(frozen=True)
class Walk:
    """A loop of workgroups over elements.

    Parameters
    ----------
    elements : int
        Elements of the array.
    workgroups, steps : int
        Workgroups, and steps of each.
    slice_ : int
        Elements of a workgroup in a step.
    chunk : int
        Elements of the contiguous chunk of a workgroup; 0 if all workgroups advance together by the slices of a step
        (a grid-stride loop).
    """

    elements: int
    workgroups: int
    steps: int
    slice_: int
    chunk: int

    @classmethod
    def chunks(cls, elements: int, chunk: int, slice_: int = 0) -> "Walk":
        """Return a loop in which each workgroup passes over its own contiguous chunk, a slice in each step."""
        slice_ = min(slice_ or chunk, chunk)
        return cls(elements, -(-elements // chunk), -(-chunk // slice_), slice_, chunk)

    @classmethod
    def grid_stride(cls, elements: int, workgroups: int, slice_: int) -> "Walk":
        """Return a grid-stride loop of a number of workgroups."""
        return cls(elements, workgroups, -(-elements // (workgroups * slice_)), slice_, 0)

    def ranges(self, workgroups: Ints, step: int) -> tuple[Ints, Ints]:
        """Return the first and the end element of each workgroup in a step; empty ranges have equal ends."""
        if not self.chunk:
            begin = (step * self.workgroups + workgroups) * self.slice_
            bound = np.full_like(begin, self.elements)
        else:
            begin = workgroups * self.chunk + step * self.slice_
            bound = np.minimum((workgroups + 1) * self.chunk, self.elements)
        begin = np.minimum(begin, bound)
        return begin, np.minimum(begin + self.slice_, bound)
