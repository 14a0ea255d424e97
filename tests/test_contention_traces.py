"""Interference fitted to traces: hand-built traces whose overlapped times follow from a formula that a test states."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recordings
from click.testing import CliRunner

from profilers.errors import InvalidInputError
from profilers.trace.schema import make_table
from profilers.trace.store import save_trace
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta
from replay.contention import ContentionFit, measure_pairs, read_contention_fit, write_contention_fit
from replay.contention.fitting import FittedRange
from replay.contention.traces import (
    OverlappedKernels,
    _gathered,
    _of_trace,
    calibrate_traces,
    fit_interference,
    held_out_slowdowns,
    overlapped_kernels,
    slowdowns,
)
from replay.costs.demand import isolate
from replay.costs.interference import InterferenceFit
from replay.costs.shipped import load_parameters
from replay.from_trace import build_graph, index_trace
from seqpoint.cli.calibrate import command as calibrate
from seqpoint.validation.contention_traces import (
    BASELINES,
    BY_CLASS,
    BY_RANK,
    CALIBRATED,
    HELD_OUT,
    SHIPPED,
    TraceContentionScore,
    _coverage,
    score_contention,
    trace_content,
    trace_rows,
    trace_tables,
)
from seqpoint.validation.suites import validate

GEMM, ADD, NCCL = "ampere_sgemm_128x64_nn", "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
A100 = "NVIDIA A100-SXM4-80GB"
PARAMETERS = load_parameters()
#: Kernels by name and workgroups, with their times alone in us. An A100 has 108 compute units, and the collective
#: holds 24.
KERNELS = ((GEMM, 108, 400.0), (GEMM, 40, 400.0), (ADD, 40, 400.0))
STEPS = 6
NINE = tuple(f" {i}" for i in range(9))


def slowdown(kernel: str, workgroups: int, *, cost: float, pressure: float) -> float:
    """Return how many times as long a kernel takes beside the collective.

    108 workgroups on 84 units need a further round, which costs the share `cost`.
    """
    return 1.0 + cost * (workgroups > 84) + pressure * (kernel == ADD)


def job(cost: float = 0.5, pressure: float = 0.2, *, device: str = A100, names: tuple[str, ...] = ("",)) -> Trace:
    """Return the trace of `steps` with slow-downs by the formula of `slowdown`."""
    rows, iterations = steps(lambda name, grid: slowdown(name, grid, cost=cost, pressure=pressure), names=names)
    return trace_of(rows, iterations, device=device)


def steps(
    slow: Callable[[str, int], float],
    *,
    names: tuple[str, ...] = ("",),
    kernels: tuple[tuple[str, int, float], ...] = KERNELS,
    partner: tuple[str, int] = (NCCL, 24),
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return kernels and iterations of two ranks of six steps; each kernel is there once for each suffix of `names`.

    A kernel starts every ms. It is alone in three steps. In the others it is beside a collective, and takes `slow`
    times as long.
    """
    rows: list[dict[str, Any]] = []
    iterations: list[dict[str, Any]] = []
    for rank in (0, 1):
        for step in range(STEPS):
            begin = 100_000.0 * step
            launched = [(n + s, w, us) for s in names for n, w, us in kernels]
            for number, (name, workgroups, us) in enumerate(launched):
                at = begin + 20 + 1000 * number
                if step % 2:
                    us *= slow(name.partition(" ")[0], workgroups)
                    beside = launch(partner[0], partner[1], (at - 5, us + 10), rank=rank, iteration=step, stream=20)
                    rows.append(beside)
                rows.append(launch(name, workgroups, (at, us), rank=rank, iteration=step, stream=7))
            iterations.append(
                {"rank": rank, "iteration": step, "name": "step", "start_ns": round(1000 * begin)}
                | {"dur_ns": 1_000_000 * len(launched), "found_by": "marker"}
            )
    return rows, iterations


def launch(name: str, workgroups: int, span: tuple[float, float], **columns: int) -> dict[str, Any]:
    """Return a row of the table of kernels: name, grid, start and time in us, and further columns."""
    start, us = span
    facts = {"name": name, "workgroups": workgroups, "workgroup_size": 256, "device": 0, **columns}
    return {**facts, "start_ns": round(1000 * start), "dur_ns": round(1000 * us)}


def trace_of(rows: list[dict[str, Any]], iterations: list[dict[str, Any]], *, device: str = A100) -> Trace:
    """Return a trace of kernels, each started by an operator with equal shapes."""
    count = len(rows)
    calls = [i for i, row in enumerate(rows) if row["name"] == NCCL]
    kernels = {name: [row[name] for row in rows] for name in rows[0]}
    ops = {"id": list(range(count)), "rank": kernels["rank"], "name": ["op"] * count, "start_ns": [0] * count}
    tables = {
        "ops": make_table("ops", {**ops, "shapes": ["[[64,64]]"] * count}),
        "kernels": make_table(
            "kernels",
            {
                **{**kernels, "id": list(range(count, 2 * count)), "op_id": list(range(count))},
                "collective_id": [2 * count + i if i in calls else None for i in range(count)],
            },
        ),
    }
    if calls:
        facts = {name: [kernels[name][i] for i in calls] for name in ("rank", "name", "start_ns", "dur_ns")}
        facts |= {"id": [2 * count + i for i in calls], "collective": ["all_reduce"] * len(calls)}
        facts |= {"bytes": [1 << 20] * len(calls), "group_size": [2] * len(calls), "dtype": ["float"] * len(calls)}
        facts |= {"match_id": _matches(facts["rank"])}
        tables["collectives"] = make_table("collectives", facts)
    if iterations:
        columns = {name: [row[name] for row in iterations] for name in iterations[0]}
        tables["iterations"] = make_table("iterations", columns)
    ranks = tuple(sorted(set(kernels["rank"])))
    devices = tuple(DeviceProperties(rank, 0, device) for rank in ranks)
    return Trace(TraceMeta("kineto", sources=("job.json",), ranks=ranks, devices=devices), tables)


def _matches(ranks: list[int]) -> list[int]:
    """Return for each collective how many of its rank come before: the same number on all ranks."""
    return [ranks[:i].count(rank) for i, rank in enumerate(ranks)]


def kernels_of(trace: Trace) -> OverlappedKernels:
    return overlapped_kernels(trace, measure_pairs(trace), parameters=PARAMETERS)


def medians(kernels: OverlappedKernels, slow: Any) -> dict[tuple[str, int], float]:
    """Return the median slow-down by kernel and workgroups."""
    facts = [(label.partition(" [")[0], int(label.rpartition("[")[2].rstrip("]"))) for label in kernels.labels]
    return {fact: float(np.median(slow[kernels.label == i])) for i, fact in enumerate(facts)}


def test_the_work_beside_each_kernel_is_known() -> None:
    """Both ranks start each collective together, so that none waits; it is beside the whole kernel."""
    kernels = kernels_of(job())
    assert len(kernels) == 2 * 3 * len(KERNELS)
    assert kernels.labels == (f"{GEMM} [108]", f"{GEMM} [40]", f"{ADD} [40]")
    assert kernels.partners == (f"{NCCL} [24]",)
    assert kernels.transferring == pytest.approx(np.ones((18, 1)))
    assert kernels.waiting == pytest.approx(np.zeros((18, 1)))
    assert sorted(set(kernels.rank.tolist())) == [0, 1]
    ratio = kernels.measured_ns / kernels.alone_ns
    assert medians(kernels, ratio) == pytest.approx({(GEMM, 108): 1.5, (GEMM, 40): 1.0, (ADD, 40): 1.2}, abs=1e-3)


@pytest.mark.parametrize("cost", [0.4, 0.5, 0.75])
def test_the_cost_of_a_further_round_is_returned(cost: float) -> None:
    """108 workgroups on 84 units take 108 / 84 as long at least, and 1 + cost with a further round.

    The prior leaves a little of it to the pressure.
    """
    fit = fit_interference(kernels := kernels_of(job(cost, 0.0)), PARAMETERS)
    label = f"{GEMM} [108]"
    known = fit.values["extra_round_cost"] * fit.interference.kernels[label]
    assert known == pytest.approx(cost, abs=0.1)
    slow = medians(kernels, slowdowns(kernels, fit.parameters(PARAMETERS)))
    assert slow == pytest.approx({(GEMM, 108): 1 + cost, (GEMM, 40): 1.0, (ADD, 40): 1.0}, abs=0.06)


def test_a_pressure_is_returned_in_product_with_the_sensitivity() -> None:
    """Elementwise kernels take 20 or 40 % longer beside the collective, and products as long as alone."""
    excess = {}
    for pressure in (0.2, 0.4):
        kernels = kernels_of(job(0.5, pressure, names=tuple(f" {i}" for i in range(9))))
        fit = fit_interference(kernels, PARAMETERS)
        slow = slowdowns(kernels, fit.parameters(PARAMETERS))
        is_add = np.array([label.startswith(ADD) for label in kernels.labels])[kernels.label]
        excess[pressure] = float(np.median(slow[is_add])) - 1
        assert fit.interference.classes["elementwise"] > 2 * fit.interference.classes["gemm"]
        assert fit.interference.pressures[f"{NCCL} [24]"] > 0
    assert excess == pytest.approx({0.2: 0.2, 0.4: 0.4}, abs=0.03)


def test_a_kernel_that_loses_the_units_is_slowed_by_their_share_at_least() -> None:
    """No round costs less than 108 / 84: the units that are left work all the time."""
    kernels = kernels_of(job(0.1, 0.0))
    fit = fit_interference(kernels, PARAMETERS)
    slow = medians(kernels, slowdowns(kernels, fit.parameters(PARAMETERS)))
    assert slow[GEMM, 108] == pytest.approx(108 / 84, abs=0.01)


def test_a_large_grid_loses_a_share_of_the_units_that_is_fitted() -> None:
    """1080 workgroups run in ten rounds. All 24 units lost would cost 108 / 84 - 1; here half of them are."""
    usable = 84 + 12
    rows, iterations = steps(lambda name, workgroups: 108 / usable, kernels=((GEMM, 1080, 400.0),), names=NINE)
    kernels = kernels_of(trace_of(rows, iterations))
    fit = fit_interference(kernels, PARAMETERS)
    slow = slowdowns(kernels, fit.parameters(PARAMETERS))
    assert np.median(slow) == pytest.approx(108 / usable, abs=0.03)


def test_the_shipped_parameters_state_the_slow_downs_of_the_engine() -> None:
    """A pressure is the share of the units that the collective holds, 24 of 108, times the shipped figure.

    The sensitivity is 1, and more for a kernel of 400 us by its latencies of 3 us.
    """
    felt = PARAMETERS["pressure_collective"] * 24 / 108 * (1 + PARAMETERS["latency_sensitivity"] * 3 / 400)
    kernels = kernels_of(job())
    expected = {(GEMM, 108): 1 + PARAMETERS["extra_round_cost"] + felt, (GEMM, 40): 1 + felt, (ADD, 40): 1 + felt}
    assert medians(kernels, slowdowns(kernels, PARAMETERS)) == pytest.approx(expected, rel=1e-3)


def test_a_fold_is_predicted_from_the_others() -> None:
    """On rank 1 the round costs 90 %, on rank 0 it costs 40 %: each rank is predicted with the other's cost."""
    slowed = [
        steps(lambda name, grid, c=cost: slowdown(name, grid, cost=c, pressure=0.0), names=NINE)[0]
        for cost in (0.4, 0.9)
    ]
    rows = [row for rank, ranks in enumerate(slowed) for row in ranks if row["rank"] == rank]
    kernels = kernels_of(trace_of(rows, steps(lambda name, grid: 1.0, names=NINE)[1]))
    slow = held_out_slowdowns(kernels, kernels.rank, PARAMETERS)
    is_gemm = np.array(["[108]" in label for label in kernels.labels])[kernels.label]
    for held, cost in ((0, 0.9), (1, 0.4)):
        rows = is_gemm & (kernels.rank == held)
        assert np.median(slow[rows]) == pytest.approx(1 + cost, abs=0.05)
    assert np.isnan(held_out_slowdowns(kernels, np.zeros(len(kernels)), PARAMETERS)).all()


def joined(*traces: Trace) -> OverlappedKernels:
    return _gathered([_of_trace(trace, measure_pairs(trace), PARAMETERS, None) for trace in traces], PARAMETERS)


def test_traces_are_joined_by_label_and_partner() -> None:
    traces = job(), job(names=(" b", ""))
    one, other = map(kernels_of, traces)
    both = joined(*traces)
    assert len(both) == len(one) + len(other) == 18 + 36
    assert [both.labels[i] for i in both.label] == [
        each.labels[i] for each in (one, other) for i in each.label.tolist()
    ]
    assert sorted(set(both.rank.tolist())) == [0, 1, 2, 3]
    assert both.partners == one.partners and both.transferring.shape == (54, 1)
    for name in ("measured_ns", "alone_ns", "class_", "transferring", "waiting"):
        parts = [getattr(one, name), getattr(other, name)]
        assert getattr(both, name).tolist() == np.concatenate(parts).tolist()
    together = slowdowns(both, PARAMETERS)
    assert together.tolist() == [*slowdowns(one, PARAMETERS), *slowdowns(other, PARAMETERS)]


def test_partners_of_other_traces_count_zero() -> None:
    rows, iterations = steps(lambda name, workgroups: 1.1, partner=(NCCL, 8))
    both = joined(job(), trace_of(rows, iterations))
    assert both.partners == (f"{NCCL} [24]", f"{NCCL} [8]")
    assert both.transferring.sum(axis=0) == pytest.approx([18, 18])
    assert (both.transferring.min(axis=1) == 0).all()


def scored(trace: Trace, **options: Any) -> TraceContentionScore:
    return score_contention("job", trace, parameters=PARAMETERS, **options)


def test_the_baselines_by_hand() -> None:
    """Times alone are 400 us each, and overlapped 600, 400 and 480 us."""
    score = scored(job())
    assert (score.kernels, score.groups, score.slowed, score.remark) == (18, 3, 12, "")
    assert tuple(score.methods) == (*BASELINES, SHIPPED)  # 18 kernels are too few to fit
    none, equal, constant = (score.methods[name] for name in BASELINES)
    assert none.mean == pytest.approx((200 + 0 + 80) / 1200, abs=1e-3)
    assert none.p90 == pytest.approx(0.5, abs=1e-3)
    assert none.inferred == pytest.approx((200 + 0 + 80) / 1200, abs=1e-3)
    assert (none.explained, none.sides) == (0, pytest.approx(1 / 3))
    assert equal.mean == pytest.approx((200 + 400 + 320) / 1200, abs=1e-3)  # 800 us each
    assert equal.inferred == pytest.approx((100 + 200 + 160) / 1200, abs=1e-3)
    assert constant.mean == pytest.approx((120 + 80 + 0) / 1200, abs=1e-3)  # 480 us each
    assert constant.explained == pytest.approx((0.4 + 1.0) / 2, abs=1e-3)
    assert all(np.isnan(each.covered) for each in score.methods.values())


def test_ranks_classes_and_kernels_are_held_out_in_turn() -> None:
    score = scored(job(names=NINE))
    assert tuple(score.methods) == (*BASELINES, SHIPPED, *HELD_OUT)
    assert score.best == BY_RANK
    ranks, classes = score.methods[BY_RANK], score.methods[BY_CLASS]
    assert ranks.mean < 0.02 < classes.mean  # other classes do not tell the further round of products
    assert ranks.explained == pytest.approx(1, abs=0.1)
    assert (ranks.sides, ranks.covered) == (1, 1)
    assert score.predicted_ns == pytest.approx(score.measured_ns, rel=0.03)


def test_an_interval_is_that_of_the_errors_of_the_other_folds() -> None:
    """Groups take 1 %, 2 % ... 10 % longer than predicted: the first five are within the errors of the last five."""
    label, fold = np.repeat(np.arange(10), 2), np.repeat([0, 1], 10)
    alone, nothing = np.full(20, 100.0), np.zeros((20, 0))
    times = alone * (1.01 + 0.01 * label), alone
    kernels = OverlappedKernels((), label, *times, fold, label, label, tuple("abcdefghij"), (), nothing, nothing)
    assert _coverage(kernels, np.ones(20), fold) == 0.5
    assert _coverage(kernels, times[0] / alone, fold) == 1.0


def test_a_calibration_says_the_same_from_its_file(tmp_path: Path) -> None:
    trace = job(names=NINE)
    fit = calibrate_traces([trace], parameters=PARAMETERS)
    assert (fit.device, fit.scenarios) == ("A100-SXM4-80GB", 162)
    assert fit.source == "162 overlapped kernels of 1 traces, 27 distinct"
    assert fit.spread < 0.1
    write_contention_fit(tmp_path / "fit.json", fit)
    again = read_contention_fit(tmp_path / "fit.json")
    assert again.digest == fit.digest and again.interference == fit.interference
    kernels = kernels_of(trace)
    slow = [slowdowns(kernels, each.parameters(PARAMETERS)).tolist() for each in (fit, again)]
    assert slow[0] == slow[1]
    score = scored(trace, fit=again)
    assert tuple(score.methods) == (*BASELINES, SHIPPED, CALIBRATED)
    assert score.methods[CALIBRATED].mean < 0.02
    for name, fitted in again.ranges.items():
        assert fitted.low <= fitted.value <= fitted.high, name


def test_a_projection_reads_the_calibration(tmp_path: Path) -> None:
    """Of a kernel that takes 1.5 times as long beside the collective, a third of the time is contention."""
    trace = job(names=NINE)
    write_contention_fit(tmp_path / "fit.json", calibrate_traces([trace], parameters=PARAMETERS))
    fitted = read_contention_fit(tmp_path / "fit.json").parameters(PARAMETERS)
    for parameters, alone_ns in ((fitted, 400_000), (PARAMETERS, 600_000 / 1.89)):
        graph = build_graph(index_trace(trace), (1,), parameters=parameters)
        isolated = isolate(graph, parameters).tasks
        chosen = (isolated.workgroups == 108) & graph.on_device()
        assert chosen.sum() == 18
        assert isolated.duration_ns[chosen] == pytest.approx(alone_ns, rel=0.03)


def test_traces_that_cannot_be_fitted_are_one_line() -> None:
    one, few = job(names=NINE), job()
    other = job(names=NINE, device="NVIDIA H100 80GB HBM3")
    faster = steps(lambda name, workgroups: 0.7, names=NINE)
    lines = {
        "^the traces are of A100-SXM4-80GB, H100-SXM5-80GB; fit the traces of one device at a time$": [one, other],
        "^18 kernels ran beside other work and also alone; at least 20 are needed": [few],
        "^job.json: .* faster than alone, .*not contention.; nothing is fitted to such a trace$": [trace_of(*faster)],
    }
    for line, traces in lines.items():
        with pytest.raises(InvalidInputError, match=line):
            calibrate_traces(traces, parameters=PARAMETERS)
    assert calibrate_traces([few, few], parameters=PARAMETERS).scenarios == 36


def test_a_confounded_trace_is_scored_with_a_remark_and_has_no_limit() -> None:
    score = scored(trace_of(*steps(lambda name, workgroups: 0.7, names=NINE)))
    assert score.remark.endswith("which is not contention.")
    rows = trace_rows([score, scored(job(names=NINE))])
    assert [row.limit is not None for row in rows] == [False] * 7 + [row.case.endswith(BY_RANK) for row in rows[7:]]
    assert trace_tables([score])[-1] == f"job: {score.remark}"


@pytest.mark.parametrize(
    ("rows", "has_steps", "remark"),
    [
        (
            [launch(GEMM, 108, (100.0 * i, 50), rank=0, iteration=0, stream=7) for i in range(9)],
            True,
            "never overlapped",
        ),
        (steps(lambda name, workgroups: 1.2)[0], False, "no overlapped kernel of the trace is in an iteration"),
        ([launch(NCCL, 24, (0, 50), rank=0, iteration=0, stream=7)], True, "communication"),
    ],
    ids=["one stream", "no iterations", "communication alone"],
)
def test_a_trace_without_pairs_has_a_line_and_no_rows(rows: list[dict[str, Any]], has_steps: bool, remark: str) -> None:
    iterations = steps(lambda name, workgroups: 1.0)[1][:1] if has_steps else []
    score = scored(trace_of(rows, iterations))
    assert remark in score.remark and (score.kernels, dict(score.methods), score.best) == (0, {}, "")
    assert trace_rows([score]) == [] and trace_tables([score]) == [f"job: {score.remark}"]
    assert json.loads(json.dumps(trace_content(score)))["remark"] == score.remark


def test_ranks_whose_clocks_are_apart_have_no_wait() -> None:
    """Rank 1 is ten minutes later. Its collectives never met those of rank 0, so that no wait is known."""
    rows, iterations = steps(lambda name, grid: slowdown(name, grid, cost=0.5, pressure=0.2), names=NINE)
    late = [
        [{**row, "start_ns": row["start_ns"] + 600 * 10**9 * row["rank"]} for row in table]
        for table in (rows, iterations)
    ]
    score = scored(trace_of(*late))
    assert score.kernels == 162 and score.methods[BY_RANK].mean < 0.02


def test_the_keys_of_the_json_are_stable() -> None:
    content = json.loads(json.dumps(trace_content(scored(job(names=NINE)))))
    assert set(content) == {
        *("trace", "device", "kernels", "groups", "slowed", "noise", "remark", "best", "methods"),
    }
    assert set(content["methods"]) == {*BASELINES, SHIPPED, *HELD_OUT}
    for figures in content["methods"].values():
        assert set(figures) == {"mean", "p90", "inferred", "explained", "sides", "covered"}
    assert content["methods"][SHIPPED]["covered"] is None


def changed(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Return a calibration file whose fit was changed."""
    file = tmp_path / "fit.json"
    interference = InterferenceFit({f"{NCCL} [24]": 0.1}, {"gemm": 1.0}, {f"{GEMM} [108]": 1.5})
    ranges = {"extra_round_cost": FittedRange(0.5, 0.4, 0.6)}
    write_contention_fit(file, ContentionFit("A100-SXM4-80GB", ranges, (), 0.1, 20, ("0" * 16,), "x", interference))
    content = json.loads(file.read_text())
    change(content["fit"])
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda fit: fit["pressures"].update(a=float("nan")), "malformed"),
        (lambda fit: fit["pressures"].update(a=float("inf")), "malformed"),
        (lambda fit: fit["kernels"].update(a=-1), r"kernels.*`float` >= 0"),
        (lambda fit: fit["kernels"].update(a=1e9), r"kernels.*`float` <= 1000"),
        (lambda fit: fit["classes"].update(gemm="2"), r"classes.*`float`"),
        (lambda fit: fit["classes"].update({"": 1.0}), r"length >= 1.*classes"),
        (lambda fit: fit["kernels"].update({"x" * 30_000: 1.0}), r"length <= 20000.*kernels"),
        (lambda fit: fit["kernels"].update({str(i): 1.0 for i in range(2 * 10**6)}), r"larger than 16777216 bytes"),
        (lambda fit: fit["classes"].update(unheard_of=1.0), "no class of kernels is called 'unheard_of'"),
        (lambda fit: fit.update(sensitivities={}), "sensitivities"),
        (lambda fit: fit.update(pressures=[1.0]), r"pressures: Expected"),
        (
            lambda fit: fit["parameters"].update(magic={"value": 1, "low": 1, "high": 1}),
            "no parameter 'magic' is fitted",
        ),
        (
            lambda fit: fit["parameters"]["extra_round_cost"].update(value=9),
            "extra_round_cost is 9, from 0.4 to 0.6; in",
        ),
        (lambda fit: fit["parameters"]["extra_round_cost"].update(low=0.55), "extra_round_cost is 0.5, from 0.55 to"),
        (lambda fit: fit["parameters"]["extra_round_cost"].update(high=7), "must be within 0.05 to 1.5"),
    ],
)
def test_a_calibration_that_nobody_wrote_is_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    file = changed(tmp_path, change)
    with pytest.raises(
        InvalidInputError, match=rf"fit.json: not what `seqpoint calibrate contention` .*({reason})"
    ) as raised:
        read_contention_fit(file)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 1000


def test_a_million_kernels_are_read(tmp_path: Path) -> None:
    """The labels of a file of 16 MB do not slow a prediction: only those of the graph are looked up."""
    fit = read_contention_fit(changed(tmp_path, lambda fit: fit["kernels"].update({str(i): 1.0 for i in range(10**6)})))
    assert len(fit.interference.kernels) == 1_000_001
    kernels = kernels_of(job())
    slow = medians(kernels, slowdowns(kernels, fit.parameters(PARAMETERS)))
    assert slow[GEMM, 108] > 1.7 > slow[GEMM, 40]


def test_traces_and_recordings_are_scored_together_and_not_fitted_together(tmp_path: Path) -> None:
    recorded = recordings.write_recording(
        tmp_path / "recorded", {}, works=[recordings.product(2048), recordings.streamed(64)], noise=0.0
    )
    stored = save_trace(job(), tmp_path / "job.trace")
    result = validate("contention", [tmp_path], {}).results["contention"]
    assert {"traces", "cases", "scores"} <= set(result.details)
    assert [row.case.partition(":")[0] for row in result.rows][-4:] == [f"{tmp_path.name}/job.trace"] * 4
    assert len(result.rows) > 4
    refused = CliRunner().invoke(calibrate, ["contention", str(recorded), str(stored), "-o", str(tmp_path / "x.json")])
    assert refused.exit_code == 2 and "give traces or recordings, not both" in refused.output
    assert not (tmp_path / "x.json").exists()
