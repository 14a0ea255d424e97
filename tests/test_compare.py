"""Comparison of two traces: verdicts, noise, parts of a step by hand, matching of operators, and what is not known."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from traces import event, kernel, kineto, launch, transformer, write_trace

import seqpoint as sp
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.files import dataset_path
from profilers.trace.arrays import Floats
from profilers.trace.trace import Trace
from seqpoint.cli import cli
from seqpoint.comparison import Comparison, _cancelling, compare_samples
from seqpoint.noise import Change, changes_of, drift_of, paired_changes_of
from seqpoint.step_sample import PARTS, ProjectedStep, StepSample, step_sample

KINETO = Path(__file__).parents[2] / "shared" / "data" / "traces" / "kineto"
GEMM, ADD, NCCL = "ampere_sgemm_128x64_nn", "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
STEP = 1000.0


def call(t: float, number: int, name: str, dims: list[list[int]], *kernels: tuple[str, float]) -> list[dict[str, Any]]:
    """Return an operator of 19 us at `t` us with its kernels, which run one after another from 20 us later."""
    calls, at = [event(name, "cpu_op", t, 19, **{"Input Dims": dims, "Input type": ["float"] * len(dims)})], t + 20
    for i, (kernel_name, dur) in enumerate(kernels):
        calls += [launch(t + 2 + 6 * i, 10 * number + i), kernel(kernel_name, at, dur, 10 * number + i)]
        at += dur
    return calls


def job(
    path: Path, *, steps: int = 8, mm: float = 100.0, add: str = ADD, seed: int = 0, slow: float = 0.0, layers: int = 1
) -> Path:
    """Write steps of a GEMM of `mm` us and an addition, with 1 % of noise; `slow` us are added to each step."""
    random, events, t = np.random.default_rng(seed), [], 0.0
    for number in range(1, steps + 1):
        length = STEP + slow + 5 * random.standard_normal()
        noise = 1 + 0.01 * random.standard_normal(2)
        events.append(event(f"ProfilerStep#{number}", "user_annotation", t, length))
        for layer in range(layers):
            n = 100 * number + 2 * layer
            events += call(
                t + 20 + 90 * layer, n, "aten::mm", [[512, 512 + layer], [512 + layer, 512]], (GEMM, mm * noise[0])
            )
            events += call(t + 400 + 90 * layer, n + 1, "aten::add", [[512, 512], [512, 512], []], (add, 50 * noise[1]))
        t += length
    path.write_text(json.dumps(kineto(events)))
    return path


def run(*arguments: str | Path, columns: int = 100) -> Any:
    return CliRunner().invoke(cli, ["compare", *map(str, arguments)], env={"COLUMNS": str(columns)})


# Noise


def test_the_noise_of_white_steps_is_that_of_the_t_test() -> None:
    before, after = np.array([[10.0], [11.0], [9.0]]), np.array([[20.0], [19.0], [21.0]])
    changes = changes_of([before], [after], 0.95)
    assert (changes.before[0], changes.after[0], changes.change[0], changes.unit) == (10.0, 20.0, 10.0, "steps")
    assert changes.noise[0] == pytest.approx(2.776445 * np.sqrt(2 / 3), rel=1e-6)  # t of 4 degrees of freedom
    assert changes.beyond(0.005).all() and not changes.beyond(0.6).any()


def test_one_step_a_side_has_no_noise_and_one_against_several_has() -> None:
    one, several = np.array([[12.0]]), np.array([[10.0], [11.0], [9.0]])
    assert np.isnan(changes_of([one], [one], 0.95).noise[0]) and not changes_of([one], [one + 1], 0.95).beyond(0.0)[0]
    assert changes_of([one], [several], 0.95).noise[0] == pytest.approx(4.302653 * np.sqrt(1 + 1 / 3), rel=1e-6)


def test_stalls_do_not_hide_a_change_of_most_steps() -> None:
    """Stalls of 45 and 60 % make the t-test miss a change of 13 % that eleven of twelve steps show."""
    before = np.array([100.0, 101, 99, 102, 98, 100, 103, 97, 145, 101, 99, 100])[:, None]
    after = np.array([113.0, 114, 112, 115, 111, 113, 116, 110, 114, 160, 112, 113])[:, None]
    changes = changes_of([before], [after], 0.99)
    assert changes.beyond(0.005)[0] and changes.shift[0] == pytest.approx(13, abs=0.5)
    assert changes.change[0] == pytest.approx(after.mean() - before.mean()) and changes.noise[0] < 5
    same = changes_of([before], [before[::-1] + 0.1], 0.99)
    assert not same.beyond(0.005)[0]


def test_several_runs_are_the_unit_of_noise() -> None:
    """Runs differ by far more than the steps of each."""
    steps = np.array([[0.0], [0.01], [-0.01], [0.005]])
    before, after = [[mean + steps for mean in means] for means in ((10.0, 12.0, 11.0), (11.5, 10.5, 12.5))]
    by_run = changes_of(before, after, 0.99)
    assert by_run.unit == "runs" and not by_run.beyond(0.005)[0]
    assert changes_of(before[:1], after[:1], 0.99).beyond(0.005)[0]


def drifting(random: np.random.Generator, steps: int, correlation: float) -> Floats:
    noise = random.standard_normal(steps + 50)
    for i in range(1, len(noise)):
        noise[i] = correlation * noise[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
    return np.asarray(100 + noise[50:, None])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_steps_that_are_alike_give_few_false_alarms(correlation: float) -> None:
    random, runs = np.random.default_rng(7), 400
    pairs = [[drifting(random, 40, correlation) for _ in range(2)] for _ in range(runs)]
    alarms = sum(changes_of([before], [after], 0.99).beyond(0.0)[0] for before, after in pairs)
    assert alarms / runs <= 0.05
    found = sum(changes_of([before], [after + 4], 0.99).beyond(0.0)[0] for before, after in pairs)
    assert found / runs >= 0.9


@given(st.lists(st.floats(0, 1e12), min_size=2, max_size=30), st.floats(1, 1e9))
def test_columns_do_not_depend_on_each_other_nor_on_the_unit(values: list[float], factor: float) -> None:
    column = np.array(values)[:, None]
    two = np.hstack([column, column[::-1] * factor])
    both, alone = changes_of([two], [two[::-1]], 0.99), changes_of([column], [column[::-1]], 0.99)
    assert both.noise[0] == pytest.approx(alone.noise[0], rel=1e-6, abs=1e-3)
    assert both.noise[1] == pytest.approx(alone.noise[0] * factor, rel=1e-6, abs=1e-3 * factor)


def test_steps_that_do_the_same_work_are_compared_one_by_one() -> None:
    random = np.random.default_rng(5)
    length = random.uniform(10, 120, (30, 1))
    before, after = (length * (1 + 0.01 * random.standard_normal((30, 1))) for _ in range(2))
    pairs = paired_changes_of(before, 1.02 * after, 0.99)
    assert pairs.beyond(0.005)[0] and not changes_of([before], [1.02 * after], 0.99).beyond(0.005)[0]
    assert not paired_changes_of(before, after, 0.99).beyond(0.005)[0]
    assert paired_changes_of(before, 2 * before, 0.99).noise[0] == pytest.approx(0, abs=1e-9)


def test_paired_steps_give_few_false_alarms() -> None:
    random, alarms = np.random.default_rng(11), 0
    for _ in range(400):
        length = random.uniform(10, 120, (24, 1))
        before, after = (length + drifting(random, 24, 0.5) for _ in range(2))
        alarms += int(paired_changes_of(before, after, 0.99).beyond(0.0)[0])
    assert alarms / 400 <= 0.05


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_a_drift_along_a_run_is_found(correlation: float) -> None:
    random = np.random.default_rng(13)
    runs = [drifting(random, 40, correlation)[:, 0] for _ in range(200)]
    line = np.arange(40) / 39
    assert sum(bool(drift_of(run)) for run in runs) / 200 <= 0.05
    found = [drift_of(run - 4 * line) for run in runs]
    assert sum(each < 0 for each in found) / 200 >= 0.8
    assert np.median([each for each in found if each]) == pytest.approx(-0.04, abs=0.005)
    assert drift_of(np.arange(10.0)) == 0 and drift_of(np.full(40, 3.0)) == 0


def test_a_long_run_has_its_drift_too() -> None:
    noise = np.random.default_rng(2).standard_normal(3000)
    assert drift_of(100 + noise) == 0
    assert drift_of(100 + noise + np.arange(3000) / 300) == pytest.approx(0.0952, abs=0.003)


def test_steps_of_the_same_lengths_are_paired_however_few_and_the_lengths_are_no_noise() -> None:
    lengths = (128, 256, 512)
    faster = sp.compare(transformer(*lengths, device="MI210"), transformer(*lengths, device="MI300X"))
    assert (faster.verdict, faster.unit) == ("faster", "paired steps")
    assert faster.device_work is not None and faster.device_work.beyond_noise
    assert "; kernels " in faster.summary()[1]
    other = sp.compare(transformer(*lengths, device="MI210"), transformer(128, 512, 320, device="MI210"))
    assert (other.verdict, other.unit) == ("cannot tell", "steps")
    assert re.search(r"noise is \d+ % of the step; record more steps", other.reason)


def test_a_verdict_tells_of_a_drift(tmp_path: Path) -> None:
    sample = step_sample(sp.open(job(tmp_path / "a.json", steps=41)))
    line = np.arange(40) / 39

    def against(factor: Floats | float) -> Comparison:
        return compare_samples([sample], [replace(sample, step_ns=sample.step_ns * factor)])

    slower = against(1.2 + 0.05 * line)
    assert slower.verdict == "slower" and slower.summary()[0].startswith("slower: but step times rise by 4.")
    assert slower.before.drift == 0 and slower.after.drift == pytest.approx(0.041, abs=0.003)
    same = against(1.0 - 0.02 * line)
    assert (same.verdict, same.reason) == ("no difference beyond noise", "")
    assert any("step times fall by" in note for note in same.notes())
    assert against(1.2).reason == "" and not any("drift" in note for note in against(1.2).notes())


def test_a_long_first_step_is_left_out_with_a_note(tmp_path: Path) -> None:
    """A first step of 6 s among steps of 131 ms, in a comparison and in a projection."""
    path = job(tmp_path / "a.json", steps=5)
    content = json.loads(path.read_text())
    for each in content["traceEvents"]:
        scaled = 131 * each["ts"]  # all steps take 131 ms; the first one 5.87 s longer, by which the others are later
        each["ts"] = scaled + (5_870_000 if scaled > 125_000 else 0)
        each["dur"] = 131 * each["dur"] + (5_870_000 if each["name"] == "ProfilerStep#1" else 0)
    path.write_text(json.dumps(content))
    result = sp.compare(path, path)
    assert result.before.outliers == 1 and result.before.steps == 4
    assert result.step.before_ns == pytest.approx(131e6, rel=0.02) and result.step.noise_ns is not None
    assert any("such as the warm-up, are left out" in note for note in result.notes())
    projection = sp.project(path, ["scale_host:0.5"], draws=4)
    assert len(projection.chosen.numbers) == 4
    text = " ".join(projection.summary())
    assert "1 outlier: the run of 5 iterations takes 6." in text and "warm-up" in text


def test_splits_of_a_recorded_epoch_give_few_false_alarms() -> None:
    sample = step_sample(sp.open(dataset_path("samples/cpu_epoch/epoch_threads1.pt.trace.json.zst")))
    random, n = np.random.default_rng(3), len(sample)
    alarms = 0
    for _ in range(25):
        order = random.permutation(n)
        halves = [sample.take(np.sort(order[: n // 2])), sample.take(np.sort(order[n // 2 :]))]
        alarms += compare_samples(halves[:1], halves[1:]).verdict in ("faster", "slower")
    assert alarms <= 1


# Parts of a step


def of_parts(sample: StepSample) -> dict[str, float]:
    return {name: ns for name, ns in zip(PARTS, sample.parts_ns.mean(axis=0).tolist(), strict=True) if ns}


def test_parts_of_a_step_by_hand(tmp_path: Path) -> None:
    events = [event("ProfilerStep#1", "user_annotation", 0, 1000), event("aten::mm", "cpu_op", 0, 100)]
    events += [launch(10 * i, i) for i in range(1, 6)]
    events += [
        kernel(GEMM, 50, 100, 1), kernel(ADD, 120, 80, 2, stream=8), kernel(NCCL, 180, 220, 3, stream=9),
        kernel(GEMM, 300, 50, 4), event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 390, 40, stream=7,
        device=0, correlation=5, bytes=1000), launch(800, 9, "cudaDeviceSynchronize", 100),
    ]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps(kineto(events)))
    assert of_parts(step_sample(sp.open(path))) == {
        "gemm": 85_000.0,  # alone from 50 to 120, and half of the 30 us beside the addition
        "elementwise": 45_000.0,  # half of these, and from 150 to 180
        "overlap": 70_000.0,  # the addition from 180 to 200, the GEMM from 300 to 350
        "communication exposed": 150_000.0,
        "memory copies": 30_000.0,
        "idle, host in a call": 150_000.0,  # before the first kernel, and the synchronisation
        "idle, no host call": 470_000.0,
    }


def test_waiting_for_peers_is_apart_from_communication(tmp_path: Path) -> None:
    for rank, start in ((0, 100), (1, 300)):
        meta = {"Collective name": "allreduce", "Group size": 2, "Process Group Name": "0", "dtype": "Float",
                "In msg nelems": 1000, "Out msg nelems": 1000, "Process Group Ranks": "[0, 1]", "Seq": 1}  # fmt: skip
        events = [event("ProfilerStep#1", "user_annotation", 0, 1000), launch(50, 1)]
        events.append(kernel(NCCL, start, 500 - start, 1, **meta))
        info = {"distributedInfo": {"rank": rank, "world_size": 2}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(kineto(events, **info)))
    sample = step_sample(sp.open([tmp_path / "rank0.json", tmp_path / "rank1.json"]))
    parts = of_parts(sample)
    assert sample.ranks == (0, 1) and (parts["waiting for peers"], parts["communication exposed"]) == (
        100_000.0,
        200_000.0,
    )


def test_parts_add_up_to_the_step_time(tmp_path: Path) -> None:
    for path in (write_trace(tmp_path / "a.json", steps=5), job(tmp_path / "b.json")):
        sample = step_sample(sp.open(path))
        assert sample.parts_ns.sum(axis=1) == pytest.approx(sample.step_ns)
        assert sample.parts_ns.min() > -1e-6


# Verdicts


def test_a_trace_is_no_different_from_itself(tmp_path: Path) -> None:
    path = job(tmp_path / "a.json")
    same = sp.compare(path, path)
    assert (same.verdict, same.reason) == ("no difference beyond noise", "the steps are identical")
    assert not any(row.change_ns or row.beyond_noise for row in (*same.operators, *same.parts))
    assert not same.kernels and same.likeness == 1.0


def test_a_longer_operator_is_named_first(tmp_path: Path) -> None:
    result = sp.compare(job(tmp_path / "a.json"), job(tmp_path / "b.json", mm=105.0, seed=1))
    first, second = result.operators
    assert (first.name, first.matched_by, first.beyond_noise) == ("aten::mm", "name and shapes", True)
    assert first.ratio == pytest.approx(0.05, abs=0.015) and second.beyond_noise is False
    assert first.shapes.replace(" ", "") == "[[512,512],[512,512]]" and (first.before_kernels, first.after_kernel) == (
        1,
        GEMM,
    )
    assert result.verdict == "no difference beyond noise"  # the host sets the pace of these steps


def test_slower_and_faster_steps_and_the_part_that_changed(tmp_path: Path) -> None:
    paths = job(tmp_path / "a.json"), job(tmp_path / "b.json", slow=80.0, seed=1)
    slower, faster = sp.compare(*paths), sp.compare(*paths[::-1])
    assert (slower.verdict, faster.verdict) == ("slower", "faster")
    assert slower.step.ratio == pytest.approx(0.08, abs=0.01)
    assert slower.parts[0].name == "idle, no host call" and slower.parts[0].beyond_noise
    assert sum(part.change_ns for part in slower.parts) == pytest.approx(slower.step.change_ns)
    assert slower.slower_by(0.02) and not slower.slower_by(0.2) and not faster.slower_by(0.0)


def test_kernels_that_appeared_and_vanished(tmp_path: Path) -> None:
    other = "void at::native::unrolled_elementwise_kernel<Add>"
    result = sp.compare(job(tmp_path / "a.json"), job(tmp_path / "b.json", add=other))
    assert {(row.kernel, row.side, row.kernels) for row in result.kernels} == {
        (ADD, "vanished", 1.0), (other, "appeared", 1.0),
    }  # fmt: skip
    (add,) = [row for row in result.operators if row.name == "aten::add"]
    assert (add.before_kernel, add.after_kernel) == (ADD, other)


def test_an_operator_in_the_place_of_another_is_matched_with_it(tmp_path: Path) -> None:
    before = job(tmp_path / "a.json")
    after = tmp_path / "b.json"
    after.write_text(before.read_text().replace("aten::add", "my::fused_add"))
    result = sp.compare(before, after)
    (moved,) = [row for row in result.operators if row.matched_by == "position"]
    assert moved.name == "aten::add -> my::fused_add" and (moved.before_kernels, moved.after_kernels) == (1.0, 1.0)


def test_other_shapes_match_by_name(tmp_path: Path) -> None:
    before = job(tmp_path / "a.json")
    after = tmp_path / "b.json"
    after.write_text(before.read_text().replace("512", "1024"))
    result = sp.compare(before, after)
    assert {row.matched_by for row in result.operators} == {"name"}
    assert any("match by name alone" in note for note in result.notes())


def test_one_step_a_side_cannot_tell(tmp_path: Path) -> None:
    result = sp.compare(job(tmp_path / "a.json", steps=1), job(tmp_path / "b.json", steps=1, mm=150.0))
    assert result.verdict == "cannot tell" and "one step a side" in result.reason
    assert result.operators[0].name == "aten::mm" and result.operators[0].beyond_noise is None
    assert result.step.noise_ns is None and "noise" not in result.summary()[1]


def test_different_jobs_are_told_apart(tmp_path: Path) -> None:
    paths = job(tmp_path / "a.json"), job(tmp_path / "b.json", layers=4, slow=300.0)
    result = sp.compare(*paths)
    assert result.verdict == "cannot tell" and "different operators" in result.reason and result.likeness == 0.25
    assert any("different jobs?" in note for note in result.notes())
    assert sp.compare(*paths, same_job=True).verdict == "slower"


def test_groups_of_runs_are_compared_by_run(tmp_path: Path) -> None:
    before = [job(tmp_path / f"a{i}.json", steps=4, seed=i) for i in range(3)]
    after = [job(tmp_path / f"b{i}.json", steps=4, seed=5 + i, slow=60) for i in range(3)]
    result = sp.compare(before, str(tmp_path / "b*.json"))
    assert (result.verdict, result.unit, result.before.runs, result.after.steps) == ("slower", "runs", 3, 9)
    assert sp.compare(iter(map(sp.open, before)), after).to_dict() == result.to_dict()


def test_the_warm_up_is_left_out(tmp_path: Path) -> None:
    path = job(tmp_path / "a.json", steps=12)
    events = json.loads(path.read_text())
    for each in events["traceEvents"]:  # the second step takes ten times as long
        if each["ts"] > 1500:
            each["ts"] += 9000
        elif each["name"] == "ProfilerStep#2":
            each["dur"] += 9000
    path.write_text(json.dumps(events))
    side = sp.compare(path, job(tmp_path / "b.json", steps=12, seed=1))
    assert (side.before.outliers, side.before.steps, side.verdict) == (1, 10, "no difference beyond noise")
    assert any("left out" in note for note in side.notes())


def test_a_trace_without_steps_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(kineto([event("aten::mm", "cpu_op", 0, 10)])))
    trace = sp.open(path)
    empty = trace.with_tables(iterations=trace.iterations.slice(0, 0))
    result = sp.compare(empty, trace)
    assert result.verdict == "cannot tell" and "no steps before" in result.reason and result.summary()
    assert not result.tables() and json.dumps(result.to_dict())


def test_traces_without_kernels_are_compared_on_the_host() -> None:
    paths = [dataset_path(f"samples/cpu_epoch/epoch_threads{n}.pt.trace.json.zst") for n in (1, 2)]
    result = sp.compare(*paths)
    assert result.before.on_host and result.verdict in ("faster", "slower")
    assert {part.name for part in result.parts} == {"host in a call", "host outside of calls"}
    assert (result.unit, result.before.steps) == ("paired steps", 111)  # both train on the same batches
    assert result.step.noise_ns is not None and result.step.noise_ns < 0.1 * result.step.before_ns
    assert result.operators[0].beyond_noise and "host operator" in result.tables()[1].names


def test_a_predicted_job_against_another() -> None:
    before, after = (transformer(128, 128, 128, 128, tensor=2, device=device) for device in ("MI300X", "MI100"))
    result = sp.compare(before, after)
    assert result.verdict == "slower" and result.likeness > 0.9 and result.before.device == "MI300X"
    assert sum("synthetic" in note for note in result.notes()) == 2


# Projections


def test_a_projection_that_changes_next_to_nothing_is_the_measured_step(tmp_path: Path) -> None:
    """The replayed steps have the parts, classes and operators of the measured ones."""
    path = write_trace(tmp_path / "a.json", steps=5)
    result = sp.compare(path, path, what_if="scale_host:1.0000001")
    assert result.verdict == "as projected" and result.likeness == 1.0
    assert result.step.error == pytest.approx(0, abs=1e-6)
    for row in (*result.parts, *result.classes, *result.operators):
        assert row.before_ns == pytest.approx(row.after_ns, rel=1e-5, abs=2), row.name
    assert {part.name for part in result.parts} >= {"gemm", "idle"}
    assert all(row.matched_by == "name and shapes" for row in result.operators if row.shapes)


def test_a_projection_against_a_measured_step(tmp_path: Path) -> None:
    """The GEMM of the projection takes half its time, that of the measured job 90 % of it."""
    paths = job(tmp_path / "a.json"), job(tmp_path / "b.json", mm=90.0, seed=1)
    result = sp.compare(*paths, what_if="scale_kernels:gemm:0.5")
    gemm = next(row for row in result.classes if row.name == "gemm")
    assert gemm.before_ns == pytest.approx(50_000, rel=0.02) and gemm.error == pytest.approx(-0.444, abs=0.02)
    assert result.classes[0] == gemm and result.operators[0].name == "aten::mm"
    assert sum(row.change_ns for row in result.parts) == pytest.approx(result.step.change_ns, abs=2)
    assert sum(row.before_ns for row in result.classes) == pytest.approx(sum(r.before_ns for r in result.operators))
    measured = sp.compare(*paths)
    assert [row.after_ns for row in result.operators] == [row.after_ns for row in measured.operators]


def test_the_projected_step_is_that_of_project(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", steps=5)
    result = sp.compare(path, path, what_if="scale_kernels:all:2")
    steps = step_sample(sp.open(path)).iteration.tolist()
    (row,) = sp.project(path, ["scale_kernels:all:2"], iterations=steps).rows
    assert result.projection is not None and result.projection.what_if == row.label
    assert result.step.before_ns == pytest.approx(row.projected_ns / len(steps))
    assert result.projection.step_ns == pytest.approx(row.projected_ns / len(steps))
    assert row.projected_ns / result.projection.low_ns / len(steps) == pytest.approx(row.high / row.speedup)


@pytest.mark.parametrize(("slow", "verdict", "where"), [(0, "as projected", "within"), (900, "slower", "above"),
                                                        (-500, "faster", "below")])  # fmt: skip
def test_the_measured_step_lies_in_the_interval_or_not(tmp_path: Path, slow: float, verdict: str, where: str) -> None:
    paths = job(tmp_path / "a.json"), job(tmp_path / "b.json", slow=slow, seed=1)
    result = sp.compare(*paths, what_if="scale_kernels:gemm:0.99")
    assert (result.verdict, where in result.reason) == (verdict, True)
    assert result.slower_by(0.5) == (verdict == "slower")
    assert any(note.startswith("host-bound") for note in result.notes())


def test_the_critical_path_names_its_iterations(tmp_path: Path) -> None:
    paths = job(tmp_path / "a.json"), job(tmp_path / "b.json", slow=40, seed=1)
    for how in ({}, {"what_if": "scale_kernels:gemm:0.9"}):
        result = sp.compare(*paths, **how)
        (title,) = (table.title for table in result.tables() if table.title.startswith("Critical path"))
        numbers = [side.path_iteration for side in (result.before, result.after)]
        assert title.endswith(f" (iterations {numbers[0]} and {numbers[1]})")
        assert sp.analyze(paths[1]).iteration == numbers[1]


def test_errors_of_parts_that_cancel_are_not_as_projected() -> None:
    projection = ProjectedStep("scale_kernels:all:1", 100.0, 95.0, 107.0, 0.9, ())

    def parts(*changes: float) -> list[Change]:
        return [Change(f"part {i}", 50.0, 50.0 + change, None, None) for i, change in enumerate(changes)]

    assert _cancelling(parts(5, -4), projection) == _cancelling(parts(30, 10), projection) == ""
    assert _cancelling(parts(5, -5, 0), projection) == "" and "cancel" in _cancelling(parts(6, -6, 0), projection)
    assert _cancelling(parts(-20, 25), projection).endswith("part 0 -20 ns, part 1 +25 ns")


def test_ranks_of_a_projection_wait_and_transfer_as_in_the_trace() -> None:
    trace = transformer(128, 128, 128, 128, tensor=2)
    result = sp.compare(trace, trace, what_if="scale_host:1.0000001")
    for row in result.parts:
        assert row.before_ns == pytest.approx(row.after_ns, abs=0.003 * result.step.after_ns), row.name
    for row in result.classes:
        assert row.before_ns == pytest.approx(row.after_ns, abs=10), row.name
    slower = sp.compare(trace, trace, what_if="scale_links:0.5")
    error = {row.name: row.error for row in slower.classes}
    assert error["collective"] and error["collective"] > 0.2 and error["gemm"] == pytest.approx(0, abs=1e-3)


def test_what_cannot_be_projected_says_so(tmp_path: Path) -> None:
    path = job(tmp_path / "a.json")
    for what_if, message in (
        ("scale_kernels:gemm:1", "not applicable"), ("no_such:1", "no_such"), ("overlap:all", "takes one"),
        ("dma_collectives", "not applicable"),
    ):  # fmt: skip
        with pytest.raises(SeqPointError, match=message):
            sp.compare(path, path, what_if=what_if)
    host = dataset_path("samples/cpu_epoch/epoch_threads1.pt.trace.json.zst")
    with pytest.raises(InvalidInputError, match="no device work"):
        sp.compare(host, path, what_if="scale_host:0.5")
    assert run(path, path, "--device", "H100").exit_code == 2


def test_a_projection_of_another_job_has_no_error(tmp_path: Path) -> None:
    paths = job(tmp_path / "a.json"), job(tmp_path / "b.json", layers=4, slow=300.0)
    result = sp.compare(*paths, what_if="scale_kernels:gemm:0.5")
    assert result.verdict == "cannot tell" and not any("error" in line for line in result.summary())
    assert any("different jobs?" in note for note in result.notes())
    judged = sp.compare(*paths, what_if="scale_kernels:gemm:0.5", same_job=True)
    assert judged.verdict == "slower" and any("error" in line for line in judged.summary())


def test_groups_of_runs_are_projected_one_by_one(tmp_path: Path) -> None:
    before = [job(tmp_path / f"a{i}.json", steps=4, seed=i) for i in range(2)]
    result = sp.compare(before, job(tmp_path / "b.json", seed=5), what_if="scale_kernels:gemm:0.5")
    alone = [sp.compare(path, path, what_if="scale_kernels:gemm:0.5").projection for path in before]
    assert result.projection is not None and result.before.runs == 2
    assert result.projection.low_ns == pytest.approx(np.mean([step.low_ns for step in alone if step is not None]))


def test_a_side_without_device_work_is_told(tmp_path: Path) -> None:
    host = dataset_path("samples/cpu_epoch/epoch_threads1.pt.trace.json.zst")
    result = sp.compare(host, job(tmp_path / "a.json"))
    assert result.verdict == "cannot tell" and any("no device work" in note for note in result.notes())
    assert not any("devices differ" in note for note in result.notes())


def test_the_command_shows_a_projection(tmp_path: Path) -> None:
    paths = job(tmp_path / "a.json"), job(tmp_path / "b.json", mm=90.0, seed=1)
    shown = run(*paths, "--what-if", "scale_kernels:gemm:0.5", "--plot", tmp_path / "chart.html")
    assert shown.exit_code == 0 and "Kernels by class, projected against measured" in shown.output
    assert "with scale_kernels:gemm:0.5" in shown.output and "appeared" not in shown.output
    content = json.loads(run(*paths, "-w", "scale_kernels:gemm:0.5", "--json").stdout)
    assert set(content["projection"]) == {"what_if", "step_ns", "low_ns", "high_ns", "confidence", "notes"}
    assert content["before"]["what_if"] == "scale_kernels:gemm:0.5"
    assert content["verdict"] == "as projected"  # products differ by 4 % of the step, hidden by idle time
    assert run(*paths, "--what-if", "scale_kernels:gemm:0.5", "--explain").exit_code == 0
    assert (tmp_path / "chart.html").stat().st_size > 10_000


# Command, page and chart


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    paths = job(tmp_path / "a.json"), job(tmp_path / "b.json", slow=80.0, add="other_kernel", seed=1)
    shown = run(*paths)
    assert shown.exit_code == 0 and shown.output.startswith("slower\nstep time ")
    assert max(map(len, shown.output.splitlines())) <= 200 and "Parts of a step" in shown.output
    assert all(len(line) <= 100 for line in shown.output.splitlines() if line[:1] == "─")
    content = json.loads(run(*paths, "--json").stdout)
    assert list(content) == [
        "verdict", "reason", "confidence", "unit", "likeness", "step", "device_work", "before", "after", "projection",
        "kinds", "parts", "path", "classes", "operators", "kernels", "notes",
    ]  # fmt: skip
    change = {"name", "before_ns", "after_ns", "noise_ns", "beyond_noise", "shift_ns", "change_ns", "change"}
    assert set(content["parts"][0]) == set(content["step"]) == change
    assert set(content["operators"][0]) == change | {
        "shapes", "matched_by", "before_kernels", "after_kernels", "before_kernel", "after_kernel"
    }  # fmt: skip
    assert set(content["kernels"][0]) == {"kernel", "class", "side", "kernels", "time_ns"}


def test_a_slower_step_fails_on_request(tmp_path: Path) -> None:
    fast, slow = job(tmp_path / "a.json"), job(tmp_path / "b.json", slow=80.0, seed=1)
    limits = ("2%", "7.0", "20%")
    assert [run(fast, slow, "--fail-if-slower", limit).exit_code for limit in limits] == [1, 1, 0]
    assert run(slow, fast, "--fail-if-slower", "2%").exit_code == 0
    single = job(tmp_path / "c.json", steps=1)
    told = run(single, slow.with_name("a.json"), "--fail-if-slower", "2%")
    unknown = run(single, job(tmp_path / "d.json", steps=1, slow=500.0), "--fail-if-slower", "2%")
    assert told.exit_code == 0 and unknown.exit_code == 0 and "--fail-if-slower cannot tell" in unknown.stderr
    assert run(fast, slow, "--fail-if-slower", "much").exit_code == 2


def test_sides_of_several_runs_are_parted_by_a_word(tmp_path: Path) -> None:
    a, b = job(tmp_path / "a.json"), job(tmp_path / "b.json", seed=1)
    assert run(a, b, "to", b, a).exit_code == 0 and "2 runs" in run(a, b, "to", b, a).output
    for wrong in ((a,), (a, b, a), ("to", a), (a, "to"), (a, "to", b, "to", a)):
        assert run(*wrong).exit_code == 2
    with pytest.raises(NotFoundError):
        sp.compare(tmp_path / "none.json", a)
    with pytest.raises(InvalidInputError):
        sp.compare(a, b, confidence=99)
    with pytest.raises(InvalidInputError):
        sp.compare([], b)


def test_names_are_escaped_and_cut_on_pages(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>" + "x" * 500
    page = tmp_path / "chart.html"
    paths = job(tmp_path / "a.json"), job(tmp_path / "b.json", add=evil, mm=120.0)
    for html in (sp.compare(*paths)._repr_html_(), sp.compare(*paths[::-1], what_if="scale_host:0.5")._repr_html_()):
        assert "<script>" not in html and "text-align: right" in html
    assert "&lt;script&gt;" in sp.compare(*paths)._repr_html_() and "--top" not in html
    done = run(*paths, "--plot", page)
    assert done.exit_code == 0 and page.stat().st_size > 10_000
    with pytest.raises(InvalidInputError, match="no operator changed"):
        sp.compare(paths[0], paths[0]).plot()


def test_every_row_counts_once(tmp_path: Path) -> None:
    result = sp.compare(job(tmp_path / "a.json", layers=3), job(tmp_path / "b.json", layers=3, seed=1))
    trace: Trace = sp.open(tmp_path / "a.json")
    total = step_sample(trace).launches.time_ns.sum() / result.before.steps
    assert sum(row.before_ns for row in result.operators) == pytest.approx(total)
    assert len(result.table()) == len(result.operators) == 4


# Real traces


def recorded(name: str) -> Path:
    path = KINETO / name
    if not path.exists():
        pytest.skip(f"no {path}")
    return path


def test_one_model_on_two_devices_matches_by_operator() -> None:
    name = "Falconsai_nsfw_image_detection.json.gz"
    result: Comparison = sp.compare(recorded(f"tracelens/h100/{name}"), recorded(f"tracelens/mi300/{name}"))
    assert result.verdict == "cannot tell" and result.likeness > 0.95
    ways = {row.name: row.matched_by for row in result.operators}
    assert ways["aten::cudnn_convolution -> aten::miopen_convolution"] == "position"
    exact = [row.before_ns for row in result.operators if row.matched_by == "name and shapes"]
    assert sum(exact) > 0.85 * sum(row.before_ns for row in result.operators)
    assert any(re.search("devices differ: H100.* and MI300X", note) for note in result.notes())


def test_stretches_of_a_run_in_which_nothing_changed_give_few_false_alarms() -> None:
    """Random halves and adjacent stretches of 64 iterations of one training job."""
    sample = step_sample(sp.open(recorded("particle_transformer/batch_8")))
    random, n = np.random.default_rng(3), len(sample)
    orders = [random.permutation(n) for _ in range(40)]
    pairs = [(np.sort(order[: n // 2]), np.sort(order[n // 2 :])) for order in orders]
    for length in (8, 16, 24):
        starts = np.linspace(0, n - 2 * length, 8).astype(int)
        pairs += [(np.arange(at, at + length), np.arange(at + length, at + 2 * length)) for at in starts]
    verdicts = [compare_samples([sample.take(one)], [sample.take(other)]).verdict for one, other in pairs]
    assert n == 60 and len(verdicts) == 64
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) <= 0.05 * len(verdicts)


def test_an_eager_job_and_its_compiled_twin_are_one_job() -> None:
    result = sp.compare(recorded("hta/trace_diff_a100.json.gz"), recorded("hta/trace_diff_v100.json.gz"))
    assert result.verdict == "slower" and result.step.ratio == pytest.approx(0.51, abs=0.01)
    assert result.parts[0].name == "gemm" and result.parts[0].beyond_noise
    assert sum(part.change_ns for part in result.parts) == pytest.approx(result.step.change_ns)


def test_a_projected_a100_against_the_measured_v100() -> None:
    """The step and the kernels of the V100 are within 10 %; the interval holds the measured step."""
    paths = recorded("hta/trace_diff_a100.json.gz"), recorded("hta/trace_diff_v100.json.gz")
    result = sp.compare(*paths, what_if="scale_device:V100")
    assert result.before.device == result.after.device
    assert result.verdict == "not as projected" and "memory copies" in result.reason  # the V100's graphs copy more
    assert result.step.error is not None and abs(result.step.error) < 0.1
    kernels = sum(row.before_ns for row in result.classes) / sum(row.after_ns for row in result.classes)
    assert kernels == pytest.approx(1, abs=0.1)
    assert sum(row.change_ns for row in result.parts) == pytest.approx(result.step.change_ns, abs=100)
