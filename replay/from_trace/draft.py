"""A graph under construction: blocks of tasks and edges are appended, then frozen.

`window_operators` and `window_dtypes` return the operators and data types of the kernels of a window.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import DTYPES
from profilers.trace.arrays import MISSING, Floats, Ints, arrow_array
from replay.costs.operators import Call, operator_of
from replay.from_trace.window import Window
from replay.graph.graph import RESOURCES, Basis, EdgeKind, Edges, Hardware, KernelGraph, Lane, Tasks
from replay.graph.operators import Operator

_NAN = float("nan")
#: Type and default of each column of a task.
_TASK_COLUMNS: Mapping[str, tuple[type, float]] = {
    **dict.fromkeys(("kind", "name"), (np.int64, 0)),
    **dict.fromkeys(("class_", "lane", "device"), (np.int64, -1)),
    **dict.fromkeys(("measured_start_ns", "measured_end_ns"), (np.float64, _NAN)),
    "iteration": (np.int64, 0),
    "event": (np.int64, -1),
    **dict.fromkeys(("workgroups", "bytes", "ranks"), (np.int64, 0)),
    **dict.fromkeys(("dtype", "collective", "operator"), (np.int64, -1)),
}


@dataclass(frozen=True)
class NewEdges:
    """Edges to append: columns of equal length, or one value for all.

    Lags are not negative: an edge whose lag would be, since clocks disagree, is left out and noted
    (`replay.from_trace.window.clock_notes`).
    """

    source: Ints
    target: Ints
    lag_ns: Any
    kind: Any
    from_start: Any = False


@dataclass
class Draft:
    """Blocks of tasks and edges under construction; `freeze` returns the graph."""

    names: dict[str, int] = field(default_factory=dict)
    lanes: dict[Lane, int] = field(default_factory=dict)
    devices: dict[tuple[int, int], int] = field(default_factory=dict)
    operators: dict[Operator, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _tasks: list[dict[str, npt.NDArray[Any]]] = field(default_factory=list)
    _edges: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)
    _releases: list[tuple[Ints, Floats]] = field(default_factory=list)
    _count: int = 0

    def tasks(self, n: int, columns: Mapping[str, Any]) -> Ints:
        """Append `n` tasks and return their numbers.

        Parameters
        ----------
        n : int
            Number of tasks.
        columns : mapping
            Columns of `replay.graph.Tasks` by name, each an array of length `n` or one value for all; others have
            their defaults. The duration is the measured one, or 0.
        """
        block: dict[str, npt.NDArray[Any]] = {
            name: np.broadcast_to(np.asarray(columns.get(name, default), dtype=type_), n)
            for name, (type_, default) in _TASK_COLUMNS.items()
        }
        self._tasks.append(block)
        self._count += n
        return np.arange(self._count - n, self._count)

    def edges(self, new: NewEdges) -> None:
        """Append a block of edges."""
        columns = (new.source, new.target, new.lag_ns, new.from_start, new.kind)
        n = len(new.source)
        types = (np.int64, np.int64, np.float64, np.bool_, np.int64)
        self._edges.append(
            tuple(np.broadcast_to(np.asarray(c, dtype=t), n) for c, t in zip(columns, types, strict=True))
        )

    def edge(self, source: int, target: int, lag: float, kind: EdgeKind) -> None:
        """Append one edge."""
        self.edges(NewEdges(np.array([source]), np.array([target]), lag, kind))

    def release(self, tasks: Ints, times: Floats) -> None:
        """Let each of `tasks` start no earlier than its time."""
        self._releases.append((tasks, times))

    def named(self, codes: Ints, texts: npt.NDArray[np.object_], suffix: str = "") -> Ints:
        """Return the numbers of the names ``texts[codes]``, each with `suffix`."""
        distinct, index = np.unique(codes, return_inverse=True)
        numbers = [self.name(f"{texts[code]}{suffix}") for code in distinct.tolist()]
        return np.array(numbers, dtype=np.int64)[index]

    def name(self, text: str) -> int:
        """Return the number of a name."""
        return self.names.setdefault(text, len(self.names))

    def lane(self, lane: Lane) -> tuple[int, int]:
        """Return the numbers of a lane and of its device, -1 on the host."""
        device = -1
        if lane.device is not None:
            device = self.devices.setdefault((lane.rank, lane.device), len(self.devices))
        return self.lanes.setdefault(lane, len(self.lanes)), device

    def operator(self, operator: Operator) -> int:
        """Return the number of an operator."""
        return self.operators.setdefault(operator, len(self.operators))

    def freeze(self, hardware: Hardware, iterations: tuple[int, ...] = (0,)) -> KernelGraph:
        """Return the graph of `iterations`. Its tasks have measured durations, and no demands yet."""
        n = self._count
        columns: dict[str, Any] = {
            name: _concatenate([block[name] for block in self._tasks], type_)
            for name, (type_, _) in _TASK_COLUMNS.items()
        }
        release = np.zeros(n)
        for tasks, times in self._releases:
            np.maximum.at(release, tasks, times)
        start, end = columns["measured_start_ns"], columns["measured_end_ns"]
        tasks_ = Tasks(
            **columns,
            duration_ns=np.where(np.isnan(start), 0.0, end - start),
            release_ns=release,
            demand=np.zeros((n, len(RESOURCES))),
            basis=np.full(n, int(Basis.MEASURED)),
        )
        types = (np.int64, np.int64, np.float64, np.bool_, np.int64)
        edges = Edges(*(_concatenate([block[i] for block in self._edges], t) for i, t in enumerate(types)))
        makespan = float(np.nanmax(end[columns["iteration"] >= 0], initial=0.0))
        labels = (tuple(self.names), tuple(self.lanes), tuple(self.devices))
        operators = tuple(self.operators)
        return KernelGraph(tasks_, edges, *labels, makespan, hardware, notes=tuple(self.notes), operators=operators,
                           iterations=iterations)  # fmt: skip


def _concatenate(blocks: Sequence[npt.NDArray[Any]], type_: type) -> npt.NDArray[Any]:
    """Return the blocks of a column as one array, empty without blocks."""
    return np.concatenate(blocks) if blocks else np.zeros(0, dtype=type_)


#: Kinds of operators whose FLOP the kernels of a class compute. A copy or a sum that the operator launches beside them
#: is not counted.
_OPERATOR_KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "gemm": frozenset({"matmul", "batched_matmul", "convolution"}),
        "convolution": frozenset({"convolution"}),
        "attention": frozenset({"attention"}),
    }
)
_CALL_COLUMNS = ("name", "shapes", "dtypes", "concrete_inputs")


def window_operators(window: Window) -> dict[int, Operator]:
    """Return the operator of each row of device work for which it is known.

    Equal calls share one operator, so that a job of many layers has few of them.
    """
    device_work, ops = window.device_work, window.trace.ops
    classes = window.index.device_work.names.class_[device_work.name]
    candidates = np.flatnonzero(np.isin(classes, tuple(_OPERATOR_KINDS)))
    rows = window.index.ops.find(device_work.op[candidates])
    candidates, rows = candidates[rows != MISSING], rows[rows != MISSING]
    distinct, index = np.unique(rows, return_inverse=True)
    calls = ops.select(list(_CALL_COLUMNS)).take(arrow_array(distinct)).to_pylist() if len(distinct) else []
    keys = [tuple(call[column] for column in _CALL_COLUMNS) for call in calls]
    operator_of_call = {key: operator_of(Call.of_row(*key)) for key in dict.fromkeys(keys)}
    by_row = ((row, operator_of_call[keys[i]]) for row, i in zip(candidates.tolist(), index.tolist(), strict=True))
    return {row: o for row, o in by_row if o is not None and o.kind in _OPERATOR_KINDS[classes[row]]}


_DTYPE_INDEX = {name: i for i, name in enumerate(DTYPES)}
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


def window_dtypes(window: Window) -> npt.NDArray[np.int64]:
    """Return the data type of each row of device work, as an index into `tuple(DTYPES)`; -1 if unknown.

    The kernel's name tells it, else the inputs of its operator.
    """
    names = window.index.device_work.names
    by_name = names.dtype[window.device_work.name]
    unnamed = np.flatnonzero(by_name < 0)
    rows = window.index.ops.find(window.device_work.op[unnamed])
    distinct, index = np.unique(rows, return_inverse=True)
    has_op = distinct != MISSING
    texts = window.trace.ops["dtypes"].take(arrow_array(distinct[has_op])).to_pylist() if has_op.any() else []
    dtype_of_text = {text: _dtype_of_inputs(text) for text in set(texts)}
    by_row = np.full(len(distinct), -1)
    by_row[has_op] = [dtype_of_text[text] for text in texts]
    result = by_name.copy()
    result[unnamed] = by_row[index]
    return result


def _dtype_of_inputs(text: str | None) -> int:
    """Return the data type of the first floating-point input; -1 without one."""
    types = json.loads(text) if text else []
    dtypes = (_DTYPE_OF_INPUT.get(t) for t in types if isinstance(t, str)) if isinstance(types, list) else ()
    return next((_DTYPE_INDEX[t] for t in dtypes if t is not None), -1)
