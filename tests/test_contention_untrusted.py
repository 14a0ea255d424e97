"""Recordings that somebody damaged, or made to be too much: refused in one line, in bounded memory and time."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import recordings

from profilers.errors import InvalidInputError
from replay.contention import (
    ContentionFit,
    ContentionRecording,
    RecordedMember,
    RecordedScenario,
    linked_groups,
    read_recording,
)
from replay.contention.recording import DeviceFacts, RecordedRun
from replay.costs.shipped import load_parameters
from seqpoint.validation.contention import predict_contention

Change = Callable[[pa.Table], pa.Table]


def small(folder: Path) -> Path:
    works = [recordings.product(2048), recordings.streamed(64), recordings.moved(64, "h2d")]
    return recordings.write_recording(folder, {}, works=works, noise=0.0)


def changed(folder: Path, table: str, change: Change) -> Path:
    file = folder / f"{table}.parquet"
    pq.write_table(change(pq.read_table(file)), file, compression="zstd", use_dictionary=["group"])
    return folder


def with_column(name: str, values: pa.Array) -> Change:
    return lambda table: table.set_column(table.column_names.index(name), name, values)


def repeated(table: pa.Table, rows: int) -> pa.Table:
    """Return the first row, so many times."""
    return table.take(pa.array(np.zeros(rows, dtype=np.int64)))


def test_a_small_file_that_unpacks_to_much_is_refused_before_it_does(tmp_path: Path) -> None:
    long = pa.array(["x" * 14_000_000] * 20)
    folder = small(tmp_path / "plain")
    file = folder / "together.parquet"
    table = with_column("scenario", long)(repeated(pq.read_table(file), 20))
    pq.write_table(table, file, compression="zstd", use_dictionary=False)
    assert file.stat().st_size < 200_000
    del table, long
    with pytest.raises(InvalidInputError, match=r"together.parquet: unpacks to 28\d+ bytes; a table of a recording"):
        read_recording(folder)


def test_a_long_text_of_many_rows_is_in_memory_once_and_refused(tmp_path: Path) -> None:
    one = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, dtype=np.int32)), pa.array(["x" * 1_000_000]))
    folder = changed(
        small(tmp_path / "one"), "together", lambda table: with_column("group", one)(repeated(table, 100_000))
    )
    # Row by row, these are 100 GB.
    with pytest.raises(InvalidInputError, match=r"together.parquet: row 1: group is 'x+; it must be a text of at"):
        read_recording(folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("group", ["a"], "column group is list<.*>, not text"),
        ("group", {"a": 1}, "column group is struct<.*>, not text"),
        ("group", b"\xff\xfe", "column group is binary, not text"),
        ("end_ns", 1.5, "column end_ns is double, not whole numbers"),
        ("end_ns", "7", "column end_ns is string, not whole numbers"),
        ("end_ns", True, "column end_ns is bool, not whole numbers"),
    ],
)
def test_a_type_is_refused_before_the_column_is_read(
    tmp_path: Path, name: str, value: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(table: pa.Table) -> pa.Table:
        return with_column(name, pa.array([value] * len(table)))(table)

    folder = changed(small(tmp_path / "one"), "together", change)
    real = pq.ParquetFile.iter_batches

    def watched(self: pq.ParquetFile, *given: object, **named: object) -> object:
        assert name not in self.schema_arrow.names, "it is read"
        return real(self, *given, **named)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    with pytest.raises(InvalidInputError, match=rf"together.parquet: {message}"):
        read_rows_of(folder)


def read_rows_of(folder: Path) -> list[dict[str, object]]:
    """Return the rows of the one table that is damaged."""
    from replay.contention import reading

    return list(reading.read_rows(folder / "together.parquet", reading._TOGETHER))


def test_too_many_rows_scenarios_policies_and_works_are_refused(tmp_path: Path) -> None:
    folder = changed(small(tmp_path / "rows"), "together", lambda table: repeated(table, 400_001))
    with pytest.raises(InvalidInputError, match=r"400001 rows; a table has 1 to 400000"):
        read_recording(folder)
    many = pa.array([f"g{i}" for i in range(20_001)])
    folder = changed(
        small(tmp_path / "groups"), "together", lambda table: with_column("group", many)(repeated(table, 20_001))
    )
    with pytest.raises(InvalidInputError, match=r"row 20001: more than 20000 scenarios; that many are read"):
        read_recording(folder)
    some = pa.array([f"p{i}" for i in range(501)])
    folder = changed(
        small(tmp_path / "policies"), "together", lambda table: with_column("policy", some)(repeated(table, 501))
    )
    with pytest.raises(InvalidInputError, match=r"501 scenarios of the group .*; at most 500 are read"):
        read_recording(folder)
    names = pa.array([f"w{i}" for i in range(10_001)])
    folder = changed(
        small(tmp_path / "works"), "works", lambda table: with_column("work", names)(repeated(table, 10_001))
    )
    with pytest.raises(InvalidInputError, match=r"row 10001: more than 10000 works; that many are read"):
        read_recording(folder)


@pytest.mark.parametrize("change", [{"flops": 5}, {"host_bytes": 9}, {"direction": "d2h"}, {"m": 3}, {"dtype": "fp8"}])
def test_a_work_that_takes_do_not_agree_on_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    folder = small(tmp_path / "one")
    rows = pq.read_table(folder / "works.parquet").to_pylist()
    rows.append({**rows[0], "workgroups": 77})
    pq.write_table(pa.Table.from_pylist(rows), folder / "works.parquet")
    assert len(read_recording(folder).works) == 3
    pq.write_table(pa.Table.from_pylist([*rows, {**rows[0], **change}]), folder / "works.parquet")
    with pytest.raises(InvalidInputError, match=r"works.parquet: row 5: '.*' is there before as another work"):
        read_recording(folder)


@pytest.mark.parametrize("name", ["environment.json", "works.parquet", "together.parquet"])
def test_what_is_no_file_is_not_said_to_be_missing(tmp_path: Path, name: str) -> None:
    folder = small(tmp_path / "one")
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(InvalidInputError, match=rf"{name}: is no regular file"):
        read_recording(folder)
    (folder / name).rmdir()
    os.mkfifo(folder / name)
    with pytest.raises(InvalidInputError, match=rf"{name}: is no regular file"):
        read_recording(folder)


def recording_of(groups: list[tuple[str, str]]) -> ContentionRecording:
    """Return a recording without works, of groups and the one work of each."""
    run = RecordedRun(0, (1,))
    scenarios = tuple(
        RecordedScenario(group, group, str(i), (RecordedMember(work),), (run,))
        for i, (group, work) in enumerate(groups)
    )
    alone = MappingProxyType({("w", 0, 0): {1: 1.0}})
    return ContentionRecording("x", DeviceFacts("x"), MappingProxyType({}), alone, scenarios, "")


def test_a_long_chain_of_kin_is_found_in_time() -> None:
    # Each group shares one work with the group before it, so that all are kin, one link at a time.
    names = [f"{i:05}" for i in reversed(range(10_000))]
    chain = [pair for i, name in enumerate(names) for pair in ((name, f"w{i}"), (name, f"w{i + 1}"))]
    begun = time.process_time()
    assert set(linked_groups([recording_of(chain)]).values()) == {"00000"}
    assert time.process_time() - begun < 2.0


def test_works_that_were_fitted_are_not_held_out_under_another_name(tmp_path: Path) -> None:
    folder = small(tmp_path / "one")
    before = read_recording(folder)
    fitted = before.scenarios[0]
    fit = ContentionFit(before.device.name, {}, (), 0.1, 12, before.digests_of(fitted), "one")
    works = {m.work for m in fitted.members}

    def renamed(table: pa.Table) -> pa.Table:
        return with_column("group", pa.array([f"again: {name}" for name in table["group"].to_pylist()]))(table)

    after = read_recording(changed(folder, "together", renamed))
    of_works = {s.name: {m.work for m in s.members} for s in after.scenarios}
    cases = predict_contention([after], load_parameters(), fit)
    assert {case.fitted for case in cases} == {True, False}
    assert all(case.fitted == (of_works[case.scenario] == works) for case in cases)


def test_a_device_that_was_not_fitted_is_held_out(tmp_path: Path) -> None:
    one, other = read_recording(small(tmp_path / "one")), small(tmp_path / "other")
    (other / "environment.json").write_text(json.dumps([{"device": {**recordings.DEVICE, "name": "Other"}}]))
    keys = tuple(key for s in one.scenarios for key in one.digests_of(s))
    fit = ContentionFit(one.device.name, {}, (), 0.1, 12, keys, "one")
    cases = predict_contention([one, read_recording(other)], load_parameters(), fit)
    assert {(case.device, case.fitted) for case in cases} == {("Imaginary 100", True), ("Other", False)}
