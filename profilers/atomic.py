"""Put finished files and folders in their place so that no moment shows half of one."""

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from profilers.errors import InvalidInputError

__all__ = ["replace_folder", "write_text", "written_whole"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


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


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Give a stream whose content becomes the file `path` when the context ends well, and nothing when it does not.

    Raises
    ------
    InvalidInputError
        The folder does not exist or may not be written.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or nothing.

    Raises
    ------
    InvalidInputError
        The folder does not exist or may not be written.
    """
    with written_whole(path) as stream:
        stream.write(text.encode("utf-8"))


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
