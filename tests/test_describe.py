"""Kernels by name, operators with the kernels that they launched, and the verdict, on traces computed by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands import Run
from traces import event, kernel, kineto, launch, write_trace

import seqpoint as sp
from profilers.errors import InvalidInputError
from profilers.trace import Trace
from seqpoint.breakdown import CALL, NO_OPERATOR, OPERATOR, PYTHON, HostTime, host_times, python_functions, self_times

US = 1000


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Return two steps: two GEMMs of 200 and 400 us, an add of 100 us, a collective of 300 us; one GEMM by aten::mm."""
    return sp.open(write_trace(tmp_path / "job.json"))


def opened(path: Path, *events: dict[str, object]) -> Trace:
    path.write_text(json.dumps(kineto(list(events))))
    return sp.open(path)


def test_kernels_by_name_add_up_to_the_time_of_all_kernels(trace: Trace) -> None:
    table = sp.describe(trace).table("kernel")
    assert table.to_dict("list") == {
        "name": ["ampere_sgemm_128x64_nn", "ncclDevKernel_AllGather_RING_LL", "vectorized_elementwise_kernel"],
        "class": ["gemm", "collective", "elementwise"],
        "kernels": [4, 2, 2],
        "time_ns": [1200 * US, 600 * US, 200 * US],
        "share": [0.6, 0.3, 0.1],
        "median_ns": [300.0 * US, 300.0 * US, 100.0 * US],
        "streams": [1, 1, 1],
    }


def test_a_name_on_two_streams_and_a_kernel_without_duration(tmp_path: Path) -> None:
    again = kernel("gemm", 50, 30, 2, stream=8)
    unfinished = {**kernel("gemm", 90, 1, 3), "dur": None}
    table = sp.describe(opened(tmp_path / "a.json", kernel("gemm", 10, 20, 1), again, unfinished)).table("kernel")
    (row,) = table.to_dict("records")
    assert (row["kernels"], row["time_ns"], row["median_ns"], row["streams"]) == (3, 50 * US, 25 * US, 2)


def test_operators_hold_their_kernels_and_the_others_have_a_row(trace: Trace) -> None:
    rows = sp.describe(trace).to_dict()
    assert "operators" not in rows
    rows = sp.describe(trace, by="operator").to_dict()["operators"]
    assert rows == [
        {"name": None, "calls": 0, "kernels": 6, "time_ns": 1600 * US, "share": 0.8, "host_ns": 0},
        {"name": "aten::mm", "calls": 2, "kernels": 2, "time_ns": 400 * US, "share": 0.2, "host_ns": 80 * US},
    ]


def test_the_innermost_operator_counts_and_host_time_is_without_its_callees(tmp_path: Path) -> None:
    other_thread = {**event("aten::relu", "cpu_op", 0, 100), "tid": 11}
    trace = opened(
        tmp_path / "a.json",
        event("aten::linear", "cpu_op", 10, 50),
        event("aten::addmm", "cpu_op", 20, 30),
        event("aten::empty", "cpu_op", 25, 5),
        launch(35, 1),
        launch(55, 2),
        kernel("gemm", 40, 12, 1),
        kernel("bias", 60, 4, 2),
        other_thread,
    )
    table = sp.describe(trace).table("operator").set_index("name")
    assert list(table.index) == ["aten::addmm", "aten::linear", "aten::relu", "aten::empty"]
    assert table["time_ns"].tolist() == [12 * US, 4 * US, 0, 0]
    assert table["host_ns"].tolist() == [25 * US, 20 * US, 100 * US, 5 * US]


def python(name: str, ts: float, dur: float) -> dict[str, object]:
    return event(name, "python_function", ts, dur, **{"Python id": 1, "Python parent id": None})


def test_self_times_of_functions_operators_and_calls_are_one_tree(run: Run, tmp_path: Path) -> None:
    # main 0-100 calls linear 10-60, which calls addmm 20-50, which launches 35-37 and 40-50. Thread 11 is apart.
    events = [
        event("ProfilerStep#1", "user_annotation", 0, 100),
        python("train.py(1): main", 0, 100),
        event("aten::linear", "cpu_op", 10, 50),
        event("aten::addmm", "cpu_op", 20, 30),
        launch(35, 1, dur=2),
        launch(40, 2, dur=10),
        kernel("gemm", 50, 12, 1),
        kernel("gemm", 70, 12, 2),
        {**event("aten::relu", "cpu_op", 0, 300), "tid": 11},
    ]
    rows = host_times(opened(tmp_path / "a.json", *events))
    assert [(row.name, row.kind, row.calls, row.self_ns // US) for row in rows] == [
        ("aten::relu", OPERATOR, 1, 300),
        ("train.py(1): main", PYTHON, 1, 50),
        ("aten::linear", OPERATOR, 1, 20),
        ("aten::addmm", OPERATOR, 1, 18),
        ("cudaLaunchKernel", CALL, 2, 12),
    ]
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert rows[1] == HostTime("train.py(1): main", PYTHON, 1, 50 * US, 50 / 400, 50.0 * US)
    content = json.loads(run("describe", tmp_path / "a.json", "--by", "host", "--json").out)
    assert [len(content[name]) for name in ("host_operators", "python_functions")] == [4, 1]
    shown = " ".join(run("describe", tmp_path / "a.json", "--by", "host", "--top", 2).out.split())
    assert "Host operators by self time, in the steps" in shown and "and 2 more: --all" in shown
    assert "Python functions by self time, in the steps" in shown and "train.py(1): main" in shown


def test_the_self_times_of_a_thread_add_up_to_the_union_of_its_events(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    starts, lengths = random.integers(0, 500, 80), random.integers(0, 60, 80)
    events = [
        event(f"op{i % 7}", "cpu_op", int(s), int(n)) for i, (s, n) in enumerate(zip(starts, lengths, strict=True))
    ]
    covered = {t for s, n in zip(starts.tolist(), lengths.tolist(), strict=True) for t in range(s, s + n)}
    trace = opened(tmp_path / "a.json", *events)
    assert self_times(trace.ops).sum() == len(covered) * US
    assert self_times(trace.ops).min() >= 0


REAL = Path(__file__).parents[2] / "shared/data/traces/kineto"


@pytest.mark.parametrize("name", ["tracelens/h100/gaunernst_bert-small-uncased.json.gz", "hta/nccl_a100_rank0.json.gz"])
def test_self_times_of_a_real_trace_add_up(name: str) -> None:
    if not (REAL / name).is_file():
        pytest.skip(f"no trace at {REAL / name}")
    recorded = sp.open(REAL / name)
    trace = recorded.with_tables(iterations=recorded.iterations.slice(0, 0))  # without steps, all events count
    tables = (python_functions(trace), trace.ops, trace.launches)
    columns = ("rank", "process", "thread", "start_ns", "dur_ns")
    events = [row for table in tables for row in zip(*(table[c].to_pylist() for c in columns), strict=True)]
    covered, until, last = 0, 0, None
    for *thread, start, time in sorted(events, key=lambda row: (row[:3], row[3])):
        until = until if thread == last else start
        covered += max(start + (time or 0) - max(until, start), 0)
        until, last = max(until, start + (time or 0)), thread
    assert sum(row.self_ns for row in host_times(trace)) == covered > 0


def test_host_times_do_not_depend_on_the_order_of_rows(trace: Trace) -> None:
    order = np.random.default_rng(0).permutation(trace.ops.num_rows)
    assert sorted(self_times(trace.ops.take(order))) == sorted(self_times(trace.ops))


def test_a_trace_without_kernels_or_operators_has_empty_tables(tmp_path: Path) -> None:
    host_only = sp.describe(opened(tmp_path / "host.json", event("aten::mm", "cpu_op", 0, 5)))
    assert len(host_only.table("kernel")) == 0
    assert host_only.table("operator")["host_ns"].tolist() == [5 * US]
    assert host_only.verdict() == ""
    kernels_only = sp.describe(opened(tmp_path / "device.json", kernel("gemm", 0, 5, 1)))
    assert kernels_only.table("operator")["name"].tolist() == [NO_OPERATOR]


def test_the_verdict_says_who_sets_the_pace(tmp_path: Path) -> None:
    def busy(share: float) -> str:
        events = [event(f"ProfilerStep#{i}", "user_annotation", 1000 * i, 1000) for i in range(4)]
        starts = [launch(1000 * i + 1, i + 1) for i in range(4)]
        kernels = [kernel("gemm", 1000 * i + 5, 1000 * share, i + 1) for i in range(4)]
        return sp.describe(opened(tmp_path / "a.json", *events, *starts, *kernels)).verdict()

    assert busy(0.1).startswith("The device is busy 10 % of the steps: the host sets the pace")
    assert "devices set the pace" in busy(0.98)
    assert "either may hold the steps up" in busy(0.7)


def test_an_unknown_table_is_an_error(trace: Trace) -> None:
    with pytest.raises(
        InvalidInputError, match="by 'stream': there is no such table; choose of kernel, operator, range, host"
    ):
        sp.describe(trace, by="stream")


def test_the_command_shows_the_longest_rows_first_and_says_what_is_left_out(run: Run, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.json")
    shown = run("describe", path, "--by", "kernel", "--by", "operator", "--top", 1)
    assert shown.code == 0
    text = " ".join(shown.out.split())
    assert "and 2 more: --all Operators, whole recording" in text and text.endswith("and 1 more: --all")
    assert NO_OPERATOR in shown.out
    assert "busy" in shown.out.splitlines()[0]
    assert "Steps" not in shown.out
    everything = json.loads(run("describe", path, "--by", "kernel", "--json").out)
    assert len(everything["kernels"]) == 3
    assert "operators" not in everything


def test_a_title_tells_the_time_outside_the_iterations(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    marks = [event(f"ProfilerStep#{i}", "user_annotation", 1000 * i, 1000) for i in (1, 2)]
    work = [launch(1001, 1), kernel("gemm", 1010, 60, 1), launch(2001, 2), kernel("gemm", 2010, 20, 2)]
    path.write_text(json.dumps(kineto([*marks, *work, kernel("warm-up", 900, 20, 9)])))
    title = "Kernels by name, whole recording (20.0 % of the kernel time is in no iteration)"
    assert title in " ".join(run("describe", path, "--by", "kernel").out.split())


def test_a_limit_cuts_the_lists_of_the_json_too(run: Run, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.json")
    whole, cut = (json.loads(run("describe", path, "--by", "kernel", "--json", *top).out) for top in ((), ("--top", 1)))
    assert len(whole["kernels"]) == 3 and cut["kernels"] == whole["kernels"][:1]
    assert len(whole["kernel_classes"]) > 1 and len(cut["kernel_classes"]) == 1


@pytest.mark.parametrize("option", ["--all", "--wide", "--notes"])
def test_an_option_on_tables_is_wrong_usage_with_json(run: Run, tmp_path: Path, option: str) -> None:
    result = run("describe", write_trace(tmp_path / "job.json"), option, "--json")
    assert result.code == 2 and f"{option} is on tables" in result.err


def test_kernels_of_a_trace_without_kernels_are_an_error(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(kineto([event("aten::mm", "cpu_op", 0, 5)])))
    result = run("describe", path, "--by", "kernel")
    assert (result.code, len(result.err.splitlines())) == (1, 1)
    assert "no kernels to list by name" in result.err


def test_the_host_of_a_trace_without_a_host_is_an_error(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(kineto([kernel("gemm", 0, 5, 1)])))
    result = run("describe", path, "--by", "host")
    assert (result.code, len(result.err.splitlines())) == (1, 1)
    assert "no operator and no call of the host" in result.err


def change(ts: float, allocated: int, kind: int = 1, device: int = 0) -> dict[str, object]:
    """Return an event of memory as PyTorch writes it."""
    args = {"Total Reserved": 4 << 20, "Total Allocated": allocated, "Bytes": 512, "Device Id": device,
            "Device Type": kind}  # fmt: skip
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts,
            "args": args}  # fmt: skip


def test_the_peak_of_memory_is_found_by_device(tmp_path: Path, run: Run) -> None:
    changes = [change(10, 1 << 20), change(40, 3 << 20), change(90, 2 << 20), change(95, 3 << 20)]
    others = [change(50, 9 << 20, kind=0, device=-1), change(60, 5 << 20, device=1)]
    described = sp.describe(opened(tmp_path / "a.json", kernel("gemm", 10, 20, 1), *changes, *others))
    first, second = described.memory
    assert (first.device, first.peak_bytes, first.peak_ns, first.reserved_bytes) == (0, 3 << 20, 30 * US, 4 << 20)
    assert first.allocated_bytes.tolist() == [1 << 20, 3 << 20, 2 << 20, 3 << 20] and second.peak_bytes == 5 << 20
    assert described.to_dict()["memory"][0]["peak_bytes"] == 3 << 20
    assert "Memory in use on devices" in run("describe", tmp_path / "a.json").out
    curves = list(described.memory_plot())
    assert [len(curve) for curve in curves] == [4, 1]


def test_a_trace_without_memory_says_nothing_of_it(trace: Trace) -> None:
    described = sp.describe(trace)
    assert described.memory == () and not any("Memory" in table.title for table in described.tables())
    with pytest.raises(InvalidInputError, match="profile_memory=True"):
        described.memory_plot()
