"""`TracedJob`: the sizes of a transformer, found in the graph of a traced step.

Attention gives sequences, tokens, heads and their width; products of as many rows as there are tokens give the hidden
size, the feed-forward size and the vocabulary; operators that repeat between one attention and the next give the
layers. `Shapes` writes the dimensions of every tensor in these sizes, so that an edit of a size changes the tensors.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product as combinations
from math import prod
from types import MappingProxyType

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Ints
from replay.costs.calls import Call, Shape
from replay.costs.operators import operator_of
from replay.graph.graph import COLLECTIVE_KINDS, PHASES, KernelGraph, TaskKind
from replay.graph.operators import Operator
from replay.workloads.jobs import TrainingJob

#: Sizes of a traced job, in words. Those that tensor-parallel ranks share are a rank's.
SIZES: Mapping[str, str] = MappingProxyType(
    {
        "batch": "sequences of a micro-batch",
        "length": "tokens of a sequence",
        "heads": "heads of a rank",
        "kv_heads": "heads of keys and values of a rank",
        "width": "elements of a head",
        "hidden": "hidden size",
        "feedforward": "feed-forward size of a rank",
        "vocabulary": "vocabulary of a rank",
    }
)


def _plain(name: str, sizes: Mapping[str, int]) -> int:
    return sizes.get(name, 0)


def _inner(sizes: Mapping[str, int]) -> int:
    return sizes["heads"] * sizes["width"]


#: Sizes of which dimensions are products. Some are sums, such as the queries, keys and values of one projection.
_TERMS: Mapping[str, Callable[[Mapping[str, int]], int]] = MappingProxyType(
    {
        **{name: partial(_plain, name) for name in SIZES},
        "inner": _inner,
        "kv": lambda sizes: sizes["kv_heads"] * sizes["width"],
        "qkv": lambda sizes: _inner(sizes) + 2 * sizes["kv_heads"] * sizes["width"],
        "projection": lambda sizes: (_inner(sizes) + 2 * sizes["kv_heads"] * sizes["width"]) * (sizes["hidden"] + 1),
        "gated": lambda sizes: 2 * sizes.get("feedforward", 0),
        "classified": lambda sizes: sizes["length"] + 1,
        "pairs": lambda sizes: sizes["length"] * (sizes["length"] + 1) // 2,
        "distinct_pairs": lambda sizes: sizes["length"] * (sizes["length"] - 1) // 2,
    }
)
_FEATURES = ("hidden", "inner", "qkv", "kv", "feedforward", "gated", "vocabulary")
#: Terms that grow with the length, and how often.
_LENGTHS = MappingProxyType({"length": 1, "classified": 1, "pairs": 2, "distinct_pairs": 2})
#: A dimension: a constant and the names of the terms that it is multiplied with.
Dimension = tuple[int, tuple[str, ...]]
#: Products of terms that one dimension may be.
_PRODUCTS: tuple[tuple[str, ...], ...] = (
    *((name,) for name in _TERMS),
    ("batch", "length"),
    ("batch", "classified"),
    ("batch", "heads"),
    ("batch", "kv_heads"),
    ("batch", "heads", "length"),
    ("length", "length"),
    ("heads", "length"),
    ("batch", "heads", "width"),
)
#: Products of terms that all elements of a tensor may be, where a trace has no other shape.
_FLAT: tuple[Dimension, ...] = (
    *((1, ("batch", "length", feature)) for feature in _FEATURES),
    (1, ("batch", "heads", "length", "length")),
    (1, ("batch", "length")),
    *((1, ("hidden", feature)) for feature in (*_FEATURES[1:], "length")),
    (1, ("projection",)),
    *((1, (feature,)) for feature in _FEATURES),
    (2, ("hidden",)),
)
#: More dimensions of a tensor are not looked at.
_MOST_DIMENSIONS = 7


def value_of(dimension: Dimension, sizes: Mapping[str, int]) -> int:
    """Return a dimension for sizes of a job.

    Examples
    --------
    >>> value_of((3, ("batch", "length")), {"batch": 4, "length": 10})
    120
    """
    constant, terms = dimension
    return constant * prod(_TERMS[term](sizes) for term in terms)


class Shapes:
    """Dimensions of tensors in the sizes of a job.

    A tensor of the step has the batch in one dimension, a weight in none. Where several products of sizes equal a
    dimension, the places of batch and length in tensors that leave no doubt decide.

    Parameters
    ----------
    sizes : mapping of str to int
        Values of `SIZES`; 0 for an unknown one.
    weights : iterable of shape
        Shapes of weights, without dimensions of 1.

    Examples
    --------
    >>> sizes = {"batch": 2, "length": 10, "heads": 4, "kv_heads": 4, "width": 8, "hidden": 32, "feedforward": 128}
    >>> Shapes(sizes, [(128, 32)]).dimensions((2, 10, 32))
    ((1, ('batch',)), (1, ('length',)), (1, ('hidden',)))
    """

    def __init__(self, sizes: Mapping[str, int], weights: Iterable[Shape]) -> None:
        self.sizes = sizes
        self.weights = frozenset(tuple(each for each in shape if each > 1) for shape in weights)
        self._by_value: dict[int, list[Dimension]] = {}
        for terms in dict.fromkeys(_PRODUCTS):
            if (value := value_of((1, terms), sizes)) > 0:
                self._by_value.setdefault(value, []).append((1, terms))
        self._flat: dict[int, list[Dimension]] = {}
        for dimension in _FLAT:
            self._flat.setdefault(value_of(dimension, sizes), []).append(dimension)
        self._places: Counter[tuple[int, int, str]] = Counter()
        self._known: dict[Shape, tuple[Dimension, ...]] = {}
        self._pairs: set[tuple[int, ...]] = set()

    def learn(self, shapes: Iterable[Shape]) -> None:
        """Count where batch and length are in shapes that leave no doubt."""
        for shape in shapes:
            best = self._best(shape)
            if len(best) == 1:
                self._places.update(_places(best[0]))
        self._known.clear()

    def dimensions(self, shape: Shape) -> tuple[Dimension, ...]:
        """Return each dimension of a tensor; one that no product of sizes equals is a constant."""
        if shape not in self._known:
            best = self._best(shape)
            self._known[shape] = max(best, key=lambda each: sum(self._places[place] for place in _places(each)))
        return self._known[shape]

    def is_weight(self, shape: Shape) -> bool:
        """Whether a tensor does not grow with the batch."""
        return not any("batch" in terms for _, terms in self.dimensions(shape))

    def _best(self, shape: Shape) -> list[tuple[Dimension, ...]]:
        stripped = tuple(each for each in shape if each > 1)
        is_weight = stripped in self.weights
        if is_weight and len(stripped) == 1 < len(shape):
            is_weight = not self._places[len(shape), shape.index(stripped[0]), "batch"]
        shown = [[*self._by_value.get(each, ()), (each, ())] for each in shape[:_MOST_DIMENSIONS]]
        rest: list[list[Dimension]] = [[(each, ())] for each in shape[_MOST_DIMENSIONS:]]
        scored: dict[tuple[int, ...], list[tuple[Dimension, ...]]] = {}
        for option in combinations(*shown, *rest):
            scored.setdefault(_score(option, shape, is_weight), []).append(option)
        return scored[max(scored)]

    def flattened(self, shape: Shape, *, in_attention: bool, is_gradient: bool) -> tuple[Dimension, ...] | None:
        """Return the dimensions of a tensor whose elements are counted in one dimension; None for any other.

        Parameters
        ----------
        shape : tuple of int
            The tensor.
        in_attention : bool
            Whether its kernel is between the products of attention, where scores are.
        is_gradient : bool
            Whether it is a gradient of weights, if its size may be that of one.
        """
        options = self._flat.get(prod(shape), []) if sum(each > 1 for each in shape) == 1 else []
        if not options or not any(
            ("batch" in terms and len(terms) > 1) or terms[0] in _OF_WEIGHTS for _, terms in options
        ):
            return None

        def wrong(option: Dimension) -> tuple[bool, bool]:
            _, terms = option
            return ("batch" in terms) == is_gradient, ("heads" in terms) != in_attention

        best = min(options, key=wrong)
        return tuple(best if each > 1 else (1, ()) for each in shape)

    def product(self, dims: Shape, *, backward: bool) -> tuple[Dimension, ...] | None:
        """Return the dimensions of a matrix product (batch, m, n, k); None if they are no sizes of the job.

        Parameters
        ----------
        dims : tuple of int
            As `Operator.dims`.
        backward : bool
            Whether the sums may be over tokens, as in a gradient of weights.
        """
        batch, *sides = dims
        tokens = (1, ("batch", "length"))
        if batch > 1:
            heads = [(1, terms) for terms in _OF_HEADS if value_of((1, terms), self.sizes) == batch]
            named = [self._named(side, _OF_SCORES) for side in sides]
            return (heads[0], *named) if heads else None
        found = [place for place in (0, 2) if sides[place] == value_of(tokens, self.sizes)]
        if not found:
            return None
        pairs = [sorted(each for i, each in enumerate(sides) if i != place) for place in found]
        if len(found) == 2 and backward and tuple(pairs[0]) not in self._pairs and tuple(pairs[1]) in self._pairs:
            found.reverse()
        named = [self._named(side, _FEATURES) for side in sides]
        named[found[0]] = tokens
        if not backward:
            self._pairs.add(tuple(pairs[0]))
        return ((1, ()), *named)

    def _named(self, value: int, terms: Iterable[str]) -> Dimension:
        known = (1, ()) if value == 1 else (value, ())
        return next(((1, (term,)) for term in terms if value_of((1, (term,)), self.sizes) == value > 1), known)


#: Terms of sides of products of attention, and products of terms that their batches are.
_OF_SCORES = ("length", "width", "classified")
_OF_HEADS = (("batch", "heads"), ("batch", "kv_heads"), ("batch",), ("heads",))
#: Terms of flattened weights.
_OF_WEIGHTS = ("hidden", "projection")


def _places(option: Sequence[Dimension]) -> list[tuple[int, int, str]]:
    return [
        (len(option), place, term)
        for place, (_, terms) in enumerate(option)
        for term in terms
        if term == "batch" or (term == "length" and len(terms) == 1)
    ]


def _score(option: tuple[Dimension, ...], shape: Shape, is_weight: bool) -> tuple[int, ...]:
    """Return how well terms explain a shape; of two, the higher is better."""
    terms = Counter(term for _, each in option for term in each)
    lengths = sum(_LENGTHS.get(term, 0) * count for term, count in terms.items())
    explained = sum(bool(each) for (_, each), size in zip(option, shape, strict=True) if size > 1)
    features = sum(terms[name] for name in _FEATURES)
    if is_weight:
        return (terms["batch"] == 0, lengths == 0, explained, -terms["heads"] - terms["width"])
    is_square = len(shape) > 1 and shape[-1] == shape[-2] and (terms["heads"] > 0 or len(shape) > 3)
    return (
        terms["batch"] == 1,
        min(lengths, 1),
        features <= 1
        and terms["heads"] <= 1
        and not (features and terms["heads"] + terms["kv_heads"] + terms["width"]),
        (lengths == 2) == is_square or not is_square,
        explained,
        lengths <= 1 or is_square or terms["pairs"] + terms["distinct_pairs"],
        -sum(len(each) for _, each in option),
    )


@dataclass(frozen=True)
class AttentionCore:
    """Attention of one layer: the two products, or the fused kernel, of queries, keys and values.

    Parameters
    ----------
    first, last : int
        Positions of its first and last kernel in `TracedJob.rows`.
    sequences, heads : int
        Sequences and heads; of two products, one and their product.
    queries, keys, width : int
        Tokens of queries and keys, and elements of a head.
    backward : bool
        Whether it is of a backward pass.
    """

    first: int
    last: int
    sequences: int
    heads: int
    queries: int
    keys: int
    width: int
    backward: bool = False


@dataclass(frozen=True)
class TracedJob:
    """Sizes of a transformer in a traced step.

    Parameters
    ----------
    sizes : mapping of str to int
        Values of `SIZES` that are known.
    how : mapping of str to str
        How each size was found.
    rows : array of int64
        Kernels of the compute stream of the first rank, as rows of the graph, in order.
    cores : tuple of AttentionCore
        Attention in order.
    training : bool
        Whether the step has a backward pass.
    tensor : int
        Ranks that share a layer.
    data : int
        Replicas that sum their gradients.
    micro_batches : int
        Forward passes of a step.
    steps : int
        Steps of the graph.
    """

    sizes: Mapping[str, int]
    how: Mapping[str, str]
    rows: Ints
    cores: tuple[AttentionCore, ...]
    training: bool
    tensor: int = 1
    data: int = 1
    micro_batches: int = 1
    steps: int = 1

    @property
    def layers(self) -> int:
        """Layers on a rank: attention of a forward pass."""
        return max(sum(not core.backward for core in self.cores) // (self.micro_batches * self.steps), 1)

    @property
    def missing(self) -> tuple[str, ...]:
        """Sizes that the trace does not tell."""
        return tuple(name for name in SIZES if name not in self.sizes)


_BACKWARD = PHASES.index("backward")


def compute_rows(graph: KernelGraph, rank: int | None = None) -> Ints:
    """Return the tasks of the stream of a rank that computes most, in order; by default of the first rank."""
    tasks = graph.tasks
    kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device() & ~graph.collectives()
    ranks = graph.ranks()
    if not kernel.any():
        return np.zeros(0, dtype=np.int64)
    rank = int(ranks[kernel].min()) if rank is None else rank
    mine = (ranks == rank) & tasks.in_iteration
    time_ns = np.bincount(tasks.lane[kernel & mine], tasks.duration_ns[kernel & mine], minlength=len(graph.lanes))
    stream = (tasks.lane == int(np.argmax(time_ns))) & mine & (tasks.kind != TaskKind.MARK)
    return np.flatnonzero(stream & ~graph.collectives())


class OperatorCalls:
    """Calls of a graph, their operators and tensors; each is read once.

    Parameters
    ----------
    graph : KernelGraph
        Graph with the calls of its tasks.
    """

    def __init__(self, graph: KernelGraph) -> None:
        self.calls = [Call.of_row(*each) for each in graph.calls]
        self.operators = [operator_of(each) for each in self.calls]

    def operator(self, number: int) -> Operator | None:
        """Return the operator of a call; None if its shapes do not tell, or for -1."""
        return self.operators[number] if number >= 0 else None

    def shapes(self, number: int) -> list[Shape]:
        """Return the dimensions of all tensors of a call."""
        return [shape for shape, _ in self.calls[number].tensors()] if number >= 0 else []

    @cached_property
    def weights(self) -> list[Shape]:
        """Shapes of weights by the arguments of calls, and of their vectors."""
        found = []
        for call in self.calls:
            for argument in _WEIGHTS.get(call.name, ()):
                shape = call.shape(argument)
                if shape is not None:
                    found += [shape, shape[::-1], *((each,) for each in shape)]
        return found


#: Arguments that are weights, by operator. A product of two matrices has them as its second one in a forward pass.
_WEIGHTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "aten::addmm": (0, 2),
        "aten::linear": (1, 2),
        "aten::_linear": (1, 2),
        "aten::cudnn_convolution": (1,),
        "aten::miopen_convolution": (1,),
        "aten::convolution": (1,),
        "aten::_convolution": (1,),
        "aten::native_layer_norm": (2, 3),
        "aten::cudnn_batch_norm": (1, 2, 3, 4),
        "aten::miopen_batch_norm": (1, 2, 3, 4),
        "aten::native_batch_norm": (1, 2, 3, 4),
        "aten::embedding": (0,),
    }
)


def find_job(graph: KernelGraph, given: TrainingJob | None = None) -> TracedJob:
    """Find the sizes of a transformer in the graph of a step.

    Parameters
    ----------
    graph : KernelGraph
        Graph of a step, with the calls that launched its kernels.
    given : TrainingJob, optional
        Sizes that a user gives; they replace those that are found.

    Raises
    ------
    InvalidInputError
        The step has no attention, or no products of its tokens; the message says what is possible.
    """
    rows, calls = compute_rows(graph), OperatorCalls(graph)
    numbers, phase = graph.tasks.call[rows], graph.tasks.phase[rows]
    cores = _cores(numbers, phase == _BACKWARD, calls)
    if not cores:
        raise InvalidInputError(_no_transformer(numbers, calls))
    # Of forward passes alone: a gradient's sides may have any order, and tokens may be as many as another size.
    products: Counter[tuple[int, ...]] = Counter(
        operator.dims[1:]
        for number in numbers[phase < _BACKWARD].tolist()
        if (operator := calls.operator(number)) is not None and operator.kind == "matmul" and len(operator.dims) == 4
    )
    sizes, how = _tokens(cores, products)
    if not sizes:
        raise InvalidInputError(
            "attention is in the trace, but no product of as many rows as it has tokens: lengths of packed sequences "
            "are values, and neither traces nor job files tell them. Possible: scale_kernels, scale_device"
        )
    if sizes["batch"] * sizes["length"] not in {rows for rows, _, _ in products}:
        raise InvalidInputError(
            f"{how['length']}: attention to {sizes['length']} keys is that of decoding or of context-parallel ranks, "
            "whose tokens these edits do not know. Possible: scale_kernels, scale_device, change_world_size"
        )
    _features(sizes, how, products, [call for call in calls.calls if call.name == "aten::embedding"])
    tensor = _tensor_ranks(graph, sizes)
    if given is not None:
        sizes, how, tensor = _as_given(sizes, how, given)
    training = bool((phase >= _BACKWARD).any())
    # The last stage of a pipeline alone runs forward and backward passes in turn.
    last = compute_rows(graph, int(graph.ranks().max()))
    numbers, phases = graph.tasks.call[last], graph.tasks.phase[last]
    steps, of_last = (len(graph.iterations), _cores(numbers, phases == _BACKWARD, calls)) if training else (1, [])
    passes = max(_passes(phases, of_last) // steps, 1)
    job = TracedJob(sizes, how, rows, tuple(cores), training, tensor, 1, passes, steps)
    return replace(job, data=_replicas(graph, job)) if training else job


def _passes(phase: Ints, cores: Sequence[AttentionCore]) -> int:
    """Return the forward passes of a training step: runs of attention without a backward pass between them."""
    backward = np.cumsum(phase == _BACKWARD)
    return len({int(backward[core.first]) for core in cores if not core.backward}) or 1


def _no_transformer(numbers: Ints, calls: OperatorCalls) -> str:
    """Return the message for a step without attention."""
    if not len(numbers) or not any(calls.shapes(number) for number in set(numbers.tolist())):
        return (
            "the trace has no shapes of operators, so the job's sizes are unknown; record them (record_shapes=True). "
            "Possible without: scale_kernels, scale_device, change_world_size"
        )
    kinds = Counter(each.kind for number in numbers.tolist() if (each := calls.operator(number)) is not None)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3)) or "none that is known"
    return (
        "no attention of known shape in the step, so it is no transformer whose sizes are known (its operators: "
        f"{listed}). Possible: change_world_size for more replicas, scale_kernels for kernels of other sizes, "
        "scale_device"
    )


#: Kernels between the two products of attention, at most.
_BETWEEN = 16


def _cores(numbers: Ints, backward: np.ndarray, calls: OperatorCalls) -> list[AttentionCore]:
    """Return the attention among kernels of calls, in order."""
    cores: list[AttentionCore] = []
    pending: tuple[int, int, int, int, int] | None = None
    for place, number in enumerate(numbers.tolist()):  # a lookup for each kernel, about 1 us
        operator = calls.operator(number)
        if operator is None:
            continue
        if operator.kind == "attention":
            if cores and cores[-1].last == place - 1 and numbers[place - 1] == number:
                continue  # a further kernel of the same call
            queries, keys, width = operator.dims[1:]
            of_query = [shape for shape, _ in calls.calls[number].tensors() if len(shape) == 4]
            query = next((each for each in of_query if each[3] == width and queries in each[1:3]), ())
            sequences = query[0] if query else 1
            heads = operator.dims[0] // sequences
            cores.append(AttentionCore(place, place, sequences, heads, queries, keys, width, bool(backward[place])))
        elif operator.kind == "batched_matmul":
            batch, m, n, k = operator.dims
            pair = pending is not None and place - pending[0] <= _BETWEEN
            if pair and not backward[place] and pending is not None and pending[1:] == (batch, m, k, n):
                cores.append(AttentionCore(pending[0], place, 1, batch, m, k, n))
                pending = None
            elif not backward[place]:
                pending = (place, batch, m, n, k)
    return cores


#: How often each product is in a step: by rows, columns and depth.
_Products = Counter[tuple[int, ...]]


def _tokens(cores: Sequence[AttentionCore], products: _Products) -> tuple[dict[str, int], dict[str, str]]:
    """Return batch, length, heads and width: of the attention whose tokens most products have; empty if none has."""
    best: tuple[int, int, AttentionCore, int] | None = None
    for core in dict.fromkeys((c for c in cores if not c.backward), None):
        choices = [core.heads] if core.sequences > 1 else [h for h in range(1, core.heads + 1) if core.heads % h == 0]
        for heads in choices:
            sequences = core.sequences * core.heads // heads
            tokens, inner = sequences * core.queries, heads * core.width
            counted = sum(count for (m, n, k), count in products.items() if m == tokens and inner in (n, k, n / 3))
            if counted and (best is None or counted > best[0]):
                best = (counted, sequences, core, heads)
    if best is None:
        return {}, {}
    counted, sequences, core, heads = best
    values = (sequences, core.keys, heads, heads, core.width)
    sizes = dict(zip(("batch", "length", "heads", "kv_heads", "width"), values, strict=True))
    found = f"attention of {core.queries} queries, and {counted} products of {sequences * core.queries} rows"
    return sizes, dict.fromkeys(sizes, found)


def _features(sizes: dict[str, int], how: dict[str, str], products: _Products, embeddings: Sequence[Call]) -> None:
    """Add hidden size, feed-forward size and vocabulary."""
    tokens, inner = sizes["batch"] * sizes["length"], sizes["heads"] * sizes["width"]
    pairs: Counter[tuple[int, int]] = Counter()
    for (m, n, k), count in products.items():
        if m == tokens:
            pairs[n, k] += count
    counts: Counter[int] = Counter()
    for pair, count in pairs.items():
        for each in set(pair):
            counts[each] += count
    sizes["hidden"] = hidden = max(counts, key=lambda each: (counts[each], each == inner, -each))
    how["hidden"] = f"{counts[hidden]} products have it"
    beside = Counter({each: counts[each] for pair in pairs if hidden in pair for each in pair})
    sides = {each for pair in pairs if hidden in pair for each in pair if each != hidden or pair == (hidden, hidden)}
    groups = [kv for kv in range(sizes["width"], inner, sizes["width"]) if inner + 2 * kv in sides or kv in sides]
    is_whole = 3 * inner in sides or pairs[inner, hidden] > 2 * pairs[hidden, inner] > 0
    if groups and not is_whole and inner % groups[0] == 0:
        sizes["kv_heads"] = groups[0] // sizes["width"]
        how["kv_heads"] = "width of the projection of keys and values"
    kv = sizes["kv_heads"] * sizes["width"]
    named = {hidden, inner, kv, 2 * kv, inner + 2 * kv}
    others = {each: n for each, n in beside.items() if each not in named}
    if hidden != inner and (hidden, hidden) in pairs:  # as wide as the hidden state, of four ranks that share a layer
        others[hidden] = pairs[hidden, hidden]
    tables = [call.shape(0) for call in embeddings]
    rows = [shape[0] for shape in tables if shape is not None and len(shape) == 2 and shape[1] == hidden]
    vocabulary = max([each for each in rows if each in others] or [0])
    if not vocabulary and others:
        largest = max(others)
        often = max(others.values())
        vocabulary = largest if others[largest] < often and largest > hidden else 0
    if vocabulary:
        sizes["vocabulary"], how["vocabulary"] = vocabulary, "largest side of a product of the hidden size"
        others.pop(vocabulary, None)
    # Shorter sides are the experts that a router chooses from.
    if others := {each: n for each, n in others.items() if _NARROWEST * each >= hidden}:
        wide = max(others, key=lambda each: (others[each], each))
        half = wide // 2 if wide % 2 == 0 and wide // 2 in others else wide
        sizes["feedforward"], how["feedforward"] = half, f"{others[wide]} products have it beside the hidden size"


#: The hidden size over the narrowest feed-forward layer of a rank.
_NARROWEST = 8


def _tensor_ranks(graph: KernelGraph, sizes: Mapping[str, int]) -> int:
    """Return the ranks of collectives that exchange the hidden state of all tokens; 1 without any."""
    tasks, elements = graph.tasks, state_elements(sizes)
    moved = graph.collectives() & np.isin(tasks.bytes, [elements * size for size in (1, 2, 4)]) & (tasks.ranks > 1)
    ranks = np.unique(tasks.ranks[moved & (tasks.kind == TaskKind.COLLECTIVE)])
    inner = sizes["heads"] * sizes["width"]
    sharing = [each for each in ranks.tolist() if each * inner == sizes["hidden"]]
    return int(sharing[0]) if sharing else 1


def state_elements(sizes: Mapping[str, int]) -> int:
    """Return the elements of the hidden state of all tokens."""
    return sizes["batch"] * sizes["length"] * sizes["hidden"]


#: Most bytes that a tensor-parallel rank exchanges at once, for each element of the hidden state of all tokens.
_MOST_STATES = 16


def tensor_exchanges(graph: KernelGraph, job: TracedJob) -> Bools:
    """Return the mask of collectives of tensor-parallel ranks: those of activations, and others of their streams."""
    tasks, state = graph.tasks, state_elements(job.sizes)
    shared = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.ranks == job.tensor) & (job.tensor > 1) & (tasks.bytes > 0)
    of_state = shared & np.isin(tasks.bytes, [state * size for size in (1, 2, 4)])
    beside = np.isin(tasks.lane, np.unique(tasks.lane[of_state]))
    return np.asarray(shared & beside & (tasks.bytes <= _MOST_STATES * state))


#: Kinds of collectives that sum gradients.
SUMS = tuple(COLLECTIVE_KINDS.index(kind) for kind in ("all_reduce", "reduce_scatter"))


def _replicas(graph: KernelGraph, job: TracedJob) -> int:
    """Return the ranks of the largest collective that is of gradients by its kind and bytes; 1 without any."""
    tasks, sizes = graph.tasks, job.sizes
    rows = (tasks.kind == TaskKind.COLLECTIVE) & np.isin(tasks.collective, SUMS) & (tasks.ranks > 1)
    elements = state_elements(sizes), sizes.get("vocabulary", 0) * sizes["hidden"]
    # Activations, and the gradient of an embedding that two pipeline stages share, are no gradients of replicas.
    others = np.isin(tasks.bytes, [count * size for count in elements for size in (1, 2, 4)])
    rows &= ~others & ~tensor_exchanges(graph, job) & (tasks.bytes >= sizes["hidden"] ** 2 // job.tensor)
    return int(tasks.ranks[rows][np.argmax(tasks.bytes[rows])]) if rows.any() else 1


def _as_given(
    sizes: dict[str, int], how: dict[str, str], given: TrainingJob
) -> tuple[dict[str, int], dict[str, str], int]:
    """Return the sizes that a user gives in the place of those that were found."""
    model, ranks = given.model, given.layout.tensor
    named = {
        "batch": given.micro_batch,
        "length": given.length // given.layout.context,
        "heads": model.heads // ranks,
        "kv_heads": max(model.key_value_heads // ranks, 1),
        "width": model.width,
        "hidden": model.hidden,
        "feedforward": model.feedforward // ranks,
    }
    wrong = [name for name in ("hidden", "width") if sizes[name] != named[name]]
    if wrong:
        raise InvalidInputError(
            f"the job file gives {wrong[0]} {named[wrong[0]]}, the trace shows {sizes[wrong[0]]} ({how[wrong[0]]})"
        )
    return sizes | named, how | dict.fromkeys(named, "the job file"), ranks
