"""`build_graph`: consecutive iterations of a trace as a `KernelGraph`.

The device's tasks are added here: kernels and copies on their streams, and collectives, whose ranks meet. A collective
whose ranks are all in the window gets a mark at which all have arrived.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Ints, arrow_array, encode_text, integers, strings
from profilers.trace.kernels import CLASSES
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.calls import Call
from replay.costs.demand import isolate
from replay.costs.occupancy import COLLECTIVE_WORKGROUP, unit_shares
from replay.costs.operators import operator_of, takes_requests
from replay.from_trace.host import HostTasks, add_host, add_queue_edges, add_returns, mark_columns
from replay.from_trace.index import DTYPE_INDEX, TraceIndex, index_trace
from replay.from_trace.starts import add_starts
from replay.from_trace.window import Window, clock_notes, open_window
from replay.graph.assembly import Assembly
from replay.graph.graph import (
    COLLECTIVE_KINDS,
    UNIT_COLUMNS,
    Basis,
    EdgeKind,
    Hardware,
    KernelGraph,
    Lane,
    RecordedCall,
    Storages,
    TaskKind,
)
from replay.graph.operators import ATTENTION, Operator


def find_meetings(window: Window) -> tuple[list[Ints], list[str]]:
    """Return the rows of each collective that all its ranks take part in, and notes on the others.

    A collective with a missing rank is left out, since the trace does not show when that rank arrived; unless the ranks
    of the trace were chosen to stand for the others. So is a collective that one rank ends before another begins it,
    which only clocks that disagree can show.
    """
    represents_others = window.trace.meta.represents_others
    device_work, table = window.device_work, window.trace.collectives
    if not table.num_rows:
        return [], []
    table_row = window.index.collectives.find(device_work.collective)
    rows = np.flatnonzero((table_row != MISSING) & device_work.in_window)
    columns = table.select(["match_id", "group_size"]).take(arrow_array(table_row[rows]))
    match, size = integers(columns, "match_id"), integers(columns, "group_size")
    rows, size, match = rows[match != MISSING], size[match != MISSING], match[match != MISSING]
    order = np.argsort(match, kind="stable")
    cuts = np.flatnonzero(np.diff(match[order])) + 1
    meetings, incomplete, disjoint = [], defaultdict[str, int](int), []
    for members, sizes in zip(np.split(rows[order], cuts), np.split(size[order], cuts), strict=True):
        present = set(device_work.rank[members].tolist())
        if not len(members) or len(present) < len(members):
            continue
        if len(present) < (0 if represents_others else sizes.max()) and len(window.ranks) > 1:
            incomplete[_describe_missing_ranks(window, int(table_row[members[0]]), present, int(sizes.max()))] += 1
        elif len(members) > 1 and device_work.start[members].max() >= device_work.end[members].min():
            disjoint.append(members)
        elif len(members) > 1:
            meetings.append(members)
    notes = [
        f"{count} collectives {reason}: nobody waits for the others there, and waiting stays part of their measured "
        "time"
        for reason, count in sorted(incomplete.items())
    ]
    return meetings, notes + _clock_notes(window, disjoint)


def _describe_missing_ranks(window: Window, row: int, present: set[int], size: int) -> str:
    """Return the reason why collectives of a group without all its ranks are left out, for a note."""
    text = window.trace.collectives["group_ranks"][row].as_py()
    try:
        ranks = json.loads(text) if text else []
    except ValueError:  # PyTorch truncates lists of more than 30 ranks
        ranks = []
    missing = sorted(set(ranks) - present) if isinstance(ranks, list) else []
    listed = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    detail = f" (missing: rank {listed})" if missing else ""
    return f"of a group of {size} ranks have {len(present)} of them in the trace{detail}"


def _clock_notes(window: Window, groups: list[Ints]) -> list[str]:
    """Return a note on the collectives in `groups`, whose ranks do not meet since their clocks disagree."""
    if not groups:
        return []
    device_work = window.device_work
    gaps = [int(device_work.start[rows].max() - device_work.end[rows].min()) for rows in groups]
    worst = groups[int(np.argmax(gaps))]
    first, last = worst[np.argmin(device_work.end[worst])], worst[np.argmax(device_work.start[worst])]
    name = window.index.device_work.names[device_work.name[first]][:60]
    return [
        f"clocks of ranks disagree: {len(groups)} collectives end on one rank before another begins them, by up to "
        f"{max(gaps) / 1e3:.1f} us (rank {device_work.rank[first]} before rank {device_work.rank[last]}, {name}, "
        f"{device_work.end[first] / 1e6:.3f} ms after the start); nobody waits for the others there"
    ]


def add_meetings(assembly: Assembly, window: Window, meetings: list[Ints], tasks: tuple[Ints, Ints]) -> None:
    """Append a mark for each meeting, so that a collective starts on every rank when all ranks have arrived."""
    if not meetings:
        return
    meeting_ns = np.array([window.device_work.start[rows].max() for rows in meetings])
    iteration = np.array([window.device_work.iteration[rows].max() for rows in meetings])
    marks = assembly.tasks("all ranks have arrived", -1, mark_columns(meeting_ns, iteration))
    rows = np.concatenate(meetings)
    mark = np.repeat(marks, [len(members) for members in meetings])
    begin, done = tasks
    assembly.edges(begin[rows], mark, kind=EdgeKind.RENDEZVOUS)
    assembly.edges(mark, done[rows], kind=EdgeKind.RENDEZVOUS)


_CLASS_INDEX = {name: index for index, name in enumerate(CLASSES)}


def add_device(
    assembly: Assembly, window: Window, host: HostTasks
) -> tuple[tuple[Ints, Ints], tuple[Operator, ...], list[str]]:
    """Append the device's tasks and the edges that they wait for.

    Return the first and the last task of each row of device work, the distinct operators, and notes.
    """
    meetings, meeting_notes = find_meetings(window)
    computed, moved, operators = window_operators(window)
    meeting_ns = np.full(len(window.device_work), MISSING)  # when the last rank arrives
    for rows in meetings:
        meeting_ns[rows] = window.device_work.start[rows].max()
    tasks = _add_tasks(assembly, window, (computed, moved), meeting_ns)
    notes = add_starts(assembly, window, host, tasks)
    add_meetings(assembly, window, meetings, tasks)
    return tasks, operators, [*meeting_notes, *notes]


def _add_tasks(assembly: Assembly, window: Window, operators: tuple[Ints, Ints], meeting_ns: Ints) -> tuple[Ints, Ints]:
    """Append a task for each row, and before each collective of a meeting a mark for its arrival.

    Return the first and the last task of each row. The wait of a rank before all have arrived is not part of the
    collective's duration.
    """
    device_work = window.device_work
    is_meeting = meeting_ns != MISSING
    rows = np.repeat(np.arange(len(device_work)), 1 + is_meeting)
    is_arrival = np.zeros(len(rows), dtype=bool)
    is_arrival[:-1] = rows[1:] == rows[:-1]
    name = assembly.number_names(device_work.name, window.index.device_work.names)[rows]
    name[is_arrival] = assembly.number_names(np.zeros(int(is_arrival.any()), np.int64), ["arrives"])
    start = np.where(is_meeting, meeting_ns, device_work.start)[rows]
    columns = {
        column: np.where(is_arrival, default, values[rows])
        for column, (values, default) in _task_columns(window, operators).items()
    }
    columns["launched_by"] = np.where(is_arrival, -1, _launching_operators(assembly, window)[rows])
    numbers = assembly.tasks(
        name,
        _stream_lanes(assembly, window)[rows],
        {
            **columns,
            "measured_start_ns": np.where(is_arrival, device_work.start[rows], start),
            "measured_end_ns": np.where(is_arrival, device_work.start[rows], device_work.end[rows]),
            "iteration": device_work.iteration[rows],
            "event": device_work.id[rows],
        },
    )
    done = numbers[~is_arrival]
    begin = done.copy()
    begin[is_meeting] = numbers[is_arrival]
    return begin, done


def _task_columns(window: Window, operators: tuple[Ints, Ints]) -> dict[str, tuple[npt.NDArray[Any], npt.ArrayLike]]:
    """Return the columns that describe each row, and the value that an arrival has in each."""
    device_work, table = window.device_work, window.trace.collectives
    table_row = window.index.collectives.find(device_work.collective)
    is_collective = device_work.collective != MISSING
    kind = np.where(is_collective, int(TaskKind.COLLECTIVE), int(TaskKind.KERNEL))
    class_of_name = np.array([_CLASS_INDEX[name] for name in window.index.device_work.classes], dtype=np.int64)
    columns = table.select(["group_size"]).take(arrow_array(table_row, table_row == MISSING))
    ranks, exchanged = np.maximum(integers(columns, "group_size"), 0), _exchange_columns(window, table_row)
    size = np.maximum(exchanged.pop("bytes"), 0)
    return {
        "kind": (np.where(device_work.is_copy, int(TaskKind.COPY), kind), int(TaskKind.MARK)),
        "class_": (np.where(device_work.is_copy, -1, class_of_name[device_work.name]), -1),
        "workgroups": (np.maximum(device_work.workgroups, 0), 0),
        "bytes": (np.where(is_collective, size, np.maximum(device_work.bytes, 0)), 0),
        "dtype": (window_dtypes(window), -1),
        "collective": (np.where(is_collective, _collective_kinds(window, table_row), -1), -1),
        "operator": (operators[0], -1),
        "memory_operator": (operators[1], -1),
        "ranks": (ranks, 0),
        "direction": (device_work.direction, -1),
        "phase": (device_work.phase, -1),
        **{name: (column, -1) for name, column in exchanged.items()},
        **_unit_shares(window),
    }


def _exchange_columns(window: Window, table_row: Ints) -> dict[str, Ints]:
    """Return the bytes of each row's collective, and if there are all-to-alls, the elements that these move."""
    sizes = window.index.exchanges
    columns = {"bytes": sizes.bytes}
    if sizes.is_exchange.any():
        columns |= {"sent_elements": sizes.sent, "received_elements": sizes.received}
    at = np.where(table_row == MISSING, len(sizes.bytes), table_row)
    return {name: np.maximum(np.append(column, -1)[at], -1) for name, column in columns.items()}


def _unit_shares(window: Window) -> dict[str, tuple[npt.NDArray[Any], npt.ArrayLike]]:
    """Return what a workgroup of each kernel takes of a compute unit; all of it if trace and catalogue do not tell."""
    device, work = window.index.hardware.device, window.device_work
    columns = {name: np.ones(len(work)) for name in UNIT_COLUMNS}
    known, assumed = np.flatnonzero(work.threads > 0), COLLECTIVE_WORKGROUP
    if len(known):
        registers, lds = np.maximum(work.registers, 0), np.maximum(work.lds_bytes, 0)
        is_unstated = (work.collective != MISSING) & (registers == 0) & (lds == 0)
        registers, lds = (
            np.where(is_unstated, a, b) for a, b in ((assumed.registers, registers), (assumed.lds_bytes, lds))
        )
        shapes = np.stack([work.threads[known], registers[known], lds[known]])
        (threads, registers, lds), index = np.unique(shapes, axis=1, return_inverse=True)
        with suppress(InvalidInputError):  # the catalogue does not know how its compute units allocate
            shares = unit_shares(device, threads, registers=registers, lds_bytes=lds)
            for column, share in zip(columns.values(), shares, strict=True):
                column[known] = share[index]
    return {name: (column, 1.0) for name, column in columns.items()}


def _launching_operators(assembly: Assembly, window: Window) -> Ints:
    """Return the number of the name of the operator that launched each row; -1 if unknown."""
    numbers = window.device_work.launched_by.copy()
    known = numbers >= 0
    numbers[known] = assembly.number_names(numbers[known], window.index.device_work.op_names)
    return numbers


def _collective_kinds(window: Window, table_row: Ints) -> Ints:
    """Return the kind of each row's collective, as an index into `COLLECTIVE_KINDS`; unknown without a collective."""
    unknown = COLLECTIVE_KINDS.index("unknown")
    result = np.full(len(table_row), unknown)
    rows = np.flatnonzero(table_row != MISSING)
    if not len(rows):
        return result
    names = strings(window.trace.collectives.select(["collective"]).take(arrow_array(table_row[rows])), "collective")
    result[rows] = [COLLECTIVE_KINDS.index(name) if name in COLLECTIVE_KINDS else unknown for name in names]
    return result


def _stream_lanes(assembly: Assembly, window: Window) -> Ints:
    """Return the lane of each row."""
    device_work = window.device_work
    first = device_work.queue_starts()
    heads = np.flatnonzero(first)
    columns = (device_work.rank[heads], device_work.device[heads], device_work.stream[heads])
    streams = zip(*(column.tolist() for column in columns), strict=True)
    lanes = np.array([assembly.number_lane(Lane(*stream)) for stream in streams], dtype=np.int64)
    return np.asarray(lanes[np.cumsum(first) - 1])


#: Kinds of operators whose FLOP the kernels of a class compute. A copy or a sum that the operator launches beside them
#: is not counted.
_OPERATOR_KINDS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("matmul", "batched_matmul", "convolution", "experts"),
    "convolution": ("convolution",),
    "attention": ATTENTION,
}
#: Kinds of operators that are bound by memory. Each is computed by a single kernel, or its accesses are unknown.
_MEMORY_KINDS = frozenset(
    ("elementwise", "copy", "reduction", "normalization", "softmax", "pooling", "lrn", "embedding", "rnn", "optimizer")
)
_CALL_COLUMNS = ("name", "shapes", "dtypes", "concrete_inputs")


def kernel_use(kind: str, class_: str) -> str:
    """Return what a kernel of a class does for its operator's kind: ``"computes"`` it, ``"moves"`` its data, or ``""``.

    Examples
    --------
    >>> kernel_use("matmul", "gemm"), kernel_use("copy", "elementwise"), kernel_use("matmul", "elementwise")
    ('computes', 'moves', '')
    """
    if kind in _OPERATOR_KINDS.get(class_, ()):
        return "computes"
    return "moves" if kind in _MEMORY_KINDS else ""


def window_operators(window: Window) -> tuple[Ints, Ints, tuple[Operator, ...]]:
    """Return the operator that each row of device work computes, the one whose data it moves, and the operators."""
    work = window.device_work
    launched_by = np.where(work.is_copy | (work.collective != MISSING), MISSING, work.op)
    return kernel_operators(window.index, launched_by, work.name)


def kernel_operators(index: TraceIndex, ops: Ints, names: Ints) -> tuple[Ints, Ints, tuple[Operator, ...]]:
    """Return the operator that each kernel computes, the one whose data it moves, and the operators.

    The first is known for products, convolutions and attention, the second for kernels that are bound by memory, if
    their operator launched no other kernel; otherwise they are -1. Equal calls share one operator, so that a job of
    many layers has few of them.

    Parameters
    ----------
    index : TraceIndex
        Index of the trace.
    ops : array of int64, shape (n,)
        Id of the operator that launched each kernel; `MISSING` if unknown, and for copies and collectives.
    names : array of int64, shape (n,)
        Name of each kernel, as an index into the names of the index.
    """
    rows = index.ops.find(ops)
    launched = np.flatnonzero(rows != MISSING)
    distinct, position, counts = np.unique(rows[launched], return_inverse=True, return_counts=True)
    call, calls = distinct_calls(index, distinct)
    operators = [operator_of(each) for each in calls]
    distinct_operators = tuple(dict.fromkeys(each for each in operators if each is not None))
    numbers = {operator: number for number, operator in enumerate(distinct_operators)}
    number_of_call = np.array([numbers.get(each, -1) if each else -1 for each in operators], dtype=np.int64)
    number = number_of_call[call[position]] if len(calls) else np.full(len(launched), -1)
    class_of_name = np.array([_CLASS_INDEX[name] for name in index.device_work.classes], dtype=np.int64)
    uses = np.array(
        [[kernel_use(each.kind, name) for name in CLASSES] for each in distinct_operators] or [[""] * len(CLASSES)]
    )
    use = np.where(number >= 0, uses[np.maximum(number, 0), class_of_name[names[launched]]], "")
    computes, moves = use == "computes", (use == "moves") & (counts[position] == 1)
    computed, moved = np.full((2, len(ops)), -1)
    computed[launched[computes]], moved[launched[moves]] = number[computes], number[moves]
    return computed, moved, distinct_operators


def distinct_calls(index: TraceIndex, rows: Ints) -> tuple[Ints, list[Call]]:
    """Return the number of the call of each row of the trace's ops, and the distinct calls.

    Parameters
    ----------
    index : TraceIndex
        Index of the trace.
    rows : array of int64, shape (n,)
        Rows of the trace's table of operators.
    """
    number, recorded = _recorded_calls(index, rows, (*_CALL_COLUMNS, "strides"))
    calls = [Call.of_row(*row) for row in recorded]
    steps = index.serving
    if not len(steps):
        return number, calls
    # Equal calls of attention do other work in another step.
    of_step = [replace(call, ranks=index.trace.meta.world_size or 1) for call in calls]
    attends = np.array([takes_requests(call) for call in calls] or [False])[number]
    ops = index.trace.ops
    row = steps.at(integers(ops, "rank")[rows], integers(ops, "start_ns")[rows])
    step = np.where(attends & (row >= 0), steps.number[row], -1)
    pairs, of_row = np.unique(np.stack([number, step]), axis=1, return_inverse=True)
    return of_row.ravel(), [
        replace(of_step[call], step=steps.steps[at]) if at >= 0 else of_step[call] for call, at in pairs.T.tolist()
    ]


def _recorded_calls(index: TraceIndex, rows: Ints, names: Sequence[str] = _CALL_COLUMNS) -> tuple[Ints, list[Any]]:
    """Return the same with the calls as they were recorded, in some columns."""
    table = index.trace.ops.select(list(names)).take(arrow_array(rows))
    encoded = [encode_text(table[name]) for name in names]
    number, first = np.zeros(len(rows), dtype=np.int64), np.zeros(0, dtype=np.int64)
    for codes, texts in encoded:
        _, first, number = np.unique(number * (len(texts) + 1) + codes, return_index=True, return_inverse=True)
    columns = [[texts[code] if code >= 0 else None for code in codes[first]] for codes, texts in encoded]
    return number, list(zip(*columns, strict=True))


def _launching_calls(window: Window) -> tuple[Ints, tuple[RecordedCall, ...]]:
    """Return the number of the call that launched each row of device work, -1 if unknown, and the distinct calls."""
    rows = window.index.ops.find(window.device_work.op)
    known = rows != MISSING
    numbers = np.full(len(rows), -1)
    numbers[known], calls = _recorded_calls(window.index, rows[known])
    return numbers, tuple(calls)


def kernel_storages(window: Window) -> dict[int, Storages]:
    """Return the storages that the operators of kernels read and write, by event.

    They are known for operators that an execution trace describes. A Python loop over these, about 20 us each.

    Parameters
    ----------
    window : Window
        Iterations of a trace.
    """
    rows = window.index.ops.find(window.device_work.op)
    events, rows = window.device_work.id[rows != MISSING], rows[rows != MISSING]
    distinct, position = np.unique(rows, return_inverse=True)
    texts = strings(window.trace.ops.select(["args"]).take(arrow_array(distinct)), "args")
    storages = [storages_of_arguments(text) for text in texts]
    of_kernel = zip(events.tolist(), position.tolist(), strict=True)
    return {event: found for event, number in of_kernel if (found := storages[number]) is not None}


#: Key of what an execution trace knows of an operator, and the length of a tensor in it: tensor, storage, offset,
#: elements, bytes of an element, and device.
_NODE, _TENSOR_LENGTH = "execution_trace", 6


def storages_of_arguments(text: str | None) -> Storages | None:
    """Return the storages of an operator's tensors; None if they are unknown.

    An operator that returns no tensor, such as a fused optimiser, may write each that it reads.

    Parameters
    ----------
    text : str or None
        Arguments of the operator as JSON, with the arguments that an execution trace added.
    """
    if not text or f'"{_NODE}"' not in text:
        return None
    try:
        node = json.loads(text)[_NODE]
        reads, writes = (frozenset(_tensors(node.get(side, {}).get("values"))) for side in ("inputs", "outputs"))
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None
    return Storages(reads, writes or reads) if reads or writes else None


def _tensors(value: Any) -> Iterator[int]:
    """Yield the storage of each tensor in a value of an execution trace."""
    if not isinstance(value, list):
        return
    if len(value) == _TENSOR_LENGTH and isinstance(value[1], int) and isinstance(value[-1], str):
        yield from (value[1],) if value[1] > 0 else ()  # 0 stands for no tensor
        return
    for each in value:
        yield from _tensors(each)


#: Data types by the profiler's names for an operator's inputs.
_DTYPE_OF_INPUT = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
}
#: Data types by the names that collectives are recorded with, in lower case.
_DTYPE_OF_RECORD = {
    **{name.lower(): dtype for name, dtype in _DTYPE_OF_INPUT.items()},
    **{"bfloat16": "bf16", "half": "fp16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"},
}


def window_dtypes(window: Window) -> Ints:
    """Return the data type of each row of device work, as an index into `tuple(DTYPES)`; -1 if unknown.

    The record of a collective tells it, else the kernel's name, else the inputs of its operator.
    """
    return _with_recorded_dtypes(window, kernel_dtypes(window.index, window.device_work.op, window.device_work.name))


def kernel_dtypes(index: TraceIndex, ops: Ints, names: Ints) -> Ints:
    """Return the data type of each kernel, as an index into `tuple(DTYPES)`; -1 if unknown.

    Its name tells it, else the inputs of its operator.

    Parameters
    ----------
    index : TraceIndex
        Index of the trace.
    ops : array of int64, shape (n,)
        Id of the operator that launched each kernel, or `MISSING`.
    names : array of int64, shape (n,)
        Name of each kernel, as an index into the names of the index.
    """
    result = index.device_work.dtypes[names].copy()
    unnamed = np.flatnonzero(result < 0)
    rows = index.ops.find(ops[unnamed])
    codes, texts = encode_text(index.trace.ops["dtypes"])
    code = np.append(codes, -1)[np.where(rows == MISSING, len(codes), rows)]
    used = np.unique(code)
    of_text = np.full(len(texts) + 1, -1)
    of_text[used] = [dtype_of_inputs(texts[each] if each >= 0 else None) for each in used.tolist()]
    result[unnamed] = of_text[code]
    return result


def _with_recorded_dtypes(window: Window, dtypes: Ints) -> Ints:
    """Return `dtypes` with the types of collectives that the profiler recorded."""
    table, table_row = window.trace.collectives, window.index.collectives.find(window.device_work.collective)
    rows = np.flatnonzero(table_row != MISSING)
    if not len(rows):
        return dtypes
    texts = strings(table.select(["dtype"]).take(arrow_array(table_row[rows])), "dtype")
    dtypes[rows] = [recorded_dtype(text, known) for text, known in zip(texts, dtypes[rows].tolist(), strict=True)]
    return dtypes


def recorded_dtype(text: object, known: int) -> int:
    """Return the data type that a collective is recorded with, as an index into `tuple(DTYPES)`; else the known one."""
    return DTYPE_INDEX.get(_DTYPE_OF_RECORD.get(str(text).lower(), ""), known)


def dtype_of_inputs(text: str | None) -> int:
    """Return the data type of the first floating-point input; -1 without one."""
    types = json.loads(text) if text else []
    dtypes = (_DTYPE_OF_INPUT.get(t) for t in types if isinstance(t, str)) if isinstance(types, list) else ()
    return next((DTYPE_INDEX[t] for t in dtypes if t is not None), -1)


def build_graph(
    trace: Trace | TraceIndex,
    iterations: int | Sequence[int],
    hardware: Hardware | None = None,
    *,
    parameters: Parameters,
) -> KernelGraph:
    """Return the graph of one iteration, or of consecutive ones, on all their ranks.

    Host calls are ordered on their threads, kernels and copies on their streams, also from one iteration to the next.
    Launches, event waits, synchronisations and collectives join them. The backlog is part of the graph, and of none of
    its iterations. Durations are isolated: the measured contention is taken out, and a replay puts it back.

    Parameters
    ----------
    trace : Trace or TraceIndex
        A trace; its index if several graphs are built from it.
    iterations : int or sequence of int
        Consecutive numbers of iterations, in order.
    hardware : Hardware, optional
        Hardware of the devices; by default the hardware that the trace names.
    parameters : Parameters
        Parameters of the contention model, by which measured durations are isolated.

    Raises
    ------
    InvalidInputError
        The trace lacks one of the iterations, or none is named.
    """
    numbers = (iterations,) if isinstance(iterations, int) else tuple(iterations)
    if not numbers:
        raise InvalidInputError("a graph needs at least one iteration; name one")
    index = trace if isinstance(trace, TraceIndex) else index_trace(trace)
    window = open_window(index, numbers)
    assembly = Assembly()
    host = add_host(assembly, window)
    device_tasks, operators, notes = add_device(assembly, window, host)
    add_returns(assembly, window, host, device_tasks)
    queues = add_queue_edges(assembly, window, host, device_tasks[0])
    graph = assembly.graph(hardware or index.hardware)
    launching, calls = _launching_calls(window)
    call = np.full(len(graph.tasks), -1)
    call[device_tasks[1]] = launching
    graph = replace(
        graph.with_tasks(call=call),
        measured_ns=float(np.nanmax(graph.tasks.measured_end_ns[graph.tasks.in_iteration], initial=0.0)),
        origin=Basis.ASSUMED if index.trace.meta.synthetic else Basis.MEASURED,
        notes=(*_device_notes(hardware, index.hardware), *clock_notes(window), *notes),
        operators=operators,
        iterations=numbers,
        world_size=index.trace.meta.world_size or 0,
        storages=kernel_storages(window),
        calls=calls,
        launch_queues=queues,
    )
    return isolate(graph.with_notes(_recording_notes(graph)), parameters)


def _device_notes(given: Hardware | None, traced: Hardware) -> list[str]:
    """Return a note if a user names another device than the trace or its file does."""
    if given is None or given.known_by != "user" or given.device is None or traced.device is None:
        return []
    if given.device.name == traced.device.name:
        return []
    source = "trace" if traced.known_by == "trace" else "file"
    return [
        f"--device {given.device.name} replaces the device that the {source} names, {traced.device.name}: durations "
        f"are taken for those of {given.device.name}. To ask for times on another device: scale_device:NAME"
    ]


#: Recordings of ranks that begin further apart than this share of an iteration are noted.
_APART = 0.05


def _recording_notes(graph: KernelGraph) -> list[str]:
    """Return a note if the ranks of a single iteration begin to record at different times."""
    late, ranks = graph.late_recording_ns(), graph.ranks()
    apart_ns = float(late.max(initial=0.0))
    if len(graph.iterations) > 1 or apart_ns <= _APART * graph.measured_ns:
        return []
    return [
        f"recordings of ranks begin up to {apart_ns / 1e6:.2f} ms apart, that of rank {ranks[np.argmax(late)]} last. "
        "What a rank did before is unknown: it counts as unexplained and what-ifs leave it as it is. Other ranks may "
        "wait for the recording alone"
    ]
