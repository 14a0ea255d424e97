"""`Operator`: what an operator of a framework has to compute and to move, whatever kernel does it."""

from dataclasses import dataclass
from math import prod

from profilers.errors import InvalidInputError

#: Bytes of an element, by the profiler's names of types and by ours.
DTYPE_BYTES: dict[str, int] = {
    "float": 4, "fp32": 4, "tf32": 4, "int": 4,
    "double": 8, "fp64": 8, "long": 8, "long int": 8, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Half": 2, "fp16": 2, "c10::BFloat16": 2, "bf16": 2, "short": 2,
    "fp8": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1,
    "signed char": 1, "unsigned char": 1, "bool": 1, "int8": 1,
}  # fmt: skip

#: What an operator can be.
KINDS: tuple[str, ...] = (
    "matmul",
    "batched_matmul",
    "convolution",
    "attention",
    "normalization",
    "softmax",
    "elementwise",
    "reduction",
    "embedding",
    "rnn",
    "optimizer",
    "copy",
)


@dataclass(frozen=True, slots=True)
class Operator:
    """Work of one call of an operator.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    flops : float
        Floating-point operations; a multiply and an add count as two.
    bytes_read, bytes_written : float
        B; every operand once, as if all that is used again stayed in a cache.
    dims : tuple of int
        ``(batch, m, n, k)`` of matrix products, ``(rows, columns)`` of normalisations and softmax, else the elements.
    element_bytes : int
        Of the first floating operand.
    working_set_bytes : float
        What it goes over until it comes to the same operands again; 0 where that is what it moves.
    """

    kind: str
    flops: float
    bytes_read: float
    bytes_written: float
    dims: tuple[int, ...]
    element_bytes: int = 4
    working_set_bytes: float = 0.0

    @property
    def bytes_moved(self) -> float:
        """Bytes read and written, which is also the working set: nothing is counted twice."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """FLOP a byte: how often what is moved is used again."""
        return self.flops / self.bytes_moved if self.bytes_moved else 0.0


def batched_matmul(
    batch: int, m: int, n: int, k: int, element_bytes: int = 4, *, bias: int = 0, shared: bool = False
) -> Operator:
    """Return ``batch`` products of an (m, k) by a (k, n) matrix: ``2 * batch * m * n * k`` FLOP.

    Parameters
    ----------
    batch, m, n, k : int
        1 or more.
    element_bytes : int
    bias : int
        Elements of what is added to the product.
    shared : bool
        Whether all products have one second matrix.

    Raises
    ------
    InvalidInputError
        A dimension is below 1.

    Examples
    --------
    >>> product = batched_matmul(1, 128, 64, 32)
    >>> product.kind, product.flops, product.bytes_read, product.bytes_written
    ('matmul', 524288.0, 24576, 32768)
    """
    for name, value in (("batch", batch), ("m", m), ("n", n), ("k", k)):
        _positive(name, value)
    read = batch * m * k + (1 if shared else batch) * k * n + bias
    kind = "matmul" if batch == 1 or shared else "batched_matmul"
    dims = (1, batch * m, n, k) if shared else (batch, m, n, k)
    return Operator(kind, 2.0 * batch * m * n * k, read * element_bytes, batch * m * n * element_bytes, dims,
                    element_bytes)  # fmt: skip


def attention(
    query: tuple[int, int, int, int],
    key: tuple[int, int],
    element_bytes: int = 2,
    *,
    causal: bool = False,
    backward: bool = False,
) -> Operator:
    """Return attention that keeps no score matrix in memory: two products of ``queries * keys * width`` a head.

    Parameters
    ----------
    query : tuple of int
        (batch, heads, queries, width).
    key : tuple of int
        (heads, keys) of keys and values.
    element_bytes : int
    causal : bool
        Whether half of the scores is masked; it is not computed.
    backward : bool
        The backward pass has five such products: the scores again, and four gradients.

    Notes
    -----
    Source: FlashAttention (arXiv 2205.14135), section 3.

    Examples
    --------
    >>> attention((1, 2, 128, 64), (2, 128)).flops / (4 * 2 * 128 * 128 * 64)
    1.0
    """
    for name, values in (("query", query), ("key", key)):
        for value in values:
            _positive(name, value)
    (batch, heads, queries, width), (key_heads, keys) = query, key
    products = 5 if backward else 2
    flops = products * 2.0 * batch * heads * queries * keys * width * (0.5 if causal else 1.0)
    own, others = batch * heads * queries * width, batch * key_heads * keys * width
    read, written = (3 * own + 2 * others, own + 2 * others) if backward else (own + 2 * others, own)
    dims = (batch * heads, queries, keys, width)
    return Operator("attention", flops, read * element_bytes, written * element_bytes, dims, element_bytes)


def convolution(
    images: tuple[int, ...], weight: tuple[int, ...], output: tuple[int, ...], element_bytes: int = 4,
    *, passes: int = 1,
) -> Operator:  # fmt: skip
    """Return a direct convolution, grouped or not: each output element takes ``2 * prod(weight[1:])`` FLOP.

    Parameters
    ----------
    images, weight, output : tuple of int
        (batch, channels, *extent), (out channels, channels a group, *kernel), (batch, out channels, *extent).
    passes : int
        1 forward or one of the two gradients, 2 both gradients: each costs what the forward pass does.

    Examples
    --------
    >>> convolution((1, 3, 8, 8), (16, 3, 3, 3), (1, 16, 8, 8)).flops
    55296.0
    """
    for name, shape in (("images", images), ("weight", weight), ("output", output)):
        for value in shape:
            _positive(name, value)
    flops = passes * 2.0 * prod(output) * prod(weight[1:])
    read, written = passes * (prod(images) + prod(weight)), passes * prod(output)
    dims = (1, output[0] * prod(output[2:]), weight[0], prod(weight[1:]))
    return Operator("convolution", flops, read * element_bytes, written * element_bytes, dims, element_bytes)


def rowwise(kind: str, rows: int, columns: int, element_bytes: int = 4, *, backward: bool = False) -> Operator:
    """Return a normalisation or a softmax of each row: a read and a write of all, backward two reads and a write.

    About 8 FLOP an element forward and 11 backward for a normalisation, 5 and 4 for a softmax (counted from their
    formulas; the exponential counts as one). They are bound by memory, so that this matters little.

    Examples
    --------
    >>> rowwise("softmax", 4, 1000).bytes_moved
    32000
    """
    _positive("rows", rows)
    _positive("columns", columns)
    each = {"normalization": (8, 11), "softmax": (5, 4)}[kind][backward]
    size = rows * columns
    return Operator(kind, float(each * size), (2 if backward else 1) * size * element_bytes, size * element_bytes,
                    (rows, columns), element_bytes)  # fmt: skip


def streaming(
    kind: str, read: float, written: float, elements: int, element_bytes: int = 4, *, each: float = 1.0
) -> Operator:
    """Return an operator that goes through its data once.

    Parameters
    ----------
    kind : str
    read, written : float
        B.
    elements : int
        That are computed.
    each : float
        FLOP an element.
    """
    _positive("elements", elements)
    return Operator(kind, each * elements, read, written, (elements,), element_bytes)


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise InvalidInputError(f"{name} is {value}; a dimension must be 1 or more")
