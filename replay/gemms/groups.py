"""Groups of GEMM kernels that do not depend on each other.

A stream shows an order and no dependencies. `independent_gemms` searches each stream for products that need no result
of a kernel that ran since the first of their group began. An execution trace names the tensors. Without one, a kernel
can give a product an operand only if it writes as many elements as the operand has. Patterns of usual layers decide
what sizes leave open.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.kernels import CLASSES
from replay.engine.engine import simulate
from replay.gemms.gemm import Gemm, gemm_of_task
from replay.graph.graph import COPY_DIRECTIONS, PHASES, STREAM_EDGES, EdgeKind, KernelGraph, TaskKind
from replay.graph.operators import Operator

#: Kinds of evidence that GEMMs do not depend on each other, strongest first.
EVIDENCE: Final = ("streams", "dependencies", "gradients", "shapes", "assumed")
#: Kernels of a product beside its main one that run before it, and after it: they clear or scale the result, or add
#: the parts of a split depth.
_BEFORE_IT: Final = re.compile(r"memset|beta_?only|fill|zero|init", re.IGNORECASE)
_AFTER_IT: Final = re.compile(r"split_?k_?reduce|reduce.*split_?k|PostGSU|fixup|epilogue", re.IGNORECASE)
#: Operators that add a bias to the product before.
_BIAS: Final = frozenset(("aten::add", "aten::add_"))
#: Most kernels that one group spans, and most kernels between products and the attention that reads them.
_LONGEST, _NEAR_ATTENTION = 128, 40
#: Operators that gather rows of a tensor.
_GATHERS: Final = frozenset(("aten::index", "aten::index_select", "aten::gather", "aten::embedding"))
_GEMM, _ATTENTION, _SOFTMAX = (CLASSES.index(name) for name in ("gemm", "attention", "softmax"))
_BACKWARD = PHASES.index("backward")
_COPY, _COLLECTIVE = int(TaskKind.COPY), int(TaskKind.COLLECTIVE)
_MEMSET = COPY_DIRECTIONS.index("memset")
#: Reasons why GEMMs are in no group.
UNKNOWN_SHAPE, CHAIN, ALONE = "their shapes are unknown", "the product beside them may need them", "no product beside"
#: Most kernels of a chain after its first product, of the kernels that gather its rows, and between two chains.
_LONGEST_CHAIN, _MOST_GATHERS, _MOST_BETWEEN = 24, 2, 12
#: Fewest products of a chain.
_FEWEST: Final = 2


@dataclass(frozen=True)
class UnorderedGemms:
    """GEMM kernels of one device and one step that do not depend on each other.

    Parameters
    ----------
    gemms : tuple of int
        Rows of the kernels, in the order in which they run.
    runs : tuple of tuple of int
        Rows that stay together, one tuple for each member: a GEMM with the kernels that belong to it (a memset before,
        a split's sum after), or a chain of GEMMs.
    evidence : str
        Weakest evidence by which they are taken to be independent, one of `EVIDENCE`.
    """

    gemms: tuple[int, ...]
    runs: tuple[tuple[int, ...], ...]
    evidence: str


@dataclass(frozen=True)
class Groups:
    """Groups of independent GEMMs of a graph.

    Parameters
    ----------
    groups : tuple of UnorderedGemms
        Groups in the order of their first kernels.
    others : mapping of str to int
        Number of GEMM kernels in no group, by reason.
    """

    groups: tuple[UnorderedGemms, ...]
    others: Mapping[str, int]


def independent_gemms(graph: KernelGraph) -> Groups:
    """Return sets of GEMM kernels of one device and one step that do not depend on each other.

    The evidence of a group is the weakest of its kernels:

    - ``streams``: they already run at the same time on different streams.
    - ``dependencies``: an execution trace names the storages of all tensors from the first to the last. No product
      reads what an earlier one wrote, or what was computed from that, and none writes what an earlier one uses.
    - ``gradients``: the two products of a linear layer's backward pass, next to each other. Both read the gradient of
      its result, and neither reads the other.
    - ``shapes``: no kernel from the first to the last writes as many elements as an operand of a later one has.
    - ``assumed``: a result has the size of a later operand. But the products have one input shape and attention
      follows (query, key and value), or a product of low rank beside the one that it adapts, before the second of low
      rank (LoRA, arXiv 2106.09685). Or whole chains repeat, each with rows of its own (experts); then a member is a
      chain.

    A group ends before a kernel of unknown shape, a collective, another phase of the step, and a product that may need
    a result of the group.

    Parameters
    ----------
    graph : KernelGraph
        Graph to search. GEMMs of unknown shape are in no group.

    Examples
    --------
    >>> from replay.graph.assembly import Assembly
    >>> from replay.graph.operators import batched_matmul
    >>> from dataclasses import replace
    >>> assembly = Assembly()
    >>> columns = {"duration_ns": 1e4, "class_": CLASSES.index("gemm"), "operator": [0, 0, 1]}
    >>> assembly.chain(assembly.tasks("gemm", assembly.lane(device=0), columns))
    >>> products = batched_matmul(1, 512, 2048, 1024), batched_matmul(1, 512, 1024, 2048)
    >>> graph = replace(assembly.graph(), operators=products)
    >>> independent_gemms(graph).groups
    (UnorderedGemms(gemms=(0, 1), runs=((0,), (1,)), evidence='shapes'),)
    """
    tasks = graph.tasks
    is_gemm = np.asarray(graph.on_device() & tasks.in_iteration & (tasks.class_ == _GEMM))
    if not is_gemm.any():
        return Groups((), {})
    start, end = simulate(graph)
    facts = _Facts(graph)
    groups: list[UnorderedGemms] = []
    reasons: dict[int, str] = {}
    for rows in _streams(graph, is_gemm, start, end):
        groups += _GroupSearch(facts, rows, reasons).groups()
    taken = {row for group in groups for row in group.gemms}
    groups += _on_streams(graph, np.flatnonzero(facts.products()), (start, end), taken)
    taken |= {row for group in groups for row in group.gemms}
    left = [row for row in np.flatnonzero(is_gemm).tolist() if row not in taken and not facts.is_helper(row)]
    others = Counter(reasons.get(row, ALONE if facts.gemm(row) else UNKNOWN_SHAPE) for row in left)
    return Groups(tuple(sorted(groups, key=lambda group: start[group.gemms[0]])), dict(sorted(others.items())))


def stream_order(lane: Ints, start: Floats, end: Floats) -> Ints:
    """Return all tasks sorted by lane, then by start."""
    return np.lexsort((np.arange(len(lane)), end, start, lane))


def _streams(graph: KernelGraph, is_gemm: Bools, start: Floats, end: Floats) -> Iterator[list[int]]:
    """Return the device tasks of each stream that has GEMMs, by start; arrivals at collectives are left out."""
    lane = graph.tasks.lane
    order = stream_order(lane, start, end)
    order = order[(graph.on_device() & (lane >= 0))[order]]
    for rows in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
        if is_gemm[rows].any():
            yield rows.tolist()


def _on_streams(
    graph: KernelGraph, products: Ints, times: tuple[Floats, Floats], taken: set[int]
) -> list[UnorderedGemms]:
    """Return groups of products that run at the same time on different streams of a device.

    A Python loop over products, about 1 us each.
    """
    tasks, (start, end) = graph.tasks, times
    groups: list[UnorderedGemms] = []
    for device in np.unique(tasks.device[products]).tolist():
        rows = products[tasks.device[products] == device]
        if len(np.unique(tasks.lane[rows])) < 2:
            continue
        running: list[int] = []
        members: list[int] = []
        for row in rows[np.lexsort((rows, start[rows]))].tolist():
            running = [each for each in running if end[each] > start[row]]
            beside = bool(running) and tasks.lane[row] not in tasks.lane[running]
            if not beside or row in taken:
                groups += _group_on_streams(members)
                members = []
            members += [] if row in taken else [row]
            running.append(row)
        groups += _group_on_streams(members)
    return groups


def _group_on_streams(members: list[int]) -> list[UnorderedGemms]:
    return [UnorderedGemms(tuple(members), tuple((row,) for row in members), "streams")] if len(members) > 1 else []


class _Facts:
    """What a graph tells of its kernels: products, the elements that they read and write, and what belongs to them."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph, self.tasks = graph, graph.tasks
        self._gemm_of: dict[tuple[int, int], Gemm | None] = {}
        self._written = [_written(operator) for operator in graph.operators]
        self._added = [_added(operator) for operator in graph.operators]
        self._names = [("before" if _BEFORE_IT.search(name) else "after" if _AFTER_IT.search(name) else "")
                       for name in graph.names]  # fmt: skip
        edges = graph.edges
        joined = np.zeros(len(graph.tasks), dtype=bool)  # starts with its predecessor, or as the recording had it
        joined[edges.target[np.isin(edges.kind, sorted(STREAM_EDGES)) & (
            edges.from_start | (edges.kind == EdgeKind.BACKLOG))]] = True  # fmt: skip
        self.is_joined = joined
        is_work = np.isin(graph.tasks.kind, [TaskKind.KERNEL, TaskKind.COPY])
        self.is_work: list[bool] = is_work.tolist()  #: by task: whether it may write an operand
        self._label: dict[int, str] = {}

    def gemm(self, row: int) -> Gemm | None:
        """Return the GEMM that a kernel computes; None if it is unknown or the kernel is no GEMM."""
        if self.tasks.class_[row] != _GEMM or self.is_helper(row):
            return None
        key = int(self.tasks.operator[row]), int(self.tasks.dtype[row])
        if key not in self._gemm_of:
            self._gemm_of[key] = gemm_of_task(self.graph, row)
        return self._gemm_of[key]

    def products(self) -> Bools:
        """Return the mask of kernels of the step that compute a GEMM of known shape."""
        rows = np.flatnonzero((self.tasks.class_ == _GEMM) & (self.tasks.operator >= 0) & self.tasks.in_iteration)
        mask = np.zeros(len(self.tasks), dtype=bool)
        mask[[row for row in rows.tolist() if self.gemm(row) is not None]] = True
        return mask

    def is_helper(self, row: int) -> bool:
        """Tell whether the name of a kernel says that it belongs to the product before or after it."""
        return bool(self._names[self.tasks.name[row]])

    def belongs(self, row: int, gemm: int) -> bool:
        """Tell whether a kernel next to a product was launched by the same operator, and helps it."""
        tasks = self.tasks
        same = tasks.launched_by[row] >= 0 and tasks.launched_by[row] == tasks.launched_by[gemm]
        return bool(same and (tasks.class_[row] != _GEMM or self.is_helper(row)))

    def runs_before(self, row: int) -> bool:
        """Tell whether a kernel that belongs to a product runs before it."""
        return bool(self._names[self.tasks.name[row]] == "before" or self.tasks.direction[row] == _MEMSET)

    def operands(self, row: int, gemm: Gemm) -> tuple[int, int, int]:
        """Return the elements of the left operand, of the right one, and of the matrix that is added (0 for none)."""
        left, right = gemm.batch * gemm.m * gemm.k, gemm.batch * gemm.k * gemm.n
        return left, right, self._added[self.tasks.operator[row]]

    def written(self, row: int) -> frozenset[int] | None:
        """Return the numbers of elements that a kernel's results may have; None if unknown."""
        tasks = self.tasks
        number = int(max(tasks.operator[row], tasks.memory_operator[row]))
        if number >= 0:
            return self._written[number]
        if tasks.bytes[row] > 0 and tasks.kind[row] == _COPY:
            return frozenset(int(tasks.bytes[row]) // size for size in (1, 2, 4, 8))
        return None

    def launched_by(self, row: int) -> str:
        """Return the name of the operator that launched a kernel; empty if unknown."""
        name = int(self.tasks.launched_by[row])
        return self.graph.names[name] if name >= 0 else ""


def _added(operator: Operator) -> int:
    """Return the elements of the matrix that a product adds; 0 without one, and for a bias, which is a parameter."""
    if len(operator.dims) != 4 or operator.kind not in ("matmul", "batched_matmul"):
        return 0
    batch, m, n, k = operator.dims
    rest = round(operator.bytes_read / operator.element_bytes) - batch * (m * k + k * n)
    return rest if rest > n else 0


def _written(operator: Operator) -> frozenset[int]:
    """Return the numbers of elements that the results of an operator may have."""
    sizes = {round(operator.bytes_written / operator.element_bytes)}
    if operator.kind == "attention":
        heads, queries, keys, width = operator.dims
        sizes |= {heads * queries * width, heads * keys * width}
    elif operator.kind not in ("matmul", "batched_matmul", "convolution"):
        sizes.add(int(np.prod(operator.dims)))
    return frozenset(sizes)


@dataclass
class _Candidate:
    """A group under construction.

    Parameters
    ----------
    gemms : list of int
        Positions of its products on the stream.
    evidence : list of str
        Evidence by which each product but the first has joined.
    between : set of int
        Elements of results of other kernels since it began.
    only_bias : bool
        Whether those kernels only add biases to its products.
    """

    gemms: list[int]
    evidence: list[str] = field(default_factory=list)
    between: set[int] = field(default_factory=set)
    only_bias: bool = True


class _GroupSearch:
    """A search for groups along one stream; `reasons` gets why a product that ends a group is not in it."""

    def __init__(self, facts: _Facts, rows: Sequence[int], reasons: dict[int, str]) -> None:
        self._facts, self._rows, self._reasons = facts, rows, reasons
        self._products = [facts.gemm(row) for row in rows]
        gathers = [facts.launched_by(row) in _GATHERS and facts.tasks.class_[row] != _GEMM for row in rows]
        continues = [facts.is_work[row] and at > 0 and self._continues(at - 1, at) for at, row in enumerate(rows)]
        self._kernels = StreamKernels(self._products, gathers, continues)

    def groups(self) -> list[UnorderedGemms]:
        """Return the groups of the stream; a Python loop over its kernels, a few us each."""
        groups, position = [], 0
        while position < len(self._rows):
            if self._products[position] is None or self._facts.tasks.iteration[self._rows[position]] < 0:
                position += 1
                continue
            if chains := repeated_chains(self._kernels, position):
                groups.append(self._group_of_chains(chains))
                position = chains[-1].end
                continue
            candidate = self._grown(position)
            if len(candidate.gemms) > 1:
                groups.append(self._group(candidate))
            position = candidate.gemms[-1] + 1
        return groups

    def _group(self, candidate: _Candidate) -> UnorderedGemms:
        weakest = max(candidate.evidence, key=EVIDENCE.index)
        runs = tuple(self._run(position) for position in candidate.gemms)
        return UnorderedGemms(tuple(self._rows[position] for position in candidate.gemms), runs, weakest)

    def _group_of_chains(self, chains: "Sequence[Chain]") -> UnorderedGemms:
        spans = [(chain.first, self._span(chain.products[-1])[1]) for chain in chains]
        gemms = tuple(self._rows[position] for chain in chains for position in chain.products)
        return UnorderedGemms(gemms, tuple(tuple(self._rows[first:end]) for first, end in spans), "assumed")

    def _run(self, position: int) -> tuple[int, ...]:
        """Return the rows of a product and of the kernels that belong to it."""
        first, last = self._span(position)
        return tuple(self._rows[first:last])

    def _span(self, position: int) -> tuple[int, int]:
        """Return the positions from the first kernel of a product to the one after its last."""
        facts, rows = self._facts, self._rows
        first, last = position, position + 1
        while first and facts.belongs(rows[first - 1], rows[position]) and facts.runs_before(rows[first - 1]):
            first -= 1
        while last < len(rows) and facts.belongs(rows[last], rows[position]) and not facts.runs_before(rows[last]):
            last += 1
        return first, last

    def _grown(self, position: int) -> _Candidate:
        """Return the group that begins with the product at a position, itself alone if no other joins."""
        candidate = _Candidate([position])
        at = self._span(position)[1]
        end = min(len(self._rows), position + _LONGEST)
        while at < end and self._continues(position, at):
            if self._products[at] is not None:
                evidence = self._evidence(candidate, at)
                if not evidence:
                    self._reasons.update({self._rows[each]: CHAIN for each in (candidate.gemms[-1], at)})
                    break
                candidate.gemms.append(at)
                candidate.evidence.append(evidence)
                at = self._span(at)[1]
            elif self._begins_product(at) or self._passes(candidate, at):
                at += 1
            else:
                break
        return candidate

    def _continues(self, first: int, at: int) -> bool:
        """Tell whether a kernel is of the same step and phase, and starts after the one before it."""
        tasks, begin, row = self._facts.tasks, self._rows[first], self._rows[at]
        same = tasks.iteration[row] == tasks.iteration[begin] and tasks.phase[row] == tasks.phase[begin]
        return bool(same and not self._facts.is_joined[row])

    def _begins_product(self, at: int) -> bool:
        """Tell whether a kernel belongs to the product after it."""
        facts, rows = self._facts, self._rows
        follows = at + 1
        while follows < len(rows) and facts.runs_before(rows[follows]) and self._products[follows] is None:
            follows += 1
        if follows >= len(rows) or self._products[follows] is None:
            return False
        return facts.runs_before(rows[at]) and facts.belongs(rows[at], rows[follows])

    def _passes(self, candidate: _Candidate, at: int) -> bool:
        """Add a kernel between products to a group; tell whether the group may go on after it."""
        facts, row = self._facts, self._rows[at]
        written = facts.written(row)
        if written is None or not facts.is_work[row] or facts.tasks.class_[row] == _GEMM:
            return False
        last = self._products[candidate.gemms[-1]]
        is_bias = facts.launched_by(row) in _BIAS and last is not None and last.batch * last.m * last.n in written
        candidate.only_bias &= bool(is_bias)
        if not is_bias:
            candidate.between |= written
        return True

    def _evidence(self, candidate: _Candidate, at: int) -> str:
        """Return the evidence that a product does not depend on a group; empty if it may depend on it."""
        gemm, members = self._products[at], [self._products[position] for position in candidate.gemms]
        first = members[0]
        assert gemm is not None
        assert first is not None
        needs = self._needs(candidate, at)
        if needs is not None:
            return "" if needs else "dependencies"
        operands = {size for size in self._facts.operands(self._rows[at], gemm) if size}
        results = {each.batch * each.m * each.n for each in members if each is not None}
        same_input = (gemm.batch, gemm.m, gemm.k) == (first.batch, first.m, first.k)
        if operands & candidate.between:
            return ""
        if self._is_gradient_pair(candidate, at):
            return "gradients"
        if operands & results:
            return "assumed" if same_input and self._may_share(candidate, at) else ""
        if not same_input and self._may_slice(candidate, gemm):
            return ""
        return "shapes"

    def _needs(self, candidate: _Candidate, at: int) -> bool | None:
        """Tell whether a product depends on the group by the storages of tensors; None if one of them is unknown."""
        storages, events = self._facts.graph.storages, self._facts.tasks.event
        used: set[int] = set()
        written: set[int] = set()
        for position in range(candidate.gemms[0], at):
            kernel = storages.get(int(events[self._rows[position]]))
            if kernel is None:
                return None
            is_member = position in candidate.gemms
            used |= kernel.reads if is_member else frozenset()
            written |= kernel.writes if is_member or kernel.reads & written else frozenset()
        last = storages.get(int(events[self._rows[at]]))
        return None if last is None else bool(last.reads & written or last.writes & (used | written))

    def _may_slice(self, candidate: _Candidate, gemm: Gemm) -> bool:
        """Tell whether an operand may be some rows or columns of a result of the group or of kernels between."""
        operands = ((gemm.m, gemm.k), (gemm.k, gemm.n))
        if any(size > rows * columns and (gemm.batch > 1 or not size % rows or not size % columns)
               for size in candidate.between for rows, columns in operands):  # fmt: skip
            return True
        members = [each for position in candidate.gemms if (each := self._products[position]) is not None]
        sides = [(each.batch * each.m, each.n) for each in members]
        if gemm.batch > 1:
            return any(high * wide > gemm.batch * rows * columns for high, wide in sides for rows, columns in operands)
        return any(
            (high == rows and wide > columns) or (wide == columns and high > rows)
            for side in sides
            for high, wide in (side, side[::-1])
            for rows, columns in operands
        )

    def _is_gradient_pair(self, candidate: _Candidate, at: int) -> bool:
        """Tell whether two products are the gradients of the operands of one product, in the backward pass.

        Of a product of (m, k) by (k, n), they have the depths n and m, and read the same gradient of m n elements.
        """
        first, second = self._products[candidate.gemms[0]], self._products[at]
        if first is None or second is None or len(candidate.gemms) > 1:
            return False
        if self._facts.tasks.phase[self._rows[at]] != _BACKWARD or first.batch != second.batch:
            return False
        sides = sorted((first.m, first.n, first.k)) == sorted((second.m, second.n, second.k))
        shared = {first.m * first.k, first.k * first.n} & {second.m * second.k, second.k * second.n}
        return sides and bool(shared) and (first.k != second.k or first.m == first.k or first.n == first.k)

    def _may_share(self, candidate: _Candidate, at: int) -> bool:
        """Tell whether products of one input shape are taken to read one input though a result would fit it."""
        if not candidate.only_bias:
            return False
        return self._feeds_attention(at) or self._has_low_rank(candidate, at)

    def _feeds_attention(self, at: int) -> bool:
        """Tell whether attention or a batched product is the next that multiplies, after products of the same input."""
        gemm = self._products[at]
        assert gemm is not None
        tasks = self._facts.tasks
        for position in range(at + 1, min(at + 1 + _NEAR_ATTENTION, len(self._rows))):
            row, product = self._rows[position], self._products[position]
            if tasks.class_[row] in (_ATTENTION, _SOFTMAX) or (product is not None and product.batch > 1):
                return gemm.batch == 1
            if product is not None and (product.batch, product.m, product.k) != (gemm.batch, gemm.m, gemm.k):
                return False
            if tasks.kind[row] == _COLLECTIVE:
                return False
        return False

    def _has_low_rank(self, candidate: _Candidate, at: int) -> bool:
        """Tell whether a product is the first of low rank beside the one that it adapts, and the second follows."""
        base, low = self._products[candidate.gemms[-1]], self._products[at]
        follows = self._span(at)[1]
        while follows < len(self._rows) and self._begins_product(follows):
            follows += 1
        second = self._products[follows] if follows < len(self._rows) else None
        if base is None or low is None or second is None:
            return False
        return low.n < base.n and (second.m, second.n, second.k) == (low.m, base.n, low.n)


@dataclass(frozen=True)
class StreamKernels:
    """Kernels of a stream in the order in which they run: lists of equal length.

    Parameters
    ----------
    products : sequence of Gemm or None
        GEMM that each computes; None for other kernels.
    gathers : sequence of bool
        Whether each gathers rows of a tensor.
    continues : sequence of bool
        Whether each may stand in a chain or between chains: it is of the same step and phase as the kernel before, and
        no collective.
    """

    products: Sequence[Gemm | None]
    gathers: Sequence[bool]
    continues: Sequence[bool]


@dataclass(frozen=True)
class Chain:
    """Products, each after one whose result it reads; the last has the width that the first one read.

    Parameters
    ----------
    first, end : int
        Position of its first kernel, a gather or a product, and the position after its last product.
    products : tuple of int
        Positions of its products.
    weights : tuple of (int, int)
        Depth and columns of each product.
    rows : int
        Rows of its products.
    """

    first: int
    end: int
    products: tuple[int, ...]
    weights: tuple[tuple[int, int], ...]
    rows: int


def chain_at(kernels: StreamKernels, position: int) -> Chain | None:
    """Return the chain whose first product is at a position; None if there is none.

    Examples
    --------
    >>> products = [Gemm(64, 256, 128), None, Gemm(64, 128, 256)]
    >>> chain_at(StreamKernels(products, [False] * 3, [True] * 3), 0).products
    (0, 2)
    """
    begin = kernels.products[position]
    if begin is None or begin.batch > 1:
        return None
    first = position
    while first and position - first < _MOST_GATHERS and kernels.gathers[first - 1] and kernels.continues[first]:
        first -= 1
    members: list[int] = []
    weights: list[tuple[int, int]] = []
    for at in range(position, min(position + _LONGEST_CHAIN, len(kernels.products))):
        product = kernels.products[at]
        if at > position and not kernels.continues[at]:
            return None
        if product is None:
            continue
        if (product.batch, product.m) != (1, begin.m):
            return None
        members.append(at)
        weights.append((product.k, product.n))
        if len(members) >= _FEWEST and product.n == begin.k and product.k == begin.n:
            return Chain(first, at + 1, tuple(members), tuple(weights), begin.m)
    return None


def repeated_chains(kernels: StreamKernels, position: int) -> list[Chain]:
    """Return the chain at a position and the chains that follow it with the same shapes of weights, if any follow.

    Each chain gathers rows of its own. Without gathers, chains follow each other at once, and have different numbers of
    rows, which the next layer of a network would not.
    """
    chains: list[Chain] = []
    current = chain_at(kernels, position)
    while current is not None:
        if chains and not _follows(chains[-1], current):
            break
        chains.append(current)
        current = _next_chain(kernels, current)
    return chains if len(chains) > 1 else []


def _next_chain(kernels: StreamKernels, chain: Chain) -> Chain | None:
    """Return the chain after another, with other kernels between."""
    for at in range(chain.end, min(chain.end + _MOST_BETWEEN, len(kernels.products))):
        if not kernels.continues[at]:
            return None
        if kernels.products[at] is not None:
            return chain_at(kernels, at)
    return None


def _follows(before: Chain, chain: Chain) -> bool:
    """Tell whether two chains are taken to be independent."""
    gathered = all(each.first < each.products[0] for each in (before, chain))
    apart = chain.first == before.end and chain.rows != before.rows
    return chain.weights == before.weights and chain.first >= before.end and (gathered or apart)
