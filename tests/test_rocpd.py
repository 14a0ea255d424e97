"""rocpd: the suffixed tables of one or more processes, linked by the stack of their events."""

import json
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
from profilers.trace.trace import DeviceProperties, Trace

GUID = "_0000ddb5_8903_7903_b269_cd8d3745bb8a"
OTHER = "_0000ddb6_8903_7903_b269_cd8d3745bb8b"

Rows = list[tuple[Any, ...]]

#: Columns by table, as rocprofv3 3.0 makes them.
SCHEMA = {
    "metadata": "id INTEGER PRIMARY KEY, tag TEXT, value TEXT",
    "string": "id INTEGER PRIMARY KEY, guid TEXT, string TEXT",
    "info_process": "id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, ppid INTEGER, pid INTEGER, command TEXT",
    "info_thread": "id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, name TEXT",
    "info_agent": (
        "id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER,"
        " logical_index INTEGER, type_index INTEGER, name TEXT, model_name TEXT, product_name TEXT, extdata TEXT"
    ),
    "info_kernel_symbol": (
        "id INTEGER PRIMARY KEY, guid TEXT, kernel_name TEXT, display_name TEXT, arch_vgpr_count INTEGER,"
        " accum_vgpr_count INTEGER, sgpr_count INTEGER"
    ),
    "info_pmc": "id INTEGER PRIMARY KEY, guid TEXT, name TEXT, symbol TEXT",
    "event": (
        "id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER,"
        " correlation_id INTEGER, extdata TEXT"
    ),
    "region": (
        "id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT, end BIGINT,"
        " name_id INTEGER, event_id INTEGER, extdata TEXT"
    ),
    "kernel_dispatch": (
        "id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, agent_id INTEGER,"
        " kernel_id INTEGER, dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT, end BIGINT,"
        " private_segment_size INTEGER, group_segment_size INTEGER, workgroup_size_x INTEGER,"
        " workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER,"
        " grid_size_z INTEGER, region_name_id INTEGER, event_id INTEGER, extdata TEXT"
    ),
    "memory_copy": (
        "id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT, end BIGINT,"
        " name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, queue_id INTEGER,"
        " stream_id INTEGER, region_name_id INTEGER, event_id INTEGER, extdata TEXT"
    ),
    "pmc_event": "id INTEGER PRIMARY KEY, guid TEXT, event_id INTEGER, pmc_id INTEGER, value REAL, extdata TEXT",
}
STRINGS = ("", "HIP_RUNTIME_API_EXT", "hipLaunchKernel", "hipMemcpy", "KERNEL_DISPATCH", "MEMORY_COPY",
           "MEMORY_COPY_HOST_TO_DEVICE", "MARKER_CORE_RANGE_API", "roctxRangePushA", "HSA_CORE_API",
           "hsa_init")  # fmt: skip


def session(process: int = 0, *, by_correlation: bool = False) -> dict[str, Rows]:
    """Return the rows of one process: a copy and a kernel with their calls, a kernel without, markers, counters."""
    stacks = [0, 1, 0, 1, 40, 50, 60]
    categories = [1, 1, 5, 4, 4, 7, 9]
    said = [None] * 5 + ['{"message": "step 1"}', "{}"]
    correlation = [n + 5 if by_correlation else 0 for n in stacks]
    events = zip(categories, stacks, correlation, said, strict=True)
    return {
        "metadata": [(1, "schema_version", "3")],
        "string": [(i, "g", text) for i, text in enumerate(STRINGS)],
        "info_process": [(process, "g", 0, 1, 700 + process, "python")],
        "info_thread": [(0, "g", 0, process, 880, "main")],
        "info_agent": [
            (0, "g", 0, process, "CPU", 0, 0, 0, "EPYC", "EPYC", "EPYC", "{}"),
            (1, "g", 0, process, "GPU", 2, 2, 1, "gfx950", "", "MI350X", '{"cu_count": 256}'),
            (2, "g", 0, process, "GPU", 1, 1, 0, "gfx950", "", "MI350X",
             '{"cu_count": 256, "mem_banks": [{"size_in_bytes": 309}]}'),
        ],
        "info_kernel_symbol": [(0, "g", "_Z1f.kd", "f(int)", 24, 4, 16), (1, "g", "_Z1g.kd", None, 8, 0, 16)],
        "info_pmc": [(0, "g", "SQ_WAVES", "SQ")],
        "event": [(i, "g", c, s, 0, n, t) for i, (c, s, n, t) in enumerate(events)],
        "region": [
            (0, "g", 0, process, 0, 10, 20, 3, 0, None),
            (1, "g", 0, process, 0, 50, 60, 2, 1, None),
            (2, "g", 0, process, 0, 5, 300, 8, 5, None),
            (3, "g", 0, process, 0, 1, 2, 10, 6, None),
        ],
        "memory_copy": [(0, "g", 0, process, 0, 12, 18, 6, 2, 0, 4096, None, 0, None, 2, None)],
        "kernel_dispatch": [
            (0, "g", 0, process, 0, 1, 0, 1, 0, 3, 100, 160, 0, 64, 64, 2, 1, 1000, 4, 1, None, 3, None),
            (1, "g", 0, process, 0, 2, 1, 2, 1, 0, 170, 171, 0, 0, 256, 1, 1, 256, 1, 1, None, 4, None),
        ],
        "pmc_event": [(0, "g", 3, 0, 16.5, None), (1, "g", 4, 0, None, None)],
    }  # fmt: skip


def write(
    path: Path, sessions: dict[str, dict[str, Rows]], without: tuple[str, ...] = (), schema: Any = SCHEMA
) -> Path:
    """Write the tables of each session, their names with its suffix, and views without one."""
    written = {
        (name, suffix): (schema[name], rows)
        for suffix, tables in sessions.items()
        for name, rows in tables.items()
        if name not in without
    }
    views = [
        f'CREATE VIEW IF NOT EXISTS rocpd_{name} AS SELECT * FROM "rocpd_{name}{suffix}"'
        for name, suffix in written
        if suffix
    ]
    return database(path, {f"rocpd_{name}{suffix}": made for (name, suffix), made in written.items()}, views)


def read(path: Path) -> Trace:
    return link(read_files(RocpdReader(), [path]))


@pytest.mark.parametrize("suffix", [GUID, ""], ids=["with guid", "plain"])
def test_one_process(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / "t.db", {suffix: session()})
    assert RocpdReader().sniff(Head.of(path)) and not RpdReader().sniff(Head.of(path))
    trace = read(path)
    assert table(trace, "kernels", "rank", "name", "start_ns", "dur_ns", "device", "stream", "queue") == [
        (-1, "f(int)", 100, 60, 1, 3, 0),
        (-1, "_Z1g", 170, 1, 0, 0, 1),
    ]
    assert table(trace, "kernels", "workgroups", "workgroup_size", "registers", "lds_bytes", "correlation") == [
        (32, 128, 24, 64, 1),
        (1, 256, 8, 0, 40),
    ]
    assert json.loads(table(trace, "kernels", "args")[0][0])["sgpr_count"] == 16
    assert linked(trace, "kernels") == [("f(int)", "hipLaunchKernel"), ("_Z1g", None)]
    assert linked(trace, "copies") == [("MEMORY_COPY_HOST_TO_DEVICE", "hipMemcpy")]
    assert table(trace, "copies", "direction", "device", "bytes", "correlation") == [("HtoD", 0, 4096, 0)]
    assert table(trace, "launches", "api", "process", "thread", "correlation") == [
        ("hip_runtime", 700, 880, 0),
        ("hip_runtime", 700, 880, 1),
    ]
    assert sorted(table(trace, "ranges", "name", "category", "thread")) == [
        ("hsa_init", "hsa_api", 880),
        ("step 1", "user_annotation", 880),
    ]
    assert table(trace, "counters", "name", "value", "kernel_id", "start_ns") == [("SQ_WAVES", 16.5, 4, 100)]
    assert table(trace, "kernels", "id")[0] == (4,)
    assert (trace.meta.version, trace.meta.ranks) == ("rocpd schema 3", ())
    assert trace.meta.devices == (
        DeviceProperties(-1, 0, "MI350X", 256, 309),
        DeviceProperties(-1, 1, "MI350X", 256, None),
    )
    assert (trace.meta.quality["events"], trace.meta.quality["dropped_no_value"]) == (9, 1)
    assert balanced(trace.meta.quality)


def test_correlation_ids_are_used_where_they_are_given(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "t.db", {GUID: session(by_correlation=True)}))
    assert table(trace, "kernels", "correlation") == [(6,), (45,)]
    assert linked(trace, "kernels")[0] == ("f(int)", "hipLaunchKernel")


def test_merged_processes_are_ranks(tmp_path: Path) -> None:
    # The suffixes are in the other order than the numbers of the processes, which decide.
    trace = read(write(tmp_path / "t.db", {OTHER: session(0), GUID: session(1)}))
    assert trace.meta.ranks == (0, 1)
    assert {(rank, process) for rank, process in table(trace, "launches", "rank", "process")} == {(0, 700), (1, 701)}
    assert sorted(rank for (rank,) in table(trace, "kernels", "rank")) == [0, 0, 1, 1]
    assert sorted(table(trace, "counters", "rank")) == [(0,), (1,)]
    assert trace.meta.quality["duplicate_correlation"] == 0
    assert sorted(linked(trace, "kernels"), key=str) == sorted(
        [("f(int)", "hipLaunchKernel"), ("_Z1g", None)] * 2, key=str
    )
    assert [(d.rank, d.device) for d in trace.meta.devices] in (
        [(1, 0), (1, 1), (0, 0), (0, 1)],
        [(0, 0), (0, 1), (1, 0), (1, 1)],
    )


def test_two_processes_under_one_guid_are_ranks(tmp_path: Path) -> None:
    tables = session(0)
    tables["info_process"].append((1, "g", 0, 1, 701, "python"))
    second = list(tables["kernel_dispatch"][1])
    second[3] = 1
    tables["kernel_dispatch"][1] = tuple(second)
    trace = read(write(tmp_path / "t.db", {GUID: tables}))
    assert table(trace, "kernels", "rank") == [(0,), (1,)]


def test_a_process_without_work_lends_no_correlation(tmp_path: Path) -> None:
    idle = session(5)
    idle["kernel_dispatch"], idle["memory_copy"], idle["pmc_event"] = [], [], []
    trace = read(write(tmp_path / "t.db", {GUID: session(0), OTHER: idle}))
    assert trace.meta.ranks == ()
    assert table(trace, "launches", "process", "correlation") == [(700, 0), (700, 1), (705, None), (705, None)]


@pytest.mark.parametrize("name", [name for name in SCHEMA if name not in ("kernel_dispatch", "region", "memory_copy")])
def test_without_any_other_table_events_are_kept(tmp_path: Path, name: str) -> None:
    trace = read(write(tmp_path / "t.db", {GUID: session()}, without=(name,)))
    assert table(trace, "kernels", "start_ns", "dur_ns") == [(100, 60), (170, 1)]
    assert trace.copies.num_rows == 1
    assert trace.launches.num_rows + trace.ranges.num_rows == 4
    assert balanced(trace.meta.quality)


def test_without_agents_a_device_is_the_number_of_its_agent(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "t.db", {GUID: session()}, without=("info_agent",)))
    assert table(trace, "kernels", "device") == [(1,), (2,)]
    assert table(trace, "copies", "device", "direction") == [(2, "HtoD")]


@pytest.mark.parametrize(
    ("without", "schema", "message"),
    [
        (tuple(SCHEMA), {}, "no table rocpd_kernel_dispatch or rocpd_region"),
        (
            (),
            {"kernel_dispatch": SCHEMA["kernel_dispatch"].replace("start BIGINT", "began BIGINT")},
            f"rocpd_kernel_dispatch{GUID} lacks the columns start",
        ),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, without: tuple[str, ...], schema: dict[str, str], message: str
) -> None:
    path = write(tmp_path / "t.db", {GUID: session()}, without, {**SCHEMA, **schema})
    with pytest.raises(BrokenFileError, match=message) as caught:
        read(path)
    assert "t.db" in str(caught.value) and "\n" not in str(caught.value)


def test_no_rows_are_no_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "t.db", {GUID: {name: [] for name in SCHEMA}})
    with pytest.raises(BrokenFileError, match="holds no event"):
        read(path)


@pytest.mark.parametrize(
    ("start", "end", "counts"),
    [(100, 99, {"dropped_negative": 1}), (None, 160, {"dropped_no_time": 2}), ("x", 160, {"dropped_no_time": 2}),
     (2**62, 2**62 + 1, {"dropped_no_time": 2})],
)  # fmt: skip
def test_bad_times_are_counted_and_those_of_their_counters(
    tmp_path: Path, start: Any, end: Any, counts: dict[str, int]
) -> None:
    tables = session()
    row = list(tables["kernel_dispatch"][0])
    row[10], row[11] = start, end
    tables["kernel_dispatch"][0] = tuple(row)
    trace = read(write(tmp_path / "t.db", {GUID: tables}))
    assert trace.kernels.num_rows == 1
    assert {name: trace.meta.quality[name] for name in counts} == counts
    assert balanced(trace.meta.quality)


@given(st.sampled_from(sorted(SCHEMA)), st.integers(0, 30), st.integers(1, 30), CELLS)
def test_any_cell_is_a_row_or_counted(
    tmp_path_factory: pytest.TempPathFactory, name: str, row: int, column: int, cell: Any
) -> None:
    tables = session()
    put_cell(tables, name, row, column, cell)
    trace = read(write(tmp_path_factory.mktemp("odd") / "t.db", {GUID: tables}))
    assert holds_json(trace)
    assert balanced(trace.meta.quality)


def test_rows_before_the_damage_are_kept(tmp_path: Path) -> None:
    tables = session()
    tables["kernel_dispatch"] = [(i, *tables["kernel_dispatch"][0][1:]) for i in range(5000)]
    path = write(tmp_path / "t.db", {GUID: tables})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    trace = read(path)
    assert 0 < trace.kernels.num_rows < 5000
    assert trace.meta.quality["damaged_tables"] >= 1
    assert balanced(trace.meta.quality)
