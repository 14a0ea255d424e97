"""Folders of a recording on a GPU that somebody damaged: one line names the file, and nothing of theirs is lost."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.counts import remembered
from benchmarks.gpu.journal import Journal

ENTRY = {"take": 0, "key": "a:1", "part": "a", "seconds": 0.1, "tables": {"alone": [{"work": "gemm"}]}}
SESSION = {"date": "2026-01-01", "parts": "a"}
TAKE = {"take": 0, "sessions": [SESSION], "device": {"name": "x"}, "plan": {"size": "tiny", "seed": 0}}


def pack(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    status = main(["--output", str(folder), "--pack"])
    return status, capsys.readouterr().err.splitlines()


def recording(folder: Path) -> Path:
    (folder / "journal.jsonl").write_text(json.dumps(ENTRY) + "\n")
    (folder / "environment.json").write_text(json.dumps([TAKE]))
    return folder


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({**ENTRY, "tables": [1]}),
        json.dumps({**ENTRY, "tables": {"works": 7}}),
        json.dumps({**ENTRY, "tables": {"works": [5]}}),
        json.dumps({**ENTRY, "take": True}),
        json.dumps({**ENTRY, "part": None}),
        "[" * 100_000,
        "\udcff\udcfe",
        "7",
    ],
)
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with (recording(tmp_path) / "journal.jsonl").open("ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n")
    status, lines = pack(tmp_path, capsys)
    assert status == 1 and len(lines) == 1
    assert "journal.jsonl: line 2 is no entry of a journal" in lines[0]
    assert not (tmp_path / "alone.parquet").exists()


@pytest.mark.parametrize("row", [{"a": 1}, {"model": 5, "configuration": None}])
def test_an_epoch_without_a_name_is_told_in_one_line(
    tmp_path: Path, row: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    with (recording(tmp_path) / "journal.jsonl").open("a") as file:
        file.write(json.dumps({**ENTRY, "key": "e:1", "tables": {"epochs": [row]}}) + "\n")
    status, lines = pack(tmp_path, capsys)
    assert status == 1 and "epochs" in lines[-1] and "journal" in lines[-1]


@pytest.mark.parametrize("text", [b"my diary", b"my\ndiary", json.dumps(ENTRY).encode() + b"\nmy diary"])
def test_a_file_that_is_no_journal_is_not_cut(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(text)
    with pytest.raises(ValueError, match=r"journal.jsonl: line \d is no entry of a journal"):
        Journal(tmp_path / "journal.jsonl")
    assert (tmp_path / "journal.jsonl").read_bytes() == text


@pytest.mark.parametrize("torn", [b'{"ta', json.dumps(ENTRY).encode()[:-3], b"\0" * 50])
def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path, torn: bytes) -> None:
    whole = json.dumps(ENTRY).encode() + b"\n"
    (tmp_path / "journal.jsonl").write_bytes(whole + torn)
    assert Journal(tmp_path / "journal.jsonl").done == {"a:1"}
    assert (tmp_path / "journal.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        {"sessions": 5},
        {"sessions": [5]},
        {"sessions": [{}]},
        {"sessions": [{**SESSION, "date": 3}]},
        {"sessions": [{**SESSION, "versions": [1]}]},
        {"sessions": [{**SESSION, "state_before": "x"}]},
        {"device": {"name": 5}},
        {"device": {"name": "x", "missing": 7}},
        {"take": "0"},
    ],
)
def test_an_environment_of_other_types_is_named(
    tmp_path: Path, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    (recording(tmp_path) / "environment.json").write_text(json.dumps([{**TAKE, **change}]))
    status, lines = pack(tmp_path, capsys)
    assert status == 1 and len(lines) == 1 and "environment.json: is no list of recordings" in lines[0]
    assert not (tmp_path / "alone.parquet").exists()


@pytest.mark.parametrize("counts", [[10**9, 1], [1], [0, 1], ["a", 1], [True, 1], [257, 1]])
def test_launches_that_no_plan_chooses_are_chosen_again(tmp_path: Path, counts: list[object]) -> None:
    (tmp_path / "launches.jsonl").write_text(json.dumps(["a:1", counts]) + "\n")
    assert remembered(tmp_path, "a:1", 2, lambda: [3, 4]) == [3, 4]
    assert remembered(tmp_path, "a:1", 2, lambda: [5, 6]) == [3, 4]


def test_a_lock_that_is_a_link_leaves_its_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (tmp_path / "precious").write_text("precious")
    (recording(folder) / ".lock").symlink_to(tmp_path / "precious")
    assert pack(folder, capsys)[0] == 0
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_mark_that_is_nested_too_deep_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "running.json").write_text("[" * 100_000)
    from benchmarks.gpu.run import note_death

    note_death(tmp_path, Journal(tmp_path / "journal.jsonl"), [])
    assert not (tmp_path / "running.json").exists()
