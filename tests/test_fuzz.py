"""Damaged files of every format: rows that are right and counted, or one line; never a traceback, never a hang."""

import gzip
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import test_chakra
import test_ncu
import test_nsys
import test_rocpd
import test_rocprof
import test_rocprof_compute
import test_rocprofv3
import test_rpd
from fuzzing import damage, disagreement, read, read_plainly
from readings import database
from traces import event, kernel, kineto, launch, step
from xplanes import Plane, space

from profilers.errors import SeqPointError
from profilers.ingest.pipeline import IngestOptions, collect

SAMPLES = Path(__file__).parents[1] / "datasets" / "samples" / "cpu_epoch"
#: A case that takes longer hangs; the slowest measured takes a tenth of it.
LIMIT_S = 20.0


def _kineto_seeds() -> list[bytes]:
    counters = {"ph": "C", "name": "Power", "ts": 3, "pid": 0, "args": {"value": 3.5}}
    sync = event("wait", "cuda_sync", 7.25, 2, stream=-1, wait_on_stream=20, cuda_sync_kind="Event")
    rich = kineto(
        [
            *step(1, 1000.125),
            counters,
            sync,
            launch(5, 1 << 40),
            kernel('k "quoted" \\ naïve\u2028', 9, 0.001, 7, **{"est. achieved occupancy %": 33.5, "graph node id": 4}),
            {"ph": "f", "id": 3, "pid": 0, "tid": 7, "ts": 5, "cat": "ac2g", "name": "ac2g", "bp": "e"},
            {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}},
        ],
        distributedInfo={"rank": 3, "world_size": 8},
        baseTimeNanoseconds=1_700_000_000_000_000_000,
    )
    last = {"traceEvents": rich["traceEvents"], **{k: v for k, v in rich.items() if k != "traceEvents"}}
    seeds = [
        json.dumps(rich, indent=indent, ensure_ascii=ascii_).encode() for indent, ascii_ in ((None, True), (2, False))
    ]
    return [*seeds, json.dumps(last).encode(), json.dumps(rich["traceEvents"], indent=1, sort_keys=True).encode()]


def _odd_seeds() -> list[bytes]:
    """Return files of other writers: merged ranks, begins and ends, XLA's threads, MTIA, long and textual numbers."""
    merged = [
        {**each, "pid": f"[TP0{rank}] {each['pid']}"}
        for rank in (0, 1)
        for each in (launch(5, 1 << 40), kernel("k", 9, 0.5, 1 << 40), event("op", "cpu_op", 4, 8))
    ]
    spans = [
        {"ph": phase, "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts}
        for phase, name, ts in (("B", "outer", 1), ("B", "inner", 2.5), ("E", "inner", 4), ("E", "", 9), ("E", "x", 12))
    ]
    spans += [{"ph": p, "cat": "q", "id": 3, "name": "r", "pid": 1, "ts": ts} for p, ts in (("b", 5), ("e", 7.25))]
    xla: list[dict[str, object]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:3"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "Stream #16(Kernel)"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
        {"ph": "X", "pid": 7, "tid": 9, "ts": 60.5, "dur": 6, "name": "hipModuleLaunchKernel",
         "args": {"correlation_id": "4"}},
    ]  # fmt: skip
    xla += [
        {"ph": "X", "pid": 1, "tid": tid, "ts": 70 + i, "dur": 0.5, "name": f"fusion.{i}",
         "args": {"correlation_id": "4", "kernel_details": " grid:4,64,1 block:256,1,1"}}
        for i in range(4) for tid in (1, 2)
    ]  # fmt: skip
    mtia = [
        event(name, "mtia_ccp_events", 3 * i, 1.5, stream="0x7f", column="0", size=8, x=float("nan"))
        for i, name in enumerate(("pe_exe", "dma_request", "event_wait"))
    ]
    long = [
        {**kernel("k", 0, 2, 7), "ts": "1712195495000010.125", "tid": 15514734831341844875},
        {**launch(5, 7), "ts": 1712195495000011, "args": None},
    ]
    odd = [kineto(events) for events in (merged, spans, xla, mtia, long)]
    texts = [json.dumps(each, separators=separators) for each in odd for separators in ((", ", ": "), (",", ":"))]
    return [text.replace('"1712195495000010.125"', "1712195495000010.1255").encode() for text in texts]


def _sample() -> bytes:
    """Return a few events of a trace that PyTorch wrote, in its own layout."""
    with pa.input_stream(next(SAMPLES.glob("*.json.zst")), compression="zstd") as file:
        document = json.loads(file.read())
    document["traceEvents"] = random.Random(5).sample(document["traceEvents"], 16)
    return json.dumps(document, separators=(",", ":")).encode()


def kineto_files() -> list[bytes]:
    """Return small Kineto files of several writers."""
    return [*_kineto_seeds(), *_odd_seeds(), _sample()]


kineto_seeds = pytest.fixture(scope="module")(kineto_files)


def test_undamaged_seeds_agree_and_hold_rows(kineto_seeds: list[bytes]) -> None:
    for data in kineto_seeds:
        found = read(data)
        assert found.rows.total() >= 2 and not found.error
        assert disagreement(found, read_plainly(data)) == ""


@pytest.mark.parametrize("block", range(8))
def test_a_damaged_kineto_file_reads_as_the_standard_library_reads_it(block: int, kineto_seeds: list[bytes]) -> None:
    for seed in range(60 * block, 60 * (block + 1)):
        data = damage(kineto_seeds[seed % len(kineto_seeds)], seed)
        began = time.monotonic()
        found = read(data)
        assert time.monotonic() - began < LIMIT_S, seed
        assert disagreement(found, read_plainly(data)) == "", seed


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_a_truncated_file_keeps_every_complete_event(cut: float) -> None:
    events = [kernel(f"k{i}", i, 1, i) for i in range(2000)]
    text = json.dumps({"traceEvents": events})
    data = text[: int(len(text) * cut)].encode()
    found = read(data)
    assert found.rows.total() == data.count(b'"correlation"') - (
        0 if data.endswith(b"}") else 1
    ) or found.rows.total() == (data.count(b"}}"))
    assert found.counts["truncated_files"] == 1


V1 = b"Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,BeginNs,EndNs\n" + b"".join(
    b'%d,"k<int, %d>",4,0,%d,7,7,4096,256,%d,%d\n' % (i, i % 3, i, 1000 * i, 1000 * i + 700) for i in range(30)
)
V3 = (
    b'"Kind","Agent_Id","Queue_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","Workgroup_Size_X",'
    b'"Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
) + b"".join(
    b'"KERNEL_DISPATCH","Agent 4",1,"k",%d,%d,%d,64,1,1,640,1,1\n' % (i, 100 * i, 100 * i + 50) for i in range(30)
)
PLAIN = b"name,start_us,dur_us,device,stream\n" + b"".join(b"k%d,%d.125,2.5,0,7\n" % (i, 9 * i) for i in range(30))
CHAKRA = json.dumps(
    {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "start_ts": 1, "nodes": [
        {"id": i, "name": f"op{i}", "ctrl_deps": 1, "inputs": {"values": [1], "shapes": [[2]], "types": ["Int"]},
         "outputs": {"values": [], "shapes": [], "types": []},
         "attrs": [{"name": "rf_id", "type": "uint64", "value": i}, {"name": "tid", "type": "uint64", "value": 1}]}
        for i in range(2, 20)
    ]}
).encode()  # fmt: skip
XPLANE = space(
    Plane("/device:GPU:0").add(
        "Stream #7(Kernel)",
        [
            ("gemm", 9 * i, 5, {"correlation_id": i, "kernel_details": [f"grid:{i},1,1 block:64,1,1"]})
            for i in range(20)
        ],
    ),
    Plane("/host:CPU").add(
        "python", [("cuLaunchKernel", 9 * i - 3, 2, {"correlation_id": i, "hlo_op": f"dot.{i}"}) for i in range(20)]
    ),
)


def _nsys(path: Path) -> Path:
    kernels = [(100 * i, 100 * i + 50, 0, 1, 7, i, 1 << 24, 1, 1, None, *test_nsys.SHAPE, None) for i in range(40)]
    calls = [(100 * i - 9, 100 * i - 5, 0, (1 << 24) + 1, i, 2, 0) for i in range(40)]
    return database(
        path,
        {
            "StringIds": (test_nsys.STRINGS, [(1, "gemm"), (2, "cudaLaunchKernel")]),
            "CUPTI_ACTIVITY_KIND_KERNEL": (test_nsys.KERNEL, kernels),
            "CUPTI_ACTIVITY_KIND_RUNTIME": (test_nsys.RUNTIME, calls),
        },
    )


#: Small files of the other formats: contents, or functions that write them.
SEEDS: dict[str, str | bytes | Callable[[Path], Path]] = {
    "rocprof.csv": V1,
    "kernel_trace.csv": V3,
    "plain.csv": PLAIN,
    "et.json": CHAKRA,
    "nsys.sqlite": _nsys,
    "x.xplane.pb": XPLANE,
    "ncu.csv": test_ncu.LONG,
    "ncu_raw.csv": test_ncu.RAW,
    "pmc_perf.csv": test_rocprof_compute.NEW,
    "pmc_perf_old.csv": test_rocprof_compute.OLD,
    "t.et": test_chakra.ET,
    "flat.json": test_chakra.FLAT,
    "nested.json": test_chakra.NESTED,
    "results.json": json.dumps({"traceEvents": test_rocprof.EVENTS}),
    "memory_copy_trace.csv": test_rocprofv3.COPIES,
    "hip_api_trace.csv": test_rocprofv3.CALLS,
    "counter_collection.csv": test_rocprofv3.COUNTERS,
    "rocprofv3.json": test_rocprofv3.document(test_rocprofv3.TOOL),
    "t.db": lambda path: test_rocpd.write(path, {test_rocpd.GUID: test_rocpd.session()}),
    "t.rpd": lambda path: test_rpd.write(path, test_rpd.tables()),
}


def content(name: str, folder: Path) -> bytes:
    """Return a small file of another format."""
    seed = SEEDS[name]
    if callable(seed):
        return seed(folder / name).read_bytes()
    return seed.encode() if isinstance(seed, str) else seed


def read_damaged(path: Path, whole: bytes, seed: int) -> None:
    """Damage a file and check that it is a trace whose losses are counted, or one line that names it."""
    data = damage(whole, seed)
    path.write_bytes(gzip.compress(data)[: None if seed % 3 else -5] if seed % 5 == 0 else data)
    try:
        trace = collect([path], IngestOptions(limit_bytes=1 << 26))
    except SeqPointError as error:
        assert str(error).startswith(str(path.parent)) or path.name in str(error), seed
        assert "\n" not in str(error), seed
    else:
        counts = trace.meta.quality.counts
        lost = sum(n for of, n in counts.items() if of.startswith(("dropped_", "skipped_")))
        assert counts.get("events", 0) == counts.get("kept", 0) + lost, seed


@pytest.mark.parametrize("name", SEEDS)
def test_a_damaged_file_of_another_format_is_rows_or_one_line(tmp_path: Path, name: str) -> None:
    whole, path = content(name, tmp_path), tmp_path / name
    path.write_bytes(whole)
    assert sum(table.num_rows for table in collect([path]).tables.values())
    for seed in range(40):
        began = time.monotonic()
        read_damaged(path, whole, seed)
        assert time.monotonic() - began < LIMIT_S, seed
