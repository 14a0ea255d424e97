"""One driver from trace files to a trace, in memory (`collect`) or in a ``.trace`` folder (`ingest`).

Both run the same steps over a workspace, which says where their rows are kept:

1. Read each recording: give its rows ids, and link kernels to launches and operators.
2. Assemble the recordings: one clock, one numbering of ranks and ids, iterations, matched collectives.
3. Finish the rows of the recordings that share a rank, a batch at a time. Execution traces are joined here.
4. Join counters to the finished kernels.

`ingest` reads in several processes with bounded memory, and resumes an interrupted run. The recordings that it has
read wait in a folder beside the target (``.NAME.trace.work/``), also after an interruption. The target itself changes
in one step at the end.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError, SeqPointError
from profilers.files import replace_folder
from profilers.ingest.assembly import Assembly, Placement, assemble, finished
from profilers.ingest.counters import KERNEL_COLUMNS, add_counters
from profilers.ingest.iterations import annotation_pattern
from profilers.ingest.join import EVENT_COLUMNS, NODE_COLUMNS, MatchedNodes, check_joined, common_ranks, match_nodes
from profilers.ingest.lengths import length_op
from profilers.ingest.recording import (
    LinkedRecording,
    ReadOptions,
    Recording,
    find_recordings,
    lean_memory,
    load_recording,
    read_recording,
)
from profilers.readers.common.reader import Reader
from profilers.readers.common.source import DEFAULT_LIMIT_BYTES, ahead
from profilers.trace.arrays import arrow_array, integers
from profilers.trace.schema import KINDS, empty_table
from profilers.trace.store import TraceWriter, check_target, first_line, is_trace, load_trace, read_kind, write_meta
from profilers.trace.trace import Quality, Trace, TraceMeta

Paths = Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class CollectOptions:
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
    """

    iterations: str = "auto"
    length: str | None = None
    progress: Callable[[int, int, str], None] | None = None
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    counters: tuple[str | os.PathLike[str], ...] = ()
    execution_traces: tuple[str | os.PathLike[str], ...] = ()

    def __post_init__(self) -> None:
        if self.iterations not in ("auto", "file", "whole"):
            annotation_pattern(self.iterations)
        length_op(self.length)

    @property
    def reading(self) -> ReadOptions:
        """The options that reading a single recording needs."""
        return ReadOptions(self.limit_bytes, length_op(self.length))


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
    """

    path: Path
    meta: TraceMeta
    rows: dict[str, int]
    resumed: int


def open_trace(path: str | os.PathLike[str], options: CollectOptions | None = None) -> Trace:
    """Return the trace at `path`: load a ``.trace`` folder, collect anything else.

    Parameters
    ----------
    path : path
        A ``.trace`` folder, a trace file, or a folder of trace files.
    options : CollectOptions, optional
        How files become a trace; a ``.trace`` folder is loaded as it is.

    Raises
    ------
    SeqPointError
        As `load_trace` and `collect`.
    """
    return load_trace(path) if is_trace(path) else collect([path], options)


def collect(paths: Paths, options: CollectOptions | None = None) -> Trace:
    """Read trace files into one trace in memory: linked, with iterations and matched collectives.

    Files that state no rank, overlap in time and are not one iteration each become ranks in the order of their
    names. Files of one rank that follow each other in time stay one rank. Files that hold the same events of a
    rank are refused, unless each is an iteration.

    Parameters
    ----------
    paths : iterable of path
        Trace files, and folders of them.
    options : CollectOptions, optional
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
    options = options or CollectOptions()
    workspace = _MemoryWorkspace()
    meta, _ = _run(_find_inputs(paths, options), options, workspace, _InThisProcess())
    return Trace(meta, workspace.tables())


def ingest(
    paths: Paths,
    target: str | os.PathLike[str],
    options: CollectOptions | None = None,
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
    options : CollectOptions, optional
        How the files become a trace.
    executor : Executor, optional
        Runs the reading: any object with ``submit``, such as a process pool or
        ``dask.distributed.Client.get_executor()``, whose workers see the same files. Without it, one process a core
        reads if there are several recordings.

    Raises
    ------
    SeqPointError
        As `collect` and `save_trace`.
    """
    options = options or CollectOptions()
    path = Path(target)
    inputs = _find_inputs(paths, options)
    check_target(path)
    workspace = _FolderWorkspace(path.parent / f".{path.name}.work")
    with _locked(workspace.folder):
        folders = [workspace.folder_of(recording, options.reading) for recording in inputs.timeline]
        resumed = sum(folder.is_dir() for folder in folders)
        with _pool(executor, len(folders)) as pool:
            meta, rows = _run(inputs, options, workspace, pool)
        write_meta(meta, workspace.new)
        replace_folder(workspace.new, path, workspace.old)
        shutil.rmtree(workspace.folder, ignore_errors=True)
    return Summary(path, meta, rows, resumed)


@dataclass(frozen=True)
class _Inputs:
    """The recordings of the timeline, and the execution traces to join to it."""

    timeline: Sequence[Recording]
    execution_traces: Sequence[Recording]


def _find_inputs(paths: Paths, options: CollectOptions) -> _Inputs:
    timeline = find_recordings([Path(path) for path in paths])
    nodes = [Path(path) for path in options.execution_traces]
    return _Inputs(timeline, find_recordings(nodes) if nodes else ())


#: A linked recording, or the folder that holds it.
_Source = LinkedRecording | Path


def _loaded(source: _Source) -> LinkedRecording:
    return source if isinstance(source, LinkedRecording) else load_recording(source)


class _RowWriter(Protocol):
    """Takes finished rows and counts them by kind."""

    rows: dict[str, int]

    def write(self, kind: str, table: pa.Table) -> None: ...


class _Workspace(Protocol):
    """Where recordings wait until the trace is assembled, and where its finished rows go."""

    def folder_of(self, recording: Recording, options: ReadOptions) -> Path | None:
        """Return the folder that holds a recording once it is read, or None to keep it in memory."""

    def prepare(self) -> None:
        """Make room for the finished rows."""

    def groups(self, placements: Sequence[Placement]) -> list[list[int]]:
        """Return the recordings that one process finishes together, by number."""

    @property
    def writer(self) -> Callable[[], AbstractContextManager[_RowWriter]]:
        """The function that opens a writer of finished rows; processes that share the folder can call it."""

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the finished rows of a kind."""

    def replace(self, kind: str, table: pa.Table) -> None:
        """Replace the finished rows of a kind."""


class _MemoryWorkspace:
    """Recordings and finished rows in memory."""

    def __init__(self) -> None:
        self._batches: dict[str, list[pa.Table]] = defaultdict(list)

    def folder_of(self, _recording: Recording, _options: ReadOptions) -> None:
        return None

    def prepare(self) -> None:
        """Do nothing: the lists are empty."""

    def groups(self, placements: Sequence[Placement]) -> list[list[int]]:
        return [list(range(len(placements)))]

    @property
    def writer(self) -> Callable[[], AbstractContextManager[_RowWriter]]:
        return partial(_MemoryWriter, self._batches)

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        batches = self._batches[kind]
        table = pa.concat_tables(batches).unify_dictionaries().combine_chunks() if batches else empty_table(kind)
        return table if columns is None else table.select(columns)

    def replace(self, kind: str, table: pa.Table) -> None:
        self._batches[kind] = [table]

    def tables(self) -> dict[str, pa.Table]:
        """Return the finished tables of the trace."""
        return {kind: self.table(kind) for kind in (*KINDS, "iterations")}


class _MemoryWriter:
    def __init__(self, batches: Mapping[str, list[pa.Table]]) -> None:
        self._batches = batches
        self.rows: dict[str, int] = defaultdict(int)

    def __enter__(self) -> "_MemoryWriter":
        return self

    def __exit__(self, *_error: object) -> None:
        """Do nothing: the rows are where they stay."""

    def write(self, kind: str, table: pa.Table) -> None:
        """Keep finished rows."""
        self.rows[kind] += table.num_rows
        self._batches[kind].append(table)


class _FolderWorkspace:
    """Recordings and finished rows in one folder, on the disk of the target.

    Parameters
    ----------
    folder : Path
        Holds a folder for each recording, the trace that is being written (``new``), and the replaced one (``old``).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.new, self.old = folder / "new", folder / "old"

    def folder_of(self, recording: Recording, options: ReadOptions) -> Path:
        """Return the folder of a recording; its name changes with the files, the reader and the options."""
        stats = [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in recording.files]
        facts = [stats, recording.reader.name, options.limit_bytes, options.length_op, version("seqpoint")]
        return self.folder / f"recording-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"

    def prepare(self) -> None:
        for folder in (self.new, self.old):  # a run that was killed may have left them
            shutil.rmtree(folder, ignore_errors=True)
        self.new.mkdir()

    def groups(self, placements: Sequence[Placement]) -> list[list[int]]:
        """Group recordings that share a rank, since one process writes the files of a rank."""
        groups: list[tuple[set[int], list[int]]] = []
        for number, placement in enumerate(placements):
            ranks, numbers = set(placement.spans), [number]
            for group in [group for group in groups if group[0] & ranks]:
                groups.remove(group)
                ranks, numbers = ranks | group[0], group[1] + numbers
            groups.append((ranks, numbers))
        return [sorted(numbers) for _, numbers in groups]

    @property
    def writer(self) -> Callable[[], AbstractContextManager[_RowWriter]]:
        return partial(TraceWriter, self.new)

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        return read_kind(self.new, kind, columns)

    def replace(self, kind: str, table: pa.Table) -> None:
        with self.writer() as writer:
            writer.write(kind, table)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder of a workspace for this process; the system releases it when the process ends."""
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise InvalidInputError(f"{folder}: cannot be written ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInputError(f"{folder}: another ingest is writing this trace; wait for it") from error
        try:
            yield
        except OSError as error:
            raise InvalidInputError(f"{folder}: cannot be written ({first_line(error)})") from error
        finally:
            if not any(folder.glob("recording-*")):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _pool(executor: Executor | None, recordings: int) -> Iterator[Executor]:
    if executor is not None:
        yield executor
        return
    workers = min(recordings, len(os.sched_getaffinity(0)))
    if workers < 2:
        yield _InThisProcess()
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _ignore_interrupts) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _ignore_interrupts() -> None:
    """Leave an interrupt of the terminal to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
    inputs: _Inputs, options: CollectOptions, workspace: _Workspace, pool: Executor
) -> tuple[TraceMeta, dict[str, int]]:
    """Run all steps; return the description of the trace, and its rows by kind."""
    timeline = _read_all(pool, inputs.timeline, workspace, options)
    assembly = assemble([_loaded(source) for source in timeline], options.iterations, options.length)
    nodes = None
    if inputs.execution_traces:
        sources = _read_all(pool, inputs.execution_traces, workspace, options)
        nodes = _assembled_nodes(sources, assembly.meta.ranks, options)
    workspace.prepare()
    quality, rows = Quality(), dict.fromkeys((*KINDS, "iterations"), 0)
    groups = _groups(workspace.groups(assembly.placements), timeline, assembly, nodes)
    for future in [pool.submit(_finish, group, workspace.writer) for group in groups]:
        counts, written = future.result()
        quality += Quality(counts)
        rows = {kind: count + written.get(kind, 0) for kind, count in rows.items()}
    if nodes is not None:
        check_joined(quality["nodes_joined"])
        quality += Quality({"nodes_without_event": nodes.rows - quality["nodes_joined"]})
    with workspace.writer() as writer:
        writer.write("iterations", assembly.iterations)
    rows["iterations"] = assembly.iterations.num_rows
    if options.counters:
        quality += _join_counters(workspace, assembly.next_id, options)
        rows["counters"] = workspace.table("counters", ["id"]).num_rows
    return replace(assembly.meta, quality=assembly.meta.quality + quality), rows


class _Progress:
    """Adds up the bytes read of several recordings.

    Parameters
    ----------
    report : callable, optional
        `CollectOptions.progress`.
    sizes : sequence of int
        Bytes of each recording.
    """

    def __init__(self, report: Callable[[int, int, str], None] | None, sizes: Sequence[int]) -> None:
        self._report = report
        self._total = sum(sizes)
        self._done = 0

    def at(self, name: str, position: int) -> None:
        """Report `position` bytes of the recording that is being read."""
        if self._report:
            self._report(min(self._done + position, self._total), self._total, name)

    def done(self, recording: Recording) -> None:
        """Report that a recording is read."""
        self._done += recording.size
        self.at(recording.name, 0)


@dataclass(frozen=True)
class _ReadRequest:
    """One recording to read in some process."""

    files: tuple[Path, ...]
    reader: Reader
    folder: Path | None
    options: ReadOptions


def _read_all(
    pool: Executor, recordings: Sequence[Recording], workspace: _Workspace, options: CollectOptions
) -> list[_Source]:
    """Read the recordings that no earlier run has read; the first error ends it, and folders stay."""
    progress = _Progress(options.progress, [recording.size for recording in recordings])
    sources: dict[int, _Source] = {}
    waiting: dict[Future[_Source], int] = {}
    for number, recording in enumerate(recordings):
        progress.at(recording.name, 0)
        folder = workspace.folder_of(recording, options.reading)
        request = _ReadRequest(recording.files, recording.reader, folder, options.reading)
        if folder is not None and folder.is_dir():
            sources[number] = folder
        elif isinstance(pool, _InThisProcess):
            sources[number] = _read(request, partial(progress.at, recording.name))
        else:
            waiting[pool.submit(_read, request)] = number
            continue
        progress.done(recording)
    for future in as_completed(waiting):
        sources[waiting[future]] = future.result()
        progress.done(recordings[waiting[future]])
    return [sources[number] for number in range(len(recordings))]


def _read(request: _ReadRequest, advance: Callable[[int], None] | None = None) -> _Source:
    """Read one recording; its folder appears when it is complete."""
    folder = request.folder
    if folder is None:
        with lean_memory():
            return read_recording(request.files, request.reader, None, request.options, advance)
    if folder.is_dir():
        return folder
    new = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        with lean_memory():
            read_recording(request.files, request.reader, new, request.options, advance)
        with suppress(OSError):  # another process was faster: its folder holds the same rows
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


@dataclass(frozen=True)
class _NodeFiles:
    """Execution traces, read and placed on their ranks.

    Parameters
    ----------
    recordings : sequence of (source, Placement)
        One an execution trace.
    rows : int
        Number of operator nodes in all of them.
    """

    recordings: Sequence[tuple[_Source, Placement]]
    rows: int


def _assembled_nodes(sources: Sequence[_Source], timeline_ranks: Sequence[int], options: CollectOptions) -> _NodeFiles:
    recordings = [_loaded(source) for source in sources]
    # The iterations and lengths of nodes are not used, so that no pattern or rule has to fit them.
    assembly = assemble(recordings, "file" if options.iterations == "file" else "whole", None)
    common_ranks(timeline_ranks, assembly.meta.ranks)
    rows = sum(batch.num_rows for recording in recordings for batch in recording.stage.batches("ops", ["id"]))
    return _NodeFiles(list(zip(sources, assembly.placements, strict=True)), rows)


@dataclass(frozen=True)
class _Group:
    """Recordings that one process finishes: plain values, so that any scheduler can carry them.

    Parameters
    ----------
    recordings : sequence of (source, Placement)
        In the order of their files.
    collectives : Table
        The matched collectives of their ranks.
    nodes : sequence of (source, Placement), optional
        The execution traces of their ranks; None if the trace is joined to none.
    """

    recordings: Sequence[tuple[_Source, Placement]]
    collectives: pa.Table
    nodes: Sequence[tuple[_Source, Placement]] | None

    @property
    def ranks(self) -> set[int]:
        """The ranks of the recordings."""
        return {rank for _, placement in self.recordings for rank in placement.spans}


def _groups(
    numbers: Sequence[Sequence[int]], sources: Sequence[_Source], assembly: Assembly, nodes: _NodeFiles | None
) -> list[_Group]:
    collective_ranks = integers(assembly.collectives, "rank")
    groups = []
    for members in numbers:
        recordings = [(sources[number], assembly.placements[number]) for number in members]
        ranks = {rank for _, placement in recordings for rank in placement.spans}
        collectives = assembly.collectives.filter(arrow_array(np.isin(collective_ranks, sorted(ranks))))
        with_nodes = None if nodes is None else [pair for pair in nodes.recordings if ranks & set(pair[1].spans)]
        groups.append(_Group(recordings, collectives, with_nodes))
    return groups


def _finish(
    group: _Group, open_writer: Callable[[], AbstractContextManager[_RowWriter]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Write the finished rows of a group; return its quality counts, and its rows by kind."""
    quality = Quality()
    with lean_memory(), open_writer() as writer:
        matched = None if group.nodes is None else _matched_nodes(group)
        for source, placement in group.recordings:
            counts: dict[str, int] = {}
            for kind, table in ahead(finished(_loaded(source), placement, group.collectives, counts)):
                filled = table if matched is None else matched.fill(kind, table, writer.rows.get(kind, 0))
                writer.write(kind, filled)
            quality += Quality(counts)
        if matched is not None:
            quality += Quality(matched.counts)
    return dict(quality.counts), dict(writer.rows)


def _matched_nodes(group: _Group) -> MatchedNodes:
    """Match the nodes of a group's ranks with its operators and annotations, of which it reads the key columns."""
    events = {kind: _placed(group.recordings, kind, EVENT_COLUMNS) for kind in ("ops", "ranges")}
    nodes = _placed(group.nodes or (), "ops", NODE_COLUMNS)
    node_ranks = {rank for _, placement in group.nodes or () for rank in placement.spans}
    return match_nodes(events, nodes, sorted(group.ranks & node_ranks))


def _placed(recordings: Sequence[tuple[_Source, Placement]], kind: str, columns: Sequence[str]) -> pa.Table:
    """Return some columns of all rows of a kind, with the ranks and times of the trace."""
    batches = [
        placement.put(batch)
        for source, placement in recordings
        for batch in _loaded(source).stage.batches(kind, columns)
    ]
    return pa.concat_tables([empty_table(kind).select(columns), *batches]).unify_dictionaries().combine_chunks()


def _join_counters(workspace: _Workspace, next_id: int, options: CollectOptions) -> Quality:
    """Add the counters of other files to those of the timeline; this holds all counters in memory."""
    quality = Quality()
    kernels, counters = workspace.table("kernels", KERNEL_COLUMNS), workspace.table("counters")
    for path in options.counters:
        counted = collect([path], replace(options, counters=(), execution_traces=()))
        counters, counts = add_counters(kernels, counters, counted, next_id)
        next_id += counts["counters_joined"]
        quality += Quality(counts)
    workspace.replace("counters", counters)
    return quality
