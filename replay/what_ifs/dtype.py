"""Data type what-if: kernels and collectives of one data type use another."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats
from profilers.trace.kernels import CLASSES, COMPUTE_BOUND
from replay.calibration.parameters import Parameters
from replay.costs.demand import with_demands, with_demands_from
from replay.costs.hardware import with_same_engines
from replay.costs.kernels.predictor import KernelCalibration
from replay.costs.retiming import capability, floor_ns, resized, retyped, source_device
from replay.costs.wire_time import resized_collectives
from replay.graph.edit import with_host_time
from replay.graph.graph import PHASES, Basis, KernelGraph, TaskKind
from replay.graph.operators import DTYPE_BYTES
from replay.what_ifs.what_if import Argument, WhatIf, recipe, unknown_name, what_if_text

_TYPES = tuple(DTYPES)


@recipe("kernels", "change_dtype:fp32->bf16", Argument("types", "OLD->NEW, such as fp32->bf16"))
def change_dtype(types: str) -> WhatIf:
    """Run kernels and collectives of data type OLD in data type NEW, with operands of its size.

    TYPES is ``OLD->NEW``, such as ``fp32->bf16``.

    Matrix products, convolutions and attention are re-timed by the sustained rates of the two types and by the bytes of
    their operands. Other kernels of the type are re-timed by the bytes alone. A collective moves bytes in proportion to
    the size of the type. Its predicted time is exchanged for that of the new bytes; the wait for other ranks stays. A
    kernel stays as it is if neither its name nor its operator tells its type. Products of FP32 operands in TF32 are of
    type tf32. Notes count what stays.

    To a smaller type, kernels of the optimizer stay: mixed precision keeps weights and moments in FP32 (arXiv
    1710.03740). So weights are cast before each product in a forward pass, and their gradients after it in a backward
    one. The time of these kernels is added to that of the products. The smallest of the three matrices counts as the
    weights; of two products in a backward pass, one gives gradients of weights. The host has to launch casts: the
    interval reaches to a host that works `autocast_host_share` longer, as measured.

    Not modelled: casts of activations, and numerical accuracy.

    Source: `replay.costs.retiming`, `replay.costs.wire_time`.

    Raises
    ------
    NotFoundError
        There is no such data type.
    InvalidInputError
        `types` has no arrow. When applied: the device has no peak for NEW.
    """
    old, arrow, new = (part.strip() for part in types.partition("->"))
    if not arrow:
        raise InvalidInputError(f"data types {types!r}: write OLD->NEW, as in fp32->bf16")
    for dtype in (old, new):
        if dtype not in DTYPES:
            raise unknown_name("no data type is called", dtype, _TYPES)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        device, tasks = source_device(graph), graph.tasks
        if old == new:
            return graph
        if f"{new}_tflops" not in device.figures:
            available = [dtype for dtype in _TYPES if f"{dtype}_tflops" in device.figures]
            raise InvalidInputError(f"{device.name} does not compute in {new}; choose one of {', '.join(available)}")
        chosen = (tasks.dtype == _TYPES.index(old)) & graph.on_device() & ~_of_optimizer(graph, old, new)
        changed = retyped_tasks(graph, chosen, (old, new), parameters) if chosen.any() else graph
        if chosen.any() and DTYPE_BYTES[new] < DTYPE_BYTES[old]:
            casts_ns = _cast_ns(graph, chosen, DTYPE_BYTES[old] + DTYPE_BYTES[new], parameters)
            changed = changed.with_durations(changed.tasks.duration_ns + casts_ns, Basis.DERIVED)
            changed = with_host_time(changed, 1 + parameters["autocast_host_share"])
        return changed.with_notes(_notes(graph, changed.tasks.duration_ns, chosen, (old, new)))

    return WhatIf(what_if_text("change_dtype", f"{old}->{new}"), transform, retimes=True)


def _of_optimizer(graph: KernelGraph, old: str, new: str) -> Bools:
    """Return which tasks are kernels of the optimizer that stay, since the new type is smaller."""
    tasks = graph.tasks
    of_optimizer = (tasks.class_ == CLASSES.index("optimizer")) | (tasks.phase == PHASES.index("optimizer"))
    is_smaller = DTYPE_BYTES[new] < DTYPE_BYTES[old]
    return np.asarray(of_optimizer & (tasks.kind == TaskKind.KERNEL) & is_smaller)


def _cast_ns(graph: KernelGraph, chosen: Bools, moved: int, parameters: Parameters) -> Floats:
    """Return how long casts of weights, or of their gradients, take beside each chosen product, ns.

    `moved` is the bytes that a cast reads and writes an element.
    """
    tasks, device = graph.tasks, source_device(graph)
    rate = capability(device, "fp32", parameters.calibration(KernelCalibration)).bytes_per_s
    weights = [
        min(m * n, n * k, m * k) if operator.kind in _CAST and batch == 1 else 0.0
        for operator in graph.operators
        for batch, m, n, k in [operator.dims if len(operator.dims) == _SIZES else (0, 0, 0, 0)]
    ]
    elements = np.where(chosen & (tasks.operator >= 0), np.array([*weights, 0.0])[tasks.operator], 0.0)
    share = np.where(tasks.phase == PHASES.index("backward"), 0.5, 1.0)
    each_ns = floor_ns("kernel", device, parameters) + 1e9 * moved * elements / rate
    return np.where(elements > 0, share * each_ns, 0.0)


#: Operators of weights, and the sizes of a product: batch, rows, columns and depth.
_CAST, _SIZES = ("matmul", "batched_matmul", "convolution"), 4


def retyped_tasks(graph: KernelGraph, chosen: Bools, types: tuple[str, str], parameters: Parameters) -> KernelGraph:
    """Return a graph with the chosen tasks in another type: durations, bytes, operators and demands.

    Parameters
    ----------
    graph : KernelGraph
        Graph on a known device.
    chosen : array of bool, shape (n_tasks,)
        Mask of tasks of the old type.
    types : (str, str)
        Old and new type, of `profilers.devices.DTYPES`.
    parameters : Parameters
        With calibrations of kernels and collectives.
    """
    tasks, size = graph.tasks, DTYPE_BYTES[types[1]] / DTYPE_BYTES[types[0]]
    is_collective = chosen & (tasks.kind == TaskKind.COLLECTIVE)
    moved = np.where(is_collective, np.maximum(np.round(tasks.bytes * size), np.sign(tasks.bytes)), tasks.bytes)
    collectives, is_guessed = resized_collectives(graph, moved.astype(np.int64), parameters, size=size)
    kernels = np.where(chosen, retyped(graph, *types, parameters), tasks.duration_ns)
    duration = np.where(is_collective, collectives, kernels)
    new = graph.with_durations(duration, Basis.DERIVED)
    assumed = is_collective & is_guessed & (duration != tasks.duration_ns)
    new = new.with_tasks(
        dtype=np.where(chosen, _TYPES.index(types[1]), tasks.dtype),
        bytes=moved.astype(np.int64),
        basis=np.where(assumed, int(Basis.ASSUMED), new.tasks.basis),
    )
    new = _with_operators(new, chosen, size)
    renewed = with_demands_from(new, with_same_engines(graph, with_demands(new, parameters)), chosen)
    # Waves that are not known, of kernels measured beside others, stay unknown.
    return renewed.with_tasks(waves=np.where(tasks.waves == 0.0, 0.0, renewed.tasks.waves))


def _with_operators(graph: KernelGraph, chosen: Bools, size: float) -> KernelGraph:
    """Return `graph` with operators of other element sizes for the chosen tasks."""
    columns = {name: getattr(graph.tasks, name) for name in ("operator", "memory_operator")}
    numbers: npt.NDArray[np.int64] = np.unique(np.concatenate([c[chosen & (c >= 0)] for c in columns.values()]))
    if not len(numbers) or size == 1.0:
        return graph
    position = np.full(len(graph.operators), -1, dtype=np.int64)
    position[numbers] = len(graph.operators) + np.arange(len(numbers))
    more = tuple(resized(graph.operators[number], size) for number in numbers.tolist())
    moved = {name: np.where(chosen & (c >= 0), position[np.maximum(c, 0)], c) for name, c in columns.items()}
    return replace(graph, operators=(*graph.operators, *more)).with_tasks(**moved)


_ARITHMETIC = [number for number, name in enumerate(CLASSES) if name in COMPUTE_BOUND]


def _notes(graph: KernelGraph, duration: Floats, chosen: Bools, types: tuple[str, str]) -> list[str]:
    """Return what changed and what stays, for people."""
    tasks, (old, new) = graph.tasks, types
    kernel = graph.on_device() & (tasks.kind == TaskKind.KERNEL)
    changed = chosen & (duration != tasks.duration_ns)
    collectives = int((changed & (tasks.kind == TaskKind.COLLECTIVE)).sum())
    both = f"{int((changed & kernel).sum())} kernels" + (f" and {collectives} collectives" if collectives else "")
    notes = [f"change_dtype: {both} in {old}"]
    if changed.any() and DTYPE_BYTES[new] < DTYPE_BYTES[old] and (tasks.kind == TaskKind.HOST).any():
        notes.append("change_dtype: casts of automatic mixed precision are work of the host; the interval holds it")
    total = max(tasks.duration_ns[kernel].sum(), 1e-9)
    if (stays := _of_optimizer(graph, old, new) & (tasks.dtype == _TYPES.index(old))).any():
        notes.append(f"change_dtype: {int(stays.sum())} kernels of the optimizer stay in {old}, as in mixed precision")
    in_tf32 = kernel & (tasks.dtype == _TYPES.index("tf32")) & np.isin(tasks.class_, _ARITHMETIC)
    unknown = kernel & (tasks.dtype < 0)
    if old == "fp32" and in_tf32.any():
        share = round(100 * tasks.duration_ns[in_tf32].sum() / total)
        which = f"{int(in_tf32.sum())} products of fp32 operands in tf32 stay, {share} % of the time of kernels"
        notes.append(f"change_dtype: {which}; change_dtype:tf32->{new} changes these")
    if unknown.any():
        share = round(100 * tasks.duration_ns[unknown].sum() / total)
        which = f"{int(unknown.sum())} kernels of unknown data type stay"
        notes.append(f"change_dtype: {which}, {share} % of the time of kernels")
    return notes
