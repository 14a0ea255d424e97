"""Trace files as streams of bytes: plain ones, and gzip, zstd or zip unpacked on the way.

Files are untrusted. A packed file is unpacked up to a limit, and a file that ends early or is damaged gives the content
before the damage. A plain file also gives a fingerprint of its content, taken while it is read. `prefetch` reads in a
thread, so that reading and converting overlap. `require_events` refuses a file without a usable event.
"""

import hashlib
import io
import shutil
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
from isal import isal_zlib

from profilers.errors import BrokenFileError, NotFoundError

Item = TypeVar("Item")
#: A stream of bytes: a plain or unpacked file.
Bytes = io.RawIOBase | io.BufferedIOBase


def prefetch(items: Iterator[Item], depth: int = 2) -> Iterator[Item]:
    """Yield the items of an iterator, while a thread prepares the next ones.

    Parameters
    ----------
    items : iterator
        Iterator that only the thread uses; its exceptions are raised here.
    depth : int
        Most items that may wait, while one more is prepared.

    Examples
    --------
    >>> list(prefetch(iter("abc")))
    ['a', 'b', 'c']
    """
    end = object()
    pool = ThreadPoolExecutor(1)
    waiting = deque(pool.submit(next, items, end) for _ in range(depth + 1))
    try:
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield cast(Item, item)
    finally:
        pool.shutdown(cancel_futures=True)


#: Most bytes that a packed file may unpack to, unless the caller raises it; a plain file has no limit.
DEFAULT_LIMIT_BYTES = 8 << 30
_Failures = tuple[type[Exception], ...]
#: Exceptions at a packed file that is damaged or ends early.
_GZIP_FAILURES: _Failures = (cast(type[Exception], isal_zlib.IsalError), EOFError)
_ZIP_FAILURES: _Failures = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)
_GZIP = b"\x1f\x8b"
_BLOCK = 1 << 20
#: Packed bytes unpacked at a time by zlib: at most 4 MiB of content, since deflate packs 1032 to 1.
_CHUNK = 4096


class Unpacked(io.RawIOBase):
    """A packed file as a stream of unpacked bytes.

    Once the file is read to its end, ``truncated`` is True if the packed stream ended early.

    Parameters
    ----------
    path : Path
        A gzip or zstd file, or a zip archive of one file.
    limit_bytes : int
        Most bytes that it may unpack to.
    start : bytes
        The first bytes of the file, which name its format.
    """

    def __init__(self, path: Path, limit_bytes: int, start: bytes) -> None:
        self._path = path
        self._start = start
        self._limit = limit_bytes
        self._unpacked_bytes = 0
        self._rest = memoryview(b"")
        self.truncated = False
        self._packed: io.BufferedReader | None = None
        self._blocks = self._open()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with the next bytes and return their number, 0 at the end.

        Raises
        ------
        BrokenFileError
            The content is larger than the limit, or the packed stream is damaged from its start.
        """
        view = memoryview(buffer).cast("B")
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._unpacked_bytes += len(block)
            if self._unpacked_bytes > self._limit:
                raise BrokenFileError(
                    f"{self._path}: unpacks to more than {self._limit:,} bytes; raise the limit if you trust it"
                )
            self._rest = memoryview(block)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def tell(self) -> int:
        """Return the number of packed bytes read so far."""
        return self._packed.tell() if self._packed is not None and not self._packed.closed else 0

    def close(self) -> None:
        """Close the file, and release what was read ahead."""
        self._blocks.close()
        self._rest = memoryview(b"")
        super().close()

    def _open(self) -> Generator[bytes, None, None]:
        """Yield the content; at damage, all content before it."""
        unpack, failures, message = _FORMATS[self._start]
        with _opened(self._path) as stream:
            self._packed = stream
            try:
                yield from unpack(stream)
            except failures as error:
                if not self._unpacked_bytes:
                    raise BrokenFileError(f"{self._path}: {message}; copy the file again ({error})") from error
                self.truncated = True


def _gzip(stream: io.BufferedReader) -> Iterator[bytes]:
    """Yield the content of all members, unpacked with ISA-L.

    At damage, the file is unpacked again with zlib, which gives all content before the damage.
    """
    yielded = 0
    try:
        for block in _members(stream):
            yielded += len(block)
            yield block
    except _GZIP_FAILURES:
        stream.seek(0)
        salvaged = 0
        for block in _salvaged(stream.read()):
            if unseen := block[max(yielded - salvaged, 0) :]:
                yield unseen
            salvaged += len(block)
        raise


def _zstd(stream: io.BufferedReader) -> Iterator[bytes]:
    unpacked = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")
    while block := unpacked.read(_BLOCK):
        yield block


def _zip(stream: io.BufferedReader) -> Iterator[bytes]:
    with zipfile.ZipFile(stream) as archive:
        members = [m for m in archive.infolist() if not m.is_dir()]
        if len(members) != 1:
            raise BrokenFileError(f"{stream.name}: holds {len(members)} files; unpack the archive and name one of them")
        with archive.open(members[0]) as member:
            while block := member.read(_BLOCK):
                yield block


#: Packed formats by their first bytes: the function that unpacks a file, its exceptions at damage, and the message.
_FORMATS: Mapping[bytes, tuple[Callable[[io.BufferedReader], Iterator[bytes]], _Failures, str]] = {
    _GZIP: (_gzip, _GZIP_FAILURES, "the gzip stream is damaged at its start"),
    b"\x28\xb5\x2f\xfd": (_zstd, (OSError,), "the zstd stream is damaged at its start"),
    b"PK\x03\x04": (_zip, _ZIP_FAILURES, "the zip archive is damaged"),
}


class Plain(io.FileIO):
    """A plain file, whose fingerprint is taken while it is read from its start.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "r")
        self._digest = hashlib.sha256()
        self._crc = self._in_block = self._size = 0
        self._at_end = False

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with the next bytes and return their number, 0 at the end."""
        count = super().readinto(buffer) or 0
        view = memoryview(buffer).cast("B")[:count]
        self._size += count
        self._at_end |= not count
        while view:
            piece = view[: _BLOCK - self._in_block]
            self._crc = isal_zlib.crc32(piece, self._crc)
            self._in_block += len(piece)
            view = view[len(piece) :]
            if self._in_block == _BLOCK:
                self._end_block()
        return count

    def _end_block(self) -> None:
        self._digest.update(self._crc.to_bytes(4, "little"))
        self._crc = self._in_block = 0

    def fingerprint(self) -> str:
        """Return the fingerprint of the file, as `fingerprint`; empty if it was not read from start to end."""
        if not self._at_end:
            return ""
        if self._in_block:
            self._end_block()
        digest = self._digest.copy()
        digest.update(self._size.to_bytes(8, "little"))
        return digest.hexdigest()


def open_source(path: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> "Plain | Unpacked":
    """Open a file for ``readinto``, unpacked if it is gzip, zstd or a zip archive of one file.

    Parameters
    ----------
    path : Path
        The file.
    limit_bytes : int
        Most bytes that a packed file may unpack to.

    Raises
    ------
    NotFoundError
        The file does not exist or cannot be read.
    """
    with _opened(path) as stream:
        start = stream.read(4)
    magic = next((magic for magic in _FORMATS if start.startswith(magic)), None)
    return Plain(path) if magic is None else Unpacked(path, limit_bytes, magic)


def decompress_to(path: Path, folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Path:
    """Return `path` itself if it is plain, else a file in `folder` with its unpacked content.

    Parameters
    ----------
    path : Path
        The file.
    folder : Path
        Folder for the unpacked file.
    limit_bytes : int
        Most bytes that a packed file may unpack to.

    Raises
    ------
    NotFoundError, BrokenFileError
        As `open_source` and `Unpacked.readinto`.
    """
    with open_source(path, limit_bytes) as stream:
        if isinstance(stream, Plain):
            return path
        target = folder / "unpacked"
        with target.open("wb") as out:
            shutil.copyfileobj(stream, out, _BLOCK)
        return target


def first_bytes(path: Path, size: int = 65536) -> bytes:
    """Return the first `size` unpacked bytes of a file, fewer if the file is shorter or damaged.

    Raises
    ------
    NotFoundError
        The file does not exist or cannot be read.
    """
    content = bytearray()
    with open_source(path) as stream, suppress(BrokenFileError):
        for piece in _pieces(stream, size):
            content += piece
            if len(content) >= size:
                break
    return bytes(content[:size])


def read_source(path: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> tuple[bytes, bool]:
    """Return the content of a whole file, unpacked if it is packed, and whether the packed stream ended early.

    Parameters
    ----------
    path : Path
        The file.
    limit_bytes : int
        Most bytes that a packed file may unpack to.

    Raises
    ------
    NotFoundError
        The file does not exist or cannot be read.
    BrokenFileError
        The packed stream is damaged from its start, or unpacks to more than `limit_bytes`.
    """
    content = bytearray()
    with open_source(path, limit_bytes) as stream:
        for piece in _pieces(stream):
            content += piece
        return bytes(content), getattr(stream, "truncated", False)


def fingerprint(path: Path) -> str:
    """Return the fingerprint of a file: SHA-256 over the CRC-32 of each MiB, as it lies on disk, and its size.

    It is fifteen times faster than SHA-256 over the content, which would take a fifth of the time of ingest. It finds
    accidental changes; it is no proof against a change made on purpose.

    Raises
    ------
    NotFoundError
        The file does not exist or cannot be read.
    """
    _opened(path).close()
    with Plain(path) as stream:
        for _ in _pieces(stream):
            pass
        return stream.fingerprint()


def require_events(
    path: Path,
    counts: Mapping[str, int],
    *,
    if_empty: str = "holds no event",
    advice: str = "record again, and see that the tool ends before the file is copied",
    rows: str = "rows",
) -> None:
    """Check that a reader kept at least one event of a file.

    Parameters
    ----------
    path : Path
        The file, for the message.
    counts : mapping of str to int
        Counts of its events: ``events``, ``kept``, and each reason for a loss.
    if_empty : str
        Message for a file without any event.
    advice : str
        What the user can do next.
    rows : str
        Word for the format's events.

    Raises
    ------
    BrokenFileError
        No event was kept; the message lists the losses by reason.
    """
    if counts["kept"]:
        return
    if not counts["events"]:
        raise BrokenFileError(f"{path}: {if_empty}; {advice}")
    lost = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if n and name not in ("events", "kept"))
    raise BrokenFileError(f"{path}: none of its {counts['events']} {rows} can be used ({lost}); {advice}")


def _pieces(stream: "Plain | Unpacked", size: int = _BLOCK) -> Iterator[memoryview]:
    """Yield the content of a stream in pieces of up to `size` bytes; a piece is valid until the next one."""
    buffer = bytearray(size)
    while count := stream.readinto(buffer):
        yield memoryview(buffer)[:count]


def _opened(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise NotFoundError(f"{path}: cannot be read ({reason}); check its name and permissions") from error


def _members(stream: io.BufferedReader) -> Iterator[bytes]:
    """Yield the content of every gzip member in blocks.

    Raises
    ------
    isal.isal_zlib.IsalError
        The stream is damaged.
    EOFError
        The stream ends before its end mark.
    """
    packed = stream.read(_BLOCK)
    while packed.startswith(_GZIP):
        member = isal_zlib.decompressobj(wbits=31)
        while not member.eof:
            block = member.decompress(packed, _BLOCK)
            packed = member.unconsumed_tail or (b"" if member.eof else stream.read(_BLOCK))
            if block:
                yield block
            elif not packed and not member.eof:
                raise EOFError("gzip member")
        packed = member.unused_data or stream.read(_BLOCK)
        if len(packed) < len(_GZIP):
            packed += stream.read(_BLOCK)


def _salvaged(raw: bytes) -> Iterator[bytes]:
    """Yield the content of every gzip member piece by piece, up to the first damage."""
    position = 0
    while raw.startswith(_GZIP, position):
        member = zlib.decompressobj(wbits=31)
        while not member.eof and position < len(raw):
            chunk, before = raw[position : position + _CHUNK], member.copy()
            position += len(chunk)
            try:
                yield member.decompress(chunk)
            except zlib.error:
                yield _before_damage(before, chunk)
                return
        position -= len(member.unused_data)


def _before_damage(member: "zlib._Decompress", chunk: bytes) -> bytes:
    """Return the content of `chunk` up to its damage, unpacked byte by byte."""
    content = b""
    try:
        for byte in chunk:
            content += member.decompress(bytes((byte,)))
    except zlib.error:
        pass
    return content
