"""Recordings: which files are read together, and reading them into linked rows.

`find_recordings` groups the files of one rank or tool. `read_recording` gives their events to a `Stage`, links kernels
to launches and operators, and keeps apart the few rows that assembling the trace needs (`LinkedRecording`). The other
rows wait in the stage. In a folder, a linked recording survives the process that read it (`load_recording`).
"""

import ctypes
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError, SeqPointError, UnknownFormatError
from profilers.files import children, is_folder, write_text
from profilers.ingest.archives import Origin, Scratch, is_archive, unpacked
from profilers.ingest.collectives import ANNOTATION, add_collectives
from profilers.ingest.iterations import Extent, is_mark
from profilers.ingest.late_ends import HIP_CALLS, is_stamped_by_rocm, repair_late_ends
from profilers.ingest.linking import LINK_COLUMNS, link_rows
from profilers.ingest.processes import told_apart
from profilers.ingest.stage import Stage, Watch
from profilers.readers.common.foreign import foreign_file
from profilers.readers.common.reader import GroupReader, Reader, find_reader, run_reader
from profilers.readers.common.source import DEFAULT_LIMIT_BYTES, fingerprint, first_bytes
from profilers.trace.arrays import arrow_array, integers, put
from profilers.trace.kernels import ClassRule, is_collective
from profilers.trace.quality import Quality
from profilers.trace.schema import ANNOTATIONS, SCHEMAS, concatenate, make_table
from profilers.trace.store import meta_from_json, meta_to_json
from profilers.trace.trace import Trace, TraceMeta


@dataclass(frozen=True)
class Recording:
    """Files that are read together.

    Parameters
    ----------
    files : tuple of Path
        In the natural order of their names.
    reader : Reader
        Reads their format.
    limit_bytes : int
        Size that a packed file may unpack to.
    length_op : str, optional
        Operator whose shapes a length rule reads; its rows stay in memory.
    class_rules : tuple of ClassRule
        A user's own classes of kernels, which tell collectives too.
    origins : tuple of Origin
        Origins of the files, if they lie in a temporary folder; or nothing.
    damaged : int
        Archives that are damaged, of which this is the first recording.
    """

    files: tuple[Path, ...]
    reader: Reader
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    length_op: str | None = None
    class_rules: tuple[ClassRule, ...] = ()
    origins: tuple[Origin, ...] = ()
    damaged: int = 0

    @property
    def name(self) -> str:
        """The name of the first file, for messages."""
        return self.origins[0].name if self.origins else self.files[0].name

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files, for messages; of an origin, that of its archive with the member."""
        return tuple(origin.path for origin in self.origins) or tuple(map(str, self.files))

    @property
    def size(self) -> int:
        """Size of all files in bytes, with those in folders."""
        files = [inner for file in self.files for inner in (file.iterdir() if is_folder(file) else [file])]
        return sum(file.stat().st_size for file in files if file.is_file())


def find_recordings(
    paths: Sequence[Path],
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    *,
    length_op: str | None = None,
    class_rules: tuple[ClassRule, ...] = (),
    scratch: Scratch | None = None,
) -> list[Recording]:
    """Return the recordings among files and in folders, in the natural order of their names.

    Parameters
    ----------
    paths : sequence of Path
        Files, and folders of files.
    limit_bytes, length_op, class_rules
        As `Recording` has them.
    scratch : Scratch, optional
        Holds the files of archives and of reports that a tool converts; without it, these are refused. It outlives the
        recordings.

    Raises
    ------
    NotFoundError
        A file is missing, or a folder holds no trace.
    UnknownFormatError
        No reader knows a file that was named.
    InvalidInputError
        A folder is a ``.trace`` already.
    """
    readers: list[tuple[Path, Reader]] = []
    origins: dict[Path, Origin] = {}
    for path in paths:
        if is_folder(path):
            readers.extend(_in_folder(path))
        elif scratch is not None and is_archive(path):
            readers.extend(_in_archive(path, scratch, limit_bytes, origins))
        else:
            readers.append(_named(path, scratch, limit_bytes, origins))
    if not readers:
        raise NotFoundError("no file was named")
    unique = {file.absolute(): (file, reader) for file, reader in readers}
    groups: dict[tuple[str, str], list[tuple[Path, Reader]]] = {}
    for file, reader in sorted(unique.values(), key=lambda pair: (_natural(pair[0].name), str(pair[0]))):
        key = reader.group(file) if isinstance(reader, GroupReader) else str(file.absolute())
        groups.setdefault((reader.name, key), []).append((file, reader))
    recordings, damaged = [], {origin.file for origin in origins.values() if origin.is_damaged}
    for members in groups.values():
        files = tuple(file for file, _ in members)
        of_files = tuple(origins[file] for file in files if file in origins)
        first = damaged & {origin.file for origin in of_files}
        damaged -= first
        options = (limit_bytes, length_op, class_rules)
        recordings.append(Recording(files, members[0][1], *options, of_files, len(first)))
    return recordings


def _named(path: Path, scratch: Scratch | None, limit_bytes: int, origins: dict[Path, Origin]) -> tuple[Path, Reader]:
    """Return a file with its reader: of a report, the file that its tool makes of it."""
    try:
        return path, find_reader(path)
    except UnknownFormatError:
        foreign = foreign_file(path, first_bytes(path))
        if scratch is None or foreign is None or foreign.tool is None:
            raise
        scratch.say(f"converting {path.name} with {foreign.entry.command[0]}")
        file = foreign.convert(scratch.make(), limit_bytes)
        origins[file] = Origin(path)
        return file, find_reader(file)


def _in_archive(
    path: Path, scratch: Scratch, limit_bytes: int, origins: dict[Path, Origin]
) -> list[tuple[Path, Reader]]:
    """Return the files of an archive that readers know, as if its folders had been given."""
    scratch.say(f"unpacking {path.name}")
    files = unpacked(path, scratch.make(), limit_bytes)
    origins.update(files)
    readers = []
    for folder in dict.fromkeys(file.parent for file in files):
        inner = [file for file in files if file.parent == folder and not file.name.startswith(".")]
        if of_folder := _reader_of(folder):
            member = files[inner[0]].member.rpartition("/")[0] if inner else ""
            origins[folder] = replace(next(iter(files.values())), member=member)
        readers += of_folder or [pair for file in inner for pair in _reader_of(file)]
    if not readers and any(origin.is_damaged for origin in files.values()):
        raise BrokenFileError(f"{path}: the archive is damaged before its first trace; copy it again")
    if not readers:
        raise NotFoundError(f"{path}: holds no trace that a reader knows ({len(files)} files looked at)")
    return readers


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts rank2 before rank10."""
    pieces = [piece for piece in re.split(r"(\d+)", name) if piece]
    return [(0, int(piece[:30]), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces]


def _in_folder(folder: Path) -> list[tuple[Path, Reader]]:
    """Return a folder that is one recording, or the files in it that readers know, each with its reader."""
    if (folder / "meta.json").is_file() and (folder / "kernels").is_dir():
        raise InvalidInputError(f"{folder}: is a .trace already; every command but ingest takes it as it is")
    if of_folder := _reader_of(folder):
        return of_folder
    files = [f for f in children(folder) if f.is_file() and not f.name.startswith(".")]
    readers = [pair for file in files for pair in _reader_of(file)]
    if not readers:
        raise NotFoundError(f"{folder}: holds no trace that a reader knows ({len(files)} files looked at)")
    return readers


def unread_files(paths: Sequence[Path], recordings: Sequence[Recording]) -> list[str]:
    """Return which files of folders are named like a trace, and no reader knows their content."""
    read = {file.absolute() for recording in recordings for file in recording.files}
    folders = [path for path in paths if is_folder(path) and path.absolute() not in read]
    found = [
        file for folder in folders for file in sorted(children(folder))
        if file.is_file() and ".json" in file.suffixes and not file.name.startswith(".") and file.absolute() not in read
    ]  # fmt: skip
    return [f"{file}: no reader knows its format" for file in found]


def _reader_of(path: Path) -> list[tuple[Path, Reader]]:
    """Return the path and its reader, or nothing if no reader knows its format."""
    try:
        return [(path, find_reader(path))]
    except (UnknownFormatError, NotFoundError):
        return []


@contextmanager
def system_memory() -> Iterator[None]:
    """Let Arrow allocate from the system meanwhile; unlike its own pool, the system takes free memory back."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
        release_memory()


def release_memory() -> None:
    """Return free memory to the system, if the C library can."""
    with suppress(AttributeError, OSError):  # only the GNU C library has the call
        ctypes.CDLL(None).malloc_trim(0)


_META = "recording.json"
_TABLES = ("marks", "length_ops")


@dataclass(frozen=True)
class LinkedRecording:
    """A recording whose rows are read and linked.

    Parameters
    ----------
    file : str
        Path of its first file, for messages.
    meta : TraceMeta
        Description of the recording. It names the rank that the file states. If the file states no rank, it names
        no rank, and the rows have `OWN_RANK`.
    stage : Stage
        All rows.
    marks, length_ops : Table
        Annotations on the host; operators that a length rule reads.
    """

    file: str
    meta: TraceMeta
    stage: Stage
    marks: pa.Table
    length_ops: pa.Table


def read_recording(
    recording: Recording, folder: Path | None, advance: Callable[[int], None] | None = None
) -> LinkedRecording:
    """Read one recording and link its events.

    Parameters
    ----------
    recording : Recording
        Its files, and how they are read.
    folder : Path, optional
        Keeps the rows, so that memory stays bounded. Without it they stay in memory.
    advance : callable, optional
        Called with the number of bytes read.

    Raises
    ------
    SeqPointError
        As the reader's `read`.
    """
    stage = Stage(folder, recording.limit_bytes, LINK_COLUMNS, _watches(recording))
    stage.advance = advance or stage.advance
    meta = _read_files(recording, stage)
    stage.close()
    stage, meta = told_apart(stage, meta) if recording.reader.name == "kineto" else (stage, meta)
    release_memory()
    repaired = repair_late_ends(stage) if is_stamped_by_rocm(recording.reader.name, meta, stage) else {}
    counts = repaired | link_rows(stage)
    release_memory()
    counts |= _add_collectives(stage, recording.class_rules)
    stage.close()
    stage.let_go()
    counts["truncated_files"] = recording.damaged
    meta = replace(meta, quality=meta.quality + Quality(counts))
    linked = LinkedRecording(recording.paths[0], meta, stage, _marks(stage), stage.watched("length_ops"))
    if folder is not None:
        _save(linked, folder)
    return linked


def _read_files(recording: Recording, stage: Stage) -> TraceMeta:
    """Give the events of a recording to a stage; return its description, which names archives and reports."""
    try:
        meta = run_reader(recording.reader, recording.files, stage)
    except SeqPointError as error:
        if not recording.origins:
            raise
        text = str(error)
        for file, name in zip(recording.files, recording.paths, strict=False):
            text = text.replace(str(file), name)
        raise type(error)(text) from error
    if not recording.origins:
        return replace(meta, fingerprint=meta.fingerprint or _fingerprint(recording.files))
    reports = [origin.file for origin in recording.origins if not origin.member]
    combined = _fingerprint(reports) if reports else meta.fingerprint or _fingerprint(recording.files)
    return replace(meta, sources=tuple(origin.name for origin in recording.origins), fingerprint=combined)


def _fingerprint(files: Sequence[Path]) -> str:
    inner_files = [inner for file in sorted(files) for inner in (sorted(file.iterdir()) if is_folder(file) else [file])]
    return combined_fingerprint([fingerprint(file) for file in inner_files if file.is_file()])


def combined_fingerprint(fingerprints: Sequence[str]) -> str:
    """Return one fingerprint for several files.

    Parameters
    ----------
    fingerprints : sequence of str
        Fingerprints of the files; that of a single file is returned as it is.
    """
    return fingerprints[0] if len(fingerprints) == 1 else hashlib.sha256("".join(fingerprints).encode()).hexdigest()


def _watches(recording: Recording) -> dict[str, Watch]:
    """Return the rows that assembling the trace reads whole; they are few."""
    return {
        "annotations": Watch("ranges", "category", lambda category: category == ANNOTATIONS),
        "steps": Watch("ops", "name", is_mark),
        "length_ops": Watch("ops", "name", lambda name: name == recording.length_op),
        HIP_CALLS: Watch("launches", "name", lambda name: name.startswith("hip"), most=1),
        "collective_kernels": Watch("kernels", "name", partial(is_collective, rules=recording.class_rules)),
        "collective_ops": Watch("ops", "args", lambda args: '"Collective name"' in args),
        "collective_notes": Watch("ranges", "name", lambda name: ANNOTATION.match(name) is not None),
    }


def _add_collectives(stage: Stage, class_rules: tuple[ClassRule, ...]) -> dict[str, int]:
    """Add the collectives of the kernels to the stage; return their quality counts."""
    kernels = stage.watched("collective_kernels")
    if not kernels.num_rows:
        return {}
    rows = stage.watched_rows("collective_kernels")
    for column in ("dur_ns", "launch_id", "op_id"):
        if (amended := stage.amended("kernels", column, rows)) is not None:
            kernels = put(kernels, column, amended)
    chosen = {"kernels": kernels, "ops": stage.watched("collective_ops"), "ranges": stage.watched("collective_notes")}
    if chosen["ranges"].num_rows:
        ids = np.unique(integers(kernels, "launch_id"))
        launches = [table.filter(pc.is_in(table["id"], arrow_array(ids))) for table in stage.batches("launches")]
        chosen["launches"] = concatenate("launches", launches)
    trace = add_collectives(Trace(TraceMeta("", class_rules=class_rules), chosen), first_id=stage.rows)
    stage.write("collectives", {name: trace.collectives[name] for name in SCHEMAS["collectives"].names if name != "id"})
    stage.amend_rows("kernels", "collective_id", rows, integers(trace.kernels, "collective_id"))
    return dict(trace.meta.quality.counts)


def _marks(stage: Stage) -> pa.Table:
    """Return the annotations and operators that can mark iterations, as rows of ``ranges``."""
    notes, steps = stage.watched("annotations"), stage.watched("steps")
    columns = {name: steps[name] for name in ("id", "rank", "name", "start_ns", "dur_ns")}
    columns["category"] = [ANNOTATIONS] * steps.num_rows
    return concatenate("ranges", [notes, make_table("ranges", columns)])


def _save(recording: LinkedRecording, folder: Path) -> None:
    for name in _TABLES:
        table = getattr(recording, name)
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table)
    content = {
        "file": recording.file,
        "meta": meta_to_json(recording.meta),
        "extents": {str(rank): list(astuple(extent)) for rank, extent in recording.stage.extents.items()},
        "rows": recording.stage.rows,
    }
    write_text(folder / _META, json.dumps(content))


def load_recording(folder: Path) -> LinkedRecording:
    """Return the recording that `read_recording` kept in `folder`.

    Parameters
    ----------
    folder : Path
        The folder that `read_recording` was given.

    Raises
    ------
    BrokenFileError
        A file in it is damaged or missing.
    """
    try:
        content = json.loads((folder / _META).read_text(encoding="utf-8"))
        tables = {name: _load(folder / f"{name}.arrow") for name in _TABLES}
        extents = {int(rank): Extent(*values) for rank, values in content["extents"].items()}
        stage, file = Stage.stored(folder, int(content["rows"]), extents), str(content["file"])
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise BrokenFileError(
            f"{folder}: a recording that was read before is damaged ({error}); delete this folder"
        ) from error
    return LinkedRecording(file, meta_from_json(content["meta"]), stage, **tables)


def _load(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as stream:
        return stream.read_all()
