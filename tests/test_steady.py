"""The steady state of jobs whose period is known: by a closed form, and by following the rules one call at a time."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jobs import CALL, LAG, LOADER, Call, write_job
from traces import event, kernel, kineto, launch

from profilers.ingest.pipeline import collect
from profilers.trace.trace import Trace
from replay.analysis.idle import pace
from replay.costs.shipped import load_parameters
from replay.projection.pacing import Limits, limits_of
from replay.projection.windows import StepWindow
from replay.what_ifs import parse_what_if
from seqpoint.graphs import step_windows

STEPS = 6


def job(tmp_path: Path, *ranks: Sequence[Call], steps: int = STEPS, queue: int | None = None) -> Trace:
    tmp_path.mkdir(exist_ok=True, parents=True)
    return collect(write_job(tmp_path, ranks, steps, queue)[0])


def last_step(trace: Trace, queue: int | None = None) -> StepWindow:
    """Return the window of the last iteration, on a device with a launch queue as deep as asked."""
    (window,) = step_windows(trace, [STEPS])
    hardware = replace(window.graph.hardware, launch_queue=queue or 0)
    graph = replace(window.graph, hardware=hardware)
    return StepWindow.of(graph, window.chosen, weights=window.weights, measured_ns=window.measured_ns)


def period_us(window: StepWindow, what_if: str | None = None) -> float:
    if what_if is None:
        return window.total_ns(window.steady()) / 1e3
    parsed = parse_what_if(what_if)
    return window.total_ns(window.steady(lambda graph: parsed(graph, load_parameters()))) / 1e3


def limits(window: StepWindow) -> Limits:
    state = window.steady()
    total_ns = window.total_ns(state)
    return limits_of([window], [state], lambda times_ns: total_ns / max(times_ns[0], 1e-9))


def by_hand_us(tmp_path: Path, *ranks: Sequence[Call], queue: int | None = None, call_us: float = CALL) -> float:
    """Return the period of a job that has run for 60 steps."""
    _, completions = write_job(tmp_path, ranks, 60, queue, call_us)
    return float(np.mean(np.diff(completions)[-20:]))


def calls(host: float, device: float, n: int = 4) -> list[Call]:
    """Return a step of `n` launches that takes the host and the device so long, us."""
    return [call for _ in range(n) for call in (("launch", device / n), ("work", host / n - CALL))]


def scaled(step: Sequence[Call], *, host: float = 1.0, kernels: float = 1.0) -> list[Call]:
    by = {"work": host, "launch": kernels, "reduce": 1.0, "load": 1.0}
    return [(kind, args[0] * by[kind]) if args else (kind,) for kind, *args in step]


@pytest.mark.parametrize(("host", "device"), [(400.0, 1000.0), (1000.0, 400.0), (1000.0, 960.0), (960.0, 1000.0)])
def test_the_slower_of_host_and_device_sets_the_period(tmp_path: Path, host: float, device: float) -> None:
    window = last_step(job(tmp_path, calls(host, device)))
    assert window.measured_ns[0] / 1e3 == pytest.approx(max(host, device), rel=1e-9)
    assert period_us(window) == pytest.approx(max(host, device), rel=1e-9)
    for factor in (0.25, 0.5, 2.0, 4.0):
        assert period_us(window, f"scale_kernels:*:{factor}") == pytest.approx(max(host, factor * device), rel=1e-9)
        assert period_us(window, f"scale_host:{factor}") == pytest.approx(max(factor * host, device), rel=1e-9)
    both = "scale_host:0.5+scale_kernels:*:0.5"
    assert period_us(window, both) == pytest.approx(max(host, device) / 2, rel=1e-9)


@pytest.mark.parametrize("when", [10, 1])
def test_a_trace_of_few_steps_says_the_same(tmp_path: Path, when: int) -> None:
    # After 10 steps the device is 9 steps behind its host; after 2 it has hardly begun.
    trace = job(tmp_path, calls(400.0, 1000.0), steps=when + 1)
    (window,) = step_windows(trace, [when + 1])
    assert len(window.graph.iterations) == min(when + 1, 8)  # the host had not waited for the last seven
    assert period_us(window) == pytest.approx(1000.0)
    assert period_us(window, "scale_host:0.1") == pytest.approx(1000.0)
    assert period_us(window, "scale_kernels:*:0.1") == pytest.approx(400.0)


def test_with_a_synchronisation_host_and_device_add_up_but_for_what_overlaps(tmp_path: Path) -> None:
    # The first kernel starts LAG after the first call; then the device works without a pause, and the host goes on
    # when it is done: for 300 us, with nothing on the device.
    step: list[Call] = [*calls(100.0, 800.0), ("sync",), ("work", 300.0)]
    window = last_step(job(tmp_path, step))
    assert period_us(window) == pytest.approx(LAG + 800.0 + CALL + 300.0, rel=1e-9)
    assert period_us(window, "scale_kernels:*:0.5") == pytest.approx(LAG + 400.0 + CALL + 300.0, rel=1e-9)
    # Half of the host's own time; the lag of the launch, and of the return, stay.
    assert period_us(window, "scale_host:0.5") == pytest.approx(LAG + 800.0 + CALL + 150.0, rel=2e-3)


@pytest.mark.parametrize("queue", [1, 2, 3, 5, 8, 30])
def test_a_faster_host_is_held_up_by_the_launch_queue(tmp_path: Path, queue: int) -> None:
    # Ten kernels of 20 us, then 100 us of the host alone. With a host ten times as fast the kernels that wait in the
    # queue must last for 10 us; with few places in it the device idles.
    step: list[Call] = [call for _ in range(10) for call in (("launch", 20.0), ("work", 28.0))] + [("work", 100.0)]
    window = last_step(job(tmp_path / "measured", step), queue)
    assert period_us(window) == pytest.approx(10 * 30.0 + 100.0, rel=1e-9)
    for factor in (0.5, 0.1):
        faster = scaled(step, host=factor)
        expected = by_hand_us(tmp_path, faster, queue=queue, call_us=factor * CALL)
        assert period_us(window, f"scale_host:{factor}") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("queue", "period"), [(300, 16_000.0), (500, 14_000.0), (1024, 14_000.0)])
def test_launches_that_blocked_do_so_no_more_where_the_device_is_faster(
    tmp_path: Path, queue: int, period: float
) -> None:
    # 700 kernels of 20 us, then 8 ms of the host alone: 300 kernels last for 6 ms of it.
    step: list[Call] = [("launch", 20.0) for _ in range(700)] + [("work", 8000.0)]
    window = last_step(job(tmp_path / "measured", step, queue=queue), queue)
    assert period_us(window) == pytest.approx(period, rel=2e-3)
    for factor in (0.75, 0.5, 0.1):
        expected = by_hand_us(tmp_path, scaled(step, kernels=factor), queue=queue)
        assert period_us(window, f"scale_kernels:*:{factor}") == pytest.approx(expected, rel=2e-3)


def test_the_slower_of_two_ranks_that_reduce_sets_the_period(tmp_path: Path) -> None:
    slow, fast = [*calls(200.0, 900.0), ("reduce", 50.0)], [*calls(300.0, 600.0), ("reduce", 50.0)]
    window = last_step(job(tmp_path, slow, fast))
    assert period_us(window) == pytest.approx(950.0, rel=1e-9)
    assert period_us(window, "scale_kernels:gemm:0.5") == pytest.approx(500.0, rel=1e-9)
    # Now the host of the second rank is slower than either device.
    assert period_us(window, "scale_host:4") == pytest.approx(4 * (300.0 + CALL), rel=1e-6)


def test_clocks_of_ranks_that_are_apart_change_nothing(tmp_path: Path) -> None:
    slow, fast = [*calls(200.0, 900.0), ("reduce", 50.0)], [*calls(300.0, 600.0), ("reduce", 50.0)]
    files, _ = write_job(tmp_path, [slow, fast], STEPS)
    content = json.loads(files[1].read_text())
    for row in content["traceEvents"]:
        row["ts"] += 70_000.0
    files[1].write_text(json.dumps(content))
    window = last_step(collect(files))
    assert window.measured_ns[0] / 1e3 == pytest.approx(950.0, rel=1e-6)
    assert period_us(window) == pytest.approx(950.0, rel=1e-6)
    assert period_us(window, "scale_kernels:gemm:0.5") == pytest.approx(500.0, rel=1e-6)


def test_ranks_stay_together_over_steps(tmp_path: Path) -> None:
    slow, fast = [*calls(200.0, 900.0), ("reduce", 50.0)], [*calls(300.0, 600.0), ("reduce", 50.0)]
    state = last_step(job(tmp_path, slow, fast)).steady()
    line, tasks = state.timeline, state.timeline.graph.tasks
    for number in range(len(line.graph.iterations)):
        ends = [line.end_ns[(tasks.iteration == number) & (tasks.device == device)].max() for device in (0, 1)]
        assert ends[0] == pytest.approx(ends[1], abs=1)


@pytest.mark.parametrize("batch", [1500.0, 200.0])
def test_a_loader_keeps_its_pace(tmp_path: Path, batch: float) -> None:
    step: list[Call] = [("load", batch), *calls(300.0, 900.0)]
    window = last_step(job(tmp_path, step))
    period = max(300.0, 900.0, batch)
    assert period_us(window) == pytest.approx(period, rel=1e-3)
    # A loader that is always in time leaves no trace of its pace.
    limit = batch if batch > 900.0 else 0.0
    assert period_us(window, "scale_kernels:*:0.5") == pytest.approx(max(300.0, 450.0, limit), rel=1e-3)
    assert period_us(window, "scale_host:0.5") == pytest.approx(max(900.0, limit), rel=1e-3)
    assert period_us(window, "scale_host:10") == pytest.approx(max(3000.0, limit), rel=2e-2)


def test_what_sets_the_pace_is_named(tmp_path: Path) -> None:
    found = {}
    jobs = {
        "device": calls(300.0, 900.0),
        "host": calls(900.0, 300.0),
        "loader": [("load", 1500.0), *calls(300.0, 900.0)],
        "communication": [*calls(200.0, 100.0), ("reduce", 700.0)],
    }
    for name, step in jobs.items():
        ranks = [step, step] if name == "communication" else [step]
        found[name] = pace(last_step(job(tmp_path / name, *ranks)).steady())
        assert sum(found[name].by_resource.values()) == pytest.approx(found[name].step_ns)
        assert sum(found[name].by_iteration.values()) == pytest.approx(found[name].step_ns)
        assert max(found[name].by_resource, key=found[name].by_resource.__getitem__) == name
    assert found["device"].by_resource == {"device": pytest.approx(900_000)}
    assert found["host"].by_resource["host"] > 0.9 * 900_000
    device, host, loader = (
        limits(last_step(job(tmp_path / name, jobs[name]))) for name in ("device", "host", "loader")
    )
    assert device.room["host"] == pytest.approx(900 / 300 - 1, rel=0.07) and device.room["device"] == 0
    assert device.bound["host"] == pytest.approx(1) and device.bound["kernels"] == pytest.approx(3, rel=0.02)
    assert (device.limiting, device.then["kernels"]) == (("kernels",), "host")
    assert host.room["kernels"] == pytest.approx(900 / 300 - 1, rel=0.07) and host.room["host"] == 0
    assert host.bound["kernels"] == pytest.approx(1) and (host.limiting, host.then["host"]) == (("host",), "kernels")
    assert loader.room["host"] > 1 and loader.room["kernels"] > 0.3 and loader.limiting == ("loader",)


@pytest.mark.parametrize("first", [1, 5])
def test_a_launch_queue_that_is_full_all_along_is_no_work_of_the_host(tmp_path: Path, first: int) -> None:
    # 600 kernels of 20 us a step and 3 us of the host for each: each launch blocks until a kernel starts.
    step: list[Call] = [call for _ in range(600) for call in (("launch", 20.0), ("work", 1.0))]
    files, _ = write_job(tmp_path, [step], 10, 1024)
    content = json.loads(files[0].read_text())
    begin = next(e["ts"] for e in content["traceEvents"] if e["name"] == f"ProfilerStep#{first}")
    # A recording that begins in mid-run holds the kernels whose launches came before it.
    content["traceEvents"] = [e for e in content["traceEvents"] if e["ts"] >= begin]
    files[0].write_text(json.dumps(content))
    (window,) = step_windows(collect(files), [10])
    assert period_us(window) == pytest.approx(12_000.0, rel=1e-3)
    assert period_us(window, "scale_kernels:*:0.5") == pytest.approx(6_000.0, rel=1e-3)
    assert period_us(window, "scale_host:0.5") == pytest.approx(12_000.0, rel=1e-3)


@pytest.mark.parametrize("change", [{"kernels": 4.0}, {"host": 0.25}])
def test_a_synchronisation_that_did_not_block_may_come_to(tmp_path: Path, change: dict[str, float]) -> None:
    step: list[Call] = [("launch", 300.0), ("work", 900.0), ("sync",), ("work", 500.0)]
    window = last_step(job(tmp_path / "measured", step))
    assert period_us(window) == pytest.approx(2 * CALL + 1400.0, rel=1e-9)
    expected = by_hand_us(tmp_path, scaled(step, **change), call_us=CALL * change.get("host", 1.0))
    text = "scale_kernels:*:4" if "kernels" in change else "scale_host:0.25"
    # The lag of a launch, and of the return, stay where a host is faster.
    assert period_us(window, text) == pytest.approx(expected, rel=2e-3)


def test_threads_hand_over_in_every_iteration_of_a_cycle(tmp_path: Path) -> None:
    # A second thread launches the last kernels after the first, and the first goes on after it.
    def step(number: int, at: float) -> list[object]:
        calls = [launch(at + 50 * i, 10 * number + i) for i in range(4)]
        calls += [{**launch(at + 200 + 50 * i, 10 * number + 4 + i), "tid": 11} for i in range(4)]
        kernels = [kernel("ampere_sgemm_a", at + 4 + 50 * i, 20, 10 * number + i) for i in range(8)]
        return [event(f"ProfilerStep#{number}", "user_annotation", at, 400), *calls, *kernels]

    path = tmp_path / "t.json"
    path.write_text(json.dumps(kineto([e for n in range(1, 5) for e in step(n, 400.0 * n)])))
    (window,) = step_windows(collect([path]), [2, 3, 4])
    state = window.steady()
    assert state.settled
    assert (state.step_ns / 1e3).tolist() == pytest.approx([400.0] * 4, rel=1e-3)
    assert period_us(window, "scale_host:2") == pytest.approx(3 * 800.0, rel=1e-2)


def test_an_iteration_by_itself_counts_from_the_end_of_the_work_before_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = [event("ProfilerStep#3", "user_annotation", 0, 500), launch(10, 1)]
    path.write_text(json.dumps(kineto([*events, kernel("ampere_sgemm_old", -500, 10_500, 9),
                                       kernel("ampere_sgemm_own", 10_000, 10_000, 1)])))  # fmt: skip
    (window,) = step_windows(collect([path]), [3])
    assert window.pattern is None and window.measured_ns == (10_000_000,)
    assert period_us(window) == pytest.approx(10_000.0)
    assert period_us(window, "scale_kernels:gemm:0.5") == pytest.approx(5_000.0)


def test_steps_of_which_nothing_was_recorded_last_as_long_as_they_did(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    marks = [event(f"ProfilerStep#{n}", "user_annotation", 1000.0 * n, 990) for n in range(1, 6)]
    path.write_text(json.dumps(kineto([*marks, launch(1010, 1), kernel("a", 1020, 30, 1)])))
    (window,) = step_windows(collect([path]), [3, 4, 5])
    assert period_us(window) == pytest.approx(3000.0)
    assert period_us(window, "scale_host:2") == pytest.approx(6000.0)


def test_loaders_inside_loaders_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = []
    for n in range(1, 5):
        at = 3000.0 * n
        outer, inner = event(LOADER, "user_annotation", at, 2000), event(LOADER, "user_annotation", at + 100, 1500)
        events += [event(f"ProfilerStep#{n}", "user_annotation", at, 2990), outer, inner]
        events += [launch(at + 2100, n), kernel("a", at + 2104, 90, n)]
    path.write_text(json.dumps(kineto(events)))
    (window,) = step_windows(collect([path]), [2, 3, 4])
    assert period_us(window) == pytest.approx(9000.0, rel=1e-6)


def lone_step(tmp_path: Path, kernel_us: float) -> Trace:
    """Return a trace with one iteration: a host that launches ten kernels and waits, after kernels launched before it.

    The host takes 100 us a launch. The earlier kernels occupy the device until 300 us after the iteration begins.
    """
    calls_ = [launch(100.0 * i, i) for i in range(1, 11)]
    kernels = [
        kernel("ampere_sgemm_a", max(100.0 * i + 10, 300 + kernel_us * (i - 1)), kernel_us, i) for i in range(1, 11)
    ]
    done = kernels[-1]["ts"] + kernel_us
    wait = event("cudaDeviceSynchronize", "cuda_runtime", 1010, max(done, 1100.0) - 1010 + 5)
    before = [launch(5, 99), kernel("ampere_sgemm_b", 50, 250, 99)]
    step = event("ProfilerStep#1", "user_annotation", 10, max(done, 1100.0) + 10)
    (tmp_path / "lone.json").write_text(json.dumps(kineto([step, *before, *calls_, *kernels, wait])))
    return collect([tmp_path / "lone.json"])


@pytest.mark.parametrize("kernel_us", [20.0, 80.0, 300.0], ids=["paced by its host", "near", "paced by its device"])
def test_a_lone_step_gains_no_more_than_its_parts_do(tmp_path: Path, kernel_us: float) -> None:
    (window,) = step_windows(lone_step(tmp_path, kernel_us), [1])
    base = limits(window)
    for factor in (0.5, 0.25, 0.1):
        host = period_us(window) / period_us(window, f"scale_host:{factor}")
        device = period_us(window) / period_us(window, f"scale_kernels:all:{factor}")
        assert 1 <= host <= min(1 / factor, base.bound["host"]) * (1 + 1e-9)
        assert 1 <= device <= min(1 / factor, base.bound["device"]) * (1 + 1e-9)
    assert base.room["host"] == 0 if kernel_us == 20 else base.room["device"] == 0
