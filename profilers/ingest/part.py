"""One rank of one recording, read, linked and written.

Keep what long reads hold small: memory that is free goes back to the system.

`Part`: one recording, read and linked; its bulk waits in a `Stage` until the whole trace is put together.
"""

import ctypes
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError, UnknownFormatError
from profilers.files import is_folder, write_text
from profilers.ingest.collectives import ANNOTATION, add_collectives
from profilers.ingest.iterations import ANNOTATIONS, Extent, is_mark
from profilers.ingest.linking import link_rows
from profilers.ingest.stage import Stage, Watch
from profilers.readers.common.reader import GroupReader, Reader, find_reader, read_recording
from profilers.readers.common.source import DEFAULT_LIMIT_BYTES, fingerprint
from profilers.trace.arrays import MISSING, Ints, integers, put
from profilers.trace.columns import LANE, parts
from profilers.trace.kernels import is_collective
from profilers.trace.schema import SCHEMAS, make_table
from profilers.trace.store import meta_from_json, meta_to_json
from profilers.trace.trace import Quality, Trace, TraceMeta


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


@contextmanager
def lean_memory() -> Iterator[None]:
    """Let Arrow take its memory from the system's allocator for a while, which keeps less than Arrow's own."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
        give_back()


def give_back() -> None:
    """Return free memory to the system, where the C library can."""
    with suppress(AttributeError, OSError):  # only the GNU library has the call
        ctypes.CDLL(None).malloc_trim(0)


_META = "part.json"
_TABLES = ("marks", "length_ops", "collectives")
#: What linking needs of each kind; everything else stays in the stage.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "ops": ("id", "rank", "start_ns", "dur_ns", LANE, "external_id"),
    "launches": ("id", "rank", "start_ns", LANE, "correlation"),
    "kernels": ("id", "rank", "start_ns", "dur_ns", LANE, "correlation", "external_id"),
    "copies": ("rank", "start_ns", "correlation", "external_id"),
    "syncs": ("rank", "correlation"),
}


@dataclass(frozen=True)
class PartOptions:
    """How a recording is read.

    Parameters
    ----------
    limit_bytes : int
        What a packed file may unpack to.
    length_op : str, optional
        Operator whose rows are kept at hand, since a length rule asks for its shapes.
    """

    limit_bytes: int = DEFAULT_LIMIT_BYTES
    length_op: str | None = None


@dataclass(frozen=True)
class Part:
    """One recording.

    Parameters
    ----------
    file : str
        Path of its first file, for messages.
    meta : TraceMeta
        `ranks` holds the rank that the file states, or nothing; rows that name none have `OWN_RANK`.
    stage : Stage
    marks, length_ops : Table
        Annotations of the host; operators of the length rule.
    collectives : Table
    extents : mapping of int to Extent
        By rank.
    """

    file: str
    meta: TraceMeta
    stage: Stage
    marks: pa.Table
    length_ops: pa.Table
    collectives: pa.Table
    extents: Mapping[int, Extent]


def read_part(
    files: Sequence[Path],
    reader: Reader,
    folder: Path | None,
    options: PartOptions,
    advance: Callable[[int], None] | None = None,
) -> Part:
    """Read one recording and link it.

    Parameters
    ----------
    files : sequence of Path
    reader : Reader
    folder : Path, optional
        Where the rows are kept, so that memory stays bounded; without it they stay in memory.
    options : PartOptions
    advance : callable, optional
        Told how many bytes of the files are read.

    Raises
    ------
    SeqPointError
        As the reader's `read`.
    """
    stage = Stage(folder, options.limit_bytes, _NEEDED, _watches(options.length_op))
    stage.advance = advance or stage.advance
    meta = read_recording(reader, files, stage)
    stage.close()
    meta = replace(meta, fingerprint=meta.fingerprint or _fingerprint(files))
    give_back()
    counts = link_rows(stage, stage.amend)
    give_back()
    counts |= _add_collectives(stage)
    stage.close()
    stage.let_go()
    meta = replace(meta, quality=meta.quality + Quality(counts), fingerprint=meta.fingerprint or _fingerprint(files))
    part = Part(
        str(files[0]),
        meta,
        stage,
        _marks(stage),
        stage.watched("length_ops"),
        stage.table("collectives"),
        stage.extents,
    )
    if folder is not None:
        _save(part, folder)
    return part


def _fingerprint(files: Sequence[Path]) -> str:
    plain = [inner for file in sorted(files) for inner in (sorted(file.iterdir()) if is_folder(file) else [file])]
    return combined_fingerprint([fingerprint(file) for file in plain if file.is_file()])


def combined_fingerprint(fingerprints: Sequence[str]) -> str:
    """Return one fingerprint for several; that of a single file is its own."""
    return fingerprints[0] if len(fingerprints) == 1 else hashlib.sha256("".join(fingerprints).encode()).hexdigest()


def _watches(length_op: str | None) -> dict[str, Watch]:
    """Return which whole rows are needed before the trace is put together; they are few."""
    return {
        "annotations": Watch("ranges", "category", lambda category: category == ANNOTATIONS),
        "steps": Watch("ops", "name", is_mark),
        "length_ops": Watch("ops", "name", lambda name: name == length_op),
        "collective_kernels": Watch("kernels", "name", is_collective),
        "collective_ops": Watch("ops", "args", lambda args: '"Collective name"' in args),
        "collective_notes": Watch("ranges", "name", lambda name: ANNOTATION.match(name) is not None),
    }


def _add_collectives(stage: Stage) -> dict[str, int]:
    """Give the stage its collectives, for which alone whole rows are looked at; return their count."""
    kernels = stage.watched("collective_kernels")
    if not kernels.num_rows:
        return {}
    ids = integers(kernels, "id")
    rows = _rows(stage, ids)
    for column in ("dur_ns", "launch_id", "op_id"):
        kernels = put(kernels, column, _amended(stage, column, rows, integers(kernels, column)))
    notes = stage.watched("collective_notes")
    called = integers(kernels, "launch_id") if notes.num_rows else np.empty(0, np.int64)
    chosen = {
        "kernels": kernels,
        "ops": stage.watched("collective_ops"),
        "launches": stage.pick_ids("launches", called),
        "ranges": notes,
    }
    small = add_collectives(Trace(TraceMeta(""), chosen), first_id=stage.rows)
    stage.write("collectives", {name: small.collectives[name] for name in SCHEMAS["collectives"].names if name != "id"})
    numbers = integers(small.kernels, "collective_id")
    for part in parts(stage.count("kernels")):
        own = slice(*np.searchsorted(rows, (part.start, part.stop)).tolist())
        values = np.full(part.stop - part.start, MISSING)
        values[rows[own] - part.start] = numbers[own]
        stage.amend("kernels", "collective_id", values)
    return dict(small.meta.quality.counts)


def _rows(stage: Stage, ids: Ints) -> Ints:
    """Return the rows of kernels by their ids; both rise."""
    found = [np.empty(0, np.int64)]
    for part in parts(stage.count("kernels")):
        own = stage.part("kernels", "id", part)
        wanted = ids[slice(*np.searchsorted(ids, (own[0], own[-1] + 1)).tolist())]
        found.append(part.start + np.searchsorted(own, wanted))
    return np.concatenate(found)


def _amended(stage: Stage, column: str, rows: Ints, before: Ints) -> Ints:
    """Return a column of kernels at rows, which rise; as it was where it is not amended."""
    values = before.copy()
    for part in parts(stage.count("kernels")):
        own = slice(*np.searchsorted(rows, (part.start, part.stop)).tolist())
        amended = stage.amended("kernels", column, part) if own.start < own.stop else None
        if amended is not None:
            values[own] = amended[rows[own] - part.start]
    return values


def _marks(stage: Stage) -> pa.Table:
    """Return what can limit an iteration, as rows of ``ranges``."""
    notes, steps = stage.watched("annotations"), stage.watched("steps")
    columns = {name: steps[name] for name in ("id", "rank", "name", "start_ns", "dur_ns")}
    columns["category"] = [ANNOTATIONS] * steps.num_rows
    return pa.concat_tables([notes, make_table("ranges", columns)]).unify_dictionaries().combine_chunks()


def _save(part: Part, folder: Path) -> None:
    for name in _TABLES:
        table = getattr(part, name)
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table)
    content = {
        "file": part.file,
        "meta": meta_to_json(part.meta),
        "extents": {str(rank): list(astuple(extent)) for rank, extent in part.extents.items()},
        "rows": part.stage.rows,
    }
    write_text(folder / _META, json.dumps(content))


def load_part(folder: Path) -> Part:
    """Return the part that `read_part` left in `folder`.

    Raises
    ------
    BrokenFileError
        It is not complete.
    """
    try:
        content = json.loads((folder / _META).read_text(encoding="utf-8"))
        tables = {name: _load(folder / f"{name}.arrow") for name in _TABLES}
        extents = {int(rank): Extent(*values) for rank, values in content["extents"].items()}
        stage, file = Stage.stored(folder, int(content["rows"])), str(content["file"])
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise BrokenFileError(f"{folder}: what was read before is damaged ({error}); delete it") from error
    return Part(file, meta_from_json(content["meta"]), stage, extents=extents, **tables)


def _load(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as stream:
        return stream.read_all()
