"""Streams by name and shape, as a command line gives them: `named_stream`, `named_streams` and `stream_kinds`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType

from profilers.errors import InvalidInputError, NotFoundError
from replay.costs.operators import POSITION_BYTES
from replay.graph.operators import DTYPE_BYTES
from replay.memory.accesses import Memory, Stream, bind
from replay.memory.streams.attention import Heads, naive_attention, tiled_attention
from replay.memory.streams.convolutions import PASSES, ConvolutionShape, direct_convolution, implicit_product
from replay.memory.streams.passes import (
    DISTRIBUTIONS,
    ArrayPass,
    batch_norm,
    batch_norm_per_activation,
    drawn_indices,
    embedding,
    layer_norm,
    optimizer,
    reduction,
    softmax,
    streaming_pass,
)
from replay.memory.streams.products import Tiling, bind_product, library_tiling, product_kernels
from replay.memory.streams.recurrent import RecurrentLayer, cell, recurrent
from replay.memory.streams.windows import SlidingWindow, local_response_norm, pooling

Options = Mapping[str, str | int | float]
Streams = Stream | tuple[Stream, ...]


@dataclass(frozen=True)
class StreamKind:
    """A kind of operator that has a stream.

    Parameters
    ----------
    name : str
        Name of the kind.
    dims : tuple of str
        Names of the dimensions of its shape.
    summary : str
        What it computes.
    make : callable
        Takes the shape, the type of data and all options; returns its streams.
    optional : tuple of int
        Values of the last dimensions, which a shape may leave out.
    options : mapping
        Options with their defaults, whose types are those of the options.
    """

    name: str
    dims: tuple[str, ...]
    summary: str
    make: Callable[[Sequence[int], str, Options], Streams]
    optional: tuple[int, ...] = ()
    options: Options = field(default_factory=dict)

    @property
    def form(self) -> str:
        """Dimensions of the shape, the optional ones in brackets."""
        needed = len(self.dims) - len(self.optional)
        return " ".join([*self.dims[:needed], *(f"[{dim}]" for dim in self.dims[needed:])])


def stream_kinds() -> tuple[StreamKind, ...]:
    """Return the kinds of operators that have streams, in the order of a list for readers.

    Examples
    --------
    >>> [(kind.name, kind.form) for kind in stream_kinds()[:2]]
    [('gemm', 'm n k'), ('batched_gemm', 'batch m n k')]
    """
    return tuple(_KINDS.values())


def named_streams(
    kind: str, shape: Sequence[int], dtype: str = "fp32", *, options: Options | None = None
) -> tuple[Stream, ...]:
    """Return the kernels of an operator, in order; they share arrays.

    Parameters
    ----------
    kind : str
        Name of a kind, from `stream_kinds`.
    shape : sequence of int
        Dimensions of the kind.
    dtype : str
        Type of the elements: fp64, fp32, tf32, fp16, bf16, fp8 or int8.
    options : mapping, optional
        Options of the kind; the others keep their defaults.

    Raises
    ------
    NotFoundError
        There is no such kind.
    InvalidInputError
        The shape has other dimensions or one below 1, or the type or an option is unknown.

    Examples
    --------
    >>> [stream.name for stream in named_streams("softmax", (8192, 1000), "fp16")]
    ['softmax 8192 x 1000']
    """
    row = _kind(kind)
    needed = len(row.dims) - len(row.optional)
    if not needed <= len(shape) <= len(row.dims):
        raise InvalidInputError(f"{kind} takes {row.form}, given {len(shape)} numbers")
    if dtype not in DTYPE_BYTES:
        raise InvalidInputError(f"dtype {dtype!r}; one of fp64, fp32, tf32, fp16, bf16, fp8, int8")
    sizes = (*shape, *row.optional[len(shape) - needed :])
    for name, size in zip(row.dims, sizes, strict=True):
        if size < (0 if name == "padding" else 1):
            raise InvalidInputError(f"{kind}: {name} is {size}; give {row.form}, each 1 or more")
    streams = row.make(sizes, dtype, _checked_options(row, options or {}))
    return streams if isinstance(streams, tuple) else (streams,)


def named_stream(kind: str, shape: Sequence[int], dtype: str = "fp32", *, options: Options | None = None) -> Stream:
    """Return the stream of an operator of a single kernel; the parameters are those of `named_streams`.

    Raises
    ------
    InvalidInputError
        The operator has several kernels, or an argument is wrong as for `named_streams`.

    Examples
    --------
    >>> named_stream("gemm", (4096, 4096, 4096), "fp16").flops
    137438953472.0
    """
    streams = named_streams(kind, shape, dtype, options=options)
    if len(streams) > 1:
        raise InvalidInputError(f"{kind} of this shape has {len(streams)} kernels; ask for all of them")
    return streams[0]


def _kind(name: str) -> StreamKind:
    if name in _KINDS:
        return _KINDS[name]
    near = get_close_matches(name, _KINDS, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_KINDS)}"
    raise NotFoundError(f"no operator {name!r} has a stream; {hint}")


def _checked_options(row: StreamKind, given: Options) -> Options:
    """Return the options of a kind with those given, which have the types of the defaults."""
    for name, value in given.items():
        if name not in row.options:
            known = ", ".join(row.options) or "none"
            raise InvalidInputError(f"{row.name} has no option {name!r}; its options: {known}")
        wanted = type(row.options[name])
        if not isinstance(value, int | float if wanted is float else wanted):
            raise InvalidInputError(
                f"option {name} of {row.name} is {value!r}; give a value like {row.options[name]!r}"
            )
    return {**row.options, **given}


def _product(shape: Sequence[int], dtype: str, options: Options) -> Streams:
    batch, m, n, k = (1, *shape) if len(shape) == 3 else shape
    size = DTYPE_BYTES[dtype]
    chosen = library_tiling((batch, m, n, k), size, workgroups=_int(options, "workgroups"))
    values = {name: _int(options, name) or getattr(chosen, name) for name in ("rows", "columns", "depth", "parts")}
    tiling = Tiling(**values, group=_int(options, "group"))
    matrix = size <= 2 or dtype == "tf32"
    return product_kernels((batch, m, n, k), size, tiling=tiling, layout=str(options["layout"]), matrix=matrix)


_PRODUCT_OPTIONS: Options = MappingProxyType(
    {"layout": "nn", "rows": 0, "columns": 0, "depth": 0, "parts": 0, "group": 8, "workgroups": 0}
)


def _fully_connected(shape: Sequence[int], dtype: str, options: Options) -> Streams:
    batch, inputs, outputs = shape
    return product_kernels((1, batch, outputs, inputs), DTYPE_BYTES[dtype], layout="nt")


def _shape_of(shape: Sequence[int]) -> ConvolutionShape:
    n, c, h, w, filters, kernel, stride, padding = shape
    return ConvolutionShape((n, c, h, w), filters, SlidingWindow.square(kernel, stride, padding))


def _convolution(shape: Sequence[int], dtype: str, options: Options) -> Streams:
    if options["algorithm"] not in ("implicit", "direct"):
        raise InvalidInputError(f"algorithm {options['algorithm']!r} of a convolution; one of implicit, direct")
    if options["algorithm"] == "direct":
        return direct_convolution(_shape_of(shape), DTYPE_BYTES[dtype])
    direction, order = str(options["direction"]), str(options["order"])
    return implicit_product(_shape_of(shape), DTYPE_BYTES[dtype], direction=direction, order=order)


def _passing(shape: Sequence[int], dtype: str, options: Options, *, name: str, reads: int) -> Streams:
    """Return a kernel that reads a number of arrays and writes one."""
    elements, size = shape[0], DTYPE_BYTES[dtype]
    inputs = {f"input_{number}": elements * size for number in range(_int(options, "reads", reads))}
    data = ArrayPass(inputs, {"output_0": elements * size}, elements, size, float(elements) if reads else 0.0)
    return streaming_pass(f"{name} {elements}", data, workgroups=_int(options, "workgroups"))


def _reduction(shape: Sequence[int], dtype: str, options: Options) -> Streams:
    elements, size = shape[0], DTYPE_BYTES[dtype]
    data = ArrayPass({"x": elements * size}, {"y": min(shape[1], elements) * size}, elements, size, float(elements))
    return reduction(f"reduction {elements}", data, workgroups=_int(options, "workgroups"))


def _optimizer(shape: Sequence[int], dtype: str, options: Options) -> Streams:
    return optimizer(shape[0], DTYPE_BYTES[dtype], lists=_int(options, "lists"), writes=_int(options, "writes"))


def _rows(of: Callable[..., Stream], shape: Sequence[int], dtype: str, options: Options, *, backward: bool) -> Streams:
    return of(shape[0], shape[1], DTYPE_BYTES[dtype], backward=backward, registers=_int(options, "registers"))


def _batch_norm(shape: Sequence[int], dtype: str, options: Options, *, backward: bool) -> Streams:
    n, c, h, w = shape
    modes = {"spatial": batch_norm, "per_activation": batch_norm_per_activation}
    if options["mode"] not in modes:
        raise InvalidInputError(f"mode {options['mode']!r} of a batch norm; one of {', '.join(modes)}")
    passes = {"passes": _int(options, "passes")} if options["passes"] else {}
    return modes[str(options["mode"])]((n, c, h * w), DTYPE_BYTES[dtype], backward=backward, **passes)


def _pooling(shape: Sequence[int], dtype: str, options: Options, *, backward: bool) -> Streams:
    n, c, h, w, *window = shape
    index_bytes = _int(options, "index_bytes")
    size = DTYPE_BYTES[dtype]
    return pooling((n, c, h, w), SlidingWindow.square(*window), size, backward=backward, index_bytes=index_bytes)


def _lrn(shape: Sequence[int], dtype: str, options: Options, *, backward: bool) -> Streams:
    n, c, h, w, size = shape
    return local_response_norm((n, c, h * w), DTYPE_BYTES[dtype], size=size, backward=backward)


def _embedding(shape: Sequence[int], dtype: str, options: Options, *, backward: bool) -> Streams:
    rows, columns, lookups = shape
    indices = drawn_indices(
        rows, lookups, distribution=str(options["distribution"]), exponent=float(options["exponent"]),
        seed=_int(options, "seed"),
    )  # fmt: skip
    return embedding((rows, columns), indices, DTYPE_BYTES[dtype], backward=backward)


def _attention(shape: Sequence[int], dtype: str, options: Options, *, backward: bool) -> Streams:
    count, queries, keys, width = shape
    heads = Heads(count, queries, keys, width, _int(options, "shared"), causal=bool(options["causal"]))
    return tiled_attention(heads, DTYPE_BYTES[dtype], backward=backward)


def _naive_attention(shape: Sequence[int], dtype: str, options: Options) -> Streams:
    count, queries, keys, width = shape
    return naive_attention(Heads(count, queries, keys, width), DTYPE_BYTES[dtype])


def _recurrent_layer(kind: str, shape: Sequence[int], dtype: str, options: Options, *, backward: bool) -> Streams:
    steps, batch, inputs, hidden = shape
    return recurrent(RecurrentLayer(kind, steps, batch, inputs, hidden, DTYPE_BYTES[dtype]), backward=backward)


def _cell(kind: str, shape: Sequence[int], dtype: str, options: Options) -> Streams:
    return cell(kind, shape[0], shape[1], DTYPE_BYTES[dtype], backward=bool(options["backward"]))


def _composed(shape: Sequence[int], dtype: str, options: Options) -> Streams:
    """Return a convolution, a pooling and a fully connected layer, as in DNNMark's composed model."""
    n, c, h, w, filters, outputs = shape
    size = DTYPE_BYTES[dtype]
    convolution = ConvolutionShape((n, c, h, w), filters, SlidingWindow.square(5, 1, 2))
    pool = SlidingWindow.square(3, 2)
    height, width = pool.output((h, w))
    connected = product_kernels((1, n, outputs, filters * height * width), size, layout="nt")
    kernels, memory = [implicit_product(convolution, size), pooling((n, filters, h, w), pool, size)], Memory()
    x = memory.array("x", n * c * h * w * size)
    for number, kernel in enumerate(kernels):
        arrays = {operand.name: memory.array(operand.name, operand.size) for operand in kernel.operands[1:]}
        kernels[number] = bind(kernel, {"x": x, **arrays})
        x = arrays["y"]
    weights = memory.array("weights", filters * height * width * outputs * size)
    return *kernels, *bind_product(memory, connected, (x, weights, memory.array("y", n * outputs * size)))


def _int(options: Options, name: str, default: int = 0) -> int:
    return int(options.get(name, default))


_IMAGE = ("n", "c", "h", "w")
_HEADS = ("heads", "queries", "keys", "width")
_LAUNCH: Options = MappingProxyType({"workgroups": 0})


def _with_gradient(
    name: str,
    dims: tuple[str, ...],
    summaries: tuple[str, str],
    make: Callable[..., Streams],
    optional: tuple[int, ...] = (),
    options: Options = MappingProxyType({}),
) -> tuple[StreamKind, StreamKind]:
    """Return the kinds of an operator and of its gradient; `make` takes `backward`."""
    return (
        StreamKind(name, dims, summaries[0], partial(make, backward=False), optional, options),
        StreamKind(f"{name}_backward", dims, summaries[1], partial(make, backward=True), optional, options),
    )  # fmt: skip


def _pass(name: str, summary: str, reads: int, options: Options = _LAUNCH) -> StreamKind:
    """Return a kind of kernel that reads a number of arrays and writes one."""
    return StreamKind(
        name, ("elements",), summary, partial(_passing, name=name.replace("_", " "), reads=reads), options=options
    )


_KINDS: Mapping[str, StreamKind] = MappingProxyType(
    {
        row.name: row
        for row in (
            StreamKind("gemm", ("m", "n", "k"), "Matrix product, m x k by k x n.", _product,
                       options=_PRODUCT_OPTIONS),
            StreamKind("batched_gemm", ("batch", "m", "n", "k"), "Matrix products of equal shape.", _product,
                       options=_PRODUCT_OPTIONS),
            StreamKind("fully_connected", ("batch", "inputs", "outputs"), "Fully connected layer.", _fully_connected),
            StreamKind("convolution", (*_IMAGE, "filters", "kernel", "stride", "padding"),
                       "Convolution of images with square kernels.", _convolution, (1, 0),
                       {"algorithm": "implicit", "direction": PASSES[0], "order": "nchw"}),
            _pass("elementwise", "Elementwise kernel with a number of inputs.", 1, {"reads": 1, "workgroups": 0}),
            _pass("activation", "Activation, forward: reads x, writes y.", 1),
            _pass("activation_backward", "Activation, backward: reads x, y and the gradient, as MIOpen does.", 3),
            _pass("copy", "Copy.", 1),
            _pass("fill", "Fill, which only writes.", 0),
            StreamKind("reduction", ("elements", "results"), "Sum of elements into a number of results.", _reduction,
                       (1,), _LAUNCH),
            StreamKind("optimizer", ("elements",), "Optimizer step over lists of tensors; by default Adam.",
                       _optimizer, options={"lists": 4, "writes": 3}),
            *_with_gradient("softmax", ("rows", "columns"), ("Softmax of each row.", "Gradient of a softmax."),
                partial(_rows, softmax), options={"registers": 1024}),
            *_with_gradient("layer_norm", ("rows", "columns"),
                ("Layer norm of each row.", "Gradient of the input of a layer norm."),
                partial(_rows, layer_norm), options={"registers": 0}),
            *_with_gradient("batch_norm", _IMAGE, ("Batch norm in training.", "Gradient of a batch norm."), _batch_norm,
                (1, 1), {"mode": "spatial", "passes": 0}),
            *_with_gradient("pooling", (*_IMAGE, "kernel", "stride", "padding"),
                ("Pooling with square windows.", "Gradient of a pooling."), _pooling, (1, 0),
                {"index_bytes": POSITION_BYTES}),
            *_with_gradient("lrn", (*_IMAGE, "size"),
                ("Normalisation across channels.", "Gradient of a normalisation across channels."), _lrn, (5,)),
            *_with_gradient("embedding", ("rows", "columns", "lookups"),
                ("Lookup of rows in a table.", "Gradient of a lookup."), _embedding,
                options={"distribution": DISTRIBUTIONS[0], "exponent": 1.05, "seed": 0}),
            *_with_gradient("attention", _HEADS, ("Fused attention.", "Gradient of a fused attention."), _attention,
                options={"shared": 1, "causal": 0}),
            StreamKind("attention_naive", _HEADS, "Attention in three kernels, with its scores in memory.",
                       _naive_attention),
            *(StreamKind(f"{kind}_cell", ("batch", "hidden"), f"Pointwise kernel of {article} {kind.upper()} cell.",
                         partial(_cell, kind), options={"backward": 0})
              for kind, article in (("lstm", "an"), ("gru", "a"))),
            *(StreamKind(f"{kind}{suffix}", ("steps", "batch", "inputs", "hidden"),
                         f"{kind.upper()} layer over time steps{passes}.",
                         partial(_recurrent_layer, kind, backward=bool(suffix)))
              for kind in ("lstm", "gru")
              for suffix, passes in (("", ""), ("_training", ", forward and backward"))),
            StreamKind("composed_model", (*_IMAGE, "filters", "outputs"),
                       "Convolution, pooling and fully connected layer, as in DNNMark.", _composed),
        )
    }
)  # fmt: skip
