"""RPD: operations and the calls that made them, graphs, operators of PyTorch, and grids in two units."""

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from readings import CELLS, balanced, database, holds_json, linked, put_cell, read_files, table
from traces import link

from profilers.errors import BrokenFileError
from profilers.readers.common.reader import Head
from profilers.readers.rocm.rocpd import RocpdReader
from profilers.readers.rocm.rpd import RpdReader
from profilers.trace.trace import Trace

REAL = Path(__file__).parents[2] / "shared" / "data" / "traces" / "rocm" / "rpd_mi300x_vllm.rpd.gz"
real = pytest.mark.skipif(not REAL.exists(), reason=f"the real recording is not at {REAL}")

Rows = list[tuple[Any, ...]]

SCHEMA = {
    "rocpd_metadata": "id INTEGER PRIMARY KEY, tag TEXT, value TEXT",
    "rocpd_string": "id INTEGER PRIMARY KEY, string TEXT",
    "rocpd_op": (
        "id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER, sequenceId INTEGER, completionSignal TEXT,"
        " start INTEGER, end INTEGER, description_id INTEGER, opType_id INTEGER"
    ),
    "rocpd_api": (
        "id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER, end INTEGER, apiName_id INTEGER,"
        " args_id INTEGER"
    ),
    "rocpd_api_ops": "id INTEGER PRIMARY KEY, api_id INTEGER, op_id INTEGER",
    "rocpd_kernelapi": (
        "api_ptr_id INTEGER PRIMARY KEY, stream TEXT, gridX INTEGER, gridY INTEGER, gridZ INTEGER,"
        " workgroupX INTEGER, workgroupY INTEGER, workgroupZ INTEGER, groupSegmentSize INTEGER,"
        " privateSegmentSize INTEGER, codeObject_id INTEGER, kernelName_id INTEGER"
    ),
    "rocpd_copyapi": (
        "api_ptr_id INTEGER PRIMARY KEY, stream TEXT, size INTEGER, kind INTEGER, dstDevice INTEGER, srcDevice INTEGER"
    ),
    "rocpd_kernelcodeobject": "id INTEGER PRIMARY KEY, vgpr INTEGER, sgpr INTEGER",
    "rocpd_monitor": (
        "id INTEGER PRIMARY KEY, deviceType TEXT, deviceId INTEGER, monitorType TEXT, start INTEGER, end INTEGER,"
        " value TEXT"
    ),
    "ext_autogradapi": (
        "api_ptr_id INTEGER PRIMARY KEY, autogradName_id INTEGER, seq INTEGER, op_id INTEGER, sizes TEXT"
    ),
}
NO, LAUNCH, EXT, GRAPH, MARKER, KERNEL, TASK, COPY, F, G, BARRIER, MEMCPY, FLUSH, MM, STEP, STREAM, PEER = range(1, 18)
STRINGS = ("", "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipGraphLaunch", "UserMarker", "KernelExecution",
           "Task", "CopyHostToDevice", "f(int)", "Cijk_g.kd", "Barrier", "hipMemcpyAsync", "rpdflush", "aten::mm",
           "step 1", "graphExec = 0x24 | stream = 0x1f", "CopyDeviceToDevice")  # fmt: skip


def tables() -> dict[str, Rows]:
    return {
        "rocpd_metadata": [(1, "schema_version", "2")],
        "rocpd_string": list(enumerate(STRINGS, 1)),
        "rocpd_op": [
            (101, 2, 0, 0, "", 100, 160, F, KERNEL),
            (102, 2, 0, 0, "", 170, 171, NO, KERNEL),
            (103, 2, 1, 0, "", 180, 190, F, TASK),
            (104, 2, 1, 0, "", 190, 190, NO, BARRIER),
            (105, 2, 0, 0, "", 20, 30, NO, COPY),
            (106, 3, 0, 0, "", 200, 230, NO, PEER),
        ],
        "rocpd_api": [
            (11, 70, 88, 50, 60, LAUNCH, NO),
            (12, 70, 88, 62, 65, EXT, NO),
            (13, 70, 88, 70, 80, GRAPH, STREAM),
            (14, 70, 88, 10, 15, MEMCPY, NO),
            (15, 70, 88, 49, 61, MARKER, MM),
            (16, 70, 88, 5, 300, MARKER, STEP),
            (17, 70, 89, 400, 410, FLUSH, NO),
        ],
        "rocpd_api_ops": [(1, 11, 101), (2, 12, 102), (3, 13, 103), (4, 13, 104), (5, 14, 105)],
        "rocpd_kernelapi": [
            (11, "0x10", 512, 2, 1, 64, 2, 1, 128, 0, 1, F),
            (12, "0x0", 1000, 1, 1, 256, 1, 1, 0, 0, None, G),
        ],
        "rocpd_copyapi": [(14, "0x10", 4096, 1, 0, 0)],
        "rocpd_kernelcodeobject": [(1, 24, 16)],
        "rocpd_monitor": [(1, "gpu", 2, "sclk", 90, 130, "1092"), (2, "gpu", 2, "sclk", 130, 140, "")],
        "ext_autogradapi": [(15, MM, 7, 1, "[[4, 8]]")],
    }


def write(path: Path, content: dict[str, Rows], without: tuple[str, ...] = (), schema: Any = SCHEMA) -> Path:
    return database(path, {name: (schema[name], rows) for name, rows in content.items() if name not in without})


def read(path: Path) -> Trace:
    return link(read_files(RpdReader(), [path]))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_one_process(tmp_path: Path, packed: bool) -> None:
    path = write(tmp_path / "t.rpd", tables())
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert RpdReader().sniff(Head.of(path)) and not RocpdReader().sniff(Head.of(path))
    trace = read(path)
    assert table(trace, "kernels", "rank", "name", "start_ns", "dur_ns", "device", "stream", "queue") == [
        (-1, "f(int)", 100, 60, 2, 16, 0),
        (-1, "Cijk_g", 170, 1, 2, 0, 0),
        (-1, "f(int)", 180, 10, 2, 31, 1),
    ]
    # The first grid is in workgroups, the second, of hipExtModuleLaunchKernel, in work-items; a graph has none.
    assert table(trace, "kernels", "workgroups", "workgroup_size", "registers", "lds_bytes") == [
        (1024, 128, 24, 128),
        (4, 256, None, 0),
        (None, None, None, None),
    ]
    assert trace.meta.quality["repaired_work_items"] == 1
    assert [call for _, call in linked(trace, "kernels")] == [
        "hipLaunchKernel",
        "hipExtModuleLaunchKernel",
        "hipGraphLaunch",
    ]
    assert linked(trace, "copies") == [("CopyHostToDevice", "hipMemcpyAsync"), ("CopyDeviceToDevice", None)]
    assert table(trace, "copies", "direction", "bytes", "stream", "device") == [
        ("HtoD", 4096, 16, 2),
        ("DtoD", None, None, 3),
    ]
    assert table(trace, "ops", "name", "thread", "sequence_number", "shapes") == [("aten::mm", 88, 7, "[[4, 8]]")]
    ops = dict(table(trace, "ops", "id", "name"))
    assert [ops.get(op) for (op,) in table(trace, "kernels", "op_id")] == ["aten::mm", None, None]
    assert sorted(table(trace, "ranges", "name", "category")) == [
        ("rpdflush", "overhead"),
        ("step 1", "user_annotation"),
    ]
    assert table(trace, "counters", "name", "value", "args") == [("sclk", 1092.0, '{"deviceType":"gpu","deviceId":2}')]
    counts = trace.meta.quality
    assert (counts["events"], counts["skipped_marker"], counts["dropped_no_value"]) == (15, 1, 1)
    assert balanced(counts)
    assert trace.meta.version == "rpd schema 2"


def test_processes_with_work_are_ranks(tmp_path: Path) -> None:
    content = tables()
    content["rocpd_api"][1] = (12, 71, 88, 62, 65, EXT, NO)
    trace = read(write(tmp_path / "t.rpd", content))
    assert trace.meta.ranks == (0, 1)
    assert table(trace, "kernels", "rank") == [(0,), (1,), (0,)]
    assert [call for _, call in linked(trace, "kernels")][:2] == ["hipLaunchKernel", "hipExtModuleLaunchKernel"]
    assert {rank for (rank,) in table(trace, "counters", "rank")} == {0}


@pytest.mark.parametrize("name", [name for name in SCHEMA if name not in ("rocpd_op", "rocpd_string")])
def test_without_any_other_table_kernels_are_kept(tmp_path: Path, name: str) -> None:
    trace = read(write(tmp_path / "t.rpd", tables(), without=(name,)))
    assert table(trace, "kernels", "start_ns", "dur_ns") == [(100, 60), (170, 1), (180, 10)]
    assert balanced(trace.meta.quality)


@pytest.mark.parametrize(
    ("without", "schema", "message"),
    [
        (("rocpd_op",), {}, "table rocpd_op lacks the columns end, id, opType_id, start"),
        (
            (),
            {"rocpd_op": SCHEMA["rocpd_op"].replace("end INTEGER", "stop INTEGER")},
            "table rocpd_op lacks the columns end",
        ),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, without: tuple[str, ...], schema: dict[str, str], message: str
) -> None:
    path = write(tmp_path / "t.rpd", tables(), without, {**SCHEMA, **schema})
    with pytest.raises(BrokenFileError, match=message) as caught:
        read(path)
    assert "t.rpd" in str(caught.value) and "\n" not in str(caught.value)


def test_no_rows_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(BrokenFileError, match="holds no event"):
        read(write(tmp_path / "t.rpd", {name: [] for name in SCHEMA}))


@given(st.sampled_from(sorted(SCHEMA)), st.integers(0, 30), st.integers(1, 30), CELLS)
def test_any_cell_is_a_row_or_counted(
    tmp_path_factory: pytest.TempPathFactory, name: str, row: int, column: int, cell: Any
) -> None:
    content = tables()
    put_cell(content, name, row, column, cell)
    trace = read(write(tmp_path_factory.mktemp("odd") / "t.rpd", content))
    assert holds_json(trace)
    assert balanced(trace.meta.quality)
    assert trace.meta.quality["events"] == 15


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, sqlite3.Connection]:
    path = tmp_path_factory.mktemp("real") / "t.rpd"
    path.write_bytes(gzip.decompress(REAL.read_bytes()))
    return read(REAL), sqlite3.connect(path)


@real
def test_real_operations_of_vllm(vllm: tuple[Trace, sqlite3.Connection]) -> None:
    trace, connection = vllm
    query = """SELECT start, end - start, d.string, t.string FROM rocpd_op o
               JOIN rocpd_string d ON d.id = description_id
               JOIN rocpd_string t ON t.id = opType_id ORDER BY o.id"""
    rows = connection.execute(query).fetchall()
    kernels = [(start, duration, name) for start, duration, name, word in rows if not word.startswith("Copy")]
    copies = [(start, duration, word) for start, duration, _, word in rows if word.startswith("Copy")]
    assert table(trace, "kernels", "start_ns", "dur_ns", "name") == kernels
    assert table(trace, "copies", "start_ns", "dur_ns", "name") == copies
    assert (len(kernels), sum(duration for _, duration, _ in kernels)) == (8948, 407_137_675)
    assert (len(copies), sum(duration for _, duration, _ in copies)) == (1176, 9_487_406)
    assert trace.meta.quality["orphan_device"] == 0
    assert trace.meta.quality["repaired_work_items"] == 256
    assert balanced(trace.meta.quality)


@real
def test_real_links_of_vllm(vllm: tuple[Trace, sqlite3.Connection]) -> None:
    trace, connection = vllm
    query = """SELECT o.start, n.string FROM rocpd_op o JOIN rocpd_api_ops j ON j.op_id = o.id
               JOIN rocpd_api a ON a.id = j.api_id JOIN rocpd_string n ON n.id = apiName_id ORDER BY o.id"""
    theirs = dict(connection.execute(query).fetchall())
    calls = dict(table(trace, "launches", "id", "name"))
    for kind in ("kernels", "copies"):
        assert all(calls[launch] == theirs[start] for start, launch in table(trace, kind, "start_ns", "launch_id"))
    assert trace.ops.num_rows == connection.execute("SELECT count(*) FROM ext_autogradapi").fetchone()[0]
    assert trace.counters.num_rows == connection.execute("SELECT count(*) FROM rocpd_monitor").fetchone()[0]


@real
def test_real_grids_of_vllm_are_workgroups(vllm: tuple[Trace, sqlite3.Connection]) -> None:
    # 8192 rows, one workgroup each, of a launch in workgroups; 888 of a launch in work-items.
    found = set(table(vllm[0], "kernels", "name", "workgroups", "workgroup_size"))
    assert {(g, s) for name, g, s in found if "scaled_rms_norm_kernel" in name and g} >= {(8192, 1024)}
    assert {(g, s) for name, g, s in found if name.startswith("Cijk") and g} >= {(888, 256), (4144, 256)}
