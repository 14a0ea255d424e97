"""Reading recordings of kernels that ran side by side.

Tables of a recording: Parquet files with columns of known types, within bounds; what is not is named by row.

Read the folder of a recording: `environment.json`, `works.parquet`, `alone.parquet`, `together.parquet`.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from profilers.errors import InvalidInputError, NotFoundError
from replay.contention.recording import (
    KINDS,
    AloneTime,
    ContentionRecording,
    DeviceFacts,
    RecordedMember,
    RecordedRun,
    RecordedScenario,
    RecordedWork,
)

#: Of a file, of what its columns unpack to, and of its rows: a plan of ten minutes has some twenty thousand.
_LARGEST_TABLE_BYTES, _UNPACKED, _ROWS = 2**28, 2**28, 400_000
_TEXT = 300
#: Rows that are read at a time.
_BATCH = 2**16


@dataclass(frozen=True)
class Column:
    """What a column may hold.

    Parameters
    ----------
    name : str
    low, high : int, optional
        Of whole numbers; without them, it is text.
    optional : bool
        Whether null may stand for what is not known.
    """

    name: str
    low: int | None = None
    high: int | None = None
    optional: bool = False


def read_rows(file: Path, columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, of these columns only.

    Parameters
    ----------
    file : Path
    columns : sequence of Column

    Raises
    ------
    NotFoundError
        There is no such file.
    InvalidInputError
        It is no Parquet, too large, without a row, lacks a column, has it twice or as another type; or a value is out
        of bounds: file and row (from 1) are named.
    """
    names, first = [column.name for column in columns], 1
    # One pass over the rows, some us each.
    for batch in _batches(file, columns):
        values = [_values(file, batch.column(column.name), column, first) for column in columns]
        yield from (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))
        first += batch.num_rows


def regular_file(file: Path, what: str) -> None:
    """Refuse what is no regular file; `what` is said where there is nothing at all.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is nothing; or a folder, a pipe or a device.
    """
    if file.is_file():
        return
    if file.exists():
        raise InvalidInputError(f"{file}: is no regular file")
    raise NotFoundError(f"{file}: no such file; {what}")


def _batches(file: Path, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    regular_file(file, "a recording has works.parquet, alone.parquet and together.parquet")
    if file.stat().st_size > _LARGEST_TABLE_BYTES:
        raise InvalidInputError(f"{file}: larger than {_LARGEST_TABLE_BYTES} bytes, so no table of a recording")
    names = [column.name for column in columns]
    try:
        with pq.ParquetFile(file) as parquet:
            metadata = parquet.metadata
            _check_columns(file, parquet.schema_arrow, columns)
            _check_size(file, metadata, names)
        # A text that many rows have is then in memory once, however long it is.
        texts = [column.name for column in columns if column.low is None]
        with pq.ParquetFile(file, metadata=metadata, read_dictionary=texts) as parquet:
            yield from parquet.iter_batches(_BATCH, columns=names)
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, ValueError) as error:
        raise InvalidInputError(f"{file}: cannot be read as Parquet ({str(error)[:_TEXT]})") from error


def _check_columns(file: Path, schema: pa.Schema, columns: Sequence[Column]) -> None:
    names = [column.name for column in columns]
    for column in columns:
        if schema.names.count(column.name) != 1:
            what = "no column" if column.name not in schema.names else "more than one column"
            raise InvalidInputError(f"{file}: {what} {column.name!r}; needed once each are {', '.join(names)}")
        type_ = schema.field(column.name).type
        held = type_.value_type if pa.types.is_dictionary(type_) else type_
        fine, wanted = pa.types.is_integer(type_), "whole numbers"
        if column.low is None:
            fine, wanted = pa.types.is_string(held) or pa.types.is_large_string(held), "text"
        # A column of nulls alone has no other type.
        if not (fine or pa.types.is_null(held)):
            raise InvalidInputError(f"{file}: column {column.name} is {str(type_)[:_TEXT]}, not {wanted}")


def _check_size(file: Path, metadata: pq.FileMetaData, names: Sequence[str]) -> None:
    """Refuse what a small file may unpack to, before it does."""
    if not 0 < metadata.num_rows <= _ROWS:
        raise InvalidInputError(f"{file}: {metadata.num_rows} rows; a table has 1 to {_ROWS}")
    unpacked = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = map(group.column, range(group.num_columns))
        unpacked += sum(one.total_uncompressed_size for one in chunks if one.path_in_schema in names)
    if unpacked > _UNPACKED:
        raise InvalidInputError(f"{file}: unpacks to {unpacked} bytes; a table of a recording has at most {_UNPACKED}")


def _values(file: Path, found: pa.Array, column: Column, first: int) -> list[Any]:
    """Return the values of a column; `first` is the number of its first row."""
    try:
        values = found.cast(pa.int64()).to_pylist() if column.low is not None else _texts(found)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        wanted = "text" if column.low is None else "whole numbers"
        raise InvalidInputError(f"{file}: column {column.name} is no {wanted} ({str(error)[:_TEXT]})") from error
    # A comparison a value, about 0.1 us each.
    for row, value in enumerate(values, first):
        if not _fine(value, column):
            raise InvalidInputError(f"{file}: row {row}: {column.name} is {value!r:.60}; {_rule(column)}")
    return list(values)


def _texts(found: pa.Array) -> list[str | None]:
    if not pa.types.is_dictionary(found.type):
        return list(found.cast(pa.string()).to_pylist())
    texts = found.dictionary.to_pylist()
    return [None if place is None else texts[place] for place in found.indices.to_pylist()]


def _fine(value: Any, column: Column) -> bool:
    if value is None:
        return column.optional
    if column.low is None or column.high is None:
        return len(value) <= _TEXT
    return bool(column.low <= value <= column.high)


def _rule(column: Column) -> str:
    null = ", or null where it is not known" if column.optional else ""
    if column.low is None:
        return f"it must be a text of at most {_TEXT} characters{null}"
    return f"it must be {column.low} to {column.high}{null}"


#: The table by which a folder is taken for a recording of contention.
TABLE = "together.parquet"
_FILES = ("environment.json", "works.parquet", "alone.parquet", TABLE)
_LONGEST_NS, _SIZE, _LARGEST_FILE_BYTES, _FLOPS = 10**12, 10**9, 10**15, 10**18
_LAUNCHES, _UNITS, _STREAMS, _TAKES = 10_000, 100_000, 8, 1000
#: Scenarios and their launches: each launch is a task that a prediction replays. A plan of ten minutes has 1400
#: scenarios of 120 000 launches, and at most 17 policies of a group, each two of which are compared.
_SCENARIOS, _TASKS, _POLICIES = 20_000, 2_000_000, 500
#: Works: a plan of ten minutes has 170.
_MOST_WORKS = 10_000
_DIRECTIONS = ("", "h2d", "d2h", "d2d")
_TAKE, _PART = Column("take", 0, _TAKES), Column("part")
_WORKS = (
    *(Column(name) for name in ("work", "kind", "dtype")),
    *(Column(name, 1, _SIZE) for name in ("m", "n", "k")),
    Column("flops", 0, _FLOPS),
    *(Column(name, 0, _LARGEST_FILE_BYTES) for name in ("bytes_read", "bytes_written", "host_bytes")),
    Column("direction", optional=True),
    Column("hint", optional=True),
    *(Column(name, 0, _SIZE * 10, optional=True) for name in ("blocks", "workgroups")),
)
_UNITS_COLUMN, _LAUNCHES_COLUMN = Column("units", 0, _UNITS, optional=True), Column("launches", 1, _LAUNCHES)
_REPETITION = Column("repetition", 0, 10**6)
_ALONE = (
    _PART, _TAKE, Column("work"), _UNITS_COLUMN, _REPETITION, _LAUNCHES_COLUMN,
    Column("duration_ns", 1, _LONGEST_NS),
)  # fmt: skip
_TOGETHER = (
    _PART, _TAKE, *(Column(name) for name in ("group", "scenario", "policy")), _REPETITION,
    Column("member", 0, 10**6), Column("work"), _LAUNCHES_COLUMN, Column("priority", -100, 100), _UNITS_COLUMN,
    Column("lag_ns", 0, _LONGEST_NS), Column("start_ns", 0, _LONGEST_NS), Column("end_ns", 0, _LONGEST_NS),
)  # fmt: skip
_FACTS = ("compute_units", "memory_bytes", "l2_bytes", "copy_engines")
_ENVIRONMENT_BYTES = 2**24
#: Scenario, then its rows by (take, repetition).
_Runs = dict[tuple[int, int], dict[int, Mapping[str, Any]]]


def read_contention(path: str | Path) -> list[ContentionRecording]:
    """Read a recording, or every one among the subfolders of a folder, as `datasets/measured` has them.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is none; or as `read_recording`.
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
        As `benchmarks/gpu/README.md` describes it. It is not trusted: sizes and values are bounded.

    Raises
    ------
    NotFoundError
        A file is missing.
    InvalidInputError
        A table is none, a value cannot be, or tables contradict each other: file and row are named.
    """
    root = Path(folder)
    device = _device(root / "environment.json")
    works = _works(root / "works.parquet")
    alone = _alone(root / "alone.parquet", works)
    scenarios = _scenarios(root / TABLE, works, device)
    _check_alone(root / TABLE, scenarios, alone)
    digest = hashlib.sha256()
    for name in _FILES[1:]:
        digest.update((root / name).read_bytes())
    return ContentionRecording(root.resolve().name, device, works, alone, scenarios, digest.hexdigest())


def _device(file: Path) -> DeviceFacts:
    regular_file(file, "it says what device a recording is of")
    if file.stat().st_size > _ENVIRONMENT_BYTES:
        raise InvalidInputError(f"{file}: larger than {_ENVIRONMENT_BYTES} bytes, so no environment of a recording")
    try:
        takes = json.loads(file.read_bytes())
        devices = [dict(take["device"]) for take in takes]
        found = [_facts(file, number, device) for number, device in enumerate(devices)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise InvalidInputError(f"{file}: no list of takes, each with its device ({why})") from error
    if not found:
        raise InvalidInputError(f"{file}: there is no take")
    if len(set(found)) > 1:
        other = next(one for one in found if one != found[0])
        raise InvalidInputError(f"{file}: takes are of different devices, {found[0]} and {other}; keep them apart")
    return found[0]


def _facts(file: Path, number: int, device: Mapping[str, Any]) -> DeviceFacts:
    texts = {name: device.get(name) or "" for name in ("name", "vendor", "architecture")}
    for name, value in texts.items():
        if not isinstance(value, str) or len(value) > 200:
            raise InvalidInputError(f"{file}: take {number}: {name} is {value!r:.60}; it must be text")
    counts = {name: device.get(name) for name in _FACTS}
    for name, count in counts.items():
        if count is not None and not (type(count) is int and 0 <= count <= _LARGEST_FILE_BYTES):
            raise InvalidInputError(f"{file}: take {number}: {name} is {count!r:.60}; it must be a number, or null")
    units, memory, cache, engines = (count or None for count in counts.values())
    return DeviceFacts(texts["name"], texts["vendor"], texts["architecture"], units, memory, cache, engines)


def _works(file: Path) -> Mapping[str, RecordedWork]:
    found: dict[str, RecordedWork] = {}
    for number, row in enumerate(read_rows(file, _WORKS), 1):
        place = f"{file}: row {number}"
        if row["kind"] not in KINDS:
            raise InvalidInputError(f"{place}: no kind {row['kind']!r:.60}; there are {', '.join(KINDS)}")
        if (row["direction"] or "") not in _DIRECTIONS:
            raise InvalidInputError(f"{place}: no direction {row['direction']!r:.60}; give h2d, d2h, d2d or null")
        if not row["flops"] + row["bytes_read"] + row["bytes_written"] + row["host_bytes"]:
            raise InvalidInputError(f"{place}: {row['work']!r:.80} neither computes nor moves anything")
        shape = {name: row[name] for name in ("kind", "dtype", "m", "n", "k", "flops", "bytes_read", "bytes_written")}
        groups = row["workgroups"] or row["blocks"] or 0
        one = RecordedWork(
            row["work"],
            **shape,
            host_bytes=row["host_bytes"],
            direction=row["direction"] or "",
            workgroups=groups,
            hint=row["hint"] or "",
        )
        if _essence(found.setdefault(one.name, one)) != _essence(one):
            raise InvalidInputError(f"{place}: {one.name!r:.80} is there before as another work")
        if len(found) > _MOST_WORKS:
            raise InvalidInputError(f"{place}: more than {_MOST_WORKS} works; that many are read")
    return MappingProxyType(found)


def _essence(work: RecordedWork) -> RecordedWork:
    """Return a work without what a profiler told of it, which takes may tell or not."""
    return replace(work, workgroups=0)


def _known(place: str, work: str, works: Mapping[str, RecordedWork]) -> None:
    if work not in works:
        raise InvalidInputError(f"{place}: work {work!r:.80} is not in works.parquet")


def _alone(file: Path, works: Mapping[str, RecordedWork]) -> Mapping[tuple[str, int, int], tuple[AloneTime, ...]]:
    times: dict[tuple[str, int, int], dict[int, list[int]]] = {}
    for number, row in enumerate(read_rows(file, _ALONE), 1):
        _known(f"{file}: row {number}", row["work"], works)
        key = (row["work"], row["units"] or 0, row["take"])
        times.setdefault(key, {}).setdefault(row["launches"], []).append(row["duration_ns"])
    return MappingProxyType(
        {
            key: tuple(_time(launches, several) for launches, several in sorted(by_launches.items()))
            for key, by_launches in times.items()
        }
    )


def _time(launches: int, durations: list[int]) -> AloneTime:
    low, median, high = np.quantile(durations, (0.1, 0.5, 0.9)).tolist()
    return AloneTime(launches, median, (high - low) / median, len(durations))


def _scenarios(file: Path, works: Mapping[str, RecordedWork], device: DeviceFacts) -> tuple[RecordedScenario, ...]:
    rows: dict[tuple[str, str, str], _Runs] = {}
    for number, row in enumerate(read_rows(file, _TOGETHER), 1):
        place = f"{file}: row {number}"
        _known(place, row["work"], works)
        if row["end_ns"] <= row["start_ns"]:
            raise InvalidInputError(f"{place}: it ends at {row['end_ns']} ns and began at {row['start_ns']} ns")
        scenario = rows.setdefault((row["group"], row["scenario"], row["policy"]), {})
        if len(rows) > _SCENARIOS:
            raise InvalidInputError(f"{place}: more than {_SCENARIOS} scenarios; that many are read")
        run = scenario.setdefault((row["take"], row["repetition"]), {})
        if row["member"] in run:
            raise InvalidInputError(f"{place}: member {row['member']} of this repetition is there already")
        if len(run) == _STREAMS:
            raise InvalidInputError(f"{place}: more than {_STREAMS} members side by side; that many streams are read")
        run[row["member"]] = {**row, "place": place}
    found = tuple(_scenario(key, runs, device) for key, runs in rows.items())
    for group, count in Counter(one.group for one in found).most_common(1):
        if count > _POLICIES:
            raise InvalidInputError(
                f"{file}: {count} scenarios of the group {group!r:.80}; at most {_POLICIES} are read"
            )
    tasks = sum(member.launches for one in found for member in one.members)
    if tasks > _TASKS:
        raise InvalidInputError(f"{file}: {tasks} launches in all scenarios; at most {_TASKS} are replayed")
    return found


def _scenario(key: tuple[str, str, str], runs: _Runs, device: DeviceFacts) -> RecordedScenario:
    members: tuple[RecordedMember, ...] = ()
    done = []
    for (take, repetition), run in sorted(runs.items()):
        ordered = [run[number] for number in sorted(run)]
        place = ordered[0]["place"]
        if sorted(run) != list(range(len(run))):
            raise InvalidInputError(f"{place}: members {sorted(run)} of a repetition; they count from 0 without a gap")
        mine = tuple(_member(row) for row in ordered)
        if members and mine != members:
            raise InvalidInputError(f"{place}: {key[1]!r:.80} has other members than in the repetition before")
        members = mine
        first = min(row["start_ns"] for row in ordered)
        starts, ends = (tuple(row[name] - first for row in ordered) for name in ("start_ns", "end_ns"))
        done.append(RecordedRun(take, repetition, starts, ends))
    row = next(iter(next(iter(runs.values())).values()))
    apart = sum(member.units for member in members)
    if device.compute_units is not None and apart > device.compute_units:
        raise InvalidInputError(
            f"{row['place']}: members have {apart} compute units of their own, the device has {device.compute_units}"
        )
    return RecordedScenario(key[0], key[1], key[2], row["part"], members, tuple(done))


def _member(row: Mapping[str, Any]) -> RecordedMember:
    return RecordedMember(row["work"], row["launches"], row["priority"], row["units"] or 0, row["lag_ns"])


def _check_alone(
    file: Path,
    scenarios: tuple[RecordedScenario, ...],
    alone: Mapping[tuple[str, int, int], tuple[AloneTime, ...]],
) -> None:
    known = {work for work, units, _ in alone if not units}
    for one in scenarios:
        if missing := next((member.work for member in one.members if member.work not in known), None):
            raise InvalidInputError(
                f"{file}: {one.name!r:.80}: alone.parquet has no time of {missing!r:.80} on all compute units"
            )
