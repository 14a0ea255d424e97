"""Candidates for the sequence length: dimensions that differ between iterations, as --length takes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Run
from traces import event, kernel, launch

import seqpoint as sp
from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import IngestOptions, collect

LENGTHS = (40, 10, 30, 20)


def op(name: str, t: float, dims: Any) -> dict[str, Any]:
    return event(name, "cpu_op", t, 2, **{"Input Dims": dims})


def step(number: int, length: int) -> list[dict[str, Any]]:
    """Return a step whose kernel takes ten times its length; a product of the batch and the length comes first."""
    t, c = 1000.0 * number, number + 1
    return [
        event(f"ProfilerStep#{number}", "user_annotation", t, 900),
        op("aten::view", t + 1, [[8 * length, 64], []]),
        op("aten::embedding", t + 5, [[1000, 64], [8, length]]),
        op("aten::embedding", t + 9, [[1000, 64], [8, 7]]),
        op("aten::softmax", t + 13, [[8, length]]),
        op("aten::dropout", t + 17, [[8, 100 - length if number else 5]]),
        launch(t + 21, c),
        kernel("gemm", t + 30, 10 * length, c),
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([e for number, length in enumerate(LENGTHS) for e in step(number, length)]))
    return path


def test_the_length_of_many_operators_comes_first(file: Path) -> None:
    found = sp.lengths(file)
    best, product, worst = found.candidates
    assert (best.rule, best.alike, best.distinct, best.low, best.high, best.known) == (
        *("aten::embedding:1:1", 1, 4, 10, 40, 4),
    )
    assert best.kernel_time_correlation == pytest.approx(1)
    assert product.rule == "aten::view:0:0" and product.kernel_time_correlation == pytest.approx(1)
    # Sizes 5, 90, 70, 80 against times 4, 1, 3, 2: ranks 1 4 2 3 against 4 1 3 2.
    assert worst.rule == "aten::dropout:0:1" and worst.kernel_time_correlation == pytest.approx(-1)
    assert found.table().rule.tolist() == [row.rule for row in found.candidates]


def test_what_is_printed_is_what_length_takes(file: Path, tmp_path: Path, run: Run) -> None:
    shown = run("lengths", file)
    assert shown.code == 0 and "--length aten::embedding:1:1" in shown.out
    rule = json.loads(run("lengths", file, "--json").out)["candidates"][0]["rule"]
    trace = collect([file], IngestOptions(length=rule))
    assert trace.iterations["sequence_length"].to_pylist() == list(LENGTHS)
    kept = tmp_path / "t.trace"
    assert run("ingest", file, "-o", kept, "--length", rule).code == 0
    of_trace = run("lengths", kept, "--explain").out
    assert "4 of 4 iterations have a length already" in of_trace and "ingest its files again" in of_trace


def test_too_few_iterations_and_constant_shapes_are_said(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(step(0, 8) + step(1, 9)))
    with pytest.raises(InvalidInputError, match=r"2 iterations cannot tell .* need 3"):
        sp.lengths(path)
    path.write_text(json.dumps([e for i in range(4) for e in step(i + 1, 9)]))
    nothing = sp.lengths(path)
    assert nothing.candidates == () and "record_shapes=True" in nothing.closing()[0]
