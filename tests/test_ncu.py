"""Nsight Compute's CSV: both forms, units, locales, and damage."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest
from readings import balanced, read_content, rows_of, table

from profilers.errors import BrokenFileError
from profilers.ingest.pipeline import collect
from profilers.readers.common.reader import Head, find_reader
from profilers.readers.ncu import NcuReader, base_unit
from profilers.trace.trace import Trace


def quoted(*lines: str) -> str:
    """Return lines of CSV as Nsight Compute prints them, every field in quotes; fields stand between bars."""
    return "".join(",".join(f'"{cell}"' for cell in line.split("|")) + "\n" for line in lines)


PLACE = "ID|Process ID|Process Name|Host Name|Kernel Name|Context|Stream"
METRIC = "Section Name|Metric Name|Metric Unit|Metric Value|Rule Name|Rule Type|Rule Description"
SGEMM = "0|100|python|127.0.0.1|sgemm|1|7|(256, 1, 1)|(16, 16, 1)|0|8.0"
ADD = "1|100|python|127.0.0.1|add|1|7|(128, 1, 1)|(1024, 1, 1)|0|8.0"
PRINTED = """==PROF== Connected to process 100 (/usr/bin/python)
loss 0.5, step 3
==PROF== Profiling "sgemm" - 0: 0%....50%....100% - 9 passes
"""
LONG = (
    PRINTED
    + quoted(
        f"{PLACE}|Block Size|Grid Size|Device|CC|{METRIC}",
        f"{SGEMM}|Speed|Duration|usecond|1,234.56|||",
        f"{SGEMM}|Launch|Registers Per Thread|register/thread|122|||",
        f"{SGEMM}|Launch|Function Cache||PreferNone|||",
        f"{SGEMM}|Speed||||Bottleneck|WRN|Do this",
    )
    + "==WARNING== No metrics for something\n"
    + quoted(
        f"{ADD}|Speed|Duration|nsecond|2,500|||",
        f"{ADD}|Memory|DRAM Throughput|Gbyte/second|1.5|||",
    )
)
ACTIVE = "sm__warps_active.avg.pct_of_peak_sustained_active"
TIME = "gpu__time_duration.sum"
RAW = quoted(
    f"{PLACE}|dram__bytes_read.sum|{TIME}|launch__block_size|launch__grid_size|launch__occupancy_limit|{ACTIVE}",
    "|||||||Mbyte|usecond|||block|%",
    "0|100|python|127.0.0.1|sgemm|1|7|4.2|10.016|256|1,024|8|49.5",
    "1|100|python|127.0.0.1|add|1|7|0.5||128|64|16|91",
)


def read(folder: Path, content: str) -> Trace:
    return read_content(NcuReader(), folder / "n.csv", content)


def test_the_long_form(tmp_path: Path) -> None:
    trace = read(tmp_path, LONG)
    assert table(trace, "kernels", "id", "name", "start_ns", "dur_ns", "workgroups", "workgroup_size", "registers") == [
        (0, "sgemm", 0, 1_234_560, 256, 256, 122),
        (1, "add", 1_234_560, 2500, 1024, 128, None),
    ]
    assert table(trace, "kernels", "device", "stream") == [(0, 7)] * 2
    assert '"Function Cache":"PreferNone"' in table(trace, "kernels", "args")[0][0]
    assert table(trace, "counters", "kernel_id", "name", "value", "unit", "start_ns") == [
        (0, "Duration", 1_234_560.0, "ns", 0),
        (0, "Registers Per Thread", 122.0, "register/thread", 0),
        (1, "Duration", 2500.0, "ns", 1_234_560),
        (1, "DRAM Throughput", 1.5e9, "byte/second", 1_234_560),
    ]
    assert trace.meta.quality.counts == {
        "events": 8,
        "kept": 6,
        "skipped_text": 1,
        "skipped_advice": 1,
        "assumed_start": 2,
    }
    assert (trace.meta.version, trace.meta.ranks) == ("csv long", ())


def test_the_raw_page_with_its_row_of_units(tmp_path: Path) -> None:
    trace = read(tmp_path, RAW)
    assert table(trace, "kernels", "name", "start_ns", "dur_ns", "workgroups", "workgroup_size", "occupancy") == [
        ("sgemm", 0, 10_016, 1024, 256, 49.5),
        ("add", 10_016, None, 64, 128, 91.0),
    ]
    assert table(trace, "counters", "kernel_id", "name", "value", "unit")[:2] == [
        (0, "dram__bytes_read.sum", 4_200_000.0, "byte"),
        (0, "gpu__time_duration.sum", 10_016.0, "ns"),
    ]
    assert trace.meta.version == "csv raw" and balanced(trace.meta.quality)
    assert trace.meta.quality["missing_duration"] == 1


@pytest.mark.parametrize(
    ("value", "other", "ns"),
    [
        ("1,234", "7", 1_234_000),
        ("1,234", "0.5", 1_234_000),
        ("1,234", "0,5", 1234),
        ("1.234", "0,5", 1_234_000),
        ("1.234", "0.5", 1234),
        ("1.234,5", "7", 1_234_500),
        ("1.234.567", "7", 1_234_567_000),
        ("1 234,5", "7", 1_234_500),
        ("1'234.5", "7", 1_234_500),
    ],
)
def test_the_whole_file_decides_what_a_comma_is(tmp_path: Path, value: str, other: str, ns: int) -> None:
    text = LONG.replace("1,234.56", value).replace('"122"', f'"{other}"').replace("2,500", "7").replace('"1.5"', '"7"')
    trace = read(tmp_path, text)
    assert table(trace, "kernels", "dur_ns")[0] == (ns,)


def test_processes_are_ranks_and_each_has_its_own_clock(tmp_path: Path) -> None:
    trace = read(tmp_path, LONG.replace('"1","100"', '"0","200"'))
    assert trace.meta.ranks == (0, 1)
    assert table(trace, "kernels", "rank", "name", "start_ns") == [(0, "sgemm", 0), (1, "add", 0)]
    assert set(table(trace, "counters", "rank", "kernel_id")) == {(0, 0), (1, 1)}


@pytest.mark.parametrize(
    ("unit", "plain"),
    [
        ("second", (10**9, "ns")),
        ("ms", (10**6, "ns")),
        ("Kbyte", (1000, "byte")),
        ("byte/block", (1, "byte/block")),
        ("Tbyte/second", (10**12, "byte/second")),
        ("Ghz", (10**9, "hz")),
        ("cycle/usecond", (10**6, "cycle/second")),
        ("register/thread", (1, "register/thread")),
        ("%", (1, "%")),
        ("", (1, "")),
        ("moon", (1, "moon")),
    ],
)
def test_units_lose_their_prefix(unit: str, plain: tuple[int, str]) -> None:
    assert base_unit(Decimal(1), unit) == plain


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ('"1,234.56"', '"n/a"', {"skipped_text": 2, "missing_duration": 1}),
        ('"1,234.56"', '""', {"dropped_no_value": 1, "missing_duration": 1}),
        ('"1,234.56"', '"-3"', {"missing_duration": 1}),
        ('"1,234.56"', '"1e400"', {"skipped_text": 2, "missing_duration": 1}),
        ('"Do this"', '"Do this","more"', {"skipped_advice": 0, "dropped_broken": 1}),
        ('"(16, 16, 1)"', '"everywhere"', {}),
        ('"sgemm"', '""', {"missing_name": 1}),
        ("loss", "\0\u2028", {}),
    ],
)
def test_damage_costs_what_it_touches(tmp_path: Path, old: str, new: str, counts: Mapping[str, int]) -> None:
    trace = read(tmp_path, LONG.replace(old, new))
    usual = {"events": 8, "kept": 6, "skipped_text": 1, "skipped_advice": 1, "assumed_start": 2}
    quality = trace.meta.quality
    assert {n: quality[n] for n in (*usual, *counts) if n not in ("events", "kept")} == {
        n: value for n, value in (usual | dict(counts)).items() if n not in ("events", "kept")
    }
    assert trace.kernels.num_rows == 2 and balanced(quality)


def test_a_header_alone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenFileError, match="no row"):
        read(tmp_path, "".join(LONG.splitlines(keepends=True)[:4]))


def test_its_files_are_known_and_others_are_not(tmp_path: Path) -> None:
    for content in (LONG, RAW):
        (tmp_path / "n.csv").write_text(content)
        assert find_reader(tmp_path / "n.csv").name == "ncu"
    assert not NcuReader().sniff(Head(tmp_path, b'"ID","Kernel Name"\n'))


def test_counters_still_point_to_their_kernels_in_a_trace_of_two_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(LONG)
    (tmp_path / "b.csv").write_text(LONG.replace("sgemm", "hgemm"))
    trace = collect([tmp_path / "a.csv", tmp_path / "b.csv"])
    names = dict(zip(trace.kernels["id"].to_pylist(), trace.kernels["name"].to_pylist(), strict=True))
    pointed = {(row["rank"], row["name"], names[row["kernel_id"]]) for row in trace.counters.to_pylist()}
    assert pointed >= {(0, "Registers Per Thread", "sgemm"), (1, "Registers Per Thread", "hgemm")}


def test_a_kernel_with_endless_metrics_is_bounded(tmp_path: Path) -> None:
    line = quoted(f"{SGEMM}|Speed|Again|usecond|1|||")
    trace = read(tmp_path, LONG + line * 70_000)
    assert balanced(trace.meta.quality) and trace.meta.quality["dropped_no_value"] == 70_000 - 65_536
    assert trace.meta.quality["kept"] == rows_of(trace)
