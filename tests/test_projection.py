import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph
from traces import write_trace

import seqpoint as sp
from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.trace.kernels import CLASSES
from profilers.trace.trace import TraceMeta
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.engine.timeline import Timeline, replay
from replay.from_trace import build_graph
from replay.graph.edit import with_host_time
from replay.graph.graph import Basis, EdgeKind, KernelGraph, Lane, TaskKind, hardware_named
from replay.projection import SIDES, ProjectionRow
from replay.projection.projection import Projection, ProjectionOptions, project, timeline_power
from replay.projection.windows import StepWindow
from replay.what_ifs import WhatIf, parse_what_if
from replay.writers.perfetto import write_perfetto


def projected(tmp_path: Path, *texts: str, seed: int = 0) -> Projection:
    trace = collect([write_trace(tmp_path / "t.json")])
    windows = [
        StepWindow.alone(build_graph(trace, i, parameters=load_parameters()), weight)
        for i, weight in ((1, 3.0), (2, 1.0))
    ]
    options = ProjectionOptions(draws=8, seed=seed)
    return project(
        windows, [parse_what_if(t) for t in texts], meta=trace.meta, options=options, parameters=load_parameters()
    )


def test_the_baseline_is_the_weighted_sum_of_what_was_measured(tmp_path: Path) -> None:
    projection = projected(tmp_path)
    assert projection.measured_ns == 4_000_000
    assert projection.baseline_ns == pytest.approx(4_000_000, abs=4)


def test_every_row_has_an_interval_around_it_and_shares_that_add_up(tmp_path: Path) -> None:
    for row in projected(tmp_path, "dma_collectives", "scale_device:MI300X", "overlap:none").rows:
        assert row.low <= row.speedup <= row.high
        assert row.low < row.high
        assert row.kept_share + row.derived_share + row.assumed_share == pytest.approx(1)


def test_shares_follow_what_a_what_if_touches(tmp_path: Path) -> None:
    dma, device, scaled = projected(tmp_path, "dma_collectives", "scale_device:MI300X", "scale_kernels:all:0.5").rows
    assert dma.kept_share > device.kept_share == 0
    assert device.derived_share > dma.derived_share
    assert scaled.assumed_share > dma.assumed_share == 0
    assert dma.modelled_share > 0  # the GEMM beside the collective was slowed by it


def launched_kernels() -> KernelGraph:
    """Return a call of 100 ns, a launch lag of 1000, a GEMM of 300 and an elementwise kernel of 600: 2000 ns in all."""
    host, kernel = TaskKind.HOST, TaskKind.KERNEL
    graph = make_graph(
        [100, 300, 600],
        edges=[(0, 1, 1000.0), (1, 2)],
        kind=[host, kernel, kernel],
        device=[-1, 0, 0],
        class_=[-1, CLASSES.index("gemm"), CLASSES.index("elementwise")],
    )
    return replace(graph, edges=replace(graph.edges, kind=np.array([EdgeKind.LAUNCH, EdgeKind.STREAM])))


def rows_of(graphs: Sequence[KernelGraph], *texts: str, draws: int = 1) -> tuple[ProjectionRow, ...]:
    return project(
        [StepWindow.alone(graph) for graph in graphs],
        [parse_what_if(text) for text in texts],
        meta=TraceMeta("kineto"),
        options=ProjectionOptions(draws=draws, iterations=range(1, 1 + len(graphs))),
        parameters=load_parameters(),
    ).rows


def test_energy_is_that_of_the_shares_of_the_limit_and_of_waiting() -> None:
    unnamed = launched_kernels()
    unnamed = unnamed.with_tasks(occupies=np.array([0.0, 1.0, 1.0]))
    graph = replace(unnamed, hardware=hardware_named(find_device("V100-SXM2-32GB"), "trace"))
    half, clock = rows_of([graph], "limit_power:0.45", "scale_clock:0.5")
    # A product of 300 ns, a stream of 600 and 1100 without a kernel; the product slows by the third root of 2.
    waits, slower = 1100 * load_parameters()["power_share_idle"], (0.9 / 0.45) ** (1 / 3)
    before, after = 0.9 * 300 + 0.6 * 600 + waits, 0.45 * (300 * slower + 600) + waits
    assert half.energy == pytest.approx(after / before, rel=1e-3)
    assert any(f"about {half.energy:.2f} times the energy" in note for note in half.notes)
    assert np.isnan(clock.energy) and clock.to_dict()["energy"] is None
    assert timeline_power(replay(graph), load_parameters()) == pytest.approx(300 * before / 2000)
    assert np.isnan(timeline_power(replay(unnamed), load_parameters()))


@pytest.mark.parametrize(
    ("text", "total", "assumed", "sides"),
    [
        ("scale_host:0.5", 1950, 50, (50, 900, 1000)),
        ("scale_kernels:gemm:2", 2300, 600, (100, 1200, 1000)),
        ("scale_kernels:elementwise:0", 1400, 0, (100, 300, 1000)),
        ("remove_launch_overhead:0ns", 900, 0, (0, 900, 0)),
        ("remove_launch_overhead:40ns", 980, 80, (40, 900, 40)),
    ],
)
def test_shares_are_of_the_projected_time(text: str, total: float, assumed: float, sides: tuple[float, ...]) -> None:
    (row,) = rows_of([launched_kernels()], text)
    assert row.projected_ns == pytest.approx(total)
    assert row.assumed_share == pytest.approx(assumed / total)
    assert row.kept_share == pytest.approx(1 - assumed / total)
    assert row.evidence is not None
    assert [row.evidence.side(name) for name in SIDES] == pytest.approx([ns / total for ns in sides])


def test_a_task_that_takes_as_long_as_measured_is_kept_whatever_its_isolated_duration_rests_on() -> None:
    graph = launched_kernels()
    basis = np.array([Basis.MEASURED, Basis.MODELLED, Basis.MODELLED])
    start, end = np.array([0.0, 1100.0, 1400.0]), np.array([100.0, 1400.0, 1999.0])
    graph = graph.with_tasks(basis=basis, measured_start_ns=start, measured_end_ns=end)
    (row,) = rows_of([graph], "scale_host:0.5")
    assert row.kept_share == pytest.approx(1900 / 1950) and row.modelled_share == 0
    (row,) = rows_of([graph.with_tasks(measured_end_ns=end - 100)], "scale_host:0.5")
    assert row.modelled_share == pytest.approx(900 / 1950) == row.derived_share


def test_on_another_device_nothing_is_kept() -> None:
    graph = launched_kernels()
    graph = replace(graph, hardware=hardware_named(find_device("A100-SXM4-80GB"), "trace"))
    start, end = np.array([0.0, 1100.0, 1400.0]), np.array([100.0, 1400.0, 601_400.0])
    graph = graph.with_tasks(measured_start_ns=start, measured_end_ns=end, duration_ns=np.array([100, 300, 600e3]))
    kept, moved = rows_of([graph], "scale_host:0.5", "scale_device:H100-SXM5-80GB:keep")
    assert kept.measured_share == kept.kept_share > 0.99
    assert moved.kept_share == 0 and moved.evidence is not None
    # A kernel as short as a launch takes as long there, and is scaled. The host and the lag of the launch are assumed.
    assert moved.evidence.shares["device"]["scaled"] == moved.evidence.side("device") > 0.9
    assert moved.assumed_share * moved.projected_ns == pytest.approx(1100)


def without_a_host() -> KernelGraph:
    """Return three kernels of 100 ns with a gap of 50 ns that stands for the host, and one of 30 on the stream."""
    graph = make_graph([100] * 3, edges=[(0, 1, 50.0), (1, 2, 30.0)], class_=[0] * 3)
    return replace(graph, edges=replace(graph.edges, kind=np.array([EdgeKind.GAP, EdgeKind.STREAM])))


def test_gaps_that_are_taken_for_the_host_are_assumed() -> None:
    scaled, gone = rows_of([without_a_host()], "scale_kernels:all:0.5", "scale_host:0")
    assert scaled.projected_ns == 230 and scaled.evidence is not None
    assert scaled.assumed_share == pytest.approx(200 / 230) and scaled.evidence.shares["host"]["assumed"] > 0
    assert gone.projected_ns == 330 and gone.kept_share == 1
    assert any(
        "no launch is recorded; gaps of the device (1) are assumed to be time of the host" in n for n in gone.notes
    )


def test_the_host_of_a_rank_without_recorded_calls_is_assumed() -> None:
    kernel, mark = TaskKind.KERNEL, TaskKind.MARK
    graph = make_graph(
        [0, 100, 0], edges=[(0, 2, 500.0), (0, 1, 10.0)], kind=[mark, kernel, mark], device=[-1, 0, -1],
        lane=[0, 1, 0], class_=[-1, 0, -1],
    )  # fmt: skip
    lanes = (Lane(0, None, 1), Lane(0, 0, 7))
    graph = replace(graph, lanes=lanes, edges=replace(graph.edges, kind=np.array([EdgeKind.HOST, EdgeKind.LAUNCH])))
    (row,) = rows_of([graph], "scale_kernels:all:0.5")
    assert row.projected_ns == 500 and row.assumed_share == 1


def test_shares_of_a_graph_that_lost_tasks() -> None:
    graph = make_graph([5000, 5000], edges=[(0, 1)], class_=[CLASSES.index("elementwise")] * 2)
    (row,) = rows_of([graph], "fuse:elementwise")
    assert row.assumed_share == 1.0  # the merged kernel is all that is left


def test_a_step_of_which_nothing_is_left_is_assumed() -> None:
    (row,) = rows_of([make_graph([5000])], "scale_kernels:all:0")
    assert row.projected_ns == 0 and row.assumed_share == 1.0


def test_device_time_is_the_busy_time_before_and_after_with_its_interval() -> None:
    host, device, links = rows_of([launched_kernels()] * 2, "scale_host:0.5", "scale_kernels:gemm:2", "cu_order:fair")
    assert (host.device_before_ns, host.device_after_ns) == (1800, 1800)
    assert (device.device_before_ns, device.device_after_ns) == (1800, 2400)
    assert device.device_low_ns == device.device_high_ns == 2400  # no draw of a parameter changes a factor
    assert not links.applied and np.isnan(links.device_after_ns)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing", "changes no task of these iterations"),
        ("scale_host:1", "changes no task of these iterations"),
        (
            "scale_kernels:gemm:1",
            "changes no task of these iterations (scale_kernels:gemm: 1 tasks (each of 2 iterations))",
        ),
        ("cu_order:fair", "no task of these iterations starts or ends at another time"),
        ("dma_collectives", "changes no task of these iterations (dma_collectives: 0 of 0 collectives moved (each of"),
        ("scale_memory_bandwidth:2", "what-if scale_memory_bandwidth:2: "),
    ],
)
def test_a_what_if_that_changes_nothing_has_a_reason_and_no_figures(text: str, reason: str) -> None:
    row, other = rows_of([launched_kernels()] * 2, text, "scale_host:0.5", draws=8)
    assert not row.applied and row.reason.startswith(reason)
    figures = (row.projected_ns, row.speedup, row.low, row.high, row.kept_share, row.device_after_ns)
    assert np.isnan(figures).all()
    assert other == rows_of([launched_kernels()] * 2, "scale_host:0.5", draws=8)[0]  # it took no draws


def test_a_note_names_the_iterations_that_a_what_if_does_not_change() -> None:
    gemm_only = make_graph([100], class_=[CLASSES.index("gemm")])
    (row,) = rows_of([launched_kernels(), gemm_only], "scale_kernels:elementwise:0.5")
    assert row.applied and row.projected_ns == pytest.approx(1800)
    assert (
        "scale_kernels:elementwise:0.5: changes steps of 1 of 2 groups of iterations (not of iteration 2)" in row.notes
    )


def test_a_what_if_that_a_drawn_parameter_makes_impossible_is_not_applicable() -> None:
    def refuse(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        if parameters["dma_command_ns"] != load_parameters()["dma_command_ns"]:
            raise InvalidInputError("not with that command time")
        return with_host_time(graph, 0.5)

    row, other = project(
        [StepWindow.alone(launched_kernels())],
        [WhatIf("refuse", refuse), parse_what_if("scale_host:0.5")],
        meta=TraceMeta("kineto"),
        parameters=load_parameters(),
    ).rows
    assert row.reason == "what-if refuse: not with that command time (with parameters drawn from their ranges)"
    assert other.applied


def test_lags_that_a_what_if_scales_have_the_evidence_of_their_call() -> None:
    graph = launched_kernels()
    host = replace(graph, edges=replace(graph.edges, kind=np.array([EdgeKind.HOST, EdgeKind.STREAM])))
    (row,) = rows_of([host], "scale_host:0.5")
    assert row.projected_ns == pytest.approx(1450) and row.assumed_share == pytest.approx(550 / 1450)
    assert row.evidence is not None and row.evidence.side("host") == pytest.approx(550 / 1450)

    def halve_host(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        basis = np.where(graph.tasks.kind == TaskKind.HOST, int(Basis.DERIVED), graph.tasks.basis)
        return with_host_time(graph, 0.5).with_tasks(basis=basis)

    windows, what_ifs = [StepWindow.alone(host)], [WhatIf("halve", halve_host)]
    (row,) = project(windows, what_ifs, meta=TraceMeta("kineto"), parameters=load_parameters()).rows
    assert row.scaled_share == pytest.approx(550 / 1450) and row.assumed_share == 0


def test_evidence_of_repeated_iterations_is_that_of_one_cycle() -> None:
    tasks = [100.0, 300.0] * 3
    edges = [(0, 1, 50.0), (0, 2), (1, 3), (2, 3, 50.0), (2, 4), (3, 5), (4, 5, 50.0)]
    graph = make_graph(
        tasks,
        edges=edges,
        kind=[TaskKind.HOST, TaskKind.KERNEL] * 3,
        device=[-1, 0] * 3,
        lane=[0, 1] * 3,
        class_=[-1, CLASSES.index("gemm")] * 3,
        iteration=[0, 0, 1, 1, 2, 2],
        measured_start_ns=[0.0, 150, 100, 450, 200, 750],
        measured_end_ns=[100.0, 450, 200, 750, 300, 1050],
    )
    launch, host, stream = int(EdgeKind.LAUNCH), int(EdgeKind.HOST), int(EdgeKind.STREAM)
    kinds = np.array([launch, host, stream, launch, host, stream, launch])
    lanes = (Lane(0, None, 1), Lane(0, 0, 7))
    graph = replace(graph, edges=replace(graph.edges, kind=kinds), lanes=lanes, iterations=(1, 2, 3))
    window = StepWindow.of(graph, (1, 2), weights=(1.0, 2.0), measured_ns=(300.0, 300.0))
    what_ifs = [parse_what_if(text) for text in ("scale_kernels:gemm:0.5", "scale_kernels:gemm:0.1", "scale_host:0.5")]
    half, tenth, host_row = project([window], what_ifs, meta=TraceMeta("kineto"), parameters=load_parameters()).rows
    # Kernels of 150 ns set the pace of calls of 100 ns; kernels of 30 ns do not.
    assert half.projected_ns == pytest.approx(3 * 150) and half.assumed_share == pytest.approx(1)
    assert tenth.projected_ns == pytest.approx(3 * 100) and tenth.kept_share == pytest.approx(1)
    assert tenth.evidence is not None and tenth.evidence.side("host") == pytest.approx(1)
    assert (tenth.device_before_ns, tenth.device_after_ns) == pytest.approx((900, 90))
    assert host_row.speedup == pytest.approx(1) and host_row.low <= 1 <= host_row.high  # the device sets the pace


def test_a_step_that_begins_earlier_is_told_from_a_loss() -> None:
    # Calls of 1000 ns set the pace. Step 1 lasts from the end of the long kernel before it to that of its short kernel:
    # 300 ns, and 650 ns with kernels of half the time. The cycle takes 2000 ns in both cases.
    graph = make_graph(
        [1000.0, 800.0, 1000.0, 100.0],
        edges=[(0, 1), (0, 2), (1, 3), (2, 3)],
        kind=[TaskKind.HOST, TaskKind.KERNEL] * 2,
        device=[-1, 0] * 2,
        lane=[0, 1] * 2,
        class_=[-1, CLASSES.index("gemm")] * 2,
        iteration=[0, 0, 1, 1],
        measured_start_ns=[0.0, 1000, 1000, 2000],
        measured_end_ns=[1000.0, 1800, 2000, 2100],
    )
    launch, host, stream = int(EdgeKind.LAUNCH), int(EdgeKind.HOST), int(EdgeKind.STREAM)
    edges = replace(graph.edges, kind=np.array([launch, host, stream, launch]))
    graph = replace(graph, edges=edges, lanes=(Lane(0, None, 1), Lane(0, 0, 7)), iterations=(1, 2))
    what_ifs = [parse_what_if("scale_kernels:gemm:0.5")]
    for chosen, measured in (((1,), (300.0,)), ((0, 1), (1700.0, 300.0))):
        window = StepWindow.of(graph, chosen, weights=(1.0,) * len(chosen), measured_ns=measured)
        (row,) = project([window], what_ifs, meta=TraceMeta("kineto"), parameters=load_parameters()).rows
        text = " ".join(row.notes)
        assert ("these steps alone are 0.462 times as fast, and the cycle" in text) == (len(chosen) == 1)
        assert "slower than doing nothing" not in text


def test_graphs_that_differ_by_rounding_notes_or_basis_replay_alike() -> None:
    graph = launched_kernels()
    tasks = graph.tasks
    assert graph.with_notes(["a note"]).replays_like(graph)
    assert graph.with_tasks(duration_ns=tasks.duration_ns / 3 * 3, basis=tasks.basis + 1).replays_like(graph)
    assert not graph.with_tasks(duration_ns=tasks.duration_ns * 1.001).replays_like(graph)
    assert not graph.with_tasks(priority=tasks.priority + 1).replays_like(graph)
    assert not replace(graph, edges=graph.edges.select(np.array([0]))).replays_like(graph)
    assert not replace(graph, policy=replace(graph.policy, in_order=False)).replays_like(graph)
    assert not replace(graph, hardware=replace(graph.hardware, compute_units=7)).replays_like(graph)


def test_busy_time_within_intervals_is_that_of_each_interval() -> None:
    random = np.random.default_rng(0)
    graph = make_graph([100.0] * 60, device=random.integers(0, 2, 60), class_=[0] * 60)
    graph = replace(graph, devices=((0, 0), (1, 0)))
    start = random.uniform(0, 1000, 60)
    line = Timeline(graph, start, start + random.uniform(0, 60, 60))
    intervals = np.array([[0.0, 300.0], [300.0, 310.0], [250.0, 1100.0]])
    expected = [replace(line, interval=tuple(interval)).busy_ns() for interval in intervals.tolist()]
    assert line.busy_within(intervals) == pytest.approx(np.array(expected))


BERT = Path(__file__).parents[2] / "shared/data/traces/kineto/tracelens/h100/gaunernst_bert-small-uncased.json.gz"


@pytest.mark.skipif(not BERT.is_file(), reason=f"no trace at {BERT}")
def test_a_host_kept_on_another_machine_is_assumed() -> None:
    rows = sp.project(collect([BERT]), ["scale_device:MI300X:keep", "scale_host:0.05", "scale_host:1"], draws=32).rows
    device, host, same = rows
    assert device.assumed_share > 0.99 and device.kept_share == 0 and device.speedup == pytest.approx(1, abs=0.01)
    assert device.device_after_ns > 1.1 * device.device_before_ns
    assert device.device_low_ns < 388e3 < device.device_high_ns  # measured on an MI300X
    assert host.kept_share > 0.84 and host.kept_share + host.assumed_share == pytest.approx(1)
    assert host.evidence is not None and host.evidence.side("device") == pytest.approx(0.84, abs=0.02)
    assert same.reason == "changes no task of these iterations"


def test_a_time_beyond_all_plausible_is_no_figure(tmp_path: Path) -> None:
    (row,) = projected(tmp_path, "+".join(["scale_kernels:gemm:1e6"] * 40)).rows
    assert not row.applied and "a projected time of" in row.reason


def test_the_same_seed_gives_the_same_numbers_and_another_seed_another_interval(tmp_path: Path) -> None:
    one, again, other = (projected(tmp_path, "scale_device:MI300X", seed=s).rows[0] for s in (0, 0, 1))
    assert one == again
    assert (one.low, one.high) != (other.low, other.high)
    assert one.speedup == other.speedup


def test_provenance_names_all_that_a_number_rests_on(tmp_path: Path) -> None:
    facts = projected(tmp_path).provenance
    assert len(facts["trace_fingerprint"]) == len(facts["parameters_sha256"]) == 64
    assert facts["device"] == "A100-SXM4-80GB" and facts["device_known_by"] == "trace"
    assert facts["parameters"]["dma_command_ns"] == [5500.0, 5000.0, 6000.0]


@pytest.mark.parametrize("weight", [0.0, -2.0])
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, weight: float) -> None:
    trace = collect([write_trace(tmp_path / "t.json")])
    with pytest.raises(InvalidInputError, match="weights above zero"):
        project(
            [StepWindow.alone(build_graph(trace, 1, parameters=load_parameters()), weight)],
            [],
            meta=trace.meta,
            parameters=load_parameters(),
        )


def test_no_iteration_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no iteration"):
        project([], [], meta=TraceMeta("kineto"), parameters=load_parameters())


def test_perfetto_json_holds_both_timelines_with_their_lanes(tmp_path: Path) -> None:
    lines = projected(tmp_path, "overlap:none").timelines
    write_perfetto(tmp_path / "both.json", {"before": lines["baseline"], "after": lines["overlap:none"]})
    document = json.loads((tmp_path / "both.json").read_text())
    events = document["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"before: rank 0", "after: rank 0"}
    kernels = [e for e in events if e["ph"] == "X" and e["cat"] == "kernel"]
    assert len(kernels) == 6
    assert kernels[0]["ts"] == 30.0 and kernels[0]["dur"] == 200.0


def test_a_note_is_told_once_with_the_iterations_that_it_holds_for(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "t.json")])
    graphs = [
        build_graph(trace, 1, parameters=load_parameters()),
        build_graph(trace, 2, parameters=load_parameters()).with_notes(["lost 3 events"]),
    ]
    options = ProjectionOptions(draws=8, iterations=(1, 2))
    what_if = parse_what_if("change_dtype:fp32->bf16")
    (row,) = project(
        [StepWindow.alone(graph) for graph in graphs],
        [what_if],
        meta=trace.meta,
        options=options,
        parameters=load_parameters(),
    ).rows
    assert row.notes[0].startswith("change_dtype: ") and row.notes[0].endswith(" in fp32 (each of 2 iterations)")
    assert row.notes[-1] == "lost 3 events (iteration 2)"


def test_progress_counts_every_draw_up_to_the_last(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    trace = collect([write_trace(tmp_path / "t.json")])
    options = ProjectionOptions(draws=8, progress=lambda *args: told.append(args), jobs=1)
    what_ifs = [parse_what_if("overlap:none"), parse_what_if("overlap:ideal")]
    project(
        [StepWindow.alone(build_graph(trace, 1, parameters=load_parameters()))],
        what_ifs,
        meta=trace.meta,
        options=options,
        parameters=load_parameters(),
    )
    # First the unchanged steps and each what-if, with the parameters as they are; then the draws.
    assert told[:3] == [(0, 3, "unchanged steps"), (1, 3, "overlap:none"), (2, 3, "overlap:ideal")]
    told = told[3:]
    assert [done for done, _, _ in told] == list(range(24))
    assert {total for _, total, _ in told} == {24}
    assert [what for _, _, what in told] == ["durations without contention", "overlap:none", "overlap:ideal"] * 8
