"""XPlane files: tiny ones of a GPU, a TPU and hosts, damaged ones, and the real one where it lies."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from readings import table
from xplanes import Plane, field, space, varint

import seqpoint as sp
from profilers.errors import BrokenFileError, SeqPointError, UnknownFormatError
from profilers.ingest.pipeline import IngestOptions, collect
from profilers.readers import find_reader
from profilers.readers.chakra.protobuf import MetadataMessage, NodeMessage, is_chakra
from profilers.readers.common.reader import Head
from profilers.readers.xplane import XPlaneReader
from profilers.trace import Trace
from profilers.trace.activity import times_of_recording
from seqpoint.breakdown import operators_by_name

REAL = Path(__file__).parents[2] / "shared" / "new" / "traces" / "xplane" / "jax_conv_minimal_mi300x.xplane.pb"
DETAILS = "regs:40 static_shared:1024 dynamic_shared:512 grid:4,3,2 block:128,2,1 occ_pct:62.5"
H100 = {"device_vendor": "Nvidia", "core_count": 132, "memory_size": 85_000_000_000}


def dot(correlation: int, **more: Any) -> dict[str, Any]:
    names = {"hlo_op": ["dot.1"], "hlo_module": ["jit_f"], "tf_op": ["XlaModule:"], "name": ["jit(f)/dot_general"]}
    return {"correlation_id": correlation, "program_id": 7, **names, **more}


def program() -> bytes:
    """Return the program of ``dot.1``: bf16[32,64] times bf16[64,8], of which the second is a parameter too."""

    def instruction(name: str, number: int, shape: tuple[int, ...], operands: tuple[int, ...] = ()) -> bytes:
        dimensions = field(3, b"".join(map(varint, shape)))
        extent = field(3, field(2, 16) + dimensions)
        return field(2, field(1, name) + extent + field(35, number) + field(36, b"".join(map(varint, operands))))

    parts = (instruction("a", 5, (32, 64)), instruction("b", 6, (64, 8)), instruction("dot.1", 9, (32, 8), (5, 6)))
    return field(1, field(1, "jit_f") + field(3, b"".join(parts)))


def gpu() -> list[Plane]:
    """Return two steps on an H100, in each an operator of two kernels, a copy and a fill; other lines repeat them."""
    device, host = Plane("/device:GPU:0", H100), Plane("/host:CPU")
    kernels, copies, calls, notes = [], [], [], []
    for i in range(2):
        t, c = 100.0 * i, 10 * i
        kernels += [("split_k", t + 20, 5.0005, dot(c + 1, kernel_details=[DETAILS])), ("add", t + 26, 2, dot(c + 2))]
        copies += [
            ("MemcpyH2D", t + 12, 3, {"correlation_id": c + 3, "memcpy_details": "kind_src:pinned size:4096 dest:0"}),
            ("Memset", t + 16, 1, {"correlation_id": c + 4, "memset_details": "kind:Device size:64 async:1"}),
        ]
        calls += [
            ("cuMemcpyHtoDAsync", t + 1, 1, {"correlation_id": c + 3}),
            ("cuLaunchKernel", t + 3, 1, dot(c + 1)),
            ("cuLaunchKernel", t + 5, 1, dot(c + 2)),
        ]
        notes += [
            ("train", t, 90, {"step_num": 7 + i, "_r": 1}),
            ("$loop.py:3 step", t + 1, 80, {}),
            ("ThreadpoolListener", t + 2, 0, {}),
            ("Execute", t + 2, 9.5, {"_c": 5}),
        ]
    device.add("Stream #16(Kernel)", kernels, 16).add("Stream #17(MemcpyH2D,Memset)", copies, 17)
    device.add("XLA Modules", [("jit_f", 12, 15, {})], 1).add("Custom", [("mark", 12, 15, {})], 2)
    host.add("python", notes, -5, 1000).add("Host Threads/88", calls, 88)
    metadata = Plane("/host:metadata")
    metadata.events.numbers["jit_f(7)"] = 7
    metadata.shared["jit_f(7)"] = {"Hlo Proto": program()}
    started = Plane("Task Environment", {"profile_start_time": 1_700_000_000_000_000_000})
    return [metadata, device, host, started]


def made(folder: Path, *planes: Plane, name: str = "t.xplane.pb") -> Trace:
    path = folder / name
    path.write_bytes(space(*planes))
    return collect([path])


def losses(trace: Trace) -> dict[str, int]:
    counts = dict(trace.meta.quality.counts)
    assert counts["events"] == counts["kept"] + sum(
        n for k, n in counts.items() if k.startswith(("dropped_", "skipped_"))
    )
    return {k: n for k, n in counts.items() if k.startswith(("dropped_", "skipped_", "missing_", "truncated_"))}


def test_device_work_of_a_gpu(tmp_path: Path) -> None:
    trace = made(tmp_path, *gpu())
    facts = ("workgroups", "workgroup_size", "registers", "lds_bytes", "occupancy")
    assert table(trace, "kernels", "name", "start_ns", "dur_ns", "device", "stream", *facts) == [
        ("split_k", 21000, 5001, 0, 16, 24, 256, 40, 1536, 62.5),
        ("add", 27000, 2000, 0, 16, None, None, None, None, None),
        ("split_k", 121000, 5001, 0, 16, 24, 256, 40, 1536, 62.5),
        ("add", 127000, 2000, 0, 16, None, None, None, None, None),
    ]
    assert table(trace, "copies", "name", "direction", "bytes", "start_ns", "dur_ns", "stream")[:2] == [
        ("MemcpyH2D", "HtoD", 4096, 13000, 3000, 17),
        ("Memset", "memset", 64, 17000, 1000, 17),
    ]
    assert losses(trace) == {"skipped_derived": 1, "skipped_marker": 2}
    assert trace.meta.clock_base_ns == 1_700_000_000_000_000_000
    assert [(d.name, d.compute_units, d.memory_bytes) for d in trace.meta.devices] == [
        ("H100-SXM5-80GB", 132, 85_000_000_000)
    ]


def test_steps_and_threads_of_a_host(tmp_path: Path) -> None:
    trace = made(tmp_path, *gpu())
    assert sorted(table(trace, "ranges", "start_ns", "dur_ns", "name", "category")) == [
        (1000, 90000, "train#step_num=7#", "user_annotation"),
        (2000, 80000, "$loop.py:3 step", "python_function"),
        (3000, 9500, "Execute", "user_annotation"),
        (13000, 15000, "mark", "Custom"),
        (101000, 90000, "train#step_num=8#", "user_annotation"),
        (102000, 80000, "$loop.py:3 step", "python_function"),
        (103000, 9500, "Execute", "user_annotation"),
    ]
    assert set(table(trace, "ranges", "process", "thread", "device")) == {(0, -5, None), (None, None, 0)}
    assert table(trace, "iterations", "name", "found_by") == [
        ("train#step_num=7#", "annotation"),
        ("train#step_num=8#", "annotation"),
    ]
    assert table(trace, "kernels", "iteration") == [(0,), (0,), (1,), (1,)]
    assert table(trace, "launches", "name", "api", "thread")[0] == ("cuMemcpyHtoDAsync", "cuda_driver", 88)
    assert table(trace, "copies", "direction", "iteration") == [
        ("HtoD", 0),
        ("memset", None),
        ("HtoD", 1),
        ("memset", None),
    ]


def test_an_execution_of_an_operator_ends_where_its_first_kernel_recurs(tmp_path: Path) -> None:
    trace = made(tmp_path, *gpu())
    assert table(trace, "ops", "name", "start_ns", "dur_ns", "shapes", "dtypes", "args") == [
        (
            *("dot.1", start, 3000, "[[32, 64], [64, 8]]", '["c10::BFloat16", "c10::BFloat16"]'),
            '{"hlo_module":"jit_f","program_id":7,"framework_op":"jit(f)/dot_general"}',
        )
        for start in (4000, 104000)
    ]
    operators = table(trace, "ops", "id")
    assert table(trace, "kernels", "op_id") == [operators[0], operators[0], operators[1], operators[1]]


def test_operators_of_tensorflow_are_named_by_launches_or_by_kernels(tmp_path: Path) -> None:
    named = {"tf_op": ["model/dense/MatMul:MatMul"]}
    device = Plane("/device:GPU:1").add("Stream #9(Kernel)", [("gemm", 9, 1, {"correlation_id": 4, **named})])
    device.add("Stream #8(MemcpyD2D)", [("MemcpyD2D", 20, 1, {"correlation_id": 5, "hlo_op": "copy.1"})])
    calls = [("cudaLaunchKernel", 3, 1, {"correlation_id": 4}), ("cudaMemcpyAsync", 5, 1, {"correlation_id": 5})]
    host = Plane("/host:CPU").add("88", calls)
    host.add("pool", [("Relu", 5, 2, {"hlo_op": "relu.2", "hlo_module": "cluster"})], 2)
    trace = made(tmp_path, host, device)
    assert table(trace, "ops", "name", "thread") == [("Relu", 2), ("model/dense/MatMul", 1), ("copy.1", 1)]
    assert table(trace, "copies", "direction", "op_id") == [("DtoD", table(trace, "ops", "id")[2][0])]
    assert table(trace, "kernels", "device", "op_id") == [(1, table(trace, "ops", "id")[1][0])]
    assert trace.meta.clock_base_ns == 0


def test_the_work_of_a_tpu_is_its_operators_and_its_steps_are_iterations(tmp_path: Path) -> None:
    work = [
        ("while.3", 10, 30, {}),
        ("fusion.1", 10, 12, {"hlo_category": "loop fusion"}),
        ("done.1", 26, 0, {}),
        ("fusion.2", 25, 15, {}),
    ]
    later = [(name, start + 50, duration, facts) for name, start, duration, facts in work]
    device = Plane("/device:TPU:0", {"device_type_string": "TPU v5 lite", "core_count": 1})
    device.add("Steps", [("1", 8, 40, {}), ("2", 58, 40, {})], 1).add("XLA Modules", [("jit_f", 10, 30, {})], 2)
    device.add("XLA Ops", [*work, *later], 3).add("Async XLA Ops", [("copy-start", 20, 9, {})], 4)
    device.shared["fusion.2"] = {"hlo_category": "convolution"}
    trace = made(tmp_path, device, Plane("/host:CPU").add("python", [("train", 1, 3, {"step_num": 1})]))
    assert table(trace, "kernels", "name", "start_ns", "dur_ns", "stream", "iteration", "args") == [
        ("fusion.1", 11000, 12000, 3, 0, '{"hlo_category":"loop fusion"}'),
        ("fusion.2", 26000, 15000, 3, 0, '{"hlo_category":"convolution"}'),
        ("done.1", 27000, 0, 3, 0, None),
        ("fusion.1", 61000, 12000, 3, 1, '{"hlo_category":"loop fusion"}'),
        ("fusion.2", 76000, 15000, 3, 1, '{"hlo_category":"convolution"}'),
        ("done.1", 77000, 0, 3, 1, None),
    ]
    assert table(trace, "iterations", "name", "found_by") == [
        ("device step 1", "device steps"),
        ("device step 2", "device steps"),
    ]
    assert set(table(trace, "ranges", "name", "category")) >= {
        ("while.3", "XLA Ops"),
        ("copy-start", "Async XLA Ops"),
    }
    assert losses(trace) == {"skipped_derived": 1} and trace.meta.devices[0].name == "TPU v5 lite"


def test_a_second_host_has_its_own_threads_and_none_leaves_kernels_without_operators(tmp_path: Path) -> None:
    hosts = [Plane("/host:CPU").add("python", [("f", 1, 9, {})], 5) for _ in range(2)]
    assert table(made(tmp_path, *hosts), "ranges", "process", "thread") == [(0, 5), (1, 5)]
    trace = made(tmp_path, gpu()[1], name="alone.pb")
    assert trace.kernels.num_rows == 4 and trace.ops.num_rows == 0
    assert trace.meta.quality["orphan_device"] == 8


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"device_vendor": "AMD", "core_count": 304, "memory_size": 206_141_652_992}, "MI300X"),
        ({"device_vendor": "AMD", "core_count": 304, "memory_size": 274_000_000_000}, "MI325X"),
        ({"device_vendor": "Nvidia", "core_count": 304, "memory_size": 206_141_652_992}, ""),
        ({"device_vendor": "AMD", "core_count": 304}, ""),
        ({"device_vendor": "Nvidia", "core_count": 80, "memory_size": 34_000_000_000}, ""),  # SXM2 or PCIe
        ({}, ""),
    ],
)
def test_a_device_without_a_name_is_named_by_its_figures_if_one_alone_has_them(
    tmp_path: Path, facts: dict[str, Any], name: str
) -> None:
    trace = made(tmp_path, Plane("/device:GPU:3", facts).add("Stream #1(Kernel)", [("k", 1, 1, {})]))
    assert [(d.device, d.name) for d in trace.meta.devices] == [(3, name)]


def event(name: int, offset_ps: int, duration_ps: int, more: bytes = b"") -> bytes:
    return field(4, field(1, name) + field(2, offset_ps) + field(3, duration_ps) + more)


def test_damaged_events_are_counted_and_cost_only_themselves(tmp_path: Path) -> None:
    events = [
        event(1, 1_000_000, 2_000_000),
        event(1, 9_000_000, -2_000_000),
        event(1, (1 << 63) - 1, 5),
        event(1, -(1 << 63), 5),
        field(4, field(1, 1) + field(5, 12)),
        field(4, b"\xff\xff\xff"),
        field(4, 12),
        event(2, 3_000_000, 4_000_000, field(4, field(1, 1) + field(3, (1 << 64) - 1))),
        event(1, 8_000_000, 1_000_000, field(4, field(1, 2) + field(5, b"\xff grid:9"))),
    ]
    line = field(1, 16) + field(2, "Stream #16(Kernel)") + b"".join(events)
    names = field(4, field(1, 1) + field(2, field(1, 1) + field(2, b"k\xff")))
    names += field(5, field(1, 1) + field(2, field(2, "correlation_id"))) + field(
        5, field(1, 2) + field(2, field(2, "d"))
    )
    path = tmp_path / "t.pb"
    path.write_bytes(field(1, field(2, "/device:GPU:0") + field(3, line) + names))
    trace = collect([path])
    assert table(trace, "kernels", "name", "start_ns", "dur_ns", "correlation", "args") == [
        ("k\ufffd", 1000, 2000, None, None),
        ("k\ufffd", 9223372036854776, 0, None, None),
        ("k\ufffd", -9223372036854776, 0, None, None),
        ("unknown", 3000, 4000, None, None),
        ("k\ufffd", 8000, 1000, None, '{"d":"\ufffd grid:9"}'),
    ]
    assert losses(trace) == {"dropped_broken": 2, "dropped_negative": 1, "dropped_no_time": 1, "missing_name": 1}


def test_a_number_of_more_than_64_bits_is_cut_as_protobuf_does(tmp_path: Path) -> None:
    thread = field(3, varint(1 << 3) + b"\xff" * 9 + b"\x7f" + event(1, 10**6, 10**6))
    (tmp_path / "t.pb").write_bytes(field(1, field(2, "/host:CPU") + thread))
    assert table(collect([tmp_path / "t.pb"]), "ranges", "name", "thread") == [("unknown", -1)]


def test_a_long_text_that_many_events_name_is_cut(tmp_path: Path) -> None:
    events = [("x" * 10**6, i, 1, {"note": ["y" * 10**6]}) for i in range(300)]
    trace = made(tmp_path, Plane("/host:CPU").add("python", events))
    assert {(len(name), len(args)) for name, args in table(trace, "ranges", "name", "args")} == {
        (1 << 14, (1 << 14) + 11)
    }


def test_a_message_that_claims_more_than_there_is_keeps_what_is_complete(tmp_path: Path) -> None:
    name = field(2, "/device:GPU:0")
    line = field(2, "Stream #1(Kernel)") + event(1, 10**6, 10**6) + event(1, 3 * 10**6, 10**6)
    path = tmp_path / "t.pb"
    path.write_bytes(
        b"\n" + varint(1 << 62) + name + b"\x1a" + varint(1 << 61) + line + b"\x22" + varint(1 << 60) + b"\x08"
    )
    trace = collect([path])
    assert table(trace, "kernels", "name", "start_ns") == [("unknown", 1000), ("unknown", 3000)]
    assert trace.meta.quality["truncated_files"] == 1


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_a_truncated_file_keeps_every_complete_event(tmp_path: Path, packed: bool) -> None:
    whole, path = space(*gpu()[1:]), tmp_path / "t.xplane.pb.gz"
    ends = np.cumsum([len(field(1, plane.message())) for plane in gpu()[1:]])
    for size in range(40, len(whole), 23):
        path.write_bytes(gzip.compress(whole[:size]) if packed else whole[:size])
        try:
            trace = collect([path])
        except SeqPointError as error:
            assert size < 200 and str(error).startswith(str(path)) and "\n" not in str(error)
            continue
        counts = losses(trace)
        assert counts.get("truncated_files", 0) == (size not in ends), size
        if size > ends[0]:
            assert (trace.kernels.num_rows, trace.copies.num_rows) == (4, 4)


def test_nothing_to_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.pb"
    path.write_bytes(space(Plane("/host:CPU"), Plane("/device:GPU:0")))
    with pytest.raises(BrokenFileError, match=r"t\.pb: holds no event"):
        collect([path])
    path.write_bytes(gzip.compress(space(*gpu())))
    with pytest.raises(BrokenFileError, match="more than 64 bytes"):
        collect([path], IngestOptions(limit_bytes=64))


@pytest.mark.parametrize("first", ["/host:CPU", "/device:GPU:0", "/host:metadata", "Task Environment"])
def test_a_file_is_recognised_by_its_first_plane(tmp_path: Path, first: str) -> None:
    planes = [Plane(first), *gpu()]
    numbered = field(1, field(1, 300) + planes[0].message()) + space(*gpu())
    for i, content in enumerate((space(*planes), numbered, gzip.compress(space(*planes)))):
        path = tmp_path / f"{i}.any"
        path.write_bytes(content)
        assert find_reader(path).name == "xplane"
        assert not is_chakra(Head.of(path).start)


@pytest.mark.parametrize(
    "content",
    [
        varint(10) + MetadataMessage(version=[b"/host:CP"]).SerializeToString(),
        b"\n" + NodeMessage(id=10, name=b"/host:CPU").SerializeToString(),
        field(1, field(2, "/hosts/a")),
        field(1, field(3, "/host:CPU")),
        b"\n/host:CPU\n",
        b"",
    ],
)
def test_other_files_are_not_taken(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.xplane.pb"
    path.write_bytes(content)
    assert not XPlaneReader().sniff(Head.of(path))
    with pytest.raises(UnknownFormatError) if not is_chakra(content) else pytest.raises(BrokenFileError):
        collect([path])


def real() -> Path:
    if not REAL.exists():
        pytest.skip("the real profile is not on this machine")
    return REAL


#: Busy time and span, counted from the fields of the file by another program.
BUSY_MS = {0: (3.996, 138.47), 3: (3.403, 95.26), 7: (3.502, 90.56)}


def test_a_real_profile_of_eight_gpus() -> None:
    description = sp.describe(real())
    trace = description.trace
    assert (trace.kernels.num_rows, trace.copies.num_rows, trace.launches.num_rows) == (235, 0, 234)
    assert losses(trace) == {"skipped_marker": 455}
    activity = {row.device: row for row in times_of_recording(trace)}
    assert len(activity) == 8
    for device, (busy, span) in BUSY_MS.items():
        assert activity[device].times.busy_ns / 1e6 == pytest.approx(busy, abs=0.001)
        assert activity[device].span_ns / 1e6 == pytest.approx(span, abs=0.01)
        assert description.device_name(activity[device]) == "MI300X"
    rows_of = {row.name: row for row in operators_by_name(trace)}
    assert (rows_of["cudnn-conv.1"].kernels, round(rows_of["cudnn-conv.1"].time_ns / 1e4)) == (79, 1253)
    assert rows_of["cudnn-conv.1"].calls == 40


def test_a_real_profile_names_the_operands_of_its_convolution() -> None:
    trace = collect([real()])
    convolutions = {row[1:] for row in table(trace, "ops", "name", "shapes", "dtypes") if row[0] == "cudnn-conv.1"}
    assert convolutions == {("[[1, 16, 32, 60, 104], [5120, 16, 1, 2, 2]]", '["c10::BFloat16", "c10::BFloat16"]')}
    grids = set(table(trace, "kernels", "name", "workgroups", "workgroup_size", "lds_bytes"))
    assert ("input_transpose_fusion", 69840, 256, 8192) in grids
