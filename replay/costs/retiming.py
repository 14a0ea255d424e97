"""Traced durations on another device, or in another data type.

A new duration is the traced one times the ratio of modelled durations, so that errors common to both sides cancel.
Where the shape of a kernel's operator is known, the part of the duration that a model explains is exchanged; the rest
counts as latency and stays. Of any other kernel, the part above the floor of its class scales by the rate that binds
the class. Going to another device and back returns the traced duration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from profilers.devices.catalogue import DTYPES, Device, find_device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.kernels import CLASSES, COMPUTE_BOUND
from replay.calibration.parameters import Parameters
from replay.costs.kernels.models import MODELS, Machine, runs_as
from replay.costs.kernels.predictor import Calibration, Fit, carry_over
from replay.graph.graph import RESOURCES, KernelGraph, TaskKind
from replay.graph.operators import DTYPE_BYTES, Operator


@dataclass(frozen=True)
class Capability:
    """A device at one data type.

    Parameters
    ----------
    device : Device
        Device of the catalogue.
    machine : Machine
        Its peaks, as the models of durations take them.
    dtype : str
        What kernels of the type run as there: FP16 on a device without units for it is FP32.
    efficiency : float
        Share of `machine`'s rate that large products reach: matrix units' is what was measured, 1 is all of it.
    memory : float
        Share of the bandwidth that streaming kernels sustain.
    calibration : Calibration
        Fits that both shares are from.
    """

    device: Device
    machine: Machine
    dtype: str
    efficiency: float
    memory: float
    calibration: Calibration

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of a large matrix product."""
        return self.machine.flops_per_s * self.efficiency

    @property
    def bytes_per_s(self) -> float:
        """Bytes/s of a large streaming kernel."""
        return self.machine.memory_bytes_per_s * self.memory

    def fit(self, kind: str, floor_s: float) -> Fit:
        """Return the parameters of a product's model here, with what holds of traced kernels in place of two.

        The models are fitted to FP32 and to times that include the host's launch; a traced kernel's does not.
        """
        found = _fit(kind, self.machine, self.dtype, self.calibration)
        names = [p.name for p in MODELS[kind].parameters]
        values = list(found.values)
        values[names.index("start_s")] = floor_s
        values[names.index("efficiency")] = self.efficiency
        return replace(found, values=tuple(values))


@cache
def capability(device: Device, dtype: str, calibration: Calibration) -> Capability:
    """Return what `device` sustains in `dtype`.

    Vector units (FP32, FP64) sustain the share that FP32 products were fitted at (`datasets/fits`; where the device was
    not measured, on one of its architecture, else carried over from all). Matrix units of 16 and 8 bits and TF32
    sustain what `replay.costs.kernels.models.matrix_share` says.

    Parameters
    ----------
    device : Device
        Device of the catalogue.
    dtype : str
        One of `profilers.devices.DTYPES`.
    calibration : Calibration
        Fits that the sustained shares are from.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure that is needed.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.kernels import load_calibration
    >>> fits = load_calibration()
    >>> [f'{capability(find_device(name), "bf16", fits).flops_per_s:.3g}' for name in ("H100", "MI300X")]
    ['7.94e+14', '6.68e+14']
    >>> capability(find_device("V100"), "bf16", fits).dtype
    'fp32'
    """
    # FP64 counts as FP32 where it has no figure.
    computes = runs_as(device, dtype)
    computes = computes if f"{computes}_tflops" in device.figures else "fp32"
    machine = Machine.of(device, computes)
    vector = computes in ("fp32", "fp64")
    efficiency = _parameter("matmul", _fit("matmul", machine, "fp32", calibration)) if vector else 1.0
    memory = _parameter("elementwise", _fit("elementwise", machine, "fp32", calibration))
    return Capability(device, machine, computes, efficiency, memory, calibration)


@cache
def _fit(kind: str, machine: Machine, dtype: str, known: Calibration) -> Fit:
    """Return the device's own fit, that of devices of its architecture, or what is carried over from all."""
    fits = known.donors(kind, known.like(kind, dtype), ())
    alike = {name: fit for name, fit in fits.items() if find_device(name).architecture == machine.architecture}
    return fits.get(machine.name) or carry_over(kind, alike or fits, machine)


def _parameter(kind: str, fit: Fit) -> float:
    name = "memory" if kind == "elementwise" else "efficiency"
    return fit.values[[p.name for p in MODELS[kind].parameters].index(name)]


#: The model of each kind of operator; a convolution is the product that it is when its windows are laid out.
_MODEL_OF = {"matmul": "matmul", "batched_matmul": "batched_matmul", "convolution": "matmul"}
#: Queries that a workgroup of a fused attention holds (FlashAttention-2, arXiv 2307.08691, section 3.3).
_QUERIES = 128


def modelled_seconds(
    operators: Sequence[Operator], place: Capability, floor_s: float, attention_share: float
) -> Floats:
    """Return the time of each operator, s, shape (n,).

    - Products and convolutions: the models of `replay.costs.kernels`, with the share of the peak that `place` sustains.
    - Attention: workgroups of 128 queries go through all keys, each at the rate of one compute unit; fewer of
      them than units leave units idle.

    Parameters
    ----------
    operators : sequence of Operator
        Of kind matmul, batched_matmul, convolution or attention.
    place : Capability
        Device and data type that the operators run on.
    floor_s : float
        What a kernel takes that computes next to nothing.
    attention_share : float
        Rate of a fused attention over that of a matrix product.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.operators import batched_matmul
    >>> from replay.costs.retiming import capability
    >>> from replay.costs.kernels import load_calibration
    >>> place = capability(find_device("A100-SXM4-80GB"), "bf16", load_calibration())
    >>> seconds = modelled_seconds([batched_matmul(1, 4096, 4096, 4096, 2)], place, 4e-6, 0.5)[0]
    >>> bool(0.8 < 2 * 4096**3 / seconds / 271e12 < 1.0)
    True
    """
    found = np.zeros(len(operators))
    groups: dict[tuple[str, int], list[int]] = {}
    for row, one in enumerate(operators):
        groups.setdefault((one.kind, one.element_bytes), []).append(row)
    for (kind, size), rows in groups.items():
        several = [operators[row] for row in rows]
        if kind == "attention":
            found[rows] = [_attention(one, place, floor_s, attention_share) for one in several]
        else:
            found[rows] = _products(several, size, place, floor_s)
    return found


def _products(operators: Sequence[Operator], element_bytes: int, place: Capability, floor_s: float) -> Floats:
    model = _MODEL_OF[operators[0].kind]
    fit = place.fit(model, floor_s)
    dims = np.array([one.dims for one in operators], dtype=np.float64)
    return MODELS[model].seconds(fit.theta, fit.tile, dims, element_bytes, place.machine)


def _attention(operator: Operator, place: Capability, floor_s: float, share: float) -> float:
    heads, queries, keys, width = operator.dims
    units = place.machine.compute_units
    # How much a pass over all scores, masked ones too, is of what this operator counts: half of it if causal.
    passes = operator.flops / (4.0 * heads * queries * keys * width)
    blocks = heads * np.ceil(queries / _QUERIES)
    each = passes * 4.0 * _QUERIES * keys * width / (place.flops_per_s / units * share)
    moving = operator.bytes_moved / place.bytes_per_s
    return float(floor_s + max(max(blocks / units, 1.0) * each, moving))


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
        Durations, in any unit.
    floors : (before, after)
        In the unit of the durations. Of a duration below it that share of the new floor is taken.
    ratio : array of float64
        Factor of the part above the floor.

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
        Device to re-time for.
    units : int
        Its compute units.
    parameters : Parameters
        Floors and efficiencies, with a calibration of kernels.

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
    fits = parameters.calibration(Calibration)
    one, two = (capability(side.device, "fp32", fits).bytes_per_s for side in sides)
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
        Floors and efficiencies, with a calibration of kernels.
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
    rates = _rates(graph, sides, parameters.calibration(Calibration))
    found = above_floor(tasks.duration_ns, floors, rates / better)
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
            place = capability(side.device, _TYPES[dtype], parameters.calibration(Calibration))
            several = [operators[row] for row in rows.tolist()]
            times[rows] = 1e9 * modelled_seconds(several, place, floor * 1e-9, parameters["attention_share"])
    return times, floors


def _rates(graph: KernelGraph, sides: tuple[_Side, _Side], fits: Calibration) -> Floats:
    """Return per task the time on the second side over that on the first, of a product of unknown shape."""
    rate = [
        np.array([capability(side.device, dtype, fits).flops_per_s for dtype in _TYPES])[side.dtype] for side in sides
    ]
    units = [side.units for side in sides]
    workgroups = graph.tasks.workgroups
    waves = [np.maximum(np.ceil(workgroups / n) * n, 1) for n in units]
    # Beyond a few waves the number of workgroups no longer matters, and another device would tile differently.
    few = (workgroups > 0) & (workgroups <= max(units))
    return np.asarray(rate[0] / rate[1] * np.where(few, waves[1] / waves[0], 1.0))
