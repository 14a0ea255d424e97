"""From files to a `.trace` folder with bounded memory, in several processes, and again where it was broken off.

What is read of a file waits in a work folder beside the target (`.NAME.trace.work/`) until all files are read;
it stays there when the command is interrupted, and is taken up by the next one for the same files. The target
itself changes in one step at the end.
"""

import fcntl
import hashlib
import json
import os
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

from profilers.ahead import ahead
from profilers.arrays import arrow_array, integers
from profilers.assembly import Assembly, Place, assemble, finished
from profilers.atomic import replace_folder
from profilers.collect import CollectOptions, Told
from profilers.errors import InvalidInputError, SeqPointError
from profilers.memory import lean_memory
from profilers.part import PartOptions, load_part, read_part
from profilers.quality import Quality
from profilers.reader import Reader
from profilers.recordings import Recording, find_recordings
from profilers.schema import KINDS
from profilers.store import TraceWriter, check_target, first_line, write_meta
from profilers.trace import TraceMeta

__all__ = ["Summary", "ingest"]


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

    The result is that of `profilers.collect.collect` and `profilers.store.save_trace`. Memory stays bounded by
    what linking needs of the largest file, about 50 bytes an event of the host or the device.

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
            new = work / "new"
            shutil.rmtree(new, ignore_errors=True)
            meta, rows = _write(pool, whole, folders, new)
        replace_folder(new, place, work / "old")
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
    with ProcessPoolExecutor(workers, get_context("spawn"), _ignore_interrupts) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _ignore_interrupts() -> None:
    """Let the process that asked decide what an interrupt of the terminal ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
