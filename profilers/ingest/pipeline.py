"""One driver from trace files to a trace, in memory (`collect`) or in a ``.trace`` folder (`ingest`).

Both run the same steps, and keep rows in memory or in a folder:

1. Read each recording: give its rows ids, and link kernels to launches and operators.
2. Assemble the recordings: one clock, one numbering of ranks and ids, iterations, matched collectives.
3. Finish the rows of the recordings that share a rank, a batch at a time. Execution traces and captures are joined
   here.
4. Join counters to the finished kernels.

`ingest` reads in several processes with bounded memory, and resumes an interrupted run. The recordings that it has
read wait in a folder beside the target (``.NAME.trace.work/``), also after an interruption. The target itself changes
in one step at the end.
"""

import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError, InvalidInputError, SeqPointError, WorkerError
from profilers.files import held_folder, replace_folder
from profilers.ingest.archives import Scratch, scratch_folder
from profilers.ingest.assembly import Placement, assemble, finished
from profilers.ingest.capture import Captures, read_captures
from profilers.ingest.collectives import reclassify
from profilers.ingest.graph_kernels import GRAPH_KERNEL_COLUMNS, GraphOperators, check_captured, graph_operators
from profilers.ingest.graph_kernels import LAUNCH_COLUMNS as GRAPH_LAUNCH_COLUMNS
from profilers.ingest.iterations import annotation_pattern
from profilers.ingest.join import (
    COUNTED_KERNEL_COLUMNS,
    EVENT_COLUMNS,
    EVENT_KINDS,
    NODE_COLUMNS,
    MatchedNodes,
    add_counters,
    check_joined,
    common_ranks,
    match_nodes,
)
from profilers.ingest.lengths import length_op
from profilers.ingest.recording import (
    LinkedRecording,
    Recording,
    find_recordings,
    load_recording,
    read_recording,
    system_memory,
    unread_files,
)
from profilers.readers.common.source import DEFAULT_LIMIT_BYTES, prefetch
from profilers.trace.arrays import arrow_array, integers
from profilers.trace.kernels import ClassRule, check_rules
from profilers.trace.quality import Quality
from profilers.trace.schema import KINDS, concatenate
from profilers.trace.store import TraceWriter, check_target, first_line, is_trace, load_trace, read_kind, write_meta
from profilers.trace.trace import Trace, TraceMeta

Paths = Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class IngestOptions:
    """How files become a trace.

    Parameters
    ----------
    iterations : str
        ``"auto"``, ``"file"`` (each file is one iteration), ``"whole"`` (the trace is one iteration), or a regular
        expression for annotations.
    length : str, optional
        Source of the sequence lengths; see `profilers.ingest.lengths.add_lengths`.
    progress : callable, optional
        Called with (bytes of the files read, bytes of all files, name of the file) now and then.
    limit_bytes : int
        Size that a packed file may unpack to; a larger one is refused.
    counters : tuple of path
        Files of Nsight Compute or rocprof-compute, whose counters are joined to the kernels.
    execution_traces : tuple of path
        Chakra execution traces of the same ranks, whose nodes are joined to the operators.
    captures : tuple of path
        Traces of stream capture, or without graphs, whose operators are joined to the kernels of graphs.
    skip_damaged : bool
        Leave out files that are damaged, instead of an error; the quality of the trace counts them.
    class_rules : tuple of ClassRule
        A user's own classes of kernels; unlike the other options, they also apply to a ``.trace`` folder.
    """

    iterations: str = "auto"
    length: str | None = None
    progress: Callable[[int, int, str], None] | None = None
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    counters: tuple[str | os.PathLike[str], ...] = ()
    execution_traces: tuple[str | os.PathLike[str], ...] = ()
    captures: tuple[str | os.PathLike[str], ...] = ()
    class_rules: tuple[ClassRule, ...] = ()
    skip_damaged: bool = False

    def __post_init__(self) -> None:
        if self.iterations not in ("auto", "file", "whole"):
            annotation_pattern(self.iterations)
        length_op(self.length)


@dataclass(frozen=True)
class Summary:
    """The trace that `ingest` wrote.

    Parameters
    ----------
    path : Path
        Folder of the trace.
    meta : TraceMeta
        Description of the trace, with its quality.
    rows : dict of str to int
        Number of rows by kind of event, and of ``iterations``.
    resumed : int
        Number of recordings that an earlier, interrupted run had read.
    left_out : tuple of str
        Why files were left out, one sentence each: damaged, or of no known format.
    """

    path: Path
    meta: TraceMeta
    rows: dict[str, int]
    resumed: int
    left_out: tuple[str, ...] = ()


def open_trace(path: str | os.PathLike[str], options: IngestOptions | None = None) -> Trace:
    """Return the trace at `path`: load a ``.trace`` folder, collect anything else.

    Parameters
    ----------
    path : path
        A ``.trace`` folder, a trace file, or a folder of trace files.
    options : IngestOptions, optional
        How files become a trace. A ``.trace`` folder is loaded as it is.

    Raises
    ------
    SeqPointError
        As `load_trace` and `collect`; or the options ask for other iterations, lengths or joined files than those with
        which a ``.trace`` folder was written.
    """
    if not is_trace(path):
        return collect([path], options)
    options = options or IngestOptions()
    asked = replace(options, progress=None, limit_bytes=DEFAULT_LIMIT_BYTES, class_rules=())
    if asked != IngestOptions():
        raise InvalidInputError(
            f"{path}: iterations, lengths and joined files of a .trace folder were chosen when it was ingested; "
            "ingest its files again with the option"
        )
    trace = load_trace(path)
    return reclassify(trace, options.class_rules) if options.class_rules else trace


def collect(paths: Paths, options: IngestOptions | None = None) -> Trace:
    """Read trace files into one trace in memory: linked, with iterations and matched collectives.

    Files that state no rank, overlap in time and are not one iteration each become ranks in the order of their
    names. Files of one rank that follow each other in time stay one rank. Files that hold the same events of a
    rank are refused, unless each is an iteration.

    Parameters
    ----------
    paths : iterable of path
        Trace files, and folders of them.
    options : IngestOptions, optional
        How the files become a trace.

    Raises
    ------
    NotFoundError
        A file is missing, or a folder holds no trace.
    UnknownFormatError, BrokenFileError, DependencyError
        A file cannot be read; its name is in the message.
    InvalidInputError
        The options do not fit the files, or two files hold the same events of a rank.
    """
    options = options or IngestOptions()
    writer = _MemoryWriter()
    with scratch_folder(say=_said(options)) as scratch:
        inputs = _find_inputs(paths, options, scratch)
        meta, _, next_id, _ = _run(inputs, options, None, _InThisProcess(), lambda: nullcontext(writer))
    tables = {kind: concatenate(kind, writer.batches[kind]) for kind in (*KINDS, "iterations")}
    trace = Trace(meta, tables)
    check_rules(options.class_rules, set(trace.kernels["name"].to_pylist()) if options.class_rules else ())
    if not options.counters:
        return trace
    table, counts = _with_counters(trace.kernels, trace.counters, next_id, options)
    return trace.with_tables(counters=table).with_quality(counts)


def ingest(
    paths: Paths,
    target: str | os.PathLike[str],
    options: IngestOptions | None = None,
    *,
    executor: Executor | None = None,
) -> Summary:
    """Read trace files into the ``.trace`` folder `target`; a crash leaves its old content, or the whole new trace.

    The trace is that of `collect`. Memory stays bounded by what linking needs of the largest file, about 50 bytes an
    event of the host or the device. An execution trace adds the nodes of one rank at a time.

    Parameters
    ----------
    paths : iterable of path
        Trace files, and folders of them.
    target : path
        Folder to write, or a ``.trace`` folder to replace.
    options : IngestOptions, optional
        How the files become a trace.
    executor : Executor, optional
        Runs the reading: any object with ``submit``, such as a process pool or
        ``dask.distributed.Client.get_executor()``, whose workers see the same files. Without it, one process a core
        reads if there are several recordings, unless they are small.

    Raises
    ------
    SeqPointError
        As `collect` and `save_trace`.
    """
    options = options or IngestOptions()
    path = Path(target)
    folder = path.parent / f".{path.name}.work"
    new, old = folder / "new", folder / "old"
    open_writer = partial(TraceWriter, new)
    with ExitStack() as held:
        # Beside the target, where the workers of an executor see the files too.
        scratch = held.enter_context(scratch_folder(path.absolute().parent, _said(options)))
        named = [Path(each) for each in paths]
        timeline, nodes = _find_inputs(named, options, scratch)
        unread = unread_files(named, timeline)
        check_target(path)
        held.enter_context(_locked(folder))
        for leftover in (new, old):  # of a run that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        new.mkdir()
        resumed = sum(_folder_of(recording, folder).is_dir() for recording in timeline)
        with _pool(executor, timeline) as pool:
            meta, rows, next_id, left_out = _run((timeline, nodes), options, folder, pool, open_writer)
        if options.counters:
            kernels, counters = read_kind(new, "kernels", COUNTED_KERNEL_COLUMNS), read_kind(new, "counters")
            counters, counts = _with_counters(kernels, counters, next_id, options)
            with open_writer() as writer:
                writer.write("counters", counters)
            rows["counters"] = counters.num_rows
            meta = replace(meta, quality=meta.quality + Quality(counts))
        if options.class_rules:
            check_rules(options.class_rules, set(read_kind(new, "kernels", ["name"])["name"].to_pylist()))
        write_meta(meta, new)
        replace_folder(new, path, old)
        old.mkdir(exist_ok=True)
        for recording in folder.glob("recording-*"):  # a kill leaves each whole, or where the next run removes it
            recording.rename(old / recording.name)
        shutil.rmtree(folder, ignore_errors=True)
    return Summary(path, meta, rows, resumed, (*unread, *left_out))


#: The recordings of the timeline, and those of the execution traces to join to it.
_Inputs = tuple[Sequence[Recording], Sequence[Recording]]


def _said(options: IngestOptions) -> Callable[[str], None]:
    """Return the function that reports work before any file is read."""
    progress = options.progress
    return lambda text: None if progress is None else progress(0, 1, text)


def _find_inputs(paths: Paths, options: IngestOptions, scratch: Scratch) -> _Inputs:
    find = partial(
        find_recordings,
        limit_bytes=options.limit_bytes,
        length_op=length_op(options.length),
        class_rules=options.class_rules,
        scratch=scratch,
    )
    nodes = [Path(path) for path in options.execution_traces]
    return find([Path(path) for path in paths]), find(nodes) if nodes else ()


#: A linked recording, or the folder that holds it.
_Source = LinkedRecording | Path


def _loaded(source: _Source) -> LinkedRecording:
    return source if isinstance(source, LinkedRecording) else load_recording(source)


#: A linked recording, or the folder that holds it, and its placement: plain values that any scheduler can carry.
_PlacedSource = tuple[_Source, Placement]


class _MemoryWriter:
    """Keeps finished rows in memory, by kind."""

    def __init__(self) -> None:
        self.batches: dict[str, list[pa.Table]] = defaultdict(list)
        self.rows: dict[str, int] = defaultdict(int)

    def write(self, kind: str, table: pa.Table) -> None:
        """Keep finished rows."""
        self.rows[kind] += table.num_rows
        self.batches[kind].append(table)


def _folder_of(recording: Recording, folder: Path) -> Path:
    """Return the folder of a recording in `folder`; its name changes with the files, the reader and the options."""
    files = [(origin.path, origin.file) for origin in recording.origins] or [
        (str(file), file) for file in recording.files
    ]
    stats = [(str(Path(name).absolute()), file.stat().st_size, file.stat().st_mtime_ns) for name, file in files]
    facts = [stats, recording.reader.name, recording.limit_bytes, recording.length_op, version("seqpoint")]
    facts += [list(recording.class_rules)] if recording.class_rules else []
    return folder / f"recording-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"


_OpenWriter = Callable[[], AbstractContextManager[TraceWriter | _MemoryWriter]]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder of a workspace for this process."""
    with held_folder(folder, folder, "another ingest is writing this trace"):
        try:
            yield
        except OSError as error:
            raise InvalidInputError(f"{folder}: cannot be written ({first_line(error)})") from error
        finally:
            if not any(folder.glob("recording-*")):
                shutil.rmtree(folder, ignore_errors=True)


#: Bytes of text below which this process reads alone: starting others takes 0.6 s (eight files of 53 kB: 1.9 against
#: 1.3 s). And bytes of text in a byte of a packed Kineto file, about.
_SMALL, _PACKED = 64 << 20, 10


@contextmanager
def _pool(executor: Executor | None, recordings: Sequence[Recording]) -> Iterator[Executor]:
    is_small = _PACKED * sum(recording.size for recording in recordings) < _SMALL
    with worker_pool(executor, 1 if is_small else len(recordings)) as pool:
        yield pool


@contextmanager
def worker_pool(executor: Executor | None, tasks: int) -> Iterator[Executor]:
    """Yield what runs tasks: the executor, or one process a core; this process if there is one task or core.

    Parameters
    ----------
    executor : Executor, optional
        Any object with ``submit``, such as a process pool or ``dask.distributed.Client.get_executor()``.
    tasks : int
        Number of tasks.
    """
    workers = min(tasks, len(os.sched_getaffinity(0)))
    if executor is not None or workers < 2:
        yield executor or _InThisProcess()
        return
    # The processes leave an interrupt of the terminal to this one.
    ignore_interrupts = (signal.signal, (signal.SIGINT, signal.SIG_IGN))
    with ProcessPoolExecutor(workers, get_context("spawn"), *ignore_interrupts) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def worker_results(done: Iterable[Future[Any]]) -> Iterator[Future[Any]]:
    """Yield finished tasks of workers.

    Raises
    ------
    WorkerError
        A worker ended before its task: it was killed, as systems do when memory runs out.
    """
    for future in done:
        if isinstance(future.exception(), BrokenExecutor) or type(future.exception()).__name__ == "KilledWorker":
            raise WorkerError(
                "a worker was killed, which systems do when memory runs out; what was done is kept: the same command "
                "goes on from there"
            ) from future.exception()
        yield future


class _InThisProcess(Executor):
    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `function` at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except SeqPointError as error:
            future.set_exception(error)
        return future


def _run(
    inputs: _Inputs, options: IngestOptions, folder: Path | None, pool: Executor, open_writer: _OpenWriter
) -> tuple[TraceMeta, dict[str, int], int, tuple[str, ...]]:
    """Read, assemble and finish all recordings, but not their counters.

    Recordings wait in `folder`, or in memory. Returned are the description of the trace, its rows by kind, the smallest
    id above those of its events, and why files were left out.
    """
    captures = _read_captures(options)
    sources, left_out = _read_all(pool, inputs[0], folder, options)
    assembly = assemble([_loaded(source) for source in sources], options.iterations, options.length)
    timeline = list(zip(sources, assembly.placements, strict=True))
    nodes, node_count = None, 0
    if inputs[1]:
        nodes, node_count = _placed_nodes(_read_all(pool, inputs[1], folder, options)[0], assembly.meta.ranks, options)
    joined = None if captures is None else (captures, assembly.iterations, assembly.next_id)
    quality, rows = Quality(), dict.fromkeys((*KINDS, "iterations"), 0)
    groups = [timeline] if folder is None else _sharing_ranks(timeline)
    futures = []
    for group in groups:
        ranks = _ranks(group)
        of_ranks = np.isin(integers(assembly.collectives, "rank"), sorted(ranks))
        collectives = assembly.collectives.filter(arrow_array(of_ranks))
        nodes_of_ranks = None if nodes is None else [pair for pair in nodes if ranks & _ranks([pair])]
        futures.append(pool.submit(_finish, group, collectives, (nodes_of_ranks, joined), open_writer))
    for future in futures:
        counts, written = future.result()
        quality += Quality(counts)
        rows = {kind: count + written.get(kind, 0) for kind, count in rows.items()}
    if nodes is not None:
        check_joined(quality["nodes_joined"])
        quality += Quality({"nodes_without_event": node_count - quality["nodes_joined"]})
    if captures is not None:
        check_captured(quality.counts, captures, assembly.meta.sources)
    with open_writer() as writer:
        writer.write("iterations", assembly.iterations)
    rows["iterations"] = assembly.iterations.num_rows
    quality += assembly.meta.quality + Quality({"files_left_out": len(left_out)} if left_out else {})
    meta = replace(assembly.meta, quality=quality, class_rules=options.class_rules)
    return meta, rows, assembly.next_id * (1 if captures is None else 2), tuple(left_out)


def _read_all(
    pool: Executor, recordings: Sequence[Recording], folder: Path | None, options: IngestOptions
) -> tuple[list[_Source], list[str]]:
    """Read the recordings that no earlier run has read; return them, and why others were left out.

    The first error ends it, unless damaged files are to be left out. Folders stay.
    """
    sizes = [recording.size for recording in recordings]
    total, left_out = sum(sizes), list[str]()
    sources: dict[int, _Source] = {}

    def report(number: int, position: int) -> None:
        if options.progress:
            read = sum(sizes[done] for done in sources) + position
            options.progress(min(read, total), total, recordings[number].name)

    def keep(number: int, read: Callable[[], _Source]) -> None:
        try:
            sources[number] = read()
        except SeqPointError as error:
            if not options.skip_damaged:
                raise
            left_out.append(str(error))

    waiting: dict[Future[_Source], int] = {}
    for number, recording in enumerate(recordings):
        report(number, 0)
        target = None if folder is None else _folder_of(recording, folder)
        if target is not None and target.is_dir():
            sources[number] = target
        elif isinstance(pool, _InThisProcess):
            keep(number, partial(_read, recording, target, partial(report, number)))
        else:
            waiting[pool.submit(_read, recording, target)] = number
            continue
        report(number, 0)
    for future in worker_results(as_completed(waiting)):
        keep(waiting[future], future.result)
        report(waiting[future], 0)
    if not sources:
        raise BrokenFileError(left_out[0])
    return [sources[number] for number in sorted(sources)], sorted(left_out)


def _read(recording: Recording, folder: Path | None, advance: Callable[[int], None] | None = None) -> _Source:
    """Read one recording; its folder appears when it is complete."""
    if folder is None:
        with system_memory():
            return read_recording(recording, None, advance)
    if folder.is_dir():
        return folder
    new = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        with system_memory():
            read_recording(recording, new, advance)
        with suppress(OSError):  # another process was faster: its folder holds the same rows
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def _placed_nodes(
    sources: Sequence[_Source], timeline_ranks: Sequence[int], options: IngestOptions
) -> tuple[list[_PlacedSource], int]:
    """Return execution traces with their placements, and the number of operator nodes in all of them."""
    recordings = [_loaded(source) for source in sources]
    # The iterations and lengths of nodes are not used, so that no pattern or rule has to fit them.
    assembly = assemble(recordings, "file" if options.iterations == "file" else "whole", None)
    common_ranks(timeline_ranks, assembly.meta.ranks)
    rows = sum(batch.num_rows for recording in recordings for batch in recording.stage.batches("ops", ["id"]))
    return list(zip(sources, assembly.placements, strict=True)), rows


#: Captures, the iterations of the trace, and the smallest id above those of its events.
_JoinedCaptures = tuple[Captures, pa.Table, int]


def _read_captures(options: IngestOptions) -> Captures | None:
    """Return the captures that the options name; this holds them in memory."""
    if not options.captures:
        return None
    plain = IngestOptions(limit_bytes=options.limit_bytes)
    traces: list[tuple[str, Trace]] = []
    for path in map(Path, options.captures):
        if is_trace(path):
            traces.append((path.name, load_trace(path)))
        else:
            traces += [(each.name, collect(each.files, plain)) for each in find_recordings([path])]
    return read_captures(traces)


def _ranks(placed: Sequence[_PlacedSource]) -> set[int]:
    return {rank for _, placement in placed for rank in placement.spans}


def _sharing_ranks(timeline: Sequence[_PlacedSource]) -> list[list[_PlacedSource]]:
    """Group recordings that share a rank, since one process writes the files of a rank."""
    groups: list[tuple[set[int], list[int]]] = []
    for number, pair in enumerate(timeline):
        ranks, numbers = _ranks([pair]), [number]
        for group in [group for group in groups if group[0] & ranks]:
            groups.remove(group)
            ranks, numbers = ranks | group[0], group[1] + numbers
        groups.append((ranks, numbers))
    return [[timeline[number] for number in sorted(numbers)] for _, numbers in groups]


def _finish(
    group: Sequence[_PlacedSource],
    collectives: pa.Table,
    joined: tuple[Sequence[_PlacedSource] | None, _JoinedCaptures | None],
    open_writer: _OpenWriter,
) -> tuple[dict[str, int], dict[str, int]]:
    """Write the finished rows of recordings; return their quality counts, and their rows by kind."""
    quality = Quality()
    nodes, captures = joined
    with system_memory(), open_writer() as writer:
        matched = None if nodes is None else _matched_nodes(group, nodes)
        for source, placement in group:
            counts: dict[str, int] = {}
            graphs = None if captures is None else _graph_operators((source, placement), captures)
            first = writer.rows.get("kernels", 0)
            for kind, table in prefetch(finished(_loaded(source), placement, collectives, counts)):
                filled = table if matched is None else matched.fill(kind, table, writer.rows.get(kind, 0))
                if graphs is not None and kind == "kernels":
                    filled = graphs.fill(filled, writer.rows.get(kind, 0) - first)
                writer.write(kind, filled)
            if graphs is not None:
                writer.write("ops", graphs.ops)
                quality += Quality(graphs.counts)
            quality += Quality(counts)
        if matched is not None:
            quality += Quality(matched.counts)
    return dict(quality.counts), dict(writer.rows)


def _matched_nodes(group: Sequence[_PlacedSource], nodes: Sequence[_PlacedSource]) -> MatchedNodes:
    """Match nodes with the operators and annotations of the same ranks; only their key columns are read."""
    events = {kind: _rows(group, kind, EVENT_COLUMNS) for kind in EVENT_KINDS}
    return match_nodes(events, _rows(nodes, "ops", NODE_COLUMNS), sorted(_ranks(group) & _ranks(nodes)))


def _graph_operators(pair: _PlacedSource, captures: _JoinedCaptures) -> GraphOperators:
    """Match the kernels of graph launches of a recording with captures; only their key columns are read."""
    kernels = _rows([pair], "kernels", GRAPH_KERNEL_COLUMNS)
    launches = pair[1].with_iterations(_rows([pair], "launches", GRAPH_LAUNCH_COLUMNS))
    return graph_operators(kernels, launches, captures[1], captures[0], captures[2])


def _rows(placed: Sequence[_PlacedSource], kind: str, columns: Sequence[str]) -> pa.Table:
    """Return some columns of all rows of a kind, with the ranks and times of the trace."""
    batches = (
        placement.put(batch) for source, placement in placed for batch in _loaded(source).stage.batches(kind, columns)
    )
    return concatenate(kind, batches, columns)


def _with_counters(
    kernels: pa.Table, counters: pa.Table, next_id: int, options: IngestOptions
) -> tuple[pa.Table, dict[str, int]]:
    """Add the counters of other files to those of the timeline; this holds all counters in memory."""
    quality = Quality()
    for path in options.counters:
        counted = collect([path], replace(options, counters=(), execution_traces=(), captures=(), class_rules=()))
        counters, counts = add_counters(kernels, counters, counted, next_id)
        next_id += counts["counters_joined"]
        quality += Quality(counts)
    return counters, dict(quality.counts)
