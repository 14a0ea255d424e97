"""Transformers, the operators of a training or inference step, counts of them, and how long they take.

A `Transformer` holds the sizes of a model and the style of its implementation. A `Step` is one operator of a job, with
its backward pass. `fused` joins operators that a compiler would join. A `Tally` counts equal operators, so that many
layers take no longer than one. `time_operators` predicts how long operators take on a device.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import numpy as np

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml, typed_tables
from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.kernels import MODELS, KernelCalibration, Machine, predict
from replay.costs.kernels.fits import runs_hot
from replay.graph.operators import Operator, batched_matmul, rowwise, streaming

#: Of any size: no model, batch or sequence comes near, and products of four are far below what a double holds.
LARGEST = 2**31
_SHOWN, _SHOWN_BITS = 40, 64
Content = TypeVar("Content")


def checked_size(name: str, value: object, most: int = LARGEST) -> int:
    """Return a size as an int.

    Parameters
    ----------
    name : str
        For the message.
    value : object
        An integer of Python or NumPy.
    most : int
        Largest value allowed.

    Raises
    ------
    InvalidInputError
        It is no whole number, below 1 or above `most`.

    Examples
    --------
    >>> checked_size("layers", 24)
    24
    >>> checked_size("hidden", 10**400)
    Traceback (most recent call last):
    profilers.errors.InvalidInputError: hidden is about 2^1328; it must be at most 2,147,483,648
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidInputError(f"{name} is {repr(value)[:_SHOWN]}; it must be a whole number of 1 or more")
    number = index(value)
    # A number of thousands of digits cannot be written out (and Python refuses to).
    shown = str(number) if number.bit_length() <= _SHOWN_BITS else f"about 2^{number.bit_length() - 1}"
    if number < 1:
        raise InvalidInputError(f"{name} is {shown}; it must be 1 or more")
    if number > most:
        raise InvalidInputError(f"{name} is {shown}; it must be at most {most:,}")
    return number


def read_or_shipped(read: Callable[[Path], Content], path: str | Path | None, name: str) -> Content:
    """Return the content of a file, or of a shipped file, which is read once.

    Parameters
    ----------
    read : callable
        Reads a file.
    path : str or Path, optional
        The file; by default the shipped one.
    name : str
        Path of the shipped file below `datasets/`.
    """
    return _read_shipped(read, name) if path is None else read(Path(path))


@cache
def _read_shipped(read: Callable[[Path], Content], name: str) -> Content:
    return read(dataset_path(name))


def named_tables(content: Mapping[str, Any], name: str, layout: type[Content], file: Path) -> Mapping[str, Content]:
    """Return the tables ``[NAME.KEY]`` of a settings file as dataclasses, by key.

    Parameters
    ----------
    content : mapping
        Content of the file.
    name : str
        First part of the tables' names.
    layout : type
        Dataclass with the keys of each table, after a first field for the name.
    file : Path
        File, for messages.

    Raises
    ------
    InvalidInputError
        There is no such table, or one is not as `layout` says; the message names file, table and key.
    """
    keys = [
        (field.name, field.type) if field.default is MISSING else (field.name, field.type, field.default)
        for field in fields(layout)[1:]  # type: ignore[arg-type]
    ]
    struct = msgspec.defstruct(layout.__name__, keys, forbid_unknown_fields=True)
    tables = typed_tables(content, name, struct, file)
    try:
        named = {key: layout(key, **msgspec.structs.asdict(table)) for key, table in tables.items()}  # type: ignore[call-arg]
        return MappingProxyType(named)
    except InvalidInputError as error:
        raise InvalidInputError(f"{file}: {error}") from error


#: Implementations, by what sets them apart.
STYLES: Mapping[str, str] = MappingProxyType(
    {
        "bert": "encoder; three projections, additive mask, exact GELU, a normalisation after each block",
        "gpt2": "decoder; one projection, causal mask by selection, GELU of eight operators, a normalisation before",
        "opt": "decoder; three projections, causal mask added and clamped, ReLU, a normalisation before",
        "switch": "encoder and decoder without biases; position bias, gated GELU, every second layer of experts",
        "megatron": "decoder; one projection, fused mask and softmax, fused bias and GELU, normalisations before",
        "llama": "decoder; grouped heads of keys, rotary positions, gated SiLU or experts, RMS norm, no biases",
    }
)
_SIZES = ("layers", "hidden", "heads", "feedforward", "vocabulary")
#: Most layers and experts; those of all layers together are bounded too, since lists of steps grow with them.
_MOST = MappingProxyType({"layers": 10_000, "experts": 2**14})
_MOST_EXPERTS = 2**20
#: Sizes, 0 or more, that models of one style alone have.
_OF_LLAMA = ("shared_experts", "head_width", "query_rank", "key_rank", "rotary_width")


@dataclass(frozen=True)
class Transformer:
    """Sizes of a model.

    Parameters
    ----------
    name : str
        Name of the model.
    style : str
        One of `STYLES`.
    layers, hidden, heads, feedforward, vocabulary : int
        At most 10,000 layers, and 2^31 of the others.
    experts : int
        Experts of a layer with experts; 1 in a model without any. At most 16,384, and 2^20 in all layers.
    source : str
        Where the sizes come from.
    kv_heads : int
        Heads of keys and values, which groups of heads share (arXiv 2305.13245); 0 stands for as many as heads.
    experts_per_token : int
        Experts that each token goes to.
    expert_feedforward : int
        Size of the feed-forward layer of an expert; 0 stands for `feedforward`.
    dense_layers : int
        First layers without experts.
    shared_experts : int
        Experts that every token goes to, besides.
    head_width : int
        Elements of a head; 0 stands for those that the heads share the hidden size in.
    query_rank, key_rank, rotary_width : int
        Latent attention (arXiv 2405.04434): elements that queries, and keys with values, are compressed to, and those
        of a head that hold positions. 0 stands for none.

    Raises
    ------
    InvalidInputError
        There is no such style, a size is no whole number within its bounds, or the heads do not divide the hidden
        size, nor heads of keys the heads. More experts of a token than there are, or more dense layers. The style has
        no experts, grouped heads or latent attention.
    """

    name: str
    style: str
    layers: int
    hidden: int
    heads: int
    feedforward: int
    vocabulary: int
    experts: int = 1
    source: str = ""
    kv_heads: int = 0
    experts_per_token: int = 1
    expert_feedforward: int = 0
    dense_layers: int = 0
    shared_experts: int = 0
    head_width: int = 0
    query_rank: int = 0
    key_rank: int = 0
    rotary_width: int = 0

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise InvalidInputError(f"{self.name}: no style {self.style!r}; there are {', '.join(STYLES)}")
        for size in (*_SIZES, "experts"):
            value = checked_size(f"{self.name}: {size}", getattr(self, size), _MOST.get(size, LARGEST))
            object.__setattr__(self, size, value)
        if self.layers * self.experts > _MOST_EXPERTS:
            raise InvalidInputError(
                f"{self.name}: {self.layers} layers of {self.experts} experts; at most {_MOST_EXPERTS:,} in all"
            )
        if self.hidden % self.heads and not self.head_width:
            raise InvalidInputError(f"{self.name}: {self.heads} heads do not divide a hidden size of {self.hidden}")
        for size, least, most in (
            ("kv_heads", 0, self.heads),
            ("experts_per_token", 1, self.experts),
            ("expert_feedforward", 0, LARGEST),
            ("dense_layers", 0, self.layers),
            *((size, 0, LARGEST) for size in _OF_LLAMA),
        ):
            value = getattr(self, size)
            if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= index(value) <= most:
                raise InvalidInputError(f"{self.name}: {size} is {value!r:.40}; it must be {least} to {most:,}")
        if self.heads % self.key_value_heads:
            raise InvalidInputError(f"{self.name}: {self.kv_heads} heads of keys do not divide {self.heads} heads")
        odd = [size for size in _OF_LLAMA if getattr(self, size)]
        if odd and self.style != "llama":
            raise InvalidInputError(f"{self.name}: style {self.style} has no {odd[0]}; style llama has")

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def expert_size(self) -> int:
        """Size of the feed-forward layer of an expert."""
        return self.expert_feedforward or self.feedforward

    @property
    def width(self) -> int:
        """Elements of a head."""
        return self.head_width or self.hidden // self.heads


def load_transformers(path: str | Path | None = None) -> Mapping[str, Transformer]:
    """Read models from a TOML file in the layout of `datasets/workloads/transformers.toml`, by default that one.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the model and the key are named.

    Examples
    --------
    >>> load_transformers()["bert_large"].width
    64
    """
    return read_or_shipped(_read, path, "workloads/transformers.toml")


def _read(file: Path) -> Mapping[str, Transformer]:
    return named_tables(read_toml(file, "models"), "transformers", Transformer, file)


def find_transformer(name: str, models: Mapping[str, Transformer]) -> Transformer:
    """Return a model by name.

    Parameters
    ----------
    name : str
        Name of the model.
    models : mapping of str to Transformer
        Models by name, such as `load_transformers` returns.

    Raises
    ------
    NotFoundError
        There is no model of that name; the message lists them.
    """
    if name not in models:
        raise NotFoundError(
            f"no model {name!r}; there are {', '.join(sorted(models))}; give sizes as options, or --models FILE.toml"
        )
    return models[name]


@dataclass(frozen=True)
class Step:
    """One operator that a job runs.

    Parameters
    ----------
    name : str
        Name of the operator in PyTorch.
    operator : Operator
        Work of the forward pass.
    gradient : tuple of Operator
        Operators of its backward pass.
    parameters : int
        Elements of its weights, whose gradients are added up.
    chained : float
        Bytes that it reads of the result of the operator before it; 0 for an operator that does not fuse.
    collective : str
        Kind of collective, where the step is one; `operator` then holds the bytes that are exchanged.
    group : str
        Ranks of the collective, as `replay.workloads.Layout.topology` names them.
    overlapped : bool
        Whether the collective runs beside the operator after it.
    of_weights : bool
        Whether it computes a gradient of weights, on which no other operator waits.
    of_scores : bool
        Whether it computes attention's scores, or what follows from them up to its result.
    """

    name: str
    operator: Operator
    gradient: tuple[Operator, ...] = ()
    parameters: int = 0
    chained: float = 0.0
    collective: str = ""
    group: str = "tensor"
    overlapped: bool = False
    of_weights: bool = False
    of_scores: bool = False


def pointwise(name: str, elements: int, arrays: float = 2.0, back: float = 2.0, size: int = 4) -> Step:
    """Return a pointwise operator.

    Parameters
    ----------
    name : str
        Name of the PyTorch operator.
    elements : int
        Elements of an array.
    arrays : float
        Arrays of that many elements: one is written, the others are read.
    back : float
        Arrays of its backward pass; 0 if the gradient passes unchanged.
    size : int
        Bytes of an element.

    Examples
    --------
    >>> pointwise("aten::add", 100, arrays=3).operator.bytes_moved
    1200.0
    """
    forward = streaming("elementwise", (arrays - 1) * elements * size, float(elements * size), elements, size)
    gradient = streaming("elementwise", (back - 1) * elements * size, float(elements * size), elements, size)
    return Step(name, forward, (gradient,) if back else (), chained=float(elements * size))


def waited(name: str, elements: int, size: int = 4) -> Step:
    """Return a pointwise operator whose result the host waits for, so that what follows it starts late.

    Parameters
    ----------
    name : str
        Name of the PyTorch operator.
    elements : int
        Elements that are read and written.
    size : int
        Bytes of an element.
    """
    return Step(name, streaming("transfer", float(elements * size), float(elements * size), elements, size))


def rows(name: str, kind: str, count: int, columns: int, size: int = 4) -> Step:
    """Return a softmax or a normalisation of `count` rows.

    A softmax's backward pass multiplies gradient and result first, then goes over rows: six arrays. A normalisation
    has weights and biases.
    """
    back = rowwise(kind, count, columns, size, backward=True)
    elements = count * columns
    first = streaming("elementwise", 2.0 * count * columns * size, float(elements * size), elements, size)
    gradient = (first, back) if kind == "softmax" else (back, column_sums(count, columns, size))
    weights = 2 * columns if kind == "normalization" else 0
    return Step(name, rowwise(kind, count, columns, size), gradient, weights, float(count * columns * size))


def column_sums(count: int, columns: int, size: int) -> Operator:
    """Return the sum of `count` rows, such as the gradient of a bias."""
    return streaming("reduction", float(count * columns * size), float(columns * size), count * columns, size)


def product(name: str, batch: int, m: int, n: int, k: int, size: int = 4, *, weights: int = 0) -> Step:
    """Return a product of (m, k) by (k, n); its backward pass is a product for each operand.

    Parameters
    ----------
    name : str
        Name of the PyTorch operator.
    batch : int
        Number of products.
    m, n, k : int
        Rows and columns of the result, and the length of the sums.
    size : int
        Bytes of an element.
    weights : int
        Elements of the second operand and the bias, where they are weights; the bias' gradient is a sum of rows.
    """
    gradient = [batched_matmul(batch, m, k, n, size), batched_matmul(batch, k, n, m, size)]
    if weights > k * n:
        gradient.append(column_sums(m, n, size))
    return Step(name, batched_matmul(batch, m, n, k, size), tuple(gradient), weights)


def backward(steps: Sequence[Step]) -> list[Step]:
    """Return the backward pass: gradients in reverse order; those of weights are accumulated.

    A collective with a gradient is exchanged again, a gather as a scatter. One that runs beside the operator after it
    does so with that operator's gradients.
    """
    gradients: list[Step] = []
    last = 0
    for step in reversed(steps):
        where = last if step.overlapped else len(gradients)
        last = where
        gradients[where:where] = _gradients(step)
    return gradients


_TURNED = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
_PRODUCTS = ("matmul", "experts")


def _gradients(step: Step) -> list[Step]:
    if step.collective:
        kind = _TURNED.get(step.collective, step.collective)
        return [
            replace(step, name=f"nccl:{kind}", operator=operator, gradient=(), collective=kind)
            for operator in step.gradient
        ]
    # The first product is the gradient of the input, and what follows it those of weights and bias.
    inputs = next((i for i, each in enumerate(step.gradient) if each.kind in _PRODUCTS), 0)
    gradients = [
        Step(f"{step.name}_backward", operator, of_weights=bool(step.parameters) and i > inputs)
        for i, operator in enumerate(step.gradient)
    ]
    if step.parameters:
        size = step.operator.element_bytes
        gradients.append(
            replace(pointwise("aten::add_", step.parameters, arrays=3, back=0, size=size), of_weights=True)
        )
    return gradients


def fused(steps: Iterable[Step]) -> list[Step]:
    """Return the steps with neighbours that fuse made one: it reads its inputs and writes its last result.

    A row-wise operator keeps its rows; a chain of pointwise ones is a pointwise one.
    """
    joined: list[Step] = []
    for step in steps:
        if joined and step.chained and joined[-1].chained:
            joined[-1] = _joined(joined[-1], step)
        else:
            joined.append(step)
    return joined


def _joined(first: Step, second: Step) -> Step:
    before, after = first.operator, second.operator
    read = before.bytes_read + max(after.bytes_read - second.chained, 0.0)
    kept = before if before.kind in ("softmax", "normalization") else after
    operator = replace(kept, flops=before.flops + after.flops, bytes_read=read, bytes_written=after.bytes_written)
    name, gradient = f"{first.name}+{second.name}", first.gradient + second.gradient
    return replace(first, name=name, operator=operator, gradient=gradient)


#: Layers come in pairs that are alike: every second one of a Switch transformer has experts.
_PERIOD = 2


@dataclass(frozen=True)
class Tally:
    """Operators of a job.

    Parameters
    ----------
    operators : tuple of Operator
        All different.
    counts : tuple of int
        How often each is run.
    """

    operators: tuple[Operator, ...]
    counts: tuple[int, ...]


def tally(model: Transformer, listing: Callable[[Transformer], Sequence[Step]]) -> Tally:
    """Count the operators of a job without writing every layer out.

    Parameters
    ----------
    model : Transformer
        Model whose layers are counted.
    listing : callable
        Lists the steps of a model; each two layers more must add the same steps, also where neighbours are fused.

    Notes
    -----
    Let ``c(n)`` be the counts for n layers, and m = 2 or 3, of the parity of n. Then
    ``c(n) = c(m) + (c(m + 2) - c(m)) * (n - m) / 2``.

    Examples
    --------
    >>> from replay.workloads.architecture import find_transformer, load_transformers
    >>> from replay.workloads.decoder import DecoderPass
    >>> from replay.workloads.transformer import forward
    >>> model, run = find_transformer("bert_large", load_transformers()), DecoderPass(8, 512)
    >>> counted = tally(model, lambda smaller: forward(smaller, run))
    >>> len(counted.operators), sum(counted.counts) == len(forward(model, run))
    (13, True)
    """
    dense = min(model.dense_layers, model.layers)
    least = _PERIOD + dense + (model.layers - dense) % _PERIOD
    sizes = (model.layers,) if model.layers <= least + _PERIOD else (least, least + _PERIOD)
    counts, *more = (Counter(step.operator for step in listing(replace(model, layers=n))) for n in sizes)
    if more:
        times = (model.layers - least) // _PERIOD
        counts = Counter({each: counts[each] + (count - counts[each]) * times for each, count in more[0].items()})
    return Tally(tuple(counts), tuple(counts.values()))


#: Of operators that wait in a stream, the start costs at most this much, s: those of frameworks are several kernels.
_QUEUED_S = 3e-6
#: Share of an operator's spread that all operators of its kind have in common, the rest averages out over a job; and
#: what the list of operators itself is off by, as a share of the total. Of the runs of six devices in
#: `tests/accuracy/models.csv`, in view of which both were chosen, 96 % are in their interval, with own fits all.
_SHARED, _LISTED = 0.45, 0.1
#: The same share on a card that runs into its power limit: its heat is common to all operators.
_SHARED_HOT = 1.0

#: Kinds that the model of another covers, and the share of a machine's rate that large products reach.
_AS = {"convolution": "matmul"}
PRODUCT_SHARE = 0.93
#: The framework that runs FlashAttention, as PyTorch does.
_LIBRARY = {"context_attention": "sglang", "generation_attention": "sglang"}


@dataclass(frozen=True)
class Timed:
    """Durations of operators, in s.

    Parameters
    ----------
    seconds, low, high : array of float64, shape (n,)
        The interval of each is meant to hold nine in ten.
    kinds : tuple of str
        The model of each.
    shared : float
        Share of an operator's spread that all operators of its kind have in common.
    """

    seconds: Floats
    low: Floats
    high: Floats
    kinds: tuple[str, ...]
    shared: float = _SHARED

    @property
    def total(self) -> float:
        """Sum of all, s."""
        return float(self.seconds.sum())

    def picked(self, rows: Sequence[int], counts: Sequence[int]) -> "Timed":
        """Return the durations of the operators `rows`, each times its count."""
        which, often = list(rows), np.asarray(counts, dtype=np.float64)
        seconds, low, high = (values[which] * often for values in (self.seconds, self.low, self.high))
        return Timed(seconds, low, high, tuple(self.kinds[row] for row in which), self.shared)

    def interval(self) -> tuple[float, float]:
        """Return the interval of the total: operators of one kind err together in part, kinds on their own."""
        kinds = np.array(self.kinds)
        down = [
            self.shared * float((self.seconds - self.low)[kinds == kind].sum()) for kind in dict.fromkeys(self.kinds)
        ]
        up = [
            self.shared * float((self.high - self.seconds)[kinds == kind].sum()) for kind in dict.fromkeys(self.kinds)
        ]
        listed = _LISTED * self.total
        return self.total - float(np.hypot.reduce([*down, listed])), self.total + float(np.hypot.reduce([*up, listed]))


def time_operators(
    operators: Iterable[Operator],
    device: Device,
    *,
    parameters: Parameters,
    dtype: str = "fp32",
    without: Sequence[str] = (),
    queued: bool = True,
) -> Timed:
    """Predict operators that follow one another on a stream.

    Parameters
    ----------
    operators : iterable of Operator
        Operators in the order of the stream.
    device : Device
        Device that they run on.
    parameters : Parameters
        With a calibration of kernels.
    dtype : str
        Data type of the computation.
    without : sequence of str
        Devices whose fits are not used.
    queued : bool
        Whether operators wait in the stream for one another; otherwise the host waits for each.

    Notes
    -----
    A convolution is the product that it is when its windows are laid out. Attention, cells of recurrent networks,
    optimisers and reductions are not modelled here. Such an operator takes the longer of two times: its bytes as a
    stream, and its FLOP at the rate of large products. Attention reaches `attention_share` of it.
    """
    calibration, operators = parameters.calibration(KernelCalibration).without(*without), list(operators)
    kinds = [_AS.get(operator.kind, operator.kind) for operator in operators]
    passes = np.array([_passes(operator) for operator in operators])
    times = np.zeros((3, len(operators)))
    for kind in sorted(set(kinds)):
        rows = [i for i, each in enumerate(kinds) if each == kind]
        alike = [operators[i] for i in rows]
        modelled = kind in MODELS and calibration.knows(kind, dtype)
        model, size = kind if modelled else "elementwise", max(operator.element_bytes for operator in alike)
        dims = [_dims(model, operator) for operator in alike]
        number = {shape: i for i, shape in enumerate(dict.fromkeys(dims))}
        which = [number[shape] for shape in dims]
        each = predict(model, list(number), device, element_bytes=size, dtype=dtype, calibration=calibration,
                       library=_LIBRARY.get(model), launched=not queued)  # fmt: skip
        start = max(each.start_s - _QUEUED_S, 0.0) if queued and kind != "transfer" else 0.0
        for i, values in enumerate((each.seconds, each.low, each.high)):
            times[i, rows] = np.maximum(values - start * values / each.seconds, 0.0)[which]
        if not modelled:
            times[:, rows] = np.maximum(times[:, rows], _computing(alike, device, dtype, parameters))
    times *= passes
    return Timed(times[0], times[1], times[2], tuple(kinds), _SHARED_HOT if runs_hot(device) else _SHARED)


def _passes(operator: Operator) -> float:
    """Return how often an operator computes what the model of its shape does: backward, attention computes more."""
    if operator.kind != "context_attention":
        return 1.0
    sequences, queries, keys, heads, _, width, _ = operator.dims
    pairs = queries * keys - queries * (queries - 1) / 2
    return operator.flops / (4.0 * sequences * heads * width * pairs)


def _computing(operators: Sequence[Operator], device: Device, dtype: str, parameters: Parameters) -> Floats:
    """Return the time of the FLOP alone, and its range."""
    attention = parameters.known["attention_share"]
    rate = Machine.of(device, dtype).flops_per_s
    flops = np.array([operator.flops for operator in operators])
    attends = np.array([operator.kind == "attention" for operator in operators])
    shares = ((attention.value, PRODUCT_SHARE), (attention.high, 1.0), (attention.low, PRODUCT_SHARE**2))
    return np.array([flops / (rate * np.where(attends, share, product_share)) for share, product_share in shares])


def _dims(kind: str, operator: Operator) -> tuple[float, ...]:
    if MODELS[kind].dims == ("elements", "arrays"):
        return max(operator.bytes_moved / operator.element_bytes, 1.0), 1.0
    return tuple(float(value) for value in operator.dims)
