"""From files to one trace: which files, in which order, on which rank; and 300 damaged ones."""

import gzip
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import event, kernel, launch, write_trace

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError, UnknownFormatError
from profilers.ingest.pipeline import IngestOptions, collect, open_trace
from profilers.trace.schema import KINDS
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import Trace


def write(path: Path, *events: dict[str, Any], **header: Any) -> Path:
    text = json.dumps({**header, "traceEvents": list(events)})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def named(trace: Trace) -> list[tuple[int, str]]:
    """Return (rank, name) of each kernel in the order of the table."""
    return list(zip(trace.kernels["rank"].to_pylist(), trace.kernels["name"].to_pylist(), strict=True))


def test_files_that_name_their_rank_become_one_trace(tmp_path: Path) -> None:
    for rank in (10, 2):
        info = {"rank": rank, "world_size": 16}
        write(tmp_path / f"rank{rank}.json", kernel(f"k{rank}", 5, 1, 1), launch(1, 1), distributedInfo=info)
    trace = collect([tmp_path])
    assert named(trace) == [(2, "k2"), (10, "k10")]
    assert (trace.meta.ranks, trace.meta.world_size, trace.meta.sources) == ((2, 10), 16, ("rank2.json", "rank10.json"))
    assert trace.kernels["launch_id"].null_count == 0
    ids = [i for kind in KINDS for i in trace.tables[kind]["id"].to_pylist()]
    assert sorted(ids) == list(range(4))


def test_correlations_of_one_file_do_not_reach_into_another(tmp_path: Path) -> None:
    write(tmp_path / "a.json", launch(1, 1))
    write(tmp_path / "b.json", kernel("k", 100, 1, 1))
    assert collect([tmp_path]).kernels["launch_id"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("rank10.json", "rank2.json", "rank1.json"), ("rank1.json", "rank2.json", "rank10.json")),
        (("b.json", "a.json.gz", "A.JSON"), ("A.JSON", "a.json.gz", "b.json")),
        (("x1.20.json", "x1.3.json", "1x.json"), ("1x.json", "x1.3.json", "x1.20.json")),
        (("t²3.json", "t1²3.json", "t٣.json", "t2.json"), ("t1²3.json", "t2.json", "t٣.json", "t²3.json")),
        (("t" + "9" * 40 + ".json", "t5.json"), ("t5.json", "t" + "9" * 40 + ".json")),
    ],
)
def test_files_stand_in_natural_order(tmp_path: Path, names: tuple[str, ...], order: tuple[str, ...]) -> None:
    for name in names:
        write(tmp_path / name, kernel("k", 5, 1, 1))
    assert collect([tmp_path]).meta.sources == order
    assert collect([tmp_path / name for name in names]).meta.sources == order


def test_files_without_a_rank_that_overlap_in_time_are_ranks(tmp_path: Path) -> None:
    write(tmp_path / "a.json", kernel("a", 10, 10, 1), deviceProperties=[{"id": 0, "name": "X"}])
    write(tmp_path / "b.json", kernel("b", 15, 10, 1), deviceProperties=[{"id": 0, "name": "X"}])
    trace = collect([tmp_path])
    assert named(trace) == [(0, "a"), (1, "b")]
    assert [(d.rank, d.name) for d in trace.meta.devices] == [(0, "X"), (1, "X")]


def test_files_without_a_rank_that_follow_each_other_are_one(tmp_path: Path) -> None:
    write(tmp_path / "a.json", kernel("a", 10, 10, 1))
    write(tmp_path / "b.json", kernel("b", 20, 10, 1))
    assert named(collect([tmp_path])) == [(0, "a"), (0, "b")]


def test_each_file_can_be_an_iteration(tmp_path: Path) -> None:
    for name, start in (("step2.json", 10), ("step10.json", 15)):
        write(tmp_path / name, kernel(name, start, 10, 1), event("aten::mm", "cpu_op", start - 5, 2))
    trace = collect([tmp_path], IngestOptions(iterations="file"))
    names = ("rank", "iteration", "name", "found_by", "start_ns", "dur_ns")
    assert [tuple(row[n] for n in names) for row in trace.iterations.to_pylist()] == [
        (0, 0, "step2.json", "file", 5000, 15000),
        (0, 1, "step10.json", "file", 10000, 15000),
    ]
    assert trace.kernels["iteration"].to_pylist() == [0, 1]
    assert trace.meta.ranks == (0,)


STATED: dict[str, Any] = {"distributedInfo": {"rank": 3, "world_size": 4}}
RUN = [kernel("gemm", 10, 5, 1), kernel("nccl", 20, 5, 2, stream=20), kernel("gemm", 30, 5, 3)]


@pytest.mark.parametrize("iterations", ["auto", "whole"])
@pytest.mark.parametrize(
    ("events", "count"),
    [
        (RUN, "3 kernels"),  # a copy under another name
        ([RUN[1]], "1 kernels"),  # its collectives alone
        ([kernel("before", 1, 2, 1), *RUN[:2]], "2 kernels"),  # the other began and ended earlier
        ([RUN[2], *(kernel("after", t, 5, t) for t in range(40, 90, 10))], "1 kernels"),
    ],
)
def test_two_files_with_the_same_events_of_a_rank_are_refused(
    tmp_path: Path, events: list[dict[str, Any]], count: str, iterations: str
) -> None:
    paths = [write(tmp_path / "a.json", *RUN, **STATED), write(tmp_path / "b.json", *events, **STATED)]
    message = rf"/a\.json and \S*/b\.json hold the same events \({count} of rank 3\), .*leave one of the files out"
    with pytest.raises(InvalidInputError, match=message):
        collect(paths, IngestOptions(iterations=iterations))


def test_the_files_that_share_events_are_named_among_many(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.json", kernel("k", 10 * n, 10, 1), **STATED) for n in range(9)]
    collect(paths)
    write(tmp_path / "again.json", kernel("k", 40, 10, 1), **STATED)
    with pytest.raises(InvalidInputError, match=r"/4\.json and \S*/again\.json hold the same events"):
        collect([tmp_path])


def test_events_of_the_host_alone_are_compared_too(tmp_path: Path) -> None:
    calls = [event("aten::mm", "cpu_op", t, 5) for t in (10, 20, 30)]
    paths = [write(tmp_path / f"{name}.json", *calls, **STATED) for name in "ab"]
    with pytest.raises(InvalidInputError, match="3 ops of rank 3"):
        collect(paths)


def test_the_rank_that_files_state_is_not_taken_for_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.json", *RUN, distributedInfo={"rank": 0})
    with pytest.raises(InvalidInputError, match="of rank 0"):
        collect([tmp_path])


@pytest.mark.parametrize(
    ("events", "header"),
    [
        ([kernel("gemm", t, 5, 1) for t in (35, 45, 55)], STATED),  # in sequence
        ([kernel("gemm", t, 5, 1) for t in (12, 22, 32)], STATED),  # beside each other: other work of the rank
        ([kernel("gemm", t, 5, 1) for t in (10, 22, 32)], STATED),  # one coincidence of three
        ([kernel("gemm", t, 5, 1, stream=9) for t in (10, 30)], STATED),
        ([event("aten::mm", "cpu_op", t, 5) for t in (10, 20, 30)], STATED),  # the host of the same run
        (RUN, {"distributedInfo": {"rank": 2, "world_size": 4}}),
    ],
)
def test_files_of_a_rank_that_share_no_events_are_parts_of_it(
    tmp_path: Path, events: list[dict[str, Any]], header: dict[str, Any]
) -> None:
    paths = [write(tmp_path / "a.json", *RUN, **STATED), write(tmp_path / "b.json", *events, **header)]
    trace = collect(paths)
    assert trace.kernels.num_rows + trace.ops.num_rows == len(RUN) + len(events)


def test_one_recording_in_two_files_is_not_taken_for_two_ranks(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.json", *RUN) for name in "ab"]
    with pytest.raises(InvalidInputError, match=r"/a\.json and \S*/b\.json hold the same events"):
        collect(paths)
    assert collect(
        [paths[0], write(tmp_path / "c.json", RUN[0], *(kernel("k", t, 5, t) for t in (16, 26)))]
    ).meta.ranks == (0, 1)


def test_iterations_may_begin_at_the_same_time_of_their_clocks(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.json", *RUN, **STATED) for name in "ab"]
    assert collect(paths, IngestOptions(iterations="file")).kernels["iteration"].to_pylist() == [0, 0, 0, 1, 1, 1]


def test_a_file_name_that_is_no_text_is_a_name_all_the_same(tmp_path: Path) -> None:
    name = os.fsdecode(b"step\xff.json")
    try:
        write(tmp_path / name, kernel("k", 1, 1, 1))
    except OSError:
        pytest.skip("this file system takes only names that are text")
    trace = collect([tmp_path], IngestOptions(iterations="file"))
    assert trace.iterations["name"].to_pylist() == ["step?.json"]
    assert load_trace(save_trace(trace, tmp_path / "x.trace")).meta == trace.meta


def test_an_annotation_and_a_length_rule_name_the_iterations(tmp_path: Path) -> None:
    write(
        tmp_path / "t.json",
        event("batch 5", "user_annotation", 100, 20),
        event("aten::embedding", "cpu_op", 105, 2, **{"Input Dims": [[9, 9], [4, 77]]}),
    )
    trace = collect([tmp_path], IngestOptions(iterations="^batch", length="aten::embedding:1:1"))
    (row,) = trace.iterations.to_pylist()
    assert (row["name"], row["sequence_length"], row["length_found_by"]) == ("batch 5", 77, "shape")


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    size = [write(tmp_path / name, kernel("k", 5, 1, 1)).stat().st_size for name in ("a.json", "b.json")]
    told: list[tuple[int, int, str]] = []
    collect([tmp_path], IngestOptions(progress=lambda *args: told.append(args)))
    assert told[0] == (0, sum(size), "a.json") and told[-1] == (sum(size), sum(size), "b.json")
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", kernel("k", 5, 1, 1))
    assert collect([path, tmp_path, str(path)]).kernels.num_rows == 1


def test_a_folder_may_hold_other_files(tmp_path: Path) -> None:
    write(tmp_path / "a.json", kernel("k", 5, 1, 1))
    (tmp_path / "config.json").write_text('{"name": "x"}')
    (tmp_path / "notes.txt").write_text("traceEvents")
    (tmp_path / "more.json").mkdir()
    assert collect([tmp_path]).meta.sources == ("a.json",)


def test_a_trace_folder_opens_as_it_is_and_anything_else_is_collected(tmp_path: Path) -> None:
    source = write_trace(tmp_path / "t.json")
    folder = save_trace(collect([source]), tmp_path / "t.trace")
    assert open_trace(folder).meta == open_trace(source).meta
    with pytest.raises(NotFoundError, match="holds no trace that a reader knows"):
        open_trace(folder / "kernels")


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda folder: [folder / "missing.json"], NotFoundError, "missing.json: cannot be read"),
        (lambda folder: [folder], NotFoundError, "holds no trace that a reader knows (0 files looked at)"),
        (lambda folder: [], NotFoundError, "no file was named"),
        (lambda folder: [folder / ("x" * 300)], NotFoundError, "File name too long"),
        (lambda folder: [_text(folder / "a.json", '{"x":1}')], UnknownFormatError, "a.json: no reader knows"),
        (lambda folder: [_text(folder / "a.json", '{"x":1}').parent], NotFoundError, "(1 files looked at)"),
    ],
)
def test_what_cannot_be_collected_says_why(tmp_path: Path, build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        collect(build(tmp_path))


def _text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_files_on_different_clocks_stand_on_the_earlier_one(tmp_path: Path) -> None:
    for rank, base in ((0, 5_000_000), (1, 2_000_000)):
        info = {"rank": rank, "world_size": 2}
        write(tmp_path / f"{rank}.json", kernel("k", 5, 1, 1), baseTimeNanoseconds=base, distributedInfo=info)
    trace = collect([tmp_path])
    assert trace.meta.clock_base_ns == 2_000_000
    assert trace.kernels["start_ns"].to_pylist() == [3_005_000, 5_000]
    assert trace.iterations["start_ns"].to_pylist() == [3_005_000, 5_000]


def test_a_file_that_states_no_clock_cannot_be_put_beside_one_that_does(tmp_path: Path) -> None:
    write(tmp_path / "a.json", kernel("k", 5, 1, 1))
    write(tmp_path / "b.json", kernel("k", 5, 1, 1), baseTimeNanoseconds=2)
    with pytest.raises(InvalidInputError, match=r"some do not: a\.json 0, b\.json 2"):
        collect([tmp_path])


TODAY = """{"schemaVersion":1,"deviceProperties":[{"id":0,"name":"NVIDIA X","totalGlobalMem":85899345920,"numSms":108}],
"distributedInfo":{"backend":"nccl","rank":1,"world_size":2},"baseTimeNanoseconds":1700000000000000000,"traceEvents":[
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#4","pid":9,"tid":9,"ts":100.125,"dur":500.000,"args":{}},
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#5","pid":9,"tid":9,"ts":700.125,"dur":500.000,"args":{}},
{"ph":"X","cat":"cpu_op","name":"aten::layer_norm","pid":9,"tid":9,"ts":110.5,"dur":30.25,
 "args":{"External id":3,"Input Dims":[[64,128],[128]],"Input type":["float","float"],"Sequence number":7}},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":112.5,"dur":3.001,
 "args":{"correlation":11,"External id":3}},
{"ph":"s","id":11,"pid":9,"tid":9,"ts":112.5,"cat":"ac2g","name":"ac2g"},
{"ph":"X","cat":"kernel","name":"layer_norm_kernel","pid":0,"tid":7,"ts":120.750,"dur":17.472,"args":{"device":0,
 "stream":7,"correlation":11,"External id":3,"registers per thread":32,"shared memory":64,"grid":[216,1,1],
 "block":[128,1,1],"est. achieved occupancy %":42}},
{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_f32_RING_LL","pid":0,"tid":20,"ts":160.75,"dur":117.472,
 "args":{"device":0,"stream":20,"correlation":12,"Collective name":"allreduce","In msg nelems":1000,"dtype":"Float",
 "Group size":2,"Process Group Name":"0","Process Group Ranks":"[0, 1]","grid":[2,1,1],"block":[288,1,1]}},
{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD (Pinned -> Device)","pid":0,"tid":7,"ts":280,"dur":2.5,
 "args":{"device":0,"stream":7,"correlation":13,"bytes":4096}},
{"ph":"X","cat":"cuda_sync","name":"Stream Wait Event","pid":0,"tid":7,"ts":283,"dur":0.5,"args":{"stream":7,
 "correlation":14,"wait_on_stream":20,"wait_on_cuda_event_record_corr_id":12,"wait_on_cuda_event_id":3}},
{"ph":"i","cat":"cpu_instant_event","name":"[memory]","pid":9,"tid":9,"ts":290,"args":{"Bytes":512}},
{"ph":"X","cat":"kernel","name":"ampere_sgemm_128x64_nn","pid":0,"tid":7,"ts":800.75,"dur":33.5,"args":{"device":0,
 "stream":7,"correlation":77,"grid":[216,1,1],"block":[128,1,1]}}],"traceName":"a.json"}"""
OF_2021 = """[{"name":"process_name","ph":"M","pid":1},
{"ph":"X","cat":"Operator","name":"ProfilerStep#0","pid":2,"tid":"25738","ts":1621401187223197,"dur":900,"args":{}},
{"ph":"X","cat":"Operator","name":"aten::layer_norm","pid":2,"tid":"25738","ts":1621401187223297,"dur":100,
 "args":{"external id":1,"Input dims":[[32,3,224,224]],"Device":1}},
{"ph":"X","cat":"Runtime","name":"cudaLaunchKernel","pid":2,"tid":"25738","ts":1621401187223300,"dur":5,
 "args":{"correlation":9,"external id":1}},
{"ph":"X","cat":"Kernel","name":"volta_scudnn_128x64","pid":0,"tid":"stream 7","ts":1621401187223310,"dur":55,
 "args":{"device":0,"stream":7,"correlation":9,"external id":1,"grid":[196,1,1],"block":[256,1,1]}},
{"ph":"X","cat":"Memset","name":"Memset (Device)","pid":0,"tid":"stream 7","ts":1621401187223380,"dur":1,"args":{}}]"""
SERVING = """{"traceEvents":[
{"ph":"X","cat":"user_annotation","name":"execute_32_context_0(sq0sk0)_generation_32(sq32sk55086)","pid":3,"tid":3,
 "ts":10,"dur":50},
{"ph":"X","cat":"cuda_runtime","name":"hipGraphLaunch","pid":3,"tid":3,"ts":12.345,"dur":5,"args":{"correlation":5}},
{"ph":"X","cat":"cuda_runtime","name":"hipExtModuleLaunchKernel","pid":3,"tid":3,"ts":20.345,"dur":5,
 "args":{"correlation":6,"grid":[65536,1,1],"block":[256,1,1]}},
{"ph":"X","cat":"kernel","name":"Cijk_Alik_Bljk_BBS_BH","pid":2,"tid":0,"ts":21.5,"dur":NaN,
 "args":{"device":2,"stream":0,"correlation":5}},
{"ph":"X","cat":"kernel","name":"triton_\\poi","pid":2,"tid":0,"ts":30.125,"dur":4,"args":{"device":2,"stream":0,
 "correlation":6,"grid":[65536,1,1],"block":[256,1,1]}},
{"ph":"X","cat":"python_function","name":"nn.py(3): forward","pid":3,"tid":3,"ts":11,"dur":40,"args":{"Python id":1}},
{"ph":"C","name":"GPU 0 power","pid":1,"ts":15,"args":{"value":300.5}},
{"ph":"X","cat":"user_annotation","name":"execute_16_context_1(sq16sk16)_generation_0(sq0sk0)","pid":3,"tid":3,
 "ts":70,"dur":50},
{"ph":"X","cat":"kernel","name":"ncclDevKernel_Generic","pid":2,"tid":1,"ts":75,"dur":4.002,"args":{"rank":1}}
],"schemaVersion":1,"distributedInfo":{"rank":0,"world_size":2}}"""
SEEDS = [text.encode() for text in (TODAY, OF_2021, SERVING)]
TOKENS = [
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\u", b'"\\ud800"', b"NaN", b"-Infinity", b"1e999", b"null",
    b"true", b"1e99999999999999999999", b"9" * 30, b"9" * 5000, b"\n", b"\x00", b"\xff\xfe", b"-1", b"0", b"[]", b"{}",
    b'"ts":', b'"dur":-5,', b'"args":[1],', b'"rank":2147483647,', b'"grid":[0,1,1],', b'"ph":[1],', b'"cat":{},',
    b'"grid":[4611686018427387904,4611686018427387904,1],', b'"correlation":-9223372036854775808,', b'"name":null,',
    b'"Group size":99999999999,', b'"Input Dims":7,', b"[" * 600 + b"]" * 600, b"[" * 3000, b"4611686018427387",
    b"9223372036854775807",
]  # fmt: skip
NUMBER, TEXT = re.compile(rb"\d+(\.\d+)?"), re.compile(rb'"[^"]*"')
OPTIONS = [
    IngestOptions(),
    IngestOptions(length="aten::layer_norm:0:0"),
    IngestOptions(iterations="Step|execute"),
    IngestOptions(iterations="file", length="aten::layer_norm:0:0"),
]


def mutate(dice: random.Random, data: bytes) -> bytes:
    """Return `data` cut, flipped, spliced with another file, repeated, or with a token put in or over a value."""
    content = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 3, 6, 12])):
        at, length = dice.randrange(len(content) + 1), dice.randrange(1, 300)
        other = dice.choice(SEEDS)
        start = dice.randrange(len(other))
        found = list(dice.choice([NUMBER, TEXT]).finditer(bytes(content)))
        spot = dice.choice(found).span() if found else (at, at)
        start_of, end_of, new = dice.choice([
            (at, len(content), b""),
            (at, at + 1, bytes([dice.randrange(256)])),
            (at, at, other[start : start + length]),
            (at, at, bytes(content[at : at + length])),
            (at, at, dice.choice(TOKENS)),
            (at, at + length // 5, b""),
            (*spot, dice.choice(TOKENS)),
            (*spot, dice.choice(TOKENS)),
        ])  # fmt: skip
        content[start_of:end_of] = new
    return bytes(content)


def damaged(dice: random.Random, data: bytes) -> bytes:
    """Return a mutated file, which may be packed, and then damaged again."""
    content = mutate(dice, data)
    if dice.random() < 0.6:
        return content
    packed = bytearray(gzip.compress(content, 1, mtime=0))
    if dice.random() < 0.5:
        at = dice.randrange(len(packed))
        packed[at : dice.choice([at + 1, len(packed)])] = bytes([dice.randrange(256)])
    return bytes(packed)


def check(seed: int, folder: Path) -> str:
    """Collect damaged files and store the result; return how it ended."""
    dice = random.Random(seed)
    base = dice.choice(SEEDS)
    paths = [folder / f"t{number}.json" for number in range(dice.choice([1, 1, 1, 2, 3]))]
    for path in paths:
        path.write_bytes(damaged(dice, base if dice.random() < 0.8 else dice.choice(SEEDS)))
    try:
        trace = collect(paths, dice.choice(OPTIONS))
    except SeqPointError as error:
        assert str(error) and "\n" not in str(error)
        return type(error).__name__
    quality = trace.meta.quality
    ends = sum(n for name, n in quality.counts.items() if name == "kept" or name.startswith(("dropped_", "skipped_")))
    assert quality["events"] == ends
    assert quality["kept"] == sum(trace.tables[kind].num_rows for kind in KINDS if kind != "collectives")
    loaded = load_trace(save_trace(trace, folder / "x.trace"))
    assert loaded.meta == trace.meta
    for kind, table in trace.tables.items():
        assert loaded.tables[kind].to_pylist() == sorted(table.to_pylist(), key=lambda row: row["rank"])
    return "trace"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_damage_ends_in_a_trace_or_in_one_error(tmp_path: Path, seed: int) -> None:
    check(seed, tmp_path)


def test_the_undamaged_files_are_traces(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.json" for number in range(3)]
    for path, content in zip(paths, SEEDS, strict=True):
        path.write_bytes(content)
    found = [dict(collect([path]).meta.quality.counts) for path in paths]
    assert found[0] == {
        "events": 11, "kept": 10, "skipped_flow": 1, "orphan_device": 3, "orphan_op": 3, "no_iteration": 3,
        "collectives": 1, "collectives_matched": 1, "external_id_checked": 1, "iterations_without_length": 2,
        "kernel_launches": 1,
    }  # fmt: skip
    assert found[1] == {
        "events": 6, "kept": 5, "skipped_flow": 1, "orphan_device": 1, "orphan_op": 1, "no_iteration": 1,
        "external_id_checked": 1, "iterations_without_length": 1, "kernel_launches": 1,
    }  # fmt: skip
    assert found[2] == {
        "events": 9, "kept": 9, "repaired_nan": 1, "repaired_escape": 1, "repaired_work_items": 1, "orphan_device": 1,
        "orphan_op": 3, "missing_duration": 1, "collectives": 1, "collectives_matched": 1,
        "iterations_without_length": 1, "kernel_launches": 2,
    }  # fmt: skip
