"""Which weights the products of a transformer read, layer by layer and pass by pass, and the memory of their copies.

A forward product reads a weight W, and the product of the gradient of its input reads the transpose. Formats with
blocks need a copy for each direction. The product of the gradient of the weight reads none. `find_layer_weights` finds
the products in the graph of a step, `WeightMemory` counts bytes, and `saved_share` is the closed form of the share that
copies just in time save.

Source: JIT-Q (arXiv 2311.05034).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.formats import Format
from replay.graph.graph import PHASES, KernelGraph
from replay.what_ifs.job_graph import find_runs
from replay.what_ifs.job_shapes import BACKWARD, OPTIMIZER, compute_streams
from replay.what_ifs.what_if import OTHER, OUTPUT, layer_name
from replay.workloads.traced_job import TracedJob

#: Bits of a weight from which copies are made: those of mixed precision are FP32 (arXiv 1710.03740).
SOURCE_BITS = 32
#: Bytes of a weight in FP32, of the two moments of Adam, and of the gradient in FP32.
WEIGHT_BYTES, MOMENT_BYTES, GRADIENT_BYTES = 4.0, 8.0, 4.0


@dataclass(frozen=True)
class LayerWeights:
    """Weights that the products of one layer read in one pass.

    Parameters
    ----------
    rank : int
        Rank of the products.
    way : int
        Index of the phase of the pass in `PHASES`: forward or backward.
    iteration : int
        Iteration of the products, as in `Tasks.iteration`.
    layer : int
        Number of the layer on the rank, from 0; `OUTPUT` for the product of the vocabulary, `OTHER` for one of a weight
        that not every layer has.
    shapes : tuple of (int, int)
        Rows and columns of each weight, as a product reads it: the sum is over columns, along which blocks lie.
    products : tuple of int
        Rows of the products in the graph, in order.
    trigger : int
        Task at whose start the copies may begin: the first product of the layer before, or the first kernel of the
        pass after the optimizer; -1 if there is none.
    before : int
        Task that has to end before, if there is no `trigger`; -1 if there is none.
    again : tuple of (int, int)
        Rows and columns of the weights that a backward pass reads as forward passes do too, to recompute the layer.
    """

    rank: int
    way: int
    iteration: int
    layer: int
    shapes: tuple[tuple[int, int], ...]
    products: tuple[int, ...]
    trigger: int = -1
    before: int = -1
    again: tuple[tuple[int, int], ...] = ()

    @property
    def elements(self) -> int:
        """Values of the weights, each of which counts once."""
        return sum(rows * columns for rows, columns in self.shapes)

    @property
    def share_again(self) -> float:
        """Share of the weights that the pass reads in both directions."""
        return sum(rows * columns for rows, columns in self.again) / self.elements

    @property
    def is_backward(self) -> bool:
        """Whether the products of a backward pass read them, so that they are transposed."""
        return self.way == BACKWARD

    @property
    def label(self) -> str:
        """Name of the layer and the pass, such as ``"layer 3, forward"``."""
        return f"{layer_name(self.layer)}, {PHASES[self.way]}"


def find_layer_weights(graph: KernelGraph, job: TracedJob) -> list[LayerWeights]:
    """Return the weights that each layer reads in each pass, in the order of the passes of each rank.

    Parameters
    ----------
    graph : KernelGraph
        Graph of one or more training steps.
    job : TracedJob
        Sizes of the job of the trace.

    Raises
    ------
    InvalidInputError
        No products of weights are equally many in each layer.
    """
    found: list[LayerWeights] = []
    layers: dict[bool, Counter[_Shape]] = {}
    for rows in compute_streams(graph):
        runs = _passes(graph, job, rows)
        layers = layers or {back: _shapes_of_layer(runs, job, backward=back) for back in (False, True)}
        found += _of_rank(graph, rows, runs, (layers, job.layers))
    if not any(each.layer >= 0 for each in found):
        raise InvalidInputError(
            f"no products of weights are equally many in each of {job.layers} layers, as far as shapes tell, so nobody "
            "knows which belong to which. Possible: change_dtype, for all kernels of a type"
        )
    return found


#: Rows and columns of a weight.
_Shape = tuple[int, int]
#: A product: its row, the shape of its weight, and whether that is of the output layer.
_Product = tuple[int, _Shape, bool]
#: A pass: its phase, its kernels, and its products of weights.
_Pass = tuple[int, Ints, list[_Product]]


def _passes(graph: KernelGraph, job: TracedJob, rows: Ints) -> list[_Pass]:
    """Return the passes of a rank with their products of weights.

    In a forward pass, each product whose rows are the tokens reads a weight. A backward pass has, for each weight (n,
    k) of the forward pass, the product of the gradient of the input (tokens, k, n), and one that sums over tokens and
    reads no weight. If tokens are as many as n or k, these are alike, and `_reads` tells them apart.
    """
    tokens, vocabulary = job.sizes["batch"] * job.sizes["length"], job.sizes.get("vocabulary")
    runs = [(run.way, run.rows[0]) for run in find_runs(graph, [rows], 1)]
    products = [(way, _tokens_products(graph, kernels, tokens)) for way, kernels in runs]
    forward = Counter((n, k) for way, several in products if way != BACKWARD for _, (m, n, k) in several if m == tokens)
    backward = [each for way, several in products if way == BACKWARD for each in several]
    steps = graph.tasks.iteration[rows]
    count = job.micro_batches * len(np.unique(steps[steps >= 0]))
    again = {each: i for each, i in forward.items() if vocabulary not in each}
    again = again if _is_recomputed(backward, forward, tokens) else {}
    gradients = _gradients(backward, (forward, again), tokens, (job.layers * count, count))
    return [
        (way, kernels, [(row, (n, k), vocabulary in (n, k)) for row, (m, n, k) in several
                        if m == tokens and row not in gradients])
        for (way, kernels), (_, several) in zip(runs, products, strict=True)
    ]  # fmt: skip


def _tokens_products(graph: KernelGraph, kernels: Ints, tokens: int) -> list[tuple[int, tuple[int, int, int]]]:
    """Return the row and the sides of products of two matrices whose rows are the tokens, or that sum over them."""
    sides = {
        number: operator.dims[1:]
        for number in np.unique(graph.tasks.operator[kernels]).tolist()
        if number >= 0
        and (operator := graph.operators[number]).kind == "matmul"
        and len(operator.dims) == 4
        and operator.dims[0] == 1
        and tokens in (operator.dims[1], operator.dims[3])
    }
    numbers = graph.tasks.operator[kernels]
    chosen = np.isin(numbers, list(sides))
    return [(row, sides[each]) for row, each in zip(kernels[chosen].tolist(), numbers[chosen].tolist(), strict=True)]


def _gradients(
    products: Sequence[tuple[int, tuple[int, int, int]]],
    reads: tuple[Mapping[_Shape, int], Mapping[_Shape, int]],
    tokens: int,
    blocks: tuple[int, int],
) -> frozenset[int]:
    """Return the rows of products of backward passes that have the tokens as rows, and are gradients of weights.

    Products of the same sides read weights as often as forward passes read the transpose, and as often as layers that
    are recomputed read them. All others are gradients. In a layer, recomputed products go first; then the gradient of
    the input goes before that of the weight. `reads` are how often forward passes and recomputed layers read each
    weight; `blocks` are the layers of all backward passes, and these passes.
    """
    forward, again = reads
    alike: dict[_Shape, list[int]] = {}
    for row, (m, n, k) in products:
        if m == tokens:
            alike.setdefault((n, k), []).append(row)
    gradients: list[int] = []
    for (n, k), rows in alike.items():
        first = min(again.get((n, k), 0), len(rows))
        then = min(forward.get((k, n), 0), len(rows) - first)
        others = len(rows) - first - then
        number = next((each for each in blocks if each and not any(i % each for i in (first, then, others))), 1)
        turns = _turns(first // number, then // number, others // number) * number
        gradients += [row for row, is_read in zip(rows, turns, strict=True) if not is_read]
    return frozenset(gradients)


def _turns(first: int, then: int, others: int) -> list[bool]:
    """Return whether each product of a layer reads a weight: `first` do, then those that do and `others` take turns.

    Examples
    --------
    >>> _turns(1, 2, 2)
    [True, True, False, True, False]
    """
    order = sorted([(place, 0) for place in range(then)] + [(place, 1) for place in range(others)])
    return [True] * first + [not is_other for _, is_other in order]


def _is_recomputed(
    products: Sequence[tuple[int, tuple[int, int, int]]], forward: Mapping[_Shape, int], tokens: int
) -> bool:
    """Whether backward passes read weights once more than for gradients of inputs, since they recompute layers.

    Weights whose gradients are clear decide: these sum over tokens and have other rows. Without any, weights that have
    more than two products for each of the forward passes do.
    """
    reads = Counter[_Shape]()
    for (n, k), count in forward.items():
        reads[min(n, k), max(n, k)] += count
    total, clear = Counter[_Shape](), Counter[_Shape]()
    for _, (m, n, k) in products:
        sides = (n, k) if m == tokens else (m, n)
        total[min(sides), max(sides)] += 1
        clear[min(sides), max(sides)] += m != tokens
    sure = [each for each, count in reads.items() if clear[each] >= count]
    if sure:
        return sum(total[each] - clear[each] for each in sure) > sum(reads[each] for each in sure)
    if not any(k == tokens for _, (_, _, k) in products):  # frozen weights have no gradients
        return sum(total[each] for each in reads) > reads.total()
    return sum(total[each] for each in reads) > 2 * reads.total()


def _shapes_of_layer(runs: Sequence[_Pass], job: TracedJob, *, backward: bool) -> Counter[_Shape]:
    """Return the shapes of weights that each layer reads in a forward or backward pass, and how often."""
    products = [each for way, _, several in runs for each in several if (way == BACKWARD) == backward]
    passes = job.layers * job.micro_batches * job.steps
    counts = Counter(shape for _, shape, is_output in products if not is_output)
    return Counter({shape: count // passes for shape, count in counts.items() if count >= passes})


def _of_rank(
    graph: KernelGraph, rows: Ints, runs: Sequence[_Pass], sizes: tuple[dict[bool, Counter[_Shape]], int]
) -> list[LayerWeights]:
    """Return the weights that the layers of a rank read; `sizes` are the shapes of a layer by way, and the layers."""
    of_layer, layers = sizes
    found: list[LayerWeights] = []
    updated, ranks = True, graph.ranks()
    for way, kernels, products in runs:
        updated |= way == OPTIMIZER
        back = way == BACKWARD
        for layer, group in _layers(products, of_layer[back], layers, backward=back):
            first = group[0][0]
            iteration, before = int(graph.tasks.iteration[first]), found[-1:]
            follows = bool(before) and not updated and before[0].iteration == iteration
            start = (before[0].products[0], -1) if follows else _start(rows, kernels, first)
            shapes, again = _weights_of_layer([shape for _, shape, _ in group], of_layer[False] if layer >= 0 else {})
            columns = tuple(shapes), tuple(row for row, *_ in group)
            found.append(LayerWeights(int(ranks[first]), way, iteration, layer, *columns, *start, tuple(again)))
            updated = False
    return found


def _weights_of_layer(shapes: Sequence[_Shape], forward: Mapping[_Shape, int]) -> tuple[list[_Shape], list[_Shape]]:
    """Return the shapes of the weights of a layer, and of those that it reads again.

    Those read last count. In a backward pass, the gradient of the input follows recomputation.

    Examples
    --------
    >>> _weights_of_layer([(4, 2), (2, 4), (2, 2)], {(4, 2): 1, (2, 2): 1})
    ([(2, 4), (2, 2)], [(4, 2)])
    """
    left = Counter[_Shape]()
    for (n, k), count in forward.items():
        left[min(n, k), max(n, k)] += count
    once, again = list[_Shape](), list[_Shape]()
    for n, k in reversed(shapes):
        key = min(n, k), max(n, k)
        (again if forward and not left[key] else once).append((n, k))
        left[key] -= left[key] > 0
    return once[::-1], again[::-1]


def _layers(
    products: Sequence[_Product], of_layer: Counter[_Shape], layers: int, *, backward: bool
) -> list[tuple[int, list[_Product]]]:
    """Return the products of each layer of a run of passes, with the number of the layer.

    Products of a layer's shapes beyond those of whole layers are of the head: last forward, first backward.
    """
    count = of_layer.total()
    inside = [not is_output and shape in of_layer for _, shape, is_output in products]
    beyond = sum(inside) % count if count else 0
    position = -beyond if backward else 0
    end = sum(inside) - beyond
    groups: list[tuple[int, list[_Product]]] = []
    current: list[_Product] = []
    for product, is_inside in zip(products, inside, strict=True):  # some products a layer
        if not is_inside or not 0 <= position < end:
            groups.append((OUTPUT if product[2] else OTHER, [product]))
            position += is_inside
            continue
        if position % count == 0:
            layer = position // count % layers
            current = []
            groups.append((layers - 1 - layer if backward else layer, current))
        position += 1
        current.append(product)
    return groups


def _start(rows: Ints, kernels: Ints, first: int) -> tuple[int, int]:
    """Return the task at whose start, and the one after whose end, the copies of the first layer may be made."""
    if first != kernels[0]:
        return int(kernels[0]), -1
    place = int(np.searchsorted(rows, first))
    return -1, int(rows[place - 1]) if place else -1


def copy_bytes(elements: float, formats: Sequence[Format], *, directions: int = 1) -> float:
    """Return the bytes of copies of a weight, with their scales.

    Parameters
    ----------
    elements : float
        Values of the weight.
    formats : sequence of Format
        Formats, of each of which there is a copy.
    directions : int
        2 if the transpose is needed too. A format without blocks needs one copy for both.

    Examples
    --------
    >>> from replay.formats import find_format
    >>> copy_bytes(1, [find_format("mx9"), find_format("fp8_e4m3")], directions=2)
    3.25
    """
    bits = [float(each.bits_per_value) * (directions if each.is_directional else 1) for each in formats]
    return elements * fsum(bits) / 8.0


def saved_share(copies: float, others: float = WEIGHT_BYTES + MOMENT_BYTES) -> float:
    """Return the share of the memory of a parameter that its copies take: L / (HP + optimizer + gradient + L).

    It is what copies just in time save of many layers.

    Parameters
    ----------
    copies : float
        Bytes L of all copies of a parameter.
    others : float
        Bytes of the parameter in high precision, its optimizer state, and its gradient if that is kept. By default
        FP32 and two moments, 12 bytes, as in JIT-Q (arXiv 2311.05034).

    Examples
    --------
    >>> from replay.formats import find_format
    >>> two = [copy_bytes(1, [find_format(name)], directions=2) for name in ("mx9", "mx6")]
    >>> round(100 * saved_share(two[0]), 1), round(100 * saved_share(sum(two)), 1)
    (15.8, 23.8)
    """
    return copies / (others + copies)


@dataclass(frozen=True)
class WeightMemory:
    """Bytes of the weights of a rank, of their states and copies.

    Parameters
    ----------
    states_bytes : float
        Weights in FP32, two moments of the optimizer, and gradients.
    copies_bytes : float
        Low-precision copies of all layers.
    live_bytes : float
        Copies that exist at once if they are made just in time.
    """

    states_bytes: float
    copies_bytes: float
    live_bytes: float

    @property
    def before(self) -> float:
        """Bytes with the copies of all layers."""
        return self.states_bytes + self.copies_bytes

    @property
    def after(self) -> float:
        """Bytes with the copies of the layer that runs and of the next."""
        return self.states_bytes + self.live_bytes

    @property
    def saved(self) -> float:
        """Share of the bytes that copies just in time save."""
        return 1.0 - self.after / self.before


def weight_memory(layers: Sequence[LayerWeights], formats: Sequence[Format], states: float) -> WeightMemory:
    """Return the memory of the weights of products, of the rank with most.

    Parameters
    ----------
    layers : sequence of LayerWeights
        Weights that layers read in each pass, as `find_layer_weights` returns them.
    formats : sequence of Format
        Formats of the copies.
    states : float
        Bytes of a parameter and its states, without copies.
    """
    memory = []
    for rank in sorted({each.rank for each in layers}):
        mine = [each for each in layers if each.rank == rank]
        elements = sum({each.layer: each.elements for each in mine if not each.is_backward}.values())
        live = max(_live_bytes(several, formats) for several in zip(mine, [*mine[1:], None], strict=True))
        memory.append(WeightMemory(states * elements, copy_bytes(elements, formats, directions=2), live))
    return max(memory, key=lambda each: each.before)


def _live_bytes(layers: tuple[LayerWeights, LayerWeights | None], formats: Sequence[Format]) -> float:
    """Return the bytes of the copies of a layer and of the next; forward and backward may share those of a layer."""
    first, then = layers
    if then is not None and first.layer == then.layer:
        return copy_bytes(first.elements, formats, directions=2)
    return sum(
        (1.0 - each.share_again) * copy_bytes(each.elements, formats)
        + each.share_again * copy_bytes(each.elements, formats, directions=2)
        for each in layers
        if each is not None
    )
