"""The stream of an operator of a trace: `stream_of`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.graph.operators import Operator
from replay.memory.accesses import Stream
from replay.memory.streams.attention import Heads, tiled_attention
from replay.memory.streams.convolutions import ConvolutionShape, implicit_product
from replay.memory.streams.passes import (
    REGISTER_ELEMENTS,
    ArrayPass,
    batch_norm,
    batch_norm_per_activation,
    drawn_indices,
    embedding,
    layer_norm,
    optimizer,
    reduction,
    shared_memory_row,
    softmax,
    streaming_pass,
)
from replay.memory.streams.products import library_tiling, product
from replay.memory.streams.recurrent import GATES, cell
from replay.memory.streams.windows import SlidingWindow, local_response_norm, pooling
from replay.memory.system import MemorySystem

#: Compute units and threads of a wavefront for which a library chooses a launch: those of an A100.
_UNITS, _WAVEFRONT = 108, 32
#: Kinds of operators whose stream the name of the kernel changes.
NAMED_KERNELS = ("convolution", "softmax")
#: PyTorch's kernels of a softmax that read a long row again in each pass.
_REREADING = re.compile(r"cunn_softmax(?:forward|backward)(?![a-z])")
#: Most lookups whose indices are drawn: 8 bytes each are in memory.
_MOST_LOOKUPS = 1 << 26


@dataclass(frozen=True)
class _LaunchFacts:
    """What is known of the launch of an operator's kernel."""

    workgroups: int
    units: int
    wavefront: int
    kernel: str
    indices: Ints | None


def stream_of(
    operator: Operator,
    *,
    workgroups: int = 0,
    system: MemorySystem | None = None,
    kernel: str = "",
    indices: Ints | None = None,
) -> Stream | None:
    """Return the stream of an operator; None if its kind has none or its shape does not tell.

    Parameters
    ----------
    operator : Operator
        Operator, as `replay.costs.operators.operator_of` returns it.
    workgroups : int
        Workgroups of the recorded launch; 0 if unknown. They choose the tile of a product, and the loop of kernels
        that pass over their data.
    system : MemorySystem, optional
        Device, whose compute units and wavefronts a library chooses a launch for; by default those of an A100.
    kernel : str
        Name of the kernel. It tells the order of dimensions of a convolution and which gradient it computes, and
        whether a softmax reads its rows again.
    indices : array of int64, optional
        Measured indices of an embedding; by default uniform, which is the worst case for caches.

    Examples
    --------
    >>> from replay.graph.operators import batched_matmul
    >>> stream_of(batched_matmul(1, 4096, 4096, 4096, 2), workgroups=512).assumptions[0]
    'tile 128 x 256 x 32'
    """
    rule = _RULES.get(operator.kind)
    if rule is None or len(operator.dims) != _DIMS.get(operator.kind, 1) or min(operator.dims) < 1:
        return None
    try:
        units, wavefront = (system.units, system.wavefront) if system else (_UNITS, _WAVEFRONT)
        return rule(operator, _LaunchFacts(workgroups, units, wavefront, kernel.lower(), indices))
    except InvalidInputError:
        return None


def _product(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    batch, m, n, k = operator.dims
    tiling = library_tiling((batch, m, n, k), operator.element_bytes, workgroups=launch.workgroups, units=launch.units)
    return product((batch, m, n, k), operator.element_bytes, tiling=tiling)


def _softmax(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    rows, columns = operator.dims
    size, backward = operator.element_bytes, _is_backward(operator)
    reads_again = _REREADING.search(launch.kernel) is not None
    registers = REGISTER_ELEMENTS if reads_again else shared_memory_row(columns, size)
    return softmax(rows, columns, size, backward=backward, registers=registers, wavefront=launch.wavefront)


def _normalization(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    backward = _is_backward(operator)
    if not operator.geometry:
        rows, columns = operator.dims
        return layer_norm(rows, columns, operator.element_bytes, backward=backward, wavefront=launch.wavefront)
    images, channels, extent = operator.geometry
    of = batch_norm_per_activation if extent == 1 else batch_norm
    return of((images, channels, extent), operator.element_bytes, backward=backward)


def _is_backward(operator: Operator) -> bool:
    """Return whether a row-wise operator reads two matrices for one that it writes."""
    return operator.bytes_read > 1.5 * operator.bytes_written


def _streaming(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    data = _pass_of(operator)
    return streaming_pass(f"{operator.kind} {data.elements}", data, workgroups=launch.workgroups)


def _reduction(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    data = _pass_of(operator)
    return reduction(f"reduction {data.elements}", data, workgroups=launch.workgroups)


def _pass_of(operator: Operator) -> ArrayPass:
    """Return the arrays of a pass: as many of full size as the bytes make, and the rest, which may repeat."""
    elements, size = operator.dims[0], operator.element_bytes
    full = elements * size
    reads = _arrays("input", round(operator.bytes_read), full)
    writes = _arrays("output", round(operator.bytes_written), full)
    return ArrayPass(reads, writes, elements, size, operator.flops)


def _arrays(name: str, size: int, full: int) -> dict[str, int]:
    count, rest = divmod(size, full)
    arrays = {f"{name}_{number}": full for number in range(count)}
    return {**arrays, f"{name}_{count}": rest} if rest else arrays


def _optimizer(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    elements, size = operator.dims[0], operator.element_bytes
    lists = max(round(operator.bytes_read / (elements * size)), 1)
    writes = max(round(operator.bytes_written / (elements * size)), 1)
    return optimizer(elements, size, lists=lists, writes=min(writes, lists), flops=operator.flops / elements)


#: Words in names of kernels (cuDNN, CUTLASS, MIOpen) that tell the gradient of a convolution.
_DIRECTIONS = {"data": ("dgrad", "bwd_data", "bwddata", "backward_data"), "weight": ("wgrad", "bwd_w", "wrw", "filter")}


def _convolution(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    if not operator.geometry:
        return None
    n, c, h, w, filters, r, s, *window, groups = operator.geometry
    shape = ConvolutionShape(
        (n, c, h, w), filters, SlidingWindow((r, s), (window[0], window[1]), (window[2], window[3])), groups
    )
    named = (direction for direction, words in _DIRECTIONS.items() if any(word in launch.kernel for word in words))
    both_gradients = operator.flops > 1.5 * shape.flops
    direction = next(named, "forward" if not both_gradients else None)
    if direction is None:
        return None
    order = "nhwc" if "nhwc" in launch.kernel else "nchw"
    pixels, products, taps = shape.sizes
    sizes = {"forward": (pixels, products, taps), "data": _data_sizes(shape), "weight": (products, taps, pixels)}
    tiling = library_tiling(
        (groups, *sizes[direction]), operator.element_bytes, workgroups=launch.workgroups, units=launch.units,
        **({} if direction == "weight" else {"most_parts": 1}),
    )  # fmt: skip
    return implicit_product(shape, operator.element_bytes, direction=direction, order=order, tiling=tiling)


def _data_sizes(shape: ConvolutionShape) -> tuple[int, int, int]:
    """Return pixels, channels of a group and taps of the gradient of a convolution's input."""
    n, c, h, w = shape.images
    return n * h * w, c // shape.groups, shape.sizes[1] * shape.window.kernel[0] * shape.window.kernel[1]


def _attention(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    heads, queries, keys, width = operator.dims
    row, size = width * operator.element_bytes, operator.element_bytes
    backward = operator.bytes_written > 1.5 * heads * queries * row
    rest = operator.bytes_read - (3 if backward else 1) * heads * queries * row
    key_heads = max(round(rest / (2 * keys * row)), 1)
    whole = 4.0 * heads * queries * keys * width * (2.5 if backward else 1.0)
    shared = heads // key_heads if heads % key_heads == 0 else 1
    shape = Heads(heads, queries, keys, width, shared, causal=operator.flops < 0.75 * whole)
    return tiled_attention(shape, size, backward=backward)


def _pooling(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    if not operator.geometry:
        return None
    n, c, h, w, *window = operator.geometry
    size, inputs = operator.element_bytes, n * c * h * w * operator.element_bytes
    # Forward reads the input; backward writes its gradient. The other bytes are outputs, and positions of maxima.
    backward = operator.bytes_written == inputs and operator.bytes_read != inputs
    others = operator.bytes_read if backward else operator.bytes_written
    shape = SlidingWindow((window[0], window[1]), (window[2], window[3]), (window[4], window[5]))
    index_bytes = round(others / operator.dims[0]) - size
    return pooling((n, c, h, w), shape, size, backward=backward, index_bytes=index_bytes)


def _embedding(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    if not operator.geometry:
        return None
    rows, columns, lookups = operator.geometry
    if lookups > _MOST_LOOKUPS:
        return None
    indices = drawn_indices(rows, lookups) if launch.indices is None else launch.indices
    return embedding((rows, columns), indices, operator.element_bytes)


def _cell(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    if not operator.geometry:
        return None
    rows, hidden, gates, backward = operator.geometry
    kinds = {count: kind for kind, count in GATES.items()}
    if gates not in kinds:
        return None
    return cell(kinds[gates], rows, hidden, operator.element_bytes, backward=bool(backward))


def _channel_norm(operator: Operator, launch: _LaunchFacts) -> Stream | None:
    if not operator.geometry:
        return None
    images, channels, pixels, backward = operator.geometry
    return local_response_norm((images, channels, pixels), operator.element_bytes, backward=bool(backward))


#: Dimensions of each kind, if not one.
_DIMS = {"matmul": 4, "batched_matmul": 4, "convolution": 4, "attention": 4, "softmax": 2, "normalization": 2}
_RULES: Mapping[str, Callable[[Operator, _LaunchFacts], Stream | None]] = MappingProxyType(
    {
        "matmul": _product,
        "batched_matmul": _product,
        "softmax": _softmax,
        "normalization": _normalization,
        "elementwise": _streaming,
        "copy": _streaming,
        "reduction": _reduction,
        "optimizer": _optimizer,
        "convolution": _convolution,
        "attention": _attention,
        "embedding": _embedding,
        "rnn": _cell,
        "lrn": _channel_norm,
        "pooling": _pooling,
    }
)
