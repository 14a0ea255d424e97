"""Launches of GEMMs in a trace: shape, kernel and grid, what runs beside them, and how long the device idles before.

A launch is a call of an operator such as ``aten::mm``. If its depth is split, the kernel that adds the parts belongs to
it. `gemm_launches` returns launches as columns; `replay.gemms.tiles` explains their grids.
"""

import re
from dataclasses import dataclass

import numpy as np

from profilers.devices.catalogue import Device
from profilers.trace.arrays import MISSING, Bools, Ints
from profilers.trace.columns import combinations, lookup
from profilers.trace.trace import Trace
from replay.contention.launches import DeviceEvents, Neighbors
from replay.costs.occupancy import resident_workgroups
from replay.from_trace import TraceIndex, index_trace, kernel_dtypes, kernel_operators
from replay.gemms.gemm import Gemm, gemm_of_operator
from replay.graph.operators import Operator

#: Reasons for which the shape of a GEMM kernel is unknown.
NO_SHAPES, NO_OPERATOR, CONVOLUTION, NO_PRODUCT = REASONS = (
    "their operators tell none",
    "no operator launched them",
    "they compute convolutions",
    "the kernel whose parts they add is not recorded",
)
#: Kernels that add the parts of a split depth.
_HELPER = re.compile(r"split_?k_?reduce|reduce\w*split_?k|PostGSU", re.IGNORECASE)
#: Class of copies beside a kernel.
_COPY = "copy"


@dataclass(frozen=True)
class UnknownKernels:
    """GEMM kernels whose shape is unknown: columns of equal length, one row a kernel.

    Parameters
    ----------
    name : array of int64
        Name, as an index into `GemmLaunches.names`.
    duration_ns : array of int64
        Duration.
    workgroups, resident : array of int64
        Workgroups, and workgroups that a compute unit holds at once; 0 if unknown.
    reason : array of int64
        Reason, as an index into `REASONS`.
    """

    name: Ints
    duration_ns: Ints
    workgroups: Ints
    resident: Ints
    reason: Ints

    def by_reason(self) -> dict[str, tuple[int, int]]:
        """Return number and time of the kernels by reason, most time first."""
        counts = np.bincount(self.reason, minlength=len(REASONS)).tolist()
        times = [int(self.duration_ns[self.reason == code].sum()) for code in range(len(REASONS))]
        rows = sorted(zip(REASONS, counts, times, strict=True), key=lambda row: -row[2])
        return {text: (count, time) for text, count, time in rows if count}


@dataclass(frozen=True)
class GemmLaunches:
    """Launches of GEMMs of known shape: columns of length n, one row a launch.

    Parameters
    ----------
    shape : array of int64
        Index into `shapes`.
    name : array of int64
        Name of its main kernel, the longest that computes products, as an index into `names`.
    operator : array of int64
        Name of the operator that launched it, as an index into `operator_names`.
    duration_ns : array of int64
        Sum of the durations of its kernels.
    kernel_ns : array of int64
        Duration of its main kernel.
    event : array of int64
        Id of that kernel in the trace.
    workgroups : array of int64
        Workgroups of that kernel; 0 if unknown.
    resident : array of int64
        Workgroups of it that a compute unit holds at once; 0 if the trace does not tell.
    adding_ns : array of int64
        Part of the duration in the kernels that add the parts of a split depth.
    beside_ns : array of int64
        Part of the duration with other work on the device.
    partner : array of int64
        Class of the work beside it for the longest time, as an index into `classes`; -1 if none.
    idle_before_ns : array of int64
        Time that the device was idle just before it.
    shapes : tuple of (Gemm, Operator)
        Distinct GEMMs.
    names, operator_names, classes : tuple of str
        Distinct texts; names are untrusted.
    kernel_ns_in_all : int
        Sum of the durations of all kernels of the trace.
    unknown : UnknownKernels
        GEMM kernels whose shape is unknown.
    """

    shape: Ints
    name: Ints
    operator: Ints
    duration_ns: Ints
    kernel_ns: Ints
    event: Ints
    workgroups: Ints
    resident: Ints
    adding_ns: Ints
    beside_ns: Ints
    partner: Ints
    idle_before_ns: Ints
    shapes: tuple[tuple[Gemm, Operator], ...]
    names: tuple[str, ...]
    operator_names: tuple[str, ...]
    classes: tuple[str, ...]
    kernel_ns_in_all: int
    unknown: UnknownKernels

    def __len__(self) -> int:
        return len(self.shape)


def gemm_launches(trace: Trace, device: Device | None) -> GemmLaunches:
    """Return the launches of GEMMs in a trace, and the GEMM kernels whose shape is unknown.

    Parameters
    ----------
    trace : Trace
        The trace; kernels outside of iterations count, too.
    device : Device, optional
        Device of the kernels, for the workgroups that a compute unit holds.
    """
    index, events = index_trace(trace), DeviceEvents.of(trace)
    rows, duration, all_ns = _gemm_kernels(index)
    columns = {name: values[rows] for name, values in index.device_work.columns.items()}
    number, _, operators = kernel_operators(index, columns["op"], columns["name"])
    gemm_operators = np.array([gemm_of_operator(operator) is not None for operator in operators] or [False])
    known = (number >= 0) & gemm_operators[np.maximum(number, 0)]
    why_unknown = np.where(columns["op"] == MISSING, REASONS.index(NO_OPERATOR), REASONS.index(NO_SHAPES))
    reason = np.where(number >= 0, REASONS.index(CONVOLUTION), why_unknown)
    workgroups, resident = np.maximum(columns["workgroups"], 0), _resident(columns, device)
    dtype = kernel_dtypes(index, columns["op"], columns["name"])
    helpers = np.array([_HELPER.search(str(name)) is not None for name in index.device_work.names] or [False])
    is_helper = helpers[columns["name"]]
    has_product = np.isin(columns["op"], columns["op"][known & ~is_helper])
    reason[known & ~has_product] = REASONS.index(NO_PRODUCT)
    known &= has_product
    calls = _Calls.of(np.flatnonzero(known), columns["op"], duration, is_helper)
    main = calls.main
    shape, shapes = _shapes(number[main], dtype[main], operators)
    beside, partner, classes = _beside(events, columns["id"])
    return GemmLaunches(
        shape=shape,
        name=columns["name"][main],
        operator=columns["launched_by"][main],
        duration_ns=calls.sums(duration),
        kernel_ns=duration[main],
        event=columns["id"][main],
        workgroups=workgroups[main],
        resident=resident[main],
        adding_ns=calls.sums(duration * is_helper),
        beside_ns=calls.sums(beside),
        partner=partner[main],
        idle_before_ns=_idle_before(events, columns["id"][calls.first]),
        shapes=shapes,
        names=tuple(map(str, index.device_work.names)),
        operator_names=tuple(map(str, index.device_work.op_names)),
        classes=classes,
        kernel_ns_in_all=all_ns,
        unknown=UnknownKernels(
            *(column[~known] for column in (columns["name"], duration, workgroups, resident, reason))
        ),
    )


def _gemm_kernels(index: TraceIndex) -> tuple[Ints, Ints, int]:
    """Return the rows of GEMM kernels in device work, their durations, and the sum of the durations of all kernels."""
    work = index.device_work
    duration = np.maximum(work.columns["end"] - work.columns["start"], 0)
    is_kernel = ~work.columns["is_copy"]
    is_gemm = is_kernel & (work.columns["collective"] == MISSING)
    is_gemm &= (work.classes == "gemm")[work.columns["name"]]
    rows = np.flatnonzero(is_gemm)
    return rows, duration[rows], int(duration[is_kernel].sum())


@dataclass(frozen=True)
class _Calls:
    """Kernels by the call of an operator that launched them.

    Parameters
    ----------
    rows : array of int64
        Rows of kernels.
    call : array of int64
        Number of the call of each.
    main, first : array of int64
        Row of the longest kernel and of the first kernel of each call.
    """

    rows: Ints
    call: Ints
    main: Ints
    first: Ints

    @classmethod
    def of(cls, rows: Ints, ops: Ints, duration: Ints, is_helper: Bools) -> "_Calls":
        """Group rows, which are in the order of time, by operator; a helper is no main kernel beside others."""
        _, first, call = np.unique(ops[rows], return_index=True, return_inverse=True)
        order = np.lexsort((np.arange(len(rows)), -duration[rows], is_helper[rows], call))
        heads = np.searchsorted(call[order], np.arange(len(first)))
        return cls(rows, call, rows[order[heads]], rows[first])

    def sums(self, values: Ints) -> Ints:
        """Return the sum of the values of the kernels of each call."""
        total = np.zeros(len(self.main), np.int64)
        np.add.at(total, self.call, values[self.rows])
        return total


def _shapes(
    number: Ints, dtype: Ints, operators: tuple[Operator, ...]
) -> tuple[Ints, tuple[tuple[Gemm, Operator], ...]]:
    """Return the number of each launch's shape, and the shapes; operators that differ in a bias share one."""
    if not len(number):
        return np.zeros(0, np.int64), ()
    codes, firsts = combinations(np.stack([number, dtype]))
    distinct: dict[Gemm, tuple[int, Operator]] = {}
    shape_of_code = np.zeros(len(firsts), np.int64)
    for code, row in enumerate(firsts.tolist()):  # a loop over distinct operators
        operator = operators[number[row]]
        gemm = gemm_of_operator(operator, int(dtype[row]))
        assert gemm is not None
        shape_of_code[code] = distinct.setdefault(gemm, (len(distinct), operator))[0]
    return shape_of_code[codes], tuple((gemm, operator) for gemm, (_, operator) in distinct.items())


def _beside(events: DeviceEvents, ids: Ints) -> tuple[Ints, Ints, tuple[str, ...]]:
    """Return the time with other work beside kernels, the class of that work, -1 without any, and the classes."""
    near = Neighbors.of(events, 0)
    row = lookup(events.id[: events.kernels], np.arange(events.kernels), ids)
    classes = tuple(dict.fromkeys(str(name) or _COPY for name in events.classes))
    code_of_name = np.array([classes.index(str(name) or _COPY) for name in events.classes] or [0], np.int64)
    partner = near.partner[row]
    class_ = np.where(partner >= 0, code_of_name[events.name[np.maximum(partner, 0)]] if len(row) else -1, -1)
    return near.beside_ns[row], class_, classes


def _idle_before(events: DeviceEvents, ids: Ints) -> Ints:
    """Return how long the device was idle just before each kernel; 0 for the first work of a device."""
    order = np.lexsort((events.id, events.start_ns, events.device))
    start, end, device = (column[order] for column in (events.start_ns, events.end_ns, events.device))
    idle = np.zeros(len(order), np.int64)
    for number in np.unique(device).tolist():  # a loop over devices
        rows = np.flatnonzero(device == number)
        idle[rows[1:]] = np.maximum(start[rows[1:]] - np.maximum.accumulate(end[rows])[:-1], 0)
    of_row = np.empty(len(order), np.int64)
    of_row[order] = idle
    return of_row[lookup(events.id[: events.kernels], np.arange(events.kernels), ids)]


def _resident(columns: dict[str, Ints], device: Device | None) -> Ints:
    """Return how many workgroups of each kernel a compute unit holds; 0 if the trace does not tell."""
    threads, registers, lds = columns["threads"], columns["registers"], columns["lds_bytes"]
    known = np.flatnonzero((threads > 0) & (registers > 0) & (lds >= 0))
    result = np.zeros(len(threads), dtype=np.int64)
    if device is None or not len(known):
        return result
    distinct, position = np.unique(np.stack([threads, registers, lds])[:, known], axis=1, return_inverse=True)
    held = resident_workgroups(device, distinct[0], registers=distinct[1], lds_bytes=distinct[2])
    result[known] = np.nan_to_num(held)[position.ravel()].astype(np.int64)
    return result
