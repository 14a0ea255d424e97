"""Check the figures of traces in PATH against arithmetic on their tables, as a careful user would by hand.

Each check compares a figure of a command with sums, unions and bytes that are counted from the trace alone. It covers
`describe`, `project` with its what-ifs, `select`, `estimate`, `slice` and `merge`. PATH holds traces of any format.
A check that the trace has no data for is left out.

\b
seqpoint validate audit job.trace
seqpoint validate audit traces/ --gate
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from profilers.devices.catalogue import DTYPES, find_device
from profilers.errors import SeqPointError
from profilers.trace.trace import Trace
from profilers.writers.slicing import SliceOptions, merge, slice_trace
from replay.calibration.parameters import Parameters
from replay.from_trace import build_graph
from replay.graph.graph import COPY_DIRECTIONS, KernelGraph, TaskKind
from replay.what_ifs import check_choices, compose, parse_what_if
from seqpoint.description import describe
from seqpoint.graphs import all_iterations
from seqpoint.iteration_table import iteration_table
from seqpoint.notebook import Table, table_of
from seqpoint.projecting import ProjectOptions, project_trace
from seqpoint.selection.phases import estimate_by_phase, select_by_phase
from seqpoint.selection.selecting import SelectOptions
from seqpoint.validation import by_hand
from seqpoint.validation.replay import SUITE as REPLAY
from seqpoint.validation.replay import NamedFiles, opened_traces, read_sources
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult, ValidationRow, grouped

#: Limit of sums and counts, of figures that rest on a replay, and of times that must not change.
_EXACT, _REPLAYED, _UNCHANGED = 1e-6, 0.011, 0.05
#: A collective of fewer bytes is all latency and waiting.
_SMALL_BYTES = 2**16
#: Most ranks of the job for which the number of ranks is changed, and the number that it is changed to.
_RANKS = 64
#: Share of the bandwidth of its adapters that a large exchange between nodes reaches, at least and at most.
_BUS = (0.4, 1.05)
#: Bytes of a collective that is all transfer, between nodes.
_LARGE_BYTES = 2**24
#: Adapters of a node, and bandwidth of each in GB/s, for devices whose usual node is not known.
_ADAPTERS = (8.0, 25.0)
#: Most traces of a folder.
_MOST = 4
#: Most iterations of a stretch.
_STRETCH = 8
#: Pairs of what-ifs that may come in either order.
_ORDERS = (
    ("scale_kernels:{class_}:0.5", "scale_clock:0.5"),
    ("scale_clock:0.5", "scale_memory_bandwidth:0.5"),
    ("scale_kernels:{class_}:0.5", "scale_device:{other}"),
    ("scale_clock:0.5", "scale_device:{other}"),
    ("scale_memory_bandwidth:0.5", "scale_device:{other}"),
)
#: What-ifs that need collectives, and classes of kernel that many traces lack.
_COMMUNICATION = ("scale_links:2", "t3", "dma_collectives")
_RARE = ("rnn", "pooling")
#: Data types that many traces lack, and a type that most devices compute in.
_RARE_TYPES, _OTHER_TYPE = ("fp16", "fp8", "fp64"), "fp32"
#: What-ifs that make a resource faster or slower, from the slowest to the fastest.
_LIMITED = (
    ("host", ("scale_host:2", "scale_host:1.5", "scale_host:0.5", "scale_host:0")),
    ("device", ("scale_kernels:*:2", "scale_kernels:*:0.9", "scale_kernels:*:0.5", "scale_kernels:*:0")),
    ("communication", ("scale_kernels:collective:0.5", "scale_kernels:collective:0")),
    ("device", ("overlap:ideal",)),
    ("copies", ("scale_kernels:copies:0.5", "scale_kernels:copies:0")),
)
#: Devices that are busy for this share of the recording are busy throughout.
_BUSY = 0.9


@dataclass(frozen=True)
class Subject:
    """A trace that is audited, and the iteration whose graph the checks change.

    Parameters
    ----------
    name : str
        Name of the trace.
    trace : Trace
        The trace.
    parameters : Parameters
        Parameters of the graph and of what-ifs.
    """

    name: str
    trace: Trace
    parameters: Parameters

    @cached_property
    def iterations(self) -> list[int]:
        """Numbers of the iterations."""
        return all_iterations(self.trace)

    @property
    def middle(self) -> int:
        """Number of the iteration in the middle."""
        return self.iterations[len(self.iterations) // 2]

    @property
    def stretch(self) -> list[int]:
        """Numbers of successive iterations, whose step times add up to a stretch of the run."""
        first = max(len(self.iterations) // 2 - _STRETCH // 2, 0)
        return self.iterations[first : first + _STRETCH]

    @cached_property
    def graph(self) -> KernelGraph:
        """Graph of the iteration in the middle."""
        return build_graph(self.trace, self.middle, parameters=self.parameters)

    def changed(self, *what_ifs: str) -> KernelGraph:
        """Return the graph under what-ifs, one after another."""
        return compose(*map(parse_what_if, what_ifs))(self.graph, self.parameters)

    def durations(self, graph: KernelGraph) -> dict[int, float]:
        """Return the isolated durations of the device work of the iteration, by id of the event."""
        tasks = graph.tasks
        rows = np.flatnonzero(graph.on_device() & (tasks.event >= 0) & tasks.in_iteration)
        return dict(zip(tasks.event[rows].tolist(), tasks.duration_ns[rows].tolist(), strict=True))

    def row(self, case: str, reference: float, ours: float, limit: float = _EXACT) -> ValidationRow:
        """Return the row that compares two figures."""
        error = abs(ours - reference) / max(abs(reference), 1e-9)
        return ValidationRow(f"{self.name}: {case}", reference, ours, error, limit, source=self.name)

    def bounded(self, case: str, figure: float, *, least: float = -math.inf, most: float = math.inf) -> ValidationRow:
        """Return the row of a figure that may not leave two bounds."""
        bound = min(max(figure, least), most)
        return self.row(case, bound, figure, _REPLAYED)


#: A check: the rows of a trace, none if the trace has no data for it.
Check = Callable[[Subject], Iterator[ValidationRow]]


def check_classes(subject: Subject) -> Iterator[ValidationRow]:
    """Yield the kernel time of each class in `describe` against the sum of durations."""
    ours = {row["class"]: row["time_ns"] for row in describe(subject.trace).to_dict()["kernel_classes"]}
    for name, time_ns in by_hand.kernel_times(subject.trace).items():
        yield subject.row(f"describe, kernel time of {name}", time_ns, ours.get(name, 0))


def check_devices(subject: Subject) -> Iterator[ValidationRow]:
    """Yield the busy time and the communication of each device in `describe` against a sweep over the events."""
    keys = ("busy_ns", "communication_ns", "exposed_ns", "waiting_ns", "exposed_waiting_ns")
    shown = describe(subject.trace).to_dict()["devices"]
    devices = by_hand.devices_by_hand(subject.trace, {row["rank"]: row["elapsed_ns"] for row in shown})
    alone = {row["rank"] for row in shown if by_hand.step_times(subject.trace, row["rank"])}
    for row in shown:
        if row["rank"] not in alone:
            continue  # iterations with gaps between them, whose steps are no single stretch
        reference = devices[row["rank"], -1 if row["device"] is None else row["device"]]
        for key in keys:
            if row.get(key) is not None:
                figure = float(getattr(reference, key))
                case = f"describe, {key.removesuffix('_ns').replace('_', ' ')} of rank {row['rank']}"
                yield subject.row(case, figure, row[key], _EXACT if figure else 0.0)


def check_copies(subject: Subject) -> Iterator[ValidationRow]:
    """Yield the copies of each direction in the graph against the table of copies."""
    tasks = subject.graph.tasks
    copies = (tasks.kind == TaskKind.COPY) & tasks.in_iteration
    for direction, count, size in by_hand.copies_by_direction(subject.trace, subject.middle).itertuples():
        if direction in COPY_DIRECTIONS:
            chosen = copies & (tasks.direction == COPY_DIRECTIONS.index(direction))
            yield subject.row(f"copies {direction} in the graph", count, int(chosen.sum()))
            yield subject.row(f"bytes of copies {direction} in the graph", size, int(tasks.bytes[chosen].sum()))


def check_scaled_kernels(subject: Subject) -> Iterator[ValidationRow]:
    """Yield what `scale_kernels` makes of lone kernels, and that a step gains no more than the kernels lose."""
    class_ = _largest_class(subject)
    if not class_:
        return
    what_if = f"scale_kernels:{class_}:0.5"
    lone = by_hand.lone_kernels(subject.trace, subject.middle)
    before, after = subject.durations(subject.graph), subject.durations(subject.changed(what_if))
    halved = [event for event in lone if event in after and after[event] != before[event]]
    if halved:
        total = 0.5 * sum(lone[event] for event in halved)
        yield subject.row(f"{what_if}, lone kernels", total, sum(after[event] for event in halved), _REPLAYED)
    row, measured = _projected(subject, subject.stretch, what_if)
    most = sum(0.5 * by_hand.kernel_times(subject.trace, number).get(class_, 0) for number in subject.stretch)
    yield subject.bounded(f"{what_if}, steps", row.projected_ns, least=measured - most, most=measured)


def _largest_class(subject: Subject) -> str:
    """Return the class of kernel with the most time, collectives apart; "" without kernels."""
    times = by_hand.kernel_times(subject.trace, subject.middle)
    times.pop("collective", None)
    return max(times, key=lambda name: times[name], default="")


def _projected(subject: Subject, iterations: Sequence[int], what_if: str) -> tuple[Any, float]:
    """Return the row of a projection of some iterations, and their measured time."""
    options = ProjectOptions(iterations=iterations, draws=2, jobs=1)
    projection = project_trace(subject.trace, [parse_what_if(what_if)], options).projection
    return projection.rows[0], projection.baseline_ns


def check_limits(subject: Subject) -> Iterator[ValidationRow]:
    """Yield that no gain exceeds the bound of its resource, and that less work never gains less.

    Besides, halving a class of kernels gains half of its time alone on the devices, less what can be off the critical
    path, unless the row names another resource that limits the steps then. Where all devices are busy, it gains at
    least the share of that in which the hosts wait, whatever the row names.
    """
    class_ = _largest_class(subject)
    texts = [text for _, group in _LIMITED for text in group] + ([f"scale_kernels:{class_}:0.5"] if class_ else [])
    texts = [text for text in texts if _names_work(subject, text)]
    options = ProjectOptions(iterations=subject.stretch, draws=2, jobs=1)
    projection = project_trace(subject.trace, [parse_what_if(text) for text in texts], options).projection
    rows = dict(zip(texts, projection.rows, strict=True))
    for resource, group in _LIMITED:
        bound = projection.limits.bound.get(resource, 1.0)
        gains = [(text, rows[text].speedup) for text in group if text in rows and rows[text].applied]
        for text, gain in gains:
            yield subject.bounded(f"{text}, against the bound of {resource}", gain, most=bound)
        for (text, less), (other, more) in pairwise(gains):
            yield subject.bounded(f"{other}, against {text}", more, least=less)
    halved = rows.get(f"scale_kernels:{class_}:0.5")
    if halved is not None and halved.applied:
        yield from _check_halved(subject, class_, projection, halved)


def _check_halved(subject: Subject, class_: str, projection: Any, halved: Any) -> Iterator[ValidationRow]:
    """Yield whether halving a class of kernels gains enough: on the critical path, and on busy devices."""
    ranks, measured = subject.trace.meta.ranks, projection.baseline_ns
    of_rank = [slice_trace(subject.trace, SliceOptions(ranks=frozenset([rank]))) for rank in ranks]
    lone = min(sum(_lone_time(trace, number, class_) for number in subject.stretch) for trace in of_rank)
    if halved.limited_by[:1] == ("kernels",):
        most = measured - 0.5 * max(lone - (1 - projection.limits.share["kernels"]) * measured, 0.0)
        yield subject.bounded(f"scale_kernels:{class_}:0.5, kernels on the path", halved.projected_ns, most=most)
    devices = by_hand.devices_by_hand(subject.trace).values()
    if min((each.busy_ns / max(each.elapsed_ns, 1) for each in devices), default=0.0) >= _BUSY:
        waits = min(by_hand.waiting_share(subject.trace, rank) for rank in ranks)
        most = measured - 0.5 * lone * waits
        yield subject.bounded(f"scale_kernels:{class_}:0.5, busy devices", halved.projected_ns, most=most)


def _names_work(subject: Subject, text: str) -> bool:
    """Return whether the iteration in the middle has the tasks that a what-if names."""
    try:
        check_choices(parse_what_if(text), [subject.graph], subject.parameters)
    except SeqPointError:
        return False
    return True


def _lone_time(trace: Trace, number: int, class_: str) -> int:
    """Return the time of the kernels of a class that ran alone on their device in an iteration, ns."""
    kernels = trace.kernels
    classes = {
        event: trace.meta.class_of(str(name))
        for event, name in zip(kernels["id"].to_pylist(), kernels["name"].to_pylist(), strict=True)
    }
    return sum(ns for event, ns in by_hand.lone_kernels(trace, number).items() if classes[event] == class_)


def check_links(subject: Subject) -> Iterator[ValidationRow]:
    """Yield what `scale_links:0.5` adds: nothing to small collectives, to others no more than their transfer.

    An all-reduce sends each byte over a link once at least, as between two ranks.
    """
    collectives = by_hand.collectives_by_hand(subject.trace, subject.middle)
    if not collectives:
        return
    before, after = subject.durations(subject.graph), subject.durations(subject.changed("scale_links:0.5"))
    known = [each for each in collectives if each.kernel_id in after]
    small = [each.kernel_id for each in known if 0 < each.bytes < _SMALL_BYTES]
    if small:
        times = (sum(before[event] for event in small), sum(after[event] for event in small))
        yield subject.row(f"scale_links:0.5, collectives below {_SMALL_BYTES >> 10} KiB", *times, _UNCHANGED)
    matched = [each for each in known if each.matched]
    if matched:
        most = sum(each.transfer_ns for each in matched)
        added = sum(after[each.kernel_id] - before[each.kernel_id] for each in matched)
        yield subject.bounded("scale_links:0.5, time added to matched collectives", added, least=0.0, most=most)
    device, table = subject.graph.hardware.device, subject.trace.collectives
    kinds = dict(zip(table["kernel_id"].to_pylist(), table["collective"].to_pylist(), strict=True))
    large = [each for each in known if each.bytes >= _LARGE_BYTES and kinds.get(each.kernel_id) == "all_reduce"]
    large = [each for each in large if each.group_size != 1]
    if large and device is not None and "link_gbps" in device.figures:
        least = sum(min(each.bytes / device.value("link_gbps"), each.dur_ns) for each in large)
        added = sum(after[each.kernel_id] - before[each.kernel_id] for each in large)
        yield subject.bounded("scale_links:0.5, time added to large all-reduces", added, least=least)


def check_world_size(subject: Subject) -> Iterator[ValidationRow]:
    """Yield the bus bandwidth of a large exchange on 64 ranks against that of the adapters of a node.

    Rings of all ranks cross from node to node, each over another adapter, so that together they reach the bandwidth of
    all adapters of a node. A rank that starts last does not wait, so its whole time is the exchange.
    """
    device = subject.graph.hardware.device
    known = [each for each in by_hand.collectives_by_hand(subject.trace, subject.middle) if each.bytes >= _LARGE_BYTES]
    known = [each for each in known if each.matched and each.dur_ns == each.transfer_ns]
    known = [each for each in known if 1 < each.group_size <= _RANKS // 2]
    if device is None or not known:
        return
    after = subject.durations(subject.changed(f"change_world_size:{_RANKS}"))
    figures = [device.figures.get(name) for name in ("node_adapters", "adapter_gbps", "link_gbps")]
    adapters, gbps, link = (
        figure.value if figure else usual for figure, usual in zip(figures, (*_ADAPTERS, math.inf), strict=True)
    )
    network = min(adapters * gbps, link)
    largest = max((each for each in known if each.kernel_id in after), key=lambda each: each.bytes, default=None)
    if largest is not None:
        rounds = 2.0 if "AllReduce" in _name(subject, largest.kernel_id) else 1.0
        traced = rounds * (largest.group_size - 1) / largest.group_size * largest.bytes / largest.dur_ns
        bus = rounds * (_RANKS - 1) / _RANKS * largest.bytes / after[largest.kernel_id]
        least = _BUS[0] * min(network, traced)  # what was slow inside the node stays slow
        case = f"change_world_size:{_RANKS}, bus bandwidth in GB/s"
        yield subject.bounded(case, bus, least=least, most=_BUS[1] * network)


def _name(subject: Subject, event: int) -> str:
    rows = np.flatnonzero(subject.trace.kernels["id"].to_numpy() == event)
    return str(subject.trace.kernels["name"][int(rows[0])].as_py()) if len(rows) else ""


def check_dtype(subject: Subject) -> Iterator[ValidationRow]:
    """Yield the bytes of collectives after `change_dtype` to a type of other size."""
    collectives = by_hand.collectives_by_hand(subject.trace, subject.middle)
    for old, new, names in (("fp32", "fp16", ("float",)), ("bf16", "fp32", ("bfloat16", "c10::bfloat16"))):
        chosen = [each for each in collectives if each.dtype.lower() in names and each.bytes]
        if not chosen or subject.graph.hardware.device is None:
            continue
        tasks = subject.changed(f"change_dtype:{old}->{new}").tasks
        size = dict(zip(tasks.event.tolist(), tasks.bytes.tolist(), strict=True))
        factor = 2.0 if new == "fp32" else 0.5
        reference = factor * sum(each.bytes for each in chosen if each.kernel_id in size)
        ours = sum(size[each.kernel_id] for each in chosen if each.kernel_id in size)
        yield subject.row(f"change_dtype:{old}->{new}, bytes of collectives in {old}", reference, ours)


def check_orders(subject: Subject) -> Iterator[ValidationRow]:
    """Yield the device time under two what-ifs in both orders; each has to count in both."""
    device, class_ = subject.graph.hardware.device, _largest_class(subject)
    if device is None or not class_:
        return
    other = next(name for name in ("H100-SXM5-80GB", "A100-SXM4-80GB") if find_device(name) != device)
    for templates in _ORDERS:
        first, second = (text.format(class_=class_, other=other) for text in templates)
        both = _device_time(subject.changed(first, second))
        yield subject.row(f"{first}, {second}: either order", both, _device_time(subject.changed(second, first)))
        alone = _device_time(subject.changed(second))
        if _device_time(subject.changed(first)) != _device_time(subject.graph):
            lost = float(both == alone)
            yield ValidationRow(f"{subject.name}: {first}, {second}: the first is lost", 0.0, lost, lost, 0.0)


def _device_time(graph: KernelGraph) -> float:
    return float(graph.tasks.duration_ns[graph.on_device()].sum())


def check_not_applicable(subject: Subject) -> Iterator[ValidationRow]:
    """Yield whether what-ifs that have nothing to change in the trace show figures; they should not, or be refused."""
    classes = by_hand.kernel_times(subject.trace)
    nothing = [(what_if, "collectives") for what_if in _COMMUNICATION if not len(subject.trace.collectives)]
    nothing += [(f"scale_kernels:{name}:0.5", name) for name in _RARE if name not in classes]
    tasks = subject.graph.tasks
    types = {tuple(DTYPES)[number] for number in np.unique(tasks.dtype[subject.graph.on_device() & (tasks.dtype >= 0)])}
    nothing += [(f"change_dtype:{name}->{_OTHER_TYPE}", name) for name in _RARE_TYPES if name not in types]
    for what_if, work in nothing:
        try:
            shown = float(math.isfinite(_projected(subject, [subject.middle], what_if)[0].speedup))
        except SeqPointError:
            shown = 0.0
        case = f"{subject.name}: {what_if}, figures without {work}"
        yield ValidationRow(case, 0.0, shown, shown, 0.0, source=subject.name)


def check_selection(subject: Subject) -> Iterator[ValidationRow]:
    """Yield the totals and weights of `select`, and the estimate of a run from itself."""
    table = iteration_table(subject.trace)
    if np.isfinite(table.sequence_length).sum() < 2:
        return
    selection = select_by_phase(table, SelectOptions(statistic=None))
    rank = int(selection.iterations.rank[0])
    values, lengths = _values(subject, selection.statistic, rank), selection.iterations.iteration.tolist()
    if values:
        yield subject.row("select, measured total", sum(values[number] for number in lengths), selection.measured)
    counted = float(selection.weights.sum()) + len(selection.outliers)
    yield subject.row("select, sum of the weights and outliers", len(lengths), counted)
    again = estimate_by_phase(selection.to_dict(), (table, table))
    if again.speedup is not None:
        yield subject.row("estimate of a run from itself, speed-up", 1.0, again.speedup)


def _values(subject: Subject, statistic: str, rank: int) -> dict[int, float]:
    """Return a statistic of each iteration of a rank, ns; nothing for a statistic that is not counted here."""
    if statistic == "duration":
        return dict(by_hand.step_times(subject.trace, rank))
    if statistic != "kernel_time":
        return {}
    kernels = slice_trace(subject.trace, SliceOptions(ranks=frozenset([rank])))
    return {number: sum(by_hand.kernel_times(kernels, number).values()) for number in subject.iterations}


def check_slices(subject: Subject) -> Iterator[ValidationRow]:
    """Yield the step time of a sliced iteration, and the counts of a trace that is sliced by rank and merged again."""
    number, what_ifs = subject.middle, [parse_what_if("scale_host:0.5")]
    options = ProjectOptions(iterations=[number], draws=2, jobs=1)
    cut = slice_trace(subject.trace, SliceOptions(iterations=frozenset([number])))
    whole, sliced = (project_trace(trace, what_ifs, options).projection for trace in (subject.trace, cut))
    yield subject.row("slice of an iteration, baseline", whole.baseline_ns, sliced.baseline_ns, _REPLAYED)
    ranks = subject.trace.meta.ranks
    if len(ranks) < 2:
        return
    joined = merge([slice_trace(subject.trace, SliceOptions(ranks=frozenset([rank]))) for rank in ranks])
    counts = by_hand.row_counts(joined)
    for kind, count in by_hand.row_counts(subject.trace).items():
        yield subject.row(f"merge of slices by rank, {kind}", count, counts[kind])
    for name, count, _ in subject.trace.meta.quality.rows():
        yield subject.row(f"merge of slices by rank, quality {name}", count, joined.meta.quality[name])


def check_host(subject: Subject) -> Iterator[ValidationRow]:
    """Yield that faster hosts gain no more than the time in which the only device is idle."""
    devices = by_hand.devices_by_hand(subject.trace)
    if len(subject.trace.meta.ranks) > 1 or len(devices) != 1 or len(subject.iterations) > _STRETCH:
        return
    (device,) = devices.values()
    row, measured = _projected(subject, subject.iterations, "scale_host:0.5")
    least = measured - max(device.elapsed_ns - device.busy_ns, 0)
    yield subject.bounded("scale_host:0.5, steps", row.projected_ns, least=least, most=measured)


#: Checks, in the order of a user's questions.
CHECKS: tuple[Check, ...] = (
    *(check_classes, check_devices, check_copies, check_scaled_kernels, check_limits, check_links, check_world_size),
    check_dtype,
    *(check_orders, check_not_applicable, check_selection, check_slices, check_host),
)


def audit(name: str, trace: Trace, parameters: Parameters) -> list[ValidationRow]:
    """Return the rows of every check of a trace; an error of the toolkit is a row that misses its limit.

    Parameters
    ----------
    name : str
        Name of the trace.
    trace : Trace
        The trace.
    parameters : Parameters
        Parameters of the graph and of what-ifs.
    """
    subject, rows = Subject(name, trace, parameters), []
    for check in CHECKS:
        try:
            rows += list(check(subject))
        except SeqPointError as error:
            topic = check.__name__.removeprefix("check_").replace("_", " ")
            rows.append(ValidationRow(f"{name}: {topic}", None, 1.0, 1.0, 0.0, source=f"{name}: {error}"))
    return rows


def _read(sources: Sequence[Path], options: SuiteOptions) -> tuple[list[NamedFiles], list[str]]:
    """Return the recordings to audit, and remarks on those that are left out: of many in a folder, a few tell."""
    chosen, notes = [], []
    for folder, recordings in grouped(read_sources(sources, options), lambda each: each[1][0].parent).items():
        rows = np.unique(np.linspace(0, len(recordings) - 1, min(len(recordings), _MOST)).round().astype(int))
        chosen += [recordings[row] for row in rows.tolist()]
        if len(rows) < len(recordings):
            notes.append(f"{folder}: {len(rows)} of {len(recordings)} traces, evenly spaced; name others to audit them")
    return chosen, notes


def _scored(read: tuple[Sequence[NamedFiles], Sequence[str]], options: SuiteOptions) -> SuiteResult:
    """Audit one trace after another; a trace without an iteration is noted."""
    traces, notes = read[0], list(read[1])
    rows: list[ValidationRow] = []
    for name, trace in opened_traces(traces, options, "auditing"):
        if len(trace.iterations):
            rows += audit(name, trace, options.parameters)
        else:
            notes.append(f"{name}: no iteration to audit")
    return SuiteResult(rows, {}, [_table([row for row in rows if not row.met]), _table(rows, verbose=True)], (), notes)


def _table(rows: Sequence[ValidationRow], *, verbose: bool = False) -> Table:
    """Return the table of checks."""
    columns = {"check~": "{r.case}", "by hand": "{hand}", "ours": "{r.ours:.6g}", "error %": "{r.error:.3%}"}
    names = [{"r": row, "hand": "-" if row.reference is None else f"{row.reference:.6g}"} for row in rows]
    title = "Every check" if verbose else "Figures that differ from a count by hand"
    return table_of(title, columns, names, verbose=verbose)


SUITE = Suite(
    name="audit",
    description=__doc__,
    needs="trace that a reader knows (`seqpoint readers` lists them)",
    source=REPLAY.source,
    read=_read,
    score=_scored,
    options=("iterations",),
    shipped="samples",
)
