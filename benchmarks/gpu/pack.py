"""`pack`: the journal's rows as Parquet tables. Needs pyarrow; everything else does not."""

import importlib.util
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.counts import NAME as LAUNCHES
from benchmarks.gpu.describe import describe
from benchmarks.gpu.environment import joined, read_takes
from benchmarks.gpu.environment import write as write_takes
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.step import TABLES, Row
from profilers.errors import DependencyError, InvalidInputError
from profilers.files import replaced_file, write_text

__all__ = ["JOURNAL", "can_pack", "pack"]

JOURNAL = "journal.jsonl"
COMMAND = "python -m benchmarks.gpu --output DIR --pack"


def can_pack() -> bool:
    """Return whether pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def pack(folder: Path, target: Path | None = None) -> dict[Path, int]:
    """Write the tables of a recording and a README, each whole or not at all; return rows by table.

    Of a step that was recorded twice in a take, the last counts (`Journal.rows`); a table without rows is not written.
    Packing again replaces the tables. Rows of other takes and parts that another folder holds already stay there.

    Parameters
    ----------
    folder : Path
        Of the recording.
    target : Path, optional
        Where to write, made if it is not there: all that a recording is published as, its environment and traces
        too. By default the folder itself.

    Raises
    ------
    DependencyError
        No pyarrow.
    InvalidInputError
        No recording, a damaged one, or a value that is not of its column's type; or the other folder holds another
        device or plan.
    """
    if not can_pack():
        raise DependencyError(f"packing needs pyarrow; where it is installed, run: {COMMAND}")
    if not (folder / JOURNAL).is_file():
        raise InvalidInputError(f"{folder}: holds no {JOURNAL}; record first")
    try:
        journal = Journal(folder / JOURNAL)
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    to, takes = target or folder, read_takes(folder)
    if to != folder:
        takes = joined(takes, to)
    written = {}
    for table in TABLES:
        for path, rows in _files(to, table, _merged(table, journal.rows(table))).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = _published(path, table, rows) if to != folder else []
            _write(path, table, [*kept, *rows])
            written[path] = len(kept) + len(rows)
    to.mkdir(parents=True, exist_ok=True)
    if to != folder:
        _copy(folder, to)
        if takes:
            write_takes(takes, to)
    rows_of = {path.relative_to(to): rows for path, rows in written.items()}
    write_text(to / "README.md", describe(takes, _counted(to) | rows_of, _failed(journal)))
    return written


#: Columns by which rows of a published table are replaced, beside the take.
_REPLACED_BY = {"works": "work", "alone": "part", "together": "part", "runs": "group", "pairs": "group"}


def _published(path: Path, table: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a table that is there already, but those that new rows replace; of an epoch, none."""
    if table == "epochs" or not path.is_file():
        return []
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("take", _REPLACED_BY[table]) if table in _REPLACED_BY else ("take",)
    replaced = {tuple(row.get(name) for name in names) for row in rows}
    try:
        published = pq.read_table(path).to_pylist()
        return [row for row in published if tuple(row.get(name) for name in names) not in replaced]
    except (pa.ArrowException, OSError) as error:
        raise InvalidInputError(f"{path}: is no table of {table} that rows can be added to ({error})") from error


def _counted(folder: Path) -> dict[Path, int]:
    """Return the rows of the tables of a recording that a folder holds."""
    import pyarrow.parquet as pq

    paths = [
        path for path in folder.rglob("*.parquet") if path.stem in TABLES or path.parents[1].name.startswith("epochs")
    ]
    return {path.relative_to(folder): pq.read_metadata(path).num_rows for path in paths}


def _merged(table: str, rows: Iterable[Row]) -> list[Row]:
    """Return rows as they are, but those of the same work, of which some know the kernel, as one."""
    if table != "works":
        return list(rows)
    works: dict[tuple[int, str], Row] = {}
    for row in rows:
        key = (row["take"], row["work"])
        works[key] = {**works.get(key, {}), **row}
    return list(works.values())


def _copy(folder: Path, target: Path) -> None:
    """Copy what is no table and no journal: numbers of launches, traces, and what a step allocates."""
    traces = (path for kind in ("pt.trace", "memory") for path in sorted(folder.glob(f"traces/*.{kind}.json.gz")))
    for path in (folder / LAUNCHES, *traces):
        if path.is_file():
            to = target / path.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source, replaced_file(to) as stream:
                shutil.copyfileobj(source, stream)


def _failed(journal: Journal) -> dict[str, str]:
    """Return the last error of each step that never came to anything, by take and key."""
    fates = {(entry["take"], entry["key"]): entry.get("error") for entry in journal.entries()}
    recorded = {(entry["take"], entry["key"]) for entry in journal.entries() if "error" not in entry}
    return {f"take {take}: {key}": str(fates[take, key]) for take, key in sorted(fates.keys() - recorded)}


def _files(folder: Path, table: str, rows: Sequence[Row]) -> dict[Path, list[Row]]:
    """Return rows by the file that they belong to: one a table, but one a take and configuration for epochs.

    An epoch's file is a log of one run, as `seqpoint validate selection` reads them.
    """
    if table != "epochs":
        return {folder / f"{table}.parquet": list(rows)} if rows else {}
    files: dict[Path, list[Row]] = {}
    names: dict[Path, tuple[str, str]] = {}
    for row in rows:
        name = (str(row.get("model")), str(row.get("configuration")))
        epochs = f"epochs_take_{row['take']}" if row["take"] else "epochs"
        path = folder / epochs / file_name(name[0]) / f"{file_name(name[1])}.parquet"
        if names.setdefault(path, name) != name:
            raise InvalidInputError(f"{path}: two configurations would be of this name: {names[path]} and {name}")
        files.setdefault(path, []).append(row)
    return files


def file_name(name: str) -> str:
    """Return a name with which no file leaves its folder.

    Examples
    --------
    >>> file_name("../bf16 + graphs")
    '_bf16_graphs'
    """
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip(".-")[:100] or "unnamed"


def _write(path: Path, table: str, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Any] = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64()}
    schema = pa.schema([("take", pa.int64()), *((name, types[kind]) for name, kind in TABLES[table].items())])
    unknown = sorted({column for row in rows for column in row} - set(schema.names))
    if unknown:
        raise InvalidInputError(f"{path}: the journal has columns that the table {table} has not: {', '.join(unknown)}")
    try:
        packed = pa.Table.from_pylist([dict(row) for row in rows], schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidInputError(
            f"{path}: a value of the journal is of another type than its column: {error}"
        ) from error
    with replaced_file(path) as stream:
        pq.write_table(packed, stream, compression="zstd")
