"""One driver from trace files to a trace folder.

Which files belong to one recording, in which order, and who reads them.

From files to one linked `Trace`.

From files to a `.trace` folder with bounded memory, in several processes, and again where it was broken off.

What is read of a file waits in a work folder beside the target (`.NAME.trace.work/`) until all files are read;
it stays there when the command is interrupted, and is taken up by the next one for the same files. The target
itself changes in one step at the end.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError, UnknownFormatError
from profilers.files import is_folder, replace_folder
from profilers.ingest.assembly import Assembly, Place, assemble, finished
from profilers.ingest.iterations import annotation_pattern
from profilers.ingest.lengths import length_op
from profilers.ingest.part import PartOptions, lean_memory, load_part, read_part
from profilers.readers.common.reader import GroupReader, Reader, find_reader
from profilers.readers.common.source import DEFAULT_LIMIT_BYTES, ahead
from profilers.trace.arrays import arrow_array, integers
from profilers.trace.schema import KINDS, empty_table
from profilers.trace.store import TraceWriter, check_target, first_line, is_trace, load_trace, write_meta
from profilers.trace.trace import Quality, Trace, TraceMeta


@dataclass(frozen=True)
class Recording:
    """Files that are read together.

    Parameters
    ----------
    files : tuple of Path
    reader : Reader
    """

    files: tuple[Path, ...]
    reader: Reader

    @property
    def name(self) -> str:
        """The name of the first file, for messages."""
        return self.files[0].name

    @property
    def size(self) -> int:
        """Bytes of all files, folders included."""
        plain = [inner for file in self.files for inner in (file.iterdir() if is_folder(file) else [file])]
        return sum(file.stat().st_size for file in plain if file.is_file())


def find_recordings(paths: Sequence[Path]) -> list[Recording]:
    """Return the recordings among files and in folders, in the natural order of their names.

    Raises
    ------
    NotFoundError
        A file is missing, or a folder holds no trace.
    UnknownFormatError
        No reader knows a file that was named.
    InvalidInputError
        A folder is a ``.trace`` already.
    """
    found: list[tuple[Path, Reader]] = []
    for path in paths:
        found.extend(_in_folder(path) if is_folder(path) else [(path, find_reader(path))])
    if not found:
        raise NotFoundError("no file was named")
    unique = {file.absolute(): (file, reader) for file, reader in found}
    groups: dict[tuple[str, str], list[tuple[Path, Reader]]] = {}
    for file, reader in sorted(unique.values(), key=lambda pair: (_natural(pair[0].name), str(pair[0]))):
        key = reader.group(file) if isinstance(reader, GroupReader) else str(file.absolute())
        groups.setdefault((reader.name, key), []).append((file, reader))
    return [Recording(tuple(file for file, _ in members), members[0][1]) for members in groups.values()]


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts rank2 before rank10."""
    return [(0, int(part[:30]), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def _in_folder(folder: Path) -> list[tuple[Path, Reader]]:
    if (folder / "meta.json").is_file() and (folder / "kernels").is_dir():
        raise InvalidInputError(f"{folder}: is a .trace already; every command but ingest takes it as it is")
    known = _known(folder)
    if known:
        return known
    try:
        files = [f for f in folder.iterdir() if f.is_file() and not f.name.startswith(".")]
    except OSError as error:
        raise NotFoundError(f"{folder}: cannot be read ({error.strerror}); check its rights") from error
    known = [pair for file in files for pair in _known(file)]
    if not known:
        raise NotFoundError(f"{folder}: holds no trace that a reader knows ({len(files)} files looked at)")
    return known


def _known(path: Path) -> list[tuple[Path, Reader]]:
    try:
        return [(path, find_reader(path))]
    except (UnknownFormatError, NotFoundError):
        return []


@dataclass(frozen=True)
class CollectOptions:
    """How files become a trace.

    Parameters
    ----------
    iterations : str
        ``"auto"``, ``"file"`` (each file is one iteration), ``"whole"`` (everything is one), or a regular
        expression for annotations.
    length : str, optional
        See `profilers.ingest.lengths.add_lengths`.
    progress : callable, optional
        Called with (bytes of the files read, bytes of all files, name of the file) now and then.
    limit_bytes : int
        Refuse a packed file that unpacks to more.
    """

    iterations: str = "auto"
    length: str | None = None
    progress: Callable[[int, int, str], None] | None = None
    limit_bytes: int = DEFAULT_LIMIT_BYTES

    def __post_init__(self) -> None:
        if self.iterations not in ("auto", "file", "whole"):
            annotation_pattern(self.iterations)
        length_op(self.length)

    @property
    def part(self) -> PartOptions:
        """What reading a single file needs of it."""
        return PartOptions(self.limit_bytes, length_op(self.length))


def open_trace(path: str | os.PathLike[str], options: CollectOptions | None = None) -> Trace:
    """Return the trace at `path`: a ``.trace`` folder as it is, anything else collected.

    Raises
    ------
    SeqPointError
        As `load_trace` and `collect`.
    """
    return load_trace(path) if is_trace(path) else collect([path], options)


def collect(paths: Iterable[str | os.PathLike[str]], options: CollectOptions | None = None) -> Trace:
    """Read files, and the traces in folders, into one trace in memory: linked, with iterations and collectives.

    Files that say no rank, overlap in time and are not one iteration each become ranks in the order of their
    names; files of one rank that follow each other in time stay one rank. Files that hold the same events of a
    rank are refused, unless each is an iteration. `profilers.ingest.pipeline` does the
    same with bounded memory.

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
    recordings = find_recordings([Path(p) for p in paths])
    told = Told(options.progress, [recording.size for recording in recordings])
    parts = []
    for recording in recordings:
        told.at(recording.name, 0)
        advance = partial(told.at, recording.name)
        parts.append(read_part(recording.files, recording.reader, None, options.part, advance))
        told.done(recording.name, recording.size)
    whole = assemble(parts, options.iterations, options.length)
    found: dict[str, list[pa.Table]] = {kind: [] for kind in KINDS}
    quality: dict[str, int] = {}
    for part, place in zip(parts, whole.places, strict=True):
        counts: dict[str, int] = {}
        for kind, table in finished(part, place, whole.collectives, counts):
            found[kind].append(table)
        quality = {name: quality.get(name, 0) + n for name, n in counts.items()}
    tables = {kind: _joined(kind, tables) for kind, tables in found.items()}
    return Trace(replace(whole.meta), tables | {"iterations": whole.iterations}).with_quality(quality)


class Told:
    """Adds up what is told of several recordings.

    Parameters
    ----------
    progress : callable, optional
        See `CollectOptions`.
    sizes : sequence of int
        Bytes of each recording.
    """

    def __init__(self, progress: Callable[[int, int, str], None] | None, sizes: Sequence[int]) -> None:
        self._progress = progress
        self._all = sum(sizes)
        self._done = 0

    def at(self, name: str, position: int) -> None:
        """Tell that `position` bytes of the recording that is being read are."""
        if self._progress:
            self._progress(min(self._done + position, self._all), self._all, name)

    def done(self, name: str, size: int) -> None:
        """Tell that a recording of `size` bytes is read."""
        self._done += size
        self.at(name, 0)


def _joined(kind: str, tables: list[pa.Table]) -> pa.Table:
    if not tables:
        return empty_table(kind)
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


@dataclass(frozen=True)
class Summary:
    """What was written.

    Parameters
    ----------
    path : Path
    meta : TraceMeta
    rows : dict of str to int
        By kind, iterations included.
    resumed : int
        Recordings that an earlier run had read.
    """

    path: Path
    meta: TraceMeta
    rows: dict[str, int]
    resumed: int


@dataclass(frozen=True)
class _Task:
    """What one process is asked to do: plain values, so that any scheduler can carry it."""

    files: tuple[str, ...]
    reader: Reader
    folder: str
    options: PartOptions


def ingest(
    paths: Iterable[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    options: CollectOptions | None = None,
    *,
    executor: Executor | None = None,
) -> Summary:
    """Read files, and the traces in folders, into the folder `target`, which shows all of it or what was there.

    The result is that of `profilers.ingest.pipeline.collect` and `profilers.trace.store.save_trace`. Memory stays
    bounded by what linking needs of the largest file, about 50 bytes an event of the host or the device.

    Parameters
    ----------
    paths : iterable of path
    target : path
    options : CollectOptions, optional
    executor : Executor, optional
        Anything with ``submit``, as a process pool or ``dask.distributed.Client.get_executor()``, whose workers
        see the same files; by default one process a core where there are several recordings.

    Raises
    ------
    SeqPointError
        As `collect` and `save_trace`.
    """
    options = options or CollectOptions()
    place = Path(target)
    recordings = find_recordings([Path(p) for p in paths])
    check_target(place)
    work = place.parent / f".{place.name}.work"
    with _locked(work):
        folders = [_folder(work, recording, options.part) for recording in recordings]
        resumed = sum(folder.is_dir() for folder in folders)
        with _pool(executor, len(recordings)) as pool:
            _read_all(pool, recordings, folders, options)
            whole = assemble([load_part(folder) for folder in folders], options.iterations, options.length)
            new, old = work / "new", work / "old"
            for folder in (new, old):  # a run that was killed may have left them
                shutil.rmtree(folder, ignore_errors=True)
            meta, rows = _write(pool, whole, folders, new)
        replace_folder(new, place, old)
        shutil.rmtree(work, ignore_errors=True)
    return Summary(place, meta, rows, resumed)


def _folder(work: Path, recording: Recording, options: PartOptions) -> Path:
    """Return where what is read of a recording is kept: the name changes with whatever changes the result."""
    stats = [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in recording.files]
    facts = [stats, recording.reader.name, options.limit_bytes, options.length_op, version("seqpoint")]
    return work / f"part-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Hold the work folder for this process; the system lets go when the process ends, however it ends."""
    try:
        work.mkdir(exist_ok=True)
        lock = (work / "lock").open("w")
    except OSError as error:
        raise InvalidInputError(f"{work}: cannot be written ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInputError(f"{work}: another ingest is writing this trace; wait for it") from error
        try:
            yield
        except OSError as error:
            raise InvalidInputError(f"{work}: cannot be written ({first_line(error)})") from error
        finally:
            if not any(work.glob("part-*")):
                shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _pool(executor: Executor | None, recordings: int) -> Iterator[Executor]:
    if executor is not None:
        yield executor
        return
    workers = min(recordings, len(os.sched_getaffinity(0)))
    if workers < 2:
        yield _InThisProcess()
        return
    # The process that asked decides what an interrupt of the terminal ends.
    ignore = (signal.signal, (signal.SIGINT, signal.SIG_IGN))
    with ProcessPoolExecutor(workers, get_context("spawn"), *ignore) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class _InThisProcess(Executor):
    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except SeqPointError as error:
            future.set_exception(error)
        return future


def _read_all(
    pool: Executor, recordings: Sequence[Recording], folders: Sequence[Path], options: CollectOptions
) -> None:
    """Read what is not read yet; the first error ends it and leaves what was read."""
    told = Told(options.progress, [recording.size for recording in recordings])
    waiting: dict[Future[None], Recording] = {}
    for recording, folder in zip(recordings, folders, strict=True):
        told.at(recording.name, 0)
        if not folder.is_dir():
            task = _Task(tuple(map(str, recording.files)), recording.reader, str(folder), options.part)
            if isinstance(pool, _InThisProcess):
                _read(task, partial(told.at, recording.name))
            else:
                waiting[pool.submit(_read, task)] = recording
                continue
        told.done(recording.name, recording.size)
    for future in as_completed(waiting):
        future.result()
        told.done(waiting[future].name, waiting[future].size)


def _read(task: _Task, advance: Callable[[int], None] | None = None) -> None:
    """Read one recording into its folder, which appears when it is complete."""
    folder = Path(task.folder)
    if folder.is_dir():
        return
    new = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        with lean_memory():
            read_part([Path(file) for file in task.files], task.reader, new, task.options, advance)
        with suppress(OSError):  # another process was faster: its folder is the same
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write(pool: Executor, whole: Assembly, folders: Sequence[Path], new: Path) -> tuple[TraceMeta, dict[str, int]]:
    """Write the finished trace to the folder `new`, the parts of one rank by one process."""
    new.mkdir()
    futures = [
        pool.submit(_finish, [str(folders[n]) for n in numbers], [whole.places[n] for n in numbers], own, str(new))
        for numbers, own in _by_rank(whole)
    ]
    quality, rows = whole.meta.quality, {"iterations": whole.iterations.num_rows}
    for future in futures:
        counts, written = future.result()
        quality += Quality(counts)
        rows = {kind: rows.get(kind, 0) + written.get(kind, 0) for kind in (*KINDS, "iterations")}
    with TraceWriter(new) as writer:
        writer.write("iterations", whole.iterations)
    meta = replace(whole.meta, quality=quality)
    write_meta(meta, new)
    return meta, rows


def _by_rank(whole: Assembly) -> list[tuple[list[int], pa.Table]]:
    """Return which parts go together because they share a rank, with their collectives."""
    groups: list[tuple[set[int], list[int]]] = []
    for number, place in enumerate(whole.places):
        ranks, numbers = set(place.spans), [number]
        for group in [g for g in groups if g[0] & ranks]:
            groups.remove(group)
            ranks, numbers = ranks | group[0], group[1] + numbers
        groups.append((ranks, numbers))
    wanted = integers(whole.collectives, "rank")
    return [
        (sorted(numbers), whole.collectives.filter(arrow_array(np.isin(wanted, sorted(ranks)))))
        for ranks, numbers in groups
    ]


def _finish(
    folders: Sequence[str], places: Sequence[Place], collectives: pa.Table, new: str
) -> tuple[dict[str, int], dict[str, int]]:
    """Write parts to the folder `new`; return quality counts, and rows by kind."""
    quality = Quality()
    with lean_memory(), TraceWriter(Path(new)) as writer:
        for folder, place in zip(folders, places, strict=True):
            counts: dict[str, int] = {}
            for kind, table in ahead(finished(load_part(Path(folder)), place, collectives, counts)):
                writer.write(kind, table)
            quality += Quality(counts)
    return dict(quality.counts), writer.rows
