"""rocprof 1: CSV, SQLite and JSON give the same rows; links through indexes and arrows; damage is counted."""

import csv
import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from readings import Rows, balanced, database, linked, read_content, read_files, table
from traces import link

from profilers.errors import BrokenFileError
from profilers.ingest.pipeline import collect
from profilers.readers.common.reader import Head
from profilers.readers.rocm.rocprof import RocprofReader
from profilers.trace.trace import Trace

DATA = Path(__file__).parents[2] / "shared" / "data" / "traces" / "rocm"
GFX906, GFX942 = DATA / "rocprofv1_gfx906", DATA / "rocprofv1_gfx942"
real = pytest.mark.skipif(not DATA.is_dir(), reason=f"real recordings are not at {DATA}")

HEADER = (
    '"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","lds","scr","arch_vgpr",'
    '"accum_vgpr","sgpr","wave_size","sig","obj","DispatchNs","BeginNs","EndNs","CompleteNs","DurationNs"'
)
ROWS = (
    '0,"copyBuffer.kd",2,1,0,9,9,1000,256,64,0,16,0,32,64,"0x0","0x7f",90,100,140,150,40',
    '1,"void f<int, 2>(int) [clone .kd]",2,0,2,9,9,512,512,0,0,8,4,32,64,"0x0","0x7f",95,150,151,160,1',
)
CSV = "\n".join([HEADER, *ROWS]) + "\n"


def read(folder: Path, content: str | bytes) -> Trace:
    return link(read_content(RocprofReader(), folder / "results.any", content))


def read_file(path: Path) -> Trace:
    return link(read_files(RocprofReader(), [path]))


def test_a_csv_of_kernels(tmp_path: Path) -> None:
    trace = read(tmp_path, CSV)
    assert table(trace, "kernels", "rank", "name", "start_ns", "dur_ns", "device", "stream", "queue") == [
        (-1, "copyBuffer", 100, 40, 2, 1, 1),
        (-1, "void f<int, 2>(int)", 150, 1, 2, 0, 0),
    ]
    assert table(trace, "kernels", "workgroups", "workgroup_size", "registers", "lds_bytes", "correlation") == [
        (4, 256, 16, 64, None),
        (1, 512, 8, 0, None),
    ]
    rest = [json.loads(text) for (text,) in table(trace, "kernels", "args")]
    assert rest[1] == {"grd": 512, "scr": 0, "accum_vgpr": 4, "sgpr": 32, "wave_size": 64}
    assert (trace.meta.format, trace.meta.sources, trace.meta.ranks) == ("rocprof", ("results.any",), ())
    assert (trace.meta.quality["events"], trace.meta.quality["kept"]) == (2, 2)


def test_an_older_csv_has_fewer_columns(tmp_path: Path) -> None:
    trace = read(tmp_path, '"Index","KernelName","gpu-id","vgpr","BeginNs","EndNs"\n0,"k.kd",1,24,5,9\n')
    assert table(trace, "kernels", "name", "device", "registers", "workgroups", "stream") == [("k", 1, 24, None, None)]


HIP = '"BeginNs" INTEGER,"EndNs" INTEGER,"pid" INTEGER,"tid" INTEGER,"Name" TEXT,"args" TEXT,"Index" INTEGER'
OPS = '"BeginNs" INTEGER,"EndNs" INTEGER,"dev-id" INTEGER,"queue-id" INTEGER,"Name" TEXT,"tid" INTEGER,"Index" INTEGER'
MARKS = '"BeginNs" INTEGER,"EndNs" INTEGER,"pid" INTEGER,"tid" INTEGER,"Name" TEXT,"Index" INTEGER'
TABLES: dict[str, tuple[str, Rows]] = {
    "rocTX": (MARKS, [(1, 90, 0, 77, '"step 1"', 0)]),
    "HIP": (HIP, [(10, 20, 2, 77, "hipMemcpy", "(kind(1))", 1), (30, 35, 2, 77, "hipLaunchKernel", "", 2)]),
    "HSA": (HIP, [(11, 12, 1, 77, "hsa_signal_store", "", 1)]),
    "OPS": (OPS, [(40, 60, 0, 1, "f(int)", 3, 2), (60, 60, 0, 1, "Unknown command type", 3, 2)]),
    "COPY": (OPS, [(12, 18, 0, 0, "CopyHostToDevice", 0, 1), (70, 75, 0, 0, "FillBuffer", 0, None)]),
}


def test_a_database_links_work_to_the_call_of_the_same_index(tmp_path: Path) -> None:
    path = database(tmp_path / "results.db", TABLES)
    assert RocprofReader().sniff(Head.of(path))
    trace = read_file(path)
    assert linked(trace, "kernels") == [("f(int)", "hipLaunchKernel")]
    assert linked(trace, "copies") == [("CopyHostToDevice", "hipMemcpy"), ("FillBuffer", None)]
    assert table(trace, "kernels", "device", "stream", "queue", "correlation") == [(0, 3, 1, 2)]
    assert table(trace, "copies", "direction", "bytes") == [("HtoD", None), ("memset", None)]
    assert table(trace, "launches", "api", "thread", "process") == [("hip_runtime", 77, None)] * 2
    assert table(trace, "ranges", "name", "category", "dur_ns") == [
        ("hsa_signal_store", "hsa_api", 1),
        ("step 1", "user_annotation", 89),
    ]
    assert (trace.meta.quality["events"], trace.meta.quality["skipped_marker"]) == (8, 1)
    assert balanced(trace.meta.quality)


def test_a_table_without_times_is_named(tmp_path: Path) -> None:
    path = database(tmp_path / "r.db", {**TABLES, "COPY": ('"BeginNs" INTEGER,"Name" TEXT', [(1, "x")])})
    with pytest.raises(BrokenFileError, match=r"r\.db: table COPY lacks the columns EndNs"):
        read_file(path)


def event(process: int, thread: int, ts: int, **args: Any) -> dict[str, Any]:
    texts = {key.replace("_", "-"): str(value) for key, value in args.items()}
    return {"ph": "X", "name": args["Name"], "pid": str(process), "tid": str(thread), "ts": str(ts), "dur": "1",
            "args": texts}  # fmt: skip


def label(process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}


EVENTS: list[dict[str, Any]] = [
    {},
    label(0, "Markers and Ranges"),
    label(2, "CPU HIP API"),
    label(1, "COPY"),
    label(6, "GPU0"),
    event(0, 77, 0, BeginNs=1_000, EndNs=9_999, Name="step 1"),
    event(2, 77, 2, BeginNs=2_100, EndNs=4_200, Name="hipMemcpy"),
    event(2, 77, 5, BeginNs=5_100, EndNs=5_900, Name="hipLaunchKernel"),
    event(1, 0, 3, BeginNs=3_000, EndNs=3_500, Name="CopyDeviceToHost", dev_id=0, queue_id=0),
    event(6, 1, 7, BeginNs=7_001, EndNs=7_977, Name="f(int)", dev_id=0, queue_id=4),
    event(6, 1, 8, BeginNs=8_100, EndNs=8_200, Name="g(int)", dev_id=0, queue_id=4),
    {"ph": "s", "id": 0, "pid": 2, "tid": 77, "ts": 3, "cat": "DataFlow"},
    {"ph": "t", "id": 0, "pid": 1, "tid": 0, "ts": 3, "cat": "DataFlow"},
    {"ph": "s", "id": 9, "pid": 2, "tid": 77, "ts": 5, "cat": "DataFlow"},
    {"ph": "t", "id": 9, "pid": 6, "tid": 1, "ts": 7, "cat": "DataFlow"},
]


def test_json_has_exact_times_and_arrows(tmp_path: Path) -> None:
    content = json.dumps({"traceEvents": EVENTS, "otherData": {}})
    trace = read(tmp_path, content)
    assert RocprofReader().sniff(Head.of(tmp_path / "results.any"))
    assert table(trace, "kernels", "name", "start_ns", "dur_ns", "device", "stream", "queue") == [
        ("f(int)", 7001, 976, 0, 1, 4),
        ("g(int)", 8100, 100, 0, 1, 4),
    ]
    assert linked(trace, "kernels") == [("f(int)", "hipLaunchKernel"), ("g(int)", None)]
    assert linked(trace, "copies") == [("CopyDeviceToHost", "hipMemcpy")]
    assert table(trace, "ranges", "name", "category", "thread") == [("step 1", "user_annotation", 77)]
    assert balanced(trace.meta.quality)
    assert trace.meta.quality["skipped_flow"] == 9


def test_a_json_that_ends_early_keeps_what_came_before(tmp_path: Path) -> None:
    content = json.dumps({"traceEvents": EVENTS})
    trace = read(tmp_path, content[: content.index('"g(int)"')])
    assert trace.kernels.num_rows == 1
    assert trace.meta.quality["truncated_files"] == 1
    assert balanced(trace.meta.quality)


@pytest.mark.parametrize(
    ("content", "kernels", "counts"),
    [
        (CSV[:-60], 1, {"dropped_broken": 1, "truncated_files": 1}),
        (CSV.replace(",140,150", ",99,150"), 1, {"dropped_negative": 1}),
        (CSV.replace(",100,140", ",x,140"), 1, {"dropped_no_time": 1}),
        (CSV.replace(",100,140", ",100,x"), 2, {"missing_duration": 1}),
        (CSV.replace('"copyBuffer.kd"', '"copyBuffer.kd'), 1, {"dropped_broken": 1}),
        (CSV.replace('"copyBuffer.kd"', '""'), 2, {"missing_name": 1}),
        (CSV.encode().replace(b"copyBuffer", b"copy\xff"), 2, {"repaired_utf8": 1}),
        (CSV.replace(",1000,256", ",99999999999999999999,-1"), 2, {}),
        (CSV.replace("\n", "\r\n"), 2, {}),
        ("\ufeff" + CSV.replace("\n", "\n\n"), 2, {}),
        (CSV.rstrip("\n"), 2, {}),
    ],
)
def test_damage_costs_what_it_touches(
    tmp_path: Path, content: str | bytes, kernels: int, counts: dict[str, int]
) -> None:
    trace = read(tmp_path, content)
    quality = trace.meta.quality
    assert trace.kernels.num_rows == kernels == quality["kept"]
    others = ("events", "kept", "orphan_device", "orphan_op", "stream_overlap")
    assert {name: n for name, n in quality.counts.items() if name not in others} == counts
    assert balanced(quality)


def test_an_end_that_overruns_what_follows_is_cut_when_linked(tmp_path: Path) -> None:
    rows = [f'{i},"k",0,0,0,9,9,64,64,0,0,8,0,8,64,"","",0,{i * 5000},{i * 5000 + 4000},0,0' for i in range(1, 400)]
    rows[10] = rows[10].replace(",59000,", ",3000059000,")
    (tmp_path / "results.csv").write_text("\n".join([HEADER, *rows]))
    trace = collect([tmp_path / "results.csv"])
    assert trace.meta.quality["repaired_duration"] == 1
    assert max(duration for (duration,) in table(trace, "kernels", "dur_ns")) == 5000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER, "holds no event"),
        (HEADER + "\n1,2\n", "none of its 1 rows can be used"),
        ('"Index","KernelName","BeginNs"\n0,"k",5\n', r"lacks the columns EndNs"),
        ('{"traceEvents":[{}]}', "none of its 1 rows can be used"),
        ('{"BeginNs"', "holds no event"),
        (b"SQLite format 3\0" + bytes(200), "no usable SQLite file"),
    ],
)
def test_a_file_with_nothing_to_read_is_one_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(BrokenFileError, match=message) as caught:
        read(tmp_path, content)
    assert "results.any" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "known"),
    [
        (CSV, True),
        ('"Index","KernelName","gpu-id","SQ_WAVES","BeginNs","EndNs"\n', False),
        ('"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"k",1,2,3,4\n', False),
        ('{ "traceEvents":[{}\n,{"ph":"X","args":{"BeginNs":"1"}}', True),
        ('{ "traceEvents":[{}\n,{"ph":"X","args":{}}', False),
        ("", False),
    ],
)
def test_the_content_decides_not_the_name(tmp_path: Path, content: str, known: bool) -> None:
    path = tmp_path / "anything.txt"
    path.write_text(content)
    assert RocprofReader().sniff(Head.of(path)) is known


CELLS = st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)


@given(st.lists(st.tuples(*[CELLS] * 7), min_size=1, max_size=5))
def test_any_cell_of_a_database_is_a_row_or_counted(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    safe = [tuple(c if not isinstance(c, int) else max(min(c, 2**63 - 1), -(2**63)) for c in row) for row in rows]
    safe = [tuple(c.encode("utf-8", "replace").decode() if isinstance(c, str) else c for c in row) for row in safe]
    path = database(tmp_path_factory.mktemp("odd") / "r.db", {"OPS": (OPS, safe), "HIP": TABLES["HIP"]})
    trace = read_file(path)
    assert balanced(trace.meta.quality)
    assert trace.meta.quality["events"] == len(rows) + 2


@real
@pytest.mark.parametrize("name", ["results.csv", "results.db"])
def test_real_kernels_of_gfx942(name: str) -> None:
    with (GFX942 / "results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert RocprofReader().sniff(Head.of(GFX942 / name))
    trace = read_file(GFX942 / name)
    durations = [duration for (duration,) in table(trace, "kernels", "dur_ns")]
    assert durations == [int(row["DurationNs"]) for row in rows]
    assert [g for (g,) in table(trace, "kernels", "workgroups")] == [-(-int(r["grd"]) // int(r["wgr"])) for r in rows]
    assert (len(durations), sum(durations)) == (56, 9_025_354)


def gfx906() -> dict[str, list[tuple[Any, ...]]]:
    connection = sqlite3.connect(f"file:{GFX906 / 'results.db'}?immutable=1", uri=True)
    query = 'SELECT BeginNs, EndNs - BeginNs, Name, "Index", tid FROM "{}" WHERE Name != ? ORDER BY BeginNs, "Index"'
    found = {
        t: connection.execute(query.format(t), ("Unknown command type",)).fetchall() for t in ("HIP", "OPS", "COPY")
    }
    connection.close()
    return found


@real
@pytest.mark.parametrize(("name", "orphans"), [("results.db", 0), ("results.json", 2)])
def test_real_trace_of_gfx906(name: str, orphans: int) -> None:
    # Two of the fills have no arrow in the JSON, and share their call with another in the database.
    rows = gfx906()
    assert RocprofReader().sniff(Head.of(GFX906 / name))
    trace = read_file(GFX906 / name)
    for kind, source in (("launches", "HIP"), ("kernels", "OPS"), ("copies", "COPY")):
        ours = sorted(table(trace, kind, "start_ns", "dur_ns", "name"))
        assert ours == sorted((begin, duration, text) for begin, duration, text, *_ in rows[source])
    assert trace.meta.quality["orphan_device"] == orphans
    calls = {index: text for _, _, text, index, _ in rows["HIP"]}
    expected = Counter((text, calls[index]) for t in ("OPS", "COPY") for _, _, text, index, _ in rows[t])
    found = Counter(pair for kind in ("kernels", "copies") for pair in linked(trace, kind) if pair[1])
    assert not found - expected and sum((expected - found).values()) == orphans
    assert balanced(trace.meta.quality)


@real
@pytest.mark.parametrize("folder", [GFX906, GFX942])
def test_real_statistics_are_no_trace(folder: Path) -> None:
    files = list(folder.glob("*stats.csv"))
    assert files and not any(RocprofReader().sniff(Head.of(file)) for file in files)
