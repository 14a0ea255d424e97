"""A general matrix multiplication (GEMM), the kernels that can compute it, and the tiles and waves of a launch.

`Gemm` has the sizes; `gemm_of_task` returns the GEMM that a kernel of a graph computes. `Variants` are kernels that
compute a GEMM in other tiles, splits and resources. `grid_of` explains the workgroups of a launch by the tile that the
name of its kernel states (`replay.costs.tiles`), or guesses a tile that gives as many. `LaunchGrid` counts waves and
tails.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from replay.costs.kernels.models import TILES
from replay.costs.products import ASSUMED_DTYPE, DTYPE_OF_SIZE, N_DIMS
from replay.costs.tiles import NamedTile
from replay.graph.graph import KernelGraph
from replay.graph.operators import DTYPE_BYTES, Operator


@dataclass(frozen=True)
class Gemm:
    """``batch`` products of an (m, k) by a (k, n) matrix.

    Parameters
    ----------
    m, n, k : int
        Rows and columns of the result, and depth.
    batch : int
        Number of products.
    dtype : str
        One of `profilers.devices.DTYPES`.
    transpose_a, transpose_b : bool
        Whether an operand is stored transposed.

    Raises
    ------
    InvalidInputError
        A dimension is below 1, or there is no such type.

    Examples
    --------
    >>> gemm = Gemm(128, 64, 32)
    >>> gemm.flops, gemm.operand_bytes
    (524288.0, (16384.0, 8192.0, 32768.0))
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "fp32"
    transpose_a: bool = False
    transpose_b: bool = False

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k, self.batch) < 1:
            raise InvalidInputError(f"a GEMM of {self}: each dimension must be 1 or more")
        if self.dtype not in DTYPES:
            raise InvalidInputError(f"a GEMM of type {self.dtype!r}; types are {', '.join(DTYPES)}")

    def __str__(self) -> str:
        """Return the shape, such as ``16x512x512x64 bf16`` for a batch of 16."""
        sizes = [self.m, self.n, self.k] if self.batch == 1 else [self.batch, self.m, self.n, self.k]
        return f"{'x'.join(map(str, sizes))} {self.dtype}"

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def operand_bytes(self) -> tuple[float, float, float]:
        """Bytes of the left operands, the right ones and the results."""
        size = DTYPE_BYTES[self.dtype] * self.batch
        return float(size * self.m * self.k), float(size * self.k * self.n), float(size * self.m * self.n)


def gemm_of_task(graph: KernelGraph, row: int) -> Gemm | None:
    """Return the GEMM that a kernel computes; None if its operator is unknown or no GEMM.

    Parameters
    ----------
    graph : KernelGraph
        Graph of the kernel.
    row : int
        Row of the kernel.
    """
    number = int(graph.tasks.operator[row])
    return None if number < 0 else gemm_of_operator(graph.operators[number], int(graph.tasks.dtype[row]))


def gemm_of_operator(operator: Operator, dtype: int = -1) -> Gemm | None:
    """Return the GEMM that an operator is; None if it is none.

    Parameters
    ----------
    operator : Operator
        Operator of a kernel.
    dtype : int
        Data type of the kernel, as an index into ``tuple(profilers.devices.DTYPES)``; -1 for that of an element of the
        operator's size.

    Examples
    --------
    >>> from replay.graph.operators import batched_matmul
    >>> str(gemm_of_operator(batched_matmul(2, 64, 32, 16, 4)))
    '2x64x32x16 fp32'
    """
    if operator.kind not in ("matmul", "batched_matmul") or len(operator.dims) != N_DIMS:
        return None
    batch, m, n, k = operator.dims
    of_size = DTYPE_OF_SIZE.get(operator.element_bytes, ASSUMED_DTYPE)
    return Gemm(m, n, k, batch, tuple(DTYPES)[dtype] if dtype >= 0 else of_size)


@dataclass(frozen=True)
class Variants:
    """Kernels that can compute a GEMM: columns of equal length n, one row a variant.

    Parameters
    ----------
    tile_m, tile_n : array of int64
        Rows and columns of the result that a workgroup computes.
    depth : array of int64
        Depth that a workgroup loads in one step.
    global_split : array of int64
        Workgroups that share the depth of a tile, and add their results in memory.
    local_split : array of int64
        Parts of a workgroup that share the depth of a tile, and add their results in LDS.
    threads : array of int64
        Threads of a workgroup.
    matrix_rows : array of int64
        Rows of its matrix instruction; 0 if it uses vector instructions.
    lds_bytes : array of float64
        Shared memory or LDS of a workgroup; NaN if unknown.
    candidate : array of int64
        Number of the kernel in the fit of a `VariantModel`; -1 if it has none.

    Raises
    ------
    InvalidInputError
        Columns differ in length, or a size is below 1.

    Examples
    --------
    >>> Variants.of(tile_m=[128, 64], tile_n=[128, 64], depth=[16, 16]).workgroups(Gemm(256, 192, 512)).tolist()
    [4, 12]
    """

    tile_m: Ints
    tile_n: Ints
    depth: Ints
    global_split: Ints
    local_split: Ints
    threads: Ints
    matrix_rows: Ints
    lds_bytes: Floats
    candidate: Ints

    def __post_init__(self) -> None:
        if len({len(getattr(self, field.name)) for field in fields(self)}) > 1:
            raise InvalidInputError("variants: columns differ in length")
        for name in ("tile_m", "tile_n", "depth", "global_split", "local_split", "threads"):
            if (getattr(self, name) < 1).any():
                raise InvalidInputError(f"variants: {name} must be 1 or more")

    @classmethod
    def of(
        cls,
        *,
        tile_m: npt.ArrayLike,
        tile_n: npt.ArrayLike,
        depth: npt.ArrayLike = 32,
        **columns: npt.ArrayLike,
    ) -> "Variants":
        """Return variants from columns of `Variants`; a number stands for all rows.

        Without other values, a variant has no split, 256 threads and unknown LDS.
        """
        defaults: dict[str, npt.ArrayLike] = {
            "global_split": 1, "local_split": 1, "threads": 256, "matrix_rows": 0, "lds_bytes": np.nan, "candidate": -1
        }  # fmt: skip
        values = {**defaults, **columns, "tile_m": tile_m, "tile_n": tile_n, "depth": depth}
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise InvalidInputError(f"variants have no column {', '.join(sorted(unknown))}")
        arrays = dict(
            zip(values, np.broadcast_arrays(*(np.atleast_1d(value) for value in values.values())), strict=True)
        )
        return cls(**{name: array.astype(float if name == "lds_bytes" else np.int64) for name, array in arrays.items()})

    def __len__(self) -> int:
        """Return the number of variants."""
        return len(self.tile_m)

    def select(self, rows: npt.ArrayLike) -> "Variants":
        """Return some of the variants, by row numbers or a mask."""
        return Variants(**{field.name: getattr(self, field.name)[np.atleast_1d(rows)] for field in fields(self)})

    def workgroups(self, gemm: Gemm) -> Ints:
        """Return the workgroups of each variant: one for each tile, part of the depth, and product of the batch."""
        rows, columns = -(-gemm.m // self.tile_m), -(-gemm.n // self.tile_n)
        return np.asarray(rows * columns * self.global_split * gemm.batch)


#: Splits of the depth that a library is taken to have if its kernels are unknown.
SPLITS: Final = (1, 2, 4, 8, 16)
#: Parts of the depth that libraries often take at most, and the step along it if the name states none.
_USUAL_PARTS: Final = 64
_USUAL_DEPTH: Final = 8
#: CUTLASS rounds one side of the grid up to a multiple of these, so that neighbours share operands in the cache.
_SWIZZLES: Final = (2, 4, 8)


@dataclass(frozen=True)
class LaunchGrid:
    """Workgroups of a launch, and the rounds in which compute units run them.

    Parameters
    ----------
    tile_m, tile_n, depth : int
        Rows and columns of our result that a workgroup computes, and its step along the depth; 0 if unknown.
    known_by : str
        Source of the tile: ``"name"`` of the kernel, ``"grid"`` (guessed: it gives as many workgroups), or ``""``.
    workgroups : int
        Workgroups that were launched; 0 if the trace does not say.
    tiles : int
        Pieces that workgroups compute: tiles times parts of the depth. The workgroups if the tile is unknown.
    split : int
        Parts of the depth; 0 if unknown.
    persistent : bool
        Whether each workgroup computes several tiles, one after another.
    units : int
        Compute units of the device.
    resident : int
        Workgroups that one compute unit holds at once.
    """

    tile_m: int
    tile_n: int
    depth: int
    known_by: str
    workgroups: int
    tiles: int
    split: int
    persistent: bool
    units: int
    resident: int = 1

    @property
    def _round(self) -> int:
        """Tiles that run at one time."""
        return self.workgroups if self.persistent else self.units * self.resident

    @property
    def waves(self) -> float:
        """All tiles over the tiles that run at one time."""
        return self.tiles / self._round

    @property
    def last_wave(self) -> float:
        """Share of the last wave that is filled."""
        rest = self.tiles % self._round
        return rest / self._round if rest else 1.0

    @property
    def tail_efficiency(self) -> float:
        """Share of the compute units that compute tiles, mean over the rounds; above 0, at most 1.

        Workgroups on one unit share its rate. So the unit with most tiles sets the time: the mean number of tiles on a
        unit, over the largest number.
        """
        crowd = (
            ceil(self.workgroups / self.units) * ceil(self.waves) if self.persistent else ceil(self.tiles / self.units)
        )
        return min(self.tiles / self.units / crowd, 1.0)

    @property
    def units_used(self) -> float:
        """Share of the compute units that get a tile at all."""
        return min(min(self.tiles, self.workgroups or self.tiles) / self.units, 1.0)

    def inside(self, gemm: Gemm) -> float | None:
        """Return the share of the tiles' area that lies inside the result; None if the tile is unknown."""
        if not self.tile_m:
            return None
        rows, columns = (ceil(size / tile) * tile for size, tile in ((gemm.m, self.tile_m), (gemm.n, self.tile_n)))
        return gemm.m * gemm.n / (rows * columns)


def grid_of(gemm: Gemm, tile: NamedTile | None, workgroups: int, *, units: int, resident: int = 1) -> LaunchGrid | None:
    """Return the grid of a launch: its tile, oriented as our result, its split, and the tiles to compute.

    Parameters
    ----------
    gemm : Gemm
        GEMM that the launch computes.
    tile : NamedTile or None
        Tile that the kernel's name states. Without it, the largest tile of a library that gives as many workgroups is
        guessed.
    workgroups : int
        Workgroups of the launch; 0 if unknown.
    units : int
        Compute units of the device.
    resident : int
        Workgroups that one compute unit holds at once.

    Returns
    -------
    LaunchGrid or None
        None if neither tile nor workgroups are known.

    Examples
    --------
    >>> grid = grid_of(Gemm(788, 768, 768), NamedTile(64, 32, 128), 300, units=304)
    >>> grid.tile_m, grid.tile_n, grid.tiles, grid.split, round(grid.tail_efficiency, 3)
    (32, 64, 300, 1, 0.987)
    """
    if tile is None:
        return _guessed(gemm, workgroups, units, resident)
    sides = ((tile.n, tile.m), (tile.m, tile.n))
    if not workgroups:
        rows, columns = sides[0]
        count = _count(gemm, rows, columns) * max(tile.split, 1)
        return LaunchGrid(rows, columns, tile.depth, "name", 0, count, tile.split or 1, False, units, resident)
    if tile.persistent:
        rows, columns = sides[0]
        return LaunchGrid(
            *(rows, columns, tile.depth, "name", workgroups, _count(gemm, rows, columns)),
            *(1, True, units, resident),
        )
    fits = [fit for side in sides for fit in _fits(gemm, side, workgroups, tile)]
    best = min(fits, default=None, key=lambda fit: fit[0])  # of equal ones the first: as BLAS has it, and the least
    if best is None:  # fewer workgroups than tiles stay and take several; the reason for more is unknown
        (rows, columns), count = sides[0], min(_count(gemm, *side) for side in sides)
        stays = workgroups < count
        tiles, split = (count, 1) if stays else (workgroups, 0)
        return LaunchGrid(rows, columns, tile.depth, "name", workgroups, tiles, split, stays, units, resident)
    _, rows, columns, split, tiles = best
    return LaunchGrid(rows, columns, tile.depth, "name", workgroups, tiles, split, False, units, resident)


def _fits(
    gemm: Gemm, side: tuple[int, int], workgroups: int, tile: NamedTile
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield ways to get `workgroups`: a penalty, rows and columns of the tile, parts of the depth, and tiles."""
    rows, columns = side
    count, most = _count(gemm, rows, columns), max(gemm.k // (tile.depth or _USUAL_DEPTH), 1)
    if workgroups % count == 0 and workgroups // count <= most:
        split = workgroups // count
        yield int(tile.split not in (0, split) or split > _USUAL_PARTS), rows, columns, split, workgroups
    down, across = ceil(gemm.m / rows), ceil(gemm.n / columns)
    for many in _SWIZZLES:
        for a, b in ((ceil(down / many) * many, across), (down, ceil(across / many) * many)):
            padded = gemm.batch * a * b
            if padded > count and workgroups % padded == 0 and workgroups // padded <= most:
                split = workgroups // padded
                yield 2 + many + 8 * (split > _USUAL_PARTS), rows, columns, split, count * split


def _guessed(gemm: Gemm, workgroups: int, units: int, resident: int) -> LaunchGrid | None:
    """Return the grid of a kernel whose name states no tile; None if the trace does not count workgroups."""
    if not workgroups:
        return None
    for split, (rows, columns) in product(SPLITS, TILES):
        if _count(gemm, rows, columns) * split == workgroups:
            return LaunchGrid(rows, columns, 0, "grid", workgroups, workgroups, split, False, units, resident)
    return LaunchGrid(0, 0, 0, "", workgroups, workgroups, 0, False, units, resident)


def _count(gemm: Gemm, rows: int, columns: int) -> int:
    return gemm.batch * ceil(gemm.m / rows) * ceil(gemm.n / columns)
