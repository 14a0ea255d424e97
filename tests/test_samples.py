"""The recorded CPU epoch that the project ships: it is complete, consistent, small, and names no machine."""

import csv
import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from profilers.files import dataset_path

THREADS = (1, 2)
SIZE_LIMIT_BYTES = 1_500_000
WARMUP_STEPS = 2
ANNOTATION = re.compile(r"^iteration sequence_length=(\d+) batch=(\d+)$")
PRIVATE = re.compile(r'(?:^|["\s(=:])/(?:root|work|home|tmp|usr|opt|mnt|var)\b|"host_?name"', re.IGNORECASE)


@cache
def trace(threads: int) -> dict[str, Any]:
    path = dataset_path(f"samples/cpu_epoch/epoch_threads{threads}.pt.trace.json.zst")
    with pa.input_stream(str(path), compression="zstd") as stream:
        document: dict[str, Any] = json.loads(stream.read())
    return document


@cache
def log(threads: int) -> tuple[tuple[int, ...], ...]:
    with dataset_path(f"samples/cpu_epoch/log_threads{threads}.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["iteration", "sequence_length", "batch", "duration_ns"]
    return tuple(tuple(map(int, row)) for row in rows)


def recorder() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "record_cpu_epoch.py"
    spec = importlib.util.spec_from_file_location("record_cpu_epoch", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spans(threads: int, prefix: str) -> list[dict[str, Any]]:
    found = [
        event for event in trace(threads)["traceEvents"] if event.get("ph") == "X" and event["name"].startswith(prefix)
    ]
    return sorted(found, key=lambda event: event["ts"])


def inside(event: dict[str, Any], span: dict[str, Any]) -> bool:
    return bool(span["ts"] <= event["ts"] and event["ts"] + event["dur"] <= span["ts"] + span["dur"])


def test_the_sample_is_small() -> None:
    files = list(dataset_path("samples/cpu_epoch").iterdir())
    assert sum(path.stat().st_size for path in files) < SIZE_LIMIT_BYTES


def test_the_readme_names_every_file() -> None:
    folder = dataset_path("samples/cpu_epoch")
    readme = (folder / "README.md").read_text()
    missing = {path.name for path in folder.iterdir()} - {"README.md"} - set(re.findall(r"[\w.]+\.(?:zst|csv)", readme))
    assert missing == set()


@pytest.mark.parametrize("threads", THREADS)
def test_every_iteration_of_the_log_has_a_step_and_an_annotation(threads: int) -> None:
    steps = [event["name"] for event in spans(threads, "ProfilerStep#")]
    assert steps == [f"ProfilerStep#{row[0] + WARMUP_STEPS}" for row in log(threads)]
    annotated = [ANNOTATION.fullmatch(event["name"]) for event in spans(threads, "iteration ")]
    assert [match and tuple(map(int, match.groups())) for match in annotated] == [row[1:3] for row in log(threads)]


@pytest.mark.parametrize("threads", THREADS)
def test_annotated_lengths_are_the_shapes_that_the_embedding_saw(threads: int) -> None:
    embeddings = spans(threads, "aten::embedding")
    steps = spans(threads, "ProfilerStep#")
    forward = [event for event in embeddings if event["name"] == "aten::embedding"]
    assert len(forward) == len(steps) == len(log(threads))
    for event, step, row in zip(forward, steps, log(threads), strict=True):
        assert inside(event, step)
        assert event["args"]["Input Dims"][1] == [row[2], row[1]]


def test_both_configurations_trained_on_the_same_batches() -> None:
    assert [row[:3] for row in log(1)] == [row[:3] for row in log(2)]


@pytest.mark.parametrize("threads", THREADS)
def test_iteration_time_follows_the_length(threads: int) -> None:
    rows = np.array(log(threads))
    lengths, durations = rows[:, 1], rows[:, 3]
    assert len(set(lengths)) > 40
    assert lengths.max() / lengths.min() > 5
    assert np.corrcoef(lengths, durations)[0, 1] > 0.9
    recorded = np.array([event["dur"] for event in spans(threads, "iteration ")])
    assert np.corrcoef(recorded, durations)[0, 1] > 0.85


def test_two_threads_are_faster_than_one() -> None:
    totals = {threads: sum(row[3] for row in log(threads)) for threads in THREADS}
    assert 1.2 < totals[1] / totals[2] < 2.5


@pytest.mark.parametrize("name", ["README.md", "log_threads1.csv", "log_threads2.csv"])
def test_text_files_name_no_path_of_the_machine(name: str) -> None:
    assert PRIVATE.findall(dataset_path(f"samples/cpu_epoch/{name}").read_text()) == []


@pytest.mark.parametrize("threads", THREADS)
def test_traces_name_no_host_and_no_path(threads: int) -> None:
    document = trace(threads)
    assert "host_name" not in document
    assert document["traceName"] == f"epoch_threads{threads}.pt.trace.json"
    assert PRIVATE.findall(json.dumps(document)) == []


def test_the_recorder_makes_the_recorded_batches_again() -> None:
    epoch = recorder().Epoch(iterations=len(log(1)), batch=16, seed=7)
    assert [(batch.sequence_length, batch.size) for batch in epoch.batches()] == [row[1:3] for row in log(1)]


def test_the_recorder_explains_itself() -> None:
    result = CliRunner().invoke(recorder().main, ["--help"])
    assert result.exit_code == 0
    for option in ("--output", "--iterations", "--batch", "--seed", "--threads"):
        assert option in result.output


def test_the_recorder_scrubs_paths_inside_nested_values() -> None:
    assert recorder().scrub({"args": [{"file": "/home/me/a.py(3)", "dims": [1, 2]}]}) == {
        "args": [{"file": "a.py(3)", "dims": [1, 2]}]
    }
