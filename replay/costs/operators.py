"""The operator of a recorded call: FLOP and bytes, from its name, shapes, types and arguments.

`operator_of` looks up a rule by the name of the call in `datasets/operators.toml`. The rule returns an `Operator` that
counts FLOP and bytes, or None if the shapes do not tell.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import prod
from types import MappingProxyType
from typing import Any

import msgspec

from profilers.files import dataset_path, read_toml, typed_table
from replay.costs.calls import Call, Shape, UnknownShapeError, dimensions, is_list_of_shapes, require
from replay.costs.serving_operators import SERVING_RULES, serving_attention
from replay.graph.operators import Operator, attention, batched_matmul, convolution, rowwise, streaming

#: A function that SGLang's profiler wraps, with the number of the wrapper.
_NUMBERED = re.compile(r"^(sglang_profiler::\w+?)_\d+$")


def operator_of(call: Call) -> Operator | None:
    """Return the operator of a call; None if its name is unknown, or its shapes do not tell.

    Examples
    --------
    >>> operator_of(Call("aten::mm", [[128, 32], [32, 64]], ["float", "float"])).flops
    524288.0
    >>> operator_of(Call("my::kernel", [[128, 32]])) is None
    True
    """
    rule = _rule_of(call.name)
    # A tensor that is larger than any memory is from a damaged file. Engines pass empty tensors for arguments not used.
    least = 0 if rule is not None and getattr(rule, "func", None) in SERVING_RULES else 1
    if rule is None or any(min(shape) < least or prod(shape) > 1 << 50 for shape, _ in call.tensors()):
        return None
    try:
        return rule(call)
    except UnknownShapeError:
        return None


def _rule_of(name: str) -> Callable[[Call], Operator] | None:
    rules = counting_rules()
    return rules.get(name) or rules.get(_NUMBERED.sub(r"\1", name))


def takes_requests(call: Call) -> bool:
    """Return whether the work of a call depends on the requests of its step of serving.

    Examples
    --------
    >>> takes_requests(Call("aten::mm", [])), takes_requests(Call("aiter::mha_batch_prefill", []))
    (False, True)
    """
    return getattr(_rule_of(call.name), "func", None) in (serving_attention, _flash_attention)


#: Prefix of the kernels that `torch.compile` writes, and words of kernels that may touch a part of their arguments.
_FUSED = "triton_"
_PARTLY = re.compile("embedding|gather|scatter|index|nll_loss|slice|select|split|strided|unfold|pool|upsample|pad")


def fused_bytes(call: Call) -> float | None:
    """Return the bytes of the arguments of a kernel that `torch.compile` wrote, each counted once.

    A trace does not tell what the kernel computes, so its FLOP are unknown. None for any other call, and for a kernel
    whose name says that it may touch a part of its arguments only.

    Examples
    --------
    >>> fused_bytes(Call("triton_poi_fused_relu_0", [[4, 8], [4, 8], []], ["float", "float", "Scalar"]))
    256.0
    >>> fused_bytes(Call("triton_poi_fused_embedding_0", [[4], [50, 8]], ["int", "float"])) is None
    True
    """
    tensors = call.tensors()
    if not call.name.startswith(_FUSED) or _PARTLY.search(call.name) or not tensors:
        return None
    moved = float(sum(prod(shape) * size for shape, size in tensors))
    return moved if 0 < moved < 1 << 50 else None


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which shapes broadcast."""
    width = max(len(shape) for shape in shapes)
    padded = [(1,) * (width - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _product(call: Call, first: int, second: int, *, bias: int | None = None) -> Operator:
    """Return the product of two matrices, or of two batches of matrices; leading dimensions are the batch."""
    a, b = call.sizes(first, second)
    require(len(a) > 1 and len(b) > 1 and a[-1] == b[-2])
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
    require(len(weight) == 2 and x[-1] == weight[1])
    bias = weight[0] if call.shape(2) else 0
    return batched_matmul(1, prod(x[:-1]), weight[0], weight[1], call.element_bytes(), bias=bias)


def _matrix_vector(call: Call, first: int, second: int) -> Operator:
    """Return the product of a matrix and a vector."""
    a, x = call.sizes(first, second)
    require(len(a) == 2 and a[1] == x[0])
    return batched_matmul(1, a[0], 1, a[1], call.element_bytes(first))


def _attention(call: Call, *, heads_first: bool, causal: int, at: int = 0, backward: bool = False) -> Operator:
    """Return attention over (batch, heads, queries, width), or with heads third; `causal` numbers an argument."""
    query, key = call.sizes(at, at + 1)
    require(len(query) == len(key) == 4)
    heads, length = (1, 2) if heads_first else (2, 1)
    queries, keys = (query[0], query[heads], query[length], query[3]), (key[heads], key[length])
    return attention(queries, keys, call.element_bytes(at), causal=call.flag(causal), backward=backward)


def _flash_attention(
    call: Call, *, causal: int, window: int, lengths: Sequence[int] = (), at: int = 0, backward: bool = False
) -> Operator:
    """Return attention of the Flash-Attention packages, heads third.

    A tensor among the arguments `lengths` holds lengths of sequences, or pages, and a trace has no values of tensors:
    the step of serving tells them, else they are unknown. The operator is unknown, too, if argument `window` limits the
    keys, or is not recorded.
    """
    if call.step is not None:
        return serving_attention(call)
    require(not any(call.shape(argument) for argument in lengths) and call.text(window) == "-1")
    return _attention(call, heads_first=False, causal=causal, at=at, backward=backward)


def _gated(call: Call, *, each: float) -> Operator:
    """Return the product of one half of each row, after an activation, and the other half; the output comes first."""
    output, x = call.sizes(0, 1)
    require(x[-1] == 2 * output[-1] and x[:-1] == output[:-1])
    size = call.element_bytes(1)
    return streaming("elementwise", prod(x) * size, prod(output) * size, prod(output), size, each=each)


def _convolution(call: Call, *, stride: int, transposed: int | None = None) -> Operator:
    """Return a convolution whose arguments from `stride` on are stride, padding and dilation, as text."""
    images, weight = call.sizes(0, 1)
    settings = [call.integers(stride + i) for i in range(3)]
    require(len(images) == len(weight) > 2 and None not in settings)
    require(transposed is None or not call.flag(transposed))
    strides, paddings, dilations = (_per_dimension(setting or [], len(images) - 2) for setting in settings)
    extent = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // max(step, 1) + 1
        for size, kernel, step, pad, gap in zip(images[2:], weight[2:], strides, paddings, dilations, strict=True)
    ]
    require(min(extent) > 0)
    operator = convolution(images, weight, (images[0], weight[0], *extent), call.element_bytes())
    return replace(operator, geometry=_convolution_geometry(images, weight, (strides, paddings, dilations)))


def _convolution_geometry(images: Shape, weight: Shape, settings: tuple[list[int], ...]) -> tuple[int, ...]:
    """Return the geometry of a convolution (`Operator.geometry`), lines as images of a row; empty if it is dilated."""
    strides, paddings, dilations = settings
    if len(images) not in (3, 4) or any(gap != 1 for gap in dilations) or images[1] % weight[1]:
        return ()
    row: Shape = (1,) if len(images) == 3 else ()
    padding = (0,) * len(row)
    window = (*row, *weight[2:], *row, *strides, *padding, *paddings)
    return (*images[:2], *row, *images[2:], weight[0], *window, images[1] // weight[1])


def _padding_first_convolution(call: Call, *, padding: int) -> Operator:
    """Return a convolution whose padding stands before its stride, unlike that of the others."""
    values = list(call.values)
    values[padding : padding + 2] = reversed(values[padding : padding + 2])
    return _convolution(replace(call, values=values), stride=padding)


def _per_dimension(values: list[int], count: int) -> list[int]:
    """Return one setting for each dimension; a single value stands for all."""
    return values * count if len(values) == 1 else (values + [0] * count)[:count]


def _convolution_backward(call: Call) -> Operator:
    """Return the gradients of a convolution; its output has the shape of the incoming gradient.

    The last argument tells which gradients are asked for, of images, weight and bias. Without it, both are counted.
    """
    gradient, images, weight = call.sizes(0, 1, 2)
    require(len(gradient) == len(images) == len(weight) > 2)
    asked = re.findall("True|False", call.text(10))[:2] or ["True", "True"]
    operator = convolution(images, weight, gradient, call.element_bytes(), passes=max(asked.count("True"), 1))
    settings = [call.integers(4 + i) for i in range(3)]
    if None in settings or call.flag(7):
        return operator
    per_dimension = tuple(_per_dimension(setting or [], len(images) - 2) for setting in settings)
    return replace(operator, geometry=_convolution_geometry(images, weight, per_dimension))


def _rowwise(call: Call, kind: str, at: int = 0, *, columns: int | None = None, backward: bool = False) -> Operator:
    """Return a row-wise operator. A row has the elements of argument `columns`, by default the last dimension."""
    (x,) = call.sizes(at)
    width = prod(call.shape(columns) or x[-1:]) if columns is not None else x[-1]
    return rowwise(kind, max(prod(x) // width, 1), width, call.element_bytes(at), backward=backward)


def _batch_norm(call: Call, at: int = 0, *, backward: bool = False) -> Operator:
    """Return a batch normalisation: a row-wise operator with a row for each channel."""
    (x,) = call.sizes(at)
    require(len(x) > 1)
    norm = rowwise("normalization", x[1], max(prod(x) // x[1], 1), call.element_bytes(at), backward=backward)
    return replace(norm, geometry=(x[0], x[1], prod(x[2:])))


#: Bytes of the position of a maximum: 64-bit in PyTorch.
POSITION_BYTES = 8


def _pooling(call: Call, *, maximum: bool, backward: bool = False) -> Operator:
    """Return a pooling of images; that of a maximum writes, and backward reads, the positions of maxima."""
    first = 2 if backward else 1
    (x,) = call.sizes(first - 1)
    kernel, padding = call.integers(first), call.integers(first + 2)
    require(len(x) == 4 and kernel is not None and padding is not None)
    dilation = call.integers(first + 3) if maximum else None
    require(not call.flag(first + (4 if maximum else 3)) and all(gap == 1 for gap in dilation or []))
    sides, steps, paddings = (
        _per_dimension(setting or [], 2) for setting in (kernel, call.integers(first + 1) or kernel, padding)
    )
    extent = [
        (size + 2 * pad - side) // max(step, 1) + 1
        for size, side, step, pad in zip(x[2:], sides, steps, paddings, strict=True)
    ]
    require(min(extent) > 0)
    size, outputs = call.element_bytes(first - 1), x[0] * x[1] * prod(extent)
    pooled, index = outputs * size, outputs * POSITION_BYTES if maximum else 0
    moved = (pooled + index, prod(x) * size) if backward else (prod(x) * size, pooled + index)
    operator = streaming("pooling", *moved, outputs, size, each=float(prod(sides)))
    return replace(operator, geometry=(*x, *sides, *steps, *paddings))


def _channel_norm(call: Call, *, backward: bool = False) -> Operator:
    """Return a normalisation across channels (LRN) in training, which keeps the scale for its backward pass."""
    (x,) = call.sizes(0)
    require(len(x) > 2)
    size, elements, arrays = call.element_bytes(), prod(x), (4, 1) if backward else (1, 2)
    read, written = (count * elements * size for count in arrays)
    norm = streaming("lrn", read, written, elements, size, each=14.0)
    return replace(norm, geometry=(x[0], x[1], prod(x[2:]), int(backward)))


def _elementwise(call: Call, *, inputs: int, each: float = 1.0, result_bytes: int = 0) -> Operator:
    """Return an operator that reads its `inputs` and writes an output of their broadcast shape.

    A tensor after the inputs is the output that the caller gave, which is not read. An element of the output has
    `result_bytes`, or those of the widest input.
    """
    tensors = replace(call, shapes=call.shapes[:inputs]).tensors()
    require(bool(tensors))
    output, size = prod(_broadcast([shape for shape, _ in tensors])), max(size for _, size in tensors)
    read = sum(call.stored(argument) * call.element_bytes(argument) for argument in range(inputs))
    return streaming("elementwise", read, output * (result_bytes or size), output, size, each=each)


def _fill(call: Call) -> Operator:
    """Return an operator that writes its first argument."""
    elements, size = prod(call.sizes(0)[0]), call.element_bytes()
    return streaming("copy", 0, elements * size, elements, size, each=0.0)


def _copy(call: Call) -> Operator:
    """Return a copy into the first argument from the second; with one argument, a copy of it."""
    (to,) = call.sizes(0)
    source = 1 if call.shape(1) else 0
    read, written = call.stored(source) * call.element_bytes(source), prod(to) * call.element_bytes()
    return streaming("copy", read, written, prod(to), call.element_bytes(), each=0.0)


def _gather_lists(call: Call) -> Operator:
    """Return an operator that copies all tensors of its list; a tensor after it is the output."""
    tensors = replace(call, shapes=call.shapes[:1]).tensors()
    require(bool(tensors))
    moved = sum(prod(shape) * size for shape, size in tensors)
    elements = sum(prod(shape) for shape, _ in tensors)
    return streaming("copy", moved, moved, elements, tensors[0][1], each=0.0)


def _reduction(call: Call) -> Operator:
    """Return a reduction of the first argument; the output is not counted beyond one element."""
    elements, size = prod(call.sizes(0)[0]), call.element_bytes()
    return streaming("reduction", call.stored(0) * size, size, elements, size)


def _embedding(call: Call) -> Operator:
    """Return a lookup of rows in a table, which reads no row twice from memory."""
    table, indices = call.sizes(0, 1)
    require(len(table) == 2)
    elements, size = prod(indices) * table[1], call.element_bytes()
    read = min(elements, prod(table)) * size + prod(indices) * call.element_bytes(1)
    lookup = streaming("embedding", read, elements * size, elements, size, each=0.0)
    return replace(lookup, geometry=(*table, prod(indices)))


def _embedding_backward(call: Call) -> Operator:
    """Return the gradient of a lookup: every row of the gradient is added to a row of the table, the third argument."""
    gradient, indices = call.sizes(0, 1)
    rows, size = call.text(2), call.element_bytes()
    moved = prod(gradient) * size
    table = min(moved, int(rows) * gradient[-1] * size) if rows.isdecimal() else moved
    read = moved + table + prod(indices) * call.element_bytes(1)
    return streaming("embedding", read, table, prod(gradient), size)


def _cell(call: Call, gates: int) -> Operator:
    """Return the pointwise part of a recurrent cell, whose first two arguments hold the gates.

    Its products are separate calls.
    """
    first, second = call.sizes(0, 1)
    require(len(first) == 2 and first[1] % gates == 0)
    rows, hidden, size = first[0], first[1] // gates, call.element_bytes()
    read = (prod(first) + prod(second) + rows * hidden) * size
    written = (2 if gates == 4 else 1) * rows * hidden * size + rows * gates * hidden * size
    return replace(
        streaming("rnn", read, written, rows * hidden, size, each=6.0 * gates), geometry=(rows, hidden, gates, 0)
    )


def _cell_backward(call: Call, *, gates: int, kept: int) -> Operator:
    """Return the pointwise backward pass of a recurrent cell; `kept` numbers what the forward pass kept for it."""
    workspace, size = call.sizes(kept)[0], call.element_bytes(kept)
    states, read, written = (4, 8, 5) if gates == 4 else (5, 6, 7)
    require(len(workspace) == 2 and workspace[1] % states == 0)
    rows, hidden = workspace[0], workspace[1] // states
    elements = rows * hidden
    cell = streaming("rnn", read * elements * size, written * elements * size, elements, size, each=12.0 * gates)
    return replace(cell, geometry=(rows, hidden, gates, 1))


def _optimizer(call: Call, *, each: float, writes: int, out: int = 0) -> Operator:
    """Return an optimizer step over lists of tensors.

    It reads all lists but the last `out`, which it writes. It also writes `writes` of the lists that it reads.
    """
    sizes = [
        [(prod(dims), call.element_bytes(argument)) for dims in map(dimensions, shape) if dims is not None]
        for argument, shape in enumerate(call.shapes)
        if is_list_of_shapes(shape)
    ]
    require(len(sizes) > out and any(sizes))
    bytes_of = [sum(elements * size for elements, size in tensors) for tensors in sizes]
    lists = len(sizes) - out
    read = sum(bytes_of[:lists])
    written = read * min(writes, lists) / lists + sum(bytes_of[lists:])
    elements = max(sum(elements for tensors in sizes for elements, _ in tensors) // len(sizes), 1)
    element_bytes = next(size for tensors in sizes for _, size in tensors)
    return streaming("optimizer", read, written, elements, element_bytes, each=each)


class _RuleRow(msgspec.Struct, forbid_unknown_fields=True):
    """A row of `datasets/operators.toml`, whose head explains its keys."""

    rule: str
    names: str
    arguments: dict[str, Any] = {}


class _RuleFile(msgspec.Struct, forbid_unknown_fields=True):
    operators: tuple[_RuleRow, ...]


_RULES: tuple[Callable[..., Operator], ...] = (
    *(_product, _scaled_product, _linear, _matrix_vector, _attention, _flash_attention, _rowwise, _batch_norm),
    *(_pooling, _elementwise, _gated, _fill, _convolution, _padding_first_convolution, _convolution_backward),
    *(_copy, _gather_lists, _reduction, _embedding, _embedding_backward, _cell, _cell_backward, _optimizer),
    _channel_norm,
    *SERVING_RULES,
)


@cache
def counting_rules() -> Mapping[str, Callable[[Call], Operator]]:
    """Return the rule of each operator whose FLOP and bytes can be counted, by its name."""
    file = dataset_path("operators.toml")
    functions = {function.__name__.removeprefix("_"): function for function in _RULES}
    rules: dict[str, Callable[[Call], Operator]] = {}
    for row in typed_table(read_toml(file, "rules of operators"), _RuleFile, str(file)).operators:
        rule = partial(functions[row.rule], **row.arguments)
        rules |= {name if "::" in name else f"aten::{name}": rule for name in row.names.split()}
    return MappingProxyType(rules)
