"""Reader of recordings of kernels and copies that ran side by side.

A recording is a folder with `environment.json`, `works.parquet`, `alone.parquet` and `together.parquet`, as
`benchmarks/gpu/README.md` describes. It is not trusted: sizes are checked before anything is unpacked, and each error
names the file and the row. `read_rows` reads one Parquet table within bounds; `read_recording` joins the tables.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from profilers.errors import InvalidInputError, NotFoundError
from replay.contention.recording import (
    KINDS,
    ContentionRecording,
    DeviceFacts,
    RecordedMember,
    RecordedRun,
    RecordedScenario,
    RecordedTask,
)

#: Bounds on the bytes of a file, the unpacked bytes of its columns, and its rows. A recording of ten minutes has about
#: 20,000 rows.
_MOST_TABLE_BYTES, _MOST_UNPACKED_BYTES, _MOST_ROWS = 2**28, 2**28, 400_000
#: Characters of a text.
_LONGEST_TEXT = 2000
#: Rows read at a time.
_BATCH_ROWS = 2**16


@dataclass(frozen=True)
class Column:
    """A column of a table, and the values that it may hold.

    Parameters
    ----------
    name : str
        Name of the column.
    low, high : int, optional
        Bounds of whole numbers. A column without an upper bound holds text.
    optional : bool
        Whether null may stand for an unknown value.
    required : bool
        Whether a file without the column is refused; otherwise all of its values are null.
    """

    name: str
    low: int = 0
    high: int | None = None
    optional: bool = False
    required: bool = True


def read_rows(file: Path, columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, with the given columns only, and with file and row as ``where``.

    Parameters
    ----------
    file : Path
        The Parquet file.
    columns : sequence of Column
        Columns to read, with their bounds.

    Raises
    ------
    NotFoundError
        There is no such file.
    InvalidInputError
        The file is no Parquet, too large or empty. Or a column is missing, repeated or of another type, or a value is
        out of bounds; the message names file and row (from 1).
    """
    names, first_row = [column.name for column in columns], 1
    # One pass over the rows, some us each.
    for batch in _batches(file, columns):
        unknown, there = [None] * batch.num_rows, set(batch.schema.names)
        values = [
            _values(file, batch.column(column.name), column, first_row) if column.name in there else unknown
            for column in columns
        ]
        for number, row in enumerate(zip(*values, strict=True), first_row):
            yield {"where": f"{file}: row {number}", **dict(zip(names, row, strict=True))}
        first_row += batch.num_rows


def regular_file(file: Path, what: str) -> None:
    """Check that `file` is a regular file.

    Parameters
    ----------
    file : Path
        The file to check.
    what : str
        Advice that the message gives if nothing is there.

    Raises
    ------
    NotFoundError, InvalidInputError
        Nothing is there; or a folder, a pipe or a device.
    """
    if file.is_file():
        return
    if file.exists():
        raise InvalidInputError(f"{file}: is no regular file")
    raise NotFoundError(f"{file}: no such file; {what}")


def _batches(file: Path, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """Yield batches of the given columns; types and sizes are checked before anything is unpacked."""
    regular_file(file, "a recording has works.parquet, alone.parquet and together.parquet")
    if file.stat().st_size > _MOST_TABLE_BYTES:
        raise InvalidInputError(f"{file}: larger than {_MOST_TABLE_BYTES} bytes; no table of a recording is")
    try:
        with pq.ParquetFile(file) as parquet:
            metadata, there = parquet.metadata, set(parquet.schema_arrow.names)
            columns = [column for column in columns if column.required or column.name in there]
            names = [column.name for column in columns]
            _check_columns(file, parquet.schema_arrow, columns)
            _check_size(file, metadata, names)
        # Dictionaries hold a repeated text once in memory, however long it is.
        texts = [column.name for column in columns if column.high is None]
        with pq.ParquetFile(file, metadata=metadata, read_dictionary=texts) as parquet:
            yield from parquet.iter_batches(_BATCH_ROWS, columns=names)
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, ValueError) as error:
        raise InvalidInputError(f"{file}: cannot be read as Parquet ({str(error)[:_LONGEST_TEXT]})") from error


def _check_columns(file: Path, schema: pa.Schema, columns: Sequence[Column]) -> None:
    """Check that each column is there once, with its type."""
    names = [column.name for column in columns]
    for column in columns:
        if schema.names.count(column.name) != 1:
            problem = "no column" if column.name not in schema.names else "more than one column"
            raise InvalidInputError(f"{file}: {problem} {column.name!r}; each of {', '.join(names)} is needed once")
        type_ = schema.field(column.name).type
        value_type = type_.value_type if pa.types.is_dictionary(type_) else type_
        matches, expected = pa.types.is_integer(type_), "whole numbers"
        if column.high is None:
            matches, expected = pa.types.is_string(value_type) or pa.types.is_large_string(value_type), "text"
        # A column that holds only nulls has the type null.
        if not (matches or pa.types.is_null(value_type)):
            raise InvalidInputError(f"{file}: column {column.name} is {str(type_)[:_LONGEST_TEXT]}, not {expected}")


def _check_size(file: Path, metadata: pq.FileMetaData, names: Sequence[str]) -> None:
    """Check rows and unpacked bytes by the metadata, before a small file unpacks to a large table."""
    if not 0 < metadata.num_rows <= _MOST_ROWS:
        raise InvalidInputError(f"{file}: {metadata.num_rows} rows; a table has 1 to {_MOST_ROWS}")
    total = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = map(group.column, range(group.num_columns))
        total += sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in names)
    if total > _MOST_UNPACKED_BYTES:
        raise InvalidInputError(
            f"{file}: unpacks to {total} bytes; a table of a recording has at most {_MOST_UNPACKED_BYTES}"
        )


def _values(file: Path, array: pa.Array, column: Column, first_row: int) -> list[Any]:
    """Return the checked values of a column; `first_row` is the number of its first row."""
    is_text = column.high is None
    try:
        values = _texts(array) if is_text else array.cast(pa.int64()).to_pylist()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        expected = "text" if is_text else "whole numbers"
        raise InvalidInputError(
            f"{file}: column {column.name} is no {expected} ({str(error)[:_LONGEST_TEXT]})"
        ) from error
    low, high = (0, _LONGEST_TEXT) if column.high is None else (column.low, column.high)
    # A Python loop over values, about 0.1 us each.
    for row, value in enumerate(values, first_row):
        if not (column.optional if value is None else low <= (len(value) if is_text else value) <= high):
            rule = f"a text of at most {high} characters" if is_text else f"{low} to {high}"
            null = ", or null where it is not known" if column.optional else ""
            raise InvalidInputError(f"{file}: row {row}: {column.name} is {value!r:.60}; it must be {rule}{null}")
    return list(values)


def _texts(array: pa.Array) -> list[str | None]:
    """Return the texts of a column, decoded from its dictionary if it has one."""
    if not pa.types.is_dictionary(array.type):
        return list(array.cast(pa.string()).to_pylist())
    texts = array.dictionary.to_pylist()
    return [None if index is None else texts[index] for index in array.indices.to_pylist()]


#: Table that marks a folder as a recording of contention.
TABLE = "together.parquet"
_FILES = ("environment.json", "works.parquet", "alone.parquet", TABLE)
#: Bounds on values: durations, extents of an operation, bytes, FLOP.
_MOST_NS, _MOST_EXTENT, _MOST_BYTES, _MOST_FLOPS = 10**12, 10**9, 10**15, 10**18
_MOST_LAUNCHES, _MOST_UNITS, _MOST_STREAMS, _MOST_TAKES = 10_000, 100_000, 8, 1000
#: Bounds on scenarios, on their launches and on the policies of a group. Each launch is a task that a prediction
#: replays, and policies of a group are compared in pairs. A recording of ten minutes has 1,400 scenarios of 120,000
#: launches, and at most 17 policies of a group.
_MOST_SCENARIOS, _MOST_TASKS, _MOST_POLICIES = 20_000, 2_000_000, 500
#: Bound on works; a recording of ten minutes has 170.
_MOST_WORKS = 10_000
_DIRECTIONS = ("", "h2d", "d2h", "d2d")
_TAKE, _PART = Column("take", 0, _MOST_TAKES), Column("part")
_WORKS = (
    *(Column(name) for name in ("work", "kind", "dtype")),
    *(Column(name, 1, _MOST_EXTENT) for name in ("m", "n", "k")),
    Column("flops", 0, _MOST_FLOPS),
    *(Column(name, 0, _MOST_BYTES) for name in ("bytes_read", "bytes_written", "host_bytes")),
    Column("direction", optional=True),
    Column("hint", optional=True),
    Column("kernel", optional=True, required=False),
    *(Column(name, 0, _MOST_EXTENT * 10, optional=True) for name in ("blocks", "workgroups", "workgroup_size")),
    *(
        Column(name, 0, _MOST_EXTENT, optional=True, required=False)
        for name in ("registers", "static_shared_bytes", "dynamic_shared_bytes", "resident")
    ),
)
_UNITS_COLUMN, _LAUNCHES_COLUMN = Column("units", 0, _MOST_UNITS, optional=True), Column("launches", 1, _MOST_LAUNCHES)
_REPETITION = Column("repetition", 0, 10**6)
_ALONE = (
    _PART, _TAKE, Column("work"), _UNITS_COLUMN, _REPETITION, _LAUNCHES_COLUMN,
    Column("duration_ns", 1, _MOST_NS),
)  # fmt: skip
_TOGETHER = (
    _PART, _TAKE, *(Column(name) for name in ("group", "scenario", "policy")), _REPETITION,
    Column("member", 0, 10**6), Column("work"), _LAUNCHES_COLUMN, Column("priority", -100, 100), _UNITS_COLUMN,
    Column("lag_ns", 0, _MOST_NS), Column("start_ns", 0, _MOST_NS), Column("end_ns", 0, _MOST_NS),
)  # fmt: skip
_FACTS = ("compute_units", "memory_bytes", "l2_bytes", "copy_engines", "threads_per_unit")
_MOST_ENVIRONMENT_BYTES = 2**24
#: Rows of one scenario by (take, repetition), then by member.
_RunRows = dict[tuple[int, int], dict[int, Mapping[str, Any]]]


def read_contention(path: str | Path) -> list[ContentionRecording]:
    """Read a recording, or every recording in the subfolders of a folder.

    Parameters
    ----------
    path : str or Path
        Folder of a recording, or of several, such as `datasets/measured`.

    Raises
    ------
    NotFoundError, InvalidInputError
        The folder holds no recording; or as `read_recording`.
    """
    root = Path(path)
    if not root.is_dir():
        raise NotFoundError(f"{root}: no such folder; give the one that `python -m benchmarks.gpu --output DIR` wrote")
    folders = [root] if (root / TABLE).exists() else sorted(file.parent for file in root.glob(f"*/{TABLE}"))
    if not folders:
        raise NotFoundError(
            f"{root}: no recording of works side by side (a folder with {TABLE}); `python -m benchmarks.gpu --output "
            "DIR` makes one on a GPU (benchmarks/gpu/README.md)"
        )
    return [read_recording(folder) for folder in folders]


def read_recording(folder: str | Path) -> ContentionRecording:
    """Read one recording.

    Parameters
    ----------
    folder : str or Path
        Folder with the files that `benchmarks/gpu/README.md` describes.

    Raises
    ------
    NotFoundError
        A file is missing.
    InvalidInputError
        A table cannot be read, a value is out of bounds, or tables contradict each other. The message names file and
        row.
    """
    root = Path(folder)
    device = _device(root / "environment.json")
    works = _works(root / "works.parquet")
    alone = _alone(root / "alone.parquet", works)
    scenarios = _scenarios(root / TABLE, works, device)
    timed = {work for work, units, _ in alone if not units}
    for scenario in scenarios:
        if missing := next((member.work for member in scenario.members if member.work not in timed), None):
            raise InvalidInputError(
                f"{root / TABLE}: {scenario.name!r:.80}: alone.parquet has no time of {missing!r:.80} on all compute "
                "units"
            )
    digest = hashlib.sha256()
    for name in _FILES[1:]:
        digest.update((root / name).read_bytes())
    return ContentionRecording(root.resolve().name, device, works, alone, scenarios, digest.hexdigest())


def _device(file: Path) -> DeviceFacts:
    """Return the properties of the device, which all takes agree on."""
    regular_file(file, "it names the device of a recording")
    if file.stat().st_size > _MOST_ENVIRONMENT_BYTES:
        raise InvalidInputError(f"{file}: larger than {_MOST_ENVIRONMENT_BYTES} bytes; no such file of a recording is")
    try:
        takes = json.loads(file.read_bytes())
        devices = [dict(take["device"]) for take in takes]
        facts = [_facts(file, number, device) for number, device in enumerate(devices)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise InvalidInputError(f"{file}: not a list of takes with a device each ({why})") from error
    if not facts:
        raise InvalidInputError(f"{file}: no take; a recording has one or more")
    if len(set(facts)) > 1:
        different = next(each for each in facts if each != facts[0])
        raise InvalidInputError(f"{file}: takes are of different devices, {facts[0]} and {different}; keep them apart")
    return facts[0]


def _facts(file: Path, number: int, device: Mapping[str, Any]) -> DeviceFacts:
    """Return the checked properties of the device of one take."""
    texts: dict[str, Any] = {name: device.get(name) or "" for name in ("name", "vendor", "architecture")}
    for name, value in texts.items():
        if not isinstance(value, str) or len(value) > 200:
            raise InvalidInputError(f"{file}: take {number}: {name} is {value!r:.60}; it must be text")
    counts = {name: device.get(name) for name in _FACTS}
    for name, count in counts.items():
        if count is not None and not (type(count) is int and 0 <= count <= _MOST_BYTES):
            raise InvalidInputError(f"{file}: take {number}: {name} is {count!r:.60}; it must be a number, or null")
    facts: dict[str, Any] = {name: count or None for name, count in counts.items()}
    # Only the harness on a CPU names the features of a GPU that it stands in for.
    return DeviceFacts(**texts, **facts, is_cpu=bool(device.get("twins")))


def _works(file: Path) -> Mapping[str, RecordedTask]:
    """Return the works by name. Takes may repeat a work, if they agree on it."""
    works: dict[str, RecordedTask] = {}
    for row in read_rows(file, _WORKS):
        where = row["where"]
        if row["kind"] not in KINDS:
            raise InvalidInputError(f"{where}: no kind {row['kind']!r:.60}; there are {', '.join(KINDS)}")
        if (row["direction"] or "") not in _DIRECTIONS:
            raise InvalidInputError(f"{where}: no direction {row['direction']!r:.60}; give h2d, d2h, d2d or null")
        if not row["flops"] + row["bytes_read"] + row["bytes_written"] + row["host_bytes"]:
            raise InvalidInputError(f"{where}: {row['work']!r:.80} neither computes nor moves anything")
        facts: dict[str, Any] = {field.name: row.get(field.name) for field in fields(RecordedTask)}
        facts |= {
            "name": row["work"],
            "direction": row["direction"] or "",
            "hint": row["hint"] or "",
            "kernel": row["kernel"] or "",
        }
        grid: dict[str, Any] = {
            "workgroups": row["workgroups"] or row["blocks"] or 0,
            "workgroup_size": row["workgroup_size"] or 0,
            "registers": row["registers"] or 0,
            "shared_bytes": (row["static_shared_bytes"] or 0) + (row["dynamic_shared_bytes"] or 0),
            "resident": row["resident"] or 0,
            "kernel": row["kernel"] or "",
        }
        work = RecordedTask(**facts | grid)
        # Only some takes know the grid, from a profiler, and the residency, from a driver.
        if replace(works.setdefault(work.name, work), **grid) != work:
            raise InvalidInputError(f"{where}: {work.name!r:.80} is there before as another work")
        if len(works) > _MOST_WORKS:
            raise InvalidInputError(f"{where}: more than {_MOST_WORKS} works; that many are read")
    return MappingProxyType(works)


def _check_work(row: Mapping[str, Any], works: Mapping[str, RecordedTask]) -> None:
    """Check that works.parquet has the work of a row."""
    if row["work"] not in works:
        raise InvalidInputError(f"{row['where']}: work {row['work']!r:.80} is not in works.parquet")


def _alone(file: Path, works: Mapping[str, RecordedTask]) -> Mapping[tuple[str, int, int], Mapping[int, float]]:
    """Return the median duration of works alone by launches, by work, compute units (0: all) and take."""
    times: dict[tuple[str, int, int], dict[int, list[int]]] = {}
    for row in read_rows(file, _ALONE):
        _check_work(row, works)
        key = (row["work"], row["units"] or 0, row["take"])
        times.setdefault(key, {}).setdefault(row["launches"], []).append(row["duration_ns"])
    medians = {
        key: {launches: float(np.quantile(durations, 0.5)) for launches, durations in by_launches.items()}
        for key, by_launches in times.items()
    }
    return MappingProxyType(medians)


def _scenarios(file: Path, works: Mapping[str, RecordedTask], device: DeviceFacts) -> tuple[RecordedScenario, ...]:
    """Return the scenarios, each with its runs; bounds are checked row by row."""
    by_scenario: dict[tuple[str, str, str], _RunRows] = {}
    for row in read_rows(file, _TOGETHER):
        where = row["where"]
        _check_work(row, works)
        if row["end_ns"] <= row["start_ns"]:
            raise InvalidInputError(f"{where}: it ends at {row['end_ns']} ns and began at {row['start_ns']} ns")
        runs = by_scenario.setdefault((row["group"], row["scenario"], row["policy"]), {})
        if len(by_scenario) > _MOST_SCENARIOS:
            raise InvalidInputError(f"{where}: more than {_MOST_SCENARIOS} scenarios; that many are read")
        run = runs.setdefault((row["take"], row["repetition"]), {})
        if row["member"] in run:
            raise InvalidInputError(f"{where}: member {row['member']} of this repetition is there already")
        if len(run) == _MOST_STREAMS:
            raise InvalidInputError(
                f"{where}: more than {_MOST_STREAMS} members side by side; that many streams are read"
            )
        run[row["member"]] = row
    scenarios = tuple(_scenario(key, runs, device) for key, runs in by_scenario.items())
    for group, count in Counter(scenario.group for scenario in scenarios).most_common(1):
        if count > _MOST_POLICIES:
            raise InvalidInputError(
                f"{file}: {count} scenarios of the group {group!r:.80}; at most {_MOST_POLICIES} are read"
            )
    tasks = sum(member.launches for scenario in scenarios for member in scenario.members)
    if tasks > _MOST_TASKS:
        raise InvalidInputError(f"{file}: {tasks} launches in all scenarios; at most {_MOST_TASKS} are replayed")
    return scenarios


def _scenario(key: tuple[str, str, str], runs: _RunRows, device: DeviceFacts) -> RecordedScenario:
    """Return one scenario from its rows; all of its runs have the same members."""
    members: tuple[RecordedMember, ...] = ()
    finished = []
    for (take, _), run in sorted(runs.items()):
        ordered = [run[number] for number in sorted(run)]
        where = ordered[0]["where"]
        if sorted(run) != list(range(len(run))):
            raise InvalidInputError(f"{where}: members {sorted(run)} of a repetition; they count from 0 without a gap")
        of_run = tuple(
            RecordedMember(row["work"], row["launches"], row["priority"], row["units"] or 0, row["lag_ns"])
            for row in ordered
        )
        if members and of_run != members:
            raise InvalidInputError(f"{where}: {key[1]!r:.80} has other members than in the repetition before")
        members = of_run
        first = min(row["start_ns"] for row in ordered)
        finished.append(RecordedRun(take, tuple(row["end_ns"] - first for row in ordered)))
    row = next(iter(next(iter(runs.values())).values()))
    reserved = sum(member.units for member in members)
    if device.compute_units is not None and reserved > device.compute_units:
        raise InvalidInputError(
            f"{row['where']}: members have {reserved} compute units of their own, the device has {device.compute_units}"
        )
    return RecordedScenario(*key, members, tuple(finished))
