"""Launches of GEMMs in a trace: shape, kernel, grid and surroundings, and the causes of a low efficiency.

A launch is a call of an operator such as ``aten::mm``. If its depth is split, the kernel that adds the parts belongs to
it. `gemm_launches` returns launches as columns; `replay.gemms.gemm` explains their grids.

`causes_of` says why a GEMM is slow, as far as its shape, its grid and the work around it tell. A cause is measured or
follows from figures of the trace. A cause that rests on an assumption is marked as a guess. `Cause.share` is the part
of the time that would go with the cause. The largest one leads. `Parts` has the least times of what a kernel must do.
"""

import re
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import MISSING, Bools, Ints
from profilers.trace.columns import combinations, lookup
from profilers.trace.trace import Trace
from replay.contention.launches import DeviceEvents, Neighbors
from replay.costs.kernels.machine import matrix_share, runs_as
from replay.costs.occupancy import resident_workgroups
from replay.costs.products import cache_bytes
from replay.costs.tiles import tile_end
from replay.from_trace import TraceIndex, index_trace, kernel_dtypes, kernel_operators
from replay.gemms.gemm import Gemm, LaunchGrid, gemm_of_operator
from replay.graph.operators import DTYPE_BYTES, Operator
from replay.memory.system import memory_system
from seqpoint.units import duration

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
    calls = _GemmCalls.of(np.flatnonzero(known), columns["op"], duration, is_helper)
    main = calls.main
    shape, shapes = _shapes(number[main], dtype[main], operators)
    beside, partner, classes = _work_beside(events, columns["id"])
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
class _GemmCalls:
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
    def of(cls, rows: Ints, ops: Ints, duration: Ints, is_helper: Bools) -> "_GemmCalls":
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


def _work_beside(events: DeviceEvents, ids: Ints) -> tuple[Ints, Ints, tuple[str, ...]]:
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


#: Names of causes. The last four do not say why a kernel is slow by itself.
CAUSES: Final = (
    *("near peak", "memory-bound", "short", "few workgroups", "tail", "edges", "split", "misaligned", "shallow"),
    *("latency", "cache traffic", "sustained rate", "no overlap"),
    *("not explained", "contention", "fp32", "idle before"),
)
#: Least share of the bandwidth that a GEMM below the ridge draws if memory is what bounds it.
_DRAWN: Final = 0.25
#: Shares of units, of rounds and of tiles' area below which they are named.
_USED: Final = 0.85
#: Steps along the depth up to which filling and emptying the pipeline dominates (stages of CUTLASS: 3 to 6).
_STEPS: Final = 4
#: Shares of the time from which they are named: fixed time, adding parts, waits and cache, and a lower sustained rate.
_FIXED, _ADDED, _WAITED, _SUSTAINED = 0.4, 0.15, 0.25, 0.2
#: Share of the time from which it counts as all of it.
_ALL: Final = 0.9
#: Share of a cause whose part of the time is unknown.
_UNKNOWN: Final = 0.25
#: Share of the time with other work beside it, and idle time over its own, from which they are named.
_BESIDE, _IDLE = 0.25, 1.0
#: Share of what the device sustains from which a GEMM is near its peak, and below which a lack of causes is named.
_NEAR, _FAR = 0.85, 0.6
#: Share of its limit below which a GEMM is slow, and of the time that its largest cause has if that explains it.
_SLOW, _EXPLAINED = 0.5, 0.4
#: Bytes that a compute unit takes from the L2 cache in a cycle at most (AMD CDNA, NVIDIA since Volta).
_L2_BYTES: Final = 64.0
#: Vector loads are this wide, in bytes, and names of CUTLASS state how many elements are aligned.
_VECTOR: Final = 16
_ALIGNMENT: Final = re.compile(r"align[a-c]?(\d+)")
#: Buffers of operands in a name: ``64x3`` of CUTLASS, nvjet and cuBLAS (right behind the depth), and ``stage3`` of
#: xmma. Tensile names the steps that it loads ahead; one is assumed otherwise.
_STAGES: Final = (re.compile(r"^x(\d+)"), re.compile(r"stage(\d+)_"))
_AHEAD: Final = re.compile(r"_PGR(\d+)(?=_|$)")
#: Kernels whose workgroups may share loads from the L2 cache, as clusters do on Hopper and later.
_CLUSTERS: Final = re.compile(r"nvjet|sm(90|1\d\d)_|cutlass3x")


@dataclass(frozen=True)
class Cause:
    """A cause of low efficiency, or the statement that there is none.

    Parameters
    ----------
    name : str
        One of `CAUSES`.
    detail : str
        Figures behind it.
    is_guess : bool
        Whether it rests on an assumption.
    share : float
        Part of the time that would go with it, about.
    """

    name: str
    detail: str = ""
    is_guess: bool = False
    share: float = _UNKNOWN

    def __str__(self) -> str:
        """Return the cause as text; a guess begins with a tilde."""
        return f"{'~' * self.is_guess}{self.name}{f': {self.detail}' if self.detail else ''}"


@dataclass(frozen=True)
class Rates:
    """Rates of a GEMM's launches on a device.

    Parameters
    ----------
    efficiency : float
        FLOP/s over the device's peak of the type.
    limit : float
        Largest efficiency that memory allows if every operand is moved once; at most 1.
    bandwidth_share : float
        Bytes of operands and result over time, as a share of the peak bandwidth.
    """

    efficiency: float
    limit: float
    bandwidth_share: float


@dataclass(frozen=True)
class Surroundings:
    """Work around a GEMM's launches.

    Parameters
    ----------
    median_ns : float
        Median duration of a launch.
    beside_share : float
        Share of its time with other work on the device.
    partner : str
        Class of the most frequent work beside it; empty without any.
    idle_before_ns : float
        Median time that the device is idle just before it.
    adding_share : float
        Share of its time in the kernels that add the parts of a split depth.
    """

    median_ns: float
    beside_share: float = 0.0
    partner: str = ""
    idle_before_ns: float = 0.0
    adding_share: float = 0.0


@dataclass(frozen=True)
class Parts:
    """Least times of what the busiest compute unit does for a GEMM, in ns; kernels overlap them more or less.

    Parameters
    ----------
    fixed_ns : float
        Time of a kernel without work.
    waiting_ns : float
        Latency of loads that follow each other.
    cache_ns : float
        Operands of its tiles over the bandwidth from the L2 cache.
    compute_ns : float
        Arithmetic of its tiles at the peak.
    waits : int
        Loads that follow each other.
    requested_bytes : float
        Operands of all tiles.
    """

    fixed_ns: float
    waiting_ns: float = 0.0
    cache_ns: float = 0.0
    compute_ns: float = 0.0
    waits: int = 0
    requested_bytes: float = 0.0

    @property
    def total_ns(self) -> float:
        """Time if nothing overlaps."""
        return self.fixed_ns + self.waiting_ns + self.cache_ns + self.compute_ns

    def __str__(self) -> str:
        """Return the times above 0 as text."""
        named = {
            "fixed": self.fixed_ns, "latency": self.waiting_ns, "from L2": self.cache_ns, "arithmetic": self.compute_ns
        }  # fmt: skip
        return ", ".join(f"{duration(time)} {name}" for name, time in named.items() if time)


def rates_of(gemm: Gemm, operator: Operator, time_ns: float, device: Device) -> Rates | None:
    """Return the rates of launches; None without time, or if the device has no peak for the type.

    Parameters
    ----------
    gemm : Gemm
        GEMM that each launch computes.
    operator : Operator
        Its operator, which counts bytes.
    time_ns : float
        Mean time of a launch.
    device : Device
        Device that it ran on.
    """
    try:
        peak = device.flops_per_s(runs_as(device, gemm.dtype))
        bandwidth = device.memory_bytes_per_s
    except InvalidInputError:
        return None
    if time_ns <= 0:
        return None
    limit = min(gemm.flops / operator.bytes_moved * bandwidth / peak, 1.0)
    seconds = time_ns / 1e9
    return Rates(gemm.flops / seconds / peak, limit, operator.bytes_moved / seconds / bandwidth)


def parts_of(gemm: Gemm, grid: LaunchGrid | None, kernel: str, *, device: Device | None, fixed_ns: float) -> Parts:
    """Return the least times of a GEMM's parts; 0 where tile, caches or device are unknown.

    The workgroups of a unit run in ``ceil(on_unit / resident)`` rounds. A round loads its depth step by step. With s
    buffers, s - 1 loads are under way at one time, so that every s - 1 steps cost a latency (Little's law, as in
    Volkov, Understanding latency hiding on GPUs, 2016). The latency is that of the last cache, or of memory if the
    operands do not fit it. A tile reads ``(rows + columns) * depth`` elements; units share the bandwidth of the L2
    cache (`datasets/caches.toml`). Kernels of unknown buffers have no latency here, and those of clusters no operands
    from L2: how many workgroups share a load is unknown.

    Parameters
    ----------
    gemm : Gemm
        GEMM that a launch computes.
    grid : LaunchGrid or None
        Its grid, if it is known.
    kernel : str
        Name of its kernel.
    device : Device or None
        Device that it ran on, if it is known.
    fixed_ns : float
        Time of a kernel without work.
    """
    if device is None or grid is None or not grid.tile_m:
        return Parts(fixed_ns)
    try:
        system, peak = memory_system(device), device.flops_per_s(runs_as(device, gemm.dtype))
    except (InvalidInputError, NotFoundError):
        return Parts(fixed_ns)
    depth = gemm.k / max(grid.split, 1)
    on_unit, rounds = _rounds(grid)
    ahead = _loads_ahead(kernel, device)
    waits = rounds * ceil(ceil(depth / grid.depth) / ahead) if grid.depth and ahead else 0
    cycles = system.l1.latency + system.l2.latency + (system.llc.latency if system.llc else 0)
    cycles += system.memory_latency * (sum(gemm.operand_bytes[:2]) > cache_bytes(device))
    shared = _CLUSTERS.search(kernel) is not None
    of_tile = 0.0 if shared else (grid.tile_m + grid.tile_n) * depth * DTYPE_BYTES[gemm.dtype]
    served = system.dies * system.l2.slices * system.l2.line_bytes / system.l2.line_cycles
    each = min(_L2_BYTES, served / (grid.units_used * grid.units))
    flops = 2.0 * grid.tile_m * grid.tile_n * depth
    return Parts(
        fixed_ns,
        waits * cycles / system.clock_hz * 1e9,
        on_unit * of_tile / (each * system.clock_hz) * 1e9,
        on_unit * flops / (peak / grid.units) * 1e9,
        waits,
        grid.tiles * of_tile,
    )


def _loads_ahead(kernel: str, device: Device) -> int:
    """Return the steps of the depth whose loads are under way at one time; 0 if unknown."""
    behind = kernel[tile_end(kernel) :]
    if stages := _STAGES[0].search(behind) or _STAGES[1].search(behind):
        return max(int(stages[1]) - 1, 1)
    if device.vendor != "AMD":
        return 0
    stated = _AHEAD.search(kernel)
    return max(int(stated[1]), 1) if stated else 1


def _rounds(grid: LaunchGrid) -> tuple[int, int]:
    """Return the tiles of the busiest unit, and the rounds in which it computes them."""
    if grid.persistent:
        return ceil(grid.workgroups / grid.units) * ceil(grid.waves), ceil(grid.waves)
    on_unit = ceil(grid.tiles / grid.units)
    return on_unit, ceil(on_unit / grid.resident)


def causes_of(
    gemm: Gemm,
    grid: LaunchGrid | None,
    kernel: str,
    *,
    around: Surroundings,
    rated: tuple[Device, Rates] | None,
    fixed_ns: float = 0.0,
) -> tuple[Cause, ...]:
    """Return the causes of a GEMM's low efficiency, the leading one first.

    A GEMM near its peak or bound by memory says so first. Causes in the kernel follow, the largest share first. Work
    beside it, a faster type, and the host come last.

    Parameters
    ----------
    gemm : Gemm
        GEMM that the launches compute.
    grid : LaunchGrid or None
        Its grid, if it is known.
    kernel : str
        Name of its kernel.
    around : Surroundings
        Work around the launches.
    rated : (Device, Rates), optional
        Device with the rates on it, if they are known.
    fixed_ns : float
        Time of a kernel without work; 0 if unknown.

    Examples
    --------
    >>> from replay.costs.tiles import tile_of_name
    >>> from replay.gemms.gemm import grid_of
    >>> gemm, name = Gemm(512, 512, 4096, dtype="fp16"), "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
    >>> grid = grid_of(gemm, tile_of_name(name), 16, units=108)
    >>> [str(cause) for cause in causes_of(gemm, grid, name, around=Surroundings(40e3), rated=None)]
    ['few workgroups: 16 on 108 units']
    """
    device, rates = rated or (None, None)
    parts = parts_of(gemm, grid, kernel, device=device, fixed_ns=fixed_ns)
    first: list[Cause] = []
    inner = _of_parts(parts, around.median_ns) + _of_shape(gemm, grid, kernel) + _of_split(grid, around)
    outer = _beside(around)
    if grid is not None:
        left = 1.0 - min(fixed_ns / around.median_ns, 1.0) if around.median_ns > 0 else 1.0
        inner += _of_grid(gemm, grid, 0.0 if rates is None else rates.efficiency, left)
    if device is not None and rates is not None:
        first = _near_peak(gemm, device, rates) + _memory(rates)
        inner += _sustained_rate(gemm, device, rates)
        if not first and not outer and max((cause.share for cause in inner), default=0.0) < _EXPLAINED:
            inner += _in_turns(grid, parts, around.median_ns, rates)
        if not (first or inner or outer) and rates.efficiency < _FAR * rates.limit * _sustained(gemm, device):
            inner = [Cause("not explained", f"of {duration(around.median_ns)} at least {parts}")]
        outer += _faster_type(gemm, device, rates)
    ranked = sorted(inner, key=lambda cause: (-cause.share, CAUSES.index(cause.name)))
    return (*first, *ranked, *outer, *_idle(around))


def _memory(rates: Rates) -> list[Cause]:
    is_bound = rates.limit < 1 and rates.bandwidth_share >= _DRAWN
    return [Cause("memory-bound", f"{100 * rates.bandwidth_share:.0f} % of the bandwidth")] if is_bound else []


def _of_parts(parts: Parts, time_ns: float) -> list[Cause]:
    """Return the causes that least times tell: the fixed time, waits for operands, and operands from the L2 cache."""
    if time_ns <= 0:
        return []
    fixed, waiting, cache = (part / time_ns for part in (parts.fixed_ns, parts.waiting_ns, parts.cache_ns))
    causes = []
    if fixed >= _FIXED:
        is_all = fixed >= _ALL
        whole = "about as long as a kernel without work"
        detail = whole if is_all else f"about {duration(parts.fixed_ns)} of {duration(time_ns)} is fixed"
        causes.append(Cause("short", detail, True, min(fixed, 1.0)))
    if waiting >= _WAITED:
        each = duration(parts.waiting_ns / parts.waits)
        detail = f"{parts.waits} waits of {each} for operands take {100 * min(waiting, 1.0):.0f} % of the time"
        causes.append(Cause("latency", detail, True, min(waiting, 1.0)))
    if cache >= _WAITED and parts.cache_ns > parts.compute_ns:
        moved, percent = f"{parts.requested_bytes / 1e6:.3g} MB", 100 * min(cache, 1.0)
        detail = f"{moved} from L2 take {percent:.0f} % of the time at its peak bandwidth"
        causes.append(Cause("cache traffic", detail, True, min(cache, 1.0)))
    return causes


def _of_split(grid: LaunchGrid | None, around: Surroundings) -> list[Cause]:
    """Return that adding the parts of a split depth takes long, which the trace measures."""
    if around.adding_share < _ADDED:
        return []
    parts = f"the {grid.split} parts" if grid is not None and grid.split > 1 else "the parts"
    detail = f"adding {parts} of the depth takes {100 * around.adding_share:.0f} % of the time"
    return [Cause("split", detail, share=around.adding_share)]


def _sustained_rate(gemm: Gemm, device: Device, rates: Rates) -> list[Cause]:
    """Return that the device sustains much less than the peak of its data sheet, if that costs much time here."""
    sustained = _sustained(gemm, device)
    lost = rates.efficiency * (1 / sustained - 1)
    if lost < _SUSTAINED or rates.efficiency >= _NEAR * sustained:
        return []
    reached = f"this product reaches {100 * rates.efficiency / sustained:.0f} % of that"
    return [Cause("sustained rate", f"about {100 * sustained:.0f} % of the peak is sustained, {reached}", share=lost)]


def _in_turns(grid: LaunchGrid | None, parts: Parts, time_ns: float, rates: Rates) -> list[Cause]:
    """Return that a unit has nothing to compute while its workgroups start, load and store.

    It holds one workgroup at a time, or runs all in one round. The parts of a launch one after another take much of the
    time, and not more than the time.
    """
    if grid is None or rates.efficiency >= _SLOW * rates.limit or not parts.compute_ns:
        return []
    on_unit, rounds = _rounds(grid)
    at_once = ceil(on_unit / rounds)
    if (at_once > 1 and rounds > 1) or not _EXPLAINED * time_ns <= parts.total_ns <= time_ns:
        return []
    crowd = "one workgroup" if at_once == 1 else f"{at_once} workgroups"
    crowd += " a unit" if rounds == 1 else " a unit at a time"
    largest = max(parts.fixed_ns, parts.waiting_ns, parts.cache_ns, parts.compute_ns)
    share = (parts.total_ns - largest) / time_ns
    return [Cause("no overlap", f"{crowd}; of {duration(time_ns)} at least {parts}", True, share)]


def _of_grid(gemm: Gemm, grid: LaunchGrid, efficiency: float, left: float) -> list[Cause]:
    """Return the causes that the workgroups tell; units that were idle cannot have computed.

    `left` is the share of the time without the fixed time, which no grid changes.
    """
    causes = []
    assumed = not grid.workgroups  # the tile alone tells how many there were
    is_possible = efficiency <= grid.tail_efficiency
    if is_possible and grid.units_used < _USED:
        count = min(grid.tiles, grid.workgroups or grid.tiles)
        share = left * (1 - grid.units_used)
        causes.append(Cause("few workgroups", f"{count} on {grid.units} units", assumed, share))
    elif is_possible and grid.tail_efficiency < _USED:
        detail = f"{grid.tiles} tiles keep {grid.units} units {100 * grid.tail_efficiency:.0f} % busy"
        causes.append(Cause("tail", detail, assumed, left * (1 - grid.tail_efficiency)))
    inside = grid.inside(gemm)
    if inside is not None and inside < _USED:
        detail = f"{100 - 100 * inside:.0f} % of the tiles is outside"
        causes.append(Cause("edges", detail, grid.known_by != "name", left * (1 - inside)))
    return causes


def _of_shape(gemm: Gemm, grid: LaunchGrid | None, kernel: str) -> list[Cause]:
    """Return the causes that the shape and the name of the kernel tell."""
    causes = []
    size = DTYPE_BYTES[gemm.dtype]
    aligned = [int(number) for number in _ALIGNMENT.findall(kernel)]
    odd = [f"{name} = {getattr(gemm, name)}" for name in ("k", "n") if getattr(gemm, name) * size % _VECTOR]
    if aligned and min(aligned) * size < _VECTOR:
        causes.append(Cause("misaligned", f"{min(aligned)} of {_VECTOR // size} elements"))
    elif not aligned and odd and gemm.dtype not in ("fp32", "fp64"):
        causes.append(Cause("misaligned", f"{', '.join(odd)}, no multiple of {_VECTOR // size}", True))
    if grid is not None and grid.depth and (steps := -(-gemm.k // (max(grid.split, 1) * grid.depth))) <= _STEPS:
        causes.append(Cause("shallow", f"{steps} step{'s' * (steps != 1)} along k"))
    return causes


def _beside(around: Surroundings) -> list[Cause]:
    if around.beside_share < _BESIDE:
        return []
    return [Cause("contention", f"{around.partner} beside {100 * around.beside_share:.0f} % of it", True)]


def _idle(around: Surroundings) -> list[Cause]:
    """Return that the device waits for work before it: no cause, but a reason why a faster kernel gains nothing."""
    if around.idle_before_ns <= 0 or around.idle_before_ns < _IDLE * around.median_ns:
        return []
    detail = f"the device waits {duration(around.idle_before_ns)} for the host, so a faster kernel gains nothing"
    return [Cause("idle before", detail, True)]


def _sustained(gemm: Gemm, device: Device) -> float:
    """Return the share of the peak that the device sustains in a type."""
    return 1.0 if gemm.dtype in ("fp32", "fp64") else matrix_share(device)


def _near_peak(gemm: Gemm, device: Device, rates: Rates) -> list[Cause]:
    sustained = _sustained(gemm, device)
    if rates.efficiency < _NEAR * sustained:
        return []
    return [Cause("near peak", f"about {100 * sustained:.0f} % is sustained" if sustained < 1 else "")]


def _faster_type(gemm: Gemm, device: Device, rates: Rates) -> list[Cause]:
    """Return that matrix units for TF32 would be faster, if memory allows."""
    faster = device.value("tf32_tflops") / device.value("fp32_tflops") if _has_tf32(gemm, device) else 1.0
    return [Cause("fp32", f"TF32 peaks {faster:.2g} times higher")] if faster >= 2 and rates.limit == 1.0 else []


def _has_tf32(gemm: Gemm, device: Device) -> bool:
    return gemm.dtype == "fp32" and {"tf32_tflops", "fp32_tflops"} <= set(device.figures)
