"""rocprof 1, rocprofv3, rocpd and RPD: tiny recordings and the rows that they give; and the real ones."""

import csv
import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from profilers.arrays import integers
from profilers.collect import collect
from profilers.errors import BrokenFileError, UnknownFormatError
from profilers.trace import Trace

DATA = Path(__file__).parents[2] / "shared" / "data" / "traces" / "rocm"
real = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")

V1 = """Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,sgpr,BeginNs,EndNs
0,"void f<int, 2>(float*)",2,0,0,7,7,1000,256,64,0,16,32,3599977333839958,3599977333845531
1,"copy.kd",2,0,1,7,7,512,0,0,0,16,32,200,100
2,"late.kd",2,0,1,7,7,512,256,0,0,16,32,,100
"""
KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Name","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp","LDS_Block_Size","VGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",'
    '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"KERNEL_DISPATCH","Agent 4",1,3,9,1,"add(float*, int)",5,1550151853029637,1550151853042437,128,8,64,2,1,1000,4,1\n'
)
COPIES = (
    '"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp"\n'
    '"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",0,"Agent 0","Agent 4",6,1550151853000000,1550151853000500\n'
)
HIP = (
    '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    '"HIP_RUNTIME_API","hipLaunchKernel",15,16,5,1550151853020000,1550151853021000\n'
    '"HIP_RUNTIME_API","hipMemcpy",15,16,6,1550151852990000,1550151853001000\n'
)
MARKERS = HIP.split("\n", 1)[0] + '\n"MARKER_CORE_API","step 1",15,16,9,1550151852980000,1550151853050000\n'
COUNTERS = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Grid_Size","Kernel_Name","Workgroup_Size","LDS_Block_Size",'
    '"VGPR_Count","Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"\n'
    '1,1,"Agent 1",1,1024,"k",64,0,8,"SQ_WAVES",16.5,100,200\n'
    '1,1,"Agent 1",1,1024,"k",64,0,8,"TCC_HIT",7,100,200\n'
    '2,2,"Agent 1",1,128,"k",64,0,8,"SQ_WAVES",2,300,350\n'
)


def rows(trace: Trace, kind: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in trace.tables[kind].to_pylist()]


def test_rocprof_1_divides_the_grid_and_drops_what_has_no_time(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(V1)
    trace = collect([tmp_path / "results.csv"])
    assert trace.meta.format == "rocprof"
    columns = (
        "name",
        "start_ns",
        "dur_ns",
        "device",
        "queue",
        "workgroups",
        "workgroup_size",
        "registers",
        "lds_bytes",
    )
    assert rows(trace, "kernels", *columns) == [
        ("void f<int, 2>(float*)", 3599977333839958, 5573, 2, 0, 4, 256, 16, 64)
    ]
    counts = trace.meta.quality
    assert (counts["events"], counts["kept"], counts["dropped_negative"], counts["dropped_no_time"]) == (3, 1, 1, 1)


def test_a_set_of_rocprofv3_files_is_one_linked_recording(tmp_path: Path) -> None:
    for name, text in (("kernel", KERNELS), ("memory_copy", COPIES), ("hip_api", HIP), ("marker_api", MARKERS)):
        (tmp_path / f"12_{name}_trace.csv").write_text(text)
    trace = collect([tmp_path])
    assert len(trace.meta.sources) == 4 and trace.meta.ranks == (0,)
    columns = ("name", "start_ns", "dur_ns", "device", "stream", "queue", "workgroups", "workgroup_size", "registers")
    assert rows(trace, "kernels", *columns) == [("add(float*, int)", 1550151853029637, 12800, 4, 3, 1, 32, 128, 8)]
    assert rows(trace, "copies", "direction", "device", "dur_ns") == [("HtoD", 4, 500)]
    launches = dict(zip(trace.launches["name"].to_pylist(), trace.launches["id"].to_pylist(), strict=True))
    assert trace.kernels["launch_id"].to_pylist() == [launches["hipLaunchKernel"]]
    assert trace.copies["launch_id"].to_pylist() == [launches["hipMemcpy"]]
    assert rows(trace, "ranges", "name", "category") == [("step 1", "user_annotation")]


def test_counters_know_their_kernel(tmp_path: Path) -> None:
    (tmp_path / "counter_collection.csv").write_text(COUNTERS)
    trace = collect([tmp_path])
    ids = trace.kernels["id"].to_pylist()
    assert rows(trace, "kernels", "name", "start_ns", "workgroups") == [("k", 100, 16), ("k", 300, 2)]
    assert rows(trace, "counters", "name", "value", "kernel_id") == [
        ("SQ_WAVES", 16.5, ids[0]),
        ("TCC_HIT", 7, ids[0]),
        ("SQ_WAVES", 2, ids[1]),
    ]


def test_rocprofv3_json_names_kernels_by_symbol_and_gives_processes_ranks(tmp_path: Path) -> None:
    def tool(pid: int, start: int) -> dict[str, Any]:
        info = {"agent_id": {"handle": 8}, "queue_id": {"handle": 2}, "kernel_id": 10, "group_segment_size": 3,
                "grid_size": {"x": 640, "y": 2, "z": 1}, "workgroup_size": {"x": 64, "y": 1, "z": 1}}  # fmt: skip
        times = {"start_timestamp": start, "end_timestamp": start + 7, "correlation_id": {"internal": 4}}
        call = {
            "start_timestamp": start - 5,
            "end_timestamp": start - 1,
            "correlation_id": {"internal": 4},
            "thread_id": 3,
        }
        return {
            "metadata": {"pid": pid},
            "agents": [
                {"id": {"handle": 1}, "type": 1},
                {"id": {"handle": 8}, "type": 2, "product_name": "X", "cu_count": 9},
            ],
            "kernel_symbols": [{"kernel_id": 10, "kernel_name": "k.kd", "formatted_kernel_name": "k(int)"}],
            "strings": {"buffer_records": [{"kind": "HIP", "operations": ["hipA", "hipLaunch"]}]},
            "buffer_records": {
                "kernel_dispatch": [{**times, "dispatch_info": info, "stream_id": {"handle": 0}}],
                "hip_api": [{**call, "kind": 0, "operation": 1}],
            },
        }

    path = tmp_path / "out.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool(1, 100), tool(2, 300)]}))
    trace = collect([path])
    assert trace.meta.ranks == (0, 1)
    columns = ("rank", "name", "start_ns", "dur_ns", "device", "stream", "queue", "workgroups", "workgroup_size")
    assert rows(trace, "kernels", *columns) == [
        (0, "k(int)", 100, 7, 0, 0, 2, 20, 64),
        (1, "k(int)", 300, 7, 0, 0, 2, 20, 64),
    ]
    assert trace.kernels["launch_id"].null_count == 0
    assert [(d.rank, d.name, d.compute_units) for d in trace.meta.devices] == [(0, "X", 9), (1, "X", 9)]


ROCPD = """
CREATE TABLE rocpd_string{s} (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
CREATE TABLE rocpd_event{s} (id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER, stack_id INTEGER,
  parent_stack_id INTEGER, correlation_id INTEGER);
CREATE TABLE rocpd_info_agent{s} (id INTEGER PRIMARY KEY, guid TEXT, type TEXT, type_index INTEGER, name TEXT);
CREATE TABLE rocpd_info_kernel_symbol{s} (id INTEGER PRIMARY KEY, guid TEXT, kernel_name TEXT, display_name TEXT);
CREATE TABLE rocpd_kernel_dispatch{s} (id INTEGER PRIMARY KEY, guid TEXT, agent_id INTEGER, kernel_id INTEGER,
  queue_id INTEGER, stream_id INTEGER, start INTEGER, end INTEGER, group_segment_size INTEGER,
  workgroup_size_x INTEGER, workgroup_size_y INTEGER, workgroup_size_z INTEGER,
  grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER, event_id INTEGER);
CREATE TABLE rocpd_region{s} (id INTEGER PRIMARY KEY, guid TEXT, pid INTEGER, tid INTEGER, start INTEGER, end INTEGER,
  name_id INTEGER, event_id INTEGER);
INSERT INTO rocpd_string{s} VALUES (0, '', 'hipLaunchKernel'), (1, '', 'HIP_RUNTIME_API'), (2, '', 'KERNEL_DISPATCH');
INSERT INTO rocpd_event{s} VALUES (0, '', 1, 5, 0, 0), (1, '', 2, 5, 5, 0), (2, '', 2, 9, 0, 0);
INSERT INTO rocpd_info_agent{s} VALUES (0, '', 'CPU', 0, 'host'), (1, '', 'GPU', 0, 'gfx950');
INSERT INTO rocpd_info_kernel_symbol{s} VALUES (0, '', 'k.kd', '{k}');
INSERT INTO rocpd_kernel_dispatch{s} VALUES (0, '', 1, 0, 4, 3, 100, 130, 8, 64, 1, 1, 650, 1, 1, 1),
  (1, '', 1, 0, 4, 3, 200, 230, 8, 64, 1, 1, 64, 1, 1, 2);
INSERT INTO rocpd_region{s} VALUES (0, '', 77, 78, 90, 95, 0, 0);
"""


def test_rocpd_joins_by_stack_id_within_a_process_and_reads_no_view(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with sqlite3.connect(path) as database:
        for suffix, name in (("_aa", "one"), ("_bb", "two")):
            database.executescript(ROCPD.format(s=suffix, k=name))
        database.execute("CREATE VIEW rocpd_kernel_dispatch AS SELECT abs(-9223372036854775807 - 1) AS id")
    trace = collect([path])
    assert trace.meta.format == "rocpd" and trace.meta.ranks == (0, 1)
    columns = (
        "rank",
        "name",
        "start_ns",
        "dur_ns",
        "device",
        "stream",
        "queue",
        "workgroups",
        "workgroup_size",
        "lds_bytes",
    )
    assert rows(trace, "kernels", *columns) == [
        (rank, name, start, 30, 0, 3, 4, groups, 64, 8)
        for rank, name in ((0, "one"), (1, "two"))
        for start, groups in ((100, 11), (200, 1))
    ]
    called = {row["rank"]: row["id"] for row in trace.launches.to_pylist()}
    assert trace.kernels["launch_id"].to_pylist() == [called[0], None, called[1], None]
    assert [(d.rank, d.name) for d in trace.meta.devices] == [(0, "gfx950"), (1, "gfx950")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("results.csv", V1.splitlines()[0] + "\n"),
        ("kernel_trace.csv", KERNELS.splitlines()[0] + "\n"),
        ("x.json", '{"rocprofiler-sdk-tool": ['),
        ("y.json", '{"rocprofiler-sdk-tool": [7, {"buffer_records": {"kernel_dispatch": [3, {}]}}]}'),
    ],
)
def test_what_holds_nothing_is_one_line(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BrokenFileError, match=name.replace(".", r"\.")) as caught:
        collect([tmp_path / name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "header", ["Name,Calls,TotalDurationNs,AverageNs,Percentage", "Kind,Operation,Start_Timestamp"]
)
def test_statistics_are_no_traces(tmp_path: Path, header: str) -> None:
    (tmp_path / "results.stats.csv").write_text(header + "\nk,1,2,3,4\n")
    with pytest.raises(UnknownFormatError, match="no reader knows this format"):
        collect([tmp_path / "results.stats.csv"])


@real
def test_50_steps_on_mi350x() -> None:
    name = "rocprofv3_mi350x_50steps.json.gz"
    records = json.loads(gzip.decompress((DATA / name).read_bytes()))["rocprofiler-sdk-tool"][0]["buffer_records"]
    durations = [r["end_timestamp"] - r["start_timestamp"] for r in records["kernel_dispatch"]]
    kernels = collect([DATA / name]).kernels
    assert kernels.num_rows == len(durations) == 43915
    assert int(integers(kernels, "dur_ns").sum()) == sum(durations)


@real
def test_rpd_of_vllm(tmp_path: Path) -> None:
    trace = collect([DATA / "rpd_mi300x_vllm.rpd.gz"])
    (tmp_path / "r.rpd").write_bytes(gzip.decompress((DATA / "rpd_mi300x_vllm.rpd.gz").read_bytes()))
    with sqlite3.connect(tmp_path / "r.rpd") as database:
        wanted = database.execute(
            "SELECT count(*), sum(o.end - o.start) FROM rocpd_op o JOIN rocpd_string s ON s.id = o.opType_id "
            "WHERE s.string = 'KernelExecution'"
        ).fetchone()
    assert (trace.kernels.num_rows, int(integers(trace.kernels, "dur_ns").sum())) == wanted
    assert trace.kernels["launch_id"].null_count == 0
    called = dict(zip(trace.launches["id"].to_pylist(), trace.launches["name"].to_pylist(), strict=True))
    items = [called[i] == "hipExtModuleLaunchKernel" for i in trace.kernels["launch_id"].to_pylist()]
    assert sum(items) == 256  # whose grids are in work-items


@real
@pytest.mark.parametrize("name", ["rocprofv1_gfx942/results.csv", "rocprofv3_csv/kernel_trace.csv"])
def test_csv_sums_are_those_of_the_file(name: str) -> None:
    with (DATA / name).open() as file:
        lines = list(csv.DictReader(file))
    begin, end = ("BeginNs", "EndNs") if "v1" in name else ("Start_Timestamp", "End_Timestamp")
    kernels = collect([DATA / name]).kernels
    assert kernels.num_rows == len(lines)
    assert int(integers(kernels, "dur_ns").sum()) == sum(int(row[end]) - int(row[begin]) for row in lines)
