"""The length of an iteration: stated in an annotation, standing in a shape, or in the user's own file."""

import json
from pathlib import Path
from typing import Any

import pytest
from traces import event

from profilers.errors import InvalidInputError, NotFoundError
from profilers.ingest.lengths import LengthRule
from profilers.ingest.pipeline import IngestOptions, collect


def read(folder: Path, *events: dict[str, Any], length: str | None = None) -> list[tuple[Any, ...]]:
    """Return (rank, iteration, length, found by, batch) of each iteration."""
    path = folder / "t.json"
    path.write_text(json.dumps(list(events)))
    table = collect([path], IngestOptions(length=length)).iterations.to_pylist()
    names = ("rank", "iteration", "sequence_length", "length_found_by", "batch")
    return [tuple(row[name] for name in names) for row in table]


def note(name: str, ts: float = 1, dur: float = 9) -> dict[str, Any]:
    return event(name, "user_annotation", ts, dur)


def steps(count: int, **more: Any) -> list[dict[str, Any]]:
    return [event(f"ProfilerStep#{i}", "user_annotation", 10 * i + 1, 9, **more) for i in range(count)]


@pytest.mark.parametrize(
    ("name", "length", "batch"),
    [
        ("execute_32_context_0(sq0sk0sqsq0)_generation_32(sq32sk55086)", 32, 32),
        ("execute_1056_context_4(sq1024sk1024)_generation_32(sq32sk5)", 1056, 36),
        ("step[DECODE bs=32]", 32, 32),
        ("step[EXTEND bs=4 toks=2048]", 2048, 4),
        ("iteration sequence_length=128 batch=8", 128, 8),
        ("train_step seq_len: 77", 77, None),
        ("train_step batch_size=5", None, 5),
        ("train_step SL=0", None, None),
        ("train_step seqlen=" + "9" * 18, 10**18 - 1, None),
        ("train_step seqlen=" + "1" * 25, None, None),
        ("train_step", None, None),
    ],
)
def test_what_an_annotation_states(tmp_path: Path, name: str, length: int | None, batch: int | None) -> None:
    found_by = None if length is None else "annotation"
    assert read(tmp_path, note(name)) == [(0, 0, length, found_by, batch)]


def test_the_first_annotation_in_a_step_that_states_a_length_counts(tmp_path: Path) -> None:
    inside = [note("seq_len=9", 15, 1), note("seq_len=8", 12, 1), note("load", 11, 1), note("seq_len=7", 50, 1)]
    assert read(tmp_path, *steps(2), *inside) == [(0, 0, None, None, None), (0, 1, 8, "annotation", None)]


def op(ts: float, dims: Any, name: str = "aten::embedding", **more: Any) -> dict[str, Any]:
    return event(name, "cpu_op", ts, 1, **{"Input Dims": dims, **more})


@pytest.mark.parametrize(
    ("rule", "found"),
    [("aten::embedding:1:1", [64, 96]), ("aten::embedding:0:0", [1000, 1000]), ("aten::embedding:1:0", [4, 4])],
)
def test_a_rule_reads_the_first_operator_of_each_step(tmp_path: Path, rule: str, found: list[int]) -> None:
    events = [*steps(2), op(5, [[1000, 16], [4, 999]]), op(2, [[1000, 16], [4, 64]]), op(12, [[1000, 16], [4, 96]])]
    assert read(tmp_path, *events, length=rule) == [(0, i, size, "shape", None) for i, size in enumerate(found)]


def test_a_rule_goes_before_an_annotation_and_leaves_it_where_it_finds_nothing(tmp_path: Path) -> None:
    events = [*steps(2), note("seq_len=8", 2, 1), note("seq_len=9", 12, 1), op(3, [[64]])]
    found = read(tmp_path, *events, length="aten::embedding:0:0")
    assert found == [(0, 0, 64, "shape", None), (0, 1, 9, "annotation", None)]


@pytest.mark.parametrize(
    "dims", [None, 5, {}, [], [[]], ["x"], [["64"]], [[0]], [[-1]], [[True]], [[1.5]], [[1 << 70]], [{"0": 4}]]
)
def test_a_shape_without_sense_is_passed_over(tmp_path: Path, dims: Any) -> None:
    found = read(tmp_path, *steps(1), op(2, dims), op(3, [[64]]), length="aten::embedding:0:0")
    assert found == [(0, 0, 64, "shape", None)]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("aten::missing:0:0", "the trace has no operator 'aten::missing'"),
        ("aten::embedding:7:0", "no 'aten::embedding' has such a dimension; was record_shapes on?"),
        ("aten::embedding:0:7", "no 'aten::embedding' has such a dimension"),
        ("aten::embedding", "is no length rule; write OP:ARGUMENT:DIMENSION"),
        ("aten::embedding:x:0", "is no length rule"),
        ("aten::embedding:0:-1", "is no length rule"),
        ("aten::embedding:0:²", "is no length rule"),
        (":0:0", "is no length rule"),
        ("", "is no length rule"),
        ("x" * 5000, "is no length rule"),
    ],
)
def test_a_rule_that_gives_nothing_says_why(tmp_path: Path, rule: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, *steps(1), op(2, [[64]]), length=rule)
    assert message in str(caught.value)


def test_a_rule_may_have_colons_in_its_operator() -> None:
    assert LengthRule.parse("my::ns::op:10:2") == LengthRule("my::ns::op", 10, 2)


TWO_RANKS = [*steps(2), *steps(2, rank=1)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("iteration,sequence_length\n0,64\n1,96\n", [64, 96, 64, 96]),
        ("sequence_length,note,iteration\r\n64,a,0\r\n96,b,1\r\n", [64, 96, 64, 96]),
        ("\ufeffiteration , sequence_length\n 0 , 64\n\n1,96", [64, 96, 64, 96]),
        ("rank,iteration,sequence_length\n0,0,64\n1,0,65\n1,1,97\n", [64, None, 65, 97]),
        ("iteration,sequence_length\n0,64\n0,64\n7,5\n", [64, None, 64, None]),
        ("iteration,sequence_length\n1,96\n", [None, 96, None, 96]),
    ],
)
def test_a_file_with_and_without_ranks(tmp_path: Path, text: str, found: list[int | None]) -> None:
    (tmp_path / "lengths.csv").write_bytes(text.encode())
    got = read(tmp_path, *TWO_RANKS, length=str(tmp_path / "lengths.csv"))
    assert [row[:3] for row in got] == [(r, i, found[2 * r + i]) for r in (0, 1) for i in (0, 1)]
    assert {row[3] for row in got} <= {"file", None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iteration,sequence_length\n0,64\n1,long\n", "line 3: sequence_length is 'long', which is no whole number"),
        ("iteration,sequence_length\n0,64\n\n1,9.5\n", "line 4: sequence_length is '9.5'"),
        ("iteration,sequence_length\n0,true\n", "line 2: sequence_length is 'true'"),
        ("iteration,sequence_length\n0,0\n", "line 2: sequence_length is '0', which is no whole number of at least 1"),
        ("iteration,sequence_length\n-1,64\n", "line 2: iteration is '-1', which is no whole number of at least 0"),
        ("iteration,sequence_length\n0\n", "line 2: sequence_length is ''"),
        ("iteration,sequence_length\n0," + "9" * 30 + "\n", "line 2: sequence_length is '999"),
        ("rank,iteration,sequence_length\n,0,64\n", "line 2: rank is ''"),
        ("iteration,sequence_length\n0,64\n0,65\n", "line 3: gives iteration 0 a second length, 65"),
        ("iteration,length\n0,64\n", "has no column 'sequence_length' (it has iteration, length)"),
        ("iteration,sequence_length\n", "holds no length"),
        ("", "has no column 'iteration'"),
        ("iteration,sequence_length\n7,64\n", "gives no iteration of this trace a length"),
        ('iteration,sequence_length\n0,"' + "6" * 200_000, "not a CSV file of lengths (field larger than field limit"),
        (b"\xff\xfe", "not a CSV file of lengths"),
    ],
)
def test_a_file_in_error_names_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "lengths.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, *steps(1), length=str(tmp_path / "lengths.csv"))
    assert message in str(caught.value) and "lengths.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file of lengths"):
        read(tmp_path, *steps(1), length=str(tmp_path / "missing.csv"))
