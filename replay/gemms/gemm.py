"""A general matrix multiplication (GEMM), and the kernels that can compute it.

`Gemm` has the sizes; `gemm_of_task` returns the GEMM that a kernel of a graph computes. `Variants` are kernels that
compute a GEMM in other tiles, splits and resources.
"""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from replay.graph.graph import KernelGraph
from replay.graph.operators import DTYPE_BYTES, Operator

#: Dimensions of an operator that is a GEMM: batch, m, n and k.
_N_DIMS = 4
_DTYPE_OF_SIZE = {DTYPE_BYTES[dtype]: dtype for dtype in ("fp64", "fp32", "bf16", "fp8")}


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
    if operator.kind not in ("matmul", "batched_matmul") or len(operator.dims) != _N_DIMS:
        return None
    batch, m, n, k = operator.dims
    return Gemm(
        m, n, k, batch, tuple(DTYPES)[dtype] if dtype >= 0 else _DTYPE_OF_SIZE.get(operator.element_bytes, "bf16")
    )


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
