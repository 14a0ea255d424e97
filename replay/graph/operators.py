"""`Operator`: the FLOP and bytes of a framework's operator, whichever kernel runs it."""

from dataclasses import dataclass
from math import prod

from profilers.errors import InvalidInputError
from profilers.trace.serving import PhaseTokens

#: Bytes of an element, by the profiler's names of types and by ours.
DTYPE_BYTES: dict[str, int] = {
    "float": 4, "fp32": 4, "tf32": 4, "int": 4,
    "double": 8, "fp64": 8, "long": 8, "long int": 8, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Half": 2, "fp16": 2, "c10::BFloat16": 2, "bf16": 2, "short": 2,
    "fp8": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1,
    "signed char": 1, "unsigned char": 1, "bool": 1, "int8": 1, "nvfp4": 1,  # whole bytes
    "int8_wo": 2, "int4_wo": 2, "w4a16_mxfp4": 2, "bf16_kv_fp8": 2,  # of activations and results
    "fp8_block": 1, "w4a8_mxfp4_mxfp8": 1,
}  # fmt: skip


#: Kinds of attention over cached keys and values of requests.
SERVING_ATTENTION = ("context_attention", "generation_attention", "mixed_attention")
#: Kinds of fused attention.
ATTENTION = ("attention", *SERVING_ATTENTION)


@dataclass(frozen=True, slots=True)
class Operator:
    """FLOP and bytes of one call of an operator.

    Parameters
    ----------
    kind : str
        ``"matmul"``, ``"batched_matmul"``, ``"convolution"``, ``"attention"``, ``"normalization"``, ``"softmax"``,
        ``"elementwise"``, ``"reduction"``, ``"embedding"``, ``"rnn"``, ``"optimizer"``, ``"pooling"``, ``"lrn"``
        (normalisation across channels) or ``"copy"``. Of serving: ``"context_attention"`` of prompts,
        ``"generation_attention"`` of new tokens, ``"mixed_attention"`` of both, and ``"experts"``.
    flops : float
        Floating-point operations; a multiply and an add count as two.
    bytes_read, bytes_written : float
        Bytes; every operand counts once, as if operands that are used again stayed in a cache.
    dims : tuple of int
        ``(batch, m, n, k)`` of matrix products, ``(rows, columns)`` of normalisations and softmax. Of serving, those of
        the models of `replay.costs.kernels`; mixed attention has those of prompts, then of new tokens. Else elements.
    element_bytes : int
        Bytes of an element of the first floating-point operand.
    working_set_bytes : float
        Bytes that it touches between two uses of the same operand; 0 if these are the bytes that it moves.
    geometry : tuple of int
        Shape that `dims` do not tell; empty if unknown. Batch norm: (images, channels, elements of a channel).
        Convolution of images: (images, channels, rows, columns, filters, rows and columns of the kernel, those of the
        stride, those of the padding, groups). Pooling: the same without filters and groups. Embedding: (rows, columns,
        lookups). Recurrent cell: (sequences, hidden elements, gates, 1 if backward). Normalisation across channels:
        (images, channels, elements of a channel, 1 if backward).
    """

    kind: str
    flops: float
    bytes_read: float
    bytes_written: float
    dims: tuple[int, ...]
    element_bytes: int = 4
    working_set_bytes: float = 0.0
    geometry: tuple[int, ...] = ()

    @property
    def bytes_moved(self) -> float:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


def batched_matmul(
    batch: int, m: int, n: int, k: int, element_bytes: int = 4, *, bias: int = 0, shared: bool = False
) -> Operator:
    """Return ``batch`` products of an (m, k) by a (k, n) matrix: ``2 * batch * m * n * k`` FLOP.

    Parameters
    ----------
    batch, m, n, k : int
        Dimensions, 1 or more.
    element_bytes : int
        Bytes of an element.
    bias : int
        Elements of a bias that is added to the product.
    shared : bool
        Whether all products share their second matrix.

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
    _check_dims(batch=batch, m=m, n=n, k=k)
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
    """Return attention that keeps no score matrix in memory: two products of ``queries * keys * width`` for each head.

    Parameters
    ----------
    query : tuple of int
        (batch, heads, queries, width).
    key : tuple of int
        (heads, keys) of keys and values.
    element_bytes : int
        Bytes of an element.
    causal : bool
        Whether half of the scores are masked, and not computed.
    backward : bool
        Whether to count the backward pass: five such products, the scores again and four gradients.

    Notes
    -----
    Source: FlashAttention (arXiv 2205.14135), section 3.

    Examples
    --------
    >>> attention((1, 2, 128, 64), (2, 128)).flops / (4 * 2 * 128 * 128 * 64)
    1.0
    """
    _check_dims(query=query, key=key)
    (batch, heads, queries, width), (key_heads, keys) = query, key
    products = 5 if backward else 2
    flops = products * 2.0 * batch * heads * queries * keys * width * (0.5 if causal else 1.0)
    query_elements, key_elements = batch * heads * queries * width, batch * key_heads * keys * width
    read, written = (
        (3 * query_elements + 2 * key_elements, query_elements + 2 * key_elements)
        if backward
        else (query_elements + 2 * key_elements, query_elements)
    )
    dims = (batch * heads, queries, keys, width)
    return Operator("attention", flops, read * element_bytes, written * element_bytes, dims, element_bytes)


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """Heads of an attention over cached keys and values.

    Parameters
    ----------
    query, kv : int
        Heads of queries, and of keys and values.
    width, value_width : int
        Elements of a head of queries and keys, and of values.
    query_bytes, kv_bytes : int
        Bytes of an element of queries and results, and of the cache.
    window : int
        Most tokens that a query attends to; 0 for all.
    """

    query: int
    kv: int
    width: int
    value_width: int
    query_bytes: int = 2
    kv_bytes: int = 2
    window: int = 0


def request_attention(prefill: PhaseTokens, decode: PhaseTokens, heads: AttentionHeads) -> Operator:
    """Return attention of requests of one or two phases over their cached keys and values.

    Each pair of a query and a token that it attends to takes ``2 * (width + value_width)`` FLOP a head. A window is
    counted as if all requests of a phase were alike.

    Parameters
    ----------
    prefill, decode : PhaseTokens
        Requests whose sums are known.
    heads : AttentionHeads
        Heads.

    Raises
    ------
    InvalidInputError
        There is no request, or sums are unknown.

    Examples
    --------
    >>> decode = PhaseTokens(requests=32, query_tokens=32, kv_tokens=32_000)
    >>> request_attention(PhaseTokens(), decode, AttentionHeads(32, 8, 128, 128)).flops == 32 * 32_000 * 2 * 256
    True
    """
    sides = {"context": prefill, "generation": decode}
    shapes = {name: _request_dims(side, heads) for name, side in sides.items() if side.requests}
    if not shapes:
        raise InvalidInputError("attention of no request")
    pairs, read, written = 0.0, 0.0, 0.0
    for name, (requests, queries, tokens, *_) in shapes.items():
        side, new = sides[name], sides[name].query_tokens or 0
        seen = min(heads.window + queries - 1, tokens) / tokens if heads.window else 1.0
        pairs += (side.pairs or 0.0) * (min(1.0, heads.window / tokens) if heads.window else 1.0)
        elements = heads.width + heads.value_width
        read += new * heads.query * heads.width * heads.query_bytes
        read += (side.kv_tokens or requests * tokens) * seen * heads.kv * elements * heads.kv_bytes
        written += new * heads.query * heads.value_width * heads.query_bytes
    kind = "mixed_attention" if len(shapes) > 1 else f"{next(iter(shapes))}_attention"
    dims = tuple(size for shape in shapes.values() for size in shape)
    flops = 2.0 * heads.query * pairs * (heads.width + heads.value_width)
    return Operator(kind, flops, read, written, dims, heads.query_bytes)


def _request_dims(side: PhaseTokens, heads: AttentionHeads) -> tuple[int, ...]:
    """Return the shape of attention of as many equal requests, with as many pairs of query and token."""
    if side.pairs is None or not side.query_tokens:
        raise InvalidInputError("attention of requests of unknown lengths")
    queries = side.query_tokens / side.requests
    tokens = side.pairs / side.query_tokens + (queries - 1) / 2
    shape = (side.requests, max(round(queries), 1), max(round(tokens), round(queries), 1))
    return (*shape, heads.query, heads.kv, heads.width, heads.window)


def by_phase(attention: Operator) -> tuple[Operator, ...]:
    """Return an attention of requests as those of its phases: of mixed attention, of prompts and of new tokens.

    FLOP and bytes are shared by the pairs of query and token of each.

    Examples
    --------
    >>> mixed = request_attention(PhaseTokens(1, 8, 8, 64, 64), PhaseTokens(4, 4, 400), AttentionHeads(8, 8, 64, 64))
    >>> [each.kind for each in by_phase(mixed)]
    ['context_attention', 'generation_attention']
    """
    if attention.kind != "mixed_attention":
        return (attention,)
    sides = attention.dims[:_SIDE], attention.dims[_SIDE:]
    pairs = [n * queries * (tokens - (queries - 1) / 2) for n, queries, tokens, *_ in sides]
    result = []
    for kind, dims, each in zip(SERVING_ATTENTION, sides, pairs, strict=False):
        share = each / sum(pairs)
        sizes = (attention.flops * share, attention.bytes_read * share, attention.bytes_written * share)
        result.append(Operator(kind, *sizes, dims, attention.element_bytes))
    return tuple(result)


#: Sizes of the attention of one phase.
_SIDE = 7


def routed_experts(
    tokens: int, layer: tuple[int, int, int, int], element_bytes: int = 2, *, weight_bytes: float = 2.0,
    gated: bool = True,
) -> Operator:  # fmt: skip
    """Return a layer of experts: each token takes `topk` of them, of two products, or three if they are gated.

    Weights count if a token chooses their expert: of E experts, ``E * (1 - (1 - topk / E)^tokens)`` if every token
    chooses at random.

    Parameters
    ----------
    tokens : int
        Tokens.
    layer : tuple of int
        (hidden, inter, topk, experts).
    element_bytes : int
        Bytes of an element of tokens and results.
    weight_bytes : float
        Bytes of an element of the weights.
    gated : bool
        Whether experts have a gate.

    Examples
    --------
    >>> layer = routed_experts(32, (3072, 3072, 4, 32))
    >>> layer.flops == 3 * 2 * 32 * 4 * 3072 * 3072, layer.dims
    (True, (32, 3072, 3072, 4, 32, 1, 1, 0, 1))
    """
    hidden, inter, topk, experts = layer
    _check_dims(tokens=tokens, layer=layer)
    products = 3 if gated else 2
    active = experts * (1 - (1 - min(topk / experts, 1.0)) ** tokens)
    rows = tokens * hidden * element_bytes
    read = rows + active * products * hidden * inter * weight_bytes
    dims = (tokens, hidden, inter, topk, experts, 1, 1, 0, int(gated))
    return Operator("experts", 2.0 * products * tokens * topk * hidden * inter, read, rows, dims, element_bytes)


def convolution(
    images: tuple[int, ...], weight: tuple[int, ...], output: tuple[int, ...], element_bytes: int = 4,
    *, passes: int = 1,
) -> Operator:  # fmt: skip
    """Return a direct convolution, grouped or not: each output element takes ``2 * prod(weight[1:])`` FLOP.

    Parameters
    ----------
    images, weight, output : tuple of int
        (batch, channels, *extent), (out channels, channels a group, *kernel), (batch, out channels, *extent).
    element_bytes : int
        Bytes of an element.
    passes : int
        1 for the forward pass or one of the two gradients, 2 for both; each gradient costs as much as the forward pass.

    Examples
    --------
    >>> convolution((1, 3, 8, 8), (16, 3, 3, 3), (1, 16, 8, 8)).flops
    55296.0
    """
    _check_dims(images=images, weight=weight, output=output)
    flops = passes * 2.0 * prod(output) * prod(weight[1:])
    read, written = passes * (prod(images) + prod(weight)), passes * prod(output)
    dims = (1, output[0] * prod(output[2:]), weight[0], prod(weight[1:]))
    return Operator("convolution", flops, read * element_bytes, written * element_bytes, dims, element_bytes)


def rowwise(kind: str, rows: int, columns: int, element_bytes: int = 4, *, backward: bool = False) -> Operator:
    """Return a normalisation or a softmax of each row of a matrix.

    It reads and writes every element once; backward it reads two matrices. A normalisation takes 8 FLOP an element
    forward and 11 backward, a softmax 5 and 4, counted from their formulas with the exponential as one. Both are bound
    by memory, so that these counts matter little.

    Examples
    --------
    >>> rowwise("softmax", 4, 1000).bytes_moved
    32000
    """
    _check_dims(rows=rows, columns=columns)
    flops = {"normalization": (8, 11), "softmax": (5, 4)}[kind][backward]
    size = rows * columns
    return Operator(kind, float(flops * size), (2 if backward else 1) * size * element_bytes, size * element_bytes,
                    (rows, columns), element_bytes)  # fmt: skip


def streaming(
    kind: str, read: float, written: float, elements: int, element_bytes: int = 4, *, each: float = 1.0
) -> Operator:
    """Return an operator that passes over its data once.

    Parameters
    ----------
    kind : str
        Kind of the operator, as in `Operator`.
    read, written : float
        Bytes read and written.
    elements : int
        Number of elements computed.
    element_bytes : int
        Bytes of an element.
    each : float
        FLOP for each element.
    """
    _check_dims(elements=elements)
    return Operator(kind, each * elements, read, written, (elements,), element_bytes)


def _check_dims(**dims: int | tuple[int, ...]) -> None:
    for name, values in dims.items():
        for value in values if isinstance(values, tuple) else (values,):
            if value < 1:
                raise InvalidInputError(f"{name} is {value}; a dimension must be 1 or more")
