"""`Part`: one recording, read and linked; its bulk waits in a `Stage` until the whole trace is put together."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from profilers.arrays import MISSING, Ints, integers, put
from profilers.atomic import write_text
from profilers.collectives import ANNOTATION, add_collectives
from profilers.errors import BrokenFileError
from profilers.iterations import ANNOTATIONS, Extent, is_mark
from profilers.kernels import is_collective
from profilers.linking import link, lookup
from profilers.reader import Reader
from profilers.schema import SCHEMAS, make_table
from profilers.source import DEFAULT_LIMIT_BYTES, digest, is_folder
from profilers.stage import Stage
from profilers.store import meta_from_json, meta_to_json
from profilers.trace import Trace, TraceMeta

__all__ = ["Part", "PartOptions", "combined_digest", "load_part", "read_part"]

_META = "part.json"
_TABLES = ("marks", "length_ops", "collectives")
#: What linking needs of each kind; everything else stays in the stage.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "ops": ("id", "rank", "start_ns", "dur_ns", "process", "thread", "external_id"),
    "launches": ("id", "rank", "start_ns", "dur_ns", "process", "thread", "correlation", "op_id"),
    "kernels": (
        *("id", "rank", "start_ns", "dur_ns", "device", "stream"),
        *("correlation", "launch_id", "op_id", "external_id", "collective_id"),
    ),
    "copies": (
        *("id", "rank", "start_ns", "dur_ns", "device", "stream"),
        *("correlation", "launch_id", "op_id", "external_id"),
    ),
    "syncs": ("id", "rank", "start_ns", "correlation", "launch_id"),
}
#: The columns of each kind that linking fills. ``cause_ns`` is the start of the call that caused device work.
_LINKED: Mapping[str, tuple[str, ...]] = {
    "launches": ("op_id",),
    "kernels": ("dur_ns", "launch_id", "op_id", "collective_id", "cause_ns"),
    "copies": ("launch_id", "op_id", "cause_ns"),
    "syncs": ("launch_id",),
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
    meta : TraceMeta
        `ranks` holds the rank that the file states, or nothing; rows that name none have `OWN_RANK`.
    stage : Stage
    marks, length_ops : Table
        Annotations of the host; operators of the length rule.
    collectives : Table
    extents : mapping of int to Extent
        By rank.
    """

    meta: TraceMeta
    stage: Stage
    marks: pa.Table
    length_ops: pa.Table
    collectives: pa.Table
    extents: Mapping[int, Extent]


def read_part(files: Sequence[Path], reader: Reader, folder: Path | None, options: PartOptions) -> Part:
    """Read one recording and link it.

    Parameters
    ----------
    files : sequence of Path
    reader : Reader
    folder : Path, optional
        Where the rows are kept, so that memory stays bounded; without it they stay in memory.
    options : PartOptions

    Raises
    ------
    SeqPointError
        As the reader's `read`.
    """
    stage = Stage(folder, options.limit_bytes)
    meta = reader.read(files, stage)
    stage.close()
    meta = replace(meta, sha256=_digest(files))
    trace = link(Trace(replace(meta, quality=type(meta.quality)()), _needed(stage)))
    trace = _with_collectives(trace, stage)
    stage.close()
    _amend(trace, stage)
    meta = replace(meta, quality=meta.quality + trace.meta.quality)
    op = options.length_op
    part = Part(
        meta,
        stage,
        _marks(stage),
        stage.pick_named("ops", lambda name: name == op),
        stage.table("collectives"),
        stage.extents,
    )
    if folder is not None:
        _save(part, folder)
    return part


def _digest(files: Sequence[Path]) -> str:
    plain = [inner for file in sorted(files) for inner in (sorted(file.iterdir()) if is_folder(file) else [file])]
    return combined_digest([digest(file) for file in plain if file.is_file()])


def combined_digest(digests: Sequence[str]) -> str:
    """Return one digest for several; that of a single file is its own."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _needed(stage: Stage) -> dict[str, pa.Table]:
    tables = {kind: stage.table(kind, columns) for kind, columns in _NEEDED.items()}
    return tables | {kind: SCHEMAS[kind].empty_table() for kind in ("ranges", "counters", "collectives")}


def _with_collectives(trace: Trace, stage: Stage) -> Trace:
    """Return the narrow `trace` with collectives, for which alone whole rows are looked at."""
    kernels = stage.pick_named("kernels", is_collective)
    if not kernels.num_rows:
        return trace
    at = np.searchsorted(integers(trace.kernels, "id"), integers(kernels, "id"))
    for column in ("dur_ns", "launch_id", "op_id"):
        kernels = put(kernels, column, integers(trace.kernels, column)[at])
    chosen = {
        "kernels": kernels,
        "ops": stage.pick_ids("ops", integers(kernels, "op_id")),
        "launches": stage.pick_ids("launches", integers(kernels, "launch_id")),
        "ranges": stage.pick_named("ranges", lambda name: ANNOTATION.match(name) is not None),
    }
    small = add_collectives(Trace(trace.meta, chosen), first_id=stage.rows)
    stage.write("collectives", {name: small.collectives[name] for name in SCHEMAS["collectives"].names if name != "id"})
    collective_id = integers(trace.kernels, "collective_id").copy()
    collective_id[at] = integers(small.kernels, "collective_id")
    return replace(small, tables={**trace.tables, "kernels": put(trace.kernels, "collective_id", collective_id)})


def _amend(trace: Trace, stage: Stage) -> None:
    for kind, columns in _LINKED.items():
        for column in columns:
            table = trace.tables[kind]
            stage.amend(kind, column, _cause(trace, table) if column == "cause_ns" else integers(table, column))


def _cause(trace: Trace, work: pa.Table) -> Ints:
    """Return when the launch of each kernel or copy starts; of those without one, the operator."""
    launch = integers(work, "launch_id")
    by_launch = lookup(integers(trace.launches, "id"), integers(trace.launches, "start_ns"), launch)
    by_op = lookup(integers(trace.ops, "id"), integers(trace.ops, "start_ns"), integers(work, "op_id"))
    return np.where(launch == MISSING, by_op, by_launch)


def _marks(stage: Stage) -> pa.Table:
    """Return what can limit an iteration, as rows of ``ranges``."""
    notes = stage.pick_where("ranges", "category", lambda category: category == ANNOTATIONS)
    steps = stage.pick_named("ops", is_mark)
    columns = {name: steps[name] for name in ("id", "rank", "name", "start_ns", "dur_ns")}
    columns["category"] = [ANNOTATIONS] * steps.num_rows
    return pa.concat_tables([notes, make_table("ranges", columns)]).unify_dictionaries().combine_chunks()


def _save(part: Part, folder: Path) -> None:
    for name in _TABLES:
        table = getattr(part, name)
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table)
    content = {
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
        stage = Stage.stored(folder, int(content["rows"]))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise BrokenFileError(f"{folder}: what was read before is damaged ({error}); delete it") from error
    return Part(meta_from_json(content["meta"]), stage, extents=extents, **tables)


def _load(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as stream:
        return stream.read_all()
