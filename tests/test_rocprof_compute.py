"""ROCm Compute Profiler's wide CSV, today's and Omniperf's names, and what belongs to other readers."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from readings import balanced, read_content, rows_of, table

from profilers.errors import BrokenFileError
from profilers.readers.common.reader import Head
from profilers.readers.rocprof_compute import RocprofComputeReader
from profilers.trace.trace import Trace

NEW_HEADER = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,wave_size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID"
)
NEW = f"""{NEW_HEADER},SQ_WAVES,TCC_HIT_sum
0,4,1,100,101,1000,256,512,0,32,0,16,64,"vecCopy(double*, int) [clone .kd]",1000,3500,7,16,2.5
1,4,1,100,101,256,256,0,0,8,0,16,64,add.kd,4000,4100,8,4,
"""
OLD_HEADER = (
    "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,accum_vgpr,sgpr,wave_size,sig,obj"
)
TIMES = "DispatchNs,BeginNs,EndNs,CompleteNs,DurationNs"
OLD = f"""{OLD_HEADER},SQ_WAVES,{TIMES}
0,"add.kd",2,0,0,1,1,1024,64,0,0,4,0,16,64,0x0,0x7f,16,5,10,30,31,20
"""


def read(folder: Path, content: str) -> Trace:
    return read_content(RocprofComputeReader(), folder / "pmc_perf.csv", content)


def test_a_file_of_today(tmp_path: Path) -> None:
    trace = read(tmp_path, NEW)
    assert table(trace, "kernels", "name", "start_ns", "dur_ns", "device", "queue", "correlation") == [
        ("vecCopy(double*, int) [clone .kd]", 1000, 2500, 4, 1, 7),
        ("add.kd", 4000, 100, 4, 1, 8),
    ]
    assert table(trace, "kernels", "workgroups", "workgroup_size", "registers", "lds_bytes") == [
        (4, 256, 32, 512),
        (1, 256, 8, 0),
    ]
    assert table(trace, "counters", "kernel_id", "name", "value", "start_ns") == [
        (0, "SQ_WAVES", 16.0, 1000),
        (0, "TCC_HIT_sum", 2.5, 1000),
        (1, "SQ_WAVES", 4.0, 4000),
    ]
    assert '"wave_size":"64"' in table(trace, "kernels", "args")[0][0]
    assert trace.meta.quality.counts == {"events": 5, "kept": 5}


def test_an_old_file(tmp_path: Path) -> None:
    trace = read(tmp_path, OLD)
    assert table(trace, "kernels", "name", "start_ns", "dur_ns", "device", "workgroups", "registers") == [
        ("add.kd", 10, 20, 2, 16, 4)
    ]
    assert table(trace, "counters", "name", "value") == [("SQ_WAVES", 16.0)]
    assert trace.meta.version == "csv Index" and balanced(trace.meta.quality)


def test_a_file_without_timestamps_has_its_kernels_in_order(tmp_path: Path) -> None:
    lines = [line.split(",") for line in OLD.splitlines()]
    trace = read(tmp_path, "\n".join(",".join(line[:-5]) for line in [*lines, lines[1]]))
    assert table(trace, "kernels", "start_ns", "dur_ns") == [(0, None), (1, None)]
    assert trace.meta.quality["assumed_start"] == trace.meta.quality["missing_duration"] == 2


@pytest.mark.parametrize(
    ("header", "ours"),
    [
        (f"{NEW_HEADER},SQ_WAVES", True),
        (NEW_HEADER, True),
        (f"{OLD_HEADER},SQ_WAVES,{TIMES}", True),
        (f"{OLD_HEADER},{TIMES}", False),  # rocprof's results.csv
        ('"Kind","Agent_Id","Queue_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Start_Timestamp"', False),
        ('"Correlation_Id","Dispatch_Id","Agent_Id","Kernel_Name","Counter_Name","Counter_Value"', False),
        ("name,start_ns,dur_ns", False),
        ("", False),
    ],
)
def test_only_its_own_files_are_claimed(tmp_path: Path, header: str, ours: bool) -> None:
    assert RocprofComputeReader().sniff(Head(tmp_path, header.encode() + b"\n")) is ours


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        (",1000,3500,", ",,3500,", {"dropped_no_time": 1}),
        (",1000,3500,", ",0,0,", {"dropped_no_time": 1}),
        (",1000,3500,", ",3500,1000,", {"dropped_negative": 1}),
        (",16,2.5", ",16", {"dropped_broken": 1}),
        (",16,2.5", ",x,nan", {"dropped_no_value": 2}),
        (",16,2.5", ",inf,1e999", {"dropped_no_value": 2}),
        ("1000,256,512", "1000,0,512", {}),
        ("0,4,1,100", "0,99999999999999999999,1,100", {}),
        ("add.kd", "", {"missing_name": 1}),
    ],
)
def test_damage_costs_what_it_touches(tmp_path: Path, old: str, new: str, counts: Mapping[str, int]) -> None:
    trace = read(tmp_path, NEW.replace(old, new))
    assert {name: n for name, n in trace.meta.quality.counts.items() if name not in ("events", "kept")} == counts
    assert balanced(trace.meta.quality) and trace.meta.quality["kept"] == rows_of(trace)


@pytest.mark.parametrize(
    ("content", "words"), [(f"{NEW_HEADER}\n", "no row"), ("a,b\n1,2\n", "no column Kernel_Name"), ("", "no column")]
)
def test_nothing_to_use_is_an_error(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(BrokenFileError, match=words):
        read(tmp_path, content)


def test_a_counter_that_comes_twice_is_kept_twice(tmp_path: Path) -> None:
    trace = read(tmp_path, f"{NEW_HEADER},SQ_WAVES,SQ_WAVES\n" + NEW.splitlines()[1] + "\n")
    assert table(trace, "counters", "name", "value") == [("SQ_WAVES", 16.0), ("SQ_WAVES.19", 2.5)]
