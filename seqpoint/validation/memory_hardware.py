"""Caches and memory of devices against the simulation: counters of kernels, and times of memory-bound operators.

`score_counters` compares hit rates and bytes of the kernels of `COUNTED_KERNELS`. `score_times` compares the times of
elementwise operators, softmax and layer norm. Nothing of the simulation is fitted to either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

import numpy as np

from profilers.devices import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.calibration.parameters import Parameters
from replay.calibration.tables import MeasuredTable
from replay.memory.accesses import Lines, Stream, blocks, resident_workgroups
from replay.memory.caches import CacheCounters, Hierarchy
from replay.memory.simulation import simulate
from replay.memory.streams.passes import ArrayPass, layer_norm, softmax, streaming_pass
from replay.memory.system import find_policy, memory_system
from seqpoint.notebook import table_of
from seqpoint.validation.memory_kernels import COUNTED_KERNELS, LEFT_OUT
from seqpoint.validation.suites import (
    PREDICTING,
    SuiteOptions,
    SuiteResult,
    ValidationRow,
    followed,
    grouped,
    summary_row,
)

#: Device of the catalogue with the chip of the counters (Quadro GV100: the same 80 units and 6 MB of L2).
COUNTED_DEVICE = "V100-PCIE-32GB"
#: Columns of the counters, in sectors of 32 bytes and in bytes, and of measured times.
COUNTER_COLUMNS = frozenset(
    {
        "benchmark", "kernel", "l1_read_hits_sectors", "l1_read_misses_sectors", "l2_read_hits_sectors",
        "l2_read_misses_sectors", "dram_read_bytes", "dram_write_bytes",
    }
)  # fmt: skip
TIME_COLUMNS = frozenset({"op", "device", "B", "H", "latency_ms", "block_x", "block_y"})
#: Limits: median difference of L2 hit rates, median errors of bytes and of times.
_HITS, _BYTES, _TIMES = 0.10, 0.20, 0.20
#: Devices whose times have limits, and most rows of a device and kind that are simulated.
LIMITED = ("V100-PCIE-32GB", "A100-PCIE-40GB", "MI100")
_SAMPLED, _SAMPLED_OTHERS = 8, 2
#: Policy of the devices: loads are kept, stores are combined in the L2.
_POLICY = "CacheRW"
#: Fewest accesses of a large kernel that are simulated, and lines that a unit waits for where only counts matter.
_ACCESSES, _IN_FLIGHT = 300_000, 256
#: Elementwise operators by the tensors that they read. Those that end in u take a scalar as second operand.
_BINARY = ("add", "mul", "div", "pow")
_KINDS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys((*_BINARY, "addu", "mulu", "divu", "powu", "relu", "gelu", "tanh"), "elementwise")
    | {"softmax": "softmax", "ln": "layer norm"}
)
#: Host time of a call of PyTorch, us, which a time between events holds: medians over machines of the median
#: duration of aten::add and its like, aten::softmax and aten::layer_norm in traces of A100, V100, H100, RTX 2080 Ti
#: and MI300X (../shared/data/traces/kineto), none of which are scored here.
_CALL_US: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "NVIDIA": MappingProxyType({"elementwise": 20.0, "softmax": 30.5, "layer norm": 55.8}),
        "AMD": MappingProxyType({"elementwise": 8.3, "softmax": 9.0, "layer norm": 18.9}),
    }
)
_MOST = 1e12


@dataclass(frozen=True)
class CounterCase:
    """Counters of a kernel that was measured.

    Parameters
    ----------
    key : tuple of str
        Key of `COUNTED_KERNELS`.
    l1_hit_rate, l2_hit_rate : float
        Loads that hit, in sectors; NaN without loads.
    dram_bytes : float
        Bytes read and written.
    source : str
        File and row.
    """

    key: tuple[str, str]
    l1_hit_rate: float
    l2_hit_rate: float
    dram_bytes: float
    source: str

    @property
    def name(self) -> str:
        """Benchmark and kernel."""
        return " ".join(self.key)


@dataclass(frozen=True)
class CounterScore:
    """Measured and simulated counters of a kernel; the figures of the simulation have no prefix."""

    kernel: str
    measured_l1_hit_rate: float
    l1_hit_rate: float
    measured_l2_hit_rate: float
    l2_hit_rate: float
    measured_dram_bytes: float
    dram_bytes: float
    source: str

    @property
    def difference(self) -> float:
        """Absolute difference of the L2 hit rates."""
        return abs(self.l2_hit_rate - self.measured_l2_hit_rate)

    @property
    def error(self) -> float:
        """Relative error of the bytes."""
        return abs(self.dram_bytes / self.measured_dram_bytes - 1.0)


def read_counters(table: MeasuredTable, name: str) -> list[CounterCase]:
    """Return the kernels of a table of counters that have a stream; the others are in `LEFT_OUT` or unknown.

    Parameters
    ----------
    table : MeasuredTable
        Table with the columns `COUNTER_COLUMNS`.
    name : str
        Name of the file.
    """
    texts = [table.texts(column) for column in ("benchmark", "kernel")]
    counts = {
        column: table.floats(column) for column in sorted(COUNTER_COLUMNS) if column not in ("benchmark", "kernel")
    }
    cases, wrong = [], list[tuple[int, object]]()
    for row, (benchmark, kernel) in enumerate(zip(*texts, strict=True)):  # about 1 us a row
        keys = [key for key in COUNTED_KERNELS if benchmark.startswith(key[0]) and key[1] in kernel]
        figures = {column: values[row] for column, values in counts.items()}
        if bad := next((column for column, value in figures.items() if not 0 <= value < _MOST), ""):
            wrong.append((row, f"{bad} is {figures[bad]:g}; it must be finite and not negative"))
        elif keys:
            l1, l2 = (
                _rate(figures[f"{c}_read_hits_sectors"], figures[f"{c}_read_misses_sectors"]) for c in ("l1", "l2")
            )
            moved = figures["dram_read_bytes"] + figures["dram_write_bytes"]
            if not moved:
                wrong.append((row, "no byte was read or written"))
            cases.append(CounterCase(keys[0], l1, l2, moved, f"{name} row {table.number(row)}"))
    table.refuse(wrong)
    return cases


def _rate(hits: float, misses: float) -> float:
    return hits / (hits + misses) if hits + misses else float("nan")


def simulated_counters(stream: Stream) -> tuple[CacheCounters, int]:
    """Return the counters of a kernel on `COUNTED_DEVICE`, and the bytes of a request to memory.

    Caches are empty before the kernel, and lines that are dirty at its end stay in the L2, as when these counters were
    measured. All accesses are simulated.
    """
    system = memory_system(find_device(COUNTED_DEVICE))
    caches = Hierarchy(system, find_policy(_POLICY), in_flight=_IN_FLIGHT)
    lines = Lines(system.l1.line_bytes, system.l1.sector_bytes, system.units, system.wavefront)
    for block in blocks(stream, lines):
        caches.access(block)
    return caches.counters, system.dram.access_bytes


def _counter_score(case: CounterCase) -> CounterScore:
    counters, request_bytes = simulated_counters(COUNTED_KERNELS[case.key]())
    return CounterScore(
        case.name,
        case.l1_hit_rate,
        _rate(counters.l1.load_sector_hits, counters.l1.load_sectors - counters.l1.load_sector_hits),
        case.l2_hit_rate,
        _rate(counters.l2.load_sector_hits, counters.l2.load_sectors - counters.l2.load_sector_hits),
        case.dram_bytes,
        float((counters.reads + counters.writes) * request_bytes),
        case.source,
    )


def score_counters(cases: Sequence[CounterCase], options: SuiteOptions) -> SuiteResult:
    """Simulate kernels and compare their counters."""
    scores = [_counter_score(case) for case in followed(cases, options.progress(PREDICTING), lambda case: case.name)]
    rows = [
        ValidationRow(
            f"L2 hit rate: {score.kernel}", score.measured_l2_hit_rate, score.l2_hit_rate, score.difference,
            source=score.source,
        )
        for score in scores
    ] + [
        ValidationRow(
            f"DRAM bytes: {score.kernel}", score.measured_dram_bytes, score.dram_bytes, score.error, source=score.source
        )
        for score in scores
    ]  # fmt: skip
    if scores:
        hits, moved = (float(np.median([getattr(s, name) for s in scores])) for name in ("difference", "error"))
        rows.append(summary_row(f"L2 hit rate: median difference of {len(scores)} kernels", hits, _HITS))
        rows.append(summary_row(f"DRAM bytes: median error of {len(scores)} kernels", moved, _BYTES))
    columns = {
        "kernel~": "{kernel}", "L1 hits %": "{measured_l1_hit_rate:.1%}", "ours L1 hits %": "{l1_hit_rate:.1%}",
        "L2 hits %": "{measured_l2_hit_rate:.1%}", "ours L2 hits %": "{l2_hit_rate:.1%}",
        "DRAM bytes": "{measured_dram_bytes:.0f}", "ours DRAM bytes": "{dram_bytes:.0f}",
    }  # fmt: skip
    contents = [asdict(score) | {"l2_difference": score.difference, "dram_error": score.error} for score in scores]
    notes = [f"{' '.join(key)}: {reason}" for key, reason in LEFT_OUT.items()]
    table = table_of("Counters of kernels", columns, contents, verbose=True)
    return SuiteResult(rows, {"counters": contents, "left_out": notes}, [table], scores, notes)


@dataclass(frozen=True)
class TimeCase:
    """An operator that was timed.

    Parameters
    ----------
    op : str
        Name in the table, such as ``"addu"``.
    device : Device
        Device of the catalogue.
    rows, columns : int
        Shape of its tensors, FP32.
    threads : int
        Threads of a workgroup.
    seconds : float
        Measured time.
    source : str
        File and row.
    """

    op: str
    device: Device
    rows: int
    columns: int
    threads: int
    seconds: float
    source: str

    @property
    def kind(self) -> str:
        """Kind of operator."""
        return _KINDS[self.op]

    @property
    def name(self) -> str:
        """Device, operator and shape."""
        return f"{self.device.name}: {self.op} {self.rows} x {self.columns}"

    def stream(self, wavefront: int) -> Stream:
        """Return the stream of the operator, with the threads that were recorded."""
        size = self.rows * self.columns * 4
        if self.kind == "elementwise":
            reads = ("a", "b") if self.op in _BINARY else ("a",)
            data = ArrayPass(dict.fromkeys(reads, size), {"c": size}, size // 4, 4, size / 4)
            return streaming_pass(self.op, data)
        of = softmax if self.kind == "softmax" else layer_norm
        stream = of(self.rows, self.columns, 4, wavefront=wavefront)
        return replace(stream, threads=self.threads, residency=resident_workgroups(self.threads))


@dataclass(frozen=True)
class TimeScore:
    """Measured and simulated time of an operator, seconds.

    `launch_s` is not simulated: the host's time of the call, and the shipped time of a kernel that does nothing.
    """

    device: str
    kind: str
    case: str
    measured_s: float
    simulated_s: float
    launch_s: float
    source: str

    @property
    def error(self) -> float:
        """``|predicted - measured| / measured``."""
        return abs((self.simulated_s + self.launch_s) / self.measured_s - 1.0)


def read_times(table: MeasuredTable, name: str) -> list[TimeCase]:
    """Return the operators of a table of times whose kind is simulated.

    Parameters
    ----------
    table : MeasuredTable
        Table with the columns `TIME_COLUMNS`.
    name : str
        Name of the file.
    """
    ops, names = table.texts("op"), table.texts("device")
    devices = table.devices(names)
    shape = [table.numbers(column, (1, _MOST), whole=True) for column in ("B", "H", "block_x", "block_y")]
    times = 1e-3 * table.numbers("latency_ms", (1e-6, 1e9))
    return [
        TimeCase(op, devices[device], int(b), int(h), int(x * y), float(seconds), f"{name} row {table.number(row)}")
        for row, (op, device, b, h, x, y, seconds) in enumerate(zip(ops, names, *shape, times, strict=True))
        if op in _KINDS
    ]


def sampled(cases: Sequence[TimeCase]) -> list[TimeCase]:
    """Return every n-th case of each device and kind, by operator and size."""
    chosen = []
    for (device, _), group in sorted(grouped(cases, lambda case: (case.device.name, case.kind)).items()):
        most = _SAMPLED if device in LIMITED else _SAMPLED_OTHERS
        group.sort(key=lambda case: (case.op, case.columns, case.rows))
        apart = -(-len(group) // most)
        chosen += group[apart // 2 :: apart]
    return chosen


def _problem(device: Device) -> str:
    """Return why a device cannot be simulated; "" if it can."""
    try:
        memory_system(device)
        device.value("fp32_tflops")
    except (InvalidInputError, NotFoundError) as error:
        return str(error).partition(";")[0]
    return ""


def _time_score(case: TimeCase, parameters: Parameters) -> TimeScore:
    device = case.device
    system = memory_system(device)
    stream = case.stream(system.wavefront)
    result = simulate(
        [stream], system, find_policy(_POLICY), flops_per_s=device.value("fp32_tflops") * 1e12,
        warm=[operand.name for operand in stream.operands],
        most_accesses=max(_ACCESSES, 2 * system.l2.size // system.l2.line_bytes),
    )  # fmt: skip
    amd = device.vendor == "AMD"
    floor_ns = parameters["kernel_floor_amd_ns" if amd else "kernel_floor_ns"]
    launch = _CALL_US["AMD" if amd else "NVIDIA"][case.kind] * 1e-6 + floor_ns * 1e-9
    return TimeScore(device.name, case.kind, case.name, case.seconds, result.seconds, launch, case.source)


def score_times(cases: Sequence[TimeCase], options: SuiteOptions) -> SuiteResult:
    """Simulate a sample of the operators and compare their times."""
    problems = {device.name: _problem(device) for device in {case.device.name: case.device for case in cases}.values()}
    chosen = sampled([case for case in cases if not problems[case.device.name]])
    watched = followed(chosen, options.progress(PREDICTING), lambda case: case.name)
    scores = [_time_score(case, options.parameters) for case in watched]
    rows = [
        ValidationRow(f"time: {s.case}", s.measured_s, s.simulated_s + s.launch_s, s.error, source=s.source)
        for s in scores
    ]
    summaries = []
    for (device, kind), group in grouped(scores, lambda score: (score.device, score.kind)).items():
        median, bias, alone = (
            float(np.median(values))
            for values in zip(
                *((s.error, _bias(s), abs(s.simulated_s / s.measured_s - 1.0)) for s in group), strict=True
            )
        )
        summaries.append(
            {"device": device, "kind": kind, "n": len(group), "median": median, "bias": bias, "without_launch": alone}
        )
        if device in LIMITED:
            rows.append(summary_row(f"time: {device} {kind}, median of {len(group)}", median, _TIMES))
    columns = {
        "device~": "{device}",
        "kind~": "{kind}",
        "n": "{n}",
        "median %": "{median:.1%}",
        "bias %": "{bias:+.1%}",
    }
    table = table_of("Times of operators from the simulation", columns, summaries)
    notes = [
        f"{len(chosen)} of {len(cases)} times are simulated; the time of the launch, on top of each, is not simulated"
    ]
    notes += [f"times of {device} are left out: {problem}" for device, problem in problems.items() if problem]
    contents = [asdict(score) | {"error": score.error} for score in scores]
    return SuiteResult(rows, {"times": contents, "time_summary": summaries}, [table], scores, notes)


def _bias(score: TimeScore) -> float:
    """Return predicted over measured time, less 1."""
    return (score.simulated_s + score.launch_s) / score.measured_s - 1.0
