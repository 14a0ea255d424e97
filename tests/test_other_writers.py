"""Files that people really have: other vendors' events, merged ranks, odd numbers, damaged stamps, two writers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import event, kernel, kineto, launch

from profilers.ingest.pipeline import collect, ingest
from profilers.readers.kineto.lanes import label_ranks
from profilers.trace.arrays import integers, strings
from profilers.trace.quality import WARNING, quality_notes
from profilers.trace.store import load_trace
from profilers.trace.trace import Trace
from replay.graph.graph import hardware_of
from seqpoint import describe, project

AMD = {"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}]}


def read(folder: Path, events: list[dict[str, Any]] | str, **header: Any) -> Trace:
    path = folder / "trace.json"
    path.write_text(events if isinstance(events, str) else json.dumps(kineto(events, **header)))
    return collect([path])


def counts(trace: Trace) -> dict[str, int]:
    return dict(trace.meta.quality.counts)


def warnings(trace: Trace) -> set[str]:
    rows = {kind: table.num_rows for kind, table in trace.tables.items()}
    return {note.count for note in quality_notes(trace.meta.quality, rows) if note.severity == WARNING}


def busy_us(trace: Trace) -> float:
    return sum(device["busy_ns"] or 0 for device in describe(trace).to_dict()["devices"]) / 1e3


def on(events: list[dict[str, Any]], pid: Any = None, tid: Any = None) -> list[dict[str, Any]]:
    """Return events on another process or thread."""
    changes = {key: value for key, value in (("pid", pid), ("tid", tid)) if value is not None}
    return [{**each, **changes} for each in events]


@pytest.mark.parametrize(
    "places",
    [
        ({"sycl queue": 65, "l0 queue": "0x1041"}, {"sycl queue": 64, "l0 queue": "0x1040"}),
        ({"l0 queue": "0x7f0000001041"}, {"l0 queue": "0x7f0000001040"}),
        ({"stream": "0xffffffffffffff01"}, {"stream": "0xffffffffffffff02"}),
        ({}, {}),
    ],
)
def test_queues_of_intel_are_streams(tmp_path: Path, places: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """The two kernels of a queue follow each other, those of two queues overlap; without a queue, the thread tells."""
    events = [event("allreduce", "kernel", 100, 5000, device=0, **places[0])]
    events += [event(f"gemm{i}", "kernel", 100 + 200 * i, 200, device=0, **places[1]) for i in range(20)]
    for each, queue in zip(events, [65, *[64] * 20], strict=True):
        each |= {"pid": 0, "tid": queue}
    trace = read(tmp_path, events)
    stream = integers(trace.kernels, "stream")
    assert len(set(stream.tolist())) == 2 and (stream[0] != stream[1:]).all()
    assert int(integers(trace.kernels, "dur_ns").sum()) == 9_000_000
    assert busy_us(trace) == 5000
    assert "repaired_duration" not in counts(trace)


def stamped(late: int, us: float, name: str = "gemm", kind: str = "kernel") -> list[dict[str, Any]]:
    """Return 36 events of one stream, 100 us apart, of which one ends `us` after its start."""
    events = [kernel("gemm", 1000 + 100 * i, 80, i, stream=0) for i in range(36)]
    events[late] |= {"name": name, "cat": kind, "dur": us}
    launches = [launch(970 + 100 * i, i, "hipLaunchKernel") for i in range(36)]
    return [event("ProfilerStep#3", "user_annotation", 960, 3700), *events, *launches]


@pytest.mark.parametrize(
    ("late", "name", "kind", "cut_ns"),
    [
        (10, "gemm", "kernel", 100_000),
        (34, "gemm", "kernel", 100_000),
        (35, "gemm", "kernel", 80_000),
        (5, "Memcpy DtoH (Device -> Host)", "gpu_memcpy", 100_000),
        (34, "once", "kernel", 100_000),
    ],
)
def test_a_late_end_of_rocm_is_cut(tmp_path: Path, late: int, name: str, kind: str, cut_ns: int) -> None:
    trace = read(tmp_path, stamped(late, 3_150_000, name, kind), **AMD)
    table = trace.copies if kind == "gpu_memcpy" else trace.kernels
    row = np.flatnonzero(integers(table, "start_ns") == 1_000_000 + 100_000 * late)
    assert integers(table, "dur_ns")[row].tolist() == [cut_ns]
    assert counts(trace)["repaired_duration"] == 1
    (step,) = describe(trace).to_dict()["steps"]
    assert step["step_ns"] == 3_700_000


def test_a_name_that_is_late_each_time_is_cut_too(tmp_path: Path) -> None:
    """Kineto's annotations of a device have the late stamp too, and are no witness."""
    events = stamped(10, 3_150_000, "once")
    events[20] |= {"name": "once", "dur": 3_150_000}
    events.append(event("forward", "gpu_user_annotation", 1000, 4_000_000, stream=0))
    trace = read(tmp_path, events, **AMD)
    assert counts(trace)["repaired_duration"] == 2
    assert int(integers(trace.kernels, "dur_ns").max()) == 100_000


def test_several_late_ends_of_one_stream_are_cut(tmp_path: Path) -> None:
    events = stamped(10, 3_150_000)
    for each in events:
        if each["cat"] == "kernel" and each["ts"] in (2500, 4500):
            each["dur"] = 2_000_000
    trace = read(tmp_path, events, **AMD)
    assert counts(trace)["repaired_duration"] == 3
    assert int(integers(trace.kernels, "dur_ns").max()) == 100_000


@pytest.mark.parametrize(
    ("events", "header"),
    [
        # An NVIDIA device: branches of a graph on one stream, whatever their times.
        (stamped(10, 3_150_000), {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}),
        # Each step has a long kernel beside short ones: it is no outlier of its name.
        ([kernel("combine" if i % 9 == 0 else "gemm", 100 * i, 2000 if i % 9 == 0 else 80, i) for i in range(45)], AMD),
        # Branches of one launch, of which one waits for a peer once.
        (
            [
                kernel(
                    "gemm" if i % 5 else "combine", 10_000 * (i // 5) + 100 * (i % 5), 8000 if i == 10 else 30, i // 5
                )
                for i in range(60)
            ],
            AMD,
        ),
        # A single long kernel that ends beside others.
        ([kernel("combine", 0, 3000, 0), *(kernel("gemm", 10 + 110 * i, 110, i + 1) for i in range(24))], AMD),
        # The last kernel of a stream waits long for a peer, and the host waits for it.
        (
            [*stamped(35, 900_000, "ncclDevKernel"), event("hipDeviceSynchronize", "cuda_runtime", 4600, 900_000)],
            AMD,
        ),
    ],
)
def test_kernels_that_run_beside_each_other_are_not_cut(
    tmp_path: Path, events: list[dict[str, Any]], header: dict[str, Any]
) -> None:
    for each in events:
        if each["name"] == "hipLaunchKernel" and header is not AMD:
            each["name"] = "cudaLaunchKernel"
    trace = read(tmp_path, events, **header)
    stated = [each["dur"] * 1000 for each in events if each["cat"] == "kernel"]
    assert sorted(integers(trace.kernels, "dur_ns").tolist()) == sorted(stated)
    assert "repaired_duration" not in counts(trace)


def test_work_of_gaudi_is_read(tmp_path: Path) -> None:
    trace = read(tmp_path, on([event(f"op{i}", "hpu_op", 10 * i, 5) for i in range(8)], pid=2, tid=3))
    assert (trace.kernels.num_rows, busy_us(trace), warnings(trace)) == (8, 40, set())
    assert set(integers(trace.kernels, "device").tolist()) == {2}


def test_work_of_spyre_is_read_on_any_lane(tmp_path: Path) -> None:
    names = ("addmm Cmpt Prep", "addmm Cmpt Exec", "addmm DmaI", "addmm DmaO")
    events = [{"ph": "X", "name": n, "pid": 0, "tid": 1, "ts": 10 * i, "dur": 4} for i, n in enumerate(names)]
    trace = read(tmp_path, events)
    assert strings(trace.kernels, "name").tolist() == ["addmm Cmpt Exec"]
    assert strings(trace.copies, "name").tolist() == ["addmm DmaI", "addmm DmaO"]
    assert strings(trace.ranges, "name").tolist() == ["addmm Cmpt Prep"]


def named(pid: Any, process: str, **threads: str) -> list[dict[str, Any]]:
    """Return the metadata of a process and of its threads by number."""
    rows = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}]
    for tid, name in threads.items():
        number = int(tid.removeprefix("t"))
        rows.append({"args": {"name": name}, "name": "thread_name", "ph": "M", "pid": pid, "tid": number})
    return rows


def plain(name: str, pid: Any, tid: Any, ts: Any, dur: Any = 5, **args: Any) -> dict[str, Any]:
    """Return a complete event without a category."""
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def test_work_of_ascend_is_read_by_process_and_stream(tmp_path: Path) -> None:
    """torch_npu writes times as texts, and metadata behind the events."""
    events = [
        plain("launch", 10, 7, "1700000000000001.125", 2, connection_id=5),
        plain("MatMulV2", 31, 2, "1700000000000010.250", 5.5, connection_id=5, **{"Task Type": "AI_CORE"}),
        plain("MEMCPY_ASYNC", 31, 2, "1700000000000020", 3),
        plain("EVENT_WAIT", 31, 2, "1700000000000024", 9),
        plain("Computing", 31, 9, "1700000000000010", 20),
        *named(31, "Ascend Hardware", t2="Stream 2", t9="Overlap Analysis"),
        *named(10, "CANN"),
    ]
    trace = read(tmp_path, events)
    assert strings(trace.kernels, "name").tolist() == ["MatMulV2"]
    assert integers(trace.kernels, "start_ns").tolist() == [1_700_000_000_000_010_250]
    assert integers(trace.kernels, "launch_id").tolist() == integers(trace.launches, "id").tolist()
    assert integers(trace.kernels, "stream").tolist() == [2]
    assert (trace.copies.num_rows, trace.syncs.num_rows) == (1, 1)
    assert strings(trace.ranges, "name").tolist() == ["Computing"]
    assert not warnings(trace)


def test_xla_names_streams_and_operators_of_devices(tmp_path: Path) -> None:
    details = " regs:40 grid:4,64,1 block:256,1,1 occ_pct:50"
    gpu = [plain("fusion", 1, 1, 10 * i, correlation_id=str(i), kernel_details=details) for i in range(3)]
    gpu += [plain("fusion.1", 1, 5, 10 * i) for i in range(3)]
    tpu = [plain("while", 2, 4, 40, 30), plain("fusion.7", 2, 4, 80, 6), plain("5", 2, 6, 40, 60)]
    names = [
        *named(1, "/device:GPU:3", t1="Stream #16(Kernel)", t5="XLA Ops"),
        *named(2, "/device:TPU:0", t4="XLA Ops", t6="Steps"),
    ]
    trace = read(tmp_path, [*gpu, *tpu, *names])
    kernels = trace.kernels.to_pylist()
    assert [(row["device"], row["stream"]) for row in kernels] == [(3, 16)] * 3 + [(0, 4)]
    assert [(row["workgroups"], row["workgroup_size"]) for row in kernels[:3]] == [(256, 256)] * 3
    assert strings(trace.ranges, "name").tolist() == [*["fusion.1"] * 3, "while", "5"]


@pytest.mark.parametrize(
    ("events", "subject", "count"),
    [
        ([event("x", "npu_kernel", i, 1) for i in range(7)], "npu_kernel", 7),
        ([*[plain("TensorE", 4, i % 2, 3 * i) for i in range(6)], *named(4, "NeuronCore 0", t0="qActExec")],
         "NeuronCore 0", 6),
        ([*[plain("job", 5, 1, 3 * i) for i in range(4)], *named(5, "python", t1="DMA engine")], "python", 4),
    ],
)  # fmt: skip
def test_events_that_look_like_work_of_a_device_are_a_warning(
    tmp_path: Path, events: list[dict[str, Any]], subject: str, count: int
) -> None:
    trace = read(tmp_path, events)
    assert counts(trace)[f"unread_device[{subject}]"] == count
    (note,) = [n for n in quality_notes(trace.meta.quality, {}) if n.count.startswith("unread_device")]
    assert (note.severity, note.n) == (WARNING, count) and f'"{subject}"' in note.meaning


@pytest.mark.parametrize(
    ("launched", "worked", "expected"),
    [
        (range(48), [], {"launches_without_work"}),
        (range(48), range(20, 48), {"launches_without_work", "first_launches_without_work"}),
        (range(96), range(95), set()),
        (range(48), [*range(10), *range(20, 48)], {"launches_without_work"}),
    ],
)
def test_launches_without_work_are_a_warning(tmp_path: Path, launched: range, worked: Any, expected: set[str]) -> None:
    events = [launch(100 * i, i) for i in launched] + [kernel("gemm", 100 * i + 7, 80, i) for i in worked]
    trace = read(tmp_path, events)
    assert warnings(trace) == expected
    assert counts(trace)["kernel_launches"] == len(launched)


def merged(labels: list[str]) -> list[dict[str, Any]]:
    """Return the events of ranks with equal correlation ids and threads, in one file."""
    events = []
    for number, label in enumerate(labels):
        for i in range(10):
            at = 1000 * number + 100 * i
            events += on([launch(at, i)], pid=label.format(4000), tid=1)
            events += on([kernel(f"gemm{number}", at + 7, 80, i)], pid=label.format(number))
    return events


@pytest.mark.parametrize(
    ("labels", "ranks"),
    [
        (["[TP00] {}", "[TP01] {}"], [0, 1]),
        (["rank2_{}", "rank3_{}", "rank5_{}"], [2, 3, 5]),
        (["[DP0-TP0] {}", "[DP0-TP1] {}", "[DP1-TP0] {}"], [0, 1, 2]),
        (["host1: rank 0 pid {}", "host2: rank 1 pid {}"], [0, 1]),
        (["node0.rank0.{}", "node1.rank0.{}"], [0, 1]),
        (["{} [TP0]", "{} [TP1]"], [0, 1]),
        (["gpu-12:{}", "gpu-13:{}"], [0, 1]),
    ],
)
def test_ranks_of_one_file_are_told_apart_by_process(tmp_path: Path, labels: list[str], ranks: list[int]) -> None:
    header = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "distributedInfo": {"rank": ranks[0]}}
    trace = read(tmp_path, merged(labels), **header)
    assert trace.meta.ranks == tuple(ranks)
    kernels, launches = trace.kernels.to_pandas(), trace.launches.to_pandas()
    both = kernels.merge(launches, left_on="launch_id", right_on="id", suffixes=("", "_l"))
    assert len(both) == 10 * len(labels) and (both["start_ns"] - both["start_ns_l"] == 7000).all()
    assert (both["rank"] == both["rank_l"]).all() and both.groupby("rank")["name"].nunique().eq(1).all()
    assert hardware_of(trace).device is not None


def numbered(offset: int, shared_device: bool) -> list[dict[str, Any]]:
    """Return the events of two ranks, whose processes are numbers, with equal correlation ids."""
    events = []
    for rank in (0, 1):
        for i in range(10):
            at = 50 * rank + 100 * i
            events += on([launch(at, i), event("aten::mm", "cpu_op", at - 2, 20)], pid=4000 + offset * rank, tid=1)
            device = 0 if shared_device else rank
            events += on([kernel(f"gemm{rank}", at + 7, 30, i, device=device)], pid=device)
    return events


@pytest.mark.parametrize("shared_device", [False, True])
@pytest.mark.parametrize("offset", [1, 100_000_000])
def test_ranks_whose_processes_are_numbers_are_told_apart(tmp_path: Path, offset: int, shared_device: bool) -> None:
    trace = read(tmp_path, numbered(offset, shared_device))
    assert trace.meta.ranks == (0, 1)
    kernels, launches = trace.kernels.to_pandas(), trace.launches.to_pandas()
    both = kernels.merge(launches, left_on="launch_id", right_on="id", suffixes=("", "_l"))
    assert len(both) == 20 and (both["start_ns"] - both["start_ns_l"] == 7000).all()
    assert (both["name"] == "gemm" + both["rank"].astype(str)).all() and (both["rank"] == both["rank_l"]).all()
    ops = dict(zip(integers(trace.ops, "id").tolist(), integers(trace.ops, "rank").tolist(), strict=True))
    assert [ops[op] for op in both["op_id"]] == both["rank"].tolist()
    ingest([tmp_path / "trace.json"], tmp_path / "t.trace")
    stored = load_trace(tmp_path / "t.trace")
    for kind in ("kernels", "launches", "ops"):
        columns = ["rank", "name", "start_ns"]
        stored_rows, rows = (sorted(map(str, t.tables[kind].select(columns).to_pylist())) for t in (stored, trace))
        assert stored_rows == rows


def test_one_label_is_no_second_rank(tmp_path: Path) -> None:
    assert label_ranks(["[TP01] 4000", "[TP01] 0", "Spans", "python 7"]) == {}
    assert label_ranks(["CPU (pid 4000)", "GPU 0 (pid 4000)", "GPU 1 (pid 4000)", "cuda:0 4000"]) == {}
    assert read(tmp_path, merged(["[TP01] {}"]), distributedInfo={"rank": 3}).meta.ranks == (3,)


@pytest.mark.parametrize(
    "change",
    [
        {"ts": "1712195495000010.125"},
        {"ts": 1712195495000010.125, "tid": 15514734831341844875},
        {"pid": 7.0, "tid": 7.0},
        {"cname": None, "id": None},
        {"x": [float("nan"), float("inf"), {"y": float("-inf")}]},
    ],
)
def test_odd_values_of_an_event_change_nothing_else(tmp_path: Path, change: dict[str, Any]) -> None:
    plainly = read(tmp_path, [kernel("k", 10 * i, 8, i) for i in range(50)])
    events = [kernel("k", 10 * i, 8, i) | {k: v for k, v in change.items() if k != "x"} for i in range(50)]
    for each in events:
        each["args"] |= {"x": change["x"]} if "x" in change else {}
    oddly = read(tmp_path, events)
    for column in ("name", "dur_ns", "device", "stream", "correlation", "workgroups"):
        assert oddly.kernels[column].to_pylist() == plainly.kernels[column].to_pylist()
    assert oddly.meta.quality["repaired_nan"] == (150 if "x" in change else 0)


def properties(*names: str) -> dict[str, Any]:
    return {"deviceProperties": [{"id": i, "name": name} for i, name in enumerate(names)]}


@pytest.mark.parametrize(
    ("header", "used", "device"),
    [
        (properties("NVIDIA A100-SXM4-80GB", "Tesla T4"), [0], "A100-SXM4-80GB"),
        (properties("Tesla T4", "NVIDIA A100-SXM4-80GB"), [1], "A100-SXM4-80GB"),
        (properties("NVIDIA X900", "NVIDIA A100-SXM4-80GB"), [0], None),
        (properties("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"), [0, 1], None),
        (properties(*["AMD Instinct MI300X"] * 2), [2, 3], "MI300X"),
    ],
)
def test_the_device_is_that_of_the_kernels(
    tmp_path: Path, header: dict[str, Any], used: list[int], device: str | None
) -> None:
    trace = read(tmp_path, [kernel("k", 10 * i, 8, i, device=number) for i, number in enumerate(used)], **header)
    assert getattr(hardware_of(trace).device, "name", None) == device


def phase(ph: str, name: str, ts: float, **more: Any) -> dict[str, Any]:
    return {"ph": ph, "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, **more}


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_begins_and_ends_pair_in_any_order(tmp_path: Path, order: slice) -> None:
    events = [
        phase("B", "outer", 0, args={"a": 1}), phase("B", "inner", 10), phase("E", "inner", 20),
        phase("B", "inner", 30),
        phase("E", "", 45), phase("E", "outer", 50, args={"b": 2}), phase("B", "open", 60),
        phase("b", "request", 5, id=7), phase("b", "request", 6, id=8), phase("e", "request", 9, id=7),
        phase("e", "request", 16, id=8), phase("E", "never begun", 70, tid=2),
    ]  # fmt: skip
    trace = read(tmp_path, events[order])
    rows = {(row["name"], row["start_ns"]): row["dur_ns"] for row in trace.ranges.to_pylist()}
    assert rows == {
        ("outer", 0): 50_000, ("inner", 10_000): 10_000, ("inner", 30_000): 15_000, ("open", 60_000): None,
        ("request", 5000): 4000, ("request", 6000): 10_000,
    }  # fmt: skip
    found = counts(trace)
    assert (found["skipped_end"], found["dropped_end"], found["missing_duration"]) == (5, 1, 1)
    (outer,) = [row["args"] for row in trace.ranges.to_pylist() if row["name"] == "outer"]
    assert json.loads(outer) == {"a": 1, "b": 2}


def test_ids_of_asynchronous_events_have_scopes_and_processes(tmp_path: Path) -> None:
    ids: list[dict[str, Any]] = [{"id2": {"local": 1}}, {"id2": {"global": 2}}, {"id": 1, "scope": "a"}, {"id": 1}]
    events = [phase("b", "r", 10 * i, **own) for i, own in enumerate(ids)] + [phase("b", "r", 50, pid=2, **ids[0])]
    ends = [phase("e", "r", 100 + i, **own) for i, own in enumerate(ids)] + [phase("e", "", 120, pid=2, **ids[0])]
    trace = read(tmp_path, [*events, *ends])
    assert sorted(integers(trace.ranges, "dur_ns").tolist()) == [70_000, 73_000, 82_000, 91_000, 100_000]


@pytest.mark.parametrize("texts", [("55d0c8b3a2f1", "55d0c8b3b2f1"), ("queue@0x55c0f1", "queue@0x56c0f1")])
def test_handles_of_queues_are_told_apart(tmp_path: Path, texts: tuple[str, str]) -> None:
    events = [event("k", "kernel", 10 * i, 5, device=0, **{"l0 queue": text}) for i, text in enumerate(texts)]
    for each in events:
        each |= {"pid": 0, "tid": 3}
    assert len(set(integers(read(tmp_path, events).kernels, "stream").tolist())) == 2


def branches(stream: int, sync: str) -> list[dict[str, Any]]:
    """Return steps of a graph: an all-reduce of 3 ms beside 24 GEMMs, on their stream or another."""
    events = []
    for i in range(4):
        t = 5000 * i
        events += [event(f"ProfilerStep#{i}", "user_annotation", t + 990, 4900), launch(t + 1000, i, "cudaGraphLaunch")]
        events += [kernel("ncclDevKernel_AllReduce", t + 1100, 3000, i, stream)]
        events += [kernel("gemm", t + 1110 + 120 * j, 110, i) for j in range(24)]
        events += [event(sync, "cuda_runtime", t + 1050, 3090, correlation=100 + i)]
    return events


def test_branches_of_a_graph_project_as_on_two_streams(tmp_path: Path) -> None:
    """The host waits for all branches, whether they share a stream, and whatever it calls to wait."""
    found = []
    for stream, sync in ((8, "cudaDeviceSynchronize"), (7, "cudaDeviceSynchronize"), (7, "cudaStreamSynchronize")):
        trace = read(tmp_path, branches(stream, sync))
        rows = project(trace, [f"scale_kernels:{which}" for which in ("gemm:2", "collective:0.5")]).to_dict()["rows"]
        found.append([row["projected_ns"] for row in rows])
    assert found[1] == pytest.approx(found[0], rel=1e-3)
    assert found[2] == pytest.approx(found[0], rel=1e-3)
    assert found[0][0] > 24_000_000


TEXT = json.dumps(kineto([kernel(f"k{i}", 10 * i, 5, i) for i in range(40)], traceName="x"))


@pytest.mark.parametrize(
    ("text", "count", "kernels"),
    [
        (TEXT + '5,"dur":3}],"traceName":"older"}', "text_behind_end", 40),
        (TEXT + TEXT, "text_behind_end", 40),
        (TEXT + "\n \n", "", 40),
        (json.dumps(json.loads(TEXT)["traceEvents"]) + "[]", "text_behind_end", 40),
        (TEXT.replace('{"ph"', TEXT[: len(TEXT) // 2] + '{"ph"', 1), "mixed_writers", 39),
    ],
)
def test_a_file_of_two_writers_is_a_warning(tmp_path: Path, text: str, count: str, kernels: int) -> None:
    trace = read(tmp_path, text)
    assert warnings(trace) - {"dropped_broken"} == ({count} if count else set())
    assert trace.kernels.num_rows >= kernels


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"correlation": 3,', '"correlation": 3, "x": [1, [2, ], ], "y": {"z": 1, }, '),
        ("}}", ",}}"),
        ("}}", "},}"),
        ('"traceName": "x"', '"traceName": "x", "deviceProperties": [{"id": 0, "name": "NVIDIA X900", }, ], '),
        ("}}]", "}},]"),
        ('"traceName": "x"', '"traceName": "C:\\Users\\x", "deviceProperties": [{"id": 0, "name": "NVIDIA X900"}]'),
    ],
)
def test_a_comma_behind_the_last_element_is_tolerated(tmp_path: Path, old: str, new: str) -> None:
    assert old in TEXT
    trace, plainly = read(tmp_path, TEXT.replace(old, new)), read(tmp_path, TEXT)
    assert trace.kernels.drop_columns("args").equals(plainly.kernels.drop_columns("args"))
    assert {**counts(trace), "repaired_escape": 0} == {**counts(plainly), "repaired_escape": 0}
    if "X900" in new:
        assert [device.name for device in trace.meta.devices] == ["NVIDIA X900"]
