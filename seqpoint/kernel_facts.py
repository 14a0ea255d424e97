"""Facts of every kernel of a trace: who launched it, in which module and phase, and how much work it does.

`kernel_facts` joins what the trace knows of a kernel to the FLOP and bytes of its operator. Tables of
`seqpoint.characterization` and `seqpoint.comparison` are sums over these columns.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.devices.catalogue import DTYPES, Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Bools, Floats, Ints, encode_text, ends, integers
from profilers.trace.columns import lookup, user_ranges
from profilers.trace.serving import SERVING_PHASES, ServingSteps
from profilers.trace.trace import Trace
from replay.costs.kernels.machine import runs_as
from replay.costs.operators import fused_bytes
from replay.from_trace import TraceIndex, distinct_calls, index_trace, kernel_dtypes, kernel_operators
from replay.from_trace.phases import annotated_phase
from replay.graph.graph import PHASES, Hardware
from replay.graph.operators import Operator

#: Dimensions of the tensors in the text of shapes or strides; those of scalars are empty.
TENSORS, _NUMBER = re.compile(r"\[([\d, ]+)\]"), re.compile(r"\d{1,18}")
#: Prefix by which PyTorch's profiler names calls of modules.
_MODULE = "nn.Module: "
#: Ranges that FSDP writes at both ends of a module's pass, with the path of the module, and wrappers in such paths.
_FSDP = re.compile(r"FSDP::(pre|post)_(?:forward|backward) \((.+)\)")
_WRAPPERS = {"_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod"}
#: Ranges around more or less than a module: communication and other work of a framework, and steps.
_NO_MODULE = re.compile(
    r"^(?:FSDP::|DDP::|DistributedData|(?:nccl|rccl|gloo|mpi|ucc):|ProfilerStep|Optimizer\.|enumerate\(|execute_\S*\d|"
    r"## Call|Torch-Compiled)|(?:step|iter(?:ation)?|epoch|batch)s?[\W_]*\d*\W*$",
    re.IGNORECASE,
)
#: Why the trace has no operator of a kernel, in this order of precedence: replay of a graph; host not recorded; launch
#: not recorded; no operators recorded; launched by what `torch.compile` wrote, or by other code outside of operators.
_NO_OPERATOR = ("graph", "no host", "no launch", "none recorded", "compiled code", "other code")
#: Names of launches of graphs, and of kernels that `torch.compile` wrote.
_GRAPH, _COMPILED = re.compile(r"^(?:cuda|cu|hip)GraphLaunch"), "triton_"
#: Times before and after every event, in ns.
_BEFORE, _AFTER = -(1 << 62), 1 << 62
#: Phase of collectives, after those of the graph.
COMMUNICATION = "communication"
#: Phases of kernels: of training, communication, those of serving, and of kernels whose phase the trace does not tell.
KERNEL_PHASES = (*PHASES, COMMUNICATION, *SERVING_PHASES, "unknown")


@dataclass(frozen=True)
class KernelFacts:
    """Kernels of a trace in the order of their start: columns of length n, one row a kernel.

    Parameters
    ----------
    event : array of int64
        Id of the kernel in the trace.
    rank, device, stream, iteration : array of int64
        Where and when it ran; -1 if unknown.
    start_ns, duration_ns : array of int64
        Start on the trace's clock, and duration.
    name : array of int64
        Name, as an index into `names`.
    class_ : array of int64
        Class, as an index into `classes`.
    operator : array of int64
        Name of the operator that launched it, as an index into `operator_names`; -1 if unknown.
    call : array of int64
        Id of that operator's call in the trace; -1 if unknown.
    shape : array of int64
        Shapes of the inputs of that call, as an index into `shapes`; -1 if unknown.
    launch : array of int64
        Id of the call that launched it; -1 if unknown.
    module : array of int64
        Innermost module around its launch, as an index into `modules`; -1 if unknown.
    phase : array of int64
        Phase, as an index into `KERNEL_PHASES`.
    dtype : array of int64
        Data type, as an index into `tuple(DTYPES)`; -1 if unknown.
    workgroups : array of int64
        Workgroups; 0 if unknown.
    serving : array of int64
        Step of serving that launched it, as a row of `steps`; -1 if none did.
    work : array of int64
        What it computes or whose data it moves, as an index into `operators`; -1 if unknown.
    flops, bytes : array of float64
        FLOP and bytes of its operator; NaN if unknown. The longest kernel of a call has them, its others have 0. Bytes
        of kernels that `torch.compile` wrote are known without FLOP.
    names, classes, operator_names, shapes, modules : tuple of str
        Distinct texts; names are untrusted.
    operators : tuple of Operator
        Distinct operators.
    steps : ServingSteps
        Steps of serving.
    hardware : Hardware
        Hardware of the trace.
    """

    event: Ints
    rank: Ints
    device: Ints
    stream: Ints
    iteration: Ints
    start_ns: Ints
    duration_ns: Ints
    name: Ints
    class_: Ints
    operator: Ints
    call: Ints
    launch: Ints
    shape: Ints
    module: Ints
    phase: Ints
    dtype: Ints
    workgroups: Ints
    serving: Ints
    work: Ints
    flops: Floats
    bytes: Floats
    names: tuple[str, ...]
    classes: tuple[str, ...]
    operator_names: tuple[str, ...]
    shapes: tuple[str, ...]
    modules: tuple[str, ...]
    operators: tuple[Operator, ...]
    steps: ServingSteps
    hardware: Hardware

    def __len__(self) -> int:
        return len(self.event)

    @property
    def total_ns(self) -> int:
        """Sum of the durations of all kernels."""
        return int(self.duration_ns.sum())

    def of_rows(self, rows: Ints) -> "KernelFacts":
        """Return the facts of some kernels.

        Parameters
        ----------
        rows : array of int64
            Rows to keep.
        """
        columns: dict[str, Any] = {
            name: value[rows] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **columns)

    def in_classes(self, names: Collection[str]) -> Bools:
        """Return the mask of the kernels of some classes."""
        return np.isin(self.class_, [code for code, name in enumerate(self.classes) if name in names])


def kernel_facts(trace: Trace, hardware: Hardware | None = None) -> KernelFacts:
    """Return the facts of all kernels of a trace, those outside of iterations included.

    Parameters
    ----------
    trace : Trace
        The trace.
    hardware : Hardware, optional
        Hardware of the trace, if it does not say.
    """
    index = index_trace(trace)
    work = index.device_work
    rows = np.flatnonzero(~work.columns["is_copy"])
    columns = {name: values[rows] for name, values in work.columns.items()}
    is_collective = columns["collective"] != MISSING
    launched_by = np.where(is_collective, MISSING, columns["op"])
    computes, moves, operators = kernel_operators(index, launched_by, columns["name"])
    number = np.where(computes >= 0, computes, moves)
    duration = np.maximum(columns["end"] - columns["start"], 0)
    flops, moved = _work_of_calls(number, columns["op"], duration, operators)
    fused = number < 0
    moved[fused] = _fused_bytes(index, columns["op"][fused])
    classes, class_of_name = np.unique(work.classes.astype(str), return_inverse=True)
    phase = np.where(columns["phase"] < 0, len(KERNEL_PHASES) - 1, columns["phase"])
    step = _serving_step(index, columns["launch_id"], columns["op"])
    of_step = np.array([KERNEL_PHASES.index(index.serving.step(row).phase) for row in range(len(index.serving))] or [0])
    phase = np.where(step >= 0, of_step[step], phase)
    around = _modules(trace, columns["launch_id"], columns["op"])
    module, modules = _with_captured_modules(trace, columns["op"], *around)
    shape, shapes = _shapes(trace, columns["op"])
    return KernelFacts(
        event=columns["id"],
        **{name: _known(columns[name]) for name in ("rank", "device", "stream", "iteration")},
        start_ns=columns["start"],
        duration_ns=duration,
        name=columns["name"],
        class_=class_of_name[columns["name"]] if len(rows) else np.zeros(0, np.int64),
        operator=columns["launched_by"],
        call=_known(columns["op"]),
        launch=_known(columns["launch_id"]),
        shape=shape,
        module=module,
        phase=np.where(is_collective, KERNEL_PHASES.index(COMMUNICATION), phase),
        dtype=kernel_dtypes(index, columns["op"], columns["name"]),
        workgroups=np.maximum(_known(columns["workgroups"]), 0),
        serving=step,
        work=number,
        flops=flops,
        bytes=moved,
        names=tuple(map(str, work.names)),
        classes=tuple(classes.tolist()),
        operator_names=tuple(map(str, work.op_names)),
        shapes=shapes,
        modules=modules,
        operators=operators,
        steps=index.serving,
        hardware=hardware or index.hardware,
    )


def _serving_step(index: TraceIndex, launches: Ints, calls: Ints) -> Ints:
    """Return the step of serving that launched each kernel, as a row of those of the trace; -1 if unknown."""
    if not len(index.serving):
        return np.full(len(launches), -1)
    start, rank, _ = _launch_times(index.trace, launches, calls)
    return index.serving.at(rank, start)


def _known(column: Ints) -> Ints:
    return np.where(column == MISSING, -1, column)


def _work_of_calls(number: Ints, calls: Ints, duration: Ints, operators: tuple[Operator, ...]) -> tuple[Floats, Floats]:
    """Return FLOP and bytes of each kernel: all of its call's for the longest kernel of a call, 0 for the others."""
    known = np.flatnonzero(number >= 0)
    order = known[np.lexsort((-duration[known], calls[known]))]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = calls[order][1:] != calls[order][:-1]
    flops, moved = np.full((2, len(number)), np.nan)
    flops[known], moved[known] = 0.0, 0.0
    longest = order[is_first]
    figures = np.array([(each.flops, each.bytes_moved) for each in operators] or [(0.0, 0.0)])
    flops[longest], moved[longest] = figures[number[longest]].T
    return flops, moved


def _fused_bytes(index: TraceIndex, ops: Ints) -> Floats:
    """Return the bytes of the kernels that `torch.compile` wrote, by the operator that launched each; else NaN."""
    rows = index.ops.find(ops)
    launched = np.flatnonzero(rows != MISSING)
    number, calls = distinct_calls(index, rows[launched])
    known = [fused_bytes(call) for call in calls]
    result = np.full(len(ops), np.nan)
    result[launched] = np.array([np.nan if each is None else each for each in known], dtype=np.float64)[number]
    return result


def _shapes(trace: Trace, calls: Ints) -> tuple[Ints, tuple[str, ...]]:
    """Return the shapes of the inputs of the call that launched each kernel, as codes, and their texts."""
    codes, texts = encode_text(trace.ops["shapes"])
    shape = lookup(integers(trace.ops, "id"), codes, calls)
    return np.where(shape == MISSING, -1, shape), tuple(map(str, texts))


def operators_or_reasons(trace: Trace, facts: KernelFacts) -> tuple[Ints, tuple[str, ...]]:
    """Return the operator that launched each kernel, or why the trace has none, as codes, and their names."""
    codes, texts = encode_text(trace.launches["name"])
    is_graph = np.array([bool(_GRAPH.match(str(text))) for text in texts] + [False])
    launch = lookup(integers(trace.launches, "id"), np.where(is_graph[codes], 1, 0), facts.launch)
    node = lookup(integers(trace.kernels, "id"), integers(trace.kernels, "graph_node"), facts.event)
    has_ops, has_calls = (np.isin(facts.rank, integers(table, "rank")) for table in (trace.ops, trace.launches))
    compiled = np.array([name.startswith(_COMPILED) for name in facts.names] + [False])[facts.name]
    reasons = [(launch == 1) | (node != MISSING), ~has_ops & ~has_calls, launch == MISSING, ~has_ops, compiled]
    reason = np.select(reasons, np.arange(len(reasons)).tolist(), len(reasons))
    codes = np.where(facts.operator < 0, len(facts.operator_names) + reason, facts.operator)
    return codes, (*facts.operator_names, *(f"(no operator: {each})" for each in _NO_OPERATOR))


def input_layouts(trace: Trace, facts: KernelFacts) -> tuple[Ints, tuple[str, ...]]:
    """Return how the inputs of the call of each kernel lie in memory, as codes, and their texts; -1 if unknown.

    A text has ``contiguous``, ``strided`` or ``expanded`` (by a stride of 0) for each tensor, in the order of shapes.
    """
    encoded = [encode_text(trace.ops[name]) for name in ("shapes", "strides")]
    both, number = np.unique(np.stack([codes for codes, _ in encoded]), axis=1, return_inverse=True)
    shapes, strides = ([*map(str, texts), ""] for _, texts in encoded)
    texts = [_layouts(shapes[shape], strides[stride]) for shape, stride in both.T.tolist()]
    distinct = tuple(dict.fromkeys(texts))
    code = np.array([distinct.index(text) for text in texts], dtype=np.int64)
    return _known(lookup(integers(trace.ops, "id"), code[number.ravel()], facts.call)), distinct


def _layouts(shapes: str, strides: str) -> str:
    """Return the layouts of tensors, from the JSON of shapes and strides; empty if they do not match.

    Examples
    --------
    >>> _layouts("[[8,4],[8,4],[8,4],[]]", "[[4,1],[1,8],[0,1],[]]")
    'contiguous, strided, expanded'
    """
    pairs = [[list(map(int, _NUMBER.findall(each))) for each in TENSORS.findall(text)] for text in (shapes, strides)]
    if len(pairs[0]) != len(pairs[1]):
        return ""
    layouts = []
    for shape, steps in zip(*pairs, strict=True):
        real = [(size, step) for size, step in zip(shape, steps, strict=False) if size > 1]
        dense = [prod(size for size, _ in real[dim + 1 :]) for dim in range(len(real))]
        flat = "contiguous" if [step for _, step in real] == dense else "strided"
        layouts.append("expanded" if any(step == 0 for _, step in real) else flat)
    return ", ".join(layouts)


def _modules(trace: Trace, launches: Ints, calls: Ints) -> tuple[Ints, tuple[str, ...]]:
    """Return the innermost module around the launch of each kernel, as codes, and the names of the modules.

    Calls of modules of one thread nest. A call of a module that the trace cut at its end reaches to its recorded end.
    """
    spans, names = _module_calls(trace.ranges)
    result = np.full(len(launches), -1)
    if not spans.size or not len(launches):
        return result, ()
    start, rank, thread = _launch_times(trace, launches, calls)
    for key in np.unique(spans[:2], axis=1).T:  # a Python loop over threads
        mine = spans[:, (spans[:2] == key[:, None]).all(axis=0)]
        mine = mine[:, np.lexsort((-mine[3], mine[2]))]
        asked = np.flatnonzero((rank == key[0]) & (thread == key[1]) & (start != MISSING))
        innermost = _innermost(mine[2], mine[3], start[asked])
        result[asked] = np.where(innermost >= 0, mine[4, innermost], -1)
    used, position = np.unique(result, return_inverse=True)
    offset = int(used[0] == -1)
    return position - offset, tuple(names[code] for code in used[offset:].tolist())


def _module_calls(ranges: pa.Table) -> tuple[Ints, list[str]]:
    """Return rank, thread, start, end and module of each call of a module, shape (5, calls), and the modules' names.

    Without calls that PyTorch's profiler recorded with its stacks, they are FSDP's passes and ranges of the program.
    """
    codes, texts = encode_text(ranges["name"])
    names = [str(text) for text in texts]
    times = integers(ranges, "start_ns"), ends(ranges)
    calls = np.stack([integers(ranges, "rank"), integers(ranges, "thread"), *times, codes])
    is_module = np.array([name.startswith(_MODULE) for name in names], dtype=bool)
    if is_module.any():
        return calls[:, is_module[codes]], [name.removeprefix(_MODULE) for name in names]
    calls = calls[:, user_ranges(ranges)]
    is_module = np.array([not (_NO_MODULE.search(name) or annotated_phase(name) >= 0) for name in names], dtype=bool)
    passes, modules = _fsdp_passes(calls, names)
    passes[4] += len(names)
    return np.concatenate([calls[:, is_module[calls[4]]], passes], axis=1), [*names, *modules]


def _fsdp_passes(ranges: Ints, names: Sequence[str]) -> tuple[Ints, list[str]]:
    """Return the passes of modules between two marks of FSDP each, and the modules, as `_module_calls`.

    A pass without its first mark began before the trace, and one without its last ended after it.
    """
    marks = [match.groups() if (match := _FSDP.fullmatch(name)) else ("", "") for name in names]
    is_mark = np.array([side != "" for side, _ in marks], dtype=bool)
    modules: dict[str, int] = {}
    passes, begun = list[tuple[int, ...]](), dict[tuple[int, int, int], list[int]]()
    rows = ranges[:, is_mark[ranges[4]]]
    for rank, thread, start, end, code in rows[:, np.argsort(rows[2], kind="stable")].T.tolist():  # 1 us a mark
        side, path = marks[code]
        module = modules.setdefault(".".join(part for part in path.split(".") if part not in _WRAPPERS), len(modules))
        open_ = begun.setdefault((rank, thread, module), [])
        if side == "pre":
            open_.append(start)
        else:
            passes.append((rank, thread, open_.pop() if open_ else _BEFORE, end, module))
    passes += [(*key[:2], start, _AFTER, key[2]) for key, starts in begun.items() for start in starts]
    return np.array(passes, dtype=np.int64).reshape(-1, 5).T, list(modules)


def _with_captured_modules(
    trace: Trace, calls: Ints, module: Ints, modules: tuple[str, ...]
) -> tuple[Ints, tuple[str, ...]]:
    """Return the modules of kernels, with those that the capture of a graph names for the operators of its kernels."""
    if not trace.meta.quality["graph_kernels_matched"]:  # the import below loads all of `profilers.ingest`
        return module, modules
    from profilers.ingest.capture import captured_module

    codes, texts = encode_text(trace.ops["args"])
    stated = [captured_module(str(text)) for text in texts]
    numbers = {name: number for number, name in enumerate(dict.fromkeys([*modules, *filter(None, stated)]))}
    of_text = np.array([*(numbers[name] if name else -1 for name in stated), -1], dtype=np.int64)
    of_call = lookup(integers(trace.ops, "id"), of_text[codes], calls)
    return np.where(of_call >= 0, of_call, module), tuple(numbers)


def _launch_times(trace: Trace, launches: Ints, calls: Ints) -> tuple[Ints, Ints, Ints]:
    """Return start, rank and thread of the launch of each kernel, or of its operator; `MISSING` if unknown."""
    result = []
    for name in ("start_ns", "rank", "thread"):
        by_launch = lookup(integers(trace.launches, "id"), integers(trace.launches, name), launches)
        by_call = lookup(integers(trace.ops, "id"), integers(trace.ops, name), calls)
        result.append(np.where(by_launch == MISSING, by_call, by_launch))
    return result[0], result[1], result[2]


def _innermost(start: Ints, end: Ints, asked: Ints) -> Ints:
    """Return the innermost of nested spans around each time; -1 for none. Spans are sorted by (start, -end)."""
    parent, open_ = np.full(len(start), -1), list[int]()
    for row in range(len(start)):  # a Python loop over spans, under 1 us each
        while open_ and end[open_[-1]] <= start[row]:
            open_.pop()
        if open_:
            parent[row] = open_[-1]
        open_.append(row)
    innermost = np.searchsorted(start, asked, side="right") - 1
    outside = np.flatnonzero(innermost >= 0)
    while len(outside := outside[end[innermost[outside]] <= asked[outside]]):  # as many rounds as spans nest
        innermost[outside] = parent[innermost[outside]]
        outside = outside[innermost[outside] >= 0]
    return innermost


def matrix_peaks(device: Device) -> Floats:
    """Return the peak of matrix products in each data type, FLOP/s. An unknown type, the last, is FP32."""
    return np.array([peak_of(device, runs_as(device, dtype), matrix=True) for dtype in (*DTYPES, "fp32")])


def peak_of(device: Device, dtype: str, *, matrix: bool = False) -> float:
    """Return a peak, FLOP/s; NaN if it is unknown."""
    try:
        return device.flops_per_s(dtype, matrix=matrix)
    except InvalidInputError:
        return float("nan")


class Texts(Sequence[str]):
    """Text of each row by its code; rows without a code have one text."""

    def __init__(self, codes: Ints, texts: tuple[str, ...], none: str) -> None:
        self._codes, self._texts, self._none = codes, texts, none

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, row: Any) -> Any:
        code = int(self._codes[row])
        return self._texts[code] if code >= 0 else self._none
