"""What a reader of trace files is, and how the one for a file is found."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from profilers.errors import BrokenFileError, UnknownFormatError
from profilers.files import is_folder
from profilers.readers.common.database import SIGNATURE, open_database
from profilers.readers.common.source import head
from profilers.trace.arrays import Ints
from profilers.trace.trace import TraceMeta

_GROUP = "seqpoint.readers"


@dataclass(frozen=True)
class Head:
    """What a reader may look at to recognise a file.

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
        return cls(path, b"" if is_folder(path) else head(path))

    @cached_property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """The tables of a SQLite database with the names of their columns; empty where it is none."""
        if not self.start.startswith(SIGNATURE):
            return {}
        try:
            with open_database(self.path) as database:
                return dict(database.tables)
        except BrokenFileError:
            return {}

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names in the first line of a CSV file that holds two or more; empty where it is none."""
        line = self.start.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0]
        names = line.decode("utf-8", "replace").strip().split(",")
        return tuple(name.strip().strip('"') for name in names) if len(names) > 1 else ()


class Sink(Protocol):
    """Takes the rows that a reader finds.

    Attributes
    ----------
    limit_bytes : int
        A reader refuses to unpack more than this.
    advance : callable
        A reader of large files tells it now and then how many of their bytes it has read.
    """

    limit_bytes: int
    advance: Callable[[int], None]

    def write(self, kind: str, columns: Mapping[str, Any]) -> Ints:
        """Add rows of one kind of event, in batches of at most about 100,000; return their ids.

        Parameters
        ----------
        kind : str
            One of `profilers.trace.schema.KINDS`.
        columns : mapping of str to sequence
            Equally long, by the names in `profilers.trace.schema.SCHEMAS`, without ``id``, ``iteration`` and what is
            linked later (``launch_id``, ``op_id``); ``rank``, ``name`` and ``start_ns`` must be there. An int64
            array whose null is `profilers.trace.arrays.MISSING`, a list with None, or an Arrow array.

        Raises
        ------
        KeyError
            A name is no column of this kind.
        """
        ...

    def amend(self, kind: str, column: str, values: Ints) -> None:
        """Set an integer column of all rows of a kind that were written, in that order; null is `MISSING`."""
        ...


@runtime_checkable
class Reader(Protocol):
    """A format: recognises its files by their content and reads them one at a time.

    A distribution adds a reader by an entry point in the group ``seqpoint.readers`` that names such a class,
    constructed without arguments.
    """

    name: str

    def sniff(self, head: Head) -> bool:
        """Return whether a file or folder has this format, by its content."""
        ...

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file, or of one group of files, to `sink`; return what is known of them all.

        Rows are not linked and not in any order. A kernel finds its launch by (rank, correlation), so
        correlations must be distinct within a rank: give each process of a file its own rank.

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


def readers() -> dict[str, Reader | ImportError]:
    """Return every installed reader by name, or why it cannot be loaded."""
    return dict(_loaded())


def _loaded() -> Iterator[tuple[str, Reader | ImportError]]:
    """Load one reader after the other: Kineto first, since most files are its own, then by name."""
    for point in sorted(entry_points(group=_GROUP), key=lambda p: (p.name != "kineto", p.name)):
        try:
            yield point.name, point.load()()
        except Exception as error:  # noqa: BLE001 - a package of somebody else may fail in any way
            known = isinstance(error, ImportError)
            yield point.name, error if known else ImportError(f"{type(error).__name__}: {error}")  # type: ignore[misc]


def find_reader(path: Path) -> Reader:
    """Return the reader that knows the file at `path` by its content.

    Raises
    ------
    NotFoundError
        There is no such file.
    UnknownFormatError
        No reader knows it; the message names those that could not be loaded.
    """
    start = Head.of(path)
    found: dict[str, Reader | ImportError] = {}
    for name, reader in _loaded():
        if isinstance(reader, Reader) and reader.sniff(start):
            return reader
        found[name] = reader
    missing = "".join(f"; {name} could not be loaded: {e}" for name, e in found.items() if isinstance(e, ImportError))
    known = ", ".join(name for name, reader in found.items() if isinstance(reader, Reader)) or "none"
    raise UnknownFormatError(f"{path}: no reader knows this format (readers: {known}){missing}")
