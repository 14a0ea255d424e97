"""What is written for Perfetto is JSON as the format asks, its arrows join what waited, and it comes back."""

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import numpy as np
import pytest
from graphs import make_graph
from hypothesis import given
from test_analysis import timelines
from traces import kernel, kineto, launch, step, write_trace

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from replay.costs.shipped import load_parameters
from replay.engine.timeline import Timeline, replay
from replay.from_trace import build_graph
from replay.graph.graph import EdgeKind, KernelGraph, TaskKind
from replay.writers.perfetto import arrows_of, waits_of, write_perfetto

TIME = {"type": "number", "minimum": 0}
PLACE = {"pid": {"type": "integer"}, "tid": {"type": "integer"}}
#: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: the phases that are written.
PHASES = {
    "M": {"name": {"enum": ["process_name", "process_sort_index", "thread_name", "thread_sort_index"]}, **PLACE},
    "X": {"name": {"type": "string"}, "cat": {"type": "string"}, "ts": TIME, "dur": TIME, **PLACE},
    "s": {"name": {"type": "string"}, "cat": {"type": "string"}, "id": {"type": "integer"}, "ts": TIME, **PLACE},
    "f": {"name": {"type": "string"}, "id": {"type": "integer"}, "bp": {"const": "e"}, "ts": TIME, **PLACE},
    "C": {"name": {"type": "string"}, "ts": TIME, **PLACE, "args": {"additionalProperties": {"type": "number"}}},
}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "traceEvents": {
            "items": {
                "oneOf": [
                    {"properties": {"ph": {"const": phase}, **members}, "required": ["ph", *members]}
                    for phase, members in PHASES.items()
                ]
            }
        }
    },
}


def perfetto_json(timelines: dict[str, Timeline]) -> str:
    """Return timelines as one JSON text, as `write_perfetto` writes it."""
    with TemporaryDirectory() as folder:
        write_perfetto(Path(folder) / "t.json", timelines)
        return (Path(folder) / "t.json").read_text()


def events(*lines: Timeline) -> list[dict[str, Any]]:
    document = json.loads(perfetto_json({f"line {i}": line for i, line in enumerate(lines)}))
    jsonschema.validate(document, SCHEMA)
    found: list[dict[str, Any]] = document["traceEvents"]
    return found


def of(found: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [e for e in found if e["ph"] == phase]


def graph_of(path: Path) -> KernelGraph:
    return build_graph(collect([path]), 1, parameters=load_parameters())


@given(timelines())
def test_random_timelines_are_written_as_the_format_asks(line: Timeline) -> None:
    tasks = line.graph.tasks
    found = events(line)
    slices = [e for e in of(found, "X") if e["cat"] != "wait"]
    assert len(slices) == ((tasks.kind != TaskKind.MARK) & (tasks.lane >= 0)).sum()
    starts, ends = ({e["id"]: e for e in of(found, phase)} for phase in ("s", "f"))
    assert starts.keys() == ends.keys() and len(starts) == len(of(found, "s")) == len(of(found, "f"))
    assert all(starts[i]["ts"] <= ends[i]["ts"] + 0.001 for i in starts)


def test_both_ends_of_an_arrow_lie_in_slices(tmp_path: Path) -> None:
    found = events(replay(graph_of(write_trace(tmp_path / "t.json"))))
    slices = [(e["pid"], e["tid"], round(1e3 * e["ts"]), round(1e3 * (e["ts"] + e["dur"]))) for e in of(found, "X")]
    names = Counter(e["name"] for e in of(found, "s"))
    # Four launches; the step's last call waits for the device.
    assert names["launch"] == 4 and names["sync"] == 1
    for end in of(found, "s") + of(found, "f"):
        at = round(1e3 * end["ts"])
        assert any((pid, tid) == (end["pid"], end["tid"]) and start <= at < stop for pid, tid, start, stop in slices), (
            end
        )


def test_two_timelines_keep_their_processes_and_arrows_apart_and_are_written_the_same_twice(tmp_path: Path) -> None:
    line = replay(graph_of(write_trace(tmp_path / "t.json")))
    found = events(line, line)
    sides = [[e for e in found if e["pid"] // 1_000_000 == group] for group in (0, 1)]
    assert len(sides[0]) == len(sides[1]) == len(found) / 2
    assert not {e["id"] for e in of(sides[0], "s")} & {e["id"] for e in of(sides[1], "s")}
    assert perfetto_json({"a": line}) == perfetto_json({"a": line})


def test_threads_of_the_host_come_first_then_streams_by_number(tmp_path: Path) -> None:
    found = events(replay(graph_of(write_trace(tmp_path / "t.json"))))
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    places = {e["tid"]: e["args"]["sort_index"] for e in found if e["name"] == "thread_sort_index"}
    assert [names[tid] for tid in sorted(names, key=places.__getitem__)] == [
        "rank 0 thread 10",
        "rank 0 GPU 0 stream 7",
        "rank 0 GPU 0 stream 20",
    ]


def test_names_from_a_trace_stay_names(tmp_path: Path) -> None:
    odd = 'k"}],\\ \n\u202e\x1b[31m </script> 核'
    call, work = launch(1100, 99), kernel(odd, 1120, 5, 99)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(kineto([*step(1, 1000.0), call, work])))
    assert odd in {e["name"] for e in of(events(replay(graph_of(path))), "X")}


def test_ranks_that_wait_for_each_other_have_a_wait_and_an_arrow_from_the_last(tmp_path: Path) -> None:
    for rank, late in ((0, 0), (1, 40), (2, 25)):
        shifted = [
            {**e, "ts": e["ts"] + late, "dur": e["dur"] - late} if "nccl" in e["name"] else e for e in step(1, 1000.0)
        ]
        for e in shifted:
            if "nccl" in e["name"]:
                e["args"] |= {"Group size": 3, "Process Group Ranks": "[0, 1, 2]", "Process Group Name": "0"}
        header = {"distributedInfo": {"rank": rank, "world_size": 3}}
        (tmp_path / f"r{rank}.json").write_text(json.dumps(kineto(shifted, **header)))
    line = replay(build_graph(collect([tmp_path]), 1, parameters=load_parameters()))
    found = events(line)
    waits = {e["pid"]: e["dur"] for e in of(found, "X") if e["name"] == "waits for all ranks"}
    assert waits == {0: 40.0, 2: 15.0}
    ends = {phase: [e for e in of(found, phase) if e["name"] == "rendezvous"] for phase in "sf"}
    assert {e["pid"] for e in ends["s"]} == {1} and sorted(e["pid"] for e in ends["f"]) == [0, 2]


def test_counters_show_the_resources_in_use(tmp_path: Path) -> None:
    counters = of(events(replay(graph_of(write_trace(tmp_path / "t.json")))), "C")
    assert counters[0]["name"] == "GPU 0: % in use" and set(counters[0]["args"]) >= {"cu", "hbm"}
    assert max(e["args"]["cu"] for e in counters) == 62.5  # 1,080 workgroups, of which 16 fit on each of 108 units
    assert all(0 <= value <= 100.01 for e in counters for value in e["args"].values())


def test_the_file_comes_back_through_our_own_reader(tmp_path: Path) -> None:
    line = replay(graph_of(write_trace(tmp_path / "t.json")))
    write_perfetto(tmp_path / "out.json", {"replay": line})
    back = collect([tmp_path / "out.json"])
    kernels = back.kernels.sort_by("start_ns")
    tasks = line.graph.tasks
    rows = np.flatnonzero(tasks.kind == TaskKind.KERNEL)
    rows = rows[np.argsort(line.start_ns[rows])]
    assert kernels["name"].to_pylist() == [line.graph.names[i] for i in tasks.name[rows]]
    assert kernels["dur_ns"].to_pylist() == pytest.approx((line.end_ns - line.start_ns)[rows], abs=0.01)
    assert kernels["stream"].to_pylist() == [line.graph.lanes[i].number for i in tasks.lane[rows]]


def test_nothing_is_left_where_a_file_cannot_be_written(tmp_path: Path) -> None:
    line = replay(make_graph([1]))
    with pytest.raises(InvalidInputError, match="cannot be written"):
        write_perfetto(tmp_path / "no" / "out.json", {"a": line})
    write_perfetto(tmp_path / "out.json", {"a": line})
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_an_empty_timeline_is_still_a_file() -> None:
    assert events(replay(make_graph([]))) is not None
    assert json.loads(perfetto_json({}))["traceEvents"] == []


def test_the_call_that_waits_has_a_span_for_it(tmp_path: Path) -> None:
    line = replay(graph_of(write_trace(tmp_path / "t.json")))
    waits = waits_of(line)
    assert waits.for_device.tolist() == [True]
    # cudaDeviceSynchronize is called at 200 us and returns at 900; issuing it takes 1 us.
    assert (waits.begin_ns[0], waits.end_ns[0]) == pytest.approx((201_000, 900_000), abs=0.01)
    arrows = arrows_of(line, waits)
    kinds = line.graph.edges.kind[arrows.edge]
    assert arrows.target[kinds == EdgeKind.SYNC].tolist() == waits.mark.tolist()
