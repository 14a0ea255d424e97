"""Plain CSV files: exact times, columns that are there or not, damage that costs what it touches."""

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from readings import balanced, read_content

from profilers.errors import BrokenFileError
from profilers.ingest.pipeline import IngestOptions, collect
from profilers.ingest.stage import Stage
from profilers.readers.common.reader import Head, find_reader
from profilers.readers.plain_csv import CsvReader
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import TraceMeta
from replay.costs.shipped import load_parameters
from replay.engine import replay
from replay.from_trace import build_graph
from replay.what_ifs import scale_kernels

PLAIN = b"name,start_us,dur_us\na,10.5,42.125\nb,53,0.001\n"


def read(folder: Path, content: bytes, name: str = "k.csv") -> tuple[TraceMeta, list[dict[str, Any]]]:
    trace = read_content(CsvReader(), folder / name, content)
    return trace.meta, trace.kernels.to_pylist()


def picked(row: Mapping[str, Any], *columns: str) -> tuple[Any, ...]:
    return tuple(row[c] for c in columns)


def test_the_smallest_file(tmp_path: Path) -> None:
    meta, rows = read(tmp_path, PLAIN)
    assert [picked(r, "rank", "name", "start_ns", "dur_ns", "args") for r in rows] == [
        (OWN_RANK, "a", 10_500, 42_125, None),
        (OWN_RANK, "b", 53_000, 1, None),
    ]
    assert meta.quality.counts == {"events": 2, "kept": 2}


def test_every_column(tmp_path: Path) -> None:
    _, (row,) = read(
        tmp_path,
        b"Rank, Device,stream,queue,correlation,workgroups,workgroup_size,registers,lds_bytes,"
        b"NAME,start_ns,end_ns,grid\n"
        b'3,1,7,2,99,256,128,32,4096,"void add<float, 4>(int)",1700000000123456789,1700000000123456799,"[16,16]"\n',
    )
    columns = ("rank", "device", "stream", "queue", "correlation", "workgroups", "workgroup_size", "registers")
    assert picked(row, *columns, "lds_bytes") == (3, 1, 7, 2, 99, 256, 128, 32, 4096)
    assert picked(row, "name", "start_ns", "dur_ns") == ("void add<float, 4>(int)", 1_700_000_000_123_456_789, 10)
    assert row["args"] == '{"grid":"[16,16]"}'


@pytest.mark.parametrize(
    ("unit", "start", "ns"),
    [("ns", "7", 7), ("us", "7.0015", 7002), ("ms", "1e-3", 1000), ("s", "1700000000.123456789", 1700000000123456789)],
)
def test_times_are_exact_in_every_unit(tmp_path: Path, unit: str, start: str, ns: int) -> None:
    _, (row,) = read(tmp_path, f"name,start_{unit},dur_{unit}\nk,{start},1\n".encode())
    assert row["start_ns"] == ns


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        (b"k,x,1\n", {"dropped_no_time": 1}),
        (b"k,,1\n", {"dropped_no_time": 1}),
        (b"k,nan,1\n", {"dropped_no_time": 1}),
        (b"k,1e30,1\n", {"dropped_no_time": 1}),
        (b"k,4000000000000000,4000000000000000\n", {"dropped_no_time": 1}),
        (b"k,1,-1\n", {"dropped_negative": 1}),
        (b"k,1\n", {"dropped_broken": 1}),
        (b"k,1,2,3\n", {"dropped_broken": 1}),
        (b'"' + b"k" * (2 << 20) + b'",1,2\n', {"dropped_broken": 1}),
        (b'"' + b"k" * (200 << 10) + b'",1,2\n', {"dropped_broken": 1}),
        (b"k,1,\n", {"missing_duration": 1}),
        (b",1,2\n", {"missing_name": 1}),
        (b"\xff,1,2\n", {"repaired_utf8": 1}),
        (b"\n\r\n", {}),
    ],
)
def test_damage_costs_what_it_touches(tmp_path: Path, line: bytes, counts: Mapping[str, int]) -> None:
    meta, rows = read(tmp_path, PLAIN + line)
    found = {name: n for name, n in meta.quality.counts.items() if name not in ("events", "kept")}
    assert found == counts
    assert len(rows) == meta.quality["kept"] and rows[0]["name"] == "a"
    assert balanced(meta.quality)


def test_what_is_no_integer_stays_in_args(tmp_path: Path) -> None:
    _, (row,) = read(tmp_path, b"name,start_ns,dur_ns,device,stream\nk,1,2,GPU 0,99999999999999999999\n")
    assert picked(row, "device", "stream") == (None, None)
    assert row["args"] == '{"device":"GPU 0","stream":"99999999999999999999"}'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"name,start_us,dur_us\n", "no row"),
        (
            b"name,start_us,dur_us\nk,x,1\nk,1,-1\n",
            "none of its 2 rows can be used .1 dropped_negative, 1 dropped_no_t",
        ),
        (b"name,begin\nk,1\n", "must name the columns"),
        (b"", "must name the columns"),
    ],
)
def test_nothing_to_use_is_an_error_that_says_why(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(BrokenFileError, match=words):
        read(tmp_path, content)


def test_a_packed_file_and_one_with_a_mark_are_known(tmp_path: Path) -> None:
    for name, content in (("a.csv.gz", gzip.compress(PLAIN)), ("b.csv", b"\xef\xbb\xbf" + PLAIN)):
        meta, rows = read(tmp_path, content, name)
        assert len(rows) == 2 and meta.quality["truncated_files"] == 0
        assert find_reader(tmp_path / name).name == "csv"


def test_a_packed_file_that_is_cut_is_counted(tmp_path: Path) -> None:
    lines = b"".join(b"k%d,%d,1\n" % (i * i * 2654435761 % 2**61, i) for i in range(20000))
    packed = gzip.compress(PLAIN + lines)
    meta, rows = read(tmp_path, packed[: len(packed) // 2], "a.csv.gz")
    assert meta.quality["truncated_files"] == 1 and 2 < len(rows) < 20002
    assert balanced(meta.quality)


def test_the_limit_holds(tmp_path: Path) -> None:
    path = tmp_path / "k.csv.gz"
    path.write_bytes(gzip.compress(PLAIN + b"k,1,1\n" * 100_000))
    with pytest.raises(BrokenFileError, match="unpacks to more"):
        CsvReader().read([path], Stage(limit_bytes=100_000))


@pytest.mark.parametrize(
    "start",
    [
        b"name,value\n",
        b"Index,KernelName,gpu-id\n",
        b"Start (ns),Duration (ns),Name\n",
        b"name,start_ns\n",
        b'{"name":1,"start_ns":2}',
        b"",
    ],
)
def test_other_files_are_not_claimed(tmp_path: Path, start: bytes) -> None:
    assert not CsvReader().sniff(Head(tmp_path, start))


def test_batches_lose_nothing(tmp_path: Path) -> None:
    meta, rows = read(tmp_path, b"name,start_ns,dur_ns\n" + b"".join(b"k,%d,1\n" % i for i in range(70_000)))
    assert [r["start_ns"] for r in rows] == list(range(70_000)) and meta.quality["kept"] == 70_000


def test_it_becomes_a_trace(tmp_path: Path) -> None:
    (tmp_path / "k.csv").write_bytes(PLAIN)
    trace = collect([tmp_path / "k.csv"])
    assert trace.meta.format == "csv" and trace.kernels["dur_ns"].to_pylist() == [42_125, 1]


def test_a_recording_without_a_host_ends_with_its_device_work(tmp_path: Path) -> None:
    (tmp_path / "k.csv").write_text("name,start_us,dur_us,stream\na,0,10,0\nb,10,10,0\nc,25,10,0\n")
    graph = build_graph(collect([tmp_path / "k.csv"]), 0, parameters=load_parameters())
    assert replay(graph).makespan_ns == 35_000
    halved = scale_kernels("all", 0.5)(graph, load_parameters())
    assert replay(halved).makespan_ns == 20_000  # the pause of 5 us stays


@pytest.mark.parametrize("n_after", [3, 20_000], ids=["to the end of the file", "past the longest field"])
def test_a_quote_that_is_never_closed_costs_its_line(tmp_path: Path, n_after: int) -> None:
    after = "".join(f"k{i},{60 + i},1\n" for i in range(n_after))
    meta, rows = read(tmp_path, PLAIN + f'"open,54,1\n{after}'.encode())
    assert [row["name"] for row in rows] == ["a", "b", *(f"k{i}" for i in range(n_after))]
    assert meta.quality.counts == {"events": n_after + 3, "kept": n_after + 2, "dropped_broken": 1}


def test_a_name_may_have_two_lines(tmp_path: Path) -> None:
    meta, rows = read(tmp_path, PLAIN + b'"two\nlines",54,1\n"c",60,1')
    assert [row["name"] for row in rows] == ["a", "b", "two\nlines", "c"]
    assert meta.quality["dropped_broken"] == 0


@pytest.mark.parametrize("stream", [7, 20], ids=["one stream", "collectives on a stream of their own"])
def test_streams_without_a_host_wait_for_each_other(tmp_path: Path, stream: int) -> None:
    rows, start = ["name,start_us,dur_us,stream"], 100.0
    for _ in range(4):
        step = (("ampere_sgemm_a", 800, 7), ("softmax", 200, 7), ("ncclDevKernel_AllReduce", 300, stream))
        for name, duration, on in step:
            rows.append(f"{name},{start},{duration},{on}")
            start += duration + 15
    path = tmp_path / "k.csv"
    path.write_text("\n".join(rows))
    graph = build_graph(collect([path], IngestOptions(iterations="whole")), 0, parameters=load_parameters())
    halved = scale_kernels("gemm", 0.5)(graph, load_parameters())
    saved = replay(graph).makespan_ns - replay(halved).makespan_ns
    assert saved == pytest.approx(4 * 400_000, abs=1)
