"""A graph while it is being built: tasks, edges, operators, data types.

A graph under construction: blocks of rows are appended, then frozen.

What each kernel of a window computes, where the operator that launched it says so.

The data type in which a kernel computes: from its name, else from its operator's inputs.
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
#: What a row of a draft holds, as what, and what it is where nothing is said.
_COLUMNS: Mapping[str, tuple[type, float]] = {
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
    """Edges to add: equally long columns, or one value for all.

    A lag is never negative here: what clocks that disagree make of one is left out and told
    (`replay.from_trace.window`).
    """

    source: Ints
    target: Ints
    lag_ns: Any
    kind: Any
    from_start: Any = False


@dataclass
class Draft:
    """Blocks of tasks and edges; the only mutable thing between a trace and its graph."""

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
        columns : mapping
            Arrays of length `n`, or one value for all; a column that is not named has its default. The duration
            is what was measured, and nothing where nothing was.
        """
        block: dict[str, npt.NDArray[Any]] = {
            name: np.broadcast_to(np.asarray(columns.get(name, default), dtype=type_), n)
            for name, (type_, default) in _COLUMNS.items()
        }
        self._tasks.append(block)
        self._count += n
        return np.arange(self._count - n, self._count)

    def edges(self, new: NewEdges) -> None:
        """Append edges."""
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
        """Let tasks start no earlier than their times."""
        self._releases.append((tasks, times))

    def named(self, codes: Ints, texts: npt.NDArray[np.object_], suffix: str = "") -> Ints:
        """Return the numbers of the names that `codes` stand for in `texts`."""
        distinct, place = np.unique(codes, return_inverse=True)
        numbers = [self.name(f"{texts[code]}{suffix}") for code in distinct.tolist()]
        return np.array(numbers, dtype=np.int64)[place]

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
        """Return the graph of `iterations`; every task has no demand yet and rests on what was measured."""
        n = self._count
        columns: dict[str, Any] = {
            name: _joined([block[name] for block in self._tasks], type_) for name, (type_, _) in _COLUMNS.items()
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
        edges = Edges(*(_joined([block[i] for block in self._edges], t) for i, t in enumerate(types)))
        makespan = float(np.nanmax(end[columns["iteration"] >= 0], initial=0.0))
        places = (tuple(self.names), tuple(self.lanes), tuple(self.devices))
        operators = tuple(self.operators)
        return KernelGraph(tasks_, edges, *places, makespan, hardware, notes=tuple(self.notes), operators=operators,
                           iterations=iterations)  # fmt: skip


def _joined(parts: Sequence[npt.NDArray[Any]], type_: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=type_)


#: Which kinds of operators the kernels of a class do the main work of; a copy or a sum that an operator launches
#: beside them is not its work.
_KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "gemm": frozenset({"matmul", "batched_matmul", "convolution"}),
        "convolution": frozenset({"convolution"}),
        "attention": frozenset({"attention"}),
    }
)
_CALL_COLUMNS = ("name", "shapes", "dtypes", "concrete_inputs")


def window_operators(window: Window) -> dict[int, Operator]:
    """Return the operator that a row of device work computes, of those rows for which it is known.

    Equal calls share one operator, so that a job of many layers has few of them.
    """
    work, ops = window.work, window.trace.ops
    classes = window.index.work.names.class_[work.name]
    able = np.flatnonzero(np.isin(classes, tuple(_KINDS)))
    rows = window.index.ops.find(work.op[able])
    able, rows = able[rows != MISSING], rows[rows != MISSING]
    wanted, place = np.unique(rows, return_inverse=True)
    calls = ops.select(list(_CALL_COLUMNS)).take(arrow_array(wanted)).to_pylist() if len(wanted) else []
    keys = [tuple(call[column] for column in _CALL_COLUMNS) for call in calls]
    known = {key: operator_of(Call.of_row(*key)) for key in dict.fromkeys(keys)}
    found = ((row, known[keys[i]]) for row, i in zip(able.tolist(), place.tolist(), strict=True))
    return {row: o for row, o in found if o is not None and o.kind in _KINDS[classes[row]]}


_INDEX = {name: i for i, name in enumerate(DTYPES)}
#: As the profiler writes the types of an operator's inputs.
_OF_INPUT = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
}


def window_dtypes(window: Window) -> npt.NDArray[np.int64]:
    """Return for every row of device work an index into `tuple(DTYPES)`, -1 where unknown."""
    names = window.index.work.names
    found = names.dtype[window.work.name]
    unsaid = np.flatnonzero(found < 0)
    rows = window.index.ops.find(window.work.op[unsaid])
    distinct, place = np.unique(rows, return_inverse=True)
    known = distinct != MISSING
    texts = window.trace.ops["dtypes"].take(arrow_array(distinct[known])).to_pylist() if known.any() else []
    of_text = {text: _of_inputs(text) for text in set(texts)}
    by_row = np.full(len(distinct), -1)
    by_row[known] = [of_text[text] for text in texts]
    result = found.copy()
    result[unsaid] = by_row[place]
    return result


def _of_inputs(text: str | None) -> int:
    """Return the type of the first floating input."""
    types = json.loads(text) if text else []
    known = (_OF_INPUT.get(t) for t in types if isinstance(t, str)) if isinstance(types, list) else ()
    return next((_INDEX[t] for t in known if t is not None), -1)
