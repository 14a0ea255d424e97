"""The `.trace` folder: Parquet by kind and rank, written beside and renamed into place."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.files import children, is_folder, replace_folder
from profilers.trace.arrays import arrow_array, integers
from profilers.trace.kernels import CLASSES
from profilers.trace.quality import Quality, count_rules
from profilers.trace.schema import SCHEMAS, concatenate, fill_table
from profilers.trace.trace import Trace, TraceMeta

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

_META = "meta.json"
_LAYOUT = 2
_DELTA = "DELTA_BINARY_PACKED"
_ROW_GROUP = 1 << 17


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write `trace` to the folder `path`; a crash leaves what was there, or the whole new trace.

    Layout: ``meta.json`` and ``KIND/rank=R.parquet`` (zstd level 1, DELTA encoding on times and ids), which pandas,
    polars and duckdb can read.

    Parameters
    ----------
    trace : Trace
        The trace to write.
    path : path
        Folder to write, or a ``.trace`` folder to replace.

    Raises
    ------
    InvalidInputError
        `path` exists and is not a trace, or its parent does not exist or cannot be written.
    """
    target = Path(path)

    def write(new: Path) -> TraceMeta:
        with TraceWriter(new) as writer:
            for kind, table in trace.tables.items():
                writer.write(kind, table)
        return trace.meta

    write_folder(target, write)
    return target


def write_folder(target: Path, write: Callable[[Path], TraceMeta]) -> None:
    """Write a ``.trace`` folder beside `target` and rename it into place; a crash leaves what was there.

    Parameters
    ----------
    target : Path
        Folder to write, or a ``.trace`` folder to replace.
    write : callable
        Writes the tables into a new folder, and returns the description of the trace.

    Raises
    ------
    InvalidInputError
        `target` exists and is not a trace, or its parent does not exist or cannot be written.
    """
    try:
        check_target(target)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            new = scratch / "new"
            new.mkdir()
            write_meta(write(new), new)
            replace_folder(new, target, scratch / "old")
        finally:
            if not target.exists() and (scratch / "old").exists():
                (scratch / "old").rename(target)
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise InvalidInputError(f"{target}: cannot be written ({first_line(error)})") from error


def check_target(target: Path) -> None:
    """Check that a trace can be written to `target`.

    Parameters
    ----------
    target : Path
        Folder to write.

    Raises
    ------
    InvalidInputError
        `target` exists and is not a trace, or its parent does not exist.
    """
    if not target.parent.is_dir():
        raise InvalidInputError(f"{target}: its folder {target.parent} does not exist; create it first")
    if target.exists() and not (target / _META).is_file():
        raise InvalidInputError(f"{target}: exists and is not a .trace folder; choose another name")


class TraceWriter:
    """Writes rows into the Parquet files of a trace, by kind and rank, in row groups of bounded size.

    Parameters
    ----------
    folder : Path
        An existing folder; its files are complete when the writer is closed without an error.

    Attributes
    ----------
    rows : dict of str to int
        Number of rows written, by kind.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = ExitStack()
        self._writers: dict[tuple[str, int], ParquetWriter] = {}
        self._waiting: dict[tuple[str, int], list[pa.Table]] = {}
        self.rows: dict[str, int] = {}

    def __enter__(self) -> "TraceWriter":
        for kind in SCHEMAS:
            (self._folder / kind).mkdir(exist_ok=True)
        return self

    def __exit__(self, *problem: Any) -> None:
        with self._files:
            if problem[0] is None:
                for key in list(self._waiting):
                    self._flush(key)

    def write(self, kind: str, table: pa.Table) -> None:
        """Add rows of one kind, of any ranks."""
        self.rows[kind] = self.rows.get(kind, 0) + table.num_rows
        for rank, of_rank in _by_rank(table):
            for first in range(0, of_rank.num_rows, _ROW_GROUP):
                waiting = self._waiting.setdefault((kind, rank), [])
                waiting.append(of_rank.slice(first, _ROW_GROUP))
                if sum(piece.num_rows for piece in waiting) >= _ROW_GROUP // 2:
                    self._flush((kind, rank))

    def _flush(self, key: tuple[str, int]) -> None:
        tables = self._waiting.pop(key)
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        if key not in self._writers:
            self._writers[key] = self._files.enter_context(_writer(self._folder, key, self._files))
        self._writers[key].write_table(table)


def _writer(folder: Path, key: tuple[str, int], files: ExitStack) -> "ParquetWriter":
    """Open the file of a kind and rank; closing it flushes it to the disk, so that a rename shows complete data."""
    from pyarrow.parquet import ParquetWriter

    kind, rank = key
    schema = SCHEMAS[kind]
    stream = files.enter_context((folder / kind / f"rank={rank}.parquet").open("wb"))
    files.callback(_to_disk, stream)
    integer_columns = [field.name for field in schema if pa.types.is_integer(field.type)]
    return ParquetWriter(
        stream,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[field.name for field in schema if field.name not in integer_columns],
        column_encoding=dict.fromkeys(integer_columns, _DELTA),
    )


def _to_disk(stream: IO[Any]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _by_rank(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each rank in their order; one pass, however many ranks."""
    ranks = integers(table, "rank")
    if (np.diff(ranks) < 0).any():
        order = np.argsort(ranks, kind="stable")
        table, ranks = table.take(arrow_array(order)), ranks[order]
    for rank, first, count in zip(*np.unique(ranks, return_index=True, return_counts=True), strict=True):
        yield int(rank), table.slice(int(first), int(count))


def meta_to_json(meta: TraceMeta) -> dict[str, Any]:
    """Return the description of a trace as JSON values, which `meta_from_json` reads."""
    content = {f: getattr(meta, f) for f in ("format", "version", "sources", "ranks", "world_size", "fingerprint")}
    content |= {"layout": _LAYOUT, "clock_base_ns": meta.clock_base_ns}
    content |= {"context": meta.context} if meta.context else {}
    content |= {"class_rules": meta.class_rules} if meta.class_rules else {}
    return content | {"devices": [asdict(d) for d in meta.devices], "quality": dict(meta.quality.counts)}


def write_meta(meta: TraceMeta, folder: Path) -> None:
    """Write the description of a trace beside its tables."""
    content = meta_to_json(meta) | {"seqpoint": version("seqpoint")}
    with (folder / _META).open("w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=1)
        _to_disk(stream)


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is a ``.trace`` folder."""
    return is_folder(Path(path)) and (Path(path) / _META).is_file()


def trace_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the ``.trace`` folders among paths and in folders, in their order; nothing if a path is something else.

    Raises
    ------
    InvalidInputError
        Some are ``.trace`` folders and some are not.
    """
    found: list[Path] = []
    others = []
    for path in paths:
        inside = [path] if is_trace(path) else sorted(filter(is_trace, children(path)))
        found += inside
        others += [] if inside else [path]
    if found and others:
        raise InvalidInputError(f"{others[0]}: is no .trace folder, and {found[0]} is one; ingest the files first")
    return found


def load_trace(
    path: str | os.PathLike[str],
    columns: Mapping[str, Sequence[str]] | None = None,
    ranks: Collection[int] | None = None,
) -> Trace:
    """Read the trace in the folder `path`, which `save_trace` or `seqpoint ingest` wrote.

    Parameters
    ----------
    path : path
        A ``.trace`` folder.
    columns : mapping of str to sequence of str, optional
        Columns to read by kind of event; a kind that is not named has no rows. All by default.
    ranks : collection of int, optional
        Ranks to read; all by default. The quality of the trace counts those that are left out, whose representatives
        the others then are: they meet in collectives without them.

    Raises
    ------
    NotFoundError
        The folder does not exist, is not a trace, or has not one of the ranks.
    BrokenFileError
        The folder is a trace and one of its files is damaged.
    """
    folder = Path(path)
    if not is_folder(folder):
        raise NotFoundError(f"{folder}: no such trace; make one with `seqpoint ingest FILE -o {folder}`")
    if not (folder / _META).is_file():
        raise NotFoundError(f"{folder}: not a .trace folder (it has no {_META})")
    meta = read_meta(folder)
    if ranks is not None:
        meta = _of_ranks(meta, ranks, folder)
    if columns is None:
        return Trace(meta, {kind: read_kind(folder, kind, ranks=ranks) for kind in SCHEMAS})
    chosen = {kind: [name for name in SCHEMAS[kind].names if name in columns[kind]] for kind in columns}
    return Trace(meta, {kind: read_kind(folder, kind, names, ranks=ranks) for kind, names in chosen.items()})


def _of_ranks(meta: TraceMeta, ranks: Collection[int], folder: Path) -> TraceMeta:
    """Return the description of some ranks of a trace."""
    if absent := set(ranks) - set(meta.ranks):
        raise NotFoundError(f"{folder}: has no rank {min(absent)}; it has ranks {_span(meta.ranks)}")
    kept = tuple(rank for rank in meta.ranks if rank in ranks)
    devices = tuple(device for device in meta.devices if device.rank in ranks)
    share = len(kept) / max(len(meta.ranks), 1)  # which rank each count is of is not kept
    counts = {name: round(count * share) for name, count in meta.quality.counts.items()}
    counts["ranks_left_out"] = meta.quality["ranks_left_out"] + len(meta.ranks) - len(kept)
    return replace(meta, ranks=kept, devices=devices, quality=Quality(counts))


def _span(ranks: Sequence[int]) -> str:
    return f"{min(ranks)} to {max(ranks)}" if ranks else "none"


def read_kind(
    trace: Path, kind: str, columns: Sequence[str] | None = None, *, ranks: Collection[int] | None = None
) -> pa.Table:
    """Return the rows of one kind of event, rank by rank.

    Parameters
    ----------
    trace : Path
        The folder of the trace.
    kind : str
        One of `profilers.trace.schema.KINDS`, or ``"iterations"``.
    columns : sequence of str, optional
        Columns to read, in their order in the result; all by default.
    ranks : collection of int, optional
        Ranks to read; all by default.

    Raises
    ------
    BrokenFileError
        A file is damaged.
    """
    from pyarrow.parquet import ParquetFile

    names = SCHEMAS[kind].names if columns is None else columns
    tables, folder = [], trace / kind
    if ranks is None:
        files = sorted(folder.glob("rank=*.parquet"), key=_rank_of)
    else:
        files = [file for rank in sorted(ranks) if (file := folder / f"rank={rank}.parquet").exists()]
    for file in files:
        try:
            # Not `read_table`, which loads Arrow's datasets, and with them pandas: 0.15 s.
            tables.append(fill_table(kind, ParquetFile(file).read(names), names))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BrokenFileError(f"{file}: damaged ({first_line(error)}); ingest the trace again") from error
    return concatenate(kind, tables, names)


def _rank_of(file: Path) -> tuple[int, str]:
    digits = file.stem.removeprefix("rank=")
    return (int(digits) if digits.isdigit() else -1, file.stem)


def meta_from_json(content: dict[str, Any]) -> TraceMeta:
    """Return the description of a trace from the JSON values of `meta_to_json`.

    Parameters
    ----------
    content : dict
        The JSON object.

    Raises
    ------
    ValueError, KeyError, AttributeError
        `content` is no description of a trace.
    """
    counts = {name: count for name, count in content["quality"].items() if name in count_rules()}
    meta = msgspec.convert({**content, "quality": {"counts": counts}}, TraceMeta)
    if unknown := {rule.class_ for rule in meta.class_rules} - set(CLASSES):
        raise ValueError(f"unknown class of kernels {min(unknown)}")
    return meta


def read_meta(trace: Path) -> TraceMeta:
    """Return the description of the trace in a ``.trace`` folder.

    Raises
    ------
    BrokenFileError
        The description is damaged, or of another layout.
    """
    file = trace / _META
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if content["layout"] != _LAYOUT:
            writer = f"written by seqpoint {content.get('seqpoint', '0.1 or older')}"
            advice = "ingest the trace again, or install that version"
            raise BrokenFileError(
                f"{file}: layout {content['layout']!r}, {writer}; this version reads {_LAYOUT}; {advice}"
            )
        return meta_from_json(content)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise BrokenFileError(f"{file}: damaged ({first_line(error)}); ingest the trace again") from error


def first_line(error: Exception) -> str:
    """Return the first line of the message of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
