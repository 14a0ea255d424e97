"""Exports of Nsight Systems, of every age: tiny ones made here, real ones where they lie, damaged ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from readings import Rows, database, losses, read_files, table
from traces import link

from profilers.errors import BrokenFileError
from profilers.ingest.stage import Stage
from profilers.readers.common.reader import Head
from profilers.readers.common.source import prefetch
from profilers.readers.nsys import NsysReader, NsysTablesReader
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, Trace

REAL = Path(__file__).parents[2] / "shared" / "data" / "traces" / "nsys"

Tables = dict[str, tuple[str, Rows]]

ONE, TWO = 1 << 48 | 70 << 24, 1 << 48 | 50 << 24
KERNEL = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,"
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,"
    "shortName INTEGER NOT NULL, mangledName INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,"
    "gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,"
    "blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,"
    "graphNodeId INTEGER"
)
RUNTIME = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,"
    "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL"
)
NVTX = (
    "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER, textId INTEGER,"
    "domainId INTEGER, category INTEGER"
)
STRINGS = "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL"
TEXTS = [(1, "gemm<float>(T*)"), (2, "gemm"), (3, "cudaLaunchKernel_v7000"), (4, "cuLaunchKernel"), (9, "step")]
SHAPE = (40, 4, 3, 2, 128, 2, 1, 1024, 512)


def export(**changes: tuple[str, list[tuple[Any, ...]]] | None) -> Tables:
    """Return the tables of a small export of one process; a table that is None is left out."""
    tables: dict[str, Any] = {
        "StringIds": (STRINGS, TEXTS),
        "META_DATA_EXPORT": ("name TEXT, value TEXT", [("EXPORT_SCHEMA_VERSION", "3.13.2")]),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (RUNTIME, [(100, 150, 0, ONE | 71, 8, 3, 0), (90, 95, 1, ONE | 71, 7, 4, 2)]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (KERNEL, [(200, 260, 0, 1, 7, 8, ONE, 1, 2, None, *SHAPE, None)]),
    }
    return {name: table for name, table in (tables | changes).items() if table is not None}


def write_folder(path: Path, tables: Tables, suffix: str) -> Path:
    path.mkdir()
    for name, (columns, rows) in tables.items():
        names = [column.split()[0] for column in columns.split(",")]
        types = [pa.string() if "TEXT" in column else pa.int64() for column in columns.split(",")]
        arrays = [pa.array([row[i] for row in rows], type_) for i, type_ in enumerate(types)]
        table = pa.table(dict(zip(names, arrays, strict=True)))
        if suffix == "parquet":
            pq.write_table(table, path / f"{name}.parquet")
            continue
        kind = pa.ipc.new_stream if suffix == "stream" else pa.ipc.new_file
        with pa.OSFile(str(path / f"{name}.arrow"), "wb") as file, kind(file, table.schema) as out:
            out.write_table(table)
    return path


def read(path: Path, reader: NsysReader | NsysTablesReader | None = None) -> Trace:
    reader = reader or NsysReader()
    assert reader.sniff(Head.of(path))
    return read_files(reader, [path])


def made(folder: Path, tables: Tables) -> Trace:
    return read(database(folder / "t.sqlite", tables))


def test_a_small_export(tmp_path: Path) -> None:
    gpu = ("id INTEGER, name TEXT, smCount INTEGER, totalMemory INTEGER", [(0, "NVIDIA H100", 132, 85), (1, "", 0, 0)])
    trace = made(
        tmp_path,
        export(
            TARGET_INFO_GPU=gpu, TARGET_INFO_SESSION_START_TIME=("utcEpochNs INTEGER", [(1_700_000_000_000_000_001,)])
        ),
    )
    assert table(trace, "kernels", "rank", "name", "start_ns", "dur_ns", "device", "stream", "correlation") == [
        (OWN_RANK, "gemm<float>(T*)", 200, 60, 0, 7, 8)
    ]
    assert table(trace, "kernels", "workgroups", "workgroup_size", "registers", "lds_bytes", "graph_node", "args") == [
        (24, 256, 40, 1536, None,
         '{"grid":[4,3,2],"block":[128,2,1],"contextId":1,"staticSharedMemory":1024,"dynamicSharedMemory":512}')
    ]  # fmt: skip
    assert table(
        trace, "launches", "name", "api", "start_ns", "dur_ns", "process", "thread", "correlation", "args"
    ) == [
        ("cudaLaunchKernel", "cuda_runtime", 100, 50, 70, 71, 8, None),
        ("cuLaunchKernel", "cuda_driver", 90, 5, 70, 71, 7, '{"returnValue":2}'),
    ]
    meta = trace.meta
    assert (meta.format, meta.version, meta.sources, meta.ranks) == ("nsys", "schema 3.13.2", ("t.sqlite",), ())
    assert meta.clock_base_ns == 1_700_000_000_000_000_001
    assert meta.devices == (DeviceProperties(OWN_RANK, 0, "NVIDIA H100", 132, 85), DeviceProperties(OWN_RANK, 1, ""))
    assert dict(meta.quality.counts) == {"events": 3, "kept": 3}
    assert link(trace).kernels["launch_id"].to_pylist() == [0]


COPY = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,"
    "globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER"
)
FILL = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,"
    "globalPid INTEGER, value INTEGER, bytes INTEGER, memKind INTEGER"
)
SYNC = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,"
    "globalPid INTEGER, syncType INTEGER, eventId INTEGER"
)


def test_copies_fills_and_syncs(tmp_path: Path) -> None:
    place = (0, 1, 7, 3, ONE)
    kinds = [(1, 0, 2), (2, 2, 1), (8, 2, 2), (10, None, None), (99, 2, 2)]
    trace = made(
        tmp_path,
        export(
            CUPTI_ACTIVITY_KIND_MEMCPY=(COPY, [(10, 20, *place, 64, *kind) for kind in kinds]),
            CUPTI_ACTIVITY_KIND_MEMSET=(FILL, [(30, 31, *place, 0, 4, 2)]),
            CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=(
                SYNC,
                [(40, 50, 0, 1, 2**32 - 1, 5, ONE, 4, 2**32 - 1), (51, 52, 0, 1, 13, 6, ONE, 2, 99)],
            ),
        ),
    )
    assert table(trace, "copies", "name", "direction", "bytes", "dur_ns") == [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", 64, 10),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", 64, 10),
        ("Memcpy DtoD (Device -> Device)", "DtoD", 64, 10),
        ("Memcpy PtoP", "PtoP", 64, 10),
        ("Memcpy unknown (Device -> Device)", "unknown", 64, 10),
        ("Memset (Device)", "memset", 4, 1),
    ]
    assert table(trace, "syncs", "sync", "stream", "event", "correlation") == [
        ("Context Sync", None, None, 5),
        ("Stream Wait Event", 13, 99, 6),
    ]
    assert losses(trace) == {}


def test_a_graph_is_one_piece_of_work(tmp_path: Path) -> None:
    columns = (
        "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,"
        "globalPid INTEGER, graphId INTEGER, graphExecId INTEGER"
    )
    launched = [(120, 900, 0, 1, 7, 8, ONE, 109, 5), (0, 0, 0, 1, 7, 9, ONE, 109, 5)]
    trace = made(tmp_path, export(CUPTI_ACTIVITY_KIND_KERNEL=None, CUPTI_ACTIVITY_KIND_GRAPH_TRACE=(columns, launched)))
    assert table(link(trace), "kernels", "name", "dur_ns", "stream", "launch_id", "args") == [
        ("CUDA graph 109", 780, 7, 0, '{"graphId":109,"graphExecId":5,"contextId":1}')
    ]
    assert losses(trace) == {"dropped_no_time": 1}


def test_nvtx_ranges_and_what_is_none(tmp_path: Path) -> None:
    events = [
        (10, 90, 59, "forward", ONE | 71, None, 0, None),
        (20, 30, 60, None, ONE | 71, 9, 1, 5),
        (20, None, 34, "a mark", ONE | 71, None, 0, None),
        (21, None, 59, "never ended", ONE | 71, None, 0, None),
        (22, 23, 75, "a domain", ONE | 71, None, 0, None),
        (24, 25, 59, None, ONE | 71, 1234, 0, None),
    ]
    trace = made(tmp_path, export(NVTX_EVENTS=(NVTX, events)))
    assert table(trace, "ranges", "name", "category", "start_ns", "dur_ns", "process", "thread", "args") == [
        ("forward", "user_annotation", 10, 80, 70, 71, '{"domainId":0}'),
        ("step", "user_annotation", 20, 10, 70, 71, '{"domainId":1,"category":5}'),
        ("unknown", "user_annotation", 24, 1, 70, 71, '{"domainId":0}'),
    ]
    assert losses(trace) == {"skipped_marker": 3, "missing_name": 1}


def test_each_process_with_gpu_work_is_a_rank(tmp_path: Path) -> None:
    kernels = [
        (200, 260, 1, 1, 7, 8, ONE, 1, 2, None, *SHAPE, None),
        (300, 360, 0, 1, 7, 8, TWO, 1, 2, None, *SHAPE, None),
    ]
    host = 1 << 48 | 99 << 24
    calls = [(1, 2, 0, ONE, 8, 3, 0), (3, 4, 0, TWO, 8, 3, 0), (5, 6, 0, host, 8, 3, 0)]
    gpus = (
        "id INTEGER, name TEXT, smCount INTEGER, totalMemory INTEGER",
        [(0, "A", 1, 1), (1, "B", 1, 1), (2, "C", 1, 1)],
    )
    trace = made(
        tmp_path,
        export(
            CUPTI_ACTIVITY_KIND_KERNEL=(KERNEL, kernels),
            CUPTI_ACTIVITY_KIND_RUNTIME=(RUNTIME, calls),
            TARGET_INFO_GPU=gpus,
        ),
    )
    assert trace.meta.ranks == (0, 1)
    assert table(trace, "kernels", "rank", "device", "start_ns") == [(1, 1, 200), (0, 0, 300)]
    assert table(trace, "launches", "rank", "process", "correlation") == [(1, 70, 8), (0, 50, 8), (0, 99, None)]
    assert [(d.rank, d.device, d.name) for d in trace.meta.devices] == [(0, 0, "A"), (1, 1, "B")]
    linked = link(trace)
    assert linked.kernels["launch_id"].to_pylist() == [0, 1]
    assert linked.meta.quality["duplicate_correlation"] == 0


def test_names_fall_back(tmp_path: Path) -> None:
    names = [(1, 2), (77, 2), (77, 78)]
    kernels = [(200, 260, 0, 1, 7, 8, ONE, *name, None, *SHAPE, None) for name in names]
    trace = made(tmp_path, export(CUPTI_ACTIVITY_KIND_KERNEL=(KERNEL, kernels)))
    assert table(trace, "kernels", "name") == [("gemm<float>(T*)",), ("gemm",), ("unknown",)]
    assert losses(trace) == {"missing_name": 1}


def test_times_that_cannot_be(tmp_path: Path) -> None:
    times = [(10, 5), (None, 5), (2**62, 5), (10, None), (10, 2**62), (7, 7)]
    loose = KERNEL.replace(" NOT NULL", "")
    kernels = [(*time, 0, 1, 7, 8, ONE, 1, 2, None, *SHAPE, None) for time in times]
    trace = made(tmp_path, export(CUPTI_ACTIVITY_KIND_KERNEL=(loose, kernels)))
    assert table(trace, "kernels", "start_ns", "dur_ns") == [(10, None), (10, None), (7, 0)]
    assert losses(trace) == {"dropped_negative": 1, "dropped_no_time": 2, "missing_duration": 2}


@pytest.mark.parametrize(
    "values",
    [(-1, 0, 2**62, 2**62, 2**62, 2**62), ("x", b"y", 0.5, None, 1e300, ""), (2**63 - 1,) * 6, (-(2**63),) * 6],
)
def test_numbers_that_cannot_be_are_missing(tmp_path: Path, values: Sequence[Any]) -> None:
    loose = KERNEL.replace(" NOT NULL", "")
    row = (200, 260, values[0], 1, 7, 8, ONE, 1, 2, None, values[1], *values, values[2], values[3], None)
    trace = made(tmp_path, export(CUPTI_ACTIVITY_KIND_KERNEL=(loose, [row])))
    assert table(trace, "kernels", "workgroups", "workgroup_size", "lds_bytes") == [(None, None, None)]
    assert losses(trace) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"CUPTI_ACTIVITY_KIND_KERNEL": ("start INTEGER, deviceId INTEGER", [])}, "KERNEL has no column end"),
        ({"CUPTI_ACTIVITY_KIND_KERNEL": None, "CUPTI_ACTIVITY_KIND_RUNTIME": None}, "there is no such table"),
        (
            {"CUPTI_ACTIVITY_KIND_KERNEL": (KERNEL, []), "CUPTI_ACTIVITY_KIND_RUNTIME": None},
            r"no event to read \(CUPTI_ACTIVITY_KIND_KERNEL\); was CUDA or NVTX traced",
        ),
        (
            {
                "CUPTI_ACTIVITY_KIND_KERNEL": None,
                "CUPTI_ACTIVITY_KIND_RUNTIME": ("start INTEGER, end INTEGER", [(9, 5)]),
            },
            r"none of its 1 events can be used \(1 dropped_negative, 3 missing_columns\)",
        ),
    ],
)
def test_nothing_to_read_is_one_line(tmp_path: Path, changes: Any, message: str) -> None:
    path = database(tmp_path / "t.sqlite", export(**changes))
    with pytest.raises(BrokenFileError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value) and "t.sqlite" in str(caught.value)


def test_a_table_with_times_alone_is_read(tmp_path: Path) -> None:
    bare = ("start INTEGER, end INTEGER", [(1, 2)])
    names = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")
    tables: Tables = {f"CUPTI_ACTIVITY_KIND_{name}": bare for name in names} | {"NVTX_EVENTS": bare}
    trace = made(tmp_path, tables)
    assert [trace.tables[kind].num_rows for kind in ("kernels", "copies", "launches", "syncs", "ranges")] == [
        1,
        2,
        1,
        1,
        1,
    ]
    found = losses(trace)
    assert found["missing_columns"] > 20 and found["missing_name"] == 3
    assert trace.meta.version == "schema unknown"


def test_tables_of_later_versions(tmp_path: Path) -> None:
    tables = {f"{name}_V3" if "KIND" in name else name: table for name, table in export().items()}
    trace = made(tmp_path, tables)
    assert (trace.kernels.num_rows, trace.launches.num_rows) == (1, 2)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "stream"])
def test_a_folder_of_tables_reads_as_the_database(tmp_path: Path, suffix: str) -> None:
    tables = export(NVTX_EVENTS=(NVTX, [(10, 90, 59, "forward", ONE | 71, None, 0, None)]))
    folder = read(write_folder(tmp_path / "export", tables, suffix), NsysTablesReader())
    database = made(tmp_path, tables)
    assert folder.meta.format == "nsys_tables" and folder.meta.version == "schema 3.13.2"
    for kind in ("kernels", "launches", "ranges"):
        assert folder.tables[kind].to_pylist() == database.tables[kind].to_pylist()


def test_a_folder_with_texts_in_place_of_numbers(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "export", export(StringIds=None), "parquet")
    path = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    kernels = pq.read_table(path)
    at = kernels.schema.get_field_index("demangledName")
    pq.write_table(kernels.set_column(at, "demangledName", pa.array(["axpy"]).dictionary_encode()), path)
    assert table(read(folder, NsysTablesReader()), "kernels", "name") == [("axpy",)]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_damaged_folder_says_which_table(tmp_path: Path, suffix: str) -> None:
    folder = write_folder(tmp_path / "export", export(), suffix)
    path = folder / f"CUPTI_ACTIVITY_KIND_KERNEL.{suffix}"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(BrokenFileError, match=rf"KIND_KERNEL\.{suffix}.*export it again"):
        read(folder, NsysTablesReader())


def test_a_folder_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "export", export(), "parquet")
    with pytest.raises(BrokenFileError, match="more than the limit"):
        NsysTablesReader().read([folder], Stage(limit_bytes=10))


def test_a_damaged_table_keeps_what_came_before(tmp_path: Path) -> None:
    kernels = [(i, i + 5, 0, 1, 7, i, ONE, 1, 2, None, *SHAPE, None) for i in range(30_000)]
    path = database(tmp_path / "t.sqlite", export(CUPTI_ACTIVITY_KIND_KERNEL=(KERNEL, kernels)))
    content = bytearray(path.read_bytes())
    first = len(content) * 2 // 3 // 4096 * 4096
    content[first:] = b"\xff" * (len(content) - first)
    path.write_bytes(content)
    trace = read(path)
    assert 0 < trace.kernels.num_rows < 30_000
    assert trace.launches.num_rows == 2
    assert losses(trace)["damaged_tables"] >= 1


@pytest.mark.parametrize("tables", [{"t": ("a INTEGER", [])}, {"rocpd_op": ("id INTEGER", [])}, {}])
def test_other_databases_and_folders_are_not_taken(tmp_path: Path, tables: Tables) -> None:
    path = database(tmp_path / "t.sqlite", tables)
    assert not NsysReader().sniff(Head.of(path))
    assert not NsysTablesReader().sniff(Head.of(tmp_path))
    assert not NsysTablesReader().sniff(Head.of(path))


def test_work_ahead_ends_with_its_consumer() -> None:
    ended = []

    def numbers() -> Any:
        try:
            yield from range(1000)
        finally:
            ended.append(True)

    items = prefetch(numbers())
    assert next(items) == 0
    items.close()
    del items
    assert ended == [True]


def test_what_is_raised_ahead_is_raised_here() -> None:
    def broken() -> Any:
        yield 1
        raise BrokenFileError("here")

    items = prefetch(broken())
    assert next(items) == 1
    with pytest.raises(BrokenFileError, match="here"):
        next(items)


def real(name: str) -> Path:
    path = REAL / f"{name}.sqlite"
    if not path.exists():
        pytest.skip("the real exports are not on this machine")
    return path


#: Rows of the tables, and kernels that find their call by process and correlation, counted with SQL.
@pytest.mark.parametrize(
    ("name", "version", "kernels", "launches", "ranges", "linked"),
    [
        ("saxpy_mpi_a100_2022.2", "2.9.1", 5, 95, 22, 5),
        ("cloverleaf_a100_2024.5", "3.13.2", 1312, 3048, 0, 1312),
        ("fuser_h200_2024.6", "3.16.1", 19, 968, 652, 19),
        ("no_kernel_table_2025.1", "3.17.2", 0, 3, 0, 0),
        ("h100_2gpu_1s_2026.2", "3.25.0", 3442, 5796, 434, 1632),
        ("mfu_2gpu_before_2026.2", "3.25.0", 4010, 7466, 596, 3986),
    ],
)
def test_real_exports(name: str, version: str, kernels: int, launches: int, ranges: int, linked: int) -> None:
    trace = link(read(real(name)))
    assert (trace.kernels.num_rows, trace.launches.num_rows, trace.ranges.num_rows) == (kernels, launches, ranges)
    assert trace.kernels.num_rows - trace.kernels["launch_id"].null_count == linked
    assert trace.meta.version.startswith(f"schema {version}, nsys 20")
    assert trace.meta.ranks == ((0, 1) if "2gpu" in name else ())
    assert trace.meta.clock_base_ns > 1_600_000_000_000_000_000
    assert set(losses(trace)) <= {
        *("skipped_marker", "orphan_device", "orphan_op", "duplicate_correlation", "stream_overlap", "early_device"),
        *("kernel_launches", "launches_without_work", "first_launches_without_work"),
    }


def test_correlations_that_two_processes_share_link_to_their_own(tmp_path: Path) -> None:
    trace = link(read(real("mfu_2gpu_before_2026.2")))
    calls = dict(table(trace, "launches", "id", "rank"))
    pairs = [(rank, calls[call]) for rank, call in table(trace, "kernels", "rank", "launch_id") if call is not None]
    assert len(pairs) == 3986
    assert all(rank == other for rank, other in pairs)
