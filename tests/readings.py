"""What tests of readers share: a file read, its rows as tuples, and counts that add up."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from profilers.ingest.stage import Stage
from profilers.readers.common.reader import Reader
from profilers.trace.quality import Quality
from profilers.trace.trace import Trace

Rows = Sequence[tuple[Any, ...]]

#: Values that a column may hold, whatever it is declared as.
CELLS = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text('ab0x{}[1"', max_size=5)
    | st.binary(max_size=5)
)
#: Counts that are no losses: of the events, and of what linking found.
USUAL = {"events", "kept", "orphan_device", "orphan_op", "stream_overlap"}


def read_files(reader: Reader, paths: Sequence[Path], **limits: int) -> Trace:
    """Return what a reader makes of files, not linked yet."""
    stage = Stage(**limits)
    return Trace(reader.read(paths, stage), stage.tables())


def read_content(reader: Reader, path: Path, content: str | bytes, **limits: int) -> Trace:
    """Write a file and return what a reader makes of it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_files(reader, [path], **limits)


def table(trace: Trace, kind: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of some columns."""
    return [tuple(row[c] for c in columns) for row in trace.tables[kind].to_pylist()]


def linked(trace: Trace, kind: str) -> list[tuple[str, str | None]]:
    """Return the name of each device event, and that of the call that launched it."""
    calls = dict(table(trace, "launches", "id", "name"))
    return [(name, calls.get(launch)) for name, launch in table(trace, kind, "name", "launch_id")]


def rows_of(trace: Trace) -> int:
    """Return the number of rows of all tables."""
    return sum(each.num_rows for each in trace.tables.values())


def balanced(quality: Quality) -> bool:
    """Return whether every event of the files was kept, dropped or skipped."""
    ends = ("dropped_", "skipped_")
    return quality["events"] == sum(n for name, n in quality.counts.items() if name == "kept" or name.startswith(ends))


def losses(trace: Trace) -> dict[str, int]:
    """Return what was dropped, skipped or repaired, of counts that add up."""
    assert balanced(trace.meta.quality)
    return {name: n for name, n in trace.meta.quality.counts.items() if name not in USUAL}


def holds_json(trace: Trace) -> bool:
    """Return whether every argument is a JSON object that any reader takes, without NaN."""
    texts = {row["args"] for kind in trace.tables.values() if "args" in kind.schema.names for row in kind.to_pylist()}
    return all(isinstance(json.loads(text, parse_constant=pytest.fail), dict) for text in texts - {None})


def database(path: Path, tables: Mapping[str, tuple[str, Rows]], statements: Sequence[str] = ()) -> Path:
    """Write tables, each with its columns as SQL declares them, and rows; statements run before the rows come."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for name, (columns, _) in tables.items():
            connection.execute(f'CREATE TABLE "{name}" ({columns})')
        for statement in statements:
            connection.execute(statement)
        for name, (columns, rows) in tables.items():
            marks = ",".join("?" * (columns.count(",") + 1))
            connection.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)
        connection.commit()
    return path


def put_cell(tables: Mapping[str, list[tuple[Any, ...]]], name: str, row: int, column: int, cell: Any) -> None:
    """Replace a cell of a table, in place; its row and column are counted round, and the first column stays."""
    chosen = list(tables[name][row % len(tables[name])])
    chosen[max(column % len(chosen), 1)] = cell
    tables[name][row % len(tables[name])] = tuple(chosen)
