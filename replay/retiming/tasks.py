"""Durations of a graph's tasks on another device, or in another data type, relative to what was traced.

A kernel whose shape is known keeps its traced duration times the ratio of modelled times. Of any other the part
above the floor, which is what a kernel takes that does next to nothing, goes by the rate that binds its class.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from profilers.devices import DTYPES, Device
from profilers.kernels import CLASSES, COMPUTE_BOUND
from replay.graph import KernelGraph, TaskKind
from replay.operators import DTYPE_BYTES
from replay.parameters import Parameters
from replay.retiming.capability import capability
from replay.retiming.modelled import modelled_seconds

__all__ = ["above_floor", "arithmetic_tasks", "retimed", "retyped", "streaming_tasks"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_TYPES = tuple(DTYPES)
_FP32 = _TYPES.index("fp32")
_ARITHMETIC = [i for i, name in enumerate(CLASSES) if name in COMPUTE_BOUND]
_ATTENTION = CLASSES.index("attention")


@dataclass(frozen=True)
class _Side:
    """Where kernels run: a device, the type that each computes in (index into `DTYPES`), and its compute units."""

    device: Device
    dtype: npt.NDArray[np.int64]
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
    return np.asarray(kernel | ((tasks.kind == TaskKind.COPY) & (tasks.demand[:, 1] > 0)))


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
    source = graph.hardware.device
    assert source is not None
    dtype = np.where(graph.tasks.dtype >= 0, graph.tasks.dtype, _FP32)
    sides = _Side(source, dtype, graph.hardware.compute_units), _Side(target, dtype, units)
    # How far another design is from what it sustains elsewhere is not known; of one at another clock it is.
    other = source.name != target.name
    compute, attention, memory = (
        parameters[f"efficiency_ratio_{kind}"] if other else 1.0 for kind in ("compute", "attention", "memory")
    )
    duration = graph.tasks.duration_ns
    is_attention = graph.tasks.class_ == _ATTENTION
    better = np.where(is_attention, attention, compute)
    arithmetic = _arithmetic(graph, sides, better, parameters)
    one, two = (capability(side.device, "fp32").bytes_per_s for side in sides)
    floors = (sides[0].floor_ns("kernel", parameters), sides[1].floor_ns("kernel", parameters))
    streamed = above_floor(duration, floors, one / two / memory)
    return np.where(
        arithmetic_tasks(graph), arithmetic, np.where(streaming_tasks(graph), streamed, duration)
    )


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
    device, tasks = graph.hardware.device, graph.tasks
    assert device is not None
    before = np.where(tasks.dtype >= 0, tasks.dtype, _FP32)
    chosen = tasks.dtype == _TYPES.index(old)
    after = np.where(chosen, _TYPES.index(new), before)
    units = graph.hardware.compute_units
    sides = _Side(device, before, units), _Side(device, after, units)
    size = DTYPE_BYTES[new] / DTYPE_BYTES[old]
    floor = sides[0].floor_ns("kernel", parameters)
    streamed = above_floor(tasks.duration_ns, (floor, floor), size)
    arithmetic = _arithmetic(graph, sides, np.ones(len(tasks)), parameters, size)
    changed = np.where(arithmetic_tasks(graph), arithmetic, np.where(streaming_tasks(graph), streamed, tasks.duration_ns))
    return np.where(chosen, changed, tasks.duration_ns)


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
    distinct, place = np.unique(keys, axis=1, return_inverse=True)
    operators = [graph.operators[i] for i in distinct[0].tolist()]
    resized = [replace(o, bytes_read=o.bytes_read * size, bytes_written=o.bytes_written * size,
                       element_bytes=max(round(o.element_bytes * size), 1)) for o in operators]  # fmt: skip
    before, _ = _modelled(operators, one, distinct[1], parameters)
    after, floor = _modelled(resized, two, distinct[2], parameters)
    place = place.reshape(-1)
    later = floor[place] + (after - floor)[place] / better[known]
    found[known] = tasks.duration_ns[known] * later / before[place]
    return found


def _modelled(
    operators: list, side: _Side, dtypes: npt.NDArray[np.int64], parameters: Parameters
) -> tuple[Floats, Floats]:
    """Return the modelled time of each operator and the floor in it, ns."""
    seconds, floors = np.zeros(len(operators)), np.zeros(len(operators))
    for dtype in sorted(set(dtypes.tolist())):
        for kind in ("product", "attention"):
            rows = [i for i, o in enumerate(operators) if dtypes[i] == dtype and (o.kind == "attention") == (kind == "attention")]
            if rows:
                floors[rows] = side.floor_ns(kind, parameters)
                place = capability(side.device, _TYPES[dtype])
                share = parameters["attention_share"]
                seconds[rows] = modelled_seconds([operators[i] for i in rows], place, floors[rows[0]] * 1e-9, share)
    return seconds * 1e9, floors


def _rates(graph: KernelGraph, sides: tuple[_Side, _Side]) -> Floats:
    """Return per task the time on the second side over that on the first, of a product of unknown shape."""
    rate = [np.array([capability(side.device, dtype).flops_per_s for dtype in _TYPES])[side.dtype] for side in sides]
    units = [side.units for side in sides]
    workgroups = graph.tasks.workgroups
    waves = [np.maximum(np.ceil(workgroups / n) * n, 1) for n in units]
    # Beyond a few waves the number of workgroups no longer matters, and another device would tile differently.
    few = (workgroups > 0) & (workgroups <= max(units))
    return np.asarray(rate[0] / rate[1] * np.where(few, waves[1] / waves[0], 1.0))
