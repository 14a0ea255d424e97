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

from profilers.devices.catalogue import DTYPES, Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.kernels import CLASSES, COMPUTE_BOUND
from replay.calibration.parameters import Parameters
from replay.costs.kernels.fits import Fit, carry_over
from replay.costs.kernels.machine import REFERENCE_CLOCK_HZ, Machine, runs_as
from replay.costs.kernels.models import MODELS
from replay.costs.kernels.predictor import OF_UNITS, KernelCalibration, fitted_kind
from replay.graph.graph import RESOURCES, KernelGraph, TaskKind
from replay.graph.operators import ATTENTION, DTYPE_BYTES, SERVING_ATTENTION, Operator, by_phase


@dataclass(frozen=True)
class Capability:
    """A device at one data type.

    Parameters
    ----------
    machine : Machine
        Peaks of the device, as the models of durations take them.
    dtype : str
        Data type that the device computes in place of the asked one: FP32 for FP16 on a device without units for it.
    efficiency : float
        Share of `machine`'s rate that large products reach; 1 for matrix units, whose rate was measured.
    memory : float
        Share of the bandwidth that streaming kernels sustain.
    calibration : Calibration
        Fits that give both shares.
    """

    machine: Machine
    dtype: str
    efficiency: float
    memory: float
    calibration: KernelCalibration

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of a large matrix product."""
        return self.machine.flops_per_s * self.efficiency

    @property
    def bytes_per_s(self) -> float:
        """Bytes/s of a large streaming kernel."""
        return self.machine.memory_bytes_per_s * self.memory

    def fit(self, kind: str, floor_s: float) -> Fit:
        """Return the parameters of a model on this device, with the start of traced kernels, in s.

        Products of vector units are fitted to FP32, so they also take the efficiency of this type. Those of matrix
        units quantize nothing.
        """
        traced, fit = {"start_s": floor_s}, _fit(kind, self.machine, self.dtype, self.calibration)
        if kind == OF_UNITS:
            traced["start_s"] = floor_s * self.machine.clock_hz / REFERENCE_CLOCK_HZ
            traced |= {"quantize_bytes": _NOTHING} if DTYPE_BYTES[self.dtype] < _HALF_BYTES else {}
        elif kind not in _OWN_EFFICIENCY:
            traced["efficiency"] = self.efficiency
        named = zip(MODELS[kind].parameters, fit.values, strict=True)
        return replace(fit, values=tuple(traced.get(parameter.name, value) for parameter, value in named))


@cache
def capability(device: Device, dtype: str, calibration: KernelCalibration) -> Capability:
    """Return the sustained rates of `device` in `dtype`.

    Vector units (FP32, FP64) sustain the fitted share of FP32 products (`datasets/fits`): of the device, else of one of
    its architecture, else carried over from all. Matrix units of 16 and 8 bits and TF32 sustain
    `replay.costs.kernels.machine.matrix_share`.

    Parameters
    ----------
    device : Device
        Device of the catalogue.
    dtype : str
        One of `profilers.devices.DTYPES`.
    calibration : Calibration
        Fits that give the sustained shares.

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
    efficiency = _fitted("matmul", "efficiency", machine, calibration) if vector else 1.0
    memory = _fitted("elementwise", "memory", machine, calibration)
    return Capability(machine, computes, efficiency, memory, calibration)


@cache
def _fit(kind: str, machine: Machine, dtype: str, calibration: KernelCalibration) -> Fit:
    """Return the device's own fit, that of devices of its architecture, or the one carried over from all."""
    library = _FLASH if kind in SERVING_ATTENTION else "" if calibration.takes_general(kind, machine, dtype) else None
    fits = calibration.donors(kind, calibration.like(kind, dtype, library=library), (), library=library)
    return fits.get(machine.name) or carry_over(kind, fits, machine)


def _fitted(kind: str, name: str, machine: Machine, calibration: KernelCalibration) -> float:
    """Return a parameter of the device's FP32 fit."""
    names = [parameter.name for parameter in MODELS[kind].parameters]
    return _fit(kind, machine, "fp32", calibration).values[names.index(name)]


#: The model of each kind of operator. A convolution counts as the product of its laid-out windows.
_MODEL_OF = {"matmul": "matmul", "batched_matmul": "batched_matmul", "convolution": "matmul"}
#: Models of serving, whose fits hold their own efficiency.
_OWN_EFFICIENCY = ("context_attention", "generation_attention", "experts")
#: The model of a fused attention, and the framework that runs FlashAttention, as PyTorch does.
_CONTEXT, _FLASH = "context_attention", "sglang"
#: A parameter of nothing: parameters are above zero. Bytes of a type whose operands are not quantized.
_NOTHING, _HALF_BYTES = 1e-9, 2


def modelled_seconds(operators: Sequence[Operator], target: Capability, floor_s: float) -> Floats:
    """Return the time of each operator, s, shape (n,).

    Products, convolutions and attention take the times of the models of `replay.costs.kernels`: products with the
    sustained share of the peak of `target`. Attention without a causal mask counts as one of as many pairs of query and
    key, and a backward pass takes as much longer as it computes.

    Parameters
    ----------
    operators : sequence of Operator
        Operators of kind matmul, batched_matmul, convolution or attention.
    target : Capability
        Device and data type that the operators run on.
    floor_s : float
        Time of a kernel that computes next to nothing.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.operators import batched_matmul
    >>> from replay.costs.retiming import capability
    >>> from replay.costs.kernels import load_calibration
    >>> a100 = capability(find_device("A100-SXM4-80GB"), "bf16", load_calibration())
    >>> seconds = modelled_seconds([batched_matmul(1, 4096, 4096, 4096, 2)], a100, 4e-6)[0]
    >>> bool(0.8 < 2 * 4096**3 / seconds / 271e12 < 1.0)
    True
    """
    parts = [each for operator in operators for each in by_phase(operator)]
    if len(parts) > len(operators):
        owner = np.repeat(np.arange(len(operators)), [len(by_phase(operator)) for operator in operators])
        times = modelled_seconds(parts, target, floor_s)
        # One kernel runs both phases, and starts once.
        return np.asarray(np.bincount(owner, times, len(operators)) - floor_s * (np.bincount(owner) - 1))
    seconds = np.zeros(len(operators))
    groups: dict[tuple[str, int], list[int]] = {}
    for row, operator in enumerate(operators):
        groups.setdefault((operator.kind, operator.element_bytes), []).append(row)
    for (kind, size), rows in groups.items():
        several = [operators[row] for row in rows]
        if kind == "attention":
            fit, passes, dims = target.fit(_CONTEXT, floor_s), *attention_dims(several)
            times = MODELS[_CONTEXT].seconds(fit.theta, fit.tile, dims, size, target.machine)
            seconds[rows] = floor_s + (times - floor_s) * passes
        elif kind in _OWN_EFFICIENCY:
            fit, dims = target.fit(kind, floor_s), np.array([operator.dims for operator in several], dtype=np.float64)
            seconds[rows] = MODELS[kind].seconds(fit.theta, fit.tile, dims, size, target.machine)
        else:
            product = fitted_kind(_MODEL_OF[kind], target.machine, target.dtype)
            dims = np.array([operator.dims for operator in several], dtype=np.float64)
            seconds[rows] = target.fit(product, floor_s).seconds(product, dims, size, target.machine)
    return seconds


def attention_dims(operators: Sequence[Operator]) -> tuple[Floats, Floats]:
    """Return the passes of each attention over its scores, 1 in a forward pass, and its dims of the model."""
    heads, queries, keys, width = np.array([operator.dims for operator in operators], dtype=np.float64).T
    counted = np.array([operator.flops for operator in operators]) / (4.0 * heads * queries * keys * width)
    # A causal mask leaves half of the scores; a backward pass computes 2.5 times as much as a forward one.
    is_causal = np.isclose(counted, 0.5) | np.isclose(counted, 1.25)
    tokens = np.where(is_causal, np.maximum(keys, queries), keys + (queries - 1) / 2)
    ones = np.ones(len(heads))
    passes = np.where(is_causal, 2.0, 1.0) * counted
    return passes, np.column_stack((ones, queries, tokens, heads, heads, width, 0 * ones))


_TYPES = tuple(DTYPES)
_HBM, _DMA = RESOURCES.index("hbm"), RESOURCES.index("dma")
_FP32 = _TYPES.index("fp32")
_ARITHMETIC = [i for i, name in enumerate(CLASSES) if name in COMPUTE_BOUND]
_ATTENTION = CLASSES.index("attention")


@dataclass(frozen=True)
class _Side:
    """The device that kernels run on, the data type of each kernel (index in `DTYPES`), and the compute units.

    `better` is the efficiency of each kernel over what is expected of the device: 1 on the design of the trace.
    """

    device: Device
    dtype: Ints
    units: int
    better: Floats

    def floor_ns(self, kind: str, parameters: Parameters) -> float:
        return floor_ns(kind, self.device, parameters)


def floor_ns(kind: str, device: Device | None, parameters: Parameters) -> float:
    """Return the time of a kernel without work on devices of a vendor, ns.

    Parameters
    ----------
    kind : str
        ``"kernel"``, or ``"product"`` for a matrix product.
    device : Device, optional
        The device; without one, the time is that of NVIDIA's.
    parameters : Parameters
        With the floors.
    """
    amd = "_amd" if device is not None and device.vendor == "AMD" else ""
    return parameters[f"{kind}_floor{amd}_ns"]


def arithmetic_tasks(graph: KernelGraph) -> Bools:
    """Return the mask of kernels that are bound by arithmetic, or by its latency."""
    kernel = (graph.tasks.kind == TaskKind.KERNEL) & graph.on_device()
    return np.asarray(kernel & np.isin(graph.tasks.class_, _ARITHMETIC))


def streaming_tasks(graph: KernelGraph) -> Bools:
    """Return the mask of tasks that are bound by memory: all other kernels, and copies within a device."""
    tasks = graph.tasks
    kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device() & ~arithmetic_tasks(graph)
    inside = (tasks.demand[:, _HBM] > 0) & (tasks.demand[:, _DMA] == 0)
    return np.asarray(kernel | ((tasks.kind == TaskKind.COPY) & inside))


def one_unit_tasks(graph: KernelGraph, units: int) -> Bools:
    """Return the mask of arithmetic of unknown shape that goes by the rate of one compute unit.

    Its grid is smaller than the device of the trace, or than the `units` to go to. A grid of whole multiples of the
    units of the trace is that of a persistent kernel: it tells the device, not the size of the problem.

    Parameters
    ----------
    graph : KernelGraph
        Graph with the workgroups of its tasks.
    units : int
        Compute units of the other device.
    """
    tasks, traced = graph.tasks, max(graph.hardware.original.compute_units, 1)
    is_persistent = tasks.workgroups % traced == 0
    is_small = (tasks.workgroups > 0) & (tasks.workgroups < max(graph.hardware.compute_units, units))
    return np.asarray(arithmetic_tasks(graph) & (tasks.operator < 0) & is_small & ~is_persistent)


def exchanged(duration: Floats, before: Floats | float, after: Floats | float, rest: Floats | float = 1.0) -> Floats:
    """Return durations with the predicted time `after` in the place of `before`.

    A duration below `before` becomes the same share of `after`. The time above `before` takes `rest` times as long.
    With a `rest` of 1, exchanges in a row give what one exchange gives, and an exchange back restores the duration.

    Parameters
    ----------
    duration : array of float64
        Durations, in any unit.
    before, after : array of float64 or float
        Predicted times, in the unit of the durations: floors, or what a model explains of a duration.
    rest : array of float64 or float
        Factor on the time above `before`.

    Examples
    --------
    >>> exchanged(np.array([5.0, 30.0]), 10.0, 6.0).tolist()
    [3.0, 26.0]
    >>> exchanged(np.array([1.0, 10.0]), 2.0, 4.0, rest=0.5).tolist()
    [2.0, 8.0]
    """
    explained = np.minimum(duration / np.maximum(before, 1e-9), 1.0)
    return np.asarray(after * explained + np.maximum(duration - before, 0.0) * rest)


def retimed(graph: KernelGraph, target: Device, units: int, parameters: Parameters) -> Floats:
    """Return the durations of kernels, and of copies within a device, on `target`; other durations stay.

    Parameters
    ----------
    graph : KernelGraph
        Graph on a known device.
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
    Wave scaling of kernels of less than a wave, of unknown shape: Habitat (USENIX ATC 2021), section 4.1. Persistent
    kernels are apart (`one_unit_tasks`).
    """
    source, tasks = source_device(graph), graph.tasks
    dtype = _types_of(graph)
    sides = (
        _Side(source, dtype, graph.hardware.compute_units, _efficiency(graph, source, parameters)),
        _Side(target, dtype, units, _efficiency(graph, target, parameters)),
    )
    rates = [
        side.better * capability(side.device, "fp32", parameters.calibration(KernelCalibration)).bytes_per_s
        for side in sides
    ]
    streamed = exchanged(tasks.duration_ns, *_floors("kernel", sides, parameters), rates[0] / rates[1])
    return _by_class(graph, _arithmetic(graph, sides, parameters), streamed)


def _types_of(graph: KernelGraph) -> Ints:
    """Return the data type of each task (index in `DTYPES`).

    A task of unknown type has the type in which kernels of its class spend most time, or FP32 if no type is known.
    """
    tasks = graph.tasks
    types, is_known = np.where(tasks.dtype >= 0, tasks.dtype, _FP32), tasks.dtype >= 0
    for class_ in np.unique(tasks.class_[~is_known]).tolist():
        alike = tasks.class_ == class_
        if (alike & is_known).any():
            time_ns = np.bincount(tasks.dtype[alike & is_known], tasks.duration_ns[alike & is_known])
            types[alike & ~is_known] = int(np.argmax(time_ns))
    return np.asarray(types)


def _efficiency(graph: KernelGraph, device: Device, parameters: Parameters) -> Floats:
    """Return the efficiency of each kernel on a device over what is expected of it.

    Another design may differ from its expected efficiency by an unknown ratio; another clock is the same design.
    """
    tasks, traced = graph.tasks, graph.hardware.original.device
    if traced is None or traced.name == device.name:
        return np.ones(len(tasks))
    memory, compute, attention = (parameters[f"efficiency_ratio_{kind}"] for kind in ("memory", "compute", "attention"))
    of_arithmetic = np.where(tasks.class_ == _ATTENTION, attention, compute)
    return np.where(arithmetic_tasks(graph), of_arithmetic, memory)


def retyped(graph: KernelGraph, old: str, new: str, parameters: Parameters) -> Floats:
    """Return the durations if all arithmetic in `old` is done in `new`.

    Kernels bound by arithmetic go by the rate of the type and the bytes of their operands, all others by the bytes.

    Parameters
    ----------
    graph : KernelGraph
        Graph on a known device.
    old, new : str
        Data types, of `profilers.devices.DTYPES`.
    parameters : Parameters
        Floors and efficiencies, with a calibration of kernels.
    """
    device, tasks = source_device(graph), graph.tasks
    before = _types_of(graph)
    chosen = tasks.dtype == _TYPES.index(old)
    after = np.where(chosen, _TYPES.index(new), before)
    units = graph.hardware.compute_units
    better = _efficiency(graph, device, parameters)
    # Narrower types come later in `DTYPES`; going there and back restores the durations.
    direction = np.sign(_TYPES.index(new) - _TYPES.index(old))
    typed = better * parameters["efficiency_ratio_dtype"] ** direction
    sides = _Side(device, before, units, better), _Side(device, after, units, typed)
    size = DTYPE_BYTES[new] / DTYPE_BYTES[old]
    streamed = exchanged(tasks.duration_ns, *_floors("kernel", sides, parameters), size)
    arithmetic = _arithmetic(graph, sides, parameters, size)
    return np.where(chosen, _by_class(graph, arithmetic, streamed), tasks.duration_ns)


def source_device(graph: KernelGraph) -> Device:
    """Return the device of the trace.

    Raises
    ------
    InvalidInputError
        The trace does not name its device.
    """
    if graph.hardware.device is None:
        raise InvalidInputError(
            "the trace does not say on which device it was recorded; name it (--device NAME, `seqpoint devices`)"
        )
    return graph.hardware.device


def _by_class(graph: KernelGraph, arithmetic: Floats, streamed: Floats) -> Floats:
    """Return the duration of each task by its class; the duration of other tasks stays."""
    return np.select([arithmetic_tasks(graph), streaming_tasks(graph)], [arithmetic, streamed], graph.tasks.duration_ns)


def _floors(kind: str, sides: tuple[_Side, _Side], parameters: Parameters) -> tuple[float, float]:
    return sides[0].floor_ns(kind, parameters), sides[1].floor_ns(kind, parameters)


def _arithmetic(graph: KernelGraph, sides: tuple[_Side, _Side], parameters: Parameters, size: float = 1.0) -> Floats:
    """Return durations as if every task were bound by arithmetic; `size` is the change of bytes an element."""
    tasks, (before, after) = graph.tasks, sides
    rates = _rates(graph, sides, parameters.calibration(KernelCalibration))
    floors = _floors("product", sides, parameters)
    durations = exchanged(tasks.duration_ns, *floors, rates * before.better / after.better)
    rows = np.flatnonzero((tasks.operator >= 0) & arithmetic_tasks(graph))
    keys = np.stack([tasks.operator[rows], before.dtype[rows], after.dtype[rows]])
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    operators, case = [graph.operators[i] for i in distinct[0].tolist()], inverse.reshape(-1)
    sizes = [operators, [resized(operator, size) for operator in operators]]
    modelled, target = (
        floor_ns[case] + (time_ns - floor_ns)[case] / side.better[rows]
        for side, dtypes, several in zip(sides, distinct[1:], sizes, strict=True)
        for time_ns, floor_ns in [_modelled(several, side, dtypes, parameters)]
    )
    # The part that the model does not explain is taken for latency. It goes with the clock of one design, and stays
    # between two designs.
    figures, latency = [side.device.figures for side in sides], 1.0
    if before.device.name == after.device.name and all("clock_mhz" in each for each in figures):
        latency = figures[0]["clock_mhz"].value / figures[1]["clock_mhz"].value
    durations[rows] = exchanged(tasks.duration_ns[rows], modelled, target, latency)
    return durations


def resized(operator: Operator, size: float) -> Operator:
    """Return an operator whose elements have `size` times the bytes."""
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
    fused = np.array([operator.kind in ATTENTION for operator in operators], dtype=np.bool_)
    for dtype in sorted(set(dtypes.tolist())):
        target = capability(side.device, _TYPES[dtype], parameters.calibration(KernelCalibration))
        for kind, of_kind in (("product", ~fused), ("attention", fused)):
            rows = np.flatnonzero(of_kind & (dtypes == dtype))
            floor = floors[rows] = side.floor_ns(kind, parameters)
            several = [operators[row] for row in rows.tolist()]
            times[rows] = 1e9 * modelled_seconds(several, target, floor * 1e-9)
    return times, floors


def _rates(graph: KernelGraph, sides: tuple[_Side, _Side], calibration: KernelCalibration) -> Floats:
    """Return the time on the second side over that on the first, per task, of a product of unknown shape."""
    before, after = (
        np.array([capability(side.device, dtype, calibration).flops_per_s for dtype in _TYPES])[side.dtype]
        for side in sides
    )
    # Below one wave the time goes by the rate of one unit. Beyond it, another device would tile differently.
    workgroups = np.maximum(graph.tasks.workgroups, 1)
    is_small = one_unit_tasks(graph, max(side.units for side in sides))
    idle = [np.where(is_small, np.maximum(side.units / workgroups, 1.0), 1.0) for side in sides]
    return np.asarray(before / after * idle[1] / idle[0])
