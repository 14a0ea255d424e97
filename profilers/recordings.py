"""Which files belong to one recording, in which order, and who reads them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profilers.errors import InvalidInputError, NotFoundError, UnknownFormatError
from profilers.reader import GroupReader, Reader, find_reader
from profilers.source import is_folder

__all__ = ["Recording", "find_recordings"]


@dataclass(frozen=True)
class Recording:
    """Files that are read together.

    Parameters
    ----------
    files : tuple of Path
    reader : Reader
    """

    files: tuple[Path, ...]
    reader: Reader

    @property
    def name(self) -> str:
        """The name of the first file, for messages."""
        return self.files[0].name

    @property
    def size(self) -> int:
        """Bytes of all files, folders included."""
        plain = [inner for file in self.files for inner in (file.iterdir() if is_folder(file) else [file])]
        return sum(file.stat().st_size for file in plain if file.is_file())


def find_recordings(paths: Sequence[Path]) -> list[Recording]:
    """Return the recordings among files and in folders, in the natural order of their names.

    Raises
    ------
    NotFoundError
        A file is missing, or a folder holds no trace.
    UnknownFormatError
        No reader knows a file that was named.
    InvalidInputError
        A folder is a ``.trace`` already.
    """
    found: list[tuple[Path, Reader]] = []
    for path in paths:
        found.extend(_in_folder(path) if is_folder(path) else [(path, find_reader(path))])
    if not found:
        raise NotFoundError("no file was named")
    unique = {file.absolute(): (file, reader) for file, reader in found}
    groups: dict[tuple[str, str], list[tuple[Path, Reader]]] = {}
    for file, reader in sorted(unique.values(), key=lambda pair: (_natural(pair[0].name), str(pair[0]))):
        key = reader.group(file) if isinstance(reader, GroupReader) else str(file.absolute())
        groups.setdefault((reader.name, key), []).append((file, reader))
    return [Recording(tuple(file for file, _ in members), members[0][1]) for members in groups.values()]


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts rank2 before rank10."""
    return [(0, int(part[:30]), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def _in_folder(folder: Path) -> list[tuple[Path, Reader]]:
    if (folder / "meta.json").is_file() and (folder / "kernels").is_dir():
        raise InvalidInputError(f"{folder}: is a .trace already; every command but ingest takes it as it is")
    known = _known(folder)
    if known:
        return known
    try:
        files = [f for f in folder.iterdir() if f.is_file() and not f.name.startswith(".")]
    except OSError as error:
        raise NotFoundError(f"{folder}: cannot be read ({error.strerror}); check its rights") from error
    known = [pair for file in files for pair in _known(file)]
    if not known:
        raise NotFoundError(f"{folder}: holds no trace that a reader knows ({len(files)} files looked at)")
    return known


def _known(path: Path) -> list[tuple[Path, Reader]]:
    try:
        return [(path, find_reader(path))]
    except (UnknownFormatError, NotFoundError):
        return []
