"""Graphs of traced jobs of other sizes: tensors, kernels and collectives.

An `Edit` changes sizes that `replay.workloads.traced_job` found in the step. Every tensor is written in these sizes, so
that calls get new shapes. A kernel is re-timed from its traced duration by the models of the old and the new shape;
a collective gets the bytes and ranks that follow.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from profilers.devices.catalogue import DTYPES, Device
from profilers.trace.arrays import Floats, Ints
from replay.calibration.parameters import Parameters
from replay.costs.calls import Call
from replay.costs.demand import with_demands
from replay.costs.kernels import KernelCalibration
from replay.costs.kernels.machine import runs_as
from replay.costs.operators import operator_of
from replay.costs.retiming import attention_dims, capability, floor_ns, modelled_seconds, source_device
from replay.graph.graph import COLLECTIVE_KINDS, PHASES, Basis, KernelGraph, RecordedCall, TaskKind
from replay.graph.operators import Operator, by_phase, streaming
from replay.what_ifs.job_graph import Replicas, gradient_exchanges, with_exchanges
from replay.workloads import time_operators
from replay.workloads.jobs import Layout
from replay.workloads.traced_job import (
    SIZES,
    Dimension,
    OperatorCalls,
    Shapes,
    TracedJob,
    compute_rows,
    state_elements,
    tensor_exchanges,
    value_of,
)

TYPES = tuple(DTYPES)
BACKWARD, OPTIMIZER = PHASES.index("backward"), PHASES.index("optimizer")
#: A kernel's time at its start that `time_operators` keeps, ns.
_START_NS = 3000.0
#: Share of the kernels of a step that take no longer than a kernel without work.
_SHORTEST = 0.1
#: Longest time that latency alone explains, ns.
_MOST_START_NS = 10_000.0
#: Of the time that a trace adds to a model, the part that does not grow with the work, as a share of a kernel's floor.
_DAMPING = 0.5


@dataclass(frozen=True)
class Edit:
    """Sizes of a traced job before and after an edit.

    Parameters
    ----------
    name : str
        Name of the what-if, for notes.
    job : TracedJob
        The traced job.
    after : mapping of str to int
        Sizes that replace those of the job.
    tensor : int
        Ranks that share a layer afterwards.
    layers : float
        Layers afterwards over those of the trace.
    queries_only : bool
        Whether the length of attention's keys stays.
    """

    name: str
    job: TracedJob
    after: Mapping[str, int]
    tensor: int
    layers: float = 1.0
    queries_only: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """All sizes afterwards."""
        return {**self.job.sizes, **self.after}

    @property
    def weights_ratio(self) -> float:
        """Weights of a rank afterwards over those of the trace."""
        return weight_elements(self.sizes, self.job.layers * self.layers) / weight_elements(
            self.job.sizes, self.job.layers
        )


def weight_elements(sizes: Mapping[str, int], layers: float) -> float:
    """Return the elements of the weights of a rank."""
    hidden, inner = sizes["hidden"], sizes["heads"] * sizes["width"]
    qkv, wide = inner + 2 * sizes["kv_heads"] * sizes["width"], sizes.get("feedforward", 0)
    layer = hidden * (qkv + inner) + qkv + 2 * hidden * wide + wide + 6 * hidden
    return layers * layer + (sizes.get("vocabulary", 0) + sizes["length"]) * hidden


def edited_graph(graph: KernelGraph, edit: Edit, parameters: Parameters) -> KernelGraph:
    """Return the graph with the tensors, kernels and collectives of the sizes after an edit."""
    reshaped, scales = _reshaped(graph, edit)
    timed, count = _retimed(graph, reshaped, scales, parameters)
    exchanged_, moved = _exchanged(timed, edit, parameters)
    unknown = int((scales != 1.0).sum())
    before = edit.job.sizes
    sizes = [f"{SIZES[name]} {before[name]} -> {size}" for name, size in edit.after.items() if size != before[name]]
    share = _share_edited(graph, timed)
    notes = [
        f"{edit.name}: {', '.join([*sizes, ''])}{count} operators re-timed, {moved} collectives resized"
        + (f"; {unknown} kernels without shapes follow their neighbours or the weights" if unknown else "")
    ]
    if missing := ", ".join(edit.job.missing):
        notes.append(f"{edit.name}: the trace does not show {missing}; kernels of that size keep it")
    if edit.after and share < _MOSTLY:
        of = f"the transformer that was found (hidden size {before['hidden']}, {before['length']} tokens)"
        notes.append(f"{edit.name} acts on {100 * share:.0f} % of the kernels' time: the rest is no part of {of}")
    return with_demands(exchanged_, parameters).with_notes(notes)


#: Share of the kernels' time that an edit acts on, below which a note tells it.
_MOSTLY = 0.5


def _share_edited(before: KernelGraph, after: KernelGraph) -> float:
    """Return the share of the kernels' time, without collectives, of those that an edit gives another duration."""
    tasks = before.tasks
    kernels = before.on_device() & (tasks.kind == TaskKind.KERNEL) & ~before.collectives()
    total, changed = tasks.duration_ns[kernels], after.tasks.duration_ns[kernels] != tasks.duration_ns[kernels]
    return float(total[changed].sum() / max(total.sum(), 1e-9))


def _reshaped(graph: KernelGraph, edit: Edit) -> tuple[KernelGraph, Floats]:
    """Return the graph with new calls, and by how much the work of tasks without shapes grows."""
    calls, tasks = OperatorCalls(graph), graph.tasks
    shapes = Shapes(edit.job.sizes, calls.weights)
    numbers = tasks.call
    used = np.unique(numbers[numbers >= 0]).tolist()
    shapes.learn([shape for number in used for shape in calls.shapes(number)])
    writer = _ShapeWriter(edit, calls, shapes, graph.calls)
    roles, scale = np.zeros(len(tasks), np.int64), np.ones(len(tasks))
    for rank in np.unique(graph.ranks()[compute_rows(graph)]).tolist() or [0]:
        rows = compute_rows(graph, rank)
        roles[rows] = attention_roles(graph, rows, calls, edit.job)
    new = numbers.copy()
    keys = np.stack([numbers, roles, tasks.phase == OPTIMIZER])
    device = np.flatnonzero(graph.on_device() & ~graph.collectives())
    distinct, inverse = np.unique(keys[:, device], axis=1, return_inverse=True)
    written: list[RecordedCall] = list(graph.calls)
    known = {call: number for number, call in enumerate(written)}
    grown, unshaped = np.ones(distinct.shape[1]), np.zeros(distinct.shape[1], dtype=bool)
    order = np.lexsort((distinct[0], distinct[1] & BACK))  # weights are seen in forward passes first
    for column in order.tolist():  # a few hundred calls
        number, role, is_update = distinct[:, column].tolist()
        call, grown[column] = writer.call(number, role)
        unshaped[column] = np.isnan(grown[column])
        if is_update and not writer.is_written(number):
            grown[column], call, unshaped[column] = edit.weights_ratio, None, True
        if call is not None:
            distinct[0, column] = known.setdefault(call, len(known))
            if len(known) > len(written):
                written.append(call)
    new[device] = distinct[0][inverse.reshape(-1)]
    growth = _carried(grown[inverse.reshape(-1)], tasks.lane[device])
    scale[device] = np.where(unshaped[inverse.reshape(-1)], growth, 1.0)
    return replace(graph.with_tasks(call=new), calls=tuple(written)), scale


def _carried(growth: Floats, lane: Ints) -> Floats:
    """Return growth in which NaN is the value before it in its lane; 1 at the begin of a lane."""
    known = ~np.isnan(growth)
    at = np.maximum.accumulate(np.where(known, np.arange(len(growth)), -1))
    same = (at >= 0) & (lane[np.maximum(at, 0)] == lane)
    return np.where(same, growth[np.maximum(at, 0)], 1.0)


#: Roles of kernels: of a backward pass, between the products around attention, and the side of a square product that
#: ranks share.
_PLAIN, BACK, _INNER, _SHARED_N, SHARED_K, _SHARED_M = 0, 1, 2, 4, 8, 16
#: Of a feed-forward layer that is as wide as the hidden state.
_WIDE = 32


def attention_roles(graph: KernelGraph, rows: Ints, calls: OperatorCalls, job: TracedJob) -> Ints:
    """Return the role of each kernel of a compute stream."""
    tasks, numbers = graph.tasks, graph.tasks.call[rows]
    roles = np.where(tasks.phase[rows] == BACKWARD, BACK, _PLAIN)
    # A call may clear memory before its kernel.
    numbered = np.where(tasks.kind[rows] == TaskKind.KERNEL, numbers, -1).tolist()
    kinds = [operator.kind if (operator := calls.operator(number)) else "" for number in numbered]
    products = np.flatnonzero(np.array(kinds) == "matmul")
    for place in np.flatnonzero(np.isin(kinds, ("attention", "batched_matmul"))).tolist():
        # A search for each attention, about 10 us.
        at = int(np.searchsorted(products, place))
        begin = products[at - 1] if at else -1
        end = products[at] if at < len(products) else len(numbers)
        if begin < 0 or roles[begin + 1] & _INNER:
            continue
        roles[begin + 1 : end] |= _INNER
        if job.sizes["hidden"] == job.sizes["heads"] * job.sizes["width"]:
            for before in products[max(at - 3, 0) : at].tolist():
                roles[before] |= _square(int(numbers[before]), calls, job, _SHARED_N)
            if end < len(numbers):
                roles[end] |= _square(int(numbers[end]), calls, job, SHARED_K)
        if job.sizes["hidden"] == job.sizes.get("feedforward"):
            _mark_wide(roles, products, at, bool(roles[place] & BACK))
    return np.asarray(roles)


def _mark_wide(roles: Ints, products: Ints, at: int, backward: bool) -> None:
    """Mark the products of a feed-forward layer as wide as the hidden state, and the kernels between them, in place.

    They are the two after attention's own, or in a backward pass the four before them: gradients of the input and of
    the weights of the second product, then of the first.
    """
    flags = (_SHARED_N, _SHARED_M, SHARED_K, _SHARED_N) if backward else (_SHARED_N, SHARED_K)
    first = at - 6 if backward else at + 1
    chosen = products[first : first + len(flags)] if first >= 0 else products[:0]
    if len(chosen) == len(flags):
        roles[chosen] |= np.array(flags) | _WIDE
        middle = len(flags) // 2
        roles[chosen[middle - 1] + 1 : chosen[middle]] |= _WIDE


def _square(number: int, calls: OperatorCalls, job: TracedJob, role: int) -> int:
    """Return the role of a product beside attention whose weight is square: which side ranks share; else none."""
    operator, hidden = calls.operator(number), job.sizes["hidden"]
    if operator is None:
        return _PLAIN
    _, m, n, k = operator.dims
    tokens = job.sizes["batch"] * job.sizes["length"]
    if (n, k) == (hidden, hidden) and m == tokens:
        return role
    return _SHARED_M if (m, n, k) == (hidden, hidden, tokens) else _PLAIN


#: Arguments of products that are their matrices, by operator.
_MATRICES: Mapping[str, tuple[int, int]] = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
}


class _ShapeWriter:
    """Writes calls of the sizes after an edit."""

    def __init__(self, edit: Edit, calls: OperatorCalls, shapes: Shapes, recorded: Sequence[RecordedCall]) -> None:
        self.edit, self.calls, self.shapes, self.recorded = edit, calls, shapes, recorded
        self.sizes = edit.sizes

    def is_written(self, number: int) -> bool:
        """Whether each tensor of a call is written in sizes."""
        found = self.calls.shapes(number)
        return bool(found) and all(
            any(terms for _, terms in self.shapes.dimensions(shape)) for shape in found if max(shape) > 1
        )

    def call(self, number: int, role: int) -> tuple[RecordedCall | None, float]:
        """Return a new call, or None for one that stays; and its elements over those of the old one, NaN if unknown."""
        old = self.calls.calls[number] if number >= 0 else None
        if old is None or not old.tensors():
            return None, float("nan")
        new = self._product(number, role) or [self._argument(each, number, role) for each in old.shapes]
        if self.edit.queries_only:
            new = self._queries(number, new)
        if new == list(old.shapes):
            return None, 1.0
        elements = [sum(prod(shape) for shape, _ in each.tensors()) for each in (old, replace(old, shapes=new))]
        name, _, types, values = self.recorded[number]
        return (name, json.dumps(new, separators=(",", ":")), types, values), elements[1] / max(elements[0], 1)

    def _argument(self, shape: Any, number: int, role: int) -> Any:
        if not isinstance(shape, list | tuple) or not shape:
            return shape
        if isinstance(shape[0], list | tuple):
            return [self._argument(each, number, role) for each in shape]
        inner, is_gradient = bool(role & _INNER), bool(role & BACK) and self.calls.calls[number].name == "aten::add_"
        dimensions = self.shapes.flattened(tuple(shape), in_attention=inner, is_gradient=is_gradient)
        hidden = "inner" if inner else "feedforward" if role & _WIDE else "hidden"
        return [self._value(each, hidden=hidden) for each in dimensions or self.shapes.dimensions(tuple(shape))]

    def _value(self, dimension: Dimension, *, hidden: str = "hidden") -> int:
        """Return a dimension after the edit; `hidden` is the term that stands for the hidden size in activations."""
        constant, terms = dimension
        if len(terms) == 1 or "batch" in terms:
            terms = tuple(hidden if term == "hidden" else term for term in terms)
        return max(value_of((constant, terms), self.sizes), 1) if constant else 0

    def _product(self, number: int, role: int) -> list[Any] | None:
        """Return the arguments of a product of two matrices, or of two batches of them; None for any other call."""
        old, operator = self.calls.calls[number], self.calls.operator(number)
        if operator is None or operator.kind not in ("matmul", "batched_matmul"):
            return None
        at = _MATRICES.get(old.name)
        if at is None or len({len(old.shapes[each]) for each in at}) > 1:
            return None
        dimensions = self.shapes.product(operator.dims, backward=bool(role & BACK))
        if dimensions is None:
            return None
        batch, m, n, k = (self._value(each) for each in dimensions)
        inner = self.sizes["feedforward"] if role & _WIDE else self.sizes["heads"] * self.sizes["width"]
        # Sides as long as the hidden size alone are unclear: a gated layer's first product is twice as wide.
        unclear = [role & flag and was == self.edit.job.sizes["hidden"]
                   for flag, was in zip((_SHARED_M, _SHARED_N, SHARED_K), operator.dims[1:], strict=True)]  # fmt: skip
        m, n, k = (inner if shared else side for shared, side in zip(unclear, (m, n, k), strict=True))
        lead = [batch] if len(old.shapes[at[0]]) > 2 else []
        matrices = {at[0]: [*lead, m, k], at[1]: [*lead, k, n]}
        bias = {0: [*([n] if len(old.shapes[0]) == 1 else [*lead, m, n])]} if 0 not in at else {}
        return [({**matrices, **bias}).get(i, each) for i, each in enumerate(old.shapes)]

    def _queries(self, number: int, new: list[Any]) -> list[Any]:
        """Return arguments in which attention keeps all its keys, and its ranks share the queries."""
        before, after = self.edit.job.sizes["length"], self.sizes["length"]
        old = self.calls.calls[number].shapes
        operator = self.calls.operator(number)
        if operator is not None and operator.kind == "attention":
            tensors = [i for i, each in enumerate(old) if isinstance(each, list) and len(each) == 4]
            return [old[i] if i in tensors[1:3] else each for i, each in enumerate(new)]
        return [_square_scores(was, now, before, after) for was, now in zip(old, new, strict=True)]


def _square_scores(was: Any, now: Any, before: int, after: int) -> Any:
    """Return the shape of scores, whose last side is keys."""
    if isinstance(was, list) and len(was) > 2 and was[-2:] == [before, before]:
        return [*now[:-2], after, before]
    return now


def _operator(call: Call) -> Operator | None:
    """Return the operator of a call; for an unknown one, the bytes of its arguments."""
    known = operator_of(call)
    if known is not None:
        return known
    moved = float(sum(np.prod(shape, dtype=float) * size for shape, size in call.tensors()))
    return streaming("elementwise", moved, 0.0, max(int(moved // 4), 1)) if moved else None


def start_ns(graph: KernelGraph) -> float:
    """Return the time that the launch and latency of a kernel take: that of the shortest kernels of a trace.

    A trace of large kernels alone shows no such time; then it is the longest that latency explains.
    """
    kernels = (graph.tasks.kind == TaskKind.KERNEL) & graph.on_device() & ~graph.collectives()
    shortest = float(np.quantile(graph.tasks.duration_ns[kernels], _SHORTEST)) if kernels.any() else 0.0
    return min(shortest, _MOST_START_NS)


def rescaled(traced: Floats, floor: float, work_ns: tuple[Floats, Floats], ratio: float) -> Floats:
    """Return the durations of kernels whose work changes.

    A kernel takes a time that its launch and latency need, and a time that goes with its work. The trace shows the sum.
    The first is near the time of the shortest kernels of the trace. The second is the modelled time of its work, times
    what the kernel needs over that: t_new = t + e (w_new - w_old), with e = (t - f + d f) / (w_old + d f).

    Parameters
    ----------
    traced : array of float64, shape (n,)
        Traced durations, ns.
    floor : float
        Time f of the shortest kernels, ns.
    work_ns : (array, array)
        Modelled times of the work before and after, w_old and w_new, ns.
    ratio : float
        Error of the model for growing work; its inverse is that for work that shrinks.
    """
    before, after = work_ns
    base = np.minimum(floor, traced)
    needed = (traced - base + _DAMPING * base) / np.maximum(before + _DAMPING * base, 1e-9)
    needed = np.minimum(needed, traced / np.maximum(before, 1e-9))
    return np.asarray(traced + needed * (after * ratio ** np.sign(after - before) - before))


def _retimed(
    graph: KernelGraph, reshaped: KernelGraph, scale: Floats, parameters: Parameters
) -> tuple[KernelGraph, int]:
    """Return the graph with the durations of new calls, and how many tasks changed."""
    tasks, new = graph.tasks, reshaped.tasks.call
    device = source_device(graph)
    rows = np.flatnonzero((new != tasks.call) & graph.on_device())
    duration, basis = tasks.duration_ns.copy(), tasks.basis.copy()
    floor, synthetic = start_ns(graph), graph.origin == Basis.ASSUMED
    before, after, pieces = _work(graph, reshaped, rows, device, parameters)
    traced = duration[rows]
    if synthetic:
        start = _written_start_ns(graph, device, parameters)
        timed = _as_written(graph, rows, (before, after, pieces), start)
    else:
        timed = rescaled(traced, floor, (before, after), parameters["job_size_ratio"])
    duration[rows] = np.maximum(timed, 0.0)
    others = np.flatnonzero(scale != 1.0)
    start = _written_start_ns(graph, device, parameters) if synthetic else floor
    # A pass of an optimizer over all weights is written as so many equal kernels.
    alike = np.bincount(tasks.name[others], minlength=1)[tasks.name[others]] if synthetic else 1
    base = np.minimum(start / alike, duration[others])
    duration[others] = base + (duration[others] - base) * scale[others]
    basis[rows] = np.maximum(basis[rows], int(Basis.DERIVED))
    basis[others] = np.maximum(basis[others], int(Basis.DERIVED))
    operators, computed, moved = _renumbered(reshaped, rows)
    workgroups, moved_bytes = tasks.workgroups.copy(), tasks.bytes.copy()
    workgroups[rows] = np.where(workgroups[rows] > 0, np.maximum(np.round(workgroups[rows] * pieces), 1), 0)
    copies = rows[tasks.kind[rows] == TaskKind.COPY]
    moved_bytes[copies] = np.round(moved_bytes[copies] * pieces[tasks.kind[rows] == TaskKind.COPY])
    changed = reshaped.with_tasks(
        duration_ns=duration,
        basis=basis,
        operator=computed,
        memory_operator=moved,
        workgroups=workgroups,
        bytes=moved_bytes,
    )
    return replace(changed, operators=operators), len(rows)


#: Kinds whose shapes a synthetic trace holds, and those of them that are scaled as streams are.
_SHAPED = ("matmul", "batched_matmul", "attention", "softmax", "normalization")
_ROWS = ("softmax", "normalization")


def _as_written(graph: KernelGraph, rows: Ints, work: tuple[Floats, Floats, Floats], start_ns: float) -> Floats:
    """Return the durations of kernels of a synthetic trace: those that it would have been written with.

    Its durations are modelled ones times a factor for streams and one for products. Of a stream it does not hold all
    bytes, so the part above the start goes with the elements. Rows of known shape tell the factor.
    """
    tasks, (before, after, pieces) = graph.tasks, work
    traced, ratio = tasks.duration_ns[rows], after / np.maximum(before, 1e-9)
    kinds = np.array([_kind_of(graph, number) for number in tasks.call[rows].tolist()])
    known = np.isin(kinds, _ROWS) & (before > 0)
    factor = float(np.median(traced[known] / before[known])) if known.any() else 1.0
    start = np.minimum(start_ns * factor, traced)
    return np.asarray(np.where(np.isin(kinds, _SHAPED), traced * ratio, start + (traced - start) * pieces))


def _work(
    graph: KernelGraph, reshaped: KernelGraph, rows: Ints, device: Device, parameters: Parameters
) -> tuple[Floats, Floats, Floats]:
    """Return the modelled time of the work of tasks before and after, ns, and the ratio of their elements."""
    tasks = graph.tasks
    synthetic = graph.origin == Basis.ASSUMED
    dtypes = np.full(len(rows), product_type(graph)) if synthetic else tasks.dtype[rows]
    keys = np.stack([tasks.call[rows], reshaped.tasks.call[rows], dtypes])
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    calls = [_read_call(each) for each in reshaped.calls]
    times = np.zeros((2, distinct.shape[1]))
    for dtype in np.unique(distinct[2]).tolist():
        columns = np.flatnonzero(distinct[2] == dtype)
        name = runs_as(device, TYPES[dtype]) if dtype >= 0 else "fp32"
        for side in (0, 1):
            operators = [_operator(calls[number]) for number in distinct[side, columns].tolist()]
            known = [i for i, each in enumerate(operators) if each is not None]
            several = tuple(operators[i] for i in known)
            times[side, columns[known]] = work_times(several, device, name, parameters, synthetic)
    sizes = [max(sum(float(np.prod(shape)) for shape, _ in call.tensors()), 1.0) for call in calls]
    pieces = (
        np.array([sizes[b] / sizes[a] for a, b in distinct[:2].T.tolist()])[inverse.reshape(-1)]
        if len(rows)
        else np.ones(0)
    )
    return times[0][inverse.reshape(-1)], times[1][inverse.reshape(-1)], pieces


def work_times(
    operators: Sequence[Operator | None], device: Device, dtype: str, parameters: Parameters, synthetic: bool
) -> Floats:
    """Return the modelled time of the work of each operator, ns; of a synthetic trace, with its start."""
    known = [part for each in operators if each is not None for part in by_phase(each)]
    if not known:
        return np.zeros(0)
    owners = np.repeat(np.arange(len(operators)), [len(by_phase(each)) if each else 0 for each in operators])
    if len(known) > len(np.unique(owners)):
        times = work_times(known, device, dtype, parameters, synthetic)
        return np.bincount(owners, times, len(operators)).astype(np.float64)
    if synthetic:
        known = [_as_context(each) if each.kind == "attention" else each for each in known]
    timed = 1e9 * time_operators(known, device, parameters=parameters, dtype=dtype).seconds
    if synthetic:
        return timed
    timed = np.maximum(timed - _START_NS, 0.0)
    fused = [i for i, each in enumerate(known) if each.kind == "attention"]
    if fused:
        floor = floor_ns("attention", device, parameters)
        target = capability(device, dtype, parameters.calibration(KernelCalibration))
        timed[fused] = 1e9 * modelled_seconds([known[i] for i in fused], target, floor * 1e-9) - floor
    return np.asarray(timed)


def _as_context(attention: Operator) -> Operator:
    """Return attention as the operator that a synthetic trace is timed with."""
    _, dims = attention_dims([attention])
    return replace(attention, kind="context_attention", dims=tuple(round(each) for each in dims[0].tolist()))


def product_type(graph: KernelGraph) -> int:
    """Return the data type in which a synthetic job computes, that of most of its products."""
    products = graph.tasks.dtype[(graph.tasks.operator >= 0) & (graph.tasks.dtype >= 0)]
    return int(np.bincount(products).argmax()) if len(products) else TYPES.index("fp32")


def _written_start_ns(graph: KernelGraph, device: Device, parameters: Parameters) -> float:
    """Return the time of a stream of next to no bytes in a synthetic trace, without the factor of streams."""
    dtype = runs_as(device, TYPES[product_type(graph)])
    return float(work_times((streaming("elementwise", 1.0, 1.0, 1, 2),), device, dtype, parameters, synthetic=True)[0])


@cache
def _read_call(recorded: RecordedCall) -> Call:
    return Call.of_row(*recorded)


def _kind_of(graph: KernelGraph, number: int) -> str:
    operator = operator_of(_read_call(graph.calls[number])) if number >= 0 else None
    return operator.kind if operator is not None else ""


def _renumbered(graph: KernelGraph, rows: Ints) -> tuple[tuple[Operator, ...], Ints, Ints]:
    """Return the operators of a graph with new calls, and the columns that name them."""
    operators, tasks = list(graph.operators), graph.tasks
    known = {operator: number for number, operator in enumerate(operators)}
    computed, moved = tasks.operator.copy(), tasks.memory_operator.copy()
    of_call: dict[int, int] = {}
    for number in np.unique(tasks.call[rows]).tolist():  # a few hundred calls
        operator = operator_of(_read_call(graph.calls[number]))
        of_call[number] = known.setdefault(operator, len(known)) if operator is not None else -1
        if operator is not None and of_call[number] == len(operators):
            operators.append(operator)
    numbers = np.array([of_call[each] for each in tasks.call[rows].tolist()], dtype=np.int64)
    computed[rows] = np.where(computed[rows] >= 0, numbers, -1)
    moved[rows] = np.where(moved[rows] >= 0, numbers, -1)
    return tuple(operators), computed, moved


def _exchanged(graph: KernelGraph, edit: Edit, parameters: Parameters) -> tuple[KernelGraph, int]:
    """Return the graph with the bytes and ranks of collectives after an edit, and how many changed."""
    tasks, job = graph.tasks, edit.job
    collective = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.bytes > 0)
    shared = tensor_exchanges(graph, job)
    before, after = job.sizes, edit.sizes
    tokens = after["batch"] * after["length"] / (before["batch"] * before["length"])
    # Others than of the hidden state hold one number a token.
    has_state = tasks.bytes > _LARGEST_NUMBER * before["batch"] * before["length"]
    of_tokens = np.where(has_state, tokens * after["hidden"] / before["hidden"], tokens)
    sends = tasks.collective == COLLECTIVE_KINDS.index("send_recv")
    state = shared | (collective & sends) | (collective & (tasks.bytes == 2 * state_elements(before)))
    ratio = np.where(state, of_tokens, np.where(tasks.bytes > _SMALL, edit.weights_ratio, 1.0))
    new_bytes = np.where(collective, np.round(tasks.bytes * ratio), tasks.bytes).astype(np.int64)
    new_ranks = np.where(shared, edit.tensor, tasks.ranks)
    replicas = Replicas(gradient_exchanges(graph, job), Layout(job.tensor, job.data), Layout(edit.tensor, job.data))
    return with_exchanges(graph, new_bytes, new_ranks, parameters, replicas=replicas)


#: Largest collective that holds no gradients, but a norm or a flag, bytes; and bytes of a number.
_SMALL, _LARGEST_NUMBER = 4096, 4


def compute_streams(graph: KernelGraph) -> list[Ints]:
    """Return the kernels of the compute stream of each rank that computes."""
    kernels = (graph.tasks.kind == TaskKind.KERNEL) & graph.on_device()
    return [compute_rows(graph, rank) for rank in np.unique(graph.ranks()[kernels]).tolist()]
