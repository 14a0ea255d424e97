"""A graph under construction: rows are appended, then frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replay.graph import RESOURCES, Basis, EdgeKind, Edges, Hardware, KernelGraph, Lane, TaskKind, Tasks
from replay.operators import Operator

__all__ = ["Draft"]

_NAN = float("nan")
#: What a row of a draft holds, in this order, and as what.
_COLUMNS: Mapping[str, type] = {
    **dict.fromkeys(("kind", "name", "class_", "lane", "device"), np.int64),
    **dict.fromkeys(("duration_ns", "release_ns", "measured_start_ns", "measured_end_ns"), np.float64),
    "own": np.bool_,
    **dict.fromkeys(("event", "workgroups", "bytes", "dtype", "collective", "operator", "ranks"), np.int64),
}


@dataclass
class Draft:
    """Lists of tasks and edges; the only mutable thing between a trace and its graph."""

    rows: list[tuple[int, int, int, int, int, float, float, float, float, bool, int, int, int, int, int, int, int]] = (
        field(default_factory=list)
    )
    edges: list[tuple[int, int, float, bool, int]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    lanes: dict[Lane, int] = field(default_factory=dict)
    devices: dict[tuple[int, int], int] = field(default_factory=dict)
    operators: dict[Operator, int] = field(default_factory=dict)

    def task(
        self, kind: TaskKind, name: str, lane: Lane | None, *, times: tuple[float, float] | None, row: Mapping[str, int]
    ) -> int:
        """Append a task and return its number.

        Parameters
        ----------
        times : (start, end), optional
            As measured; the duration is their difference. None for what nobody measured: it takes no time.
        row : mapping
            ``class``, ``event``, ``workgroups``, ``bytes``, ``own``, ``dtype``, ``collective``,
            ``operator``, ``ranks``: those that differ from their default.
        """
        start, end = times if times is not None else (_NAN, _NAN)
        device = -1
        if lane is not None and lane.device is not None:
            device = self.devices.setdefault((lane.rank, lane.device), len(self.devices))
        self.rows.append(
            (
                int(kind),
                self.names.setdefault(name, len(self.names)),
                row.get("class", -1),
                -1 if lane is None else self.lanes.setdefault(lane, len(self.lanes)),
                device,
                0.0 if times is None else end - start,
                float(row.get("release", 0)),
                start,
                end,
                bool(row.get("own", 1)),
                row.get("event", -1),
                row.get("workgroups", 0),
                row.get("bytes", 0),
                row.get("dtype", -1),
                row.get("collective", -1),
                row.get("operator", -1),
                row.get("ranks", 0),
            )
        )
        return len(self.rows) - 1

    def operator(self, operator: Operator | None) -> int:
        """Return the number of an operator; -1 for None."""
        return -1 if operator is None else self.operators.setdefault(operator, len(self.operators))

    def edge(self, source: int, target: int, lag: float, kind: EdgeKind, *, from_start: bool = False) -> None:
        """Append an edge; a lag below zero, which only clocks that disagree can make, becomes zero."""
        self.edges.append((source, target, max(float(lag), 0.0), from_start, int(kind)))

    def release(self, task: int, time: float) -> None:
        """Let `task` start no earlier than `time`."""
        row = self.rows[task]
        self.rows[task] = (*row[:6], max(row[6], float(time)), *row[7:])

    def freeze(self, hardware: Hardware) -> KernelGraph:
        """Return the graph; every task has no demand yet and rests on what was measured."""
        n = len(self.rows)
        values = list(zip(*self.rows, strict=True)) or [()] * len(_COLUMNS)
        columns: dict[str, Any] = {
            name: np.array(column, dtype=type_) for (name, type_), column in zip(_COLUMNS.items(), values, strict=True)
        }
        tasks = Tasks(
            **columns,
            demand=np.zeros((n, len(RESOURCES))),
            basis=np.full(n, int(Basis.MEASURED)),
        )
        sides = list(zip(*self.edges, strict=True)) or [()] * 5
        types = (np.int64, np.int64, np.float64, np.bool_, np.int64)
        edges = Edges(*(np.array(side, dtype=type_) for side, type_ in zip(sides, types, strict=True)))
        measured = columns["measured_end_ns"][columns["own"]]
        places = (tuple(self.names), tuple(self.lanes), tuple(self.devices))
        makespan = float(np.nanmax(measured, initial=0.0))
        return KernelGraph(tasks, edges, *places, makespan, hardware, operators=tuple(self.operators))
