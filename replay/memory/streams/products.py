"""Streams of matrix products: tiles of the result, slices of the depth, and parts of a split depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.costs.products import library_grid
from replay.memory.accesses import ALIGNMENT, Memory, Operand, Stream, Tiles, bind, checked_sizes, operands, section
from replay.memory.streams.passes import ArrayPass, streaming_pass

#: Bytes of a row of the first operand that a step reads: the depth of a slice (CUTLASS: 32 halves, 16 singles).
_SLICE_BYTES = 64
#: Most bytes of the result that a workgroup writes in a step.
_WRITTEN_BYTES = 32 << 10
#: Elements of accumulators that fill half of a unit's registers (256 KiB), 4 bytes each.
_ACCUMULATORS = 32768
#: Sides of tiles that libraries have kernels for (names of cuBLAS and Tensile kernels).
_SIDES = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
_PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 24, 32)
#: Least depth of a part: with less, writing partial sums takes longer than the product.
_LEAST_DEPTH = 256
#: The same for a launch whose workgroups a split explains.
_LEAST_SPLIT = 64
LAYOUTS = ("nn", "nt", "tn", "tt")
#: Bytes of a partial sum of a product that splits its depth.
PARTIAL_BYTES = 4


#: Slices that a kernel loads ahead of the one that it multiplies (CUTLASS, multistage pipelines: two to four).
_STAGES = 2


@dataclass(frozen=True)
class Tiling:
    """How workgroups divide a matrix product.

    Parameters
    ----------
    rows, columns : int
        Rows and columns of the result that a workgroup computes.
    depth : int
        Elements of the depth that a step multiplies.
    parts : int
        Parts of the depth, which different workgroups sum.
    group : int
        Rows of tiles that are dispatched together, column by column, so that the tiles that run at a time form a
        block of the result. 1 dispatches row by row.
    """

    rows: int
    columns: int
    depth: int
    parts: int = 1
    group: int = 8

    def __post_init__(self) -> None:
        checked_sizes(rows=self.rows, columns=self.columns, depth=self.depth, parts=self.parts, group=self.group)

    @property
    def threads(self) -> int:
        """Threads of a workgroup: 256 for tiles beyond 64 x 64, else 128."""
        return 256 if self.rows * self.columns > 64 * 64 else 128

    @property
    def residency(self) -> int:
        """Workgroups of a unit: their accumulators take up to half of its registers."""
        return max(min(_ACCUMULATORS // (self.rows * self.columns), 8), 1)

    def loads(self, element_bytes: int) -> int:
        """Return the loads of 16 bytes that a thread has in flight: those of the next slice, and of the one after."""
        return max(_STAGES * (self.rows + self.columns) * self.depth * element_bytes // (self.threads * 16), 1)

    def __str__(self) -> str:
        split = f" in {self.parts} parts" if self.parts > 1 else ""
        return f"tile {self.rows} x {self.columns} x {self.depth}{split}"


def library_tiling(
    sizes: tuple[int, int, int, int],
    element_bytes: int = 4,
    *,
    workgroups: int = 0,
    units: int = 108,
    most_parts: int = _PARTS[-1],
) -> Tiling:
    """Return the tiling that a library would choose.

    Parameters
    ----------
    sizes : tuple of int
        (batch, m, n, k).
    element_bytes : int
        Bytes of an element.
    workgroups : int
        Workgroups of the recorded launch; 0 if unknown. The tile whose count equals it is taken, the least costly if
        several do. If none does, the choice is that for an unknown launch.
    units : int
        Compute units for which the library chooses (`replay.costs.products.library_grid`).
    most_parts : int
        Most parts that the depth is split into.

    Examples
    --------
    >>> print(library_tiling((1, 4096, 4096, 4096), 2, workgroups=512))
    tile 128 x 256 x 32
    """
    rows, columns, parts = _grid(sizes, workgroups, units, most_parts)
    return Tiling(rows, columns, max(_SLICE_BYTES // element_bytes, 1), min(parts, sizes[3]))


@lru_cache(maxsize=4096)
def _grid(sizes: tuple[int, int, int, int], workgroups: int, units: int, most_parts: int) -> tuple[int, int, int]:
    """Return rows and columns of the tile, and parts of the depth."""
    batch, m, n, k = sizes
    matching = [
        (rows, columns, parts)
        for rows in _SIDES
        for columns in _SIDES
        for parts in _PARTS
        if batch * -(-m // rows) * -(-n // columns) * parts == workgroups
        and parts <= min(max(k // _LEAST_SPLIT, 1), most_parts)
    ]
    if matching:
        # Most kernels of libraries have tiles whose sides are powers of two; few split the depth.
        return min(matching, key=lambda grid: (_odd_sides(grid), grid[2], _edge_cost(m, n, grid), grid))
    return library_grid((batch, m, n), units, most_parts=min(max(k // _LEAST_DEPTH, 1), most_parts))


def _edge_cost(m: int, n: int, grid: tuple[int, int, int]) -> float:
    """Return the elements that tiles compute, those outside of the result included, times their cost of edges."""
    rows, columns, _ = grid
    padded = -(-m // rows) * rows * -(-n // columns) * columns
    uneven = max(rows, columns) / min(rows, columns)
    return padded * (1 + 2 / rows + 2 / columns) * (1 + 0.02 * (uneven - 1))


def _odd_sides(grid: tuple[int, int, int]) -> int:
    """Return how many sides of a tile are no power of two."""
    return sum(side & (side - 1) != 0 for side in grid[:2])


def product(
    sizes: tuple[int, int, int, int],
    element_bytes: int = 4,
    *,
    tiling: Tiling | None = None,
    layout: str = "nn",
    matrix: bool | None = None,
) -> Stream:
    """Return the stream of ``batch`` products of an (m, k) by a (k, n) matrix.

    A workgroup computes a tile of the result. In each step it reads a slice of the rows of A and of the columns of B,
    so that all reads are ``m * n * k * (1 / columns + 1 / rows)`` elements if tiles divide the sizes. After its last
    slice it writes its tile. With several parts of the depth, every part writes partial sums of 4 bytes, and another
    kernel adds them.

    Parameters
    ----------
    sizes : tuple of int
        (batch, m, n, k).
    element_bytes : int
        Bytes of an element.
    tiling : Tiling, optional
        Tiles; by default `library_tiling`.
    layout : str
        For A and B, ``n`` if they lie in memory by rows, as (m, k) and (k, n), and ``t`` if transposed.
    matrix : bool, optional
        Whether matrix units multiply; by default for elements of two bytes and less.

    Raises
    ------
    InvalidInputError
        A size is below 1, or the layout is unknown.

    Examples
    --------
    >>> stream = product((1, 256, 256, 64), 2, tiling=Tiling(128, 128, 32))
    >>> stream.workgroups, stream.steps, stream.footprint
    (4, 3, 196608)
    """
    batch, m, n, k = sizes
    checked_sizes(batch=batch, m=m, n=n, k=k)
    if layout not in LAYOUTS:
        raise InvalidInputError(f"layout {layout!r} of a product; one of {', '.join(LAYOUTS)}")
    tiling = tiling or library_tiling(sizes, element_bytes)
    walk = _ProductTiles(sizes, element_bytes, tiling, layout)
    return Stream(
        f"product {batch} x {m} x {n} x {k}" if batch > 1 else f"product {m} x {n} x {k}",
        operands(
            A=batch * m * k * element_bytes,
            B=batch * k * n * element_bytes,
            **{"C" if tiling.parts == 1 else "partials": batch * tiling.parts * m * n * walk.written_bytes},
        ),
        workgroups=batch * tiling.parts * walk.grid[0] * walk.grid[1],
        steps=walk.slices + walk.writes,
        tiles=walk,
        flops=2.0 * batch * m * n * k,
        threads=tiling.threads,
        vector_bytes=16,
        residency=tiling.residency,
        in_flight=tiling.loads(element_bytes),
        matrix=element_bytes <= 2 if matrix is None else matrix,
        element_bytes=element_bytes,
        alike=walk.slices,
        assumptions=(str(tiling), f"layout {layout}", f"tiles in groups of {tiling.group} rows"),
    )


def tile_order(number: Ints, grid: tuple[int, int], group: int) -> tuple[Ints, Ints]:
    """Return the row and the column of tiles in the order of dispatch.

    Parameters
    ----------
    number : array of int64
        Number of the tile in the order of dispatch.
    grid : tuple of int
        Rows and columns of tiles.
    group : int
        Rows that are dispatched together, column by column.

    Examples
    --------
    >>> row, column = tile_order(np.arange(6), (3, 2), 2)
    >>> list(zip(row.tolist(), column.tolist()))
    [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    """
    first = number // (group * grid[1]) * group
    height = np.minimum(grid[0] - first, group)
    inside = number - first * grid[1]
    return first + inside % height, inside // height


class _ProductTiles:
    """The tiles of a matrix product, by workgroup and step."""

    def __init__(self, sizes: tuple[int, int, int, int], element_bytes: int, tiling: Tiling, layout: str) -> None:
        self.sizes, self.element_bytes, self.tiling, self.layout = sizes, element_bytes, tiling, layout
        batch, m, n, k = sizes
        self.grid = (-(-m // tiling.rows), -(-n // tiling.columns))
        share = -(-k // tiling.parts)
        self.length = -(-share // tiling.depth) * tiling.depth
        self.slices = self.length // tiling.depth
        self.written_bytes = element_bytes if tiling.parts == 1 else max(element_bytes, PARTIAL_BYTES)
        self.rows_a_write = max(min(_WRITTEN_BYTES // (tiling.columns * self.written_bytes), tiling.rows), 1)
        self.writes = -(-tiling.rows // self.rows_a_write)
        first, second = batch * m * k * element_bytes, batch * k * n * element_bytes
        self.addresses = [item.address for item in operands(A=first, B=second, C=1)]

    def __call__(self, workgroups: Ints, step: int) -> Tiles:
        """Return the tiles of workgroups in a step."""
        tiles = self.grid[0] * self.grid[1]
        item, number = np.divmod(workgroups, tiles)
        batch, part = np.divmod(item, self.tiling.parts)
        row, column = tile_order(number, self.grid, self.tiling.group)
        if step >= self.slices:
            return self._written(workgroups, item, row, column, step - self.slices)
        _, m, n, k = self.sizes
        begin = part * self.length + step * self.tiling.depth
        depth = np.minimum(self.tiling.depth, np.minimum((part + 1) * self.length, k) - begin)
        reads = [
            self._operand(0, batch, (m, k), (row * self.tiling.rows, begin), (self.tiling.rows, depth)),
            self._operand(1, batch, (k, n), (begin, column * self.tiling.columns), (depth, self.tiling.columns)),
        ]
        address, rows, pitch, width = (np.stack(columns, axis=1) for columns in zip(*reads, strict=True))
        return Tiles.of(workgroups[:, None], address, [[0, 1]], width=width, rows=rows, pitch=pitch)

    def _operand(
        self,
        number: int,
        batch: Ints,
        shape: tuple[int, int],
        first: tuple[Ints, Ints],
        extent: tuple[int | Ints, Ints | int],
    ) -> tuple[Ints, Ints, Ints, Ints]:
        """Return address, rows, pitch and width of a block of a matrix, whose edge clips it."""
        sizes = [np.clip(shape[axis] - first[axis], 0, extent[axis]) for axis in (0, 1)]
        outer, inner = (0, 1) if self.layout[number] == "n" else (1, 0)
        offset = batch * shape[0] * shape[1] + first[outer] * shape[inner] + first[inner]
        address = self.addresses[number] + offset * self.element_bytes
        pitch = np.full_like(address, shape[inner] * self.element_bytes)
        return address, sizes[outer], pitch, sizes[inner] * self.element_bytes

    def _written(self, workgroups: Ints, item: Ints, row: Ints, column: Ints, write: int) -> Tiles:
        """Return the rows of the result that a step writes; `item` numbers batches and parts."""
        _, m, n, _ = self.sizes
        first = row * self.tiling.rows + write * self.rows_a_write
        bound = np.minimum((row + 1) * self.tiling.rows, m)
        left = column * self.tiling.columns
        return Tiles.of(
            workgroups,
            self.addresses[2] + ((item * m + first) * n + left) * self.written_bytes,
            2,
            rows=np.clip(bound - first, 0, self.rows_a_write),
            pitch=n * self.written_bytes,
            width=np.minimum(self.tiling.columns, n - left) * self.written_bytes,
            is_write=True,
        )


def product_kernels(
    sizes: tuple[int, int, int, int],
    element_bytes: int = 4,
    *,
    tiling: Tiling | None = None,
    layout: str = "nn",
    matrix: bool | None = None,
) -> tuple[Stream, ...]:
    """Return the kernels of a matrix product: the product, and the sum of its partial results if it splits its depth.

    The parameters are those of `replay.memory.streams.products.product`.

    Examples
    --------
    >>> [kernel.name for kernel in product_kernels((1, 64, 64, 8192), tiling=Tiling(64, 64, 16, parts=4))]
    ['product 64 x 64 x 8192', 'sum of 4 parts']
    """
    stream = product(sizes, element_bytes, tiling=tiling, layout=layout, matrix=matrix)
    partials = stream.operands[2]
    if partials.name != "partials":
        return (stream,)
    batch, m, n, _ = sizes
    # Each part of a product lies behind the part before it; a batch is summed as a longer product.
    elements, parts = batch * m * n, partials.size // (batch * m * n * max(element_bytes, PARTIAL_BYTES))
    size = partials.size // parts
    reads = {f"part_{number}": size for number in range(parts)}
    total = ArrayPass(
        reads, {"C": elements * element_bytes}, elements, max(element_bytes, PARTIAL_BYTES), parts * elements
    )
    result = Operand("C", elements * element_bytes, partials.address - (-partials.size // ALIGNMENT) * ALIGNMENT)
    arrays = {f"part_{number}": section(partials, number * size, size) for number in range(parts)}
    return stream, bind(streaming_pass(f"sum of {parts} parts", total), {**arrays, "C": result})


def bind_product(memory: Memory, kernels: Sequence[Stream], arrays: Sequence[Operand]) -> tuple[Stream, ...]:
    """Return the kernels of a product on arrays A, B and C of a sequence; partial sums go to its workspace.

    Parameters
    ----------
    memory : Memory
        Memory of the sequence.
    kernels : sequence of Stream
        Kernels from `product_kernels`.
    arrays : sequence of Operand
        Arrays A, B and C.

    Raises
    ------
    InvalidInputError
        An array is too small.
    """
    names = dict(zip("ABC", arrays, strict=True))
    if len(kernels) == 1:
        return (bind(kernels[0], names),)
    before = kernels[0].operands[2]
    partials = memory.workspace(before.size)
    parts = {
        operand.name: section(partials, operand.address - before.address, operand.size)
        for operand in kernels[1].operands[:-1]
    }
    return bind(kernels[0], {**names, "partials": partials}), bind(kernels[1], {**parts, **names})
