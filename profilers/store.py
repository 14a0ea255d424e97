"""The `.trace` folder: Parquet by kind and rank, written beside and renamed into place."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from profilers.arrays import integers
from profilers.atomic import replace_folder
from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.quality import MEANINGS, Quality
from profilers.schema import SCHEMAS
from profilers.source import is_folder
from profilers.trace import DeviceProperties, Trace, TraceMeta

__all__ = ["load_trace", "meta_from_json", "meta_to_json", "save_trace"]

_META = "meta.json"
_LAYOUT = 2
_DELTA = "DELTA_BINARY_PACKED"


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write `trace` to the folder `path`; a crash leaves what was there, or the whole new trace.

    Layout: ``meta.json`` and ``KIND/rank=R.parquet`` (zstd level 1, DELTA encoding on times and ids),
    readable by pandas, polars and duckdb as they are.

    Raises
    ------
    InvalidInputError
        `path` exists and is not a trace, or its parent does not exist or cannot be written.
    """
    target = Path(path)
    try:
        _check_target(target)
        _replace(trace, target)
    except OSError as error:
        raise InvalidInputError(f"{target}: cannot be written ({_first_line(error)})") from error
    return target


def _check_target(target: Path) -> None:
    if not target.parent.is_dir():
        raise InvalidInputError(f"{target}: its folder {target.parent} does not exist; create it first")
    if target.exists() and not (target / _META).is_file():
        raise InvalidInputError(f"{target}: exists and is not a .trace folder; choose another name")


def _replace(trace: Trace, target: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        new = work / "new"
        new.mkdir()
        _write(trace, new)
        replace_folder(new, target, work / "old")
    finally:
        if not target.exists() and (work / "old").exists():
            (work / "old").rename(target)
        shutil.rmtree(work, ignore_errors=True)


def _write(trace: Trace, folder: Path) -> None:
    for kind, table in trace.tables.items():
        (folder / kind).mkdir()
        for rank, part in _by_rank(table):
            _write_part(part, folder / kind / f"rank={rank}.parquet")
    _write_meta(trace.meta, folder / _META)


def _by_rank(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each rank in their order; one pass, however many ranks."""
    ranks = integers(table, "rank")
    if (np.diff(ranks) < 0).any():
        order = np.argsort(ranks, kind="stable")
        table, ranks = table.take(order), ranks[order]
    for rank, first, count in zip(*np.unique(ranks, return_index=True, return_counts=True), strict=True):
        yield int(rank), table.slice(int(first), int(count))


def _write_part(table: pa.Table, path: Path) -> None:
    """Write and flush one file, so that the rename that follows can only show complete data."""
    whole = [f.name for f in table.schema if pa.types.is_integer(f.type)]
    with path.open("wb") as stream:
        pq.write_table(
            table,
            stream,
            compression="zstd",
            compression_level=1,
            use_dictionary=[f.name for f in table.schema if f.name not in whole],
            column_encoding=dict.fromkeys(whole, _DELTA),
        )
        stream.flush()
        os.fsync(stream.fileno())


def meta_to_json(meta: TraceMeta) -> dict[str, Any]:
    """Return what `meta_from_json` reads."""
    content = {f: getattr(meta, f) for f in ("format", "version", "sources", "ranks", "world_size", "sha256")}
    content |= {"layout": _LAYOUT, "clock_base_ns": meta.clock_base_ns}
    return content | {"devices": [asdict(d) for d in meta.devices], "quality": dict(meta.quality.counts)}


def _write_meta(meta: TraceMeta, path: Path) -> None:
    with path.open("w", encoding="utf-8") as stream:
        json.dump(meta_to_json(meta), stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read the trace that `save_trace` wrote to the folder `path`.

    Raises
    ------
    NotFoundError
        There is no such folder, or it is not a trace.
    BrokenFileError
        The folder is a trace and one of its files is damaged.
    """
    folder = Path(path)
    if not is_folder(folder):
        raise NotFoundError(f"{folder}: no such trace; make one with `seqpoint ingest FILE -o {folder}`")
    if not (folder / _META).is_file():
        raise NotFoundError(f"{folder}: not a .trace folder (it has no {_META})")
    meta = _read_meta(folder / _META)
    return Trace(meta, {kind: _read_kind(folder / kind, kind) for kind in SCHEMAS})


def _read_kind(folder: Path, kind: str) -> pa.Table:
    parts = [_read_part(file, kind) for file in sorted(folder.glob("rank=*.parquet"), key=_rank_of)]
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks() if parts else SCHEMAS[kind].empty_table()


def _rank_of(file: Path) -> tuple[int, str]:
    digits = file.stem.removeprefix("rank=")
    return (int(digits) if digits.isdigit() else -1, file.stem)


def _read_part(file: Path, kind: str) -> pa.Table:
    try:
        return pq.read_table(file, schema=SCHEMAS[kind], partitioning=None).cast(SCHEMAS[kind])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BrokenFileError(f"{file}: damaged ({_first_line(error)}); ingest the trace again") from error


def meta_from_json(content: dict[str, Any]) -> TraceMeta:
    """Return the meta data that `meta_to_json` described.

    Raises
    ------
    ValueError, KeyError, TypeError, AttributeError
        `content` is no such description.
    """
    return TraceMeta(
        format=str(content["format"]),
        version=str(content["version"]),
        sources=tuple(map(str, content["sources"])),
        ranks=tuple(map(int, content["ranks"])),
        world_size=None if content["world_size"] is None else int(content["world_size"]),
        clock_base_ns=int(content["clock_base_ns"]),
        devices=tuple(DeviceProperties(**d) for d in content["devices"]),
        quality=Quality({k: v for k, v in content["quality"].items() if k in MEANINGS}),
        sha256=str(content["sha256"]),
    )


def _read_meta(file: Path) -> TraceMeta:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if content["layout"] != _LAYOUT:
            raise BrokenFileError(f"{file}: layout {content['layout']!r} is not {_LAYOUT}; ingest the trace again")
        return meta_from_json(content)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise BrokenFileError(f"{file}: damaged ({_first_line(error)}); ingest the trace again") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
