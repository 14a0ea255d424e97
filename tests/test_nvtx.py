"""Ranges of NVTX and roctx: which are operators, modules or iterations, and which GPU a number of a device means."""

import copy
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import test_rocpd
import test_rocprofv3
import test_rpd
from commands import Run
from hypothesis import given
from hypothesis import strategies as st
from readings import database, losses, table
from test_nsys import KERNEL, NVTX, ONE, RUNTIME, SHAPE, TWO, Tables, export, made, real

from profilers.ingest.pipeline import collect
from profilers.ingest.stage import Stage
from profilers.readers.common.recording import Output, write_annotations
from profilers.trace.trace import Trace
from seqpoint import describe
from seqpoint.breakdown import operators_by_name, ranges_by_name
from seqpoint.kernel_facts import KERNEL_PHASES, kernel_facts

#: Start and end in ns, text, thread.
Range = tuple[int, int, str, int]


def program(ranges: Sequence[Range], launched: Sequence[tuple[int, int]] = (), names: Sequence[int] = (1,)) -> Tables:
    """Return an export with ranges, and a kernel of 10 ns for each launch: its time and thread."""
    events = [(start, end, 59, text, ONE | thread, None, 0, None) for start, end, text, thread in ranges]
    calls = [(time, time + 1, 0, ONE | thread, i, 3, 0) for i, (time, thread) in enumerate(launched)]
    kernels = [
        (time + 5, time + 15, 0, 1, 7, i, ONE, names[i % len(names)], 2, None, *SHAPE, None)
        for i, (time, _) in enumerate(launched)
    ]
    return export(
        NVTX_EVENTS=(NVTX, events),
        CUPTI_ACTIVITY_KIND_RUNTIME=(RUNTIME, calls),
        CUPTI_ACTIVITY_KIND_KERNEL=(KERNEL, kernels),
    )


def collected(folder: Path, tables: Tables) -> Trace:
    return collect([database(folder / "t.sqlite", tables)])


@pytest.mark.parametrize(
    ("text", "name", "sequence", "call", "shapes"),
    [
        ("aten::addmm, seq = 45339, op_id = 123", "aten::addmm", 45339, 123, None),
        ("aten::mul, seq = 12", "aten::mul", 12, None, None),
        ("aten::mul, op_id = 7, sizes = [[2, 3], [4], []]", "aten::mul", None, 7, "[[2,3],[4],[]]"),
        ("aten::cat, sizes = []", "aten::cat", None, None, "[]"),
        ("aten::relu", "aten::relu", None, None, None),
        ("c10d::alltoall_base_, op_id = 5", "c10d::alltoall_base_", None, 5, None),
        ("flash_attn::_flash_attn_forward, op_id = 5", "flash_attn::_flash_attn_forward", None, 5, None),
        ("record_param_comms, op_id = 5", "record_param_comms", None, 5, None),
        ("FlashAttnFunc, seq = 3, op_id = 5", "FlashAttnFunc", 3, 5, None),
        ("MulBackward, stashed seq=9", "MulBackward", 9, None, None),
        ("AddmmBackward0, seq = 2, op_id = 8", "AddmmBackward0", 2, 8, None),
        ("torch::autograd::CppNode<Norm>, seq = 2, op_id = 8", "torch::autograd::CppNode<Norm>", 2, 8, None),
        (
            "autograd::engine::evaluate_function: AddmmBackward0, op_id = 8",
            "autograd::engine::evaluate_function: AddmmBackward0",
            None,
            8,
            None,
        ),
        ("aten::mm, op_id = 7, sizes = [[2, 3], [4", "aten::mm", None, 7, None),
        ("aten::mm, op_id = 7, sizes = [[2, , 3]]", "aten::mm", None, 7, None),
        ("aten::mm, op_id = 7, sizes = [[99999999999999999999]]", "aten::mm", None, 7, None),
        ("aten::mm, seq = 999999999999999999, op_id = 1", "aten::mm", 999999999999999999, 1, None),
    ],
)
def test_calls_that_pytorch_names_are_operators(
    tmp_path: Path, text: str, name: str, sequence: int | None, call: int | None, shapes: str | None
) -> None:
    trace = made(tmp_path, program([(10, 90, text, 71)]))
    columns = ("name", "sequence_number", "record_function_id", "shapes", "start_ns", "dur_ns", "process", "thread")
    assert table(trace, "ops", *columns) == [(name, sequence, call, shapes, 10, 80, 70, 71)]
    assert table(trace, "ops", "args") == [('{"domainId":0}',)]
    assert trace.ranges.num_rows == 0 and losses(trace) == {}


@pytest.mark.parametrize(
    ("text", "name", "call"),
    [
        ("FSDP::pre_forward (blocks.3._module), op_id = 5", "FSDP::pre_forward (blocks.3._module)", 5),
        ("FSDP::root_pre_forward, op_id = 5", "FSDP::root_pre_forward", 5),
        ("nccl:all_to_all, op_id = 5", "nccl:all_to_all", 5),
        ("Optimizer.step#AdamW.step, op_id = 5", "Optimizer.step#AdamW.step", 5),
        ("enumerate(DataLoader)#It.__next__, op_id = 5, sizes = [[]]", "enumerate(DataLoader)#It.__next__", 5),
        ("forward, part 2, op_id = 5", "forward, part 2", 5),
        ("decoding, batch 3, seq = 512", "decoding, batch 3, seq = 512", None),
        ("attention, seq = long", "attention, seq = long", None),
        ("aten::mm, seq = 9999999999999999999, op_id = 1", "aten::mm, seq = 9999999999999999999, op_id = 1", None),
        ("GpuLower::lower", "GpuLower::lower", None),
        ("a\nb, op_id = 5", "a\nb", 5),
        ("ncclSend", "ncclSend", None),
        (", op_id = 5", "unknown", 5),
    ],
)
def test_all_other_ranges_stay_ranges(tmp_path: Path, text: str, name: str, call: int | None) -> None:
    trace = made(tmp_path, program([(10, 90, text, 71)]))
    columns = ("name", "category", "record_function_id", "start_ns", "dur_ns", "thread")
    assert table(trace, "ranges", *columns) == [(name, "user_annotation", call, 10, 80, 71)]
    assert trace.ops.num_rows == 0 and losses(trace).get("missing_name", 0) == (name == "unknown")


def test_ids_of_inputs_are_an_argument(tmp_path: Path) -> None:
    text = "aten::mm, seq = 1, op_id = 9, sizes = [[2, 3], [3, 4]], input_op_ids = [(7,0), (8,-1)]"
    trace = made(tmp_path, program([(1, 2, text, 71), (3, 4, "aten::mm, op_id = 10", 71)]))
    assert table(trace, "ops", "name", "shapes", "args") == [
        ("aten::mm", "[[2,3],[3,4]]", '{"domainId":0,"input_op_ids":"[(7,0), (8,-1)]"}'),
        ("aten::mm", None, '{"domainId":0}'),
    ]


FACTS = st.sampled_from(
    [
        ", seq = 1",
        ", op_id = 2",
        ", sizes = [[2, 3]]",
        ", sizes = [[",
        ", input_op_ids = [(1,0)]",
        ", stashed seq=3",
        ", ",
    ]
)


@given(
    st.lists(st.lists(st.one_of(FACTS, st.text(), st.sampled_from(["aten::mm", "mine", "\n"])), max_size=6), min_size=1)
)
def test_every_text_is_one_row(texts: list[list[str]]) -> None:
    stage = Stage()
    out = Output("nsys", [Path("t.sqlite")], stage)
    names = pa.array(["".join(parts).encode("utf-8", "replace").decode() for parts in texts], pa.string())
    times = np.arange(1, len(texts) + 1)
    columns = {"rank": times * 0, "name": names, "start_ns": times, "category": names, "args": pa.nulls(len(texts))}
    write_annotations(out, columns, times + 1)
    starts = [row["start_ns"] for kind in ("ops", "ranges") for row in stage.table(kind).to_pylist()]
    assert sorted(starts) == times.tolist()
    assert out.counts["events"] == out.counts["kept"] == len(texts)
    for row in stage.table("ops").to_pylist():
        assert all(isinstance(json.loads(row[name] or "[]"), list | dict) for name in ("shapes", "args"))


def test_shapes_of_operators_give_their_work(tmp_path: Path) -> None:
    texts = ["aten::mm, seq = 5, sizes = [[512, 256], [256, 128]]", "aten::relu, op_id = 2, sizes = [[64, 4]]"]
    ranges = [(100 * i, 100 * i + 90, text, 71) for i, text in enumerate(texts)]
    facts = kernel_facts(collected(tmp_path, program(ranges, [(10, 71), (110, 71)])))
    assert facts.flops[0] == 2 * 512 * 256 * 128
    assert facts.shapes == ("[[512,256],[256,128]]", "[[64,4]]")


def test_a_kernel_has_the_innermost_operator_around_its_launch_on_its_thread(tmp_path: Path) -> None:
    ranges = [
        (0, 100, "aten::linear, seq = 5, op_id = 1", 71),
        (10, 50, "aten::addmm, seq = 5, op_id = 2", 71),
        (15, 20, "mine, op_id = 3", 71),
        (16, 19, "ncclGroupStart", 71),
        (0, 100, "autograd::engine::evaluate_function: AddmmBackward0, seq = 5, op_id = 9", 72),
        (10, 50, "aten::mm, op_id = 10", 72),
    ]
    trace = collected(tmp_path, program(ranges, [(17, 71), (60, 71), (20, 72), (120, 71)]))
    assert {row.name: row.kernels for row in operators_by_name(trace) if row.kernels} == {
        "aten::linear": 1,
        "aten::addmm": 1,
        "aten::mm": 1,
        None: 1,
    }
    facts = kernel_facts(trace)
    phases = [KERNEL_PHASES[phase] for phase in facts.phase.tolist()]
    assert phases == ["forward", "backward", "forward", "unknown"]
    assert [(row.name, row.kernels, row.time_ns) for row in ranges_by_name(trace)] == [(None, 3, 30), ("mine", 1, 10)]


ROCTX = ["aten::mm, seq = 4, op_id = 11, sizes = [[2, 3], [3, 4]]", "FSDP::pre_forward (a), op_id = 12"]


def roctx_rows(trace: Trace) -> Any:
    columns = ("name", "sequence_number", "record_function_id", "shapes")
    annotations = [name for name, word in table(trace, "ranges", "name", "category") if word == "user_annotation"]
    return table(trace, "ops", *columns), annotations


def test_roctx_ranges_in_csv(tmp_path: Path) -> None:
    times = ((45, 61), (44, 62))
    calls = [
        f'"MARKER_CORE_API","{text}",70,88,{i},{a},{b}\n'
        for i, (text, (a, b)) in enumerate(zip(ROCTX, times, strict=True))
    ]
    files = {**test_rocprofv3.SET, "12_marker_api_trace.csv": test_rocprofv3.CALL_HEADER + "".join(calls)}
    trace = test_rocprofv3.read(tmp_path, files)
    assert roctx_rows(trace) == ([("aten::mm", 4, 11, "[[2,3],[3,4]]")], ["FSDP::pre_forward (a)"])
    assert table(trace, "ops", "args") == [('{"Domain":"MARKER_CORE_API"}',)]
    assert [op is not None for (op,) in table(trace, "kernels", "op_id")] == [True, False]


def test_roctx_ranges_in_json(tmp_path: Path) -> None:
    tool = copy.deepcopy(test_rocprofv3.TOOL)
    tool["strings"]["marker_api"] = [{"key": 6 + i, "value": text} for i, text in enumerate(ROCTX)]
    tool["buffer_records"]["marker_api"] = [
        test_rocprofv3.record(4, 0, time, 6 + i) for i, time in enumerate(((45, 61), (44, 62)))
    ]
    trace = test_rocprofv3.read_json(tmp_path, test_rocprofv3.document(tool))
    assert roctx_rows(trace) == ([("aten::mm", 4, 11, "[[2,3],[3,4]]")], ["FSDP::pre_forward (a)"])


def test_roctx_ranges_in_databases(tmp_path: Path) -> None:
    tables = test_rocpd.session()
    tables["event"] = [
        (*row[:-1], f'{{"message": "{ROCTX[0]}"}}' if "step 1" in str(row[-1]) else row[-1]) for row in tables["event"]
    ]
    trace = test_rocpd.read(test_rocpd.write(tmp_path / "a.db", {"_g": tables}))
    assert roctx_rows(trace) == ([("aten::mm", 4, 11, "[[2,3],[3,4]]")], [])
    recorded = test_rpd.tables()
    recorded["rocpd_string"] = [(i, ROCTX[0] if text == "step 1" else text) for i, text in recorded["rocpd_string"]]
    trace = test_rpd.read(test_rpd.write(tmp_path / "b.rpd", recorded))
    assert roctx_rows(trace)[0] == [("aten::mm", 7, None, "[[4, 8]]"), ("aten::mm", 4, 11, "[[2,3],[3,4]]")]


def modules(trace: Trace) -> list[str | None]:
    """Return the module of each kernel in the order of their starts."""
    facts = kernel_facts(trace)
    return [facts.modules[code] if code >= 0 else None for code in facts.module.tolist()]


def test_fsdp_brackets_a_module(tmp_path: Path) -> None:
    marks = [
        (50, 60, "FSDP::post_forward (layers.0), op_id = 1", 71),
        (100, 110, "FSDP::pre_forward (layers.1._checkpoint_wrapped_module), op_id = 2", 71),
        (120, 130, "FSDP::pre_forward (layers.1.mlp), op_id = 3", 71),
        (150, 160, "FSDP::post_forward (layers.1.mlp), op_id = 4", 71),
        (180, 190, "FSDP::post_forward (layers.1._checkpoint_wrapped_module), op_id = 5", 71),
        (300, 310, "FSDP::pre_forward (layers.2), op_id = 6", 71),
        (105, 106, "nccl:_all_gather, op_id = 7", 71),
    ]
    times = [10, 70, 105, 140, 170, 200, 400]
    trace = collected(tmp_path, program(marks, [(time, 71) for time in times]))
    assert modules(trace) == ["layers.0", None, "layers.1", "layers.1.mlp", "layers.1", None, "layers.2"]


def test_ranges_of_the_program_are_modules_and_those_of_steps_and_libraries_are_none(tmp_path: Path) -> None:
    ranges = [
        (0, 1000, "train_step", 71),
        (0, 900, "forward", 71),
        (10, 100, "layer3", 71),
        (20, 40, "aten::mm, op_id = 3", 71),
        (50, 90, "attention", 71),
        (60, 80, "cublasLtMatmul", 71),
        (200, 300, "micro-batch 4", 71),
        (10, 100, "other thread", 72),
    ]
    trace = collected(tmp_path, program(ranges, [(30, 71), (70, 71), (95, 71), (250, 71), (950, 71)]))
    assert modules(trace) == ["layer3", "attention", "layer3", None, None]


def test_frames_of_python_come_before_ranges(tmp_path: Path) -> None:
    ranges = [(0, 100, "nn.Module: Linear_0", 71), (10, 90, "layer3", 71)]
    assert modules(collected(tmp_path, program(ranges, [(50, 71)]))) == ["Linear_0"]


def steps(texts: list[str], every: int = 100, length: int = 90, thread: int = 70) -> list[Range]:
    return [(1 + i * every, 1 + i * every + length, text, thread) for i, text in enumerate(texts)]


def found(
    folder: Path, ranges: Sequence[Range], launched: Sequence[tuple[int, int]], names: Sequence[int] = (1,)
) -> Any:
    trace = collected(folder, program(ranges, launched, names))
    table = trace.iterations.to_pylist()
    return table[0]["found_by"], [row["name"] for row in table]


EVERY_STEP = [(10 + 100 * i, 70) for i in range(4)]


@pytest.mark.parametrize(
    "text",
    ["step {}", "iteration {}", "iter_{}", "Iteration {}", "epoch 0 step {}", "Epoch 1, train step {}", "step={}"],
)
def test_numbered_steps_are_iterations(tmp_path: Path, text: str) -> None:
    texts = [text.format(i) for i in range(4)]
    inside = [(20 + 100 * i, 40 + 100 * i, "forward", 70) for i in range(4)]
    assert found(tmp_path, steps(texts) + inside, EVERY_STEP) == ("annotation", texts)


def test_the_profilers_own_steps_are_iterations_behind_an_id(tmp_path: Path) -> None:
    texts = [f"ProfilerStep#{i}, op_id = {i}" for i in (7, 8)]
    assert found(tmp_path, steps(texts), EVERY_STEP[:2]) == ("ProfilerStep", ["ProfilerStep#7", "ProfilerStep#8"])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([f"job {i}" for i in range(4)], ["job 0", "job 1", "job 2", "job 3"]),
        (["run"] * 4, ["run"] * 4),
        (["fwd 0", "fwd 1", "optim"] * 4, ["fwd 0"] * 4),
        ([f"{part} {i}" for i in range(1, 5) for part in ("load", "run")], [f"load {i}" for i in range(1, 5)]),
        (["layer 0", "layer 1", "layer 2", "head 0"] * 4, ["layer 0"] * 4),
    ],
)  # fmt: skip
def test_outermost_ranges_that_recur_are_iterations(tmp_path: Path, texts: list[str], expected: list[str]) -> None:
    inner = [(start + 1, start + 5, "inner", 70) for start, *_ in steps(texts)]
    worker = [(1 + 7 * i, 4 + 7 * i, "load batch", 75) for i in range(9)]
    outer = steps(texts)
    assert found(tmp_path, [*outer, *inner, *worker], EVERY_STEP) == ("recurring annotations", expected)


@pytest.mark.parametrize(
    ("texts", "length"),
    [
        ([f"layer {i}" for i in range(8)], 90),
        ([f"blocks.{i}" for i in range(8)], 90),
        ([f"FSDP::pre_forward (blocks.{i // 2}), op_id = {i}" for i in range(8)], 90),
        ([f"micro-batch {i}" for i in range(8)], 90),
        (["nccl:all_reduce, op_id = 3"] * 8, 90),
        (["ncclAllReduce"] * 8, 90),
        (["one", "two"], 90),
        ([], 90),
    ],
)
def test_parts_of_a_step_are_no_iterations(tmp_path: Path, texts: list[str], length: int) -> None:
    assert found(tmp_path, steps(texts, length=length), EVERY_STEP) == ("whole trace", ["whole trace"])


def test_ranges_that_recur_unevenly_or_briefly_are_no_iterations(tmp_path: Path) -> None:
    uneven = [(time, time + 5, "run", 70) for time in (1, 10, 200, 210, 900, 905, 950)]
    assert found(tmp_path, uneven, [(1000, 70)]) == ("whole trace", ["whole trace"])
    (tmp_path / "brief").mkdir()
    assert found(tmp_path / "brief", steps(["check"] * 4), [(1, 70), (2000, 70)])[0] == "whole trace"


#: Kernels of eight equal blocks between a first and a last one, and their names.
BLOCKS = [(100 + 100 * i + 10 * k, 70) for i in range(8) for k in range(3)]


@pytest.mark.parametrize("text", ["blocks.{}", "FSDP::pre_forward (net.{}.mlp), op_id = 4", "encoder layer {}"])
def test_a_period_of_annotated_layers_is_no_iteration(tmp_path: Path, text: str) -> None:
    layers = [(99 + 100 * i, 199 + 100 * i, text.format(i), 70) for i in range(8)]
    assert found(tmp_path, [], BLOCKS, [1, 2, 3]) == ("kernel sequence (100 %)", [f"period {i}" for i in range(8)])
    (tmp_path / "layers").mkdir()
    assert found(tmp_path / "layers", layers, BLOCKS, [1, 2, 3]) == ("whole trace", ["whole trace"])
    (tmp_path / "steps").mkdir()
    same = [(99 + 100 * i + 10 * k, 105 + 100 * i + 10 * k, text.format(k), 75) for i in range(8) for k in range(3)]
    assert found(tmp_path / "steps", same, BLOCKS, [1, 2, 3])[0] != "whole trace"


GPU = "id INTEGER, name TEXT, smCount INTEGER, totalMemory INTEGER, cuDevice INTEGER"
VISIBLE = "gpuId INTEGER, cudaId INTEGER, pid INTEGER"


def devices(folder: Path, kernels: list[tuple[int, int]], gpus: list[Any], visible: list[Any] | None) -> Any:
    """Return rank, number and name of the devices of an export with kernels of some processes on some devices."""
    work = [(200, 260, device, 1, 7, 8, process, 1, 2, None, *SHAPE, None) for process, device in kernels]
    table = None if visible is None else (VISIBLE, visible)
    tables = export(
        CUPTI_ACTIVITY_KIND_KERNEL=(KERNEL, work), TARGET_INFO_GPU=(GPU, gpus), TARGET_INFO_CUDA_DEVICE=table
    )
    return [(device.rank, device.device, device.name) for device in made(folder, tables).meta.devices]


A100_T4 = [(0, "A100", 108, 80, 0), (1, "T4", 40, 15, 1)]


def test_the_number_of_a_device_is_that_of_the_process(tmp_path: Path) -> None:
    swapped = [(1, 0, 70), (0, 1, 70), (0, 0, 99)]
    assert devices(tmp_path, [(ONE, 0)], A100_T4, swapped) == [(-1, 0, "T4"), (-1, 1, "A100")]


def test_each_process_sees_its_own_devices(tmp_path: Path) -> None:
    visible = [(1, 0, 70), (0, 0, 50)]
    assert devices(tmp_path, [(ONE, 0), (TWO, 0)], A100_T4, visible) == [(0, 0, "A100"), (1, 0, "T4")]


def test_a_process_that_sees_one_device_of_many_has_one(tmp_path: Path) -> None:
    gpus = [(i, f"GPU {i}", 1, 1, i) for i in range(4)]
    assert devices(tmp_path, [(ONE, 0)], gpus, [(3, 0, 70)]) == [(-1, 0, "GPU 3")]


@pytest.mark.parametrize(
    ("numbers", "visible", "expected"),
    [
        ((1, 0), None, ["T4", "A100"]),
        ((1, 0), [], ["T4", "A100"]),
        ((1, 0), [(0, 0, 12345), (None, 0, 70), ("x", "y", 70)], ["T4", "A100"]),
        ((None, None), None, ["A100", "T4"]),
        ((0, 0), None, ["A100", "T4"]),
        ((1, 0), [(77, 0, 70)], []),
    ],
    ids=["no table", "empty table", "other process", "no number", "equal numbers", "unknown GPU"],
)
def test_without_the_devices_of_the_process_the_number_of_the_gpu_counts(
    tmp_path: Path, numbers: Any, visible: Any, expected: list[str]
) -> None:
    gpus = [(id_, name, 1, 1, number) for id_, name, number in zip((0, 1), ("A100", "T4"), numbers, strict=True)]
    assert [name for *_, name in devices(tmp_path, [(ONE, 0)], gpus, visible)] == expected


def test_describe_by_range(tmp_path: Path, run: Run) -> None:
    ranges = [(0, 300, "step 0", 71), (10, 50, "gather", 71), (100, 150, "gather", 71), (12, 20, "ncclSend", 71)]
    tables = program(ranges, [(15, 71), (120, 71), (200, 71), (400, 71)])
    path = database(tmp_path / "t.sqlite", tables)
    rows_by_name = {row["name"]: row for row in describe(collect([path]), by=["range"]).to_dict()["ranges"]}
    assert {
        name: (row["calls"], row["kernels"], row["time_ns"], row["host_ns"]) for name, row in rows_by_name.items()
    } == {
        "gather": (2, 2, 20, 90),
        "step 0": (1, 1, 10, 210),
        None: (0, 1, 10, 0),
    }
    assert describe(collect([path])).table("range")["name"].tolist()[0] == "gather"
    printed = run("describe", path, "--by", "range", "--top", "3").out
    assert "(no range)" in printed and "Ranges, whole recording" in printed and "50.0" in printed


def by_hand(path: Path) -> Counter[str | None]:
    """Return the kernel time in ns by the innermost operator around the launch, from SQL."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        calls = {
            (thread >> 24, correlation): (start, thread)
            for thread, correlation, start in connection.execute(
                "SELECT globalTid, correlationId, start FROM CUPTI_ACTIVITY_KIND_RUNTIME"
            )
        }
        ranges = defaultdict(list)
        query = "SELECT n.start, n.end, coalesce(text, value), globalTid FROM NVTX_EVENTS n LEFT JOIN StringIds s"
        for start, end, text, thread in connection.execute(f"{query} ON s.id = textId WHERE domainId = 0"):
            if not text.startswith(("FSDP", "nccl")):
                ranges[thread].append((start, end, text.partition(",")[0]))
        table = {thread: (np.array([r[:2] for r in of_thread]), of_thread) for thread, of_thread in ranges.items()}
        times = Counter[str | None]()
        query = "SELECT start, end, globalPid, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL"
        for start, end, process, correlation in connection.execute(query):
            time, thread = calls.get((process >> 24, correlation), (0, next(iter(table))))
            spans, of_thread = table[thread]
            around = np.flatnonzero((spans[:, 0] <= time) & (spans[:, 1] > time))
            times[of_thread[max(around, key=lambda row: of_thread[row][0])][2] if len(around) else None] += end - start
    return times


def test_operators_of_a_real_export() -> None:
    path = real("mfu_2gpu_before_2026.2")
    trace = collect([path])
    times = by_hand(path)
    assert {row.name: row.time_ns for row in operators_by_name(trace) if row.kernels} == times
    total = sum(times.values())
    assert times[None] < 0.05 * total
    shares = {
        name: round(times[name] / 1e6, 1) for name in ("flash_attn::_flash_attn_forward", "aten::copy_", "aten::addmm")
    }
    assert shares == {"flash_attn::_flash_attn_forward": 256.6, "aten::copy_": 64.4, "aten::addmm": 57.6}


def test_blocks_of_a_real_export_are_modules_and_no_iterations() -> None:
    trace = collect([real("mfu_2gpu_before_2026.2")])
    assert [row["found_by"] for row in trace.iterations.to_pylist()] == ["whole trace"] * 2
    facts = kernel_facts(trace)
    assert set(facts.modules) == {f"blocks.{i}" for i in range(2, 20)}
    assert (facts.duration_ns[facts.module >= 0]).sum() > 0.95 * facts.total_ns
    shares = np.bincount(facts.phase, weights=facts.duration_ns) / facts.total_ns
    assert dict(zip(KERNEL_PHASES, shares.tolist(), strict=False))["forward"] == pytest.approx(0.918, abs=0.001)


def test_layers_of_another_real_export_are_no_iterations() -> None:
    trace = collect([real("h100_2gpu_1s_2026.2")])
    assert [row["found_by"] for row in trace.iterations.to_pylist()] == ["whole trace"] * 2
    assert (trace.ops.num_rows, trace.ranges.num_rows) == (16546, 434)
