"""Tasks and edges one at a time, for `replay.build.draft.Draft`, which takes blocks."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from replay.build.draft import Draft, NewEdges
from replay.graph import EdgeKind, Hardware, KernelGraph, Lane, TaskKind

__all__ = ["DraftRows"]


class DraftRows:
    """Collects rows; `freeze` makes the graph."""

    def __init__(self) -> None:
        self._draft = Draft()
        self._columns: dict[str, list[Any]] = defaultdict(list)
        self._edges: list[tuple[int, int, int]] = []

    def task(
        self, kind: TaskKind, name: str, lane: Lane | None, *, times: tuple[float, float] | None, row: Mapping[str, int]
    ) -> int:
        """Append a task and return its number.

        Parameters
        ----------
        times : (start, end), optional
            None for what nobody measured: it takes no time.
        row : mapping
            ``class_``, ``event``, ``bytes``, ``collective``: those that differ from their default.
        """
        nan = float("nan")
        start, end = times if times is not None else (nan, nan)
        number, device = (-1, -1) if lane is None else self._draft.lane(lane)
        known = {"class_": -1, "event": -1, "bytes": 0, "collective": -1, **row}
        known |= {"kind": int(kind), "name": self._draft.name(name), "lane": number, "device": device}
        for column, value in {**known, "measured_start_ns": start, "measured_end_ns": end}.items():
            self._columns[column].append(value)
        return len(self._columns["kind"]) - 1

    def edge(self, source: int, target: int, kind: EdgeKind) -> None:
        """Append an edge without a lag."""
        self._edges.append((source, target, int(kind)))

    def freeze(self, hardware: Hardware) -> KernelGraph:
        """Return the graph, without demands."""
        self._draft.tasks(len(self._columns["kind"]), self._columns)
        source, target, kind = np.array(self._edges, dtype=np.int64).reshape(-1, 3).T
        self._draft.edges(NewEdges(source, target, 0.0, kind))
        return self._draft.freeze(hardware)
