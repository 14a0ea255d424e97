"""Work that was measured before and after a change that a what-if expresses, and coverage of the intervals.

`MeasuredChange` holds the graphs of the work as measured before, the what-if, and the times measured after. Such
changes come from two traces of one job on two devices, and from tables of operators and collectives that were measured
on several devices, in several data types, or with several numbers of ranks. `score_change` gives an `IntervalScore` for
each group of work, and `summaries` the share of intervals that hold what was measured.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from profilers.devices.catalogue import DTYPES, Device, find_device
from profilers.errors import InvalidInputError, SeqPointError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.calibration.tables import MeasuredTable, refuse_row
from replay.costs.collectives import KINDS
from replay.from_trace import build_graph, index_trace
from replay.graph.assembly import Assembly
from replay.graph.graph import COLLECTIVE_KINDS, Basis, KernelGraph, TaskKind, hardware_named
from replay.graph.operators import DTYPE_BYTES, Operator, batched_matmul
from replay.what_ifs import WhatIf, change_dtype, change_world_size, scale_device
from seqpoint.graphs import all_iterations
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import ValidationRow, grouped, summary_row

#: Nominal coverage of the intervals, and the coverage that is accepted.
NOMINAL, LEAST, MOST = 0.9, 0.85, 0.95
#: Draws of the parameters for each interval.
_DRAWS = 100
#: Least number of intervals of a kind whose coverage has a limit.
_COUNTED = 20
#: Largest number of a table.
_MOST = 1e15
#: Ratios closer to 1 than this are rounding.
_ROUNDING = 1e-9
#: Columns of a table of the operators of models, of matrix products (two layouts), and of collectives.
MODEL_COLUMNS = ("device", "model", "mode", "seq_len", "batch", "target", "input_shapes", "output_shape", "fw_ms")
PRODUCT_COLUMNS = ("system", "dtype", "m_elements", "n_elements", "k_elements", "latency_us")
BENCH_COLUMNS = ("device", "precision", "op", "m", "n", "k", "time_ms")
COLLECTIVE_COLUMNS = ("system", "implementation", "dtype", "collective", "ranks_count", "message_bytes", "time_us")
#: Data types of products, as these tables and as the what-ifs call them.
_PRODUCT_TYPES = {"bfloat16": "bf16", "fp8": "fp8"}
_BENCH_TYPES = (("Float", "fp32"), ("16 bit inputs, 16 bit multiplication", "fp16"))
#: Data types whose products are compared on two devices: times of 8 bits include more than the product.
_WIDE = ("fp32", "bf16")
#: Least rows and columns of a product in whose time the conversion of its operands to 8 bits hardly counts.
_LEAST_ROWS, _LEAST_COLUMNS = 256, 4096
_LIBRARY, _COLLECTIVE_TYPE = "NCCL", "half"
#: Least bytes of a collective whose time is more than its latency.
_LEAST_BYTES = 2**20
#: Least share of the kernel time of a class that is scored alone.
_CLASS_SHARE = 0.05
#: Least elements of an operator that runs a kernel worth timing.
_LEAST_ELEMENTS = 2**16
#: Methods and modules that move no data, or only in training.
_NO_KERNEL = re.compile(r"view|permute|transpose|size|getitem|expand|dropout|getattr|\bdim\b|reshape|split|unsqueeze")
#: The projection onto the vocabulary, which would outweigh the layer that the tables hold.
_HEAD = re.compile(r"lm_head|cls\.predictions")
_NOT_LINEAR = re.compile(r"ln_|norm|dropout|act|gelu|embed|wte|wpe", re.IGNORECASE)
_NORMALIZATION = re.compile(r"ln_|norm", re.IGNORECASE)
_GEMM, _COLLECTIVE = CLASSES.index("gemm"), CLASSES.index("collective")
_TYPES = tuple(DTYPES)


@dataclass(frozen=True)
class MeasuredChange:
    """Work that was measured before and after a change.

    Parameters
    ----------
    kind : str
        Kind of the comparison, which tables keep apart.
    job : str
        Name of the job, without the change.
    what_if : WhatIf
        The change.
    graphs : sequence of KernelGraph
        Work as measured before the change.
    groups : sequence of array of int64
        For each graph, the group that each task belongs to; -1 for tasks that do not count.
    names : sequence of str
        Name of each group.
    measured_ns : array of float64, shape (n_groups,)
        Time of each group as measured after the change.
    total_kind : str
        Kind of the comparison of all groups together; empty if they are not added up.
    source : str
        File and devices.
    """

    kind: str
    job: str
    what_if: WhatIf
    graphs: Sequence[KernelGraph]
    groups: Sequence[Ints]
    names: Sequence[str]
    measured_ns: Floats
    total_kind: str = ""
    source: str = ""

    def times_ns(self, graphs: Sequence[KernelGraph]) -> Floats:
        """Return the time of each group in some graphs of the same tasks."""
        times = np.zeros(len(self.names))
        for graph, group in zip(graphs, self.groups, strict=True):
            counted = group >= 0
            times += np.bincount(group[counted], graph.tasks.duration_ns[counted], len(self.names))
        return times


def trace_changes(job: str, traces: Mapping[str, Trace], parameters: Parameters) -> Iterator[MeasuredChange]:
    """Yield the change of device between each two traces of a job, in both directions.

    Collectives do not count: they wait for other ranks. Only whole iterations count.

    Parameters
    ----------
    job : str
        Name of the job.
    traces : mapping of str to Trace
        Trace of the job by the name of its file.
    parameters : Parameters
        Parameters of the graphs.

    Raises
    ------
    InvalidInputError
        The traces have different numbers of iterations, or one does not name its device.
    """
    graphs = {name: _graphs(trace, parameters) for name, trace in traces.items()}
    for before, after in permutations(graphs, 2):
        devices = [graphs[name][0].hardware.device for name in (before, after)]
        if len(graphs[before]) != len(graphs[after]) or None in devices or devices[0] == devices[1]:
            raise InvalidInputError(
                f"{job}: {before} and {after} are no pair; give as many iterations of each, on two known devices"
            )
        old, new = _by_class(graphs[before]), _by_class(graphs[after])
        least = np.minimum(old / old.sum(), new / new.sum())
        groups = [np.where(_counted(graph), graph.tasks.class_, -1) for graph in graphs[before]]
        assert devices[0] is not None and devices[1] is not None
        yield MeasuredChange(
            "kernel time of a class", job, scale_device(devices[1]), graphs[before], groups,
            [name if share >= _CLASS_SHARE else "" for name, share in zip(CLASSES, least, strict=True)],
            new, "kernel time of a step", f"{before}, {after}",
        )  # fmt: skip


def _graphs(trace: Trace, parameters: Parameters) -> tuple[KernelGraph, ...]:
    index = index_trace(trace)
    return tuple(build_graph(index, number, parameters=parameters) for number in all_iterations(trace))


def _counted(graph: KernelGraph) -> Any:
    tasks = graph.tasks
    kernel = (tasks.kind == TaskKind.KERNEL) & tasks.in_iteration & graph.on_device()
    return kernel & (tasks.class_ != _COLLECTIVE)


def _by_class(graphs: Sequence[KernelGraph]) -> Floats:
    times = np.zeros(len(CLASSES))
    for graph in graphs:
        chosen = _counted(graph)
        times += np.bincount(graph.tasks.class_[chosen], graph.tasks.duration_ns[chosen], len(CLASSES))
    return times


def serial_graph(
    device: Device, durations_ns: Sequence[float], columns: Mapping[str, Any], operators: Sequence[Operator] = ()
) -> KernelGraph:
    """Return the graph of kernels or collectives that run one after another on a device.

    Parameters
    ----------
    device : Device
        Device that they were measured on.
    durations_ns : sequence of float
        Durations in ns.
    columns : mapping of str to array
        Columns of `Tasks` that differ from a kernel of unknown shape.
    operators : sequence of Operator
        Operators, to which the column ``operator`` refers.
    """
    assembly = Assembly()
    measured = {"class_": _GEMM, "basis": int(Basis.MEASURED), "duration_ns": np.asarray(durations_ns)}
    assembly.chain(assembly.tasks("kernel", assembly.lane(device=0), measured | dict(columns)))
    graph = assembly.graph(hardware_named(device, "file"))
    return replace(graph, measured_ns=float(sum(durations_ns)), origin=Basis.MEASURED, operators=tuple(operators))


def _table_rows(file: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a table with their numbers in the file, about 5 us each."""
    table = MeasuredTable.open(file)
    for row, content in enumerate(table.content.select(list(columns)).to_pylist()):
        yield table.number(row), content


def _numbers(row: Mapping[str, Any], *names: str) -> list[float]:
    """Return numbers of a row: the last is a time, the others are whole; all are above zero.

    Raises
    ------
    InvalidInputError
        A cell is no such number.
    """
    numbers = []
    for name in names:
        try:
            number = float(row[name])
        except (TypeError, ValueError):
            number = np.nan
        if not 0 < number < _MOST or (name != names[-1] and not number.is_integer()):
            raise InvalidInputError(f"{name} is {str(row[name])[:40]!r}; it must be a number above zero")
        numbers.append(number if name == names[-1] else int(number))
    return numbers


def model_changes(file: Path) -> Iterator[MeasuredChange]:
    """Yield the changes of device of a layer of each model in a table of measured operators, FP32.

    Parameters
    ----------
    file : Path
        Parquet file with the columns `MODEL_COLUMNS`.
    """
    runs: dict[tuple[Any, ...], dict[str, list[tuple[float, Operator]]]] = defaultdict(lambda: defaultdict(list))
    for number, row in _table_rows(file, MODEL_COLUMNS):
        try:
            if str(row["mode"]) == "inf" and row["fw_ms"] and (operator := layer_operator(row)):
                batch, length, milliseconds = _numbers(row, "batch", "seq_len", "fw_ms")
                device = find_device(str(row["device"])).name
                runs[row["model"], batch, length][device].append((milliseconds * 1e6, operator))
        except SeqPointError as error:
            refuse_row(file, number, error)
        except (ValueError, SyntaxError, TypeError, IndexError, RecursionError, MemoryError):
            refuse_row(file, number, "input_shapes or output_shape is no list of sizes")
    for (model, batch, length), devices in runs.items():
        job = f"a layer of {model}, {batch} x {length}"
        for before, after in permutations(devices, 2):
            times, operators = zip(*devices[before], strict=True)
            measured = sum(ns for ns, _ in devices[after])
            yield _operators_moved(job, (before, after), operators, times, measured, file)


def _operators_moved(
    job: str, devices: tuple[str, str], operators: Sequence[Operator], times: Sequence[float], measured_ns: float,
    file: Path,
) -> MeasuredChange:  # fmt: skip
    source, target = map(find_device, devices)
    names = {"matmul": "gemm", "batched_matmul": "gemm", "normalization": "normalization"}
    class_ = np.array([CLASSES.index(names.get(operator.kind, "elementwise")) for operator in operators])
    n, fp32 = len(operators), _TYPES.index("fp32")
    columns = {"class_": class_, "operator": np.arange(n), "dtype": np.full(n, fp32)}
    graph = serial_graph(source, times, columns, operators)
    return MeasuredChange(
        "kernel time of operators", job, scale_device(target), [graph], [np.zeros(n, dtype=np.int64)], [job],
        np.array([measured_ns]), source=f"{file.name}: {source.name} -> {target.name}",
    )  # fmt: skip


def layer_operator(row: Mapping[str, Any]) -> Operator | None:
    """Return the operator of a row of a table of models, FP32; None if it runs no kernel worth timing.

    Examples
    --------
    >>> row = {"target": "h.0.fc", "input_shapes": "[[8, 1024]]", "output_shape": "(8, 4096)"}
    >>> layer_operator(row).dims, layer_operator(row | {"target": "view"})
    ((1, 8, 4096, 1024), None)
    """
    target, shapes = str(row["target"]), _shapes(row["input_shapes"])
    out = _shapes(row["output_shape"])
    if _NO_KERNEL.search(target) or _HEAD.search(target) or not out or not shapes:
        return None
    if "addmm" in target:
        (m, k), (_, n) = shapes[1], shapes[2]
        return batched_matmul(1, m, n, k)
    if re.search(r"matmul|bmm", target):
        *batch, m, k = shapes[0]
        return batched_matmul(prod(batch), m, shapes[1][-1], k)
    if "." in target and not _NOT_LINEAR.search(target):
        return batched_matmul(1, prod(out[:-1]), out[-1], shapes[0][-1])
    elements = prod(out)
    if elements < _LEAST_ELEMENTS:
        return None
    kind = "normalization" if _NORMALIZATION.search(target) else "elementwise"
    return Operator(kind, float(elements), 4.0 * elements, 4.0 * elements, (elements,))


def _shapes(text: Any) -> Any:
    return ast.literal_eval(text) if isinstance(text, str) else [list(shape) for shape in text]


#: Rows, columns and inner size of a product.
_Shape = tuple[int, int, int]
#: Times of products, ns, by system, data type and shape.
_ProductTimes = dict[tuple[str, str], dict[_Shape, float]]


def product_changes(file: Path) -> Iterator[MeasuredChange]:
    """Yield the changes of device, and of data type, of the matrix products of each number of rows in a table.

    Of several libraries the fastest counts.

    Parameters
    ----------
    file : Path
        Parquet file with the columns `PRODUCT_COLUMNS`.
    """
    times: _ProductTimes = defaultdict(dict)
    for number, row in _table_rows(file, PRODUCT_COLUMNS):
        if row["dtype"] in _PRODUCT_TYPES:
            sizes = ("m_elements", "n_elements", "k_elements")
            _add_product(times, (row["system"], _PRODUCT_TYPES[row["dtype"]]), row, (*sizes, "latency_us"), 1e3,
                         (file, number))  # fmt: skip
    yield from _product_pairs(times, file)


def bench_changes(file: Path) -> Iterator[MeasuredChange]:
    """Yield the changes of device, and of data type, of the matrix products of each batch in a table of DeepBench.

    Parameters
    ----------
    file : Path
        Parquet file with the columns `BENCH_COLUMNS`.
    """
    times: _ProductTimes = defaultdict(dict)
    for number, row in _table_rows(file, BENCH_COLUMNS):
        dtype = next((ours for words, ours in _BENCH_TYPES if str(row["precision"]).startswith(words)), None)
        if row["op"] == "gemm" and row["device"] in _SYSTEMS and dtype:
            _add_product(times, (row["device"], dtype), row, ("n", "m", "k", "time_ms"), 1e6, (file, number))
    yield from _product_pairs(times, file)


def _add_product(
    times: _ProductTimes, key: tuple[str, str], row: Mapping[str, Any], names: Sequence[str], unit_ns: float,
    where: tuple[Path, int],
) -> None:  # fmt: skip
    """Add the product of a row, of which the fastest counts; `names` are its sizes and its time."""
    try:
        _device(str(key[0]))
        *sizes, time = _numbers(row, *names)
    except SeqPointError as error:
        refuse_row(*where, error)
        return
    m, n, k = map(int, sizes)
    times[key][m, n, k] = min(time * unit_ns, times[key].get((m, n, k), np.inf))


def _product_pairs(times: _ProductTimes, file: Path) -> Iterator[MeasuredChange]:
    """Yield the changes between each two systems, or data types of a system, that have products in common."""
    for before, after in permutations(times, 2):
        (source, old), (target, new) = before, after
        if source == target and old != new:
            what_if = change_dtype(f"{old}->{new}")
        elif old == new and old in _WIDE:
            what_if = scale_device(_device(target))
        else:
            continue
        both = times[before].keys() & times[after].keys()
        shapes = sorted(shape for shape in both if {old, new} <= {*_WIDE, "fp16"} or _casts_little(shape))
        if shapes:
            durations = [[times[key][shape] for shape in shapes] for key in (before, after)]
            yield _products_changed(before, what_if, shapes, durations, file)


def _casts_little(shape: _Shape) -> bool:
    """Return whether the conversion of the operands, which times of 8 bits include, is small."""
    return shape[0] >= _LEAST_ROWS and shape[1] >= _LEAST_COLUMNS


#: Devices by their short names in these tables.
_SYSTEMS = {
    "a100_sxm": "A100-SXM4-80GB", "h100_sxm": "H100-SXM5-80GB", "b200_sxm": "B200-SXM-192GB",
    "NV_V100": "V100-SXM2-16GB", "NV_P100": "P100-PCIE-16GB", "NV_T4": "T4", "NV_1080Ti": "GTX 1080 Ti",
    "AMD_VegaFE": "Radeon Vega Frontier Edition",
}  # fmt: skip


def _device(system: str) -> Device:
    return find_device(_SYSTEMS.get(system, system))


def _products_changed(
    before: tuple[str, str], what_if: WhatIf, shapes: Sequence[_Shape],
    durations: Sequence[Sequence[float]], file: Path,
) -> MeasuredChange:  # fmt: skip
    """Return the change of some products, grouped by rows up to a power of two."""
    system, dtype = before
    sizes = [2 ** (m.bit_length() - 1) for m, _, _ in shapes]
    rows = sorted(set(sizes))
    group = np.array([rows.index(m) for m in sizes], dtype=np.int64)
    operators = [batched_matmul(1, *shape, DTYPE_BYTES[dtype]) for shape in shapes]
    columns = {"operator": np.arange(len(shapes)), "dtype": np.full(len(shapes), _TYPES.index(dtype))}
    graph = serial_graph(_device(system), durations[0], columns, operators)
    measured = np.zeros(len(rows)) + np.bincount(group, durations[1], len(rows))
    kind = f"matrix products, {what_if.name.partition(':')[0]}"
    names = [f"products of {m} to {2 * m - 1} rows in {dtype}" for m in rows]
    return MeasuredChange(kind, "", what_if, [graph], [group], names, measured, source=f"{file.name}: {system}")


def collective_changes(file: Path) -> Iterator[MeasuredChange]:
    """Yield the changes of the number of ranks of NCCL's collectives of 1 MiB or more inside a node.

    Parameters
    ----------
    file : Path
        Parquet file with the columns `COLLECTIVE_COLUMNS`.
    """
    spelled = {name.replace("_", ""): name for name in KINDS}
    times: dict[tuple[str, str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number, row in _table_rows(file, COLLECTIVE_COLUMNS):
        if (row["implementation"], row["dtype"]) != (_LIBRARY, _COLLECTIVE_TYPE):
            continue
        try:
            ranks, size, microseconds = _numbers(row, "ranks_count", "message_bytes", "time_us")
            _device(str(row["system"]))
        except SeqPointError as error:
            refuse_row(file, number, error)
            continue
        if (kind := spelled.get(str(row["collective"]).replace("_", ""))) is None:
            refuse_row(file, number, f"no collective {row['collective']!r:.40}; there are {', '.join(KINDS)}")
        elif size >= _LEAST_BYTES:
            times[row["system"], kind, int(ranks)][int(size)].append(microseconds * 1e3)
    for before, after in permutations(times, 2):
        if before[:2] == after[:2]:
            yield _ranks_changed(before, after[2], times[before], times[after], file)


def _ranks_changed(
    before: tuple[str, str, int], ranks: int, old: Mapping[int, Sequence[float]], new: Mapping[int, Sequence[float]],
    file: Path,
) -> MeasuredChange:  # fmt: skip
    system, kind, size = before
    sizes = sorted(old.keys() & new.keys())
    n = len(sizes)
    columns = {
        "kind": np.full(n, int(TaskKind.COLLECTIVE)), "class_": np.full(n, _COLLECTIVE), "bytes": np.array(sizes),
        "collective": np.full(n, COLLECTIVE_KINDS.index(kind)), "ranks": np.full(n, size),
    }  # fmt: skip
    graph = serial_graph(_device(system), [float(np.median(old[size])) for size in sizes], columns)
    names = [f"{kind} of {bytes_ // 2**20} MiB, {size} ranks" for bytes_ in sizes]
    return MeasuredChange(
        "a collective, change_world_size", "", change_world_size(ranks), [graph], [np.arange(n)], names,
        np.array([np.median(new[size]) for size in sizes]), source=f"{file.name}: {system}",
    )  # fmt: skip


@dataclass(frozen=True)
class IntervalScore:
    """A projected time with its interval, and the measured time.

    Parameters
    ----------
    kind : str
        Kind of the comparison.
    case : str
        Job, or group of operators.
    what_if : str
        The change.
    measured_ns, projected_ns, low_ns, high_ns : float
        Times after the change, in ns.
    before_ns : float
        Measured time before the change.
    source : str
        Files and devices.
    """

    kind: str
    case: str
    what_if: str
    measured_ns: float
    projected_ns: float
    low_ns: float
    high_ns: float
    before_ns: float
    source: str = ""

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low_ns <= self.measured_ns <= self.high_ns

    @property
    def width(self) -> float:
        """High end over low end."""
        return self.high_ns / max(self.low_ns, 1e-9)

    @property
    def needed(self) -> float:
        """Factor by which the interval must be widened, as a power of ratios, until it holds the measured time.

        Examples
        --------
        >>> IntervalScore("step", "job", "scale_device:X", 150.0, 100.0, 80.0, 125.0, 90.0).needed
        1.817059...
        """
        off = float(np.log(self.measured_ns / self.projected_ns))
        end = self.high_ns if off > 0 else self.low_ns
        return abs(off) / max(abs(float(np.log(end / self.projected_ns))), _ROUNDING)

    @property
    def row(self) -> ValidationRow:
        """The row of the validation."""
        error = abs(self.projected_ns - self.measured_ns) / self.measured_ns
        return ValidationRow(
            f"{self.kind}: {self.case}, {self.what_if}", self.measured_ns, self.projected_ns, error,
            source=self.source, low=self.low_ns, high=self.high_ns,
        )  # fmt: skip

    def content(self) -> dict[str, object]:
        """Return the score as JSON."""
        return asdict(self) | {"inside": self.inside, "width": self.width, "needed": self.needed}


def score_change(change: MeasuredChange, parameters: Parameters, draws: int = _DRAWS) -> list[IntervalScore]:
    """Project each group of work of a change, and compare with what was measured.

    The tasks run one after another, so that the time of a group is the sum of its durations.

    Parameters
    ----------
    change : MeasuredChange
        Work before and after the change.
    parameters : Parameters
        Nominal parameters with their ranges.
    draws : int
        Number of draws of the parameters.
    """
    random = np.random.default_rng(0)
    ours = _changed(change, parameters)
    drawn = [parameters.drawn(random) for _ in range(draws)]
    samples = np.array([_changed(change, draw) * (1 + draw["replay_error"]) for draw in drawn])
    before = change.times_ns(change.graphs)
    scores = [
        _score(change.kind, _case(change.job, name), change, (float(old), float(new), float(time), sample))
        for name, old, new, time, sample in zip(change.names, before, change.measured_ns, ours, samples.T, strict=True)
        if name and new > 0 and time > 0
    ]
    if change.total_kind:
        sums = (float(before.sum()), float(change.measured_ns.sum()), float(ours.sum()), samples.sum(axis=1))
        scores.append(_score(change.total_kind, change.job, change, sums))
    return scores


def _changed(change: MeasuredChange, parameters: Parameters) -> Floats:
    return change.times_ns([change.what_if(graph, parameters) for graph in change.graphs])


def _case(job: str, name: str) -> str:
    return ", ".join(dict.fromkeys(text for text in (job, name) if text))


def _score(kind: str, case: str, change: MeasuredChange, times: tuple[float, float, float, Floats]) -> IntervalScore:
    before, measured, ours, samples = times
    low, high = np.quantile(samples, ((1 - NOMINAL) / 2, (1 + NOMINAL) / 2)).tolist()
    return IntervalScore(kind, case, change.what_if.name, measured, ours, low, high, before, change.source)


def coverage(scores: Sequence[IntervalScore]) -> float:
    """Return the share of the intervals that hold what was measured."""
    return float(np.mean([score.inside for score in scores]))


def widening(scores: Sequence[IntervalScore]) -> float:
    """Return the factor, as a power of ratios, that makes the intervals hold 90 % of the measured times."""
    return float(np.quantile([score.needed for score in scores], NOMINAL))


def held_out_coverage(scores: Sequence[IntervalScore]) -> float:
    """Return the coverage of intervals that are widened by what the other jobs need."""
    inside = []
    for job in dict.fromkeys(score.case for score in scores):
        rest = [score for score in scores if score.case != job]
        factor = widening(rest) if rest else 1.0
        inside += [score.needed <= factor for score in scores if score.case == job]
    return float(np.mean(inside))


def summaries(scores: Sequence[IntervalScore]) -> list[dict[str, object]]:
    """Return the coverage of each kind of comparison, and of all."""
    kinds = grouped(scores, lambda score: score.kind)
    return [
        {
            "kind": kind,
            "intervals": len(some),
            "jobs": len({score.case for score in some}),
            "coverage": coverage(some),
            "width": float(np.median([score.width for score in some])),
            "error": float(np.median([score.row.error for score in some])),
            "widening": widening(some),
            "held_out": held_out_coverage(some),
        }
        for kind, some in (*kinds.items(), *([("all", list(scores))] if scores else []))
    ]


def coverage_rows(scores: Sequence[IntervalScore]) -> list[ValidationRow]:
    """Return the coverage of each kind and of all; it has a limit if a kind has 20 intervals or more."""
    rows = []
    for line in summaries(scores):
        many = int(str(line["intervals"]))
        row = summary_row(
            f"coverage: {line['kind']}", float(str(line["coverage"])), LEAST, least=True, source=f"{many} intervals"
        )
        rows.append(row if many >= _COUNTED else replace(row, limit=None, least=False))
    return rows


def coverage_table(lines: Sequence[dict[str, object]]) -> Table:
    """Return the table of coverage by kind of comparison."""
    columns = {
        "comparison~": "{kind}", "intervals": "{intervals}", "held %": "{coverage:.0%}",
        "high / low": "{width:.2f}", "error %": "{error:.0%}", "widen by": "{widening:.2f}",
        "held out %": "{held_out:.0%}",
    }  # fmt: skip
    return table_of("Coverage of 90 % intervals", columns, lines)


def interval_table(scores: Sequence[IntervalScore]) -> Table:
    """Return the table of intervals."""
    columns = {
        "comparison~": "{s.kind}", "case~": "{s.case}", "what-if~": "{s.what_if}", "measured": "{s.measured_ns:.0us}",
        "ours": "{s.projected_ns:.0us}", "low": "{s.low_ns:.0us}", "high": "{s.high_ns:.0us}", "inside~": "{inside}",
    }  # fmt: skip
    names = [{"s": score, "inside": "yes" if score.inside else "NO"} for score in scores]
    return table_of("Projected against measured times, in us", columns, names, verbose=True)


#: Layouts by name: columns by which a table of the layout is known, and what yields the changes of a file.
TABLES: Mapping[str, tuple[Sequence[str], Callable[[Path], Iterator[MeasuredChange]]]] = MappingProxyType(
    {
        "models": (MODEL_COLUMNS, model_changes),
        "products": (PRODUCT_COLUMNS, product_changes),
        "products of DeepBench": (BENCH_COLUMNS, bench_changes),
        "collectives": (COLLECTIVE_COLUMNS, collective_changes),
    }
)
