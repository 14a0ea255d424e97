"""`batch` and `context`: a step of serving with other requests.

The attention of the step tells its requests (`replay.costs.serving_operators`). Each operator says how many rows of
tokens, or of requests, it computes. So operators get other rows, and kernels are re-timed from their traced durations,
as job what-ifs do; no transformer has to be found.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints, dense_keys
from profilers.trace.serving import PhaseTokens
from replay.calibration.parameters import Parameters
from replay.costs.demand import with_demands
from replay.costs.kernels.machine import runs_as
from replay.costs.retiming import source_device
from replay.graph.graph import Basis, KernelGraph, TaskKind
from replay.graph.operators import (
    SERVING_ATTENTION,
    AttentionHeads,
    Operator,
    by_phase,
    request_attention,
    routed_experts,
)
from replay.what_ifs.job_graph import with_exchanges
from replay.what_ifs.job_shapes import TYPES, rescaled, start_ns, work_times
from replay.what_ifs.what_if import Argument, WhatIf, recipe, what_if_text
from replay.workloads.architecture import checked_size


@dataclass(frozen=True)
class EqualRequests:
    """Requests of one phase in a step, as so many equal ones.

    Parameters
    ----------
    number : int
        Number of requests; 0 for none.
    queries : int
        Tokens that the step computes for each.
    tokens : int
        Tokens that the last of them attends to.
    """

    number: int = 0
    queries: int = 0
    tokens: int = 0

    @property
    def computed(self) -> int:
        """Tokens that the step computes."""
        return self.number * self.queries

    def sums(self) -> PhaseTokens:
        """Return the sums over the requests."""
        return PhaseTokens.equal(self.number, self.queries, self.tokens)


@dataclass(frozen=True)
class StepRequests:
    """Requests of a step.

    Parameters
    ----------
    prefill, decode : EqualRequests
        Requests of each phase.
    rows : int
        Rows of the products of most work: the tokens as they are, not as of equal requests, with the padding of a
        captured graph; 0 if unknown.
    """

    prefill: EqualRequests = EqualRequests()
    decode: EqualRequests = EqualRequests()
    rows: int = field(default=0, compare=False)

    @property
    def tokens(self) -> int:
        """Tokens that the step computes."""
        return self.prefill.computed + self.decode.computed

    @property
    def requests(self) -> int:
        """Requests of both phases."""
        return self.prefill.number + self.decode.number

    def text(self) -> str:
        """Return the requests in words."""
        sides = (
            ("prompt", self.prefill.number, self.prefill.queries),
            ("decode", self.decode.number, self.decode.tokens),
        )
        shown = [f"{name} of {number} x {tokens} tokens" for name, number, tokens in sides if number]
        return " and ".join(shown)


#: A step of a rank: the rank and the iteration.
Step = tuple[int, int]


def step_requests(graph: KernelGraph) -> dict[Step, StepRequests]:
    """Return the requests of each iteration of each rank, as its attention of most work tells.

    Raises
    ------
    InvalidInputError
        No attention over a cache is known in the graph.
    """
    tasks, ranks, largest = graph.tasks, graph.ranks(), dict[tuple[Step, int], tuple[float, Operator]]()
    kinds = {name: number for number, name in enumerate(SERVING_ATTENTION)}
    serving = [number for number, each in enumerate(graph.operators) if each.kind in kinds]
    for row in np.flatnonzero(np.isin(tasks.operator, serving)).tolist():  # a few for each layer
        for part in by_phase(graph.operators[int(tasks.operator[row])]):
            key = (int(ranks[row]), int(tasks.iteration[row])), kinds[part.kind]
            largest[key] = max(largest.get(key, (0.0, part)), (part.flops, part), key=lambda each: each[0])
    if not largest:
        raise InvalidInputError(
            "no attention over a cache with known requests in the step: its annotation has to state them (vLLM and "
            "SGLang write sq, sk, sqsq, sqsk), and graphs need their --capture. Possible: micro_batch, sequence_length"
        )
    steps: dict[Step, StepRequests] = {}
    for (step, kind), (_, part) in sorted(largest.items(), key=lambda each: each[0]):
        side = EqualRequests(*part.dims[:3])
        before = steps.get(step, StepRequests())
        steps[step] = replace(before, prefill=side) if kind == 0 else replace(before, decode=side)
    return _with_rows(graph, steps)


def _with_rows(graph: KernelGraph, steps: Mapping[Step, StepRequests]) -> dict[Step, StepRequests]:
    """Return the steps with the rows of their products, which are fewer than twice the tokens."""
    keys, number, flops = list(steps), graph.tasks.operator, dict[tuple[Step, int], float]()
    of_step = _step_numbers(graph, keys)
    products = [i for i, each in enumerate(graph.operators) if each.kind == "matmul"]
    chosen = np.flatnonzero(np.isin(number, products) & (of_step >= 0))
    pairs, counts = np.unique(np.stack([of_step[chosen], number[chosen]]), axis=1, return_counts=True)
    for (i, each), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):  # a few for each step
        step, operator = steps[keys[i]], graph.operators[each]
        if step.tokens - step.requests <= operator.dims[1] < 2 * step.tokens:
            key = keys[i], operator.dims[1]
            flops[key] = flops.get(key, 0.0) + count * operator.flops
    most = {step: rows for (step, rows), _ in sorted(flops.items(), key=lambda each: (each[1], each[0]))}
    return {key: replace(step, rows=most.get(key, 0)) for key, step in steps.items()}


_NUMBER = Argument("number", "new number", "whole")


@recipe("job", "batch:64", _NUMBER)
def batch(number: int) -> WhatIf:
    """Serve NUMBER requests in a step, instead of those of the trace.

    In a step of decode, or a mixed one, these are the requests that get new tokens; in a step of prefill, the prompts.
    Each is as long as those of the trace are on average. Operators of known work get the rows of the new tokens; each
    kernel is re-timed from its traced duration by the models of the old and the new rows. All-reduces of tokens are
    resized. Kernels of unknown work stay.

    Not modelled: other kernels for other sizes, other captured graphs (padding grows in proportion), the scheduler.

    Source: `replay.costs.kernels` for durations; docs/serving.md has the measured errors.

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: the step has no attention over a cache with known requests.
    """

    def change(step: StepRequests) -> StepRequests:
        if step.decode.number:
            return replace(step, decode=replace(step.decode, number=number))
        return replace(step, prefill=replace(step.prefill, number=number))

    return _what_if("batch", number, change)


@recipe("job", "context:8192", _NUMBER)
def context(number: int) -> WhatIf:
    """Serve requests of NUMBER tokens.

    In a step of decode, or a mixed one, a request in decode attends to NUMBER tokens; in a step of prefill, a prompt
    has NUMBER tokens, after those that are cached already. As `batch` otherwise.

    Not modelled: as of `batch`.

    Source: as of `batch`.

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: the step has no attention over a cache with known requests.
    """

    def change(step: StepRequests) -> StepRequests:
        decode, prefill = step.decode, step.prefill
        if decode.number:
            return replace(step, decode=replace(decode, tokens=max(number, decode.queries)))
        tokens = number + prefill.tokens - prefill.queries
        return replace(step, prefill=replace(prefill, queries=number, tokens=tokens))

    return _what_if("context", number, change)


def _what_if(name: str, number: int, change: Callable[[StepRequests], StepRequests]) -> WhatIf:
    checked_size(name, number)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        before = step_requests(graph)
        return with_requests(graph, before, {key: change(step) for key, step in before.items()}, name, parameters)

    def tokens(graph: KernelGraph) -> tuple[float, float]:
        steps = list(step_requests(graph).values())
        before, after = (sum(step.tokens for step in each) / len(steps) for each in (steps, map(change, steps)))
        return before, after

    return WhatIf(what_if_text(name, str(number)), transform, retimes=True, tokens=tokens)


def with_requests(
    graph: KernelGraph, before: Mapping[Step, StepRequests], after: Mapping[Step, StepRequests], name: str,
    parameters: Parameters,
) -> KernelGraph:  # fmt: skip
    """Return the graph of steps with other requests.

    Parameters
    ----------
    graph : KernelGraph
        Graph with the operators of its kernels.
    before, after : mapping of (int, int) to StepRequests
        Requests by rank and iteration.
    name : str
        Name of the what-if, for notes.
    parameters : Parameters
        With a calibration of kernels.
    """
    tasks = graph.tasks
    known = np.where(tasks.operator >= 0, tasks.operator, tasks.memory_operator)
    steps = list(before)
    of_step = _step_numbers(graph, steps)
    rows = np.flatnonzero((known >= 0) & graph.on_device() & (of_step >= 0))
    keys, inverse = np.unique(np.stack([known[rows], of_step[rows]]), axis=1, return_inverse=True)
    new = [resized(graph.operators[each], before[steps[i]], after[steps[i]]) for each, i in keys.T.tolist()]
    timed = with_operators(graph, rows, [new[i] for i in inverse.ravel().tolist()], parameters)
    ratio = np.array([after[step].tokens / max(before[step].tokens, 1) for step in steps])[of_step]
    sizes = np.array([(step.tokens, step.rows or step.tokens) for step in before.values()])[of_step].T
    of_tokens = (tasks.bytes % np.maximum(sizes, 1) == 0).any(axis=0)
    grows = (tasks.kind == TaskKind.COLLECTIVE) & (of_step >= 0) & of_tokens
    moved = np.where(grows, np.round(tasks.bytes * ratio), tasks.bytes).astype(np.int64)
    exchanged, count = with_exchanges(timed, moved, tasks.ranks, parameters)
    first = min(steps)
    share = _share_known(graph, rows)
    notes = [
        f"{name}: {before[first].text()} -> {after[first].text()}; {len(rows)} kernels re-timed, {count} collectives "
        f"resized; {100 * (1 - share):.0f} % of the kernel time has no known work and stays"
    ]
    return with_demands(exchanged, parameters).with_notes(notes)


def _step_numbers(graph: KernelGraph, steps: Sequence[Step]) -> Ints:
    """Return the number of the step of each task; -1 for none."""
    of_tasks, of_steps = dense_keys((graph.ranks(), graph.tasks.iteration), tuple(np.array(steps, dtype=np.int64).T))
    order = np.argsort(of_steps)
    nearest = order[np.minimum(np.searchsorted(of_steps, of_tasks, sorter=order), len(steps) - 1)]
    return np.where(of_steps[nearest] == of_tasks, nearest, -1)


def _share_known(graph: KernelGraph, rows: Ints) -> float:
    tasks = graph.tasks
    kernels = graph.on_device() & (tasks.kind == TaskKind.KERNEL) & ~graph.collectives()
    return float(tasks.duration_ns[rows].sum() / max(tasks.duration_ns[kernels].sum(), 1e-9))


def with_operators(graph: KernelGraph, rows: Ints, operators: list[Operator], parameters: Parameters) -> KernelGraph:
    """Return the graph with other operators of some tasks, re-timed by the work of the old and the new ones.

    Parameters
    ----------
    graph : KernelGraph
        Graph with the operators of its kernels.
    rows : array of int64, shape (n,)
        Tasks.
    operators : list of Operator
        New operator of each.
    parameters : Parameters
        With a calibration of kernels.
    """
    tasks = graph.tasks
    old_number = np.where(tasks.operator[rows] >= 0, tasks.operator[rows], tasks.memory_operator[rows])
    numbers = {operator: number for number, operator in enumerate(graph.operators)}
    new_number = np.array([numbers.setdefault(each, len(numbers)) for each in operators], dtype=np.int64)
    changes = new_number != old_number
    rows, old_number, new_number = rows[changes], old_number[changes], new_number[changes]
    duration, basis = tasks.duration_ns.copy(), tasks.basis.copy()
    work = _work(graph, tuple(numbers), (rows, old_number, new_number), parameters)
    traced = duration[rows]
    if graph.origin == Basis.ASSUMED:
        duration[rows] = traced * work[1] / np.maximum(work[0], 1e-9)
    else:
        duration[rows] = np.maximum(rescaled(traced, start_ns(graph), work, parameters["job_size_ratio"]), 0.0)
    basis[rows] = np.maximum(basis[rows], int(Basis.DERIVED))
    computed, moved = tasks.operator.copy(), tasks.memory_operator.copy()
    computed[rows] = np.where(computed[rows] >= 0, new_number, -1)
    moved[rows] = np.where(moved[rows] >= 0, new_number, -1)
    changed = graph.with_tasks(duration_ns=duration, basis=basis, operator=computed, memory_operator=moved)
    return replace(changed, operators=tuple(numbers))


def _work(
    graph: KernelGraph, operators: tuple[Operator, ...], chosen: tuple[Ints, Ints, Ints], parameters: Parameters
) -> tuple[Floats, Floats]:
    """Return the modelled times of the old and the new operators of tasks, ns."""
    device, (rows, *sides) = source_device(graph), chosen
    dtypes, times = graph.tasks.dtype[rows], np.zeros((2, len(rows)))
    for dtype in np.unique(dtypes).tolist():
        mine = np.flatnonzero(dtypes == dtype)
        for side, numbers in enumerate(sides):
            distinct, inverse = np.unique(numbers[mine], return_inverse=True)
            several = [operators[number] for number in distinct.tolist()]
            name = runs_as(device, TYPES[dtype]) if dtype >= 0 else "fp32"
            synthetic = graph.origin == Basis.ASSUMED
            times[side, mine] = work_times(several, device, name, parameters, synthetic)[inverse.ravel()]
    return times[0], times[1]


def resized(operator: Operator, before: StepRequests, after: StepRequests) -> Operator:
    """Return an operator with the rows of other requests; one whose rows are of neither tokens nor requests stays.

    Examples
    --------
    >>> from replay.graph.operators import batched_matmul
    >>> old, new = (StepRequests(decode=EqualRequests(number, 1, 1000)) for number in (32, 64))
    >>> resized(batched_matmul(1, 32, 512, 256, 2), old, new).dims
    (1, 64, 512, 256)
    """
    if operator.kind in SERVING_ATTENTION:
        return _attention(operator, before, after)
    ratio = _ratio(operator, before, after)
    if ratio == 1.0:
        return operator
    if operator.kind == "experts":
        tokens, hidden, inter, topk, experts, *rest = operator.dims
        layers = [
            routed_experts(number, (hidden, inter, topk, experts), operator.element_bytes, gated=bool(rest[-1]))
            for number in (tokens, round(tokens * ratio))
        ]
        grown = [new / old for old, new in zip(*(_sizes(layer) for layer in layers), strict=True)]
        return scaled(operator, grown, layers[1].dims)
    if operator.kind == "matmul" and operator.dims[0] == 1:
        _, m, n, k = operator.dims
        read = operator.bytes_read + (ratio - 1) * m * k * operator.element_bytes
        return scaled(operator, [ratio, read / operator.bytes_read, ratio], (1, round(m * ratio), n, k))
    dims = (round(operator.dims[0] * ratio), *operator.dims[1:])
    return scaled(operator, [ratio, ratio, ratio], dims)


def _sizes(operator: Operator) -> tuple[float, float, float]:
    return operator.flops, operator.bytes_read, operator.bytes_written


def scaled(operator: Operator, ratios: list[float], dims: tuple[int, ...]) -> Operator:
    """Return an operator of other dims, whose FLOP, bytes read and bytes written grow by ratios."""
    flops, read, written = (size * ratio for size, ratio in zip(_sizes(operator), ratios, strict=True))
    return replace(operator, flops=flops, bytes_read=read, bytes_written=written, dims=dims)


def _ratio(operator: Operator, before: StepRequests, after: StepRequests) -> float:
    """Return by how much the rows of an operator grow: as tokens, as requests, or not."""
    rows = operator.dims[1] if operator.kind == "matmul" else operator.dims[0]
    if any(size and rows % size == 0 for size in (before.tokens, before.rows)):
        return after.tokens / before.tokens
    return after.requests / before.requests if before.requests and rows % before.requests == 0 else 1.0


def _attention(operator: Operator, before: StepRequests, after: StepRequests) -> Operator:
    """Return an attention of other requests; its own dims tell which phases it computes."""
    kinds, (query, kv, width, window) = {part.kind for part in by_phase(operator)}, operator.dims[3:7]
    heads = AttentionHeads(query, kv, width, width, window=window)
    steps = [
        request_attention(
            step.prefill.sums() if "context_attention" in kinds else PhaseTokens(),
            step.decode.sums() if "generation_attention" in kinds else PhaseTokens(),
            heads,
        )
        for step in (before, after)
    ]
    grown = [new / old for old, new in zip(*(_sizes(step) for step in steps), strict=True)]
    return scaled(operator, grown, steps[1].dims)
