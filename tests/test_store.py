"""The folder on disk: everything comes back, nothing is half written, damage is one line."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profilers import files as atomic
from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.trace import store
from profilers.trace.quality import Quality
from profilers.trace.schema import SCHEMAS, make_table
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta


def _value(field: pa.Field, row: int) -> Any:
    """Return a value of a column's type that differs from row to row, the extremes of its type among them."""
    if pa.types.is_integer(field.type):
        width = field.type.bit_width - 1
        return [0, (1 << width) - 1, -(1 << width), row][row % 4] if field.name != "rank" else row % 3
    if pa.types.is_floating(field.type):
        return [0.0, -1.5, 3.25, 1e30][row % 4]
    return ["", "aten::mm", 'naïve "\\ 日本語\n', f"name {row}"][row % 4]


def _table(kind: str, rows: int = 9) -> pa.Table:
    """Return rows in which every nullable column is null in every third row."""
    columns = {
        field.name: pa.array(
            [None if field.nullable and row % 3 == 1 else _value(field, row) for row in range(rows)],
            field.type.value_type if pa.types.is_dictionary(field.type) else field.type,
        )
        for field in SCHEMAS[kind]
    }
    return make_table(kind, columns)


META = TraceMeta(
    format="kineto",
    version="schema 1",
    sources=("a.json", "b é.json"),
    ranks=(0, 1, 2),
    world_size=8,
    clock_base_ns=1_700_000_000_000_000_000,
    devices=(DeviceProperties(0, 0, "NVIDIA A100", 108, 85 << 30), DeviceProperties(1, 3, "")),
    quality=Quality({"events": 5, "kept": 4, "dropped_broken": 1}),
    fingerprint="ab" * 32,
)


def full() -> Trace:
    return Trace(META, {kind: _table(kind) for kind in SCHEMAS})


def by_rank(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["rank"])  # stable: rows of a rank keep their order


@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_every_kind_comes_back_with_its_nulls_and_extremes(tmp_path: Path, kind: str) -> None:
    saved = Trace(META, {kind: _table(kind)})
    loaded = load_trace(save_trace(saved, tmp_path / "x.trace"))
    assert loaded.tables[kind].schema.equals(SCHEMAS[kind], check_metadata=True)
    assert loaded.tables[kind].to_pylist() == by_rank(saved.tables[kind])
    assert all(loaded.tables[other].num_rows == 0 for other in SCHEMAS if other != kind)


def test_the_meta_data_comes_back(tmp_path: Path) -> None:
    assert load_trace(save_trace(full(), tmp_path / "x.trace")).meta == META


def test_saving_what_was_loaded_changes_no_byte(tmp_path: Path) -> None:
    first = save_trace(full(), tmp_path / "a.trace")
    second = save_trace(load_trace(first), tmp_path / "b.trace")
    names = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(second) for p in second.rglob("*") if p.is_file())
    assert [load_trace(first).tables[k].equals(load_trace(second).tables[k]) for k in SCHEMAS] == [True] * len(SCHEMAS)


def test_an_empty_trace_comes_back(tmp_path: Path) -> None:
    empty = Trace(TraceMeta("synthetic"))
    loaded = load_trace(save_trace(empty, tmp_path / "x.trace"))
    assert loaded.meta == empty.meta
    assert all(table.num_rows == 0 for table in loaded.tables.values())


def test_pandas_reads_a_file_as_it_is(tmp_path: Path) -> None:
    save_trace(full(), tmp_path / "x.trace")
    frame = pd.read_parquet(tmp_path / "x.trace" / "kernels" / "rank=0.parquet", partitioning=None)
    assert list(frame.columns) == SCHEMAS["kernels"].names
    assert frame["start_ns"].tolist() == [0, 3, -(1 << 63)]
    assert frame["rank"].tolist() == [0, 0, 0]
    assert frame["name"].astype(str).tolist() == ["", "name 3", 'naïve "\\ 日本語\n']


class Interrupted(BaseException):
    """Stands for a kill or Ctrl-C."""


@pytest.mark.parametrize("moment", ["first file", "last file", "meta.json", "rename"])
@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), Interrupted()], ids=["disk full", "killed"]
)
@pytest.mark.parametrize("exists", [True, False], ids=["over an old one", "new"])
def test_a_failure_leaves_the_old_trace_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, failure: BaseException, exists: bool
) -> None:
    target = tmp_path / "x.trace"
    old = Trace(TraceMeta("synthetic"), {"kernels": _table("kernels")})
    if exists:
        save_trace(old, target)
    calls = []

    def fail(*arguments: Any, **_more: Any) -> Any:
        calls.append(arguments)
        if moment != "last file" or len(calls) == 3 * len(SCHEMAS):
            raise failure
        return writes(*arguments, **_more)

    writes = store._writer
    place, name = {"meta.json": (store, "write_meta"), "rename": (store, "replace_folder")}.get(
        moment, (store, "_writer")
    )
    monkeypatch.setattr(place, name, fail)
    with pytest.raises((InvalidInputError, Interrupted)) as caught:
        save_trace(full(), target)
    assert calls
    if isinstance(failure, OSError):
        assert str(caught.value).endswith("cannot be written ([Errno 28] No space left on device)")
    assert [p.name for p in tmp_path.iterdir()] == (["x.trace"] if exists else [])
    if exists:
        assert load_trace(target).meta == old.meta
        assert load_trace(target).kernels.to_pylist() == by_rank(old.kernels)


def test_without_an_exchange_of_names_the_old_trace_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = save_trace(Trace(TraceMeta("synthetic", version="old")), tmp_path / "x.trace")
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    save_trace(Trace(TraceMeta("synthetic", version="new")), target)
    assert load_trace(target).meta.version == "new"

    def rename(self: Path, other: Path) -> Path:
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return real(self, other)

    real = Path.rename
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(InvalidInputError, match="Input/output error"):
        save_trace(full(), target)
    assert load_trace(target).meta.version == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["x.trace"]


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4:40] = bytes(36)
    file.write_bytes(bytes(content))


def _other_table(file: Path) -> None:
    pq.write_table(pa.table({"id": ["x"], "rank": [None]}), file)


@pytest.mark.parametrize("damage", [_cut, _flip, _other_table, lambda file: file.write_bytes(b"")])
def test_a_damaged_table_is_one_line_that_names_it(tmp_path: Path, damage: Any) -> None:
    target = save_trace(full(), tmp_path / "x.trace")
    damage(target / "kernels" / "rank=1.parquet")
    with pytest.raises(BrokenFileError, match=r"rank=1\.parquet: damaged \(.*\); ingest the trace again") as caught:
        load_trace(target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", "{}", '{"layout":1}', '{"layout":2}', "[" * 100_000, b"\xff", "quality", "devices", "ranks"],
)  # fmt: skip
def test_a_damaged_meta_file_is_one_line_that_names_it(tmp_path: Path, content: str | bytes) -> None:
    target = save_trace(full(), tmp_path / "x.trace")
    meta = target / "meta.json"
    if content in ("quality", "devices", "ranks"):
        content = json.dumps({**json.loads(meta.read_text()), content: ["x"]})
    meta.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BrokenFileError, match=r"meta\.json: .*ingest the trace again") as caught:
        load_trace(target)
    assert "\n" not in str(caught.value)


def test_a_count_of_a_later_version_is_left_out(tmp_path: Path) -> None:
    target = save_trace(full(), tmp_path / "x.trace")
    content = json.loads((target / "meta.json").read_text())
    content["quality"]["invented_later"] = 3
    (target / "meta.json").write_text(json.dumps(content))
    assert load_trace(target).meta.quality == META.quality


def test_what_is_no_trace_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such trace; make one with"):
        load_trace(tmp_path / "missing.trace")
    with pytest.raises(NotFoundError, match=r"not a \.trace folder \(it has no meta\.json\)"):
        load_trace(tmp_path)


@pytest.mark.parametrize("name", ["folder", "file", "missing/x.trace", "x" * 300])
def test_what_is_no_trace_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInputError):
        save_trace(full(), tmp_path / name)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder", "precious.txt"]
    assert (tmp_path / "file").read_text() == "mine"


def test_text_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    atomic.write_text(path, "old")
    monkeypatch.setattr(atomic.os, "fsync", lambda _: (_ for _ in ()).throw(Interrupted()))
    with pytest.raises(Interrupted):
        atomic.write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(InvalidInputError, match="cannot be written"):
        atomic.write_text(tmp_path / "no" / "x", "")


def test_many_ranks_cost_no_more_than_their_rows() -> None:
    ranks = 2000
    columns = {"id": range(ranks), "rank": range(ranks, 0, -1), "name": ["k"] * ranks, "start_ns": range(ranks)}
    table = make_table("kernels", {name: list(values) for name, values in columns.items()})
    parts = list(store._by_rank(table))
    assert [rank for rank, _ in parts] == list(range(1, ranks + 1))
    assert all(part["rank"].to_pylist() == [rank] for rank, part in parts)
