"""`Assembly`: build a graph block by block, from the events of a trace or from models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.graph.columns import TASK_COLUMNS
from replay.graph.graph import (
    RESOURCES,
    Basis,
    EdgeKind,
    Edges,
    Hardware,
    KernelGraph,
    Lane,
    SharingPolicy,
    Tasks,
)

#: Type and default of each column that `Assembly.tasks` takes: those of a task, but for the lane, its device and its
#: name, and the demand on each of `RESOURCES`. `link` is the demand on a link, and `link_number` names the link.
_GIVEN: Mapping[str, tuple[np.dtype[Any], float]] = {
    **{
        "link_number" if name == "link" else name: (column.dtype, column.default)
        for name, column in TASK_COLUMNS.items()
        if name not in ("lane", "device", "name", "demand")
    },
    **dict.fromkeys(RESOURCES, (np.dtype(np.float64), 0.0)),
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
    _tasks: list[tuple[int, int, dict[str, npt.NDArray[Any]]]] = field(default_factory=list)
    _edges: list[Edges] = field(default_factory=list)
    _releases: list[tuple[Ints, npt.ArrayLike]] = field(default_factory=list)
    _count: int = 0

    def lane(self, *, device: int, stream: int = 0) -> int:
        """Return the number of a stream of a device; each device is a rank of its own."""
        return self.number_lane(Lane(device, device, stream))

    def number_lane(self, lane: Lane) -> int:
        """Return the number of any stream or host thread."""
        if lane.device is not None:
            self._devices.setdefault((lane.rank, lane.device), len(self._devices))
        return self._lanes.setdefault(lane, len(self._lanes))

    def number_names(self, codes: Ints, texts: Sequence[object] | npt.NDArray[np.object_], suffix: str = "") -> Ints:
        """Return the numbers of the names ``texts[codes]``, each with `suffix`."""
        distinct, index = np.unique(codes, return_inverse=True)
        numbers = [self._number_name(f"{texts[code]}{suffix}") for code in distinct.tolist()]
        return np.array(numbers, dtype=np.int64)[index]

    def _number_name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def tasks(self, name: str | Ints, lane: npt.ArrayLike, columns: Mapping[str, Any]) -> Ints:
        """Append tasks and return their numbers.

        Parameters
        ----------
        name : str or array of int, shape (n,)
            Name of the tasks, or the numbers of their names.
        lane : int or array of int, shape (n,)
            Numbers of streams or threads, as `lane` and `number_lane` return them; -1 for marks between lanes.
        columns : mapping
            Columns of `replay.graph.Tasks` and demands on `RESOURCES` by name, each an array of length n or one value
            for all. ``"link"`` is the demand on a link, ``"link_number"`` names the link. By default a task occupies
            the compute units that it demands, and its event is its own number.

        Raises
        ------
        InvalidInputError
            A column has no such name, or another length.
        """
        unknown = sorted(columns.keys() - _GIVEN.keys())
        if unknown:
            raise InvalidInputError(f"tasks have no column {unknown[0]!r}; there are {', '.join(_GIVEN)}")
        name_number = self._number_name(name) if isinstance(name, str) else name
        arrays = {key: np.asarray(value) for key, value in {**columns, "lane": lane, "name": name_number}.items()}
        try:
            (n,) = np.broadcast_shapes((1,), *{value.shape for value in arrays.values()})
        except ValueError as error:
            raise InvalidInputError(f"columns of the tasks {name!r} differ in length: {error}") from error
        self._tasks.append((self._count, n, arrays))
        self._count += n
        return np.arange(self._count - n, self._count)

    def edges(
        self,
        source: npt.ArrayLike,
        target: npt.ArrayLike,
        *,
        lag_ns: npt.ArrayLike = 0.0,
        kind: EdgeKind | Ints = EdgeKind.STREAM,
        from_start: npt.ArrayLike = False,
    ) -> None:
        """Append edges from `source` to `target` tasks, pair by pair. A single task on one side is paired with all."""
        self._edges.append(Edges.of(source, target, kind=kind, lag_ns=lag_ns, from_start=from_start))

    def chain(self, tasks: Ints, lag_ns: float = 0.0) -> None:
        """Append edges that let each task wait for the one before it."""
        if len(tasks) > 1:
            self.edges(tasks[:-1], tasks[1:], lag_ns=lag_ns)

    def release(self, tasks: Ints, times_ns: npt.ArrayLike) -> None:
        """Let each of `tasks` start no earlier than its time."""
        self._releases.append((tasks, times_ns))

    def graph(self, hardware: Hardware | None = None, policy: SharingPolicy | None = None) -> KernelGraph:
        """Return the graph.

        Raises
        ------
        InvalidInputError
            There is no task.
        """
        if not self._tasks:
            raise InvalidInputError("the graph has no task; add one with `tasks` first")
        columns = self._columns()
        for rows, times_ns in self._releases:
            np.maximum.at(columns["release_ns"], rows, times_ns)
        demand = np.stack([columns.pop(name) for name in RESOURCES], axis=1)
        devices = [-1 if k.device is None else self._devices[k.rank, k.device] for k in self._lanes]
        device = np.array([*devices, -1], dtype=np.int64)[columns["lane"]]
        if "link_number" in columns:
            columns["link"] = columns.pop("link_number")
        tasks = Tasks(**columns, device=device, demand=demand)
        edges = Edges.of([], [], kind=EdgeKind.STREAM).joined(*self._edges)
        names = (tuple(self._names), tuple(self._lanes), tuple(self._devices))
        return KernelGraph(
            tasks, edges, *names, 0.0, hardware or Hardware(), Basis.DERIVED, policy=policy or SharingPolicy()
        )

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns that a block of tasks gives, with the default in other blocks; and those of any graph."""
        used = {key for _, _, given in self._tasks for key in given} | {"kind", "release_ns", "occupies", *RESOURCES}
        columns: dict[str, npt.NDArray[Any]] = {
            key: np.full(self._count, default, dtype) for key, (dtype, default) in _GIVEN.items() if key in used
        }
        columns["event"] = np.arange(self._count)
        columns |= {key: np.empty(self._count, np.int64) for key in ("lane", "name")}
        for first, n, given in self._tasks:
            for key, values in given.items():
                columns[key][first : first + n] = values
        columns["occupies"] = np.where(np.isnan(columns["occupies"]), columns["cu"], columns["occupies"])
        return columns
