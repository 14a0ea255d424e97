"""Facts of single ranks of a large job, found one rank at a time on processes or a cluster (`facts_of_ranks`).

A job of a thousand ranks does not fit a worker, and one rank does. What the ranks have in common is small: their
collectives tell when the last rank arrived. So the facts of a rank are those that the whole trace would give.

The facts wait in the trace's folder (``NAME.trace/ranks/``), a file for some ranks. So a second command reads them, and
an interrupted one goes on where it was.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from profilers.errors import SeqPointError
from profilers.files import replaced_file
from profilers.ingest.pipeline import worker_pool, worker_results
from profilers.trace.activity import DeviceTimes, last_arrivals, times_by_step, times_of_recording
from profilers.trace.arrays import MISSING, Bools, Ints, arrow_array, encode_text, integers, row_keys
from profilers.trace.kernels import COLLECTIVE
from profilers.trace.schema import concatenate
from profilers.trace.steps import step_times
from profilers.trace.store import load_trace, read_kind, read_meta
from profilers.trace.trace import Trace
from seqpoint.communication import host_gaps

Progress = Callable[[int, int, str], None]
#: Changes with the meaning of a fact.
_LAYOUT = 1
#: Ranks of a file of facts, and of a task of a worker.
_RANKS_OF_FILE = 16
#: Most files of facts that this process finds alone.
_FEW_FILES = 4
#: Columns of collectives by which ranks are compared.
COLLECTIVE_COLUMNS = ("id", "rank", "start_ns", "dur_ns", "iteration", "collective", "bytes", "group_name",
                      "group_size", "match_id")  # fmt: skip


@dataclass(frozen=True)
class RankFacts:
    """Facts of a rank, or of one of its devices; times in ns.

    Parameters
    ----------
    rank : int
        The rank.
    device : int
        Number of the device; -1 if unknown.
    rows : mapping of str to int
        Rows of the rank by kind of event.
    iterations : tuple of int
        Numbers of its iterations; empty if the trace has none. The times are of the whole recording then.
    step_ns, latency_ns : tuple of int
        Step time and latency of each iteration.
    step_compute_ns : tuple of float
        Time of each step in which the device has work of its own: kernels and copies, no collectives alone.
    elapsed_ns : int
        Sum of the step times, or the span of the recording.
    times : DeviceTimes
        Busy time and communication in all steps.
    host_ns : int
        Idle time of the device before the call that launches the next work of a step.
    classes : mapping of str to tuple of (int, int)
        Number and time of the kernels by class, whole recording.
    kinds : bytes
        Kernels that are no collectives, by name and workgroups: int64 of shape (n, 3), with a hash, number and time.
    groups : mapping of str to str
        Descriptions of the process groups of the rank, by name, as PyTorch's profiler writes them.
    """

    rank: int
    device: int
    rows: Mapping[str, int]
    iterations: tuple[int, ...]
    step_ns: tuple[int, ...]
    latency_ns: tuple[int, ...]
    step_compute_ns: tuple[float, ...]
    elapsed_ns: int
    times: DeviceTimes
    host_ns: int
    classes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    kinds: bytes = b""
    groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernel_kinds(self) -> Ints:
        """The kinds of kernels as an array of shape (n, 3): hash of name and workgroups, number, time."""
        return np.frombuffer(self.kinds, np.int64).reshape(-1, 3)

    @property
    def compute_ns(self) -> float:
        """Time with a kernel that is no collective, or a copy, on the device."""
        return self.times.busy_ns - self.times.exposed_ns

    @property
    def median_step_ns(self) -> float | None:
        """Median step time; None without iterations."""
        return float(np.median(self.step_ns)) if self.step_ns else None


@dataclass(frozen=True)
class FactsOfRanks:
    """Facts of the ranks of a trace.

    Parameters
    ----------
    rows : tuple of RankFacts
        By (rank, device).
    collectives : Table
        Collectives of all ranks, with some of their columns.
    damaged : mapping of int to str
        Ranks whose tables could not be read, with the reason.
    """

    rows: tuple[RankFacts, ...]
    collectives: pa.Table
    damaged: Mapping[int, str] = field(default_factory=dict)


def facts_of_ranks(
    trace: str | os.PathLike[str],
    *,
    executor: Executor | None = None,
    skip_damaged: bool = False,
    progress: Progress | None = None,
) -> FactsOfRanks:
    """Return the facts of all ranks of a ``.trace`` folder, some ranks at a time on each worker.

    Parameters
    ----------
    trace : path
        The folder.
    executor : Executor, optional
        Runs the workers: any object with ``submit``, whose workers see the folder. By default one process a core.
    skip_damaged : bool
        Whether ranks with damaged tables are left out and named, instead of an error.
    progress : callable, optional
        Called with (ranks done, ranks in all, what).

    Raises
    ------
    SeqPointError
        The folder is no trace, or a table of a rank is damaged; the message names the file.
    """
    folder = Path(trace)
    meta = read_meta(folder)
    damaged: dict[int, str] = {}
    collectives = _collectives(folder, meta.ranks, damaged, skip_damaged)
    ranks = [rank for rank in meta.ranks if rank not in damaged]
    last = _last_rows(Trace(meta, {"collectives": collectives}))
    waiting, known = dict[int, list[int]](), dict[int, list[RankFacts]]()
    for first in range(0, len(ranks), _RANKS_OF_FILE):
        chunk = ranks[first : first + _RANKS_OF_FILE]
        found = _read(_file_of(folder, chunk))
        if found is None:
            waiting[first] = chunk
        else:
            known[first] = found
    done = len(ranks) - sum(map(len, waiting.values()))
    # Starting processes takes as long as four files of facts.
    with worker_pool(executor, len(waiting) if len(waiting) > _FEW_FILES else 1) as pool:
        tasks = {pool.submit(_facts_of_chunk, folder, chunk, last, skip_damaged): first
                 for first, chunk in waiting.items()}  # fmt: skip
        for future in worker_results(as_completed(tasks)):
            known[tasks[future]], problems = future.result()
            damaged |= problems
            done += len(waiting[tasks[future]])
            if progress is not None:
                progress(done, len(ranks), "ranks")
    rows = tuple(row for first in sorted(known) for row in known[first])
    return FactsOfRanks(rows, collectives, dict(sorted(damaged.items())))


def _collectives(folder: Path, ranks: Sequence[int], damaged: dict[int, str], skip_damaged: bool) -> pa.Table:
    """Return the collectives of all ranks; ranks whose table is damaged are added to `damaged`, or are an error."""
    tables = []
    for rank in ranks:
        try:
            tables.append(read_kind(folder, "collectives", COLLECTIVE_COLUMNS, ranks=[rank]))
        except SeqPointError as error:
            if not skip_damaged:
                raise
            damaged[rank] = str(error)
    return concatenate("collectives", tables, COLLECTIVE_COLUMNS)


def _last_rows(trace: Trace) -> pa.Table:
    """Return of each matched collective the rows of the two ranks that started it last: one of them is another's."""
    match, start, arrived = (*(integers(trace.collectives, n) for n in ("match_id", "start_ns")), last_arrivals(trace))
    rows = np.flatnonzero((match != MISSING) & (arrived != MISSING))
    rows = rows[np.lexsort((-start[rows], match[rows]))]
    _, first = np.unique(match[rows], return_index=True)
    second = np.minimum(first + 1, len(rows) - 1)
    kept = np.append(first, second[match[rows[second]] == match[rows[first]]]) if len(rows) else first
    return trace.collectives.take(arrow_array(rows[np.unique(kept)]))


def _file_of(folder: Path, ranks: Sequence[int]) -> Path:
    """Return the file for the facts of some ranks, whose name changes with the ranks and the version."""
    key = hashlib.sha256(json.dumps([version("seqpoint"), _LAYOUT, list(ranks)]).encode()).hexdigest()[:12]
    return folder / "ranks" / f"{min(ranks)}-{max(ranks)}.{key}.msgpack"


def _read(file: Path) -> list[RankFacts] | None:
    """Return the facts in a file; None without it, or if it cannot be read, since they can be found again."""
    try:
        return msgspec.msgpack.decode(file.read_bytes(), type=list[RankFacts])
    except (OSError, msgspec.MsgspecError):
        return None


def _facts_of_chunk(
    folder: Path, ranks: Sequence[int], last: pa.Table, skip_damaged: bool
) -> tuple[list[RankFacts], dict[int, str]]:
    """Return the facts of some ranks, which are kept if the folder can be written, and why others are damaged."""
    rows: list[RankFacts] = []
    damaged: dict[int, str] = {}
    for rank in ranks:
        try:
            rows += _facts(load_trace(folder, ranks=[rank]), last)
        except SeqPointError as error:
            if not skip_damaged:
                raise
            damaged[rank] = str(error)
    if not damaged:
        file = _file_of(folder, ranks)
        with suppress(OSError):  # a folder that cannot be written
            file.parent.mkdir(exist_ok=True)
            with replaced_file(file) as stream:
                stream.write(msgspec.msgpack.encode(rows))
    return rows, damaged


def _facts(trace: Trace, last: pa.Table) -> Iterator[RankFacts]:
    """Yield the facts of each device of a single rank; `last` has those of `_last_rows`."""
    (rank,) = trace.meta.ranks
    counts = {kind: table.num_rows for kind, table in trace.tables.items() if kind != "iterations"}
    classes, kinds = _kernel_kinds(trace)
    groups = _groups(trace)
    others = last.filter(arrow_array(_is_of_another(last, trace.collectives, rank)))
    own = trace.collectives.select(COLLECTIVE_COLUMNS)
    trace = trace.with_tables(collectives=pa.concat_tables([own, others]).unify_dictionaries())
    steps = step_times(trace).without(trace.meta.context)
    gaps = host_gaps(_of_steps(trace) if len(steps) else trace)
    by_step = times_by_step(trace, steps) if len(steps) else [(each,) for each in times_of_recording(trace)]
    for activity in by_step:
        device = -1 if activity[0].device is None else activity[0].device
        yield RankFacts(
            rank, device, counts,
            tuple(steps.iteration.tolist()), tuple(steps.step_ns.tolist()), tuple(steps.latency_ns.tolist()),
            tuple(each.times.busy_ns - each.times.exposed_ns for each in activity),
            sum(each.elapsed_ns for each in activity),
            sum((each.times for each in activity), DeviceTimes()),
            gaps.get((rank, device), 0), classes, kinds.tobytes(), groups,
        )  # fmt: skip


def _of_steps(trace: Trace) -> Trace:
    """Return a trace with the device work of its iterations alone."""
    known = {kind: integers(trace.tables[kind], "iteration") != MISSING for kind in ("kernels", "copies")}
    return trace.with_tables(**{kind: trace.tables[kind].filter(arrow_array(rows)) for kind, rows in known.items()})


def _is_of_another(last: pa.Table, own: pa.Table, rank: int) -> Bools:
    """Return which of the last rows are of another rank, in collectives that this rank takes part in."""
    match = integers(own, "match_id")
    return np.asarray(np.isin(integers(last, "match_id"), match[match != MISSING]) & (integers(last, "rank") != rank))


def _kernel_kinds(trace: Trace) -> tuple[dict[str, tuple[int, int]], Ints]:
    """Return number and time of the kernels of a rank by class, and by name and workgroups without collectives."""
    (codes, names), time = encode_text(trace.kernels["name"]), integers(trace.kernels, "dur_ns").clip(0)
    workgroups = integers(trace.kernels, "workgroups")
    _, first, kind = np.unique(row_keys(codes, workgroups), return_index=True, return_inverse=True)
    calls, times = np.bincount(kind), np.bincount(kind, weights=time).astype(np.int64)
    classes: dict[str, tuple[int, int]] = {}
    rows = []
    for at, number, total in zip(first.tolist(), calls.tolist(), times.tolist(), strict=True):  # kinds: a few hundred
        name = names[codes[at]] or ""
        class_ = trace.meta.class_of(name)
        before = classes.get(class_, (0, 0))
        classes[class_] = before[0] + number, before[1] + total
        if class_ != COLLECTIVE:
            text = f"{name}\n{workgroups[at]}".encode()
            rows.append((int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), signed=True), number, total))
    return classes, np.array(rows, np.int64).reshape(-1, 3)


def _groups(trace: Trace) -> dict[str, str]:
    """Return the descriptions of process groups by name, from the arguments of kernels, of which few are distinct."""
    groups = {}
    for text in set(trace.kernels["args"].combine_chunks().dictionary.to_pylist() if trace.kernels.num_rows else ()):
        if "Process Group Description" in text:
            with suppress(ValueError, AttributeError, RecursionError):
                args = json.loads(text)
                groups[str(args.get("Process Group Name"))] = str(args["Process Group Description"])
    return groups
