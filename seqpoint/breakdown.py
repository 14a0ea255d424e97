"""Time in kernels by name, by operator, on the host by name, and taken by contention, as tables and sentences.

The tables of `kernels_by_name`, `operators_by_name` and `ranges_by_name` add up to the time of all kernels. An operator
owns the kernels that it launched itself: the innermost operator around the launch counts, not its callers. So it is for
the ranges that a program wrote. `host_times` has the self
time of operators, calls and Python functions. `contention_table` and `contention_lines` show a `ContentionTime`.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.trace.arrays import MISSING, Ints, encode_text, integers, strings
from profilers.trace.columns import combinations, lookup, user_ranges
from profilers.trace.compiled import compiled
from profilers.trace.schema import PYTHON_FUNCTION
from profilers.trace.trace import Trace
from replay.from_trace.host_causes import HOST_CAUSES
from seqpoint.notebook import DataFrame, Result, Table, by_rank, data_frame, table_of, without_middle
from seqpoint.units import duration

if TYPE_CHECKING:
    from replay.analysis.stragglers import Straggler, Stragglers
    from replay.contention.totals import ContentionRow, ContentionTime
    from replay.from_trace.host_causes import HostCauses
    from replay.projection.pacing import Limits

#: Most characters of a name in a table of text.
_NAME_LENGTH = 66
#: Share of the kernel time outside the iterations from which a title tells it.
_SHOWN_SHARE = 0.001
#: Names of the rows of kernels that no operator launched, and that were launched in no range.
NO_OPERATOR, NO_RANGE = "(no operator)", "(no range)"
#: Most classes of kernels, and most partners, in the table of contention; the JSON has all.
_MAX_CLASSES, _MAX_PARTNERS = 6, 4
#: The modelled contention is relied on if the model gives measured launches this many times theirs.
_TRUSTED = (0.5, 2.0)
#: Smaller shares of a critical path are not named.
_MIN_SHARE = 0.01
#: Words for causes of host time in a sentence.
_CAUSE_WORDS = {"queue": "launch queue full", "work": "work of the program"}
#: Speed-ups above this are shown as "over 100".
_MOST_BOUND = 100.0
#: Explanation of the table of limits, in a line.
LIMITS_EXPLAINED = (
    "bound: times as fast if the resource took no time; then: what limits the steps then; slack: how much slower the "
    "resource could be while steps become 1 % longer"
)
#: Most characters of a partner's name in that table.
_PARTNER_LENGTH = 52


@dataclass(frozen=True)
class KernelTime:
    """Number and time of the kernels of one name.

    Parameters
    ----------
    name : str
        Name of the kernels, as the profiler wrote it.
    class_ : str
        Their class, such as ``"gemm"``.
    kernels : int
        Number of kernels.
    time_ns : int
        Sum of their durations.
    share : float
        Share of the time of all kernels.
    median_ns : float, optional
        Median of their durations; None if the trace holds no duration.
    streams : int
        Number of streams that they ran on, over all devices.
    """

    name: str
    class_: str
    kernels: int
    time_ns: int
    share: float
    median_ns: float | None
    streams: int


@dataclass(frozen=True)
class OperatorTime:
    """Time of the operators or ranges of one name on the host, and of the kernels that they launched.

    Parameters
    ----------
    name : str, optional
        Name of the operators or ranges; None for the kernels that were launched in none.
    calls : int
        Number of the operators or ranges.
    kernels : int
        Number of kernels that they launched themselves.
    time_ns : int
        Sum of the durations of these kernels.
    share : float
        Share of the time of all kernels.
    host_ns : int
        Time on the host inside these operators or ranges and outside those that they hold.
    """

    name: str | None
    calls: int
    kernels: int
    time_ns: int
    share: float
    host_ns: int


def host_table(rows: "Sequence[HostCauses]") -> Table:
    """Return the host time of each rank by cause as text; a cause that no rank has gets no column.

    Parameters
    ----------
    rows : sequence of HostCauses
        A row for each rank.
    """
    causes = [cause for cause in HOST_CAUSES if any(row.cause_ns[cause] for row in rows)]
    shares = {f"{cause} %": f"{{{cause}}}" for cause in causes}
    columns = {"rank": "{rank}", "on the host": "{elapsed_ns:time}", **shares}
    columns |= {"longest queue": "{longest_queue}", "calls held": "{held}"}
    cells = [
        {**{cause: f"{100 * row.share(cause):.1f}" for cause in causes}, "rank": row.rank, "elapsed_ns": row.elapsed_ns,
         "longest_queue": row.longest_queue, "held": row.held}
        for row in rows
    ]  # fmt: skip
    table = table_of("Host time by cause, from the start of the first step to the end of the last", columns, cells)
    return by_rank(table, [row.share("work") for row in rows])


def host_sentence(rows: "Sequence[HostCauses]") -> str:
    """Return the shares of the causes of host time over all ranks; "" without a recorded host."""
    total = sum(row.elapsed_ns for row in rows)
    shares = {cause: sum(row.cause_ns[cause] for row in rows) / max(total, 1) for cause in HOST_CAUSES}
    named = sorted(((share, cause) for cause, share in shares.items() if share >= _MIN_SHARE), reverse=True)
    words = ", ".join(f"{_CAUSE_WORDS.get(cause, cause)} {100 * share:.0f} %" for share, cause in named)
    return f"hosts spend their time in: {words}" if words else ""


def limits_table(limits: "Limits", label: str = "") -> Table:
    """Return what limits a step as text: a row for each resource, most of the critical path first.

    Parameters
    ----------
    limits : Limits
        The limits of the step.
    label : str
        Begin of the title.
    """
    order = sorted(limits.bound, key=lambda name: (name == "device", -limits.share[name]))
    rows = [
        {
            "resource": "all work on devices" if name == "device" else name,
            "path": f"{100 * limits.share[name]:.0f}",
            "bound": f"{limits.bound[name]:.2f}" if limits.bound[name] < _MOST_BOUND else f"over {_MOST_BOUND:g}",
            "then": limits.then[name] or "-",
            "room": f"{'over ' * (limits.room[name] >= limits.MOST_ROOM)}{100 * limits.room[name]:.0f}",
        }
        for name in order
    ]
    columns = {
        "resource~": "{resource}",
        "path %": "{path}",
        "bound": "{bound}",
        "then~": "{then}",
        "slack %": "{room}",
    }
    return table_of(f"{label}What limits the step", columns, rows)


def limits_sentence(limits: "Limits", steps: str = "") -> str:
    """Return the resources on the critical path of a step, and which of them limits it; "" without a path.

    Parameters
    ----------
    limits : Limits
        The limits of the step.
    steps : str
        Which steps these are.
    """
    shares = sorted((item for item in limits.share.items() if item[0] != "device"), key=lambda item: -item[1])
    text = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if share >= _MIN_SHARE)
    if not limits.limiting:
        return ""
    sentence = f"the critical path of a step is {text}{f' ({steps})' if steps else ''}"
    if len(limits.limiting) > 1:
        return f"{sentence}; {' and '.join(limits.limiting)} both limit it: each takes nearly the whole step"
    vain = [f"; faster {name} gain nothing: {limits.then[name]} takes as long" for name in limits.in_vain]
    return sentence + "".join(vain)


def kernels_by_name(trace: Trace) -> tuple[KernelTime, ...]:
    """Return the kernels of a trace by name, longest total first."""
    kernels = trace.kernels
    names, code = _names_of(kernels)
    time = integers(kernels, "dur_ns")
    known = np.where(time == MISSING, 0, time)
    count, total = np.bincount(code, minlength=len(names)), _sums(code, known, len(names))
    streams, _ = combinations(np.stack([integers(kernels, column) for column in ("rank", "device", "stream")]))
    used = np.unique(np.stack([code, streams.astype(np.int64)]), axis=1)[0]
    lanes = np.bincount(used, minlength=len(names))
    all_ns = max(int(known.sum()), 1)
    rows = [
        KernelTime(
            name, trace.meta.class_of(name), int(count[i]), int(total[i]), total[i] / all_ns, median, int(lanes[i])
        )
        for i, (name, median) in enumerate(zip(names, _medians(code, time, len(names)), strict=True))
    ]
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.name)))


def _names_of(events: pa.Table) -> tuple[list[str], npt.NDArray[np.intp]]:
    """Return the names of some events, and the number of the name of each."""
    codes, texts = encode_text(events["name"])
    used, code = np.unique(codes, return_inverse=True)
    return [str(texts[i]) if i >= 0 else "None" for i in used.tolist()], code


def _sums(code: npt.NDArray[np.intp], values: Ints, count: int) -> Ints:
    """Return the sum of the values of each code, without rounding."""
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, code, values)
    return total


def _medians(code: npt.NDArray[np.intp], time: Ints, count: int) -> list[float | None]:
    """Return the median duration of each code; None where none is known."""
    known = time != MISSING
    order = np.lexsort((time[known], code[known]))
    pieces = np.split(time[known][order], np.cumsum(np.bincount(code[known], minlength=count))[:-1]) if count else []
    return [float(np.median(piece)) if len(piece) else None for piece in pieces]


def operators_by_name(trace: Trace) -> tuple[OperatorTime, ...]:
    """Return the operators of a trace by name, longest time of their kernels first, then longest time on the host.

    Kernels without an operator have a row whose name is None.
    """
    return _by_caller(trace, trace.ops, integers(trace.kernels, "op_id"))


def ranges_by_name(trace: Trace) -> tuple[OperatorTime, ...]:
    """Return the ranges that the program wrote by name, as `operators_by_name` returns operators.

    A kernel counts for the innermost range around its launch on the thread of the launch.
    """
    from profilers.ingest.linking import innermost

    ranges = trace.ranges.take(pa.array(user_ranges(trace.ranges)))
    around = innermost(ranges, trace.launches)
    around = lookup(integers(trace.launches, "id"), around, integers(trace.kernels, "launch_id"))
    return _by_caller(trace, ranges, around)


def _by_caller(trace: Trace, callers: pa.Table, caller_id: Ints) -> tuple[OperatorTime, ...]:
    """Return the time of callers by name, and of the kernels whose caller each is."""
    names, code = _names_of(callers)
    last = len(names)  # the code of kernels without a caller
    caller = lookup(integers(callers, "id"), np.asarray(code, np.int64), caller_id)
    caller = np.where(caller == MISSING, last, caller)
    time = integers(trace.kernels, "dur_ns")
    time = np.where(time == MISSING, 0, time)
    count, total = np.bincount(caller, minlength=last + 1), _sums(caller, time, last + 1)
    calls, host = np.bincount(code, minlength=last + 1), _sums(code, self_times(callers), last + 1)
    all_ns = max(int(time.sum()), 1)
    rows = [
        OperatorTime(name, int(calls[i]), int(count[i]), int(total[i]), total[i] / all_ns, int(host[i]))
        for i, name in enumerate([*names, None])
        if name is not None or count[i]
    ]
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, -row.host_ns, row.name or "")))


def self_times(events: pa.Table) -> Ints:
    """Return the self time of each event on the host: the time outside the events that it calls, in ns.

    A moment counts for the event that started last of those that are open, so the self times of a thread add up to the
    time during which it has an event.

    Parameters
    ----------
    events : Table
        Events of host threads; those of one thread nest, as calls do. Of events with the same times, the later row is
        called by the earlier. A missing duration counts as 0.
    """
    start, time = integers(events, "start_ns"), integers(events, "dur_ns")
    end = start + np.where(time == MISSING, 0, np.maximum(time, 0))
    thread, _ = combinations(np.stack([integers(events, column) for column in ("rank", "process", "thread")]))
    order = np.lexsort((-end, start, thread))
    inside = np.zeros(len(order), np.int64)
    _add_open_times(order, np.asarray(thread, np.int64), start, end, inside)
    return inside


@compiled
def _add_open_times(order: Any, thread: Any, start: Any, end: Any, inside: Any) -> None:
    """Add to each event the time in which it is the last that started of the open ones.

    One walk over the events by (thread, start), with a stack of the open events.
    """
    stack = np.empty(len(order), np.int64)
    depth, now = 0, 0
    for row in order:
        is_next_thread = depth > 0 and thread[stack[0]] != thread[row]
        while depth and (is_next_thread or end[stack[depth - 1]] <= start[row]):
            depth -= 1
            inside[stack[depth]] += max(end[stack[depth]] - now, 0)
            now = max(now, end[stack[depth]])
        if depth:
            inside[stack[depth - 1]] += start[row] - now
        now = start[row]
        stack[depth] = row
        depth += 1
    while depth:
        depth -= 1
        inside[stack[depth]] += max(end[stack[depth]] - now, 0)
        now = max(now, end[stack[depth]])


#: Kinds of events on the host, callers first.
PYTHON, OPERATOR, CALL = "python", "operator", "call"
_HOST_KINDS = (PYTHON, OPERATOR, CALL)
_HOST_COLUMNS = ["name", "start_ns", "dur_ns", "iteration", "rank", "process", "thread"]


@dataclass(frozen=True)
class HostTime:
    """Self time on the host of the operators, calls of the runtime or Python functions of one name.

    Parameters
    ----------
    name : str
        Name, as the profiler wrote it.
    kind : str
        `OPERATOR`, `CALL` or `PYTHON`.
    calls : int
        Number of events of this name.
    self_ns : int
        Time inside them and outside the functions, operators and calls of the runtime that they call.
    share : float
        Share of the self time of all events on the host, over all threads.
    step_ns : float, optional
        Self time of the events in an iteration, over the iterations of all ranks; None without an iteration.
    """

    name: str
    kind: str
    calls: int
    self_ns: int
    share: float
    step_ns: float | None


def python_functions(trace: Trace) -> pa.Table:
    """Return the events of Python functions of a trace, as PyTorch's profiler records them with its stacks."""
    return trace.ranges.filter(pc.equal(trace.ranges["category"].cast(pa.string()), PYTHON_FUNCTION))


def frame_of(trace: Trace, names: Sequence[str]) -> str:
    """Return the Python function of the user that calls most of the launches of some kernels or calls; "" if unknown.

    Functions of PyTorch, of Triton and of Python's own modules are not the user's.

    Parameters
    ----------
    trace : Trace
        The trace.
    names : sequence of str
        Names of kernels, or of calls of the runtime.

    Examples
    --------
    >>> bool(_LIBRARY.match("torch/nn/modules/module.py(1501): _call_impl")), bool(_LIBRARY.match("train.py(41): step"))
    (True, False)
    """
    from profilers.ingest.linking import innermost

    functions = python_functions(trace)
    texts = strings(functions, "name")
    is_user = [_FRAME.match(text) is not None and not _is_library(text) for text in map(str, texts)]
    if not any(is_user):
        return ""
    functions, wanted = functions.filter(pa.array(is_user)), pa.array(list(names), pa.string())
    of_kernels = trace.kernels.filter(pc.is_in(trace.kernels["name"].cast(pa.string()), wanted))["launch_id"]
    launches = trace.launches
    chosen = pc.or_(pc.is_in(launches["name"].cast(pa.string()), wanted), pc.is_in(launches["id"], of_kernels))
    around = innermost(functions, launches.filter(chosen))
    around = around[around != MISSING]
    if not len(around):
        return ""
    ids, counts = np.unique(around, return_counts=True)
    calls = lookup(integers(functions, "id"), np.arange(len(functions)), ids)
    counted: dict[str, int] = {}
    for text, count in zip(strings(functions, "name")[calls].tolist(), counts.tolist(), strict=True):
        counted[text] = counted.get(text, 0) + count
    return max(counted, key=lambda text: counted[text])


#: Python functions as PyTorch's profiler names them, and those of libraries that launch kernels for others.
_FRAME = re.compile(r"(?P<path>.*)[.]py\(\d+\): ")
_LIBRARY = re.compile(r"(?:.*/)?(?:torch|triton|numpy)/")


def _is_library(frame: str) -> bool:
    return bool(_LIBRARY.match(frame)) or re.split("[/.]", frame, maxsplit=1)[0] in sys.stdlib_module_names


def host_times(trace: Trace) -> tuple[HostTime, ...]:
    """Return the operators, calls of the runtime and Python functions of the steps by self time, longest first.

    A trace without iterations has no steps; then all count.
    """
    tables = [table.select(_HOST_COLUMNS) for table in (python_functions(trace), trace.ops, trace.launches)]
    events = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    names = pa.chunked_array(events["name"], pa.dictionary(pa.int32(), pa.string())).combine_chunks()
    kind = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    keys, code = np.unique(kind * max(len(names.dictionary), 1) + names.indices.to_numpy(), return_inverse=True)
    steps, time = trace.iterations.num_rows, self_times(events)
    counted = (integers(events, "iteration") != MISSING) | (steps == 0)
    calls, total = np.bincount(code[counted], minlength=len(keys)), _sums(code[counted], time[counted], len(keys))
    all_ns = max(int(total.sum()), 1)
    rows = [
        HostTime(
            names.dictionary[key % len(names.dictionary)].as_py(),
            _HOST_KINDS[key // len(names.dictionary)],
            int(calls[i]),
            int(total[i]),
            total[i] / all_ns,
            total[i] / steps if steps else None,
        )
        for i, key in enumerate(keys.tolist())  # distinct names
        if calls[i]
    ]
    return tuple(sorted(rows, key=lambda row: (-row.self_ns, row.name, row.kind)))


def kernels_text(trace: Trace) -> Table:
    """Return the longest kernels by name, as text.

    Parameters
    ----------
    trace : Trace
        The trace.
    """
    rows = kernels_by_name(trace)
    columns = {
        "kernel~": "{name}", "class~": "{class_}", "kernels": "{kernels}", "time": "{time_ns:time}",
        "share %": "{share:.1%}", "median": "{median_ns:time}", "streams": "{streams}",
    }  # fmt: skip
    return table_of(_title("Kernels by name", trace), columns, rows)


def operators_text(trace: Trace) -> Table:
    """Return the operators with the longest kernels, as text.

    Parameters
    ----------
    trace : Trace
        The trace.
    """
    return _callers_text(trace, operators_by_name(trace), "operator")


def ranges_text(trace: Trace) -> Table:
    """Return the ranges of the program with the longest kernels, as text.

    Parameters
    ----------
    trace : Trace
        The trace.
    """
    return _callers_text(trace, ranges_by_name(trace), "range")


def _callers_text(trace: Trace, rows: Sequence[OperatorTime], word: str) -> Table:
    columns = {
        f"{word}~": "{name}", "calls": "{calls}", "kernels": "{kernels}", "device time": "{time_ns:time}",
        "share %": "{share:.1%}", "host time": "{host_ns:time}",
    }  # fmt: skip
    cells = [replace(row, name=row.name or f"(no {word})") for row in rows]
    note = f"Kernels count for the innermost {word} around their launch. Host time is without the {word}s inside."
    return table_of(_title(f"{word.capitalize()}s", trace), columns, cells, note=note)


def host_text(trace: Trace) -> list[Table]:
    """Return the host operators and calls with the longest self time as text, and Python functions if there are any.

    Parameters
    ----------
    trace : Trace
        The trace.
    """
    rows = host_times(trace)
    operators, functions = [row for row in rows if row.kind != PYTHON], [row for row in rows if row.kind == PYTHON]
    tables = [_host_table("Host operators", operators)]
    return [*tables, _host_table("Python functions", functions)] if functions else tables


def _host_table(events: str, rows: Sequence[HostTime]) -> Table:
    """Return operators and calls, or Python functions, as text."""
    columns = {
        "name~": "{name}", "kind~": "{kind}", "calls": "{calls}", "self time": "{self_ns:time}",
        "share %": "{share:.1%}", "a step": "{step_ns:time}",
    }  # fmt: skip
    note = "Self time is outside all that is called inside. Shares are of the time that host threads have an event."
    return table_of(f"{events} by self time, in the steps", columns, rows, note=note)


def _title(title: str, trace: Trace) -> str:
    """Return a title that says what the table covers."""
    covers = f"{title}, whole recording"
    outside = _share_outside(trace)
    if outside >= _SHOWN_SHARE:
        covers += f" ({100 * outside:.1f} % of the kernel time is in no iteration)"
    return covers


def _share_outside(trace: Trace) -> float:
    """Return the share of the time of all kernels that is in no iteration."""
    time = integers(trace.kernels, "dur_ns")
    time = np.where(time == MISSING, 0, time)
    return float(time[integers(trace.kernels, "iteration") == MISSING].sum() / max(time.sum(), 1))


def contention_table(time: "ContentionTime", scope: str) -> Table:
    """Return the time that contention took as text: of all kernels, by class, of collectives, and by partner.

    Parameters
    ----------
    time : ContentionTime
        The time that contention took.
    scope : str
        What it covers, such as ``"in iteration 3"``.
    """
    columns = ("kernels~", "launches", "time", "overlapped", "paired", "measured", "unpaired", "modelled")
    if not time.total.launches:
        return Table("", columns, [])
    rows = [_contention_cells("all", time.total)]
    rows += [_contention_cells(row.label, row) for row in time.by_class[:_MAX_CLASSES]]
    rows += [_contention_cells("collectives", time.collectives)] * (time.collectives.measured_launches > 0)
    partners = time.by_partner[:_MAX_PARTNERS]
    rows += [_contention_cells(without_middle(f"beside {row.label}", _PARTNER_LENGTH), row) for row in partners]
    return Table(f"Time that contention took from kernels beside other work, {scope}", columns, rows)


def _contention_cells(label: str, row: "ContentionRow") -> tuple[object, ...]:
    measured = ["-", "-"] if not row.measured_launches else [duration(row.measured_time_ns), _signed(row.measured_ns)]
    modelled = ["-", "-"] if not row.modelled_launches else [duration(row.modelled_time_ns), _signed(row.modelled_ns)]
    return label, row.launches, duration(row.time_ns), duration(row.beside_ns), *measured, *modelled


def _signed(ns: float) -> str:
    return f"-{duration(-ns)}" if ns < 0 else duration(ns)


def _launches(number: int) -> str:
    return f"{number:,} launch{'es' * (number != 1)}"


def contention_lines(time: "ContentionTime", scope: str) -> list[str]:
    """Return sentences on the time that contention took: how much was measured, modelled, or is unknown, and how well.

    Parameters
    ----------
    time : ContentionTime
        The time that contention took.
    scope : str
        What it covers, such as ``"in iteration 3"``.
    """
    row = time.total
    if not time.kernels:
        return []
    if not row.launches:
        return [f"contention: none {scope}; no kernel ran beside other work (collectives are not counted)"]
    of_all = f"{row.launches:,} of {time.kernels:,} kernels {scope} ran beside other work"
    lines = [f"contention: {_taken(row)}; {of_all}"]
    if time.collectives.measured_launches:
        lines.append(f"contention in collectives, without their waiting: {_taken(time.collectives)}")
    if time.confounded:
        lines.append(
            f"the trace neither measures contention nor confirms the model. {time.confounded.removesuffix('.')}"
        )
    elif not row.measured_launches:
        lines.append("no launch beside other work also ran alone often enough, so contention is not measured")
    elif time.noise == time.noise:
        lines.append(f"times of launches alone differ by {100 * time.noise:.1f} %")
    for each, what in ((row, "launches"), (time.collectives, "collectives")):
        if each.model_ratio == each.model_ratio:
            low, high = _TRUSTED
            doubtful = "" if low <= each.model_ratio <= high else ", so do not rely on the modelled time"
            lines.append(f"the model gives the measured {what} {each.model_ratio:.2f} times that contention{doubtful}")
    if row.unknown_launches:
        why = "they have no pair and are in no iteration that was replayed"
        lines.append(f"contention of {_launches(row.unknown_launches)} is unknown: {why}")
    return lines


def _taken(row: "ContentionRow") -> str:
    """Return how much time contention took by measurement, and by the model."""
    taken = [
        f"{_signed(ns)} {how} ({_launches(launches)}, {duration(time_ns)})"
        for ns, how, launches, time_ns in (
            (row.measured_ns, "measured", row.measured_launches, row.measured_time_ns),
            (row.modelled_ns, "modelled", row.modelled_launches, row.modelled_time_ns),
        )
        if launches
    ]
    return " and ".join(taken) or "unknown"


#: Share of the slow-down from which balancing one rank, stage or operation is worth a sentence.
_WORTH_TELLING = 0.3
#: Slow-down over that of the slowest rank from which ranks are slow alike, and most of them that are named.
_AS_SLOW, _NAMED_RANKS = 0.5, 3
#: Key of the fix of the worst rank on its stage, as `replay.analysis.stragglers.WORST_WORKERS`.
_WORKERS = "worst_workers"
#: Slow-down below which a job counts as balanced.
_NOTICEABLE = 1.01
#: Words for a row of each dimension.
_DIMENSION_WORDS = {"rank": "rank", "stage": "stage", "operation": "operation", "micro_batch": "micro-batch"}


@dataclass(frozen=True, repr=False)
class StragglerReport(Result):
    """Stragglers of one or more jobs.

    Parameters
    ----------
    jobs : tuple of Stragglers
        The jobs.
    """

    heading = "Stragglers"

    jobs: "tuple[Stragglers, ...]"

    def table(self) -> DataFrame:
        """Return a row for each rank, stage, operation and micro-batch of each job, the worst first; times in ns."""
        return data_frame(self.to_dict()["rows"]).drop(columns="by_step")

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint analyze --stragglers --json` prints."""
        jobs = [job.to_dict() for job in self.jobs]
        return {"rows": [row for job in jobs for row in job.pop("rows")], "jobs": jobs}

    def summary(self) -> list[str]:
        """Return for each job the slow-down and its cost, and who is to blame, in two sentences."""
        return [line for job in self.jobs for line in (_slowdown_line(job), _advice_line(job))]

    def notes(self) -> list[str]:
        """Return the notes of all jobs, each once."""
        return list(dict.fromkeys(note for job in self.jobs for note in job.notes))

    def tables(self) -> list[Table]:
        """Return a table for each dimension of each job: the worst, with what they cost alone."""
        columns = {"slow-down": "{slowdown:.3f}", "extra": "{extra:time}", "worst step": "{worst:.3f}"}
        tables = []
        for job in self.jobs:
            for dimension, word in _DIMENSION_WORDS.items():
                rows = job.of(dimension)
                cells = [{"name": row.name} | _straggler_cells(job, row) for row in rows]
                title = f"{_titled_job(job)}Slow-down by {word}, the others balanced"
                tables += [table_of(title, {f"{word}~": "{name}", **columns}, cells)] if cells else []
        return tables


def _straggler_cells(job: "Stragglers", row: "Straggler") -> dict[str, float]:
    extra = float(row.step_ns.mean() - job.balanced_ns.mean())
    return {"slowdown": row.slowdown, "extra": extra, "worst": float((row.step_ns / job.balanced_ns).max())}


def _titled_job(job: "Stragglers") -> str:
    return f"{job.job[:_NAME_LENGTH]}: " if job.job else ""


def _slowdown_line(job: "Stragglers") -> str:
    base, balanced = float(job.base_ns.mean()), float(job.balanced_ns.mean())
    steps = f"{len(job.steps)} steps take on average" if len(job.steps) > 1 else f"step {job.steps[0]} takes"
    return (
        f"{_titled_job(job)}{steps} {duration(base)}, {job.slowdown:.3f} times the {duration(balanced)} of balanced "
        f"work: {100 * job.waste:.1f} % of the GPUs' time is lost"
    )


def _advice_line(job: "Stragglers") -> str:
    """Return who is slow, and what balancing that one alone would save."""
    if job.slowdown < _NOTICEABLE:
        return f"{_titled_job(job)}the work is balanced"
    words = {name: f"{word} {job.of(name)[0].name}" for name, word in _DIMENSION_WORDS.items() if job.of(name)}
    if len(job.workers) == 1:
        rank, _, stage = job.workers[0].partition("/")
        words = {_WORKERS: f"rank {rank} on stage {stage}"} | words
    told = [name for name in words if job.recovered(name) >= _WORTH_TELLING]
    if not told:
        return f"{_titled_job(job)}no rank, stage or operation alone is to blame"
    told.sort(key=lambda name: job.fixed_ns[name])  # what saves most has the shortest step
    longest, more_ns = next(iter(job.excess_ns.items()), ("", 0.0))
    parts = [
        f"{words[name]} ({min(100 * job.recovered(name), 100):.0f} % of the loss, "
        f"{duration(float(job.base_ns.mean()) - job.fixed_ns[name])} a step"
        + (f"; its {longest} is {duration(more_ns)} longer)" if name == "rank" and more_ns > 0 else ")")
        for name in told
    ]
    several = "" if "rank" in told else _slow_alike(job)
    return f"{_titled_job(job)}balancing one alone saves most at {', then '.join(parts)}{several}"


def _slow_alike(job: "Stragglers") -> str:
    """Return the ranks that are about as slow as the slowest, so that balancing one of them saves little; or ""."""
    most = max((row.slowdown - 1 for row in job.of("rank")), default=0.0)
    alike = [f"rank {row.name}" for row in job.of("rank") if row.slowdown - 1 >= max(_AS_SLOW * most, _NOTICEABLE - 1)]
    return f"; no rank alone, since {' and '.join(alike[:_NAMED_RANKS])} are slow alike" if len(alike) > 1 else ""
