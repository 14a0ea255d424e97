"""`Reader`, the interface of a trace format, and how the reader of a file is found.

A reader is a small class that recognises the files of its format by their content and writes their events to a `Sink`,
batch by batch. Readers are found by entry points in the group ``seqpoint.readers``; docs/extending.md shows a whole
package that adds one.

A file that no reader knows may be another tool's (`ForeignFile`): the table `datasets/formats/foreign.toml` says what
it is, what to do with it, and the command of the tool that converts it. A tool runs only if it is installed, without a
shell and for a limited time.
"""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from profilers.errors import BrokenFileError, InvalidInputError, SeqPointError, UnknownFormatError
from profilers.files import dataset_path, is_folder, read_toml, typed_table
from profilers.plugins import Plugin, load_plugins
from profilers.readers.common.database import SIGNATURE, open_database
from profilers.readers.common.source import first_bytes
from profilers.trace.arrays import Ints
from profilers.trace.trace import TraceMeta

#: Seconds that a conversion may take.
CONVERSION_S = 1800.0
#: Characters of a tool's last line that a message repeats.
_SHOWN = 200


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the table, as the head of the file describes it."""

    what: str
    suffixes: tuple[str, ...] = ()
    magic: tuple[str, ...] = ()
    advice: str = ""
    command: tuple[str, ...] = ()
    result: str = ""
    stdout: bool = False


@cache
def _entries() -> tuple[_Entry, ...]:
    file = dataset_path("formats/foreign.toml")
    content: Mapping[str, object] = read_toml(file, "foreign formats")
    return tuple(typed_table(entry, _Entry, f"{file}: {name}") for name, entry in content.items())


@dataclass(frozen=True)
class ForeignFile:
    """A file of another tool.

    Parameters
    ----------
    path : Path
        The file.
    entry : _Entry
        What it is, and what to do.
    """

    path: Path
    entry: _Entry

    @property
    def tool(self) -> str | None:
        """Path of the tool that converts it; None if there is none, or it is not installed."""
        return shutil.which(self.entry.command[0]) if self.entry.command else None

    def message(self) -> str:
        """Return what the file is, and what to do."""
        if not self.entry.command:
            return f"{self.path}: no reader knows this format: it is {self.entry.what}; {self.entry.advice}"
        name = f"./{self.path}" if str(self.path).startswith("-") else str(self.path)
        target = name.removesuffix(self.path.suffix) + self.entry.result
        text = shlex.join(self._arguments(name, target))
        command = f"{text} > {shlex.quote(target)}" if self.entry.stdout else text
        missing = "" if self.tool else f"{self.entry.command[0]}, which converts it, is not installed here; "
        said = f"{self.path}: no reader knows this format: it is {self.entry.what}; "
        return f"{said}{missing}run `{command}`, and give {target}"

    def _arguments(self, source: str, target: str) -> list[str]:
        return [word.format(input=source, output=target) for word in self.entry.command]

    def convert(self, folder: Path, limit_bytes: int) -> Path:
        """Return the file that the tool makes of this one in a folder.

        Parameters
        ----------
        folder : Path
            Folder for the result, which keeps the name of the file.
        limit_bytes : int
            Most bytes of the result.

        Raises
        ------
        UnknownFormatError
            The tool is not installed.
        BrokenFileError
            It fails, takes too long, or writes nothing or too much.
        """
        tool, target = self.tool, folder / f"{self.path.stem}{self.entry.result}"
        if tool is None:
            raise UnknownFormatError(self.message())
        # Absolute paths, so that a name that begins with a dash is no option.
        _, *arguments = self._arguments(str(self.path.absolute()), str(target))
        log = folder / "messages"
        problem = _run([tool, *arguments], target if self.entry.stdout else folder / "output", log)
        name = self.entry.command[0]
        if not problem and not (target.is_file() and target.stat().st_size):
            problem = "it wrote nothing"
        if problem:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            last = "".join(character for character in " ".join(said)[:_SHOWN] if character.isprintable())
            raise BrokenFileError(f"{self.path}: {name} could not convert it: {problem}{f' ({last})' if last else ''}")
        if target.stat().st_size > limit_bytes:
            raise BrokenFileError(
                f"{self.path}: {name} makes more than {limit_bytes:,} bytes of it; raise the limit if you trust it"
            )
        return target


def _run(command: list[str], output: Path, log: Path) -> str:
    """Run a tool with its output and its messages in files; return what went wrong, or ""."""
    with output.open("wb") as out, log.open("wb") as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True
            )
        except OSError as error:
            return f"it does not start ({error.strerror})"
        try:
            status = process.wait(CONVERSION_S)
        except BaseException as error:
            with suppress(ProcessLookupError):  # the tool and the processes that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return f"it took more than {CONVERSION_S:g} s"
            raise
    return f"it ended with status {status}" if status else ""


def foreign_file(path: Path, start: bytes) -> ForeignFile | None:
    """Return the file as one of another tool that is known by its beginning or its name; None for another file.

    Parameters
    ----------
    path : Path
        The file.
    start : bytes
        Its first bytes, unpacked.
    """
    name = path.name.lower()
    for entry in _entries():
        if name.endswith(entry.suffixes) or any(start.startswith(bytes.fromhex(magic)) for magic in entry.magic):
            return ForeignFile(path, entry)
    return None


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
