"""`Assembly`: build a graph from models, without a trace."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.graph.graph import (
    RESOURCES,
    Basis,
    EdgeKind,
    Edges,
    Hardware,
    KernelGraph,
    Lane,
    SharingPolicy,
    TaskKind,
    Tasks,
)

_NAN = float("nan")
#: Type and default of each column of a task, its demands on `RESOURCES` included. `link` is the demand on a link, and
#: `link_number` names the link.
_TASK_COLUMNS: Mapping[str, tuple[type, float]] = {
    "kind": (np.int64, float(TaskKind.KERNEL)),
    **dict.fromkeys(
        ("class_", "dtype", "collective", "operator", "cu_mask", "link_number", "engine"), (np.int64, -1.0)
    ),
    **dict.fromkeys(("workgroups", "bytes", "ranks", "priority"), (np.int64, 0.0)),
    **dict.fromkeys(("duration_ns", "release_ns", "waves", "footprint", "hit_share"), (np.float64, 0.0)),
    "occupies": (np.float64, _NAN),
    "basis": (np.int64, float(Basis.DERIVED)),
    **dict.fromkeys(RESOURCES, (np.float64, 0.0)),
}


@dataclass
class Assembly:
    """Blocks of tasks and edges under construction; `graph` freezes them.

    Examples
    --------
    >>> assembly = Assembly()
    >>> lane = assembly.lane(device=0, stream=1)
    >>> products = assembly.tasks("product", lane, {"duration_ns": [2e6, 1e6], "cu": 1.0, "hbm": 0.3})
    >>> assembly.chain(products)
    >>> from replay.engine import simulate
    >>> simulate(assembly.graph())[1].tolist()
    [2000000.0, 3000000.0]
    """

    _names: dict[str, int] = field(default_factory=dict)
    _lanes: dict[Lane, int] = field(default_factory=dict)
    _devices: dict[tuple[int, int], int] = field(default_factory=dict)
    _tasks: list[dict[str, npt.NDArray[Any]]] = field(default_factory=list)
    _edges: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)
    _count: int = 0

    def lane(self, *, device: int, stream: int = 0) -> int:
        """Return the number of a stream of a device; each device is a rank of its own."""
        lane = Lane(device, device, stream)
        self._devices.setdefault((device, device), len(self._devices))
        return self._lanes.setdefault(lane, len(self._lanes))

    def tasks(self, name: str, lane: npt.ArrayLike, columns: Mapping[str, Any]) -> Ints:
        """Append tasks and return their numbers.

        Parameters
        ----------
        name : str
            Name of the tasks.
        lane : int or array of int, shape (n,)
            Numbers of streams, as `lane` returned them.
        columns : mapping
            Columns of `replay.graph.Tasks` and demands on `RESOURCES` by name, each an array of length n or one value
            for all. ``"link"`` is the demand on a link, ``"link_number"`` names the link. By default a task occupies
            the compute units that it demands.

        Raises
        ------
        InvalidInputError
            A column has no such name, or another length.
        """
        unknown = sorted(columns.keys() - _TASK_COLUMNS.keys())
        if unknown:
            raise InvalidInputError(f"tasks have no column {unknown[0]!r}; there are {', '.join(_TASK_COLUMNS)}")
        arrays = {key: np.asarray(value) for key, value in (*columns.items(), ("lane", lane))}
        try:
            (n,) = np.broadcast_shapes((1,), *(value.shape for value in arrays.values()))
            block: dict[str, npt.NDArray[Any]] = {
                key: np.broadcast_to(arrays.get(key, np.asarray(default)).astype(type_), n)
                for key, (type_, default) in _TASK_COLUMNS.items()
            }
        except ValueError as error:
            raise InvalidInputError(f"columns of the tasks {name!r} differ in length: {error}") from error
        block["occupies"] = np.where(np.isnan(block["occupies"]), block["cu"], block["occupies"])
        block["lane"] = np.broadcast_to(arrays["lane"].astype(np.int64), n)
        block["name"] = np.full(n, self._names.setdefault(name, len(self._names)))
        self._tasks.append(block)
        self._count += n
        return np.arange(self._count - n, self._count)

    def edges(
        self,
        source: npt.ArrayLike,
        target: npt.ArrayLike,
        *,
        lag_ns: npt.ArrayLike = 0.0,
        kind: EdgeKind = EdgeKind.STREAM,
        from_start: npt.ArrayLike = False,
    ) -> None:
        """Append edges from `source` to `target` tasks, pair by pair. A single task on one side is paired with all."""
        columns = (source, target, lag_ns, from_start, int(kind))
        types = (np.int64, np.int64, np.float64, np.bool_, np.int64)
        arrays: list[npt.NDArray[Any]] = [
            np.asarray(column, dtype=type_) for column, type_ in zip(columns, types, strict=True)
        ]
        self._edges.append(tuple(np.broadcast_arrays(np.zeros(1, np.int64), *arrays)[1:]))

    def chain(self, tasks: Ints, lag_ns: float = 0.0) -> None:
        """Append edges that let each task wait for the one before it."""
        if len(tasks) > 1:
            self.edges(tasks[:-1], tasks[1:], lag_ns=lag_ns)

    def graph(self, hardware: Hardware | None = None, policy: SharingPolicy | None = None) -> KernelGraph:
        """Return the graph. It has no measured times.

        Raises
        ------
        InvalidInputError
            There is no task.
        """
        if not self._tasks:
            raise InvalidInputError("the graph has no task; add one with `tasks` first")
        columns = {key: np.concatenate([block[key] for block in self._tasks]) for key in self._tasks[0]}
        n = self._count
        demand = np.stack([columns.pop(name) for name in RESOURCES], axis=1)
        lane_device = np.array([self._devices[(lane.rank, lane.rank)] for lane in self._lanes], dtype=np.int64)
        tasks = Tasks(
            link=columns.pop("link_number"),
            **columns,
            device=lane_device[columns["lane"]],
            demand=demand,
            measured_start_ns=np.full(n, _NAN),
            measured_end_ns=np.full(n, _NAN),
            iteration=np.zeros(n, dtype=np.int64),
            event=np.arange(n),
        )
        types = (np.int64, np.int64, np.float64, np.bool_, np.int64)
        edges = Edges(
            *(np.concatenate([np.zeros(0, t), *(block[i] for block in self._edges)]) for i, t in enumerate(types))
        )
        return KernelGraph(
            tasks,
            edges,
            tuple(self._names),
            tuple(self._lanes),
            tuple(self._devices),
            0.0,
            hardware or Hardware(),
            Basis.DERIVED,
            policy=policy or SharingPolicy(),
        )
