"""Durations of a graph's tasks on another device, or in another data type, relative to what was traced.

Where the shape of a kernel's operator is known, the part of its traced duration that a model explains is exchanged for
what the model says of the other side; what it does not explain is taken for latency, which stays. Of any other kernel
the part above the floor, which is what a kernel takes that does next to nothing, goes by the rate that binds its class.
Both can be undone: there and back is what was traced.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from profilers.devices import DTYPES, Device
from profilers.errors import InvalidInputError
from profilers.kernels import CLASSES, COMPUTE_BOUND
from replay.graph import RESOURCES, KernelGraph, TaskKind
from replay.operators import DTYPE_BYTES, Operator
from replay.parameters import Parameters
from replay.retiming.capability import capability
from replay.retiming.modelled import modelled_seconds

__all__ = ["above_floor", "arithmetic_tasks", "retimed", "retyped", "streaming_tasks"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_TYPES = tuple(DTYPES)
_HBM, _DMA = RESOURCES.index("hbm"), RESOURCES.index("dma")
_FP32 = _TYPES.index("fp32")
_ARITHMETIC = [i for i, name in enumerate(CLASSES) if name in COMPUTE_BOUND]
_ATTENTION = CLASSES.index("attention")


@dataclass(frozen=True)
class _Side:
    """Where kernels run: a device, the type that each computes in (index into `DTYPES`), and its compute units."""

    device: Device
    dtype: Ints
    units: int

    def floor_ns(self, kind: str, parameters: Parameters) -> float:
        amd = "_amd" if self.device.vendor == "AMD" else ""
        return parameters[f"{kind}_floor{amd}_ns"]


def arithmetic_tasks(graph: KernelGraph) -> Bools:
    """Return which tasks are kernels bound by arithmetic, or by the latency of it."""
    kernel = (graph.tasks.kind == TaskKind.KERNEL) & graph.on_device()
    return np.asarray(kernel & np.isin(graph.tasks.class_, _ARITHMETIC))


def streaming_tasks(graph: KernelGraph) -> Bools:
    """Return which tasks are bound by memory: all other kernels, and copies within a device."""
    tasks = graph.tasks
    kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device() & ~arithmetic_tasks(graph)
    inside = (tasks.demand[:, _HBM] > 0) & (tasks.demand[:, _DMA] == 0)
    return np.asarray(kernel | ((tasks.kind == TaskKind.COPY) & inside))


def above_floor(duration: Floats, floors: tuple[float, float], ratio: Floats | float) -> Floats:
    """Scale what of a duration is above the floor, and exchange the floor.

    Parameters
    ----------
    duration : array of float64
    floors : (before, after)
        In the unit of the durations. Of a duration below it that share of the new floor is taken.
    ratio : array of float64

    Examples
    --------
    >>> above_floor(np.array([1.0, 10.0]), (2.0, 4.0), 0.5).tolist()
    [2.0, 8.0]
    """
    before, after = floors
    fixed = np.minimum(duration, before)
    return np.asarray(fixed * (after / before) + (duration - fixed) * ratio)


def retimed(graph: KernelGraph, target: Device, units: int, parameters: Parameters) -> Floats:
    """Return the durations of kernels, and of copies within a device, on `target`; those of other tasks as they are.

    Parameters
    ----------
    graph : KernelGraph
        Whose device is known.
    target : Device
    units : int
        Its compute units.
    parameters : Parameters

    Returns
    -------
    array of float64, shape (n_tasks,)
        In ns.

    Notes
    -----
    Wave scaling of kernels of less than a wave, of unknown shape: Habitat (USENIX ATC 2021), section 4.1.
    """
    source, tasks = _device(graph), graph.tasks
    dtype = np.where(tasks.dtype >= 0, tasks.dtype, _FP32)
    sides = _Side(source, dtype, graph.hardware.compute_units), _Side(target, dtype, units)
    # How far another design is from what is expected of it is not known; at another clock it is the same design.
    compute, attention, memory = (
        parameters[f"efficiency_ratio_{kind}"] if source.name != target.name else 1.0
        for kind in ("compute", "attention", "memory")
    )
    better = np.where(tasks.class_ == _ATTENTION, attention, compute)
    one, two = (capability(side.device, "fp32").bytes_per_s for side in sides)
    floors = (sides[0].floor_ns("kernel", parameters), sides[1].floor_ns("kernel", parameters))
    streamed = above_floor(tasks.duration_ns, floors, one / two / memory)
    return _by_class(graph, _arithmetic(graph, sides, better, parameters), streamed)


def retyped(graph: KernelGraph, old: str, new: str, parameters: Parameters) -> Floats:
    """Return the durations where everything that is computed in `old` is computed in `new`.

    Kernels bound by arithmetic go by the rate of the type and the bytes of their operands, all others by the bytes.

    Parameters
    ----------
    graph : KernelGraph
        Whose device is known.
    old, new : str
        Of `profilers.devices.DTYPES`.
    parameters : Parameters
    """
    device, tasks = _device(graph), graph.tasks
    before = np.where(tasks.dtype >= 0, tasks.dtype, _FP32)
    chosen = tasks.dtype == _TYPES.index(old)
    after = np.where(chosen, _TYPES.index(new), before)
    units = graph.hardware.compute_units
    sides = _Side(device, before, units), _Side(device, after, units)
    size = DTYPE_BYTES[new] / DTYPE_BYTES[old]
    floor = sides[0].floor_ns("kernel", parameters)
    streamed = above_floor(tasks.duration_ns, (floor, floor), size)
    arithmetic = _arithmetic(graph, sides, np.ones(len(tasks)), parameters, size)
    return np.where(chosen, _by_class(graph, arithmetic, streamed), tasks.duration_ns)


def _device(graph: KernelGraph) -> Device:
    if graph.hardware.device is None:
        raise InvalidInputError("a graph on no known device cannot be re-timed; give build_graph its hardware")
    return graph.hardware.device


def _by_class(graph: KernelGraph, arithmetic: Floats, streamed: Floats) -> Floats:
    """Return for each task the duration of its class, or its own where nothing of this applies."""
    other = np.where(streaming_tasks(graph), streamed, graph.tasks.duration_ns)
    return np.where(arithmetic_tasks(graph), arithmetic, other)


def _arithmetic(
    graph: KernelGraph, sides: tuple[_Side, _Side], better: Floats, parameters: Parameters, size: float = 1.0
) -> Floats:
    """Return durations as if every task were bound by arithmetic; `size` is the change of bytes an element."""
    tasks = graph.tasks
    one, two = sides
    floors = (one.floor_ns("product", parameters), two.floor_ns("product", parameters))
    found = above_floor(tasks.duration_ns, floors, _rates(graph, sides) / better)
    known = np.flatnonzero((tasks.operator >= 0) & arithmetic_tasks(graph))
    keys = np.stack([tasks.operator[known], one.dtype[known], two.dtype[known]])
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    operators = [graph.operators[i] for i in distinct[0].tolist()]
    place = inverse.reshape(-1)
    before, _ = _modelled(operators, one, distinct[1], parameters)
    after, floor = _modelled([_resized(o, size) for o in operators], two, distinct[2], parameters)
    later = floor[place] + (after - floor)[place] / better[known]
    found[known] = _carried(tasks.duration_ns[known], before[place], later, _latency(one.device, two.device))
    return found


def _carried(traced: Floats, before: Floats, after: Floats, latency: float) -> Floats:
    """Exchange what the model explains of a traced duration; what it does not explain is taken for latency."""
    unexplained = np.maximum(traced - before, 0.0)
    return np.asarray(after * np.minimum(traced / before, 1.0) + unexplained * latency)


def _latency(one: Device, two: Device) -> float:
    """Return how latency changes: with the clock of one design; of two designs it is taken to be the same."""
    if one.name == two.name and "clock_mhz" in one.figures and "clock_mhz" in two.figures:
        return one.value("clock_mhz") / two.value("clock_mhz")
    return 1.0


def _resized(operator: Operator, size: float) -> Operator:
    if size == 1.0:
        return operator
    element = max(round(operator.element_bytes * size), 1)
    read, written = operator.bytes_read * size, operator.bytes_written * size
    return replace(operator, bytes_read=read, bytes_written=written, element_bytes=element)


def _modelled(
    operators: Sequence[Operator], side: _Side, dtypes: Ints, parameters: Parameters
) -> tuple[Floats, Floats]:
    """Return the modelled time of each operator and the floor in it, ns."""
    times, floors = np.zeros(len(operators)), np.zeros(len(operators))
    fused = np.array([one.kind == "attention" for one in operators], dtype=np.bool_)
    for dtype in sorted(set(dtypes.tolist())):
        for kind, of_kind in (("product", ~fused), ("attention", fused)):
            rows = np.flatnonzero(of_kind & (dtypes == dtype))
            floor = floors[rows] = side.floor_ns(kind, parameters)
            place, several = capability(side.device, _TYPES[dtype]), [operators[row] for row in rows.tolist()]
            times[rows] = 1e9 * modelled_seconds(several, place, floor * 1e-9, parameters["attention_share"])
    return times, floors


def _rates(graph: KernelGraph, sides: tuple[_Side, _Side]) -> Floats:
    """Return per task the time on the second side over that on the first, of a product of unknown shape."""
    rate = [np.array([capability(side.device, dtype).flops_per_s for dtype in _TYPES])[side.dtype] for side in sides]
    units = [side.units for side in sides]
    workgroups = graph.tasks.workgroups
    waves = [np.maximum(np.ceil(workgroups / n) * n, 1) for n in units]
    # Beyond a few waves the number of workgroups no longer matters, and another device would tile differently.
    few = (workgroups > 0) & (workgroups <= max(units))
    return np.asarray(rate[0] / rate[1] * np.where(few, waves[1] / waves[0], 1.0))
