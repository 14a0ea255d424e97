"""Archives of traces, and reports that a tool converts: their files in a temporary folder.

Archives are tar, also packed with gzip or zstd, and zip of several files. They are untrusted. A member becomes a file
of the temporary folder under its last name, so that no path leads out of it. Links and devices are left out, archives
in archives are not opened, and all members together unpack to a limit. Members without damage are kept.
"""

import io
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Protocol, Self

from profilers.errors import BrokenFileError, InvalidInputError
from profilers.readers.common.source import first_bytes, open_source

_BLOCK = 1 << 20
#: Most members of an archive, and most bytes of a header of a member.
_MOST_MEMBERS, _MOST_HEADER = 10_000, 1 << 20
#: Bytes of the name of a file.
_LONGEST = 200
_ZIP = b"PK\x03\x04"
#: Exceptions at a damaged archive or member.
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError)


@dataclass(frozen=True)
class Origin:
    """The file that a file of a temporary folder is of.

    Parameters
    ----------
    file : Path
        The archive or report.
    member : str
        Name of the member of an archive; empty for a converted report.
    is_damaged : bool
        Whether the archive ends early or a member of it is damaged.
    """

    file: Path
    member: str = ""
    is_damaged: bool = False

    @property
    def name(self) -> str:
        """Name among the sources of a trace, such as ``ranks.tar:rank0.json.gz``."""
        return f"{self.file.name}:{self.member}" if self.member else self.file.name

    @property
    def path(self) -> str:
        """Path for messages."""
        return f"{self.file}:{self.member}" if self.member else str(self.file)


@dataclass(frozen=True)
class Scratch:
    """A temporary folder, made when it is first needed.

    Parameters
    ----------
    make : callable
        Return a new folder.
    say : callable
        Called with what begins.
    """

    make: Callable[[], Path]
    say: Callable[[str], None]


@contextmanager
def scratch_folder(parent: Path | None = None, say: Callable[[str], None] = lambda text: None) -> Iterator[Scratch]:
    """Yield a scratch, whose folders are removed in the end.

    Parameters
    ----------
    parent : Path, optional
        Folder of the new ones; by default that of the system's temporary files.
    say : callable
        Called with what begins.
    """
    made: list[Path] = []

    def make() -> Path:
        try:
            made.append(Path(tempfile.mkdtemp(prefix=".seqpoint-", dir=parent)))
        except OSError as error:
            where = parent or tempfile.gettempdir()
            raise InvalidInputError(f"{where}: cannot be written ({error.strerror}); set TMPDIR") from error
        return made[-1]

    try:
        yield Scratch(make, say)
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive: a tar, packed or plain, or a zip of several files.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    NotFoundError
        There is no such file.
    """
    start = first_bytes(path, 512)
    if start:
        try:
            return bool(tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape").name)
        except (tarfile.HeaderError, ValueError):
            return False
    return _is_zip(path)


def _is_zip(path: Path) -> bool:
    """Return whether a file is a zip archive of several files; one of a single file is read in place."""
    with path.open("rb") as stream:
        if stream.read(4) != _ZIP:
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(not member.is_dir() for member in archive.infolist()) != 1
    except _DAMAGE as error:
        raise BrokenFileError(f"{path}: the zip archive is damaged, its directory is missing; copy it again") from error


class _Content(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


#: Name of a member, and what opens its content.
_Member = tuple[str, Callable[[], AbstractContextManager[_Content]]]


def unpacked(path: Path, folder: Path, limit_bytes: int) -> Mapping[Path, Origin]:
    """Return the files of an archive, unpacked into a folder, with their origins.

    Parameters
    ----------
    path : Path
        The archive.
    folder : Path
        Empty folder.
    limit_bytes : int
        Most bytes of all members.

    Raises
    ------
    BrokenFileError
        The archive is damaged before its first member, encrypted, too large, has too many members, or two of one name.
    """
    unpacking, problem = _Unpacking(path, folder, limit_bytes), ""
    members = _zip_members(path) if _is_zip(path) else _tar_members(path, limit_bytes)
    while True:
        try:
            if (member := next(members, None)) is None:
                break
        except _DAMAGE as error:
            problem = str(error) or type(error).__name__
            break
        try:
            unpacking.add(*member)
        except _DAMAGE as error:
            problem = str(error) or type(error).__name__
    if problem and not unpacking.files:
        raise BrokenFileError(f"{path}: the archive is damaged before its first file; copy it again ({problem})")
    return {file: Origin(path, name, bool(problem)) for file, name in unpacking.files.items()}


class _Unpacking:
    """Writes the members of an archive to a folder, within a limit."""

    def __init__(self, path: Path, folder: Path, limit_bytes: int) -> None:
        self.files: dict[Path, str] = {}
        self._path, self._folder, self._left, self._limit = path, folder, limit_bytes, limit_bytes
        self._folders: dict[str, Path] = {}

    def add(self, member: str, opened: Callable[[], AbstractContextManager[_Content]]) -> None:
        """Write a member; at damage, the content before it."""
        name = PurePosixPath(_printable(member))
        if name.name in ("", ".", ".."):
            return
        if len(self.files) == _MOST_MEMBERS:
            raise BrokenFileError(f"{self._path}: more than {_MOST_MEMBERS:,} files; unpack it, and give a folder")
        where = self._folders.setdefault(str(name.parent), self._folder / str(len(self._folders)))
        file = where / name.name.encode()[:_LONGEST].decode("utf-8", "ignore")
        if file in self.files:
            raise BrokenFileError(f"{self._path}: holds {str(name)!r:.200} twice; unpack it, and give the files")
        self.files[file] = str(name)
        try:
            with opened() as content:
                self._write(file, content)
        except NotImplementedError as error:
            raise BrokenFileError(f"{self._path}: {error}; pack it with deflate, or give the folder") from error

    def _write(self, file: Path, content: _Content) -> None:
        file.parent.mkdir(exist_ok=True)
        with file.open("xb") as out:
            while block := content.read(_BLOCK):
                self._left -= len(block)
                if self._left < 0:
                    raise BrokenFileError(
                        f"{self._path}: unpacks to more than {self._limit:,} bytes; raise the limit if you trust it"
                    )
                try:
                    out.write(block)
                except OSError as error:
                    raise InvalidInputError(f"{file.parent}: cannot be written ({error.strerror})") from error


def _printable(name: str) -> str:
    """Return the name of a member without control characters and with slashes between its parts."""
    text = name.replace("\\", "/").encode("utf-8", "replace").decode()
    return "".join(character if character.isprintable() else "?" for character in text)


class _TarInfo(tarfile.TarInfo):
    """A header of a tar. A damaged one is an error, also after the first; an extension is read up to a limit."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Return the next header; `tarfile` itself ends without an error at a damaged one."""
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":  # the mark at the end of a tar
                raise
            raise tarfile.ReadError(str(error)) from error

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        is_extension = self.type in (b"x", b"g", b"X", b"L", b"K")
        if is_extension and not 0 <= self.size <= _MOST_HEADER:  # it would be read into memory as long as it claims
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


def _tar_members(path: Path, limit_bytes: int) -> Iterator[_Member]:
    """Yield the regular files of a tar, in their order; raise `EOFError` if the packed stream ends early."""
    with (
        open_source(path, limit_bytes) as stream,
        tarfile.open(
            fileobj=io.BufferedReader(stream), mode="r|", tarinfo=_TarInfo, errors="surrogateescape"
        ) as archive,
    ):
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name, partial(_as_it_is, content)
        if getattr(stream, "truncated", False):
            raise EOFError("the packed stream ends early")


def _as_it_is(content: _Content) -> AbstractContextManager[_Content]:
    return nullcontext(content)


def _zip_members(path: Path) -> Iterator[_Member]:
    """Yield the regular files of a zip, in the order of its directory."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir() or kind not in (0, stat.S_IFREG):
                continue
            if member.flag_bits & 1:
                raise BrokenFileError(f"{path}: the archive is encrypted; unpack it, and give the folder")
            yield member.filename, partial(archive.open, member)
