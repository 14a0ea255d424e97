"""rocprofv3: CSV sets and JSON to rows; agents become devices, work-items workgroups; damage is counted."""

import copy
import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from readings import balanced, linked, read_files, table
from traces import link

from profilers.errors import BrokenFileError, SeqPointError
from profilers.readers.common import csv_rows
from profilers.readers.common.reader import GroupReader, Head
from profilers.readers.rocm.rocprofv3_csv import Rocprofv3CsvReader
from profilers.readers.rocm.rocprofv3_json import Rocprofv3JsonReader
from profilers.trace.trace import DeviceProperties, Trace

DATA = Path(__file__).parents[2] / "shared" / "data" / "traces" / "rocm"
CSV_DATA, JSON_DATA = DATA / "rocprofv3_csv", DATA / "rocprofv3_mi350x_50steps.json.gz"
real = pytest.mark.skipif(not DATA.is_dir(), reason=f"real recordings are not at {DATA}")

KERNELS = """"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",\
"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",\
"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 4",1,7,88,1,10,"void f<int, 2>(int)",3,100,160,64,0,8,0,16,64,2,1,1000,4,1
"KERNEL_DISPATCH","Agent 5",2,0,88,2,11,"g.kd",9,170,171,0,0,12,4,16,256,1,1,256,1,1
"""
COPIES = """"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp",\
"End_Timestamp"
"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",0,"Agent 0","Agent 4",2,20,30
"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST",0,"Agent 5","Agent 0",8,200,210
"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_DEVICE",0,"Agent 4","Agent 5",5,210,220
"""
CALL_HEADER = '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
CALLS = CALL_HEADER + (
    '"HIP_COMPILER_API_EXT","__hipPushCallConfiguration",70,88,1,1,2\n'
    '"HIP_RUNTIME_API_EXT","hipMemcpy",70,88,2,15,40\n'
    '"HIP_RUNTIME_API_EXT","hipLaunchKernel",70,88,3,50,60\n'
)
MARKERS = CALL_HEADER + '"MARKER_CORE_API","step 1",70,88,1,5,300\n"RCCL_API","ncclAllReduce",70,88,4,70,80'
HSA = CALL_HEADER + '"HSA_CORE_API","hsa_signal_store",70,88,3,51,52\n'
AGENTS = (
    '"Node_Id","Logical_Node_Id","Agent_Type","Cu_Count","Name","Product_Name"\n0,0,"CPU",64,"EPYC","EPYC"\n'
    '4,4,"GPU",304,"gfx942","MI300X"\n5,5,"GPU",304,"gfx942","MI300X"\n'
)
COUNTERS = """"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id",\
"Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",\
"Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"
1,1,"Agent 1",1,70,88,1000,17,"f(int)",64,0,0,8,0,16,"SQ_WAVES",16.500000,100,160
1,1,"Agent 1",1,70,88,1000,17,"f(int)",64,0,0,8,0,16,"GRBM_COUNT",7,100,160
2,2,"Agent 1",1,70,88,64,18,"g(int)",64,0,0,8,0,16,"SQ_WAVES",nan,170,180
"""
SET = {
    "12_kernel_trace.csv": KERNELS,
    "12_memory_copy_trace.csv": COPIES,
    "12_hip_api_trace.csv": CALLS,
    "12_marker_api_trace.csv": MARKERS,
    "12_hsa_api_trace.csv": HSA,
}


def read(folder: Path, files: dict[str, str | bytes]) -> Trace:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_paths([folder / name for name in files if "agent_info" not in name])


def read_paths(paths: list[Path], limit_bytes: int = 1 << 30) -> Trace:
    reader = Rocprofv3JsonReader() if ".json" in paths[0].name else Rocprofv3CsvReader()
    return link(read_files(reader, paths, limit_bytes=limit_bytes))


def test_a_set_of_csv_files(tmp_path: Path) -> None:
    trace = read(tmp_path, dict(SET))
    assert table(trace, "kernels", "name", "start_ns", "dur_ns", "device", "stream", "queue", "correlation") == [
        ("void f<int, 2>(int)", 100, 60, 4, 7, 1, 3),
        ("g", 170, 1, 5, 0, 2, 9),
    ]
    assert table(trace, "kernels", "workgroups", "workgroup_size", "registers", "lds_bytes") == [
        (32, 128, 8, 64),
        (1, 256, 12, 0),
    ]
    assert linked(trace, "kernels") == [("void f<int, 2>(int)", "hipLaunchKernel"), ("g", None)]
    assert [call for _, call in linked(trace, "copies")] == ["hipMemcpy", None, None]
    assert table(trace, "copies", "direction", "device", "bytes", "queue") == [
        ("HtoD", 4, None, None),
        ("DtoH", 5, None, None),
        ("DtoD", 4, None, None),
    ]
    assert table(trace, "launches", "api", "process", "thread") == [
        ("hip_compiler", 70, 88),
        ("hip_runtime", 70, 88),
        ("hip_runtime", 70, 88),
    ]
    assert sorted(table(trace, "ranges", "name", "category")) == [
        ("hsa_signal_store", "hsa_api"),
        ("ncclAllReduce", "rccl"),
        ("step 1", "user_annotation"),
    ]
    assert (trace.meta.quality["events"], trace.meta.quality["kept"]) == (11, 11)
    assert trace.meta.sources == tuple(SET)


def test_agents_beside_the_traces_become_devices(tmp_path: Path) -> None:
    trace = read(tmp_path, {**SET, "12_agent_info.csv": AGENTS})
    assert [device for (device,) in table(trace, "kernels", "device")] == [0, 1]
    assert table(trace, "copies", "direction", "device") == [("HtoD", 0), ("DtoH", 1), ("PtoP", 0)]
    assert trace.meta.devices == tuple(DeviceProperties(-1, i, "MI300X", 304) for i in (0, 1))


def test_the_arguments_hold_what_no_column_does(tmp_path: Path) -> None:
    trace = read(tmp_path, {"kernel_trace.csv": KERNELS})
    first = json.loads(table(trace, "kernels", "args")[0][0])
    assert first["Grid_Size_X"] == 1000 and first["SGPR_Count"] == 16 and first["Thread_Id"] == 88
    assert not {"Dispatch_Id", "Correlation_Id", "Start_Timestamp"} & set(first)


def test_an_older_version_lacks_columns(tmp_path: Path) -> None:
    content = '"Agent_Id","Queue_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n2,3,"k",1,5\n'
    trace = read(tmp_path, {"kernel_trace.csv": content})
    assert table(trace, "kernels", "name", "device", "stream", "queue", "workgroups", "registers", "args") == [
        ("k", 2, 3, 3, None, None, None)
    ]


def test_counters_bring_their_kernels(tmp_path: Path) -> None:
    trace = read(tmp_path, {"counter_collection.csv": COUNTERS})
    assert table(trace, "kernels", "id", "name", "start_ns", "dur_ns", "workgroups") == [
        (0, "f(int)", 100, 60, 16),
        (1, "g(int)", 170, 10, 1),
    ]
    assert table(trace, "counters", "name", "value", "kernel_id", "start_ns") == [
        ("SQ_WAVES", 16.5, 0, 100),
        ("GRBM_COUNT", 7.0, 0, 100),
    ]
    assert trace.meta.quality["dropped_no_value"] == 1
    assert balanced(trace.meta.quality)


def test_counters_find_the_kernels_of_the_same_run(tmp_path: Path) -> None:
    trace = read(tmp_path, {"9_kernel_trace.csv": KERNELS, "9_counter_collection.csv": COUNTERS})
    assert trace.kernels.num_rows == 2
    assert table(trace, "counters", "kernel_id") == [(0,), (0,)]


def test_merged_processes_are_ranks(tmp_path: Path) -> None:
    def merged(content: str, guids: str) -> str:
        first, *rest = content.strip().split("\n")
        return "\n".join([f'"Guid",{first}', *(f'"{guid}",{line}' for guid, line in zip(guids, rest, strict=True))])

    files = {"kernel_trace.csv": merged(KERNELS.replace(",9,170", ",3,170"), "ab"), "hip_trace.csv": ""}
    files["hip_trace.csv"] = merged(CALL_HEADER + (CALLS.split("\n")[3] + "\n") * 3, "abc")
    trace = read(tmp_path, dict(files))
    assert trace.meta.ranks == (0, 1)
    assert table(trace, "kernels", "rank") == [(0,), (1,)]
    assert table(trace, "launches", "rank", "correlation") == [(0, 3), (1, 3), (0, None)]
    assert all(call == "hipLaunchKernel" for _, call in linked(trace, "kernels"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("12_kernel_trace.csv", "12_hip_api_trace.csv", True),
        ("kernel_trace.csv", "memory_copy_trace.csv", True),
        ("host/12_kernel_trace.csv.gz", "host/12_hsa_amd_ext_api_trace.csv", True),
        ("run_12_kernel_trace.csv", "run_12_counter_collection.csv", True),
        ("12_kernel_trace.csv", "13_kernel_trace.csv", False),
        ("a/12_kernel_trace.csv", "b/12_kernel_trace.csv", False),
        ("kernel_trace.csv", "kernel_trace_old.csv", False),
    ],
)
def test_files_of_one_folder_and_prefix_are_one_recording(one: str, other: str, same: bool) -> None:
    reader = Rocprofv3CsvReader()
    assert isinstance(reader, GroupReader)
    assert (reader.group(Path(one)) == reader.group(Path(other))) is same


@pytest.mark.parametrize(
    ("content", "kernels", "counts"),
    [
        (KERNELS[:-40], 1, {"dropped_broken": 1, "truncated_files": 1}),
        (KERNELS.rstrip("\n"), 2, {}),
        (KERNELS.replace(",100,160,", ",100,99,"), 1, {"dropped_negative": 1}),
        (KERNELS.replace(",100,160,", ",0,0,"), 1, {"dropped_no_time": 1}),
        (KERNELS.replace(",100,160,", ",100,,"), 2, {"missing_duration": 1}),
        (KERNELS.replace('"g.kd"', '""'), 2, {"missing_name": 1}),
        (KERNELS.replace('"g.kd"', '"g.kd'), 1, {"dropped_broken": 1}),
        (KERNELS.replace('"g.kd"', '"g,""x"""'), 2, {}),
        (KERNELS.replace('"Agent 5"', '"nobody"').replace(",64,2,1", ",64,0,1"), 2, {}),
        (KERNELS.replace("\n", "\r\n"), 2, {}),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_damage_costs_what_it_touches(
    tmp_path: Path, content: str, kernels: int, counts: dict[str, int], packed: bool
) -> None:
    raw = content.encode()
    trace = read(tmp_path, {"kernel_trace.csv": gzip.compress(raw) if packed else raw})
    quality = trace.meta.quality
    assert trace.kernels.num_rows == kernels == quality["kept"]
    assert {
        n: c for n, c in quality.counts.items() if n not in ("events", "kept", "orphan_device", "orphan_op")
    } == counts
    assert balanced(quality)


def test_blocks_give_what_the_whole_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, row, _, _ = KERNELS.split("\n")
    lines = [row.replace(",100,160,", f",{100 + 10 * i},{105 + 10 * i},") for i in range(500)]
    lines[77] = lines[77][:-20]
    monkeypatch.setattr(csv_rows, "_BLOCK", 1000)
    trace = read(tmp_path, {"kernel_trace.csv": "\n".join([header, *lines])})
    assert [s for (s,) in table(trace, "kernels", "start_ns")] == [100 + 10 * i for i in range(500) if i != 77]
    assert (trace.meta.quality["dropped_broken"], trace.meta.quality["truncated_files"]) == (1, 0)


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "_BLOCK", 5000)
    monkeypatch.setattr(csv_rows, "_LONGEST_LINE", 20_000)
    trace = read(tmp_path, {"kernel_trace.csv": KERNELS + "x" * 200_000})
    assert trace.kernels.num_rows == 2
    assert trace.meta.quality["dropped_broken"] >= 1 and balanced(trace.meta.quality)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (KERNELS.split("\n")[0], "holds no event"),
        (KERNELS.split("\n")[0] + "\n1,2\n", "none of its 1 rows can be used"),
        ("a,b\n1,2\n", "has not the columns of a trace"),
        ("", "has not the columns of a trace"),
    ],
)
def test_a_csv_with_nothing_to_read_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(BrokenFileError, match=message) as caught:
        read(tmp_path, {"kernel_trace.csv": content})
    assert "kernel_trace.csv" in str(caught.value) and "\n" not in str(caught.value)


def handle(number: int) -> dict[str, int]:
    return {"handle": number}


def axes(x: int, y: int, z: int) -> dict[str, int]:
    return {"x": x, "y": y, "z": z}


def record(kind: int, operation: int, times: tuple[int, int], internal: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "operation": operation,
        "thread_id": 88,
        "correlation_id": {"internal": internal, "external": 0},
        "start_timestamp": times[0],
        "end_timestamp": times[1],
        **more,
    }


TOOL: dict[str, Any] = {
    "metadata": {"pid": 70},
    "agents": [
        {"id": handle(90), "type": 1, "node_id": 0, "name": "EPYC", "cu_count": 64},
        {"id": handle(93), "type": 2, "node_id": 2, "product_name": "MI350X", "cu_count": 256,
         "mem_banks": [{"size_in_bytes": 309}]},
        {"id": handle(92), "type": 2, "node_id": 1, "product_name": "MI350X", "cu_count": 256, "mem_banks": []},
    ],
    "strings": {
        "buffer_records": [
            {"kind": "NONE", "operations": []},
            {"kind": "HIP_RUNTIME_API", "operations": ["hipMalloc", "hipLaunchKernel"]},
            {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_DEVICE_TO_DEVICE"]},
            {"kind": "RCCL_API", "operations": ["ncclAllReduce"]},
            {"kind": "MARKER_CORE_API", "operations": ["roctxRangePushA"]},
            {"kind": "HSA_CORE_API", "operations": ["hsa_init"]},
        ],
        "marker_api": [{"key": 6, "value": "step 1"}],
    },
    "kernel_symbols": [
        {"kernel_id": 0, "kernel_name": ""},
        {"kernel_id": 8, "kernel_name": "_Z1f.kd", "formatted_kernel_name": "f(int)", "arch_vgpr_count": 24,
         "sgpr_count": 16, "accum_vgpr_count": 4},
    ],
    "buffer_records": {
        "kernel_dispatch": [
            record(11, 2, (170, 171), 5, dispatch_info={"agent_id": handle(92), "kernel_id": 9}),
            record(11, 2, (100, 160), 3, stream_id=handle(0), dispatch_info={
                "agent_id": handle(93), "queue_id": handle(16), "kernel_id": 8, "dispatch_id": 1,
                "private_segment_size": 0, "group_segment_size": 64, "workgroup_size": axes(64, 2, 1),
                "grid_size": axes(1000, 4, 1)}),
        ],
        "memory_copy": [
            record(2, 1, (20, 30), 4, src_agent_id=handle(93), dst_agent_id=handle(92), bytes=4096),
        ],
        "hip_api": [record(1, 1, (50, 60), 3), record(1, 0, (10, 20), 2)],
        "hsa_api": [record(5, 0, (1, 2), 1)],
        "rccl_api": [record(3, 0, (70, 80), 5)],
        "marker_api": [record(4, 0, (5, 300), 6)],
    },
}  # fmt: skip


def document(*tools: Any) -> str:
    return json.dumps({"rocprofiler-sdk-tool": list(tools)})


def read_json(folder: Path, content: str | bytes, limit_bytes: int = 1 << 30) -> Trace:
    path = folder / "t.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_paths([path], limit_bytes)


def test_a_json_of_one_process(tmp_path: Path) -> None:
    trace = read_json(tmp_path, document(TOOL))
    assert Rocprofv3JsonReader().sniff(Head.of(tmp_path / "t.json"))
    assert table(trace, "kernels", "name", "start_ns", "dur_ns", "device", "stream", "queue", "correlation") == [
        ("unknown", 170, 1, 0, None, None, 5),
        ("f(int)", 100, 60, 1, 0, 16, 3),
    ]
    assert table(trace, "kernels", "workgroups", "workgroup_size", "registers", "lds_bytes") == [
        (None, None, None, None),
        (32, 128, 24, 64),
    ]
    assert json.loads(table(trace, "kernels", "args")[1][0])["sgpr_count"] == 16
    assert linked(trace, "kernels") == [("unknown", None), ("f(int)", "hipLaunchKernel")]
    assert table(trace, "copies", "name", "direction", "device", "bytes") == [
        ("MEMORY_COPY_DEVICE_TO_DEVICE", "PtoP", 1, 4096)
    ]
    assert table(trace, "launches", "api", "process", "thread") == [("hip_runtime", 70, 88)] * 2
    assert sorted(table(trace, "ranges", "name", "category")) == [
        ("hsa_init", "hsa_api"),
        ("ncclAllReduce", "rccl"),
        ("step 1", "user_annotation"),
    ]
    assert trace.meta.devices == (
        DeviceProperties(-1, 0, "MI350X", 256, None),
        DeviceProperties(-1, 1, "MI350X", 256, 309),
    )
    assert trace.meta.quality["missing_name"] == 1
    assert trace.meta.quality["events"] == trace.meta.quality["kept"] == 8


def test_each_process_with_work_is_a_rank(tmp_path: Path) -> None:
    idle = copy.deepcopy(TOOL)
    idle["buffer_records"].update(kernel_dispatch=[], memory_copy=[])
    trace = read_json(tmp_path, document(TOOL, idle, TOOL))
    assert trace.meta.ranks == (0, 1)
    assert [rank for (rank,) in table(trace, "kernels", "rank")] == [0, 0, 1, 1]
    assert {(d.rank, d.device) for d in trace.meta.devices} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert trace.meta.quality["duplicate_correlation"] == 0
    assert linked(trace, "kernels") == [("unknown", None), ("f(int)", "hipLaunchKernel")] * 2


def test_a_json_that_ends_early_keeps_its_complete_records(tmp_path: Path) -> None:
    whole = document(TOOL)
    trace = read_json(tmp_path, whole[: whole.index('"hsa_api"')])
    assert trace.launches.num_rows == 2 and trace.kernels.num_rows == 2
    assert trace.meta.quality["truncated_files"] == 1
    cut = read_json(tmp_path, whole[: whole.index('"bytes"')])
    assert (cut.kernels.num_rows, cut.copies.num_rows) == (2, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (document(), "lists no process"),
        (document({"agents": []}), "holds no event"),
        ('{"rocprofiler-sdk-tool": 7}', "lists no process"),
        ('{"rocprofiler-sdk-tool": [{"a": 1 2}]}', "byte 34: no JSON that can be read"),
        ("[]", "lists no process"),
        ("", "byte 0: no JSON that can be read"),
        ('{"rocprofiler-sdk-tool": ' + "[" * 100_000, "no JSON that can be read"),
        (document(TOOL, {"x": " " * 20_000}), "holds more than 20,000 bytes; raise the limit"),
        (gzip.compress(document(TOOL, {"x": " " * 20_000}).encode()), "unpacks to more than 20,000 bytes"),
    ],
)
def test_a_json_with_nothing_to_read_is_one_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    limit = 1 << 30 if len(content) > 50_000 else 20_000
    with pytest.raises(BrokenFileError, match=message) as caught:
        read_json(tmp_path, content, limit_bytes=limit)
    assert "t.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_json_that_is_nested_deep_is_one_line(tmp_path: Path) -> None:
    """The closing brackets were spelled anew at each of them, which took minutes."""
    deep = "[" * 100_000 + "1" + "]" * 99_999
    with pytest.raises(BrokenFileError, match="no JSON that can be read"):
        read_json(tmp_path, document(TOOL).replace('"metadata":', f'"deep": {deep}, "metadata":', 1))


@pytest.mark.parametrize(
    ("start", "known"),
    [('{"rocprofiler-sdk-tool": [', True), ('{"traceEvents":[', False), ("x rocprofiler-sdk-tool", False), ("", False)],
)
def test_json_is_known_by_its_root(tmp_path: Path, start: str, known: bool) -> None:
    (tmp_path / "x").write_text(start)
    assert Rocprofv3JsonReader().sniff(Head.of(tmp_path / "x")) is known


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, own in inner for place in places(own, (*path, key)))]


@given(st.sampled_from(places(TOOL)[1:]), JSON)
def test_any_json_in_any_place_is_a_trace_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[Any, ...], value: Any
) -> None:
    tool = copy.deepcopy(TOOL)
    inner = tool
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    try:
        trace = read_json(tmp_path_factory.mktemp("odd"), document(tool))
    except SeqPointError as error:
        assert "\n" not in str(error)
    else:
        assert balanced(trace.meta.quality)


REAL_CSV = {
    "kernel_trace.csv": ("kernels", 9),
    "kernel_trace_truncated.csv": ("kernels", 4),
    "memory_copy_trace.csv": ("copies", 4),
    "hip_trace.csv": ("launches", 17),
    "hip_runtime_trace.csv": ("launches", None),
    "hip_compile_trace.csv": ("launches", None),
    "rocpd-to-csv.csv": ("launches", 13),
    "marker_api_trace.csv": ("ranges", 5),
    "python_bindings.csv": ("ranges", None),
    "rccl_trace.csv": ("ranges", 21),
    "hsa_api_trace.csv": ("ranges", None),
    "hsa_core_api_trace.csv": ("ranges", None),
    "rocdecode_api_trace.csv": ("ranges", None),
    "rocjpeg_api_trace.csv": ("ranges", None),
    "counter_collection.csv": ("kernels", 4),
}


@real
@pytest.mark.parametrize("name", sorted(REAL_CSV))
def test_real_csv(name: str) -> None:
    # "truncated" is what the tool did to the names of kernels; the file is whole.
    kind, rows = REAL_CSV[name]
    with (CSV_DATA / name).open(newline="") as stream:
        theirs = [
            (int(r["Start_Timestamp"]), int(r["End_Timestamp"]) - int(r["Start_Timestamp"]))
            for r in csv.DictReader(stream)
        ]
    trace = read_paths([CSV_DATA / name])
    assert sorted(table(trace, kind, "start_ns", "dur_ns")) == sorted(theirs)
    assert rows in (None, len(theirs))
    assert balanced(trace.meta.quality) and not trace.meta.quality["truncated_files"]


@real
def test_real_kernels_have_exact_workgroups() -> None:
    trace = read_paths([CSV_DATA / "kernel_trace.csv"])
    assert set(table(trace, "kernels", "device", "workgroups", "workgroup_size")) == {(4, 16 * 1024, 64)}


@real
def test_real_files_that_are_no_traces_are_left_alone() -> None:
    known = {file.name for file in CSV_DATA.iterdir() if Rocprofv3CsvReader().sniff(Head.of(file))}
    assert known == set(REAL_CSV)


@real
def test_real_json_of_50_steps() -> None:
    with gzip.open(JSON_DATA) as stream:
        (tool,) = json.load(stream)["rocprofiler-sdk-tool"]
    dispatches = tool["buffer_records"]["kernel_dispatch"]
    names = {symbol["kernel_id"]: symbol["formatted_kernel_name"] for symbol in tool["kernel_symbols"]}
    trace = read_paths([JSON_DATA])
    durations = [duration for (duration,) in table(trace, "kernels", "dur_ns")]
    assert (len(durations), sum(durations)) == (43_915, 4_441_741_378)
    assert durations == [d["end_timestamp"] - d["start_timestamp"] for d in dispatches]
    assert [n for (n,) in table(trace, "kernels", "name")] == [
        names[d["dispatch_info"]["kernel_id"]] for d in dispatches
    ]
    infos = (d["dispatch_info"] for d in dispatches)
    pairs = ([-(-i["grid_size"][a] // i["workgroup_size"][a]) for a in "xyz"] for i in infos)
    assert [g for (g,) in table(trace, "kernels", "workgroups")] == [x * y * z for x, y, z in pairs]
    assert {device for (device,) in table(trace, "kernels", "device")} == {0}
    assert len(trace.meta.devices) == 8
    assert trace.meta.devices[0] == DeviceProperties(-1, 0, "AMD Instinct MI350X", 256, 309_220_868_096)
