"""Files that appear whole, the data sets that the project ships, and settings in TOML.

`replaced_file` writes a file beside its target and renames it, so that nobody sees half of it. `dataset_path` finds
shipped data in a checkout and in an installed wheel. `read_toml` reads settings in a time that grows with their size,
whatever their content; `typed_table` checks them against msgspec structs. `read_csv` reads tables of a user.
"""

import csv
import ctypes
import errno
import fcntl
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from profilers.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    import msgspec

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_PATTERN = frozenset("*?[")
#: Errors of a disk that cannot be written; other errors may come from a file that is read meanwhile.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
#: Characters of a file's name in the name of its temporary file, which a long name would make too long.
_NAME_SHOWN = 40
#: Characters of a reason that an error shows: a file may hold anything.
_SHOWN_CHARACTERS = 200
Settings = TypeVar("Settings", bound="msgspec.Struct")
#: Words of msgspec, and the words of settings files for them.
_WORDS = (
    (r"Object missing required field `(.*)`", r"lacks the key '\1'"),
    (r"Object contains unknown field `(.*)`", r"unknown key '\1'"),
    ("`object`", "`table`"),
    ("`array`", "`list`"),
    ("`null`", "nothing"),
)


def replace_folder(new: Path, target: Path, spare: Path) -> None:
    """Move the folder `new` to `target`, and an existing `target` to `spare`.

    On Linux the two change places in one system call (``renameat2`` with ``RENAME_EXCHANGE``). Systems without this
    call do two renames, and `target` is missing between them.

    Parameters
    ----------
    new, target, spare : Path
        Folders on one file system; `new` exists, `spare` does not.
    """
    if not target.exists():
        new.rename(target)
    elif _exchange(new, target):
        new.rename(spare)
    else:
        target.rename(spare)
        new.rename(target)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one system call; return whether the system could."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    done: int = rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return done == 0


def file_to_write(path: Path) -> Path:
    """Return the regular file that writing to `path` creates or replaces; a link is followed.

    Parameters
    ----------
    path : Path
        The path that a user names.

    Raises
    ------
    InvalidInputError
        `path` is a folder, a device, a pipe, or a link to one of these or to nothing; or its folder does not exist.

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
        mode = _file_mode(target)
    except (OSError, RuntimeError, ValueError) as error:  # Python 3.11 and 3.12 raise RuntimeError for a looping link
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise InvalidInputError(f"{path}: cannot be written ({reason})") from error
    if stat.S_ISDIR(mode):
        raise InvalidInputError(f"{path}: is a folder; give the name of a file")
    if not stat.S_ISREG(mode):
        raise InvalidInputError(f"{path}: is no regular file, so that it is not replaced; give another name")
    return target


def _file_mode(target: Path) -> int:
    """Return the mode of `target`, or that of a regular file if `target` does not exist."""
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return stat.S_IFREG


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Open a stream whose content becomes the file `path` if the context ends without an error.

    Parameters
    ----------
    path : Path
        File to create or replace.

    Raises
    ------
    InvalidInputError
        As `file_to_write`; or the folder cannot be written, or the disk is full.
    """
    target = file_to_write(path)
    temporary = target.with_name(f".{target.name[:_NAME_SHOWN]}.{secrets.token_hex(6)}")
    try:
        stream = temporary.open("xb")
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise InvalidInputError(f"{path}: cannot be written ({error.strerror})") from error
        raise


@contextmanager
def held_folder(folder: Path, target: Path, busy: str) -> Iterator[None]:
    """Make a folder of unfinished work, and hold it for this process; the system releases it when the process ends.

    Parameters
    ----------
    folder : Path
        Folder to make, if it does not exist, and to hold.
    target : Path
        What is being written, for messages.
    busy : str
        What another process that holds the folder is doing, such as ``"another sweep is writing this result"``.

    Raises
    ------
    InvalidInputError
        The folder cannot be written, or another process holds it.
    """
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise InvalidInputError(f"{target}: cannot be written ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInputError(f"{target}: {busy}; wait for it") from error
        yield


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or nothing.

    Parameters
    ----------
    path : Path
        File to create or replace.
    text : str
        Its content, written as UTF-8.

    Raises
    ------
    InvalidInputError
        As `replaced_file`.
    """
    with replaced_file(path) as stream:
        stream.write(text.encode("utf-8"))


def dataset_path(name: str) -> Path:
    """Return the path of a shipped data file or folder.

    A checkout keeps `datasets/` at its root; the wheel carries it as `seqpoint/datasets/`.

    Parameters
    ----------
    name : str
        Path below `datasets/`, with forward slashes, such as ``"devices.toml"``.

    Raises
    ------
    NotFoundError
        The project ships nothing of that name.

    Examples
    --------
    >>> dataset_path("devices.toml").name
    'devices.toml'
    """
    base = Path(__file__).parents[1]
    roots = (base / "seqpoint" / "datasets", base / "datasets")
    for root in roots:
        if (path := root / name).exists():
            return path
    raise NotFoundError(f"the project ships no data called {name!r}; looked in {', '.join(map(str, roots))}")


_LIMIT_BYTES = 2**20

#: Dots of a key; the TOML reader takes time that grows with their square.
_DOTS = 64
#: Text in which dots belong to no key: strings, also unfinished ones, and comments.
_NO_KEY = re.compile(
    r'"""(?:\\.?|[^\\])*?(?:"""|\Z)'
    r"|'''.*?(?:'''|\Z)"
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|'[^'\n]*'?"
    r"|#[^\n]*",
    re.DOTALL,
)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document.

    Parameters
    ----------
    text : str
        The document.

    Raises
    ------
    ValueError
        The text is no TOML, has a key of more than 64 dots, is nested too deep, or has a number of thousands of
        digits. The caller names the file.

    Examples
    --------
    >>> parse_toml("a.b = 1")
    {'a': {'b': 1}}
    """
    if any(key.count(".") > _DOTS for key in re.split(r"[=,{}\[\]\n]", _NO_KEY.sub("_", text))):
        raise ValueError(f"a key has more than {_DOTS} dots")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    except ValueError as error:  # Python reads no number that is longer
        raise ValueError("a number has thousands of digits") from error


def read_toml(file: Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file of at most 1 MiB.

    Parameters
    ----------
    file : Path
        TOML file in UTF-8.
    what : str
        Content of such files, for messages, such as ``"scenarios"``.

    Raises
    ------
    NotFoundError
        There is no such file.
    InvalidInputError
        It is larger, cannot be read, or is no TOML.
    """
    if not file.is_file():
        raise NotFoundError(f"{file}: no such file of {what}")
    try:
        with file.open("rb") as stream:
            text = stream.read(_LIMIT_BYTES + 1)
        if len(text) > _LIMIT_BYTES:
            raise InvalidInputError(f"{file}: larger than 1 MiB, which is no file of {what}")
        return parse_toml(text.decode("utf-8"))
    except OSError as error:
        raise InvalidInputError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InvalidInputError(f"{file}: no TOML ({error})") from error


def read_csv(file: Path, what: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the columns of a CSV file with a header, and its rows, each with its line number.

    Spaces around the names of columns are dropped. A cell that a short line lacks is None.

    Parameters
    ----------
    file : Path
        CSV file in UTF-8.
    what : str
        Content of such files, for messages, such as ``"lengths"``.

    Raises
    ------
    NotFoundError
        There is no such file.
    InvalidInputError
        It cannot be read, or is no CSV.
    """
    if not file.is_file():
        raise NotFoundError(f"{file}: no such file of {what}")
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            names = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            return names, [(reader.line_num, row) for row in reader]
    except (csv.Error, OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file}: not a CSV file of {what} ({error})") from error


def typed_table(table: object, layout: type[Settings], source: str) -> Settings:
    """Return a table of a settings file as a struct.

    Parameters
    ----------
    table : object
        Content of the table, as a TOML or JSON reader gives it.
    layout : type
        msgspec struct with the keys of the table.
    source : str
        File and name of the table, for messages.

    Raises
    ------
    InvalidInputError
        A key is missing, unknown or of another type; the message names it.

    Examples
    --------
    >>> import msgspec
    >>> class Size(msgspec.Struct):
    ...     rows: int
    >>> typed_table({"rows": 4}, Size, "sizes.toml: sizes.small").rows
    4
    """
    msgspec = import_module("msgspec")  # The GPU harness writes files where there is PyTorch alone.
    try:
        converted: Settings = msgspec.convert(table, layout)
    except InvalidInputError as error:  # from a check in the struct itself
        raise InvalidInputError(f"{source}: {error}") from error
    except msgspec.ValidationError as error:
        keys = ", ".join(layout.__struct_encode_fields__)
        raise InvalidInputError(f"{source}: {key_first(str(error))}; the keys are {keys}") from error
    return converted


def shipped_table(name: str, what: str, layout: type[Settings]) -> Settings:
    """Return a shipped TOML file as a struct; errors as of `dataset_path`, `read_toml` and `typed_table`.

    Parameters
    ----------
    name : str
        Path below `datasets/`.
    what : str
        Content of such files, for messages.
    layout : type
        msgspec struct with the keys of the file.
    """
    file = dataset_path(name)
    return typed_table(read_toml(file, what), layout, str(file))


def key_first(reason: str) -> str:
    """Return why msgspec refused a settings file: the key first, in words for tables rather than objects.

    Parameters
    ----------
    reason : str
        Message of `msgspec.ValidationError`.

    Examples
    --------
    >>> key_first("Expected `int`, got `str` - at `$.rows`")
    'rows: Expected `int`, got `str`'
    """
    message, _, key = reason.partition(" - at `$.")
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return (f"{key.removesuffix('`')}: {message}" if key else message)[:_SHOWN_CHARACTERS]


def typed_tables(content: Mapping[str, Any], name: str, layout: type[Settings], file: Path) -> dict[str, Settings]:
    """Return the tables ``[NAME.KEY]`` of a settings file as structs, by key.

    Parameters
    ----------
    content : mapping
        Content of the file.
    name : str
        First part of the tables' names.
    layout : type
        msgspec struct with the keys of each table.
    file : Path
        File, for messages.

    Raises
    ------
    InvalidInputError
        There is no such table, or one does not match `layout`; the message names file, table and key.
    """
    tables = content.get(name)
    if not isinstance(tables, dict) or not tables:
        raise InvalidInputError(f"{file}: no table [{name}.NAME]")
    return {key: typed_table(table, layout, f"{file}: {name}.{key}") for key, table in tables.items()}


def expanded_paths(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the files that paths and patterns name.

    Raises
    ------
    NotFoundError
        A pattern matches nothing.
    InvalidInputError
        There is no path.
    """
    names = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[Path] = []
    for name in names:
        text = os.fspath(name)
        if not text:
            raise InvalidInputError("a path is empty; name a file, or '.' for this folder")
        if Path(text).exists() or not _PATTERN & set(text):
            files.append(Path(text))
            continue
        matches = sorted(glob(text))  # noqa: PTH207 - a pattern may begin with a folder of any depth
        if not matches:
            raise NotFoundError(f"{text}: no file matches this pattern")
        files += map(Path, matches)
    if not files:
        raise InvalidInputError("no file is given; name the files of the trace")
    return files


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder; False for a path that the system refuses, such as too long a name."""
    try:
        return path.is_dir()
    except OSError:
        return False


def children(path: Path) -> list[Path]:
    """Return what is in a folder; nothing for a file, and for what does not exist.

    Raises
    ------
    NotFoundError
        The folder cannot be read.
    """
    try:
        return list(path.iterdir()) if is_folder(path) else []
    except OSError as error:
        raise NotFoundError(f"{path}: cannot be read ({error.strerror}); check its rights") from error
