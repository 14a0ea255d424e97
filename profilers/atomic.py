"""Put finished files and folders in their place so that no moment shows half of one."""

import ctypes
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from profilers.errors import InvalidInputError

__all__ = ["file_to_write", "replace_folder", "write_text", "written_whole"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
#: What a disk says that takes no more; any other error of the system may be of a file that is read.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
#: Characters of a file's name that its temporary file has too, so that a long name stays within a system's limit.
_NAME_SHOWN = 40


def replace_folder(new: Path, target: Path, spare: Path) -> None:
    """Move the folder `new` to `target`; what was there goes to `spare`.

    On Linux the two change places in one system call (``renameat2`` with ``RENAME_EXCHANGE``). Where the
    system has no such call, two renames do it, and `target` is missing between them.
    """
    if not target.exists():
        new.rename(target)
    elif _exchange(new, target):
        new.rename(spare)
    else:
        target.rename(spare)
        new.rename(target)


def _exchange(one: Path, other: Path) -> bool:
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    done: int = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return done == 0


def file_to_write(path: Path) -> Path:
    """Return the regular file that writing to `path` makes or replaces: of a link, what it points at.

    Raises
    ------
    InvalidInputError
        It exists and is no regular file (a folder, a device, a pipe, a link to one of these or to nothing), or its
        folder does not exist.

    Examples
    --------
    >>> file_to_write(Path())
    Traceback (most recent call last):
    profilers.errors.InvalidInputError: .: is a folder; give the name of a file
    """
    try:
        target = path.parent.resolve(strict=True) / path.name
        if path.is_symlink():
            target = path.resolve(strict=True)
        mode = _mode(target)
    except (OSError, RuntimeError, ValueError) as error:  # Python 3.11 and 3.12 raise RuntimeError for a looping link
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise InvalidInputError(f"{path}: cannot be written ({reason})") from error
    if stat.S_ISDIR(mode):
        raise InvalidInputError(f"{path}: is a folder; give the name of a file")
    if not stat.S_ISREG(mode):
        raise InvalidInputError(f"{path}: is no regular file, so that it is not replaced; give another name")
    return target


def _mode(target: Path) -> int:
    """Return what kind of file there is; where there is none, that of what will be."""
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return stat.S_IFREG


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Give a stream whose content becomes the file `path` when the context ends well, and nothing when it does not.

    Raises
    ------
    InvalidInputError
        As `file_to_write`; or the folder may not be written, or the disk takes no more.
    """
    target = file_to_write(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:_NAME_SHOWN]}.", dir=target.parent)
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        if error.errno in _NO_ROOM:
            raise InvalidInputError(f"{path}: cannot be written ({error.strerror})") from error
        raise
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or nothing.

    Raises
    ------
    InvalidInputError
        As `written_whole`.
    """
    with written_whole(path) as stream:
        stream.write(text.encode("utf-8"))


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
