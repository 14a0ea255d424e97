"""Operators from the calls of a trace: FLOP, bytes and shapes.

A call that a profiler recorded (name, shapes, types, arguments) gives the operator that it ran. A kernel without a
recorded operator gives what its name and grid tell. `operator_coverage` is the share of device time that operators
account for.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from profilers.trace.arrays import MISSING, integers, strings
from profilers.trace.columns import lookup
from profilers.trace.kernels import is_collective
from profilers.trace.trace import Trace
from replay.graph.operators import DTYPE_BYTES, Operator, attention, batched_matmul, convolution, rowwise, streaming

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A recorded call.

    Parameters
    ----------
    name : str
        As ``aten::mm``.
    shapes : sequence
        Of each argument: its dimensions, nested for a list of tensors, empty for what is no tensor.
    dtypes : sequence of str
        Data types of the arguments, as the profiler writes them.
    values : sequence
        Arguments that are no tensors, as text; empty where they were not recorded.
    """

    name: str
    shapes: Sequence[Any]
    dtypes: Sequence[Any] = ()
    values: Sequence[Any] = ()

    @classmethod
    def of_row(cls, name: str, shapes: str | None, dtypes: str | None = None, values: str | None = None) -> "Call":
        """Read the JSON of a row of a trace's ops; what is no array counts as not recorded."""
        return cls(name, *(_array(text) for text in (shapes, dtypes, values)))

    def shape(self, argument: int) -> Shape | None:
        """Return the dimensions of a tensor; None where the argument is none, or none with elements."""
        if argument >= len(self.shapes):
            return None
        return _dimensions(self.shapes[argument])

    def tensors(self) -> list[tuple[Shape, int]]:
        """Return dimensions and element size of every tensor argument, those in lists included."""
        found: list[tuple[Shape, int]] = []
        for place, shape in enumerate(self.shapes):
            each = shape if _is_list_of_shapes(shape) else [shape]
            found += [(own, self.element_bytes(place)) for one in each if (own := _dimensions(one)) is not None]
        return found

    def element_bytes(self, argument: int = 0) -> int:
        """Return the bytes of an element of an argument; 4 where its type is not known."""
        name = self.dtypes[argument] if argument < len(self.dtypes) else None
        return DTYPE_BYTES.get(name, 4) if isinstance(name, str) else 4

    def integers(self, argument: int) -> list[int] | None:
        """Return an argument that is a list of whole numbers; None where it was not recorded."""
        value = self.values[argument] if argument < len(self.values) else None
        found = _array(value) if isinstance(value, str) else value
        if isinstance(found, list) and found and all(isinstance(one, int) for one in found):
            return found
        return None

    def flag(self, argument: int) -> bool:
        """Return an argument that is true or false; False where it was not recorded."""
        value = self.values[argument] if argument < len(self.values) else None
        return str(value).lower() == "true"


def operator_of(call: Call) -> Operator | None:
    """Return the work of a call; None where its name is not known, or its shapes do not tell.

    Examples
    --------
    >>> operator_of(Call("aten::mm", [[128, 32], [32, 64]], ["float", "float"])).flops
    524288.0
    >>> operator_of(Call("my::kernel", [[128, 32]])) is None
    True
    """
    rule = _RULES.get(call.name)
    if rule is None or any(_dimension_missing(shape) for shape, _ in call.tensors()):
        return None
    return rule(call)


def _array(text: Any) -> list[Any]:
    if not isinstance(text, str):
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _dimensions(shape: Any) -> Shape | None:
    if not isinstance(shape, list | tuple) or not shape or not all(type(size) is int for size in shape):
        return None
    return tuple(shape)


def _is_list_of_shapes(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and bool(shape) and all(isinstance(one, list | tuple) for one in shape)


def _dimension_missing(shape: Shape) -> bool:
    """Return whether a tensor is empty, or of a size that no memory holds (a damaged file)."""
    return min(shape) < 1 or prod(shape) > 1 << 50


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    width = max(len(shape) for shape in shapes)
    padded = [(1,) * (width - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _product(call: Call, first: int, second: int, *, bias: int | None = None) -> Operator | None:
    """A product of two matrices, or of two batches of them; leading dimensions are the batch."""
    a, b = call.shape(first), call.shape(second)
    if a is None or b is None or len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    extra = call.shape(bias) if bias is not None else None
    lead = _broadcast([a[:-2] or (1,), b[:-2] or (1,)])
    shared = len(b) == 2 and prod(lead) > 1
    size = call.element_bytes(first)
    return batched_matmul(prod(lead), a[-2], b[-1], a[-1], size, bias=prod(extra) if extra else 0, shared=shared)


def _linear(call: Call) -> Operator | None:
    x, weight = call.shape(0), call.shape(1)
    if x is None or weight is None or len(weight) != 2 or x[-1] != weight[1]:
        return None
    bias = weight[0] if call.shape(2) else 0
    return batched_matmul(1, prod(x[:-1]), weight[0], weight[1], call.element_bytes(), bias=bias)


def _matrix_vector(call: Call, first: int, second: int) -> Operator | None:
    a, x = call.shape(first), call.shape(second)
    if a is None or x is None or len(a) != 2 or a[1] != x[0]:
        return None
    return batched_matmul(1, a[0], 1, a[1], call.element_bytes(first))


def _attention(call: Call, *, heads_first: bool, causal: int, at: int = 0, backward: bool = False) -> Operator | None:
    """(batch, heads, queries, width), or with heads third; `causal` is the argument that says whether it is masked."""
    query, key = call.shape(at), call.shape(at + 1)
    if query is None or key is None or len(query) != 4 or len(key) != 4:
        return None
    heads, length = (1, 2) if heads_first else (2, 1)
    return attention(
        (query[0], query[heads], query[length], query[3]),
        (key[heads], key[length]),
        call.element_bytes(at),
        causal=call.flag(causal),
        backward=backward,
    )


def _convolution(call: Call, *, stride: int, transposed: int | None = None) -> Operator | None:
    """Stride, padding and dilation follow each other from `stride` on, as text."""
    images, weight = call.shape(0), call.shape(1)
    settings = [call.integers(stride + i) for i in range(3)]
    if images is None or weight is None or len(images) != len(weight) or len(images) < 3 or None in settings:
        return None
    if transposed is not None and call.flag(transposed):
        return None
    steps, pads, gaps = (_each(one or [], len(images) - 2) for one in settings)
    extent = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // max(step, 1) + 1
        for size, kernel, step, pad, gap in zip(images[2:], weight[2:], steps, pads, gaps, strict=True)
    ]
    if min(extent) < 1:
        return None
    return convolution(images, weight, (images[0], weight[0], *extent), call.element_bytes())


def _each(values: list[int], count: int) -> list[int]:
    return values * count if len(values) == 1 else (values + [0] * count)[:count]


def _convolution_backward(call: Call) -> Operator | None:
    """Both gradients; the output's shape is that of the incoming gradient."""
    gradient, images, weight = (call.shape(i) for i in range(3))
    if gradient is None or images is None or weight is None or not len(gradient) == len(images) == len(weight) > 2:
        return None
    return convolution(images, weight, gradient, call.element_bytes(), passes=2)


def _rowwise(
    call: Call, kind: str, at: int = 0, *, columns: int | None = None, backward: bool = False
) -> Operator | None:
    """`columns` is the argument whose elements are a row's; by default a row is the last dimension."""
    x = call.shape(at)
    if x is None:
        return None
    width = prod(call.shape(columns) or x[-1:]) if columns is not None else x[-1]
    return rowwise(kind, max(prod(x) // width, 1), width, call.element_bytes(at), backward=backward)


def _batch_norm(call: Call, at: int = 0, *, backward: bool = False) -> Operator | None:
    x = call.shape(at)
    if x is None or len(x) < 2:
        return None
    return rowwise("normalization", x[1], max(prod(x) // x[1], 1), call.element_bytes(at), backward=backward)


def _elementwise(call: Call, *, kind: str = "elementwise", each: float = 1.0, writes: int = 1) -> Operator | None:
    tensors = call.tensors()
    if not tensors:
        return None
    output = prod(_broadcast([shape for shape, _ in tensors]))
    read = sum(prod(shape) * size for shape, size in tensors)
    return streaming(kind, read, writes * output * tensors[0][1], output, tensors[0][1], each=each)


def _fill(call: Call) -> Operator | None:
    shape = call.shape(0)
    if shape is None:
        return None
    size = call.element_bytes()
    return streaming("copy", 0, prod(shape) * size, prod(shape), size, each=0.0)


def _copy(call: Call) -> Operator | None:
    """Into the first argument from the second, where there are two; else a copy of the first."""
    to = call.shape(0)
    if to is None:
        return None
    source = 1 if call.shape(1) else 0
    read, written = prod(call.shape(source) or to) * call.element_bytes(source), prod(to) * call.element_bytes()
    return streaming("copy", read, written, prod(to), call.element_bytes(), each=0.0)


def _gather_lists(call: Call) -> Operator | None:
    tensors = call.tensors()
    if not tensors:
        return None
    moved = sum(prod(shape) * size for shape, size in tensors)
    elements = sum(prod(shape) for shape, _ in tensors)
    return streaming("copy", moved, moved, elements, tensors[0][1], each=0.0)


def _reduction(call: Call) -> Operator | None:
    shape = call.shape(0)
    if shape is None:
        return None
    return streaming("reduction", prod(shape) * call.element_bytes(), call.element_bytes(), prod(shape),
                     call.element_bytes())  # fmt: skip


def _embedding(call: Call) -> Operator | None:
    table, indices = call.shape(0), call.shape(1)
    if table is None or indices is None or len(table) != 2:
        return None
    moved = prod(indices) * table[1] * call.element_bytes()
    read = moved + prod(indices) * call.element_bytes(1)
    return streaming("embedding", read, moved, prod(indices) * table[1], call.element_bytes(), each=0.0)


def _embedding_backward(call: Call) -> Operator | None:
    gradient, indices = call.shape(0), call.shape(1)
    if gradient is None or indices is None:
        return None
    moved = prod(gradient) * call.element_bytes()
    read = 2 * moved + prod(indices) * call.element_bytes(1)
    return streaming("embedding", read, moved, prod(gradient), call.element_bytes())


def _cell(call: Call, gates: int) -> Operator | None:
    """The pointwise part of a recurrent cell; its products are calls of their own. The first two hold the gates."""
    first, second = call.shape(0), call.shape(1)
    if first is None or second is None or len(first) != 2 or first[1] % gates:
        return None
    rows, hidden, size = first[0], first[1] // gates, call.element_bytes()
    read = (prod(first) + prod(second) + rows * hidden) * size
    written = (2 if gates == 4 else 1) * rows * hidden * size + rows * gates * hidden * size
    return streaming("rnn", read, written, rows * hidden, size, each=6.0 * gates)


def _optimizer(call: Call, *, each: float, writes: int) -> Operator | None:
    """A step over lists of tensors: all are read, and `writes` of the lists are written."""
    tensors = call.tensors()
    lists = sum(1 for shape in call.shapes if _is_list_of_shapes(shape))
    if not tensors or not lists:
        return None
    read = sum(prod(shape) * size for shape, size in tensors)
    elements = max(sum(prod(shape) for shape, _ in tensors) // lists, 1)
    return streaming("optimizer", read, read * min(writes, lists) / lists, elements, tensors[0][1], each=each)


Rule = Callable[[Call], Operator | None]


def _named(names: str, rule: Rule) -> dict[str, Rule]:
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
    _named("mm bmm matmul", lambda c: _product(c, 0, 1))
    | _named("addmm baddbmm addbmm", lambda c: _product(c, 1, 2, bias=0))
    | _named("linear", _linear)
    | _named("mv", lambda c: _matrix_vector(c, 0, 1))
    | _named("addmv addmv_", lambda c: _matrix_vector(c, 1, 2))
    | _named("convolution _convolution", lambda c: _convolution(c, stride=3, transposed=6))
    | _named("conv1d conv2d conv3d", lambda c: _convolution(c, stride=3))
    | {
        "aten::cudnn_convolution": lambda c: _convolution(_swapped(c, 3, 2), stride=2),
        "aten::miopen_convolution": lambda c: _convolution(_swapped(c, 4, 3), stride=3),
        "aten::convolution_backward": _convolution_backward,
        "aten::_flash_attention_forward": lambda c: _attention(c, heads_first=False, causal=8),
        "aten::_efficient_attention_forward": lambda c: _attention(c, heads_first=False, causal=8),
        "aten::_flash_attention_backward": lambda c: _attention(c, heads_first=False, causal=11, at=1, backward=True),
        "aten::scaled_dot_product_attention": lambda c: _attention(c, heads_first=True, causal=5),
        "aten::_scaled_dot_product_flash_attention": lambda c: _attention(c, heads_first=True, causal=4),
        "aten::_scaled_dot_product_efficient_attention": lambda c: _attention(c, heads_first=True, causal=6),
        "aten::_scaled_dot_product_flash_attention_backward": lambda c: _attention(
            c, heads_first=True, causal=11, at=1, backward=True
        ),
        "aten::native_layer_norm": lambda c: _rowwise(c, "normalization", columns=2),
        "aten::layer_norm": lambda c: _rowwise(c, "normalization", columns=2),
        "aten::rms_norm": lambda c: _rowwise(c, "normalization", columns=2),
        "aten::_fused_rms_norm": lambda c: _rowwise(c, "normalization", columns=2),
        "aiter::rmsnorm": lambda c: _rowwise(c, "normalization"),
        "aiter::add_rmsnorm": lambda c: _rowwise(c, "normalization", backward=True),
        "aten::native_layer_norm_backward": lambda c: _rowwise(c, "normalization", 1, columns=5, backward=True),
        "aten::native_group_norm": lambda c: _rowwise(c, "normalization"),
        "aten::_thnn_fused_lstm_cell": lambda c: _cell(c, 4),
        "aten::_thnn_fused_gru_cell": lambda c: _cell(c, 3),
        "aten::embedding": _embedding,
        "aten::embedding_dense_backward": _embedding_backward,
        "aten::copy_": _copy,
        "aten::clone": _copy,
        "aten::contiguous": _copy,
        "aten::cat": _gather_lists,
        "aten::stack": _gather_lists,
    }
    | _named(
        "native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm _native_batch_norm_legit", _batch_norm
    )
    | _named("native_batch_norm_backward", lambda c: _batch_norm(c, 1, backward=True))
    | _named("cudnn_batch_norm_backward miopen_batch_norm_backward", lambda c: _batch_norm(c, backward=True))
    | _named("_softmax softmax _log_softmax log_softmax", lambda c: _rowwise(c, "softmax"))
    | _named("_softmax_backward_data _log_softmax_backward_data", lambda c: _rowwise(c, "softmax", backward=True))
    | _named("fill_ zero_ zeros_like ones_like normal_ uniform_ bernoulli_ random_", _fill)
    | _named("sum mean max min amax amin argmax argmin any all norm linalg_vector_norm var std cumsum prod", _reduction)
    | _named(_ELEMENTWISE, _elementwise)
    | {f"aten::{name}": (lambda c, each=each: _elementwise(c, each=each)) for name, each in _COSTS.items()}
    | {f"aten::_foreach_{name}_": (lambda c: _optimizer(c, each=1.0, writes=1))
       for name in ("add", "mul", "div", "sub", "sqrt", "lerp", "addcmul", "addcdiv", "zero", "copy", "neg", "pow")}
    | {f"aten::_foreach_{name}": (lambda c: _optimizer(c, each=1.0, writes=1))
       for name in ("add", "mul", "div", "sqrt", "neg", "pow", "norm")}
    # Parameters and two moments are written, gradients only read.
    | {f"aten::_fused_{name}_": (lambda c: _optimizer(c, each=12.0, writes=3)) for name in ("adam", "adamw")}
    | {"aten::_fused_sgd_": lambda c: _optimizer(c, each=4.0, writes=2)}
)  # fmt: skip


def _swapped(call: Call, stride: int, padding: int) -> Call:
    """Put the stride before the padding, as the other convolutions have them."""
    values = list(call.values)
    if max(stride, padding) < len(values):
        values[stride], values[padding] = values[padding], values[stride]
    return Call(call.name, call.shapes, call.dtypes, values)


#: PyTorch's pointwise kernels, and how many elements a thread takes: the second parameter of the legacy kernel; four,
#: or the width of the vector where that is more, of the others; eight where it is unrolled by hand.
_LEGACY = re.compile(r"\belementwise_kernel<(\d{1,4}), (\d{1,4})\b")
_VECTORIZED = re.compile(r"\bvectorized_elementwise_kernel<(\d{1,4})\b")
_UNROLLED = re.compile(r"\bunrolled_elementwise_kernel<")
_BY_HAND = re.compile(r"\belementwise_kernel_manual_unroll<(\d{1,4}), (\d{1,4})\b")
#: The pointers that are handed to it: one an array.
_POINTERS = re.compile(r"[Aa]rray<char ?\*, (\d{1,2})(?!\d)")
#: Of workgroups, and of the work-items of one.
_MOST = 2**40
_TYPES: tuple[tuple[str, str], ...] = (
    ("bfloat16", "bf16"),
    ("half", "fp16"),
    ("double", "fp64"),
    ("float8", "fp8"),
    ("float", "fp32"),
    ("long", "long"),
    ("bool", "bool"),
    ("char", "int8"),
)


def operator_of_kernel(name: str, workgroups: int, workgroup_size: int) -> Operator | None:
    """Return the work of a pointwise kernel of PyTorch; None of any other.

    Parameters
    ----------
    name : str
        Name of the kernel.
    workgroups, workgroup_size : int
        Of its launch.

    Notes
    -----
    The last workgroup may be partly idle, so that elements are an upper bound, off by less than one workgroup's.
    Products do not tell their depth, row-wise kernels not their columns. Elements a thread are those of PyTorch 1.10 to
    2.9, as `tests/test_real_durations.py` compares them with recorded shapes.

    Examples
    --------
    >>> name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, Array<char*, 3> >"
    >>> operator_of_kernel(name, 8, 128).bytes_moved
    49152
    """
    each = _elements_a_thread(name)
    if not each or not (1 <= workgroups < _MOST and 1 <= workgroup_size < _MOST):
        return None
    elements = int(workgroups) * int(workgroup_size) * each
    pointers = _POINTERS.search(name)
    arrays = int(pointers[1]) if pointers else 2
    size = _element_bytes(name)
    kind = "copy" if re.search(r"copy|fill", name, re.IGNORECASE) else "elementwise"
    return streaming(kind, max(arrays - 1, 0) * elements * size, elements * size, elements, size)


def _elements_a_thread(name: str) -> int | None:
    if by_hand := _BY_HAND.search(name):
        return int(by_hand[2])
    if legacy := _LEGACY.search(name):
        return int(legacy[2])
    if vectorized := _VECTORIZED.search(name):
        return max(int(vectorized[1]), 4)
    return 4 if _UNROLLED.search(name) else None


def _element_bytes(name: str) -> int:
    lower = name.lower().replace("array<char", "array<")
    found = [(lower.find(text), dtype) for text, dtype in _TYPES if text in lower]
    return DTYPE_BYTES[min(found)[1]] if found else 4


@dataclass(frozen=True)
class OperatorCoverage:
    """Shares of the time in kernels that are no collectives.

    Parameters
    ----------
    kernel_ns : int
        That time.
    with_op, with_shapes, known : float
        Share whose kernel was launched by an operator; whose operator has recorded shapes; whose work is known.
    by_kernel : float
        Share whose work only the kernel's name and grid tell (`operator_of_kernel`).
    """

    kernel_ns: int
    with_op: float
    with_shapes: float
    known: float
    by_kernel: float = 0.0


def operators_of_kernels(trace: Trace) -> tuple[list[Operator | None], "np.ndarray[tuple[int], np.dtype[np.bool_]]"]:
    """Return for every kernel the work of the operator that launched it, and whether that has recorded shapes.

    An operator that launches several kernels is the work of all of them together.
    """
    kernels, ops = trace.kernels, trace.ops
    rows = lookup(integers(ops, "id"), np.arange(ops.num_rows), integers(kernels, "op_id"))
    wanted = sorted(set(rows[rows != MISSING].tolist()))
    taken = ops.select(["name", "shapes", "dtypes", "concrete_inputs"]).take(wanted).to_pylist() if wanted else []
    known: dict[int, Operator | None] = {}
    shaped: set[int] = set()
    for row, op in zip(wanted, taken, strict=True):  # a Python loop over operators that launch kernels
        known[row] = operator_of(Call.of_row(op["name"], op["shapes"], op["dtypes"], op["concrete_inputs"]))
        if op["shapes"]:
            shaped.add(row)
    each = rows.tolist()
    return [known.get(row) for row in each], np.array([row in shaped for row in each], dtype=np.bool_)


def operator_coverage(trace: Trace) -> OperatorCoverage:
    """Return the shares of a trace's kernel time whose work is known.

    Examples
    --------
    >>> from profilers.trace import Trace, TraceMeta
    >>> operator_coverage(Trace(TraceMeta(""), {})).known
    0.0
    """
    kernels = trace.kernels
    duration = integers(kernels, "dur_ns")
    names = strings(kernels, "name")
    collective = {name: is_collective(name) for name in set(names)}
    counted = np.array([not collective[name] for name in names], dtype=np.bool_) & (duration != MISSING)
    operators, shaped = operators_of_kernels(trace)
    launched = integers(kernels, "op_id") != MISSING
    known = np.array([one is not None for one in operators], dtype=np.bool_)
    total = int(duration[counted].sum())

    def share(rows: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> float:
        return float(duration[counted & rows].sum() / total) if total else 0.0

    return OperatorCoverage(total, share(launched), share(shaped), share(known), share(~known & _told(trace, names)))


def _told(trace: Trace, names: np.ndarray) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return whose name and grid tell their work; a loop over the distinct names."""
    there = {name: operator_of_kernel(name, 1, 1) is not None for name in set(names)}
    launched = np.minimum(integers(trace.kernels, "workgroups"), integers(trace.kernels, "workgroup_size")) > 0
    return np.array([there[name] for name in names], dtype=np.bool_) & launched
