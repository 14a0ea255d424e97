"""`Reader`, the interface of a trace format, and how the reader of a file is found.

A reader is a small class that recognises the files of its format by their content and writes their events to a `Sink`,
batch by batch. Readers are found by entry points in the group ``seqpoint.readers``; docs/extending.md shows a whole
package that adds one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from profilers.errors import BrokenFileError, InvalidInputError, SeqPointError, UnknownFormatError
from profilers.files import is_folder
from profilers.plugins import Plugin, load_plugins
from profilers.readers.common.database import SIGNATURE, open_database
from profilers.readers.common.foreign import foreign_file
from profilers.readers.common.source import first_bytes
from profilers.trace.arrays import Ints
from profilers.trace.trace import TraceMeta

_GROUP = "seqpoint.readers"


@dataclass(frozen=True)
class Head:
    """The beginning of a file, by which a reader recognises its format.

    Parameters
    ----------
    path : Path
        A file, or a folder that is one export.
    start : bytes
        The first 64 KB of the file, unpacked; empty for a folder.
    """

    path: Path
    start: bytes

    @classmethod
    def of(cls, path: Path) -> "Head":
        """Return the head of the file or folder at `path`.

        Raises
        ------
        NotFoundError
            There is no such file, or it may not be read.
        """
        return cls(path, b"" if is_folder(path) else first_bytes(path))

    @cached_property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """The columns of each table of a SQLite database; empty for any other file."""
        if not self.start.startswith(SIGNATURE):
            return {}
        try:
            with open_database(self.path) as database:
                return dict(database.tables)
        except BrokenFileError:
            return {}

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The column names in the first line of a CSV file with two columns or more; empty for any other file."""
        line = self.start.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0]
        names = line.decode("utf-8", "replace").strip().split(",")
        return tuple(name.strip().strip('"') for name in names) if len(names) > 1 else ()


class Sink(Protocol):
    """Takes the events that a reader finds in a file.

    Attributes
    ----------
    limit_bytes : int
        Bytes to which a packed file may unpack; a reader refuses to unpack more.
    advance : callable
        Progress of a large file: a reader calls it now and then with the bytes that it has read.
    """

    limit_bytes: int
    advance: Callable[[int], None]

    def write(self, kind: str, columns: Mapping[str, Any]) -> Ints:
        """Add events of one kind, in batches of at most about 100,000; return their ids.

        Parameters
        ----------
        kind : str
            One of `profilers.trace.schema.KINDS`, such as ``"kernels"`` or ``"copies"``.
        columns : mapping of str to sequence
            Columns of equal length, named as in `profilers.trace.SCHEMAS`. ``name`` and ``start_ns`` are required.
            ``id``, ``iteration``, ``launch_id`` and ``op_id`` are filled in later, and so is ``rank`` if it is left
            out. A column is a list with None for null, an Arrow array, or an int64 array whose null is
            `profilers.trace.arrays.MISSING`.

        Raises
        ------
        KeyError
            A column does not exist in this kind.
        """
        ...

    def amend(self, kind: str, column: str, values: Ints) -> None:
        """Set an integer column of all rows of a kind that were written, in that order; null is `MISSING`."""
        ...


@runtime_checkable
class Reader(Protocol):
    """A trace format: recognises its files by their content and reads them.

    A distribution adds a reader by an entry point in the group ``seqpoint.readers`` that names such a class. The class
    is constructed without arguments. ``seqpoint readers`` shows the first line of its docstring.

    Attributes
    ----------
    name : str
        Name of the format, which `TraceMeta.format` records.
    """

    name: str

    def sniff(self, head: Head) -> bool:
        """Return whether a file or folder has this format, by its content."""
        ...

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Write the events of a recording to `sink` and return its metadata.

        Events need no order and no links. A kernel finds its launch by (rank, correlation), so correlations must be
        distinct within a rank: give each process of a file its own rank.

        Parameters
        ----------
        files : sequence of Path
            One file, or the files of one group; see `GroupReader`.
        sink : Sink
            Takes the events.

        Raises
        ------
        BrokenFileError
            Nothing of the file can be used.
        """
        ...


@runtime_checkable
class GroupReader(Reader, Protocol):
    """A reader of formats that spread one recording over several files."""

    def group(self, file: Path) -> str:
        """Return the same text for every file of one recording; they are then read together."""
        ...


def readers() -> Iterator[Plugin[Reader]]:
    """Load the installed readers one after the other, in the order in which they are tried on a file.

    Kineto comes first, since most files are its own; then the readers of other distributions; then all others by name.

    Yields
    ------
    Plugin
        A reader, or the reason why it cannot be loaded.
    """
    return load_plugins(_GROUP, _load, first="kineto")


def _load(point: EntryPoint) -> Reader:
    reader = point.load()()
    if not isinstance(reader, Reader):
        raise InvalidInputError(f"{point.value} is no reader: a reader has name, sniff and read")
    return reader


def find_reader(path: Path) -> Reader:
    """Return the reader that recognises the content of the file at `path`.

    Raises
    ------
    NotFoundError
        There is no such file.
    UnknownFormatError
        No reader knows it; the message names readers that could not be loaded, or that failed.
    """
    start = Head.of(path)
    names, problems = [], []
    for plugin in readers():
        if (reader := plugin.value) is None:
            problems.append(f"; {plugin.label} could not be loaded: {plugin.problem}")
            continue
        names.append(plugin.name)
        try:
            if reader.sniff(start):
                return reader
        except Exception as error:
            if _is_ours(reader):
                raise
            problems.append(f"; {plugin.label} failed: {type(error).__name__}: {error}")
    if not path.stat().st_size:
        raise UnknownFormatError(f"{path}: the file is empty")
    if not problems and (foreign := foreign_file(path, start.start)):
        raise UnknownFormatError(foreign.message())
    raise UnknownFormatError(
        f"{path}: no reader knows this format (readers: {', '.join(sorted(names)) or 'none'}){''.join(problems)}"
    )


def run_reader(reader: Reader, files: Sequence[Path], sink: Sink) -> TraceMeta:
    """Return the metadata of a recording whose events `reader` writes to `sink`.

    Parameters
    ----------
    reader : Reader
        The reader of the format of `files`.
    files : sequence of Path
        The files of one recording.
    sink : Sink
        Takes the events.

    Raises
    ------
    SeqPointError
        As the reader's `read`.
    BrokenFileError
        A reader of another distribution fails in any other way; the message names its class and the file.
    """
    try:
        meta = reader.read(files, sink)
        if not isinstance(meta, TraceMeta):
            raise TypeError(f"read returned a {type(meta).__name__}, not a profilers.trace.TraceMeta")
    except SeqPointError:
        raise
    except Exception as error:
        if _is_ours(reader):
            raise
        class_ = f"{type(reader).__module__}.{type(reader).__qualname__}"
        raise BrokenFileError(f"{files[0]}: the reader {class_} failed: {type(error).__name__}: {error}") from error
    return meta


def _is_ours(reader: Reader) -> bool:
    return type(reader).__module__.split(".")[0] == "profilers"
