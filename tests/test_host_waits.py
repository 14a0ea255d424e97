"""What a host waits for without a recorded synchronisation: launch queues, polling, and what lies before a recording.

Each trace is made by the rules of `jobs`, so a job that ran otherwise has a period that the rules give, too.
"""

import csv
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from jobs import CALL, Call, write_job
from traces import event, kernel, kineto, launch

from profilers.ingest.pipeline import collect
from profilers.trace.arrays import MISSING
from profilers.trace.trace import Trace
from replay.costs.shipped import load_parameters
from replay.from_trace import host_waits, index_trace
from replay.from_trace.host_causes import HOST_CAUSES, host_causes
from replay.graph.graph import EdgeKind
from replay.projection.windows import StepWindow
from replay.what_ifs import parse_what_if
from seqpoint.graphs import step_windows

NEW = Path(__file__).parents[2] / "shared" / "new"
REAL = Path(__file__).parents[2] / "shared" / "data" / "traces"
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
STEPS = 6
#: Steps of 600 works of 20 us, which a host launches in 5 us each: the device sets the pace.
KERNELS: list[Call] = [("launch", 20.0), ("work", 3.0)] * 600
MIXED: list[Call] = [each for kind in ("launch", "fill", "copy") for each in ((kind, 20.0), ("work", 3.0))] * 200
STREAMS: list[Call] = [each for stream in (7, 20) for each in (("launch", 20.0, stream), ("work", 3.0))] * 300


def period_us(window: StepWindow, what_if: str = "scale_host:1") -> float:
    parsed = parse_what_if(what_if)
    return window.total_ns(window.steady(lambda graph: parsed(graph, load_parameters()))) / 1e3


def window_of(trace: Trace, number: int = STEPS) -> StepWindow:
    (window,) = step_windows(trace, [number])
    return window


def by_hand_us(folder: Path, step: Sequence[Call], queue: int | None, call_us: float = CALL) -> float:
    """Return the period of a job that has run for 40 steps."""
    folder.mkdir()
    return float(np.mean(np.diff(write_job(folder, [step], 40, queue, call_us)[1])[-20:]))


def scaled(step: Sequence[Call], *, host: float = 1.0, device: float = 1.0) -> list[Call]:
    return [(kind, us * (host if kind in ("work", "poll") else device), *rest) for kind, us, *rest in step]


@pytest.mark.parametrize("step", [KERNELS, MIXED, STREAMS], ids=["kernels", "kernels, fills and copies", "two streams"])
@pytest.mark.parametrize("queue", [300, 1022])
def test_a_full_queue_is_no_work_of_the_host(tmp_path: Path, step: list[Call], queue: int) -> None:
    files, _ = write_job(tmp_path, [step], 12, queue)
    window = window_of(collect(files), 12)
    assert (window.graph.edges.kind == EdgeKind.QUEUE).any()
    assert set(window.graph.launch_queues.values()) == {queue}
    assert period_us(window) == pytest.approx(by_hand_us(tmp_path / "same", step, queue), rel=1e-3)
    for host, device in ((1.0, 0.5), (1.0, 0.9), (1.0, 0.1), (1.5, 1.0), (0.5, 1.0)):
        expected = by_hand_us(tmp_path / f"{host}_{device}", scaled(step, host=host, device=device), queue, CALL * host)
        what_if = f"scale_host:{host}" if host != 1.0 else f"scale_kernels:*:{device}+scale_kernels:copies:{device}"
        assert period_us(window, what_if) == pytest.approx(expected, rel=2e-3), what_if


def test_a_recording_can_begin_while_the_queue_is_full(tmp_path: Path) -> None:
    files, _ = write_job(tmp_path, [KERNELS], 12, 1022)
    content = json.loads(files[0].read_text())
    begin = next(e["ts"] for e in content["traceEvents"] if e["name"] == "ProfilerStep#8")
    content["traceEvents"] = [e for e in content["traceEvents"] if e["ts"] >= begin]
    files[0].write_text(json.dumps(content))
    trace = collect(files)
    queues = index_trace(trace).calls.queues
    assert queues.lengths == {(0, 0, 7): 1022}
    assert int((trace.kernels["launch_id"].to_numpy() == MISSING).sum()) == 0 or trace.kernels["launch_id"].null_count
    window = window_of(trace, 12)
    assert period_us(window, "scale_kernels:*:0.5") == pytest.approx(6_000.0, rel=1e-3)
    assert period_us(window, "scale_host:1.5") == pytest.approx(12_000.0, rel=1e-3)


def test_the_records_of_the_profiler_come_first(tmp_path: Path) -> None:
    # Three launches of nine wait for a kernel far behind; no plateau shows it, but the profiler wrote it down.
    events = [event("ProfilerStep#1", "user_annotation", 0, 1000), launch(0, 1), kernel("ampere_sgemm_a", 4, 996, 1)]
    for i in range(2, 11):
        long = i % 3 == 0
        events.append({**launch(50.0 * i, i), "dur": 40.0 if long else 5.0})
        events.append(kernel("ampere_sgemm_a", 1000 + 10 * i, 10, i))
        if long:
            record = event("Command Buffer Full", "overhead", 50.0 * i + 1, 35)
            events.append({**record, "pid": -1, "tid": 0})
    (tmp_path / "t.json").write_text(json.dumps(kineto(events)))
    columns = index_trace(collect([tmp_path / "t.json"])).calls.columns
    assert (columns["unblocked"] > 0).sum() == 3
    assert set(columns["unblocked"][columns["unblocked"] > 0].tolist()) == {5000}


def test_a_queue_that_is_long_but_not_full_holds_nobody_up(tmp_path: Path) -> None:
    step: list[Call] = [("launch", 20.0), ("work", 3.0)] * 600 + [("sync",)]
    trace = collect(write_job(tmp_path, [step], STEPS)[0])
    assert not index_trace(trace).calls.queues.full


@pytest.mark.parametrize("lag", [17.0, 57.0])
def test_a_host_that_polls_waits(tmp_path: Path, lag: float) -> None:
    # Ten kernels of 100 us, launched in 50 us. Then the host reads memory until the last is done.
    step: list[Call] = [("launch", 100.0), ("work", 3.0)] * 10 + [("poll", lag)]
    window = window_of(collect(write_job(tmp_path, [step], STEPS)[0]))
    assert (window.graph.edges.kind == EdgeKind.POLL).sum() >= 1
    for device in (1.0, 0.9, 0.5, 0.2):
        expected = by_hand_us(tmp_path / f"d{device}", scaled(step, device=device), None)
        assert period_us(window, f"scale_kernels:*:{device}") == pytest.approx(expected, rel=1e-3)


def test_another_thread_goes_on_after_polling(tmp_path: Path) -> None:
    step: list[Call] = [("launch", 100.0), ("work", 3.0)] * 10 + [("poll", 17.0)]
    ((path,), _) = write_job(tmp_path, [step], STEPS)
    content = json.loads(path.read_text())
    launches = [each for each in content["traceEvents"] if each.get("cat") == "cuda_runtime"]
    for each in launches[10::10]:  # the first launch of each step but the first
        each["tid"] = 77
    path.write_text(json.dumps(content))
    index = index_trace(collect([path]))
    assert (index.calls.columns["polled_before"] != MISSING).any()
    (row,) = host_causes(index)
    kernels = [each for each in content["traceEvents"] if each.get("cat") == "kernel"]
    done = [kernels[last]["ts"] + kernels[last]["dur"] for last in range(9, 59, 10)]
    launched = [launches[last]["ts"] + launches[last]["dur"] for last in range(9, 59, 10)]
    assert row.cause_ns["polling"] / 1e3 == pytest.approx(sum(done) - sum(launched), rel=1e-3)


def test_a_host_that_works_for_as_long_as_its_kernel_does_not_poll(tmp_path: Path) -> None:
    step: list[Call] = [("launch", 960.0), ("work", 998.0)]
    window = window_of(collect(write_job(tmp_path, [step], STEPS)[0]))
    assert not (window.graph.edges.kind == EdgeKind.POLL).any()
    assert period_us(window, "scale_kernels:*:0.5") == pytest.approx(1000.0, rel=1e-3)


def test_a_host_polls_for_work_of_another_stream(tmp_path: Path) -> None:
    step: list[Call] = [("launch", 200.0, 7), ("work", 3.0)] * 20 + [("launch", 1.0, 20), ("work", 3.0)] * 60
    window = window_of(collect(write_job(tmp_path, [[*step, ("poll", 20.0)]], STEPS)[0]))
    expected = by_hand_us(tmp_path / "faster", [*scaled(step, device=0.5), ("poll", 20.0)], None)
    assert period_us(window, "scale_kernels:*:0.5") == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("longer", [1.05, 1.09])
def test_a_host_that_works_a_little_longer_than_its_device_does_not_poll(tmp_path: Path, longer: float) -> None:
    burst: list[Call] = [("launch", 100.0), ("work", 3.0)] * 200
    step: list[Call] = [*burst, ("work", longer * 200 * 100.0 - 200 * (CALL + 3.0))]
    window = window_of(collect(write_job(tmp_path, [step], STEPS)[0]))
    assert not (window.graph.edges.kind == EdgeKind.POLL).any()
    assert period_us(window, "scale_kernels:*:0.5") == pytest.approx(longer * 20_000.0, rel=1e-3)


@pytest.mark.parametrize("outer", ["cudaLaunchKernel", "hipLaunchKernel"])
def test_the_record_of_a_full_queue_belongs_to_the_call_that_launched(tmp_path: Path, outer: str) -> None:
    events = [event("ProfilerStep#1", "user_annotation", 0, 1000)]
    for i in range(1, 6):
        events.append({**launch(100.0 * i, i), "name": outer, "dur": 40.0})
        events.append(event("cuLaunchKernel", "cuda_driver", 100.0 * i + 2, 36))
        events.append({**event("Command Buffer Full", "overhead", 100.0 * i + 3, 30), "pid": -1, "tid": 0})
        events.append(kernel("ampere_sgemm_a", 100.0 * i + 50, 10, i))
    (tmp_path / "t.json").write_text(json.dumps(kineto(events)))
    index = index_trace(collect([tmp_path / "t.json"]))
    blocked = index.calls.columns["unblocked"] > 0
    assert {str(index.calls.names[n]) for n in index.calls.columns["name"][blocked]} == {outer}


@pytest.mark.parametrize("cost", [1.0, 8.0])
def test_a_profiler_that_makes_each_call_longer_makes_the_host_longer_and_nothing_else(
    tmp_path: Path, cost: float
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "recorded").mkdir()
    plain, recorded = (
        window_of(collect(write_job(tmp_path / name, [KERNELS[:200]], STEPS, call_us=us)[0]))
        for name, us in (("plain", CALL), ("recorded", CALL + cost))
    )
    # Both keep the device busy, so the step is that of the device; without it, that of the host.
    assert period_us(recorded) == pytest.approx(period_us(plain), rel=1e-3)
    host = period_us(recorded, "scale_kernels:*:0") - period_us(plain, "scale_kernels:*:0")
    assert host == pytest.approx(100 * cost, rel=1e-2)


@pytest.mark.parametrize("gap", [100.0, 700.0])
def test_steps_without_a_host_keep_their_gaps(tmp_path: Path, gap: float) -> None:
    rows, at = ["name,start_us,dur_us,iteration"], 0.0
    for step in range(6):
        for i in range(40):
            rows.append(f"kernel_{i},{at:.3f},{50 + i},{step}")
            at += 50 + i + 3
        at += gap - 3
    (tmp_path / "t.csv").write_text("\n".join(rows))
    window = window_of(collect([tmp_path / "t.csv"]), 5)
    work, rest = sum(range(50, 90)), 39 * 3 + gap
    for factor in (1.0, 0.9, 0.8, 0.5):
        assert period_us(window, f"scale_kernels:*:{factor}") == pytest.approx(work * factor + rest, rel=1e-6)


def behind_unrecorded(wait: float) -> list[dict[str, object]]:
    """Return an iteration whose first kernel starts `wait` us after its launch; the host launches all 20 in 200 us."""
    events = [event("ProfilerStep#1", "user_annotation", 0, 250)]
    for i in range(20):
        events += [launch(10.0 * i, i + 1), kernel("ampere_sgemm_a", wait + 500.0 * i, 500, i + 1)]
    return events


@pytest.mark.parametrize("wait", [8_000.0, 149_000.0])
@pytest.mark.parametrize("copy_us", [0.0, 1500.0])
def test_behind_unrecorded_work_a_step_begins_when_the_device_is_free(
    tmp_path: Path, wait: float, copy_us: float
) -> None:
    events = behind_unrecorded(wait)
    if copy_us:  # an early copy on another stream does not explain the wait of the kernels
        copied = {**launch(1, 99), "name": "cudaMemcpyAsync"}
        place = {"device": 0, "stream": 20, "correlation": 99, "bytes": 4096}
        events += [copied, event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 12, copy_us, **place)]
    (tmp_path / "t.json").write_text(json.dumps(kineto(events)))
    window = window_of(collect([tmp_path / "t.json"]), 1)
    assert window.measured_ns == (10_000_000,)
    assert period_us(window) == pytest.approx(10_000.0)
    assert period_us(window, "scale_kernels:gemm:0.5") == pytest.approx(5_000.0)
    assert period_us(window, "scale_host:0.5") == pytest.approx(10_000.0, rel=1e-2)


@pytest.mark.skipif(not NEW.is_dir(), reason=f"real traces are not at {NEW}")
def test_the_records_and_the_plateau_of_a_busy_gpu_tell_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_trace(collect([NEW / "traces/kineto/nanogpt1/h100_gpu_bound.json.gz"]))
    columns, work = index.calls.columns, index.device_work.columns
    duration = columns["end"] - columns["start"]
    recorded = host_waits.full_queues(index.trace, columns, work)
    monkeypatch.setattr(host_waits, "_recorded", lambda trace, calls, launching: np.full(len(calls["id"]), MISSING))
    counted = host_waits.full_queues(index.trace, columns, work)
    held_ns = [int((duration - each.unblocked_ns)[each.unblocked_ns > 0].sum()) for each in (recorded, counted)]
    assert (recorded.unblocked_ns > 0).sum() == 774 and held_ns[0] == pytest.approx(126.8e6, rel=1e-3)
    assert held_ns[1] == pytest.approx(held_ns[0], rel=5e-3)
    assert recorded.lengths[0, 0, 7] == counted.lengths[0, 0, 7] == 1021


@pytest.mark.skipif(not REAL.is_dir(), reason=f"real traces are not at {REAL}")
@pytest.mark.parametrize("name", ["hta/trace_diff_v100", "hta/nccl_a100_rank0", "misc/resnet50_v100_2021_schema"])
def test_queues_that_are_not_full_are_not_taken_for_full(name: str) -> None:
    index = index_trace(collect([REAL / "kineto" / f"{name}.json.gz"]))
    assert not index.calls.queues.full
    assert (index.calls.columns["polled_before"] == MISSING).all()


def host_table():
    spec = importlib.util.spec_from_file_location("host_causes", BENCHMARKS / "replay" / "host_causes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not REAL.is_dir(), reason=f"real traces are not at {REAL}")
@pytest.mark.parametrize(
    "name",
    ["kineto/hta/multistream_a100_rank0.json.gz", "nsys/h100_2gpu_1s_2026.2.sqlite", "rocm/rpd_mi300x_vllm.rpd.gz"],
)
def test_host_time_by_cause_is_that_of_the_table(name: str) -> None:
    table = list(csv.DictReader((BENCHMARKS.parent / "tests/accuracy/host_causes.csv").read_text().splitlines()))
    found = host_table().rows(name, [REAL / name])
    assert found == [row for row in table if row["trace"] == name]
    for row in found:
        assert sum(float(row[cause]) for cause in HOST_CAUSES) == pytest.approx(100.0, abs=0.05)
