"""Streams of kernels that pass over their data once: elementwise, copies, fills, reductions, optimisers, lookups.

Lookups are embeddings, whose indices are uniform, skewed (Zipf), or measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.memory.accesses import (
    STEP_BYTES,
    Operand,
    Stream,
    Tiles,
    Walk,
    checked_sizes,
    operands,
    pieces,
    resident_workgroups,
)

_THREADS = 256
#: Bytes of an index: 64-bit, as PyTorch's embeddings take by default.
INDEX_BYTES = 8
#: Part of the table by which ranks are scattered: the golden ratio spreads neighbours evenly.
_SCATTER = 0.6180339887498949
DISTRIBUTIONS = ("uniform", "zipf")


def drawn_indices(
    rows: int, lookups: int, *, distribution: str = "uniform", exponent: float = 1.05, seed: int = 0
) -> Ints:
    """Return indices of a table, uniform or skewed.

    Parameters
    ----------
    rows, lookups : int
        Rows of the table, and indices to draw.
    distribution : str
        ``uniform``, or ``zipf``: the row of rank r is drawn in proportion to ``r ** -exponent``.
    exponent : float
        Skew of a Zipf distribution, above 0. Indices of recommendation data have 0.6 to 1.2.
    seed : int
        Seed of the generator.

    Returns
    -------
    array of int64, shape (lookups,)
        Popular rows lie scattered in the table, as identifiers of users and items do.

    Raises
    ------
    InvalidInputError
        A size is below 1, the distribution is unknown, or its exponent is not above 0.

    Notes
    -----
    A Zipf rank is the whole part of a continuous power law on [1, rows + 1), by inversion of its distribution function.

    Examples
    --------
    >>> skewed = drawn_indices(1000, 10_000, distribution="zipf", exponent=1.2)
    >>> bool(np.bincount(skewed).max() > 1000), bool(0 <= skewed.min() <= skewed.max() < 1000)
    (True, True)
    """
    checked_sizes(rows=rows, lookups=lookups)
    if distribution not in DISTRIBUTIONS:
        raise InvalidInputError(f"distribution {distribution!r} of indices; one of {', '.join(DISTRIBUTIONS)}")
    generator = np.random.default_rng(seed)
    if distribution == "uniform":
        return generator.integers(0, rows, lookups, dtype=np.int64)
    if not exponent > 0:
        raise InvalidInputError(f"a Zipf distribution of exponent {exponent}; it must be above 0")
    share, power = generator.random(lookups), 1.0 - exponent
    if abs(power) < 1e-9:
        rank = np.exp(share * np.log(rows + 1.0))
    else:
        rank = (1.0 + share * ((rows + 1.0) ** power - 1.0)) ** (1.0 / power)
    ranks = np.clip(rank.astype(np.int64) - 1, 0, rows - 1)
    return np.asarray(ranks * _coprime(rows) % rows, dtype=np.int64)


def _coprime(rows: int) -> int:
    """Return a factor that permutes the rows: near the golden ratio of them, without a common divisor."""
    factor = max(int(rows * _SCATTER), 1)
    while gcd(factor, rows) != 1:
        factor += 1
    return factor


def embedding(
    table: tuple[int, int], indices: Ints, element_bytes: int = 4, *, backward: bool = False, vector_bytes: int = 16
) -> Stream:
    """Return the stream of a lookup of rows in a table.

    A workgroup handles 16 KiB of the output. It reads its indices and their rows, and writes its output. Backward, it
    reads the incoming gradient and adds it to the rows of the table's gradient, which it reads and writes.

    Parameters
    ----------
    table : tuple of int
        Rows and columns.
    indices : array of int64, shape (lookups,)
        Rows to look up, measured or from `drawn_indices`.
    element_bytes : int
        Bytes of an element.
    backward : bool
        Whether to return the backward pass.
    vector_bytes : int
        Bytes that a thread loads at a time.

    Raises
    ------
    InvalidInputError
        A size is below 1, or an index lies outside of the table.

    Examples
    --------
    >>> stream = embedding((1000, 64), drawn_indices(1000, 4096))
    >>> stream.workgroups, [operand.name for operand in stream.operands]
    (64, ['indices', 'table', 'y'])
    """
    rows, columns = table
    checked_sizes(rows=rows, columns=columns, lookups=len(indices))
    if indices.min() < 0 or indices.max() >= rows:
        raise InvalidInputError(f"indices from {indices.min()} to {indices.max()} of a table of {rows} rows")
    width, lookups = columns * element_bytes, len(indices)
    names = ("table_gradient", "gradient") if backward else ("table", "y")
    arrays = operands(indices=lookups * INDEX_BYTES, **{names[0]: rows * width, names[1]: lookups * width})
    each = max(STEP_BYTES // width, 1)
    # By lookup: its index, then loads and stores. A third column is a store that the forward pass does not have.
    operand = np.array([0, 2, 1, 1] if backward else [0, 1, 2])
    is_write = np.array([False, False, False, True] if backward else [False, False, True])

    def tiles(workgroups: Ints, step: int) -> Tiles:
        number = (workgroups[:, None] * each + np.arange(each)).ravel()
        number, group = number[number < lookups], np.repeat(workgroups, each)[number < lookups]
        in_order = {0: number * INDEX_BYTES, 1: indices[number] * width, 2: number * width}
        address = np.stack([arrays[index].address + in_order[index] for index in operand.tolist()], axis=1)
        return Tiles.of(group[:, None], address, operand, width=np.where(operand == 0, INDEX_BYTES, width),
                        is_write=is_write)  # fmt: skip

    distinct = len(np.unique(indices))
    return Stream(
        f"embedding{' backward' if backward else ''} {lookups} of {rows} x {columns}",
        arrays,
        workgroups=-(-lookups // each),
        steps=1,
        tiles=tiles,
        flops=float(lookups * columns) if backward else 0.0,
        threads=_THREADS,
        vector_bytes=min(vector_bytes, width),
        residency=resident_workgroups(_THREADS),
        in_flight=2,
        element_bytes=element_bytes,
        assumptions=(f"{distinct} of {rows} rows are touched", f"{each} lookups a workgroup"),
    )


#: Threads of a workgroup and elements of a thread, as in PyTorch's elementwise kernels (`CUDALoops.cuh`).
_THREADS, _PER_THREAD = 128, 4
#: The same of its reductions (`Reduce.cuh`), and most workgroups of one.
_REDUCTION_THREADS, _REDUCTION_CHUNK = 512, 1 << 14
#: Threads, chunk and unrolling of its kernels over lists of tensors (`MultiTensorApply.cuh`).
_LIST_THREADS, _LIST_CHUNK, _LIST_PER_THREAD = 512, 65536, 4
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class ArrayPass:
    """Arrays that a kernel passes over once, element by element.

    Parameters
    ----------
    reads, writes : mapping of str to int
        Bytes of each array. An array of fewer bytes than elements is repeated if it is read, as a bias is; if it is
        written, each of its elements is a result of several.
    elements : int
        Elements computed.
    element_bytes : int
        Bytes of an element.
    flops : float
        Floating-point operations.
    """

    reads: Mapping[str, int]
    writes: Mapping[str, int]
    elements: int
    element_bytes: int = 4
    flops: float = 0.0

    def __post_init__(self) -> None:
        checked_sizes(elements=self.elements, element_bytes=self.element_bytes, **{**self.reads, **self.writes})


def streaming_pass(name: str, data: ArrayPass, *, workgroups: int = 0) -> Stream:
    """Return the stream of an elementwise kernel, a copy or a fill.

    Parameters
    ----------
    name : str
        Name of the kernel.
    data : ArrayPass
        Arrays and elements.
    workgroups : int
        Workgroups of the recorded launch; 0 if unknown. With so few workgroups that each has more than 16 KiB of
        elements, they advance together in a grid-stride loop. By default each computes 512 elements, as in PyTorch.

    Examples
    --------
    >>> stream = streaming_pass("relu", ArrayPass({"x": 8192}, {"y": 8192}, 2048))
    >>> stream.workgroups, stream.steps
    (4, 1)
    """
    slice_ = _THREADS * _PER_THREAD
    walk = Walk.chunks(data.elements, slice_)
    if workgroups:
        chunk = -(-data.elements // workgroups)
        walk = Walk.chunks(data.elements, chunk)
        if chunk * data.element_bytes > STEP_BYTES:
            walk = Walk.grid_stride(data.elements, workgroups, slice_)
    return _passing(name, data, walk, threads=_THREADS)


def reduction(name: str, data: ArrayPass, *, workgroups: int = 0) -> Stream:
    """Return the stream of a reduction: each workgroup reads a contiguous chunk and writes its share of the results.

    Parameters
    ----------
    name : str
        Name of the kernel.
    data : ArrayPass
        Arrays; elements are those that are read.
    workgroups : int
        Workgroups of the recorded launch; 0 if unknown: then each reads 16,384 elements.

    Examples
    --------
    >>> reduction("sum", ArrayPass({"x": 1 << 20}, {"y": 4}, 1 << 18)).workgroups
    16
    """
    chunk = -(-data.elements // workgroups) if workgroups else _REDUCTION_CHUNK
    walk = Walk.chunks(data.elements, min(chunk, data.elements), STEP_BYTES // data.element_bytes)
    return _passing(name, data, walk, threads=_REDUCTION_THREADS)


def optimizer(elements: int, element_bytes: int = 4, *, lists: int = 4, writes: int = 3, flops: float = 12.0) -> Stream:
    """Return the stream of an optimizer step over lists of tensors, in chunks of 65,536 elements as in PyTorch.

    Parameters
    ----------
    elements : int
        Elements of a list.
    element_bytes : int
        Bytes of an element.
    lists, writes : int
        Lists that are read, and how many of them are written: for Adam 4 and 3, the parameters and two moments.
    flops : float
        FLOP for each element.

    Examples
    --------
    >>> stream = optimizer(1 << 20)
    >>> stream.workgroups, stream.steps, len(stream.operands)
    (16, 32, 4)
    """
    checked_sizes(elements=elements, element_bytes=element_bytes, lists=lists)
    names = ["parameters", "gradients", "moments", "second_moments"][:lists]
    names += [f"list_{number}" for number in range(len(names), lists)]
    size = elements * element_bytes
    written = [name for name in names if name != "gradients"][:writes]
    data = ArrayPass(
        dict.fromkeys(names, size), dict.fromkeys(written, size), elements, element_bytes, flops * elements
    )
    walk = Walk.chunks(elements, min(_LIST_CHUNK, elements), _LIST_THREADS * _LIST_PER_THREAD)
    return _passing(f"optimizer {elements}", data, walk, threads=_LIST_THREADS)


def _passing(name: str, data: ArrayPass, walk: Walk, *, threads: int) -> Stream:
    """Return the stream of a pass; an array that is both read and written is one operand."""
    arrays = operands(**{**data.reads, **data.writes})
    loop = f"each of {walk.workgroups} workgroups computes {walk.slice_} elements in a step"
    return Stream(
        name,
        arrays,
        workgroups=walk.workgroups,
        steps=walk.steps,
        tiles=_PassTiles(data, walk, arrays),
        flops=data.flops,
        threads=threads,
        vector_bytes=min(_VECTOR_BYTES, _PER_THREAD * data.element_bytes),
        residency=resident_workgroups(threads),
        in_flight=max(len(data.reads), 1),
        element_bytes=data.element_bytes,
        assumptions=(loop + ("" if walk.chunk else ", in a grid-stride loop"),),
    )


class _PassTiles:
    """The tiles of a pass over arrays, by workgroup and step."""

    def __init__(self, data: ArrayPass, walk: Walk, arrays: tuple[Operand, ...]) -> None:
        self.data, self.walk = data, walk
        self.number = {array.name: (index, array) for index, array in enumerate(arrays)}

    def __call__(self, workgroups: Ints, step: int) -> Tiles:
        """Return the tiles of workgroups in a step: all that is read, then all that is written."""
        begin, end = self.walk.ranges(workgroups, step)
        return Tiles.joined(
            *(self._shares(name, workgroups, begin, end, is_write=False) for name in self.data.reads),
            *(self._shares(name, workgroups, begin, end, is_write=True) for name in self.data.writes),
        )

    def _shares(self, name: str, workgroups: Ints, begin: Ints, end: Ints, *, is_write: bool) -> Tiles:
        index, array = self.number[name]
        elements, size = self.data.elements, self.data.element_bytes
        if array.size >= elements or is_write:
            unit = array.size // elements or (size if array.size % size == 0 else 1)
            count = -(-array.size // unit)
            shares = (begin, end) if count == elements else (bound * count // elements for bound in (begin, end))
            first, last = (np.minimum(share * unit, array.size) for share in shares)
            return Tiles.of(workgroups, array.address + first, index, width=last - first, is_write=is_write)
        number, _, first, last = pieces(begin * size, end * size, array.size)
        return Tiles.of(workgroups[number], array.address + first, index, width=last - first)
