"""The operator of a recorded call: FLOP and bytes, from its name, shapes, types and arguments.

`operator_of` looks up a rule by the name of the call. The rules are in one table at the end; each returns an `Operator`
that counts FLOP and bytes, or None if the shapes do not tell.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any

from replay.graph.operators import DTYPE_BYTES, Operator, attention, batched_matmul, convolution, rowwise, streaming

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A call of an operator, as a profiler recorded it.

    Parameters
    ----------
    name : str
        Name of the operator, such as ``aten::mm``.
    shapes : sequence
        Dimensions of each argument: nested for a list of tensors, empty for an argument that is no tensor.
    dtypes : sequence of str
        Types of the arguments, as the profiler writes them.
    values : sequence
        Arguments that are no tensors, as text; empty for an argument that was not recorded.
    """

    name: str
    shapes: Sequence[Any]
    dtypes: Sequence[Any] = ()
    values: Sequence[Any] = ()

    @classmethod
    def of_row(cls, name: str, shapes: str | None, dtypes: str | None = None, values: str | None = None) -> "Call":
        """Return the call of a row of a trace's ops, from its JSON; anything but an array counts as not recorded."""
        return cls(name, *(_json_array(text) for text in (shapes, dtypes, values)))

    def shape(self, argument: int) -> Shape | None:
        """Return the dimensions of a tensor argument; None for an argument without dimensions."""
        return _dimensions(self.shapes[argument]) if argument < len(self.shapes) else None

    def sizes(self, *arguments: int) -> list[Shape]:
        """Return the dimensions of tensor arguments; raise `_UnknownShapeError` if one has none."""
        shapes = [shape for shape in map(self.shape, arguments) if shape is not None]
        _require(len(shapes) == len(arguments))
        return shapes

    def tensors(self) -> list[tuple[Shape, int]]:
        """Return the dimensions and element bytes of every tensor argument, those in lists included."""
        tensors: list[tuple[Shape, int]] = []
        for argument, shape in enumerate(self.shapes):
            shapes = shape if _is_list_of_shapes(shape) else [shape]
            dimensions = (_dimensions(item) for item in shapes)
            tensors += [(sizes, self.element_bytes(argument)) for sizes in dimensions if sizes is not None]
        return tensors

    def element_bytes(self, argument: int = 0) -> int:
        """Return the bytes of an element of an argument; 4 if its type is unknown."""
        name = self.dtypes[argument] if argument < len(self.dtypes) else None
        return DTYPE_BYTES.get(name, 4) if isinstance(name, str) else 4

    def integers(self, argument: int) -> list[int] | None:
        """Return an argument that is a list of whole numbers; None if it was not recorded."""
        value = self._value(argument)
        items = _json_array(value) if isinstance(value, str) else value
        if isinstance(items, list) and items and all(isinstance(item, int) for item in items):
            return items
        return None

    def flag(self, argument: int) -> bool:
        """Return a boolean argument; False if it was not recorded."""
        return str(self._value(argument)).lower() == "true"

    def _value(self, argument: int) -> Any:
        return self.values[argument] if argument < len(self.values) else None


def operator_of(call: Call) -> Operator | None:
    """Return the operator of a call; None if its name is unknown, or its shapes do not tell.

    Examples
    --------
    >>> operator_of(Call("aten::mm", [[128, 32], [32, 64]], ["float", "float"])).flops
    524288.0
    >>> operator_of(Call("my::kernel", [[128, 32]])) is None
    True
    """
    rule = _RULES.get(call.name)
    # A tensor that is larger than any memory is from a damaged file.
    if rule is None or any(min(shape) < 1 or prod(shape) > 1 << 50 for shape, _ in call.tensors()):
        return None
    try:
        return rule(call)
    except _UnknownShapeError:
        return None


class _UnknownShapeError(Exception):
    """The shapes of a call do not tell its operator."""


def _require(condition: bool) -> None:
    """Check a condition on the shapes of a call."""
    if not condition:
        raise _UnknownShapeError


def _json_array(text: Any) -> list[Any]:
    """Return a JSON array; an empty list for anything else."""
    if not isinstance(text, str):
        return []
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return content if isinstance(content, list) else []


def _dimensions(shape: Any) -> Shape | None:
    """Return the dimensions of a tensor; None for anything else."""
    if not isinstance(shape, list | tuple) or not shape or not all(type(size) is int for size in shape):
        return None
    return tuple(shape)


def _is_list_of_shapes(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and bool(shape) and all(isinstance(item, list | tuple) for item in shape)


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which shapes broadcast."""
    width = max(len(shape) for shape in shapes)
    padded = [(1,) * (width - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _product(call: Call, first: int, second: int, *, bias: int | None = None) -> Operator:
    """Return the product of two matrices, or of two batches of matrices; leading dimensions are the batch."""
    a, b = call.sizes(first, second)
    _require(len(a) > 1 and len(b) > 1 and a[-1] == b[-2])
    extra = call.shape(bias) if bias is not None else None
    lead = _broadcast([a[:-2] or (1,), b[:-2] or (1,)])
    shared = len(b) == 2 and prod(lead) > 1
    size = call.element_bytes(first)
    return batched_matmul(prod(lead), a[-2], b[-1], a[-1], size, bias=prod(extra) if extra else 0, shared=shared)


#: Bytes of an element of a product of 8-bit matrices: its output is in BF16 unless the caller asks for another type.
_SCALED_OUTPUT_BYTES = 2


def _scaled_product(call: Call) -> Operator:
    """Return a product of two 8-bit matrices with scales, which writes elements of two bytes."""
    product = _product(call, 0, 1)
    outputs = product.flops / (2.0 * product.dims[-1])
    return replace(product, bytes_written=outputs * max(_SCALED_OUTPUT_BYTES, product.element_bytes))


def _linear(call: Call) -> Operator:
    """Return a linear layer: a product with a weight of (out, in), and a bias."""
    x, weight = call.sizes(0, 1)
    _require(len(weight) == 2 and x[-1] == weight[1])
    bias = weight[0] if call.shape(2) else 0
    return batched_matmul(1, prod(x[:-1]), weight[0], weight[1], call.element_bytes(), bias=bias)


def _matrix_vector(call: Call, first: int, second: int) -> Operator:
    """Return the product of a matrix and a vector."""
    a, x = call.sizes(first, second)
    _require(len(a) == 2 and a[1] == x[0])
    return batched_matmul(1, a[0], 1, a[1], call.element_bytes(first))


def _attention(call: Call, *, heads_first: bool, causal: int, at: int = 0, backward: bool = False) -> Operator:
    """Return attention over (batch, heads, queries, width), or with heads third; `causal` numbers an argument."""
    query, key = call.sizes(at, at + 1)
    _require(len(query) == len(key) == 4)
    heads, length = (1, 2) if heads_first else (2, 1)
    queries, keys = (query[0], query[heads], query[length], query[3]), (key[heads], key[length])
    return attention(queries, keys, call.element_bytes(at), causal=call.flag(causal), backward=backward)


def _convolution(call: Call, *, stride: int, transposed: int | None = None) -> Operator:
    """Return a convolution whose arguments from `stride` on are stride, padding and dilation, as text."""
    images, weight = call.sizes(0, 1)
    settings = [call.integers(stride + i) for i in range(3)]
    _require(len(images) == len(weight) > 2 and None not in settings)
    _require(transposed is None or not call.flag(transposed))
    strides, paddings, dilations = (_per_dimension(setting or [], len(images) - 2) for setting in settings)
    extent = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // max(step, 1) + 1
        for size, kernel, step, pad, gap in zip(images[2:], weight[2:], strides, paddings, dilations, strict=True)
    ]
    _require(min(extent) > 0)
    return convolution(images, weight, (images[0], weight[0], *extent), call.element_bytes())


def _per_dimension(values: list[int], count: int) -> list[int]:
    """Return one setting for each dimension; a single value stands for all."""
    return values * count if len(values) == 1 else (values + [0] * count)[:count]


def _convolution_backward(call: Call) -> Operator:
    """Return both gradients of a convolution; its output has the shape of the incoming gradient."""
    gradient, images, weight = call.sizes(0, 1, 2)
    _require(len(gradient) == len(images) == len(weight) > 2)
    return convolution(images, weight, gradient, call.element_bytes(), passes=2)


def _rowwise(call: Call, kind: str, at: int = 0, *, columns: int | None = None, backward: bool = False) -> Operator:
    """Return a row-wise operator. A row has the elements of argument `columns`, by default the last dimension."""
    (x,) = call.sizes(at)
    width = prod(call.shape(columns) or x[-1:]) if columns is not None else x[-1]
    return rowwise(kind, max(prod(x) // width, 1), width, call.element_bytes(at), backward=backward)


def _batch_norm(call: Call, at: int = 0, *, backward: bool = False) -> Operator:
    """Return a batch normalisation: a row-wise operator with a row for each channel."""
    (x,) = call.sizes(at)
    _require(len(x) > 1)
    return rowwise("normalization", x[1], max(prod(x) // x[1], 1), call.element_bytes(at), backward=backward)


def _elementwise(call: Call, *, each: float = 1.0) -> Operator:
    """Return an operator that reads all tensors and writes an output of their broadcast shape."""
    tensors = call.tensors()
    _require(bool(tensors))
    output = prod(_broadcast([shape for shape, _ in tensors]))
    read = sum(prod(shape) * size for shape, size in tensors)
    return streaming("elementwise", read, output * tensors[0][1], output, tensors[0][1], each=each)


def _fill(call: Call) -> Operator:
    """Return an operator that writes its first argument."""
    elements, size = prod(call.sizes(0)[0]), call.element_bytes()
    return streaming("copy", 0, elements * size, elements, size, each=0.0)


def _copy(call: Call) -> Operator:
    """Return a copy into the first argument from the second; with one argument, a copy of it."""
    (to,) = call.sizes(0)
    source = 1 if call.shape(1) else 0
    read, written = prod(call.shape(source) or to) * call.element_bytes(source), prod(to) * call.element_bytes()
    return streaming("copy", read, written, prod(to), call.element_bytes(), each=0.0)


def _gather_lists(call: Call) -> Operator:
    """Return an operator that copies all its tensors."""
    tensors = call.tensors()
    _require(bool(tensors))
    moved = sum(prod(shape) * size for shape, size in tensors)
    elements = sum(prod(shape) for shape, _ in tensors)
    return streaming("copy", moved, moved, elements, tensors[0][1], each=0.0)


def _reduction(call: Call) -> Operator:
    """Return a reduction of the first argument; the output is not counted beyond one element."""
    elements, size = prod(call.sizes(0)[0]), call.element_bytes()
    return streaming("reduction", elements * size, size, elements, size)


def _embedding(call: Call) -> Operator:
    """Return a lookup of rows in a table."""
    table, indices = call.sizes(0, 1)
    _require(len(table) == 2)
    elements = prod(indices) * table[1]
    moved = elements * call.element_bytes()
    read = moved + prod(indices) * call.element_bytes(1)
    return streaming("embedding", read, moved, elements, call.element_bytes(), each=0.0)


def _embedding_backward(call: Call) -> Operator:
    """Return the gradient of a lookup: every row of the gradient is added to the table."""
    gradient, indices = call.sizes(0, 1)
    moved = prod(gradient) * call.element_bytes()
    read = 2 * moved + prod(indices) * call.element_bytes(1)
    return streaming("embedding", read, moved, prod(gradient), call.element_bytes())


def _cell(call: Call, gates: int) -> Operator:
    """Return the pointwise part of a recurrent cell, whose first two arguments hold the gates.

    Its products are separate calls.
    """
    first, second = call.sizes(0, 1)
    _require(len(first) == 2 and first[1] % gates == 0)
    rows, hidden, size = first[0], first[1] // gates, call.element_bytes()
    read = (prod(first) + prod(second) + rows * hidden) * size
    written = (2 if gates == 4 else 1) * rows * hidden * size + rows * gates * hidden * size
    return streaming("rnn", read, written, rows * hidden, size, each=6.0 * gates)


def _optimizer(call: Call, *, each: float, writes: int) -> Operator:
    """Return an optimizer step over lists of tensors: it reads all lists and writes `writes` of them."""
    tensors = call.tensors()
    lists = sum(1 for shape in call.shapes if _is_list_of_shapes(shape))
    _require(bool(tensors) and lists > 0)
    read = sum(prod(shape) * size for shape, size in tensors)
    elements = max(sum(prod(shape) for shape, _ in tensors) // lists, 1)
    return streaming("optimizer", read, read * min(writes, lists) / lists, elements, tensors[0][1], each=each)


Rule = Callable[[Call], Operator]


def _rules(names: str, rule: Rule) -> dict[str, Rule]:
    """Return one rule for several operators of aten."""
    return {f"aten::{name}": rule for name in names.split()}


#: FLOP an element of operators that take more than one; a transcendental function counts as one.
_COSTS = {"gelu": 8, "gelu_backward": 12, "silu": 4, "silu_backward": 6, "sigmoid": 3, "sigmoid_backward": 3,
          "tanh_backward": 3, "addcmul": 3, "addcdiv": 3, "addcmul_": 3, "addcdiv_": 3, "lerp": 3, "lerp_": 3,
          "native_dropout": 2, "mse_loss": 3, "mse_loss_backward": 3}  # fmt: skip
_ELEMENTWISE = (
    "add add_ sub sub_ rsub mul mul_ div div_ pow pow_ neg neg_ abs exp exp_ log log_ sqrt sqrt_ rsqrt rsqrt_ "
    "reciprocal sin cos tanh tanh_ sigmoid_ relu relu_ clamp clamp_ clamp_min clamp_min_ clamp_max threshold "
    "threshold_backward where eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not "
    "masked_fill masked_fill_ maximum minimum floor ceil round sign erf native_dropout_backward dropout "
    "_to_copy tril triu hardtanh hardtanh_ leaky_relu leaky_relu_ isnan isinf"
)
_RULES: Mapping[str, Rule] = MappingProxyType(
    _rules("mm bmm matmul", lambda c: _product(c, 0, 1))
    | _rules("_scaled_mm", _scaled_product)
    | _rules("addmm baddbmm addbmm", lambda c: _product(c, 1, 2, bias=0))
    | _rules("linear", _linear)
    | _rules("mv", lambda c: _matrix_vector(c, 0, 1))
    | _rules("addmv addmv_", lambda c: _matrix_vector(c, 1, 2))
    | _rules("convolution _convolution", lambda c: _convolution(c, stride=3, transposed=6))
    | _rules("conv1d conv2d conv3d", lambda c: _convolution(c, stride=3))
    | _rules("copy_ clone contiguous", _copy)
    | _rules("cat stack", _gather_lists)
    | _rules(
        "native_layer_norm layer_norm rms_norm _fused_rms_norm", lambda c: _rowwise(c, "normalization", columns=2)
    )
    | _rules(
        "_flash_attention_forward _efficient_attention_forward",
        lambda c: _attention(c, heads_first=False, causal=8),
    )
    | {
        "aten::cudnn_convolution": lambda c: _convolution(_swap_stride_and_padding(c, 3, 2), stride=2),
        "aten::miopen_convolution": lambda c: _convolution(_swap_stride_and_padding(c, 4, 3), stride=3),
        "aten::convolution_backward": _convolution_backward,
        "aten::_flash_attention_backward": lambda c: _attention(c, heads_first=False, causal=11, at=1, backward=True),
        "aten::scaled_dot_product_attention": lambda c: _attention(c, heads_first=True, causal=5),
        "aten::_scaled_dot_product_flash_attention": lambda c: _attention(c, heads_first=True, causal=4),
        "aten::_scaled_dot_product_efficient_attention": lambda c: _attention(c, heads_first=True, causal=6),
        "aten::_scaled_dot_product_flash_attention_backward": lambda c: _attention(
            c, heads_first=True, causal=11, at=1, backward=True
        ),
        "aiter::rmsnorm": lambda c: _rowwise(c, "normalization"),
        "aiter::add_rmsnorm": lambda c: _rowwise(c, "normalization", backward=True),
        "aten::native_layer_norm_backward": lambda c: _rowwise(c, "normalization", 1, columns=5, backward=True),
        "aten::native_group_norm": lambda c: _rowwise(c, "normalization"),
        "aten::_thnn_fused_lstm_cell": lambda c: _cell(c, 4),
        "aten::_thnn_fused_gru_cell": lambda c: _cell(c, 3),
        "aten::embedding": _embedding,
        "aten::embedding_dense_backward": _embedding_backward,
    }
    | _rules(
        "native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm _native_batch_norm_legit", _batch_norm
    )
    | _rules("native_batch_norm_backward", lambda c: _batch_norm(c, 1, backward=True))
    | _rules("cudnn_batch_norm_backward miopen_batch_norm_backward", lambda c: _batch_norm(c, backward=True))
    | _rules("_softmax softmax _log_softmax log_softmax", lambda c: _rowwise(c, "softmax"))
    | _rules("_softmax_backward_data _log_softmax_backward_data", lambda c: _rowwise(c, "softmax", backward=True))
    | _rules("fill_ zero_ zeros_like ones_like normal_ uniform_ bernoulli_ random_", _fill)
    | _rules("sum mean max min amax amin argmax argmin any all norm linalg_vector_norm var std cumsum prod", _reduction)
    | _rules(_ELEMENTWISE, _elementwise)
    | {f"aten::{name}": (lambda c, each=each: _elementwise(c, each=each)) for name, each in _COSTS.items()}
    | {f"aten::_foreach_{name}_": (lambda c: _optimizer(c, each=1.0, writes=1))
       for name in ("add", "mul", "div", "sub", "sqrt", "lerp", "addcmul", "addcdiv", "zero", "copy", "neg", "pow")}
    | {f"aten::_foreach_{name}": (lambda c: _optimizer(c, each=1.0, writes=1))
       for name in ("add", "mul", "div", "sqrt", "neg", "pow", "norm")}
    # Parameters and two moments are written, gradients only read.
    | {f"aten::_fused_{name}_": (lambda c: _optimizer(c, each=12.0, writes=3)) for name in ("adam", "adamw")}
    | {"aten::_fused_sgd_": lambda c: _optimizer(c, each=4.0, writes=2)}
)  # fmt: skip


def _swap_stride_and_padding(call: Call, stride: int, padding: int) -> Call:
    """Return the call with stride before padding, the order of the other convolutions."""
    values = list(call.values)
    if max(stride, padding) < len(values):
        values[stride], values[padding] = values[padding], values[stride]
    return Call(call.name, call.shapes, call.dtypes, values)
