"""From files to one linked `Trace`."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from profilers.assembly import assemble, finished
from profilers.iterations import annotation_pattern
from profilers.lengths import length_op
from profilers.part import PartOptions, read_part
from profilers.recordings import find_recordings
from profilers.schema import KINDS, empty_table
from profilers.source import DEFAULT_LIMIT_BYTES, is_folder
from profilers.store import load_trace
from profilers.trace import Trace

__all__ = ["CollectOptions", "Told", "collect", "open_trace"]


@dataclass(frozen=True)
class CollectOptions:
    """How files become a trace.

    Parameters
    ----------
    iterations : str
        ``"auto"``, ``"file"`` (each file is one iteration), ``"whole"`` (everything is one), or a regular
        expression for annotations.
    length : str, optional
        See `profilers.lengths.add_lengths`.
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
    place = Path(path)
    if is_folder(place) and (place / "meta.json").is_file():
        return load_trace(place)
    return collect([place], options)


def collect(paths: Iterable[str | os.PathLike[str]], options: CollectOptions | None = None) -> Trace:
    """Read files, and the traces in folders, into one trace in memory: linked, with iterations and collectives.

    Files that say no rank, overlap in time and are not one iteration each become ranks in the order of their
    names; files of one rank that follow each other in time stay one rank. `profilers.ingest.ingest` does the
    same with bounded memory.

    Raises
    ------
    NotFoundError
        A file is missing, or a folder holds no trace.
    UnknownFormatError, BrokenFileError, DependencyError
        A file cannot be read; its name is in the message.
    InvalidInputError
        The options do not fit the files.
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
