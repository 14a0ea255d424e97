"""Every ns of a timeline is accounted for: along its critical path, on its devices, and between two of them."""

from dataclasses import replace

import numpy as np
import pytest
from graphs import GIVEN, make_graph
from hypothesis import given
from hypothesis import strategies as st
from test_engine import graphs

from profilers.errors import InvalidInputError
from replay.analysis import (
    IDLE_CAUSES,
    Part,
    attribution,
    critical_path,
    difference,
    exposure,
    idle_by_cause,
    resource_use,
)
from replay.analysis.critical_path import binding_edges
from replay.engine.engine import TaskTimes, integrate_rates, wait_times
from replay.engine.layout import lay_out
from replay.engine.timeline import Timeline, replay
from replay.graph.graph import RESOURCES, EdgeKind, KernelGraph, Lane, TaskKind

CU, HBM = RESOURCES.index("cu"), RESOURCES.index("hbm")


def kinds(graph: KernelGraph, *kind: EdgeKind) -> KernelGraph:
    """Return the graph with edges of these kinds."""
    return replace(graph, edges=replace(graph.edges, kind=np.array(kind)))


def slack_ns(line: Timeline) -> np.ndarray:
    """Return how much later each task could end without a later end of the iteration."""
    edges = line.graph.edges
    since = np.where(edges.from_start, line.start_ns[edges.source], line.end_ns[edges.source])
    spare = np.maximum(line.start_ns[edges.target] - since - edges.lag_ns, 0.0)
    slack = np.where(line.graph.tasks.in_iteration, line.makespan_ns - line.end_ns, np.inf)
    for _ in slack:  # a chain has at most as many edges as there are tasks
        np.minimum.at(slack, edges.source, slack[edges.target] + spare)
    return slack


def resource_steps(line: Timeline, device: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the times at which the use of a device's resources changes, and the use from each of them on."""
    tasks = line.graph.tasks
    wait_ns = wait_times(line.graph, line.start_ns)
    times = TaskTimes(line.start_ns, line.end_ns, line.arrivals_ns(), wait_ns)
    takes_time = line.graph.on_device() & (line.end_ns > line.start_ns)
    rows = np.flatnonzero(takes_time & (tasks.device == device))
    return integrate_rates(lay_out(tasks, line.graph.policy), times, rows, np.zeros(len(tasks)), 6 * len(rows) + 1)


def demand(**shares: float) -> list[float]:
    return [shares.get(name, 0.0) for name in GIVEN]


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Replays of random graphs with host tasks, devices, collectives, copies, marks and work of earlier iterations."""
    graph = draw(graphs())
    n = len(graph.tasks)
    kind = np.array(draw(st.lists(st.sampled_from(list(TaskKind)), min_size=n, max_size=n)), dtype=np.int64)
    kind = np.where(graph.tasks.device < 0, int(TaskKind.HOST), np.where(kind == TaskKind.HOST, 1, kind))
    own = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    release = np.array(draw(st.lists(st.integers(0, 9000), min_size=n, max_size=n)), dtype=np.float64)
    duration = np.where(kind == TaskKind.MARK, 0.0, graph.tasks.duration_ns)
    edges = len(graph.edges)
    edge_kind = np.array(
        draw(st.lists(st.sampled_from(list(EdgeKind)), min_size=edges, max_size=edges)), dtype=np.int64
    )
    graph = graph.with_tasks(kind=kind, iteration=np.where(own, 0, -1), release_ns=release, duration_ns=duration)
    lanes = (Lane(0, None, 1), Lane(0, 0, 7), Lane(0, 1, 7), Lane(1, 0, 7))
    graph = graph.with_tasks(lane=graph.tasks.device + 1)
    graph = replace(graph, edges=replace(graph.edges, kind=edge_kind), lanes=lanes, devices=((0, 0), (0, 1), (1, 0)))
    return replay(graph)


@given(timelines())
def test_the_pieces_of_a_critical_path_are_the_makespan(line: Timeline) -> None:
    path = critical_path(line)
    assert path.ns.sum() == pytest.approx(line.makespan_ns, abs=1e-6, rel=1e-12)
    assert (path.ns > 0).all()
    # One piece ends where the next begins, from the origin to the end.
    bounds = np.append(path.begin_ns, line.makespan_ns)
    np.testing.assert_allclose(path.begin_ns + path.ns, bounds[1:], rtol=1e-12, atol=1e-6)
    assert not len(path) or path.begin_ns[0] == 0
    found = attribution(path)
    for by in (found.by_cause, found.by_class, found.by_name):
        assert sum(by.values()) == pytest.approx(line.makespan_ns, abs=1e-6, rel=1e-12)
        assert all(value > 0 for value in by.values())


@given(timelines())
def test_only_a_device_keeps_a_ready_task_waiting_and_the_path_has_no_slack(line: Timeline) -> None:
    path = critical_path(line)
    kept = path.part == Part.READY
    assert (line.graph.tasks.device[path.task[kept]] >= 0).all()
    slack = slack_ns(line)
    assert (slack >= 0).all()
    own = line.graph.tasks.in_iteration
    assert not own.any() or slack[own].min() <= 1e-6
    assert kept.any() or (slack[path.task] <= 1e-6).all()


@given(timelines())
def test_a_device_is_busy_or_idle_for_a_cause(line: Timeline) -> None:
    idle = idle_by_cause(line)
    total = idle.busy_ns + idle.cause_ns.sum(axis=1)
    np.testing.assert_allclose(total, line.makespan_ns, rtol=1e-12, atol=1e-6)
    np.testing.assert_allclose(idle.busy_ns, line.busy_ns(), atol=1e-6)
    np.testing.assert_allclose(idle.busy_ns, [union(work_of(line, device)) for device in range(3)], atol=1e-6)
    own = line.graph.tasks.in_iteration
    np.testing.assert_allclose(
        idle.busy_ns - idle.earlier_ns, [union(work_of(line, device, own)) for device in range(3)], atol=1e-6
    )
    assert (idle.cause_ns >= 0).all() and (idle.earlier_ns >= -1e-6).all() and (idle.slowed_ns >= 0).all()


@given(timelines())
def test_exposure_agrees_with_unions_of_intervals(line: Timeline) -> None:
    found, kind = exposure(line), line.graph.tasks.kind
    copy, collective = kind == TaskKind.COPY, line.graph.collectives()
    for device, times in enumerate(found.times):
        busy = union(work_of(line, device))
        compute, copies, collectives = (
            union(work_of(line, device, rows)) for rows in (~copy & ~collective, copy, collective)
        )
        assert times.busy_ns == pytest.approx(busy, abs=1e-6) == pytest.approx(found.busy_ns[device], abs=1e-6)
        assert times.communication_ns == pytest.approx(collectives, abs=1e-6)
        assert times.exposed_ns == pytest.approx(busy - union(work_of(line, device, ~collective)), abs=1e-6)
        assert times.hidden_ns + times.exposed_ns == pytest.approx(times.communication_ns, abs=1e-6)
        assert found.compute_ns[device] == pytest.approx(compute, abs=1e-6)
        assert found.copy_ns[device] == pytest.approx(copies, abs=1e-6)
        without_copies = union(work_of(line, device, ~copy))
        assert found.beside_compute_ns[device] == pytest.approx(compute + collectives - without_copies, abs=1e-6)
        assert found.exposed_copy_ns[device] == pytest.approx(busy - without_copies, abs=1e-6)


@given(timelines(), st.integers(1, 40))
def test_what_tasks_use_is_their_demand_for_their_isolated_time(line: Timeline, bins: int) -> None:
    tasks = line.graph.tasks
    used = resource_use(replace_own(line), bins)
    width = np.diff(used.edges_ns).mean()
    for device in range(3):
        rows = line.graph.on_device() & (tasks.device == device)
        whole = (tasks.demand[rows] * tasks.duration_ns[rows, None]).sum(axis=0)
        times, use = resource_steps(line, device)
        assert (np.diff(times) >= 0).all() and (use >= 0).all() and not use[-1:].any()
        assert (use <= 1 + 1e-9).all()  # no resource over 100 % at any instant
        spent = (use[:-1] * np.diff(times)[:, None]).sum(axis=0)
        np.testing.assert_allclose(used.use[device].sum(axis=0) * width, spent, rtol=1e-6, atol=1e-2)
        fair = np.arange(len(RESOURCES)) != CU
        np.testing.assert_allclose(spent[fair], whole[fair], rtol=1e-6, atol=1e-2)
        assert spent[CU] >= whole[CU] - 1e-2  # they are held while a task waits for memory


def work_of(line: Timeline, device: int, chosen: np.ndarray | bool = True) -> np.ndarray:
    """Return the (start, end) of the chosen tasks on a device, cut at the ends of the timeline."""
    rows = np.flatnonzero(line.graph.on_device() & (line.graph.tasks.device == device) & chosen)
    return np.clip(np.stack([line.start_ns[rows], line.end_ns[rows]], axis=1), 0.0, line.makespan_ns)


def union(intervals: np.ndarray) -> float:
    """Return the length of the union of intervals, by counting at every border."""
    borders = np.unique(intervals)
    middles = (borders[1:] + borders[:-1]) / 2
    covered = [((intervals[:, 0] < middle) & (middle < intervals[:, 1])).any() for middle in middles]
    return float(np.diff(borders)[covered].sum()) if len(middles) else 0.0


def replace_own(line: Timeline) -> Timeline:
    """Return the timeline with every task its own, so that none reaches beyond its end."""
    return replace(line, graph=line.graph.with_tasks(iteration=np.zeros(len(line.graph.tasks), dtype=np.int64)))


@given(timelines(), timelines())
def test_a_difference_adds_up_to_the_change_of_the_makespan(before: Timeline, after: Timeline) -> None:
    found = difference(before, after)
    change = after.makespan_ns - before.makespan_ns
    for by in (found.path_by_cause, found.path_by_class):
        assert sum(by.values()) == pytest.approx(change, abs=1e-5)
    for rows in (found.by_class, found.by_kind, found.by_lane):
        for line, time, count in ((before, "before_ns", "before_count"), (after, "after_ns", "after_count")):
            tasks = line.graph.tasks
            mine = tasks.in_iteration & (tasks.kind != TaskKind.MARK)
            assert sum(getattr(row, time) for row in rows) == pytest.approx((line.end_ns - line.start_ns)[mine].sum())
            assert sum(getattr(row, count) for row in rows) == mine.sum()


def test_nothing_differs_between_a_timeline_and_itself() -> None:
    line = replay(make_graph([100, 50], [demand(cu=1.0)] * 2, edges=[(0, 1, 5.0)]))
    found = difference(line, line)
    assert not any(found.path_by_cause.values()) and not any(row.change_ns for row in found.by_class)


def test_the_order_of_edges_does_not_change_what_binds() -> None:
    # Tasks 0 and 1 both end at 100; 2 hears of 0 after 10 more and of 1 after 10 more, and of 3, at 90, after 20.
    edges = [(0, 2, 10.0), (1, 2, 10.0), (3, 2, 20.0)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        line = replay(make_graph([100, 100, 5, 90], edges=[edges[i] for i in order]))
        (edge,) = (binding_edges(line)[2],)
        assert line.graph.edges.source[edge] == 0


def test_a_path_through_launch_contention_and_another_stream_worked_out_by_hand() -> None:
    # Host call 0 (0..10) launches kernel 1 from its start after 20 (20..), and kernel 2 on another stream (20..).
    # Both use the whole memory: 100 and 60 alone. Shared until 2 is done at 20 + 120 = 140; then 1 has 40 left: 180.
    # Kernel 3 (30 alone) waits for 1 and 5 more: 185..215.
    graph = make_graph(
        [10, 100, 60, 30],
        [demand(), demand(hbm=1.0), demand(hbm=1.0), demand(hbm=1.0)],
        edges=[(0, 1, 20.0, True), (0, 2, 20.0, True), (1, 3, 5.0)],
        device=[-1, 0, 0, 0],
        kind=[TaskKind.HOST, TaskKind.KERNEL, TaskKind.KERNEL, TaskKind.KERNEL],
    )
    graph = kinds(graph, EdgeKind.LAUNCH, EdgeKind.LAUNCH, EdgeKind.WAIT)
    line = replay(graph)
    assert line.makespan_ns == pytest.approx(215)
    path = critical_path(line)
    assert path.tasks().tolist() == [1, 3]
    assert attribution(path).by_cause == pytest.approx(
        {"launch lag": 20, "kernel": 130, "contention": 60, "wait lag": 5}
    )
    # Task 2 ends at 140 and nothing waits for it: 75 to spare.
    np.testing.assert_allclose(slack_ns(line), [0, 0, 75, 0])


def test_why_a_device_idles_worked_out_by_hand() -> None:
    # GPU 0: task 1 (launched: 0..50), task 3 at 100 (waits for GPU 1's task 2, which ends at 80, and 20 more).
    # GPU 1: task 2 (30..80 after its launch). Task 4 on GPU 0: 20,000 after 3 for no reason. The host ends at 30,000.
    graph = make_graph(
        [5, 50, 50, 10, 40, 30_000],
        [demand()] * 6,
        edges=[(0, 1, 0.0, True), (0, 2, 30.0, True), (2, 3, 20.0), (3, 4, 20_000.0)],
        device=[-1, 0, 1, 0, 0, -1],
        kind=[TaskKind.HOST, *[TaskKind.KERNEL] * 4, TaskKind.HOST],
    )
    graph = kinds(graph, EdgeKind.LAUNCH, EdgeKind.LAUNCH, EdgeKind.WAIT, EdgeKind.STREAM)
    line = replay(replace(graph, devices=((0, 0), (0, 1))))
    idle = idle_by_cause(line)
    causes = [dict(zip(IDLE_CAUSES, row, strict=True)) for row in idle.cause_ns.tolist()]
    end = 110 + 20_000 + 40
    assert causes[0] == {"host": 0, "dependency": 30, "pause": 20, "unexplained": 20_000, "done": 30_000 - end}
    assert causes[1] == {"host": 30, "dependency": 0, "pause": 0, "unexplained": 0, "done": 30_000 - 80}


def test_contention_that_slows_a_device_is_told_apart_from_idling() -> None:
    line = replay(make_graph([100, 100], [demand(hbm=1.0)] * 2))
    idle = idle_by_cause(line)
    assert idle.slowed_ns.tolist() == [200] and not idle.cause_ns.any()


def test_the_use_of_a_resource_over_time_worked_out_by_hand() -> None:
    # 0..100 half the units, 50..150 a quarter of memory beside it, nothing slowed.
    line = replay(make_graph([100, 100], [demand(cu=0.5), demand(hbm=0.25)], release_ns=[0, 50]))
    times, use = resource_steps(line, 0)
    assert times.tolist() == [0, 50, 100, 150]
    assert use[:, CU].tolist() == [0.5, 0.5, 0, 0] and use[:, HBM].tolist() == [0, 0.25, 0.25, 0]
    binned = resource_use(line, 3)
    np.testing.assert_allclose(binned.use[0][:, CU], [0.5, 0.5, 0])
    np.testing.assert_allclose(binned.use[0][:, HBM], [0, 0.25, 0.25])


def test_the_use_of_what_is_slowed_is_never_over_the_whole() -> None:
    # Two that use the whole memory: half each until the short one is done at 80, then all of it: never over 100 %.
    line = replay(make_graph([100, 40], [demand(hbm=1.0, cu=0.2), demand(hbm=1.0, cu=0.4)]))
    times, use = resource_steps(line, 0)
    assert times.tolist() == [0, 80, 140]
    np.testing.assert_allclose(use[:, HBM], [1.0, 1.0, 0.0])
    np.testing.assert_allclose(use[:, CU], [0.6, 0.2, 0.0])


def test_a_measured_timeline_whose_clocks_disagree_is_still_accounted_for() -> None:
    # The task is measured to start before what it waits for has ended, and another late without a reason.
    graph = make_graph([10, 10, 10], edges=[(0, 1, 5.0), (1, 2, 5.0)])
    line = Timeline(graph, np.array([0.0, 8.0, 40.0]), np.array([10.0, 18.0, 50.0]))
    path = critical_path(line)
    assert path.ns.sum() == 50
    assert attribution(path).by_cause == {"kernel": 20, "stream lag": 5, "ready": 17, "release": 8}


def test_an_empty_graph_has_an_empty_path() -> None:
    line = replay(make_graph([]))
    assert not len(critical_path(line))
    assert attribution(critical_path(line)).makespan_ns == 0


def test_bad_arguments_are_named() -> None:
    line = replay(make_graph([1]))
    with pytest.raises(InvalidInputError, match="0 intervals"):
        resource_use(line, 0)
