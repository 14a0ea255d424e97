"""Streams of lookups in a table: embeddings whose indices are uniform, skewed (Zipf), or measured."""

from math import gcd

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.memory.accesses import Stream, Tiles, operands
from replay.memory.streams.splitting import STEP_BYTES, checked_sizes, resident_workgroups

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
