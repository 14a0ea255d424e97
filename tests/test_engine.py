from dataclasses import fields, replace

import numpy as np
import pytest
from graphs import GIVEN, INTERFERENCE, N_UNITS, make_graph, placed_graphs
from hypothesis import assume, given
from hypothesis import strategies as st
from reference_engine import UndecidedError, simulate_plainly

from profilers.errors import InvalidInputError
from replay.costs.demand import measured_beside, with_isolated_durations
from replay.engine.engine import simulate
from replay.engine.timeline import replay
from replay.graph.graph import FROM_HOST, RESOURCES, EdgeKind, KernelGraph, Lane, SharingPolicy, TaskKind, peer_link

BANDWIDTH = (0.1, 1.0)


@st.composite
def graphs(draw: st.DrawFn, *, waves: bool = False) -> KernelGraph:
    """Random graphs whose edges go forward, with integral times in ns; with `waves`, of tasks that have last waves."""
    n = draw(st.integers(1, 12))
    durations = draw(st.lists(st.integers(0, 10_000), min_size=n, max_size=n))
    # No share between nothing and a thousandth: rounding would decide whether it still fits.
    share = st.one_of(st.just(0.0), st.floats(1e-3, 1))
    shares = st.lists(share, min_size=4, max_size=4)
    demands = draw(st.lists(shares, min_size=n, max_size=n))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(0, 500), st.booleans())
    edges = [(min(a, b), max(a, b), float(lag), s) for a, b, lag, s in draw(st.lists(pairs, max_size=20)) if a != b]
    device = draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n))
    more = {"waves": draw(st.lists(st.floats(0, 5), min_size=n, max_size=n))} if waves else {}
    return make_graph(durations, demands, edges, device=device, **more)


def assert_it_follows_the_plain_rules(graph: KernelGraph, rtol: float = 1e-6) -> None:
    try:
        plain = simulate_plainly(graph, N_UNITS)
    except UndecidedError:
        assume(False)
    for times, expected in zip(simulate(graph), plain, strict=True):
        np.testing.assert_allclose(times, expected, rtol=rtol, atol=0.5)


@st.composite
def contended_graphs(draw: st.DrawFn, kernels: st.SearchStrategy[KernelGraph]) -> KernelGraph:
    """Random graphs with collectives whose ranks meet, and with interference, beside kernels of a graph."""
    kernels = draw(kernels)
    columns = {f.name: getattr(kernels.tasks, f.name).tolist() for f in fields(kernels.tasks) if f.name != "demand"}
    durations, demands = columns.pop("duration_ns"), kernels.tasks.demand[:, [RESOURCES.index(x) for x in GIVEN[:4]]]
    demands = demands.tolist()
    columns["lane"] = [max(device, 0) for device in columns["device"]]
    names = ("source", "target", "lag_ns", "from_start")
    edges = list(zip(*(getattr(kernels.edges, name).tolist() for name in names), strict=True))
    is_met = [False] * len(edges)
    n = len(durations)
    for _ in range(draw(st.integers(1, 3))):
        devices = draw(st.lists(st.integers(0, 2), min_size=2, max_size=3, unique=True))
        first = len(durations)
        meeting = first + len(devices)
        for k, device in enumerate([*devices, -1, *devices]):
            kind = TaskKind.COLLECTIVE if first + k > meeting else TaskKind.MARK
            units = draw(st.sampled_from([0.1, 0.5, 0.95, 1.0])) if kind == TaskKind.COLLECTIVE else 0.0
            row = {"kind": kind, "device": device, "lane": 3 + device if device >= 0 else -1, "occupies": units}
            row |= {"release_ns": 0.0, "in_rounds": False, "stays": True, "spreads": False}
            for name, values in columns.items():
                values.append(row.get(name, 0 if name in {"waves", *INTERFERENCE} else values[0]))
            columns["waves"][-1] = draw(st.sampled_from([0.0, units]))
            durations.append(draw(st.integers(1, 10_000)) if kind == TaskKind.COLLECTIVE else 0)
            demands.append([units, 0.1, units, 0.0])
        for k in range(len(devices)):
            before = draw(st.integers(0, n - 1))
            edges += [(before, first + k, float(draw(st.integers(0, 500))), False)]
            edges += [(first + k, meeting, 0.0, False), (meeting, meeting + 1 + k, 0.0, False)]
            is_met += [False, True, True]
    for name, most in zip(INTERFERENCE, (2.0, 3.0), strict=True):
        values = st.lists(
            st.one_of(st.just(0.0), st.floats(0.01, most)), min_size=len(durations), max_size=len(durations)
        )
        columns[name] = draw(values)
    graph = make_graph(durations, demands, edges, **columns)
    kind = np.where(is_met, int(EdgeKind.RENDEZVOUS), graph.edges.kind)
    lanes = tuple(Lane(0, device % 3, device) for device in range(6))
    defers = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(durations), max_size=len(durations)))
    graph = graph.with_tasks(defers=np.array(defers))
    shares = {"waiting_pressure": [0.0, 0.2, 1.0], "deferred_share": [0.0, 0.1, 0.5]}
    policy = replace(graph.policy, **{name: draw(st.sampled_from(values)) for name, values in shares.items()})
    return replace(graph, edges=replace(graph.edges, kind=kind), lanes=lanes, policy=policy)


def test_two_equal_bandwidth_bound_kernels_take_twice_as_long_together() -> None:
    start, end = simulate(make_graph([100, 100], [BANDWIDTH, BANDWIDTH]))
    np.testing.assert_allclose(start, [0, 0])
    np.testing.assert_allclose(end, [200, 200])


def test_a_compute_bound_and_a_bandwidth_bound_kernel_overlap_free() -> None:
    _, end = simulate(make_graph([100, 80], [(0.9, 0.1), (0.1, 0.9)]))
    np.testing.assert_allclose(end, [100, 80])


def test_three_kernels_on_one_bottleneck_worked_out_by_hand() -> None:
    # Demands 1, 1, 1 on one resource, durations 30, 60, 90: shared by three until 30 is done at 90; by two until
    # 60 is done at 90 + 2 * 30 = 150; then alone: 150 + 30 = 180, the serial sum.
    _, end = simulate(make_graph([30, 60, 90], [BANDWIDTH] * 3))
    np.testing.assert_allclose(end, [90, 150, 180])


def test_three_way_sharing_with_different_demands_worked_out_by_hand() -> None:
    # HBM 0.9, 0.6, 0.3 and work 60, 60, 60: all at 1 / 1.8 = 5/9 until they end together at 108.
    _, end = simulate(make_graph([60, 60, 60], [(0, 0.9), (0, 0.6), (0, 0.3)]))
    np.testing.assert_allclose(end, [108, 108, 108])
    # Work 30, 60, 60: the first ends at 30 * 9/5 = 54, when the others have done 30; 0.6 + 0.3 fit, so 30 more.
    _, end = simulate(make_graph([30, 60, 60], [(0, 0.9), (0, 0.6), (0, 0.3)]))
    np.testing.assert_allclose(end, [54, 84, 84])


def test_memory_for_a_transfer_that_defers_worked_out_by_hand() -> None:
    # A kernel that wants all of the memory for 90 ns, beside a transfer of 50 ns. Alike, each has half until the
    # transfer is done at 100. With a tenth kept for the transfer, the kernel has 0.9 until it is done at 100, when the
    # transfer has done 10 of 50.
    alike = make_graph([90, 50], [(0.5, 1.0), (0.0, 1.0)], defers=[0.0, 1.0])
    np.testing.assert_allclose(simulate(alike)[1], [140, 100])
    graph = replace(alike, policy=replace(alike.policy, deferred_share=0.1))
    np.testing.assert_allclose(simulate(graph)[1], [100, 140])
    # A kernel that leaves 0.4 is not slowed; the transfer does 36 of 50 beside it.
    modest = graph.with_tasks(demand=graph.tasks.demand * np.array([[0.6], [1.0]]))
    np.testing.assert_allclose(simulate(modest)[1], [90, 104])


def test_links_belong_to_pairs_of_devices() -> None:
    # Two copies to different peers do not meet; both meet what uses all links, and neither meets the host's link.
    copy, link = (0.0, 0.0, 1.0), peer_link(np.array([1, 2]))
    two = make_graph([100, 100], [copy, copy], link=link.tolist())
    np.testing.assert_allclose(simulate(two)[1], [100, 100])
    same = two.with_tasks(link=link[[0, 0]])
    np.testing.assert_allclose(simulate(same)[1], [200, 200])
    # All links beside a copy to the second peer, which has half of its link until 200, and one from the host.
    three = make_graph([100, 100, 100], [copy] * 3, link=[-1, int(link[1]), FROM_HOST])
    np.testing.assert_allclose(simulate(three)[1], [200, 200, 100])


def test_a_kernel_that_fills_the_device_starves_a_collective_until_its_tail() -> None:
    # A GEMM of 2.5 waves in 300 ns: its last wave begins at 200 and fills half of the device. A collective of 0.2 that
    # comes at 10 starts at 200 and takes 50.
    gemm = {"waves": [2.5, 0.2], "release_ns": [0, 10]}
    start, end = simulate(make_graph([300, 50], [(1.0,), (0.2,)], **gemm))
    np.testing.assert_allclose(start, [0, 200])
    np.testing.assert_allclose(end, [300, 250])


def test_priority_ends_that() -> None:
    # It starts at once and takes a fifth of the device for 50 ns, in which the GEMM does 0.8 * 50 = 40: 310 in all.
    gemm = {"waves": [2.5, 0.2], "release_ns": [0, 10], "priority": [0, 1]}
    start, end = simulate(make_graph([300, 50], [(1.0,), (0.2,)], **gemm))
    np.testing.assert_allclose(start, [0, 10])
    np.testing.assert_allclose(end, [310, 60])


def test_workgroups_that_run_already_are_not_preempted() -> None:
    # One wave of 0.9: whoever comes later, at whatever priority, gets the 0.1 that is left until it ends at 100. By
    # then it has done 80 / 2 = 40 of its 50.
    one = {"waves": [0.9, 0.2], "release_ns": [0, 20], "priority": [0, 9]}
    start, end = simulate(make_graph([100, 50], [(0.9,), (0.2,)], **one))
    np.testing.assert_allclose(start, [0, 20])
    np.testing.assert_allclose(end, [100, 110])


def test_a_partition_keeps_units_for_a_collective() -> None:
    # 8 of 80 units for a collective that fills 8, the rest for a GEMM that would fill all: 100 / 0.9 = 111.1.
    graph = make_graph([100, 60], [(1.0,), (0.1,)], cu_mask=[1, 2])
    split = replace(graph, policy=SharingPolicy(partitions=(0.9, 0.1)))
    start, end = simulate(split)
    np.testing.assert_allclose(start, [0, 0])
    np.testing.assert_allclose(end, [100 / 0.9, 60])


def test_a_kernel_and_an_all_reduce_make_each_other_longer_by_what_is_worked_out() -> None:
    # A 300 us kernel that draws 0.9 of the memory beside a 343 us all-reduce that draws 0.3: together 1.2, so both run
    # at 1 / 1.2 until the kernel ends at 360 us, when the all-reduce has done 300; its last 43 us are alone: 403 us.
    kernel, all_reduce = (0.5, 0.9), (0.1, 0.3, 1.0)
    _, end = simulate(make_graph([300e3, 343e3], [kernel, all_reduce]))
    np.testing.assert_allclose(end, [360e3, 403e3])


def test_a_starved_task_starts_when_it_first_gets_units_and_tells_those_that_wait_for_its_start() -> None:
    edges = [(1, 2, 5.0, True)]
    start, end = simulate(make_graph([100, 20, 10], [(1.0,), (0.3,), (0.7,)], edges))
    np.testing.assert_allclose(start, [0, 100, 105])
    np.testing.assert_allclose(end, [100, 120, 115])


def test_forty_kernels_that_fill_a_device_take_their_sum_and_small_ones_do_not() -> None:
    assert replay(make_graph([100_000] * 40, [(1.0,)] * 40)).makespan_ns == pytest.approx(4e6)
    assert replay(make_graph([100_000] * 40, [(1 / 40,)] * 40)).makespan_ns == pytest.approx(1e5)


def test_a_chain_ends_at_its_sum_with_lags() -> None:
    _, end = simulate(make_graph([5, 7, 11], edges=[(0, 1, 2.0), (1, 2, 3.0)]))
    np.testing.assert_allclose(end, [5, 14, 28])


def test_an_edge_from_the_start_does_not_wait_for_the_end() -> None:
    start, _ = simulate(make_graph([100, 10], edges=[(0, 1, 4.0, True)]))
    np.testing.assert_allclose(start, [0, 4])


def test_a_release_time_holds_a_task_back() -> None:
    start, _ = simulate(make_graph([10, 10], release_ns=[0, 25]))
    np.testing.assert_allclose(start, [0, 25])


@pytest.mark.parametrize("far", [1e12, 1e15, 1e18])
def test_it_ends_however_far_from_the_origin(far: float) -> None:
    _, end = simulate(make_graph([10, 20, 30], [(0.7,)] * 3, release_ns=[far, far + 3, far]))
    assert ((end >= far) & (end <= far + 63 + 1e-14 * far)).all()


def test_tasks_on_different_devices_do_not_share() -> None:
    _, end = simulate(make_graph([100, 100], [(1.0,), (1.0,)], device=[0, 1]))
    np.testing.assert_allclose(end, [100, 100])


def test_more_active_tasks_than_the_engine_first_has_room_for() -> None:
    _, end = simulate(make_graph([10] * 33, [(0, 1.0)] * 33))
    np.testing.assert_allclose(end, [330] * 33)


def test_a_circle_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"circle: kernel \(task \d\) -> kernel \(task \d\) -> kernel"):
        simulate(make_graph([1, 1], edges=[(0, 1), (1, 0)]))


def test_a_negative_lag_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"edge 0 \(kernel, task 0 -> kernel, task 1\) has a lag of -1"):
        make_graph([1, 1], edges=[(0, 1, -1.0)])


def test_an_empty_graph_takes_no_time() -> None:
    assert replay(make_graph([])).makespan_ns == 0


@given(graphs())
def test_makespan_lies_between_the_critical_path_and_the_serial_sum(graph: KernelGraph) -> None:
    tasks, edges = graph.tasks, graph.edges
    start, end = simulate(graph)
    alone = np.zeros(len(tasks))
    begins = np.zeros(len(tasks))
    for target in range(len(tasks)):  # edges go forward
        for e in np.flatnonzero(edges.target == target):
            source = edges.source[e]
            begins[target] = max(begins[target], (begins if edges.from_start[e] else alone)[source] + edges.lag_ns[e])
        alone[target] = begins[target] + tasks.duration_ns[target]
    assert end.max() >= alone.max() - 1e-3
    assert end.max() <= tasks.duration_ns.sum() + edges.lag_ns.sum() + 1e-3
    assert (end - start >= tasks.duration_ns - 1e-2).all()


@given(graphs())
def test_every_edge_is_kept(graph: KernelGraph) -> None:
    start, end = simulate(graph)
    edges = graph.edges
    since = np.where(edges.from_start, start[edges.source], end[edges.source])
    assert (start[edges.target] >= since + edges.lag_ns - 1e-6).all()


@given(placed_graphs())
def test_it_does_what_the_plain_rules_do(graph: KernelGraph) -> None:
    assert_it_follows_the_plain_rules(graph)


@given(placed_graphs(in_memory=True))
def test_memory_under_load_does_what_the_plain_rules_do(graph: KernelGraph) -> None:
    assert_it_follows_the_plain_rules(graph)


@given(contended_graphs(placed_graphs(most=5)))
def test_meetings_and_interference_do_what_the_plain_rules_do(graph: KernelGraph) -> None:
    assert_it_follows_the_plain_rules(graph)


@given(
    contended_graphs(graphs(waves=True)),
    st.sampled_from([(1.0,), (0.9, 0.1), (0.3, 0.4, 0.3)]),
    st.booleans(),
    st.data(),
)
def test_collectives_that_wait_let_every_other_task_end(graph, partitions, in_order, data) -> None:
    n = len(graph.tasks)
    policy = replace(graph.policy, partitions=partitions, in_order=in_order)
    numbers = data.draw(st.lists(st.integers(1, (1 << len(partitions)) - 1), min_size=n, max_size=n))
    interleaved = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    priority = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    columns = {"cu_mask": np.array(numbers), "interleaved": np.array(interleaved), "priority": np.array(priority)}
    start, end = simulate(replace(graph, policy=policy).with_tasks(**columns))
    edges = graph.edges
    assert (end - start >= graph.tasks.duration_ns - 1e-2).all()
    since = np.where(edges.from_start, start[edges.source], end[edges.source])
    assert (start[edges.target] >= since + edges.lag_ns - 1e-6).all()


@given(graphs())
def test_it_is_deterministic_and_ignores_the_order_of_edges(graph: KernelGraph) -> None:
    one = simulate(graph)
    backwards = graph.edges.select(np.arange(len(graph.edges))[::-1])
    other = simulate(KernelGraph(graph.tasks, backwards, graph.names, graph.lanes, graph.devices, 0.0))
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])


@given(graphs())
def test_inverting_the_sharing_returns_the_durations_where_all_get_equal_parts(graph: KernelGraph) -> None:
    graph = replace(graph, policy=SharingPolicy(in_order=False))
    start, end = simulate(graph)
    measured = graph.with_tasks(measured_start_ns=start, measured_end_ns=end, duration_ns=end - start)
    on_device = graph.on_device()
    found = with_isolated_durations(measured).tasks.duration_ns
    np.testing.assert_allclose(found[on_device], graph.tasks.duration_ns[on_device], atol=0.1, rtol=1e-6)


def test_what_was_measured_longer_than_it_is_known_to_take_keeps_its_units_to_its_end() -> None:
    # The first has done its 10 ns by 20, when the second comes at a higher priority; it was measured until 100, and
    # what stays is not preempted: the second has 0.3 of the 0.7 that it wants for 80 ns, then all for 20. Workgroups
    # out of step would make way.
    graph = make_graph(
        [10, 100], [(0.7,), (0.7,)], priority=[0, 1], measured_start_ns=[0, 20], measured_end_ns=[100, 120]
    )
    np.testing.assert_allclose(with_isolated_durations(graph).tasks.duration_ns[1], 100)
    graph = graph.with_tasks(stays=np.array([True, False]))
    np.testing.assert_allclose(with_isolated_durations(graph).tasks.duration_ns[1], 80 * 0.3 / 0.7 + 20)


@given(graphs(waves=True))
def test_what_was_measured_is_replayed_from_the_durations_found_in_it(graph: KernelGraph) -> None:
    start, end = simulate(graph)
    measured = graph.with_tasks(measured_start_ns=start, measured_end_ns=end, duration_ns=end - start, release_ns=start)
    measured = replace(measured, edges=measured.edges.select(np.zeros(len(measured.edges), dtype=bool)))
    beside = measured_beside(measured)
    measured = measured.with_tasks(interleaved=beside, waves=np.where(beside, 0.0, graph.tasks.waves))
    again = simulate(measured.with_tasks(duration_ns=with_isolated_durations(measured).tasks.duration_ns))
    np.testing.assert_allclose(again[0], start, atol=0.1, rtol=1e-6)
    np.testing.assert_allclose(again[1], end, atol=0.1, rtol=1e-6)


def check_shuffled(graph: KernelGraph, random, step_ns: float, rtol: float) -> None:
    """Check that tasks without edges, which arrive `step_ns` apart, may stand in any order."""
    n = len(graph.tasks)
    graph = graph.with_tasks(release_ns=step_ns * np.arange(n))
    graph = replace(graph, edges=graph.edges.select(np.zeros(len(graph.edges), dtype=bool)))
    order = list(range(n))
    random.shuffle(order)
    shuffled = graph.with_tasks(**{f.name: getattr(graph.tasks, f.name)[order] for f in fields(graph.tasks)})
    for again, before in zip(simulate(shuffled), simulate(graph), strict=True):
        np.testing.assert_allclose(again, before[order], rtol=rtol, atol=1e-2)


@given(graphs(waves=True), st.randoms(use_true_random=False))
def test_shuffled_tasks_change_nothing_where_no_two_arrive_together(graph: KernelGraph, random) -> None:
    check_shuffled(graph, random, 1e6, 1e-12)


@given(placed_graphs(), st.randoms(use_true_random=False))
def test_shuffled_tasks_change_nothing_on_shared_units_either(graph: KernelGraph, random) -> None:
    check_shuffled(graph, random, 997.0, 1e-9)


@given(placed_graphs(most=1), st.sampled_from([1.0, 0.5]))
def test_a_task_alone_takes_its_duration_on_more_units_and_bandwidth_as_well(graph: KernelGraph, factor: float) -> None:
    # A copy that uses no unit has the engine place the task. A task that spreads has half of its workgroups at first.
    columns = {f.name: getattr(graph.tasks, f.name).tolist() * 2 for f in fields(graph.tasks) if f.name != "demand"}
    columns |= {"device": [0, 0], "release_ns": [0, 0], "spreads": [False] * 2, "spins": [0, 0], "memory_part": [0, 0]}
    columns |= {"occupies": [columns["occupies"][0], 0], "sensitivity": [0, 0], "waves": [columns["waves"][0], 0]}
    demand = (graph.tasks.demand[0, [RESOURCES.index(name) for name in GIVEN]] * factor).tolist()
    columns["duration_ns"][1] = 1e6
    start, end = simulate(make_graph(columns.pop("duration_ns"), [demand, [0.0] * 6], **columns))
    assert (start == 0).all()
    np.testing.assert_allclose(end, [graph.tasks.duration_ns[0], 1e6], rtol=1e-9)


@given(graphs(waves=True), st.integers(2, 5))
def test_a_task_split_into_parts_that_follow_each_other_takes_as_long(graph: KernelGraph, parts: int) -> None:
    # Alone on its device, split then put together again is the identity.
    duration = float(graph.tasks.duration_ns[0])
    chain = make_graph([duration / parts] * parts, [(0.5, 0.5)] * parts, [(i, i + 1) for i in range(parts - 1)])
    assert replay(chain).makespan_ns == pytest.approx(duration, abs=1e-6)


@given(graphs(waves=True), st.floats(1, 3))
def test_scaling_every_time_scales_the_timeline(graph: KernelGraph, factor: float) -> None:
    edges = replace(graph.edges, lag_ns=graph.edges.lag_ns * factor)
    scaled = replace(graph.with_tasks(duration_ns=graph.tasks.duration_ns * factor), edges=edges)
    for one, other in zip(simulate(scaled), simulate(graph), strict=True):
        np.testing.assert_allclose(one, factor * other, rtol=1e-6, atol=1)


@given(graphs(), st.floats(0, 1))
def test_less_demand_never_slows_the_whole_of_a_graph_without_edges(graph: KernelGraph, factor: float) -> None:
    free = KernelGraph(
        graph.tasks,
        graph.edges.select(np.zeros(len(graph.edges), bool)),
        graph.names,
        graph.lanes,
        graph.devices,
        0.0,
    )
    lighter = free.with_tasks(demand=graph.tasks.demand * factor)
    assert replay(lighter).makespan_ns <= replay(free).makespan_ns + 1e-2


@pytest.mark.parametrize("n_behind", [1, 3])
def test_equal_parts_go_to_the_highest_priority_alone(n_behind: int) -> None:
    whole = (1.0,)
    graph = make_graph([100] * (2 + n_behind), [whole] * (2 + n_behind), priority=[1, 1] + [0] * n_behind)
    _, end = simulate(replace(graph, policy=SharingPolicy(in_order=False)))
    np.testing.assert_allclose(end[:2], [200, 200])
    np.testing.assert_allclose(np.sort(end)[2:], [200 + 100 * n_behind] * n_behind if n_behind > 1 else [300])
