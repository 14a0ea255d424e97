"""Interference fitted to traces: hand-built traces whose overlapped times follow from a formula that a test states."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recordings
from click.testing import CliRunner

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from profilers.trace.kernels import CLASSES
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
#: Of the shipped parameters, those that would add to the slow-downs below are 0.
SILENT = ("hbm_share_collective", "hbm_share_memory_bound", "kernel_start_ns", "memory_time_compute")
PARAMETERS = load_parameters().with_values((name, 0.0) for name in SILENT)
#: Kernels by name and workgroups, with their times alone in us. An A100 has 108 compute units, and the collective
#: holds 24.
KERNELS = ((GEMM, 108, 400.0), (GEMM, 40, 400.0), (ADD, 40, 400.0))
#: How many times as long as alone each of them takes.
SLOW = {(GEMM, 108): 1.5, (GEMM, 40): 1.0, (ADD, 40): 1.2}
#: Share of the memory's bandwidth that a collective draws, as large as its share of the compute units; and the bytes
#: that memory moves for each of its bytes: two ranks each read and write a half twice, and the sum once.
TRAFFIC, MOVED = 24 / 108, 3.5
STEPS = 6
NINE = tuple(f" {i}" for i in range(9))


def truth(pressure: float) -> dict[tuple[str, int], float]:
    """Return how many times as long as alone the kernels take beside a collective that presses so much.

    108 workgroups on the 84 units without the collective are two on 24 of them. Alone, products do not wait for memory,
    and additions do nothing else. Each feels the pressure by its latencies of 3 us in 400 us, too.
    """
    latency, share = PARAMETERS["latency_sensitivity"] * 3 / 400, pressure * TRAFFIC
    crowded = ((1 + 2**1.5) / 2) ** (2 / 3)
    times = crowded * (1 + share * latency), 1 + share * latency, 1 + share * (1 + latency)
    return dict(zip(SLOW, times, strict=True))


def job(
    slow: Mapping[tuple[str, int], float] = SLOW,
    *,
    device: str = A100,
    names: tuple[str, ...] = ("",),
    traffic: float = TRAFFIC,
) -> Trace:
    """Return the trace of `steps` with these slow-downs."""
    rows, iterations = steps(lambda name, grid: slow[name.partition(" ")[0], grid], names=names)
    return trace_of(rows, iterations, device=device, traffic=traffic)


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
                    us *= slow(name, workgroups)
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


def trace_of(
    rows: list[dict[str, Any]], iterations: list[dict[str, Any]], *, device: str = A100, traffic: float = TRAFFIC
) -> Trace:
    """Return a trace of kernels, each started by an operator with equal shapes."""
    bytes_per_ns = traffic * find_device(device).memory_bytes_per_s / 1e9 / MOVED
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
        facts |= {"bytes": [round(bytes_per_ns * ns) for ns in facts["dur_ns"]]}
        facts |= {"group_size": [2] * len(calls), "dtype": ["float"] * len(calls)}
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


def test_kernels_are_found_with_their_times() -> None:
    kernels = kernels_of(job())
    assert len(kernels) == 2 * 3 * len(KERNELS)
    assert kernels.labels == (f"{GEMM} [108]", f"{GEMM} [40]", f"{ADD} [40]")
    assert sorted(set(kernels.rank.tolist())) == [0, 1]
    assert medians(kernels, kernels.measured_ns / kernels.alone_ns) == pytest.approx(SLOW, abs=1e-3)


@pytest.mark.parametrize(("pressure", "traffic"), [(0.5, TRAFFIC), (3.9, TRAFFIC), (12.0, TRAFFIC), (3.9, 0.0)])
def test_slow_downs_are_those_of_the_rules(pressure: float, traffic: float) -> None:
    """Both ranks start each collective together, so that none waits; it is beside the whole kernel.

    Its share of the compute units stands in for its traffic if its bytes are unknown.
    """
    known = PARAMETERS.with_values([("pressure_collective", pressure)])
    kernels = kernels_of(job(traffic=traffic))
    assert medians(kernels, slowdowns(kernels, known)) == pytest.approx(truth(pressure), rel=1e-5)


@pytest.mark.parametrize("pressure", [1.5, 8.0])
def test_a_fit_finds_the_pressure(pressure: float) -> None:
    kernels = kernels_of(job(truth(pressure), names=NINE))
    fit = fit_interference(kernels, PARAMETERS)
    assert fit.values["pressure_collective"] == pytest.approx(pressure, rel=0.15)
    slow = slowdowns(kernels, fit.parameters(PARAMETERS))
    assert slow == pytest.approx(kernels.measured_ns / kernels.alone_ns, rel=0.01)
    # What the trace does not tell stays: no collective waits.
    assert fit.values["pressure_share_waiting"] == PARAMETERS["pressure_share_waiting"]


@pytest.mark.parametrize("weight", [0.8, 4.0])
def test_a_fit_finds_the_load_of_threads_that_spin(weight: float) -> None:
    """On each unit, 256 threads of the product are beside 256 that spin: a load of half of the weight."""
    taken = ((1 + (1 + weight / 2) ** 1.5) / 2) ** (2 / 3)
    rows, iterations = steps(lambda name, grid: taken, kernels=KERNELS[:1], partner=(NCCL, 108), names=NINE)
    kernels = kernels_of(trace_of(rows, iterations))
    known = PARAMETERS.with_values([("pressure_collective", 0.0)])
    fit = fit_interference(kernels, known)
    assert fit.values["spin_weight"] == pytest.approx(weight, rel=0.15)
    assert slowdowns(kernels, fit.parameters(known)) == pytest.approx(np.full(len(kernels), taken), rel=0.05)


def test_a_kernel_that_differs_gets_a_factor() -> None:
    """One of nine additions feels the pressure half as much as the others."""
    slow = {(ADD + s, 40): truth(4.0)[ADD, 40] for s in NINE}
    slow[ADD + NINE[3], 40] = 1 + (truth(4.0)[ADD, 40] - 1) / 2
    names = tuple((name, grid, 400.0) for name, grid in slow)
    kernels = kernels_of(trace_of(*steps(lambda name, grid: slow[name, grid], kernels=names)))
    fit = fit_interference(kernels, PARAMETERS)
    factors = fit.interference.kernels
    ratio = factors[f"{ADD + NINE[3]} [40]"] / factors[f"{ADD + NINE[4]} [40]"]
    assert ratio == pytest.approx(0.5, abs=0.05) and fit.interference.device == "A100-SXM4-80GB"


def test_a_fold_is_predicted_from_the_others() -> None:
    """The pressure is 1.5 on rank 0 and 6 on rank 1: each rank is predicted with that of the other."""
    slowed = [steps(lambda name, grid, p=p: truth(p)[name.partition(" ")[0], grid], names=NINE)[0] for p in (1.5, 6.0)]
    rows = [row for rank, ranks in enumerate(slowed) for row in ranks if row["rank"] == rank]
    kernels = kernels_of(trace_of(rows, steps(lambda name, grid: 1.0, names=NINE)[1]))
    slow = held_out_slowdowns(kernels, kernels.rank, PARAMETERS)
    is_add = np.array([label.startswith(ADD) for label in kernels.labels])[kernels.label]
    for held, pressure in ((0, 6.0), (1, 1.5)):
        chosen = is_add & (kernels.rank == held)
        assert np.median(slow[chosen]) == pytest.approx(truth(pressure)[ADD, 40], rel=0.03)
    assert np.isnan(held_out_slowdowns(kernels, np.zeros(len(kernels)), PARAMETERS)).all()


def joined(*traces: Trace) -> OverlappedKernels:
    return _gathered([_of_trace(trace, measure_pairs(trace), PARAMETERS, None) for trace in traces])


def test_traces_are_joined_by_label() -> None:
    traces = job(), job(names=(" b", ""))
    one, other = map(kernels_of, traces)
    both = joined(*traces)
    assert len(both) == len(one) + len(other) == 18 + 36
    assert [both.labels[i] for i in both.label] == [
        each.labels[i] for each in (one, other) for i in each.label.tolist()
    ]
    assert sorted(set(both.rank.tolist())) == [0, 1, 2, 3]
    for name in ("measured_ns", "alone_ns", "class_"):
        parts = [getattr(one, name), getattr(other, name)]
        assert getattr(both, name).tolist() == np.concatenate(parts).tolist()
    together = slowdowns(both, PARAMETERS)
    assert together.tolist() == [*slowdowns(one, PARAMETERS), *slowdowns(other, PARAMETERS)]


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
    score = scored(job(truth(1.5), names=NINE))
    assert tuple(score.methods) == (*BASELINES, SHIPPED, *HELD_OUT)
    assert score.best == BY_RANK
    ranks, classes = score.methods[BY_RANK], score.methods[BY_CLASS]
    assert ranks.mean < 0.02 < classes.mean  # products do not tell what additions feel
    assert ranks.explained == pytest.approx(1, abs=0.1)
    assert (ranks.sides, ranks.covered) == (1, 1)
    assert score.predicted_ns == pytest.approx(score.measured_ns, rel=0.03)


def test_an_interval_is_that_of_the_errors_of_the_other_folds() -> None:
    """Groups take 1 %, 2 % ... 10 % longer than predicted: the first five are within the errors of the last five."""
    label, fold = np.repeat(np.arange(10), 2), np.repeat([0, 1], 10)
    alone = np.full(20, 100.0)
    times = alone * (1.01 + 0.01 * label), alone
    kernels = OverlappedKernels((), label, *times, fold, label, label, tuple("abcdefghij"))
    assert _coverage(kernels, np.ones(20), fold) == 0.5
    assert _coverage(kernels, times[0] / alone, fold) == 1.0


def test_a_calibration_says_the_same_from_its_file(tmp_path: Path) -> None:
    trace = job(truth(1.5), names=NINE)
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
    """What additions take longer than 400 us is contention; of it, the shipped parameters expect more."""
    trace = job(truth(1.5), names=NINE)
    write_contention_fit(tmp_path / "fit.json", calibrate_traces([trace], parameters=PARAMETERS))
    fitted = read_contention_fit(tmp_path / "fit.json").parameters(PARAMETERS)
    shipped = truth(1.5)[ADD, 40] / truth(PARAMETERS["pressure_collective"])[ADD, 40]
    for parameters, share in ((fitted, 1.0), (PARAMETERS, shipped)):
        graph = build_graph(index_trace(trace), (1,), parameters=parameters)
        isolated = isolate(graph, parameters).tasks
        chosen = (isolated.class_ == CLASSES.index("elementwise")) & graph.on_device()
        assert chosen.sum() == 18
        assert isolated.duration_ns[chosen] == pytest.approx(400_000 * share, rel=0.02)


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
    rows, iterations = steps(lambda name, grid: truth(0.4)[name.partition(" ")[0], grid], names=NINE)
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
    ranges = {"spin_weight": FittedRange(0.5, 0.4, 0.6)}
    facts = ranges, (), 0.1, 20, ("0" * 16,), "x"
    write_contention_fit(file, ContentionFit("A100-SXM4-80GB", *facts, InterferenceFit({f"{ADD} [40]": 1.5})))
    content = json.loads(file.read_text())
    change(content["fit"])
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda fit: fit["kernels"].update(a=float("nan")), "malformed"),
        (lambda fit: fit["kernels"].update(a=float("inf")), "malformed"),
        (lambda fit: fit["kernels"].update(a=-1), r"kernels.*`float` >= 0"),
        (lambda fit: fit["kernels"].update(a=1e9), r"kernels.*`float` <= 1000"),
        (lambda fit: fit["kernels"].update(a="2"), r"kernels.*`float`"),
        (lambda fit: fit["kernels"].update({"": 1.0}), r"length >= 1.*kernels"),
        (lambda fit: fit["kernels"].update({"x" * 30_000: 1.0}), r"length <= 20000.*kernels"),
        (lambda fit: fit["kernels"].update({str(i): 1.0 for i in range(2 * 10**6)}), r"larger than 16777216 bytes"),
        (lambda fit: fit.update(pressures={}), "pressures"),
        (lambda fit: fit.update(kernels=[1.0]), r"kernels: Expected"),
        (
            lambda fit: fit["parameters"].update(magic={"value": 1, "low": 1, "high": 1}),
            "no parameter 'magic' is fitted",
        ),
        (lambda fit: fit["parameters"]["spin_weight"].update(value=9), "spin_weight is 9, from 0.4 to 0.6; in"),
        (lambda fit: fit["parameters"]["spin_weight"].update(low=0.55), "spin_weight is 0.5, from 0.55 to"),
        (lambda fit: fit["parameters"]["spin_weight"].update(high=20), "must be within 0.1 to 10"),
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
    assert slow[ADD, 40] - 1 == pytest.approx(1.5 * (truth(PARAMETERS["pressure_collective"])[ADD, 40] - 1))


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
