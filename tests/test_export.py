"""Out of a trace and back, on what real files hold: grids of AMD, instants, names, several ranks, times on the host."""

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from traces import event, kernel, kineto, launch, step, transformer, write_trace

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.readers.chakra.protobuf import Node, read_records
from profilers.trace.schema import KINDS, make_table
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta
from profilers.writers.chakra import export_chakra
from profilers.writers.perfetto import export_perfetto
from replay.engine.timeline import replay
from replay.writers.perfetto import write_perfetto
from seqpoint.graphs import graph_of

DATA = Path(__file__).parents[2] / "shared/data/traces/kineto"
IDS = ("launch_id", "op_id", "kernel_id", "collective_id")


def rows(trace: Trace, kind: str, *, drop: tuple[str, ...] = ()) -> list[str]:
    """Return the rows of a kind in an order of their own: ids as what they stand for, arguments as they are."""
    names = {row["id"]: (k, row["rank"], row["name"], row["start_ns"]) for k in KINDS for row in _plain(trace, k)}
    found = []
    for row in _plain(trace, kind):
        told = {name: names.get(value) if name in IDS else value for name, value in row.items() if name not in drop}
        found.append(repr({name: value for name, value in told.items() if name != "id"}))
    return sorted(found)


def _plain(trace: Trace, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trace.tables[kind].to_pylist()
    return found


def written(folder: Path, events: list[dict[str, Any]], **header: Any) -> Trace:
    path = folder / "in.json"
    path.write_text(json.dumps(kineto(events, **header)))
    return collect([path])


def through_perfetto(trace: Trace, folder: Path, name: str = "out.json") -> Trace:
    export_perfetto(trace, folder / name)
    return collect([folder / name])


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_everything_comes_back_and_refers_to_the_same(tmp_path: Path, name: str) -> None:
    odd = [
        event('k "q" \\ naïve \x7f', "user_annotation", 1200.001, 3, note={"a": [1, None, "x"]}),
        event("no category", "", 1300, 1),
        {"ph": "i", "name": "mark", "ts": 1400.5, "pid": "Traces", "args": {"why": "because"}},
        {"ph": "C", "cat": "gpu", "name": "Power", "ts": 1500.5, "pid": 0, "tid": 0, "args": {"value": 0.1 + 0.2}},
        {"ph": "i", "cat": "cpu", "name": "[memory]", "ts": 1501, "pid": 1, "args": {"Bytes": -512, "Addr": 7}},
        event("Memset (Device)", "gpu_memset", 1510, 2, stream=7, device=0, bytes=4, correlation=99),
        event("Context Sync", "cuda_sync", 1520, 2, stream=-1, device=0, cuda_sync_kind="Context Synchronize"),
    ]  # fmt: skip
    header = {"distributedInfo": {"rank": 3, "world_size": 8}, "baseTimeNanoseconds": 1_719_853_884_000_000_000}
    trace = written(tmp_path, [*step(1, 1000.125), *step(2, 3000), *odd], **header)
    back = through_perfetto(trace, tmp_path, name)
    for kind in KINDS:
        assert rows(back, kind) == rows(trace, kind), kind
    assert back.iterations.to_pylist() == trace.iterations.to_pylist()
    for fact in ("ranks", "world_size", "clock_base_ns", "devices"):
        assert getattr(back.meta, fact) == getattr(trace.meta, fact)


def test_times_that_nobody_measured_stay_marked(tmp_path: Path) -> None:
    """A synthetic trace is synthetic after export and ingest, and so is what is joined with it."""
    trace = transformer(256, device="A100-SXM4-80GB")
    back = through_perfetto(trace, tmp_path, "synthetic.json")
    assert trace.meta.synthetic and back.meta.synthetic
    assert load_trace(save_trace(back, tmp_path / "back.trace")).meta.synthetic
    assert collect([tmp_path / "synthetic.json", write_trace(tmp_path / "measured.json")]).meta.synthetic
    assert not collect([tmp_path / "measured.json"]).meta.synthetic
    write_perfetto(tmp_path / "replayed.json", {"as recorded": replay(graph_of(trace)[1])})
    assert collect([tmp_path / "replayed.json"]).meta.synthetic


def test_grids_in_work_items_or_on_the_launch_are_not_counted_twice(tmp_path: Path) -> None:
    """hipExtModuleLaunchKernel writes work-items, and kernels of ROCm have their grid on the launch alone."""
    call = launch(0, 1, "hipExtModuleLaunchKernel")
    call["args"] |= {"grid": [2048, 1, 1], "block": [256, 1, 1]}
    trace = written(tmp_path, [call, event("gemm", "kernel", 10, 5, stream=0, device=0, correlation=1)])
    assert trace.kernels["workgroups"].to_pylist() == [8]
    back = through_perfetto(trace, tmp_path)
    assert rows(back, "kernels") == rows(trace, "kernels")


def test_workgroups_of_other_profilers_come_back(tmp_path: Path) -> None:
    calls = {"id": [0, 1], "rank": [0, 0], "name": ["hipLaunchKernel", "hipExtModuleLaunchKernel"], "start_ns": [1, 2]}
    ran = {"id": [2, 3], "rank": [0, 0], "name": ["a", "b"], "start_ns": [5, 6], "launch_id": [0, 1], "dur_ns": [1, 1]}
    shape = {"workgroups": [7, 9], "workgroup_size": [64, 256], "correlation": [1, 2]}
    tables = {
        "launches": make_table("launches", {**calls, "dur_ns": [1, 1], "correlation": [1, 2]}),
        "kernels": make_table("kernels", {**ran, **shape}),
    }
    back = through_perfetto(Trace(TraceMeta("rocprof", ranks=(0,)), tables), tmp_path)
    assert back.kernels.sort_by("start_ns")["workgroups"].to_pylist() == [7, 9]
    assert back.kernels["workgroup_size"].to_pylist() == [64, 256]


def test_what_a_kernel_does_not_say_of_its_collective_is_written(tmp_path: Path) -> None:
    trace = written(tmp_path, [launch(0, 1), kernel("ncclDevKernel_AllReduce_Sum", 10, 5, 1)])
    known = trace.collectives.to_pylist()[0] | {
        "group_name": "7",
        "group_ranks": "[0, 3]",
        "dtype": "half",
        "bytes": 20,
    }
    known |= {"elements_in": 10, "elements_out": 10, "group_size": 2}
    trace = trace.with_tables(collectives=make_table("collectives", {k: [v] for k, v in known.items()}))
    back = through_perfetto(trace, tmp_path)
    assert rows(back, "collectives", drop=("args",)) == rows(trace, "collectives", drop=("args",))


def test_ranks_with_the_same_processes_and_devices_stay_apart(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / f"r{rank}.json", distributedInfo={"rank": rank, "world_size": 2})
    trace = collect([tmp_path])
    back = through_perfetto(trace, tmp_path, "out.json")
    for kind in KINDS:
        # Kineto has no other place for the rank than the arguments, and no two processes of one number.
        drop = ("args", "process")
        assert rows(back, kind, drop=drop) == rows(trace, kind, drop=drop), kind
    document = json.loads((tmp_path / "out.json").read_text())
    places = defaultdict(set)
    for one in document["traceEvents"]:
        if one["ph"] == "X":
            places[one["pid"]].add((one["args"]["rank"], one["cat"] == "kernel"))
    assert all(len(found) == 1 for found in places.values()) and len(places) == 4
    named = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert sorted(named.values()) == [
        "rank 0: device 0 NVIDIA A100-SXM4-80GB", "rank 0: process 10",
        "rank 1: device 0 NVIDIA A100-SXM4-80GB", "rank 1: process 10",
    ]  # fmt: skip


def test_arrows_go_from_the_launch_to_its_kernel(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "t.json", steps=1)])
    export_perfetto(trace, tmp_path / "o.json")
    events = json.loads((tmp_path / "o.json").read_text())["traceEvents"]
    ends = defaultdict(dict)
    for one in events:
        if one["ph"] in "sf":
            ends[one["id"]][one["ph"]] = one
    slices = {(e["pid"], e["tid"], e["ts"]): e["args"].get("correlation") for e in events if e["ph"] == "X"}
    found = [[slices[e[p]["pid"], e[p]["tid"], e[p]["ts"]] for p in "sf"] for e in ends.values()]
    assert sorted(found) == [[11, 11], [12, 12], [14, 14], [15, 15]]


def test_a_trace_without_events_is_not_written(tmp_path: Path) -> None:
    empty = Trace(TraceMeta("example", ranks=(0,), devices=(DeviceProperties(0, 0, "A100"),)))
    with pytest.raises(InvalidInputError, match="no event to write"):
        export_perfetto(empty, tmp_path / "o.json")
    with pytest.raises(InvalidInputError, match="no operator, launch or device work"):
        export_chakra(empty, tmp_path / "o.et")
    assert not list(tmp_path.iterdir())


def nodes_of(path: Path) -> list[Node]:
    with path.open("rb", buffering=0) as stream:
        return list(read_records(stream, {}, Counter()))


def test_nodes_follow_their_callers_threads_streams_and_launches(tmp_path: Path) -> None:
    """One thread: outer 0..100 us around inner 10..40 around a launch 20..25; two kernels on one stream."""
    events = [
        event("outer", "cpu_op", 1000, 100), event("inner", "cpu_op", 1010, 30),
        launch(1020, 1), launch(1050, 2), kernel("a", 1030, 50, 1), kernel("b", 1081, 7, 2),
    ]  # fmt: skip
    (path,) = export_chakra(written(tmp_path, events), tmp_path / "job.et")
    found = nodes_of(path)
    names = {node.id: f"{node.name}{node.attributes['start_ns'] // 1000}" for node in found}
    told = {
        names[n.id]: ([names[i] for i in n.ctrl_deps], [names[i] for i in n.data_deps], n.duration_us) for n in found
    }
    assert path.name == "job.0.et"
    assert told == {
        "outer1000": ([], [], 65),
        "inner1010": (["outer1000"], ["outer1000"], 25),
        "cudaLaunchKernel1020": (["inner1010"], ["inner1010"], 5),
        "a1030": (["cudaLaunchKernel1020"], ["cudaLaunchKernel1020"], 50),
        "cudaLaunchKernel1050": (["outer1000"], ["cudaLaunchKernel1020"], 5),
        "b1081": (["cudaLaunchKernel1050"], ["a1030", "cudaLaunchKernel1050"], 7),
    }


def test_types_of_nodes_are_those_that_a_simulator_can_run(tmp_path: Path) -> None:
    facts = {"In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float", "Process Group Name": "3", "Group size": 2}
    sent = {**facts, "Collective name": "send", "Dst Rank": 1}
    events = [
        kernel("ncclDevKernel_AllReduce", 0, 1, 1, **facts, **{"Collective name": "allreduce"}),
        kernel("ncclDevKernel_SendRecv", 10, 1, 2, **sent),
        kernel("ncclDevKernel_SendRecv", 20, 1, 3),
        kernel("ncclDevKernel_Barrier", 30, 1, 4, **{"Collective name": "barrier"}),
        event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 40, 1, stream=7, device=0, bytes=64),
        event("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", 50, 1, stream=7, device=0, bytes=32),
        event("Memset (Device)", "gpu_memset", 60, 1, stream=7, device=0, bytes=16),
    ]
    found = nodes_of(export_chakra(written(tmp_path, events), tmp_path / "job.et")[0])
    keys = ("comm_type", "comm_size", "comm_dst", "pg_name", "tensor_size")
    told = [(n.type, *(n.attributes.get(key) for key in keys)) for n in found]
    assert told == [
        (7, 0, 32, None, "3", None),
        (5, None, 32, 1, "3", None),
        (4, None, None, None, None, None),
        (7, 9, None, None, None, None),
        (2, None, None, None, None, 64),
        (3, None, None, None, None, 32),
        (4, None, None, None, None, 16),
    ]
    assert not any(node.attributes["is_cpu_op"] for node in found)


def test_no_file_of_a_rank_appears_when_another_cannot_be_written(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / f"r{rank}.json", distributedInfo={"rank": rank, "world_size": 2})
    trace = collect([tmp_path])
    (tmp_path / "job.0.et").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises((InvalidInputError, OSError)):
        export_chakra(trace, tmp_path / "job.et")
    assert [p for p in sorted(tmp_path.iterdir()) if p not in before] in ([], [tmp_path / "job.1.et"])


REAL = ("hta/nccl_a100_rank0.json.gz", "hta/mi250_minitoy.json.gz", "ddp4/mi300_4ranks_merged.json.gz")


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
@pytest.mark.parametrize("name", REAL[:-1])  # that of four ranks takes half a minute
def test_real_traces_come_back_from_perfetto_json(tmp_path: Path, name: str) -> None:
    trace = collect([DATA / name])
    back = through_perfetto(trace, tmp_path)
    for kind in KINDS:
        assert rows(back, kind) == rows(trace, kind), kind
    assert back.iterations.to_pylist() == trace.iterations.to_pylist()


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
@pytest.mark.parametrize("name", REAL)
def test_real_traces_keep_their_work_and_collectives_in_chakra_files(tmp_path: Path, name: str) -> None:
    trace = collect([DATA / name])
    found = [node for path in export_chakra(trace, tmp_path / "job.et") for node in nodes_of(path)]
    host = sum(node.attributes["is_cpu_op"] for node in found)
    assert host == trace.ops.num_rows + trace.launches.num_rows
    assert len(found) - host == trace.kernels.num_rows + trace.copies.num_rows
    sizes = sorted(node.attributes["comm_size"] for node in found if node.type == 7)
    kept = trace.collectives.filter(pc.not_equal(trace.collectives["collective"].cast("string"), "send_recv"))
    assert sizes == sorted(kept["bytes"].to_pylist())


def test_a_packed_file_has_the_same_content_and_no_time_of_its_own(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "t.json")])
    for name in ("a.json", "b.json.gz", "c.json.gz"):
        export_perfetto(trace, tmp_path / name)
    assert gzip.decompress((tmp_path / "b.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()
    assert (tmp_path / "b.json.gz").read_bytes() == (tmp_path / "c.json.gz").read_bytes()
