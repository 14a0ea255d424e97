"""`concurrent_gemms`: independent products side by side, by hand and on random streams."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gemm_groups import ATTENTION, DATA, DOWN, GATE, SILU, SQUARE, Kernel, pointwise, stream

from profilers.devices.catalogue import DTYPES, find_device
from profilers.errors import SeqPointError
from profilers.ingest.pipeline import collect
from replay.costs.shipped import load_parameters
from replay.engine.engine import simulate
from replay.from_trace import build_graph
from replay.gemms.degrees import load_degree_predictor
from replay.gemms.gemm import gemm_of_task
from replay.gemms.groups import independent_gemms
from replay.gemms.planning import GroupPlan, plan_groups
from replay.graph.graph import RESOURCES, EdgeKind, Edges, KernelGraph, Lane, TaskKind, hardware_named
from replay.graph.operators import batched_matmul
from replay.plug_ins.concurrent_gemms import _share_of_device
from replay.what_ifs import parse_plan, parse_what_if

NOMINAL = load_parameters()
FP16, FP32 = (tuple(DTYPES).index(name) for name in ("fp16", "fp32"))
QKV: list[Kernel] = [SQUARE, SQUARE, SQUARE, ATTENTION]


def with_grids(graph: KernelGraph, share: float, durations: list[float] | None = None) -> KernelGraph:
    """Return the graph with kernels that fill a share of the units in one wave."""
    tasks, n = graph.tasks, len(graph.tasks)
    demand = np.zeros((n, len(RESOURCES)))
    demand[:, RESOURCES.index("cu")] = share
    duration = np.array(durations, dtype=float) if durations else tasks.duration_ns
    columns = {"occupies": np.full(n, share), "waves": np.full(n, share), "duration_ns": duration}
    return graph.with_tasks(demand=demand, workgroups=np.full(n, round(108 * share)), **columns)


def applied(text: str, graph: KernelGraph) -> KernelGraph:
    return parse_what_if(text)(graph, NOMINAL)


def ends(graph: KernelGraph) -> list[float]:
    return [round(float(end), 3) for end in simulate(graph)[1]]


def test_small_products_take_the_time_of_the_largest() -> None:
    graph = with_grids(stream(QKV), 0.25, [10.0, 30.0, 20.0, 5.0])
    assert ends(applied("concurrent_gemms:4:default", graph)) == [10.0, 30.0, 20.0, 35.0]
    assert ends(applied("concurrent_gemms:2:default", graph)) == [10.0, 30.0, 50.0, 55.0]  # two, then the third
    assert ends(applied("concurrent_gemms:auto:default", graph))[3] == 35.0


def test_products_that_fill_the_device_gain_nothing() -> None:
    graph = with_grids(stream(QKV), 1.0, [10.0, 10.0, 10.0, 5.0])
    assert ends(applied("concurrent_gemms:4:default", graph))[3] == 35.0
    auto = applied("concurrent_gemms:auto:default", graph)
    assert auto.replays_like(graph) and "one after another" in auto.notes[-1]


@pytest.mark.parametrize("kernels", ["default", "go"])
def test_degree_one_changes_nothing(kernels: str) -> None:
    graph = replace(with_grids(stream(QKV), 0.3), hardware=hardware_named(find_device("MI100"), "trace"))
    same = applied(f"concurrent_gemms:1:{kernels}", graph)
    assert same.tasks is graph.tasks and same.edges is graph.edges and same.lanes is graph.lanes


def test_a_kernel_between_keeps_its_order_and_what_follows_waits() -> None:
    # The activation of the gate waits for the gate alone; the last product waits for both and for the activations.
    graph = with_grids(stream([GATE, SILU, GATE, SILU, DOWN]), 0.25, [10.0, 4.0, 30.0, 3.0, 5.0])
    start, end = simulate(applied("concurrent_gemms:2:default", graph))
    assert start.tolist() == pytest.approx([0.0, 10.0, 0.0, 30.0, 33.0]) and end[-1] == pytest.approx(38.0)


def test_waits_for_other_streams_stay() -> None:
    graph = with_grids(stream(QKV), 0.25, [10.0, 10.0, 10.0, 5.0])
    tasks = graph.tasks.select(np.array([0, 1, 2, 3, 3, 3]))
    other = Lane(0, 0, 9)
    # Task 4 runs 7 ns on another stream before the second product; task 5 waits there for an event after it.
    lane, duration = np.array([0, 0, 0, 0, 1, 1]), np.array([10.0, 10.0, 10.0, 5.0, 7.0, 1.0])
    waits = Edges.of([4, 1, 4], [1, 5, 5], kind=[EdgeKind.WAIT, EdgeKind.WAIT, EdgeKind.STREAM])
    graph = replace(graph, tasks=tasks, edges=graph.edges.joined(waits), lanes=(*graph.lanes, other))
    graph = graph.with_tasks(lane=lane, duration_ns=duration, class_=np.where(lane == 1, 0, tasks.class_))
    start, end = simulate(applied("concurrent_gemms:4:default", graph))
    assert start[:3].tolist() == [0.0, 7.0, 7.0]  # the third came after the second's wait on its stream
    assert start[5] == end[1] == 17.0 and start[3] == 17.0


def test_experts_run_side_by_side_each_with_its_gather() -> None:
    up, down = batched_matmul(1, 64, 2816, 1024, 2), batched_matmul(1, 64, 1024, 2816, 2)
    gather, act = pointwise(64 * 1024), pointwise(64 * 2816)
    expert: list[Kernel] = [(gather, "aten::index"), up, act, down, (gather, "aten::index_add_")]
    graph = with_grids(stream(expert * 3), 0.25, [1.0, 10.0, 2.0, 10.0, 1.0] * 3)
    (group,) = independent_gemms(graph).groups
    assert group.runs == ((0, 1, 2, 3), (5, 6, 7, 8), (10, 11, 12, 13)) and group.evidence == "assumed"
    start, end = simulate(applied("concurrent_gemms:4:default", graph))
    assert start[[0, 5, 10]].tolist() == [0.0] * 3 and end[[3, 8, 13]].tolist() == [23.0] * 3
    assert start[[4, 9, 14]].tolist() == [23.0, 24.0, 25.0]  # sums into one tensor stay in order


def test_the_note_names_groups_and_what_is_left() -> None:
    graph = with_grids(stream([*QKV, GATE, SILU, DOWN]), 0.25)
    note = applied("concurrent_gemms:4:default", graph).notes[-1]
    assert note == (
        "concurrent_gemms: 3 GEMMs in 1 groups: 1 x (3 of 512x1024x1024 bf16) 3 at once (evidence: assumed); "
        "not grouped: 2 GEMMs: the product beside them may need them"
    )


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [
        ([SILU], "the iteration has no GEMM"),
        ([GATE, SILU, DOWN], "2 GEMMs: the product beside them may need them"),
        ([SQUARE], "1 GEMMs: no product beside"),
    ],
)
def test_without_groups_nothing_changes_and_the_note_says_why(kernels: list[Kernel], reason: str) -> None:
    graph = stream(kernels)
    changed = applied("concurrent_gemms", graph)
    assert changed.notes[-1] == f"concurrent_gemms: nothing to apply it to: {reason}"
    assert changed.tasks is graph.tasks and changed.edges is graph.edges


def test_kernels_of_unknown_shape_keep_their_time() -> None:
    graph = stream(QKV)
    unknown = graph.with_tasks(operator=np.full(4, -1))
    assert applied("concurrent_gemms", unknown).notes[-1].endswith("3 GEMMs: their shapes are unknown")


def test_tuned_kernels_need_the_device() -> None:
    notes = applied("concurrent_gemms:4:go", with_grids(stream(QKV), 0.25)).notes
    assert notes[-1] == (
        "concurrent_gemms: kernels stay as traced: the trace names no device of the catalogue; "
        "name it: --device NAME; docs/devices.md adds one"
    )


def test_tuned_kernels_are_used_only_if_their_set_is_faster() -> None:
    graph = replace(with_grids(stream(QKV), 0.6, [1e5] * 4), hardware=hardware_named(find_device("MI100"), "trace"))
    default, go = (simulate(applied(f"concurrent_gemms:4:{kernels}", graph))[1][3] for kernels in ("default", "go"))
    assert go <= default <= 4e5


def planned(graph: KernelGraph, **options: Any) -> GroupPlan:
    (plan,) = plan_groups(graph, independent_gemms(graph).groups, parameters=NOMINAL, **options)
    return plan


def on_mi100(graph: KernelGraph) -> KernelGraph:
    return replace(graph, hardware=hardware_named(find_device("MI100"), "trace"))


def test_chains_are_planned_step_by_step() -> None:
    up, down = batched_matmul(1, 64, 2816, 1024, 2), batched_matmul(1, 64, 1024, 2816, 2)
    expert: list[Kernel] = [(pointwise(64 * 1024), "aten::index"), up, pointwise(64 * 2816), down]
    graph = on_mi100(with_grids(stream(expert * 4), 0.25, [1e3, 3e4, 2e3, 2e4] * 4).with_tasks(dtype=np.full(16, FP16)))
    plan = planned(graph, degree=4)
    assert [each.rows for each in plan.sets] == [(1, 5, 9, 13), (3, 7, 11, 15)] and plan.degree == 4
    assert plan.sequential_ns == pytest.approx(2e5)
    assert plan.time_ns == pytest.approx(
        sum(each.share * 4 * ns for each, ns in zip(plan.sets, (3e4, 2e4), strict=True))
    )


def test_a_set_takes_its_planned_time_if_its_products_start_together() -> None:
    graph = on_mi100(with_grids(stream(QKV), 0.6, [6e4, 6e4, 6e4, 1e4]).with_tasks(dtype=np.full(4, FP16)))
    for options in ({"tuned": False}, {"tuned": True}):
        plan = planned(graph, degree=4, **options)
        assert plan.time_ns < plan.sequential_ns and plan.is_tuned <= options["tuned"]
        changed = applied(f"concurrent_gemms:4:{'go' if options['tuned'] else 'default'}", graph)
        assert simulate(changed)[1][:3].max() == pytest.approx(plan.time_ns, rel=1e-3)


def test_auto_and_the_command_take_the_fastest_degree() -> None:
    graph = on_mi100(with_grids(stream(QKV), 0.25, [6e4, 6e4, 6e4, 1e4]).with_tasks(dtype=np.full(4, FP16)))
    best = planned(graph)
    assert best.time_ns == min(planned(graph, degree=degree).time_ns for degree in (1, 2, 4))


def test_the_predictor_gives_the_degree() -> None:
    graph = on_mi100(with_grids(stream(QKV), 0.25, [6e4, 6e4, 6e4, 1e4]).with_tasks(dtype=np.full(4, FP16)))
    gemm = gemm_of_task(graph, 0)
    assert gemm is not None
    degree = load_degree_predictor().degree_of(gemm, 3, device=find_device("MI100"))
    assert planned(graph, predicted=True).degree == degree
    assert (
        applied("concurrent_gemms:predicted", graph).notes[-1] == applied(f"concurrent_gemms:{degree}", graph).notes[-1]
    )
    nameless = replace(graph, hardware=stream(QKV).hardware)
    assert (
        "products stay one after another: the trace names no device"
        in applied("concurrent_gemms:predicted", nameless).notes[-1]
    )


def test_products_too_far_apart_to_meet_keep_their_kernels() -> None:
    small: list[Kernel] = [batched_matmul(1, 128, 128, 1024, 4)] * 2
    graph = on_mi100(with_grids(stream(small), 1.0, [6e4, 6e4]).with_tasks(dtype=np.full(2, FP32)))
    assert planned(graph).is_tuned  # without a split, 120 workgroups have little to do
    apart = graph.with_tasks(release_ns=np.array([0.0, 1e6]))
    changed = applied("concurrent_gemms", apart)
    assert np.array_equal(changed.tasks.duration_ns, graph.tasks.duration_ns)
    assert np.array_equal(simulate(changed)[1], simulate(apart)[1])


@given(st.lists(st.floats(1.0, 1e6), min_size=2, max_size=16), st.floats(0.0, 1.0))
def test_kernels_that_share_a_device_take_the_time_of_their_set(durations: list[float], position: float) -> None:
    shortest, longest = max(durations), sum(durations)
    wanted = shortest + position * (longest - shortest)
    share = _share_of_device(np.array(durations), wanted)
    graph = with_grids(stream([SQUARE] * len(durations)), share, durations)
    together = replace(graph, edges=graph.edges.select(np.zeros(len(graph.edges), dtype=bool)))
    n = len(durations)
    lanes = tuple(Lane(0, 0, number) for number in range(n))
    together = replace(together, lanes=lanes).with_tasks(
        lane=np.arange(n), waves=np.zeros(n), interleaved=np.ones(n, dtype=bool)
    )
    assert simulate(together)[1].max() == pytest.approx(wanted, rel=1e-6, abs=0.01)


@pytest.mark.parametrize("text", ["0", "3", "x", "-1", "4.0"])
def test_another_degree_is_one_clear_line(text: str) -> None:
    with pytest.raises(SeqPointError, match=f"degree cannot be '{text}'") as error:
        parse_what_if(f"concurrent_gemms:{text}")
    assert "\n" not in str(error.value)


def test_it_is_a_step_of_plans_and_compositions() -> None:
    plan = '[[alternative]]\nsteps = [{what_if = "concurrent_gemms", degree = 4, kernels = "default"}]'
    assert parse_plan(plan, NOMINAL)[0].name == "concurrent_gemms:4:default"
    assert parse_what_if("concurrent_gemms").name == "concurrent_gemms:auto:go"
    graph = with_grids(stream(QKV), 0.25, [10.0, 30.0, 20.0, 5.0])
    faster = applied("concurrent_gemms:4:default+scale_kernels:gemm:0.5", graph)
    assert ends(faster) == [5.0, 15.0, 10.0, 20.0]
    assert ends(applied("scale_kernels:gemm:0.5+concurrent_gemms:4:default", graph)) == ends(faster)


@st.composite
def streams(draw: st.DrawFn) -> KernelGraph:
    kernels = draw(st.lists(st.sampled_from([SQUARE, GATE, DOWN, SILU, ATTENTION, None]), min_size=2, max_size=12))
    graph = stream(kernels)
    shares = draw(st.lists(st.sampled_from([0.1, 0.25, 0.5, 1.0]), min_size=len(kernels), max_size=len(kernels)))
    duration = draw(st.lists(st.integers(1, 50), min_size=len(kernels), max_size=len(kernels)))
    return with_grids(graph, 0.25, [float(each) for each in duration]).with_tasks(occupies=np.array(shares))


@settings(max_examples=60, deadline=None)
@given(streams(), st.sampled_from(["2", "4", "16", "auto"]))
def test_order_towards_tasks_outside_a_group_holds(graph: KernelGraph, degree: str) -> None:
    changed = applied(f"concurrent_gemms:{degree}:default", graph)
    start, end = simulate(changed)
    groups = independent_gemms(graph).groups
    member = {row: number for number, group in enumerate(groups) for row in group.gemms}
    first = [min(group.gemms) for group in groups]
    for early in range(len(graph.tasks)):
        for late in range(early + 1, len(graph.tasks)):
            inside = late in member and early >= first[member[late]]
            assert inside or end[early] <= start[late] + 1e-6
    assert end.max() <= graph.tasks.duration_ns.sum() * (1 + 1e-9)


def test_auto_keeps_the_order_if_the_step_as_a_whole_would_take_longer() -> None:
    # Products of one and a half waves. A copy waits for the first, and the last kernel for the copy. Products that
    # share the device end together, so that the first one ends later.
    graph = stream(QKV)
    tasks = graph.tasks.select(np.array([0, 1, 2, 3, 3]))
    edges = graph.edges.joined(Edges.of([0, 4], [4, 3], kind=EdgeKind.WAIT))
    lane, occupies = np.array([0, 0, 0, 0, 1]), np.array([1.0, 1.0, 1.0, 0.5, 0.0])
    demand = np.zeros((5, len(RESOURCES)))
    demand[:, RESOURCES.index("cu")] = occupies
    graph = replace(graph, tasks=tasks, edges=edges, lanes=(*graph.lanes, Lane(0, 0, 9))).with_tasks(
        duration_ns=np.array([40.0, 40.0, 40.0, 20.0, 80.0]), workgroups=np.array([162, 162, 162, 54, 0]),
        lane=lane, occupies=occupies, waves=1.5 * occupies, demand=demand, class_=tasks.class_ * (lane == 0)
    )  # fmt: skip
    assert simulate(graph)[1].max() == pytest.approx(140.0)
    assert simulate(applied("concurrent_gemms:2:default", graph))[1].max() == pytest.approx(160.0)
    auto = applied("concurrent_gemms:auto:default", graph)
    assert auto.edges is graph.edges and auto.notes[-1].endswith("the step would take 14.29% longer")


@settings(max_examples=30, deadline=None)
@given(streams())
def test_auto_is_never_slower_than_one_after_another_or_than_a_degree(graph: KernelGraph) -> None:
    plain = simulate(graph)[1].max()
    auto = simulate(applied("concurrent_gemms:auto:default", graph))[1].max()
    assert auto <= plain * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(streams(), st.sampled_from([1.5, 2.0, 4.0]))
def test_more_units_never_slow_products_side_by_side(graph: KernelGraph, factor: float) -> None:
    changed = applied("concurrent_gemms:4:default", graph)
    tasks = changed.tasks
    wide = changed.with_tasks(
        occupies=tasks.occupies / factor, waves=tasks.waves / factor, demand=tasks.demand / factor
    )
    assert simulate(wide)[1].max() <= simulate(changed)[1].max() * (1 + 1e-9)


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the traces in shared/data")
def test_a_real_step_keeps_its_work_and_is_no_slower_on_the_device() -> None:
    files = sorted(Path(DATA / "kineto/dlrm8").glob("*.json.gz"))[:1]
    graph = build_graph(collect(files), 10, parameters=NOMINAL)
    changed = applied("concurrent_gemms:2:default", graph)
    assert len(changed.lanes) == len(graph.lanes) + 1
    assert changed.tasks.kind.tolist() == graph.tasks.kind.tolist()
    on_host = graph.tasks.kind == TaskKind.HOST
    assert changed.tasks.lane[on_host].tolist() == graph.tasks.lane[on_host].tolist()
    assert simulate(changed)[1].max() <= simulate(graph)[1].max() * (1 + 1e-9)
