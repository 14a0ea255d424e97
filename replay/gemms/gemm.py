"""A general matrix multiplication (GEMM), and the one that a kernel of a graph computes."""

from dataclasses import dataclass

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError
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
